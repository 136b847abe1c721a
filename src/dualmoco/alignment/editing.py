"""Editing of an alignment: links as rows of sentences, operations on them, undo and redo.

A row contains the sentences of its link, so after any operation, each sentence is in exactly one link and the order of
the texts is kept. Every operation is a list of splices, which replace some rows by others. Undo restores the old rows.
Operations are plain JSON objects, such as {"type": "merge", "row": 3}. The same operations in the same order give the
same rows, so only a journal of operations must be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from dualmoco.alignment.aligner import Links, join_sentences
from dualmoco.alignment.output import AUTOMATIC, CONFIRMED, EDITED, Aligned, one_line
from dualmoco.alignment.splitting import Document
from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Ids
from dualmoco.data.readers.base import is_unicode

SideName = Literal["src", "tgt"]
SIDES: tuple[SideName, SideName] = ("src", "tgt")
UNDO_EDIT, REDO_EDIT = "undo", "redo"
MAX_SENTENCE_CHARACTERS = 100_000


class EditError(DataError):
    """An operation on an alignment is impossible."""


class Sentence(NamedTuple):
    """A sentence and its place in the original document."""

    text: str
    place: str


Cell = tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A link and its sentences; an empty row is a place for sentences."""

    src: Cell
    tgt: Cell
    score: float | None = None  # score of the aligner; None if the link was made by hand
    confidence: float | None = None
    is_edited: bool = False
    is_confirmed: bool = False
    is_bookmarked: bool = False

    @property
    def status(self) -> str:
        """Whether the link is confirmed, edited or automatic."""
        return CONFIRMED if self.is_confirmed else EDITED if self.is_edited else AUTOMATIC

    def side(self, name: SideName) -> Cell:
        """The sentences of one side."""
        return self.src if name == "src" else self.tgt

    def with_side(self, name: SideName, cell: Cell) -> LinkRow:
        """The same link with other sentences on one side."""
        return replace(self, src=cell) if name == "src" else replace(self, tgt=cell)

    @property
    def is_empty(self) -> bool:
        """Whether neither side has sentences."""
        return not (self.src or self.tgt)

    def as_json(self) -> list[Any]:
        """The row as a list for JSON; see `from_json`."""
        return [self.src, self.tgt, self.score, self.confidence, self.status, self.is_bookmarked]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> LinkRow:
        """The row that `as_json` turned into a list."""
        src, tgt, score, confidence, status, is_bookmarked = row
        cells = [tuple(Sentence(text, place) for text, place in side) for side in (src, tgt)]
        return cls(cells[0], cells[1], score, confidence, status == EDITED, status == CONFIRMED, is_bookmarked)


class Splice(NamedTuple):
    """Rows that were replaced by others."""

    start: int  # number of the first row, from 0
    old: tuple[LinkRow, ...]
    new: tuple[LinkRow, ...]

    @property
    def inverse(self) -> Splice:
        """The splice that undoes this one."""
        return Splice(self.start, self.new, self.old)


Splices = list[Splice]
"""Splices in order; the row numbers of each splice count after the earlier splices."""


@dataclass
class EditedAlignment:
    """The rows of an alignment, and the history of operations."""

    langs: tuple[str, str]
    rows: list[LinkRow]
    revision: int = 0  # number of operations so far, with undo and redo
    done: list[Splices] = field(default_factory=list)  # what can be undone, oldest first
    undone: list[Splices] = field(default_factory=list)

    def apply(self, operation: Mapping[str, Any], save: Callable[[], object] = lambda: None) -> Splices:
        """Runs an operation and returns its change; EditError, without any change, if it is impossible.

        `save` is called once the operation is known to be possible; if it raises an error, nothing changes either.
        """
        name = operation.get("type")
        if name == UNDO_EDIT:
            splices = [splice.inverse for splice in reversed(self._last(self.done, name))]
        elif name == REDO_EDIT:
            splices = self._last(self.undone, name)
        else:
            splices = self._plan(operation)
        save()
        if name == UNDO_EDIT:
            self.undone.append(self.done.pop())
        elif name == REDO_EDIT:
            self.done.append(self.undone.pop())
        else:
            self.done.append(splices)
            self.undone.clear()
        for splice in splices:
            self.rows[splice.start : splice.start + len(splice.old)] = splice.new
        self.revision += 1
        return splices

    def _plan(self, operation: Mapping[str, Any]) -> Splices:
        """The change that an operation would make; EditError if it is impossible or changes nothing."""
        name = operation.get("type")
        if not isinstance(name, str) or name not in OPERATIONS:
            raise EditError(f"operation {name!r}; expected one of {UNDO_EDIT}, {REDO_EDIT}, {', '.join(OPERATIONS)}")
        splices = [part for part in OPERATIONS[name](self, _Arguments(operation)) if part.old != part.new]
        if not splices:
            raise EditError(f"{name} changes nothing")
        return splices

    @staticmethod
    def _last(stack: list[Splices], name: str) -> Splices:
        if not stack:
            raise EditError(f"nothing to {name}")
        return stack[-1]

    def sentences(self, side: SideName) -> list[Sentence]:
        """The sentences of one side, in order."""
        return [sentence for row in self.rows for sentence in row.side(side)]

    @property
    def confirmed(self) -> int:
        """Number of confirmed rows."""
        return sum(row.is_confirmed for row in self.rows)


class _Arguments:
    """The arguments of an operation, checked when they are read."""

    def __init__(self, operation: Mapping[str, Any]) -> None:
        self.operation = operation

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self.operation.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise EditError(f"{self.operation['type']}: {name} {value!r:.60}; expected a number from {least} to {most}")
        return value

    def side(self) -> SideName:
        value = self.operation.get("side")
        if value not in SIDES:
            raise EditError(f"{self.operation['type']}: side {value!r:.60}; expected src or tgt")
        return cast(SideName, value)

    def choice(self, name: str, *values: Any) -> Any:
        value = self.operation.get(name)
        if value not in values:
            raise EditError(f"{self.operation['type']}: {name} {value!r:.60}; expected {' or '.join(map(str, values))}")
        return value

    def row(self, edited: EditedAlignment, default: int | None = None) -> int:
        if not edited.rows:
            raise EditError("the alignment has no rows; insert one first")
        return self.number("row", 0, len(edited.rows) - 1, default)

    def rows(self, edited: EditedAlignment, default: int) -> tuple[int, tuple[LinkRow, ...]]:
        """The first of some rows, and the rows."""
        first = self.row(edited)
        count = self.number("count", 1, len(edited.rows) - first, default)
        return first, tuple(edited.rows[first : first + count])

    def sentence(self, edited: EditedAlignment, *, may_add: bool = False) -> tuple[int, SideName, int]:
        """Row, side and number of a sentence."""
        row, side = self.row(edited), self.side()
        count = len(edited.rows[row].side(side)) + may_add
        if not count:
            raise EditError(f"row {row + 1} has no {side} sentence")
        return row, side, self.number("position", 0, count - 1)

    def list(self, name: str) -> list[Any]:
        value = self.operation.get(name)
        if not isinstance(value, list):
            raise EditError(f"{self.operation['type']}: {name} is not a list")
        return value


def clean_text(given: object) -> str:
    """The text of a sentence on one line; EditError if it is empty or not a string."""
    if not isinstance(given, str) or not is_unicode(given):
        raise EditError(f"{given!r:.60} is not a text")
    text = one_line(given).strip()
    if not text:
        raise EditError("the text is empty; expected a sentence, or delete it")
    if len(text) > MAX_SENTENCE_CHARACTERS:
        raise EditError(f"a text of {len(text):,} characters; expected at most {MAX_SENTENCE_CHARACTERS:,}")
    return text


def _set_confirmed(edited: EditedAlignment, given: _Arguments) -> Splices:
    first, rows = given.rows(edited, 1)
    is_confirmed = given.operation["type"] == "confirm"
    return [Splice(first, rows, tuple(replace(row, is_confirmed=is_confirmed) for row in rows))]


def _merge(edited: EditedAlignment, given: _Arguments) -> Splices:
    first, rows = given.rows(edited, 2)
    if len(rows) < 2:
        raise EditError("merge: 1 row; expected at least 2")
    src, tgt = (tuple(sentence for row in rows for sentence in row.side(side)) for side in SIDES)
    is_bookmarked = any(row.is_bookmarked for row in rows)
    return [Splice(first, rows, (LinkRow(src, tgt, is_edited=True, is_bookmarked=is_bookmarked),))]


def _split(edited: EditedAlignment, given: _Arguments) -> Splices:
    first = given.row(edited)
    row = edited.rows[first]
    m, n = given.number("src", 0, len(row.src)), given.number("tgt", 0, len(row.tgt))
    if not m + n or m + n == len(row.src) + len(row.tgt):
        raise EditError("split: one part is empty; expected a sentence in both")
    parts = (
        LinkRow(row.src[:m], row.tgt[:n], is_edited=True, is_bookmarked=row.is_bookmarked),
        LinkRow(row.src[m:], row.tgt[n:], is_edited=True),
    )
    return [Splice(first, (row,), parts)]


def _move(edited: EditedAlignment, given: _Arguments) -> Splices:
    """Moves the first sentence to the previous row, or the last one to the next; at the ends a row is added."""
    first, side, way = given.row(edited), given.side(), given.choice("to", "up", "down")
    row, is_up = edited.rows[first], way == "up"
    cell = row.side(side)
    if not cell:
        raise EditError(f"row {first + 1} has no {side} sentence to move {way}")
    place = first - 1 if is_up else first + 1
    has_other = 0 <= place < len(edited.rows)
    if not has_other and len(cell) == 1 and len(row.src) + len(row.tgt) == 1:
        raise EditError(f"row {first + 1} is the {'first' if is_up else 'last'} row; there is no row to move to")
    other = edited.rows[place] if has_other else LinkRow((), ())
    left = _touched(row, side, cell[1:] if is_up else cell[:-1])
    joined = (*other.side(side), cell[0]) if is_up else (cell[-1], *other.side(side))
    taken = _touched(other, side, joined)
    kept = [] if left.is_empty else [left]
    new = [taken, *kept] if is_up else [*kept, taken]
    old = [other] if has_other else []
    old = [*old, row] if is_up else [row, *old]
    return [Splice(place if is_up and has_other else first, tuple(old), tuple(new))]


def _touched(row: LinkRow, side: SideName, cell: Cell) -> LinkRow:
    """A row whose link was changed by hand, without the aligner's numbers, which no longer apply."""
    return replace(row.with_side(side, cell), score=None, confidence=None, is_edited=True, is_confirmed=False)


def _split_sentence(edited: EditedAlignment, given: _Arguments) -> Splices:
    first, side, position = given.sentence(edited)
    row = edited.rows[first]
    text, place = row.side(side)[position]
    offset = given.number("offset", 1, max(1, len(text) - 1))
    parts = text[:offset].strip(), text[offset:].strip()
    if not all(parts):
        raise EditError("split_sentence: one part is empty; put the cursor inside the sentence")
    return _with_sentences(
        edited, first, side, slice(position, position + 1), [Sentence(part, place) for part in parts]
    )


def _join(edited: EditedAlignment, given: _Arguments) -> Splices:
    first, side, position = given.sentence(edited)
    pair = edited.rows[first].side(side)[position : position + 2]
    if len(pair) < 2:
        raise EditError(f"row {first + 1} has no {side} sentence after this one; move or merge it here first")
    text = join_sentences([part.text for part in pair], edited.langs[SIDES.index(side)])
    joined = Sentence(clean_text(text), pair[0].place)
    return _with_sentences(edited, first, side, slice(position, position + 2), [joined])


def _edit(edited: EditedAlignment, given: _Arguments) -> Splices:
    """Changes the text of a sentence; the number after the last sentence adds one."""
    first, side, position = given.sentence(edited, may_add=True)
    row, text = edited.rows[first], clean_text(given.operation.get("text"))
    cell = row.side(side)
    if position < len(cell):
        return [Splice(first, (row,), (_with_text(row, side, position, text),))]
    place = cell[-1].place if cell else ""
    return _with_sentences(edited, first, side, slice(position, position), [Sentence(text, place)])


def _with_text(row: LinkRow, side: SideName, position: int, text: str) -> LinkRow:
    """A row with another text; the link and its confirmation stay."""
    cell = row.side(side)
    if cell[position].text == text:
        return row
    new = (*cell[:position], Sentence(text, cell[position].place), *cell[position + 1 :])
    return replace(row.with_side(side, new), is_edited=True)


def _with_sentences(
    edited: EditedAlignment, first: int, side: SideName, which: slice, sentences: Sequence[Sentence]
) -> Splices:
    """Replaces sentences of a cell; a row that becomes empty is removed."""
    row = edited.rows[first]
    cell = row.side(side)
    new = _touched(row, side, (*cell[: which.start], *sentences, *cell[which.stop :]))
    return [Splice(first, (row,), () if new.is_empty else (new,))]


def _delete(edited: EditedAlignment, given: _Arguments) -> Splices:
    """Deletes a sentence, or a row with its sentences if no side is given."""
    if "side" not in given.operation:
        first, rows = given.rows(edited, 1)
        return [Splice(first, rows, ())]
    first, side, position = given.sentence(edited)
    return _with_sentences(edited, first, side, slice(position, position + 1), [])


def _insert(edited: EditedAlignment, given: _Arguments) -> Splices:
    """Inserts an empty row before another one, or after the last."""
    return [Splice(given.number("row", 0, len(edited.rows)), (), (LinkRow((), (), is_edited=True),))]


def _bookmark(edited: EditedAlignment, given: _Arguments) -> Splices:
    first, is_bookmarked = given.row(edited), given.choice("on", True, False)
    row = edited.rows[first]
    return [Splice(first, (row,), (replace(row, is_bookmarked=is_bookmarked),))]


def _replace(edited: EditedAlignment, given: _Arguments) -> Splices:
    """Changes the texts of several sentences, each given as [row, side, position, text]."""
    changed: dict[int, LinkRow] = {}
    for edit in given.list("edits"):
        if not isinstance(edit, list | tuple) or len(edit) != 4:
            raise EditError(f"replace: {edit!r:.60}; expected row, side, position and text")
        part = _Arguments({"type": "replace", **dict(zip(("row", "side", "position", "text"), edit, strict=True))})
        row, side, position = part.sentence(edited)
        changed[row] = _with_text(changed.get(row, edited.rows[row]), side, position, clean_text(edit[3]))
    return [Splice(row, (edited.rows[row],), (new,)) for row, new in sorted(changed.items())]


def _realign(edited: EditedAlignment, given: _Arguments) -> Splices:
    """Links the sentences of some rows again.

    Stretches are in order, each given as [row, count, links], and a link as [m, n, score, confidence]. Confirmed rows
    cannot be among them.
    """
    splices: Splices = []
    end = 0
    for stretch in given.list("stretches"):
        start, count, links = stretch
        old = tuple(edited.rows[start : start + count])
        if not end <= start < start + count <= len(edited.rows) or any(row.is_confirmed for row in old):
            raise EditError(f"realign: rows {start + 1} to {start + count} are not unconfirmed rows in order")
        splices.append(Splice(start, old, tuple(_linked_rows(old, links))))
        end = start + count
    return splices[::-1]  # from the last to the first, so that the numbers of rows stay valid


def _linked_rows(old: Sequence[LinkRow], links: Sequence[Sequence[Any]]) -> Iterator[LinkRow]:
    """The sentences of some rows in new links; bookmarks stay with the first sentence of their row."""
    cells = {side: [sentence for row in old for sentence in row.side(side)] for side in SIDES}
    if any(sum(link[k] for link in links) != len(cells[side]) for k, side in enumerate(SIDES)):
        raise EditError("realign: the links do not cover the sentences")
    known = {(row.src, row.tgt): row for row in old}
    marked = _bookmarked_sentences(old)
    i = j = 0
    for m, n, score, confidence in links:
        src, tgt = tuple(cells["src"][i : i + m]), tuple(cells["tgt"][j : j + n])
        same = known.get((src, tgt))
        is_marked = bool(marked[0] & set(range(i, i + m)) or marked[1] & set(range(j, j + n)))
        yield LinkRow(src, tgt, score, confidence, bool(same and same.is_edited), is_bookmarked=is_marked)
        i, j = i + m, j + n


def _bookmarked_sentences(rows: Sequence[LinkRow]) -> tuple[set[int], set[int]]:
    """Numbers of the first source sentence of each bookmarked row, or of its first target sentence if it has none."""
    marked: tuple[set[int], set[int]] = set(), set()
    i = j = 0
    for row in rows:
        if row.is_bookmarked and not row.is_empty:
            marked[0 if row.src else 1].add(i if row.src else j)
        i, j = i + len(row.src), j + len(row.tgt)
    return marked


OPERATIONS: dict[str, Callable[[EditedAlignment, _Arguments], Splices]] = {
    "confirm": _set_confirmed,
    "unconfirm": _set_confirmed,
    "merge": _merge,
    "split": _split,
    "move": _move,
    "split_sentence": _split_sentence,
    "join": _join,
    "edit": _edit,
    "delete": _delete,
    "insert": _insert,
    "bookmark": _bookmark,
    "replace": _replace,
    "realign": _realign,
}
"""The operations on rows, besides undo and redo."""


# Conversion from and to documents with links


def rows_of_aligned(aligned: Aligned) -> list[LinkRow]:
    """The links of two documents as rows."""
    links = aligned.links
    cells = (
        [
            tuple(map(Sentence, document.sentences[first:end], document.places[first:end]))
            for first, end in spans.tolist()
        ]
        for document, spans in ((aligned.src, links.src), (aligned.tgt, links.tgt))
    )
    statuses = aligned.statuses or [AUTOMATIC] * len(links)
    return [
        LinkRow(src, tgt, _known(score), _known(confidence), status == EDITED, status == CONFIRMED)
        for src, tgt, score, confidence, status in zip(
            *cells, links.scores.tolist(), links.confidence.tolist(), statuses, strict=True
        )
    ]


def _known(number: float) -> float | None:
    return None if isnan(number) else number


def as_aligned(
    edited: EditedAlignment, names: tuple[str, str], origin: Mapping[str, object], *, only_confirmed: bool = False
) -> Aligned:
    """The documents and links of an edited alignment, without empty rows; confirmed links have a confidence of 1."""
    rows = [row for row in edited.rows if not row.is_empty]
    documents = [
        Document(name, [part.text for part in parts], [part.place for part in parts], lang)
        for name, lang, parts in zip(names, edited.langs, map(edited.sentences, SIDES), strict=True)
    ]
    spans = [_spans(len(row.side(side)) for row in rows) for side in SIDES]
    scores = np.array([np.nan if row.score is None else row.score for row in rows], dtype=np.float64)
    given = [1.0 if row.is_confirmed else row.confidence for row in rows]
    confidence = np.array([np.nan if number is None else number for number in given], dtype=np.float64)
    links, statuses = Links(spans[0], spans[1], scores, confidence), [row.status for row in rows]
    if only_confirmed:
        chosen = [number for number, row in enumerate(rows) if row.is_confirmed]
        links, statuses = links.take(np.array(chosen, dtype=np.int64)), [CONFIRMED] * len(chosen)
    return Aligned(documents[0], documents[1], links, origin, statuses)


def _spans(sizes: Iterable[int]) -> Ids:
    """First sentence and end (exclusive) of consecutive spans, shape (b, 2)."""
    ends = np.cumsum(np.fromiter(sizes, dtype=np.int64))
    return np.stack([np.append(0, ends[:-1]), ends], axis=1) if len(ends) else np.zeros((0, 2), dtype=np.int64)
