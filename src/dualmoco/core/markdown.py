"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: bool = False) -> list[str]:
    """Writes a table with aligned columns.

    Args:
        header: Names of the columns.
        rows: Their cells.
        left: Align every column to the left; otherwise all but the first are aligned to the right.

    Returns:
        The lines of the table.
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(2, *(len(row[column]) for row in cells)) for column in range(len(header))]
    rule = ["-" * width if left or not column else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    cells.insert(1, rule)
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if left or not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"| {' | '.join(padded)} |")
    return lines
