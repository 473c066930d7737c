"""Nodes with operands of one element, of one value per channel, or of one row.

Implementations have code of their own for such operands. In images whose rows are as long as the
axis of channels, an operand that is aligned with the wrong axis does not change the shape of the
result. If one operand has a single element, NaN must not disappear from the other operand.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import Generator, distinct, fixed_node

_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Mean", "Sum")
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_LOGICAL = ("And", "Or", "Xor")
_BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
_PAIRED = (*_ARITHMETIC, *_COMPARISONS, *_LOGICAL, *_BITWISE, "BitShift", "StringConcat")
# Two images of three channels. Their rows are as long as the axis of channels.
_IMAGES = (2, 3, 2, 3)


def boundary_broadcasts() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    for operator in _PAIRED:
        images, values = _operand(operator, _IMAGES), _operand(operator, (3,))
        yield operator, "channels", _paired(operator, images, values.reshape(3, 1, 1))
        yield operator, "image_row", _paired(operator, images, values)
    for operator in ("Mod", "Pow", *_LOGICAL, *_BITWISE, "BitShift", "StringConcat"):
        column, row = _operand(operator, (3, 1)), _operand(operator, (4,))[::-1].copy()
        yield operator, "column_and_row", _paired(operator, column, row)
    for operator in _PAIRED:
        one, other = (_operand(operator, shape) for shape in ((1,), (1, 1)))
        yield operator, "single_elements", _paired(operator, one, other)
    yield from _selected()
    yield from _exceptional()
    yield from _wide_elements()
    yield from _scales()


def _paired(operator: str, first: Array, second: Array) -> Generator:
    """Return a generator of a node with two operands."""
    if operator == "BitShift":
        return fixed_node(first, second, direction="LEFT")
    if operator == "Mod":
        return fixed_node(first, second, fmod=1)
    return fixed_node(first, second)


def _operand(operator: str, shape: tuple[int, ...]) -> Array:
    """Return an operand of an operator.

    The values of neighbours differ, and each value occurs several times in an image.
    """
    numbers = np.arange(np.prod(shape)).reshape(shape) * 5 % 7
    if operator in _LOGICAL:
        return numbers % 2 == 1
    if operator in _BITWISE:
        return (numbers * 37).astype(np.int32)
    if operator == "BitShift":
        return (numbers % 4 + 1).astype(np.uint8)
    if operator == "StringConcat":
        return np.array([f"{number:b}" for number in numbers.ravel()], object).reshape(shape)
    if operator in _COMPARISONS:
        return (numbers % 3).astype(np.float32)
    return (numbers / 2 + 0.75).astype(np.float32)


def _selected() -> Iterator[tuple[str, str, Generator]]:
    """Yield selections by channel, by row and by column, and slopes of channels."""
    images = distinct(*_IMAGES)
    channels, row = distinct(3, 1, 1) * 2, distinct(3) / 2
    condition = np.arange(36).reshape(_IMAGES) * 5 % 7 < 3  # noqa: PLR2004 - three of seven
    yield "Where", "channels", fixed_node(condition, channels, row)
    yield "Where", "condition_of_channels", fixed_node(condition[0, :, :1, :1], images, -images)
    yield "Where", "condition_of_row", fixed_node(condition[0, 0, 0], images, channels)
    yield "Where", "column_and_row", fixed_node(condition[0, :, 0, :1], row, distinct(4, 3, 1))
    yield "PRelu", "channels", fixed_node(images, channels + 3)
    yield "Expand", "channels", fixed_node(channels, np.array([2, 1, 2, 3]))


def _exceptional() -> Iterator[tuple[str, str, Generator]]:
    """Yield NaN and infinities beside one element."""
    floats = np.array([np.nan, 3.0, np.inf, -np.inf, -1.5, np.nan, 0.5, 2.0, 1.0], np.float32)
    single = np.array([2.0], np.float32)
    for operator in (*_ARITHMETIC, *_COMPARISONS):
        yield operator, "exceptional_beside_single", _paired(operator, floats, single)
    missing = np.array([np.nan], np.float32)
    for operator in ("Max", "Min"):
        yield operator, "missing_single", fixed_node(floats[1:], missing)
    yield "PRelu", "exceptional_beside_single", fixed_node(floats, single)


def _wide_elements() -> Iterator[tuple[str, str, Generator]]:
    """Yield a single integer that 32 bits cannot represent beside several integers."""
    wide = 2**40 + 2**20 + 1
    integers = np.array([wide - 1, -5, wide, 3, 2 * wide, wide + 2**32], np.int64)
    single = np.array([wide], np.int64)
    for operator in ("Add", "Sub", "Div", "Max", "Min", *_COMPARISONS, *_BITWISE):
        yield operator, "wide_single", fixed_node(integers, single)
    yield "Mod", "wide_single", fixed_node(integers, single)
    yield "Mul", "wide_single", fixed_node(integers % 1000, single)


def _scales() -> Iterator[tuple[str, str, Generator]]:
    """Yield normalizations whose scale and bias have one element, or one value per row."""
    x = distinct(2, 3, 3)
    single, bias = np.array([-2.0], np.float32), np.array([0.75], np.float32)
    column = np.array([[2.0], [-1.0], [0.5]], np.float32)
    yield "LayerNormalization", "single_scale", fixed_node(x, single, bias)
    yield "LayerNormalization", "scale_of_rows", fixed_node(x, column, column / 4, axis=1)
    yield "RMSNormalization", "single_scale", fixed_node(x, single)
    yield "RMSNormalization", "scale_of_rows", fixed_node(x, column, axis=1)
