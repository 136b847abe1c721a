"""Columns of a bitext besides the two sentences, such as ids and addresses, which `score` keeps."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence

from dualmoco.data.readers.base import COLUMN_NAMES, Source
from dualmoco.data.readers.formats import guess_format
from dualmoco.text.files import open_binary, read_cells
from dualmoco.text.languages import base_language

NumberedCells = tuple[int, list[str]]  # number of a line, and its cells


def read_extra_columns(source: Source, form: str, lines: Sequence[int]) -> dict[str, list[str]]:
    """The other columns, by name, of the given lines (in ascending order); empty if the format has none.

    Columns without a header are named after their number, from 1. Missing values are empty.
    """
    if not source.path.is_file():
        return {}
    name = guess_format(source) if form == "auto" else form
    if name == "jsonl":
        return _columns_of_records(_json_records(source, lines))
    if name == "parquet":
        return _columns_of_records(_parquet_records(source, lines))
    if name in ("tsv", "csv"):
        rows = _csv_cells(source) if name == "csv" else read_cells(source.path, errors="replace")
        return _columns_of_table(source, rows, lines)
    return {}


def _columns_of_table(source: Source, rows: Iterator[NumberedCells], lines: Sequence[int]) -> dict[str, list[str]]:
    first = next((row for row in rows if any(cell.strip() for cell in row[1])), None)
    if first is None:
        return {}
    layout, is_header = source.find_columns(first[1], first[0], "tab")
    others = [place for place in range(len(first[1])) if place not in (layout.src, layout.tgt)]
    names = [first[1][place].strip() if is_header else f"column_{place + 1}" for place in others]
    wanted, found = set(lines), dict[int, list[str]]()
    for number, cells in (row for group in ([first], rows) for row in group):
        if number in wanted:
            found[number] = [cells[place] if place < len(cells) else "" for place in others]
        if len(found) == len(wanted):  # the rest of the file may be damaged
            break
    return {name: [found[line][place] for line in lines] for place, name in enumerate(names)}


def _csv_cells(source: Source) -> Iterator[NumberedCells]:
    with io.TextIOWrapper(open_binary(source.path), encoding="utf-8-sig", errors="replace", newline="") as text:
        reader = csv.reader(text)
        for cells in reader:
            yield reader.line_num, cells


def _columns_of_records(records: Iterable[dict[str, object]]) -> dict[str, list[str]]:
    rows = list(records)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: ["" if row.get(name) is None else _as_cell(row[name]) for row in rows] for name in names}


def _as_cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _json_records(source: Source, lines: Sequence[int]) -> Iterator[dict[str, object]]:
    wanted, sides = set(lines), {*(source.columns or (source.src, source.tgt)), "translation"}
    for number, cells in read_cells(source.path, errors="replace"):
        if number in wanted:
            yield {name: value for name, value in json.loads("\t".join(cells)).items() if name not in sides}


def _parquet_records(source: Source, lines: Sequence[int]) -> Iterator[dict[str, object]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source.path)
    names = file.schema_arrow.names
    sides = {*(source.columns or ()), *(name for names in COLUMN_NAMES for name in names), "translation"}
    langs = {base_language(source.src), base_language(source.tgt)}
    others = [name for name in names if name not in sides and base_language(name) not in langs]
    if not others:
        return
    wanted, number = set(lines), 0
    for batch in file.iter_batches(columns=others):
        for record in batch.to_pylist():
            number += 1
            if number in wanted:
                yield record
