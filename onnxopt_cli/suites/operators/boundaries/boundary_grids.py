"""Nodes with combinations of attributes, optional inputs and sizes that random draws seldom have.

Examples are empty tensors, axes longer than a vector register, windows that differ along every
axis, and recurrent and attention nodes with all their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxopt_cli.core.values import DTYPES, Array, Value, dtype_name
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    add_fixed,
    fixed_node,
    int64s,
)
from onnxopt_cli.suites.operators.elementwise_nodes import UNARY
from onnxopt_cli.suites.operators.node_draft import FLOATS, NodeDraft, Shape

#: A length that exceeds the length of a vector register, but is not a multiple of it.
_LONG_AXIS = 67
#: A length that exceeds the length of the blocks in which rows are reduced, but is not a multiple
#: of it.
_LONGER_AXIS = 1031


def _wave(shape: Shape, low: float = -2.0, high: float = 2.0) -> Array:
    """Return a tensor of float32 whose neighboring elements differ."""
    steps = 61
    places = np.arange(prod(shape)) * 23 % steps
    return (low + (high - low) * places / (steps - 1)).reshape(shape).astype(np.float32)


def _unary(draft: NodeDraft, *, shape: Shape) -> None:
    """Draw an operator with one tensor, whose elements are in the operator's domain."""
    operator = UNARY[draft.schema.name]
    dtype = DTYPES[draft.allowed(0, operator.among)[0]]
    low = operator.low if dtype_name(dtype) in FLOATS else None
    draft.add(draft.tensor(dtype, shape, low=low, high=operator.high, styles=("plain",)))


def boundary_grids() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    for operator in UNARY:
        for stem, shape in (("empty", (2, 0, 3)), ("scalar", ())):
            yield operator, stem, partial(_unary, shape=shape)
    yield from _empty()
    yield from _long()
    yield from _long_windows()
    yield from _reductions()
    yield from _conversions()
    yield from _divisions()
    yield from _vectors()
    yield from _batches()
    yield from _windows()
    yield from _resizes()
    yield from _losses()
    yield from _recurrent()
    yield from _attention()
    yield from _grouped_heads()
    yield from _tables()


def _empty() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes in which an input or the result has no elements."""
    none, some = np.zeros((0, 3), np.float32), _wave((2, 3))
    no_indices = np.zeros(0, np.int64)
    yield "Concat", "empty", fixed_node(none, some, none, axis=0)
    yield "Concat", "all_empty", fixed_node(none, none, axis=1)
    yield "Gather", "empty_indices", fixed_node(some, no_indices, axis=1)
    yield "Gather", "empty_data", fixed_node(none, int64s(2, 0), axis=1)
    yield "GatherND", "empty", fixed_node(some, np.zeros((0, 1), np.int64))
    yield "GatherElements", "empty", fixed_node(some, np.zeros((0, 3), np.int64), axis=0)
    yield "ScatterND", "empty", fixed_node(some, np.zeros((0, 1), np.int64), none)
    yield "ScatterElements", "empty", fixed_node(some, np.zeros((0, 3), np.int64), none, axis=0)
    yield "Transpose", "empty", fixed_node(none, perm=[1, 0])
    yield "Reshape", "empty", fixed_node(none, int64s(3, 0), allowzero=1)
    columns = np.zeros((2, 0), np.float32)
    yield "Reshape", "empty_zeros", fixed_node(columns, int64s(0, 0), allowzero=1)
    yield "Reshape", "empty_zero_first", fixed_node(columns, int64s(0, 3), allowzero=1)
    yield "Flatten", "empty", fixed_node(np.zeros((2, 0, 3), np.float32), axis=1)
    yield "Unsqueeze", "empty", fixed_node(none, int64s(1))
    yield "Slice", "empty_data", fixed_node(none, int64s(0), int64s(5), int64s(1))
    yield "Tile", "empty_data", fixed_node(none, int64s(2, 2))
    yield "Tile", "no_repeats", fixed_node(some, int64s(0, 2))
    yield "Pad", "empty_data", fixed_node(none, int64s(1, 0, 0, 1), np.array(2.5, np.float32))
    yield "Expand", "empty", fixed_node(np.zeros((1, 0), np.float32), int64s(3, 0))
    yield "Expand", "to_empty", fixed_node(np.ones((1, 1), np.float32), int64s(3, 0))
    yield "Split", "empty_part", fixed_node(some, int64s(0, 2), axis=0, outputs=2)
    yield "Cast", "empty", fixed_node(none, to=TensorProto.INT64)
    yield "Softmax", "empty", fixed_node(none, axis=1)
    yield "LogSoftmax", "empty", fixed_node(none, axis=1)
    yield "CumSum", "empty", fixed_node(none, np.array(0, np.int64))
    yield "TopK", "no_elements", fixed_node(some, int64s(0), axis=1)
    yield "NonZero", "no_elements", fixed_node(np.zeros((2, 3), np.float32))
    yield "NonZero", "scalar", fixed_node(np.float32(1.5))
    yield "Compress", "no_elements", fixed_node(some, np.zeros(2, bool), axis=0)
    yield "Compress", "no_elements_flat", fixed_node(some, np.zeros(6, bool))
    yield "OneHot", "empty", fixed_node(no_indices, int64s(3), _wave((2,)))
    yield "Range", "empty", fixed_node(*int64s(3, 1, 1))
    yield (
        "MatMul",
        "no_inner",
        fixed_node(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)),
    )
    yield "MatMul", "no_rows", fixed_node(none, _wave((3, 2)))
    yield (
        "Gemm",
        "no_inner",
        fixed_node(
            np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), _wave((3,)), beta=2.0
        ),
    )
    yield "LayerNormalization", "no_batch", fixed_node(none, _wave((3,)), axis=-1)
    yield "SequenceLength", "scalar_items", fixed_node([np.array(1.0), np.array(2.0)])


def _long() -> Iterator[tuple[str, str, Generator]]:
    """Yield axes longer than the blocks of vectorized loops, and not multiples of a block."""
    row, column = _wave((2, _LONGER_AXIS)), _wave((_LONGER_AXIS, 3))
    # The largest element and the smallest element are at the end of the tensor.
    row[0, -1], row[1, -1] = 2.5, -2.5
    column[-1] = 2.5, -2.5, 2.75
    for operator in ("Add", "Sub", "Mul", "Div"):
        yield operator, "long", fixed_node(row, _wave((_LONGER_AXIS,), 0.5, 3.0))
    for operator in ("Equal", "Greater", "Less"):
        yield operator, "long", fixed_node(row, _wave((2, 1)))
    for operator in ("Max", "Min", "Mean", "Sum"):
        yield operator, "long", fixed_node(row, _wave((_LONGER_AXIS,)), _wave((2, 1)))
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        for stem, x, axis in (("row", row, 1), ("column", column, 0)):
            yield operator, f"long_{stem}", fixed_node(x, axis=axis)
    for operator in ("ArgMax", "ArgMin"):
        for stem, x, axis in (("row", row, 1), ("column", column, 0)):
            yield operator, f"long_{stem}", fixed_node(x, axis=axis)
    yield "TopK", "long", fixed_node(row, int64s(9), axis=1)
    yield "TopK", "long_smallest", fixed_node(column, int64s(9), axis=0, largest=0)
    for operator, x in (("CumSum", row), ("CumProd", _wave((2, _LONGER_AXIS), 0.99, 1.01))):
        yield operator, "long", fixed_node(x, np.array(1, np.int64))
    yield "LpNormalization", "long", fixed_node(row, axis=1)
    yield (
        "LayerNormalization",
        "long",
        fixed_node(row, _wave((_LONGER_AXIS,)), _wave((_LONGER_AXIS,), 0, 1), axis=1),
    )
    yield "RMSNormalization", "long", fixed_node(row, _wave((_LONGER_AXIS,)), axis=1)


def _long_windows() -> Iterator[tuple[str, str, Generator]]:
    yield "MatMul", "long", fixed_node(_wave((5, _LONG_AXIS)), _wave((_LONG_AXIS, 19)))
    yield "MatMul", "long_row", fixed_node(_wave((1, 19)), _wave((19, _LONG_AXIS)))
    yield (
        "Gemm",
        "long",
        fixed_node(_wave((_LONG_AXIS, 5)), _wave((19, _LONG_AXIS)), transA=1, transB=1),
    )
    integers = (np.arange(5 * _LONG_AXIS) * 37 % 256).astype(np.uint8)
    yield (
        "MatMulInteger",
        "long",
        fixed_node(
            integers.reshape(5, _LONG_AXIS),
            integers.reshape(_LONG_AXIS, 5),
            np.uint8(7),
            np.uint8(200),
        ),
    )
    yield "Conv", "many_channels", fixed_node(_wave((1, 19, 5, 4)), _wave((18, 19, 3, 3)))
    yield "Conv", "long", fixed_node(_wave((1, 1, _LONG_AXIS)), _wave((1, 1, 17)), pads=[8, 8])
    yield "Conv", "depthwise", fixed_node(_wave((1, 18, 4, 5)), _wave((36, 1, 3, 3)), group=18)
    for operator in ("MaxPool", "AveragePool", "LpPool"):
        yield (
            operator,
            "long",
            fixed_node(_wave((1, 2, _LONG_AXIS)), kernel_shape=[19], strides=[5]),
        )
    for operator in ("GlobalAveragePool", "GlobalMaxPool"):
        yield operator, "long", fixed_node(_wave((2, 3, _LONG_AXIS)))
    for operator in ("MaxPool", "AveragePool", "LpPool"):
        many = fixed_node(_wave((2, 19, 3, 2)), kernel_shape=[2, 2])
        yield operator, "many_channels", many
    for operator in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield operator, "many_channels", fixed_node(_wave((2, 19, 3, 2)))
    parameters = [_wave((19,), 0.5, 2.0) for _ in range(4)]
    yield (
        "BatchNormalization",
        "many_channels",
        fixed_node(_wave((2, 19, 3)), *parameters, outputs=1),
    )
    yield "InstanceNormalization", "long", fixed_node(_wave((2, 2, _LONG_AXIS)), *_wave((2, 2)))
    yield "Transpose", "long", fixed_node(_wave((19, 17)), perm=[1, 0])
    # Positions, counted from both ends, that exceed the range of int8.
    positions = int64s(*range(262, -263, -4))
    yield "Gather", "long", fixed_node(_wave((263, 2)), positions, axis=0)
    alternating = np.arange(131) % 3 == 0
    yield "Where", "long", fixed_node(alternating, _wave((131,)), _wave((131,), 3.0, 4.0))
    yield "Unique", "long", fixed_node(_wave((_LONG_AXIS,)), outputs=4)
    # The last four elements equal the first four; all other elements are distinct.
    distinct = (np.arange(131) * 37 % 127).astype(np.float32)
    yield "Unique", "long_values", fixed_node(distinct)
    yield (
        "QuantizeLinear",
        "long",
        fixed_node(_wave((_LONG_AXIS,)) * 100, np.float32(0.75), np.int8(3)),
    )
    yield (
        "DequantizeLinear",
        "long",
        fixed_node(np.arange(_LONG_AXIS).astype(np.int8), np.float32(0.75), np.int8(3)),
    )


def _reductions() -> Iterator[tuple[str, str, Generator]]:
    names = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
    for name in names:
        operator = f"Reduce{name}"
        low, high = (0.5, 1.5) if name in ("Prod", "LogSum") else (-2.0, 2.0)
        x = _wave((2, 3, 4), low, high)
        for stem, axes in (("descending", (2, 0)), ("mixed", (-1, 1)), ("from_end", (-3, -2))):
            for keepdims in (0, 1):
                draw = fixed_node(x, int64s(*axes), keepdims=keepdims)
                yield operator, f"{stem}{'_kept' if keepdims else ''}", draw
        yield operator, "scalar", fixed_node(np.float32(1.25))
        yield operator, "long", fixed_node(_wave((2, _LONG_AXIS), low, high), int64s(1))
        yield operator, "long_first", fixed_node(_wave((_LONG_AXIS, 2), low, high), int64s(0))
        # The factors of a product along _LONGER_AXIS must be close to 1, so that the product does
        # not overflow.
        low, high = (0.99, 1.01) if name == "Prod" else (low, high)
        longer = _wave((2, _LONGER_AXIS), low, high)
        # The largest and the smallest element of a row are its last elements.
        longer[0, -1], longer[1, -1] = 1.25 * high, low - 0.25 * abs(low)
        yield operator, "longer", fixed_node(longer, int64s(1))
        yield operator, "inner_of_five", fixed_node(_wave((2, 3, 2, 3, 2), low, high), int64s(2))
        yield operator, "apart_of_four", fixed_node(_wave((2, 3, 2, 3), low, high), int64s(0, 2))


def _conversions() -> Iterator[tuple[str, str, Generator]]:
    """Yield casts of numbers that the target type rounds, and of integers beyond its range."""
    integers = int64s(2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**53 + 1, 2**53 + 3, 2**62 + 2**9, 2, 0)
    small = np.array([2049, 2051, -2051, 257, 259, 2, 0, 4], np.int32)
    floats = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 65504, 1e-7, -0.5, 0])
    narrow = {"int8": (127, -128, 200, -200, 256), "uint8": (255, 256, -1, 300, 7)}
    pairs: list[tuple[str, Array, str]] = [
        ("int64_float32", integers, "float32"),
        ("int64_float64", integers, "float64"),
        ("int64_bool", integers, "bool"),
        ("int32_float16", small, "float16"),
        ("int32_bfloat16", small, "bfloat16"),
        ("int64_float16", int64s(40000, -40000, 65504, 2049, 3), "float16"),
        ("float32_float16", floats.astype(np.float32), "float16"),
        ("float64_float32", floats * (1 + 2**-24) * 1e3, "float32"),
        ("float32_bfloat16", floats.astype(np.float32), "bfloat16"),
        ("float32_bool", floats.astype(np.float32), "bool"),
        ("float32_int32", np.array([1.999, -1.999, 0.5, -0.5, 2.5], np.float32), "int32"),
        ("bool_float32", np.array([True, False]), "float32"),
        *((f"int32_{name}", np.array(values, np.int32), name) for name, values in narrow.items()),
    ]
    for stem, x, target in pairs:
        dtype = DTYPES[target]
        yield "Cast", stem, fixed_node(x, to=helper.np_dtype_to_tensor_dtype(dtype))
        yield "CastLike", stem, fixed_node(x, np.zeros(1, dtype))


def _divisions() -> Iterator[tuple[str, str, Generator]]:
    """Yield remainders and shifts of operands of both signs."""
    signed = np.array([[7], [-7], [6], [-6], [1], [-1]])
    divisors = np.array([3, -3, 4, -4])
    for dtype in ("int8", "int64", "float32", "float64"):
        kind = DTYPES[dtype]
        operands = (signed.astype(kind), divisors.astype(kind))
        for fmod in (0, 1):
            draw = fixed_node(*operands, fmod=fmod)
            yield "Mod", f"signs_{dtype}_{'fmod' if fmod else 'floor'}", draw
        yield "Div", f"signs_{dtype}", fixed_node(*operands)
    large = np.array([2**64 - 1, 2**63 + 3, 2**53 + 1], np.uint64)
    for operator in ("Mod", "Div"):
        yield operator, "large_uint64", fixed_node(large, np.array([10, 7, 2], np.uint64))


def _vectors() -> Iterator[tuple[str, str, Generator]]:
    """Yield products of vectors and square matrices.

    The shapes remain valid if the operands are exchanged.
    """
    vector, square = _wave((3,)), _wave((3, 3), -1.0, 3.0)
    batch = _wave((2, 3, 3), -3.0, 1.0)
    operands = {
        "vector_matrix": (vector, square),
        "matrix_vector": (square, vector),
        "vector_batch": (vector, batch),
        "batch_vector": (batch, vector),
        "vectors": (vector, _wave((3,), 1.0, 2.0)),
    }
    for stem, pair in operands.items():
        yield "MatMul", f"square_{stem}", fixed_node(*pair)
        integers = [(x * 8 + 30).astype(np.uint8) for x in pair]
        yield "MatMulInteger", f"square_{stem}", fixed_node(*integers, np.uint8(20), np.uint8(30))


def _batches() -> Iterator[tuple[str, str, Generator]]:
    """Yield products of matrices whose batches are broadcast in either direction, or in both."""
    forms = {
        "first": ((1, 2, 3), (4, 3, 2)),
        "second": ((4, 2, 3), (1, 3, 2)),
        "both": ((2, 1, 2, 3), (1, 3, 3, 2)),
        "first_matrix": ((2, 3), (4, 3, 2)),
        "second_matrix": ((4, 2, 3), (3, 2)),
    }
    for stem, (a_shape, b_shape) in forms.items():
        a, b = _wave(a_shape), _wave(b_shape, -1.0, 3.0)
        yield "MatMul", f"broadcast_{stem}", fixed_node(a, b)
        if stem not in ("first", "both"):
            continue
        bytes_a, bytes_b = (a * 8 + 30).astype(np.uint8), (b * 8 + 30).astype(np.uint8)
        zeros = np.uint8(20), np.uint8(30)
        integers = fixed_node(bytes_a, bytes_b, *zeros)
        yield "MatMulInteger", f"broadcast_{stem}", integers
        scale = np.float32(0.5)
        quantized = fixed_node(
            *(bytes_a, scale, zeros[0], bytes_b, scale, zeros[1], np.float32(16), np.uint8(90))
        )
        yield "QLinearMatMul", f"broadcast_{stem}", quantized


def _windows() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows whose strides, dilations and padding differ along every axis and side."""
    uneven: Mapping[str, Any] = {
        "kernel_shape": [2, 3],
        "strides": [2, 1],
        "dilations": [1, 2],
        "pads": [1, 0, 0, 2],
    }
    other: Mapping[str, Any] = {
        "kernel_shape": [3, 2],
        "strides": [1, 3],
        "dilations": [2, 1],
        "pads": [0, 1, 2, 0],
    }
    scale, zero = np.float32(0.5), np.uint8(7)
    for stem, windows in (("uneven", uneven), ("uneven_other", other)):
        kernel = tuple(windows["kernel_shape"])
        x = _wave((2, 2, 7, 6))
        bytes_x = (x * 32 + 100).astype(np.uint8)
        weights = _wave((2, 2, *kernel))
        bytes_w = (weights * 8 + 20).astype(np.uint8)
        yield "Conv", stem, fixed_node(x, weights, _wave((2,)), **windows)
        yield "ConvTranspose", stem, fixed_node(x, weights, _wave((2,)), **windows)
        yield "ConvInteger", stem, fixed_node(bytes_x, bytes_w, zero, np.uint8(3), **windows)
        yield (
            "QLinearConv",
            stem,
            fixed_node(
                *(bytes_x, scale, zero, bytes_w, np.array([0.25, 0.5], np.float32)),
                *(np.array([3, 20], np.uint8), np.float32(16.0), zero),
                np.array([100, -300], np.int32),
                **windows,
            ),
        )
        for operator in ("MaxPool", "AveragePool", "LpPool"):
            yield operator, stem, fixed_node(x, **windows)
            grown = {**windows, "ceil_mode": 1, "strides": [2, 2]}
            yield operator, f"{stem}_ceil", fixed_node(x, **grown)
        yield "AveragePool", f"{stem}_counted", fixed_node(x, count_include_pad=1, **windows)
        for order in (0, 1):
            draw = fixed_node(x, storage_order=order, outputs=2, **{**windows, "dilations": [1, 1]})
            yield "MaxPool", f"{stem}_indices_{order}", draw
        yield from _sliding(stem, windows)
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        draw = fixed_node(
            *((_wave((1, 1, 5, 6)) * 32 + 100).astype(np.uint8), scale, zero),
            *((_wave((1, 1, 2, 2)) * 8 + 20).astype(np.uint8), scale, np.uint8(3)),
            *(np.float32(4.0), zero),
            auto_pad=mode,
        )
        yield "QLinearConv", mode.lower(), draw


def _sliding(stem: str, windows: Mapping[str, Any]) -> Iterator[tuple[str, str, Generator]]:
    kernel, pads = windows["kernel_shape"], windows["pads"]
    image = (7, 6)
    counts = [
        (image[i] + pads[i] + pads[i + 2] - windows["dilations"][i] * (kernel[i] - 1) - 1)
        // windows["strides"][i]
        + 1
        for i in range(2)
    ]
    placed = {name: windows[name] for name in ("strides", "dilations", "pads")}
    columns = _wave((1, 2 * prod(kernel), prod(counts)))
    yield "Col2Im", stem, fixed_node(columns, int64s(*image), int64s(*kernel), **placed)
    offsets = _wave((1, 2 * 2 * prod(kernel), *counts), -0.75, 0.75)
    mask = _wave((1, 2 * prod(kernel), *counts), 0.0, 1.0)
    draw = fixed_node(
        *(_wave((1, 2, *image)), _wave((2, 2, *kernel)), offsets, _wave((2,)), mask),
        offset_group=2,
        **windows,
    )
    yield "DeformConv", stem, draw


def _resizes() -> Iterator[tuple[str, str, Generator]]:
    x = _wave((1, 1, 4, 6), 1.0, 9.0)
    sizes = int64s(7, 8)
    for policy in ("stretch", "not_larger", "not_smaller"):
        for mode in ("nearest", "linear"):
            draw = fixed_node(
                *(x, None, None, sizes), axes=[2, 3], mode=mode, keep_aspect_ratio_policy=policy
            )
            yield "Resize", f"{policy}_{mode}", draw
    region = np.array([0, 0, 0.25, -0.25, 1, 1, 0.75, 1.25], np.float32)
    for mode in ("nearest", "linear"):
        draw = fixed_node(
            *(x, region, None, int64s(1, 1, 3, 5)),
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=12.5,
        )
        yield "Resize", f"cropped_{mode}", draw
    for mode in ("linear", "cubic"):
        for name in ("antialias", "exclude_outside"):
            if (mode, name) != ("linear", "exclude_outside"):
                attributes: dict[str, Any] = {name: 1, "mode": mode}
                draw = fixed_node(x, None, None, int64s(1, 1, 2, 3), **attributes)
                yield "Resize", f"{mode}_{name}", draw


def _losses() -> Iterator[tuple[str, str, Generator]]:
    scores, targets = _wave((2, 3, 3), -3.0, 0.0), np.array([[0, 1, 2], [1, 0, 0]], np.int64)
    targets_by_stem: Mapping[str, tuple[Array, Mapping[str, Any]]] = {
        "all": (targets, {}),
        "ignored": (targets, {"ignore_index": 1}),
        "negative": (np.where(targets == 1, -1, targets), {"ignore_index": -1}),
    }
    operators = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    weights = np.array([0.5, 8.0, 0.0], np.float32)
    for operator, reduction in product(operators, ("none", "sum", "mean")):
        for stem, (classes, ignored) in targets_by_stem.items():
            attributes: dict[str, Any] = {"reduction": reduction, **ignored}
            name = f"{reduction}_{stem}"
            yield operator, name, fixed_node(scores, classes, None, **attributes)
            weighted = fixed_node(scores, classes, weights, **attributes)
            yield operator, f"{name}_weighted", weighted


def _recurrent() -> Iterator[tuple[str, str, Generator]]:
    """Yield recurrent nodes with every input and output, in each direction and layout."""
    for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for direction in ("forward", "reverse", "bidirectional"):
            for layout in (0, 1):
                for lengths in (None, np.array([2, 3], np.int32)):
                    inputs, attributes = _full_cell(operator, gates, direction, layout, lengths)
                    stem = f"full_{direction}{'_by_batch' if layout else ''}"
                    stem += "" if lengths is None else "_lengths"
                    draw = partial(_cell, inputs=inputs, attributes=attributes)
                    yield operator, stem, draw
        yield from _wide_cells(operator, gates)
        if operator == "LSTM":
            # The specification does not say whether the cell state is clipped before the hidden
            # state is computed.
            continue
        inputs, attributes = _full_cell(operator, gates, "forward", 0, None)
        if operator == "GRU":
            attributes = {**attributes, "linear_before_reset": 1}
        clipped = partial(_cell, inputs=inputs, attributes={**attributes, "clip": 0.5})
        yield operator, "clipped", clipped


# The two directions have different activations.
_TWO_DIRECTIONS: Mapping[str, list[str]] = {
    "RNN": ["Tanh", "Relu"],
    "GRU": ["Sigmoid", "Tanh", "HardSigmoid", "Relu"],
    "LSTM": ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Softsign", "Relu"],
}


def _wide_cells(operator: str, gates: int) -> Iterator[tuple[str, str, Generator]]:
    """Yield cells with more units and steps than a vector register has lanes."""
    hidden, width, batch, length = 19, 5, 3, 11
    inputs: list[Value] = [
        _wave((length, batch, width)),
        _wave((2, gates * hidden, width), -0.5, 0.5),
        _wave((2, gates * hidden, hidden), -0.25, 0.25),
        _wave((2, 2 * gates * hidden), -0.5, 0.5),
        np.array([11, 4, 1], np.int32),
        _wave((2, batch, hidden), -1.0, 1.0),
    ]
    attributes = {"hidden_size": hidden, "direction": "bidirectional"}
    named = {**attributes, "activations": _TWO_DIRECTIONS[operator]}
    yield operator, "wide_lengths", partial(_cell, inputs=inputs, attributes=attributes)
    inputs = [*inputs[:4], None, inputs[5]]
    yield operator, "wide_activations", partial(_cell, inputs=inputs, attributes=named)


def _full_cell(
    operator: str, gates: int, direction: str, layout: int, lengths: Array | None
) -> tuple[list[Value], dict[str, Any]]:
    directions, hidden, width, batch, length = 1 + (direction == "bidirectional"), 3, 2, 2, 3
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    inputs: list[Value] = [
        _wave((batch, length, width) if layout else (length, batch, width)),
        _wave((directions, gates * hidden, width), -1.0, 1.0),
        _wave((directions, gates * hidden, hidden), -0.9, 1.1),
        _wave((directions, 2 * gates * hidden), -0.5, 0.5),
        lengths,
        _wave(state, -1.0, 1.0),
    ]
    if operator == "LSTM":
        inputs += [_wave(state, -1.5, 1.5), _wave((directions, 3 * hidden), -1.0, 1.0)]
    attributes = {"hidden_size": hidden, "direction": direction, "layout": layout}
    return inputs, attributes


def _cell(draft: NodeDraft, *, inputs: Sequence[Value], attributes: Mapping[str, Any]) -> None:
    add_fixed(draft, inputs=inputs, attributes=attributes)
    # The specification does not say what Y contains beyond the end of a sequence.
    draft.outputs = [inputs[4] is None, *[True] * (len(draft.schema.outputs) - 1)]


def _attention() -> Iterator[tuple[str, str, Generator]]:
    query, key, value = _wave((2, 2, 3, 2)), _wave((2, 2, 4, 2)), _wave((2, 2, 4, 3), -1.0, 3.0)
    half_masked = np.array([[True, False, True, False], [False] * 4, [True] * 4])
    yield "Attention", "softcap", fixed_node(query, key, value, softcap=0.5)
    yield "Attention", "masked_row", fixed_node(query, key, value, half_masked)
    yield "Attention", "short_mask", fixed_node(query, key, value, np.ones((3, 2), bool))
    for stem, windows in (
        ("left", {"left_window_size": 1}),
        ("right", {"right_window_size": 1}),
        ("both", {"left_window_size": 1, "right_window_size": 0}),
    ):
        yield "Attention", f"window_{stem}", fixed_node(query, key, value, **windows)
    batch_mask = np.array([[[True, False, True, True], [True] * 4, [False, True, True, False]]])
    yield "Attention", "mask_of_three_axes", fixed_node(query, key, value, batch_mask)
    wide = [_wave((1, 2, 3, 19)), _wave((1, 2, 35, 19)), _wave((1, 2, 35, 21), -1.0, 3.0)]
    yield "Attention", "wide_heads", fixed_node(*wide)
    yield "Attention", "wide_heads_masked", fixed_node(*wide, _wave((3, 35)), is_causal=1)
    lengths = int64s(2, 4)
    for causal in (0, 1):
        stem = "_causal" if causal else ""
        cached = (query, key, value, None, None, None, lengths)
        yield "Attention", f"valid_keys{stem}", fixed_node(*cached, is_causal=causal)
        past = (_wave((2, 2, 2, 2)), _wave((2, 2, 2, 3)))
        square = fixed_node(
            query, key[:, :, :3], value[:, :, :3], None, *past, is_causal=causal, outputs=3
        )
        yield "Attention", f"past{stem}", square
    flat = [_wave((2, 3, 8)), _wave((2, 4, 4)), _wave((2, 4, 4), -1.0, 3.0)]
    yield "Attention", "packed_heads", fixed_node(*flat, q_num_heads=4, kv_num_heads=2)
    angles = _wave((5, 2), -3.0, 3.0)
    x = _wave((1, 2, 3, 4))
    for interleaved in (0, 1):
        draw = fixed_node(
            x, np.cos(angles), np.sin(angles), int64s([4, 0, 2]), interleaved=interleaved
        )
        yield "RotaryEmbedding", f"positions_{interleaved}", draw


def _grouped_heads() -> Iterator[tuple[str, str, Generator]]:
    """Yield attention in which each of two heads of the keys is shared by three query heads.

    The numbers two and three differ, so that an implementation that exchanges them fails.
    """
    query = _wave((2, 6, 3, 2))
    key, value = _wave((2, 2, 4, 2)), _wave((2, 2, 4, 3), -1.0, 3.0)
    yield "Attention", "three_per_key_head", fixed_node(query, key, value)
    heads = {"q_num_heads": 6, "kv_num_heads": 2}
    packed = [_packed(x) for x in (query, key, value)]
    yield "Attention", "three_per_key_head_packed", fixed_node(*packed, **heads)
    # Linear attention requires equal numbers of keys and queries.
    packed = [_packed(x) for x in (query, key[:, :, :3], value[:, :, :3])]
    linear = fixed_node(*packed, update_rule="linear", outputs=2, **heads)
    yield "LinearAttention", "three_per_key_head", linear


def _packed(x: Array) -> Array:
    """Return the heads of a tensor side by side along the last axis."""
    batch, heads, length, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * width)


def _tables() -> Iterator[tuple[str, str, Generator]]:
    """Yield texts that consist of stopwords only, and n-grams of two numbers."""
    for stem, shape in (("", (3,)), ("_row", (1, 3))):
        words = np.array(["the", "The", "THE"], object).reshape(shape)
        draw = fixed_node(words, stopwords=["the"], is_case_sensitive=0)
        yield "StringNormalizer", f"all_removed{stem}", draw
    for skips in (0, 1):
        yield (
            "TfIdfVectorizer",
            f"pairs_only_{skips}",
            fixed_node(
                np.array([[2, 3, 5, 5, 3], [5, 5, 2, 3, 2]], np.int64),
                mode="TF",
                min_gram_length=2,
                max_gram_length=2,
                max_skip_count=skips,
                ngram_counts=[0, 3],
                ngram_indexes=[0, 1, 2, 3, 4],
                pool_int64s=[2, 3, 5, 2, 3, 5, 5],
            ),
        )
