"""Hybrids: several models side by side, by hand and through the command line; and what is refused."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from opencc import OpenCC
from sentence_transformers import SentenceTransformer

from dualmoco.cli.main import main
from dualmoco.core.config_loader import VectorPrecision
from dualmoco.core.errors import ConfigError, DualmocoError, ModelError
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.grammar import generate_pairs
from dualmoco.embeddings.encode import Encoding
from dualmoco.mining.io import read_mined
from dualmoco.models import embedded
from dualmoco.models.build import build_encoder, build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL
from dualmoco.models.export import export_model, is_export
from dualmoco.models.hybrid import join_vectors
from dualmoco.models.load import open_model
from dualmoco.models.network import open_network, save_encoders
from dualmoco.models.pack import pack_model
from dualmoco.training.combine import combine
from testsets import write_all, write_lines

EN, ZH = ([*side] for side in zip(*generate_pairs(200, seed=6), strict=True))
TEXTS = {"en": EN, "zh": ZH}
WEIGHTS = [1.0, 0.7]


def save(folder: Path, kind: EncoderKind, width: int, langs: tuple[str, str] = ("en", "zh")) -> Path:
    """A random model of two languages."""
    torch.manual_seed(width)
    src, tgt = (
        EncoderConfig(lang, kind, width=width, layers=1, heads=2, vocab_size=400, max_piece_length=4, max_tokens=32)
        for lang in langs
    )
    save_encoders(build_encoders(src, tgt, dict(zip(langs, TEXTS.values(), strict=True))), folder)
    return folder


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A table and a BERT."""
    place = tmp_path_factory.mktemp("parts")
    table = save(place / "table", EncoderKind.static, 16)
    (table / "dualmoco.json").write_text('{"text": {"chinese": "simplified"}}', encoding="utf-8")
    return [table, save(place / "bert", EncoderKind.bert, 24)]


@pytest.fixture(scope="module")
def hybrid(parts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, the BERT with weight 0.7; not to be changed."""
    out = tmp_path_factory.mktemp("hybrid") / "model"
    combine(parts, out, weights=WEIGHTS)
    return out


def by_hand(parts: list[Path], texts: list[str], lang: str) -> list[Vectors]:
    """Unit vectors of each part as plain sentence-transformers gives them, sentence by sentence."""
    found = []
    for part in parts:
        model = SentenceTransformer(str(part), device="cpu")
        found.append(np.stack([model.encode(text, task=lang) for text in texts]))
    return found


@pytest.mark.parametrize("backend", ["auto", "torch", "onnx"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_vectors_are_the_parts_side_by_side(parts: list[Path], hybrid: Path, lang: str, backend: str) -> None:
    """Unit vectors whose cosines are the weighted means of the parts' cosines."""
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
    model, texts = open_model(hybrid, backend), TEXTS[lang][:40]
    assert model.languages == ["en", "zh"]
    running = model.backend(lang)
    assert (running.name, running.dimension) == ("torch" if backend == "auto" else backend, 40)
    found, (table, bert) = model.encode(texts, lang=lang), by_hand(parts, texts, lang)
    expected = np.concatenate([np.sqrt(1 / 1.7) * table, np.sqrt(0.7 / 1.7) * bert], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(model.similarity(found, found), (table @ table.T + 0.7 * bert @ bert.T) / 1.7, atol=1e-5)


def test_a_part_without_a_direction_leaves_the_others_to_decide() -> None:
    """Where one gives zeros the other has the whole length; where both do, there is none."""
    first: Vectors = np.array([[1, 0], [0, 0], [0, 0]], dtype=np.float32)
    second: Vectors = np.array([[0, 1], [0, 1], [0, 0]], dtype=np.float32)
    expected = np.array([[0.6, 0, 0, 0.8], [0, 0, 0, 1], [0, 0, 0, 0]])
    np.testing.assert_allclose(join_vectors([first, second], [9, 16]), expected, atol=1e-7)


def test_each_part_converts_text_by_itself(hybrid: Path) -> None:
    """The table simplifies, the BERT, which has no such record, does not."""
    model = open_model(hybrid)
    convert = OpenCC("s2t").convert
    row = next(row for row, text in enumerate(ZH) if convert(text) != text)
    plain, other = model.encode([ZH[row], convert(ZH[row])], lang="zh")
    np.testing.assert_array_equal(plain[:16], other[:16])
    assert np.abs(plain[16:] - other[16:]).max() > 1e-3


def test_parts_open_in_plain_sentence_transformers(parts: list[Path], hybrid: Path) -> None:
    """Each sub-folder is the model that was combined."""
    copies = [hybrid / "part-1", hybrid / "part-2"]
    for copy, part in zip(by_hand(copies, EN[:5], "en"), by_hand(parts, EN[:5], "en"), strict=True):
        np.testing.assert_array_equal(copy, part)


def test_parts_for_any_language_join_in(parts: list[Path], sentence_folder: Path, tmp_path: Path) -> None:
    """A model of one encoder serves the languages of the others; two such make a hybrid for any language."""
    combine([parts[0], sentence_folder], tmp_path / "one")
    model = open_model(tmp_path / "one")
    assert model.languages == ["en", "zh"]
    (table,) = by_hand(parts[:1], EN[:9], "en")
    raw = np.asarray(SentenceTransformer(str(sentence_folder), device="cpu").encode(EN[:9]))  # not of unit length
    expected = np.concatenate([table, raw / np.linalg.norm(raw, axis=1, keepdims=True)], axis=1) / np.sqrt(2)
    np.testing.assert_allclose(model.encode(EN[:9], lang="en"), expected, atol=1e-5)
    export_model(str(parts[0]), "zh", "sentence-transformers", tmp_path / "zh")
    combine([tmp_path / "zh", sentence_folder], tmp_path / "any")
    anything = open_model(tmp_path / "any")
    assert anything.languages is None
    converted = anything.encode(["書", "书"], lang="zh")
    np.testing.assert_array_equal(converted[0, :16], converted[1, :16])


def test_the_checksum_counts_parts_order_and_weights(parts: list[Path], hybrid: Path, tmp_path: Path) -> None:
    """The same parts and weights have one checksum wherever they lie, others another."""
    seen = {open_model(hybrid).identity.sha256}
    combine(parts, tmp_path / "same", weights=WEIGHTS)
    assert {open_model(tmp_path / "same").identity.sha256} == seen
    for order, weights in ((parts, [1.0, 0.8]), (parts[::-1], WEIGHTS), ([parts[0], parts[0]], WEIGHTS)):
        seen.add(combine(order, tmp_path / "other", weights=weights).sha256)
    assert len(seen) == 4


def test_it_opens_again_elsewhere(hybrid: Path) -> None:
    """What travels to the workers of a cluster is the name and how to open it; the checksum must be the same there."""
    model = open_model(hybrid)
    work = Encoding(model, "en", VectorPrecision.fp32)
    assert work.wants_gpu
    opener = pickle.loads(pickle.dumps(work.opener()))
    np.testing.assert_allclose(opener()(EN[:5], lambda done: None), model.encode(EN[:5], lang="en"), atol=1e-6)


def test_tables_alone_need_no_torch(parts: list[Path], tmp_path: Path) -> None:
    """A hybrid of static models opens and encodes without importing PyTorch."""
    combine([parts[0], save(tmp_path / "table", EncoderKind.static, 8)], tmp_path / "hybrid")
    code = f"""
import sys
from dualmoco.models.load import open_model
model = open_model({str(tmp_path / "hybrid")!r})
assert model.encode(["It is raining."], lang="en").shape == (1, 24) and model.backend("en").name == "static"
assert model.encode(["下雨。"], lang="zh").shape == (1, 24)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_verbs_take_it(hybrid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """mine, search, similarity and evaluate as with any model."""
    model, expected = ["--model", str(hybrid)], open_model(hybrid)
    write_lines(tmp_path / "en.txt", EN[:60])
    write_lines(tmp_path / "zh.txt", ZH[:60])
    files = [str(tmp_path / "en.txt"), str(tmp_path / "zh.txt")]
    assert main(["mine", *files, *model, "--out", str(tmp_path / "pairs.tsv"), "--margin", "absolute", "--quiet"]) == 0
    cosines = expected.similarity(expected.encode(EN[:60], lang="en"), expected.encode(ZH[:60], lang="zh"))
    mined = list(read_mined(tmp_path / "pairs.tsv"))
    found = [pair.score for pair in mined]
    np.testing.assert_allclose(found, [cosines[pair.src_line - 1, pair.tgt_line - 1] for pair in mined], atol=1e-5)
    assert found[0] == pytest.approx(cosines.max(), abs=1e-5)
    assert main(["search", "build", str(tmp_path / "index"), f"en={files[0]}", *model, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["search", "query", str(tmp_path / "index"), EN[7], "--lang", "en", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["hits"][0]["text"] == EN[7]
    assert main(["similarity", EN[0], ZH[0], *model]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(cosines[0, 0], abs=1e-4)
    write_all(tmp_path / "data")
    report = tmp_path / "scores.json"
    words = ["evaluate", str(hybrid), "--tasks", "tatoeba", "--data", str(tmp_path / "data"), "--out", str(report)]
    assert main(words) == 0
    assert expected.identity.sha256[:12] in report.read_text(encoding="utf-8")


@pytest.mark.parametrize("to", ["onnx", "onnx-int8"])
def test_exports_of_hybrids_open_again(parts: list[Path], hybrid: Path, tmp_path: Path, to: str) -> None:
    """Each part in its form, the table for sentence-transformers always; the vectors are the hybrid's."""
    pytest.importorskip("onnxruntime")
    done = export_model(str(hybrid), "zh", to, tmp_path / "out")
    model, source = open_model(tmp_path / "out"), open_model(hybrid)
    assert done.sha256 == source.identity.sha256 and done.lowest_cosine > 0.99 and is_export(tmp_path / "out")
    assert model.backend("zh").name == to
    texts = list(map(OpenCC("s2t").convert, ZH[:30]))
    found, expected = model.encode(texts, lang="zh"), source.encode(texts, lang="zh")
    tolerance = 0.1 if to == "onnx-int8" else 1e-5
    np.testing.assert_allclose(found, expected, atol=tolerance)
    np.testing.assert_allclose(found[:, :16], expected[:, :16], atol=1e-6)
    plain = SentenceTransformer(str(tmp_path / "out" / "part-1"), device="cpu").encode(ZH[:5])
    np.testing.assert_allclose(plain, by_hand(parts[:1], ZH[:5], "zh")[0], atol=1e-6)
    export_model(str(hybrid), "en", "onnx", tmp_path / "out")  # an earlier export is replaced
    with pytest.raises(ModelError, match="part-1: has no language 'de'; expected one of en, zh"):
        export_model(str(hybrid), "de", to, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_hybrid_opens_in_sentence_transformers_by_parts(hybrid: Path, tmp_path: Path) -> None:
    """As a whole it is refused before any work; its parts, exported as the message says, make the same vectors."""
    with pytest.raises(ModelError) as caught:
        export_model(str(hybrid), "zh", "sentence-transformers", tmp_path / "out")
    message, folders = str(caught.value), [hybrid / "part-1", hybrid / "part-2"]
    assert "a hybrid of 2 models, which sentence-transformers cannot run as one; export its parts" in message
    assert all(f"dualmoco export {folder}" in message for folder in folders) and "\n" not in message
    assert not (tmp_path / "out").exists()
    made = []
    for number, folder in enumerate(folders):
        export_model(str(folder), "zh", "sentence-transformers", tmp_path / str(number))
        made.append(SentenceTransformer(str(tmp_path / str(number)), device="cpu").encode(ZH[:9]))
    shares = np.sqrt(np.array(WEIGHTS) / sum(WEIGHTS))
    joined = np.concatenate([share * unit_vectors(part) for share, part in zip(shares, made, strict=True)], axis=1)
    np.testing.assert_allclose(joined, open_model(hybrid).encode(ZH[:9], lang="zh"), atol=1e-5)


def test_settings_that_hybrids_do_not_take(hybrid: Path, tmp_path: Path, parts: list[Path]) -> None:
    """One line each: pooling, the back-end static for a BERT, ONNX for tables alone, a language that is not there."""
    with pytest.raises(ConfigError, match="has no choice of pooling, prompt or compute"):
        open_model(hybrid, pooling="cls")
    with pytest.raises(ModelError, match=r"back-end static: .*table of token vectors"):
        open_model(hybrid, "static").backend("en")
    with pytest.raises(ModelError, match="has no language 'de'; expected one of en, zh"):
        open_model(hybrid).backend("de")
    combine([parts[0], parts[0]], tmp_path / "tables")
    assert open_model(tmp_path / "tables", "onnx").backend("en").name == "static"
    with pytest.raises(ModelError, match="a static model, which would not be faster with ONNX"):
        export_model(str(tmp_path / "tables"), "en", "onnx", tmp_path / "out")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder / "part-2")


def _nest(folder: Path) -> None:
    shutil.copytree(folder, folder / "copy")
    shutil.rmtree(folder / "part-2")
    (folder / "copy").rename(folder / "part-2")


def _damage(folder: Path) -> None:
    weights = next((folder / "part-2").rglob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-9])


def _edit(old: str, new: str, folder: Path) -> None:
    text = (folder / "hybrid.json").read_text(encoding="utf-8")
    assert old in text
    (folder / "hybrid.json").write_text(text.replace(old, new), encoding="utf-8")


def _edit_record(folder: Path) -> None:
    (folder / "part-1" / "dualmoco.json").write_text('{"text": {"chinese": "traditional"}}', encoding="utf-8")


def _pickle(folder: Path) -> None:
    weights = next((folder / "part-2").rglob("*.safetensors"))
    weights.rename(weights.with_name("pytorch_model.bin"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_remove, "its part part-2 is missing; combine the models again"),
        (_nest, "part-2: a hybrid inside a hybrid; expected single models as parts"),
        (_damage, "part-2: checksum .*the part changed since the hybrid was made: combine the models again"),
        (_pickle, "pytorch_model.bin: pickled weights are never loaded"),
        (_edit_record, "part-1: checksum .*the part changed since"),
        (partial(_edit, '"weight": 0.7', '"weight": 0'), r"hybrid.json: cannot be read as a hybrid \(weight 0;"),
        (partial(_edit, '"part-2"', '"../part-2"'), "'../part-2'; expected a folder inside, one of en-zh"),
        (partial(_edit, '"part-2"', '".."'), "'..'; expected a folder inside"),
        (partial(_edit, '"part-2"', '""'), "''; expected a folder inside"),
        (partial(_edit, '"part-2"', '"/part-2"'), "'/part-2'; expected a folder inside"),
        (partial(_edit, '"part-2"', '"other-model"'), "its part other-model is missing"),
        (partial(_edit, "dualmoco-hybrid-1", "dualmoco-hybrid-9"), "not of format dualmoco-hybrid-1"),
        (partial(_edit, "parts", "pieces"), "cannot be read as a hybrid .*'parts'"),
    ],
)
def test_a_hybrid_that_is_not_whole_is_refused(
    hybrid: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    """Missing, damaged, nested or unsafe parts and an edited file, before anything is encoded."""
    folder = Path(shutil.copytree(hybrid, tmp_path / "copy"))
    change(folder)
    with pytest.raises(ModelError, match=message):
        open_model(folder)


def test_a_part_can_be_an_embedded_model(
    parts: list[Path], hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named and not copied: same checksum and vectors, also after packing and export, and refused if changed."""
    home = tmp_path / "installed"
    monkeypatch.setattr(embedded, "HOME", home)
    shutil.copytree(parts[0], home / FAST_MODEL)
    shutil.copytree(hybrid, home / DEFAULT_MODEL, ignore=shutil.ignore_patterns("part-1"))
    _edit('"part-1"', f'"{FAST_MODEL}"', home / DEFAULT_MODEL)
    expected, found = open_model(hybrid), open_model(home / DEFAULT_MODEL)
    assert found.identity.sha256 == expected.identity.sha256
    for lang, texts in TEXTS.items():
        assert np.array_equal(found.encode(texts, lang=lang), expected.encode(texts, lang=lang))

    for source, name in ((hybrid, "whole"), (home / DEFAULT_MODEL, "shared")):
        pack_model(source, tmp_path / name)
        export_model(str(source), "en", "onnx", tmp_path / f"{name}-en")
    assert open_model(tmp_path / "shared").identity.sha256 == open_model(tmp_path / "whole").identity.sha256
    exports = [tmp_path / f"{name}-en" for name in ("whole", "shared")]
    assert all([part.name for part in sorted(export.glob("part-*"))] == ["part-1", "part-2"] for export in exports)
    assert len({open_model(export).identity.sha256 for export in exports}) == 1

    combine([home / FAST_MODEL, parts[1]], tmp_path / "again", weights=WEIGHTS)
    assert open_model(tmp_path / "again").identity.sha256 == expected.identity.sha256

    (home / FAST_MODEL / "dualmoco.json").unlink()
    with pytest.raises(ModelError, match=f"{FAST_MODEL}: checksum .*the part changed"):
        open_model(home / DEFAULT_MODEL)
    shutil.rmtree(home / FAST_MODEL)
    with pytest.raises(ModelError, match=f"{FAST_MODEL}: its weights are not in this installation"):
        open_model(home / DEFAULT_MODEL)


def test_training_does_not_start_from_a_hybrid(hybrid: Path) -> None:
    """Whoever wants one network is told that there are several."""
    with pytest.raises(
        ModelError, match="a hybrid of several models; expected a single model, such as one of its parts"
    ):
        open_network(hybrid)
    with pytest.raises(DualmocoError, match="a hybrid of several models"):
        build_encoder(EncoderConfig("en", EncoderKind.pretrained, str(hybrid)), [])
