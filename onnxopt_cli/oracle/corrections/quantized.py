"""Corrections of operators on quantized integers.

onnx's reference adds the zero point before it rounds. It also applies the scales of rows to the
columns, and the scales of channels to the images.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import reference_modules, replaces


def _rows(value: Array) -> Array:
    """Return scales or zero points in a shape that broadcasts along the rows of a matrix."""
    return value.reshape(-1, 1) if value.ndim == 1 and value.size > 1 else value


def _channels(value: Array, rank: int) -> Array:
    """Return scales or zero points in a shape that broadcasts along all axes except the first."""
    return value.reshape(-1, *[1] * (rank - 1)) if value.size > 1 else value.reshape(())


def _shifted(x: Array, zero_point: Array | None) -> Array:
    wide = x.astype(np.int32)
    return wide if zero_point is None else wide - zero_point.astype(np.int32)


def _quantized(quotient: Array, zero_point: Array | None, dtype: Any) -> Array:
    """Round to nearest, ties to even; then add the zero point; then saturate."""
    rounded = np.rint(quotient)
    limits = np.iinfo(dtype)
    moved = rounded if zero_point is None else rounded + zero_point.astype(rounded.dtype)
    return np.clip(moved, limits.min, limits.max).astype(dtype)


@replaces("op_qlinear_matmul.QLinearMatMul._run")
def _multiplied(node: Any, original: Any, *operands: Array) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
    if any(array.dtype.kind not in "iu" for array in (a, b, y_zero)):
        return original(node, *operands)
    # A vector is a matrix with one row or one column.
    left, right = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
    product = np.matmul(_shifted(left, _rows(a_zero)), _shifted(right, b_zero))
    scale, zero_point = (
        value.reshape(*product.shape[:-1], 1) if value.size > 1 else value.reshape(())
        for value in (y_scale, y_zero)
    )
    quotient = product * (_rows(a_scale) * b_scale / scale)
    shape = np.matmul(a, b).shape
    return (_quantized(quotient, zero_point, y_zero.dtype).reshape(shape),)


@replaces("op_matmul_integer.MatMulInteger._run")
def _multiplied_integers(
    _node: Any, _original: Any, a: Array, b: Array, a_zero: Any = None, b_zero: Any = None
) -> tuple[Array]:
    rows = None if a_zero is None else _rows(a_zero)
    return (np.matmul(_shifted(a, rows), _shifted(b, b_zero)),)


def _convolved(x: Array, w: Array, bias: Array | None, attributes: dict[str, Any]) -> Array:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    convolve = reference_modules().op_conv._conv_implementation  # noqa: SLF001
    return np.asarray(convolve(x, w, bias, *map(attributes.get, names)), np.int32)


@replaces("op_conv_integer.ConvInteger._run")
def _convolved_integers(
    _node: Any,
    _original: Any,
    x: Array,
    w: Array,
    x_zero: Any = None,
    w_zero: Any = None,
    **attributes: Any,
) -> tuple[Array]:
    channels = None if w_zero is None else _channels(w_zero, w.ndim)
    return (_convolved(_shifted(x, x_zero), _shifted(w, channels), None, attributes),)


@replaces("op_qlinear_conv.QLinearConv._run")
def _convolved_quantized(
    _node: Any, _original: Any, *operands: Any, **attributes: Any
) -> tuple[Array]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = [*operands, None][:9]
    channels = _channels(w_zero, w.ndim)
    sums = _convolved(_shifted(x, x_zero), _shifted(w, channels), bias, attributes)
    # The channels are the second axis of the output.
    scale = x_scale.reshape(()) * _channels(w_scale, w.ndim - 1) / y_scale.reshape(())
    return (_quantized(np.asarray(sums * scale), y_zero, y_zero.dtype),)
