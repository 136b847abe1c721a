"""Models stored small: what int8 keeps of them, and that they open like whole ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sentence_transformers import SentenceTransformer

from dualmoco.core.errors import ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.folder import INT8_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from dualmoco.models.int8_format import is_packed, pack_tensors, unpack_tensors, unpacked
from dualmoco.models.load import open_model
from dualmoco.models.pack import pack_model
from dualmoco.training.run import train

SENTENCES = [src for src, _ in generate_pairs(40, seed=8)]
MATRICES = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.floats(-1e6, 1e6, width=32)
)


@settings(deadline=None)
@given(MATRICES)
def test_rows_come_back_to_half_a_step(matrix: np.ndarray) -> None:
    """Every number to half of its row's scale, zeros exactly; other tensors to the bit."""
    bias = np.array([1e-8, 3.0], dtype=np.float32)
    packed = pack_tensors({"layer.weight": matrix, "layer.bias": bias})
    assert packed["layer.weight"].dtype == np.int8
    found = unpack_tensors(packed)
    assert set(found) == {"layer.weight", "layer.bias"} and np.array_equal(found["layer.bias"], bias)
    step = np.abs(matrix).max(axis=1, keepdims=True) / 127
    assert (np.abs(found["layer.weight"] - matrix) <= step * 0.5001 + 1e-30).all()
    assert (found["layer.weight"][matrix == 0] == 0).all()


@pytest.fixture
def run(recipe: Path, tmp_path: Path) -> Path:
    """A model of two small BERTs."""
    train(recipe, "schedule.steps=2")
    return tmp_path / "run" / "model"


def test_a_packed_network_gives_nearly_the_same_vectors(run: Path, tmp_path: Path) -> None:
    """In a smaller folder, which leaves no trace elsewhere."""
    pack_model(run, tmp_path / "packed")
    assert is_packed(tmp_path / "packed") and not is_packed(run)
    assert not list((tmp_path / "packed").rglob(WEIGHTS_FILE))
    folders = (run, tmp_path / "packed")
    sizes = [sum(file.stat().st_size for file in folder.rglob("*.safetensors")) for folder in folders]
    assert sizes[1] < 0.4 * sizes[0]
    tokenizers = list((tmp_path / "packed").rglob(TOKENIZER_FILE))
    assert len(tokenizers) == 2 and not any("\n" in path.read_text(encoding="utf-8") for path in tokenizers)
    whole, packed = (open_model(folder).encode(SENTENCES, lang="en") for folder in folders)
    assert 0.995 < (whole * packed).sum(axis=1).min() < 1


def test_a_packed_table_opens_without_torch(tiny_model: Path, tmp_path: Path) -> None:
    """As a static model, with the vectors that sentence-transformers makes of the same weights."""
    pack_model(tiny_model, tmp_path / "packed")
    model = open_model(tmp_path / "packed")
    assert model.backend("zh").name == "static"
    with unpacked(tmp_path / "packed") as folder:
        plain = SentenceTransformer(str(folder), device="cpu")
        expected = plain.encode(SENTENCES, task="en")
    assert not folder.exists()
    np.testing.assert_allclose(model.encode(SENTENCES, lang="en"), expected, atol=1e-5)
    whole = open_model(tiny_model).encode(SENTENCES, lang="en")
    assert (whole * expected).sum(axis=1).min() > 0.99


def test_packing_twice_gives_the_same_bytes(tiny_model: Path, tmp_path: Path) -> None:
    """And so the same checksum, another than the whole model's."""
    for name in ("one", "two"):
        pack_model(tiny_model, tmp_path / name)
    one, two, whole = (
        open_model(folder).identity.sha256 for folder in (tmp_path / "one", tmp_path / "two", tiny_model)
    )
    assert one == two != whole


def test_damaged_weights_are_named(tiny_model: Path, tmp_path: Path) -> None:
    """In one line."""
    pack_model(tiny_model, tmp_path / "packed")
    weights = next((tmp_path / "packed").rglob(INT8_FILE))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"^[^\n]*model.int8.safetensors: cannot be read \([^\n]*\); install or make"):
        open_model(tmp_path / "packed").encode(SENTENCES, lang="en")
