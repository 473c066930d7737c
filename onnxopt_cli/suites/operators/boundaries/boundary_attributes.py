"""Nodes with attributes that the generators never set, or set to few values.

Examples are tables given as tensors, groups of channels, transformations of scores, padding longer
than the axis, and subgraphs with several states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.boundary_types import set_two_trees
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    distinct_bytes,
    fixed_node,
    int64s,
    vectors,
)
from onnxopt_cli.suites.operators.node_draft import NodeDraft

_INT64, _BOOL = TensorProto.INT64, TensorProto.BOOL
# Values of the attribute post_transform of TreeEnsemble.
_TRANSFORMS = ("softmax", "logistic", "softmax_zero")
_BRANCH_MEMBER = 6


def boundary_attributes() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _tables()
    yield from _groups()
    yield from _saturation()
    yield from _trees()
    yield from _machines()
    yield from _scores()
    yield from _far_padding()
    yield from _stash_types()
    yield from _output_shapes()
    yield from _omitted_values()
    yield from _states()
    yield from _zeros()


def _tables() -> Iterator[tuple[str, str, Generator]]:
    """Yield tables whose keys, values and default are tensors."""
    texts = np.array(["a", "", "\u00e9"], object)
    doubles, shorts = np.array([1 / 3, -2.5, 1e300]), np.array([7, -300, 2], np.int16)
    double_keys = np.array([0.1, np.nan, -2.5])
    tables: Sequence[tuple[str, Array, Any, Array, Array]] = (
        ("int64_float64", int64s(5, -1, 9), 6, doubles, np.array([0.1])),
        ("text_int16", texts, "A", shorts, np.array([-9], np.int16)),
        ("float64_text", double_keys, 0.1 + 2**-50, texts, np.array(["z"], object)),
    )
    for stem, keys, unknown, values, default in tables:
        x = np.array([*keys.tolist()[::-1], unknown], keys.dtype)
        encoder = fixed_node(
            x,
            keys_tensor=tensor_of(keys),
            values_tensor=tensor_of(values),
            default_tensor=tensor_of(default),
        )
        yield "LabelEncoder", f"tensors_{stem}", encoder


def _groups() -> Iterator[tuple[str, str, Generator]]:
    """Yield convolutions of three groups with different numbers of input and output channels."""
    x_shape, weights_shape = (1, 6, 3, 3), (9, 2, 2, 2)
    x, weights = distinct(*x_shape), distinct(*weights_shape)
    yield "Conv", "three_groups", fixed_node(x, weights, distinct(9), group=3)
    transposed = distinct(6, 3, 2, 2)
    yield "ConvTranspose", "three_groups", fixed_node(x, transposed, distinct(9), group=3)
    bytes_x, bytes_w = distinct_bytes(*x_shape), distinct_bytes(*weights_shape)
    zero, scale = np.uint8(7), np.float32(0.5)
    yield "ConvInteger", "three_groups", fixed_node(bytes_x, bytes_w, zero, zero, group=3)
    scales = (np.arange(9) % 3 + 1).astype(np.float32) / 4
    zeros = np.arange(9, dtype=np.uint8)
    quantized_x, quantized_w = (bytes_x, scale, zero), (bytes_w, scales, zeros)
    result, bias = (np.float32(512), np.uint8(100)), np.arange(-400, 500, 100, dtype=np.int32)
    quantized = fixed_node(*quantized_x, *quantized_w, *result, bias, group=3)
    yield "QLinearConv", "three_groups", quantized
    offsets = distinct(1, 24, 2, 2) / 16
    deformed = fixed_node(x, weights, offsets, distinct(9), group=3, offset_group=3)
    yield "DeformConv", "three_groups", deformed
    # The offsets lead far outside the kernel and the image, and some weights of the mask are above
    # 1.
    offsets, mask = distinct(1, 8, 2, 2) / 2, distinct(1, 4, 2, 2) / 4
    far = fixed_node(distinct(1, 1, 3, 3), distinct(1, 1, 2, 2), offsets, None, mask)
    yield "DeformConv", "far_offsets", far


def _saturation() -> Iterator[tuple[str, str, Generator]]:
    """Yield numbers that 8-bit floats cannot represent: out of range, or between floats."""
    x = np.array([1e6, -1e6, 300.0, 1.0, -0.25, 0.0], np.float32)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        zero = np.zeros((), np.float32).astype(DTYPES[name])
        for saturate in (0, 1):
            stem = f"{name}_{'saturated' if saturate else 'unsaturated'}"
            quantize = fixed_node(x, np.float32(0.5), zero, saturate=saturate)
            yield "QuantizeLinear", stem, quantize
    powers = np.array([1.5, 3.0, 0.3, 2.0, 5.9, 1.01], np.float32)
    scales = DTYPES["float8_e8m0fnu"]
    for mode in ("up", "down", "nearest"):
        to = helper.np_dtype_to_tensor_dtype(scales)
        yield "Cast", f"rounded_{mode}", fixed_node(powers, to=to, round_mode=mode)
        like = fixed_node(powers, np.ones(1, np.float32).astype(scales), round_mode=mode)
        yield "CastLike", f"rounded_{mode}", like


def _transformed_trees(draft: NodeDraft, *, transform: int) -> None:
    set_two_trees(draft, modes=(0, 3), aggregate=1, targets=3)
    draft.set("leaf_weights", tensor_of(np.array([0.5, -1.0, 0.0, 0.25], np.float32)))
    draft.set("post_transform", transform)
    draft.add(np.array([[0.5, -0.5], [0.25, -0.75], [1.0, 1.0], [0.5, 1.0]], np.float32))


def _trees() -> Iterator[tuple[str, str, Generator]]:
    """Yield trees whose scores are transformed, and nodes that test set membership."""
    for transform, name in enumerate(_TRANSFORMS, 1):
        yield "TreeEnsemble", name, partial(_transformed_trees, transform=transform)
    members = fixed_node(
        np.array([[1.0], [2.0], [-3.0], [0.5], [np.nan]], np.float32),
        tree_roots=[0],
        nodes_featureids=[0, 0],
        nodes_splits=tensor_of(np.array([0.0, 0.0], np.float32)),
        nodes_modes=tensor_of(np.array([_BRANCH_MEMBER] * 2, np.uint8)),
        membership_values=tensor_of(np.array([1.0, -3.0, np.nan, 2.0, np.nan], np.float32)),
        nodes_truenodeids=[0, 1],
        nodes_falsenodeids=[1, 2],
        nodes_trueleafs=[1, 1],
        nodes_falseleafs=[0, 1],
        leaf_weights=tensor_of(np.array([1.0, 20.0, 300.0], np.float32)),
        leaf_targetids=[0, 0, 0],
        n_targets=1,
        aggregate_function=1,
        post_transform=0,
    )
    yield "TreeEnsemble", "members", members


def _machines() -> Iterator[tuple[str, str, Generator]]:
    """Yield support vector machines whose classes are texts, or whose inputs are integers."""
    # Each of the three pairs of classes votes on each row. In each row, a different class gets two
    # of the votes.
    x = np.array([[-1.5, -2.0], [0.5, 1.0], [-2.0, 2.0]], np.float32)
    machine: dict[str, Any] = {
        "kernel_type": "RBF",
        "kernel_params": [0.25, 0.0, 3.0],
        "support_vectors": [0.5, 1.0, -1.0, 2.0, 1.0, -2.5],
        "coefficients": [1.0, -0.5, 0.25, 0.5, -0.75, 1.0],
        "vectors_per_class": [1, 1, 1],
        "rho": [-0.25, -0.25, 0.125],
    }
    texts = ["b", "a", "\u00e9"]
    yield "SVMClassifier", "texts", fixed_node(x, outputs=2, classlabels_strings=texts, **machine)
    negative = fixed_node(x, outputs=2, classlabels_ints=[-5, 3, -7], **machine)
    yield "SVMClassifier", "negative_labels", negative
    regressor: dict[str, Any] = {
        "support_vectors": [0.5, 1.0, -1.0, 2.0],
        "coefficients": [1.0, -0.5],
        "rho": [-0.25],
        "n_supports": 2,
    }
    signed = np.array([[-300, 2], [70_001, -1], [5, -4]])
    for kernel, parameters in (("LINEAR", [0.0, 0.0, 0.0]), ("SIGMOID", [0.25, 0.5, 0.0])):
        integers = fixed_node(signed, kernel_type=kernel, kernel_params=parameters, **regressor)
        yield "SVMRegressor", f"integers_{kernel.lower()}", integers


def _scores() -> Iterator[tuple[str, str, Generator]]:
    """Yield classifiers whose scores become probabilities or are transformed.

    Two kinds of classifiers are left out because onnx's reference and ONNX Runtime disagree on
    their results: classifiers that return probabilities of three classes, and support vector
    machines with two classes whose score is transformed by softmax.
    """
    x = np.array([[-1.5, -2.0], [0.5, 1.0], [-2.0, 2.0]], np.float32)
    machine: dict[str, Any] = {
        "kernel_type": "RBF",
        "kernel_params": [0.25, 0.0, 3.0],
        "support_vectors": [0.5, 1.0, -1.0, 2.0, 1.0, -2.5],
        "coefficients": [1.0, -0.5, 0.25],
        "vectors_per_class": [2, 1],
        "rho": [-0.25],
        "classlabels_ints": [5, 8],
    }
    probabilities: dict[str, Any] = {"prob_a": [-1.5], "prob_b": [0.25]}
    for stem, attributes in (
        ("probabilities", probabilities),
        ("probabilities_logistic", {**probabilities, "post_transform": "LOGISTIC"}),
        ("two_classes", {}),
        ("two_classes_logistic", {"post_transform": "LOGISTIC"}),
    ):
        yield "SVMClassifier", stem, fixed_node(x, outputs=2, **machine, **attributes)
    # For two classes, a single row of coefficients is sufficient.
    row: dict[str, Any] = {"coefficients": [-0.25, 0.125], "intercepts": [0.0625]}
    for stem, labels in (
        ("ints", {"classlabels_ints": [4, 9]}),
        ("texts", {"classlabels_strings": ["b", "a"]}),
    ):
        binary = fixed_node(x, outputs=2, post_transform="LOGISTIC", **row, **labels)
        yield "LinearClassifier", f"one_row_{stem}", binary
    linear: dict[str, Any] = {
        "coefficients": [-0.25, 0.125, 0.5, 1.0, 0.75, -0.5],
        "intercepts": [0.0625, -0.25, 0.5],
        "targets": 3,
    }
    trees: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.25, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0] * 4,
        "target_nodeids": [1, 1, 2, 2],
        "target_ids": [0, 1, 0, 2],
        "target_weights": [1.0, -2.0, 0.5, 3.0],
        "n_targets": 3,
    }
    for transform in ("SOFTMAX", "LOGISTIC"):
        stem = transform.lower()
        yield "LinearRegressor", stem, fixed_node(x, post_transform=transform, **linear)
        yield "TreeEnsembleRegressor", stem, fixed_node(x, post_transform=transform, **trees)
    regressor: dict[str, Any] = {
        "kernel_type": "RBF",
        "kernel_params": [0.25, 0.0, 3.0],
        "support_vectors": [0.5, 1.0, -1.0, 2.0],
        "coefficients": [1.0, -0.5],
        "n_supports": 2,
        "rho": [-0.25],
    }
    yield "SVMRegressor", "logistic", fixed_node(x, post_transform="LOGISTIC", **regressor)
    # Without support vectors, the coefficients are those of a linear function.
    linear_machine: dict[str, Any] = {
        "kernel_type": "LINEAR",
        "kernel_params": [0.0, 0.0, 0.0],
        "coefficients": [0.75, -0.5],
        "rho": [0.125],
    }
    yield "SVMRegressor", "without_vectors", fixed_node(x, **linear_machine)


def _stash_types() -> Iterator[tuple[str, str, Generator]]:
    """Yield float16 inputs whose intermediate results must be float32."""
    stash = {"stash_type": TensorProto.FLOAT}
    # The sum of the squares exceeds the range of float16.
    x = (distinct(2, 4, 6) * 40 + 90).astype(np.float16)
    ones, channels = np.ones(6, np.float16), np.ones(4, np.float16)
    yield "LayerNormalization", "stash_type", fixed_node(x, ones, **stash)
    yield "RMSNormalization", "stash_type", fixed_node(x, ones, **stash)
    grouped = fixed_node(x, channels, channels * 0, num_groups=2, **stash)
    yield "GroupNormalization", "stash_type", grouped
    bounds = [np.float16(bound) for bound in (100.3, 102.0, 0.1)]
    yield "Range", "stash_type", fixed_node(*bounds, **stash)


def _output_shapes() -> Iterator[tuple[str, str, Generator]]:
    """Yield unpooling and transposed convolutions, most of which state the output shape.

    The stated shape of unpooling is longer than the inferred shape. The indices in the published
    case refer to the inferred shape, whereas the indices of ONNX Runtime refer to the stated shape.
    If there is one channel, and the additional rows are at the end, both shapes have the same
    indices.
    """
    pooled = np.array([[[[1.5, -2.0], [3.0, 4.0]]]], np.float32)
    places = int64s(5, 7, 12, 14).reshape(pooled.shape)
    sizes: dict[str, Any] = {"kernel_shape": [2, 2]}
    taller = fixed_node(pooled, places, int64s(1, 1, 6, 4), strides=[2, 2], **sizes)
    yield "MaxUnpool", "taller_output", taller
    line = np.array([[[1.5, -2.0, 3.0]]], np.float32)
    longer = fixed_node(
        line, int64s(5, 0, 3).reshape(line.shape), int64s(1, 1, 8), kernel_shape=[2], strides=[2]
    )
    yield "MaxUnpool", "longer_output", longer
    images, kernels = distinct(2, 2, 3, 3), distinct(2, 2, 2, 1)
    for auto_pad, stem, strides, output_shape in (
        ("SAME_UPPER", "shorter", [3, 1], [5, 3]),
        ("SAME_LOWER", "shorter", [3, 1], [5, 3]),
        ("SAME_LOWER", "longer", [3, 2], [9, 6]),
        ("NOTSET", "longer", [3, 2], [9, 6]),
    ):
        convolution = fixed_node(
            images,
            kernels,
            np.array([-1.5, 0.5], np.float32),
            auto_pad=auto_pad,
            output_shape=output_shape,
            strides=strides,
        )
        yield "ConvTranspose", f"{stem}_output_{auto_pad.lower()}", convolution
    grouped_images = np.linspace(-2, 3, 36).reshape(1, 4, 3, 3)
    grouped_images[0, 0, 0, 0] = np.nan
    grouped = fixed_node(
        grouped_images,
        np.linspace(1, -3, 16).reshape(4, 2, 2, 1),
        group=2,
        pads=[0, 0, 1, 0],
        strides=[3, 2],
    )
    yield "ConvTranspose", "grouped_padding_float64", grouped
    dilated = fixed_node(distinct(1, 2, 2, 3, 2), distinct(2, 1, 2, 2, 2), dilations=[1, 3, 2])
    yield "ConvTranspose", "three_dilations", dilated


def _omitted_values() -> Iterator[tuple[str, str, Generator]]:
    """Yield tables whose default value or smallest category is 0."""
    x = np.array([[0.0, 1.5], [-1.0, 0.0], [1.0, 0.5]], np.float32)
    yield "Imputer", "default_missing_float", fixed_node(x, imputed_value_floats=[7.5, -3.0])
    numbers = np.array([[0, 1], [-1, 0], [5, 2]])
    yield "Imputer", "default_missing_int64", fixed_node(numbers, imputed_value_int64s=[7, -3])
    yield "OneHotEncoder", "category_zero", fixed_node(numbers, cats_int64s=[1, 0, 2], zeros=1)
    names = fixed_node(numbers, cats_int64s=[1, 0, 2], cats_strings=["one", "zero", "two"])
    yield "CategoryMapper", "category_zero", names


def _far_padding() -> Iterator[tuple[str, str, Generator]]:
    """Yield padding longer than the axis, or of the largest length that reflect and wrap allow."""
    x = distinct(2, 3)
    for mode, pads in (
        ("constant", (3, 0, 5, 4)),
        ("edge", (3, 0, 5, 4)),
        ("reflect", (1, 2, 1, 2)),
        ("wrap", (2, 1, 0, 3)),
    ):
        yield "Pad", f"far_{mode}", fixed_node(x, int64s(*pads), mode=mode)


def _states() -> Iterator[tuple[str, str, Generator]]:
    """Yield a loop and a map whose outputs are declared in another order than they are computed."""
    iteration, go, goes_on = (
        helper.make_tensor_value_info(name, dtype, [])
        for name, dtype in (("iteration", _INT64), ("go", _BOOL), ("goes_on", _BOOL))
    )
    nodes = [
        helper.make_node("Add", ["first", "second"], ["sum"]),
        helper.make_node("Mul", ["first", "second"], ["product"]),
        helper.make_node("Identity", ["second"], ["shifted"]),
        helper.make_node("Identity", ["go"], ["goes_on"]),
        helper.make_node("Sub", ["second", "first"], ["difference"]),
    ]
    inputs = [iteration, go, *vectors("first", "second")]
    outputs = [goes_on, *vectors("shifted", "sum", "difference", "product")]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    pair = [np.array(values, np.float32) for values in ((1.5, -2.0), (0.5, 3.0))]
    loop = fixed_node(np.array(4), np.array(True), *pair, outputs=4, body=body)
    yield "Loop", "two_states", loop
    inner = [
        helper.make_node("Sub", ["one", "other"], ["difference"]),
        helper.make_node("Add", ["one", "other"], ["sum"]),
    ]
    results = vectors("sum", "difference")
    map_body = helper.make_graph(inner, "body", vectors("one", "other"), results)
    items: list[Any] = [pair[0], pair[1], pair[0] * 3]
    others: list[Any] = [pair[1], pair[1] + 1, pair[0]]
    yield "SequenceMap", "two_results", fixed_node(items, others, outputs=2, body=map_body)
    wider = [
        helper.make_node("Mul", ["one", "shared"], ["product"]),
        helper.make_node("Sub", ["product", "other"], ["mapped"]),
    ]
    wide_inputs = vectors("one", "shared", "other")
    wide_body = helper.make_graph(wider, "body", wide_inputs, vectors("mapped"))
    irregular = np.array([0.1, -0.7], np.float32)
    mapped = fixed_node(items, irregular, others, body=wide_body)
    yield "SequenceMap", "tensor_and_sequence", mapped
    product = [helper.make_node("Mul", ["one", "other"], ["product"])]
    product_body = helper.make_graph(product, "body", vectors("one", "other"), vectors("product"))
    exceptional = np.array([np.inf, np.nan], np.float32)
    scaled = fixed_node(items, exceptional, body=product_body)
    yield "SequenceMap", "exceptional_tensor", scaled


def _zeros() -> Iterator[tuple[str, str, Generator]]:
    """Yield attributes that are 0 although their default is another number."""
    x = distinct(2, 6) / 4
    for operator, name in (
        ("HardSigmoid", "alpha"),
        ("LeakyRelu", "alpha"),
        ("Selu", "alpha"),
        ("Selu", "gamma"),
        ("Shrink", "lambd"),
        ("Swish", "alpha"),
        ("ThresholdedRelu", "alpha"),
    ):
        attributes: dict[str, Any] = {name: 0.0}
        yield operator, f"{name}_set_to_zero", fixed_node(x, **attributes)
    yield "SwiGLU", "alpha_set_to_zero", fixed_node(x, distinct(2, 6) / 2 + 1, alpha=0.0)
    image = distinct(2, 3, 2, 2)
    for name, others in (
        ("bias", {"alpha": 2.0}),
        ("beta", {"bias": 2.0}),
        ("alpha", {"bias": 2.0}),
    ):
        attributes = {"size": 3, **others, name: 0.0}
        yield "LRN", f"{name}_set_to_zero", fixed_node(image, **attributes)
    channels = np.array([2.0, -1.0, 0.5], np.float32)
    small = image / 1024
    stem = "epsilon_set_to_zero"
    variances = np.array([1e-6, 4e-6, 2e-5], np.float32)
    batch = fixed_node(small, channels, channels, small[0, :, 0, 0], variances, epsilon=0.0)
    yield "BatchNormalization", stem, batch
    for operator in ("InstanceNormalization", "GroupNormalization"):
        groups: dict[str, Any] = {"num_groups": 3} if operator[0] == "G" else {}
        normalized = fixed_node(small, channels, channels, epsilon=0.0, **groups)
        yield operator, stem, normalized
    for operator in ("LayerNormalization", "RMSNormalization"):
        rows = fixed_node(distinct(2, 3) / 8192, channels, epsilon=0.0)
        yield operator, stem, rows
    texts = np.array(["a", "b", "c"], object)
    mapped = fixed_node(texts, cats_strings=["a", "b"], cats_int64s=[5, 7], default_int64=0)
    yield "CategoryMapper", "default_set_to_zero", mapped
    encoded = fixed_node(texts, keys_strings=["a", "b"], values_int64s=[5, 7], default_int64=0)
    yield "LabelEncoder", "default_set_to_zero", encoded
    scales = np.array([1, 1, 1.5, 2], np.float32)
    resized = fixed_node(distinct(1, 1, 4, 3), None, scales, mode="cubic", cubic_coeff_a=0.0)
    yield "Resize", "cubic_coefficient_set_to_zero", resized
    cube = distinct(2, 3, 4)
    yield "Shape", "end_set_to_zero", fixed_node(cube, end=0)
    yield "Shape", "end_set_to_zero_before_start", fixed_node(cube, start=-2, end=0)
    table = distinct(2, 3)
    yield "RMSNormalization", "axis_set_to_zero", fixed_node(table, table[::-1] / 2, axis=0)
    heads = [distinct(1, 1, 3, 2) + shift for shift in (0, 1, 2)]
    yield "Attention", "scale_set_to_zero", fixed_node(*heads, scale=0.0)
    yield "Constant", "integer_zero", fixed_node(value_int=0)
    yield "Constant", "float_zero", fixed_node(value_float=0.0)
