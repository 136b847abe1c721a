"""Tables of results as Markdown, as HTML for notebooks, and as pandas data frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from itertools import islice
from typing import Any

from dualmoco.core.errors import ConfigError


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: bool = False) -> list[str]:
    """The lines of a Markdown table, also aligned as plain text; by default only the first column is aligned left."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(2, *map(len, column)) for column in zip(*cells, strict=True)]
    is_left = [left or not column for column in range(len(header))]
    rule = ["-" * width if to_left else "-" * (width - 1) + ":" for width, to_left in zip(widths, is_left, strict=True)]
    cells.insert(1, rule)
    lines = []
    for row in cells:
        columns = zip(row, widths, is_left, strict=True)
        padded = [cell.ljust(width) if to_left else cell.rjust(width) for cell, width, to_left in columns]
        lines.append(f"| {' | '.join(padded)} |")
    return lines


SHOWN_ROWS = 10  # rows of an HTML table


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]], total: int | None = None) -> str:
    """Returns an HTML table of the first ten rows, escaped; `total` counts all rows if `rows` yields fewer."""
    shown = list(islice(rows, SHOWN_ROWS))
    lines = [f"<table><caption>{escape(caption)}</caption>", _row("th", columns), *(_row("td", row) for row in shown)]
    if total is not None and total > len(shown):
        lines.append(f'<tr><td colspan="{len(columns)}">… {total - len(shown):,} more</td></tr>')
    return "\n".join([*lines, "</table>"])


def _row(tag: str, cells: Sequence[object]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"


def data_frame(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """Returns a pandas DataFrame; ConfigError if pandas, which dualmoco does not depend on, is not installed."""
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise ConfigError("to_pandas needs the package pandas; pip install pandas") from None
    return pandas.DataFrame(list(rows), columns=list(columns))
