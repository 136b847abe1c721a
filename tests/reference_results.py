"""Tables of results from docs/results/*.json, which `make results` writes: part of `make reference`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reference_data import rows

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def read_systems() -> dict[str, Any]:
    """The scores and speeds of all systems."""
    content: dict[str, Any] = json.loads((RESULTS / "systems.json").read_text(encoding="utf-8"))
    return content


def value(row: dict[str, Any], name: str, *, interval: bool = False) -> str:
    """A score with one digit, and its 95 % interval if wanted; empty if the system was not scored on the task."""
    score = row["scores"].get(name)
    if score is None:
        return ""
    ends = f" [{score['low']:.1f}, {score['high']:.1f}]" if interval and "low" in score else ""
    return f"{score['value']:.1f}{ends}"


def both(row: dict[str, Any], first: str, second: str) -> str:
    """Two scores of a row, separated by a slash; empty if the system has neither."""
    return " / ".join(filter(None, (value(row, first), value(row, second))))


def systems_table() -> str:
    """One row per system: what it starts from, its size, its scores, and its speed in both languages."""
    head = ["Model", "Starts from", "MB", "Tatoeba zh-en / en-zh", "BUCC sample F1", "STS wmean / all"]
    head.append("Sentences/s en / zh, 2 cores")
    cells = [
        [
            row["name"],
            row["base"],
            str(row.get("megabytes", "")),
            both(row, "Tatoeba zh-en", "Tatoeba en-zh"),
            value(row, "BUCC zh-en F1", interval=True),
            both(row, "STS wmean", "STS all"),
            " / ".join(f"{row['speed'][lang]:,}" for lang in ("en", "zh") if lang in row.get("speed", {})),
        ]
        for row in read_systems()["rows"]
    ]
    return rows(head, cells)


def systems_commands() -> str:
    """The commands behind the table of systems."""
    content = read_systems()
    commands = [row["command"] for row in content["rows"] if "command" in row]
    return "\n".join(["```sh", *commands, content["speed_command"], "```"])
