"""Mistakes that any operator may have in its arithmetic or in its outputs.

A mistake in the arithmetic computes the node in another type. A mistake in the outputs changes
their type, shape, order, sign or magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import defs

from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mutants import ComputeNode, MutantKind, NodeMutant, Recomputed

# The number of bits that remain if an output loses its upper bits.
_LOWER_BITS = 32
#: A function that changes an output; it returns None if the change does not apply to the output.
_OutputChange = Callable[[BoundNode, Array], Array | None]


def output_mistakes(schema: defs.OpSchema) -> Iterator[NodeMutant]:
    """Yield the mistakes of an operator's arithmetic and outputs, the most likely first."""
    yield from _type_mistakes()
    for name, (about, change) in _CHANGES.items():
        recomputed = Recomputed(partial(_changed, change, None))
        yield NodeMutant(
            f"outputs {name}", MutantKind.VALUES, f"The outputs are {about}.", recomputed
        )
    yield from _arithmetic_mistakes()
    if len(schema.outputs) == 1:
        return
    for place, formal in enumerate(schema.outputs):
        for name, (about, change) in _CHANGES.items():
            yield NodeMutant(
                f"{formal.name} {name}",
                MutantKind.VALUES,
                f"The output {formal.name} is {about}.",
                Recomputed(partial(_changed, change, place)),
            )


def _changed(
    change: _OutputChange, place: int | None, node: BoundNode, compute: ComputeNode
) -> Sequence[Value] | None:
    """Change all outputs of a node, or only the output at one position of the signature."""
    outputs = [*compute(node)]
    is_changed = False
    for index, (output, value) in enumerate(zip(node.output_places, outputs, strict=False)):
        if place in (None, output) and isinstance(value, np.ndarray):
            changed = change(node, value)
            if changed is not None:
                # NumPy's functions return scalars for arrays without axes.
                outputs[index], is_changed = np.asarray(changed), True
    return outputs if is_changed else None


# Types --------------------------------------------------------------------------------------------


def _type_mistakes() -> Iterator[NodeMutant]:
    for name in ("float32", "float64", "float16", "int64", "int32", "uint8", "bool"):
        yield NodeMutant(
            f"first output of type {name}",
            MutantKind.TYPE,
            f"The first output has the type {name}.",
            finish=partial(_first_of_type, np.dtype(name)),
        )


def _first_of_type(dtype: np.dtype[Any], outputs: Sequence[Value]) -> list[Value]:
    first, *further = outputs
    if isinstance(first, np.ndarray) and first.dtype != object:
        first = first.astype(dtype)
    return [first, *further]


def _arithmetic_mistakes() -> Iterator[NodeMutant]:
    roundings: dict[str, Callable[[Array], Array]] = {"truncated": np.trunc, "rounded": np.rint}
    for type_name in ("float32", "float64"):
        for rounding, function in roundings.items():
            yield NodeMutant(
                f"integers computed in {type_name} and {rounding}",
                MutantKind.TYPE,
                f"Integers are computed in {type_name}; the results are {rounding}.",
                Recomputed(partial(_in_type, "iu", np.dtype(type_name), function)),
            )
    yield NodeMutant(
        "integers computed in 32 bits",
        MutantKind.TYPE,
        "64-bit integers are computed in 32 bits.",
        Recomputed(_in_32_bits),
    )
    for type_name in ("float32", "float16"):
        yield NodeMutant(
            f"floats computed in {type_name}",
            MutantKind.TYPE,
            f"Inputs are converted to {type_name}, and the results are converted back.",
            Recomputed(partial(_in_type, "f", np.dtype(type_name), _identity)),
        )
    yield NodeMutant(
        "integers compared with the other sign",
        MutantKind.TYPE,
        "Unsigned integers are compared as signed ones, and signed integers as unsigned ones.",
        Recomputed(_compared_with_other_sign),
    )


def _identity(array: Array) -> Array:
    return array


def _numeric_operands(node: BoundNode, kinds: str) -> dict[int, Array]:
    """Return the inputs with the type of the first input, by index.

    The result is empty if NumPy's kind character of this type is not among ``kinds``.
    """
    formals = list(node.schema.inputs)
    first = node.operand(0)
    if first is None or first.dtype.kind not in kinds:
        return {}
    last = len(formals) - 1
    return {
        index: value
        for index, value in enumerate(node.operands)
        if isinstance(value, np.ndarray)
        and value.dtype == first.dtype
        and formals[min(index, last)].type_str == formals[0].type_str
    }


def _with_own_type_changed(
    node: BoundNode, outputs: Sequence[Value], change: Callable[[Array], Array]
) -> list[Value]:
    """Change the outputs whose type, according to the schema, is the type of the first input."""
    formals = node.schema.outputs
    types = [formals[min(place, len(formals) - 1)].type_str for place in node.output_places]
    own_type = node.schema.inputs[0].type_str
    return [
        change(value) if isinstance(value, np.ndarray) and type_name == own_type else value
        for value, type_name in zip(outputs, types, strict=True)
    ]


def _in_type(
    kinds: str,
    dtype: np.dtype[Any],
    rounding: Callable[[Array], Array],
    node: BoundNode,
    compute: ComputeNode,
) -> Sequence[Value] | None:
    """Compute a node in another type, and convert the outputs back."""
    operands = _numeric_operands(node, kinds)
    if not operands:
        return None
    own_dtype = operands[0].dtype
    if dtype == own_dtype or (dtype.kind == own_dtype.kind and dtype.itemsize > own_dtype.itemsize):
        return None
    changed = node
    for index, value in operands.items():
        changed = changed.with_operand(index, value.astype(dtype))
    return _with_own_type_changed(
        node, compute(changed), lambda value: np.asarray(rounding(value)).astype(own_dtype)
    )


def _in_32_bits(node: BoundNode, compute: ComputeNode) -> Sequence[Value] | None:
    """Compute a node of 64-bit integers in 32-bit integers with the same signedness."""
    first = node.operand(0)
    if first is None or first.dtype.kind not in "iu":
        return None
    narrow = np.dtype(f"{first.dtype.kind}4")
    return _in_type(first.dtype.kind, narrow, _identity, node, compute)


def _compared_with_other_sign(node: BoundNode, compute: ComputeNode) -> Sequence[Value] | None:
    """Invert the highest bit of all inputs and outputs.

    Signed integers are then ordered like unsigned ones, and vice versa.
    """
    operands = _numeric_operands(node, "iu")
    if not operands:
        return None
    changed = node
    for index, value in operands.items():
        changed = changed.with_operand(index, _highest_bit_inverted(value))
    return _with_own_type_changed(node, compute(changed), _highest_bit_inverted)


def _highest_bit_inverted(array: Array) -> Array:
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    bit = unsigned.type(1 << (8 * array.dtype.itemsize - 1))
    return (np.ascontiguousarray(array).view(unsigned) ^ bit).view(array.dtype).reshape(array.shape)


# Changes of outputs -------------------------------------------------------------------------------


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_signed(array: Array) -> bool:
    return _is_float(array) or array.dtype.kind == "i"


def _is_number(array: Array) -> bool:
    return _is_float(array) or array.dtype.kind in "iu"


def _magnitude(_node: BoundNode, array: Array) -> Array | None:
    return np.abs(array) if _is_signed(array) else None


def _negated(_node: BoundNode, array: Array) -> Array | None:
    if array.dtype == bool:
        return ~array
    return -array if _is_signed(array) else None


def _without_negative(_node: BoundNode, array: Array) -> Array | None:
    return np.maximum(array, array.dtype.type(0)) if _is_signed(array) else None


def _transposed(_node: BoundNode, array: Array) -> Array | None:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)) if array.ndim > 1 else None


def _axes_reversed(_node: BoundNode, array: Array) -> Array | None:
    return np.ascontiguousarray(array.T) if array.ndim > 1 else None


def _column_major(_node: BoundNode, array: Array) -> Array | None:
    return array.reshape(-1, order="F").reshape(array.shape) if array.ndim > 1 else None


def _nan_as_zero(_node: BoundNode, array: Array) -> Array | None:
    return np.where(np.isnan(array), array.dtype.type(0), array) if _is_float(array) else None


def _lower_bits(_node: BoundNode, array: Array) -> Array | None:
    if array.dtype.kind not in "iu" or array.dtype.itemsize <= _LOWER_BITS // 8:
        return None
    return array & array.dtype.type((1 << _LOWER_BITS) - 1)


def _finite(_node: BoundNode, array: Array) -> Array | None:
    if array.dtype.kind != "f":
        return None
    largest = np.finfo(array.dtype).max
    return np.where(np.isinf(array), np.copysign(largest, array), array)


def _with_first_axis(_node: BoundNode, array: Array) -> Array | None:
    return array[None]


def _scalar_as_vector(_node: BoundNode, array: Array) -> Array | None:
    return array.reshape(1) if array.ndim == 0 else None


def _first_input(node: BoundNode, _array: Array) -> Array | None:
    return node.operand(0)


def _all_zero(_node: BoundNode, array: Array) -> Array | None:
    return np.zeros_like(array) if _is_number(array) else None


def _plus(step: int, _node: BoundNode, array: Array) -> Array | None:
    if not _is_number(array):
        return None
    unit = array.dtype.type(1)
    return array + unit if step > 0 else array - unit


def _rounded(function: Callable[[Array], Array], _node: BoundNode, array: Array) -> Array | None:
    return function(array).astype(array.dtype) if _is_float(array) else None


def _times(
    factor: Callable[[BoundNode, Array], float | None], node: BoundNode, array: Array
) -> Array | None:
    multiplier = factor(node, array)
    if multiplier is None or not _is_float(array):
        return None
    return (array.astype(np.float64) * multiplier).astype(array.dtype)


def _length_of_axis(node: BoundNode, _array: Array) -> float | None:
    """Return the length of the first input along the node's attribute ``axis``."""
    first, axis = node.operand(0), node.attribute("axis")
    if first is None or not isinstance(axis, int) or not -first.ndim <= axis < first.ndim:
        return None
    return float(first.shape[axis])


def _length_of_last_axis(node: BoundNode, _array: Array) -> float | None:
    first = node.operand(0)
    return float(first.shape[-1]) if first is not None and first.ndim else None


def _inverse(
    factor: Callable[[BoundNode, Array], float | None], node: BoundNode, array: Array
) -> float | None:
    value = factor(node, array)
    return 1 / value if value else None


def _factor(value: float, _node: BoundNode, _array: Array) -> float | None:
    return value


def _along(axis: int | str, array: Array, node: BoundNode) -> int | None:
    """Return the index of an axis of an output; None if the axis does not exist.

    Args:
        axis: the axis, or the name of the attribute whose value is the axis.
        array: the output.
        node: the node.
    """
    number = node.attribute(axis) if isinstance(axis, str) else axis
    if not isinstance(number, int) or not -array.ndim <= number < array.ndim:
        return None
    return number


def _flipped(axis: int | str, node: BoundNode, array: Array) -> Array | None:
    along = _along(axis, array, node)
    return None if along is None else np.flip(array, along)


def _shifted(step: int, axis: int | str, node: BoundNode, array: Array) -> Array | None:
    along = _along(axis, array, node)
    return None if along is None else np.roll(array, step, along)


def _first_for_all(axis: int | str, node: BoundNode, array: Array) -> Array | None:
    along = _along(axis, array, node)
    if along is None or array.shape[along] < 2:  # noqa: PLR2004 - a single element has no other to repeat
        return None
    return np.repeat(np.take(array, [0], along), array.shape[along], along)


# Mistakes in outputs. A key is the end of a mistake's name. A value consists of the end of the
# mistake's description and the change.
_CHANGES: dict[str, tuple[str, _OutputChange]] = {
    "without sign": ("the magnitudes of the correct values", _magnitude),
    "negated": ("the right values with the opposite sign", _negated),
    "without negative values": ("0 instead of negative values", _without_negative),
    "transposed": ("transposed in the last two axes", _transposed),
    "with all axes in reverse order": (
        "transposed, with all axes in reverse order", _axes_reversed),
    "in column-major order": ("the right elements in column-major order", _column_major),
    "with NaN read as 0": ("0 instead of NaN", _nan_as_zero),
    "with infinity read as finite": ("the largest finite number instead of infinity", _finite),
    "without their upper 32 bits": (
        "the lower 32 bits of 64-bit integers, without sign", _lower_bits),
    "with one more axis": ("right apart from an additional first axis of length 1",
                           _with_first_axis),
    "with an axis instead of a scalar": ("vectors of length 1 instead of scalars",
                                         _scalar_as_vector),
    "equal to the first input": ("the first input, unchanged", _first_input),
    "all 0": ("0", _all_zero),
    "one too large": ("too large by 1", partial(_plus, 1)),
    "one too small": ("too small by 1", partial(_plus, -1)),
    "rounded to integers": ("the right values, rounded to integers", partial(_rounded, np.rint)),
    "truncated": ("the right values, truncated to integers", partial(_rounded, np.trunc)),
    "squared": ("the squares of the right values", partial(_rounded, np.square)),
    "of the roots": ("the square roots of the right values", partial(_rounded, np.sqrt)),
    "of the reciprocals": ("the reciprocals of the right values",
                           partial(_rounded, np.reciprocal)),
    "doubled": ("twice the right values", partial(_times, partial(_factor, 2.0))),
    "halved": ("half the right values", partial(_times, partial(_factor, 0.5))),
    "multiplied by the length of the axis": (
        "the right values times the length of the axis", partial(_times, _length_of_axis)),
    "multiplied by the length of the last axis": (
        "the right values times the length of the last axis of the first input",
        partial(_times, _length_of_last_axis)),
    "divided by the length of the axis": (
        "the right values divided by the length of the axis",
        partial(_times, partial(_inverse, _length_of_axis))),
    "divided by the length of the last axis": (
        "the right values divided by the length of the last axis of the first input",
        partial(_times, partial(_inverse, _length_of_last_axis))),
    "reversed along the axis": ("reversed along the axis", partial(_flipped, "axis")),
    "reversed along the first axis": ("reversed along the first axis", partial(_flipped, 0)),
    "reversed along the second axis": ("reversed along the second axis", partial(_flipped, 1)),
    "reversed along the last axis": ("reversed along the last axis", partial(_flipped, -1)),
    "shifted forward along the axis": (
        "moved by one position along the axis; the last becomes the first",
        partial(_shifted, 1, "axis")),
    "shifted backward along the axis": (
        "moved by one position along the axis; the first becomes the last",
        partial(_shifted, -1, "axis")),
    "with the first batch for all": (
        "the values at index 0 of the first axis, repeated", partial(_first_for_all, 0)),
}  # fmt: skip
