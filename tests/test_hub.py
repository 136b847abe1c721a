"""`push` to a small Hub on this machine: the bytes that arrive, the cards, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ModelError
from dualmoco.models.card import CardSubject, complete_card, parse_metadata
from dualmoco.models.embedded import DEFAULT_MODEL, FAST_MODEL, MANY_STATIC, embedded_folder
from dualmoco.models.export import export_model
from hub_server import LFS_BYTES, TOKEN, Hub, running_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub, whose address and token this process knows."""
    with running_hub() as started:
        monkeypatch.setattr(constants, "ENDPOINT", started.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield started


def front_matter(folder: Path) -> Any:
    """What huggingface_hub reads from the card of a folder."""
    return ModelCard.load(folder / "README.md").data


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_hybrid_comes_back_as_it_was(tmp_path: Path) -> None:
    """`en-zh` with the model that it refers to: what arrives is what is here, and opens by the name of its repository.

    Processes of their own read the variables that users set.
    """
    code = "import dualmoco; model = dualmoco.load('me/copy'); print(model, model.encode('雨。').shape)"
    with running_hub() as hub:
        own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        words = [sys.executable, "-m", "dualmoco", "push", DEFAULT_MODEL, "me/copy", "--private", "--json"]
        pushed = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, check=True)
        opened = subprocess.run([sys.executable, "-c", code], env=os.environ | own, capture_output=True, text=True)
    parts = {f"{FAST_MODEL}/{name}": data for name, data in contents(embedded_folder(FAST_MODEL)).items()}
    expected = contents(embedded_folder(DEFAULT_MODEL)) | parts
    arrived, said = hub.files["me/copy"], json.loads(pushed.stdout)
    assert arrived.keys() == expected.keys() and hub.private["me/copy"]
    assert [name for name in expected if name != "README.md" and arrived[name] != expected[name]] == []
    assert said["files"] == {name: len(data) for name, data in arrived.items()} and said["url"].startswith(hub.url)
    assert any(len(data) >= LFS_BYTES for data in arrived.values()) and said["bytes"] == sum(said["files"].values())
    assert f"sha256 {said['sha256'][:12]}" in opened.stdout, opened.stderr


def test_only_files_of_the_model_are_uploaded(hub: Hub, tiny_model: Path, tmp_path: Path) -> None:
    """A run folder: its model and licence, but nothing of the training, no pickles, no hidden files."""
    run = Path(shutil.copytree(tiny_model.parent, tmp_path / "run"))
    model = run / "model"
    (model / "LICENSE.txt").write_text("free", encoding="utf-8")
    expected, weights = contents(model), next(model.rglob("*.safetensors"))
    for name in (
        "optimizer.safetensors",
        "trainer_state.json",
        "log.jsonl",
        ".cache/a.json",
        "events.log",
        "notes.pdf",
    ):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(b"{}")
    (weights.parent / "pytorch_model.bin").write_bytes(b"x")
    done = dualmoco.push(run, "me/tiny")
    arrived = hub.files["me/tiny"]
    assert arrived.keys() == expected.keys() == done.files.keys() and not hub.private["me/tiny"]
    card = arrived.pop("README.md").decode()
    assert arrived == {name: data for name, data in expected.items() if name != "README.md"}
    assert card == expected["README.md"].decode().replace('"MODEL"', '"me/tiny"') and card.count('"me/tiny"') == 2
    assert hub.cards == [card]


def test_a_dry_run_needs_no_token_and_sends_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lists the files with their sizes."""
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", FAST_MODEL, "me/x", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    size = (embedded_folder(FAST_MODEL) / "modules.json").stat().st_size
    assert f"{size:>13,}  modules.json" in lines and not hub.posts
    assert lines[-1].startswith(f"me/x: {len(lines) - 1} files of {FAST_MODEL}, ") and "would be" in lines[-1]


def test_what_is_refused(
    hub: Hub, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each, before anything is uploaded."""

    def refused(*words: str) -> str:
        assert main(["push", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.json").write_text("{}", encoding="utf-8")
    model = str(tiny_model)
    assert "repository 'me'; expected OWNER/NAME" in refused(model, "me")
    assert "repository 'me/a b'; expected OWNER/NAME" in refused(model, "me/a b")
    assert "no such folder; expected a model or run folder" in refused("me/elsewhere", "me/x")
    assert f"{tmp_path / 'other'}: " in refused(str(tmp_path / "other"), "me/x")
    assert not hub.posts
    dualmoco.push(model, "me/public")
    assert "exists and is public; expected a private or new repository" in refused(model, "me/public", "--private")
    assert hub.posts.count("/api/models/me/public/commit/main") == 1
    hub.refuse = 403
    assert "refused the upload" in (line := refused(model, "me/x")) and "403" in line and "right to write" in line
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot upload to http://127.0.0.1:9" in refused(model, "me/x")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert "no token of the Hugging Face Hub; expected the variable HF_TOKEN" in refused(model, "me/x")


def test_the_card_of_a_run(tiny_model: Path) -> None:
    """What huggingface_hub reads from it: languages, library, how it is used, held-out accuracy."""
    data = front_matter(tiny_model)
    record = json.loads((tiny_model / "dualmoco.json").read_text(encoding="utf-8"))
    assert (data.language, data.library_name, data.pipeline_tag) == (
        ["en", "zh"],
        "sentence-transformers",
        "sentence-similarity",
    )
    assert {"dualmoco", "sentence-transformers", "bitext-mining"} <= set(data.tags or []) and data.base_model is None
    results = {result.metric_name: result.metric_value for result in data.eval_results or []}
    heldout = record["heldout"]
    assert results == {
        "accuracy, en to zh": pytest.approx(heldout["src_to_tgt"], abs=1e-4),
        "accuracy, zh to en": pytest.approx(heldout["tgt_to_src"], abs=1e-4),
    }
    assert data.model_name == "run" and 'SentenceTransformer("MODEL")' in data_text(tiny_model)


def data_text(folder: Path) -> str:
    """The card of a folder without its front matter."""
    return str(ModelCard.load(folder / "README.md").text)


def test_exports_inherit_the_licence(tmp_path: Path) -> None:
    """And name the model on the Hub that they were made of, if there is one."""
    export_model(FAST_MODEL, "zh", "sentence-transformers", tmp_path / "zh")
    data = front_matter(tmp_path / "zh")
    licence = front_matter(embedded_folder(FAST_MODEL)).license
    assert (data.license, data.language, data.base_model) == (licence, ["zh"], None)


def test_a_base_model_is_named_by_its_name_on_the_hub(sentence_folder: Path, tmp_path: Path) -> None:
    """Not by the path of a folder, nor by the name of a package."""
    from dualmoco.models.card import write_card
    from dualmoco.models.text_normalization import NO_CONVERSION

    folder = Path(shutil.copytree(sentence_folder, tmp_path / "model"))
    encoders = [{"lang": "en", "name": "owner/base"}, {"lang": "zh", "name": str(sentence_folder)}]
    settings = {"src": encoders[0], "tgt": encoders[1], "objective": "in-batch", "optimizer": {"batch_size": 8}}
    (folder / "dualmoco.json").write_text(json.dumps({"step": 5, "settings": settings}), encoding="utf-8")
    write_card(CardSubject(folder, "x", ["en", "zh"], 16), NO_CONVERSION)
    data = front_matter(folder)
    assert data.base_model == ["owner/base"] and data.eval_results is None
    assert "objective `in-batch`, 5 steps of 8 pairs" in data_text(folder)


@pytest.mark.parametrize("name", [DEFAULT_MODEL, FAST_MODEL, MANY_STATIC])
def test_what_a_card_says_stays(name: str) -> None:
    """The cards of the embedded models only get what is missing."""
    folder = embedded_folder(name)
    before = ModelCard.load(folder / "README.md")
    after = ModelCard(complete_card(before.content, CardSubject(folder, name, ["en"], 4), {"license": "mit"}))
    old, new = parse_metadata(before.content, folder), parse_metadata(after.content, folder)
    assert old.items() <= new.items() and new.keys() - old.keys() <= {"pipeline_tag", "tags"}
    assert after.text.strip() == before.text.strip() and new["library_name"] == "dualmoco"


def test_a_card_that_cannot_be_read_is_named(sentence_folder: Path, tmp_path: Path) -> None:
    """Its front matter is not YAML, or not that of a card."""
    folder = Path(shutil.copytree(sentence_folder, tmp_path / "model"))
    for front in ("a: [", "- a"):
        (folder / "README.md").write_text(f"---\n{front}\n---\n# x\n", encoding="utf-8")
        with pytest.raises(ModelError, match=r"README\.md: front matter cannot be read .*; correct or remove it"):
            dualmoco.push(folder, "me/x", dry_run=True)


def test_vectors_do_not_change_with_the_card(tiny_model: Path, tmp_path: Path) -> None:
    """A card is not part of the checksum."""
    copy = Path(shutil.copytree(tiny_model, tmp_path / "copy"))
    (copy / "README.md").unlink()
    one, other = dualmoco.load(tiny_model), dualmoco.load(copy)
    assert one.identity.sha256 == other.identity.sha256
    np.testing.assert_array_equal(one.encode(["rain"], lang="en"), other.encode(["rain"], lang="en"))
