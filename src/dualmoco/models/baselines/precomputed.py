"""Sentence vectors made elsewhere: a folder with `LANG.txt`, one sentence a line, and `LANG.npy`, one vector a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Vectors, check_vectors, map_array
from dualmoco.data.text import read_lines
from dualmoco.models.folder import files_sha256
from dualmoco.models.model import Identity, Model, assemble_model

CHECKED_ROWS = 65536
QUOTED = 80  # characters of a sentence that an error quotes


class PrecomputedLanguage:
    """The sentences of one language, found by exact match, and their vectors, which stay on the disk."""

    name, is_unit = "embeddings", False

    def __init__(self, folder: Path, lang: str) -> None:
        self.path = folder / f"{lang}.npy"
        self.vectors = map_array(self.path)  # (n, D)
        self.dimension = int(self.vectors.shape[1])
        self.rows: dict[str, int] = {}
        count, repeated = 0, list[tuple[int, int]]()
        for count, sentence in enumerate(read_lines(folder / f"{lang}.txt"), start=1):
            first = self.rows.setdefault(sentence, count - 1)
            if first != count - 1:
                repeated.append((first, count - 1))
        self._check(count)
        for first, again in repeated:
            if not np.array_equal(self.vectors[first], self.vectors[again]):
                raise DataError(
                    f"{self.path}: rows {first} and {again} differ, but are of one sentence; "
                    f"expected a sentence once in {lang}.txt, or with one vector"
                )

    def _check(self, count: int) -> None:
        check_vectors(self.vectors[:0], 0, str(self.path))
        if len(self.vectors) != count or not count:
            raise DataError(
                f"{self.path}: {len(self.vectors):,} vectors for the {count:,} lines of {self.path.stem}.txt; "
                "expected one vector a line, and at least one"
            )
        for start in range(0, count, CHECKED_ROWS):
            block = self.vectors[start : start + CHECKED_ROWS]
            check_vectors(block, len(block), f"{self.path}, rows from {start}")

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The vectors (n, D) of sentences as they were stored; DataError if one is not there."""
        try:
            rows = np.array([self.rows[text] for text in texts], dtype=np.int64)
        except KeyError as error:
            sentence = str(error.args[0])
            quoted = sentence if len(sentence) <= QUOTED else sentence[:QUOTED] + "..."
            raise DataError(
                f"{self.path.with_suffix('.txt')}: has no sentence {quoted!r}; expected every sentence that is asked "
                "for: `dualmoco evaluate MODEL --texts FOLDER` writes them"
            ) from None
        found: Vectors = np.asarray(self.vectors[rows], dtype=np.float32)
        return found


def open_precomputed(name: str) -> Model:
    """Opens a folder of vectors made elsewhere.

    Args:
        name: The folder; vectors may be in half, single or double precision.

    Returns:
        A model of the languages that are there.

    Raises:
        DataError: No such files, other counts or dimensions than expected, or values that are no finite numbers.
    """
    folder = Path(name)
    langs = sorted(path.stem for path in folder.glob("*.npy"))
    if not langs:
        raise DataError(f"{name}: no vectors there; expected a folder with LANG.txt and LANG.npy for each language")
    languages = {lang: PrecomputedLanguage(folder, lang) for lang in langs}
    for lang, found in languages.items():
        check_vectors(found.vectors[:0], 0, str(folder / f"{lang}.npy"), languages[langs[0]].dimension)
    files = [f"{lang}.{ending}" for lang in langs for ending in ("txt", "npy")]
    checksum = files_sha256((file, folder / file) for file in files)
    return assemble_model(Identity(f"embeddings:{name}", checksum), languages, lambda stored: stored)
