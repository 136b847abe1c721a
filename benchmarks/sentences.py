"""Writes the sentences of a prepared folder as two text files, one sentence per line.

    python -m benchmarks.sentences prepared/en-de --split heldout --out prepared/de

This writes prepared/de.en.txt and prepared/de.de.txt.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dualmoco.core.storage import write_text
from dualmoco.data.manifest import read_prepared_manifest
from dualmoco.data.pairs import open_prepared
from dualmoco.data.staging import HELDOUT_SPLIT, TRAIN_SPLIT


def main() -> None:
    """Writes both files, and prints their names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of dualmoco prepare")
    parser.add_argument("--split", choices=(TRAIN_SPLIT, HELDOUT_SPLIT), default=HELDOUT_SPLIT)
    parser.add_argument("--out", type=Path, required=True, help="beginning of both names")
    parsed = parser.parse_args()
    manifest, splits = read_prepared_manifest(parsed.folder), open_prepared(parsed.folder)
    pairs = splits[0] if parsed.split == TRAIN_SPLIT else splits[1]
    for lang, texts in zip((manifest["src"], manifest["tgt"]), pairs.texts(), strict=True):
        path = parsed.out.with_name(f"{parsed.out.name}.{lang}.txt")
        write_text(path, "".join(f"{' '.join(text.split())}\n" for text in texts))
        print(f"{path}: {len(texts):,} sentences")


if __name__ == "__main__":
    main()
