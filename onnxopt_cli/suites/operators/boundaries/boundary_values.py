"""Nodes whose elements lie at the boundaries of an operator's definition.

Random draws seldom contain exceptional arguments of functions, elements equal to a threshold,
integers that no float represents, empty axes, and ties. Similar operators, such as all reductions,
have the same kinds of boundaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    fixed_node,
    int64s,
)
from onnxopt_cli.suites.operators.node_draft import NodeDraft

_INF, _NAN = np.inf, np.nan
# For float32 and float64, numbers whose squares exceed the range of the type.
_HUGE = (1e20, 1e200)
_FAR_ARGUMENTS = (100.0, 1000.0, _INF)
# Arguments at which approximations of exponentials replace the result by a limit.
_TAILS = (4.5, 5.25, 6.5, 8.25, 10.0, 12.5, 16.5, 18.25, 20.0, 30.0, 60.0)
# A number for each of the types float16, float32 and float64. The exponential of the number exceeds
# the range of the type, but half of the exponential is in the range.
_NEAR_OVERFLOW = (11.5, 89.0, 710.0)
_ROUNDED = (
    *(0.5, 1.5, 2.5, 3.5, 0.49999997, 0.49999999999999994, 0.9999999999999999),
    *(4194302.5, 4194304.5, 8388607.5, 8388609.0, 16777217.5, 2147483648.5, 1e20, _INF),
)


def _both_signs(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(sign * value for value in values for sign in (1.0, -1.0))


#: Exceptional arguments of functions, by operator. The expected results are the mathematical limits
#: of the functions.
EXCEPTIONAL: Mapping[str, Sequence[float]] = {
    "Acos": (1.0, -1.0, 0.0, 1.5, -2.0, _INF, _NAN),
    "Acosh": (1.0, 0.5, -2.0, 99.0, *_HUGE, _INF, _NAN),
    "Asin": (1.0, -1.0, 0.0, 1.5, -2.0, _INF, _NAN),
    "Asinh": (*_both_signs((1e-20, 99.0, *_HUGE, _INF)), 0.0, _NAN),
    "Atan": (*_both_signs((1e-20, 99.0, *_HUGE, _INF)), 0.0, _NAN),
    "Atanh": (*_both_signs((1.0, 1e-20, 1.5, _INF)), 0.0, _NAN),
    "Ceil": (*_both_signs(_ROUNDED), 0.0, _NAN),
    "Celu": (*_both_signs((7.5, *_TAILS, 100.0, 1000.0, _INF)), 0.0),
    "Cos": (_INF, -_INF, _NAN, 0.0, 1e-20),
    "Cosh": (*_both_signs((*_NEAR_OVERFLOW, 1000.0, _INF, 1e-20)), 0.0, _NAN),
    "Elu": (*_both_signs((7.5, *_TAILS, 100.0, 1000.0, _INF)), 0.0),
    "Erf": (*_both_signs((2.5, 3.25, *_TAILS, 1e-20, *_FAR_ARGUMENTS)), 0.0, _NAN),
    # The arguments of Exp test only overflow and underflow, not the reduction of large arguments.
    "Exp": (*_both_signs((1000.0, _INF)), 0.0, _NAN, 11.05, 88.7, 709.7, -9.0, -87.0),
    "Floor": (*_both_signs(_ROUNDED), 0.0, _NAN),
    "Gelu": (*_both_signs((3.5, *_TAILS)), 100.0, 1000.0, _INF, 0.0, _NAN),
    "HardSigmoid": (*_both_signs((2.5, 3.0, *_FAR_ARGUMENTS)), 0.0),
    "HardSwish": (*_both_signs((3.0, 100.0, 1000.0, 20000.0)), _INF, 0.0),
    "LeakyRelu": (*_both_signs((1.0, *_HUGE, _INF)), 0.0),
    "Log": (0.0, -0.0, 1.0, -1.0, 1e-30, *_HUGE, _INF, -_INF, _NAN),
    "Mish": (*_both_signs((9.0, *_TAILS)), 100.0, 1000.0, _INF, 0.0, _NAN),
    "Reciprocal": (*_both_signs((0.0, 1.0, 1e20, 1e-20, _INF)), _NAN),
    "Relu": (*_both_signs((0.0, 1e-20, *_HUGE, _INF)),),
    "Round": (*_both_signs(_ROUNDED), 0.0, _NAN),
    "Selu": (*_both_signs((7.5, *_TAILS, 100.0, 1000.0, _INF)), 0.0),
    "Sigmoid": (*_both_signs((9.0, *_TAILS, 1000.0, _INF)), 0.0, _NAN),
    "Sign": (*_both_signs((1e-20, *_HUGE, _INF)), 0.0, -0.0),
    "Sin": (_INF, -_INF, _NAN, 0.0, 1e-20),
    "Sinh": (*_both_signs((*_NEAR_OVERFLOW, 1000.0, _INF, 1e-20)), 0.0, _NAN),
    "Softplus": (*_both_signs((9.0, *_TAILS, 1000.0, _INF)), 100.0, 0.0, _NAN),
    "Softsign": (*_both_signs((1e20, 1e-20, 1.0, 99.0)), 0.0, _NAN),
    "Sqrt": (0.0, -0.0, -1.0, 1.0, 1e-30, *_HUGE, _INF, -_INF, _NAN),
    "Swish": (*_both_signs((9.0, *_TAILS, 1000.0)), 100.0, _INF, 0.0, _NAN),
    "Tan": (_INF, -_INF, _NAN, 0.0, 1e-20, 1.5703125, -1.5703125),
    "Tanh": (*_both_signs((*_TAILS, 1e-20, *_FAR_ARGUMENTS)), 0.0, _NAN),
    "ThresholdedRelu": (*_both_signs((1.0, 2.0, 1e20, _INF)), 0.0),
    "IsInf": (*_both_signs((*_HUGE, 3e38, _INF)), 0.0, _NAN),
    # Processors may set the sign bit of NaN.
    "IsNaN": (*_both_signs((*_HUGE, 3e38, _INF)), 0.0, _NAN, -_NAN),
}
# Operators whose results are exact in every type.
_EXACT = ("Ceil", "Floor", "Round", "Relu", "Sign", "LeakyRelu", "IsInf", "IsNaN", "Reciprocal")
#: For each operator: a float attribute, the value of the attribute, and further attributes. Some
#: elements of the input equal the value of the attribute.
THRESHOLDS: Mapping[str, tuple[str, float, Mapping[str, float]]] = {
    "Shrink": ("lambd", 1.5, {"bias": 0.5}),
    "ThresholdedRelu": ("alpha", 1.5, {}),
    "Binarizer": ("threshold", 0.5, {}),
}
_BEYOND_FLOATS = (2**24 + 1, 2**24, 2**53 + 1, 2**53, 2**53 - 1, -(2**24) - 1, -(2**53) - 1, 3)
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_PAIRED = (0.0, -0.0, 1.0, -2.0, _INF, -_INF, _NAN)


def _typed(draft: NodeDraft, name: str) -> np.dtype[Any]:
    """Return an element type.

    If the first input does not allow the type, the node is discarded.
    """
    draft.require(draft.allowed(0, (name,)))
    return DTYPES[name]


def _exceptional(draft: NodeDraft, *, values: Sequence[float], dtype: str) -> None:
    with np.errstate(over="ignore"):
        x = np.array(values).astype(_typed(draft, dtype))
    # Some implementations read at most four axes.
    draft.add(x.reshape(-1, 1, 1, 1, 1) if dtype == "float16" else x)
    if draft.schema.name == "LeakyRelu":
        # If alpha is above 1, an implementation as max(x, alpha * x) is wrong.
        draft.set("alpha", 2.0)
    if draft.schema.name == "Gelu":
        draft.attribute("approximate", (None, "tanh"))


def _threshold(
    draft: NodeDraft, *, dtype: str, name: str, value: float, further: Mapping[str, float]
) -> None:
    """Draw elements around a threshold.

    The float64 elements next to the threshold would equal the threshold in float32.
    """
    kind = _typed(draft, dtype)
    distances = {"float32": (0.25, 0.5), "float64": (2.0**-40, 0.5)}[dtype]
    near = [value, *(value + step for distance in distances for step in (-distance, distance))]
    draft.set(name, value)
    for attribute, attribute_value in further.items():
        draft.set(attribute, attribute_value)
    draft.add(np.array(_both_signs(near), kind))


def _clip(draft: NodeDraft, *, values: Sequence[float], dtype: str) -> None:
    kind = _typed(draft, dtype)
    draft.add(np.array([*values, -_INF, _INF], kind))
    for bound in values:
        draft.add(np.array(bound, kind))


def _large_integers(draft: NodeDraft, *, operands: int = 1) -> None:
    """Draw integers that float32 or float64 rounds.

    The second operand is either close to the first operand or a small constant.
    """
    dtype = _typed(draft, "int64")
    values = np.array(_BEYOND_FLOATS, dtype)
    draft.add(values)
    constant = {"Mul": 3, "Div": 1, "Mod": 2**24, "Sub": 2}.get(draft.schema.name)
    if constant and operands > 1:
        draft.add(np.full_like(values, constant))
    elif operands > 1:
        # The second operand includes the neighbours on both sides, because rounding to even moves a
        # number to one of them.
        draft.add(np.stack([values - 1, values, values + 1]))


def _large_clip(draft: NodeDraft) -> None:
    _large_integers(draft)
    draft.add(np.array(-(2**53) - 1, np.int64))
    draft.add(np.array(2**53 - 1, np.int64))


def _large_matrix(draft: NodeDraft) -> None:
    """Draw matrices of integers whose products neither float32 nor float64 represents."""
    dtype = _typed(draft, "int64")
    draft.add(np.array([[2**53 + 1, 2], [3, 2**24 + 1]], dtype))
    draft.add(np.array([[1, 3], [5, -7]], dtype))
    if draft.schema.name == "Einsum":
        draft.set("equation", "ij,jk->ik")


def _large_axis(draft: NodeDraft) -> None:
    """Draw rows of integers whose sums and maxima float64 cannot represent."""
    dtype = _typed(draft, "int64")
    x = np.array([[2**53, 1, 0], [2**24, 2**24 + 1, 5], [-(2**53) - 1, 2, -(2**53)]], dtype)
    draft.add(x)
    name = draft.schema.name
    if name.startswith("Cum"):
        draft.add(np.array(1, np.int64))
    elif name == "TopK":
        draft.add(np.array([2], np.int64))
    elif name.startswith("Arg"):
        draft.set("axis", 1)
    else:
        draft.add(np.array([1], np.int64))


def _pairs(draft: NodeDraft) -> None:
    """Add two operands that broadcast to all pairs of exceptional values."""
    values = np.array(_PAIRED, _typed(draft, "float32"))
    draft.add(values[:, None])
    draft.add(values)


def _shift(draft: NodeDraft, *, dtype: str, direction: str) -> None:
    kind = _typed(draft, dtype)
    info = np.iinfo(kind)
    draft.set("direction", direction)
    draft.add(np.array([[info.max], [info.max // 2 + 1], [info.min], [5], [info.min // 3]], kind))
    draft.add(np.array([0, 1, 3, info.bits - 1], kind))


_EIGHT_BIT_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def _cast_to_float8(draft: NodeDraft, *, target: str, saturate: int) -> None:
    """Draw floats inside, at and beyond the limits of an 8-bit type."""
    dtype = DTYPES[target]
    # No value is drawn between the largest value and the next power of two, where the published
    # tables contradict the rounding rule.
    values = (0.0, 1.0, 1.0625, 1.1875, 0.013, 240.0, 448.0, 512.0, 57344.0, 65536.0, 1e6)
    draft.add(np.array(_both_signs((*values, _INF)), np.float32))
    if draft.schema.name == "Cast":
        draft.set("to", helper.np_dtype_to_tensor_dtype(dtype))
    else:
        draft.require(draft.allowed(1, (target,)))
        draft.add(np.zeros(1, dtype))
    draft.set("saturate", saturate)


def _reduced(draft: NodeDraft, x: Array, axes: Sequence[int] | None, noop: int | None) -> None:
    draft.add(x)
    draft.set("noop_with_empty_axes", noop)
    draft.require(len(draft.schema.inputs) > 1 or axes is None)
    if axes is not None:
        draft.add(np.array(axes, np.int64))


def _empty_axis(draft: NodeDraft, *, dtype: str) -> None:
    """Draw a tensor and reduce it along an axis without elements."""
    _reduced(draft, np.zeros((2, 0, 3), _typed(draft, dtype)), [1], None)


def _empty_axes(draft: NodeDraft, *, axes: Sequence[int] | None, noop: int) -> None:
    """Draw a reduction whose input ``axes`` is absent or empty."""
    x = draft.tensor(_typed(draft, "float32"), (2, 3), low=0.25, high=4.0)
    _reduced(draft, x, axes, noop)


def _infinite_rows(draft: NodeDraft) -> None:
    rows = [[-_INF, -_INF], [-_INF, 1.0], [2.0, _INF], [-3.0, -2.0], [_INF, _INF]]
    x = np.array(rows, _typed(draft, "float32"))
    if draft.schema.name.startswith("Arg"):
        draft.add(x)
        draft.set("axis", 1)
    else:
        _reduced(draft, x, [1], None)


def _exceptional_rows(draft: NodeDraft) -> None:
    """Draw rows with infinities and NaN beside finite numbers."""
    rows = [[_INF, 2.0], [-_INF, 0.5], [_NAN, 1.0], [0.0, _NAN], [_INF, -_INF], [1.5, -2.0]]
    _reduced(draft, np.array(rows, _typed(draft, "float32")), [1], None)


def _far_rows(draft: NodeDraft, *, dtype: str) -> None:
    """Draw exponents for which powers overflow or vanish."""
    rows = [[1000.0, 999.0, 0.0], [-1000.0, -1001.0, -1000.5], [90.0, 89.0, -90.0], [0.0, 0.0, 0.0]]
    x = np.array(rows, _typed(draft, dtype))
    if draft.schema.name == "ReduceLogSumExp":
        _reduced(draft, x, [1], None)
    else:
        draft.add(x)
        draft.set("axis", 1)


def _masked_rows(draft: NodeDraft) -> None:
    """Draw rows in which minus infinity stands for masked elements, and a row with NaN."""
    rows = [[-_INF, 0.0, 1.0], [_NAN, 1.0, 2.0], [2.0, -_INF, -_INF]]
    draft.add(np.array(rows, _typed(draft, "float32")))
    draft.set("axis", -1)


def _tied(draft: NodeDraft, *, axis: int, last: int | None = None) -> None:
    """Draw elements that are equal along the axis.

    Args:
        draft: the node.
        axis: the axis.
        last: the attribute ``select_last_index``; None to leave it out.
    """
    x = [[[1, 1, 0], [0, 1, 1]], [[0, 0, 0], [2, 7, 2]], [[1, 1, 0], [2, 1, 1]]]
    draft.add(np.array(x, np.float32))
    draft.set("axis", axis)
    draft.set("select_last_index", last)
    if draft.schema.name == "TopK":
        draft.add(np.array([2], np.int64))


def _cumulated(draft: NodeDraft, *, exclusive: int, reverse: int, axis: int) -> None:
    x = [[1.0, 2.0, 0.0, -3.0], [2.0, -0.5, 4.0, 3.0], [0.5, 0.0, 2.0, -1.0]]
    draft.add(np.array(x, np.float32))
    draft.add(np.array(axis, np.int64))
    draft.set("exclusive", exclusive)
    draft.set("reverse", reverse)


def _zero_rows(draft: NodeDraft, *, p: int) -> None:
    """Draw a row with the sum zero, rows with other sums, and a row of zeros."""
    rows = [[1.5, -2.0, 0.25], [0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [-3.0, -0.5, -1.0]]
    draft.add(np.array(rows, np.float32))
    draft.set("p", p)
    draft.set("axis", 1)


def _local_window(draft: NodeDraft, *, size: int) -> None:
    draft.add(draft.tensor(np.dtype(np.float32), (1, 5, 2, 2), styles=("plain",)))
    draft.set("size", size)
    draft.set("alpha", 2.0)
    draft.set("bias", 0.5)


def _dynamic_ties(draft: NodeDraft, *, low: float, high: float) -> None:
    """Draw elements half way between quantized values; the scale is a power of two."""
    ties = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 17.5, 100.5]) / 64
    inside = ties[(ties >= low) & (ties <= high)]
    draft.add(np.array([low, high, *inside], np.float32))


def _quantized_ties(draft: NodeDraft, *, dtype: str, zero_point: int) -> None:
    """Draw elements half way between quantized values, and others beyond the range."""
    kind = DTYPES[dtype]
    values = [0.5, 1.5, 2.5, 3.5, 100.5, 127.5, 250.5, 300.0, 1000.0, 1e6]
    draft.add(np.array(_both_signs(values), np.float32) * np.float32(0.25))
    draft.add(np.array(0.25, np.float32))
    draft.require(draft.allowed(2, (dtype,)))
    draft.add(np.array(zero_point, kind))


def _extreme_products(draft: NodeDraft, *, a_type: str, b_type: str) -> None:
    """Draw factors whose sums of products do not fit into 16 bits."""
    first, second = DTYPES[a_type], DTYPES[b_type]
    ends_a, ends_b = np.iinfo(first), np.iinfo(second)
    a, b = [ends_a.max, ends_a.max, ends_a.min], [ends_b.max, ends_b.min]
    draft.add(np.array([a, a[::-1]], first))
    draft.add(np.array([b, b, [b[1], b[0]]], second))


def _qlinear_ties(draft: NodeDraft) -> None:
    """Draw products half way between quantized values, and others beyond the range."""
    scale = np.array(0.5, np.float32)
    draft.add(np.array([[1, 3], [5, 255], [7, 0]], np.uint8))
    draft.add(scale)
    draft.add(np.array(0, np.uint8))
    draft.add(np.array([[1, 3, 255], [2, 4, 255]], np.uint8))
    draft.add(scale)
    draft.add(np.array(1, np.uint8))
    draft.add(np.array(0.5, np.float32))
    draft.add(np.array(3, np.uint8))


def _one_hot_fractions(draft: NodeDraft) -> None:
    """Draw floats that are converted to integers."""
    draft.set("cats_int64s", [5, -1, 9])
    draft.set("zeros", 1)
    draft.add(np.array([5.75, -1.75, 9.0, 8.75, -0.5], _typed(draft, "float32")))


def _repeated_keys(draft: NodeDraft, *, keys: str, values: str) -> None:
    """Draw a map with repeated keys; the last occurrence of a key determines its value."""
    draft.require(draft.has("keys_tensor"))
    pool: Mapping[str, list[Any]] = {
        "int64s": [5, -1, 5, 9],
        "strings": ["a", "transformation 1", "a", ""],
        "floats": [0.5, _NAN, 0.5, 2.0],
    }
    mapped: Mapping[str, list[Any]] = {"strings": ["p", "q", "r", "s"], "int64s": [1, 2, 3, 4]}
    draft.set(f"keys_{keys}", pool[keys])
    draft.set(f"values_{values}", mapped[values])
    dtype = {"int64s": np.int64, "strings": object, "floats": np.float32}[keys]
    unknown: Mapping[str, list[Any]] = {
        "int64s": [7],
        "strings": ["transformation 2"],
        "floats": [1.0],
    }
    draft.add(np.array([*pool[keys], *unknown[keys]], dtype))


def _normalizer_zeros(draft: NodeDraft, *, norm: str) -> None:
    draft.set("norm", norm)
    draft.add(np.array([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]], np.float32))


def boundary_values() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _arguments()
    yield from _parameters()
    yield from _losses()
    yield from _integers()
    yield from _conversions()
    yield from _reductions()
    yield from _along_axes()
    yield from _extreme_ties()
    yield from _quantized()


def _arguments() -> Iterator[tuple[str, str, Generator]]:
    for operator, arguments in EXCEPTIONAL.items():
        dtypes = ("float32", "float64", "float16")
        for dtype in (*dtypes, "bfloat16") if operator in _EXACT else dtypes:
            draw = partial(_exceptional, values=arguments, dtype=dtype)
            yield operator, f"exceptional_{dtype}", draw
    for operator, (name, value, further) in THRESHOLDS.items():
        for dtype in ("float32", "float64"):
            draw = partial(_threshold, dtype=dtype, name=name, value=value, further=further)
            yield operator, f"threshold_{dtype}", draw
    gates = np.array([9.0, -9.0, 100.0, 1000.0, -1000.0, 0.0], np.float32)
    yield "SwiGLU", "far_gates", fixed_node(gates, np.array([2, 3, -4, 5, 6, 7], np.float32))
    bounds = np.float32(-1.0), np.float32(2.0)
    yield "Clip", "of_nan", fixed_node(np.array([_NAN, -3.0, 3.0], np.float32), *bounds)
    infinities = np.array([-_INF, 3.0, _INF], np.float32)
    unbounded = fixed_node(infinities, np.float32(-_INF), np.float32(_INF))
    yield "Clip", "infinite_bounds", unbounded
    slopes = np.array([2.0, 0.5, 3.0, _NAN, _INF, _NAN, -_INF], np.float32)
    data = np.array([_NAN, _INF, -_INF, -1.0, -2.0, 3.0, 4.0], np.float32)
    yield "PRelu", "exceptional", fixed_node(data, slopes)
    infinite = np.array([1.0, _INF, 2.0, 3.0], np.float32)
    yield "CumSum", "exclusive_infinity", fixed_node(infinite, np.array(0), exclusive=1)
    periods = np.array([2.0, -2.5, 4.0, -7.0, 10.0], np.float32)
    yield "Tan", "other_periods", fixed_node(periods)
    small = np.array([0.005, -0.005, 0.0, 1e-30, -1e-30], np.float32)
    yield "Binarizer", "default_threshold", fixed_node(small)
    infinite = np.array([-_INF, _INF, -1.0], np.float32)
    yield "Binarizer", "infinite", fixed_node(infinite, threshold=-1.0)
    above = np.array([2**24 + 1, 2**24, 2**24 - 1, 2**40, -(2**40)], np.int64)
    yield "Binarizer", "large_int64", fixed_node(above, threshold=2.0**24)
    yield "Clip", "infinite", partial(_clip, values=(-1.0, 2.0), dtype="float32")
    yield "Clip", "exchanged", partial(_clip, values=(2.0, -1.0), dtype="float64")
    for operator in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", *_COMPARISONS):
        yield operator, "exceptional_pairs", _pairs
    bases = np.array([[0.5], [2.0], [0.0], [-2.0], [_INF], [-_INF]], np.float32)
    exponents = np.array([0.0, 3.0, -1.0, 2.0], np.float32)
    yield "Pow", "exceptional", fixed_node(bases, exponents)
    infinite_exponents = np.array([_INF, -_INF], np.float32)
    yield "Pow", "infinite_exponents", fixed_node(bases[:3], infinite_exponents)
    dividends = np.array([[5.5], [-5.5], [0.0], [_INF], [_NAN]], np.float32)
    divisors = np.array([2.0, -3.0, 0.0, _INF, -_INF, _NAN], np.float32)
    yield "Mod", "exceptional", fixed_node(dividends, divisors, fmod=1)
    rows = np.array([[-_INF, -_INF], [-_INF, -9.0], [_INF, _INF], [3.0, _INF]], np.float32)
    yield "Hardmax", "infinite_rows", fixed_node(rows, axis=1)
    yield "TopK", "infinite_rows", fixed_node(rows, int64s(1), axis=1)
    yield "TopK", "infinite_rows_smallest", fixed_node(rows, int64s(2), axis=1, largest=0)
    images = np.array([[[[-_INF, -_INF], [-_INF, -_INF]], [[-_INF, -9.0], [3.0, 1.0]]]], np.float32)
    yield "GlobalMaxPool", "infinite_image", fixed_node(images)
    pooled = fixed_node(images, kernel_shape=[1, 2], strides=[1, 2], outputs=1)
    yield "MaxPool", "infinite_windows", pooled


def _parameters() -> Iterator[tuple[str, str, Generator]]:
    """Yield scales, matrices, angles and windows with exceptional elements.

    No infinity is multiplied by 0, because correct implementations may leave out the product.
    """
    infinities = np.array([_INF, -_INF, 3.0, -2.0], np.float32)
    # If gamma is above 1, the largest number times gamma is also infinite.
    yield "Selu", "infinity_small_gamma", fixed_node(infinities, gamma=0.5)
    rows = np.array([[_INF, 1.0, -2.0], [0.5, 1.5, -1.0]], np.float32)
    scale = np.array([2.0, -3.0, 0.5], np.float32)
    yield "RMSNormalization", "infinite_element", fixed_node(rows, scale)
    # The normalized element is below 1, so that its product with the largest number is finite.
    infinite_scale = np.array([_INF, -3.0, 0.5], np.float32)
    yield "RMSNormalization", "infinite_scale", fixed_node(rows[1:], infinite_scale)
    matrix = np.array([[[7.5, -9.0, 0.5], [0.5, 1.0, _INF]]], np.float32)
    yield "AffineGrid", "exceptional", fixed_node(matrix, int64s(1, 1, 2, 3), align_corners=1)
    heads = np.array([[_INF, 1.0, 2.0, -3.0], *[[0.5, 1.5, -1.0, 2.5]] * 3], np.float32)
    cosines = np.array([[0.5, -0.25], [_INF, _NAN], [0.5, 0.25], [0.0, -1.0]], np.float32)
    sines = np.array([[0.75, 0.5], [0.5, 0.25], [_INF, _NAN], [-1.0, 0.0]], np.float32)
    rotation = fixed_node(heads[None, None], cosines[None], sines[None])
    yield "RotaryEmbedding", "exceptional", rotation
    signal = (np.arange(1, 9) * 5 % 7 - 2).reshape(1, 8, 1).astype(np.float32)
    window = np.array([0.0, 0.5, 1.0, 0.25], np.float32)
    yield "STFT", "window_with_zero", fixed_node(signal, np.array(2), window)


def _losses() -> Iterator[tuple[str, str, Generator]]:
    """Yield negative, infinite and missing weights, and ignored elements that are infinite."""
    scores = np.array([[-0.5, -1.5, -2.0], [-2.5, -0.25, -1.0], [-1.0, -2.0, -0.75]], np.float32)
    targets = int64s(0, 1, 2)
    negative = np.array([-0.5, 2.0, -4.0], np.float32)
    exceptional = np.array([-_INF, _INF, _NAN], np.float32)
    ignored = np.array([[-0.5, -1.5, -2.0], [-2.5, -_INF, -1.0]], np.float32)
    for operator in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        yield operator, "negative_weights", fixed_node(scores, targets, negative)
        weighted = fixed_node(scores, targets, exceptional, reduction="none")
        yield operator, "exceptional_weights", weighted
        yield operator, "ignored_infinity", fixed_node(ignored, targets[:2], ignore_index=1)
        # The ignored target is not a class.
        for stem, other, weights in (
            ("below_classes", -100, ()),
            ("above_classes", 100, (-negative,)),
            ("beyond_float32", 2**24 + 1, ()),
        ):
            loss = fixed_node(scores, int64s(1, other, 2), *weights, ignore_index=other)
            yield operator, f"ignored_{stem}", loss
    single = fixed_node(scores[:, :1].copy(), int64s(0, 0, 0), ignore_index=0, reduction="none")
    yield "SoftmaxCrossEntropyLoss", "ignored_only_class", single
    for dtype in ("float16", "float32"):
        x = distinct(4, 6).astype(DTYPES[dtype])
        training = fixed_node(x, np.zeros((), x.dtype), np.array(True), outputs=2)
        yield "Dropout", f"nothing_dropped_{dtype}", training


def _integers() -> Iterator[tuple[str, str, Generator]]:
    for operator in ("Abs", "Neg", "Sign"):
        yield operator, "large_integers", _large_integers
    for operator in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", *_COMPARISONS):
        yield operator, "large_integers", partial(_large_integers, operands=2)
    for operator in ("MatMul", "Gemm", "Einsum"):
        yield operator, "large_integers", _large_matrix
    sums = ("ReduceSum", "ReduceL1", "ReduceMax", "ReduceMin")
    for operator in (*sums, "ArgMax", "ArgMin", "TopK", "CumSum"):
        yield operator, "large_integers", _large_axis
    yield "Clip", "large_integers", _large_clip
    for dtype in ("uint8", "uint16", "uint32", "uint64", "int8", "int32", "int64"):
        for direction in ("LEFT", "RIGHT"):
            shift = partial(_shift, dtype=dtype, direction=direction)
            yield "BitShift", f"all_bits_{dtype}_{direction.lower()}", shift


def _conversions() -> Iterator[tuple[str, str, Generator]]:
    for operator in ("Cast", "CastLike"):
        for target in _EIGHT_BIT_FLOATS:
            for saturate in (0, 1):
                cast = partial(_cast_to_float8, target=target, saturate=saturate)
                yield operator, f"{target}_{'saturated' if saturate else 'unsaturated'}", cast
    halves = np.array([0.5, -0.25, 0.0, 1.0], np.float16)
    yield "Cast", "fractions_float16_bool", fixed_node(halves, to=TensorProto.BOOL)
    yield "CastLike", "fractions_float16_bool", fixed_node(halves, np.zeros(1, bool))
    yield "OneHotEncoder", "fractions", _one_hot_fractions
    # float16 cannot represent 2049, and float32 cannot represent the largest number below 3.
    classes, pair = int64s(1, 2), np.array([-1.5, 2.0], np.float32)
    yield "OneHot", "depth_beyond_float16", fixed_node(classes, np.float32(2049), pair)
    below = np.nextafter(3, 0)
    yield "OneHot", "depth_below_3", fixed_node(classes, np.array(below), pair)
    yield "OneHot", "class_below_3", fixed_node(np.array([1, below]), np.array(4), pair)
    for keys, values in (("int64s", "strings"), ("strings", "int64s"), ("floats", "strings")):
        map_keys = partial(_repeated_keys, keys=keys, values=values)
        yield "LabelEncoder", f"repeated_{keys}", map_keys
    numbers = partial(_repeated_keys, keys="floats", values="int64s")
    yield "LabelEncoder", "repeated_floats_numbers", numbers
    scaled = fixed_node(int64s([1, -3, 7]), offset=[0.5, -1.25, 2.0], scale=[2.0, 0.5, 1.5])
    yield "Scaler", "fractions_int64", scaled
    for norm in ("L1", "L2", "MAX"):
        yield "Normalizer", f"zeros_{norm.lower()}", partial(_normalizer_zeros, norm=norm)
        # The squares of the elements are in the range of int64.
        large = 2**30 if norm == "L2" else 2**40
        rows = np.array([[-large, large // 3, 300], [2, -70_000, 9]])
        yield "Normalizer", f"signs_{norm.lower()}", fixed_node(rows, norm=norm)
    for name in ("float64", "int64"):
        rows = np.array([[3, 4, 1], [2, 5, 6]], DTYPES[name])
        yield "Normalizer", f"rows_{name}", fixed_node(rows, norm="L2")


def _reductions() -> Iterator[tuple[str, str, Generator]]:
    defined_empty = ("Sum", "SumSquare", "Prod", "L1", "L2", "Max", "Min", "LogSum", "LogSumExp")
    for name in (*defined_empty, "Mean"):
        operator = f"Reduce{name}"
        if name in defined_empty:
            yield operator, "empty_axis", partial(_empty_axis, dtype="float32")
        for axes, noop, stem in (([], 1, "noop"), (None, 1, "noop_omitted"), ([], 0, "all_axes")):
            yield operator, stem, partial(_empty_axes, axes=axes, noop=noop)
    truths = np.array([[True, False], [False, False], [True, True]])
    for name in ("Max", "Min"):
        yield f"Reduce{name}", "truths", fixed_node(truths, int64s(1))
        yield f"Reduce{name}", "empty_axis_int64", partial(_empty_axis, dtype="int64")
    for operator in ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin"):
        yield operator, "infinite_rows", _infinite_rows
    # The two elements of each row are equal in float32.
    close = np.array([[2**24, 2**24 + 1], [-(2**24), -(2**24) - 1]], np.int32)
    for operator in ("ArgMax", "ArgMin"):
        yield operator, "large_int32", fixed_node(close, axis=1)
    for name in ("Sum", "Prod", "L1", "L2", "SumSquare", "LogSum"):
        yield f"Reduce{name}", "exceptional_rows", _exceptional_rows
    # No row has infinities of both signs, for which onnx's reference returns NaN.
    rows = np.array([[_INF, 2.0], [-_INF, 0.5], [_NAN, 1.0], [1.5, -2.0]], np.float32)
    yield "ReduceLogSumExp", "exceptional_rows", fixed_node(rows, int64s(1))
    for operator in ("ReduceLogSumExp", "Softmax", "LogSoftmax"):
        for dtype in ("float32", "float64"):
            yield operator, f"far_{dtype}", partial(_far_rows, dtype=dtype)


def _extreme_ties() -> Iterator[tuple[str, str, Generator]]:
    for operator in ("ArgMax", "ArgMin"):
        for axis, stem in ((0, "first"), (-2, "inner"), (-1, "last")):
            for last in (0, 1):
                name = f"ties_{stem}{'_select_last' if last else ''}"
                yield operator, name, partial(_tied, axis=axis, last=last)


def _along_axes() -> Iterator[tuple[str, str, Generator]]:
    for operator in ("Softmax", "LogSoftmax"):
        yield operator, "masked", _masked_rows
    for operator in ("Hardmax", "TopK"):
        for axis, stem in ((0, "first"), (1, "inner"), (-1, "last")):
            yield operator, f"ties_{stem}", partial(_tied, axis=axis)
    for operator in ("CumSum", "CumProd"):
        for exclusive, reverse, axis in np.ndindex(2, 2, 2):
            stem = f"{'exclusive' if exclusive else 'inclusive'}{'_reverse' if reverse else ''}"
            draw = partial(_cumulated, exclusive=exclusive, reverse=reverse, axis=axis)
            yield operator, f"{stem}_{axis}", draw
    for p in (1, 2):
        yield "LpNormalization", f"zeros_{p}", partial(_zero_rows, p=p)
    tiny = np.array([[3e-15, -4e-15], [3.0, 4.0]], np.float32)
    yield "LpNormalization", "tiny_rows", fixed_node(tiny, axis=1)
    for size in (2, 3, 4):
        yield "LRN", f"window_{size}", partial(_local_window, size=size)


def _quantized() -> Iterator[tuple[str, str, Generator]]:
    largest = 255 / 64
    for stem, low, high in (
        ("both", -1.0, largest - 1.0),
        ("positive", 0.25, largest),
        ("negative", -largest, 0.0),
    ):
        draw = partial(_dynamic_ties, low=low, high=high)
        yield "DynamicQuantizeLinear", f"ties_{stem}", draw
    for dtype, zero_point in (("uint8", 3), ("int8", -5), ("uint8", 128), ("int16", 7)):
        ties = partial(_quantized_ties, dtype=dtype, zero_point=zero_point)
        yield "QuantizeLinear", f"ties_{dtype}_{abs(zero_point)}", ties
    for a_type in ("uint8", "int8"):
        for b_type in ("uint8", "int8"):
            extreme = partial(_extreme_products, a_type=a_type, b_type=b_type)
            yield "MatMulInteger", f"extreme_{a_type}_{b_type}", extreme
    yield "QLinearMatMul", "ties", _qlinear_ties
