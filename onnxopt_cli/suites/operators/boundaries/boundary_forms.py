"""Nodes in forms that random draws seldom have.

Scalars on either side and as results, tensors of many axes, optional inputs of which only a later
one is present, subgraphs that declare their outputs in another order than they compute them, and
sequences of empty tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    distinct_bytes,
    fixed_node,
    int64s,
    vectors,
)

_FLOAT = TensorProto.FLOAT
# Shapes of the results of a branch.
_RESULTS = ((2,), (1,), (1, 1))


def boundary_forms() -> Iterator[tuple[str, str, Generator]]:
    """Yield operators, the names of their boundaries, and generators."""
    yield from _scalars()
    yield from _optional_inputs()
    yield from _axes()
    yield from _graphs()
    yield from _sequences()
    yield from _attribute_tensors()
    yield from _texts()
    yield from _reduced_updates()
    yield from _many_axes()
    yield from _volumes()


def _scalars() -> Iterator[tuple[str, str, Generator]]:
    """Yield scalars as inputs and as results of operators that change shapes."""
    scalar, single = np.float32(2.5), np.array([[5.5]], np.float32)
    none = int64s()
    yield "Reshape", "to_scalar", fixed_node(single, none)
    yield "Reshape", "of_scalar", fixed_node(scalar, int64s(1, 1))
    yield "Squeeze", "to_scalar", fixed_node(single, int64s(0, 1))
    yield "Squeeze", "of_scalar", fixed_node(scalar)
    yield "Unsqueeze", "of_scalar", fixed_node(scalar, int64s(-1, 0))
    yield "Expand", "of_scalar", fixed_node(scalar, none)
    yield "Tile", "of_scalar", fixed_node(scalar, none)
    yield "Identity", "scalar", fixed_node(scalar)
    yield "Transpose", "of_scalar", fixed_node(scalar)
    yield "Gather", "to_scalar", fixed_node(distinct(4), np.array(-3))
    yield "GatherND", "to_scalar", fixed_node(distinct(2, 3), int64s(1, -2))
    yield "ConstantOfShape", "scalar", fixed_node(none, value=tensor_of(np.array([7], np.int64)))
    yield "DynamicQuantizeLinear", "scalar", fixed_node(scalar, outputs=3)
    yield "SplitToSequence", "scalar_size", fixed_node(distinct(5, 2), np.array(2))


def _optional_inputs() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes whose optional inputs are omitted, mostly before an input that is present."""
    signal = distinct(2, 5, 3, 2)
    yield "DFT", "axis_alone", fixed_node(signal, None, np.array(1))
    yield "DFT", "negative_axis_alone", fixed_node(signal, None, np.array(-3), inverse=1)
    x = distinct(4, 5)
    yield "Slice", "steps_without_axes", fixed_node(x, *_pairs((3, -1), (-9, 0), None, (-2, -3)))
    yield "Clip", "maximum_alone", fixed_node(x, None, np.float32(0.5))
    yield "Clip", "no_bounds", fixed_node(x)
    pads = int64s(1, 0, -1, 2)
    yield (
        "Pad",
        "axes_without_value",
        fixed_node(distinct(3, 4, 2), pads, None, int64s(2, 0)),
    )
    rows, words = np.array([[0.25, -3.5]], np.float32), distinct(2, 3)
    yield "Gemm", "negative_scalars", fixed_node(rows, words, alpha=-0.5, beta=3.0)


def _pairs(*values: tuple[int, int] | None) -> Sequence[Array | None]:
    return [None if pair is None else int64s(*pair) for pair in values]


def _axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield axes and sizes other than the usual ones."""
    for stem, new_axes in (("descending", (2, 0)), ("mixed", (-1, 1)), ("from_end", (-4, -2))):
        yield "Unsqueeze", f"{stem}_axes", fixed_node(distinct(2, 3), int64s(*new_axes))
    image = distinct(2, 3, 3, 4)
    for stem, axes in (("spatial", [2, 3]), ("batch", [0]), ("channels", [1, 3])):
        yield "MeanVarianceNormalization", f"{stem}_axes", fixed_node(image, axes=axes)
    x = distinct(1, 2, 4, 3)
    for mode in ("nearest", "linear"):
        to_sizes = fixed_node(x, None, None, int64s(6, 5), axes=[-1, -2], mode=mode)
        yield "Resize", f"negative_axes_{mode}", to_sizes
        cube = fixed_node(distinct(1, 1, 2, 3, 2), None, None, int64s(1, 1, 4, 2, 3), mode=mode)
        yield "Resize", f"three_axes_{mode}", cube
    for stem, shape, sizes in (
        ("odd_crop", (5, 7), (2, 4)),
        ("odd_growth", (2, 4), (5, 7)),
        ("crop_and_growth", (7, 2), (4, 5)),
    ):
        yield "CenterCropPad", stem, fixed_node(distinct(*shape), int64s(*sizes))
    cropped = fixed_node(distinct(4, 7, 5), int64s(2, 4), axes=[-1, -2])
    yield "CenterCropPad", "negative_axes", cropped


def _graphs() -> Iterator[tuple[str, str, Generator]]:
    """Yield subgraphs whose outputs are declared in another order than they are computed."""
    branches: dict[str, GraphProto] = {}
    for number, branch in enumerate(("then_branch", "else_branch"), 1):
        values = [np.full(shape, 4 * number - place) for place, shape in enumerate(_RESULTS)]
        constants = [
            helper.make_node(
                "Constant", [], [f"{branch}{place}"], value=tensor_of(value.astype(np.float32))
            )
            for place, value in enumerate(values)
        ]
        results = [
            helper.make_tensor_value_info(f"{branch}{place}", _FLOAT, values[place].shape)
            for place in (2, 0, 1)
        ]
        branches[branch] = helper.make_graph(constants, branch, [], results)
    for condition in (True, False):
        stem = "true" if condition else "false"
        yield "If", f"reordered_{stem}", fixed_node(np.array(condition), outputs=3, **branches)
    nodes = [
        helper.make_node("Mul", ["b", "element"], ["scanned"]),
        helper.make_node("Sub", ["b", "other"], ["next_b"]),
        helper.make_node("Add", ["a", "element"], ["next_a"]),
        helper.make_node("Add", ["next_a", "scanned"], ["last"]),
    ]
    inputs = vectors("a", "b", "element", "other")
    outputs = vectors("next_a", "next_b", "last", "scanned")
    body = helper.make_graph(nodes, "body", inputs, outputs)
    states = [np.array(pair, np.float32) for pair in ((1.5, -2.0), (0.5, 3.0))]
    for stem, shape, attributes in (
        ("forward", (3, 2), {}),
        ("mixed", (3, 2), {"scan_input_directions": [0, 1], "scan_output_directions": [1, 0]}),
        ("last_axes", (2, 3), {"scan_input_axes": [1, -1], "scan_output_axes": [-1, 1]}),
    ):
        elements = [distinct(*shape), distinct(*shape) * 2 + 1]
        scan = fixed_node(*states, *elements, outputs=4, body=body, num_scan_inputs=2, **attributes)
        yield "Scan", f"two_states_{stem}", scan


def _sequences() -> Iterator[tuple[str, str, Generator]]:
    """Yield sequences in which some or all tensors are empty."""
    empty, full = np.zeros((0, 2), np.float32), distinct(2, 2)
    items: list[Any] = [empty, full, empty]
    yield "SequenceLength", "empty_items", fixed_node(items)
    yield "SequenceAt", "empty_items", fixed_node(items, np.array(-2))
    yield "SequenceErase", "empty_items", fixed_node(items, np.array(0))
    yield "SequenceErase", "last_by_default", fixed_node([full, full + 1, full * 2])
    yield "SequenceConstruct", "empty_items", fixed_node(*items)
    yield "ConcatFromSequence", "empty_items", fixed_node(items, axis=0)
    yield "OptionalHasElement", "empty_sequence", fixed_node([])
    yield "OptionalHasElement", "empty_tensor", fixed_node(empty)


def _attribute_tensors() -> Iterator[tuple[str, str, Generator]]:
    """Yield tensors in attributes whose elements narrower types cannot represent."""
    values: Mapping[str, Any] = {
        "int64": 2**53 + 1,
        "uint64": 2**64 - 1,
        "float64": 1 / 3,
        "int32": 2**24 + 1,
    }
    for name, value in values.items():
        filled = tensor_of(np.array([value], DTYPES[name]))
        yield "ConstantOfShape", f"precise_{name}", fixed_node(int64s(2), value=filled)
        listed = tensor_of(np.array([value, 1], DTYPES[name]))
        yield "Constant", f"precise_{name}", fixed_node(value=listed)
    yield "Constant", "precise_value_int", fixed_node(value_int=2**53 + 1)
    yield "Constant", "precise_value_ints", fixed_node(value_ints=[2**53 + 1, -(2**62) - 1])


def _texts() -> Iterator[tuple[str, str, Generator]]:
    """Yield letters beyond ASCII, and operators that move the texts of a square table."""
    words = np.array(["\u00e9a", "\u00c9B", "stra\u0117"], object)
    for action in ("UPPER", "LOWER"):
        changed = fixed_node(words, case_change_action=action)
        yield "StringNormalizer", f"beyond_ascii_{action.lower()}", changed
    table = np.array([["a", "b", "\u00e9"], ["", "d", "e"], ["f", "g", "hi"]], object)
    places, square = int64s(2, 0), np.array([[2, 0, 1], [1, 1, 0], [0, 2, 2]])
    for axis in (0, 1):
        yield "Gather", f"texts_{axis}", fixed_node(table, places, axis=axis)
        yield "GatherElements", f"texts_{axis}", fixed_node(table, square, axis=axis)
        yield "Concat", f"texts_{axis}", fixed_node(table, table[::-1].copy(), axis=axis)
        condition = np.array([True, False, True])
        yield "Compress", f"texts_{axis}", fixed_node(table, condition, axis=axis)
        halves = fixed_node(table, int64s(1, 2), axis=axis, outputs=2)
        yield "Split", f"texts_{axis}", halves
    yield "Transpose", "texts", fixed_node(table, perm=[1, 0])
    yield "Slice", "texts", fixed_node(table, *_pairs((2, 1), (-9, 3), (0, 1), (-1, 1)))
    yield "ReverseSequence", "texts", fixed_node(table, int64s(1, 3, 2))


def _reduced_updates() -> Iterator[tuple[str, str, Generator]]:
    """Yield scatters with several updates of the same position, for each reduction."""
    for dtype in ("float32", "int64", "int32"):
        x, updates = (np.array(n, DTYPES[dtype]) for n in ([5, -3, 7, 2], [4, -2, 3, 6, -9]))
        indices = int64s(1, -1, 1, 3, 0)
        for reduction in ("add", "mul", "max", "min"):
            stem = f"{reduction}_{dtype}"
            elements = fixed_node(x, indices, updates, reduction=reduction)
            yield "ScatterElements", stem, elements
            slices = fixed_node(x, indices[:, None], updates, reduction=reduction)
            yield "ScatterND", stem, slices


def _many_axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield tensors of four to six axes for operators whose generators draw fewer."""
    x = distinct(2, 3, 2, 3, 2)
    places = np.broadcast_to(int64s(2, 0, 1)[:, None], x.shape)
    scattered = fixed_node(x, places.copy(), -x, axis=-2)
    yield "ScatterElements", "five_axes", scattered
    slices = fixed_node(x, np.array([[1, 2, 0], [0, -1, 1]]), distinct(2, 3, 2) * 3)
    yield "ScatterND", "five_axes", slices
    yield "Compress", "five_axes", fixed_node(x, np.array([True, False, True]), axis=3)
    yield "TopK", "five_axes", fixed_node(x, int64s(2), axis=-4, largest=0)
    # Added zero turns -0.0 into 0.0: the order of zeros of different signs is not defined.
    whole_numbers = np.trunc(x[0] / 5) + np.float32(0)
    yield "Unique", "four_axes", fixed_node(whole_numbers, axis=-2, outputs=4)
    classes = np.arange(16).reshape(2, 2, 2, 2) * 5 % 3
    yield "OneHot", "four_axes", fixed_node(classes, np.array(3), np.array([1.5, -2.0]), axis=2)
    yield "CumSum", "five_axes", fixed_node(x, np.array(-3), exclusive=1)
    yield "CumProd", "five_axes", fixed_node(x / 2, np.array(1), reverse=1)
    left, right = (2, 1, 2, 2, 3), (3, 1, 3, 2)
    yield "MatMul", "five_axes", fixed_node(distinct(*left), distinct(*right))
    bytes_a, bytes_b = distinct_bytes(*left), distinct_bytes(*right)
    yield "MatMulInteger", "five_axes", fixed_node(bytes_a, bytes_b, np.uint8(60))
    yield "DFT", "six_axes", fixed_node(distinct(1, 2, 3, 2, 2, 2), None, np.array(2))


def _volumes() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows along three axes that differ in length, stride and padding."""
    x_shape, weights_shape = (1, 2, 3, 4, 2), (2, 2, 2, 1, 2)
    x, weights = distinct(*x_shape), distinct(*weights_shape)
    windows: dict[str, Any] = {"strides": [1, 2, 1], "pads": [1, 0, 0, 0, 1, 1]}
    yield "ConvTranspose", "volume", fixed_node(x, weights, output_padding=[0, 1, 0], **windows)
    bytes_x, bytes_w = distinct_bytes(*x_shape), distinct_bytes(*weights_shape)
    zero, scale = np.uint8(60), np.float32(0.5)
    yield "ConvInteger", "volume", fixed_node(bytes_x, bytes_w, zero, **windows)
    quantized = fixed_node(
        bytes_x, scale, zero, bytes_w, scale, zero, np.float32(256), np.uint8(100), **windows
    )
    yield "QLinearConv", "volume", quantized
    pooled, kernel = distinct(1, 1, 2, 1, 2), [2, 2, 2]
    largest = int64s(3, 5, 9, 14).reshape(pooled.shape)
    unpooled = fixed_node(pooled, largest, kernel_shape=kernel, strides=kernel)
    yield "MaxUnpool", "volume", unpooled
    scale, bias = np.array([[0.5, 2.0, 1.0, -1.0], [1.0, 0.0, -0.5, 0.25]], np.float32)
    grouped = fixed_node(distinct(2, 4, 2, 1, 3), scale, bias, num_groups=2)
    yield "GroupNormalization", "volume", grouped
