"""An int8 product beside the same product rounded by hand in a loop."""

from __future__ import annotations

import numpy as np
import pytest

from dualmoco.models.backends.onnx_export import FLOOR_SHARE, LARGEST_BALANCE, SMOOTHING, WEIGHT_STEPS, quantize_graph


@pytest.mark.parametrize("one_sided", [False, True])
def test_int8_products_are_those_of_a_loop(one_sided: bool) -> None:
    """A graph of one product gives what rounding rows and columns by hand gives."""
    onnx = pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    generator = np.random.default_rng(0)
    small = np.array(
        [1, 0.02, 1, 0.02, 1, 0.02], dtype=np.float32
    )  # of each pair of channels, so that no sum saturates
    matrix = generator.standard_normal((6, 4)).astype(np.float32) * small[:, None]
    rows = generator.standard_normal((5, 6)).astype(np.float32) * small
    rows[:2, 0] = 4, -4
    rows = np.maximum(rows, np.float32(-0.1)) if one_sided else rows
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "one product",
        [helper.make_tensor_value_info("x", float32, ["rows", 6])],
        [helper.make_tensor_value_info("y", float32, ["rows", 4])],
        [onnx.numpy_helper.from_array(matrix, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    quantized = quantize_graph(model.SerializeToString(), [{"x": rows}])
    found = ort.InferenceSession(quantized, providers=["CPUExecutionProvider"]).run(None, {"x": rows})[0]

    sizes = np.abs(rows).max(axis=0)
    balance = sizes**SMOOTHING / np.abs(matrix).max(axis=1) ** (1 - SMOOTHING)
    balance /= np.exp(np.mean(np.log(balance)))
    assert balance.max() < LARGEST_BALANCE and (rows.min() > -FLOOR_SHARE * sizes.max()) == one_sided
    lift = float(-rows.min()) if one_sided else 0.0
    weights = matrix * balance[:, None]
    for row, line in zip(rows, found, strict=True):
        values = (row + lift) / balance
        step = np.abs(values).max() / (255 if one_sided else 127)
        for column in range(4):
            size = np.abs(weights[:, column]).max() / WEIGHT_STEPS
            total = sum(round(v / step) * round(w / size) for v, w in zip(values, weights[:, column], strict=True))
            expected = total * step * size - lift * matrix[:, column].sum()
            assert line[column] == pytest.approx(expected, abs=1e-3)
    assert np.abs(found - rows @ matrix).max() > 1e-3
