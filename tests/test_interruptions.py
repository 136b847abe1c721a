"""Real signals to real commands: one line says what is kept, and the same command again gives the same result."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualmoco.data.grammar import generate_pairs

LINES = 2000
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
ROUNDS = max(1, int(os.environ.get("DUALMOCO_FUZZ", "50")) // 50)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, and their pairs."""
    folder = tmp_path_factory.mktemp("texts")
    pairs = [(f"{src} {n}", f"{tgt} {n}") for n, (src, tgt) in enumerate(generate_pairs(LINES, seed=5))]
    for name, lines in (("en.txt", [src for src, _ in pairs]), ("zh.txt", [tgt for _, tgt in pairs])):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "pairs.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    return folder


def commands(folder: Path, model: Path, out: Path) -> dict[str, list[str]]:
    """Commands that write to `out`."""
    chosen = ["--model", str(model)]
    return {
        "prepare": f"{folder}/pairs.tsv --src en --tgt zh heldout=0 workers=2 --out {out}".split(),
        "encode": [f"{folder}/en.txt", "--lang", "en", "--shard-rows", "50", *chosen, "--out", str(out)],
        "score": [f"{folder}/pairs.tsv", "--shard-rows", "50", *chosen, "--out", str(out.with_suffix(".tsv"))],
        "search build": [str(out), f"en={folder}/en.txt", *chosen],
    }


def start(name: str, words: list[str]) -> subprocess.Popen[str]:
    """Starts a command in a process of its own, in which Ctrl-C works."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from dualmoco.cli.main import main; print('ready', flush=True); sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *name.split(), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def results(out: Path) -> dict[str, bytes]:
    """The files of a command, by name; the record of `prepare` names its folder."""
    paths = [path for path in out.parent.rglob("*") if path.is_file()]
    return {str(path.relative_to(out.parent)): path.read_bytes() for path in paths if path.suffix != ".json"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["prepare", "encode", "score", "search build"])
def test_interrupted_commands_say_what_is_kept_and_are_repeated(
    name: str, folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """SIGINT, SIGTERM and SIGKILL at random moments change nothing about the result."""
    outs = [tmp_path / place / "out" for place in ("whole", "broken")]
    for out in outs:
        out.parent.mkdir()
    process = start(name, commands(folder, tiny_model, outs[0])[name])
    began = time.monotonic()
    assert process.communicate(timeout=200)[1].count("Traceback") == 0 and process.returncode == 0
    seconds, draw = time.monotonic() - began, random.Random(name)
    for sent in [signal.SIGINT, signal.SIGTERM, signal.SIGKILL] * ROUNDS:
        process = start(name, commands(folder, tiny_model, outs[1])[name])
        time.sleep(draw.uniform(0.1, 0.7) * seconds)
        process.send_signal(sent)
        error = process.communicate(timeout=200)[1]
        if process.returncode == 0:  # it was faster than the signal
            break
        assert process.returncode == (-sent if sent == signal.SIGKILL else 128 + sent), error
        if sent != signal.SIGKILL:
            assert error.splitlines()[-1].startswith(f"dualmoco: {WORDS[sent]}: "), error
            assert "run the same command again" in error.splitlines()[-1] and "Traceback" not in error
    process = start(name, commands(folder, tiny_model, outs[1])[name])
    error = process.communicate(timeout=200)[1]
    assert process.returncode == 0 or "already exists" in error, error
    whole, broken = (results(out) for out in outs)
    assert whole == broken
