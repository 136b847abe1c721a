"""MTEB's bitext retrieval on BUCC's gold pairs: not the shared task, and named so that nobody confuses them.

MTEB's BUCC.v2 searches gold targets only, its older BUCC all targets; both take the cosine's nearest neighbour of each
gold source. There is no margin, no threshold and nothing to be rejected, so scores are far higher than F1 of mining.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from sklearn.metrics import f1_score

from dualmoco.evaluation.bucc import Bucc
from dualmoco.evaluation.sample import Hits, interval
from dualmoco.evaluation.score import Score, Signer, data_sha256
from dualmoco.evaluation.sentences import Sentences
from dualmoco.evaluation.task import Result
from dualmoco.models.model import Identity
from dualmoco.search.neighbors import nearest

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
                sample = Hits((nearest_rows == gold[:, other]).astype(np.float64))
                signature = signer.sign(protocol, "weighted f1")
                scores += [
                    Score(TASK, self.pair, protocol, "weighted f1", f1, len(gold), signature),
                    signer.score(self.pair, protocol, "accuracy", sample, len(gold), interval(sample)),
                ]
        return Result(scores)
