"""`dualmoco demo`: shows what the embedded model can do on English-Chinese sentences written for it, and trains."""

from __future__ import annotations

import argparse
import csv
import signal
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from dualmoco.cli.options import add_command, add_overrides, counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dualmoco.models.model import Model
    from dualmoco.training.config import TrainConfig


DEMO_LANGS = ("en", "zh")
DEMO_RECIPE, DEMO_FOLDER = "tiny", "runs/demo"
DEMO_FILE = "demo.json"
"""The results of the demo; a folder without this file is never replaced."""
DEMO_COMPARISONS = (
    ("The ferry was cancelled because of the fog.", "因为有雾，渡轮停航了。"),
    ("The ferry was cancelled because of the fog.", "因為有霧，渡輪停航了。"),
    ("The ferry was cancelled because of the fog.", "渡轮今天准时出发。"),
    ("The ferry was cancelled because of the fog.", "请把汤再热一下。"),
)
"""A translation in both scripts, a sentence on the same topic, and an unrelated sentence."""
DEMO_QUERIES = (
    ("en", "When does the train leave for Milan?"),
    ("zh", "孩子晚上咳嗽怎么办？"),
    ("en", "a broken window"),
)
SHOWN_HITS, HIDDEN_PAIRS, SHOWN_PAIRS = 3, 100, 5
DEMO_ABOUT = "sentences written for the demo"
NEXT_STEPS = """
Try it on your own files, one sentence per line:
   dualmoco mine english.txt chinese.txt --out pairs.tsv
   dualmoco search build my.index en=english.txt zh=chinese.txt && dualmoco search query my.index "..." --lang en
   dualmoco score bitext.tsv --out clean.tsv
Or search, review mined pairs and correct alignments in the browser:
   dualmoco serve my-project
"""


class DemoPair(NamedTuple):
    """A sentence and its translation."""

    topic: str
    src: str
    tgt: str


def read_demo_pairs() -> list[DemoPair]:
    """Reads all sentences of the demo, by topic; Chinese is in simplified characters."""
    with files("dualmoco.data").joinpath("demo/sentences.tsv").open(encoding="utf-8") as stream:
        rows = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [DemoPair(*row) for row in rows]


def add(commands: Any) -> None:
    """Declares the command."""
    demo = add_command(
        commands,
        "demo",
        run,
        "try the embedded model, and train a tiny one",
        "examples:\n  dualmoco demo --out runs/demo",
    )
    add_overrides(demo)
    demo.add_argument(
        "--recipe",
        default=DEMO_RECIPE,
        metavar="RECIPE",
        help="recipe of the tiny model: a file, or the name of a packaged recipe",
    )
    demo.add_argument("--out", default=DEMO_FOLDER, metavar="FOLDER", help="write to FOLDER, replacing an earlier demo")


def run(parsed: argparse.Namespace) -> int:
    """Compares, searches, mines, reports and trains, and describes each step on standard output."""
    from pathlib import Path

    from dualmoco.core.storage import write_json, write_text
    from dualmoco.evaluation.evaluate import require_page_packages
    from dualmoco.models.load import open_model
    from dualmoco.training.recipe import load_config

    out = Path(parsed.out)
    config = load_config(parsed.recipe, [*parsed.overrides, f"out={out / DEMO_RECIPE}"])
    require_page_packages()
    model = open_model()
    _clear(out)
    write_json(out / DEMO_FILE, {"model": model.identity.name, "sha256": model.identity.sha256})
    pairs = read_demo_pairs()
    for side, lang in enumerate(DEMO_LANGS, start=1):
        write_text(out / f"{lang}.txt", "".join(f"{pair[side]}\n" for pair in pairs))
    _compare(model)
    _search(model, out)
    mined = _mine(model, out, pairs)
    _report(model, out, pairs)
    trained = _train(config)
    if isinstance(trained, str):
        return 128 + signal.Signals[trained]
    write_json(
        out / DEMO_FILE,
        {"model": model.identity.name, "sha256": model.identity.sha256, "mined": mined, "tiny": trained},
    )
    _say(NEXT_STEPS.rstrip())
    return 0


def _compare(model: Model) -> None:
    """Prints cosines across languages."""
    _say(f"1. Similarity: the model {model.identity.name}, which comes with dualmoco, compares across languages\n")
    for src, tgt in DEMO_COMPARISONS:
        cosine = float(model.similarity(model.encode([src], lang="en"), model.encode([tgt], lang="zh"))[0, 0])
        _say(f"   {cosine:6.3f}  {src}  {tgt}")


def _search(model: Model, out: Path) -> None:
    """Builds an index of both languages and prints the sentences nearest to some queries."""
    from dualmoco.search.index import open_index
    from dualmoco.search.index_update import build_index

    folder = out / "sentences.index"
    build_index(folder, {lang: out / f"{lang}.txt" for lang in ("en", "zh")}, model)
    index = open_index(folder, model)
    _say(f"\n2. Search: {len(index):,} English and Chinese sentences in {folder}, queried in either language")
    for lang, query in DEMO_QUERIES:
        _say(f"\n   {query}")
        for hit in index.search(query, lang=lang, k=SHOWN_HITS)[0]:
            _say(f"   {hit.score:6.3f}  {hit.text}")


def _mine(model: Model, out: Path, pairs: Sequence[DemoPair]) -> dict[str, float]:
    """Hides pairs among unrelated sentences, mines them, and prints precision and recall."""
    from itertools import islice

    from dualmoco.core.storage import write_text
    from dualmoco.mining.mine import mine

    sides, gold = hide_pairs(pairs)
    files = [out / "mining" / f"{lang}.txt" for lang in ("en", "zh")]
    for file, texts in zip(files, sides, strict=True):
        write_text(file, "".join(f"{text}\n" for text in texts))
    _say(f"\n3. Mining: {HIDDEN_PAIRS} pairs hidden in {files[0]} and {files[1]}, {len(sides[0])} lines each")
    found = mine(*files, model=model, out=out / "pairs.tsv")
    right = len({(pair.src_line, pair.tgt_line) for pair in found} & set(gold))
    precision, recall = right / max(1, len(found)), right / len(gold)
    if found.model_calibration:
        _say(f"   {found.model_calibration.describe()}")
    _say(
        f"   {counted(len(found), 'pair')} in {found.out}: {right} of the {HIDDEN_PAIRS} hidden ones, precision "
        f"{100 * precision:.1f} %, recall {100 * recall:.1f} %; the best:"
    )
    for pair in islice(found, SHOWN_PAIRS):
        _say(f"   {pair.score:6.3f}  {pair.src}  {pair.tgt}")
    return {"pairs": len(found), "precision": round(precision, 4), "recall": round(recall, 4)}


def hide_pairs(pairs: Sequence[DemoPair]) -> tuple[tuple[list[str], list[str]], list[tuple[int, int]]]:
    """Makes two texts that share some pairs; all other sentences have no translation in the other text.

    Args:
        pairs: Sentences of the demo.

    Returns:
        The shuffled lines of both texts, and the line numbers (from 1) of the shared pairs.
    """
    import numpy as np

    order = np.random.default_rng(0).permutation(len(pairs))
    half = (len(pairs) - HIDDEN_PAIRS) // 2
    taken = [
        np.concatenate([order[:HIDDEN_PAIRS], order[HIDDEN_PAIRS + at * half : HIDDEN_PAIRS + (at + 1) * half]])
        for at in (0, 1)
    ]
    mixed = [np.random.default_rng(seed).permutation(rows).tolist() for seed, rows in zip((1, 2), taken, strict=True)]
    texts = [pairs[row].src for row in mixed[0]], [pairs[row].tgt for row in mixed[1]]
    return texts, [(mixed[0].index(row) + 1, mixed[1].index(row) + 1) for row in order[:HIDDEN_PAIRS].tolist()]


def _report(model: Model, out: Path, pairs: Sequence[DemoPair]) -> None:
    """Evaluates on the same sentences, in the layout of test sets, and writes a page."""
    from dualmoco.core.storage import write_text
    from dualmoco.evaluation.evaluate import evaluate

    (en, zh), gold = hide_pairs(pairs)
    folder = out / "eval"
    for lang, texts in (("en", [pair.src for pair in pairs]), ("zh", [pair.tgt for pair in pairs])):
        write_text(folder / "tatoeba" / f"tatoeba.zh-en.{lang}", "".join(f"{text}\n" for text in texts))
    for lang, texts in (("en", en), ("zh", zh)):
        lines = [f"{lang}-{number}\t{text}\n" for number, text in enumerate(texts, start=1)]
        write_text(folder / "bucc2018" / f"zh-en.dev.{lang}", "".join(lines))
    write_text(folder / "bucc2018" / "zh-en.dev.gold", "".join(f"zh-{tgt}\ten-{src}\n" for src, tgt in gold))
    evaluate(model, "tatoeba,bucc", data=folder, about=DEMO_ABOUT).to_html(out / "report.html")
    _say(f"\n4. A report with plots, on {len(pairs)} {DEMO_ABOUT}: {out}/report.html")


def _train(config: TrainConfig) -> dict[str, float] | str:
    """Trains a tiny pair of encoders on generated text; the name of the signal if training was interrupted."""
    from dualmoco.evaluation.training_scores import train_and_score

    _say(
        f"\n5. Training: a tiny {config.src.lang}-{config.tgt.lang} pair of encoders on generated sentences "
        f"({', '.join(config.data.train)})"
    )
    result = train_and_score(config)
    if result.best is None or result.stop.startswith("SIG"):
        _say(f"   {result.stop} at step {result.step}: the demo stops here")
        return result.stop
    _say(
        f"   held-out retrieval, mean of both directions: {100 * result.before.score:.1f} % before, "
        f"{100 * result.best:.1f} % after {result.step} steps ({result.seconds:.0f} s); it only knows the "
        "words of its grammar\n"
        f"   sentence-transformers can open it too: SentenceTransformer('{config.out}/model').encode(texts, "
        f"task='{config.tgt.lang}')"
    )
    return {"before": result.before.score, "after": result.best, "steps": result.step}


def _clear(out: Path) -> None:
    import shutil

    from dualmoco.core.errors import RunError

    if out.exists():
        if not (out / DEMO_FILE).is_file():
            raise RunError(f"{out}: not a demo; expected a new folder or an earlier demo, so choose another with --out")
        shutil.rmtree(out)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
