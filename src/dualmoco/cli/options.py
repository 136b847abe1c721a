"""What commands share: how they are declared, their common options, and how they print results.

An option means the same in every command that has it; `docs/reference/commands.md` lists these options.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL, MANY_STATIC, default_model

if TYPE_CHECKING:
    from pathlib import Path

    from dualmoco.data.readers.base import Source
    from dualmoco.mining.mine import MiningOptions
    from dualmoco.models.model import Model

FileName = TypeVar("FileName", "str", "Path")
Container = argparse._ActionsContainer
"""A parser or an option group."""

EXIT_PARTIAL = 1
"""Part of the work failed (`ablate`, `align` on several documents), or `plan` found that a run does not fit."""
EXIT_USAGE = 2
"""An option, file, model or recipe is invalid; one line on standard error says why."""
EXIT_UNRELATED = 3
"""`align`: the two texts are not translations of each other."""
EXIT_INTERNAL = 70
"""An internal error: one line on standard error, and with `--debug` the traceback. Please report it."""

BACKEND_CHOICES = ("auto", "torch", "static", "int8", "onnx", "onnx-int8")
FORMAT_CHOICES = ("auto", *"tsv csv jsonl aligned moses tmx xliff parquet arrow dataset gettext".split())
MARGIN_CHOICES = ("distance", "ratio", "absolute")
POOLING_CHOICES = ("auto", "mean", "max", "cls", "last", "first-last")
PRECISION_CHOICES = ("fp32", "fp16", "int8")
"""The choices of options, repeated here because the modules that define them are slow to import."""

BITEXT_FILES = "bitext files, or - for standard input; with --format aligned, a source file and its target file in turn"
STANDARD_INPUT_FORMAT = ".tsv"
"""Default format of a bitext on standard input, as a file name extension."""
MODEL_HELP = (
    f"{DEFAULT_MODEL}, {FAST_MODEL} or {MANY_STATIC}, which come with dualmoco; a run or model folder, hub name or "
    "package:NAME"
)
DEFAULT_MODEL_HELP = f"(default: {DEFAULT_MODEL}, or {MANY_STATIC} for languages other than English and Chinese)"


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, details: str
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
        commands: Subparsers to add the command to.
        name: Name of the command.
        run: Function that runs the command and returns the exit status.
        summary: Short description.
        details: Notes and examples, shown after the options.

    Returns:
        The parser of the command.
    """
    parser = commands.add_parser(name, help=summary, description=summary, epilog=details, add_help=False)
    parser.set_defaults(run=run)
    return cast(argparse.ArgumentParser, parser)


def print_json(content: Any) -> None:
    """Writes a result to standard output as JSON."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False) + "\n")


def print_result(parsed: argparse.Namespace, content: Any, text: str) -> int:
    """Prints a result as JSON or as text, and returns the exit status of success."""
    if parsed.json:
        print_json(content)
    else:
        sys.stdout.write(text)
    return 0


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 pair", "2 pairs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def add_languages(group: Container, src: str = "the source side", tgt: str = "the target side") -> None:
    """Adds the languages of both sides, which are en and zh by default."""
    group.add_argument("--src", default="en", metavar="LANG", help=f"language of {src}")
    group.add_argument("--tgt", default="zh", metavar="LANG", help=f"language of {tgt}")


def add_recognized_languages(group: Container, src: str = "the source side", tgt: str = "the target side") -> None:
    """Adds the languages of both sides, which are recognised by default."""
    group.add_argument("--src", metavar="LANG", help=f"language of {src} (default: recognised)")
    group.add_argument("--tgt", metavar="LANG", help=f"language of {tgt} (default: recognised)")


def add_language(group: Container, what: str) -> None:
    """Adds the language of a text, which is recognised by default."""
    group.add_argument("--lang", metavar="LANG", help=f"language of {what} (default: recognised)")


def add_bitext(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds a bitext in one or two files, for `make_source`; returns the group of its options."""
    parser.add_argument(
        "bitext",
        metavar="BITEXT",
        help="sentence pairs: an output folder of prepare, or a file in any format that prepare reads",
    )
    parser.add_argument(
        "tgt_file", nargs="?", metavar="TGT", help="translations of BITEXT, line by line, if BITEXT has only one side"
    )
    group = parser.add_argument_group("input")
    add_recognized_languages(group)
    add_format(group)
    return group


def add_format(group: Container) -> None:
    """Adds the format and the columns of a bitext."""
    group.add_argument(
        "--format", default="auto", choices=FORMAT_CHOICES, help="input format; auto uses the file extension"
    )
    group.add_argument("--columns", metavar="A,B", help="source and target column, by name or by number from 0")


def add_on_error(group: Container, default: str | None = "stop") -> None:
    """Adds what to do with unreadable lines."""
    group.add_argument("--on-error", default=default, choices=("stop", "skip"), help="what to do with unreadable lines")


def add_data(group: Container, what: str, default: str = "$DUALMOCO_DATA") -> None:
    """Adds the data folder."""
    group.add_argument("--data", metavar="DIR", help=f"{what} (default: {default})")


def add_recipe(parser: Container, what: str = "RECIPE") -> None:
    """Adds a recipe or study, and overrides of its settings."""
    parser.add_argument(
        what.lower(), metavar=f"{what}.yaml", help=f"{what.lower()} file, or name of a packaged {what.lower()}"
    )
    add_overrides(parser, what.lower())


def add_overrides(parser: Container, what: str = "recipe") -> None:
    """Adds overrides of the settings in a file."""
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help=f"settings that override the {what}"
    )


def read_overrides(parsed: argparse.Namespace) -> list[str]:
    """The settings of the command line, with `--data` as the folder of data files."""
    return ([f"data.root={json.dumps(parsed.data)}"] if parsed.data else []) + cast(list[str], parsed.overrides)


def add_pairs_output(parser: argparse.ArgumentParser) -> None:
    """Adds the output file of pairs."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="write pairs to FILE: .tsv, .csv, .jsonl, .tmx (also with .gz) or .parquet; - for TSV on standard output",
    )
    add_overwrite(group)
    add_json(group)


def add_json(group: Container, what: str = "result") -> None:
    """Adds output for machines."""
    group.add_argument("--json", action="store_true", help=f"print the {what} as JSON")


def add_overwrite(group: Container, what: str = "replace existing files, even if they were edited") -> None:
    """Adds permission to replace existing files."""
    group.add_argument("--overwrite", action="store_true", help=what)


def add_model(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds the model of a command; `open_named_model` opens it."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="MODEL", help=f"{MODEL_HELP} {DEFAULT_MODEL_HELP}")
    add_backend(group)
    add_dimension(group)
    return group


def add_backend(group: Container) -> None:
    """Adds the library that runs the model."""
    group.add_argument("--backend", default="auto", choices=BACKEND_CHOICES, help="library that runs the model")


def add_dimension(group: Container) -> None:
    """Adds the number of vector components to keep."""
    group.add_argument(
        "--dimension", type=int, metavar="N", help="keep the first N components of the vectors (default: all)"
    )


def add_pooling(group: Container) -> None:
    """Adds the pooling of token vectors."""
    group.add_argument(
        "--pooling", default="auto", choices=POOLING_CHOICES, help="pooling method; auto uses the model's own"
    )


def add_precision(group: Container) -> None:
    """Adds the precision of stored vectors."""
    group.add_argument("--precision", default="fp32", choices=PRECISION_CHOICES, help="precision of stored vectors")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Adds where to run: on this machine or on a Ray cluster."""
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--engine", default="local", choices=("local", "ray"), help="where to run: this machine, or a Ray cluster"
    )
    group.add_argument("--address", metavar="HOST:PORT", help="head of a Ray cluster (default: start a local one)")


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that encodes text files."""
    group = add_model(parser)
    add_precision(group)
    group.add_argument("--shard-rows", type=int, default=65_536, metavar="N", help="sentences per vector file")
    add_engine(parser)


def add_margin(group: Container, default: str = "distance") -> None:
    """Adds the margin that pairs are scored with."""
    group.add_argument("--margin", default=default, choices=MARGIN_CHOICES, help="margin type; absolute is the cosine")
    group.add_argument("--neighbors", type=int, default=3, metavar="K", help="neighbors averaged for the margin")


def add_report(group: Container) -> None:
    """Adds a report about the scores."""
    group.add_argument(
        "--report", metavar="FILE", help="write a histogram of the scores, with sample pairs, to FILE.html"
    )


def describe_kept(kept: Sequence[tuple[float, int]]) -> str:
    """How many pairs reach some thresholds."""
    thresholds, counts = (" / ".join(cells) for cells in zip(*((f"{a:g}", f"{b:,}") for a, b in kept), strict=True))
    return f"pairs at {thresholds}: {counts}"


def describe_skipped(count: int) -> str:
    """How many lines were skipped, worded as the end of a sentence."""
    return f"; {counted(count, 'unreadable line')} skipped" if count else ""


@contextmanager
def pairs_output(parsed: argparse.Namespace) -> Iterator[tuple[str, IO[str]]]:
    """The file to write pairs to, and where to write the summary.

    For `--out -`, a temporary file is copied to standard output, and the summary goes to standard error.
    """
    import tempfile
    from pathlib import Path

    from dualmoco.core.errors import ConfigError

    if parsed.out != "-":
        yield parsed.out, sys.stdout
        return
    if parsed.json:
        raise ConfigError(
            "--out - and --json were both given; expected one of them, because both write to standard output"
        )
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as folder:
        path = Path(folder) / "pairs.tsv"
        yield str(path), sys.stderr
        sys.stdout.write(path.read_text(encoding="utf-8"))


def add_mining(parser: argparse.ArgumentParser, *, threshold: str, margin: str = "distance") -> argparse._ArgumentGroup:
    """Adds the options of a command that scores pairs, and returns the group of the scoring options.

    Args:
        parser: Parser of the command.
        threshold: Description of the default threshold.
        margin: Default margin.
    """
    scoring = parser.add_argument_group("search and scoring")
    add_margin(scoring, margin)
    scoring.add_argument(
        "--threshold", type=float, metavar="SCORE", help=f"lowest score to accept (default: {threshold})"
    )
    scoring.add_argument(
        "--calibration", metavar="FILE", help="output of dualmoco calibrate (default: the file in the model's folder)"
    )
    scoring.add_argument(
        "--approximate", action="store_true", help="search only the nearest inverted lists (needs faiss)"
    )
    scoring.add_argument(
        "--probes", type=int, default=14, metavar="N", help="inverted lists searched per sentence, on average"
    )
    add_encoding(parser)
    advanced = parser.add_argument_group("advanced")
    advanced.add_argument("--memory", default="1G", metavar="SIZE", help="memory for candidates, such as 500M or 4G")
    advanced.add_argument("--work", metavar="FOLDER", help="folder for vectors and neighbors (default: OUT.work)")
    advanced.add_argument(
        "--keep", action="store_true", help="keep the work folder; a folder given by --work is always kept"
    )
    return scoring


def mining_options(parsed: argparse.Namespace) -> MiningOptions:
    """The options of `add_mining` as keyword arguments of the Python functions."""
    from dualmoco.mining.mine import MiningOptions

    names = MiningOptions.__annotations__.keys() - {"progress"}
    return cast("MiningOptions", {name: getattr(parsed, name) for name in names})


def open_named_model(parsed: argparse.Namespace, langs: Iterable[str]) -> Model:
    """Opens the model of a command with its options; the default model depends on the languages."""
    from dualmoco.models.load import open_model

    name = parsed.model or default_model(langs)
    pooling, prompt = getattr(parsed, "pooling", "auto"), getattr(parsed, "prompt", "")
    return open_model(name, parsed.backend, pooling=pooling, prompt=prompt, dimension=parsed.dimension)


def parse_columns(text: str | None) -> tuple[str, str] | None:
    """The two columns of `--columns`; ConfigError if there are not two."""
    from dualmoco.core.errors import ConfigError

    names = text.split(",") if text else []
    if len(names) not in (0, 2):
        raise ConfigError(f"--columns {text}; expected two columns, such as 0,1 or en,zh")
    return (names[0], names[1]) if names else None


def pair_files(paths: Sequence[FileName], form: str) -> list[tuple[FileName, FileName | None]]:
    """Each bitext file alone, or with `--format aligned` each source file with the target file that follows it."""
    from dualmoco.core.errors import ConfigError

    if form != "aligned":
        return [(path, None) for path in paths]
    if len(paths) % 2:
        raise ConfigError(
            f"--format aligned with {counted(len(paths), 'file')}; expected source and target files in turn"
        )
    return list(zip(paths[::2], paths[1::2], strict=True))


def make_source(parsed: argparse.Namespace, path: str | Path, tgt_path: str | Path | None) -> Source:
    """The source for the bitext readers, from one or two files and the options of `add_bitext`."""
    from pathlib import Path

    from dualmoco.data.readers.base import Source

    tgt = Path(tgt_path) if tgt_path else None
    return Source(Path(path), parsed.src, parsed.tgt, parse_columns(parsed.columns), tgt)
