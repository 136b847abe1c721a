"""The int8 back-end: a packed BERT beside the network that sentence-transformers makes of the same weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dualmoco.core.errors import ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.int8 import Int8Matrix
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind, PoolingMode
from dualmoco.models.int8_format import pack_model
from dualmoco.models.load import open_model
from dualmoco.models.network import save_encoders

EN, ZH = ([*side] for side in zip(*generate_pairs(60, seed=8), strict=True))
TEXTS = {"en": [*EN, "", "word " * 90, "?"], "zh": [*ZH, "", "字" * 90, "。"]}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two BERTs, one pooled by mean, one by [CLS] with a projection; not to be changed."""
    place = tmp_path_factory.mktemp("int8")
    torch.manual_seed(3)
    src = EncoderConfig("en", EncoderKind.bert, width=64, layers=3, heads=4, vocab_size=400, max_tokens=32)
    tgt = EncoderConfig(
        "zh",
        EncoderKind.bert,
        width=32,
        layers=2,
        heads=2,
        vocab_size=400,
        max_tokens=24,
        pooling=PoolingMode.cls,
        projection=64,
    )
    encoders = build_encoders(src, tgt, {"en": EN, "zh": ZH})
    with torch.no_grad():  # as they come, layers of random weights hardly matter
        for encoder in encoders.values():
            for weight in encoder.parameters():
                weight.mul_(3).add_(0.1 * torch.randn_like(weight))
    save_encoders(encoders, place / "whole")
    pack_model(place / "whole", place / "packed")
    return place / "packed"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_vectors_are_those_of_the_unpacked_network(packed: Path, lang: str) -> None:
    """Up to the rounding of activations."""
    model, reference = open_model(packed), open_model(packed, "torch").encode(TEXTS[lang], lang=lang)
    assert (model.backend(lang).name, model.backend(lang).dimension) == ("int8", 64)
    cosines = (model.encode(TEXTS[lang], lang=lang) * reference).sum(axis=1)
    assert cosines[TEXTS[lang].index("")] == 0
    assert np.delete(cosines, TEXTS[lang].index("")).min() > 0.98


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_only_rounding_tells_it_from_the_network(packed: Path, lang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With products in fp32 vectors are the network's to the last digits: attention, pooling, cutting, all of it."""

    def exact(rows: Int8Matrix, inputs: torch.Tensor) -> torch.Tensor:
        outputs = inputs @ (rows.weight.float() * rows.scales[:, None]).T
        return outputs if rows.bias is None else outputs + rows.bias

    monkeypatch.setattr(Int8Matrix, "multiply", exact)
    reference = open_model(packed, "torch").encode(TEXTS[lang], lang=lang)
    np.testing.assert_allclose(open_model(packed).encode(TEXTS[lang], lang=lang), reference, atol=2e-5)


def test_rows_multiply_to_the_precision_of_int8() -> None:
    """Each row of the inputs has a scale of its own, so a large one beside it costs a small one nothing."""
    torch.manual_seed(0)
    weight, bias = torch.randint(-127, 128, (7, 32), dtype=torch.int8), torch.randn(7)
    rows = Int8Matrix({"a.weight": weight, "a.weight.scale": torch.rand(7), "a.bias": bias}, "a")
    inputs = torch.randn(5, 32) * torch.tensor([1.0, 1e-3, 1e4, 0.0, 1.0])[:, None]
    exact = inputs.double() @ (weight.double() * rows.scales.double()[:, None]).T + bias.double()
    bound = inputs.abs().amax(1, keepdim=True) / 127 / 2 * (weight.float().abs() * rows.scales[:, None]).sum(1) + 1e-3
    assert ((rows.multiply(inputs) - exact).abs() <= bound + 1e-5 * exact.abs()).all()
    assert torch.equal(rows.multiply(inputs)[3], bias)


def test_a_vector_does_not_depend_on_its_batch(packed: Path) -> None:
    """Alone or among longer sentences."""
    model = open_model(packed)
    together, alone = model.encode(EN, lang="en"), np.concatenate([model.encode([text], lang="en") for text in EN])
    np.testing.assert_allclose(together, alone, atol=2e-3)


def test_it_needs_neither_transformers_nor_sentence_transformers(packed: Path) -> None:
    """So that a model is there in a moment."""
    code = f"""
import sys
from dualmoco.models.load import open_model
open_model({str(packed)!r}).encode(["one"], lang="en")
assert not {{"transformers", "sentence_transformers"}} & set(sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def edit(name: str, **settings: object) -> Callable[[Path], None]:
    """Changes settings in a file of the first route."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | settings), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    "change",
    [
        edit("en_0_Transformer/config.json", hidden_act="relu"),
        edit("en_1_Pooling/config.json", pooling_mode="max"),
        edit("en_0_Transformer/tokenizer_config.json", padding_side="left"),
    ],
)
def test_what_it_does_not_know_is_left_to_sentence_transformers(
    packed: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Rather than computed wrongly."""
    folder = shutil.copytree(packed, tmp_path / "other")
    change(folder)
    assert open_model(folder).backend("en").name == "torch"
    with pytest.raises(ModelError, match="back-end int8 is for packed BERT models"):
        open_model(folder, "int8")


def test_an_unpacked_model_has_no_int8_back_end(packed: Path) -> None:
    """Said in one line."""
    with pytest.raises(ModelError, match="back-end int8 is for packed BERT models; expected one, or back-end auto"):
        open_model(packed.parent / "whole", "int8")


def test_a_gpu_runs_the_network_itself(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where int8 is not the fastest, `auto` is torch; `int8` is still to be had."""
    monkeypatch.setattr("dualmoco.models.backends.int8.suits_machine", lambda: False)
    assert open_model(packed).backend("en").name == "torch"
    assert open_model(packed, "int8").backend("en").name == "int8"
