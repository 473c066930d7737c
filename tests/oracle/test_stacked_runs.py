"""Perturbed runs that visit the nodes together give the tolerances of runs one after the other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from onnxopt_cli.oracle import stacked
from onnxopt_cli.oracle.estimate.condition_estimate import condition

GRAPHS = {
    "images": """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,4,6,6] x, float[6,2,3,3] w, float[6] b, float[6] s) => (float[2,6,1,1] y) {
            convolved = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w, b)
            normalized = BatchNormalization(convolved, s, b, b, s)
            clipped = Relu(normalized)
            pooled = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(clipped)
            y = GlobalAveragePool(pooled)
        }""",
    "matrices": """<ir_version: 8, opset_import: ["": 17]>
        g (float[3,4] x, float[2,4,5] w, float[5] b) => (float[2,3,5] y, float[3,2,5] z, int64[3] i)
        {
            product = MatMul(x, w)
            biased = Add(product, b)
            shares = Softmax<axis = -1>(biased)
            mean = ReduceMean<axes = [2]>(shares)
            y = Sub(biased, mean)
            z = Transpose<perm = [1, 0, 2]>(y)
            shape = Shape(z)
            i = Identity(shape)
        }""",
    "moved data": """<ir_version: 8, opset_import: ["": 17]>
        g (float[3,4] x, int64[2] i) => (float[2,7] y, float[2,2] z, float[4,4] c)
        {
            root = Sqrt(x)
            rows = Gather(root, i)
            twice = Concat<axis = 1>(rows, rows)
            starts = Constant<value_ints = [1]>()
            ends = Constant<value_ints = [7]>()
            axes = Constant<value_ints = [1]>()
            y = Slice(twice, starts, ends, axes)
            left, z = Split<axis = 1>(rows)
            sum = Add(rows, rows)
            flat = Concat<axis = 0>(sum, rows)
            c = Mul(flat, flat)
        }""",
    "a branch that depends on roundings": """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x) => (float[2] y)
        {
            third = Div(x, x)
            sum = ReduceSum<keepdims = 0>(third)
            two = Constant<value_float = 2.0>()
            larger = Greater(sum, two)
            y = If(larger) <
                then_branch = t () => (float[2] a) { a = Exp(x) },
                else_branch = e () => (float[2] d) { d = Sqrt(x) }
            >
        }""",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_tolerances_do_not_depend_on_the_number_of_runs_at_once(name, monkeypatch):
    model = parser.parse_model(GRAPHS[name])
    inputs = values_of(model)
    together = condition(model, inputs)
    monkeypatch.setattr(stacked, "_MAX_STACKED_BYTES", 0)
    alone = condition(model, inputs)
    assert any(tolerance.any() for _, tolerance in alone[0].right)
    for first, second in zip(together, alone, strict=True):
        assert first.reason == second.reason
        for pairs in zip(first.right, second.right, strict=True):
            for one, other in zip(*pairs, strict=True):
                np.testing.assert_array_equal(one, other)


def values_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return a value for each input of a model."""
    random, values = np.random.default_rng(0), {}
    for info in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        shape = [size.dim_value for size in info.type.tensor_type.shape.dim]
        values[info.name] = (1 + random.random(shape)).astype(dtype)
    return values
