"""Systematic errors of sums: accumulators that truncate or have too few bits fail."""

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from onnxopt_cli.oracle.accumulation import accumulation_finding

F = np.float32


def product_model(a, b):
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in (("a", a), ("b", b))
    ]
    output = helper.make_tensor_value_info("y", infos[0].type.tensor_type.elem_type, None)
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "g", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def operands(seed, count, *, positive):
    random = np.random.default_rng(seed)
    a = random.standard_normal((32, count)).astype(F)
    b = random.standard_normal((count, 32)).astype(F)
    return (np.abs(a), np.abs(b)) if positive else (a, b)


def terms_of(a, b):
    """Return the exact products in double; the first axis is the index of the term."""
    return a.astype(np.float64).T[:, :, None] * b.astype(np.float64)[:, None, :]


def truncated(values, bits=24):
    """Return the values rounded toward zero to a number of bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.trunc(mantissa * 2.0**bits) / 2.0**bits, exponent)


def rounded(values, bits):
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(mantissa * 2.0**bits) / 2.0**bits, exponent)


def single(values):
    return values.astype(F).astype(np.float64)


def sequential(products, rounding, *, fused=False, blocks=1):
    parts = []
    for part in np.array_split(products, blocks):
        total = np.zeros(part.shape[1:])
        for term in part:
            total = rounding(total + (term if fused else rounding(term)))
        parts.append(total)
    total = parts[0]
    for part in parts[1:]:
        total = rounding(total + part)
    return total


def pairwise(products, rounding):
    values = rounding(products)
    while len(values) > 1:
        values = rounding(values[::2] + values[1::2])
    return values[0]


RIGHT = {
    "sequential": lambda p: sequential(p, single),
    "backward": lambda p: sequential(p[::-1], single),
    "fused": lambda p: sequential(p, single, fused=True),
    "blocked": lambda p: sequential(p, single, blocks=4),
    "sorted": lambda p: sequential(np.sort(p, axis=0), single),
    "pairwise": lambda p: pairwise(p, single),
    "in double": lambda p: p.sum(axis=0),
}


def found(a, b, output):
    return accumulation_finding(product_model(a, b), {"a": a, "b": b}, [output])


@pytest.mark.parametrize("algorithm", RIGHT)
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("count", [4, 64, 256])
def test_sum_in_float32_never_fails(algorithm, positive, count):
    for seed in range(3):
        a, b = operands(seed, count, positive=positive)
        result = found(a, b, RIGHT[algorithm](terms_of(a, b)).astype(F))
        assert result is None or not result.fails


@pytest.mark.parametrize("positive", [True, False])
def test_truncating_sum_fails(positive):
    a, b = operands(7, 64, positive=positive)
    result = found(a, b, sequential(terms_of(a, b), truncated).astype(F))
    assert result.fails
    assert result.text.startswith("rounds toward zero")


def test_truncating_pairwise_sum_fails():
    a, b = operands(8, 64, positive=True)
    assert found(a, b, pairwise(terms_of(a, b), truncated).astype(F)).fails


@pytest.mark.parametrize("bits", [13, 17, 20])
def test_short_accumulator_is_named_with_its_bits(bits):
    a, b = operands(9, 64, positive=True)
    total = sequential(terms_of(a, b), lambda values: rounded(values, bits))
    result = found(a, b, total.astype(F))
    assert result.fails
    assert "accumulates in about" in result.text
    named = int(result.text.split("about ")[1].split()[0])
    assert abs(named - bits) <= 2


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_output_of_16_bits_must_be_rounded_to_nearest(dtype):
    a, b = (array.astype(dtype) for array in operands(10, 16, positive=True))
    total = sequential(terms_of(a, b), single)
    assert found(a, b, total.astype(dtype)) is None
    digits = {np.dtype(np.float16): 11}.get(np.dtype(dtype), 8)
    assert found(a, b, truncated(total, digits).astype(dtype)).fails


def test_operands_with_few_digits_are_not_examined():
    a = np.ones((32, 64), F)
    assert found(a, a.T.copy(), np.zeros((32, 32), F)) is None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_correctly_rounded_outputs_of_repeated_rows_have_no_finding(dtype):
    random = np.random.default_rng(1)
    a = random.standard_normal((4, 64))[random.integers(0, 4, 200)].astype(dtype)
    b = random.standard_normal((64, 4))[:, random.integers(0, 4, 200)].astype(dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (
        accumulation_finding(product_model(a, b), {"a": a, "b": b}, [exact.astype(dtype)]) is None
    )


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4])
def test_correctly_rounded_subnormal_outputs_have_no_finding(scale):
    random = np.random.default_rng(2)
    a, b = (scale * random.standard_normal((64, 64)) for _ in range(2))
    a, b = a.astype(np.float16), b.astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    right = exact.astype(np.float16)
    assert accumulation_finding(product_model(a, b), {"a": a, "b": b}, [right]) is None


@pytest.mark.parametrize("scale", [1e-5, 1e-6, -1e-6, 1e-7])
def test_adding_a_small_addend_last_has_no_finding(scale):
    random = np.random.default_rng(3)
    a, b = random.random((200, 64)).astype(F), random.random((64, 200)).astype(F)
    c = (scale * random.random((200, 200))).astype(F)
    right = (a.astype(np.float64) @ b.astype(np.float64)).astype(F) + c
    model = product_model(a, b)
    model.graph.node[0].CopyFrom(helper.make_node("Gemm", ["a", "b", "c"], ["y"]))
    model.graph.input.append(helper.make_tensor_value_info("c", 1, c.shape))
    assert accumulation_finding(model, {"a": a, "b": b, "c": c}, [right]) is None


@pytest.mark.parametrize("step", [0.1, 1.0])
def test_sums_of_arithmetic_progressions_have_no_finding(step):
    random = np.random.default_rng(4)
    x = (random.random((600, 1)) + step * np.arange(1000)).astype(F)
    info = helper.make_tensor_value_info("x", 1, x.shape)
    axes = np.array([1])
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    infos = [info, helper.make_tensor_value_info("axes", 7, axes.shape)]
    output = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([node], "g", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    for order in (1, -1):
        right = x[:, ::order].cumsum(axis=1)[:, -1]
        assert accumulation_finding(model, {"x": x, "axes": axes}, [right]) is None


def test_empty_sums_have_no_finding():
    a, b = np.zeros((16, 0), F), np.zeros((0, 16), F)
    assert found(a, b, np.zeros((16, 16), F)) is None


def test_sums_with_a_missing_operand_are_not_examined():
    a, b = operands(11, 64, positive=True)
    model = product_model(a, b)
    model.graph.node[0].op_type = "Gemm"
    assert accumulation_finding(model, {"a": a}, [a @ b]) is None


def test_outputs_beyond_the_largest_number_are_examined():
    a, b = (array.astype(np.float16) for array in operands(12, 64, positive=True))
    a *= np.float16(120)
    b *= np.float16(12)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    largest = float(np.finfo(np.float16).max)
    assert exact.max() > largest
    assert found(a, b, truncated(np.minimum(exact, largest), 11).astype(np.float16)).fails
