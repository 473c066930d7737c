"""Where onnx's reference is not what the specification says, the specification counts.

The right values are computed here, from the text.
"""

import math
from itertools import product

import hypothesis
import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.core.tolerance import (
    Branch,
    ErrorBound,
    Provenance,
)
from onnxopt_cli.oracle.condition_estimate import (
    UNITS,
    NoReferenceError,
    condition,
)

ELEMENT = helper.np_dtype_to_tensor_dtype


def value_info(name, value):
    return helper.make_tensor_value_info(name, ELEMENT(value.dtype), value.shape)


def model_of(nodes, inputs, outputs, opset=22, domain=""):
    graph = helper.make_graph(
        nodes,
        "g",
        [value_info(name, it) for name, it in inputs.items()],
        [
            helper.make_tensor_value_info(name, ELEMENT(it.dtype), None)
            for name, it in outputs.items()
        ],
    )
    imports = [helper.make_opsetid(domain, opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def agrees(conditioned_output, value):
    assert not conditioned_output.reason, conditioned_output.reason
    branch = None
    for expected, limit in reversed(conditioned_output.right):
        branch = Branch(expected, limit, branch)
    error_bound = ErrorBound(branch.at, UNITS, Provenance.CONDITIONED)
    return largest_share({"": branch.expected}, [value], lambda _: error_bound) <= 1


def verify(model, inputs, right, *, reference_fails=True):
    """The right outputs are right, and what onnx's reference yields by itself is not."""
    found = condition(model, inputs)
    for conditioned_output, value in zip(found, right, strict=True):
        assert agrees(conditioned_output, value), (conditioned_output.right[0][0], value)
    if not reference_fails:
        return
    try:
        raw = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # noqa: BLE001 - it has nothing
        return
    assert not all(map(agrees, found, raw)), raw


def f32(*numbers):
    return np.array(numbers, np.float32)


def exact(function, x):
    return np.array([float(function(float(it))) for it in x.ravel()]).reshape(x.shape)


def dense(x):
    return np.linspace(-3, 3, x, dtype=np.float64)


INDICES = np.array([0, 1.6, -1], np.float32)
GRID = np.zeros((1, 1, 1, 2), np.float32)
IMAGE = np.array([[[[0, 10], [20, 30]]]])
MATRIX = np.array([[3, 5], [7, 9]], np.uint8)
SQUARE = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
FAR_SCORES = np.array([[0, 200, -800]], np.float32)
U8 = np.uint8


def u8(*numbers):
    return np.array(numbers, U8)


def lrn(x, size, alpha, beta, bias):
    found = np.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - (size - 1) // 2) : c + math.ceil((size - 1) / 2) + 1]
        found[:, c] = x[:, c] / (bias + alpha / size * (near**2).sum(axis=1)) ** beta
    return found


LRN = {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 1.5}
VOLUME = np.cos(np.arange(2 * 5 * 3 * 2 * 2)).reshape(2, 5, 3, 2, 2)
GELU = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in dense(9)]
#: Operator, version, inputs, attributes, the right outputs.
EXAMPLES = {
    "Erf of doubles": ("Erf", 22, [dense(9)], {}, [exact(mpmath.erf, dense(9))]),
    "Gelu of doubles": ("Gelu", 22, [dense(9)], {}, [np.array(GELU)]),
    "HardSwish of doubles": (
        *("HardSwish", 22, [dense(9)], {}),
        [dense(9) * np.clip(dense(9) / 6 + 0.5, 0, 1)],
    ),
    "LRN of doubles": ("LRN", 22, [VOLUME[..., 0]], LRN, [lrn(VOLUME[..., 0], **LRN)]),
    "LRN of volumes": ("LRN", 22, [VOLUME.astype("f")], LRN, [lrn(VOLUME, **LRN).astype("f")]),
    "OneHot casts indices to integers": (
        *("OneHot", 22, [INDICES, np.array(3), f32(2, 5)], {}),
        [f32([5, 2, 2], [2, 5, 2], [2, 2, 5])],
    ),
    "OneHot yields its values": (
        *("OneHot", 22, [np.array([1]), np.array(2), f32(1, 1e-8)], {}),
        [f32([1, 1e-8])],
    ),
    "OneHot of infinity": (
        *("OneHot", 22, [np.array([1]), np.array(2), f32(0, np.inf)], {}),
        [f32([0, np.inf])],
    ),
    "GridSample of integers": ("GridSample", 22, [IMAGE, GRID], {}, [np.array([[[[15]]]])]),
    "QLinearMatMul rounds, then adds": (
        "QLinearMatMul",
        21,
        [u8([5]), f32(0.5)[0], U8(0), u8([1]), f32(1)[0], U8(0), f32(1)[0], U8(1)],
        {},
        # 2.5 is rounded to 2, and 1 is added; 2.5 + 1 would be rounded to 4.
        [u8([3])],
    ),
    "QLinearMatMul with scales of rows": (
        "QLinearMatMul",
        21,
        [MATRIX, f32(1, 2), u8(1, 3), MATRIX, f32(1)[0], U8(0), f32(1)[0], U8(0)],
        {},
        [u8([34, 46], [2 * (4 * 3 + 6 * 7), 2 * (4 * 5 + 6 * 9)])],
    ),
    "MatMulInteger with zero points of rows": (
        *("MatMulInteger", 10, [MATRIX, MATRIX, u8(1, 3)], {}),
        [np.array([[34, 46], [54, 74]], np.int32)],
    ),
    "ConvInteger along a line with zero points of channels": (
        *("ConvInteger", 10, [u8([[1, 2, 3]]), u8([[2]], [[3]]), U8(1), u8(1, 2)], {}),
        [np.array([[[0, 1, 2], [0, 1, 2]]], np.int32)],
    ),
    "QLinearConv along a line with scales of channels": (
        "QLinearConv",
        10,
        [
            *(u8([[2, 4, 6]]), f32(1)[0], U8(0), u8([[1]], [[1]]), f32(0.5, 2), u8(0, 0)),
            *(f32(1)[0], U8(3)),
        ],
        {},
        [u8([[4, 5, 6], [7, 11, 15]])],
    ),
    "Mean broadcasts the first": (
        *("Mean", 22, [f32(1), f32(2, 4, 6)], {}),
        [f32(1.5, 2.5, 3.5)],
    ),
    "Shape up to beyond the front": ("Shape", 15, [SQUARE], {"end": -6}, [np.array([], "i8")]),
    "Squeeze in any order": (
        *("Squeeze", 11, [SQUARE.reshape(1, 16, 1, 1)], {"axes": [2, 0, 3]}),
        [SQUARE.reshape(16)],
    ),
    "Unsqueeze in any order": (
        *("Unsqueeze", 11, [f32(1, 2)], {"axes": [2, 0]}),
        [f32(1, 2).reshape(1, 2, 1)],
    ),
    "SoftmaxCrossEntropyLoss far off": (
        *("SoftmaxCrossEntropyLoss", 13, [FAR_SCORES, np.array([2])], {"reduction": "none"}),
        [f32(1000)],
    ),
    "ConvTranspose to a shape": (
        "ConvTranspose",
        22,
        [f32([[1, 2]]), f32([[1, 10, 100]])],
        {"strides": [2], "output_shape": [4]},
        # Of 1 10 102 20 200 the first goes: what is odd is cut off in front.
        [f32([[10, 102, 20, 200]])],
    ),
    "Resize along axes from the back": (
        "Resize",
        22,
        [f32([[1, 2]]), f32(), f32(2)],
        {"axes": [-1], "mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
        [f32([[1, 1, 2, 2]])],
    ),
    "BatchNormalization of version 7": (
        *("BatchNormalization", 7, [f32([[1], [2]]), f32(2, 3), f32(1, 1), f32(0, 1), f32(1, 4)]),
        {"epsilon": 0.0},
        [f32([[3], [2.5]])],
    ),
    "Dropout has a mask of its type": (
        *("Dropout", 7, [f32(1, 2)], {}),
        [f32(1, 2), f32(1, 1)],
    ),
    "AffineGrid of doubles": (
        "AffineGrid",
        20,
        [np.array([[[0.1, 0, 0.3], [0, 0.7, 0]]]), np.array([1, 1, 1, 1])],
        {},
        [np.array([[[[0.3, 0]]]])],
    ),
    "NonMaxSuppression selects no box by default": (
        *("NonMaxSuppression", 11, [f32([[0, 0, 1, 1]]), f32([[1]])], {}),
        [np.zeros((0, 3), np.int64)],
    ),
    "DeformConv of a line": (
        "DeformConv",
        22,
        # Half a pixel to the right of each: it lies between the pixel and zero.
        [f32([[[2], [4]]]), f32([[[3]]]), f32([[[0], [0]], [[0.5], [0.5]]])],
        {"kernel_shape": [1, 1]},
        [f32([[[3], [6]]])],
    ),
    "MaxPool keeps NaN": (
        *("MaxPool", 22, [f32([[1, np.nan, 2, 3]])], {"kernel_shape": [2], "pads": [1, 0]}),
        [f32([[1, np.nan, np.nan, 3]])],
    ),
    "AveragePool keeps NaN": (
        *("AveragePool", 22, [f32([[1, np.nan, 2, 4]])], {"kernel_shape": [2], "pads": [1, 0]}),
        [f32([[1, np.nan, np.nan, 3]])],
    ),
    "LpPool keeps NaN": (
        *("LpPool", 22, [f32([[1, np.nan, 3, 4]])], {"kernel_shape": [2], "pads": [1, 0]}),
        [f32([[1, np.nan, np.nan, 5]])],
    ),
    "AveragePool with SAME_UPPER and dilations": (
        "AveragePool",
        22,
        [f32([[1, 2, 4, 8]])],
        {"kernel_shape": [2], "dilations": [2], "auto_pad": "SAME_UPPER"},
        # A window reaches over 3 elements: one of padding on either side.
        [f32([[2, 2.5, 5, 4]])],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_specification_counts_where_the_reference_is_wrong(name):
    operator, opset, given, attributes, right = EXAMPLES[name]
    inputs = {f"x{at}": np.asarray(it) for at, it in enumerate(given)}
    # An input without elements is left out.
    used = [it if value.size else "" for it, value in inputs.items()]
    fed = {it: value for it, value in inputs.items() if value.size}
    outputs = {f"y{at}": it for at, it in enumerate(right)}
    node = helper.make_node(operator, used, list(outputs), **attributes)
    verify(model_of([node], fed, outputs, opset), fed, right)


def test_nothing_is_added_where_there_are_no_intercepts():
    x = f32([1, 2])
    y = f32([11])
    node = helper.make_node(
        "LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[3.0, 4.0]
    )
    verify(model_of([node], {"x": x}, {"y": y}, 3, "ai.onnx.ml"), {"x": x}, [y])


@st.composite
def pools(draw):
    """A pool none of whose windows lies in its padding alone."""
    rank = draw(st.integers(1, 3))
    sizes, kernel, strides, apart = (
        [draw(st.integers(*limits)) for _ in range(rank)]
        for limits in ((3, 7), (1, 3), (1, 3), (1, 2))
    )
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, apart, strict=True)]
    hypothesis.assume(all(size >= it for size, it in zip(sizes, reach, strict=True)))
    about = {"kernel_shape": kernel, "strides": strides, "dilations": apart}
    kind = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if kind == "NOTSET":
        most = [size - 1 if step == 1 else 0 for size, step in zip(kernel, apart, strict=True)]
        about["pads"] = [draw(st.integers(0, it)) for it in most * 2]
        about["ceil_mode"] = draw(st.integers(0, 1))
    else:
        about["auto_pad"] = kind
    x = np.random.default_rng(draw(st.integers(0, 99))).permutation(2 * 2 * math.prod(sizes))
    x = x.reshape(2, 2, *sizes).astype(np.float32)
    if draw(st.booleans()):
        x.reshape(-1)[draw(st.integers(0, x.size - 1))] = np.nan
    return x, about


def windows_of(x, about):
    """The text: of each output its place, and of its elements place (or None), and value."""
    rank = x.ndim - 2
    kernel, strides, apart = (about[it] for it in ("kernel_shape", "strides", "dilations"))
    pads, counts = about.get("pads", [0] * 2 * rank), []
    pads = [[pads[axis], pads[axis + rank]] for axis in range(rank)]
    for axis, size in enumerate(x.shape[2:]):
        reach = (kernel[axis] - 1) * apart[axis] + 1
        if about.get("auto_pad", "").startswith("SAME"):
            count = math.ceil(size / strides[axis])
            total = max((count - 1) * strides[axis] + reach - size, 0)
            halves = [total // 2, total - total // 2]
            pads[axis] = halves if about["auto_pad"] == "SAME_UPPER" else halves[::-1]
        else:
            whole = (size + sum(pads[axis]) - reach) / strides[axis] + 1
            count = math.ceil(whole) if about.get("ceil_mode") else math.floor(whole)
            if about.get("ceil_mode") and (count - 1) * strides[axis] >= size + pads[axis][0]:
                count -= 1
        counts.append(count)
    for image in product(*map(range, x.shape[:2])):
        for at in product(*map(range, counts)):
            elements = []
            for inside in product(*map(range, kernel)):
                place = [
                    at[axis] * strides[axis] + inside[axis] * apart[axis] - pads[axis][0]
                    for axis in range(rank)
                ]
                if all(0 <= it < size for it, size in zip(place, x.shape[2:], strict=True)):
                    elements.append(((*image, *place), x[(*image, *place)]))
                elif all(
                    it < size + pads[axis][1]
                    for axis, (it, size) in enumerate(zip(place, x.shape[2:], strict=True))
                ):
                    elements.append((None, 0.0))
            yield (*image, *at), elements


def computed(x, about, function, dtype):
    found = {place: function(elements) for place, elements in windows_of(x, about)}
    shape = np.max(list(found), axis=0) + 1
    return np.array(list(found.values()), dtype).reshape(shape)


def outputs_of(operator, x, about, count=1):
    outputs = {f"y{at}": (x, np.array(0))[at] for at in range(count)}
    node = helper.make_node(operator, ["x"], list(outputs), **about)
    return condition(model_of([node], {"x": x}, outputs), {"x": x})


@hypothesis.given(pools(), st.sampled_from([0, 1]))
def test_the_largest_and_their_places_are_those_of_the_windows(drawn, storage_order):
    x, about = drawn

    def place(elements):
        real = [(at, value) for at, value in elements if at]
        worst = [at for at, value in real if np.isnan(value)]
        at = worst[0] if worst else max(real, key=lambda it: it[1])[0]
        image, within = np.ravel_multi_index(at[:2], x.shape[:2]), x.shape[2:]
        order = "F" if storage_order else "C"
        number = np.ravel_multi_index(at[2:], within, order=order)
        return image * math.prod(within) + number

    def largest(elements):
        return np.max([value for at, value in elements if at])

    found = outputs_of("MaxPool", x, {**about, "storage_order": storage_order}, 2)
    assert agrees(found[0], computed(x, about, largest, np.float32))
    places = computed(x, about, place, np.int64)
    assert agrees(found[1], places)
    assert not agrees(found[1], places + 1)


@hypothesis.given(pools(), st.booleans())
def test_means_are_those_of_the_windows(drawn, pad):
    x, about = drawn

    def mean(elements):
        return np.mean([value for at, value in elements if at or pad])

    (found,) = outputs_of("AveragePool", x, {**about, "count_include_pad": int(pad)})
    assert agrees(found, computed(x, about, mean, np.float32))


@hypothesis.given(pools(), st.integers(1, 3))
def test_norms_are_those_of_the_windows(drawn, p):
    x, about = drawn

    def norm(elements):
        return sum(abs(float(value)) ** p for _, value in elements) ** (1 / p)

    (found,) = outputs_of("LpPool", x, {**about, "p": p})
    assert agrees(found, computed(x, about, norm, np.float32))


def test_what_is_interpolated_between_integers_may_be_rounded_to_either():
    x, grid = np.array([[[[0, 5]]]], np.int32), np.zeros((1, 1, 1, 2), np.float32)
    node = helper.make_node("GridSample", ["x", "grid"], ["y"])
    sampled = model_of([node], {"x": x, "grid": grid}, {"y": x})
    scales = f32(1, 1, 1, 0.5)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    resized = model_of([node], {"x": x, "scales": scales}, {"y": x})
    for model, inputs in ((sampled, {"x": x, "grid": grid}), (resized, {"x": x, "scales": scales})):
        (found,) = condition(model, inputs)
        right = [agrees(found, np.full((1, 1, 1, 1), it, np.int32)) for it in range(6)]
        assert right == [False, False, True, True, False, False]


def body_of(outputs):
    """A body that passes on its state, and yields twice of what it is given."""
    return helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 2]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 2]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, outputs),
        ],
    )


STATE = f32([1, 2], [3, 4])


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("condition_given", [True, False])
def test_a_loop_yields_along_a_new_axis_however_often_it_runs(trips, condition_given):
    inputs = {"m": np.array(trips), "state": STATE}
    names = ["m", "go" if condition_given else "", "state"]
    inputs |= {"go": np.array(True)} if condition_given else {}
    node = helper.make_node("Loop", names, ["last", "all"], body=body_of([2, 2]))
    model = model_of([node], inputs, {"last": STATE, "all": STATE})
    states = [STATE * 2 ** (at + 1) for at in range(trips)]
    stacked = np.stack(states) if trips else np.zeros((0, 2, 2), np.float32)
    last, everything = condition(model, inputs)
    assert agrees(last, STATE * 2.0**trips)
    assert agrees(everything, stacked.astype(np.float32))


def test_a_loop_that_never_runs_is_not_asked_for_a_shape_that_nothing_declares():
    inputs = {"m": np.array(0), "go": np.array(True), "state": STATE}
    node = helper.make_node("Loop", list(inputs), ["last", "all"], body=body_of(["n", 2]))
    model = model_of([node], inputs, {"last": STATE, "all": STATE})
    with pytest.raises(NoReferenceError, match="does not declare the shape"):
        condition(model, inputs)


@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("backward", [(0, 0), (1, 0), (0, 1)])
def test_a_scan_runs_along_any_axis_in_any_direction(length, axis, backward):
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "part"], ["next"]),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [helper.make_tensor_value_info(it, TensorProto.FLOAT, [3]) for it in ("state", "part")],
        [helper.make_tensor_value_info(it, TensorProto.FLOAT, [3]) for it in ("next", "seen")],
    )
    parts = np.arange(length * 3, dtype=np.float32).reshape(length, 3) / 4
    start = f32(1, 2, 3)
    inputs = {"state": start, "x": np.moveaxis(parts, 0, axis).copy()}
    node = helper.make_node(
        "Scan",
        list(inputs),
        ["last", "all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=[backward[0]],
        scan_output_directions=[backward[1]],
    )
    model = model_of([node], inputs, {"last": start, "all": inputs["x"]})
    order = parts[::-1] if backward[0] else parts
    sums = start + np.cumsum(order, axis=0)
    last, everything = condition(model, inputs)
    assert agrees(last, np.asarray(sums[-1] if length else start, np.float32))
    seen = np.moveaxis(sums[::-1] if backward[1] else sums, 0, axis).astype(np.float32)
    assert agrees(everything, seen)
