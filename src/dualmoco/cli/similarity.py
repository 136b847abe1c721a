"""`dualmoco similarity`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import (
    add_command,
    add_model,
    add_overwrite,
    add_recognized_languages,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dualmoco.core.vectors import Vectors

    Writer = Callable[[str], object]
    Encode = Callable[[list[str]], Vectors]

LINES_PER_BATCH = 1024  # encoded at once
HEATMAP_LINES = 1000  # maximum per file
MATRIX_COLUMNS = 20_000  # maximum lines of the second file with --all, because their vectors stay in memory
SCORE_DECIMALS = 6


def add(commands: Any) -> None:
    """Declares the command."""
    similarity = add_command(
        commands,
        "similarity",
        run,
        "compute cosine similarities of sentences or files, within a language or across",
        "Two sentences give one score. Two files are compared line by line, or with --all each line with all lines.\n\n"
        "examples:\n"
        '  dualmoco similarity "How are you?" "你好吗？"\n'
        "  dualmoco similarity examples/en.txt examples/zh.txt --out scores.tsv\n"
        "  dualmoco similarity examples/en.txt examples/en.txt --all --heatmap near.png",
    )
    similarity.add_argument("given", nargs=2, metavar="SENTENCE|FILE", help="two sentences, or two files of sentences")
    add_recognized_languages(similarity.add_argument_group("input"), "the first sentence or file", "the second")
    output = similarity.add_argument_group("output")
    output.add_argument("--all", action="store_true", help="compare every line with every line of the other file")
    output.add_argument(
        "--out",
        metavar="FILE",
        help="write the scores of two files to FILE, as JSON if .jsonl, otherwise as TSV (default: standard output)",
    )
    output.add_argument("--heatmap", metavar="FILE", help="draw all similarities to FILE: .png, .svg or .html")
    add_overwrite(output)
    output.add_argument("--json", action="store_true", help="print one JSON line per result, not a table")
    add_model(similarity)


def run(parsed: argparse.Namespace) -> int:
    """Compares two sentences or two files, and prints or writes the scores."""
    from pathlib import Path

    if parsed.heatmap:
        from dualmoco.evaluation.canvas import check_figure_path

        check_figure_path(Path(parsed.heatmap))
    files = given_files(parsed)
    counts = [count_sentences(path) for path in files]
    check_files(parsed, files, counts)

    from dualmoco.models.load import GivenText, open_for

    texts = [sentences(path) for path in files] or [iter([sentence]) for sentence in parsed.given]
    names = [str(path) for path in files] or [f"{sentence!r:.60}" for sentence in parsed.given]
    given = list(map(GivenText, (parsed.src, parsed.tgt), texts, names))
    model, langs = open_for(parsed.model, given, parsed.backend, parsed.dimension)
    src, tgt = (partial(model.encode, lang=lang, progress=False) for lang in langs)
    if files:
        as_json = parsed.out.endswith(".jsonl") if parsed.out else parsed.json
        with output(parsed.out) as write:
            if parsed.all:
                compare_all(files, src, tgt, write, as_json=as_json)
            else:
                compare_lines(files, counts[0], src, tgt, write, as_json=as_json)
        if parsed.out and parsed.json:
            print_json({"out": parsed.out, "lines": counts[0]})
    else:
        compare_two(parsed.given, src, tgt, as_json=parsed.json)
    if parsed.heatmap:
        draw(parsed, [list(sentences(path)) for path in files], src, tgt)
    return 0


def given_files(parsed: argparse.Namespace) -> list[Path]:
    """The two given files, or none for two sentences; ConfigError for one of each, or for an empty sentence."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError

    missing = [word for word in parsed.given if not is_file(word)]
    if len(missing) == 1:
        raise ConfigError(f"{missing[0]}: no such file; expected two files of sentences, or two sentences")
    if missing and (parsed.all or parsed.out):
        raise ConfigError(
            f"--all and --out need files, and {missing[0]!r} is not a file; expected two files of sentences"
        )
    if not all(word.strip() for word in missing):
        raise ConfigError("a sentence is empty; expected two sentences")
    return [] if missing else [Path(word) for word in parsed.given]


def is_file(word: str) -> bool:
    """Whether a word is the name of a file, not a sentence."""
    from pathlib import Path

    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # too long for a name, or a zero byte
        return False


def count_sentences(path: Path) -> int:
    """The number of lines in a file; DataError if one of them is empty, before anything is written."""
    from dualmoco.core.errors import DataError

    count = 0
    for count, line in enumerate(sentences(path), 1):
        if not line:
            raise DataError(f"{path}:{count}: empty line; expected a sentence on every line")
    if not count:
        raise DataError(f"{path}: is empty; expected text, one sentence per line")
    return count


def check_files(parsed: argparse.Namespace, files: list[Path], counts: list[int]) -> None:
    """Refuses files of different lengths, and files that are too long for a matrix or a heat map."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError, DataError
    from dualmoco.core.storage import check_replaceable

    outputs = [Path(name) for name in (parsed.out, parsed.heatmap) if name]
    check_replaceable(outputs, files, overwrite=parsed.overwrite)
    if files and not parsed.all and counts[0] != counts[1]:
        raise DataError(
            f"{files[0]} has {counts[0]:,} lines, {files[1]} has {counts[1]:,}; expected the same number of lines, "
            "or --all"
        )
    if files and parsed.all and counts[1] > MATRIX_COLUMNS:
        raise ConfigError(
            f"--all with {counts[1]:,} lines in {files[1]}; expected at most {MATRIX_COLUMNS:,}: use dualmoco search"
        )
    if parsed.heatmap and any(count > HEATMAP_LINES for count in counts):
        raise ConfigError(f"--heatmap of {max(counts):,} lines; expected at most {HEATMAP_LINES:,} in each file")


def compare_two(pair: list[str], src: Encode, tgt: Encode, *, as_json: bool) -> None:
    """Writes the similarity of two sentences."""
    (score,) = row_scores([pair[0].strip()], [pair[1].strip()], src, tgt)
    if as_json:
        print_json({"score": score, "src": pair[0], "tgt": pair[1]})
    else:
        sys.stdout.write(f"{score:.4f}\n")


def compare_lines(files: list[Path], count: int, src: Encode, tgt: Encode, write: Writer, *, as_json: bool) -> None:
    """Writes the similarity of each line with the same line of the other file, block by block."""
    from dualmoco.core.progress import counting

    with counting("comparing", count, " lines") as progress:
        for left, right in zip(blocks(files[0]), blocks(files[1]), strict=True):
            for score, a, b in zip(row_scores(left, right, src, tgt), left, right, strict=True):
                row = {"score": score, "src": a, "tgt": b}
                write(_json_line(row) if as_json else f"{score:.4f}\t{_cell(a)}\t{_cell(b)}\n")
            progress(len(left))


def compare_all(files: list[Path], src: Encode, tgt: Encode, write: Writer, *, as_json: bool) -> None:
    """Writes one row per line of the first file and one column per line of the second."""
    import numpy as np

    columns = [line for block in blocks(files[1]) for line in block]
    right = np.concatenate([tgt(block) for block in blocks(files[1])])  # (m, D)
    if not as_json:
        write("\t".join(["", *map(_cell, columns)]) + "\n")
    for block in blocks(files[0], max(1, LINES_PER_BATCH * LINES_PER_BATCH // len(columns))):
        for line, scores in zip(block, (src(block) @ right.T).tolist(), strict=True):
            if as_json:
                write(_json_line({"src": line, "scores": [round(score, SCORE_DECIMALS) for score in scores]}))
            else:
                write("\t".join([_cell(line), *(f"{score:.4f}" for score in scores)]) + "\n")


def row_scores(left: list[str], right: list[str], src: Encode, tgt: Encode) -> list[float]:
    """Dot products of n unit vectors with n others, row by row."""
    import numpy as np

    products = np.einsum("nd,nd->n", src(left), tgt(right), dtype=np.float64)
    scores: list[float] = products.round(SCORE_DECIMALS).tolist()
    return scores


def draw(parsed: argparse.Namespace, texts: list[list[str]], src: Encode, tgt: Encode) -> None:
    """Draws the similarities of all source sentences to all target sentences."""
    from pathlib import Path

    import numpy as np

    from dualmoco.evaluation.canvas import save_figure
    from dualmoco.evaluation.figures import draw_similarities

    left, right = texts or [[sentence] for sentence in parsed.given]
    similarities = np.asarray(src(left) @ tgt(right).T, dtype=np.float64)  # (n, m)
    save_figure(draw_similarities(left, right, similarities), Path(parsed.heatmap))


def sentences(path: Path) -> Iterator[str]:
    """Yields the lines of a file without spaces at their ends."""
    from dualmoco.text.files import check_sentence_file, read_lines

    check_sentence_file(path)
    return (line.strip() for line in read_lines(path))


def blocks(path: Path, size: int | None = None) -> Iterator[list[str]]:
    """Yields the lines of a file in blocks."""
    from itertools import islice

    lines = sentences(path)
    while block := list(islice(lines, size or LINES_PER_BATCH)):
        yield block


@contextmanager
def output(name: str | None) -> Iterator[Writer]:
    """Yields a function that writes to standard output, or to a file that appears only when it is complete."""
    from pathlib import Path

    if not name:
        yield sys.stdout.write
        return
    from dualmoco.core.storage import new_file

    with new_file(Path(name)) as stream:
        yield lambda text: stream.write(text.encode())


def _cell(text: str) -> str:
    return " ".join(text.split("\t"))


def _json_line(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False) + "\n"
