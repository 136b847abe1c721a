"""Retrieval of translations: Tatoeba similarity search, MTEB's bitext retrieval, and bilingual lexicon induction.

Tatoeba is table 1 of the paper; LASER's xSIM error is computed on the same pairs. MTEB calls its task BUCC, but it
retrieves the translations of gold sources, which is much easier than the mining of `bucc.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.evaluation.bucc import Bucc
from dualmoco.evaluation.metrics import MeanSample, Score, Signer, interval
from dualmoco.evaluation.task import ParallelText, Sentences, TaskResult, read_sentences, require_path
from dualmoco.mining.margins import Margin, best_candidates
from dualmoco.models.model import Identity
from dualmoco.search.exact import nearest, nearest_both_ways
from dualmoco.text.files import read_lines
from dualmoco.text.languages import base_language

XSIM_NEIGHBORS = 4
FEWEST_SHARED = 40  # English sentences that two Tatoeba sets must share to be scored against each other
CSLS_NEIGHBORS = 10
LEXICON_DEPTHS = (1, 5)
MTEB_RETRIEVAL = "mteb-bitext-retrieval"
SHARED_TATOEBA = "tatoeba through English"


class Tatoeba:
    """One language pair of a folder in LASER's format: `tatoeba.XXX-eng.XXX` and `tatoeba.XXX-eng.eng`."""

    def __init__(self, folder: Path, pair: str) -> None:
        codes = pair.split("-")
        if len(codes) != 2:
            raise DataError(f"Tatoeba pair {pair!r}; expected two languages such as cmn-eng")
        self.pair, self.langs = pair, [base_language(code) for code in codes]
        self.paths = [require_path(folder / f"tatoeba.{pair}.{code}", "a Tatoeba test file") for code in codes]
        self.sides = [read_sentences(path) for path in self.paths]
        (src, tgt), counts = self.paths, [f"{len(side):,}" for side in self.sides]
        if counts[0] != counts[1]:
            raise DataError(f"{src} has {counts[0]} lines, {tgt} has {counts[1]}; expected the same number")

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sides."""
        return dict(zip(self.langs, self.sides, strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Accuracy of the nearest neighbor by cosine and xSIM error by ratio margin, in both directions."""
        signer, n = Signer(identity, "tatoeba", self.paths), len(self.sides[0])
        vectors = [sentences.vectors(side, lang) for side, lang in zip(self.sides, self.langs, strict=True)]
        near = nearest_both_ways(vectors[0], vectors[1], XSIM_NEIGHBORS)
        scores = []
        for side, other in ((0, 1), (1, 0)):
            direction = f"{self.langs[side]}-{self.langs[other]}"
            right = MeanSample(near[side].found_translations.astype(np.float64))
            scores.append(signer.score(self.pair, direction, "accuracy", right, n, interval(right), pair=self.pair))
            best, _ = best_candidates(near[side], near[other].mean, Margin.ratio)
            wrong = MeanSample((best != np.arange(n)).astype(np.float64))
            settings = {"pair": self.pair, "k": XSIM_NEIGHBORS}
            scores.append(signer.score(self.pair, direction, "xsim-ratio-error", wrong, n, interval(wrong), **settings))
        parallel = ParallelText(f"Tatoeba {self.pair}", self.langs[0], self.langs[1], *self.sides)
        return TaskResult(scores, parallel=parallel)


class SharedTatoeba:
    """Two languages whose sets, with English, translate some of the same English sentences."""

    def __init__(self, first: Tatoeba, second: Tatoeba) -> None:
        self.langs, self.sides = [first.langs[0], second.langs[0]], [first.sides[0], second.sides[0]]
        self.paths = [*first.paths, *second.paths]
        rows = [{text: row for row, text in enumerate(one.sides[1])} for one in (first, second)]
        shared = [text for text in rows[0] if text in rows[1]]
        self.rows = [np.array([side[text] for text in shared], dtype=np.int64) for side in rows]

    def texts(self) -> Mapping[str, Sequence[str]]:
        """All sentences of both languages, because each is a candidate."""
        return dict(zip(self.langs, self.sides, strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Accuracy of the nearest neighbor by cosine among all sentences of the other language, in both directions."""
        signer, pair = Signer(identity, SHARED_TATOEBA, self.paths), "-".join(self.langs)
        vectors = [sentences.vectors(side, lang) for side, lang in zip(self.sides, self.langs, strict=True)]
        scores = []
        for side, other in ((0, 1), (1, 0)):
            found = nearest(vectors[side][self.rows[side]], vectors[other], 1).ids[:, 0]
            right = MeanSample((found == self.rows[other]).astype(np.float64))
            direction, settings = f"{self.langs[side]}-{self.langs[other]}", {"candidates": len(vectors[other])}
            scores.append(signer.score(pair, direction, "accuracy", right, len(found), interval(right), **settings))
        return TaskResult(scores)


def tatoeba_pairs(folder: Path) -> list[str]:
    """The language pairs of a folder, such as afr-eng, in alphabetical order."""
    paths = require_path(folder, "the Tatoeba test files").glob("tatoeba.*-*.*")
    return sorted({path.name.split(".")[1] for path in paths})


class BitextRetrieval:
    """Both of MTEB's variants, in both directions; MTEB has only the first one."""

    def __init__(self, folder: Path, pair: str) -> None:
        bucc = Bucc(folder, pair)
        self.pair, self.langs, self.split = pair, bucc.langs, bucc.test or bucc.dev

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sides of the split."""
        return dict(zip(self.langs, (self.split.src, self.split.tgt), strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Weighted F1, MTEB's metric, and accuracy."""
        from sklearn.metrics import f1_score

        signer, split = Signer(identity, MTEB_RETRIEVAL, self.split.paths), self.split.name
        subset = f"{self.pair} {split}"
        ids = [{name: row for row, name in enumerate(side)} for side in (self.split.src_ids, self.split.tgt_ids)]
        gold = np.array([(ids[0][src], ids[1][tgt]) for src, tgt in self.split.gold])  # (g, 2)
        sides = sentences.vectors(self.split.src, self.langs[0]), sentences.vectors(self.split.tgt, self.langs[1])
        scores: list[Score] = []
        for side, other in ((0, 1), (1, 0)):
            queries, keys, wanted = sides[side][gold[:, side]], sides[other], gold[:, other]
            found = {
                "gold only, as MTEB BUCC.v2": wanted[nearest(queries, keys[wanted], 1).ids[:, 0]],
                "all candidates, as MTEB BUCC": nearest(queries, keys, 1).ids[:, 0],
            }
            for variant, rows in found.items():
                protocol = f"{self.langs[side]}-{self.langs[other]} {variant}"
                f1 = 100 * float(f1_score(wanted, rows, average="weighted", zero_division=0))
                sample = MeanSample((rows == wanted).astype(np.float64))
                scores += [
                    signer.score(subset, protocol, "weighted f1", f1, len(gold), split=split),
                    signer.score(subset, protocol, "accuracy", sample, len(gold), interval(sample), split=split),
                ]
        return TaskResult(scores)


class Lexicon:
    """A MUSE dictionary `XX-YY.txt`, one `word translation` per line; all its translations are candidates."""

    def __init__(self, folder: Path, pair: str) -> None:
        self.path = require_path(folder / f"{pair}.txt", "a MUSE dictionary")
        self.pair = pair
        self.langs = [base_language(code) for code in pair.split("-")]
        self.translations = read_dictionary(self.path)
        self.words = list(dict.fromkeys(word for words in self.translations.values() for word in words))

    def texts(self) -> Mapping[str, Sequence[str]]:
        """The words of both languages."""
        return dict(zip(self.langs, (list(self.translations), self.words), strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> TaskResult:
        """Precision at 1 and 5, by cosine and by CSLS."""
        queries = list(self.translations)
        vectors = sentences.vectors(queries, self.langs[0]), sentences.vectors(self.words, self.langs[1])
        with counting("lexicon", len(queries), " words") as progress:
            src_to_tgt, tgt_to_src = nearest_both_ways(*vectors, CSLS_NEIGHBORS, progress=progress)
        rows = {word: row for row, word in enumerate(self.words)}
        gold = [{rows[word] for word in self.translations[query]} for query in queries]
        signer = Signer(identity, "lexicon", [self.path])
        settings = {"candidates": len(self.words), "k": CSLS_NEIGHBORS}
        found = {"cosine": src_to_tgt.ids, "csls": nearest_by_csls(*vectors, tgt_to_src.mean, LEXICON_DEPTHS[-1])}
        scores = []
        for name, ids in found.items():
            protocol = f"{self.langs[0]}-{self.langs[1]} {name}"
            for depth in LEXICON_DEPTHS:
                hits = [bool(right & set(near[:depth].tolist())) for right, near in zip(gold, ids, strict=True)]
                sample, metric = MeanSample(np.array(hits, dtype=np.float64)), f"p@{depth}"
                ends = interval(sample, 200)
                scores.append(signer.score(self.pair, protocol, metric, sample, len(queries), ends, **settings))
        return TaskResult(scores)


def nearest_by_csls(queries: Vectors, words: Vectors, word_means: Floats, k: int) -> Ids:
    """Rows (n, k) of the best words of each query by CSLS (Conneau et al. 2018): 2 cos(x, y) - r(x) - r(y).

    r is the mean cosine with the nearest vectors of the other side; subtracting it ranks hubs lower. r(x) is the same
    for all words of a query, so cos(x, y) - r(y) / 2 gives the same order: one more dimension of a dot product.
    Unit vectors are (n, D) and (m, D); `word_means` (m,) is r of the words.
    """
    halves = np.full((len(queries), 1), -0.5, dtype=np.float32)
    means = word_means.astype(np.float32)[:, None]
    return nearest(np.hstack([queries, halves]), np.hstack([words, means]), k).ids


def read_dictionary(path: Path) -> dict[str, list[str]]:
    """Reads a MUSE dictionary: the translations of each word, in file order; a word may have several lines."""
    translations: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t") if "\t" in line else line.split()
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise DataError(f"{path}:{number}: {len(cells)} words; expected a word and its translation")
        translations.setdefault(cells[0].strip(), []).append(cells[1].strip())
    if not translations:
        raise DataError(f"{path}: empty; expected a word and its translation on each line")
    return translations
