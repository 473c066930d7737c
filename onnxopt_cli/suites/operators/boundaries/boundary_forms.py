"""Nodes with kinds of inputs and attributes that random draws seldom contain.

Examples are scalars as either operand and as results, tensors of many axes, and sequences of empty
tensors. In some nodes, omitted inputs precede an optional input that is present.
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
# Shapes of the results of a branch of If.
_RESULTS = ((2,), (1,), (1, 1))


def boundary_forms() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _scalars()
    yield from _optional_inputs()
    yield from _default_axes()
    yield from _axes()
    yield from _graphs()
    yield from _sequences()
    yield from _sequence_values()
    yield from _attribute_tensors()
    yield from _texts()
    yield from _attribute_texts()
    yield from _long_texts()
    yield from _short_positions()
    yield from _fewer_indices()
    yield from _reduced_updates()
    yield from _many_axes()
    yield from _volumes()
    yield from _lines_and_volumes()
    yield from _given_shapes()
    yield from _short_images()


def _scalars() -> Iterator[tuple[str, str, Generator]]:
    """Yield scalars as inputs and results of operators that change shapes."""
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
    places = int64s([0, 2], [1, 0])
    yield "Gather", "inner_places", fixed_node(distinct(2, 3, 2), places, axis=1)
    yield "GatherND", "to_scalar", fixed_node(distinct(2, 3), int64s(1, -2))
    yield "ConstantOfShape", "scalar", fixed_node(none, value=tensor_of(np.array([7], np.int64)))
    yield "DynamicQuantizeLinear", "scalar", fixed_node(scalar, outputs=3)
    yield "SplitToSequence", "scalar_size", fixed_node(distinct(5, 2), np.array(2))


def _optional_inputs() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes with omitted optional inputs, mostly before an input that is present."""
    signal = distinct(2, 5, 3, 2)
    yield "DFT", "axis_alone", fixed_node(signal, None, np.array(1))
    yield "DFT", "negative_axis_alone", fixed_node(signal, None, np.array(-3), inverse=1)
    x = distinct(4, 5)
    yield "Slice", "steps_without_axes", fixed_node(x, *_pairs((3, -1), (-9, 0), None, (-2, -3)))
    yield "Clip", "maximum_alone", fixed_node(x, None, np.float32(0.5))
    yield "Clip", "no_bounds", fixed_node(x)
    yield "Clip", "minimum_of_double", fixed_node(np.array([1e300, -1e300, 2.0]), np.array(-1.5))
    pads = int64s(1, 0, -1, 2)
    yield (
        "Pad",
        "axes_without_value",
        fixed_node(distinct(3, 4, 2), pads, None, int64s(2, 0)),
    )
    for stem, shape, frame in (("two_samples", (1, 2, 2), 2), ("one_frame", (2, 5, 2), 5)):
        waves = fixed_node(distinct(*shape), np.array(1), None, np.array(frame), onesided=0)
        yield "STFT", f"complex_{stem}", waves
    for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        weights, recurrent = distinct(1, 2 * gates, 3) / 4, distinct(1, 2 * gates, 2) / 8
        omitted = fixed_node(distinct(4, 1, 3), weights, recurrent, outputs=2)
        yield operator, "hidden_size_omitted", omitted
    rows, words = np.array([[0.25, -3.5]], np.float32), distinct(2, 3)
    yield "Gemm", "negative_scalars", fixed_node(rows, words, alpha=-0.5, beta=3.0)


def _default_axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield Fourier transforms along the default axis, and blockwise scales along each axis."""
    for count in (5, 6):
        for length in (None, 4, 7) if count == 5 else (None, 4):  # noqa: PLR2004 - only one count is padded
            lengths = () if length is None else (np.array(length),)
            stem, signal = f"real_{count}_to_{length or count}", distinct(2, count, 1)
            if length != 4:  # noqa: PLR2004 - the shorter length
                yield "DFT", stem, fixed_node(signal, *lengths)
            yield "DFT", f"{stem}_onesided", fixed_node(signal, *lengths, onesided=1)
    for operator in ("DequantizeLinear", "QuantizeLinear"):
        for axis in (0, None, -1):
            x = distinct(5, 5, 5)
            shape = [3 if place == (1 if axis is None else axis % 3) else 5 for place in range(3)]
            scales = (distinct(*shape) + 8) / 16
            zeros = distinct_bytes(*shape) % 7
            data = x if operator == "QuantizeLinear" else distinct_bytes(*x.shape)
            attributes = {"block_size": 2} if axis is None else {"block_size": 2, "axis": axis}
            stem = f"partial_blocks_{'default' if axis is None else 'last' if axis else 'first'}"
            zero_points = (zeros,) if axis == 0 else ()
            yield operator, stem, fixed_node(data, scales, *zero_points, **attributes)


def _pairs(*values: tuple[int, int] | None) -> Sequence[Array | None]:
    return [None if pair is None else int64s(*pair) for pair in values]


def _axes() -> Iterator[tuple[str, str, Generator]]:
    """Yield nodes with unusual axes and sizes."""
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
    axes = {"scan_input_axes": [0, 1], "scan_output_axes": [1, 0]}
    by_axis = [*states, distinct(3, 2), distinct(2, 3) * 2 + 1]
    scan = fixed_node(*by_axis, outputs=4, body=body, num_scan_inputs=2, **axes)
    yield "Scan", "two_states_other_axes", scan
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
    yield "SequenceAt", "empty_items", fixed_node(items, np.array(-2, np.int32))
    yield "SequenceErase", "empty_items", fixed_node(items, np.array(0))
    yield "SequenceErase", "last_by_default", fixed_node([full, full + 1, full * 2])
    yield "SequenceConstruct", "empty_items", fixed_node(*items)
    yield "ConcatFromSequence", "empty_items", fixed_node(items, axis=0)
    yield "OptionalHasElement", "empty_sequence", fixed_node([])
    yield "OptionalHasElement", "empty_tensor", fixed_node(empty)
    for stem, element in (("false", False), ("zero", np.float32(0)), ("empty_text", "")):
        value = np.array(element, object if stem == "empty_text" else None)
        yield "OptionalHasElement", stem, fixed_node(value)


def _attribute_tensors() -> Iterator[tuple[str, str, Generator]]:
    """Yield attributes with tensors whose elements a narrower type cannot represent."""
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


def _short_positions() -> Iterator[tuple[str, str, Generator]]:
    """Yield positions and lengths of type int32, which in most models have type int64."""
    sequence: list[Any] = [np.array([n, -n], np.float32) for n in (1, 2, 3)]
    yield "SequenceErase", "position_int32", fixed_node(sequence, np.array(-2, np.int32))
    signal = np.cos(np.arange(8, dtype=np.float32)).reshape(1, 8, 1)
    step, length = np.array(2, np.int32), np.array(4, np.int32)
    yield "DFT", "length_int32", fixed_node(signal, length, np.array(1))
    yield "STFT", "lengths_int32", fixed_node(signal, step, None, length)


def _texts() -> Iterator[tuple[str, str, Generator]]:
    """Yield texts with letters beyond ASCII, and operators that move the texts of a table."""
    words = np.array(["\u00e9a", "\u00c9B", "stra\u0117"], object)
    for action in ("UPPER", "LOWER"):
        changed = fixed_node(words, case_change_action=action)
        yield "StringNormalizer", f"beyond_ascii_{action.lower()}", changed
    long = "x" * 40
    table = np.array(
        [["a", "b", "\u00e9"], ["", "d", f"{long}e"], ["f", "g", f"{long}\0i"]], object
    )
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


def _attribute_texts() -> Iterator[tuple[str, str, Generator]]:
    """Yield attributes that contain letters beyond ASCII, empty texts and zero bytes."""
    words = ["\u00e9", "", "\u4e2d b", "a\u0301", "open neural network"]
    yield "Constant", "text_beyond_ascii", fixed_node(value_string="\u4e2d \u00e9")
    yield "Constant", "empty_text", fixed_node(value_string="")
    yield "Constant", "texts_beyond_ascii", fixed_node(value_strings=words)
    # The word "a\u0301" contains two characters. Further texts differ from a word in the accent, in
    # letter case or at the end.
    unknown_words = ("e", "a", "\u00c9", "\u4e2d B", "open neural net")
    x = np.array([*words, *unknown_words], object)
    numbers, stem = [7, -1, 9, 3, 4], "texts_beyond_ascii"
    mapper = fixed_node(x, cats_strings=words, cats_int64s=numbers, default_int64=-5)
    yield "CategoryMapper", stem, mapper
    back = fixed_node(
        int64s(*numbers, 8), cats_strings=words, cats_int64s=numbers, default_string="\u00e8"
    )
    yield "CategoryMapper", f"{stem}_back", back
    yield "LabelEncoder", stem, fixed_node(x, keys_strings=words, values_int64s=numbers)
    back = fixed_node(
        int64s(*numbers, 8), keys_int64s=numbers, values_strings=words, default_string="\u00e8"
    )
    yield "LabelEncoder", f"{stem}_back", back
    yield "OneHotEncoder", stem, fixed_node(x, cats_strings=words, zeros=1)
    split = np.array(
        ["a\u00e9b\u00e9", "\u00e9", "e\u00e8", "\u4e2d\u00e9\u4e2d", "a\u00c9"], object
    )
    yield "StringSplit", stem, fixed_node(split, delimiter="\u00e9", outputs=2)
    yield "RegexFullMatch", stem, fixed_node(split, pattern="[^a]?\u00e9.?")
    grams = fixed_node(
        np.array(["\u00e9", "\u4e2d", "\u00e9", "e", "E"], object),
        mode="TF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        ngram_counts=[0, 2],
        ngram_indexes=[0, 1, 2],
        pool_strings=["\u00e9", "e", "\u00e9", "\u4e2d"],
    )
    yield "TfIdfVectorizer", stem, grams


def _long_texts() -> Iterator[tuple[str, str, Generator]]:
    """Yield texts with a long common beginning, which includes a zero byte."""
    stem = "x" * 40
    first, second, third = stem, f"{stem}a", f"{stem}b"
    table = np.array([[first, second, third], [third, f"{stem}\0b", first]], object)
    other_table = np.array([[first, third, third], [third, f"{stem}\0a", second]], object)
    condition = np.array([[True, False, True], [False, True, False]])
    yield "Equal", "long_texts", fixed_node(table, other_table)
    yield "Where", "long_texts", fixed_node(condition, table, other_table)
    yield "Identity", "long_texts", fixed_node(table)
    updated = fixed_node(table, np.array([[1, 2, 0], [0, 1, 2]]), other_table, axis=1)
    yield "ScatterElements", "long_texts", updated
    yield "Unique", "long_texts", fixed_node(table, sorted=1, outputs=4)
    yield "StringConcat", "long_texts", fixed_node(table, other_table)
    row, words, numbers = table[0], [third, first, second], [3, 1, 2]
    mapper = fixed_node(row, cats_strings=words, cats_int64s=numbers, default_int64=9)
    yield "CategoryMapper", "long_texts", mapper


def _sequence_values() -> Iterator[tuple[str, str, Generator]]:
    """Yield sequences as inputs or outputs of operators that mostly take tensors."""
    items: list[Any] = [distinct(2), distinct(3), distinct(2) * 3]
    texts: list[Any] = [np.array(["a", "\u00e9"], object), np.array(["", "b"], object)]
    yield "Identity", "sequence", fixed_node(items)
    yield "Identity", "sequence_of_texts", fixed_node(texts)
    yield "Identity", "empty_sequence", fixed_node([])
    yield "OptionalHasElement", "sequence", fixed_node(items)
    yield "OptionalGetElement", "sequence", fixed_node(items)
    sequence = helper.make_tensor_sequence_value_info
    branches: dict[str, GraphProto] = {}
    for branch, names in (("then_branch", ["one", "two"]), ("else_branch", ["two"])):
        nodes = [
            helper.make_node("Constant", [], [name], value_floats=[1.5, place])
            for place, name in enumerate(names)
        ]
        nodes.append(helper.make_node("SequenceConstruct", names, [branch]))
        results = [sequence(branch, _FLOAT, None)]
        branches[branch] = helper.make_graph(nodes, branch, [], results)
    yield "If", "sequence", fixed_node(np.array(True), **branches)
    tensor = helper.make_tensor_value_info
    nodes = [
        helper.make_node("SequenceAt", ["items", "iteration"], ["first"]),
        helper.make_node("SequenceInsert", ["items", "first", "start"], ["more_items"]),
        helper.make_node("Identity", ["go"], ["goes_on"]),
        helper.make_node("SequenceLength", ["items"], ["length"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [
            tensor("iteration", TensorProto.INT64, []),
            tensor("go", TensorProto.BOOL, []),
            sequence("items", _FLOAT, None),
        ],
        [
            tensor("goes_on", TensorProto.BOOL, []),
            sequence("more_items", _FLOAT, None),
            tensor("length", TensorProto.INT64, []),
        ],
        [tensor_of(np.array(0), "start")],
    )
    loop = fixed_node(np.array(3), np.array(True), items, outputs=2, body=body)
    yield "Loop", "sequence", loop


def _fewer_indices() -> Iterator[tuple[str, str, Generator]]:
    """Yield indices that are shorter than the data along axes other than the indexed axis."""
    data, indices = (
        distinct(3, 4, 5),
        np.array([[[4, 0], [1, 3], [2, 2]], [[0, 1], [3, 4], [1, 0]]]),
    )
    updates = distinct(2, 3, 2) * 3
    scattered = fixed_node(data, indices, updates, axis=2, reduction="add")
    yield "ScatterElements", "fewer_indices", scattered
    yield "GatherElements", "fewer_indices", fixed_node(data, indices, axis=2)
    first = np.array([[[2, 0, -1], [1, -3, 2]]])
    yield "GatherElements", "fewer_indices_first", fixed_node(data, first, axis=0)
    replaced = fixed_node(data, first, distinct(1, 2, 3) * 3, axis=0)
    yield "ScatterElements", "fewer_indices_first", replaced


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
    """Yield tensors with four to six axes for operators whose generators draw fewer axes."""
    x = distinct(2, 3, 2, 3, 2)
    places = np.broadcast_to(int64s(2, 0, 1)[:, None], x.shape)
    scattered = fixed_node(x, places.copy(), -x, axis=-2)
    yield "ScatterElements", "five_axes", scattered
    yield "ScatterND", "single_position", fixed_node(x, int64s(1, -2, 0), distinct(3, 2) * 3)
    slices = fixed_node(x, np.array([[1, 2, 0], [0, -1, 1]]), distinct(2, 3, 2) * 3)
    yield "ScatterND", "five_axes", slices
    yield "Compress", "five_axes", fixed_node(x, np.array([True, False, True]), axis=3)
    yield "TopK", "five_axes", fixed_node(x, int64s(2), axis=-4, largest=0)
    # Zero is added to turn -0.0 into 0.0, because the order of 0.0 and -0.0 is not defined.
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
    """Yield windows in volumes; length, stride and padding differ between the three axes."""
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


def _lines_and_volumes() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows along one axis and along three axes, with each option that windows have."""
    forms: Sequence[tuple[str, tuple[int, ...], dict[str, Any]]] = (
        (
            "line",
            (9,),
            {"kernel_shape": [3], "strides": [2], "pads": [1, 2], "dilations": [2]},
        ),
        (
            "cube",
            (4, 5, 3),
            {
                "kernel_shape": [2, 3, 2],
                "strides": [1, 2, 3],
                "pads": [1, 0, 0, 0, 2, 1],
                "dilations": [2, 1, 1],
            },
        ),
    )
    zero, scale = np.uint8(60), np.float32(0.5)
    for stem, lengths, windows in forms:
        x, kernel = distinct(2, 2, *lengths), windows["kernel_shape"]
        for operator in ("MaxPool", "AveragePool", "LpPool"):
            yield operator, f"{stem}_uneven", fixed_node(x, **windows)
            yield operator, f"{stem}_ceil", fixed_node(x, **_overhanging(lengths))
        for windows_stem, counted in (("uneven", windows), ("ceil", _overhanging(lengths))):
            average = fixed_node(x, count_include_pad=1, **counted)
            yield "AveragePool", f"{stem}_{windows_stem}_counted", average
        plain = {name: value for name, value in windows.items() if name != "dilations"}
        for order in (0, 1):
            placed = fixed_node(x, storage_order=order, outputs=2, **plain)
            yield "MaxPool", f"{stem}_indices_{order}", placed
        weights = distinct(4, 1, *kernel)
        yield "Conv", f"{stem}_uneven", fixed_node(x, weights, distinct(4), group=2, **windows)
        transposed = fixed_node(x, weights[:2], distinct(2), group=2, **windows)
        yield "ConvTranspose", f"{stem}_uneven", transposed
        for mode in ("SAME_UPPER", "SAME_LOWER"):
            same: dict[str, Any] = {"strides": [2] * len(kernel), "auto_pad": mode}
            dilated = fixed_node(x, weights, group=2, dilations=[2] * len(kernel), **same)
            yield "Conv", f"{stem}_{mode.lower()}_dilated", dilated
            if stem == "line":
                spread = fixed_node(x, weights[:2], group=2, **same)
                yield "ConvTranspose", f"{stem}_{mode.lower()}", spread
        bytes_x, bytes_w = distinct_bytes(*x.shape), distinct_bytes(4, 1, *kernel)
        integers = fixed_node(bytes_x, bytes_w, zero, group=2, **windows)
        yield "ConvInteger", f"{stem}_uneven", integers
        quantized = fixed_node(
            *(bytes_x, scale, zero, bytes_w, scale, zero, np.float32(256), np.uint8(100)),
            group=2,
            **windows,
        )
        yield "QLinearConv", f"{stem}_uneven", quantized


def _short_images() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows that are longer than the image, but not longer than the padded image."""
    image = distinct(2, 2, 2, 3)
    windows: dict[str, Any] = {"kernel_shape": [3, 4], "pads": [1, 1, 1, 1]}
    yield "Conv", "short_image", fixed_node(image, distinct(2, 2, 3, 4), **windows)
    for operator in ("MaxPool", "AveragePool"):
        yield operator, "short_image", fixed_node(image, **windows)


def _given_shapes() -> Iterator[tuple[str, str, Generator]]:
    """Yield transposed convolutions that state the output shape, from which odd padding follows."""
    for stem, lengths in (("line", (3,)), ("plane", (3, 4)), ("cube", (2, 3, 2))):
        rank = len(lengths)
        x, weights = distinct(1, 2, *lengths), distinct(2, 2, *(4,) * rank)
        # With stride 2 and without padding, the output would be longer than ``shape`` by 3.
        shape = [2 * (length - 1) + 1 for length in lengths]
        for mode in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
            placed = fixed_node(x, weights, auto_pad=mode, strides=[2] * rank, output_shape=shape)
            yield "ConvTranspose", f"{stem}_given_{mode.lower()}", placed


def _overhanging(lengths: Sequence[int]) -> dict[str, Any]:
    """Return attributes of windows; the last windows extend beyond the padding."""
    rank = len(lengths)
    kernel = [length - 1 if length > 2 else 2 for length in lengths]  # noqa: PLR2004
    return {"kernel_shape": kernel, "strides": [2] * rank, "ceil_mode": 1, "pads": [1] * 2 * rank}
