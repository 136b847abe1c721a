"""What happens to `encode` and `mine` when the machine fails them: one line, nothing lost, the same result later.

Commands run as processes of their own, as users run them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from commands import Moment, end_command, run_command, start_command
from dualmoco.cli.main import main
from dualmoco.core.storage import locked
from dualmoco.data.grammar import generate_pairs

LINES = 3000
SMALL = 40_000
"""Bytes that fit the largest file of a run, but not its vectors."""
ENCODED = "dualmoco.embeddings.store", "Store.add"
REPLACED = "pathlib", "Path.replace"
SCANNED = "dualmoco.mining.knn", "RunFile.add"
MOMENTS = [
    Moment(signal.SIGINT, *ENCODED, call=4),
    Moment(signal.SIGKILL, *REPLACED, call=5, after=False),  # what is written lies beside its place
    Moment(signal.SIGINT, *SCANNED, call=6),
    Moment(signal.SIGKILL, *SCANNED, call=3),  # candidates of one side of a block are written, the other's are not
    Moment(signal.SIGKILL, "dualmoco.mining.mine", "write_pairs", after=False),
]


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
    folder = tmp_path_factory.mktemp("whole")
    assert run_command(mining(texts, tiny_model, folder / "pairs.tsv"), folder / "said").code == 0
    return (folder / "pairs.tsv").read_bytes()


def mining(texts: tuple[Path, Path], model: Path, out: Path) -> list[str]:
    """The command, with as many files of vectors and candidates as such small texts can have."""
    options = ["--model", str(model), "--out", str(out), "--memory", "1k", "--shard-rows", "100", "--keep"]
    return ["mine", str(texts[0]), str(texts[1]), *options]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_interrupted_mining_is_resumed(
    texts: tuple[Path, Path], tiny_model: Path, whole: bytes, tmp_path: Path, moment: Moment
) -> None:
    """Ctrl-C and `kill -9` at several moments: the same command again writes the same file."""
    out, words = tmp_path / "pairs.tsv", mining(texts, tiny_model, tmp_path / "pairs.tsv")
    stopped = run_command(words, tmp_path / "said", moment=moment)
    assert stopped.code == (128 + signal.SIGINT if moment.sent == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in stopped.error and not out.exists()
    vectors = {path: path.stat().st_mtime_ns for path in (tmp_path / "pairs.tsv.work").glob("*/0000[0-2].npy")}
    assert run_command(words, tmp_path / "said").code == 0
    assert out.read_bytes() == whole
    assert vectors and all(path.stat().st_mtime_ns == written for path, written in vectors.items())


def test_full_disk_is_one_line_and_nothing_is_lost(
    texts: tuple[Path, Path], tiny_model: Path, whole: bytes, tmp_path: Path
) -> None:
    """The file that did not fit is not there in part; with room again the command is resumed."""
    out, words = tmp_path / "pairs.tsv", mining(texts, tiny_model, tmp_path / "pairs.tsv")
    stopped = run_command(words, tmp_path / "said", largest=SMALL)
    assert stopped.code == 2
    assert stopped.error.splitlines()[-1].endswith("cannot be written: File too large")
    assert "Traceback" not in stopped.error and not out.exists()
    assert not list(tmp_path.rglob("*.partial"))
    assert run_command(words, tmp_path / "said").code == 0
    assert out.read_bytes() == whole


def test_closed_pipe_is_no_error(texts: tuple[Path, Path], tiny_model: Path, tmp_path: Path) -> None:
    """A reader that has gone, as `head` does, ends a command silently: it has more to say than a pipe holds."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start_command(["similarity", "--model", str(tiny_model), *map(str, texts)], pipe)
    with pipe.open("rb", buffering=0) as reader:
        assert reader.read(1)
    ended = end_command(process, pipe)
    assert ended.code == 128 + signal.SIGPIPE and "Traceback" not in ended.error


def test_two_at_once_in_one_folder(
    texts: tuple[Path, Path], tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second says so, and the first's work is not touched."""
    work, vectors = tmp_path / "pairs.tsv.work", tmp_path / "vectors"
    encoding = ["encode", str(texts[0]), "--lang", "en", "--model", str(tiny_model), "--out", str(vectors)]
    for folder, words in ((work, mining(texts, tiny_model, tmp_path / "pairs.tsv")), (vectors, encoding)):
        with locked(folder):
            assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"dualmoco: {folder}: ") and "another process" in said and said.count("\n") == 1
        assert not folder.exists()


@pytest.mark.parametrize("name", ["prepare", "export"])
def test_two_commands_that_write_one_folder(
    name: str, texts: tuple[Path, Path], tiny_model: Path, tmp_path: Path
) -> None:
    """While the first one is in the middle of writing, the second one says so in one line; the first one finishes."""
    out = tmp_path / "out"
    words, moment = {
        "prepare": (
            ["prepare", *map(str, texts), "--format", "aligned", "workers=1", "--out", str(out)],
            Moment(signal.SIGSTOP, "dualmoco.data.prepare", "write_shards", after=False),
        ),
        "export": (
            ["export", str(tiny_model), "--lang", "en", "--to", "sentence-transformers", "--out", str(out)],
            Moment(signal.SIGSTOP, "dualmoco.models.export", "_write_part", after=False),
        ),
    }[name]
    first = start_command(words, tmp_path / "first", moment=moment)
    state = psutil.Process(first.pid)
    while state.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
        time.sleep(0.05)
    try:
        second = run_command(words, tmp_path / "second")
    finally:
        state.resume()
        finished = end_command(first, tmp_path / "first")
    assert second.code == 2
    assert second.error.splitlines()[-1] == (
        f"dualmoco: {out}: in use by another process; wait until that process has finished"
    )
    assert finished.code == 0, finished.error
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out"]
    again = run_command([*words[:-1], str(tmp_path / "alone")], tmp_path / "third")
    assert again.code == 0, again.error
    files = [sorted(path.name for path in folder.iterdir()) for folder in (out, tmp_path / "alone")]
    assert files[0] == files[1] and len(files[0]) > 1
