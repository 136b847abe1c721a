"""A table, as text, Markdown or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows under a title; the first column names them, the others hold figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    ours: frozenset[int] = frozenset()
    """Numbers of the rows that were measured now; the others are from the paper."""
    note: str = ""

    def as_text(self) -> str:
        """For a terminal: aligned, rows measured now marked."""
        cells = [list(self.columns), *(list(row) for row in self.rows)]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        lines = [self.title, ""]
        for number, row in enumerate(cells):
            mark = ">" if number - 1 in self.ours and len(self.ours) < len(self.rows) else " "
            first = row[0].ljust(widths[0])
            rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            lines.append(f"{mark} {'  '.join([first, *rest])}".rstrip())
            if number == 0:
                lines.append("  " + "-" * (sum(widths) + 2 * (len(widths) - 1)))
        return "\n".join([*lines, *(["", f"  {self.note}"] if self.note else [])]) + "\n"

    def as_markdown(self) -> str:
        """A heading and a table; rows measured now are bold."""
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---", *["---:"] * (len(self.columns) - 1)])]
        for number, row in enumerate(self.rows):
            strong = number in self.ours and len(self.ours) < len(self.rows)
            lines.append(_line([f"**{cell}**" if strong and cell else cell for cell in row]))
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
