"""`dualmoco demo`: trains a tiny pair of encoders on generated sentences, then searches, mines and reports."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dualmoco.cli.options import add_verb, counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dualmoco.models.model import Model

RECIPE = "tiny"
QUERIES = 4
NEIGHBORS = 3
SHOWN_PAIRS = 5
ABOUT = "held-out sentences of the demo's grammar"


def add(verbs: Any) -> None:
    """Describes the verb."""
    demo = add_verb(
        verbs, "demo", "train a tiny pair of encoders and try them",
        "example:\n  dualmoco demo --out runs/demo",
    )  # fmt: skip
    demo.add_argument("--recipe", default=RECIPE, help="settings of the demo, a file or one that comes with dualmoco")
    demo.add_argument("--out", default="runs/demo", help="run folder; an older demo there is replaced")
    demo.add_argument("overrides", nargs="*", metavar="key=value", help="settings stronger than the recipe's")
    demo.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Trains a model, queries it, mines with it and writes a report, telling each step on standard output."""
    from dualmoco.training.config import load_config

    config = load_config(parsed.recipe, [*parsed.overrides, f"out={parsed.out}"])

    from pathlib import Path

    from dualmoco.data.pairs import load_pairs
    from dualmoco.evaluation.evaluate import require_page_packages
    from dualmoco.models.opening import open_model
    from dualmoco.training.run import train

    require_page_packages()
    out = Path(config.out)
    _clear(out)
    src, tgt = config.src.lang, config.tgt.lang
    _say(f"1. Training {src}-{tgt} encoders on {', '.join(config.data.train)}")
    result = train(config)
    if result.best is None or result.stop.startswith("SIG"):
        _say(f"   {result.stop} at step {result.step}: the demo ends here")
        return 1
    _say(
        f"   held-out retrieval, mean of both directions: {100 * result.before.score:.1f} % before, "
        f"{100 * result.best:.1f} % after {result.step} steps ({result.seconds:.0f} s)"
    )
    src_texts, tgt_texts = load_pairs(config.data, langs=(src, tgt), seed=config.seed).heldout.texts()
    model = open_model(out)
    _search(model, out, (src, tgt), src_texts, tgt_texts)
    _mine(model, out, (src, tgt), src_texts, tgt_texts)
    _report(model, out, (src, tgt), src_texts, tgt_texts)
    _say(
        "\nThe model opens in sentence-transformers too: "
        f"SentenceTransformer('{out}/model').encode(texts, task='{tgt}')"
    )
    return 0


def _search(
    model: Model, out: Path, langs: tuple[str, str], src_texts: Sequence[str], tgt_texts: Sequence[str]
) -> None:
    """Shows the nearest sentences of some that the model never saw."""
    import numpy as np

    src, tgt = langs
    _say(f"2. Opening {out}: nearest of {len(tgt_texts):,} held-out {tgt} sentences for some {src} ones")
    scores = model.similarity(model.encode(src_texts[:QUERIES], lang=src), model.encode(tgt_texts, lang=tgt))
    for row, query in enumerate(src_texts[:QUERIES]):
        _say(f"\n   {query}")
        for column in np.argsort(-scores[row])[:NEIGHBORS].tolist():
            _say(f"   {scores[row, column]:6.3f}  {tgt_texts[column]}{'   <- its translation' * (column == row)}")


def _mine(model: Model, out: Path, langs: tuple[str, str], src_texts: Sequence[str], tgt_texts: Sequence[str]) -> None:
    """Hides a third of the held-out pairs among sentences without translation, and mines them back."""
    from itertools import islice

    from dualmoco.core.storage import write_text
    from dualmoco.mining.api import mine

    third = len(src_texts) // 3
    sides = (src_texts[: 2 * third], [*tgt_texts[:third], *tgt_texts[2 * third :]][::-1])
    files = [out / "texts" / f"{lang}.txt" for lang in langs]
    for file, texts in zip(files, sides, strict=True):
        write_text(file, "".join(f"{text}\n" for text in texts))
    gold = [(line + 1, len(sides[1]) - line) for line in range(third)]
    _say(f"\n3. Mining {third:,} pairs hidden in {files[0]} and {files[1]}, {len(sides[0]):,} lines each")
    found = mine(*files, model=model, src_lang=langs[0], tgt_lang=langs[1], out=out / "pairs.tsv", gold=gold)
    right = len({(pair.src_line, pair.tgt_line) for pair in found} & set(gold))
    _say(f"   {counted(len(found), 'pair')} in {found.out}, {right:,} of the hidden ones among them; the best:")
    for pair in islice(found, SHOWN_PAIRS):
        _say(f"   {pair.score:6.3f}  {pair.src}  {pair.tgt}")


def _report(
    model: Model, out: Path, langs: tuple[str, str], src_texts: Sequence[str], tgt_texts: Sequence[str]
) -> None:
    """Evaluates on the held-out pairs in the layouts of the real test sets, and writes the page."""
    from dualmoco.core.storage import write_text
    from dualmoco.evaluation.evaluate import evaluate

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
    evaluation = evaluate(model, "tatoeba,bucc", data=folder, pairs=pair, about=ABOUT)
    evaluation.to_html(out / "report.html")
    _say(f"\n4. A report with plots, on {ABOUT}: {out}/report.html")


def _clear(out: Path) -> None:
    import shutil

    from dualmoco.core.errors import RunError

    if out.exists():
        if not (out / "config.yaml").is_file():
            raise RunError(f"{out}: holds no run; the demo replaces only runs: choose another folder with --out")
        shutil.rmtree(out)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
