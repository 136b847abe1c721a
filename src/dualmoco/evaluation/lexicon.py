"""Bilingual lexicon induction in MUSE's layout: is the nearest word of the other language a translation?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.progress import counting
from dualmoco.core.vectors import Floats, Ids, Vectors
from dualmoco.data.languages import base_language
from dualmoco.data.testfiles import existing
from dualmoco.data.text import read_lines
from dualmoco.evaluation.sample import Hits, interval
from dualmoco.evaluation.score import Signer, data_sha256
from dualmoco.evaluation.sentences import Sentences
from dualmoco.evaluation.task import Result
from dualmoco.models.model import Identity
from dualmoco.search.neighbors import nearest, nearest_both_ways

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
                sample = Hits(np.array(hits, dtype=np.float64))
                direction = f"{self.langs[0]}-{self.langs[1]} {protocol}"
                scores.append(
                    signer.score(self.pair, direction, f"p@{depth}", sample, len(queries), interval(sample, 200),
                                 candidates=len(self.words), k=CSLS_NEIGHBORS)
                )  # fmt: skip
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
