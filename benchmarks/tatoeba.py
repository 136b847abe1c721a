"""Tatoeba similarity search with a trained model: accuracy of the nearest neighbour, both ways.

python -m benchmarks.tatoeba runs/static-cpu/model --data DATA
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dualmoco.data.text import read_lines
from dualmoco.models.model import Model
from dualmoco.search.neighbors import nearest_both_ways


def main() -> None:
    """Prints both directions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model folder with the languages zh and en")
    parser.add_argument("--data", required=True, help="folder that holds eval/tatoeba")
    parsed = parser.parse_args()
    zh_en, en_zh = tatoeba_accuracy(Path(parsed.model), Path(parsed.data))
    print(f"Tatoeba cmn-eng, accuracy: zh-en {zh_en:.1f} %, en-zh {en_zh:.1f} %")


def tatoeba_accuracy(model: Path, data: Path) -> tuple[float, float]:
    """Accuracies in percent, Chinese to English and English to Chinese."""
    encoders = Model.load(model)
    zh, en = (
        encoders.encode(list(read_lines(data / "eval" / "tatoeba" / f"tatoeba.cmn-eng.{code}")), lang=lang)
        for code, lang in (("cmn", "zh"), ("eng", "en"))
    )
    found = (neighbors.ids[:, 0] == np.arange(len(neighbors.ids)) for neighbors in nearest_both_ways(zh, en, 1))
    zh_en, en_zh = (100 * float(hits.mean()) for hits in found)
    return zh_en, en_zh


if __name__ == "__main__":
    main()
