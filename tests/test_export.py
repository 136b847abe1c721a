"""Exports opened with nothing of dualmoco: plain sentence-transformers, plain onnxruntime."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, ModelError
from dualmoco.core.vectors import Vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model, is_export
from dualmoco.models.load import open_model
from dualmoco.models.network import save_encoders

EN, ZH = ([*side] for side in zip(*generate_pairs(200, seed=4), strict=True))
TEXTS = [*EN[:20], "a", " ".join(EN[:30])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT for English and a random table for Chinese."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("export") / "model"
    src = EncoderConfig(lang="en", kind=EncoderKind.bert, width=32, layers=2, heads=2, vocab_size=300, max_tokens=40)
    tgt = EncoderConfig(lang="zh", kind=EncoderKind.static, width=32, vocab_size=300, max_piece_length=4)
    save_encoders(build_encoders(src, tgt, {"en": EN, "zh": ZH}), path)
    return path


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The English encoder as ONNX."""
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("exported") / "onnx"
    done = export_model(str(model), "en", "onnx", out)
    assert done.lowest_cosine > 0.9999
    return out


def run_plain(folder: Path, texts: list[str]) -> Vectors:
    """What config.json says under `use`, typed out."""
    import onnxruntime

    batch = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(texts)
    arrays = {
        "input_ids": np.array([one.ids for one in batch], dtype=np.int64),
        "attention_mask": np.array([one.attention_mask for one in batch], dtype=np.int64),
        "token_type_ids": np.array([one.type_ids for one in batch], dtype=np.int64),
    }
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    names = json.loads((folder / "config.json").read_text(encoding="utf-8"))["inputs"]
    vectors: Vectors = session.run(["sentence_embedding"], {name: arrays[name] for name in names})[0]
    return vectors


@pytest.mark.parametrize(("lang", "texts"), [("en", TEXTS), ("zh", ZH[:20])])
def test_one_language_opens_in_plain_sentence_transformers(
    model: Path, tmp_path: Path, lang: str, texts: list[str]
) -> None:
    """Without a task, the vectors are those of the two-language model with one."""
    done = export_model(str(model), lang, "sentence-transformers", tmp_path / "out")
    assert done.sha256 == open_model(str(model)).identity.sha256 and done.lowest_cosine > 0.99999
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    expected = SentenceTransformer(str(model), device="cpu").encode(texts, task=lang)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_prompt_goes_with_the_export(model: Path, tmp_path: Path) -> None:
    """A model that wants words before every sentence is exported with them."""
    export_model(str(model), "en", "sentence-transformers", tmp_path / "plain")
    settings = tmp_path / "plain" / "config_sentence_transformers.json"
    content = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(
        json.dumps(content | {"prompts": {"q": "we see "}, "default_prompt_name": "q"}), encoding="utf-8"
    )
    export_model(str(tmp_path / "plain"), "en", "sentence-transformers", tmp_path / "again")
    asked, plain = (SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("again", "plain"))
    np.testing.assert_allclose(asked.encode(TEXTS), plain.encode(TEXTS), atol=1e-6)
    bare = SentenceTransformer(str(model), device="cpu").encode([f"we see {text}" for text in TEXTS], task="en")
    np.testing.assert_allclose(asked.encode(TEXTS), bare, atol=1e-6)


def test_onnx_runs_in_plain_onnxruntime(model: Path, exported: Path) -> None:
    """Tokenizer and graph alone give the model's unit vectors, padding and cutting included."""
    expected = SentenceTransformer(str(model), device="cpu").encode(TEXTS, task="en")
    np.testing.assert_allclose(run_plain(exported, TEXTS), expected, atol=1e-5)
    config = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    assert (config["max_tokens"], config["pooling"], config["width"], config["lang"]) == (40, "mean", 32, "en")
    assert config["sha256"] == open_model(str(model)).identity.sha256


def test_int8_exports_are_the_same_each_time(model: Path, tmp_path: Path) -> None:
    """Two exports are equal files, smaller than single precision, near in vectors."""
    pytest.importorskip("onnxruntime")
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        export_model(str(model), "en", "onnx-int8", folder)
    first, second = ((folder / "model.onnx").read_bytes() for folder in folders)
    assert first == second
    expected = SentenceTransformer(str(model), device="cpu").encode(TEXTS, task="en")
    assert np.einsum("nd,nd->n", run_plain(folders[0], TEXTS), expected).min() > 0.99
    assert open_model(str(folders[0])).backend("en").name == "onnx-int8"


def test_int8_exports_do_not_depend_on_the_batch(model: Path, tmp_path: Path) -> None:
    """A sentence has the same vector alone and padded among longer ones, but for sums in fp32."""
    pytest.importorskip("onnxruntime")
    export_model(str(model), "en", "onnx-int8", tmp_path / "out")
    longer = [" ".join(EN[row : row + 30]) for row in range(6)]
    alone = np.concatenate([run_plain(tmp_path / "out", [text]) for text in EN[:8]])
    together = np.concatenate([run_plain(tmp_path / "out", [text, *longer])[:1] for text in EN[:8]])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_an_exported_folder_is_a_back_end(model: Path, exported: Path) -> None:
    """It opens by itself, under its own name only, and only for its language."""
    opened, source = open_model(str(exported)), open_model(str(model))
    backend = opened.backend("en")
    assert (backend.name, backend.dimension, opened.identity.sha256) == ("onnx", 32, source.identity.sha256)
    np.testing.assert_allclose(opened.encode(TEXTS, lang="en"), source.encode(TEXTS, lang="en"), atol=1e-5)
    with pytest.raises(ConfigError, match="back-end 'torch'; expected onnx, its only back-end, or auto"):
        open_model(str(exported), "torch")
    with pytest.raises(ModelError, match="has no language 'zh'; expected one of en"):
        open_model(str(exported)).backend("zh")


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_changed_export_is_refused(exported: Path, tmp_path: Path, name: str) -> None:
    """A graph that was never compared with the model is not used."""
    folder = shutil.copytree(exported, tmp_path / "copy")
    with (folder / name).open("ab") as stream:
        stream.write(b" ")
    with pytest.raises(ModelError, match=f"{name} changed since the export; export the model again"):
        open_model(str(folder))


def test_only_exports_are_replaced(model: Path, tmp_path: Path) -> None:
    """Another folder is kept unless told otherwise, the model itself always."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(
        ConfigError, match="an existing folder, but not an earlier export; expected a new folder, or --overwrite"
    ):
        export_model(str(model), "zh", "sentence-transformers", out)
    assert (out / "thesis.txt").read_text(encoding="utf-8") == "mine"
    export_model(str(model), "zh", "sentence-transformers", out, overwrite=True)
    assert is_export(out) and not (out / "thesis.txt").exists()
    export_model(str(model), "en", "sentence-transformers", out)
    assert json.loads((out / "dualmoco.json").read_text(encoding="utf-8"))["lang"] == "en"
    with pytest.raises(ConfigError, match="contains the model itself"):
        export_model(str(model), "en", "sentence-transformers", model.parent, overwrite=True)
    with pytest.raises(ConfigError, match="a file; expected a folder"):
        export_model(str(model), "en", "sentence-transformers", out / "dualmoco.json", overwrite=True)


def test_what_cannot_be_exported_is_refused(model: Path, tmp_path: Path) -> None:
    """One line says why, and nothing is written."""
    with pytest.raises(ConfigError, match="--to keras; expected one of sentence-transformers, onnx, onnx-int8"):
        export_model(str(model), "en", "keras", tmp_path / "out")
    with pytest.raises(ModelError, match=r"a static model.*--to sentence-transformers"):
        export_model(str(model), "zh", "onnx", tmp_path / "out")
    with pytest.raises(ModelError, match="has no language 'de'"):
        export_model(str(model), "de", "sentence-transformers", tmp_path / "out")
    (tmp_path / "en.vec").write_text("2 3\na 1 2 3\nb 4 5 6\n", encoding="utf-8")
    with pytest.raises(ModelError, match="not a network; expected the model folder, hub name or package:NAME"):
        export_model(f"words:{tmp_path / 'en.vec'}", "en", "sentence-transformers", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_prints_what_it_wrote(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON, and as one line; an error is one line and code 2."""
    words = ["export", str(model), "--lang", "zh", "--to", "sentence-transformers", "--out", str(tmp_path / "out")]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["lang"], printed["to"]) == ("zh", "sentence-transformers")
    assert printed["bytes"] == sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert main(words) == 0
    assert "lowest cosine with the model 1.0000\n" in capsys.readouterr().out
    assert main([*words[:5], "onnx", *words[6:]]) == 2
    assert capsys.readouterr().err.startswith("dualmoco: ")
