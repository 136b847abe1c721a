"""Paraphrases in the format of Quora's question pairs: classifying given pairs, and mining them among all questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.evaluation.score import Ranking, Score, Signer, interval, value_of
from dualmoco.evaluation.task import Sentences, TaskResult, require_path
from dualmoco.mining.threshold import best_threshold
from dualmoco.models.model import Identity
from dualmoco.search.exact import nearest
from dualmoco.text.files import read_table

PARAPHRASE_NEIGHBORS = 20
DETECTION = "detection, threshold from dev.tsv"
IdPair = tuple[int, int]


class Paraphrases:
    """Files of `label<TAB>sentence<TAB>sentence`: dev.tsv chooses the threshold, test.tsv is scored."""

    def __init__(self, folder: Path, lang: str = "en") -> None:
        self.lang = lang
        self.paths = [require_path(folder / name, "labelled pairs") for name in ("dev.tsv", "test.tsv")]
        self.dev, self.test = (_read_pairs(path) for path in self.paths)

    def texts(self) -> Mapping[str, Sequence[str]]:
        """All questions."""
        return {self.lang: [text for rows in (self.dev, self.test) for _, a, b in rows for text in (a, b)]}

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Average precision, F1 and accuracy of classifying pairs; average precision of mining them."""
        signer = Signer(identity, "paraphrase", self.paths)
        dev, test = self._cosines(self.dev, sentences), self._cosines(self.test, sentences)
        labels = [np.array([label for label, _, _ in rows], dtype=np.int64) for rows in (self.dev, self.test)]
        order = np.argsort(-dev, kind="stable")
        chosen = best_threshold(dev[order], labels[0][order] == 1, int(labels[0].sum()))
        accepted, positive = test >= chosen.value, labels[1] == 1
        f1 = 200 * float((accepted & positive).sum()) / max(1, accepted.sum() + positive.sum())
        accuracy = 100 * float((accepted == positive).mean())
        ranking, n = Ranking(test, labels[1]), len(test)
        return TaskResult(
            [
                signer.score("test.tsv", "detection", "average precision", ranking, n, interval(ranking, 200)),
                signer.score("test.tsv", DETECTION, "f1", float(f1), n),
                signer.score("test.tsv", DETECTION, "accuracy", accuracy, n),
                self._mining_score(sentences, signer),
            ]
        )

    def _cosines(self, rows: Sequence[tuple[int, str, str]], sentences: Sentences) -> np.ndarray:
        return sentences.cosines([a for _, a, _ in rows], [b for _, _, b in rows], self.lang, self.lang)

    def _mining_score(self, sentences: Sentences, signer: Signer) -> Score:
        """Average precision of the true paraphrases among all pairs of neighbors; unlabelled pairs count as wrong."""
        texts = list(dict.fromkeys(text for _, a, b in self.test for text in (a, b)))
        rows = {text: row for row, text in enumerate(texts)}
        gold = closure((rows[a], rows[b]) for label, a, b in self.test if label == 1)
        vectors = sentences.vectors(texts, self.lang)
        with counting("paraphrases", len(texts)) as progress:
            near = nearest(vectors, vectors, PARAPHRASE_NEIGHBORS + 1, progress=progress)
        a, b = np.repeat(np.arange(len(texts)), near.ids.shape[1]), near.ids.ravel()
        low, high = np.minimum(a, b), np.maximum(a, b)
        keys, first = np.unique(low * len(texts) + high, return_index=True)
        apart = (low != high)[first]
        keys, scores = keys[apart], near.scores.ravel()[first][apart]
        pairs = zip((keys // len(texts)).tolist(), (keys % len(texts)).tolist(), strict=True)
        labels = np.array([pair in gold for pair in pairs], dtype=np.int64)
        found = float(value_of(Ranking(scores, labels)) * labels.sum() / max(1, len(gold)))  # those missed count too
        settings = {"k": PARAPHRASE_NEIGHBORS, "sentences": len(texts)}
        return signer.score("test.tsv", "mining", "average precision", found, len(gold), **settings)


def closure(pairs: Iterable[IdPair]) -> set[IdPair]:
    """All pairs of the transitive closure, the lower number first."""
    group: dict[int, set[int]] = {}
    for a, b in pairs:
        joined = group.get(a, {a}) | group.get(b, {b})
        for member in joined:
            group[member] = joined
    return {(a, b) for a, members in group.items() for b in members if a < b}


def _read_pairs(path: Path) -> list[tuple[int, str, str]]:
    rows = []  # Quora's own files contain some bytes that are not UTF-8
    for number, (label, a, b) in read_table(path, [0, 1, 2], errors="replace"):
        if label not in ("0", "1"):
            raise DataError(f"{path}:{number}: label {label!r}; expected 1 for a paraphrase or 0")
        rows.append((int(label), a, b))
    if len({label for label, _, _ in rows}) < 2:
        raise DataError(f"{path}: all labels are {rows[0][0]}; expected both 0 and 1")
    return rows
