"""Seven STS test sets in SentEval's layout (tables 3 and 9 of the paper), under every protocol the field has used.

`all` correlates the pairs of a year together, as SimCSE does; `wmean` averages its subsets' correlations by their size,
as the paper's main table does; `mean` averages them plainly. A number means little without that name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import Floats
from dualmoco.evaluation.data_files import existing, parse_score
from dualmoco.evaluation.score import Correlation, Score, Signer, data_sha256, value_of
from dualmoco.evaluation.task import Result, Sentences
from dualmoco.models.model import Identity
from dualmoco.text.files import read_lines, read_table
from dualmoco.text.languages import base_language

LANG = "en"
YEARS: dict[str, tuple[str, ...]] = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),  # SentEval leaves SMT out, whose licence is not free
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
SICK_FILES = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
SICK_TEST, SICK_ALL = "SICK-R", "SICK-R train+trial+test"
SEVEN = (*YEARS, "STS-B", SICK_TEST)
"""The sets of the paper's tables."""
PROTOCOLS = ("all", "wmean", "mean")


class JudgedPairs(NamedTuple):
    """Sentence pairs with gold similarities."""

    a: Sequence[str]
    b: Sequence[str]
    gold: Sequence[float]
    paths: Sequence[Path]


class Sts:
    """All sets of a folder that holds `STS/` and `SICK/`."""

    def __init__(self, folder: Path) -> None:
        self.sets: dict[str, dict[str, JudgedPairs]] = {
            year: {name: _read_subset(folder / "STS" / f"{year}-en-test", name) for name in subsets}
            for year, subsets in YEARS.items()
        }
        benchmark = folder / "STS" / "STSBenchmark"
        self.sets["STS-B"] = {"test": _read_benchmark(benchmark / "sts-test.csv")}
        self.sets["STS-B dev"] = {"dev": _read_benchmark(benchmark / "sts-dev.csv")}
        sick = [_read_sick(folder / "SICK" / name) for name in SICK_FILES]
        self.sets[SICK_TEST] = {"test": sick[-1]}
        self.sets[SICK_ALL] = {"all": _join(sick)}

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sentences of every pair."""
        pairs = [pairs for subsets in self.sets.values() for pairs in subsets.values()]
        return {LANG: [text for part in pairs for side in (part.a, part.b) for text in side]}

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Spearman and Pearson of every subset, and of every set under each protocol."""
        cosines = {
            name: {part: sentences.cosines(pairs.a, pairs.b, LANG, LANG) for part, pairs in subsets.items()}
            for name, subsets in self.sets.items()
        }
        scores = [score for name in self.sets for score in self._score_set(name, cosines[name], identity)]
        return Result([*scores, *self._averages(scores, cosines, identity)])

    def _score_set(self, name: str, cosines: dict[str, Floats], identity: Identity) -> list[Score]:
        subsets = self.sets[name]
        signer = Signer(identity, "sts", data_sha256(path for pairs in subsets.values() for path in pairs.paths))
        scores = []
        for ranks, metric in ((True, "spearman"), (False, "pearson")):
            if len(subsets) > 1:
                for part, pairs in subsets.items():
                    sample = Correlation(cosines[part], np.array(pairs.gold), [len(pairs.gold)], ranks=ranks)
                    scores.append(_scored(signer, f"{name}/{part}", "subset", metric, sample))
            together = np.concatenate(list(cosines.values()))
            gold = np.concatenate([np.array(pairs.gold) for pairs in subsets.values()])
            sizes = [len(pairs.gold) for pairs in subsets.values()]
            for protocol in PROTOCOLS:
                groups = [len(gold)] if protocol == "all" else sizes
                sample = Correlation(together, gold, groups, protocol == "wmean", ranks)
                scores.append(_scored(signer, name, protocol, metric, sample))
        return scores

    def _averages(
        self, scores: Sequence[Score], cosines: dict[str, dict[str, Floats]], identity: Identity
    ) -> list[Score]:
        """The last column of the paper's tables: the plain average of the seven sets, where all are there."""
        if not self.sets.keys() >= set(SEVEN):
            return []
        signer = Signer(
            identity,
            "sts",
            data_sha256(path for name in SEVEN for pairs in self.sets[name].values() for path in pairs.paths),
        )
        averages = []
        for protocol in PROTOCOLS:
            seven = [s for s in scores if s.subset in SEVEN and s.protocol == protocol and s.metric == "spearman"]
            value = sum(score.value for score in seven) / len(SEVEN)
            n = sum(score.n for score in seven)
            averages.append(
                Score(
                    "sts",
                    "average of 7",
                    protocol,
                    "spearman",
                    value,
                    n,
                    signer.sign(protocol, "spearman"),
                    sample=self._joined(cosines) if protocol == "all" else None,
                )
            )
        return averages

    def _joined(self, cosines: dict[str, dict[str, Floats]]) -> Correlation:
        predicted = [part for name in SEVEN for part in cosines[name].values()]
        gold = [np.array(pairs.gold) for name in SEVEN for pairs in self.sets[name].values()]
        sizes = [sum(len(pairs.gold) for pairs in self.sets[name].values()) for name in SEVEN]
        return Correlation(np.concatenate(predicted), np.concatenate(gold), sizes, weighted=False)


def _scored(signer: Signer, subset: str, protocol: str, metric: str, sample: Correlation) -> Score:
    n, ends = len(sample.gold), correlation_interval(sample)
    return signer.score(subset, protocol, metric, sample, n, ends, subset=subset)


def correlation_interval(sample: Correlation) -> tuple[float, float]:
    """An approximate 95 % interval of a correlation in percent, by Fisher's transformation.

    With ranks, the variance is Bonett and Wright's (2000). A mean of several groups counts as one group of all
    pairs.

    Args:
        sample: What was correlated.

    Returns:
        The ends of the interval.
    """
    share = np.clip(value_of(sample) / 100, -0.999999, 0.999999)
    spread = np.sqrt((1 + share**2 / 2 if sample.ranks else 1.0) / max(1, len(sample.gold) - 3))
    ends = 100 * np.tanh(np.arctanh(share) + 1.96 * spread * np.array([-1, 1]))
    return float(ends[0]), float(ends[1])


def read_scored_pairs(texts: Path, gold: Path, *, low: float = 0.0, high: float = 5.0) -> JudgedPairs:
    """A SemEval file of pairs and its file of gold scores; pairs without a score, an empty line, are not judged.

    Args:
        texts: `sentence<TAB>sentence` a line; further columns are passed over.
        gold: A score or nothing a line.
        low: Least possible score.
        high: Greatest.

    Returns:
        The judged pairs.

    Raises:
        DataError: A missing file, another number of lines, a score out of range, or no score at all.
    """
    for path in (texts, gold):
        existing(path, "an STS file in SentEval's layout")
    rows, scores = read_table(texts, [0, 1]), list(read_lines(gold))
    if len(rows) != len(scores):
        raise DataError(f"{texts} has {len(rows):,} pairs, {gold} {len(scores):,} scores; expected as many in both")
    judged = [
        (cells[0], cells[1], parse_score(score.strip(), low, high, f"{gold}:{number}"))
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
    rows = read_table(existing(path, "STS-B in SentEval's layout"), [4, 5, 6])
    scores = [parse_score(cells[0], 0, 5, f"{path}:{number}") for number, cells in rows]
    return JudgedPairs([cells[1] for _, cells in rows], [cells[2] for _, cells in rows], scores, [path])


def _read_sick(path: Path) -> JudgedPairs:
    rows = read_table(existing(path, "SICK in SentEval's layout"), [1, 2, 3], header=True)
    scores = [parse_score(cells[2], 1, 5, f"{path}:{number}") for number, cells in rows]
    return JudgedPairs([cells[0] for _, cells in rows], [cells[1] for _, cells in rows], scores, [path])


def _join(parts: Sequence[JudgedPairs]) -> JudgedPairs:
    return JudgedPairs(
        [text for part in parts for text in part.a],
        [text for part in parts for text in part.b],
        [value for part in parts for value in part.gold],
        [path for part in parts for path in part.paths],
    )


INPUT = re.compile(r"STS\.input\.(.*?)([a-z]{2,3})-([a-z]{2,3})\.txt")


class CrossLingualSts:
    """Every `STS.input.[NAME.]XX-YY.txt` of a folder with its `STS.gs...`; the name gives the languages."""

    def __init__(self, folder: Path) -> None:
        matches = [INPUT.fullmatch(path.name) for path in sorted(existing(folder, "XSTS files").iterdir())]
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

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Spearman and Pearson of every file."""
        scores = []
        for name, pairs in self.sets.items():
            a, b = self.langs[name]
            signer = Signer(identity, "xsts", data_sha256(pairs.paths))
            cosines = sentences.cosines(pairs.a, pairs.b, a, b)
            for ranks, metric in ((True, "spearman"), (False, "pearson")):
                sample = Correlation(cosines, np.array(pairs.gold), [len(pairs.gold)], ranks=ranks)
                subset, ends = name.removeprefix("STS.input.").removesuffix(".txt"), correlation_interval(sample)
                scores.append(signer.score(subset, f"{a}-{b}", metric, sample, len(pairs.gold), ends))
        return Result(scores)
