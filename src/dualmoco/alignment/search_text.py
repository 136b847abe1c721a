"""Search and replace in the sentences of an alignment, with plain text or regular expressions that cannot hang."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from dualmoco.alignment.editing import SIDES, EditedAlignment, EditError, SideName
from dualmoco.core.errors import require

MAX_PATTERN_CHARACTERS = 1_000
MAX_SEARCH_SECONDS = 5.0
Place = tuple[int, SideName, int]
"""Row, side and number of a sentence."""


@dataclass(frozen=True)
class TextSearch:
    """A search in the sentences of an alignment."""

    query: str
    is_regex: bool = False
    is_case_sensitive: bool = False
    sides: Sequence[SideName] = SIDES

    def compile(self) -> Any:
        """The compiled pattern; EditError if it is invalid."""
        if not self.query or len(self.query) > MAX_PATTERN_CHARACTERS:
            limit = f"expected 1 to {MAX_PATTERN_CHARACTERS:,}"
            raise EditError(f"a search text of {len(self.query):,} characters; {limit}")
        regex = require("regex", "serve", "Searching")
        flags = regex.UNICODE if self.is_case_sensitive else regex.UNICODE | regex.IGNORECASE
        try:
            return regex.compile(self.query if self.is_regex else regex.escape(self.query), flags)
        except regex.error as error:
            raise EditError(f"{self.query!r:.60} is not a regular expression: {error}") from None


def find_text(edited: EditedAlignment, search: TextSearch) -> list[Place]:
    """The sentences that have a match, in order."""
    pattern, limit = search.compile(), _Limit()
    return [place for place, text in _texts(edited, search) if limit.run(pattern.search, text)]


def replace_operation(edited: EditedAlignment, search: TextSearch, replacement: str) -> dict[str, Any]:
    """The operation that replaces all matches; a backslash and 1 mean the first group of a regular expression.

    Sentences that would become empty are not changed. EditError if nothing matches.
    """
    pattern, limit = search.compile(), _Limit()
    template = replacement if search.is_regex else replacement.replace("\\", "\\\\")
    edits = []
    for place, text in _texts(edited, search):
        new = limit.run(pattern.sub, template, text)
        if new != text and new.strip():
            edits.append([*place, new])
    if not edits:
        raise EditError(f"{search.query!r:.60}: no match to replace")
    return {"type": "replace", "edits": edits}


def _texts(edited: EditedAlignment, search: TextSearch) -> Iterator[tuple[Place, str]]:
    for number, row in enumerate(edited.rows):
        for side in search.sides:
            for position, sentence in enumerate(row.side(side)):
                yield (number, side, position), sentence.text


class _Limit:
    """Gives up when a search takes too long, because some patterns take exponential time."""

    def __init__(self) -> None:
        self.end = monotonic() + MAX_SEARCH_SECONDS

    def run(self, function: Any, *given: str) -> Any:
        try:
            return function(*given, timeout=max(self.end - monotonic(), 1e-3), concurrent=True)
        except TimeoutError:
            raise EditError(f"the search took more than {MAX_SEARCH_SECONDS:g} s; expected a simpler pattern") from None
        except Exception as error:  # regex has an error class of its own for invalid groups
            raise EditError(f"the replacement is invalid: {error}") from None
