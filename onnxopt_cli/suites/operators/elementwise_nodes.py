"""Generators of operators that compute each output element from one element of each operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.core.values import DTYPES, Array, dtype_name
from onnxopt_cli.suites.operators.node_draft import (
    ANY,
    FLOATS,
    INTEGERS,
    NUMBERS,
    NodeDraft,
    Shape,
    elements,
)

_SPECIAL = ("plain", "halves", "wide", "special")
_FINITE = ("plain", "halves", "wide", "negative", "limits")
_MAX_SHIFT = 7
# The first version that defines shifts by negative numbers and shifts by all bits.
_ANY_SHIFT_VERSION = 28
_SMALLEST_DIVISOR = 0.125


@dataclass(frozen=True)
class Unary:
    """An operator with one tensor.

    Attributes:
        low: the least argument; None for no limit.
        high: the largest argument.
        styles: how arguments are distributed.
        floats: float attributes with the values to choose from; None leaves them out.
        choices: attributes of other types with the values to choose from.
        among: the element types to choose from.
    """

    low: float | None = None
    high: float | None = None
    styles: Sequence[str] = _SPECIAL
    floats: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    among: Sequence[str] = ANY

    def __call__(self, draft: NodeDraft) -> None:
        """Draw a node."""
        dtype = draft.dtype(0, self.among)
        low = self.low
        if dtype_name(dtype) not in FLOATS:
            low = None
        draft.add(
            draft.tensor(dtype, draft.shape(0, 4), low=low, high=self.high, styles=self.styles)
        )
        for name, values in self.floats.items():
            draft.float_attribute(name, values)
        for name, options in self.choices.items():
            draft.attribute(name, options)


_ALPHA = (None, 0.5, 2.0, -0.75, 0.0, 1.25)

UNARY: Mapping[str, Unary] = {
    "Abs": Unary(styles=("plain", "wide", "special", "limits")),
    "Acos": Unary(-1, 1),
    "Acosh": Unary(1, 9),
    "Asin": Unary(-1, 1),
    "Asinh": Unary(),
    "Atan": Unary(),
    "Atanh": Unary(-0.96875, 0.96875),
    "BitwiseNot": Unary(among=INTEGERS, styles=("plain", "wide", "limits")),
    "Ceil": Unary(styles=("halves", "plain", "wide", "special")),
    "Celu": Unary(styles=_FINITE, floats={"alpha": (None, 0.5, 2.0, 3.5, -1.5)}),
    "Cos": Unary(styles=("plain", "halves", "wide")),
    "Cosh": Unary(-9, 9),
    "Elu": Unary(styles=("plain", "negative", "wide"), floats={"alpha": _ALPHA}),
    "Erf": Unary(styles=("plain", "halves", "special"), among=FLOATS),
    "Exp": Unary(styles=("plain", "halves", "special")),
    "Floor": Unary(styles=("halves", "plain", "wide", "special")),
    "Gelu": Unary(-4, 9, choices={"approximate": (None, "tanh", "none")}),
    "HardSigmoid": Unary(
        styles=("plain", "halves", "wide"),
        floats={"alpha": (None, 0.5, 0.125, -0.25), "beta": (None, 0.625, 0.0, -0.25)},
    ),
    "HardSwish": Unary(styles=("plain", "halves", "wide")),
    "Identity": Unary(styles=("plain", "special")),
    "IsInf": Unary(
        styles=("special",),
        choices={"detect_negative": (None, 0, 1), "detect_positive": (None, 0, 1)},
    ),
    "IsNaN": Unary(styles=("special",)),
    "LeakyRelu": Unary(styles=("plain", "negative", "wide"), floats={"alpha": _ALPHA}),
    "Log": Unary(0.0078125, 9),
    # For arguments below -1, the term 1 + exp(x) in the published function body loses digits.
    "Mish": Unary(-1, 30),
    "Neg": Unary(styles=("plain", "wide", "special", "limits")),
    "Not": Unary(),
    "Reciprocal": Unary(styles=("plain", "wide", "special")),
    "Relu": Unary(styles=("plain", "negative", "special")),
    "Round": Unary(styles=("halves", "plain", "wide", "special")),
    "Selu": Unary(
        styles=("plain", "negative", "wide"),
        floats={"alpha": (None, 0.5, 2.0, -0.75), "gamma": (None, 0.5, 2.0)},
    ),
    "Shrink": Unary(
        styles=("plain", "halves", "negative", "wide"),
        floats={"lambd": (None, 1.5, 0.25), "bias": (None, 0.5, -0.25)},
        among=tuple(name for name in NUMBERS if not name.startswith("u")),
    ),
    "Sigmoid": Unary(-20, 20),
    "Sign": Unary(styles=("plain", "negative", "wide", "limits")),
    "Sin": Unary(styles=("plain", "halves", "wide")),
    "Sinh": Unary(-9, 9),
    "Softplus": Unary(-20, 90),
    "Softsign": Unary(styles=("plain", "wide", "negative")),
    "Sqrt": Unary(0, 90),
    "Swish": Unary(-9, 30, floats={"alpha": (None, 0.5, 2.0, -0.75)}),
    "Tan": Unary(-1.5, 1.5),
    "Tanh": Unary(-9, 9),
    "ThresholdedRelu": Unary(
        styles=("halves", "plain", "negative"), floats={"alpha": (None, 0.5, -0.5, 2.0)}
    ),
}


def operand_shapes(draft: NodeDraft, count: int) -> list[Shape]:
    """Choose shapes that can be broadcast to each other, in any direction."""
    shape = draft.shape(0, 4)
    return [draft.narrowed(shape) if draft.maybe() else shape for _ in range(count)]


def _binary(
    draft: NodeDraft,
    *,
    among: Sequence[str] = ANY,
    styles: Sequence[str] = _SPECIAL,
    divisor: bool = False,
) -> None:
    dtype = draft.dtype(0, among)
    first, second = operand_shapes(draft, 2)
    x = draft.tensor(dtype, first, styles=styles)
    y = draft.tensor(draft.dtype(1, among), second, styles=styles)
    if divisor and y.dtype.kind in "iu":
        y = np.where(y == 0, y.dtype.type(3), y)
        # The type cannot represent the quotient of the type's least integer and -1.
        y = np.where(y == -1, y.dtype.type(2), y) if y.dtype.kind == "i" else y
    draft.add(x)
    draft.add(y)


def _compare(draft: NodeDraft) -> None:
    """Draw a comparison in which some elements are equal."""
    _binary(draft, styles=("halves", "wide", "special", "plain"))
    x, y = draft.inputs
    assert isinstance(x, np.ndarray)  # noqa: S101 - _binary draws arrays
    assert isinstance(y, np.ndarray)  # noqa: S101 - _binary draws arrays
    if x.shape == y.shape and x.size and draft.maybe():
        equal = draft.state().randint(0, 2, x.shape) > 0
        draft.inputs[1] = np.where(equal, x, y)


def _mod(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, NUMBERS)
    first, second = operand_shapes(draft, 2)
    is_float = dtype_name(dtype) in FLOATS
    draft.set("fmod", 1 if is_float else draft.choice((None, 1, 0)))
    if is_float:
        draft.add(draft.tensor(dtype, first, styles=("halves", "plain")))
        y = draft.tensor(dtype, second, styles=("halves", "plain"))
        draft.add(np.where(np.abs(y.astype(np.float64)) < _SMALLEST_DIVISOR, dtype.type(0.75), y))
        return
    x = draft.tensor(dtype, first, styles=("plain", "wide", "negative"))
    y = draft.tensor(dtype, second, styles=("plain", "negative"))
    draft.add(x)
    draft.add(np.where((y == 0) | (y == -1), dtype.type(3), y))


def _pow(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32", "int64", "int32", "float64", "float16", "bfloat16"))
    first, second = operand_shapes(draft, 2)
    is_float = dtype_name(dtype) in FLOATS
    exponent_names = ["float32"]
    if draft.schema.inputs[1].type_str != draft.schema.inputs[0].type_str:
        exponent_names += ["int64", "int32", "float64", "uint8"]
    exponent = DTYPES[draft.choice(exponent_names)] if len(exponent_names) > 1 else dtype
    if is_float and exponent.kind == "f":
        draft.add(draft.tensor(dtype, first, low=0.125, high=6.0))
        draft.add(draft.tensor(exponent, second, low=-3.0, high=3.0))
        return
    draft.add(draft.tensor(dtype, first, styles=("plain", "halves")))
    if not is_float and exponent.kind == "f":
        # A power of an integer is converted to an integer, even if the exponent is a fraction such
        # as 1/2. Only positive bases are drawn, because the square root of a negative base is NaN,
        # which no integer represents.
        draft.inputs[0] = draft.tensor(dtype, first, low=1, high=9)
        draft.add(draft.tensor(exponent, second, low=0.0, high=3.0, styles=("halves",)))
        return
    draft.add(draft.tensor(exponent, second, low=0, high=4))


def _bit_shift(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, INTEGERS)
    first, second = operand_shapes(draft, 2)
    draft.attribute("direction", ("LEFT", "RIGHT"))
    if draft.since(_ANY_SHIFT_VERSION):
        draft.add(draft.tensor(dtype, first, styles=("wide", "plain", "negative")))
        least = -3 if dtype.kind == "i" else 0
        draft.add(draft.tensor(dtype, second, low=least, high=8 * dtype.itemsize + 2))
        return
    draft.add(draft.tensor(dtype, first, low=0 if dtype.kind == "i" else None, high=99))
    draft.add(draft.tensor(dtype, second, low=0, high=_MAX_SHIFT))


def _prelu(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, NUMBERS)
    shape = draft.shape(1, 4)
    draft.add(draft.tensor(dtype, shape, styles=("plain", "negative", "halves")))
    slope = draft.narrowed(shape)
    draft.add(draft.tensor(dtype, slope, styles=("plain", "halves")))


def _where(draft: NodeDraft) -> None:
    condition, first, second = operand_shapes(draft, 3)
    draft.add(draft.tensor(np.dtype(bool), condition))
    dtype = draft.dtype(1)
    draft.add(draft.tensor(dtype, first, styles=_SPECIAL))
    draft.add(draft.tensor(dtype, second, styles=_SPECIAL))


def _variadic(draft: NodeDraft, *, styles: Sequence[str] = _SPECIAL) -> None:
    count = draft.choice((2, 3, 1))
    dtype = draft.dtype(0, NUMBERS)
    shapes = operand_shapes(draft, count)
    if not draft.since(8):
        shapes = [shapes[0]] * count
    for shape in shapes:
        draft.add(draft.tensor(dtype, shape, styles=styles))


def _clip(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, NUMBERS)
    draft.add(draft.tensor(dtype, draft.shape(0, 3), styles=("plain", "wide", "halves", "limits")))
    bounds = draft.tensor(dtype, (2,), low=0 if dtype.kind == "u" else -2, high=2)
    least, largest = bounds if draft.maybe(3) else np.sort(bounds)
    if len(draft.schema.inputs) == 1:
        # Before version 11, a minimum above the maximum is undefined.
        least, largest = sorted((float(least), float(largest)))
        zero = draft.choice((None, "min", "max"))
        if zero == "min":
            least, largest = 0.0, abs(largest)
        elif zero == "max":
            least, largest = -abs(least), 0.0
        draft.float_attribute("min", (least, None))
        draft.float_attribute("max", (largest, None))
        return
    draft.optional(lambda: np.array(least, dtype))
    draft.optional(lambda: np.array(largest, dtype))


def _cast_values(draft: NodeDraft, source: np.dtype[Any], target: np.dtype[Any]) -> Array:
    """Draw values that the target can represent after rounding toward zero."""
    shape = draft.shape(0, 3)
    from_name, to_name = dtype_name(source), dtype_name(target)
    if from_name == "string":
        # onnx's reference does not convert strings to bfloat16.
        draft.require(to_name != "bfloat16")
        random = draft.state()
        is_integer = "int" in to_name
        numbers = random.randint(0 if to_name.startswith("u") else -99, 100, shape)
        texts = [str(n) if is_integer else f"{n / 8:g}" for n in numbers.ravel().tolist()]
        return np.array(texts, object).reshape(shape)
    if to_name == "string":
        # The specification does not define how many digits of a float are written.
        draft.require("int" in from_name)
        return draft.tensor(source, shape, styles=("plain", "wide"))
    if from_name in FLOATS and "int" in to_name:
        low = 0.0 if to_name.startswith("u") else -99.75
        return draft.tensor(source, shape, low=low, high=99.75)
    if from_name in FLOATS and to_name == "bool":
        return draft.tensor(source, shape, low=-1.0, high=1.0, styles=("halves", "plain"))
    if "int" in from_name and "int" in to_name:
        low = 0 if "u" in (from_name + to_name) else -99
        if np.iinfo(target).bits >= np.iinfo(source).bits and low:
            return draft.tensor(source, shape, styles=("wide", "plain"))
        return draft.tensor(source, shape, low=low, high=99)
    return draft.tensor(source, shape, styles=("plain", "halves", "wide", "special"))


def _cast(draft: NodeDraft) -> None:
    source = draft.dtype(0)
    target = DTYPES[draft.choice(draft.returned(0))]
    draft.set("to", helper.np_dtype_to_tensor_dtype(target))
    draft.add(_cast_values(draft, source, target))


def _cast_like(draft: NodeDraft) -> None:
    source, target = draft.dtype(0), draft.dtype(1)
    draft.add(_cast_values(draft, source, target))
    draft.add(elements(draft.state(), target, (draft.size(),), "plain"))


def _bit_cast(draft: NodeDraft) -> None:
    source = draft.dtype(0, NUMBERS)
    targets = [name for name in NUMBERS if DTYPES[name].itemsize == source.itemsize]
    target = DTYPES[draft.choice(targets)]
    draft.set("to", helper.np_dtype_to_tensor_dtype(target))
    draft.add(draft.tensor(source, draft.shape(0, 3), styles=("plain", "wide")))


#: Generators by operator.
ELEMENTWISE: Mapping[str, Callable[[NodeDraft], None]] = {
    **UNARY,
    **dict.fromkeys(("Add", "Sub", "Mul"), partial(_binary, among=NUMBERS)),
    "Div": partial(_binary, among=NUMBERS, divisor=True),
    **dict.fromkeys(("And", "Or", "Xor"), _binary),
    **dict.fromkeys(
        ("BitwiseAnd", "BitwiseOr", "BitwiseXor"),
        partial(_binary, among=INTEGERS, styles=("plain", "wide", "limits")),
    ),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _compare),
    "Mod": _mod,
    "Pow": _pow,
    "BitShift": _bit_shift,
    "PRelu": _prelu,
    "Where": _where,
    **dict.fromkeys(("Max", "Min"), _variadic),
    **dict.fromkeys(("Mean", "Sum"), partial(_variadic, styles=("plain", "halves", "wide"))),
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast_like,
    "BitCast": _bit_cast,
}
