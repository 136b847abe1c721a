"""Files of scored pairs as columns in memory, so that millions of pairs open within seconds and take little memory.

Reads what `mine`, `score` and `paraphrases` write, and other tables with the columns score, src and tgt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dualmoco.core.errors import DataError, require
from dualmoco.core.storage import read_record
from dualmoco.core.vectors import Floats, Ids
from dualmoco.data.readers.base import clip_reason
from dualmoco.mining.io import PAIRS_ENDINGS, MinedPair
from dualmoco.text.files import READ_ERRORS, open_text, plain_suffix, read_lines
from dualmoco.text.languages import common_language

if TYPE_CHECKING:
    import pyarrow as pa

PAIR_COLUMNS = ("score", "src", "tgt")  # columns that every file must have
NUMBER_COLUMNS = {
    "score": "double",
    "src_mean": "double",
    "tgt_mean": "double",
    "src_line": "int64",
    "tgt_line": "int64",
}
PARSED_BYTES = 1 << 24  # bytes of a table read at once; a line must fit
LANGUAGE_SAMPLE = 200  # sentences used to recognise a language
UNIT = re.compile(r"<tu\b[^>]*>(.*)</tu>")  # one unit per line, as `mine` writes them
PROP = re.compile(r'<prop type="([^"]*)">([^<]*)</prop>')
SEGMENT = re.compile(r'<tuv xml:lang="([^"]*)"><seg>([^<]*)</seg></tuv>')


@dataclass(frozen=True)
class PairColumns:
    """The pairs of a file, in its order."""

    path: Path
    table: pa.Table
    origin: dict[str, Any]
    """The record of how the file was made; empty if there is none."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def scores(self) -> Floats:
        """Scores (p,)."""
        return np.asarray(self.table["score"].to_numpy(), dtype=np.float64)

    @cached_property
    def langs(self) -> tuple[str, str]:
        """The languages of both sides, as recorded or recognised."""
        noted = [self.origin.get(name) or self.origin.get("lang") for name in ("src_lang", "tgt_lang")]
        sample = self.table.slice(0, LANGUAGE_SAMPLE)
        src, tgt = (
            str(lang or common_language(sample[name].to_pylist()))
            for lang, name in zip(noted, PAIR_COLUMNS[1:], strict=True)
        )
        return src, tgt

    @property
    def threshold(self) -> float | None:
        """The threshold of the job that made the file; None if there was none."""
        noted = self.origin.get("threshold")
        return None if noted in (None, "None") else float(noted)

    def rows(self, rows: Ids) -> list[dict[str, Any]]:
        """Some pairs with all their columns."""
        found: list[dict[str, Any]] = self.table.take(rows).to_pylist()
        return found

    def holds(self, text: str) -> np.ndarray:
        """Which pairs (p,) contain a text in one of their sentences, ignoring case."""
        import pyarrow.compute as pc

        found = [pc.match_substring(self.table[name], text, ignore_case=True).to_numpy() for name in PAIR_COLUMNS[1:]]
        return np.asarray(found[0] | found[1], dtype=bool)

    def pair_id(self, row: int) -> str:
        """Id of a pair that stays valid if the file changes: a digest of its sentences."""
        src, tgt = (self.table[name][row].as_py() for name in PAIR_COLUMNS[1:])
        return pair_digest(src, tgt)

    @cached_property
    def rows_by_id(self) -> dict[str, int]:
        """The row of each pair by its id; the first one of equal pairs."""
        sides = (self.table[name].to_pylist() for name in PAIR_COLUMNS[1:])
        ids = [pair_digest(src, tgt) for src, tgt in zip(*sides, strict=True)]
        return dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True))


def pair_digest(src: str, tgt: str) -> str:
    """The id of a pair of sentences."""
    return xxhash.xxh3_64_hexdigest(f"{src}\t{tgt}".encode("utf-8", "surrogatepass"))


def read_pair_columns(path: Path) -> PairColumns:
    """Reads a file of scored pairs.

    Args:
        path: A .tsv, .csv, .jsonl or .tmx file, also compressed, or a .parquet file.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: The file is damaged, empty, without scores, or of another kind.
    """
    pa = require("pyarrow", "serve", "A review of pairs")
    readers = {".parquet": _parquet_table, ".jsonl": _jsonl_table, ".csv": _csv_table, ".tmx": _tmx_table}
    ending = plain_suffix(path)
    if ending not in PAIRS_ENDINGS:
        raise DataError(f"{path.name}: ends with {ending or 'nothing'}; expected one of {', '.join(PAIRS_ENDINGS)}")
    try:
        table, notes = readers.get(ending, _tsv_table)(path)
        _check_columns(path, table)
        table = _convert(table)
    except (pa.ArrowException, UnicodeDecodeError, *READ_ERRORS) as error:
        reason = getattr(error, "strerror", None) or clip_reason(error)
        raise DataError(f"{path.name}: cannot be read as a {ending} file of scored pairs: {reason}") from None
    return PairColumns(path, table, read_record(path) or notes)


def _check_columns(path: Path, table: pa.Table) -> None:
    missing = [name for name in PAIR_COLUMNS if name not in table.column_names]
    if missing:
        given = ", ".join(table.column_names[:8])
        advice = "score such pairs with dualmoco score" if missing == ["score"] else "write the file with dualmoco mine"
        raise DataError(f"{path.name}: columns {given:.100}; expected score, src and tgt: {advice}")
    if not table.num_rows:
        raise DataError(f"{path.name}: no pairs; expected at least one")


def _convert(table: pa.Table) -> pa.Table:
    """The table with one chunk per column; ArrowInvalid if a score is not finite or a sentence is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns["score"] = columns["score"].cast(pa.float64())
    for name in PAIR_COLUMNS[1:]:
        columns[name] = columns[name].cast(pa.large_string())
    for name in PAIR_COLUMNS:
        if columns[name].null_count:
            raise pa.ArrowInvalid(f"{columns[name].null_count:,} pairs have no {name}")
    if bad := len(table) - pc.sum(pc.is_finite(columns["score"])).as_py():
        raise pa.ArrowInvalid(f"{bad:,} scores are not finite numbers")
    return pa.table(columns).combine_chunks()


NotedTable = tuple[Any, dict[str, Any]]  # an Arrow table, and the record of its origin


def _tsv_table(path: Path) -> NotedTable:
    return _delimited_table(path, "\t")


def _csv_table(path: Path) -> NotedTable:
    return _delimited_table(path, ",")


def _delimited_table(path: Path, delimiter: str) -> NotedTable:
    import pyarrow.csv as pc

    quoted = delimiter == ","
    with open_text(path) as stream:
        if not stream.peek(1):  # type: ignore[attr-defined]
            raise DataError(f"{path.name}: empty; expected a header and pairs, as dualmoco mine writes them")
        table = pc.read_csv(
            stream,
            pc.ReadOptions(block_size=PARSED_BYTES),
            pc.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted),
            pc.ConvertOptions(column_types=_arrow_types(), strings_can_be_null=False, null_values=[]),
        )
    return table, {}


def _jsonl_table(path: Path) -> NotedTable:
    import pyarrow as pa
    import pyarrow.json as pj

    schema = pa.schema(list(_arrow_types().items()))
    with open_text(path) as stream:
        table = pj.read_json(stream, pj.ReadOptions(block_size=PARSED_BYTES), pj.ParseOptions(explicit_schema=schema))
    absent = [name for name in table.column_names if table[name].null_count == len(table)]  # of the schema only
    return table.drop_columns(absent) if len(table) else table, {}


def _arrow_types() -> dict[str, Any]:
    import pyarrow as pa

    numbers = {name: pa.type_for_alias(kind) for name, kind in NUMBER_COLUMNS.items()}
    return numbers | {"src": pa.large_string(), "tgt": pa.large_string()}


def _parquet_table(path: Path) -> NotedTable:
    import pyarrow.parquet as pq

    with path.open("rb") as stream:
        table = pq.read_table(stream)
    notes = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    return table.replace_schema_metadata(None), {name: note for name, note in notes.items() if name != "ARROW:schema"}


def _tmx_table(path: Path) -> NotedTable:
    import pyarrow as pa

    notes: dict[str, Any] = {}
    units = [unit for unit in _tmx_units(path, notes) if unit]
    names = list(dict.fromkeys(name for unit in units[:1] for name in unit))
    columns: dict[str, Sequence[Any]] = {name: [unit.get(name) for unit in units] for name in names}
    for name in NUMBER_COLUMNS.keys() & columns.keys():
        columns[name] = pa.array(columns[name]).cast(_arrow_types()[name])
    return pa.table(columns), notes


def _tmx_units(path: Path, notes: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yields the properties and sentences of each unit, and collects the properties of the header in `notes`."""
    langs: tuple[str, ...] = ()
    is_open = False
    for number, line in enumerate(read_lines(path), start=1):
        if unit := UNIT.search(line):
            sides = SEGMENT.findall(unit[1])
            if len(sides) != 2:
                raise DataError(f"{path.name}:{number}: {len(sides)} plain segments in a unit; expected 2")
            langs = langs or (sides[0][0], sides[1][0])
            props = {unescape(name): unescape(value) for name, value in PROP.findall(unit[1])}
            yield props | {"src": unescape(sides[0][1]), "tgt": unescape(sides[1][1])}
        elif "<tu" in line:
            raise DataError(
                f"{path.name}:{number}: not a unit on one line; expected a TMX file of dualmoco mine or score"
            )
        else:
            notes.update((unescape(name), unescape(value)) for name, value in PROP.findall(line))
            is_open = is_open or "<tmx" in line
            if "</tmx>" in line:
                notes.update(zip(("src_lang", "tgt_lang"), langs, strict=False))
                return
    what = "cut off, without </tmx>" if is_open else "not a TMX file"
    raise DataError(f"{path.name}: {what}; expected a file that dualmoco mine or score wrote")


def known_columns(names: Sequence[str]) -> list[str]:
    """Columns of a file in the order of `mine`, then all others."""
    own = [name for name in MinedPair._fields if name in names]
    return [*own, *(name for name in names if name not in own)]
