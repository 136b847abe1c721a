"""`dualmoco similarity`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_model, add_verb, open_named_model, print_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dualmoco.core.vectors import Vectors

    Writer = Callable[[str], object]
    Encode = Callable[[list[str]], Vectors]

BLOCK = 1024  # lines encoded at once
DRAWN = 1000  # lines of a file in a heat map
COLUMNS = 20_000  # lines of the second file, whose vectors are kept, with --all
PLACES = 6


def add(verbs: Any) -> None:
    """Describes the verb."""
    similarity = add_verb(
        verbs,
        "similarity",
        "cosine similarity of sentences, within a language or across",
        "examples:\n"
        '  dualmoco similarity "How are you?" "你好吗？" --model runs/static-cpu\n'
        "  dualmoco similarity --files a.en.txt b.zh.txt --model runs/static-cpu --out scores.tsv\n"
        "  dualmoco similarity --files a.txt b.txt --src en --tgt en --all --heatmap near.png --model runs/static-cpu",
    )
    similarity.add_argument("sentences", nargs="*", metavar="SENTENCE", help="two of them")
    similarity.add_argument("--files", nargs=2, metavar="FILE", help="two text files, compared line by line")
    similarity.add_argument("--all", action="store_true", help="compare every line with every line of the other file")
    add_model(similarity)
    similarity.add_argument("--src", default="en", metavar="LANG", help="language of the first sentence or file")
    similarity.add_argument("--tgt", default="zh", metavar="LANG", help="language of the second")
    similarity.add_argument("--heatmap", metavar="FILE", help="draw all against all, as .png, .svg or .html")
    similarity.add_argument("--out", metavar="FILE", help="for the scores of files; standard output if not given")
    similarity.add_argument("--json", action="store_true", help="a line of JSON for each result, not a table")
    similarity.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Compares, and shows the scores."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError

    if bool(parsed.files) == bool(parsed.sentences) or len(parsed.sentences) not in (0, 2):
        raise ConfigError(f"{len(parsed.sentences)} sentences; expected two, or --files FILE FILE and none")
    if not parsed.files and (parsed.all or parsed.out):
        raise ConfigError("--all and --out are for files; expected --files FILE FILE")
    if parsed.heatmap:
        from dualmoco.evaluation.canvas import check_figure_path

        check_figure_path(Path(parsed.heatmap))
    files = [Path(name) for name in parsed.files or []]
    counts = [count_sentences(path) for path in files]
    check_files(parsed, files, counts)

    model = open_named_model(parsed)
    for lang in (parsed.src, parsed.tgt):
        model.backend(lang)
    src, tgt = (partial(model.encode, lang=lang, progress=False) for lang in (parsed.src, parsed.tgt))
    if files:
        with output(parsed.out) as write:
            if parsed.all:
                compare_all(files, src, tgt, write, as_json=parsed.json)
            else:
                compare_lines(files, counts[0], src, tgt, write, as_json=parsed.json)
    else:
        compare_two(parsed.sentences, src, tgt, as_json=parsed.json)
    if parsed.heatmap:
        draw(parsed, [list(sentences(path)) for path in files], src, tgt)
    return 0


def count_sentences(path: Path) -> int:
    """How many lines a file has; DataError, before anything is written, if one of them is no sentence."""
    from dualmoco.core.errors import DataError

    if not path.is_file():
        raise DataError(f"{path}: no such file; expected text, one sentence a line")
    count = 0
    for count, line in enumerate(sentences(path), 1):
        if not line:
            raise DataError(f"{path}:{count}: an empty line; expected a sentence in every line")
    if not count:
        raise DataError(f"{path}: is empty; expected text, one sentence a line")
    return count


def check_files(parsed: argparse.Namespace, files: list[Path], counts: list[int]) -> None:
    """Refuses files that do not fit together, or that are too long for what was asked for."""
    from pathlib import Path

    from dualmoco.core.errors import ConfigError, DataError

    outputs = {Path(name).resolve() for name in (parsed.out, parsed.heatmap) if name}
    for path in files:
        if path.resolve() in outputs:
            raise ConfigError(f"{path}: would be overwritten; expected another file for the result")
    if files and not parsed.all and counts[0] != counts[1]:
        raise DataError(f"{files[0]} has {counts[0]:,} lines, {files[1]} has {counts[1]:,}; expected as many, or --all")
    if files and parsed.all and counts[1] > COLUMNS:
        raise ConfigError(f"--all with {counts[1]:,} lines in {files[1]}; expected at most {COLUMNS:,}: use search")
    if parsed.heatmap and any(count > DRAWN for count in counts):
        raise ConfigError(f"--heatmap of {max(counts):,} lines; expected at most {DRAWN:,} in each file")


def compare_two(pair: list[str], src: Encode, tgt: Encode, *, as_json: bool) -> None:
    """Writes the similarity of two sentences; ConfigError if one is empty."""
    from dualmoco.core.errors import ConfigError

    if not all(sentence.strip() for sentence in pair):
        raise ConfigError("a sentence without text; expected two sentences")
    (score,) = row_scores([pair[0].strip()], [pair[1].strip()], src, tgt)
    if as_json:
        print_json({"score": score, "src": pair[0], "tgt": pair[1]})
    else:
        sys.stdout.write(f"{score:.4f}\n")


def compare_lines(files: list[Path], count: int, src: Encode, tgt: Encode, write: Writer, *, as_json: bool) -> None:
    """Writes the similarity of each line with the same line of the other file, a block at a time."""
    from dualmoco.core.progress import counting

    with counting("comparing", count, " lines") as progress:
        for left, right in zip(blocks(files[0]), blocks(files[1]), strict=True):
            for score, a, b in zip(row_scores(left, right, src, tgt), left, right, strict=True):
                write(
                    _json_line({"score": score, "src": a, "tgt": b})
                    if as_json
                    else f"{score:.4f}\t{_cell(a)}\t{_cell(b)}\n"
                )
            progress(len(left))


def compare_all(files: list[Path], src: Encode, tgt: Encode, write: Writer, *, as_json: bool) -> None:
    """Writes a row for each line of the first file, a column for each of the second."""
    import numpy as np

    columns = [line for block in blocks(files[1]) for line in block]
    right = np.concatenate([tgt(block) for block in blocks(files[1])])  # (m, D)
    if not as_json:
        write("\t".join(["", *map(_cell, columns)]) + "\n")
    for block in blocks(files[0], max(1, BLOCK * BLOCK // len(columns))):
        for line, scores in zip(block, (src(block) @ right.T).tolist(), strict=True):
            if as_json:
                write(_json_line({"src": line, "scores": [round(score, PLACES) for score in scores]}))
            else:
                write("\t".join([_cell(line), *(f"{score:.4f}" for score in scores)]) + "\n")


def row_scores(left: list[str], right: list[str], src: Encode, tgt: Encode) -> list[float]:
    """Dot products of the unit vectors of n sentences with those of n others."""
    import numpy as np

    products = np.einsum("nd,nd->n", src(left), tgt(right), dtype=np.float64)
    scores: list[float] = products.round(PLACES).tolist()
    return scores


def draw(parsed: argparse.Namespace, texts: list[list[str]], src: Encode, tgt: Encode) -> None:
    """Draws every sentence of one side against every one of the other."""
    from pathlib import Path

    import numpy as np

    from dualmoco.evaluation.canvas import save_figure
    from dualmoco.evaluation.figures import draw_similarities

    left, right = texts or [[sentence] for sentence in parsed.sentences]
    similarities = np.asarray(src(left) @ tgt(right).T, dtype=np.float64)  # (n, m)
    save_figure(draw_similarities(left, right, similarities), Path(parsed.heatmap))


def sentences(path: Path) -> Iterator[str]:
    """Yields the lines of a file without spaces at their ends."""
    from dualmoco.text.files import read_lines

    return (line.strip() for line in read_lines(path))


def blocks(path: Path, size: int | None = None) -> Iterator[list[str]]:
    """Yields the lines of a file, some at a time."""
    from itertools import islice

    lines = sentences(path)
    while block := list(islice(lines, size or BLOCK)):
        yield block


@contextmanager
def output(name: str | None) -> Iterator[Writer]:
    """Gives what writes to a file, which is whole or absent afterwards, or to standard output."""
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
