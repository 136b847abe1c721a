"""Models stored in half precision: every command gives what the same weights give when they are stored in fp32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends.pytorch import encode_by_itself, run_in_torch
from dualmoco.models.build import build_encoders, load_teacher
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import TARGETS, export_model
from dualmoco.models.load import open_model
from dualmoco.models.network import Encoder, save_encoders
from testsets import write_lines

EN, ZH = ([*side] for side in zip(*generate_pairs(120, seed=6), strict=True))
TEXTS = {"en": EN[:40], "zh": ZH[:40]}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
STORED = {"fp16": "F16", "bf16": "BF16", "fp32": "F32"}
Save = Callable[[Path, torch.dtype], None]


@pytest.fixture(scope="module", params=list(DTYPES))
def precision(request: pytest.FixtureRequest) -> str:
    """What the weights are stored in."""
    return str(request.param)


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder]:
    """A BERT for English, a table for Chinese, both with a projection."""
    torch.manual_seed(7)
    src = EncoderConfig(
        "en", EncoderKind.bert, width=32, layers=1, heads=2, vocab_size=300, projection=24, max_tokens=40
    )
    tgt = EncoderConfig("zh", EncoderKind.static, width=32, vocab_size=300, projection=24, max_piece_length=4)
    return build_encoders(src, tgt, {"en": EN, "zh": ZH})


@pytest.fixture(scope="module")
def saves(encoders: dict[str, Encoder], plain: Path) -> dict[str, Save]:
    """Ways to save a model, by the kind of its folder."""

    def network() -> list[torch.nn.Module]:
        torch.manual_seed(8)
        first: Any = Transformer(str(plain))
        return [first, Pooling(16, pooling_mode="mean"), Dense(16, 12, activation_function=torch.nn.Tanh())]

    def table() -> list[torch.nn.Module]:
        torch.manual_seed(9)
        return [encoders["zh"].layers[0], Dense(32, 12, activation_function=torch.nn.Identity())]

    def save_routes(folder: Path, dtype: torch.dtype) -> None:
        for encoder in encoders.values():
            encoder.to(dtype)
        save_encoders(encoders, folder)

    def save_plain(folder: Path, dtype: torch.dtype) -> None:
        first: Any = Transformer(str(plain))
        first.model.to(dtype).save_pretrained(folder)
        first.tokenizer.save_pretrained(folder)

    def save_modules(make: Callable[[], list[torch.nn.Module]]) -> Save:
        def save(folder: Path, dtype: torch.dtype) -> None:
            model = SentenceTransformer(modules=make(), device="cpu").to(dtype)
            model.save(str(folder), create_model_card=False)

        return save

    return {"routes": save_routes, "plain": save_plain, "network": save_modules(network), "table": save_modules(table)}


@pytest.fixture(scope="module")
def folders(saves: dict[str, Save], precision: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """For each kind a folder in half precision, and one with the same numbers in fp32."""
    place = tmp_path_factory.mktemp(precision)
    made: dict[str, list[Path]] = {}
    for kind, save in saves.items():
        half, full = place / kind / "half", place / kind / "full"
        save(half, DTYPES[precision])
        save(full, DTYPES[precision])
        for weights in full.rglob("*.safetensors"):
            widen(weights)
        for config in full.rglob("config.json"):
            content = json.loads(config.read_text(encoding="utf-8"))
            config.write_text(json.dumps(content | {"dtype": "float32"} if "dtype" in content else content))
        assert stored_as(half) == {STORED[precision]} and stored_as(full) == {"F32"}
        made[kind] = [half, full]
    return made


def widen(weights: Path) -> None:
    """Stores the same numbers in fp32."""
    from safetensors.torch import load_file, save_file

    save_file({name: tensor.float() for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})


def stored_as(folder: Path) -> set[str]:
    """What the weights of a folder are stored in."""
    kinds = set()
    for path in folder.rglob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            kinds |= {file.get_slice(name).get_dtype() for name in file.keys()}
    return kinds


def encoded_by_library(folder: Path, lang: str) -> Vectors:
    """Unit vectors as sentence-transformers itself makes them of a folder."""
    task = {"task": lang} if (folder / "router_config.json").is_file() else {}
    library: Any = SentenceTransformer(str(folder), device="cpu")
    return unit_vectors(library.encode(TEXTS[lang], **task))


@pytest.mark.parametrize(
    ("kind", "lang", "backend", "tolerance"),
    [
        ("routes", "en", "torch", 1e-6),
        ("routes", "zh", "torch", 1e-6),
        ("routes", "zh", "static", 1e-6),
        ("routes", "en", "onnx", 1e-5),
        ("routes", "en", "onnx-int8", 0.05),
        ("plain", "en", "auto", 1e-6),
        ("plain", "en", "onnx", 1e-5),
        ("plain", "en", "onnx-int8", 0.05),
        ("network", "en", "auto", 1e-6),
        ("network", "en", "onnx", 1e-5),
        ("table", "zh", "static", 1e-6),
        ("table", "zh", "torch", 1e-6),
    ],
)
def test_every_back_end_computes_in_fp32(
    folders: dict[str, list[Path]], kind: str, lang: str, backend: str, tolerance: float
) -> None:
    """Vectors are those that sentence-transformers gives for the same weights in fp32."""
    if backend.startswith("onnx"):
        pytest.importorskip("onnxruntime")
    half, full = folders[kind]
    found = open_model(half, backend).encode(TEXTS[lang], lang=lang, progress=False)
    np.testing.assert_allclose(found, encoded_by_library(full, lang), atol=tolerance)


@pytest.mark.parametrize("target", TARGETS)
def test_exports_are_those_of_fp32(folders: dict[str, list[Path]], target: str, tmp_path: Path) -> None:
    """Every target takes a model in half precision, and its vectors are those of fp32."""
    pytest.importorskip("onnxruntime")
    half, full = folders["routes"]
    done = export_model(str(half), "en", target, tmp_path / "out")
    found = dualmoco.load(tmp_path / "out").encode(EN[:40], lang="en", progress=False)
    assert done.lowest_cosine > 0.99
    np.testing.assert_allclose(found, encoded_by_library(full, "en"), atol=0.05 if target == "onnx-int8" else 1e-5)


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints."""
    capsys.readouterr()
    assert main([*words, "--quiet"]) == 0
    return capsys.readouterr().out


def test_every_verb_gives_what_fp32_gives(
    folders: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Encode, similarity, mine, search and evaluate: the same numbers, to the last digit that is written."""
    for lang, texts in TEXTS.items():
        write_lines(tmp_path / f"{lang}.txt", texts)
    write_lines(tmp_path / "eval" / "tatoeba" / "tatoeba.cmn-eng.eng", EN[:40])
    write_lines(tmp_path / "eval" / "tatoeba" / "tatoeba.cmn-eng.cmn", ZH[:40])
    en, zh = str(tmp_path / "en.txt"), str(tmp_path / "zh.txt")
    results = []
    for folder in folders["routes"]:
        model, out = ["--model", str(folder)], tmp_path / folder.name
        run(["encode", en, "--lang", "en", "--out", str(out / "vectors"), *model], capsys)
        vectors = np.concatenate([np.load(path) for path in sorted((out / "vectors").glob("[0-9]*.npy"))])
        pair = run(["similarity", EN[0], ZH[0], "--json", *model], capsys)
        run(["mine", en, zh, "--out", str(out / "pairs.tsv"), *model], capsys)
        run(["search", "build", str(out / "index"), f"en={en}", f"zh={zh}", *model], capsys)
        hits = run(["search", "query", str(out / "index"), EN[3], "--lang", "en", "--json"], capsys)
        asked = ["evaluate", str(folder), "--tasks", "tatoeba", "--data", str(tmp_path), "--json"]
        scores = [score["value"] for score in json.loads(run(asked, capsys))]
        pairs = (out / "pairs.tsv").read_text(encoding="utf-8")
        results.append((vectors, (pair, pairs, hits, scores)))
    (vectors, half), (expected, full) = results
    np.testing.assert_array_equal(vectors, expected)
    assert half == full and vectors.dtype == np.float32


@pytest.mark.parametrize("kind", ["plain", "network", "table"])
def test_training_is_in_fp32(folders: dict[str, list[Path]], kind: str, recipe: Path, tmp_path: Path) -> None:
    """Encoders that start from half precision are trained and saved in fp32."""
    start = [
        f"{side}={{lang: {lang}, kind: pretrained, name: {folders[kind][0]}}}"
        for side, lang in (("src", "en"), ("tgt", "zh"))
    ]
    settings = ["schedule.steps=2", "schedule.evaluate_every=2"]
    assert main(["train", str(recipe), "--quiet", *start, *settings]) == 0
    assert stored_as(tmp_path / "run" / "model") == {"F32"}


def test_teachers_are_in_fp32(folders: dict[str, list[Path]]) -> None:
    """A teacher gives the vectors that sentence-transformers gives for the same weights in fp32."""
    half, full = folders["network"]
    found = encode_by_itself(load_teacher(str(half), EncoderConfig("en")), TEXTS["en"])
    np.testing.assert_allclose(found, encoded_by_library(full, "en"), atol=1e-6)


def test_half_precision_is_a_setting_of_gpus(folders: dict[str, list[Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, with other back-ends and for other models one line refuses it; unknown names too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    half = folders["routes"][0]
    with pytest.raises(ConfigError, match=r"^compute fp16 with back-end auto on a cpu; expected fp32, or torch on a"):
        dualmoco.load(half, compute="fp16").encode("a", lang="en")
    with pytest.raises(ConfigError, match=r"^compute 'half'; expected one of fp32, fp16, bf16$"):
        dualmoco.load(half, compute="half")
    with pytest.raises(ConfigError, match=r"^words:x: has no choice of pooling, prompt or compute;"):
        dualmoco.load("words:x", compute="bf16")


def test_a_network_in_half_precision_gives_vectors_in_fp32(plain: Path) -> None:
    """The back-end takes the network as it is, and what it gives is near what fp32 gives, but not equal."""
    first: Any = Transformer(str(plain))
    encoder = Encoder([first, Pooling(16, pooling_mode="mean")])
    expected = run_in_torch(encoder).encode(EN[:9])
    found = run_in_torch(encoder.to(torch.bfloat16)).encode(EN[:9])
    assert found.dtype == np.float32 and 1e-5 < np.abs(found - expected).max() < 0.1
