"""Scores of all systems in docs/results/systems.json, from which the tables of the docs are generated: `make results`.

    python -m benchmarks.results --data DATA
    python -m benchmarks.results --data DATA --systems en-zh,en-zh-static

Every row with a system is evaluated again, and its scores, their signatures, the date and the machine are written into
the file. Rows without one are published figures and stay as they are. `make reference` then writes the tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import dualmoco
from dualmoco.core.storage import write_json
from dualmoco.evaluation.report import main_scores

SYSTEMS = Path(__file__).parents[1] / "docs" / "results" / "systems.json"


def main() -> None:
    """Evaluates the systems, one after the other; a finished one is kept if a later one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that has eval/")
    parser.add_argument("--systems", help="names of systems, separated by commas (default: all in the file)")
    parser.add_argument("--file", type=Path, default=SYSTEMS, help="file of results to update")
    parsed = parser.parse_args()
    content = json.loads(parsed.file.read_text(encoding="utf-8"))
    wanted = parsed.systems.split(",") if parsed.systems else None
    for row in content["rows"]:
        if "system" in row and (wanted is None or row["system"] in wanted):
            evaluation = dualmoco.evaluate(row["system"], row["tasks"], data=parsed.data)
            row.update(measured(score.to_json() for score in evaluation.scores))
            write_json(parsed.file, content)
            print(row["system"], {name: score["value"] for name, score in row["scores"].items()})


def measured(scores: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What a row says about an evaluation: its main scores with intervals and signatures, the date and the machine."""
    shown: dict[str, Any] = {}
    for score in scores:
        for name in main_scores([score]):
            interval = {end: round(score[end], 1) for end in ("low", "high") if score.get(end) is not None}
            shown[name] = {"value": round(score["value"], 2), **interval, "signature": score["signature"]}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return {"scores": shown, "date": datetime.date.today().isoformat(), "machine": machine}


if __name__ == "__main__":
    main()
