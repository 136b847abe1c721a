"""Writes a static model with fewer dimensions: projects all its tables onto the main axes of its vectors.

    python -m benchmarks.shrink en-zh-static --texts en=news.en.txt --dimension 192 --out small

The axes come from a singular value decomposition of the vectors of the texts. The mean is not subtracted, because
cosines are relative to the origin. All languages have the same projection, so they stay in one space. Tables are stored
as int8 rows with scales, and tokenizers as JSON without indentation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from dualmoco.core.storage import new_folder
from dualmoco.core.vectors import Vectors
from dualmoco.models.backends.st_format import DENSE, TABLE, read_layout, read_tensors
from dualmoco.models.folder import CALIBRATION_FILE, WEIGHTS_FILE, copy_model
from dualmoco.models.load import open_model
from dualmoco.models.routes import open_languages, pack_layers
from dualmoco.text.files import read_lines

MOST_LINES = 50_000  # maximum sentences of each text


def main_axes(vectors: Vectors, dimension: int) -> Vectors:
    """The directions (D, dimension) with most of the squared length of vectors (n, D)."""
    values, axes = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)
    found: Vectors = axes[:, np.argsort(-values)[:dimension]].astype(np.float32)
    return found


def shrink(name: str, texts: Sequence[tuple[str, Path]], dimension: int, out: Path) -> None:
    """Writes a static model whose tables are projected to fewer dimensions."""
    model, folder = open_languages(name)
    if not 0 < dimension < model.dimension:
        raise SystemExit(f"dimension {dimension}; expected from 1 to below {model.dimension}")
    lines = {lang: [line for line, _ in zip(read_lines(path), range(MOST_LINES), strict=False)] for lang, path in texts}
    vectors = np.concatenate([model.encode(side, lang=lang) for lang, side in lines.items()])
    axes = main_axes(vectors, dimension)
    with new_folder(out) as new:
        new.rmdir()
        copy_model(folder, new)
        (new / CALIBRATION_FILE).unlink(missing_ok=True)
        for layers in read_layout(new).values():
            if layers[0].kind != TABLE or any(layer.kind == DENSE for layer in layers):
                raise SystemExit(f"{name}: not a model of plain tables; expected a model such as en-zh-static")
            place = layers[0].folder
            table = read_tensors(place)["embedding.weight"]
            if table.shape[1] == model.dimension:  # languages may share a table
                save_file({"embedding.weight": table @ axes}, place / WEIGHTS_FILE)
                pack_layers([place])


def main() -> None:
    """Shrinks a model, and prints its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="static model")
    parser.add_argument("--texts", nargs="+", required=True, metavar="LANG=FILE", help="sentences, one per line")
    parser.add_argument("--dimension", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args()
    texts = [(lang, Path(file)) for lang, _, file in (word.partition("=") for word in parsed.texts)]
    shrink(parsed.model, texts, parsed.dimension, parsed.out)
    size = sum(file.stat().st_size for file in parsed.out.rglob("*") if file.is_file())
    print(f"{parsed.out}: dimension {open_model(parsed.out).dimension}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
