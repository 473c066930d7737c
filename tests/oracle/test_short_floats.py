"""16-bit models: reductions are computed in float32, although onnx's reference uses 16 bits."""

from functools import reduce
from operator import add

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.core.tolerance import (
    Branch,
    ErrorBound,
    Provenance,
)
from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.rounding.injection import UNITS

HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def wrong_elements(inputs, values, *nodes, opset=23):
    """Return how many elements of ``values`` are wrong as the output of successive nodes."""
    dtype = next(iter(inputs.values())).dtype
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in inputs.items()
    ]
    protos, operands = [], list(inputs)
    for place, (name, attributes) in enumerate(nodes):
        protos.append(helper.make_node(name, operands, [f"t{place}"], **attributes))
        operands = [f"t{place}"]
    output = helper.make_tensor_value_info(operands[0], kind, None)
    graph = helper.make_graph(protos, "g", infos, [output])
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    (output_estimate,) = condition(model, inputs)
    assert output_estimate.right, output_estimate.reason
    branch = None
    for expected, limit in reversed(output_estimate.right):
        branch = Branch(expected, limit, branch)
    error_bound = ErrorBound(branch.at, UNITS, Provenance.CONDITIONED)
    value = np.reshape(values, branch.expected.shape).astype(branch.expected.dtype)
    (diff,) = compare_outputs({"y": branch.expected}, [value], lambda _: error_bound)
    return diff.mismatches


def h(*numbers, dtype=HALF):
    return np.array(numbers, dtype)


AXES = {"keepdims": 1}
# Nodes whose intermediate results would overflow or underflow in float16: the nodes, the inputs,
# the right output, and the wrong output of a computation in float16.
OUT_OF_SHORT_RANGE = {
    "LayerNormalization": (
        [("LayerNormalization", {})],
        {"x": h([600, -400]), "s": h(1, 1)},
        [1, -1],
        [0, -0.0],
    ),
    "RMSNormalization": (
        [("RMSNormalization", {})],
        {"x": h([600, -600]), "s": h(1, 1)},
        [1, -1],
        [0, -0.0],
    ),
    "InstanceNormalization": (
        [("InstanceNormalization", {})],
        {"x": h([[600, -400]]), "s": h(1), "b": h(0)},
        [1, -1],
        [0, -0.0],
    ),
    "LpNormalization": ([("LpNormalization", {})], {"x": h(300, 400)}, [0.6, 0.8], [0, 0]),
    "LpNormalization of small numbers": (
        [("LpNormalization", {})],
        {"x": h(1e-4, 1e-4)},
        [0.7071, 0.7071],
        [np.inf, np.inf],
    ),
    "ReduceL2": ([("ReduceL2", AXES)], {"x": h(300, 400)}, 500, np.inf),
    "ReduceL2 of small numbers": ([("ReduceL2", AXES)], {"x": h(3e-4, 4e-4)}, 5e-4, 0),
    "ReduceMean": ([("ReduceMean", AXES)], {"x": h(6e4, 6e4, 5e4, 4e4)}, 52500, np.inf),
    "ReduceSum": ([("ReduceSum", AXES)], {"x": h(6e4, 6e4, -6e4)}, 6e4, np.inf),
    "ReduceProd": ([("ReduceProd", AXES)], {"x": h(300, 300, 0.01)}, 900, np.inf),
    "ReduceLogSumExp": ([("ReduceLogSumExp", AXES)], {"x": h(12, 12)}, 12.693, np.inf),
    "ReduceLogSum": ([("ReduceLogSum", AXES)], {"x": h(6e4, 6e4)}, 11.695, np.inf),
    "MatMul": (
        [("MatMul", {})],
        {"x": h([300, 300]), "w": np.array([[300], [-300]], HALF)},
        0,
        np.nan,
    ),
    "GlobalAveragePool": ([("GlobalAveragePool", {})], {"x": h([[6e4, 5e4]])}, 55000, np.inf),
    "ReduceMean in a graph": (
        [("ReduceMean", AXES), ("Neg", {})],
        {"x": h(6e4, 6e4, 5e4, 4e4)},
        -52500,
        -np.inf,
    ),
}


@pytest.mark.parametrize("name", OUT_OF_SHORT_RANGE)
def test_overflow_and_underflow_of_16_bit_sums_fail(name):
    nodes, inputs, right, wrong = OUT_OF_SHORT_RANGE[name]
    assert wrong_elements(inputs, right, *nodes) == 0
    assert wrong_elements(inputs, wrong, *nodes) == np.size(wrong)


def test_result_beyond_the_range_of_the_type_is_infinite():
    assert wrong_elements({"x": h(12, 1)}, [np.inf, np.e], ("Exp", {})) == 0
    assert wrong_elements({"x": h(6e4, 6e4)}, [np.inf], ("ReduceSum", AXES)) == 0
    # The intermediate result of Exp may overflow, because it has the type of the model.
    squared = [("Exp", {}), ("ReduceSum", AXES), ("Log", {})]
    assert wrong_elements({"x": h(12, 12)}, [np.inf], *squared) == 0
    assert wrong_elements({"x": h(12, 12)}, [12.693], *squared) == 0


def normalized(x):
    x = x.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


NORMALIZATIONS = {
    "LayerNormalization": lambda x: {"x": x, "s": np.ones(x.shape[-1], x.dtype)},
    "InstanceNormalization": lambda x: {
        "x": x[None],
        "s": np.ones(len(x), x.dtype),
        "b": np.zeros(len(x), x.dtype),
    },
}


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_wrong_normalization_with_a_large_mean_fails(name, dtype):
    random = np.random.default_rng(3)
    x = (100 + random.standard_normal((3, 16))).astype(dtype)
    inputs, right = NORMALIZATIONS[name](x), normalized(x)
    assert wrong_elements(inputs, right, (name, {})) == 0
    for wrong in (right / 2, -right, right * np.nan):
        assert wrong_elements(inputs, wrong, (name, {})) >= 0.9 * right.size


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=str)
@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("ReduceSum", np.sum),
        ("ReduceMean", np.mean),
        ("ReduceL1", lambda x, **kwargs: np.sum(np.abs(x), **kwargs)),
        ("ReduceL2", lambda x, **kwargs: np.sqrt(np.sum(x * x, **kwargs))),
        ("ReduceSumSquare", lambda x, **kwargs: np.sum(x * x, **kwargs)),
    ],
)
def test_reductions_are_computed_in_float32(name, compute, dtype):
    random = np.random.default_rng(4)
    x = random.standard_normal((20, 50)).astype(dtype)
    right = compute(x.astype(np.float32), axis=1, keepdims=True).astype(np.float64)
    attributes = {"axes": [1], "keepdims": 1}
    opset = 11
    assert wrong_elements({"x": x}, right, (name, attributes), opset=opset) == 0
    ten_roundings = 10 * float(ml_dtypes.finfo(dtype).eps) / 2
    for wrong in (right * (1 + ten_roundings), right / 2, -right, right * np.nan):
        assert wrong_elements({"x": x}, wrong, (name, attributes), opset=opset) == right.size


@pytest.mark.parametrize("dtype", [HALF, BRAIN, np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize("count", [2, 3, 6, 40])
@pytest.mark.parametrize("operator", ["Sum", "Mean"])
def test_tensors_may_be_added_one_after_another(operator, count, dtype):
    """Partial sums may be rounded in any order. Most of the tested terms cancel."""
    random = np.random.default_rng(count)
    operands = random.standard_normal((count, 300))
    operands[-1] = (1 + 0.01 * random.standard_normal(300)) * -operands[:-1].sum(axis=0)
    operands = list(operands.astype(dtype))
    inputs = {f"x{place}": operand for place, operand in enumerate(operands)}
    divisor = dtype.type(count if operator == "Mean" else 1)
    for order in (operands, operands[::-1], [operands[at] for at in random.permutation(count)]):
        assert wrong_elements(inputs, reduce(add, order) / divisor, (operator, {})) == 0
    exact, magnitudes = (
        np.sum([change(operand.astype(float)) for operand in operands], axis=0) / float(divisor)
        for change in (np.positive, np.abs)
    )
    roundings = (count + 3) * magnitudes + 4 * np.abs(exact)
    wrong = exact + 2 * roundings * float(ml_dtypes.finfo(dtype).eps) / 2
    assert wrong_elements(inputs, wrong, (operator, {})) >= 290


def test_sum_of_two_16_bit_tensors_rounds_once():
    inputs = {"x": h(1, 300), "y": h(-1.001, -299)}
    right = inputs["x"] + inputs["y"]
    assert wrong_elements(inputs, right, ("Sum", {})) == 0
    assert wrong_elements(inputs, right * h(1.01), ("Sum", {})) == right.size


@pytest.mark.parametrize("operator", ["Sum", "Mean"])
def test_partial_sum_of_16_bits_may_overflow(operator):
    inputs = {"x": h(6e4, 1), "y": h(6e4, 1), "z": h(-6e4, 1)}
    divisor = 3 if operator == "Mean" else 1
    exact = np.array([6e4, 3]) / divisor
    assert wrong_elements(inputs, exact, (operator, {})) == 0
    assert wrong_elements(inputs, [np.inf, exact[1]], (operator, {})) == 0
    for special in (np.nan, -np.inf):
        assert wrong_elements(inputs, [special, exact[1]], (operator, {})) == 1
    assert wrong_elements(inputs, [exact[0], np.inf], (operator, {})) == 1


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("operator", ["Gemm", "Conv", "ConvTranspose"])
def test_product_may_be_rounded_before_an_addend(operator, dtype):
    random = np.random.default_rng(0)
    a, b = random.normal(size=(200, 5)), random.normal(size=(5, 60))
    a, b = a.astype(dtype).astype("f"), b.astype(dtype).astype("f")
    alpha, beta, attributes = 1.0, 1.0, {}
    if operator == "Gemm":
        alpha, beta = -1.5, 0.75
        attributes = {"alpha": alpha, "beta": beta}
    # The addend cancels many of the products.
    product = alpha * (a @ b)
    c = (-product[0] / beta * (1 + 0.01 * random.normal(size=60))).astype(dtype)
    if operator == "Gemm":
        inputs = {"a": a, "b": b}
    elif operator == "Conv":
        inputs = {"a": a.reshape(200, 5, 1), "b": b.T.reshape(60, 5, 1)}
    else:
        inputs = {"a": a.reshape(200, 5, 1), "b": b.reshape(5, 60, 1)}
    inputs = {name: value.astype(dtype) for name, value in inputs.items()} | {"c": c}
    rounded = (a @ b).astype(dtype) * dtype.type(alpha)
    staged = (rounded + c * dtype.type(beta)).astype("f")
    assert wrong_elements(inputs, staged, (operator, attributes)) == 0
    # An error of 16 roundings of each product is far too large.
    wrong = staged + 16 * float(ml_dtypes.finfo(dtype).eps) / 2 * np.abs(product)
    assert wrong_elements(inputs, wrong, (operator, attributes)) > 0.9 * wrong.size


def test_product_of_16_bits_may_overflow_before_an_addend():
    inputs = {"a": h([200, 200], [1, 1]), "b": h([200, 1], [150, 1]), "c": h(-2e4)}
    # The product 70,000 exceeds the range of float16.
    exact = np.array([[5e4, 400 - 2e4], [350 - 2e4, 2 - 2e4]])
    assert wrong_elements(inputs, exact, ("Gemm", {})) == 0
    for value, wrong in ((np.inf, 3), (-np.inf, 4), (np.nan, 4)):
        assert wrong_elements(inputs, np.full((2, 2), value), ("Gemm", {})) == wrong
    inputs["c"] = h(0)
    halved = {"alpha": 0.5}
    assert wrong_elements(inputs, exact / 2 + 1e4, ("Gemm", halved)) == 0
    assert wrong_elements(inputs, np.full((2, 2), np.inf), ("Gemm", halved)) == 3
