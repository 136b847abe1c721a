"""What mining is given, as files: texts or sentences, bitexts or pairs, known pairs that choose a threshold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.storage import write_text
from dualmoco.data.readers.formats import read_pairs
from dualmoco.data.readers.raw import Row
from dualmoco.data.readers.source import Source
from dualmoco.data.testfiles import read_table
from dualmoco.embeddings.lines import TextFile

Texts = str | Path | Sequence[str]
"""The name of a text file, one sentence a line, plain or compressed; or the sentences themselves."""
Bitext = str | Path | Sequence[tuple[str, str]]
"""The name of a file in any format of `dualmoco prepare`; or pairs of sentences."""
T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    """Pairs that are translations: lines from 1 in the two files, or sentences to be planted among them."""

    gold: Sequence[tuple[int, int]] = ()
    planted: Sequence[tuple[str, str]] = ()


def as_text_file(texts: Texts, lang: str, place: Path) -> TextFile:
    """A text as a file.

    Args:
        texts: The name of a file, or sentences.
        lang: Their language.
        place: Where sentences are written.

    Returns:
        The file.

    Raises:
        DataError: A sentence that is no string of one line.
    """
    if isinstance(texts, str | Path):
        return TextFile(Path(texts), lang)
    for number, text in enumerate(texts):
        if not isinstance(text, str) or "\n" in text:
            raise DataError(f"sentence {number}: {text!r:.60}; expected a string of one line")
    write_text(place, "".join(f"{text}\n" for text in texts))
    return TextFile(place, lang)


class Problems:
    """Lines of a bitext that cannot be used: the first is an error, unless they are to be left out and counted."""

    def __init__(self, pairs: Bitext, *, skip: bool) -> None:
        self.name, self.skip, self.count = pairs if isinstance(pairs, str | Path) else "pairs", skip, 0

    def report(self, line: int, what: str) -> None:
        """Takes the number of a line and what is wrong with it."""
        if not self.skip:
            raise DataError(f"{self.name}:{line}: {what}; on_error=skip leaves such lines out")
        self.count += 1


def read_bitext(
    pairs: Bitext, langs: tuple[str, str], tgt_file: str | Path | None, form: str, problems: Problems
) -> Iterator[Row]:
    """Yields the pairs of a bitext.

    Args:
        pairs: The name of a file, or pairs of sentences.
        langs: Languages of both sides.
        tgt_file: The translations, if the file holds source lines alone.
        form: Format of the file, or `auto`.
        problems: Takes the lines that cannot be read.

    Yields:
        A pair with the number of its line.

    Raises:
        DataError: A file that cannot be read, or a line of it where problems are errors.
    """
    if not isinstance(pairs, str | Path):
        yield from (Row(src, tgt, number) for number, (src, tgt) in enumerate(pairs, start=1))
        return
    source = Source(Path(pairs), *langs, tgt_path=Path(tgt_file) if tgt_file else None)
    yield from read_pairs(source, form, report=problems.report)


def read_known(
    gold: str | Path | Sequence[tuple[int, int]] | None, planted: str | Path | Sequence[tuple[str, str]] | None
) -> Known:
    """The pairs that choose the threshold.

    Args:
        gold: Line numbers from 1, or a file of them.
        planted: Sentences, or a file of them.

    Returns:
        Gold lines, planted sentences, or neither.

    Raises:
        ConfigError: Both.
        DataError: A file of another form.
    """
    if gold is not None and planted is not None:
        raise ConfigError("gold and planted pairs; expected one of them")
    return Known(_pairs_of(gold, _line_numbers), _pairs_of(planted, lambda path, number, cells: (cells[0], cells[1])))


def _pairs_of(
    given: str | Path | Sequence[tuple[T, T]] | None, parse: Callable[[Path, int, list[str]], tuple[T, T]]
) -> list[tuple[T, T]]:
    if given is None:
        return []
    if isinstance(given, str | Path):
        return [parse(Path(given), number, cells) for number, cells in read_table(Path(given), [0, 1])]
    return list(given)


def _line_numbers(path: Path, number: int, cells: list[str]) -> tuple[int, int]:
    if not (cells[0].isdecimal() and cells[1].isdecimal()):
        raise DataError(f"{path}:{number}: {cells[0]!r}, {cells[1]!r}; expected two line numbers from 1")
    return int(cells[0]), int(cells[1])
