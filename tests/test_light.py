"""The base runs without PyTorch and all that comes with it: their import is forbidden here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
HEAVY = "accelerate datasets faiss huggingface_hub onnx scipy sentence_transformers sklearn torch transformers"
EXTRAS = "jinja2 matplotlib omegaconf pyarrow"
RUNNER = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

FORBIDDEN = set(sys.argv[1].split())
sys.meta_path.insert(0, Forbid())
from dualmoco.cli.main import main
for line in sys.argv[2:]:
    if status := main(line.split("\\n")):
        sys.exit(status)
"""


def run(*commands: tuple[str | Path, ...], forbidden: str = f"{HEAVY} {EXTRAS}") -> subprocess.CompletedProcess[str]:
    """Runs commands, up to one that fails, in a process where some packages cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", RUNNER, forbidden, *("\n".join(map(str, words)) for words in commands)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def succeed(*commands: tuple[str | Path, ...]) -> list[str]:
    """The lines that commands print which need none of these packages."""
    done = run(*commands)
    assert not done.returncode, done.stderr[-1500:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("model", ["en-zh", "en-zh-static"])
def test_the_base_needs_no_pytorch(model: str, tmp_path: Path) -> None:
    """Similarities, vectors, search, mining, scores and paraphrases of the embedded models."""
    given, en, zh, index = ("--model", model), EXAMPLES / "en.txt", EXAMPLES / "zh.txt", tmp_path / "my.index"
    said = succeed(
        ("similarity", "It is raining.", "下雨了。", *given),
        ("encode", en, "--out", tmp_path / "vectors", *given),
        ("search", "build", index, f"zh={zh}", *given),
        ("search", "query", index, "Which bus goes to the old town?", "-k", "1"),
        ("mine", en, zh, "--out", tmp_path / "pairs.tsv", *given),
        ("score", EXAMPLES / "pairs.tsv", "--out", tmp_path / "scored.tsv", *given),
        ("paraphrases", en, "--out", tmp_path / "same.tsv", *given),
    )
    assert float(said[0].split()[0]) > 0.5
    assert any("请问去老城区坐哪路公交车？" in line for line in said)
    for name in ("pairs", "scored"):
        assert "\t" in (tmp_path / f"{name}.tsv").read_text(encoding="utf-8")
    assert (tmp_path / "vectors").is_dir() and (tmp_path / "same.tsv").is_file()


def test_evaluation_needs_no_pytorch() -> None:
    """Of a model that is not a network of PyTorch."""
    words = ("evaluate", "en-zh-static", "--tasks", "tatoeba", "--data", EXAMPLES)
    done = run(words, forbidden=HEAVY)
    assert not done.returncode and "en-zh-static" in done.stdout, done.stderr[-1500:]
    done = run((*words, "--postprocessing", "whitening"), forbidden=HEAVY)
    assert done.stderr == "dualmoco: Post-processing needs the package torch; pip install 'dualmoco[torch]'\n"


def test_alignment_needs_its_own_extra_alone(tmp_path: Path) -> None:
    """`align` with numba and what reads documents."""
    out = tmp_path / "story.tsv"
    succeed(("align", EXAMPLES / "story.en.txt", EXAMPLES / "story.zh.txt", "--out", out))
    assert "\t" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_a_back_end_that_needs_pytorch_says_what_to_install(backend: str) -> None:
    """In one line."""
    done = run(("similarity", "a", "b", "--src", "en", "--tgt", "zh", "--backend", backend), forbidden=HEAVY)
    assert done.returncode and len(done.stderr.strip().splitlines()) == 1
    assert "pip install 'dualmoco[torch]'" in done.stderr


def test_a_model_that_needs_pytorch_says_what_to_install(tmp_path: Path) -> None:
    """A folder of sentence-transformers, and a name of the hub."""
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    for name in (str(folder), "owner/name"):
        done = run(("similarity", "a", "b", "--model", name), forbidden=HEAVY)
        assert done.returncode and len(done.stderr.strip().splitlines()) == 1
        assert "pip install 'dualmoco[torch]'" in done.stderr
