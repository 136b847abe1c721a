"""Held-out scores: tables worked by hand, a loop over rows, and the progress of encoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dualmoco.core import progress
from dualmoco.data.pairs import Pairs
from dualmoco.models.network import Encoder
from dualmoco.training import heldout
from dualmoco.training.distributed import first_numbers, gather_rows, highest_numbers, process_rank, wait_for_all
from dualmoco.training.heldout import Heldout, HeldoutScore, share_score


class Table(nn.Module):
    """The one layer of an encoder whose sentences are row numbers of given vectors."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors)

    def preprocess(self, texts: list[str]) -> dict[str, Tensor]:
        """Row numbers (N,)."""
        return {"rows": torch.tensor([int(text) for text in texts])}

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Their vectors (N, D)."""
        return {"sentence_embedding": self.vectors[features["rows"]]}

    def get_embedding_dimension(self) -> int:
        """D."""
        return self.vectors.shape[1]


def score(src: Tensor, tgt: Tensor) -> HeldoutScore:
    """The score of encoders that give these vectors, row by row translations of each other."""
    pairs = Pairs.from_texts([(str(row), str(row)) for row in range(len(src))])
    return Heldout([pairs], Encoder([Table(src)]), [Encoder([Table(tgt)])]).score()


def loop_oracle(queries: Tensor, candidates: Tensor) -> float:
    """The share of queries nearest to the candidate of their own row, one score at a time."""
    left, right = queries.double().numpy(), candidates.double().numpy()
    hits = 0
    for index, query in enumerate(left):
        best, best_score = -1, -np.inf
        for place, candidate in enumerate(right):
            if (cosine := float(np.dot(query, candidate))) > best_score:
                best, best_score = place, cosine
        hits += best == index
    return hits / len(left)


def test_three_sentences_by_hand() -> None:
    """Cosines [[.9 .1 .5] [.8 .7 .2] [0 .3 .6]] find 2 of 3 along rows and 3 of 3 along columns."""
    tgt = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.7, 0.2], [0.0, 0.3, 0.6]]).T
    found = score(torch.eye(3), tgt)
    assert (found.src_to_tgt, found.tgt_to_src, found.score) == pytest.approx((2 / 3, 1.0, 5 / 6))
    assert found.nli is None


def test_first_of_equal_scores_counts() -> None:
    """Collapsed vectors find one sentence of n, not all of them."""
    collapsed = torch.ones(4, 2) / 2**0.5
    assert score(collapsed, collapsed) == HeldoutScore(0.25, 0.25, None, 0.25)


@pytest.mark.parametrize("count", [1, 7, 45])
def test_score_agrees_with_a_loop(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both directions are those of a loop, for any number of parts that are encoded one after the other."""
    monkeypatch.setattr(heldout, "SENTENCES_PER_UPDATE", 8)
    generator = torch.Generator().manual_seed(count)
    src = normalize(torch.randn(count, 5, generator=generator), dim=1)
    tgt = normalize(src + 0.6 * torch.randn(count, 5, generator=generator), dim=1)
    found = score(src, tgt)
    assert (found.src_to_tgt, found.tgt_to_src) == (loop_oracle(src, tgt), loop_oracle(tgt, src))
    assert found.score == (found.src_to_tgt + found.tgt_to_src) / 2
    if count == 45:
        assert 0 < found.src_to_tgt < 1 and found.src_to_tgt != found.tgt_to_src


def test_encoding_shows_its_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Sentences of both sides are counted on standard error, if it takes long; a short evaluation is silent."""
    score(torch.eye(3), torch.eye(3))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(heldout, "SENTENCES_PER_UPDATE", 2)
    score(torch.eye(3), torch.eye(3))
    shown = capsys.readouterr()
    assert shown.out == "" and "encoding held-out sentences: 100%" in shown.err and "6.00/6.00" in shown.err


@pytest.mark.parametrize("nli", [None, 0.5])
def test_a_single_process_decides_alone(nli: float | None) -> None:
    """Without other processes scores and rows are handed back as they are."""
    given = HeldoutScore(0.1, 0.2, nli, 0.15)
    assert share_score(given) == given
    rows = torch.ones(3, 2)
    assert gather_rows(rows) is rows and process_rank() == 0
    assert first_numbers(rows) is rows and highest_numbers(rows) is rows
    wait_for_all()
