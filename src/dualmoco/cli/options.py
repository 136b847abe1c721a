"""Options that the verbs which encode and mine have in common."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualmoco.embeddings.engines.engine import Engine
    from dualmoco.mining.mine import MineSettings
    from dualmoco.models.model import Model

NO_MODEL = (
    "no model named; expected --model FOLDER: train one in minutes with "
    "dualmoco train recipes/static-cpu.yaml --data DATA, or a tiny one with make demo (runs/demo)"
)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """Options of a verb that encodes text."""
    parser.add_argument("--model", metavar="MODEL", help="run or model folder, hub name, or package:NAME")
    parser.add_argument("--backend", default="auto", help="auto, torch, static, onnx or onnx-int8")
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
        "--threshold", type=float, metavar="SCORE", help="lowest score to accept; all pairs if not given"
    )
    parser.add_argument("--approximate", action="store_true", help="compare only sentences of cells close by (FAISS)")
    parser.add_argument(
        "--probes", type=int, default=14, help="cells a sentence visits on average in approximate search"
    )
    parser.add_argument("--memory", default="1G", metavar="SIZE", help="for candidates, such as 500M or 4G")
    parser.add_argument("--work", metavar="FOLDER", help=f"for vectors and neighbours; {work} if not given")
    parser.add_argument("--keep", action="store_true", help="keep the work folder, as one named by --work always is")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def named_model(parsed: argparse.Namespace) -> str:
    """The model that was named.

    Args:
        parsed: The command line.

    Returns:
        Its name.

    Raises:
        ConfigError: None was named.
    """
    from dualmoco.core.errors import ConfigError

    if not parsed.model:
        raise ConfigError(NO_MODEL)
    return str(parsed.model)


def open_named_model(parsed: argparse.Namespace) -> Model:
    """Opens the model that was named, with the back-end that was named.

    Args:
        parsed: The command line.

    Returns:
        The model.

    Raises:
        ConfigError: None was named, or an unknown back-end.
        ModelError: A model that cannot be opened.
    """
    name = named_model(parsed)

    from dualmoco.models.opening import open_model

    return open_model(name, parsed.backend)


def open_engine(parsed: argparse.Namespace) -> Engine:
    """The engine that was named.

    Args:
        parsed: The command line.

    Returns:
        The engine.

    Raises:
        ConfigError: An unknown engine, or one that is not installed.
    """
    from dualmoco.core.errors import ConfigError

    if parsed.engine == "local":
        from dualmoco.embeddings.engines.engine import LocalEngine

        return LocalEngine()
    if parsed.engine == "ray":
        from dualmoco.embeddings.engines.cluster import RayEngine

        return RayEngine(parsed.address)
    raise ConfigError(f"--engine {parsed.engine}; expected local or ray")


def mine_settings(parsed: argparse.Namespace) -> MineSettings:
    """How to mine, from the command line.

    Args:
        parsed: The command line.

    Returns:
        The settings.

    Raises:
        ConfigError: A value that cannot be, or FAISS is needed and not installed.
    """
    from dualmoco.core.errors import ConfigError
    from dualmoco.embeddings.arrays import VectorPrecision
    from dualmoco.mining.margins import Margin, Retrieval
    from dualmoco.mining.mine import MineSettings
    from dualmoco.search.approximate import require_faiss

    named_model(parsed)
    check_counts(parsed, "neighbors", "probes", "shard_rows")
    if parsed.approximate:
        require_faiss()
    retrieval = getattr(parsed, "retrieval", Retrieval.max.value)
    try:
        return MineSettings(
            VectorPrecision(parsed.precision), Margin(parsed.margin), parsed.neighbors, Retrieval(retrieval),
            parsed.threshold, parsed.approximate, parsed.probes, parse_size(parsed.memory), parsed.shard_rows,
        )  # fmt: skip
    except ValueError as error:
        choices = {"Precision": VectorPrecision, "Margin": Margin, "Retrieval": Retrieval}
        kind = next((kind for name, kind in choices.items() if name in str(error)), None)
        known = ", ".join(choice.value for choice in kind) if kind else "another"
        raise ConfigError(f"{error}; expected one of {known}") from None


def check_counts(parsed: argparse.Namespace, *names: str) -> None:
    """Refuses numbers below one.

    Args:
        parsed: The command line.
        names: Of its options that count something.

    Raises:
        ConfigError: One is zero or negative.
    """
    from dualmoco.core.errors import ConfigError

    for name in names:
        if getattr(parsed, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(parsed, name)}; expected at least 1")


def parse_size(text: str) -> int:
    """Bytes of a size such as 500M.

    Args:
        text: A number and perhaps k, M or G.

    Returns:
        The number of bytes.

    Raises:
        ConfigError: Something else.
    """
    from dualmoco.core.errors import ConfigError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)i?b?", text.strip().lower())
    if not match:
        raise ConfigError(f"--memory {text}; expected a size such as 500M or 4G")
    return int(float(match[1]) * UNITS[match[2]])


@contextmanager
def working_in(parsed: argparse.Namespace, out: Path) -> Iterator[Path]:
    """Gives the folder where vectors and neighbours lie while a file of pairs is made.

    It is removed after the block, unless that fails, or the user named the folder or wants it kept.

    Args:
        parsed: The command line.
        out: The file of pairs.

    Yields:
        The folder.

    Raises:
        RunError: Another process is at work in it.
    """
    import shutil

    from dualmoco.core.storage import locked

    work = Path(parsed.work) if parsed.work else out.with_name(f"{out.name}.work")
    with locked(work):
        yield work
    if not parsed.work and not parsed.keep:
        shutil.rmtree(work)
