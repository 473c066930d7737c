"""Nodes whose shapes, axes and positions lie at the boundaries of an operator's definition.

Random draws seldom contain operands that match the first axes as well as the last axes of a tensor.
They also seldom contain parts of unequal sizes, positions half way between elements, and windows
that extend beyond the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    fixed_node,
    int64s,
)
from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape

_FLOAT = np.dtype(np.float32)
_LOGICAL = ("And", "Or", "Xor")
_BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Mean", "Sum")
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
# Operators with two operands, either of which is broadcast.
_PAIRED = (
    *(*_ARITHMETIC, *_COMPARISONS, *_LOGICAL, *_BITWISE),
    *("BitShift", "Where", "StringConcat"),
)


def _range(shape: Shape, first: float = 1.0, step: float = 1.0) -> Array:
    """Return a tensor whose elements all differ."""
    return (first + step * np.arange(prod(shape))).reshape(shape).astype(np.float32)


def _truths(draft: NodeDraft, shape: Shape) -> Array:
    """Return Booleans in an irregular order.

    For And and Or, a scalar determines the result: it is False for And, and True for Or. A tensor
    with axes but only one element is neutral: it does not affect the result. In larger tensors,
    most elements of the first operand are neutral, so that the result depends on the second
    operand.
    """
    is_and = draft.schema.name == "And"
    if not shape:
        return np.array(not is_and)
    if prod(shape) == 1:
        return np.full(shape, draft.schema.name != "Or")
    places = np.arange(prod(shape)).reshape(shape)
    return np.isin(places * 7 % 5, (0, 1)) if draft.inputs else (places % 5 == 1) != is_and


def _square(draft: NodeDraft, *, shapes: Sequence[Shape]) -> None:
    """Draw operands that fit both the first and the last axes, because all lengths are equal."""
    name = draft.schema.name
    if name == "Where":
        # The condition is not constant, and its values differ between the two axes.
        draft.add(np.arange(prod(shapes[-1])).reshape(shapes[-1]) % 3 == 0)
    for shape in shapes:
        place = len(draft.inputs)
        if name == "StringConcat":
            draft.add(draft.tensor(DTYPES["string"], shape))
        elif name in _LOGICAL:
            draft.add(_truths(draft, shape))
        elif name == "PRelu":
            draft.add(draft.tensor(_FLOAT, shape, low=-5 if place == 0 else 1, high=-1 + 6 * place))
        else:
            among: Sequence[str] = ("float32", "uint8", "uint32")
            if name == "BitShift":
                among = ("uint8",)
            elif name == "Sub":
                # A difference of unsigned integers could be negative, which is not defined.
                among = ("float32", "int8", "int32")
            draft.add(draft.tensor(draft.dtype(place, among), shape, low=1, high=5))
    if name == "BitShift":
        draft.set("direction", "LEFT")
    if name == "Mod":
        draft.set("fmod", 1 if draft.dtype(0).kind == "f" else None)


def _gemm(draft: NodeDraft, *, shape: Shape, transposed: int) -> None:
    for first in (1.0, -4.0):
        draft.add(_range((3, 3), first))
    draft.add(_range(shape, 100.0, 100.0))
    draft.set("transA", transposed)


def _matrix_batches(draft: NodeDraft, *, first: Shape, second: Shape) -> None:
    """Draw two batches of matrices; each batch is broadcast along a different axis."""
    for shape, matrix in ((first, (2, 3)), (second, (3, 2))):
        values = _range((*shape, *matrix), -5.0)
        if draft.schema.name == "QLinearMatMul":
            draft.add((values + 6).astype(np.uint8))
            draft.add(np.array(0.5, np.float32))
            draft.add(np.array(2, np.uint8))
        elif draft.schema.name == "MatMulInteger":
            draft.add((values + 6).astype(np.uint8))
        else:
            draft.add(values)
    if draft.schema.name == "QLinearMatMul":
        draft.add(np.array(8.0, np.float32))
        draft.add(np.array(1, np.uint8))


def _matrix_zero_points(draft: NodeDraft) -> None:
    """Draw a zero point for each column of a square matrix."""
    for first in (1, 20):
        draft.add(_range((3, 3), first).astype(np.uint8))
    draft.add(np.array(3, np.uint8))
    draft.add(np.array([1, 7, 30], np.uint8))


def _scales_of_axis(draft: NodeDraft, *, axis: int) -> None:
    """Draw a scale for each slice of a tensor whose axes have equal lengths."""
    scale = np.array([0.25, 1.0, 4.0], np.float32)
    zero_point = np.array([1, 100, 7], np.uint8)
    x = _range((3, 3, 3), -13.0)
    draft.add(x if draft.schema.name == "QuantizeLinear" else (x + 14).astype(np.uint8))
    draft.add(scale)
    draft.add(zero_point)
    draft.set("axis", axis)


def _equation(draft: NodeDraft, *, equation: str, shapes: Sequence[Shape]) -> None:
    draft.set("equation", equation)
    for place, shape in enumerate(shapes):
        draft.add(_range(shape, 1.0 - 3 * place))


_EQUATIONS: Sequence[tuple[str, str, tuple[Shape, ...]]] = (
    ("transposed", "ji", ((2, 3),)),
    ("reordered", "cb,ba", ((3, 2), (2, 4))),
    ("ellipsis", "b...a", ((2, 3, 4),)),
    ("upper_case", "CB,BA", ((3, 2), (2, 4))),
    ("broadcast", "...ij,...jk", ((2, 1, 2, 3), (1, 4, 3, 2))),
    ("diagonals", "iijj->ij", ((2, 2, 3, 3),)),
    ("mixed_case", "aBc,cD", ((2, 3, 2), (2, 4))),
)


def _padded_pool(draft: NodeDraft, *, dtype: str, pads: Sequence[int], kernel: int = 2) -> None:
    """Draw negative elements beside padding; a maximum or a mean must ignore the padding."""
    draft.require(draft.allowed(0, (dtype,)))
    x = -_range((1, 2, 4, 4), 1.0, 1.0)
    x = x[..., ::-1] if kernel > 2 else x  # noqa: PLR2004 - to move the maxima
    draft.add(np.ascontiguousarray(x).astype(DTYPES[dtype]))
    draft.set("kernel_shape", [kernel, kernel])
    draft.set("pads", list(pads))
    if draft.schema.name == "LpPool":
        draft.set("p", 3)


def _ceil_pool(draft: NodeDraft, *, include: int, strides: Sequence[int]) -> None:
    """Draw windows; the last windows extend beyond the padding."""
    draft.require(draft.has("ceil_mode"))
    draft.add(_range((1, 1, 6, 5), -7.0))
    draft.set("kernel_shape", [3, 3])
    draft.set("strides", list(strides))
    draft.set("pads", [1, 0, 1, 1])
    draft.set("ceil_mode", 1)
    draft.set("count_include_pad", include if draft.has("count_include_pad") else None)


def _automatic(draft: NodeDraft, *, mode: str, dilation: int) -> None:
    """Draw windows whose automatic padding is not the same on both sides."""
    convolves = draft.schema.name.startswith("Conv")
    x = _range((1, 2, 6, 5), -7.0)
    if draft.schema.name == "ConvInteger":
        draft.add((x + 8).astype(np.uint8))
        draft.add(_range((2, 2, 2, 2), 1.0).astype(np.uint8))
        draft.add(np.array(3, np.uint8))
    elif convolves:
        draft.add(x)
        draft.add(_range((2, 2, 2, 2), -3.0, 0.5))
    else:
        draft.add(x)
    draft.set("kernel_shape", [2, 2])
    draft.set("auto_pad", mode)
    if dilation > 1:
        draft.require(draft.has("dilations"))
        draft.set("dilations", [dilation, dilation])


def _integer_convolution(draft: NodeDraft, *, dtype: str) -> None:
    """Draw extreme factors, and padding whose value is the zero point."""
    info = np.iinfo(DTYPES[dtype])
    x = np.full((1, 4, 3, 3), info.max, DTYPES[dtype])
    x[0, :, 1] = info.min
    draft.add(x)
    w = np.full((2, 4, 2, 2), 127, np.int8)
    w[1] = -128
    draft.require(draft.allowed(1, ("int8",)))
    draft.add(w)
    draft.add(np.array(7, DTYPES[dtype]))
    draft.set("pads", [1, 0, 0, 1])


def _resized(
    draft: NodeDraft,
    *,
    lengths: Sequence[int],
    targets: Sequence[int],
    attributes: Mapping[str, str],
) -> None:
    """Draw a resize by sizes with positions that lie half way between elements."""
    draft.add(_range((1, 1, *lengths), 1.0, 1.25) ** 2)
    draft.omit()
    draft.omit()
    draft.add(np.array([1, 1, *targets], np.int64))
    for name, value in attributes.items():
        draft.set(name, value)


def _halved(draft: NodeDraft) -> None:
    """Draw a resize of an odd length to half the length, which is rounded down."""
    draft.add(_range((1, 1, 7), 1.0, 1.25) ** 2)
    draft.omit()
    draft.add(np.array([1, 1, 0.5], np.float32))
    draft.set("mode", "linear")
    draft.set("coordinate_transformation_mode", "half_pixel_symmetric")


def _sampled(draft: NodeDraft, *, mode: str, padding: str, align: int) -> None:
    """Draw positions half way between elements, on the border and far outside."""
    draft.set("mode", mode)
    draft.set("padding_mode", padding)
    draft.set("align_corners", align)
    draft.add(_range((1, 1, 4, 4), 1.0, 1.25))
    places = np.array([-2.5, -1.25, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 3.25])
    if align:
        # The distance between two elements is 2/3.
        places = np.concatenate([places, [-1 / 3, 1 / 3]])
    if mode == "nearest":
        # A position half way between elements is a rounded quotient, so only quotients that are
        # exact are drawn.
        places = np.array([-0.75, -0.5, 0.0, 0.5, 0.25, 1.0]) if not align else np.array([0.0, 1.0])
    x, y = np.meshgrid(places, places[:4])
    draft.add(np.stack([x, y], -1)[None].astype(np.float32))


def _boxes(draft: NodeDraft, *, order: Sequence[int], centered: int) -> None:
    """Draw boxes that are given by the other diagonal, or by their centers."""
    corners = [[0.0, 0.0, 2.0, 3.0], [0.25, 0.5, 2.25, 3.5], [4.0, 4.0, 6.0, 7.0], [0, 5.0, 1.0, 8]]
    boxes = np.array([corners], np.float32)
    if centered:
        low, high = boxes[..., [1, 0]], boxes[..., [3, 2]]
        boxes = np.concatenate([(low + high) / 2, high - low], axis=-1)
        draft.set("center_point_box", 1)
    draft.add(np.ascontiguousarray(boxes[..., list(order)]))
    draft.add(np.array([[[0.9, 0.75, 0.6, 0.95]]], np.float32))
    draft.add(np.array([3], np.int64))
    draft.add(np.array([0.4], np.float32))
    draft.add(np.array([0.5], np.float32))


def _copied_dimensions(draft: NodeDraft, *, target: Sequence[int]) -> None:
    draft.add(_range((4, 3, 2)))
    draft.add(np.array(target, np.int64))


def _uneven_parts(draft: NodeDraft, *, length: int, count: int, axis: int) -> None:
    """Split a tensor into equal parts and a smaller last part."""
    shape = [2, 2]
    shape[axis] = length
    draft.add(_range(tuple(shape)))
    draft.set("num_outputs", count)
    draft.set("axis", axis)
    draft.outputs = [True] * count


def _uneven_sequence(draft: NodeDraft, *, size: int, axis: int) -> None:
    shape = [2, 2]
    shape[axis] = 7
    draft.add(_range(tuple(shape)))
    draft.add(np.array(size, np.int64))
    draft.set("axis", axis)


def _new_axis(draft: NodeDraft, *, axis: int) -> None:
    items: list[Any] = [_range((2, 3), first) for first in (1.0, 10.0)]
    draft.add(items)
    draft.set("axis", axis)
    draft.set("new_axis", 1)


def _sliced(draft: NodeDraft, *, start: int, end: int, step: int, axis: int) -> None:
    """Draw a slice with a bound counted from the end, or beyond either end."""
    draft.add(_range((4, 5)))
    for value in (start, end, axis, step):
        draft.add(np.array([value], np.int64))


def _attended(draft: NodeDraft, *, causal: int, mask: bool) -> None:
    """Draw four heads of queries and two heads of keys.

    Each head of keys is shared by two heads of queries.
    """
    random = draft.state()
    for heads, length in ((4, 3), (2, 4), (2, 4)):
        draft.add(random.randint(-8, 9, (2, heads, length, 2)).astype(np.float32) / 4)
    draft.set("is_causal", causal or None)
    if mask:
        visible = random.randint(0, 2, (2, 4, 3, 4)) > 0
        visible[..., 0] = True
        draft.add(visible)


def _transformed(draft: NodeDraft, *, length: int, axis: int, inverse: int) -> None:
    """Draw a transform that is shorter or longer than its input."""
    draft.add(_range((1, 5, 4, 2), -3.0, 0.25))
    draft.add(np.array(length, np.int64))
    draft.add(np.array(axis, np.int64))
    draft.set("inverse", inverse or None)


def _texts(draft: NodeDraft, *, delimiter: str, most: int | None) -> None:
    texts = ["a,,b", ",a", "a,", ",", "a  b", " a", "a,b,,c", "abc"]
    draft.add(np.array(texts, object))
    draft.set("delimiter", delimiter)
    draft.set("maxsplit", most)
    draft.outputs = [True, True]


def _joined(draft: NodeDraft) -> None:
    draft.add(np.array(["a ", "", " ", "x\t", "é", "\0a"], object))
    draft.add(np.array([" b", " ", "", "y", "́", "b"], object))


def _patterns(draft: NodeDraft, *, pattern: str) -> None:
    draft.set("pattern", pattern)
    draft.add(np.array(["ab", "abc", "zab", "", "a\nb", "AB", "ab\n", "b"], object))


def boundary_shapes() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _operands()
    yield from _rows_of_squares()
    yield from _matrices()
    yield from _windows()
    yield from _images()
    yield from _parts()
    yield from _sequences()
    yield from _strings()


def _operands() -> Iterator[tuple[str, str, Generator]]:
    for operator in (*_PAIRED, "PRelu"):
        yield operator, "square_second", partial(_square, shapes=((3, 3, 3), (3, 3)))
        yield operator, "square_column", partial(_square, shapes=((3, 3), (3, 1)))
    for operator in _PAIRED:
        yield operator, "inner_row", partial(_square, shapes=((2, 3, 2), (2, 1, 2)))
        yield operator, "empty", partial(_square, shapes=((0, 1), (1, 0)))
        yield operator, "six_axes", partial(_square, shapes=((2, 3, 1, 2, 2, 3), (3, 2, 2, 2, 1)))
        yield operator, "scalars", partial(_square, shapes=((), ()))
        yield operator, "scalar_first", partial(_square, shapes=((), (2, 3)))
        yield operator, "scalar_second", partial(_square, shapes=((2, 3), ()))
        yield operator, "single_first", partial(_square, shapes=((1, 1, 1), (2, 3)))
        if operator not in (*_ARITHMETIC, *_COMPARISONS):
            yield operator, "single_second", partial(_square, shapes=((2, 3), (1,)))
    for operator in (*_PAIRED, "PRelu"):
        if operator not in _COMPARISONS:
            yield operator, "square_row", partial(_square, shapes=((3, 3), (3,)))
            if operator != "PRelu":
                yield operator, "square_first", partial(_square, shapes=((3,), (3, 3)))


def _rows_of_squares() -> Iterator[tuple[str, str, Generator]]:
    # Every comparison has a different result if the row is read as a column.
    row = np.array([1, 2, 3], np.float32)
    table = np.array([[1, 1, 3], [2, 2, 2], [3, 3, 1]], np.float32)
    for operator in _COMPARISONS:
        yield operator, "square_row", fixed_node(table, row)
        yield operator, "square_first", fixed_node(row, table)
    row = np.array([2.0, -1.0, 0.5], np.float32)
    for operator in ("LayerNormalization", "RMSNormalization"):
        yield operator, "row_of_scales", fixed_node(distinct(2, 3, 3), row, axis=1)
    for operator in ("QuantizeLinear", "DequantizeLinear"):
        for axis in (0, 1, -1):
            stem = "last" if axis < 0 else str(axis)
            yield operator, f"square_axis_{stem}", partial(_scales_of_axis, axis=axis)


def _matrices() -> Iterator[tuple[str, str, Generator]]:
    for stem, shape in (("row", (3,)), ("column", (3, 1)), ("wide", (1, 3))):
        for transposed in (0, 1):
            gemm = partial(_gemm, shape=shape, transposed=transposed)
            yield "Gemm", f"square_{stem}_{transposed}", gemm
    batches = {"crossed": ((2, 1), (1, 3)), "inner": ((2, 1), (2, 2)), "outer": ((2, 2), (2, 1))}
    for operator in ("MatMul", "MatMulInteger", "QLinearMatMul"):
        for stem, (first, second) in batches.items():
            draw = partial(_matrix_batches, first=first, second=second)
            yield operator, f"batches_{stem}", draw
    yield "MatMulInteger", "square_zero_points", _matrix_zero_points
    for stem, equation, shapes in _EQUATIONS:
        yield "Einsum", stem, partial(_equation, equation=equation, shapes=shapes)


def _sequences() -> Iterator[tuple[str, str, Generator]]:
    for causal in (0, 1):
        for mask in (False, True):
            stem = f"shared_heads{'_causal' if causal else ''}{'_mask' if mask else ''}"
            yield "Attention", stem, partial(_attended, causal=causal, mask=mask)
    for stem, length in (("shorter", 3), ("longer", 7)):
        for axis in (1, 2):
            for inverse in (0, 1):
                draw = partial(_transformed, length=length, axis=axis, inverse=inverse)
                yield "DFT", f"{stem}_{axis}_{'inverse' if inverse else 'forward'}", draw


def _strings() -> Iterator[tuple[str, str, Generator]]:
    for stem, delimiter in (("comma", ","), ("space", " "), ("blanks", "")):
        for most in (None, 1):
            split = partial(_texts, delimiter=delimiter, most=most)
            yield "StringSplit", f"{stem}_{most or 'all'}", split
    yield "StringConcat", "blanks", _joined
    for stem, pattern in (("prefix", "ab"), ("any", "a.b"), ("either", "a|ab|b"), ("empty", "")):
        yield "RegexFullMatch", stem, partial(_patterns, pattern=pattern)


def _windows() -> Iterator[tuple[str, str, Generator]]:
    for operator in ("MaxPool", "AveragePool", "LpPool"):
        for stem, pads in (("before", [1, 1, 0, 0]), ("after", [0, 0, 1, 1])):
            pool = partial(_padded_pool, dtype="float32", pads=pads, kernel=3)
            yield operator, f"padded_{stem}", pool
        for include in (0, 1):
            for stem, strides in (("even", [2, 2]), ("odd", [3, 2])):
                draw = partial(_ceil_pool, include=include, strides=strides)
                if include == 0 or operator == "AveragePool":
                    yield operator, f"ceil_{stem}{'_counted' if include else ''}", draw
    counted = fixed_node(
        distinct(1, 2, 4, 4), kernel_shape=[3, 3], pads=[0, 0, 1, 1], count_include_pad=1
    )
    yield "AveragePool", "padded_after_counted", counted
    yield "MaxPool", "padded_int8", partial(_padded_pool, dtype="int8", pads=[1, 0, 0, 1])
    for operator in ("MaxPool", "AveragePool", "LpPool", "Conv", "ConvInteger"):
        for mode in ("SAME_UPPER", "SAME_LOWER"):
            for dilation in (1, 3):
                draw = partial(_automatic, mode=mode, dilation=dilation)
                yield operator, f"{mode.lower()}_{dilation}", draw
    for dtype in ("uint8", "int8"):
        convolve = partial(_integer_convolution, dtype=dtype)
        yield "ConvInteger", f"extreme_{dtype}", convolve


def _images() -> Iterator[tuple[str, str, Generator]]:
    modes = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    for transformation in (*modes, "half_pixel_symmetric"):
        attributes = {"coordinate_transformation_mode": transformation, "mode": "linear"}
        single = partial(_resized, lengths=(4, 3), targets=(1, 5), attributes=attributes)
        yield "Resize", f"single_{transformation}", single
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        for transformation in ("half_pixel", "asymmetric"):
            attributes = {
                "mode": "nearest",
                "nearest_mode": rounding,
                "coordinate_transformation_mode": transformation,
            }
            ties = partial(_resized, lengths=(8, 4), targets=(4, 8), attributes=attributes)
            yield "Resize", f"ties_{rounding}_{transformation}", ties
    yield "Resize", "fraction_half_pixel_symmetric", _halved
    for padding in ("zeros", "border", "reflection"):
        for align in (0, 1):
            for mode in ("linear", "nearest", "cubic"):
                sample = partial(_sampled, mode=mode, padding=padding, align=align)
                yield "GridSample", f"{mode}_{padding}_{'aligned' if align else 'edges'}", sample
    image = _range((1, 1, 4, 4), 1.0, 1.25)
    far = np.array([-9.375, -6.125, -3.625, 0.125, 4.375, 7.875], np.float32)
    grid = np.stack(np.meshgrid(far, far[2:]), -1)[None]
    yield "GridSample", "defaults", fixed_node(image, grid / 8)
    for align in (0, 1):
        draw = fixed_node(image, grid, padding_mode="reflection", align_corners=align)
        yield "GridSample", f"far_reflection_{'aligned' if align else 'edges'}", draw
    orders = {"sorted": (0, 1, 2, 3), "reversed": (2, 3, 0, 1), "other": (2, 1, 0, 3)}
    for stem, order in orders.items():
        yield "NonMaxSuppression", f"corners_{stem}", partial(_boxes, order=order, centered=0)
    distant_boxes = np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5], [6, 6, 7, 7]]], np.float32)
    scores = np.array([[[-0.5, 0.25, -2.0, 8.0]]], np.float32)
    for stem, threshold in (("negative", -1.0), ("zero", 0.0), ("large", 7.0)):
        limits = np.array([4]), np.array([0.5], np.float32), np.array([threshold], np.float32)
        yield "NonMaxSuppression", f"{stem}_threshold", fixed_node(distant_boxes, scores, *limits)
    centers = partial(_boxes, order=(0, 1, 2, 3), centered=1)
    yield "NonMaxSuppression", "centers", centers


def _parts() -> Iterator[tuple[str, str, Generator]]:
    for stem, target in (("inner", [2, 0, 4]), ("inferred", [-1, 0]), ("last", [2, 6, 0])):
        yield "Reshape", f"copied_{stem}", partial(_copied_dimensions, target=target)
    yield "Reshape", "columns_allowzero", fixed_node(distinct(2, 3), int64s(3, 2), allowzero=1)
    # The shape also fits the first axes of the tensor.
    for stem, shape, target in (("row", (1, 3), [3]), ("matrix", (3, 1, 3), [3, 3])):
        yield "Expand", f"fewer_axes_{stem}", fixed_node(distinct(*shape), int64s(*target))
    turns = fixed_node(distinct(2), int64s(3, 5), mode="wrap")
    yield "Pad", "several_turns", turns
    for length, count, axis in ((7, 3, 0), (5, 2, 1), (9, 4, -1)):
        parts = partial(_uneven_parts, length=length, count=count, axis=axis)
        yield "Split", f"uneven_{length}_{count}", parts
    for size, axis in ((3, 0), (2, -1)):
        chunks = partial(_uneven_sequence, size=size, axis=axis)
        yield "SplitToSequence", f"uneven_{size}", chunks
    for axis in (-1, -2, -3, 2):
        stem = f"last_{-axis}" if axis < 0 else str(axis)
        yield "ConcatFromSequence", f"new_axis_{stem}", partial(_new_axis, axis=axis)
    bounds = {
        "from_end": (-2, 99, 1),
        "beyond_start": (-99, -1, 1),
        "back_all": (99, -99, -1),
        "back_from_end": (-2, -5, -1),
        "back_by_two": (-1, -99, -2),
        "none": (3, 1, 1),
    }
    for stem, (start, end, step) in bounds.items():
        for axis in (0, -1):
            draw = partial(_sliced, start=start, end=end, step=step, axis=axis)
            yield "Slice", f"{stem}{'_last' if axis else ''}", draw
