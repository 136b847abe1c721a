"""The demo: trains a tiny pair of encoders on generated sentences, opens the saved model again and uses it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np

from dualmoco.config import TrainConfig
from dualmoco.corpus.pairs import load_pairs
from dualmoco.errors import RunError
from dualmoco.model import Model
from dualmoco.training import train

QUERIES = 4
NEIGHBOURS = 3


def run_demo(config: TrainConfig) -> None:
    """Trains, saves, opens and queries a model, telling each step on standard output.

    Args:
        config: Settings of the training; a run that is already in its folder is replaced.

    Raises:
        RunError: The folder holds something else than a run.
    """
    out = config.out
    _clear(Path(out))
    src, tgt = config.src.lang, config.tgt.lang
    _say(f"1. Training {src}-{tgt} encoders on {', '.join(config.data.train)}")
    result = train(config)
    _say(
        f"   held-out retrieval, mean of both directions: {100 * result.before.score:.1f} % before, "
        f"{100 * result.best:.1f} % after {result.step} steps ({result.seconds:.0f} s)"
    )
    _say(f"2. Opening {out}/model")
    model = Model.load(Path(out) / "model")
    src_texts, tgt_texts = load_pairs(config.data, seed=config.seed).heldout.texts()
    _say(f"3. Nearest of {len(tgt_texts):,} held-out {tgt} sentences for some {src} ones the model never saw")
    scores = model.similarity(model.encode(src_texts[:QUERIES], lang=src), model.encode(tgt_texts, lang=tgt))
    for row, query in enumerate(src_texts[:QUERIES]):
        _say(f"\n   {query}")
        for column in np.argsort(-scores[row])[:NEIGHBOURS].tolist():
            _say(f"   {scores[row, column]:6.3f}  {tgt_texts[column]}{'   <- its translation' * (column == row)}")
    _say(
        "\nThe model opens in sentence-transformers too: "
        f"SentenceTransformer('{out}/model').encode(texts, task='{tgt}')"
    )


def _clear(out: Path) -> None:
    if out.exists():
        if not (out / "config.yaml").is_file():
            raise RunError(f"{out}: holds no run; the demo replaces only runs: choose another folder with --out")
        shutil.rmtree(out)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
