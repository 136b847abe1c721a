"""Damaged files of models and indexes: whatever is in them, opening works or raises an error of dualmoco.

DUALMOCO_FUZZ is the number of mutations per folder; `DUALMOCO_FUZZ=5000 pytest tests/test_fuzz_models.py` tries many.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dualmoco.core.errors import DualmocoError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.load import open_model
from dualmoco.models.network import save_encoders
from dualmoco.models.pack import pack_model
from dualmoco.search.index import open_index
from dualmoco.search.index_update import build_index
from dualmoco.training.combine import combine

EN, ZH = ([*side] for side in zip(*generate_pairs(40, seed=8), strict=True))
MUTATIONS = int(os.environ.get("DUALMOCO_FUZZ", "60"))
SLOW_SHARE = 6  # of the folders that the library of transformers opens, so many times fewer are tried
VALUES: list[Any] = [0, -1, 1, 3, 2.5, 70_000, 1e308, None, True, "", "x", "../x", [], [1], {}, {"a": 1}, float("nan")]
NESTED = b"[" * 20_000


def save(folder: Path, kind: EncoderKind) -> Path:
    """A random model of two languages, as small as can be."""
    torch.manual_seed(1)
    src, tgt = (
        EncoderConfig(lang, kind, width=8, layers=1, heads=2, vocab_size=60, max_tokens=16, projection=4)
        for lang in ("en", "zh")
    )
    save_encoders(build_encoders(src, tgt, {"en": EN, "zh": ZH}), folder)
    (folder / "dualmoco.json").write_text('{"text": {"nfkc": true}}', encoding="utf-8")
    return folder


def use_model(folder: Path, turn: int) -> None:
    """Opens a model and encodes with it."""
    vectors = open_model(folder).encode(EN[:2] if turn % 2 else ["", "a b"], lang="en", progress=False)
    assert np.isfinite(vectors).all()


def use_index(folder: Path, turn: int) -> None:
    """Opens an index, with or without verifying it, and searches it."""
    for hits in open_index(folder, check=bool(turn % 2)).search([EN[0], ZH[1]], k=3):
        assert all(-1.01 < hit.score < 1.01 for hit in hits)


def change_leaf(content: Any, chosen: random.Random) -> Any:
    """JSON with one value replaced or removed."""
    if not isinstance(content, dict | list) or not content or chosen.random() < 0.1:
        return chosen.choice(VALUES)
    key = chosen.choice(list(content)) if isinstance(content, dict) else chosen.randrange(len(content))
    changed: Any = content.copy()
    if chosen.random() < 0.1:
        del changed[key]
    else:
        changed[key] = change_leaf(content[key], chosen)
    return changed


def mutate(data: bytes, is_json: bool, chosen: random.Random) -> bytes:
    """Damages a file in one of the ways that disks, editors and attackers do."""
    kind = chosen.choice(["flip", "cut", "double", "drop", "empty", "nest", "json", "json", "json"])
    place, size = chosen.randrange(len(data) or 1), chosen.randrange(1, 40)
    if kind == "json" and is_json:
        return json.dumps(change_leaf(json.loads(data), chosen)).encode()
    if kind == "nest":
        return data[:place] + NESTED + data[place:]
    if kind == "empty":
        return b""
    middle = {"cut": b"", "double": data[place : place + size] * 2, "drop": b""}.get(kind, chosen.randbytes(1))
    rest = b"" if kind == "cut" else data[place + (1 if kind in ("flip", "json") else size) :]
    return data[:place] + middle + rest


def fuzz(folder: Path, use: Callable[[Path, int], None], count: int) -> None:
    """Damages one file after the other; an exception other than DualmocoError names how to get it again."""
    use(folder, 1)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for turn in range(count):
        chosen = random.Random(turn)
        path = chosen.choice(files)
        whole = path.read_bytes()
        path.write_bytes(mutate(whole, path.suffix == ".json", chosen))
        try:
            use(folder, turn)
        except DualmocoError as error:
            assert "\n" not in str(error), f"turn {turn}, {path}: {error}"
        except BaseException as error:
            error.add_note(f"turn {turn}, file {path.relative_to(folder)}")
            raise
        finally:
            path.write_bytes(whole)


@pytest.mark.parametrize("name", ["static", "int8", "hybrid", "onnx", "torch"])
def test_damaged_models_open_or_are_refused(name: str, tmp_path: Path) -> None:
    """Every file of a folder of every kind."""
    folder = save(tmp_path / "model", EncoderKind.static if name == "static" else EncoderKind.bert)
    if name in ("int8", "hybrid"):
        pack_model(folder, tmp_path / "int8")
        folder = tmp_path / "int8"
    if name == "hybrid":
        combine([save(tmp_path / "table", EncoderKind.static), folder], tmp_path / "hybrid")
        folder = tmp_path / "hybrid"
    if name == "onnx":
        pytest.importorskip("onnxruntime")
        export_model(str(folder), "en", "onnx", tmp_path / "onnx")
        folder = tmp_path / "onnx"
    fuzz(folder, use_model, MUTATIONS // SLOW_SHARE if name == "torch" else MUTATIONS)


def test_damaged_indexes_open_or_are_refused(tmp_path: Path) -> None:
    """Manifest, texts, offsets, lines and vectors."""
    model = save(tmp_path / "model", EncoderKind.static)
    build_index(tmp_path / "index", model=model, sentences={"en": EN, "zh": ZH})
    shutil.copytree(tmp_path / "index", tmp_path / "copy")
    fuzz(tmp_path / "copy", use_index, 4 * MUTATIONS)
