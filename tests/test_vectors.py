"""Vectors are checked before they are compared."""

from __future__ import annotations

import numpy as np
import pytest

from dualmoco.core.errors import DataError
from dualmoco.core.vectors import check_vectors, unit_vectors


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (np.zeros((2, 3)), "2 vectors; expected 4"),
        (np.zeros(4), "shape (4,)"),
        (np.full((4, 3), "a"), "expected numbers"),
        (np.zeros((4, 5)), "dimension 5; expected 3"),
        (
            np.array([[0, 0, 0], [0, np.nan, 0], [0, 0, 0], [np.inf, 0, 0]]),
            "2 vectors contain NaN or infinity, first at row 1",
        ),
    ],
)
def test_wrong_vectors_are_refused(vectors: np.ndarray, said: str) -> None:
    """One line says what was given and what was expected."""
    with pytest.raises(DataError) as error:
        check_vectors(vectors, 4, "x.npy", 3)
    assert said in str(error.value) and "x.npy" in str(error.value)


def test_unit_vectors_have_length_one_or_stay_zero() -> None:
    """Directions are kept; zeros give no NaN."""
    units = unit_vectors(np.array([[3, 4], [0, 0]], dtype=np.float32))
    np.testing.assert_allclose(units, np.array([[0.6, 0.8], [0.0, 0.0]]), rtol=1e-6)
