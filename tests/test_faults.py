"""What happens to `encode` and `mine` when the machine fails them: one line, nothing lost, the same result later.

Commands run as processes of their own, as users run them.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dualmoco.cli.main import main
from dualmoco.core.storage import locked
from dualmoco.data.demo.grammar import generate_pairs

LINES = 3000
SMALL = 40_000
"""Bytes that fit the largest file of a run, but not its vectors."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """English and Chinese lines."""
    folder = tmp_path_factory.mktemp("texts")
    paths = folder / "en.txt", folder / "zh.txt"
    for path, side in zip(paths, zip(*generate_pairs(LINES, seed=5), strict=True), strict=True):
        path.write_text("".join(f"{line} {number}\n" for number, line in enumerate(side)), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def whole(texts: tuple[Path, Path], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The pairs of a run that was left alone."""
    out = tmp_path_factory.mktemp("whole") / "pairs.tsv"
    subprocess.run(mining(texts, tiny_model, out), check=True, capture_output=True)
    return out.read_bytes()


def mining(texts: tuple[Path, Path], model: Path, out: Path) -> list[str]:
    """The command, with as many files of vectors and candidates as such small texts can have."""
    options = ["--model", str(model), "--out", str(out), "--memory", "1k", "--shard-rows", "100", "--keep"]
    return [sys.executable, "-m", "dualmoco", "mine", str(texts[0]), str(texts[1]), *options]


def limit_files(size: int) -> Callable[[], None]:
    """What makes every file larger than a size fail in a process, as a full disk does."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize(
    ("sent", "stage"),
    [(signal.SIGINT, "src/00003.npy"), (signal.SIGKILL, "scan/*/src-00001*")],
)
def test_interrupted_mining_goes_on(
    texts: tuple[Path, Path], tiny_model: Path, whole: bytes, tmp_path: Path, sent: signal.Signals, stage: str
) -> None:
    """Ctrl-C and `kill -9` at several moments: the same command again writes the same file."""
    out = tmp_path / "pairs.tsv"
    process = subprocess.Popen(mining(texts, tiny_model, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and not list((tmp_path / "pairs.tsv.work").glob(stage)):
        time.sleep(0.002)
    process.send_signal(sent)
    _, said = process.communicate()
    assert process.returncode in (128 + sent, -sent) and b"Traceback" not in said
    assert not out.exists()
    vectors = {path: path.stat().st_mtime_ns for path in (tmp_path / "pairs.tsv.work").glob("*/0000[0-2].npy")}
    subprocess.run(mining(texts, tiny_model, out), check=True, capture_output=True)
    assert out.read_bytes() == whole
    assert vectors and all(path.stat().st_mtime_ns == written for path, written in vectors.items())


def test_full_disk_is_one_line_and_nothing_is_lost(
    texts: tuple[Path, Path], tiny_model: Path, whole: bytes, tmp_path: Path
) -> None:
    """The file that did not fit is not there in part; with room again the command goes on."""
    out = tmp_path / "pairs.tsv"
    said = subprocess.run(
        mining(texts, tiny_model, out), capture_output=True, text=True, preexec_fn=limit_files(SMALL), check=False
    )
    assert said.returncode == 2
    assert said.stderr.splitlines()[-1].endswith("cannot be written: File too large")
    assert "Traceback" not in said.stderr and not out.exists()
    assert not list(tmp_path.rglob("*.partial"))
    subprocess.run(mining(texts, tiny_model, out), check=True, capture_output=True)
    assert out.read_bytes() == whole


def test_closed_pipe_is_no_error(texts: tuple[Path, Path], tiny_model: Path, tmp_path: Path) -> None:
    """A reader that has gone, as `head` does, ends a command silently."""
    words = ["similarity", "--model", str(tiny_model), "--files", *map(str, texts)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dualmoco", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read().count("Traceback") == 0
    assert process.wait() == 128 + signal.SIGPIPE


def test_two_at_once_in_one_folder(
    texts: tuple[Path, Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is told, and the first's work is not touched."""
    work, vectors = tmp_path / "pairs.tsv.work", tmp_path / "vectors"
    encoding = ["encode", str(texts[0]), "--lang", "en", "--model", str(tiny_model), "--out", str(vectors)]
    for folder, words in ((work, mining(texts, tiny_model, tmp_path / "pairs.tsv")[3:]), (vectors, encoding)):
        with locked(folder):
            assert main(words) == 2
        expected = f"dualmoco: {folder}: another process is at work in it; expected one at a time: wait for it\n"
        assert capsys.readouterr().err == expected
        assert not folder.exists()
