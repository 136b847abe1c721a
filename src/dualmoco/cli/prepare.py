"""`dualmoco prepare`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_verb, print_json
from dualmoco.core.errors import ConfigError

if TYPE_CHECKING:
    from dualmoco.data.config import PrepareConfig

RECIPES = (".yaml", ".yml")


def add(verbs: Any) -> None:
    """Describes the verb."""
    prepare = add_verb(
        verbs,
        "prepare",
        "turn raw bitext into clean, distinct, test-free pairs",
        "examples:\n"
        "  dualmoco prepare recipes/prepare-en-zh.yaml --data ~/data\n"
        "  dualmoco prepare corpus.tmx more.tsv.gz --src en --tgt zh --out prepared --exclude 'tests/*.txt'\n"
        "  dualmoco prepare news.en news.zh --aligned --src en --tgt zh --out prepared heldout=2000 clean.max_ratio=3",
    )
    prepare.add_argument("inputs", nargs="+", metavar="RECIPE.yaml | FILE", help="a recipe, or the files themselves")
    prepare.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings; dualmoco/data/config.py names every key"
    )
    prepare.add_argument("--src", metavar="LANG", help="source language, same as src=LANG")
    prepare.add_argument("--tgt", metavar="LANG", help="target language, same as tgt=LANG")
    prepare.add_argument("--out", metavar="DIR", help="folder for the result, same as out=DIR")
    prepare.add_argument("--data", metavar="DIR", help="folder that files are relative to, same as root=DIR")
    prepare.add_argument("--format", default="auto", help="of the files, if their extensions do not say")
    prepare.add_argument("--columns", metavar="A,B", help="source and target column of the files, by name or number")
    prepare.add_argument("--aligned", action="store_true", help="the two files are line-aligned: source, target")
    prepare.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="test sets to keep out")
    prepare.add_argument("--on-error", choices=["stop", "skip"], help="at a line that cannot be read; default stop")
    prepare.add_argument("--json", action="store_true", help="print the manifest as JSON")
    prepare.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Prepares, and shows what was dropped."""
    from dualmoco.data.prepare import prepare

    manifest = prepare(_settings(parsed))
    if parsed.json:
        print_json(manifest.to_dict())
    else:
        sys.stdout.write(manifest.to_markdown())
        for problem in manifest.problems[:10]:
            sys.stderr.write(f"skipped {problem}\n")
    return 0


def _settings(parsed: argparse.Namespace) -> PrepareConfig:
    from dataclasses import replace

    from dualmoco.core.config_loader import read_recipe
    from dualmoco.data.config import CorpusConfig, PrepareConfig

    words = parsed.inputs + parsed.overrides
    overrides = [word for word in words if "=" in word]
    files = [word for word in words if "=" not in word]
    options = {
        "src": parsed.src,
        "tgt": parsed.tgt,
        "out": parsed.out,
        "root": parsed.data,
        "on_error": parsed.on_error,
    }
    overrides = [f"{key}={value}" for key, value in options.items() if value] + overrides
    recipe = files[0] if files and files[0].endswith(RECIPES) else None
    if recipe and len(files) > 1:
        raise ConfigError(f"{files[1]!r}: given beside a recipe; expected the recipe alone, or files alone")
    config = read_recipe(PrepareConfig, recipe, overrides)
    if parsed.exclude:
        config = replace(config, exclude=replace(config.exclude, files=[*config.exclude.files, *parsed.exclude]))
    if recipe:
        return config
    columns = parsed.columns.split(",") if parsed.columns else []
    if parsed.aligned:
        if len(files) != 2:
            raise ConfigError(f"--aligned with {len(files)} files; expected two: source and target")
        corpora = [CorpusConfig(files=files[:1], tgt_files=files[1:])]
    else:
        corpora = [CorpusConfig(files=[file], format=parsed.format, columns=columns) for file in files]
    return replace(config, corpora=corpora)
