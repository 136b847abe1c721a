"""Models in forked processes and in several threads at once; what hangs is ended after a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dualmoco.data.grammar import generate_pairs
from dualmoco.models.backends import static as wordcache
from dualmoco.models.backends.static import TokenRuns, WordCache
from dualmoco.models.build import build_encoders
from dualmoco.models.config import EncoderConfig, EncoderKind
from dualmoco.models.export import export_model
from dualmoco.models.network import save_encoders
from dualmoco.models.pack import pack_model
from dualmoco.models.tokenizer import train_tokenizer

EN, ZH = ([*side] for side in zip(*generate_pairs(60, seed=8), strict=True))
SECONDS = 100
FORK = """
import os, signal, sys
import numpy as np, torch
import dualmoco

texts = [f"Tom bought {number} books." for number in range(200)]
torch.randn(1500, 1500) @ torch.randn(1500, 1500)  # starts the threads of OpenMP
for name in sys.argv[1:]:
    model = dualmoco.load(name)
    expected = model.encode(texts, lang="en", progress=False)
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a process that hangs
        found = model.encode(texts, lang="en", progress=False)
        os._exit(0 if np.allclose(found, expected, atol=1e-5) else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(model.backend("en").name, status, np.array_equal(model.encode(texts, lang="en"), expected))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_models_encode_after_a_fork(tmp_path: Path) -> None:
    """In the new process as in the old one, with every back-end that has threads."""
    torch.manual_seed(3)
    src, tgt = (
        EncoderConfig(lang, EncoderKind.bert, width=32, layers=2, heads=2, vocab_size=400) for lang in ("en", "zh")
    )
    save_encoders(build_encoders(src, tgt, {"en": EN, "zh": ZH}), tmp_path / "torch")
    pack_model(tmp_path / "torch", tmp_path / "int8")
    export_model(str(tmp_path / "torch"), "en", "onnx", tmp_path / "onnx")
    names = ["torch", "int8", "onnx"]
    done = subprocess.run(
        [sys.executable, "-c", FORK, *(str(tmp_path / name) for name in names)],
        env=os.environ | {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{name} 0 True" for name in names], done.stderr[-2000:]


def test_threads_share_the_words_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that one thread forgets are still there for another one."""
    monkeypatch.setattr(wordcache, "MOST_WORDS", 40)
    tokenizer = train_tokenizer([*EN, "a0 b1 c2 d3"], 300, 16, special_tokens=False)
    cache = WordCache(tokenizer)
    interval = sys.getswitchinterval()

    blocks = [[f"a{block} b{number % 90} c{block % 7}" for number in range(400)] for block in range(40)]
    encoded = [tokenizer.encode_batch(block, add_special_tokens=False) for block in blocks]
    expected = [TokenRuns.of([one.ids for one in block]) for block in encoded]

    def tokenize(thread: int) -> bool:
        found = [cache.tokens(block) for block in blocks[thread:] + blocks[:thread]]
        right = expected[thread:] + expected[:thread]
        return all(np.array_equal(np.concatenate(a), np.concatenate(b)) for a, b in zip(found, right, strict=True))

    try:
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(tokenize, range(8), timeout=SECONDS)) == [True] * 8
    finally:
        sys.setswitchinterval(interval)
