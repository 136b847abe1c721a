"""Retrieval accuracy: a table worked by hand, and a loop over rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dualmoco.training import metrics
from dualmoco.training.metrics import RetrievalAccuracy, retrieval_accuracy


def loop_oracle(queries: Tensor, candidates: Tensor) -> float:
    """The share of queries nearest to the candidate of their own row, one score at a time."""
    left, right = queries.double().numpy(), candidates.double().numpy()
    hits = 0
    for index, query in enumerate(left):
        best, best_score = -1, -np.inf
        for place, candidate in enumerate(right):
            if (score := float(np.dot(query, candidate))) > best_score:
                best, best_score = place, score
        hits += best == index
    return hits / len(left)


def test_three_sentences_by_hand() -> None:
    """Scores [[9 1 5] [8 7 2] [0 3 6]] find 2 of 3 along rows and 3 of 3 along columns."""
    src = torch.eye(3)
    tgt = torch.tensor([[9.0, 1.0, 5.0], [8.0, 7.0, 2.0], [0.0, 3.0, 6.0]]).T
    accuracy = retrieval_accuracy(src, tgt)
    assert accuracy.src_to_tgt == pytest.approx(2 / 3)
    assert accuracy.tgt_to_src == pytest.approx(1.0)
    assert accuracy.mean == pytest.approx(5 / 6)


def test_first_of_equal_scores_counts() -> None:
    """Collapsed vectors find one sentence of n, not all of them."""
    collapsed = torch.ones(4, 2) / 2**0.5
    assert retrieval_accuracy(collapsed, collapsed) == RetrievalAccuracy(0.25, 0.25)


@pytest.mark.parametrize("count", [1, 7, 8, 45])
def test_blocks_agree_with_a_loop(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both directions are those of a loop, for less than a block, whole blocks and a remainder."""
    monkeypatch.setattr(metrics, "BLOCK_ROWS", 8)
    generator = torch.Generator().manual_seed(count)
    src = normalize(torch.randn(count, 5, generator=generator), dim=1)
    tgt = normalize(src + 0.6 * torch.randn(count, 5, generator=generator), dim=1)
    found = retrieval_accuracy(src, tgt)
    assert found == RetrievalAccuracy(loop_oracle(src, tgt), loop_oracle(tgt, src))
    if count == 45:
        assert 0 < found.src_to_tgt < 1 and found.src_to_tgt != found.tgt_to_src
