"""`dualmoco prepare`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dualmoco.cli.options import (
    BITEXT_FILES,
    STANDARD_INPUT_FORMAT,
    add_command,
    add_data,
    add_format,
    add_json,
    add_on_error,
    add_overrides,
    pair_files,
    parse_columns,
    print_result,
)
from dualmoco.core.errors import ConfigError


def add(commands: Any) -> None:
    """Declares the command."""
    prepare = add_command(
        commands,
        "prepare",
        run,
        "turn raw bitext into clean, distinct pairs that are in no test set",
        "key=value overrides a setting; docs/guides/corpora.md lists the keys.\n\n"
        "examples:\n"
        "  dualmoco prepare examples/pairs.tsv --src en --tgt zh --out prepared heldout=10\n"
        "\nwith your own files:\n"
        "  dualmoco prepare recipes/prepare-en-zh.yaml --data ~/data\n"
        "  dualmoco prepare corpus.tmx more.tsv.gz --src en --tgt zh --out prepared --exclude 'tests/*.txt'\n"
        "  dualmoco prepare news.en news.zh --format aligned --src en --tgt zh --out prepared clean.max_ratio=3",
    )
    prepare.add_argument("inputs", nargs="+", metavar="RECIPE.yaml | FILE", help=f"recipe; or {BITEXT_FILES}")
    add_overrides(prepare)
    given = prepare.add_argument_group("input")
    given.add_argument("--src", metavar="LANG", help="source language, same as src=LANG")
    given.add_argument("--tgt", metavar="LANG", help="target language, same as tgt=LANG")
    add_format(given)
    add_data(given, "folder that files are relative to, same as root=DIR", "root of the recipe")
    given.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="test sets to exclude")
    add_on_error(given, default=None)
    output = prepare.add_argument_group("output")
    output.add_argument("--out", metavar="FOLDER", help="write pairs to FOLDER, same as out=FOLDER")
    add_json(output, "manifest")


def run(parsed: argparse.Namespace) -> int:
    """Prepares, and prints what was dropped."""
    from dualmoco.data.prepare import RECIPE_ENDINGS, prepare
    from dualmoco.text.files import standard_input

    words = parsed.inputs + parsed.overrides
    files = [word for word in words if "=" not in word]
    is_recipe = files[:1] and files[0].endswith(RECIPE_ENDINGS)
    if is_recipe and len(files) > 1:
        raise ConfigError(
            f"{files[1]!r}: a second file next to a recipe; expected either one recipe or only bitext files"
        )
    with standard_input(files, STANDARD_INPUT_FORMAT) as names:
        pairs = pair_files(names, "auto" if is_recipe else parsed.format)
        manifest = prepare(
            [src for src, _ in pairs],
            *(word for word in words if "=" in word),
            src=parsed.src,
            tgt=parsed.tgt,
            out=parsed.out,
            root=parsed.data,
            tgt_files=[tgt for _, tgt in pairs if tgt],
            format="auto" if parsed.format == "aligned" else parsed.format,
            columns=parse_columns(parsed.columns) or (),
            exclude=parsed.exclude,
            on_error=parsed.on_error,
        )
    if not parsed.json:
        for problem in manifest.problems[:10]:
            sys.stderr.write(f"skipped {problem}\n")
    return print_result(parsed, manifest.to_dict(), manifest.to_markdown())
