"""Nodes at the limits of element types and of the number of operands.

Examples are the least and the largest integers of each type, conversions between types whose ranges
differ, quantized types of 2 to 16 bits, and nodes of many operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import add, mul, sub
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import Generator, add_fixed, fixed_node
from onnxopt_cli.suites.operators.node_draft import INTEGERS, NodeDraft

_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")
_BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
# Operators whose results can exceed the range of their operands. For integers, the specification
# does not define results beyond the range.
_EXACT_RESULTS: Mapping[str, Callable[[int, int], int]] = {"Add": add, "Sub": sub, "Mul": mul}
# Types that implementations confuse with each other in comparisons and arithmetic.
_CONFUSED = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "int16", "uint16")
_NAN, _INF = np.nan, np.inf


def _limits(dtype: np.dtype[Any]) -> Array:
    """Return the limits of an integer type, the neighbors of the limits, and smaller numbers."""
    info = np.iinfo(dtype)
    least, largest = int(info.min), int(info.max)
    values = [least, least + 1, 0, 1, 3, largest // 2, largest // 2 + 1, largest - 1, largest]
    return np.array(sorted(set(values)), dtype)


def _paired(draft: NodeDraft, *, dtype: str) -> None:
    """Draw the pairs of limits of an integer type, except pairs without a defined result."""
    draft.require(all(draft.allowed(place, (dtype,)) for place in (0, 1)))
    limits = _limits(DTYPES[dtype])
    if draft.schema.name in _EXACT_RESULTS:
        pairs = _pairs_within_range(limits, _EXACT_RESULTS[draft.schema.name])
        draft.add(pairs[:, 0])
        draft.add(pairs[:, 1])
        return
    divisors = limits
    if draft.schema.name in ("Div", "Mod"):
        divisors = limits[limits != 0]
    draft.add(limits[:, None])
    draft.add(divisors)


def _pairs_within_range(limits: Array, compute: Callable[[int, int], int]) -> Array:
    """Return the pairs of limits whose exact result the type can represent."""
    info = np.iinfo(limits.dtype)
    pairs = [
        (first, second)
        for first in limits.tolist()
        for second in limits.tolist()
        if info.min <= compute(first, second) <= info.max
    ]
    return np.array(pairs, limits.dtype)


def _single(draft: NodeDraft, *, dtype: str, axes: Sequence[int] = ()) -> None:
    """Draw the limits of an integer type."""
    draft.require(draft.allowed(0, (dtype,)))
    limits = _limits(DTYPES[dtype])
    if draft.schema.name in ("Abs", "Neg"):
        # The type cannot represent the negative of its least integer.
        limits = limits[1:]
    if not axes:
        draft.add(limits)
        return
    draft.add(np.stack([limits[:6], limits[-6:]]))
    draft.add(np.array(axes, np.int64))


def _clipped(draft: NodeDraft, *, dtype: str) -> None:
    draft.require(draft.allowed(0, (dtype,)))
    limits = _limits(DTYPES[dtype])
    draft.add(limits)
    draft.add(limits[1].reshape(()))
    draft.add(limits[-2].reshape(()))


def boundary_limits() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _integers()
    yield from _bits()
    yield from _accumulated()
    yield from _casts()
    yield from _quantized_types()
    yield from _matrix_scales()
    yield from _many_operands()
    yield from _results()
    yield from _doubles()
    yield from _texts()
    yield from _axes()


def _integers() -> Iterator[tuple[str, str, Generator]]:
    for dtype in _CONFUSED:
        for operator in (*_ARITHMETIC, *_COMPARISONS):
            yield operator, f"limits_of_{dtype}", partial(_paired, dtype=dtype)
        for operator in ("ReduceMax", "ReduceMin"):
            if dtype not in ("int16", "uint16"):
                yield operator, f"limits_of_{dtype}", partial(_single, dtype=dtype, axes=[1])
        yield "Sign", f"limits_of_{dtype}", partial(_single, dtype=dtype)
        yield "Clip", f"limits_of_{dtype}", partial(_clipped, dtype=dtype)
    for dtype in ("int8", "int16", "int32", "int64"):
        for operator in ("Abs", "Neg"):
            yield operator, f"limits_of_{dtype}", partial(_single, dtype=dtype)
    for dtype in ("int32", "int64"):
        yield "Relu", f"limits_of_{dtype}", partial(_single, dtype=dtype)
    for dtype in ("uint32", "uint64", "int32"):
        limits = _limits(DTYPES[dtype])
        slope = np.array(3, DTYPES[dtype])
        small = limits[np.abs(limits.astype(float)) < np.iinfo(DTYPES[dtype]).max / 4]
        x = small if dtype == "int32" else limits
        yield "PRelu", f"limits_of_{dtype}", fixed_node(x, slope)


def _bits() -> Iterator[tuple[str, str, Generator]]:
    for dtype in INTEGERS:
        for operator in _BITWISE:
            yield operator, f"limits_of_{dtype}", partial(_paired, dtype=dtype)
        yield "BitwiseNot", f"limits_of_{dtype}", partial(_single, dtype=dtype)


def _accumulated() -> Iterator[tuple[str, str, Generator]]:
    """Yield sums and quotients that a narrower accumulator cannot represent."""
    products = (
        np.array([[46341, 3], [-70000, 7]], np.int32),
        np.array([[20011, 1], [2, 3]], np.int32),
    )
    for operator in ("MatMul", "Gemm"):
        yield operator, "products_int32", fixed_node(*products)
    # The sum of the products is odd and exceeds 2^24, so that float32 cannot represent it.
    largest = np.full((1, 1, 301), 255, np.uint8)
    yield "ConvInteger", "products_uint8", fixed_node(largest, largest)
    yield "MatMulInteger", "products_uint8", fixed_node(largest[0], largest[0].T.copy())
    # The sum of the products is -2^24, and the bias is 2^24 + 1.
    x = np.array([255] * 514 + [2], np.uint8).reshape(1, 1, 515)
    weights = np.full((1, 1, 515), -128, np.int8)
    scale = np.float32(1)
    quantized = (x, scale, np.uint8(0), weights, scale, np.int8(0), scale, np.uint8(0))
    bias = np.array([2**24 + 1], np.int32)
    yield "QLinearConv", "bias_beyond_24_bits", fixed_node(*quantized, bias)
    sums = np.array([[30000, 30000, 30000], [-40000, 1, 2]], np.int32)
    yield "CumSum", "sums_int32", fixed_node(sums, np.array(1, np.int64))
    yield "ReduceSum", "sums_int32", fixed_node(sums, np.array([1], np.int64))
    for dtype, factors in (
        ("int32", [[5003, 4001, 3], [-7001, 3001, 101], [9, 11, 13]]),
        ("int64", [[94906267, 94906249, 3], [-(2**31) - 1, 2**29 + 1, 5], [9, 11, 13]]),
    ):
        x = np.array(factors, DTYPES[dtype])
        yield "ReduceProd", f"products_{dtype}", fixed_node(x, np.array([1]))
        yield "CumProd", f"products_{dtype}", fixed_node(x, np.array(1))
        # Numbers whose squares the type can represent.
        roots = x % (20011 if dtype == "int32" else 2**30 + 3)
        yield "ReduceSumSquare", f"products_{dtype}", fixed_node(roots, np.array([1]))
    # The squares fit into int64. Doubles represent the squares of x exactly. float32 represents no
    # element of x + 100 exactly.
    x = np.array([[3_000_000_000], [-2_500_000_000]], np.int64)
    yield "ReduceSumSquare", "squares_int64", fixed_node(x, np.array([1]))
    yield "ReduceL2", "squares_int64", fixed_node(x + 100, np.array([1]))
    powers = np.array([4097, 46340, -46339, 3, -7], np.int32)
    exponents = np.array([2, 2, 2, 19, 11], np.int32)
    yield "Pow", "products_int32", fixed_node(powers, exponents)
    yield from _means()
    halves = np.array([1000.0, -1000.0, 60000.0, 7.5], np.float16)
    yield (
        "Mod",
        "quotients_float16",
        fixed_node(halves[:, None], np.array([0.75, 3.0], np.float16), fmod=1),
    )


def _means() -> Iterator[tuple[str, str, Generator]]:
    """Yield float16 means whose sums float16 cannot represent, and deviations from a large mean."""
    large = np.array([[[60000.0, 40000.0], [-50000.0, -30000.0]]], np.float16)
    yield "GlobalAveragePool", "large_float16", fixed_node(large)
    yield "AveragePool", "large_float16", fixed_node(large, kernel_shape=[2])
    yield "ReduceMean", "large_float16", fixed_node(large, np.array([2]))
    for dtype, first in (("int32", 2**24 + 1), ("int64", 2**40 + 1)):
        integers = np.array([[first, first + 4], [-first, 2 - first]], DTYPES[dtype])
        yield "ReduceMean", f"large_{dtype}", fixed_node(integers, np.array([1]))
    yield "Mean", "large_float16", fixed_node(large, large[..., ::-1].copy())
    # In float32, the mean of the squares minus the square of the mean loses every digit.
    far = (4096 + np.arange(24) * 7 % 11 / 4).reshape(1, 4, 6).astype(np.float32)
    scale = np.array([0.5, 2.0, 1.0, 1.5], np.float32)
    bias = np.array([1.0, -1.0, 0.0, 0.5], np.float32)
    yield "LayerNormalization", "large_mean", fixed_node(far, np.ones(6, np.float32))
    yield "InstanceNormalization", "large_mean", fixed_node(far, scale, bias)
    yield "GroupNormalization", "large_mean", fixed_node(far, scale, bias, num_groups=2)
    yield "MeanVarianceNormalization", "large_mean", fixed_node(far, axes=[0, 2])


_ALSO_CAST_LIKE = (
    *("int64_int32", "uint64_float32", "uint64_float64", "int8_uint16", "uint8_int8"),
    *("float64_bool_exceptional", "float32_float16_overflow"),
)


# Pairs of integer types; numbers of the first type wrap around in the second type.
_WRAPPING = (
    *(("int64", "int8"), ("int64", "uint32"), ("int32", "uint8"), ("int32", "int16")),
    *(("int16", "int8"), ("int8", "uint64"), ("uint64", "int32"), ("uint32", "int32")),
    *(("uint32", "uint8"), ("uint16", "int16")),
)


def _casts() -> Iterator[tuple[str, str, Generator]]:
    """Yield casts whose result depends on the range of the source type or of the target type."""
    wide = np.array([2**31, 2**32 + 5, -(2**31) - 1, 2**40 + 7, -3], np.int64)
    unsigned = np.array([2**64 - 1, 2**63, 2**63 + 2**40, 2**53 + 1, 7], np.uint64)
    words = np.array(["NaN", "inf", "-INF", "+inf", "1e-3", "-0.5", "1E10", "2.5"], object)
    numbers = np.array(["-9223372036854775807", "9007199254740993", "0", "-1", "42"], object)
    exceptional = np.array([_NAN, _INF, -_INF, -0.0, 0.0, 1e-30, 2.0])
    # Some implementations round doubles to 16 bits in two steps. No value is close to a tie, so
    # two steps have the same result as one.
    between = np.array([1 + 3 * 2**-9, 1 + 5 * 2**-9, 1e30, -1e-30, 3e38])
    pairs: Sequence[tuple[str, Array, str]] = (
        ("int64_int32", wide, "int32"),
        ("int64_int16", wide, "int16"),
        ("int64_uint8", wide, "uint8"),
        ("int32_int8_wrapped", np.array([128, -129, 383, 255, -1], np.int32), "int8"),
        ("uint64_float32", unsigned, "float32"),
        ("uint64_float64", unsigned, "float64"),
        ("uint64_int64", unsigned[-2:], "int64"),
        ("uint32_float32", np.array([2**32 - 1, 2**31 + 129, 2**24 + 1], np.uint32), "float32"),
        ("uint16_float32", np.array([65535, 32768, 1], np.uint16), "float32"),
        ("int8_uint16", np.array([-1, -128, 127], np.int8), "uint16"),
        ("uint8_int8", np.array([255, 128, 127], np.uint8), "int8"),
        ("string_float32", words, "float32"),
        ("string_float64", words, "float64"),
        ("string_int64", numbers, "int64"),
        ("float32_bool_exceptional", exceptional.astype(np.float32), "bool"),
        ("float64_bool_exceptional", exceptional, "bool"),
        ("float64_int64_precise", np.array([2**24 + 1.5, 2**40 + 0.75, 1 - 2.0**53]), "int64"),
        ("float64_float32_exceptional", np.array([_NAN, _INF, 1e300, -1e300, -0.0]), "float32"),
        ("float64_bfloat16_between", between, "bfloat16"),
        ("float64_float16_between", np.array([1 + 3 * 2**-12, 65519.0, 1e-9]), "float16"),
        ("float32_float16_overflow", np.array([65504, 65519, 65520, -1e6], np.float32), "float16"),
        ("int64_string", wide, "string"),
    )
    for stem, x, target in pairs:
        dtype = DTYPES[target]
        yield "Cast", stem, fixed_node(x, to=helper.np_dtype_to_tensor_dtype(dtype))
        if stem in _ALSO_CAST_LIKE:
            yield "CastLike", stem, fixed_node(x, np.zeros(1, dtype))
    for source, target in _WRAPPING:
        to = helper.np_dtype_to_tensor_dtype(DTYPES[target])
        yield "Cast", f"wrapped_{source}_{target}", fixed_node(_wrapped(source, target), to=to)


def _wrapped(source: str, target: str) -> Array:
    """Return limits of an integer type, and integers that wrap around in another type."""
    info, bits = np.iinfo(DTYPES[source]), 8 * DTYPES[target].itemsize
    values = {*_limits(DTYPES[source]).tolist(), -1, -5, 100}
    values |= {2 ** (bits - 1), 2**bits - 3, 2**bits + 5, -(2 ** (bits - 1)) - 1}
    return np.array(sorted(v for v in values if info.min <= v <= info.max), DTYPES[source])


_NARROW: Mapping[str, Sequence[float]] = {
    "int2": (-2, -1, 0, 1, 1, -2, 0),
    "uint2": (0, 1, 2, 3, 3, 2, 1),
    "int4": (-8, -7, -1, 0, 1, 7, 5),
    "uint4": (0, 1, 7, 8, 9, 15, 3),
    "int16": (-32768, -300, -1, 0, 300, 32767, 5),
    "uint16": (0, 1, 300, 32768, 40000, 65535, 5),
    "float8_e4m3fn": (-448, -1.125, -0.0, 0.5, 2, 448, 0.001953125),
    "float8_e4m3fnuz": (-240, -1.125, 0.0, 0.5, 2, 240, 0.0009765625),
    "float8_e5m2": (-57344, -1.25, -0.0, 0.5, 2, 57344, 1.52587890625e-05),
    "float8_e5m2fnuz": (-57344, -1.25, 0.0, 0.5, 2, 57344, 7.62939453125e-06),
    "float4_e2m1fn": (-6, -1.5, -0.0, 0.5, 2, 6, 3),
}


def _quantized_types() -> Iterator[tuple[str, str, Generator]]:
    """Yield an odd number of elements of narrow types, so that the last byte is not full."""
    for name, values in _NARROW.items():
        dtype = DTYPES[name]
        x = np.array(values, np.float32).astype(dtype)
        yield "DequantizeLinear", f"values_{name}", _typed(0, name, x, np.float32(0.5))
        if "float" not in name:
            zero = np.array(1, np.int32).astype(dtype)
            shifted = _typed(0, name, x, np.float32(0.5), zero)
            yield "DequantizeLinear", f"zero_point_{name}", shifted
        decimals = np.array([*values, 2 * values[0] - 1, 2 * values[5] + 1], np.float32) * 0.5
        zero = np.zeros((), np.float32).astype(dtype)
        yield "QuantizeLinear", f"values_{name}", _typed(2, name, decimals, np.float32(0.5), zero)
        if name in ("int4", "uint4", "int2", "uint2"):
            for target in ("float32", "int32", "uint8" if name.startswith("u") else "int8"):
                to = helper.np_dtype_to_tensor_dtype(DTYPES[target])
                yield "Cast", f"{name}_{target}", _typed(0, name, x, to=to)
            back = np.array(values, np.float32)
            to = helper.np_dtype_to_tensor_dtype(dtype)
            yield "Cast", f"float32_{name}", fixed_node(back, to=to)
        elif name.startswith("float"):
            to = helper.np_dtype_to_tensor_dtype(DTYPES["float32"])
            yield "Cast", f"{name}_float32", _typed(0, name, x, to=to)
            yield "CastLike", f"{name}_float32", _typed(0, name, x, np.zeros(1, np.float32))


def _typed(place: int, dtype: str, *inputs: Any, **attributes: Any) -> Generator:
    """Return a generator of a fixed node; the operator's version must allow a type for an input.

    Args:
        place: the position of the input.
        dtype: the name of the type.
        inputs: the inputs of the node.
        attributes: the attributes of the node.
    """
    return partial(_add_typed, place=place, dtype=dtype, inputs=inputs, attributes=attributes)


def _add_typed(
    draft: NodeDraft,
    *,
    place: int,
    dtype: str,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any],
) -> None:
    draft.require(draft.allowed(place, (dtype,)))
    add_fixed(draft, inputs=inputs, attributes=attributes)


def _matrix_scales() -> Iterator[tuple[str, str, Generator]]:
    """Yield quantized products half way between integers, and scales that differ by column."""
    scale, zero = np.float32(0.5), np.uint8(0)
    for dtype in ("uint8", "int8"):
        kind = DTYPES[dtype]
        a = np.array([[1, 3], [5, 1], [2, 7]], kind)
        b = np.array([[1, 2, 1], [2, 1, 6]], kind)
        # The quotient of each sum of products and the output's scale is an odd multiple of 1/2.
        ties = (a, scale, kind.type(0), b, np.float32(0.25), kind.type(0), np.float32(0.25))
        yield "QLinearMatMul", f"both_ties_{dtype}", fixed_node(*ties, kind.type(3))
    first = np.array([[1, 9, 30], [200, 7, 100], [5, 66, 255]], np.uint8)
    second = np.array([[3, 100, 7], [90, 2, 11], [8, 77, 250]], np.uint8)
    columns = np.array([0.25, 1.0, 0.5], np.float32)
    zeros = np.array([3, 50, 9], np.uint8)
    yield (
        "QLinearMatMul",
        "column_scales",
        fixed_node(first, scale, zero, second, columns, zeros, np.float32(64), np.uint8(100)),
    )
    rows = (first, columns, zeros, second, scale, np.uint8(9), np.float32(64), np.uint8(100))
    yield "QLinearMatMul", "row_scales", fixed_node(*rows)
    yield "MatMulInteger", "row_zero_points", fixed_node(first, second, zeros, np.uint8(5))


def _many_operands() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes of one operand, and of more operands than an implementation may expect."""
    rows = [np.array([[k + 0.5, -k]], np.float32) * (-1) ** k for k in range(1, 66)]
    for operator in ("Sum", "Mean", "Max", "Min"):
        yield operator, "many", fixed_node(*rows)
        yield operator, "single", fixed_node(rows[0])
        largest = np.full((3, 2), 9, np.float32)
        yield operator, "last_is_larger", fixed_node(rows[0], rows[1], largest)
    yield "Concat", "many", fixed_node(*rows, axis=0)
    yield "Concat", "many_last", fixed_node(*rows, axis=-1)
    yield "SequenceConstruct", "many", fixed_node(*rows)
    yield "ConcatFromSequence", "many", fixed_node(rows, axis=0)
    operands = [((np.arange(6) * k % 7) / 4).reshape(2, 3).astype(np.float32) for k in (1, 2, 3, 5)]
    yield "Einsum", "four_operands", fixed_node(*operands, equation="ij,kj,kl,ml->im")
    spaced = " i j , k j -> k i "
    yield "Einsum", "spaces", fixed_node(*operands[:2], equation=spaced)
    parts = np.arange(34, dtype=np.float32).reshape(17, 2)
    yield "Split", "many", fixed_node(parts, num_outputs=17, axis=0, outputs=17)


def _results() -> Iterator[tuple[str, str, Generator]]:
    """Yield special elements and shapes for which some implementations return wrong results.

    Examples are zeros of both signs, repeated elements, empty sequences, tensors with six axes, and
    doubles next to a threshold.
    """
    zeros = np.array([[0.0, -0.0, _NAN], [1e-30, _INF, -_INF]], np.float32)
    yield "NonZero", "exceptional", fixed_node(zeros)
    yield "NonZero", "exceptional_float64", fixed_node(np.array([-0.0, _NAN, 1e-300, 0.0]))
    yield "NonZero", "float16", fixed_node(np.array([[6e-5, -0.0], [0.0, -2]], np.float16))
    repeated = np.array([3.0, 1.0, 3.0, 2.0, 3.0, 2.0], np.float32)
    yield "Unique", "unsorted_counts", fixed_node(repeated, sorted=0, outputs=4)
    words = np.array(["b", "A", "a", "B", "", "b", "\u00e9"], object)
    yield "Unique", "case_of_letters", fixed_node(words, sorted=1, outputs=4)
    yield "SequenceLength", "empty", fixed_node([])
    tensors: list[Any] = [np.array([k], np.float32) for k in range(140)]
    yield "SequenceLength", "many", fixed_node(tensors)
    yield (
        "StringSplit",
        "many",
        fixed_node(np.array(["a " * 200], object), delimiter=" ", outputs=2),
    )
    yield "Shape", "long_axis", fixed_node(np.zeros((0, 2**24 + 1), np.int8))
    items: list[Any] = [np.full(2, k, np.float32) for k in range(3)]
    new = np.array([7.0, 8.0], np.float32)
    for position in (-3, -1, 0, 2, 3):
        stem = f"position_{position}".replace("-", "minus_")
        index = np.array(position, np.int32 if position % 2 else np.int64)
        yield "SequenceInsert", stem, fixed_node(items, new, index)
    yield "SequenceInsert", "into_empty", fixed_node([], new, np.array(0, np.int64))
    yield "OptionalHasElement", "none", fixed_node(None)
    deep = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    yield "Reshape", "to_six_axes", fixed_node(deep, np.array([2, 1, 3, 2, 1, 2], np.int64))
    axes = np.zeros((2, 1, 3, 1, 2, 5), np.float32)
    for operator in ("Shape", "Size"):
        yield operator, "six_axes", fixed_node(axes)
    tall = np.arange(67 * 5, dtype=np.float32).reshape(67, 5) + 1
    yield "Trilu", "tall", fixed_node(tall, np.array(-3, np.int64))
    yield "EyeLike", "large", fixed_node(np.zeros((67, 70), np.float32), k=2)
    features = np.array([1.5, -2.0, 3.0, 0.25], np.float32)
    yield "ArrayFeatureExtractor", "one_axis", fixed_node(features, np.array([2, 0]))
    for dtype in ("int32", "int64"):
        rows = np.array([[1, -2], [3, 0], [-1, 5]], DTYPES[dtype])
        classifier = fixed_node(
            rows,
            coefficients=[0.5, -1.0, 2.0, 0.25, -0.75, 1.5],
            intercepts=[0.25, -0.5, 1.0],
            classlabels_ints=[4, 7, 1],
            outputs=2,
        )
        yield "LinearClassifier", f"rows_of_{dtype}", classifier
    lines = np.array([[0.5 + 2**-40], [0.5], [0.5 - 2**-40]], np.float64)
    yield "TreeEnsemble", "double_threshold", _double_tree(lines)


def _double_tree(x: Array) -> Generator:
    return fixed_node(
        x,
        tree_roots=[0],
        nodes_featureids=[0],
        nodes_splits=tensor_of(np.array([0.5])),
        nodes_modes=tensor_of(np.array([0], np.uint8)),
        nodes_truenodeids=[0],
        nodes_falsenodeids=[1],
        nodes_trueleafs=[1],
        nodes_falseleafs=[1],
        leaf_weights=tensor_of(np.array([1 / 3, 20.0])),
        leaf_targetids=[0, 0],
        n_targets=1,
        aggregate_function=1,
        post_transform=0,
    )


def _doubles() -> Iterator[tuple[str, str, Generator]]:
    """Yield small float16 numbers, zero scores, and doubles whose results float32 rounds."""
    tiny = np.array([6.2e-5, -9e-5, 7e-5], np.float16)
    yield "Mul", "precise_float16", fixed_node(tiny, np.array([[1000], [-3000]], np.float16))
    yield "Div", "precise_float16", fixed_node(tiny, np.array([[0.001], [-0.0002]], np.float16))
    yield "Clip", "precise_float16", fixed_node(tiny, np.float16(-8e-5), np.float16(1))
    # With SOFTMAX_ZERO, scores of zero stay zero. The score of the first class is zero without
    # cancellation, because a rounding error could make a cancelled result nonzero.
    rows = np.array([[1.0, 2.0], [2.0, 1.0]], np.float32)
    classifier = fixed_node(
        rows,
        coefficients=[0.0, 0.0, 0.5, 0.25, -1.0, 1.0],
        intercepts=[0.0, 0.0, 0.5],
        classlabels_ints=[4, 7, 1],
        post_transform="SOFTMAX_ZERO",
        outputs=2,
    )
    yield "LinearClassifier", "zero_scores", classifier
    for dtype in ("int8", "int64", "uint8"):
        x = np.array(
            [2, 3, 4, 100, *((-3, -4, -100) if dtype != "uint8" else (200,))], DTYPES[dtype]
        )
        yield "Shrink", f"whole_bias_{dtype}", fixed_node(x, lambd=3.0, bias=2.0)
    thirds = np.array([1 / 3, 1.578, -2.1, 0.1, -0.2])
    yield "Shrink", "precise_float64", fixed_node(thirds, lambd=0.25, bias=0.125)
    for operator in ("BlackmanWindow", "HammingWindow", "HannWindow"):
        for periodic in (0, 1):
            window = fixed_node(
                np.array(11, np.int64), output_datatype=TensorProto.DOUBLE, periodic=periodic
            )
            yield operator, f"double_{'periodic' if periodic else 'symmetric'}", window


def _texts() -> Iterator[tuple[str, str, Generator]]:
    """Yield white space, rows of texts, and stopwords that differ from a word in case."""
    words = np.array(["", "  ", " a b ", "a", "\ta\n b\r\nc"], object)
    yield "StringSplit", "white_space", fixed_node(words, delimiter="", outputs=2)
    long = "x" * 40
    table = np.array([["a", "b", f"{long}c"], ["", "d", "e"], ["f", "\u00e9", long]], object)
    yield "GatherND", "rows_of_texts", fixed_node(table, np.array([[2], [0]], np.int64))
    yield (
        "ScatterND",
        "rows_of_texts",
        fixed_node(table, np.array([[2]], np.int64), table[:1].copy()),
    )
    articles = np.array(["The", "the", "Cat", "THE"], object)
    for stem, sensitive, action in (
        ("sensitive_lower", 1, "LOWER"),
        ("sensitive_upper", 1, "UPPER"),
        ("insensitive_lower", 0, "LOWER"),
        ("insensitive", 0, "NONE"),
    ):
        attributes: dict[str, Any] = {"is_case_sensitive": sensitive, "case_change_action": action}
        removed = fixed_node(articles, stopwords=["the"], **attributes)
        yield "StringNormalizer", f"stopword_{stem}", removed


def _axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes with a negative axis of a cube, and slices that extend beyond an axis."""
    cube = (np.arange(27.0).reshape(3, 3, 3) * 7 % 11).astype(np.float32)
    indices = np.array([2, 0], np.int64)
    square = np.array([[2, 0, 1], [1, 1, 0], [0, 2, 2]], np.int64)
    for axis in (-2, -3):
        stem = f"cube_axis_{-axis}_from_end"
        yield "Gather", stem, fixed_node(cube, indices, axis=axis)
        yield "GatherElements", stem, fixed_node(cube, np.stack([square] * 3), axis=axis)
        yield "ScatterElements", stem, _scattered(cube, axis)
        yield "Split", stem, fixed_node(cube, np.array([1, 2]), axis=axis, outputs=2)
        yield "Concat", stem, fixed_node(cube, -cube, axis=axis)
        yield "Compress", stem, fixed_node(cube, np.array([True, False, True]), axis=axis)
        yield "Softmax", stem, fixed_node(cube, axis=axis)
        yield "TopK", stem, fixed_node(cube, np.array([2]), axis=axis)
        yield "ArgMax", stem, fixed_node(cube, axis=axis, keepdims=0)
        yield "CumSum", stem, fixed_node(cube, np.array(axis))
        yield "ReduceSum", stem, fixed_node(cube, np.array([axis]), keepdims=0)
        yield "OneHot", stem, _one_hot(axis)
    stem, inner = "cube_axis_2_from_end", np.array([-2])
    for operator in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"):
        yield f"Reduce{operator}", stem, fixed_node(cube, inner, keepdims=0)
    yield "CumProd", stem, fixed_node(cube, np.array(-2))
    for operator in ("Hardmax", "LogSoftmax", "LpNormalization", "ArgMin"):
        yield operator, stem, fixed_node(cube, axis=-2)
    far = np.iinfo(np.int64).max
    row = np.arange(7, dtype=np.float32)
    for stem, start, end, step in (
        ("to_largest", 1, far, 2),
        # If the step is negative, the end is limited to the last position, so the slice is empty.
        ("backward_to_largest", 2, far, -1),
        ("to_least", 99, -far, -2),
        ("largest_step", 0, far, far),
    ):
        bounds = [np.array([bound], np.int64) for bound in (start, end, 0, step)]
        yield "Slice", stem, fixed_node(row, *bounds)
    unordered = [np.array(bounds, np.int32) for bounds in ([1, 0], [3, 2], [2, -2], [1, 1])]
    yield "Slice", "unordered_axes_int32", fixed_node(cube, *unordered)


def _scattered(x: Array, axis: int) -> Generator:
    places = np.array([2, 0, 1], np.int64)
    shape = [1, 1, 1]
    shape[axis] = 3
    permuted = np.broadcast_to(places.reshape(shape), x.shape)
    return fixed_node(x, np.ascontiguousarray(permuted), -x, axis=axis)


def _one_hot(axis: int) -> Generator:
    classes = np.array([[0, 2, -1], [1, 1, 0], [2, -3, 1]], np.int64)
    return fixed_node(classes, np.array(3, np.int64), np.array([-1.5, 2.0], np.float32), axis=axis)
