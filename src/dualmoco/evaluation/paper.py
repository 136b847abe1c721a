"""The paper's own rows: tables 1, 2, 3 and 9 of Wang et al. (EMNLP 2021), as printed there.

Also which scores are of the same test sets, so that only those stand beside them. A test set is known by its name and
its number of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualmoco.evaluation.score import Score

SOURCE = "Wang, Zhao and Liu, Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast, EMNLP 2021"

TATOEBA: dict[str, tuple[float | None, float | None]] = {  # accuracy zh-en, en-zh
    "mBERT base": (71.6, None),
    "LASER": (95.9, None),
    "VECO": (82.7, None),
    "SBERT base-p": (95.0, None),
    "MoCo-BERT base": (97.4, 96.6),
}
"""Table 1. The first four rows are one number each, whose direction the paper does not say."""

BUCC: dict[str, float] = {  # F1
    "mBERT base": 50.0,
    "LASER": 92.27,
    "VECO": 78.5,
    "SBERT base-p": 87.8,
    "LaBSE": 89.0,
    "MoCo-BERT base": 93.66,
}
"""Table 2: the official zh-en test set."""

PaperRow = tuple[float, float, float, float, float, float, float, float]
"""STS12, STS13, STS14, STS15, STS16, STS-B, SICK-R, average."""

STS_WMEAN: dict[str, PaperRow] = {
    "Avg. GloVe": (55.14, 70.66, 59.73, 68.25, 63.66, 58.02, 53.76, 61.32),
    "BERT base [CLS]": (20.16, 30.01, 20.09, 36.88, 38.08, 16.05, 42.63, 29.19),
    "BERT base-flow": (59.54, 64.69, 64.66, 72.92, 71.84, 58.56, 65.44, 65.38),
    "IS-BERT base": (56.77, 69.24, 61.21, 75.23, 70.16, 69.21, 64.25, 66.58),
    "BERT base-whitening": (61.46, 66.71, 66.17, 74.82, 72.10, 67.51, 64.90, 67.67),
    "MoCo-BERT base": (68.85, 77.52, 75.85, 83.14, 80.15, 77.50, 72.48, 76.50),
    "InferSent, NLI": (52.86, 66.75, 62.15, 72.77, 66.87, 68.03, 65.65, 65.01),
    "SBERT base-NLI": (68.70, 74.37, 74.73, 79.65, 75.21, 77.63, 74.84, 75.02),
    "BERT base-flow, NLI": (67.75, 76.73, 75.53, 80.63, 77.58, 79.10, 78.03, 76.48),
    "BERT base-whitening, NLI": (69.87, 77.11, 76.13, 82.73, 78.08, 79.16, 76.44, 77.07),
    "MoCo-BERT base+NLI": (71.66, 79.42, 76.37, 84.08, 80.81, 82.15, 78.19, 78.95),
}
"""Table 3, weighted mean of the subsets' Spearman correlations; rows with NLI used labelled NLI data."""

STS_ALL: dict[str, PaperRow] = {
    "BERT base-flow": (58.40, 67.10, 60.85, 75.16, 71.22, 68.66, 64.47, 66.55),
    "BERT base-whitening": (57.83, 66.90, 60.90, 75.08, 71.31, 68.24, 63.73, 66.28),
    "MoCo-BERT base": (70.99, 76.51, 73.17, 82.09, 78.32, 77.50, 72.48, 75.87),
    "SBERT base-NLI": (70.97, 76.53, 73.19, 79.09, 74.30, 77.03, 72.91, 74.89),
    "BERT base-flow, NLI": (69.78, 77.27, 74.35, 82.01, 77.46, 79.12, 76.21, 76.60),
    "BERT base-whitening, NLI": (69.65, 77.57, 74.66, 82.27, 78.39, 79.52, 76.91, 77.00),
    "MoCo-BERT base+NLI": (76.07, 78.33, 74.51, 84.19, 78.74, 82.15, 78.19, 78.88),
}
"""Table 9, Spearman over all pairs of a year together."""

TATOEBA_SET = ("cmn-eng", 1000)
BUCC_SAMPLE = "8624x13589"
BUCC_LEAST = 50_000  # sentences of a side; the official training and test sets have some 90,000
STS_PAIRS = {
    "STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 4927,
}  # fmt: skip


def is_paper_tatoeba(score: Score) -> bool:
    """Whether a score of the task `tatoeba` is of the 1,000 Chinese-English pairs of table 1."""
    return (score.subset, score.n) == TATOEBA_SET


def is_bucc_part(score: Score) -> bool:
    """Whether a score of the task `bucc` is of a Chinese-English part of the shared task, whichever."""
    size = score.settings["size"]
    large = all(int(count) >= BUCC_LEAST for count in size.split("x"))
    return score.subset.startswith("zh-en ") and (large or size == BUCC_SAMPLE)


def is_paper_bucc(score: Score) -> bool:
    """Whether a score of the task `bucc` is of the official test set, as in table 2."""
    return is_bucc_part(score) and score.subset == "zh-en test"


def is_paper_sts(scores: Mapping[str, Score]) -> bool:
    """Whether scores of the task `sts`, by set, are of the seven whole sets of tables 3 and 9."""
    return all(name in scores and scores[name].n == pairs for name, pairs in STS_PAIRS.items())
