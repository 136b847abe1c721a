"""Static models read without PyTorch: the vectors of sentence-transformers itself, and nothing heavy imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, StaticEmbedding
from tokenizers import Tokenizer
from torch import nn

from dualmoco.core.errors import ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.pytorch import CHECK_SENTENCES
from dualmoco.models.backends.static import read_static_folder
from dualmoco.models.load import open_model
from dualmoco.models.tokenizer import train_tokenizer

EN, ZH = ([*side] for side in zip(*generate_pairs(200, seed=8), strict=True))
TOKENIZER = train_tokenizer([*EN, *ZH, "Der Zug nach München 3 + 4"], 600, 8, special_tokens=False)
TEXTS = [*CHECK_SENTENCES, "", " ", *EN[:20], *ZH[:20]]
Layers = list[nn.Module]
RUN = "from dualmoco.cli.main import main"


def table(seed: int = 0, *, longest: int | None = None, padded: bool = False) -> StaticEmbedding:
    """A random table of dimension 16."""
    torch.manual_seed(seed)
    tokenizer: Tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    if longest:
        tokenizer.enable_truncation(longest)
    if padded:
        tokenizer.enable_padding()
    return StaticEmbedding(tokenizer, embedding_dim=16)


def dense(*, bias: bool = False, seed: int = 1, **settings: Any) -> Dense:
    """A random projection to 12 dimensions."""
    torch.manual_seed(seed)
    return Dense(16, 12, bias=bias, **{"activation_function": nn.Identity(), **settings})


def routed(**routes: Layers) -> Layers:
    """One route a language."""
    return [Router(routes, allow_empty_key=False)]  # type: ignore[arg-type]


def shared() -> Layers:
    """One table for two languages."""
    layers: Layers = [table(), dense(), Normalize()]
    return routed(en=layers, zh=layers)


def save(layers: Layers, folder: Path, dtype: torch.dtype = torch.float32, prompt: str = "") -> Any:
    """Writes a folder and gives the library's model of it."""
    model = SentenceTransformer(modules=layers, device="cpu").to(dtype)
    if prompt:
        model.prompts, model.default_prompt_name = {"asked": prompt}, "asked"
    model.save(str(folder), create_model_card=False)
    opened: Any = SentenceTransformer(str(folder), device="cpu").float()
    return opened


KNOWN: dict[str, Callable[[], Layers]] = {
    "table alone": lambda: [table()],
    "unit length": lambda: [table(), Normalize()],
    "projection": lambda: [table(), dense(), Normalize()],
    "projection with bias": lambda: [table(), dense(bias=True)],
    "two projections": lambda: [table(), dense(), Dense(12, 5, activation_function=nn.Identity()), Normalize()],
    "dropout": lambda: [table(), Dropout(0.4), dense(bias=True), Normalize()],
    "truncation": lambda: [table(longest=5), Normalize()],
    "padding": lambda: [table(padded=True), Normalize()],
    "routes": lambda: routed(en=[table(2), Dropout(0.1), dense(), Normalize()], zh=[table(3), dense(seed=4)]),
    "shared route": shared,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(KNOWN))
def test_vectors_are_the_library_s(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Raw vectors of every known kind, in every precision of storage, sentences without tokens among them."""
    library = save(KNOWN[name](), tmp_path / "model", dtype)
    assert read_static_folder(tmp_path / "model") is not None
    model = open_model(tmp_path / "model")
    for lang in model.languages or [""]:
        task = {"task": lang} if lang else {}
        found = model.encode(TEXTS, lang=lang, normalize=False, progress=False)
        for layer in library.modules():
            if isinstance(layer, StaticEmbedding):
                layer.tokenizer.no_truncation()  # static back-ends of ours take every token
        expected = library.encode(TEXTS, **task)
        expected[[not text.strip() for text in TEXTS]] = 0  # blank sentences are zeros with every back-end of ours
        np.testing.assert_allclose(found, expected, atol=5e-6)
        assert model.backend(lang).name == "static"


def test_a_shared_table_is_kept_once(tmp_path: Path) -> None:
    """Two languages of one route have one table and one back-end."""
    save(shared(), tmp_path / "model")
    model = open_model(tmp_path / "model")
    assert model.languages == ["en", "zh"] and model.backend("en") is model.backend("zh")


def test_the_model_s_own_prompt_comes_first(tmp_path: Path) -> None:
    """As the library does, unless another prompt is asked for."""
    library = save([table(), Normalize()], tmp_path / "model", prompt="we see ")
    model = open_model(tmp_path / "model")
    assert model.identity.pooling == "own, prompt 'we see '"
    np.testing.assert_allclose(model.encode(EN, lang="en"), library.encode(EN), atol=1e-6)
    other = open_model(tmp_path / "model", prompt="they saw ")
    np.testing.assert_allclose(other.encode(EN, lang="en"), library.encode(EN, prompt="they saw "), atol=1e-6)


UNKNOWN: dict[str, Callable[[], Layers]] = {
    "activation": lambda: [table(), dense(activation_function=nn.Tanh()), Normalize()],
    "residual": lambda: [table(), Dense(16, 16, activation_function=nn.Identity(), use_residual=True)],
    "other layer": lambda: [table(), LayerNorm(16)],
    "unit length in between": lambda: [table(), Normalize(), dense()],
    "default route": lambda: [Router({"en": [table()], "zh": [table(3)]}, default_route="en", allow_empty_key=False)],
}


@pytest.mark.parametrize("name", list(UNKNOWN))
def test_what_is_not_known_is_left_to_the_library(name: str, tmp_path: Path) -> None:
    """Anything but known layers is not read here, and opens all the same."""
    library = save(UNKNOWN[name](), tmp_path / "model")
    assert read_static_folder(tmp_path / "model") is None
    model = open_model(tmp_path / "model")
    for lang in model.languages or [""]:
        task = {"task": lang} if lang else {}
        found = model.encode(EN, lang=lang, normalize=False, progress=False)
        np.testing.assert_allclose(found, library.encode(EN, **task), atol=1e-6)


@pytest.mark.parametrize("damage", ["cut", "missing", "other tensor"])
def test_damaged_weights_are_refused(damage: str, tmp_path: Path) -> None:
    """One line names the folder."""
    from safetensors.torch import load_file, save_file

    save([table()], tmp_path / "model")
    weights = next((tmp_path / "model").rglob("*.safetensors"))
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:500])
    elif damage == "missing":
        weights.unlink()
    else:
        save_file({f"{name}.other": tensor for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ModelError, match=r"^[^\n]*model: cannot be opened as a model: [^\n]+$"):
        open_model(tmp_path / "model")


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model of two languages."""
    folder = tmp_path_factory.mktemp("routes") / "model"
    save(KNOWN["routes"](), folder)
    return folder


CALLS = {
    "load": "import dualmoco; assert dualmoco.load('model').encode(['a', 'b'], lang='en').shape == (2, 12)",
    "encode": f"{RUN}; assert main('encode en.txt --lang en --model model --out vectors'.split()) == 0",
    "similarity": f"{RUN}; assert main('similarity yes 是 --model model'.split()) == 0",
}


@pytest.mark.parametrize("name", list(CALLS))
def test_nothing_heavy_is_imported(name: str, routes: Path, tmp_path: Path) -> None:
    """Neither Python nor the commands import PyTorch or the libraries on top of it."""
    shutil.copytree(routes, tmp_path / "model")
    (tmp_path / "en.txt").write_text("a\nb\n", encoding="utf-8")
    heavy = ["torch", "transformers", "sentence_transformers"]
    code = f"{CALLS[name]}\nimport json, sys\nprint(json.dumps([one for one in {heavy} if one in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
