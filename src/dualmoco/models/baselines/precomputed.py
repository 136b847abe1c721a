"""Sentence vectors made elsewhere: a folder with `LANG.txt`, one sentence a line, and `LANG.npy`, one vector a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Vectors, check_vectors
from dualmoco.data.text import read_lines
from dualmoco.models.baselines.arrayfile import map_array
from dualmoco.models.folder import files_sha256
from dualmoco.models.identity import Identity, check_language

BLOCK_ROWS = 65536
QUOTED = 80  # characters of a sentence that an error quotes


class PrecomputedLanguage:
    """The sentences of one language and their vectors, which stay on the disk."""

    def __init__(self, folder: Path, lang: str) -> None:
        self.path = folder / f"{lang}.npy"
        self.vectors = map_array(self.path)  # (n, D)
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
        for start in range(0, count, BLOCK_ROWS):
            block = self.vectors[start : start + BLOCK_ROWS]
            check_vectors(block, len(block), f"{self.path}, rows from {start}")

    def look_up(self, texts: Sequence[str]) -> Vectors:
        """The vectors (n, D) of sentences, all of which must be there."""
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


class PrecomputedEncoder:
    """Sentences found by exact match."""

    def __init__(self, languages: dict[str, PrecomputedLanguage], identity: Identity) -> None:
        self.identity = identity
        self._languages = languages

    @property
    def languages(self) -> Sequence[str]:
        """Those of the folder."""
        return list(self._languages)

    def encode(self, texts: Sequence[str], *, lang: str) -> Vectors:
        """Looks sentences up.

        Args:
            texts: The sentences.
            lang: Their language.

        Returns:
            Their vectors (n, D) as they were stored.

        Raises:
            ModelError: A language that the folder does not have.
            DataError: A sentence that is not there.
        """
        check_language(self, lang)
        return self._languages[lang].look_up(texts)


def open_precomputed(name: str) -> PrecomputedEncoder:
    """Opens a folder of vectors made elsewhere.

    Args:
        name: The folder; vectors may be in half, single or double precision.

    Returns:
        An encoder of the languages that are there.

    Raises:
        DataError: No such files, other counts or widths than expected, or values that are no finite numbers.
    """
    folder = Path(name)
    langs = sorted(path.stem for path in folder.glob("*.npy"))
    if not langs:
        raise DataError(f"{name}: no vectors there; expected a folder with LANG.txt and LANG.npy for each language")
    languages = {lang: PrecomputedLanguage(folder, lang) for lang in langs}
    width = languages[langs[0]].vectors.shape[1]
    for lang, found in languages.items():
        check_vectors(found.vectors[:0], 0, str(folder / f"{lang}.npy"), width)
    files = [f"{lang}.{ending}" for lang in langs for ending in ("txt", "npy")]
    checksum = files_sha256((file, folder / file) for file in files)
    return PrecomputedEncoder(languages, Identity(f"embeddings:{name}", checksum))
