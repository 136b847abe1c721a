"""The demo: trains a tiny pair of encoders on generated sentences, then searches, mines and reports with them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dualmoco.core.errors import RunError
from dualmoco.core.storage import write_text
from dualmoco.data.pairs import load_pairs
from dualmoco.embeddings.engines.local import LocalEngine
from dualmoco.evaluation.evaluate import evaluate
from dualmoco.evaluation.report.page import as_page
from dualmoco.evaluation.tasks import TaskSettings, build_tasks
from dualmoco.mining.mine import Known, MineSettings, Side, mine_files
from dualmoco.models.model import Model
from dualmoco.models.opening import open_encoder
from dualmoco.training.config import TrainConfig
from dualmoco.training.run import train

QUERIES = 4
NEIGHBOURS = 3
SHOWN_PAIRS = 5


def run_demo(config: TrainConfig) -> None:
    """Trains a model, queries it, mines with it and writes a report, telling each step on standard output.

    Args:
        config: Settings of the training; a run that is already in its folder is replaced.

    Raises:
        RunError: The folder holds something else than a run.
    """
    out = Path(config.out)
    _clear(out)
    src, tgt = config.src.lang, config.tgt.lang
    _say(f"1. Training {src}-{tgt} encoders on {', '.join(config.data.train)}")
    result = train(config)
    if result.best is None:
        raise RunError(f"{out}: {result.stop} before the first evaluation, so there is no model; run the demo again")
    _say(
        f"   held-out retrieval, mean of both directions: {100 * result.before.score:.1f} % before, "
        f"{100 * result.best:.1f} % after {result.step} steps ({result.seconds:.0f} s)"
    )
    src_texts, tgt_texts = load_pairs(config.data, seed=config.seed).heldout.texts()
    _search(out / "model", (src, tgt), src_texts, tgt_texts)
    _mine(out, (src, tgt), src_texts, tgt_texts)
    _report(out, (src, tgt), src_texts, tgt_texts)
    _say(
        "\nThe model opens in sentence-transformers too: "
        f"SentenceTransformer('{out}/model').encode(texts, task='{tgt}')"
    )


def _search(folder: Path, langs: tuple[str, str], src_texts: Sequence[str], tgt_texts: Sequence[str]) -> None:
    """Shows the nearest sentences of some that the model never saw."""
    src, tgt = langs
    _say(f"2. Opening {folder}: nearest of {len(tgt_texts):,} held-out {tgt} sentences for some {src} ones")
    model = Model.load(folder)
    scores = model.similarity(model.encode(src_texts[:QUERIES], lang=src), model.encode(tgt_texts, lang=tgt))
    for row, query in enumerate(src_texts[:QUERIES]):
        _say(f"\n   {query}")
        for column in np.argsort(-scores[row])[:NEIGHBOURS].tolist():
            _say(f"   {scores[row, column]:6.3f}  {tgt_texts[column]}{'   <- its translation' * (column == row)}")


def _mine(out: Path, langs: tuple[str, str], src_texts: Sequence[str], tgt_texts: Sequence[str]) -> None:
    """Hides a third of the held-out pairs among sentences without translation, and mines them back."""
    third = len(src_texts) // 3
    sides = (src_texts[: 2 * third], [*tgt_texts[:third], *tgt_texts[2 * third :]][::-1])
    files = [Side(out / "texts" / f"{lang}.txt", lang) for lang in langs]
    for file, texts in zip(files, sides, strict=True):
        write_text(file.path, "".join(f"{text}\n" for text in texts))
    gold = [(line + 1, len(sides[1]) - line) for line in range(third)]
    _say(f"\n3. Mining {third:,} pairs hidden in {files[0].path} and {files[1].path}, {len(sides[0]):,} lines each")
    settings = MineSettings(str(out))
    mined = mine_files(files[0], files[1], settings, out / "pairs.tsv", out / "work", LocalEngine(), Known(gold=gold))
    shutil.rmtree(out / "work")
    rows = [line.split("\t") for line in (out / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    found = len({(int(row[5]), int(row[6])) for row in rows} & set(gold))
    _say(f"   {len(mined.pairs):,} pairs in {out}/pairs.tsv, {found:,} of the hidden ones among them; the best:")
    for score, src, tgt, *_ in rows[:SHOWN_PAIRS]:
        _say(f"   {float(score):6.3f}  {src}  {tgt}")


def _report(out: Path, langs: tuple[str, str], src_texts: Sequence[str], tgt_texts: Sequence[str]) -> None:
    """Evaluates on the held-out pairs in the layouts of the real test sets, and writes the page."""
    src, tgt = langs
    pair, folder, third = f"{tgt}-{src}", out / "eval", len(src_texts) // 3
    for lang, texts in zip(langs, (src_texts, tgt_texts), strict=True):
        write_text(folder / "tatoeba" / f"tatoeba.{pair}.{lang}", "".join(f"{text}\n" for text in texts))
    parts = {src: src_texts[: 2 * third], tgt: [*tgt_texts[:third], *tgt_texts[2 * third :]]}
    for lang, texts in parts.items():
        lines = [f"{lang}-{number}\t{text}\n" for number, text in enumerate(texts)]
        write_text(folder / "bucc2018" / f"{pair}.dev.{lang}", "".join(lines))
    gold = [f"{tgt}-{number}\t{src}-{number}\n" for number in range(third)]
    write_text(folder / "bucc2018" / f"{pair}.dev.gold", "".join(gold))
    tasks = build_tasks(["tatoeba", "bucc"], TaskSettings(folder, (pair,)))
    write_text(out / "report.html", as_page(evaluate(open_encoder(str(out)), tasks)))
    _say(f"\n4. A report with plots, on held-out sentences of the same generator: {out}/report.html")


def _clear(out: Path) -> None:
    if out.exists():
        if not (out / "config.yaml").is_file():
            raise RunError(f"{out}: holds no run; the demo replaces only runs: choose another folder with --out")
        shutil.rmtree(out)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
