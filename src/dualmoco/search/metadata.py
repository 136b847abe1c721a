"""The documents of an index part: a SQLite file with their ids and metadata, and filters on them.

A file is written once and only read afterwards. Slots number the documents of a part, from 0.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dualmoco.core.errors import ConfigError, DataError
from dualmoco.core.vectors import Ids

Scalar = str | int | float | bool
Metadata = Mapping[str, Scalar]
FieldTypes = dict[str, str]
"""The type of each metadata field: `text`, `number` or `true/false`."""
MetadataFilter = Mapping[str, Any] | Sequence[str]
"""Conditions on metadata: `{"source": "news", "year": {">=": 2000}}`, or words such as `year>=2000`."""
TYPE_NAMES: dict[type, str] = {str: "text", int: "number", float: "number", bool: "true/false"}
MAX_FIELDS = 500  # SQLite has 2,000 columns
INT_LIMIT = 1 << 63
ROWS_AT_ONCE_WRITTEN = 1000
IDS_AT_ONCE = 500  # maximum parameters of one query
COMPARISONS = (">=", "<=", ">", "<")
FILTER_WORD = re.compile(r"([^<>=]+?)\s*(>=|<=|>|<|=)(.*)", re.DOTALL)
FILTER_FORMS = "expected FIELD=VALUE, FIELD=VALUE,VALUE, FIELD>=VALUE or a JSON object"


def check_metadata(metadata: Mapping[Any, Any], types: FieldTypes) -> dict[str, Scalar]:
    """Metadata without missing values; ValueError if the type of a value differs from earlier values of its field.

    Args:
        metadata: Values by field.
        types: Type of each field so far; new fields are added.
    """
    checked: dict[str, Scalar] = {}
    for name, value in metadata.items():
        if value is None:
            continue
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"a metadata field named {name!r:.40}; expected text")
        kind = _type_of(name, value)
        if types.setdefault(name, kind) != kind:
            raise ValueError(f"{name} is {value!r:.40}, {kind}; expected {types[name]}, as in other documents")
        checked[name] = value
    if len(types) > MAX_FIELDS:
        raise ValueError(f"more than {MAX_FIELDS} metadata fields; expected fewer")
    return checked


def _type_of(name: str, value: Any) -> str:
    kind = TYPE_NAMES.get(type(value))
    if kind is None:
        raise ValueError(f"{name} is a {type(value).__name__}; expected text, a number, true or false")
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) >= INT_LIMIT):
        raise ValueError(f"{name} is {value!r:.40}; expected a finite number of at most 63 bits")
    return kind


@dataclass(frozen=True)
class DocumentEntry:
    """The data stored about a document besides its text."""

    id: str
    line: int  # in its file, from 1
    metadata: dict[str, Scalar]


class DocumentWriter:
    """Writes the documents of a part.

    Args:
        path: New file.
    """

    def __init__(self, path: Path) -> None:
        self.fields: list[str] = []
        self.count = 0
        self._rows: list[tuple[int, DocumentEntry]] = []
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("BEGIN")
        self._database.execute(
            "CREATE TABLE documents (slot INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, line INTEGER NOT NULL)"
        )

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
            self._database.execute("COMMIT")
        self._database.close()

    def add(self, entry: DocumentEntry) -> None:
        """Writes the document of the next slot."""
        for name in entry.metadata:
            if name not in self.fields:
                self._add_field(name)
        self._rows.append((self.count, entry))
        self.count += 1
        if len(self._rows) == ROWS_AT_ONCE_WRITTEN:
            self._flush()

    def _add_field(self, name: str) -> None:
        self._flush()
        self._database.execute(f"ALTER TABLE documents ADD COLUMN f{len(self.fields)}")
        self.fields.append(name)

    def _flush(self) -> None:
        marks = ", ".join("?" * (3 + len(self.fields)))
        rows = [(slot, one.id, one.line, *map(one.metadata.get, self.fields)) for slot, one in self._rows]
        self._database.executemany(f"INSERT INTO documents VALUES ({marks})", rows)
        self._rows = []


class DocumentTable:
    """The documents of a part, for reading from any thread.

    Args:
        path: A file of `DocumentWriter`.
        fields: Type of each metadata field, in the order of the columns.
    """

    def __init__(self, path: Path, fields: FieldTypes) -> None:
        self.path, self.fields = path, fields
        self._lock = threading.Lock()
        with self._guarded():
            self._database = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            self._database.execute("PRAGMA trusted_schema = OFF")
            columns = [row[1] for row in self._database.execute("PRAGMA table_info(documents)")]
        if columns != ["slot", "id", "line", *(f"f{place}" for place in range(len(fields)))]:
            raise DataError(f"{path}: has the columns {', '.join(columns)}; build the index again")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise DataError(f"{self.path}: cannot be read ({error}); build the index again") from None

    def _ask(self, query: str, values: Sequence[Scalar] = ()) -> list[tuple[Any, ...]]:
        with self._guarded():
            return self._database.execute(query, values).fetchall()

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def slots(self, conditions: Sequence[Condition]) -> Ids:
        """The slots of the documents that meet all conditions, ascending."""
        where, values = ["1"], list[Scalar]()
        for condition in conditions:
            if condition.field not in self.fields:
                return np.empty(0, dtype=np.int64)
            column = f"f{list(self.fields).index(condition.field)}"
            marks = ", ".join("?" * len(condition.values))
            where.append(f"{column} IN ({marks})" if condition.sign == "=" else f"{column} {condition.sign} ?")
            values += condition.values
        rows = self._ask(f"SELECT slot FROM documents WHERE {' AND '.join(where)} ORDER BY slot", values)
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def find_ids(self, ids: Sequence[str]) -> dict[str, int]:
        """The slots of the given ids that the part has."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = ids[start : start + IDS_AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(self._ask(f"SELECT id, slot FROM documents WHERE id IN ({marks})", some))
        return found

    def entries(self, slots: Iterable[int]) -> Iterator[DocumentEntry]:
        """The documents of some slots, in their order; DataError if one is missing."""
        for slot in slots:
            rows = self._ask("SELECT * FROM documents WHERE slot = ?", [slot])
            if not rows:
                raise DataError(f"{self.path}: has no document {slot}; build the index again")
            _, name, line, *values = rows[0]
            metadata = {
                field: bool(value) if kind == TYPE_NAMES[bool] else value
                for (field, kind), value in zip(self.fields.items(), values, strict=True)
                if value is not None
            }
            yield DocumentEntry(name, line, metadata)

    def distinct(self, field: str, most: int) -> list[str]:
        """At most `most` values of a text field, including deleted documents."""
        column = f"f{list(self.fields).index(field)}"
        return [
            row[0] for row in self._ask(f"SELECT DISTINCT {column} FROM documents WHERE {column} NOT NULL LIMIT {most}")
        ]


@dataclass(frozen=True)
class Condition:
    """A condition on a metadata field."""

    field: str
    sign: str  # = for one of the values, or a comparison with the only value
    values: tuple[Scalar, ...]


def parse_filter(given: MetadataFilter | None, types: FieldTypes) -> list[Condition]:
    """The conditions of a filter.

    Args:
        given: `{field: value}`, `{field: [value, value]}` for one of several, `{field: {">=": value}}` for a range; or
            words such as `source=news,ted` and `year>=2000`, or JSON of such a mapping.
        types: The fields of the index.

    Raises:
        ConfigError: No document has the field, a value has another type, or the form is invalid.
    """
    if isinstance(given, str):
        given = [given]
    if given is None or isinstance(given, Mapping):
        return [condition for name, value in (given or {}).items() for condition in _conditions(name, value, types)]
    if not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
        raise ConfigError(f"filter {given!r:.60}; expected a mapping such as {{'year': {{'>=': 2000}}}}, or words")
    return [condition for word in given for condition in _parse_word(word, types)]


def _parse_word(word: str, types: FieldTypes) -> list[Condition]:
    if word.lstrip().startswith("{"):
        try:
            return parse_filter(json.loads(word), types)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"filter {word!r:.60}: not valid JSON ({error!s:.60}); {FILTER_FORMS}") from None
    match = FILTER_WORD.fullmatch(word.strip())
    if not match:
        raise ConfigError(f"filter {word!r:.60}; {FILTER_FORMS}")
    name, sign, text = match.groups()
    kind = _known_type(name, types)
    values = [_parse_value(name, part.strip(), kind) for part in (text.split(",") if sign == "=" else [text])]
    return _conditions(name, values if sign == "=" else {sign: values[0]}, types)


def _parse_value(name: str, text: str, kind: str) -> Scalar:
    if kind == TYPE_NAMES[str]:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if TYPE_NAMES.get(type(value)) != kind:
        raise ConfigError(f"filter {name}: {text!r:.40}; expected {kind}")
    return value  # type: ignore[no-any-return]


def _known_type(name: Any, types: FieldTypes) -> str:
    if name not in types:
        known = f"expected one of {', '.join(sorted(types))}" if types else "its documents have no metadata"
        raise ConfigError(f"filter {name!r:.40}: no document of the index has this field; {known}")
    return types[name]


def _conditions(name: str, given: Any, types: FieldTypes) -> list[Condition]:
    kind = _known_type(name, types)
    if isinstance(given, Mapping):
        if not given or set(given) - set(COMPARISONS):
            raise ConfigError(f"filter {name}: {dict(given)!r:.60}; expected the signs {', '.join(COMPARISONS)}")
        return [Condition(name, sign, (_checked_value(name, value, kind),)) for sign, value in given.items()]
    values = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
    if not values:
        raise ConfigError(f"filter {name}: no values; expected at least one")
    return [Condition(name, "=", tuple(_checked_value(name, value, kind) for value in values))]


def _checked_value(name: str, value: Any, kind: str) -> Scalar:
    try:
        found = _type_of(name, value)
    except ValueError as error:
        raise ConfigError(f"filter {error}") from None
    if found != kind:
        raise ConfigError(f"filter {name}: {value!r:.40} is {found}; expected {kind}")
    return value  # type: ignore[no-any-return]
