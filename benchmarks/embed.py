"""Adds a model to the package: packed, calibrated, with card and checksum; measures the loss from packing.

    python -m benchmarks.embed en-zh-static runs/static --pairs prepared/en-zh/heldout-00000.parquet
    python -m benchmarks.embed en-zh hybrid --pairs prepared/en-zh/heldout-00000.parquet --card cards/en-zh.md
    python -m benchmarks.embed many-static small --pairs en-de=prepared/en-de/heldout-00000.parquet en-fr=...

Pairs without languages are English and Chinese. A part of a hybrid that is itself an embedded model is stored only
once. Prints the retrieval accuracy on held-out pairs, in both directions, before and after.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from dualmoco.core.progress import peak_memory
from dualmoco.core.storage import read_json, write_json
from dualmoco.data.readers.base import Source
from dualmoco.data.readers.formats import read_pairs
from dualmoco.mining.threshold import calibrate_model
from dualmoco.models.embedded import CHECKSUMS, EMBEDDED, HOME
from dualmoco.models.folder import (
    CALIBRATION_FILE,
    MODEL_CARD,
    MODEL_RECORD,
    TEXT_KEY,
    folder_sha256,
    model_folder,
    read_conversion,
)
from dualmoco.models.hybrid import is_hybrid, read_hybrid, write_hybrid
from dualmoco.models.load import open_model
from dualmoco.models.pack import pack_model
from dualmoco.search.exact import nearest

DEFAULT_LANGS = "en-zh"
LEAST_RECALL = (
    0.2  # minimum precision of a threshold; below it, held-out sentences with the same meaning counted as wrong
)


def main() -> None:
    """Packs, measures, calibrates and signs a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EMBEDDED)
    parser.add_argument("model", help="run, model folder or hybrid")
    parser.add_argument(
        "--pairs",
        required=True,
        nargs="+",
        metavar="[SRC-TGT=]FILE",
        help="held-out pairs that no part of the model was trained on",
    )
    parser.add_argument("--card", help="model card to add as README.md")
    parsed = parser.parse_args()

    heldout = dict(map(read_heldout, parsed.pairs))
    folder = HOME / parsed.name
    card = folder / MODEL_CARD
    kept = card.read_text(encoding="utf-8") if card.is_file() else ""
    pack_model(model_folder(parsed.model), folder)
    for record in folder.rglob(MODEL_RECORD):
        write_json(record, {TEXT_KEY: read_conversion(record.parent).to_json()})
    checksums = json.loads((HOME / CHECKSUMS).read_text()) if (HOME / CHECKSUMS).is_file() else {}
    if is_hybrid(folder):
        share_parts(folder, checksums)
    if parsed.card:
        shutil.copy(parsed.card, card)
    elif kept:
        card.write_text(kept, encoding="utf-8")
    write_json(HOME / CHECKSUMS, checksums | {parsed.name: folder_sha256(folder)})
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    is_stored = any(path.is_dir() for path in folder.iterdir())  # not only names of other models
    for langs, rows in heldout.items():
        for title, place in (("whole", parsed.model), ("packed", str(folder))) if is_stored else ():
            shares = " / ".join(f"{share:.2f}" for share in retrieval(place, rows, langs))
            print(f"{title:7} {'-'.join(langs)} {shares}, {len(rows):,} held-out pairs", flush=True)
        found = calibrate_model(folder, rows, src_lang=langs[0], tgt_lang=langs[1], progress=False)
        print(f"threshold {found.threshold:.4f}: precision {found.precision:.1%}, recall {found.recall:.1%}")
        if found.recall < LEAST_RECALL:
            print(f"{'-'.join(langs)}: no calibration, so mining borrows the strictest threshold of a related pair")
            drop_calibration(folder, langs)
    print(f"{parsed.name}: {size / 1e6:.1f} MB, {peak_memory() / 2**20:,.0f} MiB peak memory")


def read_heldout(given: str) -> tuple[tuple[str, str], list[tuple[str, str]]]:
    """The languages and the pairs of a file, given as [SRC-TGT=]FILE."""
    named, _, path = given.rpartition("=")
    src, _, tgt = (named or DEFAULT_LANGS).partition("-")

    def refuse(line: int, what: str) -> None:
        raise SystemExit(f"{path}:{line}: {what}")

    return (src, tgt), [(row.src, row.tgt) for row in read_pairs(Source(Path(path), src, tgt), report=refuse)]


def drop_calibration(folder: Path, langs: tuple[str, str]) -> None:
    """Removes the thresholds of a language pair."""
    stored = read_json(folder / CALIBRATION_FILE)
    stored["calibrations"] = [one for one in stored["calibrations"] if tuple(one["langs"]) != langs]
    write_json(folder / CALIBRATION_FILE, stored)


def share_parts(hybrid: Path, checksums: dict[str, str]) -> None:
    """Replaces parts that are embedded models by their names."""
    names, parts = {sha256: name for name, sha256 in checksums.items()}, []
    for part in read_hybrid(hybrid):
        if part.sha256 in names:
            shutil.rmtree(hybrid / part.folder)
        parts.append(replace(part, folder=names.get(part.sha256, part.folder)))
    write_hybrid(hybrid, parts, {})


def retrieval(name: str, rows: list[tuple[str, str]], langs: tuple[str, str]) -> list[float]:
    """The percentage of sentences whose nearest neighbour is their translation, in each direction."""
    model = open_model(name)
    src, tgt = (model.encode([row[side] for row in rows], lang=lang) for side, lang in enumerate(langs))
    own = np.arange(len(rows))
    return [100 * float((nearest(a, b, 1).ids[:, 0] == own).mean()) for a, b in ((src, tgt), (tgt, src))]


if __name__ == "__main__":
    main()
