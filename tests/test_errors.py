"""Tests of what is said where an optional package is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dualmoco.cli.main import main
from dualmoco.core.errors import ConfigError, require
from dualmoco.data.grammar import generate_pairs


def test_a_package_that_is_there_is_imported() -> None:
    """The module itself is given, also one inside a package."""
    assert require("json", "data", "Nothing") is json
    assert require("os.path", "data", "Nothing").basename("a/b") == "b"


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inner"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(module: str) -> None:
    """One line says what needs which package, and what to type."""
    with pytest.raises(ConfigError) as caught:
        require(module, "data", "Parquet")
    assert str(caught.value) == "Parquet needs the package no_such_package; pip install 'dualmoco[data]'"


def test_a_package_that_is_there_but_broken_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a package lacks itself is not blamed on the extra."""
    (tmp_path / "broken_package.py").write_text("import no_such_package\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        require("broken_package", "data", "Parquet")


def test_messages_are_one_line() -> None:
    """What a message quotes of a damaged file neither breaks the line nor controls the terminal."""
    assert str(ConfigError("a\nb\x1b[31mc\u2028d: 你好  e")) == "a b [31mc d: 你好  e"


OPTIONAL = ("polib", "pyarrow", "omegaconf", "datasets")
WITHOUT_EXTRAS = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from pathlib import Path
from dualmoco.core.errors import ConfigError
from dualmoco.data.text_column import sentence_ids
from dualmoco.text.characters import normalize
from dualmoco.data.readers.formats import read_pairs
from dualmoco.data.readers.base import Source
from dualmoco.text.files import read_lines, read_table

def pairs(name):
    return [(row.src, row.tgt) for row in read_pairs(Source(Path(name), "en", "zh"), report=lambda line, what: None)]

assert normalize("Hello, 漢語!") == "hello汉语"
assert len(set(sentence_ids(["漢語", "汉语。", "other"]).tolist())) == 2
assert list(read_lines(Path("a.tsv"))) == ["one\\t一"] and read_table(Path("a.tsv"), [1]) == [(1, ["一"])]
assert pairs("a.tsv") == [("one", "一")]
for name in sys.argv[1:]:
    try:
        pairs(name)
    except ConfigError as error:
        print(error)
"""


def test_plain_text_needs_no_optional_package(tmp_path: Path) -> None:
    """Lines and pairs of plain text are read and compared without the extras; other formats name what they need."""
    (tmp_path / "a.tsv").write_text("one\t一\n", encoding="utf-8")
    names = ["a.parquet", "a.arrow", "a.po", "a.tsv.zst"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, *names], cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{what} needs the package {package}; pip install 'dualmoco[data]'"
        for what, package in (
            ("A Parquet file", "pyarrow"),
            ("An Arrow file", "pyarrow"),
            ("A gettext catalogue", "polib"),
            ("A .zst file", "pyarrow"),
        )
    ]


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from dualmoco.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("accelerate", ["train", "tiny"], "train"),
        ("omegaconf", ["train", "tiny"], "train"),
        ("matplotlib", ["visualize", "pairs.tsv"], "eval"),
        ("omegaconf", ["data", "list"], "data"),
    ],
)
def test_a_command_names_the_extra_it_needs(tmp_path: Path, package: str, words: list[str], extra: str) -> None:
    """One line with the command that installs what is missing, and exit code 2."""
    done = subprocess.run(
        [sys.executable, "-c", ABSENT, package, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.endswith(f"needs the package {package}; pip install 'dualmoco[{extra}]'\n")
    assert done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


def test_the_demo_names_the_extra_of_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it does anything."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 2
    said = capsys.readouterr()
    assert said == ("", "dualmoco: A report page needs the package matplotlib; pip install 'dualmoco[eval]'\n")
    assert not list(tmp_path.iterdir())


EXTRAS = (
    "accelerate",
    "datasets",
    "faiss",
    "jinja2",
    "matplotlib",
    "omegaconf",
    "onnx",
    "onnxruntime",
    "polib",
    "pyarrow",
    "ray",
    "tensorboard",
    "zhplot",
)


def test_the_base_encodes_searches_and_mines(tiny_model: Path, tmp_path: Path) -> None:
    """With every package of every extra missing; what needs one says so in a line before it begins."""
    for lang, texts in zip(("en", "zh"), zip(*generate_pairs(40, seed=3), strict=True), strict=True):
        (tmp_path / f"{lang}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    code = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from dualmoco.cli.main import main
for words in (
    "encode en.txt --lang en --out vectors", "mine en.txt zh.txt --out pairs.tsv", "mine en.txt zh.txt --out pairs.tmx",
    "paraphrases en.txt --lang en --out same.tsv", "score en.txt --tgt-file zh.txt --out scored.tsv",
    "search build index en=en.txt zh=zh.txt", "similarity Hello. 你好。",
):
    assert main([*words.split(), "--model", {str(tiny_model)!r}]) == 0, words
assert main("search query index Hello. --lang en --no-exact-match".split()) == 0
for options in ("--out pairs.parquet", "--out other.tsv --approximate", "--out other.tsv --engine ray"):
    assert main(["mine", "en.txt", "zh.txt", *options.split(), "--model", {str(tiny_model)!r}]) == 2
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "pip install" in line]
    assert [line.partition("pip install ")[2] for line in said] == [
        f"'dualmoco[{extra}]'" for extra in ("data", "faiss", "ray")
    ]
