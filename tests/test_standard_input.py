"""Tests of `-`, which stands for standard input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError
from dualmoco.data.grammar import generate_pairs
from dualmoco.text.files import standard_input

PAIRS = generate_pairs(30, seed=8)


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TSV whose bytes are on standard input as well."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    give(path.read_bytes(), monkeypatch)
    return path


def give(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts bytes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input_becomes_a_file_that_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `-` is replaced, the bytes stay as they are, and nothing is left behind."""
    give(b"\xff\r\nlast", monkeypatch)
    with standard_input(["a.txt", "-"], ".tsv") as names:
        path = Path(names[1])
        assert names[0] == "a.txt" and path.name == "standard-input.tsv"
        assert path.read_bytes() == b"\xff\r\nlast"
    assert not path.parent.exists()


def test_standard_input_is_given_only_once() -> None:
    """It can be read once."""
    with pytest.raises(ConfigError, match="given twice"), standard_input(["-", "-"]):
        pass


def test_inspect_reads_standard_input(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures are those of the file."""
    found = []
    for name in (str(pairs), "-"):
        assert main(["inspect", name, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out) | {"files": []})
    assert found[0] == found[1] and found[0]["pairs"] == len(PAIRS)


def test_prepare_reads_standard_input(pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs are those of the file; another format than TSV is named."""
    lines = [json.dumps({"en": src, "zh": tgt}) for src, tgt in PAIRS]
    options = ["--src", "en", "--tgt", "zh", "heldout=0", "workers=1"]
    written = []
    for number, words in enumerate(([str(pairs)], ["-"], ["-", "--format", "jsonl"])):
        if "jsonl" in words:
            give("\n".join(lines).encode(), monkeypatch)
        out = tmp_path / str(number)
        assert main(["prepare", *words, *options, "--out", str(out)]) == 0
        written.append(pq.read_table(out / "train-00000.parquet", columns=["src", "tgt"]))
    assert written[0] == written[1] == written[2] and len(written[0]) == len(PAIRS)


def test_encode_reads_standard_input(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The vectors are those of the file, and the same text again resumes the store."""
    text = tmp_path / "en.txt"
    text.write_text("".join(f"{src}\n" for src, _ in PAIRS), encoding="utf-8")
    for name, out in ((str(text), "file"), ("-", "input"), ("-", "input")):
        give(text.read_bytes(), monkeypatch)
        assert main(["encode", name, "--lang", "en", "--model", str(tiny_model), "--out", str(tmp_path / out)]) == 0
    file, given = (tmp_path / out / "00000.npy" for out in ("file", "input"))
    assert file.read_bytes() == given.read_bytes()
