"""Writes the pairs that a review has selected: TSV, CSV, JSONL, TMX, Parquet, and XLSX for spreadsheets."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualmoco.core.errors import ConfigError, DataError, require
from dualmoco.core.storage import write_recorded
from dualmoco.core.vectors import Ids
from dualmoco.mining.io import PairTable, write_pairs
from dualmoco.mining.judgements import ACCEPTED, REJECTED, UNJUDGED, VERDICTS, Judgements
from dualmoco.mining.pair_columns import known_columns

SHEET_ROWS = 1 << 20  # maximum rows of a spreadsheet, with the header
CELL_CHARACTERS = 32767
SELECTIONS = ("accepted", "kept", "judged")
NUMBERS = ("src_mean", "tgt_mean", "src_line", "tgt_line")


def select_rows(judgements: Judgements, selection: str, threshold: float) -> Ids:
    """Rows of the pairs to write, in the order of the file.

    Args:
        judgements: The verdicts.
        selection: accepted, judged, or kept (accepted pairs, and pairs that reach the threshold and were not rejected).
        threshold: Lowest score to keep.

    Raises:
        ConfigError: The selection is unknown.
        DataError: There are no such pairs.
    """
    verdicts = judgements.verdicts
    chosen = {
        "accepted": verdicts == ACCEPTED,
        "kept": (verdicts == ACCEPTED) | ((judgements.pairs.scores >= threshold) & (verdicts != REJECTED)),
        "judged": verdicts != UNJUDGED,
    }.get(selection)
    if chosen is None:
        raise ConfigError(f"selection {selection!r:.40}; expected one of {', '.join(SELECTIONS)}")
    rows: Ids = np.flatnonzero(chosen)
    if not len(rows):
        raise DataError(f"no {selection} pairs; expected at least one to export")
    return rows


def export_pairs(path: Path, judgements: Judgements, selection: str, threshold: float) -> int:
    """Writes selected pairs, see `select_rows`, to a .tsv, .csv, .jsonl, .tmx, .parquet or .xlsx file.

    Judged pairs have the columns verdict and drawn, as `calibrate --judged` reads them.

    Returns:
        The number of pairs.
    """
    rows, pairs = select_rows(judgements, selection, threshold), judgements.pairs
    found = pairs.table.take(rows)
    columns = {name: found[name].to_pylist() for name in known_columns(found.column_names)}
    if selection == "judged":
        names = {code: verdict for verdict, code in VERDICTS.items()}
        columns["verdict"] = [names[code] for code in judgements.verdicts[rows].tolist()]
        columns["drawn"] = ["yes" if drawn else "no" for drawn in judgements.is_drawn[rows].tolist()]
    origin = {
        **{name: value for name, value in pairs.origin.items() if name not in ("written", "replaced", "pairs")},
        "tool": "dualmoco serve",
        "pairs": len(rows),
        "selection": selection,
        "threshold": threshold if selection == "kept" else None,
        "src_lang": pairs.langs[0],
        "tgt_lang": pairs.langs[1],
    }
    if path.suffix == ".xlsx":
        _write_sheet(path, columns, origin)
        return len(rows)
    default = {"src_mean": 0.0, "tgt_mean": 0.0}
    numbers = [np.array(columns.pop(name, None) or default.get(name, rows + 1) + 0 * rows) for name in NUMBERS]
    table = PairTable(np.array(columns.pop("score")), *numbers)
    sides = columns.pop("src"), columns.pop("tgt")
    extra = {name: ["" if value is None else str(value) for value in values] for name, values in columns.items()}
    write_pairs(path, table, sides, pairs.langs, origin, extra)
    return len(rows)


def _write_sheet(path: Path, columns: Mapping[str, Sequence[Any]], origin: Mapping[str, Any]) -> None:
    """Writes a spreadsheet in which every sentence is text, even if it looks like a formula or a link."""
    xlsxwriter = require("xlsxwriter", "serve", "An .xlsx file")
    count = len(columns["src"])
    if count >= SHEET_ROWS:
        raise DataError(
            f"{count:,} pairs; expected fewer than {SHEET_ROWS:,} in a spreadsheet: export .tsv or .parquet"
        )
    long = max(len(text) for name in ("src", "tgt") for text in columns[name])
    if long > CELL_CHARACTERS:
        raise DataError(
            f"a sentence of {long:,} characters; expected at most {CELL_CHARACTERS:,} in a cell: export .tsv"
        )
    stream = io.BytesIO()
    book = xlsxwriter.Workbook(stream, {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False})
    sheet = book.add_worksheet("pairs")
    wrapped = book.add_format({"text_wrap": True, "valign": "top"})
    for column, (name, values) in enumerate(columns.items()):
        sheet.set_column(column, column, 60 if name in ("src", "tgt") else 10, wrapped)
        sheet.write_string(0, column, name)
        for row, value in enumerate(values, start=1):
            if isinstance(value, int | float):
                sheet.write_number(row, column, value)
            else:
                sheet.write_string(row, column, "" if value is None else str(value))
    sheet.freeze_panes(1, 0)
    book.close()
    write_recorded(path, origin, {path: stream.getvalue()})
