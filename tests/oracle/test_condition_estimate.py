"""Condition estimates: correct outputs pass, and wrong outputs that are similar fail."""

from itertools import permutations

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_negative_log_likelihood_loss

from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.core.tolerance import (
    Branch,
    ErrorBound,
    Provenance,
)
from onnxopt_cli.oracle.corrections.corrected_reference import fast_loss
from onnxopt_cli.oracle.distributions import drawn
from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError
from onnxopt_cli.oracle.patching import replaced, replacements
from onnxopt_cli.oracle.rounding.injection import UNITS
from onnxopt_cli.oracle.rounding.node_kinds import _LISTED


def model_of(nodes, inputs, outputs=1, opset=22, types=()):
    """Return a model of nodes, which are given as (operator, inputs, attributes).

    Node i, except the last one, has the output ``t<i>``. The last node has the model's outputs.
    """
    names = [f"y{place}" for place in range(outputs)]
    protos = []
    for place, (name, operands, attributes) in enumerate(nodes):
        last = place == len(nodes) - 1
        results = names if last else [f"t{place}"]
        protos.append(helper.make_node(name, operands, results, **attributes))
    graph = helper.make_graph(
        protos,
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype), np.shape(value)
            )
            for name, value in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, types[at] if types else TensorProto.FLOAT, None)
            for at, name in enumerate(names)
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def passes_estimate(model, inputs, value, at=0):
    conditioned_output = condition(model, inputs)[at]
    assert not conditioned_output.reason, conditioned_output.reason
    branch = None
    for expected, limit in reversed(conditioned_output.right):
        branch = Branch(expected, limit, branch)
    error_bound = ErrorBound(branch.at, UNITS, Provenance.CONDITIONED)
    value = np.asarray(value, branch.expected.dtype)
    (diff,) = compare_outputs({"y": branch.expected}, [value], lambda _: error_bound)
    return diff.agrees


def node_passes(name, inputs, value, **attributes):
    inputs = {key: np.asarray(operand) for key, operand in inputs.items()}
    return passes_estimate(model_of([(name, list(inputs), attributes)], inputs), inputs, value)


def f32(*numbers):
    return np.array(numbers, np.float32)


PROBIT = {"post_transform": "PROBIT"}
WRONG_OUTPUTS = {
    "Erf loses small operands": ("Erf", [f32(1e-8, 0.5)], [0, 0.5204999]),
    "Log of almost 1 is 0": ("Log", [f32(1 + 2**-20)], [0]),
    "a difference vanishes": ("Sub", [f32(1.0000001), f32(1)], [0]),
    "Mish loses small results": ("Mish", [f32(-20.0, 1)], [0, 0.8650984]),
    "a sine is reduced naively": ("Sin", [f32(1e5)], [np.sin(np.float32(1e5) % 6.2831855)]),
    "half is rounded away from zero": ("Round", [f32(2.5, -0.5)], [3, -1]),
    "a whole number is rounded down": ("Floor", [f32(2)], [1]),
    "neighbours are exchanged": ("Transpose", [f32(1, 1.0000001)], [1.0000001, 1]),
    "a sum of the small overflows": ("ReduceLogSumExp", [f32(1, 2)], [np.inf]),
    "a sum overflows in the published body": ("ReduceLogSumExp", [f32(800, 800)], [np.inf]),
    "a sum vanishes in the published body": ("ReduceLogSumExp", [f32(-800, -800)], [-np.inf]),
    "Softplus overflows in its body": ("Softplus", [f32(1, 100)], [1.3132616, np.inf]),
    "Softplus overflows in double, too": ("Softplus", [f32(1, 1000)], [1.3132616, np.inf]),
    "Softplus of 16 bits overflows": ("Softplus", [np.float16([20])], np.float16([np.inf])),
    "neighbours are gathered the other way round": (
        "Gather",
        [f32(1, 1.0000001, 3), np.array([0, 1, 2])],
        [1.0000001, 1, 3],
    ),
    "a half is rounded away from an even neighbour": ("Round", [f32(0.5, 1.5)], [1, 2]),
    "a root of the small is flushed": ("Sqrt", [f32(1e-12)], [0]),
    "a power is off by 1e-6": ("Pow", [f32(1.5), f32(20)], [3325.2567 * (1 + 1e-6)]),
    "a maximum is off by an ulp": ("Max", [f32(1, 2), f32(2, 1)], [2, 2.0000002]),
    "a product is off by 1e-5": ("MatMul", [np.eye(2, dtype="f") + 1, f32(3, 1)], [7, 5.00005]),
}


@pytest.mark.parametrize("name", WRONG_OUTPUTS)
def test_wrong_output_fails(name):
    operator, operands, output = WRONG_OUTPUTS[name]
    inputs = {f"x{place}": operand for place, operand in enumerate(operands)}
    extra = {"keepdims": 0} if operator.startswith("Reduce") else {}
    value = np.reshape(output, -1) if not extra else output[0]
    assert not node_passes(operator, inputs, value, **extra)
    with_reference = ReferenceEvaluator(model_of([(operator, list(inputs), extra)], inputs))
    assert node_passes(operator, inputs, with_reference.run(None, inputs)[0], **extra)


CORRECT_OUTPUTS = {
    "Erf": ("Erf", [f32(1e-8, 0.5)], [1.1283792e-08, 0.5204999]),
    "a subnormal is flushed": ("Exp", [f32(-95)], [0]),
    "Gelu by the published body": (
        "Gelu",
        [f32(-3.3)],
        np.float32(0.5) * f32(-3.3) * (1 + np.float32(-0.99903315)),
    ),
    "Softplus by the published body": ("Softplus", [f32(-18)], [0]),
    "a sum of large exponentials": ("ReduceLogSumExp", [f32(800, 800)], 800.693147),
    "Softplus of infinity and NaN": ("Softplus", [f32(np.inf, np.nan, 100)], [np.inf, np.nan, 100]),
    "Softplus of large operands": ("Softplus", [f32(20, 100, 1000, 3e38)], [20, 100, 1000, 3e38]),
}


def test_functions_called_by_a_published_body_may_cancel():
    x = f32(-2.9941268)
    sixth = x * np.float32(1 / 6) + np.float32(0.5)
    assert node_passes("HardSwish", {"x": x}, x * sixth)
    assert not node_passes("HardSwish", {"x": x}, x * sixth * 1.01)
    # The probability of the label is very close to 1, so its logarithm is smaller than a rounding
    # error of the score 30.
    inputs = {"x": f32(0, 30, 5).reshape(1, 3), "label": np.array([1])}
    assert node_passes("SoftmaxCrossEntropyLoss", inputs, 0.0)
    assert not node_passes("SoftmaxCrossEntropyLoss", inputs, 1e-4)
    # The published body of Softplus returns 0, which would lose all digits of the result.
    assert not node_passes("Mish", {"x": f32(-20)}, [0])


# Each entry has a correct output that a simpler rule would reject, and a similar wrong output.
SIMILAR_OUTPUTS = {
    "equal elements minus their mean": (
        ("GroupNormalization", {"num_groups": 1}),
        {"x": np.full((1, 2, 4), 7.7, "f"), "s": f32(1, 1), "b": f32(0, 0)},
        (np.full((1, 2, 4), 2e-4), np.full((1, 2, 4), 0.1)),
    ),
    "a product that is large at generic points": (
        ("ReduceProd", {"keepdims": 0}),
        {"x": np.linspace(0.9, 1.1, 500, dtype="f")},
        (0.432053376 * (1 + 3e-7), 0.432053376 * (1 + 1e-5)),
    ),
    "a small logarithm of a sum": (
        ("ReduceLogSumExp", {"keepdims": 0}),
        {"x": f32(0, -20)},
        (0, 1e-5),
    ),
    "squares that underflow": (
        ("ReduceL2", {"keepdims": 0}),
        {"x": f32(3e-30, 4e-30)},
        (0, 4e-30),
    ),
    "subnormal squares": (
        ("ReduceL2", {"keepdims": 0}),
        {"x": f32(1e-21, 2e-21, 3e-21)},
        (3.741707e-21, 3.79e-21),
    ),
    "a variance that overflows": (
        ("LayerNormalization", {}),
        {"x": f32(1e20, 1, 2, 3).reshape(1, 4), "s": np.ones(4, "f"), "b": np.full(4, 0.5, "f")},
        (np.full((1, 4), 0.5), np.full((1, 4), 0.51)),
    ),
    "a stated stash type": (
        ("LayerNormalization", {"stash_type": 1}),
        {"x": f32(1, 2, 3, 4).reshape(1, 4), "s": np.ones(4, "f")},
        (
            [[-1.3416355, -0.44721183, 0.44721183, 1.3416355]],
            [[-1.3417355, -0.44724183, 0.44724183, 1.3417355]],
        ),
    ),
    "a quotient beyond what int32 holds": (
        ("QuantizeLinear", {}),
        {"x": f32(3e9, -3e9, np.inf), "scale": f32(1).reshape(()), "zero": np.int8(0)},
        ([127, -128, 127], [-128, -128, -128]),
    ),
    "a subnormal operand": (("Div", {}), {"x": f32(1e-38), "y": f32(0.5)}, ([0], [1e-37])),
    "the floor of a subnormal operand": (("Floor", {}), {"x": f32(-1e-40)}, ([0], [-2])),
    "a sequential sum": (
        ("GlobalAveragePool", {}),
        {"x": np.full((1, 1, 300, 300), 0.1, "f")},
        (np.full((1, 1, 1, 1), 0.10002737), np.full((1, 1, 1, 1), 0.0995)),
    ),
    "neighbours of channels, not of batches": (
        ("LRN", {"size": 3, "alpha": 3.0, "beta": 1.0}),
        {"x": np.arange(1, 7, dtype="f").reshape(2, 3, 1, 1)},
        (
            np.reshape([1 / 6, 2 / 15, 3 / 14, 4 / 42, 5 / 78, 6 / 62], (2, 3, 1, 1)),
            np.reshape([1 / 6, 2 / 15, 3, 4 / 42, 5 / 78, 6], (2, 3, 1, 1)),
        ),
    ),
    "a norm of magnitudes": (
        ("LpNormalization", {"p": 1}),
        {"x": f32(-1, 3)},
        ([-0.25, 0.75], [-0.5, 1.5]),
    ),
    "groups of two channels each, with biases of their own": (
        ("ConvTranspose", {"group": 2}),
        {"x": f32(1, 10).reshape(1, 2, 1), "w": f32(1, 2, 3, 4).reshape(2, 2, 1)}
        | {"b": f32(0.1, 0.2, 0.3, 0.4)},
        (
            np.reshape([1.1, 2.2, 30.3, 40.4], (1, 4, 1)),
            np.reshape([1.1, 2.2, 30.1, 40.2], (1, 4, 1)),
        ),
    ),
    "integers times a scale, in a version before 19": (
        ("DequantizeLinear", {"opset": 13}),
        {
            "x": np.array([[3, 5]], np.int8),
            "scale": f32(0.1, 0.3),
            "zero": np.array([1, 2], np.int8),
        },
        ([[0.2, 0.9]], [[0.2, 0.90001]]),
    ),
    "the mode bilinear of version 16": (
        ("GridSample", {"opset": 16, "mode": "bilinear", "align_corners": 1}),
        {"x": f32(1, 2, 3, 4).reshape(1, 1, 2, 2), "grid": f32(0, 0.5).reshape(1, 1, 1, 2)},
        (np.reshape(3, (1, 1, 1, 1)), np.reshape(3.001, (1, 1, 1, 1))),
    ),
    # In a reverse sum, the first element of a row contributes only to its own sum.
    "reverse sums": (
        ("CumSum", {"reverse": 1}),
        {"x": np.resize(f32(3.0001, -3.3, 0.1, 0.2), (6, 4)), "axis": np.array(1)},
        (
            np.cumsum(np.resize(f32(0.2, 0.1, -3.3, 3.0001), (6, 4)), 1)[:, ::-1],
            np.resize([0.0002, -3, 0.3, 0.2], (6, 4)),
        ),
    ),
    "a product of sparse operands": (
        ("MatMul", {}),
        {
            "x": f32(1.1, 0, 0, 0, 0, 1.3, 0, 0, 0, 0).reshape(1, 10),
            "w": f32(1.3, 0, 0, 0, 0, -1.09999, 0, 0, 0, 0).reshape(10, 1),
        },
        ([f32(1.1) * f32(1.3) - f32(1.3) * f32(1.09999)], [[1.6e-5]]),
    ),
    "a gathered element beyond the 32nd, with fewer indices than rows": (
        ("GatherElements", {"axis": 1}),
        {"x": np.arange(200, dtype="f").reshape(2, 100), "i": np.array([[99, -100, 5]])},
        ([[99, 0, 5]], [[99, 99, 5]]),
    ),
    "negative padding": (
        ("Pad", {"mode": "edge"}),
        {"x": f32(1, 2, 3), "p": np.array([-1, 2])},
        ([2, 3, 3, 3], [1, 2, 3, 3]),
    ),
    "a global maximum in three dimensions": (
        ("GlobalMaxPool", {}),
        {"x": np.arange(16, dtype="f").reshape(1, 2, 2, 2, 2)},
        (np.reshape([7, 15], (1, 2, 1, 1, 1)), np.reshape([6, 15], (1, 2, 1, 1, 1))),
    ),
    "a global norm": (
        ("GlobalLpPool", {}),
        {"x": f32(3, -4).reshape(1, 1, 2)},
        (np.reshape(5, (1, 1, 1)), np.reshape(5.0001, (1, 1, 1))),
    ),
    # Output i interpolates the input at i / 2, and repeats the last pixel beyond the end.
    "Upsample with scales as an attribute": (
        ("Upsample", {"opset": 7, "mode": "linear", "scales": [1.0, 1.0, 1.0, 2.0]}),
        {"x": f32(1, 2, 4).reshape(1, 1, 1, 3)},
        ([[[[1, 1.5, 2, 3, 4, 4]]]], [[[[1, 1.25, 1.75, 2.5, 3.5, 4]]]]),
    ),
    "Upsample with scales as an input": (
        ("Upsample", {"opset": 9, "mode": "linear"}),
        {"x": f32(1, 2, 4).reshape(1, 1, 1, 3), "s": f32(1, 1, 1, 2)},
        ([[[[1, 1.5, 2, 3, 4, 4]]]], [[[[1, 1.50002, 2, 3, 4, 4]]]]),
    ),
    "Resize of version 10": (
        ("Resize", {"opset": 10, "mode": "linear"}),
        {"x": f32(1, 2, 4).reshape(1, 1, 1, 3), "s": f32(1, 1, 1, 0.5)},
        ([[[[1]]]], [[[[1.00002]]]]),
    ),
    "nearest pixels of Resize of version 10": (
        ("Resize", {"opset": 10, "mode": "nearest"}),
        {"x": f32(1, 2).reshape(1, 1, 1, 2), "s": f32(1, 1, 1, 2)},
        ([[[[1, 1, 2, 2]]]], [[[[1, 2, 2, 2]]]]),
    ),
    "an activation that the reference lacks": (
        ("RNN", {"hidden_size": 1, "activations": ["Softsign"]}),
        {"x": f32(1).reshape(1, 1, 1), "w": f32(3).reshape(1, 1, 1)}
        | {"r": f32(1).reshape(1, 1, 1)},
        (np.reshape(0.75, (1, 1, 1, 1)), np.reshape(0.7501, (1, 1, 1, 1))),
    ),
    "the logarithm of a small softmax": (
        ("LogSoftmax", {}),
        {"x": f32(-1000, 0)},
        ([-1000, 0], [-np.inf, 0]),
    ),
    "softmax over flattened axes": (
        ("Softmax", {"opset": 11}),
        {"x": np.zeros((1, 2, 2), "f")},
        (np.full((1, 2, 2), 0.25), np.full((1, 2, 2), 0.5)),
    ),
    "the logarithm of a sum of zeros": (
        ("ReduceLogSumExp", {"keepdims": 0}),
        {"x": f32(-np.inf, -np.inf)},
        (-np.inf, np.nan),
    ),
    "normalization by given statistics": (
        ("BatchNormalization", {"opset": 9}),
        {"x": f32(1, 2, 3, 4).reshape(2, 2), "s": f32(1, 1), "b": f32(0, 0)}
        | {"mean": f32(0, 0), "var": f32(1, 1)},
        (f32(1, 2, 3, 4).reshape(2, 2) * (1 - 5e-6), np.zeros((2, 2))),
    ),
}


@pytest.mark.parametrize("name", SIMILAR_OUTPUTS)
def test_correct_output_passes_and_similar_wrong_output_fails(name):
    (operator, attributes), inputs, (right, wrong) = SIMILAR_OUTPUTS[name]
    attributes, opset = dict(attributes), attributes.get("opset", 22)
    attributes.pop("opset", None)
    model = model_of([(operator, list(inputs), attributes)], inputs, opset=opset)
    assert passes_estimate(model, inputs, right)
    assert not passes_estimate(model, inputs, wrong)


# Graphs of several nodes: the nodes, the inputs, and pairs of an output and whether it passes.
GRAPHS = {
    # Near zero, the error of exp(x) - 1 is the error of exp(x), which is a rounding of almost 1.
    "a small exponential minus one": (
        [("Elu", ["x"], {}), ("Neg", ["t0"], {})],
        {"x": f32(-(2**-15))},
        [([2**-15 - 2**-24], True), ([2**-15 - 2**-19], False)],
    ),
    "the logarithm of one plus a small exponential": (
        [("Softplus", ["x"], {}), ("Neg", ["t0"], {})],
        {"x": f32(-16)},
        [([-1.1920929e-07], True), ([-1.1253517e-07], True), ([-2.0e-06], False)],
    ),
    "a logarithm that overflows in the published body alone": (
        [("Softplus", ["x"], {}), ("Reciprocal", ["t0"], {})],
        {"x": f32(100, 1000, np.inf)},
        [([0.01, 0.001, 0], True), ([0, 0.001, 0], False), ([0.01, 0, 0], False)],
    ),
    "the same overflow in 16 bits": (
        [("Softplus", ["x"], {}), ("Reciprocal", ["t0"], {})],
        {"x": np.float16([20])},
        [([0.05], True), ([0], False)],
    ),
    "the same logarithm inside Mish": (
        [("Softplus", ["x"], {}), ("Tanh", ["t0"], {}), ("Mul", ["x", "t1"], {})],
        {"x": f32(-16)},
        [([-16 * 1.1920929e-07], False), ([-16 * 1.1253517e-07], True)],
    ),
    "the logarithm of a softmax near 1": (
        [("Neg", ["x"], {}), ("LogSoftmax", ["t0"], {})],
        {"x": f32(0, 11.7)},
        [
            ([-8.2938e-6 + 5e-8, -11.700008], True),
            ([-8.2938e-6 + 4e-6, -11.700008], False),
        ],
    ),
    "the logarithm of a subnormal number": (
        [("Exp", ["x"], {}), ("Log", ["t0"], {})],
        {"x": f32(-100, -3)},
        [([-99.98309, -3], True), ([-np.inf, -3], True), ([-95, -3], False), ([-100, -4], False)],
    ),
    "a subtracted norm that overflows": (
        [("ReduceL2", ["x"], {}), ("Sub", ["x", "t0"], {})],
        {"x": f32(3e38, 1)},
        [([0, -3e38], True), ([-np.inf, -np.inf], True), ([1e34, -3e38], False)],
    ),
    "a 16-bit square that overflows": (
        [("Mul", ["x", "x"], {}), ("Sqrt", ["t0"], {}), ("Div", ["w", "t1"], {})],
        {"x": np.float16([300]), "w": np.float16([150])},
        [([0.5], True), ([0], True), ([0.51], False)],
    ),
    "a few 16-bit roundings": (
        [("Neg", ["x"], {}), ("Mul", ["t0", "w"], {})],
        {"x": np.float16([1.5, -3]), "w": np.float16([0.7, 0.3])},
        [
            ([-1.0498, 0.9004], True),
            ([-1.0498 * 1.002, 0.9004], True),
            ([-1.0498 * 1.006, 0.9004], False),
        ],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_of_graphs_pass_only_within_roundings(name):
    nodes, inputs, outputs = GRAPHS[name]
    kind = helper.np_dtype_to_tensor_dtype(next(iter(inputs.values())).dtype)
    model = model_of(nodes, inputs, types=[kind])
    passes = [passes_estimate(model, inputs, value) for value, _ in outputs]
    assert passes == [expected for _, expected in outputs]


def test_same_upper_and_same_lower_have_equal_numbers_of_windows():
    x = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)
    attributes = {"kernel_shape": [2], "strides": [2]}
    assert node_passes("MaxPool", {"x": x}, [[[1, 3, 5]]], auto_pad="SAME_LOWER", **attributes)
    assert node_passes("MaxPool", {"x": x}, [[[2, 4, 5]]], auto_pad="SAME_UPPER", **attributes)
    # The formula of the specification yields two windows, and onnx's shape inference yields three.
    with pytest.raises(NoReferenceError, match="has fewer windows than onnx's shape inference"):
        node_passes("MaxPool", {"x": x}, [[[2, 4]]], auto_pad="VALID", ceil_mode=1, **attributes)


def test_roi_align_shifts_by_half_a_pixel_from_version_16_on():
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    inputs = {"x": x, "rois": f32(1, 0, 3, 1).reshape(1, 4), "batch": np.array([0])}
    attributes = {"output_height": 1, "output_width": 1, "sampling_ratio": 1}
    for opset, middle in ((10, 2), (16, 1.5)):
        model = model_of([("RoiAlign", list(inputs), attributes)], inputs, opset=opset)
        assert passes_estimate(model, inputs, [[[[middle]]]])
        assert not passes_estimate(model, inputs, [[[[3.5 - middle]]]])


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e8m0fnu, np.float64])
def test_cast_to_subnormal_number_may_be_flushed(dtype):
    x = np.array([2.0**-127, 2.0**-126, 4]).astype(dtype)
    model = model_of([("Cast", ["x"], {"to": TensorProto.FLOAT})], {"x": x}, opset=24)
    for first, second, passes in (
        (2.0**-127, 2.0**-126, True),
        (0, 2.0**-126, True),
        (2.0**-127, 0, False),
        (2.0**-126, 2.0**-126, False),
    ):
        assert passes_estimate(model, {"x": x}, [first, second, 4]) == passes


def test_classifier_that_the_reference_computes_incorrectly_is_not_estimated():
    """For three classes, onnx's reference differs from libsvm; it also approximates PROBIT."""
    x = np.array([[0.3]], np.float32)
    linear = {"coefficients": [1.0, -1.0, 0.5], "intercepts": [0.1, 0.2, 0.3]}
    machine = {"classlabels_ints": [0, 1, 2], "vectors_per_class": [1, 1, 1]}
    machine |= {"support_vectors": [0.1, 0.5, 0.9], "coefficients": [1.0] * 6, "rho": [0.1] * 3}
    for name, attributes, supported in (
        ("SVMClassifier", {**machine, "kernel_params": [1.0, 0, 0]}, True),
        ("SVMClassifier", {**machine, "prob_a": [-1.0] * 3, "prob_b": [0.0] * 3}, False),
        ("LinearClassifier", {**linear, "classlabels_ints": [0, 1, 2]}, True),
        ("LinearClassifier", {**linear, "classlabels_ints": [0, 1, 2]} | PROBIT, False),
    ):
        node = (name, ["x"], {**attributes, "domain": "ai.onnx.ml"})
        model = model_of([node], {"x": x}, 2, types=[TensorProto.INT64, 1])
        model.opset_import.add(domain="ai.onnx.ml", version=1)
        if supported:
            assert not any(output.reason for output in condition(model, {"x": x}))
        else:
            with pytest.raises(NoReferenceError, match=r"combines|erf"):
                condition(model, {"x": x})


def test_linear_regression_of_one_feature_rounds_the_product():
    x, coefficient, intercept = f32([1.2345679]), np.float32(0.7654321), np.float32(-0.9447)
    attributes = {"coefficients": [float(coefficient)], "intercepts": [float(intercept)]}
    model = model_of([("LinearRegressor", ["x"], attributes | {"domain": "ai.onnx.ml"})], {"x": x})
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    y = x * coefficient + intercept
    assert passes_estimate(model, {"x": x}, y)
    assert not passes_estimate(model, {"x": x}, y + np.float32(1e-5))


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize(("operator", "output"), [("Classifier", 1), ("Regressor", 0)])
def test_weights_of_trees_and_base_value_cancel_in_any_order(operator, output, dtype):
    terms = f32(3.1234567, 2.7654321, -1.3111111, -4.577776)
    x = np.array([[2]], dtype)
    kind = "class" if output else "target"
    per_tree = {
        "nodes_treeids": [0, 1, 2],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_values": [2.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
    }
    attributes = {name: values * 3 for name, values in per_tree.items()}
    attributes["nodes_treeids"] = np.repeat([0, 1, 2], 3).tolist()
    attributes |= {
        f"{kind}_treeids": np.repeat([0, 1, 2], 2).tolist(),
        f"{kind}_nodeids": [1, 2] * 3,
        f"{kind}_ids": [0] * 6,
        f"{kind}_weights": [w for term in terms[:3].tolist() for w in (1.0, term)],
    }
    if output:
        attributes |= {"classlabels_int64s": [4, 7, 9], "class_ids": [0, 0, 0, 0, 1, 0]}
        attributes["base_values"] = [float(terms[3]), 0.0, 0.0]
    else:
        attributes |= {"n_targets": 1, "base_values": [float(terms[3])]}
    node = (f"TreeEnsemble{operator}", ["x"], attributes | {"domain": "ai.onnx.ml"})
    model = model_of([node], {"x": x}, output + 1, types=[TensorProto.INT64, 1][1 - output :])
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    sums = {float(np.add.accumulate(terms[[*order]])[-1]) for order in permutations(range(4))}
    assert len(sums) > 1
    other_scores = [0, 0] if output else []
    for total in sums:
        assert passes_estimate(model, {"x": x}, [[total, *other_scores]], output)
    assert not passes_estimate(model, {"x": x}, [[total + 1e-4, *other_scores]], output)
    with_other_leaves = 3 + terms[3]
    assert not passes_estimate(model, {"x": x}, [[with_other_leaves, *other_scores]], output)


def test_sum_of_two_weights_of_trees_is_rounded_before_softmax():
    weights, bases = f32(40.12347, 38.2, 39.6), f32(41.765434, 41.1, 40.3)
    attributes = {
        "nodes_treeids": [0],
        "nodes_nodeids": [0],
        "nodes_featureids": [0],
        "nodes_modes": ["LEAF"],
        "nodes_values": [0.0],
        "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0],
        "class_treeids": [0, 0, 0],
        "class_nodeids": [0, 0, 0],
        "class_ids": [0, 1, 2],
        "class_weights": weights.tolist(),
        "classlabels_int64s": [0, 1, 2],
        "base_values": bases.tolist(),
        "post_transform": "SOFTMAX",
        "domain": "ai.onnx.ml",
    }
    inputs = {"x": np.zeros((1, 1), np.float32)}
    node = ("TreeEnsembleClassifier", ["x"], attributes)
    model = model_of([node], inputs, 2, types=[TensorProto.INT64, TensorProto.FLOAT])
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    powers = np.exp(weights + bases - (weights + bases).max())
    shares = powers / powers.sum()
    assert passes_estimate(model, inputs, [shares], 1)
    assert not passes_estimate(model, inputs, [shares * f32(1, 1.001, 1)], 1)


def test_normalizer_adds_squares_in_any_order():
    x = np.full((1, 30_000), 0.1, np.float32)
    model = model_of([("Normalizer", ["x"], {"norm": "L2", "domain": "ai.onnx.ml"})], {"x": x})
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    root = np.sqrt(np.add.accumulate(x * x, axis=1)[:, -1:])
    assert passes_estimate(model, {"x": x}, x / root)
    assert not passes_estimate(model, {"x": x}, x / root * np.float32(1.01))


@pytest.mark.parametrize("features", [1, 2])
@pytest.mark.parametrize(("operator", "output"), [("LinearClassifier", 1), ("LinearRegressor", 0)])
def test_logistic_function_of_negative_scores_may_be_a_difference(operator, output, features):
    x = np.array([[-5], [-8], [-12], [3]], np.float32) / np.float32(features)
    x = np.repeat(x, features, 1)
    attributes = {"coefficients": [1.0] * 3 * features, "post_transform": "LOGISTIC"}
    attributes["intercepts"] = [0.0, 0.5, -0.5]
    targets = {"targets": 3} if operator == "LinearRegressor" else {"classlabels_ints": [1, 2, 3]}
    node = (operator, ["x"], attributes | targets | {"domain": "ai.onnx.ml"})
    model = model_of([node], {"x": x}, output + 1, types=[TensorProto.INT64, 1][1 - output :])
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    scores = x.sum(1, keepdims=True) + f32(0, 0.5, -0.5)
    # onnx's reference and ONNX Runtime compute the logistic function in this way.
    near_one = 1 / (1 + np.exp(-np.abs(scores)))
    shares = np.where(scores < 0, 1 - near_one, near_one)
    assert passes_estimate(model, {"x": x}, shares, output)
    assert not passes_estimate(model, {"x": x}, shares + f32(1e-6), output)


def test_error_proportional_to_the_root_of_a_perturbation_is_continuous():
    x = np.full((1, 4), 0.5, np.float32)
    nodes = [("ReduceSumSquare", ["x"], {"keepdims": 0}), ("Acos", ["t0"], {})]
    model = model_of(nodes, {"x": x}, outputs=1)
    for steps, passes in ((0, True), (1, True), (2, True), (2000, False)):
        assert passes_estimate(model, {"x": x}, np.arccos(1 - steps * 2.0**-24)) == passes


def test_error_proportional_to_the_square_of_a_perturbation_is_continuous():
    x, ones = np.full((1, 64), 1000.3, np.float32), np.ones(64, np.float32)
    inputs = {"x": x, "s": ones}
    model = model_of([("LayerNormalization", ["x", "s"], {})], inputs, outputs=3, types=[1, 1, 1])
    for deviation, passes in ((316.2278, True), (315.992, True), (300, False)):
        assert passes_estimate(model, inputs, [[deviation]], at=2) == passes


@pytest.mark.parametrize("name", CORRECT_OUTPUTS)
def test_correct_output_passes(name):
    operator, operands, output = CORRECT_OUTPUTS[name]
    inputs = {f"x{place}": operand for place, operand in enumerate(operands)}
    extra = {"keepdims": 0} if operator.startswith("Reduce") else {}
    assert node_passes(operator, inputs, output, **extra)


def test_fused_difference_of_squares_passes_and_a_wrong_one_fails():
    x, z = f32(1.0000001), f32(1)
    nodes = [("Mul", ["x", "x"], {}), ("Mul", ["z", "z"], {}), ("Sub", ["t0", "t1"], {})]
    inputs = {"x": x, "z": z}
    model = model_of(nodes, inputs)
    assert passes_estimate(model, inputs, [float(x[0]) ** 2 - 1])
    assert passes_estimate(model, inputs, x * x - z * z)
    assert not passes_estimate(model, inputs, [1e-5])


def test_sums_of_many_terms_pass_in_any_order():
    x = np.random.default_rng(3).uniform(0, 1, 1_000_000).astype(np.float32)
    inputs = {"x": x}
    model = model_of([("ReduceSum", ["x"], {"keepdims": 0})], inputs)
    blocked = x.reshape(-1, 32).cumsum(axis=1)[:, -1].cumsum()[-1]
    for total in (x.cumsum()[-1], x[::-1].cumsum()[-1], blocked, x.sum()):
        assert passes_estimate(model, inputs, total)
    assert not passes_estimate(model, inputs, x.astype("f8").sum() * 1.2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_terms_are_summed_in_float32(dtype):
    x = np.random.default_rng(3).uniform(0, 0.01, 2048).astype(dtype)
    inputs, element = {"x": x}, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of([("ReduceSum", ["x"], {"keepdims": 0})], inputs, types=[element])
    total = x.astype(np.float32).cumsum()[-1]
    assert passes_estimate(model, inputs, total)
    error = 24 * float(ml_dtypes.finfo(dtype).eps)
    for wrong in (0, total * (1 + error), x.cumsum(dtype=dtype)[-1] if error > 0.1 else 0):
        assert not passes_estimate(model, inputs, wrong)
    if dtype is np.float16:
        expected, limit = condition(model, inputs, "float16-sums")[0].right[0]
        assert abs(float(expected) - float(x.cumsum(dtype=dtype)[-1])) < limit
    once = model_of([("Add", ["x", "x"], {})], inputs, types=[element])
    assert passes_estimate(once, inputs, x + x)
    wrong = ((x + x).astype("f4") * (1 + error / 4)).astype(dtype)
    assert not passes_estimate(once, inputs, wrong)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "MatMul"])
def test_sorted_16_bit_terms_pass_in_order(operator, dtype):
    """The terms cancel, so partial sums of sorted terms are far larger than the sum."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    half = np.random.default_rng(5).standard_normal(15_000)
    x = np.sort([[*half, *-half, 8]]).astype(dtype)
    count = x.size
    inputs, attributes = {"x": x}, {"keepdims": 0}
    if operator == "MatMul":
        inputs, attributes = {"x": x, "ones": np.ones((count, 1), dtype)}, {}
    model = model_of([(operator, list(inputs), attributes)], inputs, types=[element])
    share = np.float32(count if operator == "ReduceMean" else 1)
    shape = (1, 1) if operator == "MatMul" else ()
    terms = x[0].astype(np.float32)
    for total in (terms.cumsum()[-1], terms[::-1].cumsum()[-1], terms.sum()):
        assert passes_estimate(model, inputs, np.reshape(total / share, shape))
    exact = terms.astype(np.float64).sum() / share
    for wrong in (0, -exact, exact * 1.2):
        assert not passes_estimate(model, inputs, np.reshape(wrong, shape))


@pytest.mark.parametrize("count", [1000, 30_000])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "MatMul"])
def test_sums_of_equal_terms_pass_in_any_order(operator, count):
    x = np.full((1, count), 0.1, np.float32)
    inputs, attributes = {"x": x}, {"keepdims": 0}
    if operator == "MatMul":
        inputs, attributes = {"x": x, "ones": np.ones((count, 1), np.float32)}, {}
    total = x.cumsum(dtype=np.float32)[-1]
    pairs = x.sum()
    share = np.float32(count if operator == "ReduceMean" else 1)
    shape = (1, 1) if operator == "MatMul" else ()
    model = model_of([(operator, list(inputs), attributes)], inputs)
    scaled = (x * (1 / share)).cumsum(dtype=np.float32)[-1]
    for value in (total / share, pairs / share, scaled):
        assert passes_estimate(model, inputs, np.reshape(value, shape))
    assert not passes_estimate(model, inputs, np.reshape(pairs * 1.002 / share, shape))


@pytest.mark.slow
def test_equal_terms_of_a_large_matrix_product_pass_in_order():
    inputs = {"a": np.full((9, 10**6), 0.1, "f4"), "b": np.full((10**6, 9), 0.1, "f4")}
    model = model_of([("MatMul", ["a", "b"], {})], inputs)
    total = np.cumsum(inputs["a"][0] * inputs["b"][:, 0])[-1]
    assert passes_estimate(model, inputs, np.full((9, 9), total))


def test_mean_that_is_updated_at_each_of_many_terms_passes():
    x = np.sort(np.random.default_rng(5).standard_normal(20_000).astype(np.float32))
    model = model_of([("ReduceMean", ["x"], {"keepdims": 0})], {"x": x})
    for terms in (x, x[::-1]):
        mean = np.float32(0)
        for place, term in enumerate(terms):
            mean += (term - mean) / np.float32(place + 1)
        assert passes_estimate(model, {"x": x}, mean)
    assert not passes_estimate(model, {"x": x}, mean + 10 * abs(mean - x.astype("f8").mean()))


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [("LpNormalization", {"axis": 1, "p": 1}), ("LpNormalization", {"axis": 1}), ("ReduceL2", {})],
)
def test_operators_with_quotients_or_powers_round_even_a_single_element(operator, attributes):
    x = f32(3.3, 41, 49)[:, None]
    inputs = {"x": x} if operator == "LpNormalization" else {"x": x, "axes": np.array([1])}
    model = model_of([(operator, list(inputs), attributes)], inputs)
    value = np.ones_like(x) if operator == "LpNormalization" else x
    for steps, passes in ((0, True), (1, True), (-1, True), (200, False)):
        assert passes_estimate(model, inputs, value * np.float32(1 + steps * 2.0**-23)) == passes


def test_quotient_of_two_sequential_sums_passes():
    random = np.random.default_rng(0)
    values = f32(0.11, 0.71, 0.32, 0.59, 0.13)[random.integers(0, 5, 6480)]
    inputs = {"x": values * random.uniform(-1, 0, 6480).astype("f"), "w": values}
    nodes = [("ReduceSum", [name], {"keepdims": 0}) for name in inputs]
    model = model_of([*nodes, ("Div", ["t0", "t1"], {})], inputs)
    x, w = (terms.cumsum(dtype=np.float32)[-1] for terms in inputs.values())
    assert passes_estimate(model, inputs, x / w)
    right = inputs["x"].astype("f8").sum() / inputs["w"].astype("f8").sum()
    assert not passes_estimate(model, inputs, right * (1 + 1e-3))


def test_computed_tie_may_round_either_way_and_exact_tie_may_not():
    node = ("QuantizeLinear", ["x", "s"], {})
    inputs = {"x": f32(0.75, 2.2), "s": np.array(0.3, np.float32)}
    model = model_of([node], inputs, types=[TensorProto.UINT8])
    assert passes_estimate(model, inputs, np.uint8([2, 7]))
    assert passes_estimate(model, inputs, np.uint8([3, 7]))
    assert not passes_estimate(model, inputs, np.uint8([2, 8]))
    # Dividing by a power of two is exact, so these ties are exact.
    halves = {"x": f32(3, 14.6), "s": np.array(2, np.float32)}
    assert passes_estimate(model, halves, np.uint8([2, 7]))
    assert not passes_estimate(model, halves, np.uint8([1, 7]))
    inputs = {"x": f32(2.5, 7.3), "s": np.array(1, np.float32)}
    rounded = model_of([("Mul", ["x", "s"], {}), ("Round", ["t0"], {})], inputs)
    assert passes_estimate(rounded, inputs, f32(3, 7))
    assert passes_estimate(rounded, inputs, f32(2, 7))
    assert not passes_estimate(rounded, inputs, f32(2, 8))
    assert not passes_estimate(rounded, inputs, f32(2.5, 7))


@pytest.mark.parametrize(("scale", "either"), [(0.5, False), (0.3, True)])
def test_ties_of_integer_products_are_exact_if_scales_are_powers_of_two(scale, either):
    zero, one = np.array(0, np.uint8), np.array(scale, np.float32)
    a, b = np.array([[9, 1]], np.uint8), np.array([[1], [0]], np.uint8)
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    product = np.array(2 * scale * scale, np.float32)
    inputs = dict(zip(names, (a, one, zero, b, one, zero, product, zero), strict=True))
    model = model_of([("QLinearMatMul", names, {})], inputs, types=[TensorProto.UINT8])
    assert passes_estimate(model, inputs, np.uint8([[4]]))
    assert passes_estimate(model, inputs, np.uint8([[5]])) == either
    assert not passes_estimate(model, inputs, np.uint8([[3]]))


@pytest.mark.parametrize("zero_point", [0, 7])
def test_ties_of_quantized_convolutions_may_round_either_way(zero_point):
    zero, half = np.array(0, np.uint8), np.array(0.5, np.float32)
    x, w = np.array([[[9, 11]]], np.uint8), np.array([[[1]]], np.uint8)
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"]
    operands = (x, half, zero, w, half, zero, half, np.array(zero_point, np.uint8))
    model_inputs = dict(zip(names, operands, strict=True))
    model = model_of([("QLinearConv", names, {})], model_inputs, types=[TensorProto.UINT8])
    for rounded in ([4, 5], [4, 6], [5, 5], [5, 6]):
        assert passes_estimate(model, model_inputs, np.uint8([[rounded]]) + zero_point)
    assert not passes_estimate(model, model_inputs, np.uint8([[[3, 6]]]) + zero_point)


def test_cancelling_terms_of_any_sign_widen_the_tolerance():
    x = np.array([[1e6, 1.0, -1e6, 1e-3]], np.float32)
    inputs = {"x": x, "w": np.ones((4, 1), np.float32)}
    model = model_of([("MatMul", ["x", "w"], {})], inputs)
    assert passes_estimate(model, inputs, [[1.0625]])
    assert not passes_estimate(model, inputs, [[30.0]])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_tolerance_follows_the_roundoff_of_the_type(dtype):
    x = np.array([[0.3, 1.7, -0.2]], dtype)
    inputs = {"x": x}
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of([("Softmax", ["x"], {})], inputs, types=[element])
    right = np.exp(x.astype("f8")) / np.exp(x.astype("f8")).sum()
    ulp = float(ml_dtypes.finfo(dtype).eps)
    assert passes_estimate(model, inputs, right.astype(dtype))
    assert passes_estimate(model, inputs, (right * (1 + ulp)).astype(dtype))
    assert not passes_estimate(model, inputs, (right * (1 + 300 * ulp)).astype(dtype))


def test_infinity_passes_only_where_it_is_expected():
    assert node_passes("Exp", {"x": f32(100)}, [np.inf])
    assert not node_passes("Exp", {"x": f32(80)}, [np.inf])
    assert not node_passes("Log", {"x": f32(-1)}, [0])


def test_masked_score_of_attention_may_be_the_lowest_number():
    shape = (1, 1, 3, 4)
    values = np.random.default_rng(0).uniform(size=shape).astype(np.float32)
    inputs = {"q": values, "k": values + 1, "v": values}
    node = helper.make_node(
        "Attention", ["q", "k", "v"], ["y", "", "", "s"], is_causal=1, qk_matmul_output_mode=2
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    scores = condition(model, inputs)[1].right[0][0]
    if np.isneginf(scores).any():
        lowest = np.where(np.isneginf(scores), np.finfo(np.float32).min, scores)
        assert passes_estimate(model, inputs, lowest, at=1)
    assert not passes_estimate(model, inputs, np.where(np.isneginf(scores), 0, scores + 1), at=1)


def test_operator_that_the_reference_lacks_is_not_estimated():
    inputs = {"x": f32(1)}
    with pytest.raises(NoReferenceError, match="NoSuchOperator"):
        condition(model_of([("NoSuchOperator", ["x"], {})], inputs), inputs)


def distribution_test(name, inputs, opset=22, outputs=1, **attributes):
    model = model_of([(name, list(inputs), attributes)], inputs, opset=opset, outputs=outputs)
    return drawn(model, inputs)["y0"].test


# For each fault: the operator, the size of a sample, and a function that applies the fault. At
# least 99 % of wrong samples of this size are rejected.
CONTINUOUS = {
    "a mean shifted by 0.1": ("RandomNormalLike", 9000, lambda x: x + 0.1),
    "half the variance": ("RandomNormalLike", 450, lambda x: x * 0.5**0.5),
    "a narrow range": ("RandomUniformLike", 200, lambda x: (x - 0.5) * 0.5**0.5 + 0.5),
    "a truncated range": ("RandomUniformLike", 9000, lambda x: x * 0.97),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples_of_another_distribution_are_rejected_and_correct_ones_pass(name):
    operator, count, wrong = CONTINUOUS[name]
    test = distribution_test(operator, {"x": np.zeros(count, np.float32)})
    random = np.random.default_rng(5)
    for _ in range(15):
        normal, uniform = random.standard_normal(count), random.uniform(size=count)
        sample = uniform if operator == "RandomUniformLike" else normal
        assert test(sample.astype("f")) == ""
        assert test(wrong(sample).astype("f"))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_correct_samples_of_16_bits_pass(dtype, count):
    random, x = np.random.default_rng(9), {"x": np.zeros(count, dtype)}
    bits = 11 if dtype is np.float16 else 8
    truncated = np.floor(random.uniform(size=count) * 2**bits) / 2**bits
    for sample in (truncated, random.uniform(size=count)):
        assert distribution_test("RandomUniformLike", x)(sample.astype(dtype)) == ""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    near = distribution_test("RandomUniformLike", x, low=0.3, high=0.7, dtype=element)
    assert near((0.3 + 0.4 * random.uniform(size=count)).astype(dtype)) == ""
    assert (
        distribution_test("RandomNormalLike", x)(random.standard_normal(count).astype(dtype)) == ""
    )


def test_distribution_of_scale_zero_is_a_constant():
    x = {"x": np.zeros(3, np.float32)}
    for test in (
        distribution_test("RandomNormalLike", x, mean=2.5, scale=0.0),
        distribution_test("RandomUniformLike", x, low=2.5, high=2.5),
    ):
        assert test(f32(2.5, 2.5, 2.5)) == ""
        assert test(f32(2.5, 2.5, 2.6))


@pytest.mark.parametrize(
    ("chance", "wrong", "count"),
    [
        (0.4, 0.5, 2400),
        (0.5, 0.6, 2400),
        (0.1, 0.2, 1300),
        (0.05, 0.15, 800),
        (0.01, 0.11, 400),
        (0.001, 0.101, 400),
        (0.1, 0.0, 400),
        (0.9, 1.0, 400),
        (0.99, 0.89, 400),
    ],
)
def test_bernoulli_samples_of_another_probability_are_rejected(chance, wrong, count):
    test = distribution_test("Bernoulli", {"x": np.full(count, chance, np.float32)})
    random = np.random.default_rng(6)
    assert not any(test((random.uniform(size=count) < chance).astype("f")) for _ in range(50))
    assert all(test((random.uniform(size=count) < wrong).astype("f")) for _ in range(50))
    assert test(np.full(count, 0.4, "f")) == "has elements that are neither 0 nor 1"


def test_bernoulli_samples_with_exchanged_probabilities_are_rejected():
    chances = np.linspace(0.01, 0.99, 300, dtype=np.float32)
    test = distribution_test("Bernoulli", {"x": chances})
    random = np.random.default_rng(6)
    for _ in range(20):
        levels = random.uniform(size=300)
        assert not test((levels < chances).astype("f"))
        assert test((levels > chances).astype("f"))
        assert test((levels < chances[::-1]).astype("f"))


def test_classes_of_other_probabilities_are_rejected_in_long_and_short_rows():
    random = np.random.default_rng(6)
    logits = np.log(f32(0.2, 0.3, 0.5))
    for rows, each in ((1, 3000), (3000, 1)):
        test = distribution_test("Multinomial", {"x": np.tile(logits, (rows, 1))}, sample_size=each)
        for _ in range(5):
            right = random.choice(3, (rows, each), p=[0.2, 0.3, 0.5])
            assert not test(right.astype(np.int32))
            assert test(random.choice(3, (rows, each), p=[0.3, 0.2, 0.5]).astype(np.int32))
        assert test(np.full((rows, each), 3, np.int32)) == "has elements that are not classes"


def test_dropout_keeps_scaled_elements_at_the_stated_rate():
    x = np.linspace(1, 2, 4000, dtype=np.float32)
    inputs = {"x": x, "r": np.array(0.25, np.float32), "t": np.asarray(True)}
    test = distribution_test("Dropout", inputs)
    keep = np.random.default_rng(7).uniform(size=4000) < 0.75
    assert not test(np.where(keep, x / np.float32(0.75), 0).astype("f"))
    assert test(np.where(keep, x, 0).astype("f"))
    assert test(np.where(keep[::-1] & keep, x / np.float32(0.75), 0).astype("f"))
    assert drawn(model_of([("Dropout", ["x"], {})], {"x": x}), {"x": x}) == {}
    mask = drawn(model_of([("Dropout", list(inputs), {})], inputs, outputs=2), inputs)["y1"].beside
    y = np.where(keep, x / np.float32(0.75), 0).astype("f")
    assert not mask({"y0": y, "y1": keep})
    assert mask({"y0": y, "y1": ~keep})
    assert mask({"y0": y, "y1": np.roll(keep, 1)})


def test_early_dropout_has_attributes_for_ratio_and_inference():
    x = np.linspace(1, 2, 4000, dtype=np.float32)
    keep = np.random.default_rng(7).uniform(size=4000) < 0.75
    test = distribution_test("Dropout", {"x": x}, opset=6, ratio=0.25)
    assert not test(np.where(keep, x / np.float32(0.75), 0).astype("f"))
    assert test(np.where(keep, x / np.float32(0.75), 0).astype("f")[::-1])
    assert distribution_test("Dropout", {"x": x}, opset=6)(np.where(keep, x * 2, 0).astype("f"))
    tested = model_of([("Dropout", ["x"], {"is_test": 1})], {"x": x}, opset=6)
    assert drawn(tested, {"x": x}) == {}
    # Version 6 of Dropout does not specify the content of the mask.
    masked = drawn(model_of([("Dropout", ["x"], {})], {"x": x}, opset=6, outputs=2), {"x": x})
    assert masked["y1"].distribution == "any values of this type and shape"


def test_dropout_of_nan_and_infinity_passes():
    x = np.tile(f32(np.nan, np.inf, -np.inf, 1e-40), 1000)
    inputs = {"x": x, "r": np.array(0.5, np.float32), "t": np.asarray(True)}
    keep = np.random.default_rng(7).uniform(size=4000) < 0.5
    laws = drawn(model_of([("Dropout", list(inputs), {})], inputs, outputs=2), inputs)
    with np.errstate(all="ignore"):
        for y in (x * keep * 2, np.where(keep, x * 2, 0), np.where(keep & (x > 1), x * 2, 0)):
            assert not laws["y0"].test(y.astype("f"))
            assert not laws["y1"].beside({"y0": y, "y1": keep})


def test_dropped_elements_that_overflow_when_they_are_scaled_may_be_nan():
    x = np.repeat(f32(3e38, -3e38, 1), 1000)
    inputs = {"x": x, "r": np.array(0.5, np.float32), "t": np.asarray(True)}
    keep = np.random.default_rng(7).uniform(size=3000) < 0.5
    laws = drawn(model_of([("Dropout", list(inputs), {})], inputs, outputs=2), inputs)
    with np.errstate(all="ignore"):
        y = 2 * x * keep
    assert np.isnan(y).any()
    assert not laws["y0"].test(y)
    assert not laws["y1"].beside({"y0": y, "y1": keep})
    assert laws["y1"].beside({"y0": y, "y1": ~keep})
    assert laws["y0"].test(np.where(x == 1, np.nan, y).astype("f"))


def test_factor_of_dropout_may_be_computed_in_the_type_of_the_ratio():
    x = np.linspace(1, 2, 4000)
    inputs = {"x": x, "r": np.array(0.3, np.float32), "t": np.asarray(True)}
    keep = np.random.default_rng(7).uniform(size=4000) < 0.7
    test = distribution_test("Dropout", inputs)
    factor = float(1 / (1 - inputs["r"]))
    assert not test(x * keep * factor)
    assert test(x * keep * factor * (1 + 1e-6))
    inputs["r"] = inputs["r"].astype(float)
    assert distribution_test("Dropout", inputs)(x * keep * factor)


@hypothesis.given(
    shape=st.sampled_from([(3, 4), (2, 5, 3), (2, 3, 2, 4)]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    reduction=st.sampled_from(["none", "sum", "mean"]),
    ignored=st.sampled_from([None, -1, 1]),
    weighted=st.booleans(),
)
@hypothesis.example(shape=(3, 4), dtype="float64", reduction="mean", ignored=-1, weighted=True)
@hypothesis.example(shape=(3, 4), dtype="float16", reduction="mean", ignored=None, weighted=False)
def test_fast_loss_equals_the_reference_bitwise(shape, dtype, reduction, ignored, weighted):
    # In a mean without weights, the reference does not ignore targets of -1.
    hypothesis.assume(ignored != -1 or weighted or reduction != "mean")
    random = np.random.default_rng(1)
    x = random.standard_normal(shape).astype(dtype)
    target = random.integers(0, shape[1], (shape[0], *shape[2:]))
    if ignored is not None:
        target.flat[::2] = ignored
    weight = random.uniform(0.5, 2, shape[1]).astype(dtype) if weighted else None
    slow = op_negative_log_likelihood_loss._compute_negative_log_likelihood_loss
    # The mean is 0/0 if all targets are ignored.
    with np.errstate(invalid="ignore"):
        (loss,) = fast_loss(slow, x, target, weight, reduction, ignored)
        (expected,) = slow(x, target, weight, reduction, ignored)
    assert loss.dtype == expected.dtype
    assert np.asarray(loss).tobytes() == np.asarray(expected).tobytes()


def test_positions_may_be_computed_in_the_type_of_the_grid():
    random = np.random.default_rng(1)
    x = random.standard_normal((1, 1, 4, 5))
    grid = random.uniform(-0.9, 0.9, (1, 3, 3, 2)).astype(np.float32)
    inputs = {"x": x, "grid": grid}
    model = model_of([("GridSample", ["x", "grid"], {})], inputs, types=[TensorProto.DOUBLE])
    (y,) = ReferenceEvaluator(model).run(None, inputs)
    assert y.dtype == np.float64
    assert passes_estimate(model, inputs, y)
    shifted = {"x": x, "grid": grid + np.float32(1e-3)}
    assert not passes_estimate(model, inputs, ReferenceEvaluator(model).run(None, shifted)[0])


def test_coarse_grid_does_not_widen_the_rounding_of_interpolated_values():
    x = np.random.default_rng(1).standard_normal((1, 1, 4, 5)).astype(np.float32)
    grid = np.array([[[[-0.75, 0.5], [0.25, -0.25], [0.5, 0.25]]]], np.float16)
    inputs = {"x": x, "grid": grid}
    model = model_of([("GridSample", ["x", "grid"], {})], inputs, types=[TensorProto.FLOAT])
    (y,) = ReferenceEvaluator(model).run(None, inputs)
    assert passes_estimate(model, inputs, y)
    assert not passes_estimate(model, inputs, y * np.float32(1 + 1e-3))


@st.composite
def windows(draw):
    """Draw the attributes of windows, and an input; no window contains only padding."""
    rank = draw(st.integers(1, 3))
    sizes, kernel, strides, dilations = (
        [draw(st.integers(*limits)) for _ in range(rank)]
        for limits in ((3, 8), (1, 3), (1, 3), (1, 2))
    )
    extents = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    pads = [draw(st.integers(0, min(extent - 1, 2))) for extent in (*extents, *extents)]
    padded = np.add(sizes, np.reshape(pads, (2, -1)).sum(axis=0))
    hypothesis.assume((padded >= extents).all())
    x = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((2, 2, *sizes))
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    return attributes, x.astype(draw(st.sampled_from(["float32", "float64"])))


def reference_and_corrected_outputs(model, inputs):
    """Return the outputs without and with corrections, each as dtype, shape and bytes."""
    slow = ReferenceEvaluator(model).run(None, inputs)
    with replaced(*replacements()):
        fast = ReferenceEvaluator(model).run(None, inputs)
    return [(output.dtype, output.shape, output.tobytes()) for output in (*slow, *fast)]


@hypothesis.given(windows(), st.sampled_from([1, 2]))
def test_fast_convolution_equals_the_reference_bitwise(drawn, group):
    attributes, x = drawn
    w = np.ones((2, 2 // group, *attributes["kernel_shape"]), x.dtype) / 3
    inputs = {"x": x, "w": w}
    slow, fast = reference_and_corrected_outputs(
        model_of([("Conv", ["x", "w"], attributes | {"group": group})], inputs), inputs
    )
    assert slow == fast


@hypothesis.given(windows(), st.booleans())
def test_fast_transposed_convolution_equals_the_reference_bitwise(drawn, biased):
    attributes, x = drawn
    w = np.random.default_rng(3).standard_normal((2, 2, *attributes["kernel_shape"]))
    inputs = {"x": x, "w": w.astype(x.dtype), "b": np.ones(2, x.dtype) / 3}
    operands = list(inputs)[: 2 + biased]
    inputs = {name: inputs[name] for name in operands}
    model = model_of([("ConvTranspose", operands, attributes)], inputs)
    # Padding shortens the output of ConvTranspose. Skip examples without any remaining elements.
    names = "strides", "kernel_shape", "dilations"
    strides, kernel, dilations = (np.array(attributes[name]) for name in names)
    sizes = (np.array(x.shape[2:]) - 1) * strides + (kernel - 1) * dilations + 1
    hypothesis.assume((sizes > np.reshape(attributes["pads"], (2, -1)).sum(axis=0)).all())
    slow, fast = reference_and_corrected_outputs(model, inputs)
    assert slow == fast


X = np.random.default_rng(4).uniform(0.1, 4, (1, 2, 3, 4)).astype(np.float32)
ROW = X[:, :, :1] + 1
LISTED = {
    **dict.fromkeys(("Exp", "Log", "Sqrt", "Flatten", "Transpose"), (X,)),
    **dict.fromkeys(("Add", "Div", "Mul", "Pow", "Sub"), (X, ROW)),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), (X, [0])),
    "Concat": (X, ROW),
    "Expand": (X, [5, 2, 3, 4]),
    "Gather": (X, [2, 0]),
    "Reshape": (X, [4, 3, 2]),
    "Slice": (X, [0, 1], [1, 2]),
    "Split": (X,),
    "Where": (X > 2, X, ROW),
}


@pytest.mark.parametrize("name", LISTED)
def test_listed_and_determined_kinds_of_operands_have_the_same_estimate(monkeypatch, name):
    inputs = {f"x{place}": np.asarray(operand) for place, operand in enumerate(LISTED[name])}
    attributes = {"Concat": {"axis": 2}, "Gather": {"axis": 2}, "Split": {"num_outputs": 1}}
    node = name, list(inputs), attributes.get(name, {})
    for nodes in ([node], [node, ("Softmax", ["t0"], {})]):
        model = model_of(nodes, inputs)
        listed = condition(model, inputs)
        with monkeypatch.context() as patch:
            patch.delitem(_LISTED, name)
            determined = condition(model, inputs)
        for first, second in zip(listed[0].right, determined[0].right, strict=True):
            assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_matrix_products_of_16_bits_are_summed_in_float32(operator, dtype):
    ones = np.ones((1, 5000)).astype(dtype)
    inputs = {"x": ones, "w": ones.reshape(5000, 1)}
    _, fast = reference_and_corrected_outputs(
        model_of([(operator, ["x", "w"], {})], inputs), inputs
    )
    assert np.frombuffer(fast[2], dtype) == dtype(5000)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation_tolerates_roundings_of_coordinates_alone(mode):
    x = np.random.default_rng(9).standard_normal((1, 1, 9, 31)).astype(np.float32)
    inputs = {"x": x, "sizes": np.array([1, 1, 7, 29], np.int64)}
    model = model_of([("Resize", ["x", "", "", "sizes"], {"mode": mode})], inputs)
    exact = condition(model, inputs)[0].right[0][0].astype(np.float64)
    assert passes_estimate(model, inputs, exact * (1 + 1e-7))
    assert not passes_estimate(model, inputs, exact * (1 + 1e-5))
    # Coefficients in float32 would have larger errors than the tolerance of double permits.
    twice = {**inputs, "x": x.astype(np.float64)}
    double = model_of([("Resize", ["x", "", "", "sizes"], {"mode": mode})], twice)
    expected, limit = condition(double, twice)[0].right[0]
    assert np.abs(expected - exact).max() < 1e-6
    assert np.median(limit / np.abs(expected)) < 1e-12


def test_nearest_pixel_is_exact_unless_rounding_decides():
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 1, 12)
    nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    for scale, at, either in ((1 / 3, 1, True), (1 / 3, 0, False), (2.0, 2, False)):
        inputs = {"x": x, "s": np.array([1, 1, 1, scale], np.float32)}
        model = model_of([("Resize", ["x", "", "s"], nearest | {"nearest_mode": "ceil"})], inputs)
        right = condition(model, inputs)[0].right[0][0]
        for change, passes in ((0, True), (1, either), (-1, False), (1e-4, False)):
            wrong = right.copy()
            wrong[0, 0, 0, at] += change
            assert passes_estimate(model, inputs, wrong) == passes


@pytest.mark.parametrize(
    ("mode", "scale", "right"),
    [
        # For x = 0 and 1: 1.5 (1 - 2 / 2.1) + (x + 0.5) / 0.7 - 0.5 = 0.286 and 1.714
        ("half_pixel_symmetric", 0.7, [0.28571427, 1.7142857]),
        # If the output has a single element, its coordinate is 0.
        ("pytorch_half_pixel", 0.4, [0]),
    ],
)
def test_resize_uses_the_coordinates_of_the_specification(mode, scale, right):
    inputs = {"x": f32(0, 1, 2).reshape(1, 1, 1, 3), "s": f32(1, 1, 1, scale)}
    attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
    model = model_of([("Resize", ["x", "", "s"], attributes)], inputs)
    assert passes_estimate(model, inputs, np.reshape(right, (1, 1, 1, -1)))
    assert not passes_estimate(model, inputs, np.reshape(right, (1, 1, 1, -1)) + 1e-3)
    nearest = model_of([("Resize", ["x", "", "s"], attributes | {"mode": "nearest"})], inputs)
    assert passes_estimate(nearest, inputs, np.reshape(np.round(right), (1, 1, 1, -1)))


def test_product_of_many_factors_tolerates_only_its_own_roundings():
    x = np.random.default_rng(9).uniform(0.5, 2, 100).astype(np.float32)
    model = model_of([("ReduceProd", ["x"], {"keepdims": 0})], {"x": x})
    exact = np.prod(x.astype(np.float64))
    assert passes_estimate(model, {"x": x}, np.multiply.accumulate(x)[-1])
    assert passes_estimate(model, {"x": x}, np.prod(x[:50]) * np.prod(x[50:]))
    assert not passes_estimate(model, {"x": x}, exact * (1 + 1e-5))
    alike = np.full(100_000, 1 - 2.0**-24, np.float32)
    model = model_of([("ReduceProd", ["x"], {"keepdims": 0})], {"x": alike})
    assert passes_estimate(model, {"x": alike}, np.multiply.accumulate(alike)[-1])


def test_unsorted_largest_elements_may_have_any_order():
    inputs = {"x": f32(3, 1, 4, 4, 5)[None], "k": np.array([3], np.int64)}
    laws = {}
    for is_sorted in (0, 1):
        model = model_of([("TopK", ["x", "k"], {"sorted": is_sorted})], inputs, outputs=2)
        laws[is_sorted] = drawn(model, inputs)
    values, places = laws[0]["y0"].test, laws[0]["y1"].test
    assert not values(f32(4, 5, 4)[None])
    assert values(f32(5, 4, 3)[None])
    assert not places(np.array([[3, 4, 2]]))
    assert places(np.array([[4, 2, 0]]))
    together = laws[0]["y1"].beside
    assert not together({"y0": f32(4, 5, 4)[None], "y1": np.array([[3, 4, 2]])})
    assert not together({"y0": f32(4, 5, 4)[None], "y1": np.array([[2, 4, 3]])})
    assert together({"y0": f32(4, 5, 4)[None], "y1": np.array([[4, 2, 3]])})
    assert laws[1] == {}
    assert drawn(model_of([("TopK", ["x", "k"], {"sorted": 0})], inputs, outputs=2), {}) == {}


def test_mean_of_no_elements_may_have_any_value():
    for shape, law_count in (((0, 2), 1), ((1, 2), 0)):
        inputs = {"x": np.zeros(shape, np.float32), "axes": np.array([0])}
        node = ("ReduceMean", ["x", "axes"], {"keepdims": 0})
        laws = drawn(model_of([node], inputs), inputs)
        assert len(laws) == law_count
        assert not any(law.test(f32(7, np.nan)) for law in laws.values())


def test_flushing_does_not_excuse_errors_of_normal_numbers():
    x = np.array([0.010002136, -9.0], np.float16)
    square = x.astype(np.float64) ** 2
    assert float16_node_passes("Mul", {"a": x, "b": x}, square)
    # An error of half the smallest normal number fails: it is 30 % of the first square.
    assert not float16_node_passes("Mul", {"a": x, "b": x}, square + 3e-5)
    small = np.array([2.0**-15, 0.5], np.float16)
    assert float16_node_passes("Mul", {"a": small, "b": np.ones_like(small)}, [0, 0.5])


@pytest.mark.parametrize("operator", ["NonZero", "Unique"])
def test_flushed_inputs_may_lead_to_another_shape(operator):
    x = np.array([2.0**-20, 0.0, 2.0], np.float16)
    type_ = TensorProto.INT64 if operator == "NonZero" else TensorProto.FLOAT16
    model = model_of([(operator, ["x"], {})], {"x": x}, types=[type_])
    right = [[0, 2]] if operator == "NonZero" else [0, 2.0**-20, 2]
    assert passes_estimate(model, {"x": x}, right)
    assert not passes_estimate(model, {"x": x}, np.flip(right))


def float16_node_passes(name, inputs, value):
    model = model_of([(name, list(inputs), {})], inputs, types=[TensorProto.FLOAT16])
    return passes_estimate(model, inputs, value)


@pytest.mark.parametrize(
    ("operator", "others", "attributes"),
    [
        ("Conv", {"w": np.ones((1, 1, 3), "f")}, {}),
        ("ConvTranspose", {"w": np.ones((1, 1, 3), "f")}, {}),
        ("DFT", {"length": np.array(8), "axis": np.array(1)}, {}),
        ("STFT", {"step": np.array(4), "window": np.ones(4, "f")}, {}),
    ],
)
def test_large_image_does_not_widen_the_tolerance_of_a_small_image(operator, others, attributes):
    random = np.random.default_rng(0).normal(size=(2, 1, 8)).astype(np.float32)
    x = random * np.float32([[[1e6]], [[1]]])
    x = x if "Conv" in operator else x.reshape(2, 8, 1)
    inputs = {"x": x, **others}
    model = model_of([(operator, list(inputs), attributes)], inputs)
    (right,) = ReferenceEvaluator(model).run(None, inputs)
    assert passes_estimate(model, inputs, right)
    wrong = right.copy()
    wrong[1] *= np.float32(1.001)
    assert not passes_estimate(model, inputs, wrong)


def test_large_logarithm_does_not_widen_the_tolerance_of_a_small_logarithm():
    inputs = {"x": np.array([[1e6, 1e6], [0.5, 0.7]], np.float32), "axes": np.array([1])}
    right = np.logaddexp.reduce(inputs["x"].astype(np.float64), axis=1)
    assert node_passes("ReduceLogSumExp", inputs, right, keepdims=0)
    assert not node_passes("ReduceLogSumExp", inputs, right + np.array([0, 1e-4]), keepdims=0)


def cubic_weights(distances, form):
    """Return the weights of pixels in a cubic interpolation, computed in float32."""
    a, one_, t = np.float32(-0.75), np.float32(1), distances.astype(np.float32)
    if form == "Horner":
        outer = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        inner = ((a + 2) * t - (a + 3)) * t * t + one_
    else:
        outer = a * t * t * t - 5 * a * t * t + 8 * a * t - 4 * a
        inner = (a + 2) * t * t * t - (a + 3) * t * t + one_
    return np.select([t <= 1, t < 2], [inner, outer], np.float32(0))


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("form", ["Horner", "expanded"])
@pytest.mark.parametrize("seed", range(8))
def test_cubic_weights_may_be_rounded(form, seed, antialias):
    pixels = np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32)
    scales = f32(0.61, 0.37) if antialias else f32(1.7, 2.3)
    weights = []
    for scale in scales:
        pixel = np.arange(int(8 * scale), dtype="f") + np.float32(0.5)
        coordinates = pixel / scale - np.float32(0.5)
        stretch = min(scale, np.float32(1))
        matrix = np.zeros((len(coordinates), 8), np.float32)
        for row, x in zip(matrix, coordinates, strict=True):
            places = np.arange(-9, 18)
            parts = cubic_weights(np.abs(places.astype("f") - x) * stretch, form)
            np.add.at(row, np.clip(places, 0, 7), parts / parts.sum() if antialias else parts)
        weights.append(matrix)
    right = (weights[0] @ (pixels @ weights[1].T))[None, None]
    inputs = {"x": pixels[None, None], "roi": np.zeros(0, "f"), "scales": f32(1, 1, *scales)}
    attributes = {"mode": "cubic", "antialias": antialias}
    assert node_passes("Resize", inputs, right, **attributes)
    assert not node_passes("Resize", inputs, right * (1 + 3e-5), **attributes)


@pytest.mark.parametrize(("scale", "exact"), [(2, True), (32, True), (3, False), (64, False)])
def test_cubic_weights_of_short_ratios_are_exact(scale, exact):
    inputs = {"x": np.ones((1, 1, 3, 3), "f"), "roi": f32(), "scales": f32(1, 1, scale, scale)}
    ones = np.ones((1, 1, 3 * scale, 3 * scale))
    assert node_passes("Resize", inputs, ones, mode="cubic")
    assert node_passes("Resize", inputs, ones + 64 * 2**-24, mode="cubic") is not exact


@pytest.mark.parametrize("terms", [2, 4, 9])
@pytest.mark.parametrize("cancels", [True, False])
def test_error_of_a_short_sum_is_at_most_a_rounding_per_partial_sum(terms, cancels):
    random = np.random.default_rng(terms)
    a, b = (random.standard_normal((40, terms)).astype(np.float32) for _ in range(2))
    if cancels:
        a[:, -1] = -(a[:, :-1] * b[:, :-1]).sum(1) / b[:, -1]
    inputs = {"a": a[:, None, :], "b": b[:, :, None]}
    model = model_of([("MatMul", ["a", "b"], {})], inputs)
    products = a * b
    for order in (slice(None), slice(None, None, -1)):
        total = np.add.accumulate(products[:, order], axis=1)[:, -1]
        assert passes_estimate(model, inputs, total[:, None, None])
    exact = np.sum(a.astype(float) * b, axis=1)
    magnitudes = np.abs(products.astype(float)).sum(1)
    largest_partial_sum = (magnitudes + np.abs(exact)) / 2
    bound = ((terms - 1) * largest_partial_sum + 4 * magnitudes) * 2.0**-24
    (output,) = condition(model, inputs)
    expected, limit = output.right[0]
    wrong = (exact + bound).astype(np.float32)
    assert (np.abs(wrong - expected.ravel().astype(float)) > limit.ravel()).all()


def test_infinity_as_a_second_right_value_is_labelled():
    inputs = {"a": f32(3.4028235e38, 1), "b": f32(1, 1)}
    (output,) = condition(model_of([("Mul", ["a", "b"], {})], inputs), inputs)
    assert [value.tolist() for value, _ in output.right[1:]] == [[np.inf, 1]]
    assert "other side of the largest finite" in output.labels[1]


@pytest.mark.parametrize(("operator", "roundings"), [("ReduceSum", 16), ("ReduceMean", 19)])
def test_each_partial_sum_of_a_short_sum_may_be_rounded_up(operator, roundings):
    # If the terms are added in order, each of the 15 small terms causes an error of 0.75 roundings.
    x = f32(1, *[1.25 * 2**-24] * 15)
    inputs = {"x": x, "axes": np.array([0])}
    model = model_of([(operator, ["x", "axes"], {"keepdims": 0})], inputs)
    divisor = 16 if operator == "ReduceMean" else 1
    assert passes_estimate(model, inputs, np.add.accumulate(x)[-1] / np.float32(divisor))
    wrong = (x.astype(float).sum() + (roundings + 2) * 2**-24) / divisor
    assert not passes_estimate(model, inputs, wrong)


def test_coordinates_of_16_bit_images_are_those_of_float32():
    """The scales of Resize are float32, which can distinguish the pixels of wide images."""
    x = np.arange(2000).reshape(1, 1, -1).astype(np.float16) % 2
    inputs = {"x": x, "none": np.array([], np.float32), "scales": np.array([1, 1, 1.5], np.float32)}
    attributes = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    model = model_of(
        [("Resize", ["x", "none", "scales"], attributes)], inputs, types=[TensorProto.FLOAT16]
    )
    places = np.arange(3000, dtype=np.float32) / np.float32(1.5)
    low = np.minimum(places.astype(int), 1999)
    share = places - low
    high = np.minimum(low + 1, 1999)
    row = x[0, 0].astype(np.float32)
    y = (1 - share) * row[low] + share * row[high]
    assert passes_estimate(model, inputs, y[None, None].astype(np.float16))
    moved = (1 - share - 0.1) * row[low] + (share + 0.1) * row[high]
    assert not passes_estimate(model, inputs, moved[None, None].astype(np.float16))


@pytest.mark.parametrize("alpha", [0.5, -0.5])
@pytest.mark.parametrize("beta", [2.0, -2.0])
def test_gemm_rounds_the_terms_that_it_subtracts(alpha, beta):
    random = np.random.default_rng(6)
    a, b = random.random((20, 8)).astype(np.float32), random.random((8, 20)).astype(np.float32)
    c = (np.abs(alpha / beta) * (a.astype(float) @ b)).astype(np.float32)
    inputs = {"a": a, "b": b, "c": c}
    products = np.add.accumulate(a[:, :, None] * b[None], axis=1)[:, -1]
    right = np.float32(alpha) * products + np.float32(beta) * c
    assert node_passes("Gemm", inputs, right, alpha=alpha, beta=beta)
    assert not node_passes("Gemm", inputs, right + 3e-5, alpha=alpha, beta=beta)
