from __future__ import annotations

import json
from pathlib import Path

import pytest

from dualmoco.cli.inspect import bar
from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, DataError
from dualmoco.data.config import CorpusConfig, PrepareConfig
from dualmoco.data.grammar import generate_pairs
from dualmoco.data.inspection import inspect
from dualmoco.data.prepare import prepare

PAIRS = [
    *generate_pairs(50, seed=3),
    ("one two three", "一二三"),
    ("One, two three!", "一二三。"),
    ("swapped no more", "换了"),
    ("你好世界", "hello world"),
    ("", "空"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS) + "no tab\n", encoding="utf-8")
    return path


def test_counts(path: Path) -> None:
    result = inspect(path)
    assert (result.pairs, result.unreadable) == (len(PAIRS), 1)
    assert result.duplicates == pytest.approx(1 / len(PAIRS))
    assert {step for step, count in result.suspicious.items() if count} == {"swapped sides", "empty side"}
    assert sum(result.sides[0].histogram) == len(PAIRS)
    assert result.sides[0].histogram[0] == 1
    assert result.sides[0].chars == sum(len(src) for src, _ in PAIRS)
    assert max(result.sides[1].languages, key=lambda lang: result.sides[1].languages[lang]) == "zh"
    assert sum(result.sides[1].languages.values()) <= 1 + 1e-9
    assert len(result.random_pairs) == 10 and set(result.random_pairs) <= set(PAIRS)
    assert ("swapped sides", "你好世界", "hello world") in result.suspicious_pairs


def test_the_same_seed_shows_the_same_pairs(path: Path) -> None:
    shown = [inspect(path, seed=seed).random_pairs for seed in (1, 1, 2)]
    assert shown[0] == shown[1] != shown[2]


def test_terminal_and_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--src", "en", "--tgt", "zh"]) == 0
    shown = capsys.readouterr().out
    for part in (f"{len(PAIRS)} pairs", "█", "swapped sides", "random pairs", "你好世界"):
        assert part in shown
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == len(PAIRS)


def test_a_prepared_folder(path: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean.tsv"
    clean.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    prepare(PrepareConfig(out=str(tmp_path / "out"), corpora=[CorpusConfig(files=[str(clean)])], heldout=5, workers=1))
    result = inspect(tmp_path / "out")
    assert sum(result.suspicious.values()) == 0
    assert result.duplicates == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.tsv"], "no such file"),
        (["{path}", "--columns", "1"], "expected two"),
        (["{path}", "--format", "aligned"], "1 file; expected source and target"),
        (["{path}", "--format", "word"], "--format word"),
    ],
)
def test_bad_words(path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *(word.format(path=path) for word in words)]) == 2
    assert message in capsys.readouterr().err


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_text("")
    with pytest.raises(DataError, match="no pairs"):
        inspect(tmp_path / "e.tsv")


@pytest.mark.parametrize(("share", "length"), [(1.0, 40), (0.5, 20), (0.0001, 1)])
def test_bars(share: float, length: int) -> None:
    assert len(bar(share)) == 40
    assert len(bar(share).rstrip()) == length


def test_a_file_that_breaks_off_is_inspected_up_to_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The pairs before the damage count, which is one unreadable line, unless lines must not be skipped."""
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{src}</seg></tuv><tuv xml:lang="zh"><seg>{tgt}</seg></tuv></tu>\n'
        for src, tgt in PAIRS[:20]
    )
    path = tmp_path / "cut.tmx"
    path.write_text(f'<tmx version="1.4"><header/><body>\n{units}<tu', encoding="utf-8")
    result = inspect(path)
    assert (result.pairs, result.unreadable) == (20, 1)
    assert len(caplog.messages) == 1 and "malformed XML" in caplog.messages[0]
    with pytest.raises(DataError, match=r"cut\.tmx:\d+: malformed XML"):
        inspect(path, on_error="stop")
    with pytest.raises(ConfigError, match="on_error no; expected one of stop, skip"):
        inspect(path, on_error="no")


def test_the_first_unreadable_line_can_stop(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--on-error", "stop"]) == 2
    assert f"{path}:{len(PAIRS) + 1}: 1 tab-separated column; expected" in capsys.readouterr().err
