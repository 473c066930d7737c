"""Cases with an index out of bounds are invalid; onnxopt has no limit there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxopt_cli.oracle.index_bounds import index_fault

X = np.arange(12, dtype=np.float32).reshape(3, 4)
COLUMN = np.zeros((3, 1), np.float32)


def integers(values):
    return np.array(values, np.int64)


def model_of(nodes, inputs):
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for name, v in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", declared, [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("operator", "attributes", "index_at", "bounds"),
    [
        ("Gather", {"axis": 1}, lambda index: [X, integers([0, index])], (-4, 3)),
        ("Gather", {}, lambda index: [X, integers([[index]])], (-3, 2)),
        ("GatherElements", {"axis": 1}, lambda index: [X, integers([[0, index]])], (-4, 3)),
        ("GatherND", {}, lambda index: [X, integers([[2, index]])], (-4, 3)),
        ("GatherND", {"batch_dims": 1}, lambda index: [X, integers([[0], [1], [index]])], (-4, 3)),
        (
            "ScatterElements",
            {"axis": 1},
            lambda index: [X, integers([[0], [1], [index]]), COLUMN],
            (-4, 3),
        ),
        ("ScatterND", {}, lambda index: [X, integers([[0, index]]), COLUMN[0]], (-4, 3)),
        (
            "NegativeLogLikelihoodLoss",
            {"ignore_index": 9},
            lambda index: [X, integers([0, 9, index])],
            (0, 3),
        ),
    ],
)
def test_index_out_of_bounds_is_found(operator, attributes, index_at, bounds):
    def fault(index):
        inputs = dict(zip("xiu", index_at(index), strict=False))
        node = helper.make_node(operator, [*inputs], ["y"], **attributes)
        return index_fault(model_of([node], inputs), inputs)

    least, most = bounds
    assert fault(least) == fault(most) == ""
    for index in (least - 1, most + 1):
        message = f"{operator} has the index {index}, which is not in [{least}, {most}]"
        assert fault(index).endswith(message)


def test_case_with_a_computed_index_out_of_bounds_is_invalid(onnxopt, tmp_path):
    nodes = [
        helper.make_node("Mul", ["i", "i"], ["square"]),
        helper.make_node("Gather", ["x", "square"], ["y"]),
    ]
    path, data = tmp_path / "gather.onnx", tmp_path / "inputs.npz"
    onnx.save(model_of(nodes, {"x": X[:, 0], "i": integers([0, 1])}), path)
    codes = []
    for indices in ([0, 1], [0, 2]):
        np.savez(data, x=X[:, 0], i=integers(indices))
        result = onnxopt("run", path, "--inputs", data, "-b", "onnx-reference", "--no-explain")
        codes.append(result.code)
    assert codes == [0, 2]
    assert "Gather has the index 4" in " ".join(result.text.replace("│", " ").split())
