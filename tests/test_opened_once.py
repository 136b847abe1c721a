"""A command opens its model, takes its checksum and makes its ONNX graphs once, however many files it encodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dualmoco.cli.main import main
from dualmoco.data.grammar import generate_pairs
from dualmoco.models import folder, network
from dualmoco.models.backends import onnx_export as onnx_graph
from dualmoco.models.backends import static as static_folder
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import save_encoders
from testsets import write_lines

EN, ZH = ([*side] for side in zip(*generate_pairs(60, seed=9), strict=True))
TEXTS = {"en": EN, "zh": ZH}
BERT = EncoderConfig("en", EncoderKind.bert, width=16, layers=1, heads=2, vocab_size=300, max_tokens=32)
TABLE = EncoderConfig("en", EncoderKind.static, width=16, vocab_size=300)
PAIRS = {
    "two networks": (BERT, replace(BERT, lang="zh")),
    "one network": (BERT, EncoderConfig("zh", EncoderKind.shared)),
    "tables": (TABLE, replace(TABLE, lang="zh")),
}
COMMANDS = {
    "mine": "mine en.txt zh.txt --out pairs.tsv",
    "search": "search build my.index en=en.txt en=more.txt zh=zh.txt",
    "similarity of sentences": "similarity yes 是",
    "similarity of files": "similarity --files en.txt zh.txt --out scores.tsv",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder for each of PAIRS."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for name, (src, tgt) in PAIRS.items():
        save_encoders(build_encoders(src, tgt, TEXTS), place / name)
    return place


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a model was hashed, opened by sentence-transformers, read as tables and made a graph."""
    found: Counter[str] = Counter()

    def watch(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted(*given: Any, **named: Any) -> Any:
            found[name] += 1
            return original(*given, **named)

        monkeypatch.setattr(module, name, counted)

    watch(folder, "files_sha256")
    watch(network, "open_modules")
    watch(static_folder, "_read_table")
    watch(onnx_graph, "make_graph")
    return found


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.parametrize(
    ("model", "backend", "expected"),
    [
        ("two networks", "torch", {"files_sha256": 1, "open_modules": 1}),
        ("two networks", "onnx", {"files_sha256": 1, "open_modules": 1, "make_graph": 2}),
        ("one network", "onnx", {"files_sha256": 1, "open_modules": 1, "make_graph": 1}),
        ("tables", "auto", {"files_sha256": 1, "_read_table": 2}),
    ],
)
def test_a_model_is_opened_once(
    models: Path,
    counts: Counter[str],
    model: str,
    backend: str,
    expected: dict[str, int],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two languages and several files of one language make no difference; two networks need two graphs."""
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
    for name, texts in {**TEXTS, "more": [f"{text} Really." for text in EN]}.items():
        write_lines(tmp_path / f"{name}.txt", texts)
    monkeypatch.chdir(tmp_path)
    assert main([*COMMANDS[command].split(), "--model", str(models / model), "--backend", backend, "--quiet"]) == 0
    assert counts == expected
