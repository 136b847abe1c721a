"""An index of sentences in several languages: built from text files, extended, and searched.

An interrupted build is resumed; an interrupted addition changes nothing. Shapes: q queries, n rows, D dimension, k
neighbours.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.config_loader import VectorPrecision, parse_choice
from dualmoco.core.display import data_frame, html_table
from dualmoco.core.errors import ConfigError, DataError, ModelError, RunError
from dualmoco.core.progress import counting
from dualmoco.core.storage import check_contained, locked, write_text
from dualmoco.core.vectors import Ids, Vectors, check_vectors, unit_vectors
from dualmoco.data.config import OnError
from dualmoco.embeddings.encode import StoreForm, encode_file
from dualmoco.embeddings.unique_lines import TextFile, readable_texts
from dualmoco.models.embedded import all_languages, default_model
from dualmoco.models.folder import portable_name
from dualmoco.models.load import as_model, open_model
from dualmoco.models.model import AUTO, BACKENDS, Model, recognize_sentences
from dualmoco.search.exact import Neighbors, nearest
from dualmoco.search.faiss_index import InvertedLists
from dualmoco.search.index_files import (
    LISTS_FILE,
    PARTS,
    TEXTS,
    VECTORS,
    IndexKind,
    IndexManifest,
    IndexPart,
    ListsRecord,
    PartRecord,
    building_folder,
    check_file,
    check_index_model,
    check_lengths,
    check_part_model,
    copy_texts,
    guard_index,
    map_vectors,
    part_folder,
    read_index_manifest,
    write_index_manifest,
)
from dualmoco.search.ivf import require_faiss
from dualmoco.text.characters import normalize
from dualmoco.text.containers import as_sentences, check_characters
from dualmoco.text.languages import find_language

logger = logging.getLogger(__name__)

Files = Mapping[str, str | Path | Sequence[str | Path]] | Sequence[TextFile]
"""The file or files of each language."""
GivenSentences = Mapping[str, Iterable[str]] | Iterable[str]
"""Sentences of each language, or sentences whose language is recognised one by one."""


def build_index(
    folder: str | Path,
    files: Files = (),
    model: Model | str | Path | None = None,
    *,
    sentences: GivenSentences = (),
    kind: str = IndexKind.exact,
    precision: str = VectorPrecision.fp32,
    on_error: str = OnError.stop,
) -> IndexManifest:
    """Builds an index of text files, or of sentences.

    The index is built in a temporary folder and renamed; an interrupted build is resumed.

    Args:
        folder: New folder for the index.
        files: Text files to search, by language.
        model: Model that encodes the files and the queries, or its name; chosen by the languages if None.
        sentences: Sentences to search, by language, or in one list whose languages are recognised. A hit tells its
            place in the list, from 1, as `line`.
        kind: Kind of search: exact, or inverted lists: ivf or ivfpq.
        precision: Precision of stored vectors: fp32, fp16 or int8.
        on_error: What to do with a line of a file that is not UTF-8: stop, or skip.

    Raises:
        ConfigError: An option value is invalid, or FAISS is needed and not installed.
        DataError: The folder exists, or a file cannot be used.
        ModelError: The model cannot be opened, or lacks a language.
        RunError: The disk is full or not writable.
    """
    folder, texts = Path(folder), _text_files(files)
    chosen, stored = parse_choice(IndexKind, kind, "index"), parse_choice(VectorPrecision, precision, "precision")
    with guard_index(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(f"{folder}: already exists; expected a new folder, or use dualmoco search add {folder}")
    if chosen != IndexKind.exact:
        require_faiss()
    building = building_folder(folder)
    if building.exists():
        logger.info("%s: resuming an interrupted build", folder)
    if not isinstance(sentences, Mapping):
        sentences = _lines(sentences, "sentences")
    model = as_model(model or default_model(_known_languages(texts, sentences)))
    name, pooling = portable_name(model.identity.name), model.identity.pooling
    with _written(sentences, model, 1) as given, readable_texts([*texts, *given], on_error) as readable:
        backend = _check_languages(model, readable)
        kept = model.identity.dimension or 0
        manifest = IndexManifest(
            name, model.identity.sha256, backend, stored, chosen, (), pooling=pooling, dimension=kept
        )
        with locked(building):
            manifest = _add_files(building, manifest, readable, model)
    try:
        building.rename(folder)
    except OSError as error:
        raise RunError(f"{folder}: cannot be created: {error.strerror or error}; the index is in {building}") from None
    return manifest


def add_to_index(
    folder: str | Path,
    files: Files = (),
    model: Model | str | Path | None = None,
    *,
    sentences: GivenSentences = (),
    on_error: str = OnError.stop,
) -> IndexManifest:
    """Adds text files or sentences to an index, without encoding its other files again.

    A file replaces the sentences of an earlier file of the same name and language.

    Args:
        folder: The index.
        files: Text files to add, by language.
        model: Model of the index, if it was moved or is already open.
        sentences: Sentences to add, by language, or in one list whose languages are recognised.
        on_error: What to do with a line of a file that is not UTF-8: stop, or skip.

    Raises:
        DataError: The folder is not an index, or a file cannot be used or is already in the index.
        ModelError: The model is not the one that made the index, or lacks a language.
        RunError: The disk is full or not writable; the index is unchanged.
    """
    folder, texts = Path(folder), _text_files(files)
    with guard_index(folder):
        read_index_manifest(folder)
    with locked(folder):
        manifest = read_index_manifest(folder)
        model = _open_for(manifest, model)
        check_index_model(model, manifest)
        number = manifest.next_number + 1
        with _written(sentences, model, number) as given, readable_texts([*texts, *given], on_error) as readable:
            _check_languages(model, readable)
            return _add_files(folder, manifest, readable, model)


def _open_for(manifest: IndexManifest, model: Model | str | Path | None = None) -> Model:
    """The model of an index, opened as it was when it made the index, unless it is open already."""
    if isinstance(model, Model):
        return model
    return open_model(model or manifest.model, manifest.backend, dimension=manifest.dimension or None)


@contextmanager
def _written(sentences: GivenSentences, model: Model, number: int) -> Iterator[list[TextFile]]:
    """Temporary files `sentences-NUMBER` of sentences, one per language, each sentence on the line of its place."""
    with tempfile.TemporaryDirectory(prefix="dualmoco-") as place:
        files: list[TextFile] = []
        for lang, texts in _by_language(sentences, model).items():
            path = Path(place) / str(len(files)) / f"sentences-{number}"
            path.parent.mkdir()
            write_text(path, "".join(f"{text}\n" for text in texts))
            files.append(TextFile(path, lang))
        try:
            yield files
        except DataError as error:
            raise DataError(re.sub(rf"{re.escape(place)}\W\d+\W", "", str(error))) from None


def _known_languages(files: Sequence[TextFile], sentences: GivenSentences) -> list[str]:
    """The languages of files and of sentences, which are recognised among those of the default models."""
    if isinstance(sentences, Mapping):
        return [*(file.lang for file in files), *sentences]
    return [*(file.lang for file in files), *recognize_sentences(list(sentences), all_languages())]


def _by_language(sentences: GivenSentences, model: Model) -> dict[str, list[str]]:
    """Sentences of each language; if languages are recognised, "" in the place of those in another one."""
    if isinstance(sentences, Mapping):
        return {lang: _lines(texts, f"sentences of {lang}") for lang, texts in sentences.items()}
    texts = _lines(sentences, "sentences")
    langs = model.recognize_each(texts)
    return {
        lang: [text if lang == own else "" for text, own in zip(texts, langs, strict=True)]
        for lang in dict.fromkeys(langs)
    }


def _lines(given: Iterable[str], name: str) -> list[str]:
    """Sentences that can be the lines of a file; DataError if one cannot."""
    texts = as_sentences(given, name)
    check_characters(texts)
    for place, text in enumerate(texts):
        if "\n" in text:
            raise DataError(f"{name}: item {place}, {text!r:.60}, has several lines; expected one line each")
    return texts


def _text_files(files: Files) -> list[TextFile]:
    if not isinstance(files, Mapping):
        return list(files)
    return [
        TextFile(Path(path), lang)
        for lang, paths in files.items()
        for path in ([paths] if isinstance(paths, str | Path) else paths)
    ]


def _check_languages(model: Model, files: Sequence[TextFile]) -> str:
    """The back-end that runs all languages, or AUTO; ModelError if the model lacks a language."""
    if not files:
        raise DataError("nothing to search; expected text files or sentences")
    names = [model.backend(lang).name for lang in dict.fromkeys(file.lang for file in files)]
    return names[0] if len(set(names)) == 1 and names[0] in BACKENDS else AUTO


def _add_files(folder: Path, manifest: IndexManifest, files: Sequence[TextFile], model: Model) -> IndexManifest:
    """Makes parts, then inverted lists, then the manifest that lists them."""
    made_with = {"model": manifest.model_sha256, "backend": manifest.backend, "precision": manifest.precision.value}
    _check_names(files)
    places = [part_folder(folder, manifest.next_number + number) for number in range(len(files))]
    records: list[PartRecord] = []
    for file, place in zip(files, places, strict=True):
        record = copy_texts(file, place, made_with)
        _check_new(record, file, [*manifest.parts, *records], place)
        records.append(record)
    for file, place in zip(files, places, strict=True):
        encode_file(TextFile(place / TEXTS, file.lang), place / VECTORS, model, StoreForm(manifest.precision))
    kept = _without_replaced(manifest.parts, records)
    is_smaller = len(kept) < len(manifest.parts)
    manifest = replace(manifest, parts=(*kept, *records), lists=None if is_smaller else manifest.lists)
    if manifest.kind != IndexKind.exact:
        manifest = replace(manifest, lists=_make_lists(folder, manifest))
    write_index_manifest(folder, manifest)
    _remove_strays(folder, manifest)
    return manifest


def _check_names(files: Sequence[TextFile]) -> None:
    """DataError if hits in two files could not be told apart."""
    seen = set()
    for file in files:
        if (file.name, file.lang) in seen:
            raise DataError(f"{file.path}: a second {file.lang} file of this name; expected different names: rename it")
        seen.add((file.name, file.lang))


def _check_new(record: PartRecord, file: TextFile, records: Sequence[PartRecord], place: Path) -> None:
    """DataError if the index has the same text, except under the name of a text that will be replaced."""
    named = [other for other in records if (other.name, other.lang) == (record.name, record.lang)]
    for other in records:
        is_same = (other.text_sha256, other.lang) == (record.text_sha256, record.lang)
        if is_same and (other not in named or len(named) == 1):
            shutil.rmtree(place)
            raise DataError(f"{file.path}: is already in the index, as {other.name}; expected another file")


def _without_replaced(parts: Sequence[PartRecord], new: Sequence[PartRecord]) -> list[PartRecord]:
    """The parts that no new file of the same name and language replaces."""
    for record in new:
        old = sum(part.rows for part in parts if (part.name, part.lang) == (record.name, record.lang))
        if old:
            logger.info("%s: replaced its %s old sentences with %s", record.name, f"{old:,}", f"{record.rows:,}")
    names = {(record.name, record.lang) for record in new}
    return [part for part in parts if (part.name, part.lang) not in names]


def _make_lists(folder: Path, manifest: IndexManifest) -> ListsRecord:
    vectors = map_vectors([IndexPart(folder, record) for record in manifest.parts])
    if manifest.lists:
        lists = InvertedLists.load(folder / manifest.lists.file, vectors, writable=True)
        lists.extend()
    else:
        lists = InvertedLists.train(vectors, manifest.kind)
    return lists.save(folder / LISTS_FILE.format(manifest.next_number))


def _remove_strays(folder: Path, manifest: IndexManifest) -> None:
    """Removes files of interrupted work that the manifest does not list."""
    known = {part_folder(folder, part.number) for part in manifest.parts}
    for place in (folder / PARTS).iterdir():
        if place not in known:
            shutil.rmtree(place)
    for file in folder.glob("*.faiss"):
        if not manifest.lists or file.name != manifest.lists.file:
            file.unlink()


QUERIES_AT_ONCE = 64
EXPECTED_EQUALS = 5  # sentences equal to the query that are allowed for at first


@dataclass(frozen=True)
class Hit:
    """A sentence found by a query."""

    score: float  # cosine with the query
    text: str
    lang: str
    part: str  # name of the text file
    line: int  # first line of the sentence in the file, from 1
    lines: tuple[int, ...] = ()  # all lines of the sentence


class Index:
    """An open index."""

    def __init__(self, folder: Path, manifest: IndexManifest, model: Model | None = None) -> None:
        self.folder, self._model = folder, model
        if model:
            check_index_model(model, manifest)
        self._map(manifest)

    def _map(self, manifest: IndexManifest) -> None:
        """Maps the files that a manifest lists."""
        self.manifest = manifest
        self.parts = [IndexPart(self.folder, record) for record in manifest.parts]
        for part in self.parts:
            check_part_model(part, manifest)
        self.starts = np.cumsum([0, *(record.rows for record in manifest.parts)])  # first row of each part, and the end
        self.vectors = map_vectors(self.parts)
        lists = manifest.lists
        if lists:
            check_contained(self.folder / lists.file, self.folder)
        self.lists = InvertedLists.load(self.folder / lists.file, self.vectors) if lists else None

    def add(self, files: Files = (), *, sentences: GivenSentences = ()) -> None:
        """Adds text files or sentences to the index on disk, which can be searched at once; see `add_to_index`."""
        self._map(add_to_index(self.folder, files, self.model, sentences=sentences))

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        manifest = self.manifest
        return (
            f"<Index {self.folder}: {len(self):,} sentences in {', '.join(manifest.languages)}, {manifest.kind}, "
            f"{manifest.precision}, model {manifest.model}>"
        )

    def _repr_html_(self) -> str:
        rows = [(part.record.lang, part.record.name, f"{part.record.rows:,}") for part in self.parts]
        return html_table(repr(self)[1:-1], ("language", "file", "sentences"), rows, len(self.parts))

    def to_pandas(self) -> Any:
        """Returns a DataFrame of all sentences: lang, file, line, text; ConfigError if pandas is not installed."""
        rows = (
            (part.record.lang, part.record.name, int(line) + 1, part.text(row))
            for part in self.parts
            for row, line in enumerate(part.lines)
        )
        return data_frame(("lang", "file", "line", "text"), rows)

    def search(
        self,
        texts: str | Iterable[str] = (),
        *,
        vectors: Vectors | Sequence[float] | Sequence[Sequence[float]] | None = None,
        lang: str | None = None,
        k: int = 5,
        within: str | None = None,
        exact_match: bool = True,
        probes: int | None = None,
        min_score: float = -1.0,
    ) -> list[list[Hit]]:
        """Finds the nearest sentences of each query.

        Args:
            texts: One or more queries.
            vectors: Queries as vectors (q, D) or one vector (D,) of the index's model, in place of `texts`.
            lang: Language of the queries; recognised for each query if None.
            k: Number of hits per query; fewer only if the index has fewer sentences, or by `min_score`.
            within: Language of the hits; any if None.
            exact_match: Whether to include sentences that equal the query, ignoring case, punctuation and spaces.
            probes: Inverted lists to probe; if None, the number that was measured when the index was built.
            min_score: Lowest cosine of a hit.

        Returns:
            The hits of each query, nearest first.

        Raises:
            ConfigError: A query has no text, a number is out of range, or an option does not suit vectors.
            DataError: The index has no sentences in the language `within`, or the vectors have another dimension.
            ModelError: The model is missing, is not the one that made the index, or lacks the language.
        """
        queries = as_sentences(texts, "queries")
        within = find_language(within, self.manifest.languages) or within if within else None
        self._check(k, within, probes, min_score)
        if vectors is not None:
            if queries or lang or not exact_match:
                raise ConfigError("texts, lang and exact_match are for queries that are text; leave them out")
            given = self._query_vectors(vectors)
            queries = [""] * len(given)
        elif not all(query.strip() for query in queries):
            raise ConfigError("a query has no text; expected a sentence")
        found: list[list[Hit]] = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            block = queries[start : start + QUERIES_AT_ONCE]
            made = given[start : start + QUERIES_AT_ONCE] if vectors is not None else self._encode(block, lang)
            found += self._search_block(block, made, k, within, exact_match, probes)
        return [[hit for hit in hits if hit.score >= min_score] for hits in found]

    def _encode(self, queries: list[str], lang: str | None) -> Vectors:
        if lang:
            return self.model.encode(queries, lang=lang, progress=False)
        return self.model.encode_each(queries, self.manifest.languages)

    def _query_vectors(self, vectors: Any) -> Vectors:
        """Vectors of queries (q, D), of unit length."""
        array = np.atleast_2d(np.asarray(vectors))
        return unit_vectors(check_vectors(array, len(array), "vectors of queries", self.vectors.shape[1]))

    def _check(self, k: int, within: str | None, probes: int | None, min_score: float) -> None:
        for name, number in (("k", k), ("probes", 1 if probes is None else probes)):
            if number < 1:
                raise ConfigError(f"{name} {number}; expected at least 1")
        if not -1 <= min_score <= 1:
            raise ConfigError(f"min_score {min_score:g}; expected a cosine from -1 to 1")
        if within is not None and within not in self.manifest.languages:
            known = ", ".join(self.manifest.languages)
            raise DataError(f"{self.folder}: has no sentences in {within!r}; expected one of {known}")
        if probes is not None and self.lists is None:
            raise ConfigError("probes are for inverted lists, but this index is exact; leave them out")

    def _search_block(
        self,
        queries: Sequence[str],
        vectors: Vectors,
        k: int,
        within: str | None,
        exact_match: bool,
        probes: int | None,
    ) -> list[list[Hit]]:
        """Hits of a few queries; searches for more neighbours if too many equal the query."""
        possible = sum(part.record.rows for part in self._chosen(within))
        found: list[list[Hit]] = [[] for _ in queries]
        left, wanted = np.arange(len(queries)), min(k if exact_match else k + EXPECTED_EQUALS, possible)
        while len(left):
            near = self._nearest(vectors[left], wanted, within, probes)
            check_lengths(self.vectors[near.ids], self.folder)
            for place, ids, scores in zip(left.tolist(), near.ids.tolist(), near.scores.tolist(), strict=True):
                hits = map(self._hit, ids, scores)
                found[place] = [hit for hit in hits if exact_match or not _equal(hit.text, queries[place])][:k]
            short = [place for place in left.tolist() if len(found[place]) < k] if wanted < possible else []
            left, wanted = np.array(short, dtype=np.int64), min(4 * wanted, possible)
        return found

    def _nearest(self, queries: Vectors, k: int, within: str | None, probes: int | None) -> Neighbors:
        """Neighbours (q, k); their ids are rows of the whole index."""
        parts = self._chosen(within)
        if self.lists and self.manifest.lists:
            allowed = None
            if len(parts) < len(self.parts):
                flags = [part in parts for part in self.parts]
                allowed = np.repeat(flags, [part.record.rows for part in self.parts])
            return self.lists.search(queries, k, probes or self.manifest.lists.probes, allowed)
        if len(parts) == len(self.parts):
            return nearest(queries, self.vectors, k)
        near = nearest(queries, map_vectors(parts), k)
        ends = np.cumsum([0, *(part.record.rows for part in parts)])
        owners = np.searchsorted(ends, near.ids, side="right") - 1
        firsts: Ids = np.array([self.starts[self.parts.index(part)] for part in parts])
        return Neighbors(near.ids - ends[owners] + firsts[owners], near.scores)

    def _chosen(self, within: str | None) -> list[IndexPart]:
        return [part for part in self.parts if within in (None, part.record.lang)]

    def _hit(self, row: int, score: float) -> Hit:
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        part, place = self.parts[number], row - int(self.starts[number])
        lines = part.lines_of(place)
        return Hit(score, part.text(place), part.record.lang, part.record.name, lines[0], lines)

    @property
    def model(self) -> Model:
        """The model that made the vectors and encodes queries; ModelError if it was moved or changed."""
        if self._model is None:
            name = self.manifest.model
            with guard_index(self.folder):
                if Path(name).is_absolute() and not Path(name).exists():
                    raise ModelError(f"{name}: the model of {self.folder} does not exist; name its folder with --model")
            model = _open_for(self.manifest)
            check_index_model(model, self.manifest)
            self._model = model
        return self._model


def open_index(folder: str | Path, model: Model | str | Path | None = None, *, check: bool = True) -> Index:
    """Opens an index.

    Args:
        folder: Folder of `dualmoco search build`.
        model: Model of the index, or its name, if it was moved or is already open; if None, the first query opens it.
        check: Whether to verify all checksums, which reads every file once.

    Raises:
        ConfigError: The index needs FAISS, which is not installed.
        DataError: The folder is not an index, or is damaged.
        ModelError: The model is not the one that made the index.
    """
    path = Path(folder)
    with guard_index(path):
        manifest = read_index_manifest(path)
        opened = None if model is None else _open_for(manifest, model)
        index = Index(path, manifest, opened)
        if check:
            _check_files(index)
    return index


def _check_files(index: Index) -> None:
    """DataError if a checksum differs."""
    with counting("checking the index", len(index)) as progress:
        for part in index.parts:
            part.check(progress)
    lists = index.manifest.lists
    if lists:
        check_file(index.folder / lists.file, lists.sha256)


def _equal(text: str, query: str) -> bool:
    return normalize(text) == normalize(query)
