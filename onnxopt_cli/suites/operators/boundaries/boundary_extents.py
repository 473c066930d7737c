"""Nodes with more windows than an implementation unfolds at once, and nodes without any windows.

Further nodes have sizes, values and types that random draws seldom contain, such as n-grams of
negative integers and scores that are infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import (
    Generator,
    distinct,
    fixed_node,
    int64s,
)


def boundary_extents() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each boundary node."""
    yield from _many_windows()
    yield from _columns()
    yield from _no_windows()
    yield from _no_elements()
    yield from _transforms()
    yield from _quantized()
    yield from _grams()
    yield from _boxes()
    yield from _long_rows()
    yield from _updated_often()
    yield from _many_classes()
    yield from _many_trees()
    yield from _growing_parts()


def _many_windows() -> Iterator[tuple[str, str, Generator]]:
    """Yield images whose windows together need much more memory than the image."""
    stem = "many_windows"
    wide = distinct(1, 1, 300, 300)
    yield "AveragePool", stem, fixed_node(wide, kernel_shape=[3, 3])
    yield "LpPool", stem, fixed_node(wide[..., :160, :160].copy(), kernel_shape=[50, 50])
    kernel = distinct(1, 1, 2, 2)
    dilated: dict[str, Any] = {"dilations": [50, 52], "auto_pad": "SAME_UPPER"}
    yield "Conv", stem, fixed_node(wide[..., :160, :170].copy(), kernel, distinct(1), **dilated)
    signal, grouped = distinct(2, 2, 13000), distinct(2, 1, 2)
    strided: dict[str, Any] = {"dilations": [5000], "strides": [2], "pads": [30, 101], "group": 2}
    yield "Conv", f"{stem}_grouped", fixed_node(signal, grouped, **strided)
    image, weights = distinct(2, 2, 30, 40), distinct(2, 3, 3, 2)
    spread: dict[str, Any] = {"dilations": [2, 3], "strides": [2, 1]}
    yield "ConvTranspose", stem, fixed_node(image, weights, distinct(3), **spread)


def _columns() -> Iterator[tuple[str, str, Generator]]:
    """Yield columns of images of two to four axes; each axis has its own parameters."""
    variants: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ("many_windows", (40, 41), (2, 3), {"dilations": [2, 3], "strides": [1, 2]}),
        ("three_axes", (3, 4, 5), (2, 1, 2), {"dilations": [1, 2, 2]}),
        (
            "four_axes",
            (4, 6, 4, 6),
            (1, 2, 1, 2),
            {
                "strides": [1, 2, 3, 2],
                "dilations": [1, 1, 2, 3],
                "pads": [0, 1, 0, 1, 1, 0, 0, 0],
            },
        ),
        ("block_beyond_8_bits", (1, 200), (1, 150), {}),
    )
    for stem, image, block, attributes in variants:
        ones = [1] * len(image)
        arguments: dict[str, Any] = {
            "strides": ones,
            "dilations": ones,
            "pads": [0] * 2 * len(image),
            **attributes,
        }
        before, after = np.split(np.array(arguments["pads"]), 2)
        spans = (np.array(block) - 1) * arguments["dilations"] + 1
        counts = (np.array(image) + before + after - spans) // arguments["strides"] + 1
        columns = distinct(1, 2 * int(np.prod(block)), int(np.prod(counts)))
        yield "Col2Im", stem, fixed_node(columns, int64s(*image), int64s(*block), **attributes)


def _no_windows() -> Iterator[tuple[str, str, Generator]]:
    """Yield windows of no images, grids without points, and empty results."""
    stem = "no_images"
    columns = np.zeros((0, 8, 9), np.float32)
    yield "Col2Im", stem, fixed_node(columns, int64s(4, 4), int64s(2, 2))
    x, grid = distinct(2, 3, 5, 4), np.zeros((2, 0, 2, 2), np.float32)
    yield "GridSample", "no_points", fixed_node(x, grid)
    yield "GridSample", stem, fixed_node(x[:0], distinct(0, 3, 2, 2))
    scales = np.array([1, 1, 0.2, 1], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        short = fixed_node(distinct(1, 1, 4, 3), None, scales, mode=mode)
        yield "Resize", f"to_no_rows_{mode}", short
    longer = fixed_node(
        distinct(1, 2, 3, 3), distinct(2, 1, 2, 2), strides=[2, 2], output_shape=[7, 7]
    )
    yield "ConvTranspose", "output_beyond_windows", longer


def _no_elements() -> Iterator[tuple[str, str, Generator]]:
    """Yield texts and n-grams of no elements, and long axes in tensors of no elements."""
    for stem, shape in (("no_texts", (0,)), ("no_columns", (2, 0))):
        texts = np.empty(shape, object)
        yield "StringSplit", stem, fixed_node(texts, delimiter=" ", outputs=2)
    wide, length = np.zeros((0, 2**25 + 1), np.float32), 2**24 + 1
    yield "TopK", "count_beyond_24_bits", fixed_node(wide, int64s(length))
    steps = fixed_node(wide, int64s(0), int64s(2**25 + 1), int64s(1), int64s(length))
    yield "Slice", "step_beyond_24_bits", steps


def _transforms() -> Iterator[tuple[str, str, Generator]]:
    """Yield Fourier transforms along the first axis, and filters at edges between frequencies."""
    signal = distinct(2, 5, 3, 1)
    yield "DFT", "first_axis", fixed_node(signal, None, np.array(0))
    waves = fixed_node(distinct(2, 5, 2), np.array(1), None, np.array(1), onesided=0)
    yield "STFT", "complex_one_sample", waves
    for stem, counts, edges in (
        ("precise_lower_edge", (4, 8191, 8192), (999.9, 4000)),
        ("precise_upper_edge", (4, 8191, 8192), (100, 2049.3)),
        ("no_bins", (0, 64, 8192), (0, 4000)),
    ):
        filters = fixed_node(*map(np.int64, counts), *map(np.float32, edges))
        yield "MelWeightMatrix", stem, filters


def _quantized() -> Iterator[tuple[str, str, Generator]]:
    """Yield integers that float32 rounds, and scales of one element."""
    column = np.full((301, 1), 255, np.uint8)
    yield "MatMulInteger", "large_sum", fixed_node(column.T.copy(), column)
    zero = np.int16(0)
    for stem, number, scale in (
        ("tie_of_int32", 33555457, 2048),
        ("scale_of_int32", (2**24 + 4) // 2, 2**24 + 3),
    ):
        quantized = fixed_node(np.array([number], np.int32), np.int32(scale), zero)
        yield "QuantizeLinear", stem, quantized
    x: Array = np.array([1, -2, 0.5, 100], np.float32)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        values, no_shift = x.astype(DTYPES[name]), np.float32(0).astype(DTYPES[name])
        dequantized = fixed_node(values, np.float32(0.3), no_shift)
        yield "DequantizeLinear", f"zero_point_{name}", dequantized


def _grams() -> Iterator[tuple[str, str, Generator]]:
    """Yield n-grams of negative integers, a single n-gram, and texts of no words."""
    single: dict[str, Any] = {
        "min_gram_length": 1,
        "max_gram_length": 1,
        "max_skip_count": 0,
        "ngram_counts": [0],
    }
    vectorizer, words = "TfIdfVectorizer", int64s(-5, 3, 5, -3)
    pool: dict[str, Any] = {"pool_int64s": [-5, 5, 3], "ngram_indexes": [0, 1, 2], **single}
    yield vectorizer, "negative", fixed_node(words, mode="TF", **pool)
    for stem, shape in (("no_words", (0,)), ("rows_of_no_words", (2, 0))):
        yield vectorizer, stem, fixed_node(np.zeros(shape, np.int64), mode="TF", **pool)
    one: dict[str, Any] = {"pool_int64s": [5], "ngram_indexes": [0], "weights": [2.5], **single}
    for mode in ("IDF", "TFIDF"):
        yield vectorizer, f"one_gram_{mode.lower()}", fixed_node(int64s(5, 5, 6), mode=mode, **one)


def _boxes() -> Iterator[tuple[str, str, Generator]]:
    """Yield infinite scores, and more boxes than the limit."""
    suppression = "NonMaxSuppression"
    left_edges = np.arange(10, dtype=np.float32) * 2
    boxes = np.stack([left_edges * 0, left_edges, left_edges * 0 + 1, left_edges + 1], axis=1)[None]
    largest = np.finfo(np.float32).max
    scores = np.array([[[largest, np.inf, 0.5]]], np.float32)
    yield suppression, "infinite_score", fixed_node(boxes[:, :3].copy(), scores, np.array([3]))
    ranks = (np.arange(10, dtype=np.float32) * 3 % 10).reshape(1, 1, 10)
    yield suppression, "limit_of_eight", fixed_node(boxes, ranks, np.array([8]))


def _long_rows() -> Iterator[tuple[str, str, Generator]]:
    """Yield rows of 20 elements with the values of attributes that select another computation."""
    stem = "twenty_columns"
    x = distinct(3, 20)
    for norm in ("MAX", "L1", "L2"):
        yield "Normalizer", f"{stem}_{norm.lower()}", fixed_node(np.abs(x) + 1, norm=norm)
    for p in (1, 2):
        yield "LpNormalization", f"{stem}_{p}", fixed_node(x, p=p)
    # A norm must not divide by the largest element of a row of zeros.
    beside_zeros = x * np.array([[1], [0], [1]], np.float32)
    for p in (1, 3):
        yield "LpPool", f"{stem}_{p}", fixed_node(beside_zeros[None], kernel_shape=[20], p=p)
        yield "GlobalLpPool", f"{stem}_{p}", fixed_node(beside_zeros[None], p=p)
    backward: dict[str, Any] = {"exclusive": 1, "reverse": 1}
    yield "CumSum", f"{stem}_backward", fixed_node(x, np.array(1), **backward)
    factors = np.abs(x) / 8 + np.float32(0.75)
    yield "CumProd", f"{stem}_backward", fixed_node(factors, np.array(1), **backward)
    ties = np.round(x / 4)
    for operator in ("ArgMax", "ArgMin"):
        yield operator, f"{stem}_last", fixed_node(ties, axis=1, select_last_index=1)
    yield "LRN", "twenty_channels", fixed_node(x[:, :, None, None], size=11, alpha=2.0)
    lengths = int64s(*(k * 7 % 5 for k in range(20)))
    yield "ReverseSequence", "twenty_sequences", fixed_node(distinct(4, 20), lengths)
    # The largest and the least element are at the end.
    image = np.linspace(-1, 3, 300, dtype=np.float32).reshape(1, 1, 12, 25)
    yield "GlobalMaxPool", "largest_at_end", fixed_node(image)
    yield "GlobalAveragePool", "largest_at_end", fixed_node(image**3)
    for stem, sign in (("largest", 1), ("least", -1)):
        dynamic = fixed_node(sign * image.ravel() ** 3 + 1)
        yield "DynamicQuantizeLinear", f"{stem}_at_end", dynamic
    region = np.array([[0.25, 0.5, 5.5, 6.0]], np.float32)
    for mode in ("avg", "max"):
        attributes: dict[str, Any] = {"mode": mode, "sampling_ratio": 5}
        pooled = fixed_node(distinct(1, 1, 8, 8), region, int64s(0), **attributes)
        yield "RoiAlign", f"many_samples_{mode}", pooled


def _updated_often() -> Iterator[tuple[str, str, Generator]]:
    """Yield reductions of 20 updates of three elements."""
    data, updates = np.array([1.5, -2.0, 0.5], np.float32), distinct(20) / 8 + 1
    places = np.arange(20) * 5 % 7 % 3
    for reduction in ("add", "mul", "max", "min"):
        stem = f"twenty_updates_{reduction}"
        updated = fixed_node(data, places, updates, reduction=reduction)
        yield "ScatterElements", stem, updated
        updated = fixed_node(data, places[:, None], updates, reduction=reduction)
        yield "ScatterND", stem, updated


def _many_classes() -> Iterator[tuple[str, str, Generator]]:
    """Yield losses and linear models of 12 classes, and models with 20 features."""
    stem = "twelve_classes"
    scores = distinct(20, 12) / 4
    labels = np.arange(20) * 5 % 12
    weights = np.abs(distinct(12)) + np.float32(0.5)
    for operator in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        for reduction in ("none", "sum", "mean"):
            loss = fixed_node(scores, labels, weights, reduction=reduction)
            yield operator, f"{stem}_{reduction}", loss
    x = distinct(3, 20) / 4
    coefficients = (distinct(12, 20) / 8).ravel().tolist()
    linear: dict[str, Any] = {
        "coefficients": coefficients,
        "intercepts": (distinct(12) / 2).tolist(),
    }
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        attributes: dict[str, Any] = {"classlabels_ints": [*range(5, 41, 3)], **linear}
        model = fixed_node(x, outputs=2, post_transform=transform, **attributes)
        yield "LinearClassifier", f"{stem}_{transform.lower()}", model
    yield "LinearRegressor", "twelve_targets", fixed_node(x, targets=12, **linear)
    vectors: dict[str, Any] = {
        "support_vectors": coefficients[:60],
        "coefficients": [1.0, -0.5, 0.25],
        "kernel_params": [0.125, 0.5, 2.0],
        "n_supports": 3,
        "rho": [-0.25],
    }
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        machine = fixed_node(x, kernel_type=kernel, **vectors)
        yield "SVMRegressor", f"twenty_features_{kernel.lower()}", machine


def _many_trees() -> Iterator[tuple[str, str, Generator]]:
    """Yield ensembles of 12 trees that are combined in each way."""
    count = 12
    splits: dict[str, Any] = {
        "nodes_treeids": np.repeat(range(count), 3).tolist(),
        "nodes_nodeids": [0, 1, 2] * count,
        "nodes_featureids": np.repeat(np.arange(count) % 4, 3).tolist(),
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * count,
        "nodes_values": np.repeat(distinct(count), 3).tolist(),
        "nodes_truenodeids": [1, 0, 0] * count,
        "nodes_falsenodeids": [2, 0, 0] * count,
        "nodes_missing_value_tracks_true": [0] * 3 * count,
        "target_treeids": np.repeat(range(count), 2).tolist(),
        "target_nodeids": [1, 2] * count,
        "target_ids": [0] * 2 * count,
        "target_weights": distinct(2 * count).tolist(),
        "n_targets": 1,
    }
    for function in ("SUM", "AVERAGE", "MIN", "MAX"):
        ensemble = fixed_node(distinct(5, 4), aggregate_function=function, **splits)
        yield "TreeEnsembleRegressor", f"twelve_trees_{function.lower()}", ensemble


def _growing_parts() -> Iterator[tuple[str, str, Generator]]:
    """Yield parts of which later ones are longer than the first."""
    stem = "growing"
    columns = [distinct(2, count) + count for count in (1, 3, 2)]
    yield "ConcatFromSequence", f"{stem}_columns", fixed_node(columns, axis=-1)
    yield "ConcatFromSequence", f"{stem}_pair", fixed_node(columns[:2], axis=1)
    yield "Concat", f"{stem}_columns", fixed_node(*columns, axis=-1)
    yield "Concat", f"{stem}_pair", fixed_node(*columns[:2], axis=1)
    # A vector is a single row.
    rows = fixed_node(distinct(3), distinct(2), inputdimensions=[3, 2])
    yield "FeatureVectorizer", f"{stem}_vectors", rows
    joined = fixed_node(*columns, inputdimensions=[1, 3, 2])
    yield "FeatureVectorizer", f"{stem}_columns", joined
    yield "FeatureVectorizer", f"{stem}_columns_without_lengths", fixed_node(*columns)
    row = distinct(7)
    yield "Split", stem, fixed_node(row, int64s(1, 2, 4), outputs=3)
