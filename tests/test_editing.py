"""Operations on the links of an alignment: random sequences of them, their inverses, their replay, and bad ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualmoco.alignment.editing import (
    OPERATIONS,
    SIDES,
    EditedAlignment,
    EditError,
    LinkRow,
    Sentence,
    as_aligned,
    rows_of_aligned,
)

TYPES = [(1, 1), (2, 1), (1, 0), (0, 1), (1, 3), (1, 1), (2, 2)]


def sample() -> EditedAlignment:
    """An alignment with links of all types, as the aligner would give it."""
    rows, counts = [], [0, 0]
    for sizes in TYPES:
        cells = []
        for side, size in enumerate(sizes):
            numbers = range(counts[side], counts[side] + size)
            cells.append(tuple(Sentence(f"{'ab'[side]} {number}. More.", f"{number + 1}.1") for number in numbers))
            counts[side] += size
        rows.append(LinkRow(cells[0], cells[1], 0.9 if all(sizes) else None, 0.8))
    return EditedAlignment(("en", "zh"), rows)


def state(edited: EditedAlignment) -> str:
    """Everything that a user sees."""
    return json.dumps([row.as_json() for row in edited.rows])


SMALL = st.integers(-1, 8)
OPERATION = st.fixed_dictionaries(
    {"type": st.sampled_from([*OPERATIONS, "undo", "redo"])},
    optional={
        "row": SMALL,
        "count": SMALL,
        "side": st.sampled_from([*SIDES, "both"]),
        "position": SMALL,
        "offset": SMALL,
        "src": SMALL,
        "tgt": SMALL,
        "to": st.sampled_from(["up", "down"]),
        "on": st.booleans(),
        "text": st.sampled_from(["new", "", "two\nlines"]),
        "edits": st.lists(st.tuples(SMALL, st.sampled_from(SIDES), SMALL, st.just("x")).map(list), max_size=2),
    },
).filter(lambda operation: operation["type"] != "realign")


def letters(edited: EditedAlignment) -> list[str]:
    """The texts of both sides without spaces."""
    return ["".join("".join(part.text for part in edited.sentences(side)).split()) for side in SIDES]


KEEPS_TEXT = {"confirm", "unconfirm", "merge", "split", "move", "split_sentence", "join", "insert", "bookmark"}


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATION, max_size=40))
def test_any_operations_keep_the_texts_and_can_be_undone_and_replayed(operations: list[dict[str, Any]]) -> None:
    """No sentence is lost or moves past another; undoing all gives the original, and a replay the same state."""
    edited, journal = sample(), []
    original = state(edited)
    for operation in operations:
        before, texts, revision = state(edited), letters(edited), edited.revision
        try:
            edited.apply(operation)
        except EditError:
            assert state(edited) == before and edited.revision == revision
            continue
        journal.append(operation)
        assert edited.revision == revision + 1
        if operation["type"] in KEEPS_TEXT:
            assert letters(edited) == texts
        assert all(part.text.strip() == part.text != "" for side in SIDES for part in edited.sentences(side))
        links = as_aligned(edited, ("a", "b"), {}).links
        for spans, side in zip((links.src, links.tgt), SIDES, strict=True):
            assert [*spans[1:, 0]] == [*spans[:-1, 1]]
            assert not len(spans) or (spans[0, 0] == 0 and spans[-1, 1] == len(edited.sentences(side)))
    replayed = sample()
    for operation in json.loads(json.dumps(journal)):
        replayed.apply(operation)
    assert state(replayed) == state(edited) and replayed.revision == edited.revision
    final, undone = state(edited), len(edited.done)
    for _ in range(undone):
        edited.apply({"type": "undo"})
    assert state(edited) == original
    for _ in range(undone):
        edited.apply({"type": "redo"})
    assert state(edited) == final


def after(*operations: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Numbers of the sentences of each row, and its status, after some operations."""
    edited = sample()
    for operation in operations:
        edited.apply(operation)
    found = []
    for row in edited.rows:
        src, tgt = ("".join(part.text.split(" ")[1].rstrip(".") for part in row.side(side)) for side in SIDES)
        found.append((src, tgt, row.status))
    return found


DONE = {
    "confirm": ({"type": "confirm", "row": 1}, 1, [("12", "1", "confirmed")]),
    "merge": ({"type": "merge", "row": 1}, 1, [("123", "1", "edited")]),
    "split": ({"type": "split", "row": 1, "src": 1, "tgt": 1}, 1, [("1", "1", "edited"), ("2", "", "edited")]),
    "move up": (
        {"type": "move", "row": 1, "side": "src", "to": "up"},
        0,
        [("01", "0", "edited"), ("2", "1", "edited")],
    ),
    "move down": (
        {"type": "move", "row": 1, "side": "src", "to": "down"},
        1,
        [("1", "1", "edited"), ("23", "", "edited")],
    ),
    "move the last of a row": ({"type": "move", "row": 2, "side": "src", "to": "up"}, 1, [("123", "1", "edited")]),
    "move before the first row": (
        {"type": "move", "row": 0, "side": "tgt", "to": "up"},
        0,
        [("", "0", "edited"), ("0", "", "edited")],
    ),
    "delete a sentence": (
        {"type": "delete", "row": 1, "side": "src", "position": 0},
        1,
        [("2", "1", "edited")],
    ),
    "delete the last sentence": (
        {"type": "delete", "row": 2, "side": "src", "position": 0},
        1,
        [("12", "1", "automatic"), ("", "2", "automatic")],
    ),
    "insert": ({"type": "insert", "row": 1}, 1, [("", "", "edited"), ("12", "1", "automatic")]),
}


@pytest.mark.parametrize("name", DONE)
def test_operations_do_what_they_are_called(name: str) -> None:
    """Rows around the change are as they were."""
    operation, start, expected = DONE[name]
    before, rows = after(), after(operation)
    assert rows[start : start + len(expected)] == expected and rows[:start] == before[:start]


def test_texts_are_split_joined_edited_and_replaced() -> None:
    """At the cursor; joined as the language joins sentences; several at once."""
    edited = sample()
    edited.apply({"type": "split_sentence", "row": 0, "side": "src", "position": 0, "offset": 4})
    assert [part.text for part in edited.rows[0].src] == ["a 0.", "More."]
    edited.apply({"type": "join", "row": 0, "side": "src", "position": 0})
    assert edited.rows[0].src == (Sentence("a 0. More.", "1.1"),)
    edited.apply({"type": "edit", "row": 2, "side": "tgt", "position": 0, "text": " 你好。 "})
    assert edited.rows[2].tgt[0].text == "你好。" and edited.rows[2].status == "edited"
    edited.apply({"type": "confirm", "row": 3})
    edited.apply({"type": "replace", "edits": [[3, "tgt", 0, "x"], [1, "src", 0, "y"], [1, "src", 1, "z"]]})
    assert [part.text for part in edited.rows[1].src] == ["y", "z"] and edited.rows[3].status == "confirmed"
    edited.apply({"type": "undo"})
    assert [part.text for part in edited.rows[1].src] == ["a 1. More.", "a 2. More."]


def test_realigning_needs_all_sentences_and_keeps_confirmed_rows_and_bookmarks() -> None:
    """Bookmarks stay with their first sentence; links that do not cover their sentences are refused."""
    edited = sample()
    edited.apply({"type": "confirm", "row": 0})
    edited.apply({"type": "bookmark", "row": 2, "on": True})
    edited.apply({"type": "realign", "stretches": [[1, 3, [[1, 0, None, 0.5], [2, 2, 0.7, 0.6]]]]})
    assert [(len(row.src), len(row.tgt)) for row in edited.rows[:3]] == [(1, 1), (1, 0), (2, 2)]
    assert [row.is_bookmarked for row in edited.rows[:3]] == [False, False, True]
    for stretches in ([[1, 2, [[1, 0, None, 0.5]]]], [[0, 1, [[1, 1, 1.0, 1.0]]]], [[4, 9, []]]):
        with pytest.raises(EditError, match="realign: "):
            edited.apply({"type": "realign", "stretches": stretches})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "operation": ({"type": "explode"}, "operation 'explode'; expected one of undo, redo, confirm"),
    "no operation": ({}, "operation None; expected one of"),
    "row": ({"type": "confirm", "row": 7}, "confirm: row 7; expected a number from 0 to 6"),
    "no number": ({"type": "confirm", "row": True}, "confirm: row True; expected a number"),
    "merge with nothing": ({"type": "merge", "row": 6}, "merge: count 2; expected a number from 1 to 1"),
    "merge of one": ({"type": "merge", "row": 1, "count": 1}, "merge: 1 row; expected at least 2"),
    "empty part": ({"type": "split", "row": 0, "src": 1, "tgt": 1}, "split: one part is empty"),
    "side": ({"type": "move", "row": 0, "side": "left", "to": "up"}, "move: side 'left'; expected src or tgt"),
    "way": ({"type": "move", "row": 0, "side": "src", "to": "out"}, "move: to 'out'; expected up or down"),
    "nothing to move": ({"type": "move", "row": 2, "side": "tgt", "to": "up"}, "row 3 has no tgt sentence"),
    "cursor at the end": (
        {"type": "split_sentence", "row": 0, "side": "src", "position": 0, "offset": 10},
        "offset 10; expected a number from 1 to 9",
    ),
    "no sentence after": ({"type": "join", "row": 0, "side": "src", "position": 0}, "no src sentence after this one"),
    "empty text": ({"type": "edit", "row": 0, "side": "src", "position": 0, "text": " \n"}, "the text is empty"),
    "half a character": ({"type": "edit", "row": 0, "side": "src", "position": 0, "text": "\ud83d"}, "is not a text"),
    "long text": (
        {"type": "edit", "row": 0, "side": "src", "position": 0, "text": "a" * 100_001},
        "100,001 characters; expected at most 100,000",
    ),
    "nothing": ({"type": "unconfirm", "row": 0}, "unconfirm changes nothing"),
    "undo": ({"type": "undo"}, "nothing to undo"),
    "redo": ({"type": "redo"}, "nothing to redo"),
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_operations_change_nothing(name: str) -> None:
    """One line says what was given and what was expected."""
    operation, message = BAD[name]
    edited = sample()
    before = state(edited)
    with pytest.raises(EditError) as raised:
        edited.apply(operation)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert state(edited) == before and edited.revision == 0


def test_nothing_changes_if_the_operation_cannot_be_saved() -> None:
    """Neither rows nor what can be undone."""
    edited = sample()
    edited.apply({"type": "merge", "row": 0})
    before = state(edited)

    def fail() -> None:
        raise OSError("full")

    for kind in ("undo", "confirm"):
        with pytest.raises(OSError, match="full"):
            edited.apply({"type": kind, "row": 0}, fail)
        assert state(edited) == before and len(edited.done) == 1 and not edited.undone


def test_rows_survive_the_way_to_documents_and_back() -> None:
    """Sentences, places, statuses and known numbers; a confirmed link is certain."""
    edited = sample()
    edited.apply({"type": "confirm", "row": 1})
    edited.apply({"type": "merge", "row": 3})
    edited.apply({"type": "insert", "row": 0})
    aligned = as_aligned(edited, ("a.txt", "b.txt"), {})
    rows = rows_of_aligned(aligned)
    assert [row.as_json()[:3] for row in rows] == [row.as_json()[:3] for row in edited.rows[1:]]
    assert [row.status for row in rows] == [row.status for row in edited.rows[1:]]
    assert [row.confidence for row in rows] == [0.8, 1.0, 0.8, None, 0.8, 0.8]
    only = as_aligned(edited, ("a.txt", "b.txt"), {}, only_confirmed=True)
    assert only.links.src.tolist() == [[1, 3]] and only.statuses == ["confirmed"]
    assert LinkRow.from_json(json.loads(json.dumps(edited.rows[2].as_json()))) == edited.rows[2]
