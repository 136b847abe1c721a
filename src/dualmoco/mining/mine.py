"""Two text files to the parallel sentences in them: `dualmoco mine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dualmoco.core.errors import DataError
from dualmoco.core.storage import write_text
from dualmoco.core.version import VERSION
from dualmoco.embeddings.encode import encode_file
from dualmoco.embeddings.engine import Engine, LocalEngine
from dualmoco.embeddings.store import Store
from dualmoco.embeddings.unique_lines import TextFile
from dualmoco.mining.io import GoldPairs, PairTable, sentences_at, write_pairs
from dualmoco.mining.knn import MineSettings, find_neighbors
from dualmoco.mining.margins import ScoredPairs, select_pairs
from dualmoco.mining.results import MiningResult
from dualmoco.mining.threshold import Calibration, calibrate
from dualmoco.models.model import Model
from dualmoco.text.files import read_lines


@dataclass(frozen=True)
class Narrowing:
    """What leaves sentences out before they are encoded."""

    apply: Callable[[Sequence[TextFile]], Sequence[TextFile]]
    """Both texts to copies in which some lines are empty."""
    origin: Mapping[str, object]
    """What it is, for the manifest."""


def mine_files(
    src: TextFile,
    tgt: TextFile,
    model: Model,
    settings: MineSettings,
    out: Path,
    work: Path,
    engine: Engine | None = None,
    known: GoldPairs | None = None,
    narrow: Narrowing | None = None,
) -> MiningResult:
    """Mines two files and writes the pairs.

    Args:
        src: The source text.
        tgt: The target text.
        model: What encodes both.
        settings: Margin, threshold and the rest.
        out: The file of pairs.
        work: Folder for vectors and neighbours; a run that was interrupted is resumed from there.
        engine: Where it runs; this process if None.
        known: Pairs that choose the threshold.
        narrow: What leaves sentences out before they are encoded.

    Returns:
        The pairs.

    Raises:
        DataError: Text that cannot be read or mined, or a work folder of something else.
        ModelError: A model without one of the languages.
    """
    known, engine = known or GoldPairs(), engine or LocalEngine()
    texts: Sequence[TextFile] = _plant(src, tgt, known, work)
    if narrow:
        texts = narrow.apply(texts)
    stores = [
        encode_file(text, work / name, model, settings.form, engine)
        for name, text in zip(("src", "tgt"), texts, strict=True)
    ]
    forward, backward, recall = find_neighbors(stores, settings, work, engine)
    pairs = select_pairs(forward, backward, settings.margin, settings.retrieval)
    rows, left_out = _known_rows(stores, known)
    calibration = calibrate(pairs, rows, left_out) if rows else None
    threshold = settings.threshold if calibration is None else calibration.threshold.value
    kept = pairs if threshold is None else pairs.above(threshold)
    if known.planted:
        kept = _without_planted(kept, stores, len(known.planted))
    table = PairTable(
        kept.scores,
        forward.mean[kept.src].round(6),
        backward.mean[kept.tgt].round(6),
        stores[0].first_lines()[kept.src] + 1,
        stores[1].first_lines()[kept.tgt] + 1,
    )
    origin = _origin(stores, model, settings, threshold, calibration, recall, len(kept), narrow)
    sides = sentences_at(texts[0].path, table.src_lines), sentences_at(texts[1].path, table.tgt_lines)
    write_pairs(out, table, sides, (src.lang, tgt.lang), origin)
    return MiningResult(out, None, len(kept), len(pairs), threshold, calibration, recall)


def _plant(src: TextFile, tgt: TextFile, known: GoldPairs, work: Path) -> list[TextFile]:
    """The files themselves, or copies with the planted sentences at their ends."""
    if not known.planted:
        return [src, tgt]
    copies = []
    for place, side in enumerate((src, tgt)):
        lines = list(read_lines(side.path))
        path = work / f"planted.{place}.txt"
        write_text(path, "".join(f"{line}\n" for line in [*lines, *(pair[place] for pair in known.planted)]))
        copies.append(TextFile(path, side.lang))
    return copies


def _known_rows(stores: Sequence[Store], known: GoldPairs) -> tuple[dict[int, int], int]:
    """Source and target rows of the known pairs, and how many pairs are not among the lines any more.

    Pairs whose sentence stands elsewhere too are no use: which line is meant cannot be told.
    """
    src, tgt = stores[0].lines, stores[1].lines
    lines = [(a - 1, b - 1) for a, b in known.gold]
    for a, b in known.gold:
        if not (1 <= a <= len(src) and 1 <= b <= len(tgt)):
            raise DataError(f"gold pair {a}, {b}; expected lines from 1 to {len(src):,} and from 1 to {len(tgt):,}")
    count = len(known.planted)
    lines += [(len(src) - count + number, len(tgt) - count + number) for number in range(count)]
    counts = [np.bincount(side[side >= 0]) for side in (src, tgt)]
    rows = [(int(src[a]), int(tgt[b])) for a, b in lines if src[a] >= 0 and tgt[b] >= 0]
    return {a: b for a, b in rows if counts[0][a] == 1 and counts[1][b] == 1}, len(lines) - len(rows)


def _without_planted(pairs: ScoredPairs, stores: Sequence[Store], count: int) -> ScoredPairs:
    first = [store.first_lines() for store in stores]
    real = [lines < len(store.lines) - count for lines, store in zip(first, stores, strict=True)]
    return pairs.take(real[0][pairs.src] & real[1][pairs.tgt])


def _origin(
    stores: Sequence[Store],
    model: Model,
    settings: MineSettings,
    threshold: float | None,
    calibration: Calibration | None,
    recall: float | None,
    pairs: int,
    narrow: Narrowing | None,
) -> Mapping[str, object]:
    src, tgt = stores
    return {
        "tool": "dualmoco mine",
        "version": VERSION,
        "pairs": pairs,
        "model": model.identity.name,
        "model_sha256": src.key.model_sha256,
        "backend": src.key.backend,
        "precision": src.key.precision,
        "src_lang": src.key.lang,
        "tgt_lang": tgt.key.lang,
        "src_text_sha256": src.key.text_sha256,
        "tgt_text_sha256": tgt.key.text_sha256,
        "src_sentences": src.count,
        "tgt_sentences": tgt.count,
        "margin": settings.margin.value,
        "k": settings.k,
        "retrieval": settings.retrieval.value,
        "threshold": threshold,
        "calibration": calibration.to_json() if calibration else None,
        "approximate_recall": recall,
        "prefilter": dict(narrow.origin) if narrow else None,
    }
