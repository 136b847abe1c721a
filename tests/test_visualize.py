"""Tests of `dualmoco visualize`: the pairs it chooses, what it prints and writes, what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dualmoco
from dualmoco.cli.main import main
from dualmoco.data.config import CorpusConfig, PrepareConfig
from dualmoco.data.prepare import prepare
from dualmoco.data.readers.base import Source
from dualmoco.evaluation.figures import choose_pairs
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.network import save_encoders


@pytest.fixture(scope="module")
def model(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two untrained static encoders of dimension 16."""
    torch.manual_seed(3)
    sides = zip(*_pairs(corpus), strict=True)
    src, tgt = (EncoderConfig(lang=lang, kind=EncoderKind.static, width=16, vocab_size=300) for lang in ("en", "zh"))
    folder = tmp_path_factory.mktemp("model") / "model"
    save_encoders(build_encoders(src, tgt, dict(zip(("en", "zh"), map(list, sides), strict=True))), folder)
    return folder


def _pairs(path: Path) -> list[tuple[str, str]]:
    """The pairs of a TSV file."""
    cells = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(src, tgt) for src, tgt in cells]


def test_figure_and_its_numbers(model: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON holds real pairs with the model's own cosines; the figure is written where it says."""
    out = tmp_path / "new" / "parallel.svg"
    assert main(["visualize", str(corpus), "--model", str(model), "--count", "5", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["out"] == str(out) and out.read_text(encoding="utf-8").startswith("<?xml")
    assert len(result["pairs"]) == 5
    known, opened = set(_pairs(corpus)), dualmoco.load(str(model))
    for src, tgt, cosine in result["pairs"]:
        assert (src, tgt) in known
        a, b = opened.encode(src, lang="en")[0], opened.encode(tgt, lang="zh")[0]
        assert cosine == pytest.approx(float(np.dot(a, b)), abs=1e-5)
    assert result["mean_cosine"] == pytest.approx(sum(row[2] for row in result["pairs"]) / 5)


def test_two_lines_for_people(model: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the mean cosine and the file are told; the default is 15 pairs."""
    out = tmp_path / "parallel.png"
    assert main(["visualize", str(corpus), "--model", str(model), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert (
        main(["visualize", str(model), str(corpus), "--out", str(out), "--overwrite"]) == 0
    )  # the order of version 0.1
    hinted = capsys.readouterr()
    assert hinted.out == captured.out and hinted.err.splitlines()[0].endswith("is now --model MODEL")
    first, second = captured.out.splitlines()
    assert first.startswith("15 pairs, mean cosine ") and -1 <= float(first.split()[-1]) <= 1
    assert second == f"figure in {out}"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_chosen_pairs(corpus: Path) -> None:
    """The first pairs are the first; random ones depend on the seed alone, are distinct rows in their order."""
    everything, source = _pairs(corpus), Source(corpus, "en", "zh")
    assert choose_pairs(source, "auto", 7, None) == everything[:7]
    chosen = choose_pairs(source, "auto", 200, 1)
    places = [everything.index(pair) for pair in chosen]
    assert len(set(places)) == 200 and places == sorted(places)
    assert max(places) > 500 and min(places) < 100
    assert chosen == choose_pairs(source, "auto", 200, 1) != choose_pairs(source, "auto", 200, 2)
    assert choose_pairs(source, "auto", 10_000, 1) == everything


def test_pairs_of_other_files(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Aligned files, with pairs that lack a side left out, and prepared folders serve too."""
    (tmp_path / "a.en").write_text("one\n\nthree\nfour\n", encoding="utf-8")
    (tmp_path / "a.zh").write_text("一\n二\n三\n \n", encoding="utf-8")
    aligned = Source(tmp_path / "a.en", "en", "zh", tgt_path=tmp_path / "a.zh")
    assert choose_pairs(aligned, "auto", 5, 0) == [("one", "一"), ("three", "三")]
    (tmp_path / "broken.tsv").write_text("one\t一\nno tab\nthree\t三\n", encoding="utf-8")
    assert choose_pairs(Source(tmp_path / "broken.tsv", "en", "zh"), "auto", 5, 0) == [("one", "一"), ("three", "三")]
    assert f"skipped {tmp_path / 'broken.tsv'}:2: 1 tab-separated column" in caplog.text
    out = tmp_path / "prepared"
    prepare(PrepareConfig(out=str(out), corpora=[CorpusConfig(files=[str(corpus)])], heldout=5, workers=1))
    prepared = choose_pairs(Source(out, "en", "zh"), "auto", 20, 0)
    assert len(prepared) == 20 and set(prepared) <= set(_pairs(corpus))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "{folder}"], "is a folder; expected the name of a file"),
        (["--out", "figure.pdf"], "extension .pdf; expected one of .png .svg .html"),
        (["--count", "1"], "count 1; expected at least 2 pairs"),
        (["--format", "word"], "--format word"),
        (["--tgt", "fr"], "has no language 'fr'; expected one of en, zh"),
        (["--pooling", "middle"], "--pooling middle"),
        (["absent.zh"], "absent.zh: cannot be opened"),
    ],
)
def test_bad_words(
    model: Path, corpus: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong options are one line and exit code 2, and no figure is written."""
    out = tmp_path / "parallel.png"
    arguments = [
        "visualize",
        str(corpus),
        "--model",
        str(model),
        "--out",
        str(out),
        *(word.format(folder=tmp_path) for word in words),
    ]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert not out.exists()


@pytest.mark.parametrize("package", ["matplotlib", "sklearn"])
def test_missing_package(
    package: str, model: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package that is not installed is named with what installs it."""
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["visualize", str(corpus), "--model", str(model), "--out", "never.png"]) == 2
    said = f"dualmoco: A figure needs the package {package}; pip install 'dualmoco[eval]'\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; expected sentence pairs"),
        ("one\t一\ntwo\t\n", "pairs with text on both sides: 1; expected at least 2"),
    ],
)
def test_bad_pairs(
    model: Path, tmp_path: Path, content: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is absent or has less than two pairs is refused before the model is opened."""
    path = tmp_path / "pairs.tsv"
    if content:
        path.write_text(content, encoding="utf-8")
    assert main(["visualize", str(path), "--model", "no-such-model", "--out", str(tmp_path / "a.png")]) == 2
    assert f"{path}: {message}" in capsys.readouterr().err


@pytest.mark.data
def test_real_sentences(
    model: Path, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Forty random pairs of the Tatoeba test set are drawn without a warning: every sentence has a font and a place."""
    stem = data_folder / "eval" / "tatoeba" / "tatoeba.cmn-eng"
    words = ["visualize", f"{stem}.eng", f"{stem}.cmn", "--model", str(model), "--count", "40"]
    assert main([*words, "--out", str(tmp_path / "parallel.html")]) == 0
    assert capsys.readouterr().out.startswith("40 pairs")
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


def test_unreadable_lines_are_counted_or_stop(
    model: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, out = tmp_path / "bad.tsv", tmp_path / "parallel.svg"
    bad.write_text(corpus.read_text(encoding="utf-8") + "no tab\nnor here\n", encoding="utf-8")
    words = ["visualize", str(bad), "--model", str(model), "--out", str(out)]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("; 2 unreadable lines skipped")
    assert main([*words, "--overwrite", "--on-error", "stop"]) == 2
    assert "skip unreadable lines with on_error=skip" in capsys.readouterr().err
