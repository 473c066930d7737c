"""Corrections of operators for which onnx's reference deviates from the specification.

The tests compute the right values as the specification describes.
"""

import math
from itertools import product

import hypothesis
import ml_dtypes
import mpmath
import numpy as np
import onnx.parser
import pytest
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.core.tolerance import (
    Branch,
    ErrorBound,
    Provenance,
)
from onnxopt_cli.oracle.corrections import windows
from onnxopt_cli.oracle.estimate.condition_estimate import condition
from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.oracle.patching import corrected, replaced
from onnxopt_cli.oracle.rounding.injection import UNITS
from onnxopt_cli.oracle.widen import in_double

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


def passes(conditioned_output, value):
    assert not conditioned_output.reason, conditioned_output.reason
    branch = None
    for expected, limit in reversed(conditioned_output.right):
        branch = Branch(expected, limit, branch)
    error_bound = ErrorBound(branch.at, UNITS, Provenance.CONDITIONED)
    return largest_share({"": branch.expected}, [value], lambda _: error_bound) <= 1


def verify(model, inputs, right, *, reference_fails=True):
    """Check that the right outputs pass, and that outputs of onnx's uncorrected reference fail."""
    estimates = condition(model, inputs)
    for conditioned_output, value in zip(estimates, right, strict=True):
        assert passes(conditioned_output, value), (conditioned_output.right[0][0], value)
    if not reference_fails:
        return
    try:
        raw = ReferenceEvaluator(model).run(None, inputs)
    except Exception:  # noqa: BLE001 - the reference lacks the operator
        return
    assert not all(map(passes, estimates, raw)), raw


def f32(*numbers):
    return np.array(numbers, np.float32)


def exact(function, x):
    return np.array([float(function(float(element))) for element in x.ravel()]).reshape(x.shape)


def sample_points(x):
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
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        near = x[:, max(0, c - (size - 1) // 2) : c + math.ceil((size - 1) / 2) + 1]
        y[:, c] = x[:, c] / (bias + alpha / size * (near**2).sum(axis=1)) ** beta
    return y


LRN = {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 1.5}
VOLUME = np.cos(np.arange(2 * 5 * 3 * 2 * 2)).reshape(2, 5, 3, 2, 2)
GELU = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in sample_points(9)]
#: Each example has an operator, its version, the inputs, the attributes and the right outputs.
EXAMPLES = {
    "Erf of doubles": ("Erf", 22, [sample_points(9)], {}, [exact(mpmath.erf, sample_points(9))]),
    "Gelu of doubles": ("Gelu", 22, [sample_points(9)], {}, [np.array(GELU)]),
    "HardSwish of doubles": (
        *("HardSwish", 22, [sample_points(9)], {}),
        [sample_points(9) * np.clip(sample_points(9) / 6 + 0.5, 0, 1)],
    ),
    "Gemm of version 6": (
        *("Gemm", 6, [f32([1, 2]), f32([3], [4]), f32([5])], {"alpha": 2.0, "beta": 3.0}),
        [f32([37])],
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
        # 2.5 is rounded to 2, and the zero point 1 is added. Rounding 2.5 + 1 would result in 4.
        [u8([3])],
    ),
    "QLinearMatMul with scales of rows": (
        "QLinearMatMul",
        21,
        [MATRIX, f32(1, 2), u8(1, 3), MATRIX, f32(1)[0], U8(0), f32(1)[0], U8(0)],
        {},
        [u8([34, 46], [2 * (4 * 3 + 6 * 7), 2 * (4 * 5 + 6 * 9)])],
    ),
    "CumSum along an axis in a vector": (
        *("CumSum", 14, [f32(1, 2), np.array([0])], {}),
        [f32(1, 3)],
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
    "Mean broadcasts the first operand": (
        *("Mean", 22, [f32(1), f32(2, 4, 6)], {}),
        [f32(1.5, 2.5, 3.5)],
    ),
    "Shape with an end before the first axis": (
        "Shape",
        15,
        [SQUARE],
        {"end": -6},
        [np.array([], "i8")],
    ),
    "Unique alone in the order of first occurrences": (
        *("Unique", 11, [f32(2, 1, 1, 3)], {"sorted": 0}),
        [f32(2, 1, 3)],
    ),
    "Squeeze in any order": (
        *("Squeeze", 11, [SQUARE.reshape(1, 16, 1, 1)], {"axes": [2, 0, 3]}),
        [SQUARE.reshape(16)],
    ),
    "Unsqueeze in any order": (
        *("Unsqueeze", 11, [f32(1, 2)], {"axes": [2, 0]}),
        [f32(1, 2).reshape(1, 2, 1)],
    ),
    "SoftmaxCrossEntropyLoss of an improbable class": (
        *("SoftmaxCrossEntropyLoss", 13, [FAR_SCORES, np.array([2])], {"reduction": "none"}),
        [f32(1000)],
    ),
    "ConvTranspose to a shape": (
        "ConvTranspose",
        22,
        [f32([[1, 2]]), f32([[1, 10, 100]])],
        {"strides": [2], "output_shape": [4]},
        # The full output, 1 10 102 20 200, has a surplus element, so its first element is cut off.
        [f32([[10, 102, 20, 200]])],
    ),
    "Resize along negative axes": (
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
        # The window is shifted to the right by half a pixel. Its value is therefore the mean of the
        # pixel and of a zero in the padding.
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
    "Gemm of integers that double rounds": (
        "Gemm",
        13,
        # The results are 2^53 + 1 + 2 * 5 - 4 * 3 and 3 + 7 * 5 - 4 * 3.
        [np.array([[2**53 + 1, 2], [3, 7]]), np.array([[1], [5]]), np.array([-4])],
        {"beta": 3.0},
        [np.array([[2**53 - 1], [26]])],
    ),
    "Gemm of integers that wrap around": (
        "Gemm",
        13,
        [np.array([[-23]]), np.array([[1]]), np.array([-(2**63)])],
        {},
        [np.array([[2**63 - 23]])],
    ),
    "AveragePool with SAME_UPPER and dilations": (
        "AveragePool",
        22,
        [f32([[1, 2, 4, 8]])],
        {"kernel_shape": [2], "dilations": [2], "auto_pad": "SAME_UPPER"},
        # A window covers 3 elements, so there is one element of padding on either side.
        [f32([[2, 2.5, 5, 4]])],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_corrected_operator_follows_the_specification(name):
    operator, opset, operands, attributes, right = EXAMPLES[name]
    inputs = {f"x{place}": np.asarray(operand) for place, operand in enumerate(operands)}
    # In an example, an empty array stands for an omitted input.
    used = [name if value.size else "" for name, value in inputs.items()]
    fed = {name: value for name, value in inputs.items() if value.size}
    outputs = {f"y{place}": value for place, value in enumerate(right)}
    node = helper.make_node(operator, used, list(outputs), **attributes)
    verify(model_of([node], fed, outputs, opset), fed, right)


def test_omitted_intercepts_add_zero():
    x = f32([1, 2])
    y = f32([11])
    node = helper.make_node(
        "LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[3.0, 4.0]
    )
    verify(model_of([node], {"x": x}, {"y": y}, 3, "ai.onnx.ml"), {"x": x}, [y])


@pytest.mark.parametrize(("norm", "divisor"), [("MAX", 4), ("L1", 7), ("L2", 5)])
def test_normalizer_of_a_vector_or_of_no_rows(norm, divisor):
    node = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm=norm)
    for x in (f32(3, -4), np.zeros((0, 2), np.float32)):
        y = (x / divisor).astype(np.float32)
        verify(model_of([node], {"x": x}, {"y": y}, 1, "ai.onnx.ml"), {"x": x}, [y])


@pytest.mark.parametrize("dimensions", [[3, 2], None])
def test_feature_vectorizer_concatenates_vectors_as_rows(dimensions):
    inputs, y = {"a": f32(1, 2, 3), "b": f32([4, 5])}, f32([1, 2, 3, 4, 5])
    attributes = {"inputdimensions": dimensions} if dimensions else {}
    domain = "ai.onnx.ml"
    node = helper.make_node("FeatureVectorizer", ["a", "b"], ["y"], domain=domain, **attributes)
    verify(model_of([node], inputs, {"y": y}, 1, domain), inputs, [y])


@pytest.mark.parametrize(
    ("mode", "powers"), [("up", [2, 2, 4]), ("down", [1, 1, 2]), ("nearest", [1, 2, 4])]
)
def test_cast_like_rounds_as_stated(mode, powers):
    kind = ml_dtypes.float8_e8m0fnu
    inputs = {"x": f32(1.25, 1.75, 3), "like": np.ones(1, kind)}
    y = np.array(powers, kind)
    node = helper.make_node("CastLike", [*inputs], ["y"], round_mode=mode)
    verify(model_of([node], inputs, {"y": y}, 25), inputs, [y])


@pytest.mark.parametrize(
    ("operator", "attributes", "reason"),
    [
        ("LinearClassifier", {"classlabels_ints": [7]}, "not among the class labels"),
        ("LinearClassifier", {"classlabels_strings": ["a"]}, "not among the class labels"),
        ("SVMClassifier", {"classlabels_ints": [7, 9], "rho": [0.5]}, "no document states"),
    ],
)
def test_classifier_whose_labels_no_document_defines_is_not_judged(operator, attributes, reason):
    x, domain = f32([1, 2], [-3, 4]), "ai.onnx.ml"
    coefficients = [1.0, 2.0] * len(*(v for k, v in attributes.items() if k.startswith("class")))
    node = helper.make_node(
        operator, ["x"], ["y", "z"], domain=domain, coefficients=coefficients, **attributes
    )
    model = model_of([node], {"x": x}, {"y": np.zeros(2, np.int64), "z": x}, 1, domain)
    with pytest.raises(NoReferenceError, match=reason):
        condition(model, {"x": x})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(
    ("operator", "attributes", "right"),
    [
        ("Scaler", {"offset": [0.5, 1.0], "scale": [0.5, 0.25]}, [[0.25, 0.5], [1.25, -1.25]]),
        ("Normalizer", {"norm": "L1"}, [[0.25, 0.75], [3 / 7, -4 / 7]]),
        ("Normalizer", {"norm": "L2"}, [[10**-0.5, 3 * 10**-0.5], [0.6, -0.8]]),
        ("LinearRegressor", {"coefficients": [0.5, 0.25]}, [[1.25], [0.5]]),
        (
            "LinearRegressor",
            {"coefficients": [0.0, 0, math.log(2), 0], "targets": 2, "post_transform": "SOFTMAX"},
            [[1 / 3, 2 / 3], [1 / 9, 8 / 9]],
        ),
        (
            "SVMRegressor",
            {
                "coefficients": [math.log(3), 0.0],
                "kernel_type": "LINEAR",
                "rho": [0.0],
                "post_transform": "LOGISTIC",
            },
            [[3 / 4], [27 / 28]],
        ),
        ("FeatureVectorizer", {"inputdimensions": [3]}, [[1, 3, 0], [3, -4, 0]]),
    ],
)
def test_outputs_are_float32_for_operands_of_any_type(operator, attributes, right, dtype):
    x, domain = np.array([[1, 3], [3, -4]], dtype), "ai.onnx.ml"
    node = helper.make_node(operator, ["x"], ["y"], domain=domain, **attributes)
    models = [
        model_of([node], {"x": value}, {"y": f32(*right)}, 1, domain) for value in (x, f32(*x))
    ]
    (output,) = condition(models[0], {"x": x})
    expected, limit = output.right[0]
    assert expected.dtype == np.float32
    np.testing.assert_allclose(expected, right, rtol=1e-6)
    # The tolerances are those of the same numbers in float32.
    np.testing.assert_array_equal(limit, condition(models[1], {"x": f32(*x)})[0].right[0][1])


def test_nan_takes_the_false_branches_of_trees_by_default():
    attributes = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [1.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [0.25, 0.75],
        "n_targets": 1,
    }
    x, y, domain = f32([np.nan], [1]), f32([0.75], [0.25]), "ai.onnx.ml"
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=domain, **attributes)
    verify(model_of([node], {"x": x}, {"y": y}, 1, domain), {"x": x}, [y])


def test_tree_that_is_a_leaf_has_the_weight_of_the_leaf():
    attributes = {
        "tree_roots": [0],
        "nodes_featureids": [0],
        "nodes_splits": numpy_helper.from_array(f32([0.5])[0]),
        "nodes_modes": numpy_helper.from_array(np.array([0], np.uint8)),
        "nodes_truenodeids": [1],
        "nodes_falsenodeids": [1],
        "nodes_trueleafs": [1],
        "nodes_falseleafs": [1],
        "leaf_weights": numpy_helper.from_array(f32([7, 2.5])[0]),
        "leaf_targetids": [0, 0],
        "n_targets": 1,
    }
    x, y, domain = f32([1]), f32([2.5]), "ai.onnx.ml"
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain=domain, **attributes)
    verify(model_of([node], {"x": x}, {"y": y}, 5, domain), {"x": x}, [y])


@pytest.mark.parametrize("operator", ["TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_trees_read_tensors_of_doubles(operator):
    doubles = {
        "nodes_values": [1 + 1e-12, 0, 0],
        "base_values": [0.5, 0],
        "weights": [0.25, 0.75],
    }
    part = "target" if operator == "TreeEnsembleRegressor" else "class"
    attributes = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        f"{part}_treeids": [0, 0],
        f"{part}_nodeids": [1, 2],
        f"{part}_ids": [0, 1],
    }
    for name, values in doubles.items():
        full_name = f"{part}_weights" if name == "weights" else name
        tensor = numpy_helper.from_array(np.array(values, np.float64))
        attributes[f"{full_name}_as_tensor"] = tensor
    x = np.array([[1.0], [1 + 1e-12]])
    scores, labels = f32([0.75, 0], [0.5, 0.75]), np.array([7, 9])
    outputs = {"scores": scores}
    if part == "target":
        attributes["n_targets"] = 2
    else:
        attributes["classlabels_int64s"] = [7, 9]
        outputs = {"labels": labels, "scores": scores}
    domain = "ai.onnx.ml"
    node = helper.make_node(operator, ["x"], list(outputs), domain=domain, **attributes)
    model = model_of([node], {"x": x}, outputs, 3, domain)
    verify(model, {"x": x}, list(outputs.values()))


def test_one_hot_encoder_casts_floats_to_integers():
    x = f32([5.75, -1.25, 0.5])
    y = f32([[1, 0], [0, 1], [0, 0]])
    attributes = {"cats_int64s": [5, -1], "zeros": 1}
    node = helper.make_node("OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    verify(model_of([node], {"x": x}, {"y": y}, 1, "ai.onnx.ml"), {"x": x}, [y])


def test_mean_loss_excludes_targets_with_a_negative_ignored_index():
    x = np.array([[-1, -2], [-3, -4], [-5, -6]], np.float32)
    target = np.array([0, -1, 1])
    y = np.array(3.5, np.float32)
    node = helper.make_node("NegativeLogLikelihoodLoss", ["x", "t"], ["y"], ignore_index=-1)
    verify(model_of([node], {"x": x, "t": target}, {"y": y}), {"x": x, "t": target}, [y])


@pytest.mark.parametrize(
    ("attributes", "right"),
    [
        ({}, ["été", ""]),
        ({"case_change_action": "UPPER"}, ["ÉTÉ", ""]),
        ({"is_case_sensitive": 1}, ["The", "THE", "été", ""]),
    ],
)
def test_stop_words_are_removed_in_any_case_unless_case_sensitive(attributes, right):
    x = np.array(["The", "the", "THE", "été", ""], object)
    y = np.array(right, object)
    node = helper.make_node("StringNormalizer", ["x"], ["y"], stopwords=["the"], **attributes)
    verify(model_of([node], {"x": x}, {"y": y}, 10), {"x": x}, [y])


def texts(*values):
    return np.array(values, object)


def tensor(*values):
    data = [value.encode() for value in values]
    return TensorProto(data_type=TensorProto.STRING, dims=[len(values)], string_data=data)


def labels(kind, **attributes):
    return {**attributes, f"default_{kind}": tensor("d\0") if kind == "tensor" else "d\0"}


X = texts("a\0", "a", "\0")
SCORES = np.array([[1, 2]], np.float32)
ML = "ai.onnx.ml"
LINEAR = {"coefficients": [1.0, 0.0, 0.0, 1.0], "classlabels_strings": ["a\0", "b\0"]}
TREE = {
    **{f"nodes_{name}": [0] for name in ("treeids", "nodeids", "featureids")},
    **{f"nodes_{name}": [0] for name in ("truenodeids", "falsenodeids")},
    "nodes_modes": ["LEAF"],
    "nodes_values": [0.0],
    "class_treeids": [0, 0],
    "class_nodeids": [0, 0],
    "class_ids": [0, 1],
    "class_weights": [0.25, 0.75],
    "classlabels_strings": ["a\0", "b\0"],
}
KEYS = ["a", "a\0"]
#: Each example has an operator, its domain and version, the inputs, the attributes and the first
#: output.
TEXT_EXAMPLES = [
    ("StringConcat", "", 22, [X, texts("b\0")], {}, ["a\0b\0", "ab\0", "\0b\0"]),
    ("StringSplit", "", 22, [texts("a\0 b\0", "")], {}, [["a\0", "b\0"], ["", ""]]),
    ("StringSplit", "", 22, [texts("a\0,b\0")], {"delimiter": ","}, [["a\0", "b\0"]]),
    ("StringSplit", "", 22, [texts("a\0b\0")], {"delimiter": "\0"}, [["a", "b", ""]]),
    ("StringNormalizer", "", 10, [X], {"case_change_action": "UPPER"}, ["A\0", "A", "\0"]),
    ("RegexFullMatch", "", 22, [X], {"pattern": "a"}, [False, True, False]),
    ("Cast", "", 22, [X], {"to": TensorProto.STRING}, X),
    ("CastLike", "", 22, [X, X], {}, X),
    ("Constant", "", 22, [], {"value_string": "a\0"}, "a\0"),
    ("Constant", "", 22, [], {"value_strings": [*X]}, X),
    ("Constant", "", 22, [], {"value": tensor(*X)}, X),
    ("OneHot", "", 22, [np.array([1]), np.array(2), texts("n\0", "y\0")], {}, [["n\0", "y\0"]]),
    ("Pad", "", 22, [X, np.array([1, 0])], {}, ["", *X]),
    ("Pad", "", 22, [X, np.array([1, 0]), np.array("p\0", object)], {}, ["p\0", *X]),
    ("Equal", "", 22, [X, X[::-1]], {}, [False, True, False]),
    ("Unique", "", 22, [X], {}, ["\0", "a", "a\0"]),
    ("Concat", "", 22, [X, X], {"axis": 0}, [*X, *X]),
    ("Gather", "", 22, [X, np.array([2, 0])], {}, ["\0", "a\0"]),
    ("Where", "", 22, [np.array([True, False, True]), X, X[::-1]], {}, X),
    *(
        ("LabelEncoder", ML, 4, [X], labels(kind, **attributes), ["r\0", "q\0", "d\0"])
        for kind, attributes in (
            ("string", {"keys_strings": KEYS, "values_strings": ["q\0", "r\0"]}),
            ("tensor", {"keys_tensor": tensor(*KEYS), "values_tensor": tensor("q\0", "r\0")}),
        )
    ),
    *(
        (
            "CategoryMapper",
            ML,
            1,
            [operand],
            {"cats_strings": KEYS, "cats_int64s": [1, 2], "default_string": "d\0"},
            right,
        )
        for operand, right in ((X, [2, 1, -1]), (np.array([2, 1, 3]), ["a\0", "a", "d\0"]))
    ),
    ("OneHotEncoder", ML, 1, [X], {"cats_strings": KEYS, "zeros": 1}, [[0, 1], [1, 0], [0, 0]]),
    (
        "TfIdfVectorizer",
        "",
        9,
        [X],
        {
            "mode": "TF",
            "min_gram_length": 1,
            "max_gram_length": 1,
            "max_skip_count": 0,
            "ngram_counts": [0],
            "ngram_indexes": [0, 1],
            "pool_strings": ["a\0", "\0"],
        },
        [1, 1],
    ),
    ("LinearClassifier", ML, 1, [SCORES], {**LINEAR, "intercepts": [0.0, 0.0]}, ["b\0"]),
    (
        "SVMClassifier",
        ML,
        1,
        [SCORES],
        {**LINEAR, "rho": [0.0, 0.0], "kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]},
        ["b\0"],
    ),
    ("TreeEnsembleClassifier", ML, 1, [SCORES], TREE, ["b\0"]),
]


@pytest.mark.parametrize(
    ("operator", "domain", "opset", "operands", "attributes", "right"), TEXT_EXAMPLES
)
def test_null_character_at_the_end_is_kept(operator, domain, opset, operands, attributes, right):
    inputs = {f"x{place}": operand for place, operand in enumerate(operands)}
    count = 2 if operator == "StringSplit" or operator.endswith("Classifier") else 1
    outputs = [f"y{place}" for place in range(count)]
    node = helper.make_node(operator, [*inputs], outputs, domain=domain, **attributes)
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None)
        for name, value in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, 0, None) for name in outputs]
    graph = helper.make_graph([node], "g", declared, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)])
    first, *_ = native_outputs(model, inputs)
    assert first.tolist() == np.array(right, object).tolist()


@st.composite
def pools(draw):
    """Draw an input and the attributes of a pool; no window contains only padding."""
    rank = draw(st.integers(1, 3))
    sizes, kernel, strides, dilations = (
        [draw(st.integers(*limits)) for _ in range(rank)]
        for limits in ((3, 7), (1, 3), (1, 3), (1, 2))
    )
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    hypothesis.assume(np.greater_equal(sizes, reach).all())
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    kind = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if kind == "NOTSET":
        most = [size - 1 if step == 1 else 0 for size, step in zip(kernel, dilations, strict=True)]
        attributes["pads"] = [draw(st.integers(0, limit)) for limit in most * 2]
        attributes["ceil_mode"] = draw(st.integers(0, 1))
    else:
        attributes["auto_pad"] = kind
    x = np.random.default_rng(draw(st.integers(0, 99))).permutation(2 * 2 * math.prod(sizes))
    x = x.reshape(2, 2, *sizes).astype(np.float32)
    if draw(st.booleans()):
        x.reshape(-1)[draw(st.integers(0, x.size - 1))] = np.nan
    return x, attributes


def windows_of(x, attributes):
    """Yield the index of each output element, and a list of the elements in its window.

    The list has a pair for each element: the index of the element in ``x``, and the value. In the
    padding, the index is None.
    """
    rank = x.ndim - 2
    kernel, strides, dilations = (
        attributes[name] for name in ("kernel_shape", "strides", "dilations")
    )
    pads, counts = attributes.get("pads", [0] * 2 * rank), []
    pads = [[pads[axis], pads[axis + rank]] for axis in range(rank)]
    for axis, size in enumerate(x.shape[2:]):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if attributes.get("auto_pad", "").startswith("SAME"):
            count = math.ceil(size / strides[axis])
            total = max((count - 1) * strides[axis] + reach - size, 0)
            halves = [total // 2, total - total // 2]
            pads[axis] = halves if attributes["auto_pad"] == "SAME_UPPER" else halves[::-1]
        else:
            quotient = (size + sum(pads[axis]) - reach) / strides[axis] + 1
            count = math.ceil(quotient) if attributes.get("ceil_mode") else math.floor(quotient)
            if attributes.get("ceil_mode") and (count - 1) * strides[axis] >= size + pads[axis][0]:
                count -= 1
        counts.append(count)
    for image in product(*map(range, x.shape[:2])):
        for output_place in product(*map(range, counts)):
            elements = []
            for inside in product(*map(range, kernel)):
                place = [
                    output_place[axis] * strides[axis]
                    + inside[axis] * dilations[axis]
                    - pads[axis][0]
                    for axis in range(rank)
                ]
                if all(0 <= at < size for at, size in zip(place, x.shape[2:], strict=True)):
                    elements.append(((*image, *place), x[(*image, *place)]))
                elif all(
                    at < size + pads[axis][1]
                    for axis, (at, size) in enumerate(zip(place, x.shape[2:], strict=True))
                ):
                    elements.append((None, 0.0))
            yield (*image, *output_place), elements


def computed(x, attributes, function, dtype):
    results = {place: function(elements) for place, elements in windows_of(x, attributes)}
    shape = np.max(list(results), axis=0) + 1
    return np.array(list(results.values()), dtype).reshape(shape)


def outputs_of(operator, x, attributes, count=1):
    outputs = {f"y{at}": (x, np.array(0))[at] for at in range(count)}
    node = helper.make_node(operator, ["x"], list(outputs), **attributes)
    return condition(model_of([node], {"x": x}, outputs), {"x": x})


@hypothesis.given(pools(), st.sampled_from([0, 1]))
def test_max_pool_equals_maxima_of_windows(drawn, storage_order):
    x, attributes = drawn

    def place(elements):
        real = [(at, value) for at, value in elements if at]
        nan_places = [at for at, value in real if np.isnan(value)]
        at = nan_places[0] if nan_places else max(real, key=lambda element: element[1])[0]
        image, within = np.ravel_multi_index(at[:2], x.shape[:2]), x.shape[2:]
        order = "F" if storage_order else "C"
        number = np.ravel_multi_index(at[2:], within, order=order)
        return image * math.prod(within) + number

    def largest(elements):
        return np.max([value for at, value in elements if at])

    maxima, indices = outputs_of("MaxPool", x, {**attributes, "storage_order": storage_order}, 2)
    assert passes(maxima, computed(x, attributes, largest, np.float32))
    places = computed(x, attributes, place, np.int64)
    assert passes(indices, places)
    assert not passes(indices, places + 1)


@hypothesis.given(pools(), st.booleans())
def test_average_pool_equals_means_of_windows(drawn, pad):
    x, attributes = drawn

    def mean(elements):
        return np.mean([value for at, value in elements if at or pad])

    (output,) = outputs_of("AveragePool", x, {**attributes, "count_include_pad": int(pad)})
    assert passes(output, computed(x, attributes, mean, np.float32))


@hypothesis.given(pools(), st.integers(1, 3))
def test_lp_pool_equals_norms_of_windows(drawn, p):
    x, attributes = drawn

    def norm(elements):
        return sum(abs(float(value)) ** p for _, value in elements) ** (1 / p)

    (output,) = outputs_of("LpPool", x, {**attributes, "p": p})
    assert passes(output, computed(x, attributes, norm, np.float32))


def test_interpolated_number_between_two_integers_may_round_either_way():
    x, grid = np.array([[[[0, 5]]]], np.int32), np.zeros((1, 1, 1, 2), np.float32)
    node = helper.make_node("GridSample", ["x", "grid"], ["y"])
    sampled = model_of([node], {"x": x, "grid": grid}, {"y": x})
    scales = f32(1, 1, 1, 0.5)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    resized = model_of([node], {"x": x, "scales": scales}, {"y": x})
    for model, inputs in ((sampled, {"x": x, "grid": grid}), (resized, {"x": x, "scales": scales})):
        (output,) = condition(model, inputs)
        accepted = [passes(output, np.full((1, 1, 1, 1), n, np.int32)) for n in range(6)]
        assert accepted == [False, False, True, True, False, False]


@pytest.mark.parametrize(("length", "accepted"), [(6, [False, True]), (18, [False, False])])
def test_truncated_integer_may_be_one_smaller_if_coordinates_are_rounded(length, accepted):
    x, scales = np.full((1, 1, 1, 9), 20, np.uint8), f32(1, 1, 1, length / 9)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    model = model_of([node], {"x": x, "scales": scales}, {"y": x})
    (output,) = condition(model, {"x": x, "scales": scales})
    shape = (1, 1, 1, length)
    assert passes(output, np.full(shape, 20, np.uint8))
    assert [passes(output, np.full(shape, n, np.uint8)) for n in (18, 19)] == accepted


def body_of(outputs):
    """Return the body of a loop that doubles its state, and also returns it as a scan output."""
    return helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["still"]),
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("Identity", ["next"], ["scanned"]),
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
            helper.make_tensor_value_info("scanned", TensorProto.FLOAT, outputs),
        ],
    )


STATE = f32([1, 2], [3, 4])


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("condition_given", [True, False])
def test_loop_stacks_outputs_of_any_number_of_iterations(trips, condition_given):
    inputs = {"m": np.array(trips), "state": STATE}
    names = ["m", "go" if condition_given else "", "state"]
    inputs |= {"go": np.array(True)} if condition_given else {}
    node = helper.make_node("Loop", names, ["last", "all"], body=body_of([2, 2]))
    model = model_of([node], inputs, {"last": STATE, "all": STATE})
    states = [STATE * 2 ** (at + 1) for at in range(trips)]
    stacked = np.stack(states) if trips else np.zeros((0, 2, 2), np.float32)
    last, everything = condition(model, inputs)
    assert passes(last, STATE * 2.0**trips)
    assert passes(everything, stacked.astype(np.float32))


def test_loop_that_never_runs_needs_a_declared_shape():
    inputs = {"m": np.array(0), "go": np.array(True), "state": STATE}
    node = helper.make_node("Loop", list(inputs), ["last", "all"], body=body_of(["n", 2]))
    model = model_of([node], inputs, {"last": STATE, "all": STATE})
    with pytest.raises(NoReferenceError, match="does not declare the shape"):
        condition(model, inputs)


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("backward", [(0, 0), (1, 0), (0, 1)])
def test_scan_runs_along_any_axis_in_any_direction(length, axis, backward):
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "part"], ["next"]),
            helper.make_node("Identity", ["next"], ["scanned"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("state", "part")],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])
            for name in ("next", "scanned")
        ],
    )
    parts = np.arange(length * 3, dtype=np.float32).reshape(length, 3) / 4
    start = f32(1, 2, 3)
    inputs = {"state": start, "x": np.moveaxis(parts / 2, 0, axis).copy()}
    # The first node makes the slices of the scan differ between the perturbed runs.
    doubled = helper.make_node("Add", ["x", "x"], ["doubled"])
    node = helper.make_node(
        "Scan",
        ["state", "doubled"],
        ["last", "all"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
        scan_input_directions=[backward[0]],
        scan_output_directions=[backward[1]],
    )
    model = model_of([doubled, node], inputs, {"last": start, "all": inputs["x"]})
    order = parts[::-1] if backward[0] else parts
    sums = start + np.cumsum(order, axis=0)
    last, everything = condition(model, inputs)
    right = np.asarray(sums[-1] if length else start, np.float32)
    assert passes(last, right)
    assert not passes(last, right * np.float32(1.001))
    scanned = np.moveaxis(sums[::-1] if backward[1] else sums, 0, axis).astype(np.float32)
    assert passes(everything, scanned)


@hypothesis.given(st.data())
def test_convolution_in_blocks_equals_the_convolution_of_all_windows(data):
    rank = data.draw(st.integers(1, 2))

    def along(least, most):
        return [data.draw(st.integers(least, most)) for _ in range(rank)]

    group, kernel = data.draw(st.integers(1, 2)), along(1, 3)
    shape = (data.draw(st.integers(1, 2)), 2 * group, *along(6, 9))
    # Sums of small integers are exact in any order.
    inputs = {
        "x": np.arange(math.prod(shape)).reshape(shape) % 7.0,
        "w": np.arange(4 * group * math.prod(kernel)).reshape(2 * group, 2, *kernel) % 5.0,
        "b": np.arange(2.0 * group),
    }
    attributes = {"strides": along(1, 3), "dilations": along(1, 2), "group": group}
    if data.draw(st.booleans()):
        attributes["pads"] = [*along(0, 2), *along(0, 2)]
    else:
        attributes["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    node = helper.make_node("Conv", [*inputs], ["y"], **attributes)
    model = model_of([node], inputs, {"y": inputs["x"]})
    (whole,) = native_outputs(model, inputs)
    with replaced((windows, "_MAX_WINDOW_BYTES", data.draw(st.sampled_from([1, 500, 3000])))):
        (in_blocks,) = native_outputs(model, inputs)
    assert np.array_equal(in_blocks, whole)


@pytest.mark.parametrize("few_windows", [0, 10_000])
def test_columns_summed_at_once_equal_those_summed_by_the_reference(few_windows):
    settings = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 0, 2]}
    x = np.arange(2 * 4 * 3 * 5).reshape(2, 4, 3, 5) % 7.0
    weights = np.arange(4 * 3 * 2 * 3).reshape(4, 3, 2, 3) % 5.0
    image, block = np.array([6, 8]), np.array([2, 3])
    columns = np.arange(2 * 12 * 18).reshape(2, 12, 18) % 11.0
    for operator, inputs in (
        ("ConvTranspose", {"x": x, "w": weights, "b": np.arange(3.0)}),
        ("Col2Im", {"x": columns, "image": image, "block": block}),
    ):
        node = helper.make_node(operator, [*inputs], ["y"], **settings)
        model = model_of([node], inputs, {"y": x})
        (expected,) = ReferenceEvaluator(model).run(None, inputs)
        with replaced((windows, "_FEW_WINDOWS", few_windows)):
            (computed_at_once,) = native_outputs(model, inputs)
        assert np.array_equal(computed_at_once, expected)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_equals_the_samples_of_the_reference(mode, padding, aligned):
    random = np.random.default_rng(0)
    # The reference rounds coordinates to float32, which changes none of these coordinates.
    inputs = {
        "x": random.standard_normal((2, 2, 5, 3)),
        "grid": random.integers(-24, 25, (2, 4, 6, 2)) / 16,
    }
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    node = helper.make_node("GridSample", [*inputs], ["y"], **attributes)
    model = model_of([node], inputs, {"y": inputs["x"]})
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    (sampled,) = native_outputs(model, inputs)
    np.testing.assert_allclose(sampled, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("operator", "operands", "attributes", "shape"),
    [
        ("Flatten", [np.zeros((0, 3, 4), np.float32)], {}, (0, 12)),
        ("Flatten", [np.zeros((2, 0, 4), np.float32)], {"axis": -1}, (0, 4)),
        (
            "Col2Im",
            [np.zeros((0, 8, 3), np.float32), *np.int64([[2, 4], [2, 2]])],
            {},
            (0, 2, 2, 4),
        ),
    ],
)
def test_tensors_without_elements_keep_their_shapes(operator, operands, attributes, shape):
    inputs = {f"x{place}": operand for place, operand in enumerate(operands)}
    node = helper.make_node(operator, [*inputs], ["y"], **attributes)
    (y,) = native_outputs(model_of([node], inputs, {"y": operands[0]}), inputs)
    assert y.shape == shape


@pytest.mark.parametrize("lengths", [(), (3, 1)])
def test_sequence_map_takes_elements_of_all_sequences(lengths):
    body = onnx.parser.parse_graph(
        "b (float[n] a, float[n] b, float[1] c) => (float[n] y, float[n] z)"
        "{ s = Add (a, b) y = Mul (s, c) z = Identity (b) }"
    )
    node = helper.make_node("SequenceMap", ["first", "second", "factor"], ["y", "z"], body=body)
    sequence = helper.make_tensor_sequence_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [
            *(sequence(name, TensorProto.FLOAT, None) for name in ("first", "second")),
            value_info("factor", f32(1)),
        ],
        [sequence(name, TensorProto.FLOAT, None) for name in ("y", "z")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    ones = [np.ones(length, np.float32) for length in lengths]
    inputs = {"first": ones, "second": [element * 2 for element in ones], "factor": f32(5)}
    y, z = native_outputs(model, inputs)
    assert list(map(list, y)) == [[15.0] * length for length in lengths]
    assert list(map(list, z)) == [[2.0] * length for length in lengths]


@pytest.mark.parametrize("operator", ["AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool"])
def test_windows_of_an_empty_batch_are_empty(operator):
    inputs = {"x": np.zeros((0, 1, 4, 4), np.float32)}
    if operator.startswith("Conv"):
        # Weights of 3e38 might overflow in products, but an empty batch has no products.
        inputs["w"] = np.full((1, 1, 2, 2), 3e38, np.float32)
    node = helper.make_node(operator, [*inputs], ["y"], kernel_shape=[2, 2])
    length = 5 if operator == "ConvTranspose" else 3
    empty = np.zeros((0, 1, length, length), np.float32)
    model = model_of([node], inputs, {"y": empty})
    (conditioned_output,) = condition(model, inputs)
    assert not conditioned_output.reason
    assert conditioned_output.right[0][0].shape == empty.shape


@pytest.mark.parametrize(
    ("operator", "operands", "attributes", "shape"),
    [
        ("DeformConv", [(0, 1, 2, 2), (3, 1, 1, 1), (0, 2, 2, 2)], {}, (0, 3, 2, 2)),
        ("GlobalAveragePool", [(0, 2, 3, 3)], {}, (0, 2, 1, 1)),
        ("GroupNormalization", [(0, 2, 3), (2,), (2,)], {"num_groups": 2}, (0, 2, 3)),
        ("LRN", [(2, 0, 3)], {"size": 3}, (2, 0, 3)),
    ],
)
def test_output_for_an_empty_batch_is_empty(operator, operands, attributes, shape):
    inputs = {f"x{place}": np.ones(size, np.float32) for place, size in enumerate(operands)}
    node = helper.make_node(operator, [*inputs], ["y"], **attributes)
    model = model_of([node], inputs, {"y": np.zeros(shape, np.float32)})
    (conditioned_output,) = condition(model, inputs)
    assert conditioned_output.right[0][0].shape == shape


@pytest.mark.parametrize(
    ("a", "a_scale", "right"),
    [(u8(2, 3), f32(1), U8(5)), (u8([1, 2], [3, 4]), f32(1, 2), u8(3, 14))],
)
def test_quantized_product_of_vectors_has_no_axes_of_vectors(a, a_scale, right):
    one, zero = f32(1), u8(0)
    operands = [a, a_scale, np.zeros_like(a_scale, np.uint8), u8(1, 1), one, zero, one, zero]
    inputs = {f"x{place}": operand for place, operand in enumerate(operands)}
    node = helper.make_node("QLinearMatMul", [*inputs], ["y"])
    (conditioned_output,) = condition(model_of([node], inputs, {"y": right}, opset=21), inputs)
    np.testing.assert_array_equal(conditioned_output.right[0][0], right, strict=True)


def test_gathering_no_slices_yields_an_empty_output():
    inputs = {"x": np.ones((0, 3), np.float32), "indices": np.ones((0, 2, 1), np.int64)}
    node = helper.make_node("GatherND", [*inputs], ["y"], batch_dims=1)
    empty = np.ones((0, 2), np.float32)
    verify(model_of([node], inputs, {"y": empty}), inputs, [empty])


@pytest.mark.parametrize(("batch", "length"), [(2, 0), (0, 2)])
def test_empty_queries_yield_an_empty_output(batch, length):
    shapes = {"q": (batch, length, 8), "k": (batch, 3, 4), "v": (batch, 3, 6)}
    inputs = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    node = helper.make_node("Attention", [*inputs], ["y"], q_num_heads=4, kv_num_heads=2)
    empty = np.ones((batch, length, 12), np.float32)
    (conditioned_output,) = condition(model_of([node], inputs, {"y": empty}, opset=24), inputs)
    assert conditioned_output.right[0][0].shape == empty.shape


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize(("padding", "right"), [("zeros", [0, 0]), ("border", [2, 3])])
def test_infinite_and_huge_coordinates_are_beyond_the_image(mode, padding, right):
    grid = f32([[[np.inf, -1], [-np.inf, 1e30]]])
    inputs, y = {"x": f32([[[1, 2], [3, 5]]]), "grid": grid}, f32([[right]])
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": 1}
    node = helper.make_node("GridSample", [*inputs], ["y"], **attributes)
    verify(model_of([node], inputs, {"y": y}), inputs, [y], reference_fails=False)


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_convolution_of_no_channels_is_the_bias(operator):
    shape = (2, 0, 2, 2) if operator == "Conv" else (0, 2, 2, 2)
    inputs = {"x": np.zeros((1, 0, 4, 4), np.float32), "w": np.zeros(shape, np.float32)}
    inputs["b"] = f32(1, 2)
    length = 3 if operator == "Conv" else 5
    right = np.broadcast_to(f32([1], [2])[..., None], (1, 2, length, length))
    model = model_of([helper.make_node(operator, [*inputs], ["y"])], inputs, {"y": right})
    (conditioned_output,) = condition(model, inputs)
    np.testing.assert_array_equal(conditioned_output.right[0][0], right)


@pytest.mark.parametrize(
    ("opset", "power", "size"), [(1, 2.0, 1e-20), (18, 2, 1e-20), (18, 1000, 0.01)]
)
def test_power_of_pool_may_be_a_float_or_large(opset, power, size):
    x = np.array([[[size, 2 * size, size]]], np.float32)
    node = helper.make_node("LpPool", ["x"], ["y"], p=power, kernel_shape=[2])
    # The expected norm is scaled by the larger element, because powers of the elements themselves
    # may leave the range.
    right = np.full((1, 1, 2), 2 * size * (1 + 0.5**power) ** (1 / power), np.float32)
    verify(
        model_of([node], {"x": x}, {"y": right}, opset), {"x": x}, [right], reference_fails=False
    )


def test_corrected_operators_compute_in_double():
    def modules_in_double():
        in_double.cache_clear()
        return {module.__name__.removeprefix("onnx.reference.ops.") for module, *_ in in_double()}

    outside = modules_in_double()
    with corrected():
        assert modules_in_double() == outside
    assert "aionnxml.op_tree_ensemble_classifier" in outside
