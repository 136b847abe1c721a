"""`dualmoco inspect`."""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_verb, print_json

if TYPE_CHECKING:
    from dualmoco.data.inspection import Inspection, SideView

BAR_WIDTH = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"


def add(verbs: Any) -> None:
    """Describes the verb."""
    inspect = add_verb(
        verbs,
        "inspect",
        "look at some bitext: lengths, duplicates, languages, examples",
        "examples:\n"
        "  dualmoco inspect prepared --src en --tgt zh\n"
        "  dualmoco inspect corpus.tsv.xz --src en --tgt zh --json",
    )
    inspect.add_argument("files", nargs="+", metavar="FILE", help="bitext in any format of prepare, or its result")
    inspect.add_argument("--src", default="en", metavar="LANG", help="source language")
    inspect.add_argument("--tgt", default="zh", metavar="LANG", help="target language")
    inspect.add_argument("--format", default="auto", help="of the files, if their extensions do not say")
    inspect.add_argument("--columns", metavar="A,B", help="source and target column, by name or number from 0")
    inspect.add_argument("--aligned", action="store_true", help="the two files are line-aligned: source, target")
    inspect.add_argument("--seed", type=int, default=0, help="of the random examples")
    inspect.add_argument("--json", action="store_true", help="print the result as JSON")
    inspect.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Inspects, and shows what is there."""
    from dataclasses import asdict
    from pathlib import Path

    from dualmoco.core.errors import ConfigError
    from dualmoco.data.inspection import inspect_sources
    from dualmoco.data.readers.base import Source
    from dualmoco.data.readers.formats import check_format
    from dualmoco.text.files import find_files

    check_format(parsed.format)
    paths = find_files(parsed.files, ".", folders=True)
    names = parsed.columns.split(",") if parsed.columns else []
    if len(names) not in (0, 2):
        raise ConfigError(f"--columns {parsed.columns}; expected two, such as 0,1 or en,zh")
    columns = (names[0], names[1]) if names else None
    if parsed.aligned:
        if len(paths) != 2:
            raise ConfigError(f"--aligned with {len(paths)} files; expected two: source and target")
        sources = [Source(paths[0], parsed.src, parsed.tgt, columns, Path(paths[1]))]
    else:
        sources = [Source(path, parsed.src, parsed.tgt, columns) for path in paths]
    result = inspect_sources(sources, parsed.format, seed=parsed.seed)
    if parsed.json:
        print_json(asdict(result))
    else:
        sys.stdout.write(show_inspection(result))
    return 0


def show_inspection(result: Inspection) -> str:
    """The inspection as text with small plots."""
    lines = [f"{result.pairs:,} pairs, {100 * result.duplicates:.1f} % repeated, {result.unreadable} lines unreadable"]
    for view in result.sides:
        lines += ["", *_show_side(view, result.pairs)]
    lines += ["", "pairs that cleaning would drop"]
    lines += [
        f"  {name:<20} {count:>10,}  {100 * count / result.pairs:5.2f} %"
        for name, count in result.suspicious.items()
        if count
    ] or ["  none"]
    lines += ["", "random pairs"]
    for src, tgt in result.random_pairs:
        lines += [f"  {src}", f"  {tgt}", ""]
    if result.suspicious_pairs:
        lines += ["suspicious pairs"]
        for reason, src, tgt in result.suspicious_pairs:
            lines += [f"  [{reason}]", f"  {src[:200]}", f"  {tgt[:200]}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _show_side(view: SideView, pairs: int) -> list[str]:
    from dualmoco.data.inspection import LENGTH_BINS

    mix = ", ".join(f"{lang} {100 * share:.0f} %" for lang, share in view.languages.items() if share >= 0.005)
    lines = [
        f"{view.lang}: {view.chars / pairs:.1f} characters and {view.tokens / pairs:.1f} tokens a sentence, longest "
        f"{view.longest:,} tokens, {100 * view.duplicates:.1f} % repeated; identified as {mix}",
    ]
    most = max(view.histogram)
    ranges = [str(low) if low + 1 == high else f"{low}-{high - 1}" for low, high in pairwise(LENGTH_BINS)]
    names = ["0", *ranges, f"{LENGTH_BINS[-1]}+"]
    for name, count in zip(names, view.histogram, strict=True):
        if count:
            lines.append(f"  {name:>8} tokens {bar(count / most)} {count:,}")
    return lines


def bar(share: float) -> str:
    """A bar of at most BAR_WIDTH characters."""
    eighths = round(8 * BAR_WIDTH * share)
    text = "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return (text or "▏").ljust(BAR_WIDTH)
