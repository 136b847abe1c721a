"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


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
