"""`dualmoco align`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    EXIT_PARTIAL,
    EXIT_UNRELATED,
    add_command,
    add_engine,
    add_json,
    add_model,
    add_overwrite,
    counted,
    print_json,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dualmoco.alignment.batch import Outcome
    from dualmoco.alignment.pipeline import Alignment, AlignOptions


def add(commands: Any) -> None:
    """Declares the command."""
    align = add_command(
        commands,
        "align",
        run,
        "align the sentences of a document and its translation",
        "A document is plain text, Markdown, HTML, DOCX, ODT, RTF, PDF, EPUB or subtitles (.srt, .vtt). Exit\n"
        "status 3 means that the texts are not translations of each other. With several documents, exit status 1\n"
        "means that some failed.\n\n"
        "examples:\n"
        "  dualmoco align examples/story.en.txt examples/story.zh.txt --out story.tsv --html\n"
        "\nwith your own files:\n"
        "  dualmoco align book.epub book-zh.docx --out book.tmx --min-confidence 0.5\n"
        "  dualmoco align en/ zh/ --out aligned/ --to tmx\n"
        "  dualmoco align en/ zh/ --match --out aligned/ --engine ray\n"
        "  dualmoco align --list documents.tsv --out aligned/",
    )
    align.add_argument("src_file", nargs="?", metavar="SRC", help="document, or folder of documents")
    align.add_argument("tgt_file", nargs="?", metavar="TGT", help="its translation, or folder of translations")
    given = align.add_argument_group("input")
    given.add_argument("--src", metavar="LANG", help="language of SRC (default: recognised)")
    given.add_argument("--tgt", metavar="LANG", help="language of TGT (default: recognised)")
    several = given.add_mutually_exclusive_group()
    several.add_argument("--list", metavar="FILE", help="source<TAB>target file names, instead of SRC and TGT")
    several.add_argument("--match", action="store_true", help="pair the documents of two folders by their content")
    given.add_argument("--split", default="auto", choices=("auto", "yes", "no"), help="split lines into sentences")
    output = align.add_argument_group("output")
    output.add_argument(
        "--out",
        required=True,
        metavar="PATH",
        help="write links to PATH: .tsv, .parquet, .tmx, .xlf, .xml, .tei.xml, .html or .epub; a folder for several "
        "documents",
    )
    output.add_argument(
        "--to",
        default="tsv",
        choices=("tsv", "parquet", "tmx", "xlf", "xml", "intertext.xml", "tei.xml", "html", "epub"),
        help="output format for several documents",
    )
    output.add_argument("--html", nargs="?", const="", metavar="FILE", help="write a page with both texts side by side")
    output.add_argument(
        "--min-confidence", type=float, default=0.0, metavar="C", help="minimum confidence of the links to write"
    )
    add_overwrite(output)
    add_json(output)
    add_model(align)
    alignment = align.add_argument_group("alignment")
    alignment.add_argument(
        "--longest", type=int, default=5, metavar="N", help="maximum number of sentences per side of a link"
    )
    alignment.add_argument(
        "--runs",
        default="auto",
        choices=("auto", "encoded", "averaged"),
        help="how to compute the vector of consecutive sentences",
    )
    alignment.add_argument(
        "--no-lexicon", action="store_true", help="use vectors only, without a lexicon learned from the documents"
    )
    alignment.add_argument("--force", action="store_true", help="align texts that do not look like translations")
    add_engine(align)


def run(parsed: argparse.Namespace) -> int:
    """Aligns, and prints a summary."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError, require

    require("numba", "align", "align")
    if parsed.list and parsed.src_file:
        raise ConfigError("--list and SRC were both given; expected only one of them")
    if not parsed.list and not parsed.tgt_file:
        raise ConfigError("SRC or TGT is missing; expected two documents, two folders, or --list FILE")
    folders = [] if parsed.list else [Path(name).is_dir() for name in (parsed.src_file, parsed.tgt_file)]
    if any(folders) and not all(folders):
        raise ConfigError(
            f"{parsed.src_file} and {parsed.tgt_file}: one folder and one file; expected two files or two folders"
        )
    if parsed.match and not any(folders):
        raise ConfigError("--match without two folders; expected folders of documents as SRC and TGT")
    return _run_batch(parsed) if parsed.list or all(folders) else _run_pair(parsed)


def _run_pair(parsed: argparse.Namespace) -> int:
    from pathlib import Path

    from dualmoco.alignment.pipeline import UnrelatedError, align

    page = Path(parsed.out).with_suffix(".html") if parsed.html == "" else parsed.html
    try:
        found = align(
            parsed.src_file,
            parsed.tgt_file,
            model=parsed.model,
            src_lang=parsed.src,
            tgt_lang=parsed.tgt,
            out=parsed.out,
            html=page,
            **_options(parsed),
        )
    except UnrelatedError as error:
        sys.stderr.write(f"dualmoco: {error}\n")
        return EXIT_UNRELATED
    if parsed.json:
        counts = found.counts
        print_json(
            {
                "out": parsed.out,
                "html": str(page) if page else None,
                "links": counts.links,
                "linked": counts.linked,
                "types": dict(counts.types),
                "mean_score": counts.mean_score,
            }
        )
    else:
        sys.stdout.write(describe_alignment(found, parsed.out, page))
    return 0


def describe_alignment(found: Alignment, out: str, page: str | Path | None) -> str:
    """The summary of an alignment."""
    src, tgt, counts = found.aligned.src, found.aligned.tgt, found.counts
    types = ", ".join(f"{name} {count:,}" for name, count in list(counts.types.items())[:6])
    low = sum(pair.confidence < 0.5 for pair in found.pairs)
    return (
        f"{counted(len(src.sentences), 'sentence')} {src.lang}, {counted(len(tgt.sentences), 'sentence')} {tgt.lang}\n"
        f"{counted(counts.links, 'link')}: {types}; {low:,} of low confidence\n"
        f"{out}{f', {page}' if page else ''}\n"
    )


def _run_batch(parsed: argparse.Namespace) -> int:
    from dataclasses import asdict
    from pathlib import Path

    from dualmoco.alignment.batch import SUMMARY, BatchOptions, align_folders, align_list
    from dualmoco.core.errors import ConfigError

    if parsed.html:
        raise ConfigError(f"--html {parsed.html}: a file name was given; for several documents, expected --html alone")
    options: BatchOptions = {
        **_options(parsed),
        "model": parsed.model,
        "src_lang": parsed.src,
        "tgt_lang": parsed.tgt,
        "to": parsed.to,
        "pages": parsed.html is not None,
        "engine": parsed.engine,
        "address": parsed.address,
    }
    if parsed.list:
        outcomes = align_list(parsed.list, parsed.out, **options)
    else:
        outcomes = align_folders(parsed.src_file, parsed.tgt_file, parsed.out, match=parsed.match, **options)
    failed = [outcome for outcome in outcomes if outcome.error and outcome.is_paired]
    if parsed.json:
        print_json({"out": parsed.out, "documents": [asdict(outcome) for outcome in outcomes]})
    else:
        sys.stdout.write(_describe_batch(outcomes, failed, Path(parsed.out) / SUMMARY))
    return EXIT_PARTIAL if failed else 0


def _describe_batch(outcomes: list[Outcome], failed: list[Outcome], summary: Path) -> str:
    links = sum(outcome.linked for outcome in outcomes)
    alone = sum(not outcome.is_paired for outcome in outcomes)
    lines = [f"{outcome.error}" for outcome in failed]
    lines.append(
        f"{counted(len(outcomes) - alone - len(failed), 'pair')} of documents aligned, {counted(links, 'link')}"
        + (f"; {len(failed):,} failed" if failed else "")
        + (f"; {counted(alone, 'document')} without a partner" if alone else "")
        + f": {summary}"
    )
    return "\n".join(lines) + "\n"


def _options(parsed: argparse.Namespace) -> AlignOptions:
    return {
        "split": parsed.split,
        "runs": parsed.runs,
        "longest": parsed.longest,
        "lexicon": not parsed.no_lexicon,
        "force": parsed.force,
        "overwrite": parsed.overwrite,
        "min_confidence": parsed.min_confidence,
        "backend": parsed.backend,
        "dimension": parsed.dimension,
    }
