"""`dualmoco join` and `dualmoco merge`: languages are added to a model, and nothing else in it changes."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, DualmocoError, ModelError, RunError
from dualmoco.data.grammar import generate_pairs
from dualmoco.mining.knn import MiningSettings
from dualmoco.mining.threshold import calibrate_model, read_calibration
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.load import open_model
from dualmoco.models.network import save_encoder, save_encoders
from dualmoco.training import join as join_module
from dualmoco.training.checkpoint import last_checkpoint
from dualmoco.training.config import ContrastConfig, OptimizerConfig, ScheduleConfig
from dualmoco.training.join import _check_work, join
from dualmoco.training.merge import merge
from dualmoco.training.trainer import Trainer

PAIRS = list(dict.fromkeys(generate_pairs(2600, seed=3)))
NEW = [pair for pair in generate_pairs(1000, seed=5) if pair not in set(PAIRS)][:100]
EN, ZH = [src for src, _ in NEW], [tgt for _, tgt in NEW]
LAYER = "xx_0_StaticEmbedding"


def backwards(sentence: str) -> str:
    """A made-up language: English whose words are spelt backwards."""
    return " ".join(word[::-1] for word in sentence.lower().rstrip(".?!").split())


def doubled(sentence: str) -> str:
    """Another one: English whose words are written twice."""
    return " ".join(word * 2 for word in sentence.lower().rstrip(".?!").split())


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """A bitext as TSV."""
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    return path


@pytest.fixture(scope="module", autouse=True)
def few_steps() -> Iterator[None]:
    """Training of a fixed number of steps, so that no result depends on speed."""
    with pytest.MonkeyPatch.context() as patch:
        few = ScheduleConfig(steps=60, evaluate_every=60, checkpoint_every=30)
        patch.setattr(join_module, "_schedule", lambda minutes: few)
        patch.setattr(join_module, "OPTIMIZER", OptimizerConfig(lr=2e-2, warmup_steps=10, batch_size=128))
        patch.setattr(join_module, "CONTRAST", ContrastConfig(queue_size=512, temperature=0.07))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bitexts of English with the two languages, and a test set."""
    folder = tmp_path_factory.mktemp("join")
    write_pairs(folder / "en-xx.tsv", [(src, backwards(src)) for src, _ in PAIRS])
    write_pairs(folder / "yy-en.tsv", [(doubled(src), src) for src, _ in PAIRS])
    (folder / "test.txt").write_text("".join(f"{src}\n" for src, _ in PAIRS[:50]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def base(tiny_model: Path, place: Path) -> Path:
    """A calibrated English-Chinese model."""
    folder = Path(shutil.copytree(tiny_model, place / "base"))
    dualmoco.calibrate(folder, generate_pairs(1200, seed=8), progress=False)
    return folder


@pytest.fixture(scope="module")
def joined(base: Path, place: Path) -> tuple[Path, join_module.Joined]:
    """The model with one more language, and what was said about it."""
    tests = [str(place / "test.txt")]
    done = join(
        base, place / "en-xx.tsv", place / "model-xx", tgt_lang="xx", exclude=tests, vocabulary=1500, progress=False
    )
    return place / "model-xx", done


def accuracy(model: dualmoco.Model, src: tuple[str, list[str]], tgt: tuple[str, list[str]]) -> float:
    """The share of sentences whose most similar sentence is their translation, from all cosines."""
    cosines = model.encode(src[1], lang=src[0]) @ model.encode(tgt[1], lang=tgt[0]).T
    return float((cosines.argmax(axis=1) == np.arange(len(cosines))).mean())


def test_a_language_joins_and_the_others_stay(base: Path, joined: tuple[Path, join_module.Joined], place: Path) -> None:
    """English is recognised; the new language finds unseen translations; old vectors and files are the same."""
    folder, done = joined
    before, after = open_model(base), open_model(folder)
    assert after.languages == done.languages == ["en", "zh", "xx"] and done.lang == "xx"
    for lang, texts in (("en", EN), ("zh", ZH)):
        assert np.array_equal(before.encode(texts, lang=lang), after.encode(texts, lang=lang))
    assert accuracy(after, ("xx", [backwards(text) for text in EN]), ("en", EN)) > 0.5  # by chance 0.01
    names = {path.relative_to(base) for path in base.rglob("*") if path.is_file()}
    changed = {name.as_posix() for name in names if (base / name).read_bytes() != (folder / name).read_bytes()}
    assert changed == {"router_config.json", "dualmoco.json", "calibration.json", "README.md"}
    added = {path.relative_to(folder).parts[0] for path in folder.rglob("*")} - {name.parts[0] for name in names}
    assert added == {LAYER, "xx_1_Normalize"}
    assert [path.name for path in (folder / LAYER).iterdir() if "safetensors" in path.name] == [
        "model.int8.safetensors"
    ]
    assert not (place / "model-xx.work").exists()
    assert done.sha256 == after.identity.sha256 and done.steps == 60
    assert done.bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_thresholds_for_the_new_pair_and_the_old_one(base: Path, joined: tuple[Path, join_module.Joined]) -> None:
    """The calibration of each pair of languages is kept; the new one is that of the held-out pairs."""
    folder, done = joined
    old = read_calibration(open_model(base), ("en", "zh"), MiningSettings())
    model = open_model(folder)
    assert old is not None and read_calibration(model, ("zh", "en"), MiningSettings()) == old
    new = read_calibration(model, ("en", "xx"), MiningSettings())
    assert new is not None and (new.threshold, new.pairs) == (done.threshold, done.heldout)
    assert read_calibration(model, ("xx", "zh"), MiningSettings()) is None
    mined = dualmoco.mine([backwards(text) for text in EN], EN, model=model, src_lang="xx", tgt_lang="en")
    assert sum(pair.src_line == pair.tgt_line for pair in mined) > 0


def test_the_record_and_the_card_say_what_happened(base: Path, joined: tuple[Path, join_module.Joined]) -> None:
    """Counts of pairs, excluded test sentences and held-out accuracy."""
    folder, done = joined
    (said,) = json.loads((folder / "dualmoco.json").read_text(encoding="utf-8"))["joined"]
    assert (said["lang"], said["known"], said["base_sha256"]) == ("xx", "en", open_model(base).identity.sha256)
    distinct = len({src for src, _ in PAIRS[:50]})
    assert said["corpora"] == {"en-xx": done.pairs} and said["test_sentences"] == distinct
    assert done.pairs + done.heldout < len(PAIRS) - 49
    assert (said["to_known"], said["from_known"]) == (done.to_known, done.from_known)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "language:\n- en\n- zh\n- xx\n" in card and f"en-xx {done.pairs:,}" in card
    assert f"{100 * done.to_known:.1f} / {100 * done.from_known:.1f} of {done.heldout:,}" in card
    assert re.search(rf"\| en-xx \| +{done.threshold:.4f} \|", card)


def test_a_second_language_joins_the_result(joined: tuple[Path, join_module.Joined], place: Path) -> None:
    """The known language may be on either side; the older language stays, and the card lists both."""
    folder, _ = joined
    words = ["join", str(folder), str(place / "yy-en.tsv"), "--src", "yy", "--tgt", "en"]
    assert main([*words, "--out", str(place / "model-xx-yy"), "--quiet"]) == 0
    before, after = open_model(folder), open_model(place / "model-xx-yy")
    assert after.languages == ["en", "zh", "xx", "yy"]
    texts = [backwards(text) for text in EN]
    assert np.array_equal(before.encode(texts, lang="xx"), after.encode(texts, lang="xx"))
    assert accuracy(after, ("yy", [doubled(text) for text in EN]), ("xx", texts)) > 0.1  # never trained together
    card = (place / "model-xx-yy" / "README.md").read_text(encoding="utf-8")
    assert card.count("through en") == 2 and card.count("# model-xx") == 1
    pairs = [("en", "zh"), ("en", "xx"), ("yy", "en")]
    assert all(read_calibration(after, pair, MiningSettings()) for pair in pairs)


def test_merged_models_have_the_languages_of_both(
    base: Path, joined: tuple[Path, join_module.Joined], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two languages that joined the same model separately; an unpacked copy of a table is the same table."""
    folder, _ = joined
    join(base, place / "yy-en.tsv", place / "model-yy", src_lang="yy", tgt_lang="en", progress=False)
    assert main(["merge", str(folder), str(place / "model-yy"), "--out", str(place / "merged"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    model = open_model(place / "merged")
    assert model.languages == said["languages"] == ["en", "zh", "xx", "yy"] and said["sha256"] == model.identity.sha256
    texts = {"en": EN, "zh": ZH, "xx": [backwards(text) for text in EN], "yy": [doubled(text) for text in EN]}
    for lang, owner in (("en", base), ("zh", base), ("xx", folder), ("yy", place / "model-yy")):
        assert np.array_equal(model.encode(texts[lang], lang=lang), open_model(owner).encode(texts[lang], lang=lang))
    for pair in (("en", "zh"), ("en", "xx"), ("yy", "en")):
        assert read_calibration(model, pair, MiningSettings())
    card = (place / "merged" / "README.md").read_text(encoding="utf-8")
    assert "language:\n- en\n- zh\n- xx\n- yy\n" in card and card.count("through en") == 2
    with pytest.raises(ConfigError, match="merged: exists; expected a new folder, or --overwrite"):
        merge([folder, place / "model-yy"], place / "merged")
    merge([place / "model-yy", folder], place / "merged", overwrite=True)
    assert open_model(place / "merged").languages == ["en", "zh", "yy", "xx"]


def test_a_table_joins_transformers(place: Path, tmp_path: Path) -> None:
    """Their vectors stay the same to the bit, because they are run as before."""
    torch.manual_seed(2)
    src, tgt = (
        EncoderConfig(lang, EncoderKind.bert, width=16, layers=1, heads=2, vocab_size=300) for lang in ("en", "zh")
    )
    save_encoders(build_encoders(src, tgt, {"en": EN, "zh": ZH}), tmp_path / "bert")
    done = join(
        tmp_path / "bert", place / "en-xx.tsv", tmp_path / "out", tgt_lang="xx", vocabulary=1500, progress=False
    )
    before, after = open_model(tmp_path / "bert"), open_model(tmp_path / "out")
    assert done.languages == after.languages == ["en", "zh", "xx"] and after.backend("xx").name == "static"
    for lang, texts in (("en", EN), ("zh", ZH)):
        assert before.backend(lang).name == after.backend(lang).name == "torch"
        assert np.array_equal(before.encode(texts, lang=lang), after.encode(texts, lang=lang))


def static(folder: Path, *langs: str, width: int = 8, seed: int = 3) -> Path:
    """A random static model of two languages."""
    torch.manual_seed(seed)
    src, tgt = (EncoderConfig(lang, EncoderKind.static, width=width, vocab_size=300) for lang in langs)
    save_encoders(build_encoders(src, tgt, {langs[0]: EN, langs[1]: [backwards(text) for text in EN]}), folder)
    return folder


@pytest.mark.parametrize(
    ("langs", "settings", "message"),
    [
        (("de", "fr"), {}, "shares no language with en, it; expected models with an encoder in common"),
        (("en", "fr"), {"seed": 4}, "en: encoded differently by .* and .*; expected one encoder"),
        (("en", "fr"), {"width": 4}, "vectors of dimension 4; expected 8, that of"),
    ],
)
def test_models_of_other_spaces_are_not_merged(
    tmp_path: Path, langs: tuple[str, str], settings: dict[str, int], message: str
) -> None:
    """Nothing is written."""
    models = [static(tmp_path / "a", "en", "it"), static(tmp_path / "b", *langs, **settings)]
    with pytest.raises(ModelError, match=message):
        merge(models, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    with pytest.raises(ConfigError, match=r"1 model\(s\) to merge; expected at least two"):
        merge(models[:1], tmp_path / "out")


def test_models_that_convert_text_differently_are_not_merged(tmp_path: Path) -> None:
    """One of them would get text that it was not trained on."""
    models = [static(tmp_path / "a", "en", "zh"), static(tmp_path / "b", "en", "zh")]
    (models[0] / "dualmoco.json").write_text('{"text": {"chinese": "simplified"}}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"convert text differently .*simplified.*; expected the same conversion"):
        merge(models, tmp_path / "out")


def signalling(sent: signal.Signals, whole: Callable[..., Any], call: int = 1) -> Callable[..., Any]:
    """A function that signals this process at one of its calls, before it does its work."""
    calls = itertools.count(1)

    def function(*given: Any, **named: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), sent)
        return whole(*given, **named)

    return function


@pytest.mark.usefixtures("usual_signals")
def test_an_interrupted_command_resumes(
    base: Path,
    joined: tuple[Path, join_module.Joined],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C while training, then a signal at the end; the model appears only when it is complete, and is the same."""
    out, work = tmp_path / "model-xx", tmp_path / "model-xx.work"
    words = ["join", str(base), str(place / "en-xx.tsv"), "--tgt", "xx", "--out", str(out), "--json", "--quiet"]
    words += ["--exclude", str(place / "test.txt"), "--vocabulary", "1500"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", signalling(signal.SIGINT, Trainer.step, call=31))
        assert main(words) == 130
    assert f"interrupted: finished work is kept in {work}; run the same command again" in capsys.readouterr().err
    assert last_checkpoint(work / "run") and not out.exists()
    prepared = (work / "prepared" / "manifest.json").stat().st_mtime_ns
    with pytest.raises(RunError, match=r"model-xx.work: was started with other exclude; give the same"):
        join(base, place / "en-xx.tsv", out, tgt_lang="xx", vocabulary=1500, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(join_module, "calibrate_model", signalling(signal.SIGTERM, calibrate_model))
        assert main(words) == 128 + signal.SIGTERM
    assert "terminated: finished work is kept in" in capsys.readouterr().err and not out.exists()
    assert (work / "prepared" / "manifest.json").stat().st_mtime_ns == prepared
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == joined[1].sha256  # of the uninterrupted command
    assert [path.name for path in tmp_path.iterdir()] == ["model-xx"]


def test_training_may_become_longer(tmp_path: Path, base: Path) -> None:
    """An unfinished command resumes with more minutes, not with fewer."""
    job = Mock(work=tmp_path, minutes=2.0, record=lambda: {"minutes": 2.0, "model": "a"})
    _check_work(job)
    job.record = lambda: {"minutes": 3.0, "model": "a"}
    _check_work(job)
    job.record = lambda: {"minutes": 2.0, "model": "a"}
    with pytest.raises(RunError, match="was started with other minutes"):
        _check_work(job)


def _hybrid(folder: Path, base: Path) -> Path:
    dualmoco.combine([base, base], folder / "hybrid")
    return folder / "hybrid"


def _single(folder: Path, base: Path) -> Path:
    config = EncoderConfig("en", EncoderKind.static, width=8, vocab_size=300)
    other = EncoderConfig("zh", EncoderKind.static, width=8, vocab_size=300)
    save_encoder(build_encoders(config, other, {"en": EN, "zh": ZH})["en"], folder / "single")
    return folder / "single"


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (
            None,
            {"tgt_lang": "zh-CN"},
            ModelError,
            r"already has en and zh; expected pairs of one of its lang",
        ),
        (
            None,
            {"src_lang": "de", "tgt_lang": "xx"},
            ModelError,
            "has en, zh, and the pairs are de and xx; expected",
        ),
        (None, {"minutes": 0}, ConfigError, "0 minutes of training; expected a number above 0"),
        (None, {"vocabulary": 10}, ConfigError, "a vocabulary of 10; expected at least 1,000"),
        (None, {"exclude": ["missing/*.txt"]}, DataError, r"missing/\*.txt: no such file"),
        (_hybrid, {}, ModelError, "hybrid: a hybrid; expected a single model such as en-zh-static"),
        (_single, {}, ModelError, "single: one encoder for any language; expected one encoder per language"),
        (lambda folder, base: "words:en.vec", {}, ModelError, "words:en.vec: not a network; expected a model with one"),
    ],
)
def test_wrong_input_is_refused_before_any_work(
    base: Path,
    place: Path,
    tmp_path: Path,
    make: Callable[[Path, Path], Path] | None,
    settings: dict[str, Any],
    error: type[DualmocoError],
    message: str,
) -> None:
    """One line says what was given and what was expected; nothing is written."""
    model = make(tmp_path, base) if make else base
    with pytest.raises(error, match=message):
        join(model, place / "en-xx.tsv", tmp_path / "out", **{"src_lang": "en", "tgt_lang": "xx", **settings})
    assert not list(tmp_path.glob("*out*"))


def test_too_few_pairs(base: Path, place: Path, tmp_path: Path) -> None:
    """Too few in the file, or too few that differ."""
    few = write_pairs(tmp_path / "few.tsv", [(src, backwards(src)) for src, _ in PAIRS[:200]])
    with pytest.raises(DataError, match=r"few.tsv: 200 pairs; expected at least 1,000 to learn a language from"):
        join(base, few, tmp_path / "out", src_lang="en", tgt_lang="xx")
    assert not list(tmp_path.glob("out*"))
    same = write_pairs(tmp_path / "same.tsv", [(src, backwards(src)) for src, _ in PAIRS[:200]] * 6)
    with pytest.raises(DataError, match="held"):
        join(base, same, tmp_path / "out", src_lang="en", tgt_lang="xx", progress=False)
    assert not (tmp_path / "out").exists()


def test_text_in_another_script_is_warned_of(
    base: Path, place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Russian that is written in Latin letters; nearly nothing of it is left."""
    with pytest.raises(DataError, match="no pairs left"):
        join(base, place / "en-xx.tsv", tmp_path / "out", src_lang="en", tgt_lang="ru", progress=False)
    assert any(message.startswith("side 2 of the pairs: looks like") for message in caplog.messages)
