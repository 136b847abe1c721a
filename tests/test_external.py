"""Vectors made elsewhere: looked up by sentence and language, and refused where they do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.models.load import open_model


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Vectors of two languages, in half and double precision, with a sentence that comes twice."""
    (tmp_path / "en.txt").write_text("one\ntwo\none\n", encoding="utf-8")
    (tmp_path / "zh.txt").write_text("一\n", encoding="utf-8")
    np.save(tmp_path / "en.npy", np.array([[1, 2], [3, 4], [1, 2]], dtype=np.float16))
    np.save(tmp_path / "zh.npy", np.array([[5.0, 6.0]]))
    return tmp_path


def test_stored_vectors_are_looked_up(stored: Path) -> None:
    """Sentences of each language come back with their vectors, in the order asked for."""
    encoder = open_model(f"embeddings:{stored}")
    assert encoder.languages == ["en", "zh"] and encoder.identity.name == f"embeddings:{stored}"
    found = encoder.encode(["two", "one", "two"], lang="en", normalize=False)
    assert found.dtype == np.float32 and found.tolist() == [[3, 4], [1, 2], [3, 4]]
    assert encoder.encode(["一"], lang="zh", normalize=False).tolist() == [[5, 6]] and encoder.encode(
        [], lang="zh", normalize=False
    ).shape == (0, 2)
    before = encoder.identity.sha256
    np.save(stored / "zh.npy", np.array([[5.0, 6.5]]))
    assert open_model(f"embeddings:{stored}").identity.sha256 != before


def test_missing_sentence_is_quoted(stored: Path) -> None:
    """The error quotes the sentence, shortened, and says how to get the list; a language is refused as ever."""
    encoder = open_model(f"embeddings:{stored}")
    with pytest.raises(
        DataError, match=r"en\.txt: has no sentence 'three'; .* `dualmoco evaluate MODEL --texts FOLDER`"
    ):
        encoder.encode(["one", "three"], lang="en", normalize=False)
    with pytest.raises(DataError, match=r"has no sentence 'x{80}\.\.\.';"):
        encoder.encode(["x" * 200], lang="en", normalize=False)
    with pytest.raises(ModelError, match=r"has no language 'fr'; expected one of en, zh"):
        encoder.encode(["one"], lang="fr", normalize=False)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.ones((2, 2)), r"en\.npy: 2 vectors for the 3 lines of en\.txt; expected one vector per line"),
        (np.ones((3, 5)), r"zh\.npy: vectors of dimension 2; expected 5, the same as the others$"),
        (
            np.array([[1, 1], [1, np.nan], [1, 1]]),
            r"1 vectors contain NaN or infinity, first at row 1; encode them again$",
        ),
        (np.arange(6.0).reshape(3, 2), r"en\.npy: rows 0 and 2 differ, but belong to one sentence"),
        (np.ones(3), r"en\.npy: an array of shape \(3,\), float64; expected floating-point numbers of shape \(n, D\)$"),
        (np.ones((3, 2), dtype=np.int64), r"en\.npy: an array of shape \(3, 2\), int64; expected floating-point"),
    ],
)
def test_damaged_vectors_are_refused(stored: Path, array: Vectors, expected: str) -> None:
    """Counts, dimensions, values and repeated sentences that do not fit are told apart."""
    np.save(stored / "en.npy", array)
    with pytest.raises(DataError, match=expected):
        open_model(f"embeddings:{stored}")


def test_vectors_without_sentences_are_refused(stored: Path) -> None:
    """A language whose text file is missing is an error that names the file."""
    (stored / "zh.txt").unlink()
    with pytest.raises(DataError, match=r"zh\.txt: cannot be read after line 0: No such file or directory$"):
        open_model(f"embeddings:{stored}")
