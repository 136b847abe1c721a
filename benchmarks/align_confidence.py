"""Calibration of confidence: fits its weights again, and measures how often links of some confidence are right.

    python -m benchmarks.align_confidence --data DATA --model en-zh

Weights are fitted by logistic regression to our aligner's links of generated documents, which are right or wrong
according to gold. The table is for MAC-Dev, which the fit does not use. Also prints the share of sentences with a
partner that separates unrelated texts from translations. Shapes: b links.
"""

from __future__ import annotations

import argparse
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.align_documents import Suite, generated_suites, mac_dev
from benchmarks.align_systems import Encoder, Given, encode_document, our_sides
from benchmarks.measure import print_machine, print_table
from dualmoco.alignment.aligner import DELETION_WEIGHTS, LINKED_WEIGHTS, confidence, find_path
from dualmoco.alignment.anchors import anchor_share, find_anchors
from dualmoco.core.vectors import Floats
from dualmoco.evaluation.align import GoldDocument
from dualmoco.models.load import open_model

EDGES = (0.0, 0.5, 0.8, 0.95, 1.01)  # lower ends of the bins of confidence


def main() -> None:
    """Fits, and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder of the corpora and test sets")
    parser.add_argument("--model", default="en-zh-static", help="model with the languages en and zh")
    parsed = parser.parse_args()
    print_machine()
    encoder = Encoder(open_model(parsed.model))
    suites = [(suite, encoded(suite, encoder)) for suite in (*generated_suites(parsed.data), mac_dev(parsed.data))]
    known = [np.concatenate(part) for part in zip(*(judged(*suite) for suite in suites[:-1]), strict=True)]
    print(f"{parsed.model}: constant, for the score, for the margin\n")
    for name, used, one_sided in (("linked", LINKED_WEIGHTS, False), ("deletions", DELETION_WEIGHTS, True)):
        fitted = ", ".join(f"{weight:.2f}" for weight in fit(*known, one_sided=one_sided))
        print(f"{name}: fitted ({fitted}), in use {used}")
    scores, margins, right = judged(*suites[-1])
    linked = ~np.isnan(scores)
    sure = confidence(scores, margins)[linked]
    print("\nMAC-Dev, links with both sides\n")
    print_table(
        [
            {
                "confidence": f"{low:g} to {min(high, 1):g}",
                "links": int(here.sum()),
                "exactly right, %": f"{100 * right[linked][here].mean():.1f}" if here.any() else "",
                "mean confidence, %": f"{100 * sure[here].mean():.1f}" if here.any() else "",
            }
            for low, high in pairwise(EDGES)
            for here in [(sure >= low) & (sure < high)]
        ]
    )
    print_partners([given for _, givens in suites for given in givens])


def encoded(suite: Suite, encoder: Encoder) -> list[Given]:
    """The vectors of a suite's documents."""
    return [encode_document(document, suite.langs, encoder) for document in suite.documents]


def judged(suite: Suite, givens: list[Given]) -> tuple[Floats, Floats, np.ndarray]:
    """Scores, margins, and whether gold has them, for all links of our aligner; shapes (b,)."""
    parts = [_judge(document, given) for document, given in zip(suite.documents, givens, strict=True)]
    scores, margins, right = (np.concatenate(part) for part in zip(*parts, strict=True))
    return scores, margins, right


def _judge(document: GoldDocument, given: Given) -> tuple[Floats, Floats, np.ndarray]:
    src, tgt = our_sides(given)
    steps, scores, margins = find_path(src, tgt, find_anchors(src.vectors, tgt.vectors))
    gold, ends = set(document.gold), steps.cumsum(axis=0)
    runs = np.stack([ends - steps, ends], axis=2).tolist()
    right = np.array([(tuple(range(*one)), tuple(range(*other))) in gold for one, other in runs])
    return scores, margins, right


def fit(scores: Floats, margins: Floats, right: np.ndarray, *, one_sided: bool) -> list[float]:
    """Weights of links with both sides, or with one side: constant, for the score, for the margin."""
    here = np.isnan(scores) == one_sided
    known = np.stack([np.zeros(here.sum()) if one_sided else scores[here], margins[here]], axis=1)
    fitted = LogisticRegression(C=1e6).fit(known, right[here])
    return [float(fitted.intercept_[0]), *fitted.coef_[0].tolist()]


def print_partners(givens: list[Given]) -> None:
    """Shares of sentences with a partner: of documents, and of each document with the next three translations."""
    shares = [_partners(given, given) for given in givens]
    apart = [(one, other) for one, other in permutations(range(len(givens)), 2) if 1 <= other - one <= 3]
    unrelated = [_partners(givens[one], givens[other]) for one, other in apart]
    print(f"sentences with a partner: at least {100 * min(shares):.0f} % of {len(shares)} documents and their ", end="")
    print(f"translations, at most {100 * max(unrelated):.0f} % of {len(unrelated)} unrelated ones")


def _partners(one: Given, other: Given) -> float:
    src, tgt = one.src[0, 1:], other.tgt[0, 1:]
    return anchor_share(find_anchors(src, tgt), len(src), len(tgt))


if __name__ == "__main__":
    main()
