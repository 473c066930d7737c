"""Nodes with attributes, lengths and parameters that generators and other boundaries seldom set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    distinct_bytes,
    fixed_node,
    int64s,
)


def boundary_options() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each node of this module."""
    yield from _windows()
    yield from _grids()
    yield from _activations()
    yield from _attention()
    yield from _empty_results()
    yield from _quantized()
    yield from _resized()
    yield from _regions()
    yield from _models()
    yield from _machines()


def _windows() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows in a large volume, batches without images, and signals of one row."""
    volume, kernel = distinct(1, 1, 90, 165, 3), distinct(2, 1, 2, 2, 2)
    wide: dict[str, Any] = {"dilations": [40, 41, 1], "strides": [1, 2, 1]}
    bias = np.array([0.5, -2.0], np.float32)
    lower = fixed_node(volume, kernel, bias, auto_pad="SAME_LOWER", **wide)
    yield "Conv", "many_windows_volume", lower
    plane, wide_kernel = distinct(1, 1, 100, 330), distinct(1, 1, 2, 3)
    flat = fixed_node(plane, wide_kernel, auto_pad="SAME_LOWER", dilations=[50, 25])
    yield "Conv", "many_windows_plane", flat
    long, cube = distinct(1, 1, 3, 3, 7000), distinct(1, 1, 2, 2, 2)
    yield "Conv", "many_windows_long", fixed_node(long, cube, dilations=[1, 1, 3000])
    yield "AveragePool", "no_images", fixed_node(distinct(0, 2, 5, 5), kernel_shape=[3, 3])
    spread: dict[str, Any] = {"dilations": [2, 1], "strides": [3, 2]}
    image, weights = distinct(1, 2, 3, 4), distinct(2, 1, 2, 3)
    cut = fixed_node(image, weights, output_shape=[8, 10], **spread)
    yield "ConvTranspose", "dilated_output_shape", cut
    pixel = fixed_node(image[..., :1, :1].copy(), weights, strides=[3, 2], output_padding=[1, 1])
    yield "ConvTranspose", "padded_pixel", pixel
    none = np.zeros((0, 2, 3), np.float32)
    yield "ConvTranspose", "no_images", fixed_node(none, distinct(2, 3, 2))
    complex_signal = distinct(2, 1, 3, 2)
    for inverse in (0, 1):
        transform = fixed_node(complex_signal, None, np.array(2), inverse=inverse)
        yield "DFT", f"one_row_{'inverse' if inverse else 'forward'}", transform


def _grids() -> Iterator[tuple[str, str, Generator]]:
    """Yield points far outside an image."""
    image = distinct(1, 1, 4, 3)
    points = np.array([[1e20, -1e20], [-1e10, 0.5], [3.0, -7.0], [0.25, 1e5]], np.float32)
    yield "GridSample", "far_points", fixed_node(image, points[None, None], mode="cubic")


def _activations() -> Iterator[tuple[str, str, Generator]]:
    """Yield recurrent nodes in which each activation has its own parameters."""
    x = distinct(2, 1, 2) / 4
    alpha, beta = [0.9, 0.3, 0.7, 0.5], [0.4, 0.1, -0.2, 0.3]
    for operator, gates, count in (("RNN", 1, 1), ("GRU", 3, 2)):
        weights, recurrent = distinct(2, 2 * gates, 2) / 8, distinct(2, 2 * gates, 2) / 16
        attributes: dict[str, Any] = {
            "hidden_size": 2,
            "direction": "bidirectional",
            "activations": ["Affine"] * 2 * count,
            "activation_alpha": alpha[: 2 * count],
            "activation_beta": beta[: 2 * count],
            "outputs": 2,
        }
        yield operator, "affine", fixed_node(x, weights, recurrent, **attributes)


def _attention() -> Iterator[tuple[str, str, Generator]]:
    """Yield attention to a past shorter than a head, and a decay to almost nothing."""
    queries, keys, values = distinct(1, 2, 3, 4), distinct(1, 2, 2, 4) / 2, distinct(1, 2, 2, 3)
    past_keys, past_values = distinct(1, 2, 1, 4) / 4, distinct(1, 2, 1, 3) / 8
    past = (None, past_keys, past_values)
    attended = fixed_node(queries, keys, values, *past, is_causal=1, outputs=3)
    yield "Attention", "short_past_causal", attended
    images = [distinct(2, 2, 3, 4) * factor for factor in (0.5, 0.25, 1.0)]
    masks = distinct(2, 3, 3)
    # The batch is as large as the number of heads, which the first axis of the mask counts.
    yield "Attention", "mask_of_heads", fixed_node(*images, masks, outputs=1)
    visible = (masks > 0) | np.eye(3, dtype=bool)
    yield "Attention", "mask_of_heads_bool", fixed_node(*images, visible, outputs=1)
    heads: dict[str, Any] = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "gated"}
    packed = [distinct(1, 3, 4) * factor for factor in (0.5, 0.25, 1.0)]
    state = distinct(1, 2, 2, 2) * 2000
    decay = np.array([[[-7.5, -0.5], [-1.0, -6.75], [-0.25, -1.5]]], np.float32)
    yield "LinearAttention", "far_decay", fixed_node(*packed, state, decay, outputs=2, **heads)


def _empty_results() -> Iterator[tuple[str, str, Generator]]:
    """Yield results that have an axis of length 0, and a sequence of no elements."""
    yield "CenterCropPad", "no_rows", fixed_node(distinct(2, 3), int64s(0, 3))
    data = distinct(2, 3, 4)
    nowhere = np.zeros((2, 0, 1), np.int64)
    yield "GatherND", "no_positions", fixed_node(data, nowhere, batch_dims=1)
    yield "ReverseSequence", "empty_sequence", fixed_node(distinct(4, 3), int64s(4, 0, 1))


def _quantized() -> Iterator[tuple[str, str, Generator]]:
    """Yield zero points of two rows, and a zero point of 4 bits."""
    rows, columns = distinct_bytes(2, 3), distinct_bytes(3, 4)
    zeros = np.array([7, 200], np.uint8)
    yield "MatMulInteger", "zero_points_of_two_rows", fixed_node(rows, columns, zeros)
    shift = np.float32(1.5).astype(DTYPES["float4_e2m1fn"])
    numbers = np.array([3, 1, 0, -2], np.float32)
    yield "QuantizeLinear", "shifted_float4", fixed_node(numbers, np.float32(1), shift)


def _resized() -> Iterator[tuple[str, str, Generator]]:
    """Yield images that are resized along permuted axes, and by large or precise factors."""
    stack = distinct(2, 3, 2, 2)
    factors = np.array([1.5, 2.0, 1.0, 0.5], np.float32)
    permuted = fixed_node(stack, None, factors, axes=[3, 1, 0, 2], mode="nearest")
    yield "Resize", "permuted_axes", permuted
    image = distinct(1, 1, 2, 3)
    large = np.array([1, 1, 7.0, 1.5], np.float32)
    yield "Resize", "factor_of_seven", fixed_node(image, None, large, mode="linear")
    # In float16, the factor is 1.2002, and the result is one element shorter.
    line = distinct_bytes(1, 1, 1, 5000)
    precise = np.array([1, 1, 1, 1.2003], np.float32)
    yield "Resize", "precise_factor", fixed_node(line, None, precise, mode="nearest")


def _regions() -> Iterator[tuple[str, str, Generator]]:
    """Yield regions of an image that begin at, next to and far outside its border."""
    image = distinct(1, 1, 4, 4) + 10
    rows = [[0, -2, 2, 0], [0, -2.5, 2, -0.5], [-1.25, 0, -0.25, 2], [-4, 1, 3, 2]]
    regions = np.array(rows, np.float32)
    attributes: dict[str, Any] = {
        "output_height": 1,
        "output_width": 1,
        "sampling_ratio": 1,
        "coordinate_transformation_mode": "output_half_pixel",
    }
    places = np.zeros(4, np.int64)
    yield "RoiAlign", "around_border", fixed_node(image, regions, places, **attributes)


def _models() -> Iterator[tuple[str, str, Generator]]:
    """Yield scores between -1e-7 and 1e-7, and trees that get negative integers."""
    x: Array = np.array([[1e-7, 7e-8], [-1e-7, 1.0], [3e-8, 0.5]], np.float32)
    small = fixed_node(
        x,
        classlabels_ints=[3, 5, 7],
        coefficients=[1.0, 0.0, 0.0, 1.0, 0.5, 0.5],
        intercepts=[0.0, 0.0, 0.25],
        post_transform="SOFTMAX_ZERO",
        outputs=2,
    )
    yield "LinearClassifier", "small_softmax_zero", small
    splits: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "nodes_missing_value_tracks_true": [0, 0, 0],
    }
    targets: dict[str, Any] = {
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [-1.5, -2.5],
        "n_targets": 1,
    }
    signs = np.array([[-5], [3], [-300]], np.int64)
    tree = fixed_node(signs, aggregate_function="MAX", **splits, **targets)
    yield "TreeEnsembleRegressor", "negative_max", tree
    yield from _descending_trees(splits)
    yield from _two_labels(splits)


def _descending_trees(splits: dict[str, Any]) -> Iterator[tuple[str, str, Generator]]:
    """Yield ensembles whose trees have descending numbers."""
    x = np.array([[-5.0, 3.0], [3.0, -5.0], [-1.0, -1.0]], np.float32)
    nodes = {name: 2 * [*numbers] for name, numbers in splits.items()}
    nodes |= {"nodes_treeids": [7] * 3 + [2] * 3, "nodes_featureids": [0] * 3 + [1] * 3}
    leaves = {"treeids": [7, 7, 2, 2], "nodeids": [1, 2, 1, 2], "ids": [0, 1, 1, 2]}
    weights = [1.5, -2.5, 4.0, 8.0]
    texts = ["c\0", "a", "b\0\0"]
    for operator, stem, further in (
        ("TreeEnsembleRegressor", "target", {"n_targets": 3}),
        ("TreeEnsembleClassifier", "class", {"classlabels_strings": texts}),
    ):
        attributes: dict[str, Any] = {f"{stem}_{name}": numbers for name, numbers in leaves.items()}
        attributes[f"{stem}_weights"] = weights
        outputs = 1 if stem == "target" else 2
        trees = fixed_node(x, outputs=outputs, **nodes, **attributes, **further)
        yield operator, "descending_trees", trees


def _two_labels(splits: dict[str, Any]) -> Iterator[tuple[str, str, Generator]]:
    """Yield a tree that decides between two labels, neither of which is 0 or 1."""
    leaves: dict[str, Any] = {
        "class_treeids": [0, 0],
        "class_nodeids": [1, 2],
        "class_ids": [0, 1],
        "class_weights": [0.75, 0.25],
        "classlabels_int64s": [3, 9],
    }
    x = np.array([[-5.0], [3.0]], np.float32)
    yield "TreeEnsembleClassifier", "two_labels", fixed_node(x, outputs=2, **splits, **leaves)
    del leaves["classlabels_int64s"]
    texts = fixed_node(x, outputs=2, classlabels_strings=["no", "yes"], **splits, **leaves)
    yield "TreeEnsembleClassifier", "two_texts", texts


def _machines() -> Iterator[tuple[str, str, Generator]]:
    """Yield support vector machines with one score, with large scores, and with large integers."""
    x = distinct(3, 2)
    vectors: dict[str, Any] = {
        "kernel_type": "LINEAR",
        "kernel_params": [0.5, 0.125, 2.0],
        "support_vectors": [1.0, 2.0, 3.0, 4.0],
    }
    regressor: dict[str, Any] = {"coefficients": [1.0, -0.5], "rho": [-0.25], "n_supports": 2}
    share = fixed_node(x, post_transform="SOFTMAX", **vectors, **regressor)
    yield "SVMRegressor", "share_of_one_score", share
    classes: dict[str, Any] = {"vectors_per_class": [1, 1], "classlabels_ints": [4, 9]}
    square = np.array([[-300, 2], [5, -(2**33)]], np.int64)
    large = fixed_node(
        square, outputs=2, coefficients=[1.0, -0.25], rho=[-0.25], **vectors, **classes
    )
    yield "SVMClassifier", "large_int64", large
    three: dict[str, Any] = {
        "support_vectors": [1.0, 2.0, 3.0, 4.0, -2.0, 1.0],
        "coefficients": [100.0, -50.0, 25.0, 50.0, -75.0, 100.0],
        "vectors_per_class": [1, 1, 1],
        "rho": [-0.25, -0.5, 0.125],
        "classlabels_ints": [4, 9, 2],
    }
    labels: dict[str, Any] = {"classlabels_ints": [300, 2**24 + 1, 2**40 + 1]}
    small: dict[str, Any] = {"coefficients": [0.0] * 6, "rho": [1.0, 7e-8, 0.5], **labels}
    tiny = fixed_node(x, outputs=2, post_transform="SOFTMAX_ZERO", **{**vectors, **three, **small})
    yield "SVMClassifier", "small_softmax_zero", tiny
    for transform in ("SOFTMAX", "SOFTMAX_ZERO"):
        far = fixed_node(x, outputs=2, post_transform=transform, **{**vectors, **three})
        yield "SVMClassifier", f"far_{transform.lower()}", far
