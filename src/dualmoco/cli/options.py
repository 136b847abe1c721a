"""How a verb describes itself and shows what it did, and the options that several verbs share."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, cast

from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL

if TYPE_CHECKING:
    from dualmoco.mining.mine import MiningOptions
    from dualmoco.models.model import Model


MODELS = f"{DEFAULT_MODEL} or {FAST_MODEL}, which come with dualmoco; run or model folder, hub name, or package:NAME"


class Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults as they are and examples as they are written."""


def add_verb(verbs: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    """Adds a verb.

    Args:
        verbs: The verbs there are.
        name: What the user types.
        text: What it does, in a few words.
        epilog: Examples.

    Returns:
        Its parser.
    """
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=Formatter
    )
    verb.add_argument("--quiet", action="store_true", help="no notes beside the progress bar")
    return verb


def print_json(content: Any) -> None:
    """Writes a result for machines to standard output."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")


def counted(number: int, noun: str) -> str:
    """A number and what it counts: 1 pair, 2 pairs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Options of a verb that opens a model."""
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="MODEL", help=MODELS)
    parser.add_argument("--backend", default="auto", help="auto, torch, static, int8, onnx or onnx-int8")


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """Options of a verb that encodes text files."""
    add_model(parser)
    parser.add_argument("--precision", default="fp32", help="of stored vectors: fp32, fp16 or int8")
    parser.add_argument("--shard-rows", type=int, default=65_536, metavar="N", help="sentences in a file of vectors")
    parser.add_argument("--engine", default="local", help="local, or ray for a Ray cluster")
    parser.add_argument("--address", metavar="HOST:PORT", help="of a running Ray cluster; a new local one if not given")


def add_mining(parser: argparse.ArgumentParser, work: str) -> None:
    """Options of a verb that looks for neighbours."""
    add_encoding(parser)
    parser.add_argument("--margin", default="distance", help="of scores: distance, ratio or absolute")
    parser.add_argument("--neighbors", type=int, default=3, metavar="K", help="in each mean")
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="SCORE",
        help="lowest score to accept; the model's own if not given",
    )
    parser.add_argument(
        "--approximate", action="store_true", help="compare only sentences of inverted lists close by (FAISS)"
    )
    parser.add_argument(
        "--probes", type=int, default=14, help="lists a sentence visits on average in approximate search"
    )
    parser.add_argument("--memory", default="1G", metavar="SIZE", help="for candidates, such as 500M or 4G")
    parser.add_argument("--work", metavar="FOLDER", help=f"for vectors and neighbours; {work} if not given")
    parser.add_argument("--keep", action="store_true", help="keep the work folder, as one named by --work always is")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def mining_options(parsed: argparse.Namespace) -> MiningOptions:
    """The options of `add_mining` as the Python functions take them."""
    names = (
        "threshold",
        "margin",
        "neighbors",
        "approximate",
        "probes",
        "memory",
        "precision",
        "shard_rows",
        "work",
        "keep",
        "engine",
        "address",
        "backend",
    )
    return cast("MiningOptions", {name: getattr(parsed, name) for name in names})


def open_named_model(parsed: argparse.Namespace) -> Model:
    """Opens the model that was named, with the back-end that was named.

    Args:
        parsed: The command line.

    Returns:
        The model.

    Raises:
        ConfigError: An unknown back-end.
        ModelError: A model that cannot be opened.
    """
    from dualmoco.models.load import open_model

    return open_model(parsed.model, parsed.backend)
