"""`dualmoco score`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_bitext,
    add_command,
    add_mining,
    add_on_error,
    add_pairs_output,
    add_report,
    counted,
    describe_kept,
    describe_skipped,
    mining_options,
    pairs_output,
    parse_columns,
    print_json,
)

if TYPE_CHECKING:
    from dualmoco.mining.mine import MiningResult


def add(commands: Any) -> None:
    """Declares the command."""
    score = add_command(
        commands,
        "score",
        run,
        "score the pairs of a bitext, to filter it",
        "The same command resumes an interrupted job.\n\n"
        "examples:\n"
        "  dualmoco score examples/pairs.tsv --out scored.tsv\n"
        "  dualmoco score - --out - < examples/pairs.tsv\n"
        "\nwith your own files:\n"
        "  dualmoco score news.en news.zh --threshold 0.5 --out clean.parquet",
    )
    given = add_bitext(score)
    add_on_error(given)
    add_pairs_output(score)
    scoring = add_mining(score, threshold="the model's own threshold of the cosine", margin="absolute")
    add_report(scoring)


def run(parsed: argparse.Namespace) -> int:
    """Scores, and prints quantiles of the scores."""
    from dualmoco.mining.score import score
    from dualmoco.text.files import standard_input

    ending = ".tsv" if parsed.format == "auto" else f".{parsed.format}"
    with standard_input([parsed.bitext], ending) as (bitext,), pairs_output(parsed) as (out, summary):
        found = score(
            bitext,
            model=parsed.model,
            src_lang=parsed.src,
            tgt_lang=parsed.tgt,
            out=out,
            tgt_file=parsed.tgt_file,
            format=parsed.format,
            columns=parse_columns(parsed.columns),
            on_error=parsed.on_error,
            report=parsed.report,
            **mining_options(parsed),
        )
        if not parsed.json:
            summary.write(describe_scores(found, parsed.out))
    if parsed.json:
        print_json(
            {
                "out": parsed.out,
                "pairs": found.candidates,
                "kept": len(found),
                "quantiles": found.quantiles,
                "kept_at": found.kept_at,
                "untranslated": found.untranslated,
                "unreadable": found.unreadable,
            }
        )
    return 0


def describe_scores(found: MiningResult, out: str) -> str:
    """The summary of a scored bitext that was written to `out`."""
    lines = [found.model_calibration.describe_cosine()] if found.model_calibration else []
    spread = ", ".join(f"{value:.3f}" for value in found.quantiles)
    scored = f"{counted(found.candidates, 'pair')} scored{describe_skipped(found.unreadable)}"
    lines += [f"{scored}; 5, 25, 50, 75, 95 %: {spread}", describe_kept(found.kept_at)]
    if found.untranslated:
        lines.append(f"{counted(found.untranslated, 'pair')} not translated, scored -1")
    return "\n".join([*lines, f"{counted(len(found), 'pair')} kept: {out}"]) + "\n"
