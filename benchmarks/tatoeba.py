"""Tatoeba similarity search with a trained model: accuracy of the nearest neighbour, both ways.

python -m benchmarks.tatoeba runs/static-cpu/model --data DATA
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from dualmoco.data.text import read_lines
from dualmoco.models.model import Model
from dualmoco.training.metrics import retrieval_accuracy


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
    vectors = [
        torch.from_numpy(
            encoders.encode(list(read_lines(data / "eval" / "tatoeba" / f"tatoeba.cmn-eng.{code}")), lang=lang)
        )
        for code, lang in (("cmn", "zh"), ("eng", "en"))
    ]
    accuracy = retrieval_accuracy(*vectors)
    return 100 * accuracy.src_to_tgt, 100 * accuracy.tgt_to_src


if __name__ == "__main__":
    main()
