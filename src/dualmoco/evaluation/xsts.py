"""Cross-lingual STS: pairs whose sentences are in two languages, in SemEval-2017's layout."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.data.languages import base_language
from dualmoco.data.testfiles import existing
from dualmoco.evaluation.sample import Correlation
from dualmoco.evaluation.score import Signer, data_sha256
from dualmoco.evaluation.sentences import Sentences
from dualmoco.evaluation.sts import correlation_interval, read_scored_pairs
from dualmoco.evaluation.task import Result
from dualmoco.models.model import Identity

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
