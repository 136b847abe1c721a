"""The int8 graphs in a runtime that is not Python's: onnxruntime-node, found through NODE_PATH; skipped without it."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

from dualmoco.core.vectors import unit_vectors
from dualmoco.models.embedded import DEFAULT_MODEL, embedded_folder
from dualmoco.models.load import open_model

SENTENCES = {
    "en": ["It is raining.", "Yes.", "The cat that we saw sleeps."],
    "zh": ["下雨了。", "是的。", "那只猫在睡觉。"],
}
SCRIPT = """
const ort = require("onnxruntime-node");
const [path, rows] = [process.argv[1], JSON.parse(process.argv[2])];
const numbers = (cells) => BigInt64Array.from(cells.flat().map(BigInt));
const tensor = (cells) => new ort.Tensor("int64", numbers(cells), [cells.length, cells[0].length]);
ort.InferenceSession.create(path)
  .then((session) => session.run({ input_ids: tensor(rows.input_ids), attention_mask: tensor(rows.attention_mask) }))
  .then((found) => console.log(JSON.stringify(Array.from(found.sentence_embedding.data))));
"""


def has_runtime() -> bool:
    """Whether node is installed and finds the package."""
    node = shutil.which("node")
    return (
        bool(node)
        and not subprocess.run(
            [str(node), "-e", "require.resolve('onnxruntime-node')"], capture_output=True, check=False
        ).returncode
    )


@pytest.mark.skipif(not has_runtime(), reason="npm install onnxruntime-node; export NODE_PATH=$PWD/node_modules")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_javascript_gets_the_same_vectors(lang: str) -> None:
    """The graph of the embedded model, with its weights, opened from JavaScript."""
    folder = embedded_folder(DEFAULT_MODEL) / "part-2"
    ours = open_model(folder, "int8")
    backend = ours.backend(lang)
    arrays = next(backend.source.batches(SENTENCES[lang], 1000))  # type: ignore[attr-defined]
    rows = json.dumps({name: array.tolist() for name, array in arrays.items()})
    done = subprocess.run(
        ["node", "-e", SCRIPT, str(folder / f"int8-{lang}.onnx"), rows], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-2000:]
    found = np.array(json.loads(done.stdout), dtype=np.float32).reshape(len(SENTENCES[lang]), -1)
    lengths = [len(one) for one in backend.source.tokenizer.encode_batch(SENTENCES[lang])]  # type: ignore[attr-defined]
    order = np.argsort(lengths, kind="stable")  # as batches are
    expected = ours.encode_as([SENTENCES[lang][row] for row in order], lang, progress=False)
    cosines = (unit_vectors(found) * expected).sum(axis=1)
    assert cosines.min() > 0.999
