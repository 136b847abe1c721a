"""`dualmoco inspect`."""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    BITEXT_FILES,
    STANDARD_INPUT_FORMAT,
    add_command,
    add_format,
    add_json,
    add_languages,
    add_on_error,
    make_source,
    pair_files,
    print_result,
)

if TYPE_CHECKING:
    from dualmoco.data.inspection import Inspection, SideView

BAR_WIDTH = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"


def add(commands: Any) -> None:
    """Declares the command."""
    inspect = add_command(
        commands,
        "inspect",
        run,
        "report lengths, duplicates, languages and examples of a bitext",
        "examples:\n"
        "  dualmoco inspect examples/pairs.tsv\n"
        "\nwith your own files:\n"
        "  dualmoco inspect news.en news.zh --format aligned --json",
    )
    inspect.add_argument("files", nargs="+", metavar="FILE", help=BITEXT_FILES)
    given = inspect.add_argument_group("input")
    add_languages(given)
    add_format(given)
    add_on_error(given, default="skip")
    inspect.add_argument("--seed", type=int, default=0, help="random seed of the examples")
    add_json(inspect.add_argument_group("output"))


def run(parsed: argparse.Namespace) -> int:
    """Inspects, and prints the report."""
    from dataclasses import asdict

    from dualmoco.data.inspection import inspect_sources
    from dualmoco.text.files import find_files, standard_input

    with standard_input(parsed.files, STANDARD_INPUT_FORMAT) as files:
        paths = find_files(files, ".", folders=True)
        sources = [make_source(parsed, src, tgt) for src, tgt in pair_files(paths, parsed.format)]
        result = inspect_sources(sources, parsed.format, seed=parsed.seed, skip=parsed.on_error == "skip")
    return print_result(parsed, asdict(result), show_inspection(result))


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
        f"{view.lang}: {view.chars / pairs:.1f} characters and {view.tokens / pairs:.1f} tokens per sentence, longest "
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
