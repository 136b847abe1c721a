"""An index of sentences and documents in several languages, open for searching.

`index_update.py` builds and changes indexes. An open index is a snapshot of one state on disk. A change replaces the
whole state. Shapes: q queries, n rows, D dimension, k neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.display import data_frame, html_table
from dualmoco.core.errors import ConfigError, DataError, ModelError
from dualmoco.core.progress import counting
from dualmoco.core.storage import check_contained
from dualmoco.core.vectors import Ids, VectorRows, Vectors, check_vectors, unit_vectors
from dualmoco.models.model import Model
from dualmoco.search.document_reader import DocumentRecords
from dualmoco.search.exact import Neighbors, nearest
from dualmoco.search.faiss_index import InvertedLists
from dualmoco.search.index_files import (
    IndexManifest,
    IndexPart,
    check_file,
    check_index_model,
    check_lengths,
    check_part_model,
    guard_index,
    map_vectors,
    read_index_manifest,
)
from dualmoco.search.index_update import (
    Files,
    GivenSentences,
    add_to_index,
    delete_from_index,
    open_index_model,
    update_index,
)
from dualmoco.search.metadata import FieldTypes, MetadataFilter, Scalar, parse_filter
from dualmoco.text.characters import normalize
from dualmoco.text.containers import as_sentences
from dualmoco.text.languages import find_language

QUERIES_AT_ONCE = 64
EXPECTED_EQUALS = 5  # extra neighbours of the first search, for sentences equal to the query
OPENING_ATTEMPTS = 5  # attempts while other processes change the index


@dataclass(frozen=True)
class Hit:
    """A sentence or a document found by a query."""

    score: float  # cosine with the query
    text: str
    lang: str
    part: str  # name of the file
    line: int  # first line of the sentence in the file, from 1
    lines: tuple[int, ...] = ()  # all lines of the sentence
    id: str = ""  # id of a document
    metadata: dict[str, Scalar] = field(default_factory=dict)  # metadata of a document


@dataclass(frozen=True)
class SearchScope:
    """The rows of an index that a search looks at."""

    rows: Ids | None  # ascending; None if all
    slots: Mapping[int, np.ndarray[Any, np.dtype[np.bool_]]]  # documents to search, for parts that are searched in part


class ChosenRows:
    """Some rows (n,) of vectors, copied only when read."""

    def __init__(self, vectors: VectorRows, rows: Ids) -> None:
        self.vectors, self.rows = vectors, rows

    @property
    def shape(self) -> tuple[int, int]:
        """N and D."""
        return len(self.rows), self.vectors.shape[1]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> Vectors:
        """The vectors of a slice, or of an array of row numbers of any shape."""
        chosen = self.rows[rows]
        if isinstance(rows, slice) and len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1:
            return self.vectors[int(chosen[0]) : int(chosen[-1]) + 1]  # consecutive rows, which are not copied
        return self.vectors[chosen]


class IndexSnapshot:
    """The files that a manifest lists, mapped; they stay readable when the index is changed."""

    def __init__(self, folder: Path, manifest: IndexManifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.parts = [IndexPart(folder, record) for record in manifest.parts]
        for part in self.parts:
            check_part_model(part, manifest)
        self.starts = np.cumsum([0, *(record.rows for record in manifest.parts)])  # first row of each part, and the end
        self.vectors = map_vectors(self.parts)
        lists = manifest.lists
        if lists:
            check_contained(folder / lists.file, folder)
        self.lists = InvertedLists.load(folder / lists.file, self.vectors) if lists else None

    @cached_property
    def everything(self) -> SearchScope:
        """The scope of everything that is not deleted."""
        return self._find_scope(None, (), None)

    def scope(self, within: str | None, files: Sequence[str], filter: MetadataFilter | None) -> SearchScope:
        """The scope of a search with these limits."""
        return self._find_scope(within, files, filter) if within or files or filter else self.everything

    def _find_scope(self, within: str | None, files: Sequence[str], filter: MetadataFilter | None) -> SearchScope:
        conditions = parse_filter(filter, self.manifest.fields)
        found, slots = [], {}
        for number, part in enumerate(self.parts):
            record = part.record
            if within not in (None, record.lang) or (files and record.name not in files):
                continue
            rows = np.arange(record.rows)
            if part.table and (conditions or len(part.deleted)):
                kept = part.table.slots(conditions) if conditions else np.arange(len(part.slot_rows))
                slots[number] = np.zeros(len(part.slot_rows), dtype=bool)
                slots[number][part.kept_slots(kept)] = True
                rows = np.unique(part.slot_rows[slots[number]])
            elif conditions:
                continue  # sentences of text files have no metadata
            found.append(rows + self.starts[number])
        chosen: Ids = np.concatenate([np.empty(0, dtype=np.int64), *found])
        return SearchScope(None if len(chosen) == len(self.vectors) else chosen, slots)

    def nearest(self, queries: Vectors, k: int, scope: SearchScope, probes: int | None) -> Neighbors:
        """Neighbours (q, k) within a scope; their ids are rows of the whole index."""
        if self.lists and self.manifest.lists:
            allowed = None
            if scope.rows is not None:
                allowed = np.zeros(len(self.vectors), dtype=bool)
                allowed[scope.rows] = True
            return self.lists.search(queries, k, probes or self.manifest.lists.probes, allowed)
        if scope.rows is None:
            return nearest(queries, self.vectors, k)
        near = nearest(queries, ChosenRows(self.vectors, scope.rows), k)
        return Neighbors(scope.rows[near.ids], near.scores)

    def hits(self, row: int, score: float, scope: SearchScope) -> Iterator[Hit]:
        """The sentence of a row, or all documents that have it as their text."""
        number = int(np.searchsorted(self.starts, row, side="right")) - 1
        part, place = self.parts[number], row - int(self.starts[number])
        text, lines, record = part.text(place), part.lines_of(place), part.record
        if not part.table:
            yield Hit(score, text, record.lang, record.name, lines[0], lines)
            return
        slots = [line - 1 for line in lines if number not in scope.slots or scope.slots[number][line - 1]]
        for entry in part.table.entries(slots):
            yield Hit(score, text, record.lang, record.name, entry.line, (entry.line,), entry.id, entry.metadata)


class Index:
    """An open index. Several threads may search it, even while one of them changes it."""

    def __init__(self, snapshot: IndexSnapshot, model: Model | None = None) -> None:
        self.folder, self._model, self._snapshot = snapshot.folder, model, snapshot
        if model:
            check_index_model(model, snapshot.manifest)

    @property
    def manifest(self) -> IndexManifest:
        """The manifest of the index."""
        return self._snapshot.manifest

    @property
    def parts(self) -> list[IndexPart]:
        """The parts of the index, in order."""
        return self._snapshot.parts

    @property
    def vectors(self) -> VectorRows:
        """All vectors (n, D)."""
        return self._snapshot.vectors

    @property
    def lists(self) -> InvertedLists | None:
        """The inverted lists of the index, if it has any."""
        return self._snapshot.lists

    @property
    def fields(self) -> FieldTypes:
        """The metadata fields of the documents, and the type of each: text, number or true/false."""
        return self.manifest.fields

    def add(self, files: Files = (), *, sentences: GivenSentences = (), documents: DocumentRecords = ()) -> None:
        """Adds files, sentences or documents to the index on disk, ready to be searched; see `add_to_index`.

        A document replaces an earlier document with the same id.
        """
        add_to_index(self.folder, files, self.model, sentences=sentences, documents=documents)
        self.refresh()

    def update(self, documents: DocumentRecords) -> None:
        """Changes documents by `id`: given values replace the old ones, all others stay; see `update_index`.

        Only new texts are encoded.
        """
        update_index(self.folder, documents, self.model)
        self.refresh()

    def delete(
        self, ids: Iterable[str] = (), *, files: Iterable[str] = (), filter: MetadataFilter | None = None
    ) -> None:
        """Deletes documents by id or by metadata, or whole files; see `delete_from_index`."""
        delete_from_index(self.folder, ids, files=files, filter=filter)
        self.refresh()

    def refresh(self) -> None:
        """Reads the index again if it was changed on disk; searches that are running finish with the old state."""
        if read_index_manifest(self.folder) != self.manifest:
            self._snapshot = open_snapshot(self.folder)

    def __len__(self) -> int:
        return self.manifest.sentences

    def __repr__(self) -> str:
        manifest = self.manifest
        return (
            f"<Index {self.folder}: {len(self):,} sentences in {', '.join(manifest.languages)}, {manifest.kind}, "
            f"{manifest.precision}, model {manifest.model}>"
        )

    def _repr_html_(self) -> str:
        rows = [(record.lang, record.name, f"{record.sentences:,}") for record in self.manifest.parts]
        return html_table(repr(self)[1:-1], ("language", "file", "sentences"), rows, len(self.parts))

    def to_pandas(self) -> Any:
        """Returns a DataFrame of all sentences: lang, file, line, text, and for documents id and metadata.

        ConfigError if pandas is not installed.
        """
        snapshot, fields = self._snapshot, list(self.fields)
        columns = ("lang", "file", "line", "text", *(["id", *fields] if fields else []))
        scope = snapshot.everything
        rows = np.arange(len(snapshot.vectors)) if scope.rows is None else scope.rows
        hits = (hit for row in rows.tolist() for hit in snapshot.hits(row, 0.0, scope))
        return data_frame(
            columns,
            (
                (hit.lang, hit.part, hit.line, hit.text, hit.id, *map(hit.metadata.get, fields))[: len(columns)]
                for hit in hits
            ),
        )

    def search(
        self,
        texts: str | Iterable[str] = (),
        *,
        vectors: Vectors | Sequence[float] | Sequence[Sequence[float]] | None = None,
        lang: str | None = None,
        k: int = 5,
        offset: int = 0,
        within: str | None = None,
        files: str | Iterable[str] = (),
        filter: MetadataFilter | None = None,
        exact_match: bool = True,
        probes: int | None = None,
        min_score: float = -1.0,
    ) -> list[list[Hit]]:
        """Finds the nearest sentences of each query.

        Args:
            texts: One or more queries.
            vectors: Query vectors (q, D), or one vector (D,), from the model of the index, in place of `texts`.
            lang: Language of the queries; recognised for each query if None.
            k: Number of hits per query; fewer only if the index has fewer sentences, or by `min_score`.
            offset: Number of nearest hits to skip; page 3 with 10 hits per page has the offset 20.
            within: Language of the hits; None for any.
            files: Names of the files to search; all if empty.
            filter: Conditions on the metadata of documents, such as `{"source": "news", "year": {">=": 2000}}`. A list
                means one of its values. All conditions must hold; the signs are >=, <=, > and <. The syntax of the
                command line works too, such as `["source=news,ted", "year>=2000"]`.
            exact_match: Whether to include sentences that equal the query, ignoring case, punctuation and spaces.
            probes: Inverted lists to probe; None for the number that was measured when the index was built.
            min_score: Minimum cosine of a hit.

        Returns:
            The hits of each query, nearest first.

        Raises:
            ConfigError: A query has no text, a number is out of range, an option does not suit vectors, or no document
                has a field of the filter.
            DataError: The index has no sentences in the language `within` or no such file, or the vectors have another
                dimension.
            ModelError: The model is missing, did not make the index, or lacks the language.
        """
        queries, names, snapshot = as_sentences(texts, "queries"), as_sentences(files, "files"), self._snapshot
        within = find_language(within, snapshot.manifest.languages) or within if within else None
        _check_search(snapshot, k, offset, within, names, probes, min_score)
        if vectors is not None:
            if queries or lang or not exact_match:
                raise ConfigError("texts, lang and exact_match are for text queries; remove them")
            given = self._query_vectors(vectors)
            queries = [""] * len(given)
        elif not all(query.strip() for query in queries):
            raise ConfigError("a query has no text; expected a sentence")
        scope = snapshot.scope(within, names, filter)
        found: list[list[Hit]] = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            block = queries[start : start + QUERIES_AT_ONCE]
            made = given[start : start + QUERIES_AT_ONCE] if vectors is not None else self._encode(block, lang)
            found += _search_block(snapshot, block, made, k + offset, scope, exact_match, probes)
        return [[hit for hit in hits[offset:] if hit.score >= min_score] for hits in found]

    def _encode(self, queries: list[str], lang: str | None) -> Vectors:
        if lang:
            return self.model.encode(queries, lang=lang, progress=False)
        return self.model.encode_each(queries, self.manifest.languages)

    def _query_vectors(self, vectors: Any) -> Vectors:
        """Unit vectors of queries (q, D)."""
        array = np.atleast_2d(np.asarray(vectors))
        return unit_vectors(check_vectors(array, len(array), "vectors of queries", self.vectors.shape[1]))

    @property
    def model(self) -> Model:
        """The model of the vectors, which also encodes queries; ModelError if it was moved or changed."""
        if self._model is None:
            name = self.manifest.model
            with guard_index(self.folder):
                if Path(name).is_absolute() and not Path(name).exists():
                    raise ModelError(f"{name}: the model of {self.folder} does not exist; name its folder with --model")
            model = open_index_model(self.manifest)
            check_index_model(model, self.manifest)
            self._model = model
        return self._model


def _check_search(
    snapshot: IndexSnapshot,
    k: int,
    offset: int,
    within: str | None,
    files: Sequence[str],
    probes: int | None,
    min_score: float,
) -> None:
    manifest = snapshot.manifest
    for name, number, least in (("k", k, 1), ("offset", offset, 0), ("probes", 1 if probes is None else probes, 1)):
        if number < least:
            raise ConfigError(f"{name} {number}; expected at least {least}")
    if not -1 <= min_score <= 1:
        raise ConfigError(f"min_score {min_score:g}; expected a cosine from -1 to 1")
    if within is not None and within not in manifest.languages:
        known = ", ".join(manifest.languages)
        raise DataError(f"{snapshot.folder}: has no sentences in {within!r}; expected one of {known}")
    known_files = list(dict.fromkeys(part.name for part in manifest.parts))
    if missing := [name for name in files if name not in known_files]:
        raise DataError(f"{missing[0]}: not a file of the index; expected one of {', '.join(known_files)}")
    if probes is not None and snapshot.lists is None:
        raise ConfigError("probes are for inverted lists, but this index is exact; remove them")


def _search_block(
    snapshot: IndexSnapshot,
    queries: Sequence[str],
    vectors: Vectors,
    k: int,
    scope: SearchScope,
    exact_match: bool,
    probes: int | None,
) -> list[list[Hit]]:
    """Hits of a few queries; searches for more neighbours if too many equal the query."""
    possible = len(snapshot.vectors) if scope.rows is None else len(scope.rows)
    found: list[list[Hit]] = [[] for _ in queries]
    left, wanted = np.arange(len(queries)), min(k if exact_match else k + EXPECTED_EQUALS, possible)
    while len(left) and possible:
        near = snapshot.nearest(vectors[left], wanted, scope, probes)
        check_lengths(snapshot.vectors[near.ids], snapshot.folder)
        for place, ids, scores in zip(left.tolist(), near.ids.tolist(), near.scores.tolist(), strict=True):
            hits = (hit for row, score in zip(ids, scores, strict=True) for hit in snapshot.hits(row, score, scope))
            found[place] = [hit for hit in hits if exact_match or not _equal(hit.text, queries[place])][:k]
        short = [place for place in left.tolist() if len(found[place]) < k] if wanted < possible else []
        left, wanted = np.array(short, dtype=np.int64), min(4 * wanted, possible)
    return found


def open_index(folder: str | Path, model: Model | str | Path | None = None, *, check: bool = True) -> Index:
    """Opens an index.

    Args:
        folder: Folder of `dualmoco search build`.
        model: Model of the index, or its name, if it was moved or is already open (default: opened by the first query).
        check: Whether to verify all checksums, which reads every file once.

    Raises:
        ConfigError: The index needs FAISS, which is not installed.
        DataError: The folder is not an index, or is damaged.
        ModelError: The model did not make the index.
    """
    path = Path(folder)
    with guard_index(path):
        snapshot = open_snapshot(path)
        opened = None if model is None else open_index_model(snapshot.manifest, model)
        index = Index(snapshot, opened)
        if check:
            _check_files(index)
    return index


def open_snapshot(folder: Path) -> IndexSnapshot:
    """Maps the files of an index, even if other processes change it meanwhile."""
    for attempt in range(OPENING_ATTEMPTS):
        manifest = read_index_manifest(folder)
        try:
            return IndexSnapshot(folder, manifest)
        except (DataError, OSError):
            if attempt == OPENING_ATTEMPTS - 1 or read_index_manifest(folder) == manifest:
                raise
    raise AssertionError


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
