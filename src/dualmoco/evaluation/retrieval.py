"""Tatoeba similarity search (table 1 of the paper), and LASER's xSIM error on the same pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from sklearn.metrics import f1_score

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.evaluation.bucc import Bucc
from dualmoco.evaluation.data_files import existing, read_aligned_sentences
from dualmoco.evaluation.score import MeanSample, Score, Signer, data_sha256, interval
from dualmoco.evaluation.task import Parallel, Result, Sentences
from dualmoco.mining.margins import Margin, best_candidates
from dualmoco.models.model import Identity
from dualmoco.search.exact import nearest, nearest_both_ways
from dualmoco.text.files import read_lines
from dualmoco.text.languages import base_language

XSIM_NEIGHBORS = 4


class Tatoeba:
    """One language pair of a folder in LASER's layout: `tatoeba.XXX-eng.XXX` beside `tatoeba.XXX-eng.eng`."""

    def __init__(self, folder: Path, pair: str, margin: Margin = Margin.ratio) -> None:
        codes = pair.split("-")
        if len(codes) != 2:
            raise DataError(f"Tatoeba pair {pair!r}; expected two languages such as cmn-eng")
        self.paths = [existing(folder / f"tatoeba.{pair}.{code}", "a Tatoeba test file") for code in codes]
        self.pair, self.margin = pair, margin
        self.langs = [base_language(code) for code in codes]
        self.sides = read_aligned_sentences(*self.paths)

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sides."""
        return dict(zip(self.langs, self.sides, strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Accuracy of the nearest neighbour by cosine and error of the best by margin, both ways."""
        signer = Signer(identity, "tatoeba", data_sha256(self.paths))
        vectors = [sentences.vectors(side, lang) for side, lang in zip(self.sides, self.langs, strict=True)]
        near = nearest_both_ways(vectors[0], vectors[1], XSIM_NEIGHBORS)
        scores = []
        for side, other in ((0, 1), (1, 0)):
            direction = f"{self.langs[side]}-{self.langs[other]}"
            right = near[side].found_translations
            scores.append(self._score(signer, direction, "accuracy", right))
            best, _ = best_candidates(near[side], near[other].mean, self.margin)
            wrong = best != np.arange(len(vectors[0]))
            scores.append(self._score(signer, direction, f"xsim-{self.margin.value}-error", wrong))
        return Result(scores, parallel=Parallel(f"Tatoeba {self.pair}", self.langs[0], self.langs[1], *self.sides))

    def _score(self, signer: Signer, direction: str, metric: str, units: np.ndarray) -> Score:
        sample = MeanSample(units.astype(np.float64))
        settings = {"k": XSIM_NEIGHBORS} if metric.startswith("xsim") else {}
        return signer.score(
            self.pair, direction, metric, sample, len(units), interval(sample), pair=self.pair, **settings
        )


def tatoeba_pairs(folder: Path) -> list[str]:
    """The language pairs of a folder, such as afr-eng, in alphabetical order."""
    pairs = {path.name.split(".")[1] for path in existing(folder, "the Tatoeba test files").glob("tatoeba.*-*.*")}
    return sorted(pairs)


TASK = "mteb-bitext-retrieval"


class BitextRetrieval:
    """Both of MTEB's variants, in its direction and, which MTEB leaves out, the other one."""

    def __init__(self, folder: Path, pair: str) -> None:
        bucc = Bucc(folder, pair)
        self.pair, self.langs, self.split = pair, bucc.langs, bucc.test or bucc.dev

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both sides of the split."""
        return dict(zip(self.langs, (self.split.src, self.split.tgt), strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Weighted F1, MTEB's metric, and accuracy."""
        signer = Signer(identity, TASK, data_sha256(self.split.paths))
        ids = [{name: row for row, name in enumerate(side)} for side in (self.split.src_ids, self.split.tgt_ids)]
        gold = np.array([(ids[0][src], ids[1][tgt]) for src, tgt in self.split.gold])  # (g, 2)
        sides = sentences.vectors(self.split.src, self.langs[0]), sentences.vectors(self.split.tgt, self.langs[1])
        scores = []
        for side, other in ((0, 1), (1, 0)):
            queries, direction = sides[side][gold[:, side]], f"{self.langs[side]}-{self.langs[other]}"
            keys = sides[other]
            found = {
                "gold only, as MTEB BUCC.v2": gold[:, other][nearest(queries, keys[gold[:, other]], 1).ids[:, 0]],
                "all candidates, as MTEB BUCC": nearest(queries, keys, 1).ids[:, 0],
            }
            for variant, nearest_rows in found.items():
                protocol = f"{direction} {variant}"
                f1 = 100 * float(f1_score(gold[:, other], nearest_rows, average="weighted", zero_division=0))
                sample = MeanSample((nearest_rows == gold[:, other]).astype(np.float64))
                signature = signer.sign(protocol, "weighted f1")
                scores += [
                    Score(TASK, self.pair, protocol, "weighted f1", f1, len(gold), signature),
                    signer.score(self.pair, protocol, "accuracy", sample, len(gold), interval(sample)),
                ]
        return Result(scores)


DEPTHS = (1, 5)
CSLS_NEIGHBORS = 10


class Lexicon:
    """One dictionary `XX-YY.txt`, `word translation` a line; candidates are all its translations."""

    def __init__(self, folder: Path, pair: str) -> None:
        self.path = existing(folder / f"{pair}.txt", "a MUSE dictionary")
        self.pair = pair
        self.langs = [base_language(code) for code in pair.split("-")]
        self.translations = read_dictionary(self.path)
        self.words = list(dict.fromkeys(word for words in self.translations.values() for word in words))

    def texts(self) -> Mapping[str, Sequence[str]]:
        """Both languages' words."""
        return dict(zip(self.langs, (list(self.translations), self.words), strict=True))

    def score(self, sentences: Sentences, identity: Identity) -> Result:
        """Precision at 1 and 5, by cosine and by CSLS."""
        queries = list(self.translations)
        vectors = sentences.vectors(queries, self.langs[0]), sentences.vectors(self.words, self.langs[1])
        with counting("lexicon", len(queries), " words") as progress:
            forward, backward = nearest_both_ways(*vectors, CSLS_NEIGHBORS, progress=progress)
        rows = {word: row for row, word in enumerate(self.words)}
        gold = [{rows[word] for word in self.translations[query]} for query in queries]
        signer = Signer(identity, "lexicon", data_sha256([self.path]))
        found = {"cosine": forward.ids, "csls": nearest_by_csls(*vectors, backward.mean, DEPTHS[-1])}
        scores = []
        for protocol, ids in found.items():
            for depth in DEPTHS:
                hits = [bool(gold[row] & set(ids[row, :depth].tolist())) for row in range(len(queries))]
                sample = MeanSample(np.array(hits, dtype=np.float64))
                direction = f"{self.langs[0]}-{self.langs[1]} {protocol}"
                scores.append(
                    signer.score(
                        self.pair,
                        direction,
                        f"p@{depth}",
                        sample,
                        len(queries),
                        interval(sample, 200),
                        candidates=len(self.words),
                        k=CSLS_NEIGHBORS,
                    )
                )
        return Result(scores)


def nearest_by_csls(queries: Vectors, words: Vectors, near_words: Floats, k: int) -> Ids:
    """The best words of each query by CSLS (Conneau et al. 2018): 2 cos(x, y) - r(x) - r(y).

    r is the mean cosine with the nearest of the other side; hubs, words near everything, fall back. Half of it, without
    r(x), which is the same for all words of a query, is one more product: -1/2 times r(y).

    Args:
        queries: Unit vectors (n, D).
        words: Unit vectors (m, D).
        near_words: r of the words, shape (m,).
        k: How many words.

    Returns:
        Rows of the words, (n, k), the best first.
    """
    halves = np.full((len(queries), 1), -0.5, dtype=np.float32)
    means = near_words.astype(np.float32)[:, None]
    return nearest(np.hstack([queries, halves]), np.hstack([words, means]), k).ids


def read_dictionary(path: Path) -> dict[str, list[str]]:
    """Reads a MUSE dictionary.

    Args:
        path: `word translation` a line, by a space or a tab; a word may have several lines.

    Returns:
        The translations of each word, in the order of the file.

    Raises:
        DataError: A line that is not two words, or no line at all.
    """
    translations: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t") if "\t" in line else line.split()
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise DataError(f"{path}:{number}: {len(cells)} words; expected a word and its translation")
        translations.setdefault(cells[0].strip(), []).append(cells[1].strip())
    if not translations:
        raise DataError(f"{path}: empty; expected a word and its translation a line")
    return translations
