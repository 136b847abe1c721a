"""Bilingual lexicon induction in MUSE's layout: is the nearest word of the other language a translation?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dualmoco.corpus.languages import base_language
from dualmoco.corpus.text import read_lines
from dualmoco.errors import DataError
from dualmoco.evaluation.bootstrap import interval
from dualmoco.evaluation.encoder import Identity
from dualmoco.evaluation.sample import Hits, value_of
from dualmoco.evaluation.score import Score, Signer, data_sha256
from dualmoco.evaluation.sentences import Sentences
from dualmoco.evaluation.task import Result
from dualmoco.evaluation.testfiles import existing
from dualmoco.neighbors import Floats, Ids, Neighbors, nearest_both_ways
from dualmoco.progress import counting

DEPTHS = (1, 5)
CSLS_NEIGHBORS = 10
CANDIDATES = 50  # neighbours by cosine that CSLS orders anew


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
        with counting("lexicon", len(queries), " words") as tell:
            forward, backward = nearest_both_ways(*vectors, CANDIDATES, tell=tell)
        rows = {word: row for row, word in enumerate(self.words)}
        gold = [{rows[word] for word in self.translations[query]} for query in queries]
        signer = Signer(identity, "lexicon", data_sha256([self.path]))
        found = {"cosine": forward.ids, "csls": csls_order(forward, backward)}
        scores = []
        for protocol, ids in found.items():
            for depth in DEPTHS:
                hits = [bool(gold[row] & set(ids[row, :depth].tolist())) for row in range(len(queries))]
                sample = Hits(np.array(hits, dtype=np.float64))
                low, high = interval(sample, 200)
                direction = f"{self.langs[0]}-{self.langs[1]} {protocol}"
                signature = signer.sign(direction, f"p@{depth}", candidates=len(self.words), k=CSLS_NEIGHBORS)
                scores.append(
                    Score("lexicon", self.pair, direction, f"p@{depth}", value_of(sample), len(queries), signature,
                          low, high, sample)
                )  # fmt: skip
        return Result(scores)


def csls_order(forward: Neighbors, backward: Neighbors, k: int = CSLS_NEIGHBORS) -> Ids:
    """Neighbours in the order of CSLS (Conneau et al. 2018): 2 cos(x, y) - r(x) - r(y), r a mean of k neighbours.

    Args:
        forward: Neighbours of n queries, at least k.
        backward: Neighbours of m words among the queries.
        k: Neighbours in each mean.

    Returns:
        Row numbers like `forward.ids`, the best first; hubs, words near everything, fall back.
    """
    near_words: Floats = backward.scores[:, :k].mean(axis=1)  # (m,)
    scores = 2 * forward.scores - near_words[forward.ids]  # (n, c); r(x) is the same for all of x
    order = np.lexsort((forward.ids, -scores), axis=1)
    ordered: Ids = np.take_along_axis(forward.ids, order, axis=1)
    return ordered


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
