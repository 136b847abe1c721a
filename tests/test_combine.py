"""`dualmoco combine`: weights given or chosen on held-out pairs, and what is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dualmoco
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError, DualmocoError, ModelError
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.load import open_model
from dualmoco.models.network import save_encoders
from dualmoco.training.combine import TRIED_WEIGHTS, WeightTrial, best_weights, combine

PAIRS = list(dict.fromkeys(generate_pairs(80, seed=12)))[:50]
EN, ZH = ([*side] for side in zip(*PAIRS, strict=True))


def save(folder: Path, langs: tuple[str, str] = ("en", "zh")) -> Path:
    """A random static model of two languages."""
    torch.manual_seed(3)
    src, tgt = (EncoderConfig(lang, EncoderKind.static, width=8, vocab_size=300, max_piece_length=4) for lang in langs)
    save_encoders(build_encoders(src, tgt, dict(zip(langs, (EN, ZH), strict=True))), folder)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model, which finds no translations."""
    return save(tmp_path_factory.mktemp("other") / "model")


def accuracy(weights: tuple[float, ...], parts: list[dualmoco.Model]) -> tuple[float, float]:
    """Both directions, from the weighted means of all cosines of the parts."""
    cosines = np.zeros((len(EN), len(ZH)))
    for weight, part in zip(weights, parts, strict=True):
        cosines += weight / sum(weights) * part.similarity(part.encode(EN, lang="en"), part.encode(ZH, lang="zh"))
    right = np.arange(len(EN))
    return float((cosines.argmax(axis=1) == right).mean()), float((cosines.argmax(axis=0) == right).mean())


def test_weights_are_chosen_on_held_out_pairs(tiny_model: Path, other: Path, tmp_path: Path) -> None:
    """Each part alone and a grid are tried; the best that uses both is written, with the table."""
    done = combine([other, tiny_model.parent], tmp_path / "out", pairs=PAIRS, progress=False)
    assert [trial.weights for trial in done.trials] == [(1, 0), (0, 1), *((1.0, ratio) for ratio in TRIED_WEIGHTS)]
    parts = [open_model(other), open_model(tiny_model)]
    for trial in done.trials:
        expected = accuracy(trial.weights, parts)
        assert (trial.src_to_tgt, trial.tgt_to_src) == pytest.approx(expected)
    chosen = tuple(part.weight for part in done.parts)
    assert chosen == best_weights(done.trials) and chosen[1] > chosen[0]  # one part is noise
    content = json.loads((tmp_path / "out" / "hybrid.json").read_text(encoding="utf-8"))
    assert content["pairs"] == len(PAIRS) and len(content["trials"]) == len(done.trials)
    assert [part["weight"] for part in content["parts"]] == list(chosen)
    assert open_model(tmp_path / "out").identity.sha256 == done.sha256


def test_of_equally_good_weights_the_nearest_to_equal_win() -> None:
    """A part alone is never chosen, however good."""
    trials = [
        WeightTrial(weights, score, score)
        for weights, score in [((1, 0), 0.9), ((1, 4), 0.8), ((1, 0.7), 0.8), ((1, 0.25), 0.8), ((1, 1), 0.7)]
    ]
    assert best_weights(trials) == (1, 0.7)


def test_the_command_prints_the_table(
    tiny_model: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people and for machines; equal weights unless told otherwise; an earlier hybrid is replaced."""
    (tmp_path / "held-out.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    words = ["combine", str(tiny_model), str(other), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert f"{tiny_model} with weight 1, {other} with weight 1\n" in capsys.readouterr().out
    assert main([*words, "--weights", "1,0.7", "--json"]) == 0
    assert [part["weight"] for part in json.loads(capsys.readouterr().out)["parts"]] == [1.0, 0.7]
    assert main([*words, "--pairs", str(tmp_path / "held-out.tsv")]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("retrieval accuracy on 50 held-out pairs:\n\n| weights ")
    assert printed.count("\n| 1, ") == 1 + len(TRIED_WEIGHTS) and "| en-zh | zh-en |" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held-out.tsv", "out"]


def test_three_parts(tiny_model: Path, other: Path, tmp_path: Path) -> None:
    """The grid is over all further parts."""
    done = dualmoco.combine([tiny_model, other, tiny_model], tmp_path / "out", pairs=PAIRS, progress=False)
    assert len(done.trials) == 3 + len(TRIED_WEIGHTS) ** 2 and len(done.parts) == 3


def test_only_what_a_model_is_opened_from_is_copied(other: Path, tmp_path: Path) -> None:
    """No pickles beside safetensors, no hidden files, no NLI head; the card and the licence are kept."""
    source = Path(shutil.copytree(other, tmp_path / "source"))
    for name in ("README.md", "LICENSE.txt", ".hidden/x.json", "nli/head.json", "onnx/model.onnx", "notes.pdf"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{}", encoding="utf-8")
    weights = next(source.rglob("*.safetensors"))
    (weights.parent / "pytorch_model.bin").write_bytes(b"x")
    (source / "empty").mkdir()
    combine([source, other], tmp_path / "out")
    folders = (tmp_path / "out" / "part-1", other)
    found, plain = ({path.relative_to(folder).as_posix() for path in folder.rglob("*")} for folder in folders)
    assert found - plain == {"README.md", "LICENSE.txt", "empty", "onnx"} and plain <= found


def _pickled(folder: Path, other: Path) -> list[Any]:
    copy = Path(shutil.copytree(other, folder / "pickled"))
    weights = next(copy.rglob("*.safetensors"))
    weights.rename(weights.with_name("pytorch_model.bin"))
    return [other, copy]


def _hybrid(folder: Path, other: Path) -> list[Any]:
    combine([other, other], folder / "hybrid")
    return [other, folder / "hybrid"]


def _words(folder: Path, other: Path) -> list[Any]:
    (folder / "en.vec").write_text("2 3\na 1 2 3\nb 4 5 6\n", encoding="utf-8")
    return [other, f"words:{folder / 'en.vec'}"]


@pytest.mark.parametrize(
    ("models", "settings", "error", "message"),
    [
        (lambda folder, other: [other], {}, ConfigError, r"1 part\(s\) of a hybrid; expected at least 2 models"),
        (None, {"weights": [1, 0]}, ConfigError, "weight 0; expected a number above 0: remove parts"),
        (None, {"weights": [1, -2]}, ConfigError, "weight -2; expected a number above 0"),
        (None, {"weights": [1, float("nan")]}, ConfigError, "weight nan; expected a number above 0"),
        (None, {"weights": [1, 1, 1]}, ConfigError, "3 weights for 2 parts"),
        (None, {"weights": [1, 1], "pairs": PAIRS}, ConfigError, "weights and held-out pairs were both given"),
        (None, {"pairs": PAIRS[:9]}, DataError, "pairs: 9 pairs; expected at least 10 to choose weights by"),
        (None, {"pairs": "absent.tsv"}, DataError, "absent.tsv"),
        (None, {"pairs": PAIRS, "tgt_lang": "de"}, ModelError, "held-out pairs in 'de'; expected two of .* en, zh"),
        (
            lambda folder, other: [other, save(folder / "de", ("en", "de"))],
            {},
            ModelError,
            "de: has the languages en, de; expected en, zh, the languages of .*, or a model for any language",
        ),
        (lambda folder, other: [other, folder / "none"], {}, ModelError, "none: no such folder"),
        (_pickled, {}, ModelError, "pytorch_model.bin: pickled weights are never loaded"),
        (_hybrid, {}, ModelError, "hybrid: is a hybrid; expected single models"),
        (_words, {}, ModelError, "is not a network; expected the model folder"),
    ],
)
def test_bad_input_is_refused_before_work(
    other: Path,
    tmp_path: Path,
    models: Callable[[Path, Path], list[Any]] | None,
    settings: dict[str, Any],
    error: type[DualmocoError],
    message: str,
) -> None:
    """One line each, and nothing is written."""
    given = models(tmp_path, other) if models else [other, other]
    with pytest.raises(error, match=message):
        combine(given, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_onnx_exports_are_no_parts(tmp_path: Path, other: Path, sentence_folder: Path) -> None:
    """They are made of a hybrid, not the other way round."""
    pytest.importorskip("onnxruntime")
    export_model(str(sentence_folder), "en", "onnx", tmp_path / "onnx")
    with pytest.raises(ModelError, match="is an ONNX export; expected the model it was made from"):
        combine([other, tmp_path / "onnx"], tmp_path / "out")


def test_other_folders_are_kept(other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless told otherwise; a model that goes into the hybrid always. Weights that are no numbers are an error."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine", encoding="utf-8")
    words = ["combine", str(other), str(other), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert (
        "an existing folder, but not an earlier hybrid; expected a new folder, or --overwrite"
        in capsys.readouterr().err
    )
    assert (tmp_path / "out" / "thesis.txt").is_file()
    assert main([*words, "--overwrite"]) == 0 and not (tmp_path / "out" / "thesis.txt").exists()
    with pytest.raises(ConfigError, match="contains the model itself; expected another folder"):
        combine([other, other], other.parent, overwrite=True)
    with pytest.raises(ConfigError, match="hybrid: is inside one of the models; expected a folder outside of them"):
        combine([other, other], other / "hybrid")
    assert main([*words, "--weights", "1;2"]) == 2
    error = capsys.readouterr().err
    assert "--weights 1;2; expected numbers above 0" in error and error.count("\n") == 1


def test_unreadable_held_out_pairs_can_be_skipped(
    tiny_model: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights are chosen on the others, and the lines are counted."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS) + "no tab\n", encoding="utf-8")
    words = ["combine", str(other), str(tiny_model), "--out", str(tmp_path / "out"), "--pairs", str(pairs)]
    assert main(words) == 2
    assert f"pairs.tsv:{len(PAIRS) + 1}: 1 tab-separated column" in capsys.readouterr().err
    assert main([*words, "--on-error", "skip"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"retrieval accuracy on {len(PAIRS)} held-out pairs; 1 unreadable line skipped:"
