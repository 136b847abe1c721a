"""Tests of `dualmoco similarity`: its numbers against plain dot products, its files, what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import dualmoco
from dualmoco.cli import similarity
from dualmoco.cli.main import main
from dualmoco.data.grammar import generate_pairs
from dualmoco.models.model import Model

PAIRS = list(generate_pairs(25, seed=4))


@pytest.fixture(scope="module")
def opened(tiny_model: Path) -> Model:
    """The model, by the package's own door."""
    return dualmoco.load(str(tiny_model))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """English and Chinese lines that belong together."""
    paths = tmp_path / "a.en", tmp_path / "a.zh"
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    return str(paths[0]), str(paths[1])


def dot(model: Model, a: str, b: str, langs: tuple[str, str] = ("en", "zh")) -> float:
    """The sum of products of two sentences' vectors, one product after the other."""
    left, right = model.encode(a, lang=langs[0])[0], model.encode(b, lang=langs[1])[0]
    return sum(float(x) * float(y) for x, y in zip(left, right, strict=True))


def test_two_sentences(tiny_model: Path, opened: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """Two sentences give one number, across languages and within one."""
    a, b = PAIRS[0]
    assert main(["similarity", a, b, "--model", str(tiny_model)]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(dot(opened, a, b), abs=6e-5)
    other = PAIRS[1][0]
    assert main(["similarity", a, other, "--src", "en", "--tgt", "en", "--model", str(tiny_model), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["src"], result["tgt"]) == (a, other)
    assert result["score"] == pytest.approx(dot(opened, a, other, ("en", "en")), abs=2e-6)
    assert main(["similarity", a, a, "--tgt", "en", "--model", str(tiny_model)]) == 0
    assert capsys.readouterr().out == "1.0000\n"


def test_files_line_by_line(
    tiny_model: Path,
    opened: Model,
    files: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each line is scored with its neighbour in the other file, whatever the size of the blocks."""
    monkeypatch.setattr(similarity, "LINES_PER_BATCH", 7)
    out = tmp_path / "new" / "scores.tsv"
    assert main(["similarity", *files, "--model", str(tiny_model), "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    rows = [line.split("\t") for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(src, tgt) for _, src, tgt in rows] == PAIRS
    for score, src, tgt in rows:
        assert float(score) == pytest.approx(dot(opened, src, tgt), abs=6e-5)
    assert main(["similarity", *files, "--model", str(tiny_model)]) == 0
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")


def test_files_as_json_lines_and_packed(
    tiny_model: Path, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A packed file is read as the plain one, and JSON has a line for each pair."""
    packed = tmp_path / "a.en.gz"
    packed.write_bytes(gzip.compress(Path(files[0]).read_bytes()))
    outputs = []
    for name in (str(packed), files[0]):
        assert main(["similarity", name, files[1], "--model", str(tiny_model), "--json"]) == 0
        outputs.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert outputs[0] == outputs[1] and len(outputs[0]) == len(PAIRS)
    assert [(row["src"], row["tgt"]) for row in outputs[0]] == PAIRS


def test_all_against_all(
    tiny_model: Path, opened: Model, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each line of the first file, a column for each of the second, though they are not as long."""
    short = tmp_path / "short.zh"
    short.write_text("".join(f"{zh}\n" for _, zh in PAIRS[:3]), encoding="utf-8")
    words = ["similarity", files[0], str(short), "--all", "--model", str(tiny_model)]
    assert main(words) == 0
    head, *rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert head == ["", *(zh for _, zh in PAIRS[:3])] and [row[0] for row in rows] == [en for en, _ in PAIRS]
    expected = [[dot(opened, en, zh) for _, zh in PAIRS[:3]] for en, _ in PAIRS]
    np.testing.assert_allclose([[float(cell) for cell in row[1:]] for row in rows], expected, atol=6e-5)
    assert main([*words, "--json"]) == 0
    rows_again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose([row["scores"] for row in rows_again], expected, atol=2e-6)


def test_extension_of_the_output_chooses_its_format(
    tiny_model: Path, files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A .jsonl file gets JSON lines; `--json` describes what was written."""
    out = tmp_path / "scores.jsonl"
    assert main(["similarity", *files, "--model", str(tiny_model), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "lines": len(PAIRS)}
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [(row["src"], row["tgt"]) for row in rows] == PAIRS


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!DOCTYPE")])
def test_heat_map(tiny_model: Path, tmp_path: Path, name: str, start: bytes) -> None:
    """The heat map is written in the format that its name asks for."""
    out = tmp_path / name
    assert main(["similarity", *PAIRS[0], "--model", str(tiny_model), "--heatmap", str(out)]) == 0
    assert out.read_bytes().startswith(start)


def test_tabs_in_sentences_do_not_make_columns(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tab in a sentence becomes a space in the table."""
    (tmp_path / "a").write_text("one\ttwo\n", encoding="utf-8")
    name = str(tmp_path / "a")
    assert main(["similarity", name, name, "--tgt", "en", "--model", str(tiny_model)]) == 0
    assert capsys.readouterr().out == "1.0000\tone two\tone two\n"


@pytest.mark.parametrize(
    ("contents", "words", "message"),
    [
        (("a\nb\n", "x\n"), [], "2 lines"),
        (("a\n\nc\n", "x\ny\nz\n"), [], "a:2: empty line"),
        (("", "x\n"), [], "a: is empty"),
        ((b"a\n\xff\n", "x\ny\n"), [], "a:2: not UTF-8"),
        ((None, "x\n"), [], "a: no such file"),
        (("a\n", "x\n"), ["--src", "fr"], "'fr'"),
        (("a\n", "x\n"), ["--out", "a"], "also an input"),
        (("a\n", "x\n"), ["--heatmap", "near.pdf"], "extension .pdf"),
        (("a\n" * 1001, "x\n" * 1001), ["--heatmap", "near.png"], "expected at most 1,000"),
        (("a\n", "x\n" * 20_001), ["--all"], "expected at most 20,000"),
    ],
)
def test_wrong_files(
    contents: tuple[str | bytes | None, str],
    words: list[str],
    message: str,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files that cannot be compared are refused with one line, before anything is written."""
    monkeypatch.chdir(tmp_path)
    for name, content in zip("ab", contents, strict=True):
        if content is not None:
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    out = [] if "--out" in words else ["--out", "scores.tsv"]
    assert main(["similarity", "a", "b", "--model", str(tiny_model), *out, *words]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one"], "required: SENTENCE|FILE"),
        (["a", "b", "c"], "unexpected argument 'c'"),
        (["a", " "], "is empty"),
        (["a", "b", "--all"], "need files, and"),
    ],
)
def test_wrong_sentences(words: list[str], message: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything but two sentences or two files is refused with one line."""
    assert main(["similarity", *words, "--model", str(tiny_model)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
