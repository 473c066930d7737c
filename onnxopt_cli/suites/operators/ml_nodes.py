"""Generators of the operators of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.core.values import DTYPES, Array
from onnxopt_cli.suites.operators.node_draft import NodeDraft

_NUMBERS = ("float32", "int64", "float64", "int32")
_POST_TRANSFORMS = (None, "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "NONE")


def _floats(draft: NodeDraft, count: int) -> list[float]:
    values = draft.tensor(np.dtype(np.float32), (count,), styles=("plain", "halves"))
    return [float(value) for value in values]


def _rows(draft: NodeDraft, features: int, among: Sequence[str] = ("float32",)) -> Array:
    """Draw the rows of a table.

    The default type is float32, because onnx's reference often returns outputs of a wrong type for
    inputs of other types.
    """
    return draft.tensor(
        draft.dtype(0, among), (draft.size(1, 4), features), styles=("plain", "halves")
    )


def _array_feature_extractor(draft: NodeDraft) -> None:
    shape = draft.shape(2, 3)
    draft.add(draft.tensor(draft.dtype(0, (*_NUMBERS, "string")), shape))
    draft.add(draft.state().randint(0, shape[-1], (draft.size(1, 4),)).astype(np.int64))


def _binarizer(draft: NodeDraft) -> None:
    draft.float_attribute("threshold", (None, 0.5, -1.0, 1.5))
    draft.add(draft.tensor(draft.dtype(0, _NUMBERS), draft.shape(1, 3), styles=("halves", "plain")))


def _category_mapper(draft: NodeDraft) -> None:
    draft.set("cats_int64s", [5, -1, 9])
    draft.set("cats_strings", ["a", "ab", "onnx"])
    draft.attribute("default_int64", (None, 7))
    draft.attribute("default_string", (None, "none"))
    if draft.maybe():
        places = draft.state().randint(0, 4, draft.shape(1, 3))
        draft.add(np.array([5, -1, 9, 4], np.int64)[places])
    else:
        draft.add(draft.tensor(DTYPES["string"], draft.shape(1, 3)))


def _feature_vectorizer(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, ("float32",))
    sizes = [draft.size(1, 3) for _ in range(draft.choice((2, 1, 3)))]
    rows = draft.size(1, 3)
    draft.set("inputdimensions", sizes)
    for size in sizes:
        # Longer rows are cut, and shorter rows are filled with zeros.
        length = max(1, size + draft.choice((0, 0, 1, -1)))
        draft.add(draft.tensor(dtype, (rows, length), styles=("plain", "wide", "exceptional")))


def _imputer(draft: NodeDraft) -> None:
    features = draft.size(1, 4)
    count = features if draft.maybe() else 1
    dtype = draft.dtype(0, ("float32", "int64", "float64"))
    x = draft.tensor(dtype, (draft.size(1, 4), features), styles=("halves",))
    missing = draft.state().randint(0, 3, x.shape) == 0
    if dtype.kind == "i":
        replaced: float = draft.choice((0, -5))
        draft.set("imputed_value_int64s", [draft.integer(1, 99) for _ in range(count)])
        draft.set("replaced_value_int64", replaced)
    else:
        replaced = draft.choice((float("nan"), -5.0, 0.5))
        draft.set("imputed_value_floats", _floats(draft, count))
        draft.set("replaced_value_float", replaced)
    draft.add(np.where(missing, dtype.type(replaced), x))


_KEYS: Mapping[str, list[Any]] = {
    "strings": ["a", "ab", "onnx"],
    "int64s": [5, -1, 9],
    "floats": [0.5, 2.0, -1.25],
}
_DEFAULTS: Mapping[str, Any] = {"strings": "none", "int64s": 77, "floats": 0.25}
_KEY_TYPES = {"strings": "string", "int64s": "int64", "floats": "float32"}


def _label_encoder(draft: NodeDraft) -> None:
    # onnx's reference does not implement version 1.
    draft.require(draft.since(2))
    keys, values = draft.choice(tuple(_KEYS)), draft.choice(("floats", "int64s", "strings"))
    draft.set(f"keys_{keys}", _KEYS[keys])
    draft.set(f"values_{values}", [*reversed(_KEYS[values])])
    if draft.maybe():
        draft.set(f"default_{values.removesuffix('s')}", _DEFAULTS[values])
    if keys == "strings":
        draft.add(draft.tensor(DTYPES["string"], draft.shape(1, 3)))
    else:
        pool = np.array([*_KEYS[keys], 4], _KEY_TYPES[keys])
        draft.add(pool[draft.state().randint(0, 4, draft.shape(1, 3))])


def _linear_regressor(draft: NodeDraft) -> None:
    features, targets = draft.size(1, 4), draft.size(1, 3)
    draft.set("coefficients", _floats(draft, features * targets))
    draft.set("targets", targets if targets > 1 or draft.maybe() else None)
    draft.set("intercepts", _floats(draft, targets) if draft.maybe() else None)
    draft.add(_rows(draft, features))


def _set_classes(draft: NodeDraft, count: int) -> None:
    name = "classlabels_ints" if draft.has("classlabels_ints") else "classlabels_int64s"
    if draft.maybe():
        draft.set("classlabels_strings", [f"class{place}" for place in range(count)])
    else:
        draft.set(name, [place * 3 + 1 for place in range(count)])


def _linear_classifier(draft: NodeDraft) -> None:
    features, classes = draft.size(1, 4), draft.choice((3, 2))
    draft.set("coefficients", _floats(draft, features * classes))
    draft.set("intercepts", _floats(draft, classes))
    draft.attribute("post_transform", _POST_TRANSFORMS)
    _set_classes(draft, classes)
    draft.add(_rows(draft, features))


def _normalizer(draft: NodeDraft) -> None:
    draft.attribute("norm", (None, "L1", "L2", "MAX"))
    rows, features = draft.size(1, 4), draft.size(1, 4)
    low, high = draft.choice(((1.0, 9.0), (0.0625, 0.25)))
    draft.add(draft.tensor(draft.dtype(0, ("float32",)), (rows, features), low=low, high=high))


def _one_hot_encoder(draft: NodeDraft) -> None:
    # The operator does not know the fourth category. With zeros=0, such a category is an error.
    count = 4 if draft.attribute("zeros", (None, 1, 0)) == 1 else 3
    if draft.maybe():
        draft.set("cats_int64s", [5, -1, 9])
        places = draft.state().randint(0, count, draft.shape(1, 2))
        categories = np.array([5, -1, 9, 4])[places]
        dtype = draft.dtype(0, ("int64", "float32", "int32", "float64"))
        draft.require(dtype.kind in "if")
        draft.add(categories.astype(dtype))
    else:
        draft.set("cats_strings", ["onnx", "a", "ab"])
        places = draft.state().randint(0, count, draft.shape(1, 2))
        draft.add(np.array(["onnx", "a", "ab", "A"], object)[places])


def _scaler(draft: NodeDraft) -> None:
    features = draft.size(1, 4)
    count = features if draft.maybe() else 1
    draft.set("offset", _floats(draft, count))
    draft.set("scale", [value or 0.5 for value in _floats(draft, count)])
    draft.add(_rows(draft, features))


def _kernel(draft: NodeDraft) -> None:
    draft.attribute("kernel_type", ("LINEAR", "RBF", "POLY", "SIGMOID", None))
    draft.set("kernel_params", [0.25, 0.5, float(draft.choice((2, 3)))])


def _svm_regressor(draft: NodeDraft) -> None:
    features, vectors = draft.size(1, 3), draft.size(1, 4)
    _kernel(draft)
    draft.set("support_vectors", _floats(draft, features * vectors))
    draft.set("coefficients", _floats(draft, vectors))
    draft.set("n_supports", vectors)
    draft.set("rho", _floats(draft, 1))
    draft.attribute("one_class", (None, 1, 0))
    draft.add(_rows(draft, features))


_BINARY_CLASSES = 2


def _svm_classifier(draft: NodeDraft) -> None:
    features, classes = draft.size(1, 3), draft.choice((3, 2))
    counts = [draft.size(1, 3) for _ in range(classes)]
    vectors, pairs = sum(counts), classes * (classes - 1) // 2
    _kernel(draft)
    draft.set("support_vectors", _floats(draft, features * vectors))
    draft.set("coefficients", _floats(draft, (classes - 1) * vectors))
    draft.set("vectors_per_class", counts)
    draft.set("rho", _floats(draft, pairs))
    labels = [place * 3 + 1 for place in range(classes)]
    draft.set("classlabels_ints", labels[::-1] if draft.maybe() else labels)
    # Runtimes disagree on how two scores are transformed.
    draft.attribute(
        "post_transform", _POST_TRANSFORMS if classes > _BINARY_CLASSES else (None, "NONE")
    )
    draft.add(_rows(draft, features))


# The values of aggregate_function of TreeEnsemble for MIN and MAX.
_EXTREMES = (2, 3)


def _tree_ensemble(draft: NodeDraft) -> None:
    """Draw trees with one or two levels, whose nodes and leaves are numbered in any order."""
    features, targets = draft.size(1, 3), draft.size(1, 3)
    dtype = draft.dtype(0, ("float32", "float64"))
    depths = [draft.integer(1, 2) for _ in range(draft.choice((2, 1, 3)))]
    # A tree with two levels consists of a root and two further nodes.
    count = sum(2 * depth - 1 for depth in depths)
    leaves = sum(2 * depth for depth in depths)
    nodes = draft.state().permutation(count).tolist()
    free_leaves = draft.state().permutation(leaves).tolist()
    roots: list[int] = []
    # The two branches of each node. A branch is a pair: the number of a node and 0, or the number
    # of a leaf and 1.
    branches: dict[int, list[tuple[int, int]]] = {}
    for depth in depths:
        root = nodes.pop()
        roots.append(root)
        branches[root] = []
        for _ in range(2):
            if depth == 1:
                branches[root].append((free_leaves.pop(), 1))
                continue
            child = nodes.pop()
            branches[root].append((child, 0))
            branches[child] = [(free_leaves.pop(), 1), (free_leaves.pop(), 1)]
    numbers = range(count)
    draft.set("tree_roots", roots)
    draft.set("nodes_featureids", [draft.integer(0, features - 1) for _ in numbers])
    splits = np.array([draft.integer(-4, 4) / 2 for _ in numbers], dtype)
    draft.set("nodes_splits", tensor_of(splits))
    modes = [draft.integer(0, 5) for _ in numbers]
    draft.set("nodes_modes", tensor_of(np.array(modes, np.uint8)))
    for place, side in enumerate(("true", "false")):
        draft.set(f"nodes_{side}nodeids", [branches[number][place][0] for number in numbers])
        draft.set(f"nodes_{side}leafs", [branches[number][place][1] for number in numbers])
    draft.set(
        "nodes_missing_value_tracks_true",
        [int(draft.maybe()) for _ in numbers] if draft.maybe() else None,
    )
    target_ids = [draft.integer(0, targets - 1) for _ in range(leaves)]
    weights = draft.tensor(dtype, (leaves,), styles=("plain", "halves"))
    draft.set("leaf_weights", tensor_of(weights))
    if draft.attribute("aggregate_function", (1, 0, 2, 3, None)) in _EXTREMES:
        targets, target_ids = 1, [0] * leaves
    draft.set("leaf_targetids", target_ids)
    draft.set("n_targets", targets)
    draft.set("post_transform", 0)
    styles = ("halves", "plain", "nan")
    draft.add(draft.tensor(dtype, (draft.size(1, 4), features), styles=styles))


_BRANCHES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def _set_trees(draft: NodeDraft, features: int) -> list[tuple[int, int]]:
    """Draw trees with one or two levels of branches.

    Returns: For each leaf, the numbers of its tree and its node.
    """
    trees, nodes, modes, tests, values = [], [], [], [], []
    branches: list[tuple[int, int]] = []
    leaves: list[tuple[int, int]] = []
    for tree in range(draft.choice((2, 1, 3))):
        # Nodes are numbered level by level.
        is_deep = draft.maybe()
        count = 3 if is_deep else 1
        for node in range(2 * count + 1):
            is_leaf = node >= count
            trees.append(tree)
            nodes.append(node)
            modes.append("LEAF" if is_leaf else draft.choice(_BRANCHES))
            tests.append(0 if is_leaf else draft.integer(0, features - 1))
            values.append(0.0 if is_leaf else draft.integer(-4, 4) / 2)
            branches.append((0, 0) if is_leaf else (2 * node + 1, 2 * node + 2))
            if is_leaf:
                leaves.append((tree, node))
    draft.set("nodes_treeids", trees)
    draft.set("nodes_nodeids", nodes)
    draft.set("nodes_modes", modes)
    draft.set("nodes_featureids", tests)
    draft.set("nodes_values", values)
    draft.set("nodes_truenodeids", [true for true, _ in branches])
    draft.set("nodes_falsenodeids", [false for _, false in branches])
    draft.set("nodes_missing_value_tracks_true", [int(draft.maybe()) for _ in nodes])
    return leaves


def _tree_rows(draft: NodeDraft, features: int) -> Array:
    styles = ("halves", "plain", "halves", "exceptional")
    dtype = draft.dtype(0, ("float32",))
    return draft.tensor(dtype, (draft.size(1, 4), features), styles=styles)


def _set_weights(draft: NodeDraft, kind: str, places: list[tuple[int, int, int]]) -> None:
    """Set the weights of leaves.

    A leaf is given by its tree, its node, and its class or target.
    """
    draft.set(f"{kind}_treeids", [tree for tree, _, _ in places])
    draft.set(f"{kind}_nodeids", [node for _, node, _ in places])
    draft.set(f"{kind}_ids", [number for _, _, number in places])
    draft.set(f"{kind}_weights", _floats(draft, len(places)))


def _tree_ensemble_regressor(draft: NodeDraft) -> None:
    features, targets = draft.size(1, 3), draft.size(1, 2)
    leaves = _set_trees(draft, features)
    aggregate = draft.attribute("aggregate_function", (None, "SUM", "AVERAGE", "MIN", "MAX"))
    # The specification does not say whether a minimum includes base values.
    is_extreme = aggregate in ("MIN", "MAX")
    base_values = draft.set("base_values", _floats(draft, targets) if draft.maybe() else None)
    draft.require(not (is_extreme and base_values))
    if is_extreme or base_values:
        # Runtimes disagree on targets to which no leaf assigns a value.
        places = [(*leaf, target) for leaf in leaves for target in range(targets)]
    else:
        places = [(*leaf, draft.integer(0, targets - 1)) for leaf in leaves]
    _set_weights(draft, "target", places)
    draft.set("n_targets", targets)
    draft.attribute("post_transform", (None, "NONE"))
    draft.add(_tree_rows(draft, features))


def _tree_ensemble_classifier(draft: NodeDraft) -> None:
    features, classes = draft.size(1, 3), draft.choice((3, 4))
    leaves = _set_trees(draft, features)
    places = [(*leaf, place) for leaf in leaves for place in range(classes)]
    _set_weights(draft, "class", places)
    draft.set("base_values", _floats(draft, classes) if draft.maybe() else None)
    draft.attribute("post_transform", _POST_TRANSFORMS)
    _set_classes(draft, classes)
    draft.add(_tree_rows(draft, features))


#: Generators by operator.
ML: Mapping[str, Callable[[NodeDraft], None]] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
    "CategoryMapper": _category_mapper,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "Scaler": _scaler,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleClassifier": _tree_ensemble_classifier,
    "TreeEnsembleRegressor": _tree_ensemble_regressor,
}
