"""Nodes whose elements reveal a conversion to a narrower type, and loops that never run.

Operators that move or compare elements must not change them: an implementation in float32 loses
digits of int64 and float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.values import DTYPES, Array, Value
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import Generator, add_fixed, fixed_node
from onnxopt_cli.suites.operators.node_draft import NodeDraft

#: Elements that narrower types cannot represent; for float16, they are ordinary numbers.
_PRECISE: Mapping[str, Sequence[float]] = {
    "int64": (2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**24 + 1, -1, 3),
    "float64": (1 / 3, 1e-300, 1e300, -2.0 / 3, 2**24 + 1, 1 + 2**-52),
    "float16": (6.2e-5, -9e-5, 65504, 1 / 3, -0.1, 1 + 2**-10),
}
#: For operators that move the elements of a 2-by-3 matrix: the inputs after the first one, and the
#: attributes.
_MOVES: Mapping[str, tuple[Sequence[Value], Mapping[str, Any]]] = {
    "Compress": ([np.array([True, False, True])], {"axis": 1}),
    "Expand": ([np.array([2, 2, 3])], {}),
    "Flatten": ([], {"axis": 1}),
    "Gather": ([np.array([2, 0])], {"axis": 1}),
    "GatherElements": ([np.array([[2, 0], [1, 1]])], {"axis": 1}),
    "GatherND": ([np.array([[1, 2], [0, 0], [0, 1]])], {}),
    "Identity": ([], {}),
    "Pad": ([np.array([1, 0, 0, 1])], {}),
    "Reshape": ([np.array([3, 2])], {}),
    "ReverseSequence": ([np.array([2, 1, 2])], {}),
    "Slice": ([np.array([0]), np.array([3]), np.array([1])], {}),
    "Split": ([np.array([1, 2])], {"axis": 1}),
    "Tile": ([np.array([1, 2])], {}),
    "Transpose": ([], {"perm": [1, 0]}),
    "Trilu": ([], {"upper": 0}),
    "Unique": ([], {}),
    "Unsqueeze": ([np.array([1])], {}),
    "CenterCropPad": ([np.array([3, 2])], {}),
    "Relu": ([], {}),
    "Sign": ([], {}),
    "ReduceMax": ([np.array([1])], {}),
    "ReduceMin": ([np.array([1])], {}),
    "TopK": ([np.array([2])], {"axis": 1}),
    "SplitToSequence": ([np.array([1, 2])], {"axis": 1}),
}
#: Operators that return elements of two tensors.
_CHOICES = ("Where", "Max", "Min", "Concat", "ScatterElements", "ScatterND", "OneHot")
_TREE_MODES = ("leq", "lt", "gte", "gt", "eq", "neq")
# Names for the values 0 to 3 of the attribute aggregate_function.
_AGGREGATES = ("average", "sum", "min", "max")
_SUM, _MIN = 1, 2


def _precise(draft: NodeDraft, place: int, dtype: str) -> Array:
    """Return a matrix of a type.

    If the input does not allow the type, the node is discarded.
    """
    draft.require(draft.allowed(place, (dtype,)))
    return np.array(_PRECISE[dtype]).astype(DTYPES[dtype]).reshape(2, 3)


def _moved(draft: NodeDraft, *, dtype: str) -> None:
    further, attributes = _MOVES[draft.schema.name]
    add_fixed(
        draft,
        inputs=[_precise(draft, 0, dtype), *further],
        attributes=attributes,
        outputs=2 if draft.schema.name == "Split" else None,
    )


def _chosen(draft: NodeDraft, *, dtype: str) -> None:
    """Draw a node of an operator that returns elements of two tensors."""
    name = draft.schema.name
    x = _precise(draft, 1 if name == "Where" else 0, dtype)
    if name == "Where":
        draft.add(np.array([[True, False, True], [False, True, False]]))
    draft.add(x)
    if name == "ScatterElements":
        draft.add(np.array([[1], [0]]))
        draft.set("axis", 1)
        draft.add(x[::-1, :1].copy())
    elif name == "ScatterND":
        draft.add(np.array([[1]]))
        draft.add(x[:1].copy())
    elif name == "OneHot":
        draft.inputs = [np.array([1, 0]), np.array([3]), x[0, :2].copy()]
    else:
        draft.add(x[::-1].copy())
        if name == "Concat":
            draft.set("axis", 0)


def loop(draft: NodeDraft, *, trips: int | None, condition: bool | None) -> None:
    """Draw a loop that never runs, or whose trip count or condition ends it."""
    shape, boolean, floating = [2], TensorProto.BOOL, TensorProto.FLOAT
    inputs = [("iteration", TensorProto.INT64, []), ("go", boolean, []), ("x", floating, shape)]
    outputs = [("goes_on", boolean, []), ("y", floating, shape), ("scanned", floating, shape)]
    nodes = [
        helper.make_node("Cast", ["iteration"], ["number"], to=floating),
        helper.make_node("Add", ["x", "number"], ["y"]),
        helper.make_node("Identity", ["y"], ["scanned"]),
        helper.make_node("Less", ["number", "two"], ["goes_on"]),
    ]
    graph = helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*stated) for stated in inputs],
        [helper.make_tensor_value_info(*stated) for stated in outputs],
        [helper.make_tensor("two", floating, [], [2.0])],
    )
    draft.add(None if trips is None else np.array(trips, np.int64))
    draft.add(None if condition is None else np.array(condition))
    draft.add(np.array([1.5, -2.0], np.float32))
    draft.set("body", graph)
    draft.outputs = [True, True]


def _tree(draft: NodeDraft, *, mode: int, aggregate: int) -> None:
    """Draw two trees with two targets, and rows at, below and above the trees' thresholds."""
    targets = 2 if aggregate < _MIN else 1
    set_two_trees(draft, modes=(mode, mode), aggregate=aggregate, targets=targets)
    draft.add(np.array([[0.5, -0.5], [0.25, -0.75], [1.0, 1.0], [0.5, 1.0]], np.float32))


def _missing(draft: NodeDraft, *, tracks: Sequence[int]) -> None:
    """Draw trees whose attributes determine the branch of a missing value."""
    modes = (_TREE_MODES.index("leq"), _TREE_MODES.index("lt"))
    set_two_trees(draft, modes=modes, aggregate=_SUM, targets=1)
    draft.set("nodes_missing_value_tracks_true", list(tracks))
    draft.add(np.array([[np.nan, np.nan], [0.5, -0.5], [0.25, -0.75], [1.0, 1.0]], np.float32))


def set_two_trees(draft: NodeDraft, *, modes: Sequence[int], aggregate: int, targets: int) -> None:
    """Set the attributes of a TreeEnsemble of two trees with one branch each.

    Args:
        draft: the node.
        modes: the comparison at each branch, a value of nodes_modes.
        aggregate: the value of aggregate_function.
        targets: the number of targets.
    """
    draft.set("tree_roots", [0, 1])
    draft.set("nodes_featureids", [0, 1])
    draft.set("nodes_splits", tensor_of(np.array([0.5, -0.5], np.float32)))
    draft.set("nodes_modes", tensor_of(np.array(modes, np.uint8)))
    draft.set("nodes_truenodeids", [0, 2])
    draft.set("nodes_falsenodeids", [1, 3])
    draft.set("nodes_trueleafs", [1, 1])
    draft.set("nodes_falseleafs", [1, 1])
    draft.set("leaf_weights", tensor_of(np.array([1.0, 20.0, 300.0, 4000.0], np.float32)))
    draft.set("leaf_targetids", [leaf % targets for leaf in range(4)])
    draft.set("n_targets", targets)
    draft.set("aggregate_function", aggregate)
    draft.set("post_transform", 0)


def boundary_types() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    for dtype in _PRECISE:
        for operator in _MOVES:
            if (operator, dtype) != ("Sign", "float16"):
                yield operator, f"precise_{dtype}", partial(_moved, dtype=dtype)
        for operator in (*_CHOICES, "Add"):
            yield operator, f"precise_{dtype}", partial(_chosen, dtype=dtype)
    yield from _computed()
    yield from _fractions()
    yield from _parameters()
    yield from _thresholds()
    yield from _extreme_trees()
    yield from _neighbors()
    yield from _smallest()
    yield from _ranges()
    for stem, trips, condition in (
        ("no_trips", 0, None),
        ("no_trips_condition", 0, True),
        ("false_at_first", 4, False),
        ("ended_by_count", 1, True),
        ("ended_by_condition", 9, True),
    ):
        yield "Loop", stem, partial(loop, trips=trips, condition=condition)
    for tracks in ([1, 0], [0, 1]):
        yield "TreeEnsemble", f"missing_{tracks[0]}", partial(_missing, tracks=tracks)
    for mode, name in enumerate(_TREE_MODES):
        yield "TreeEnsemble", f"at_threshold_{name}", partial(_tree, mode=mode, aggregate=_SUM)
    for aggregate, name in enumerate(_AGGREGATES):
        yield "TreeEnsemble", f"two_trees_{name}", partial(_tree, mode=1, aggregate=aggregate)


def _computed() -> Iterator[tuple[str, str, Generator]]:
    """Yield computations with operands that float32 cannot represent."""
    doubles = np.array(_PRECISE["float64"])
    for operator in ("Abs", "Neg"):
        yield operator, "precise_float64", fixed_node(doubles)
    yield "LpNormalization", "precise_float64", fixed_node(np.array([[1 / 3, 0.1]]))
    for operator in ("ReduceL1", "ReduceL2"):
        yield operator, "precise_float64", fixed_node(np.array([[1 / 3], [-0.1]]), np.array([1]))
    # In float32, the limit lies below the fourth element.
    bounds = [np.array(number) for number in (50000.0005, 50000.0045, 0.00125)]
    yield "Range", "precise_float64", fixed_node(*bounds)
    wave = np.sin(np.arange(1.0, 25.0)).reshape(1, 1, 4, 6)
    # The quotients of the lengths are exact in float32.
    for mode in ("nearest", "linear", "cubic"):
        resize = fixed_node(wave, None, None, np.array([1, 1, 8, 12]), mode=mode)
        yield "Resize", f"precise_{mode}", resize
    for dtype in ("int64", "int32"):
        largest = [19, 11, 30, 17, 13] if dtype == "int32" else [39, 21, 62, 37, 27]
        integers = np.array([3, 7, 2, -3, 5], DTYPES[dtype])
        yield "Pow", f"large_{dtype}", fixed_node(integers, np.array(largest))
    bases = np.array([-2.0, -1.5, -3.0, -2.0, 2.25, 0.0, 4.0, 0.0])
    exponents = np.array([2.0, 3.0, -1.0, 0.0, 0.5, 0.0, -0.5, -1.0])
    for dtype in ("float32", "float64", "float16"):
        powers = fixed_node(bases.astype(DTYPES[dtype]), exponents.astype(DTYPES[dtype]))
        yield "Pow", f"negative_bases_{dtype}", powers
    integer_exponents = np.array([2, 3, -1, 0, 4, 0, -2, -3])
    yield "Pow", "integer_exponents", fixed_node(bases.astype(np.float32), integer_exponents)
    # The results lie just above integers, so that a rounding error of the power does not change the
    # converted integer.
    roots = np.array([10, 5, 2, 17], np.int32)
    fractions = np.array([0.5, 1.5, 2.375, 0.25], np.float32)
    yield "Pow", "fractional_exponents", fixed_node(roots, fractions)
    yield "PRelu", "large_int64", fixed_node(np.array([-(2**53) - 1, 5]), np.array([1, 1]))
    yield "Range", "large_int64", fixed_node(*(np.array(n) for n in (2**53 + 1, 2**53 + 5, 1)))
    # In the function body of the specification, the default scale is computed in float32, which is
    # too inexact for doubles.
    attention = fixed_node(wave[:, :, :3], wave, wave / 3, scale=0.25)
    yield "Attention", "precise_float64", attention
    integers = np.array(_PRECISE["int64"])[:4].reshape(1, 4, 1, 1)
    yield "DepthToSpace", "precise_int64", fixed_node(integers, blocksize=2)


def _fractions() -> Iterator[tuple[str, str, Generator]]:
    """Yield 16-bit numbers with fractions, and exponentials next to the limit of float16."""
    numbers = np.array([2.6, -2.6, 0.4, 7.8, -11.7, 3.5])
    for dtype in ("float16", "bfloat16"):
        halves = numbers.astype(DTYPES[dtype])
        scale = np.array(1, DTYPES[dtype])
        for target in ("int8", "uint8", "int16", "uint16"):
            zero = np.array(100, DTYPES[target])
            stem = f"fractions_{dtype}_{target}"
            yield "QuantizeLinear", stem, fixed_node(halves, scale, zero)
    # In float16, the product of each element and log2(e) is rounded by almost half a unit.
    arguments = np.array([9.6953125, -8.6953125, 10.1], np.float16)
    for operator in ("Exp", "Sinh", "Cosh"):
        yield operator, "large_float16", fixed_node(arguments)


def _parameters() -> Iterator[tuple[str, str, Generator]]:
    """Yield parameters that narrower types cannot represent, and an image with such elements."""
    thirds = np.array([[1 / 3, 0.1], [-0.7, 2 / 7]])
    yield "MatMul", "precise_float64", fixed_node(thirds, thirds.T.copy())
    # In float32, the operands are equal.
    near = np.array([1.0, 1.0, -1.0])
    neighbors = near + 2.0**-40 * np.array([1, -1, 0])
    for operator in ("Equal", "GreaterOrEqual"):
        yield operator, "neighbors_second", fixed_node(near, neighbors)
    border = np.array([1, 0, 0, 1])
    yield "Pad", "precise_constant_float64", fixed_node(thirds, border, np.array(1 / 3))
    integers = np.array([[2**40 + 1, 2], [-3, 2**53 + 1]])
    yield "Pad", "precise_constant_int64", fixed_node(integers, border, np.array(2**53 + 1))
    constants: Mapping[str, float]
    constants = {"bool": 1, "uint8": 200, "int32": -(2**24) - 1, "float16": 1.5}
    for dtype, constant in constants.items():
        kind = DTYPES[dtype]
        padded = fixed_node(np.zeros((2, 2), kind), border, np.array(constant, kind))
        yield "Pad", f"constant_{dtype}", padded
    texts = np.array([["a", "b"]], object)
    yield "Pad", "constant_text", fixed_node(texts, border, np.array("x", object))
    bases, exponents = np.array([2**40 + 1, -3_000_000_000]), np.array([1, 2])
    beyond = np.array([2**40, -(2**40), 7, 2**33 + 1], np.int64)
    yield "Clip", "minimum_alone_int64", fixed_node(beyond, np.array(-3))
    yield "Clip", "maximum_alone_int64", fixed_node(beyond, None, np.array(2**35))
    unsigned = beyond.astype(np.uint64)
    yield "Clip", "minimum_alone_uint64", fixed_node(unsigned, np.array(9, np.uint64))
    for dtype, bits in (("float16", "int16"), ("float32", "int32"), ("float64", "int64")):
        to = helper.np_dtype_to_tensor_dtype(DTYPES[bits])
        zeros = np.array([-0.0, 0.0, 6e-8, -1.5], DTYPES[dtype])
        yield "BitCast", f"zeros_{dtype}", fixed_node(zeros, to=to)
    yield "Pow", "bases_beyond_32_bits", fixed_node(bases, exponents)
    slopes = np.array([2**40 + 1, 2**53 + 1])
    yield "PRelu", "large_slope_int64", fixed_node(np.array([-3, -1]), slopes)
    # An interpolation in double is exact for these elements.
    image = np.array([[[[2**40 + 1, 2], [-3, -(2**32) - 5]]]])
    corners = np.array([[[[1, 1], [-1, -1]]]], np.float32)
    sample = fixed_node(image, corners, mode="nearest", align_corners=1)
    yield "GridSample", "precise_int64", sample
    twice = np.array([1, 1, 2, 2], np.float32)
    yield "Resize", "precise_int64", fixed_node(image, None, twice, mode="nearest")
    region, batch = np.array([[0.1, 0.2, 1.7, 0.9]]), np.array([0])
    wave = np.sin(np.arange(1.0, 13.0)).reshape(1, 1, 3, 4)
    sizes = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    yield "RoiAlign", "precise_float64", fixed_node(wave, region, batch, **sizes)
    rows, scale = wave.reshape(1, 4, 3), np.array([1 / 3, 0.7, -0.1, 1.1])
    stash = {"num_groups": 2, "stash_type": TensorProto.DOUBLE}
    grouped = fixed_node(rows, scale, scale / 7, **stash)
    yield "GroupNormalization", "precise_float64", grouped


def _thresholds() -> Iterator[tuple[str, str, Generator]]:
    """Yield trees with inputs that differ from the thresholds in double, but not in float32."""
    trees: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0] * 6,
        "class_nodeids": [1, 1, 1, 2, 2, 2],
        "class_ids": [0, 1, 2, 0, 1, 2],
        "class_weights": [1.0, 5.0, 3.0, 2.0, 0.5, 4.0],
        "classlabels_int64s": [4, 7, 9],
    }
    rows: Mapping[str, Sequence[float]] = {
        "float64": (0.5 + 2**-40, 0.5, 0.5 - 2**-40),
        "int64": (0, 1, 2**32, -(2**32) + 1),
        "int32": (0, 1, 256, -255),
    }
    for dtype, values in rows.items():
        x = np.array(values, DTYPES[dtype])[:, None]
        yield "TreeEnsembleClassifier", f"threshold_{dtype}", fixed_node(x, outputs=2, **trees)


def _extreme_trees() -> Iterator[tuple[str, str, Generator]]:
    """Yield ensembles of two trees that return the smaller or the larger result of the trees."""
    trees: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2] * 2,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0, -0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0] * 2,
        "nodes_falsenodeids": [2, 0, 0] * 2,
        "target_treeids": [0, 0, 1, 1],
        "target_nodeids": [1, 2, 1, 2],
        "target_ids": [0] * 4,
        "target_weights": [1.0, -2.0, 0.5, 3.0],
        "base_values": [0.75],
        "n_targets": 1,
    }
    x = np.array([[0, 0], [0, -1], [1, 0], [1, -1]], np.float32)
    for name in ("MIN", "MAX"):
        tree = fixed_node(x, aggregate_function=name, **trees)
        yield "TreeEnsembleRegressor", f"two_trees_{name.lower()}", tree


def _neighbors() -> Iterator[tuple[str, str, Generator]]:
    """Yield comparisons of numbers that are equal in narrower types."""
    steps = {"float64": 2.0**-40, "float32": 2.0**-20}
    for dtype, step in steps.items():
        near = np.array([[1.0, 1.0 + step, 1.0 - step], [-1.0, -1.0 - step, -1.0 + step]])
        x = near.astype(DTYPES[dtype])
        for operator in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
            yield operator, f"neighbors_{dtype}", fixed_node(x, x[:, :1].copy())
        for operator in ("ArgMax", "ArgMin"):
            yield operator, f"neighbors_{dtype}", fixed_node(x, axis=1)
        if dtype == "float64":
            yield "Hardmax", f"neighbors_{dtype}", fixed_node(x, axis=1)
            yield "TopK", f"neighbors_{dtype}", fixed_node(x, np.array([2]), axis=1)
            pooled = fixed_node(x[:, None], kernel_shape=[2], outputs=2)
            yield "MaxPool", f"neighbors_{dtype}", pooled
            # Each element is updated with the next element of its row. In float32, the element and
            # the update are equal.
            updates = np.roll(x, -1, axis=1)
            rows, columns = np.array([[0], [1]]), np.array([[0, 1, 2]] * 2)
            for reduction in ("max", "min"):
                scattered = fixed_node(x, rows, updates, reduction=reduction)
                yield "ScatterND", f"neighbors_{dtype}_{reduction}", scattered
                scattered = fixed_node(x, columns, updates, axis=1, reduction=reduction)
                yield "ScatterElements", f"neighbors_{dtype}_{reduction}", scattered
    small, large = np.array([[3, -1], [2, 5]]), np.array([[2**53 + 1, 2], [3, 2**24 + 1]])
    yield "MatMul", "large_second", fixed_node(small, large)
    yield "Gemm", "large_second", fixed_node(small, large, np.array([2**53 + 1, -(2**24) - 1]))


def _smallest() -> Iterator[tuple[str, str, Generator]]:
    """Yield searches for a type's limits among numbers that float32 rounds to these limits."""
    for dtype in ("int8", "int64", "uint8", "uint64"):
        info = np.iinfo(DTYPES[dtype])
        rows = [[5, info.min + 1, info.min, 0], [info.max - 1, info.max, 1, 2]]
        x = np.array(rows, DTYPES[dtype])
        for largest, stem in enumerate(("smallest", "largest")):
            top = fixed_node(x, np.array([2]), largest=largest, axis=1)
            yield "TopK", f"{stem}_{dtype}", top
        for operator in ("ArgMin", "ArgMax"):
            yield operator, f"limits_{dtype}", fixed_node(x, axis=1)


def _ranges() -> Iterator[tuple[str, str, Generator]]:
    """Yield conversions near the limits of integer types, and NonMaxSuppression without output."""
    ends = {
        "uint8": (200.75, 255.0, 128.5, 0.25),
        "int8": (-128.0, 127.75, -100.5, 0.0),
        "uint16": (65535.0, 40000.5, 1.0, 0.0),
        "int16": (-32768.0, 32767.0, 1.5, -1.5),
        "uint32": (4294967040.0, 3e9, 1.0, 0.5),
        "int64": (2.0**62, -(2.0**62), 1.5, -0.5),
        "uint64": (2.0**63, 2.0**62, 1.5, 0.5),
    }
    for name, values in ends.items():
        dtype, x = DTYPES[name], np.array(values, np.float32)
        cast = fixed_node(x, to=helper.np_dtype_to_tensor_dtype(dtype))
        yield "Cast", f"range_{name}", cast
        yield "CastLike", f"range_{name}", fixed_node(x, np.zeros(1, dtype))
    for name in ("int8", "int16", "uint16"):
        x = np.array([1.5, -300.0, 300.0, -7.25, 1e6], np.float32)
        element_type = helper.np_dtype_to_tensor_dtype(DTYPES[name])
        quantize = fixed_node(x, np.float32(0.5), output_dtype=element_type)
        yield "QuantizeLinear", f"output_{name}", quantize
    boxes = np.array([[[0.0, 0.0, 1.0, 1.0], [2.0, 2.0, 3.0, 3.0]]], np.float32)
    scores = np.array([[[0.9, 0.8]]], np.float32)
    yield "NonMaxSuppression", "no_limit", fixed_node(boxes, scores)
    yield "NonMaxSuppression", "limit_of_zero", fixed_node(boxes, scores, np.array([0]))
