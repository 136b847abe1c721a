"""Semantic textual similarity: seven English test sets in SentEval's format, and cross-lingual STS.

The seven sets (tables 3 and 9 of the paper) are scored under every protocol in use. `all` correlates all pairs of a
year together, as SimCSE does; `wmean` averages the correlations of its subsets weighted by size, as the paper's main
table does; `mean` averages them without weights. Scores of different protocols are not comparable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats
from dualmoco.evaluation.metrics import Correlation, Score, Signer, value_of
from dualmoco.evaluation.task import Sentences, TaskResult, require_path
from dualmoco.models.model import Identity
from dualmoco.text.files import read_lines, read_table
from dualmoco.text.languages import base_language

STS_YEARS: dict[str, tuple[str, ...]] = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),  # SentEval omits SMT because of its licence
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
SICK_FILES = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
STS_SETS = (*STS_YEARS, "STS-B", "SICK-R")  # the sets of the paper's tables
STS_AVERAGE = "average of 7"
STS_PROTOCOLS = ("all", "wmean", "mean")
XSTS_FILE = re.compile(r"STS\.input\.(.*?)([a-z]{2,3})-([a-z]{2,3})\.txt")


class JudgedPairs(NamedTuple):
    """Sentence pairs with gold similarities."""

    a: Sequence[str]
    b: Sequence[str]
    gold: Sequence[float]
    paths: Sequence[Path]


class Sts:
    """All sets of a folder that contains `STS/` and `SICK/`."""

    def __init__(self, folder: Path) -> None:
        self.sets: dict[str, dict[str, JudgedPairs]] = {
            year: {name: _read_subset(folder / "STS" / f"{year}-en-test", name) for name in subsets}
            for year, subsets in STS_YEARS.items()
        }
        benchmark = folder / "STS" / "STSBenchmark"
        self.sets["STS-B"] = {"test": _read_benchmark(benchmark / "sts-test.csv")}
        self.sets["STS-B dev"] = {"dev": _read_benchmark(benchmark / "sts-dev.csv")}
        sick = [_read_sick(folder / "SICK" / name) for name in SICK_FILES]
        self.sets["SICK-R"] = {"test": sick[-1]}
        joined = [[item for part in field for item in part] for field in zip(*sick, strict=True)]
        self.sets["SICK-R train+trial+test"] = {"all": JudgedPairs(*joined)}

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sentences of every pair."""
        pairs = [pairs for subsets in self.sets.values() for pairs in subsets.values()]
        return {"en": [text for part in pairs for side in (part.a, part.b) for text in side]}

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Spearman and Pearson of every subset, and of every set under each protocol."""
        cosines = {
            name: {part: sentences.cosines(pairs.a, pairs.b, "en", "en") for part, pairs in subsets.items()}
            for name, subsets in self.sets.items()
        }
        scores = [score for name in self.sets for score in self._score_set(name, cosines[name], identity)]
        return TaskResult([*scores, *self._averages(scores, cosines, identity)])

    def _score_set(self, name: str, cosines: dict[str, Floats], identity: Identity) -> list[Score]:
        subsets = self.sets[name]
        signer = Signer(identity, "sts", [path for pairs in subsets.values() for path in pairs.paths])
        scores = []
        for ranks, metric in ((True, "spearman"), (False, "pearson")):
            if len(subsets) > 1:
                for part, pairs in subsets.items():
                    sample = Correlation(cosines[part], np.array(pairs.gold), [len(pairs.gold)], ranks=ranks)
                    scores.append(_correlation_score(signer, f"{name}/{part}", "subset", metric, sample))
            together = np.concatenate(list(cosines.values()))
            gold = np.concatenate([np.array(pairs.gold) for pairs in subsets.values()])
            sizes = [len(pairs.gold) for pairs in subsets.values()]
            for protocol in STS_PROTOCOLS:
                groups = [len(gold)] if protocol == "all" else sizes
                sample = Correlation(together, gold, groups, protocol == "wmean", ranks)
                scores.append(_correlation_score(signer, name, protocol, metric, sample))
        return scores

    def _averages(
        self, scores: Sequence[Score], cosines: dict[str, dict[str, Floats]], identity: Identity
    ) -> list[Score]:
        """The last column of the paper's tables: the average of the seven sets, if all of them are present."""
        if not self.sets.keys() >= set(STS_SETS):
            return []
        paths = [path for name in STS_SETS for pairs in self.sets[name].values() for path in pairs.paths]
        signer, averages = Signer(identity, "sts", paths), []
        for protocol in STS_PROTOCOLS:
            seven = [s for s in scores if s.subset in STS_SETS and s.protocol == protocol and s.metric == "spearman"]
            value, n = sum(score.value for score in seven) / len(STS_SETS), sum(score.n for score in seven)
            average = signer.score(STS_AVERAGE, protocol, "spearman", value, n)
            averages.append(replace(average, sample=self._joined(cosines)) if protocol == "all" else average)
        return averages

    def _joined(self, cosines: dict[str, dict[str, Floats]]) -> Correlation:
        """All pairs of the seven sets; each set is a group with the same weight."""
        predicted = [part for name in STS_SETS for part in cosines[name].values()]
        gold = [np.array(pairs.gold) for name in STS_SETS for pairs in self.sets[name].values()]
        sizes = [sum(len(pairs.gold) for pairs in self.sets[name].values()) for name in STS_SETS]
        return Correlation(np.concatenate(predicted), np.concatenate(gold), sizes, weighted=False)


def _correlation_score(signer: Signer, subset: str, protocol: str, metric: str, sample: Correlation) -> Score:
    n, ends = len(sample.gold), correlation_interval(sample)
    return signer.score(subset, protocol, metric, sample, n, ends, subset=subset)


def correlation_interval(sample: Correlation) -> tuple[float, float]:
    """An approximate 95 % interval of a correlation in percent, by Fisher's transformation.

    For ranks, the variance is from Bonett and Wright (2000). A mean of several groups counts as one group.
    """
    share = np.clip(value_of(sample) / 100, -0.999999, 0.999999)
    spread = np.sqrt((1 + share**2 / 2 if sample.ranks else 1.0) / max(1, len(sample.gold) - 3))
    ends = 100 * np.tanh(np.arctanh(share) + 1.96 * spread * np.array([-1, 1]))
    return float(ends[0]), float(ends[1])


def read_scored_pairs(texts: Path, gold: Path) -> JudgedPairs:
    """Reads a SemEval file of pairs, one per line, and its file of gold scores from 0 to 5.

    Columns after the two sentences are ignored, and a pair with an empty score line is skipped.
    """
    for path in (texts, gold):
        require_path(path, "an STS file in SentEval's layout")
    rows, scores = read_table(texts, [0, 1]), list(read_lines(gold))
    if len(rows) != len(scores):
        raise DataError(f"{texts} has {len(rows):,} pairs, {gold} {len(scores):,} scores; expected the same number")
    judged = [
        (cells[0], cells[1], parse_score(score.strip(), 0, 5, f"{gold}:{number}"))
        for (number, cells), score in zip(rows, scores, strict=True)
        if score.strip()
    ]
    if len(judged) < 2:
        raise DataError(f"{gold}: {len(judged)} scores; expected at least two")
    a, b, values = zip(*judged, strict=True)
    return JudgedPairs(a, b, values, [texts, gold])


def _read_subset(folder: Path, name: str) -> JudgedPairs:
    return read_scored_pairs(folder / f"STS.input.{name}.txt", folder / f"STS.gs.{name}.txt")


def _read_benchmark(path: Path) -> JudgedPairs:
    rows = read_table(require_path(path, "STS-B in SentEval's layout"), [4, 5, 6])
    scores = [parse_score(cells[0], 0, 5, f"{path}:{number}") for number, cells in rows]
    return JudgedPairs([cells[1] for _, cells in rows], [cells[2] for _, cells in rows], scores, [path])


def _read_sick(path: Path) -> JudgedPairs:
    rows = read_table(require_path(path, "SICK in SentEval's layout"), [1, 2, 3], header=True)
    scores = [parse_score(cells[2], 1, 5, f"{path}:{number}") for number, cells in rows]
    return JudgedPairs([cells[0] for _, cells in rows], [cells[1] for _, cells in rows], scores, [path])


def parse_score(text: str, low: float, high: float, place: str) -> float:
    """A gold score; DataError with the place (file and line) if it is not a number from low to high."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise DataError(f"{place}: gold score {text!r}; expected a number from {low:g} to {high:g}")
    return value


class CrossLingualSts:
    """Every `STS.input.[NAME.]XX-YY.txt` of a folder with its `STS.gs...`; the file name has the languages."""

    def __init__(self, folder: Path) -> None:
        matches = [XSTS_FILE.fullmatch(path.name) for path in sorted(require_path(folder, "XSTS files").iterdir())]
        found = [match for match in matches if match]
        if not found:
            raise DataError(f"{folder}: expected files of SemEval-2017 such as STS.input.en-zh.txt")
        self.langs = {match[0]: (base_language(match[2]), base_language(match[3])) for match in found}
        self.sets = {
            name: read_scored_pairs(folder / name, folder / name.replace(".input.", ".gs.")) for name in self.langs
        }

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Each side in its language."""
        wanted: dict[str, list[str]] = {}
        for name, pairs in self.sets.items():
            for lang, side in zip(self.langs[name], (pairs.a, pairs.b), strict=True):
                wanted.setdefault(lang, []).extend(side)
        return wanted

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Spearman and Pearson of every file."""
        scores = []
        for name, pairs in self.sets.items():
            a, b = self.langs[name]
            signer = Signer(identity, "xsts", pairs.paths)
            cosines = sentences.cosines(pairs.a, pairs.b, a, b)
            for ranks, metric in ((True, "spearman"), (False, "pearson")):
                sample = Correlation(cosines, np.array(pairs.gold), [len(pairs.gold)], ranks=ranks)
                subset, ends = name.removeprefix("STS.input.").removesuffix(".txt"), correlation_interval(sample)
                scores.append(signer.score(subset, f"{a}-{b}", metric, sample, len(pairs.gold), ends))
        return TaskResult(scores)
