"""Trees and support vector machines with attributes that the generators do not combine.

Examples are trees in which one node tests set membership and another node compares, trees that
consist of a leaf, nodes in any order, and scores that overflow unless the largest is subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onnxopt_cli.cases.tensors.proto_values import tensor_of
from onnxopt_cli.suites.operators.boundaries.fixed_nodes import Generator, distinct, fixed_node

_NAN, _INF = np.nan, np.inf
# Values of nodes_modes of TreeEnsemble; the last one tests set membership.
_MODES = ("leq", "lt", "gte", "gt", "eq", "neq")
_LEQ, _LT, _GTE, _EQ, _MEMBER = 0, 1, 2, 4, 6
# Values of aggregate_function of TreeEnsemble.
_AVERAGE, _SUM, _MIN, _MAX = range(4)
# Rows at, below and above the splits, with each kind of exceptional feature.
_ROWS = np.array(
    [
        *([1, 0.5], [1, 0], [1, 2], [3, 0.5], [1, _NAN], [2, 1.5], [_NAN, 0], [1, _INF]),
        *([2, -_INF], [5, 1.5], [5, 7], [_INF, 1], [1, 1.5]),
    ],
    np.float32,
)


def boundary_trees() -> Iterator[tuple[str, str, Generator]]:
    """Yield the operator, the name and the generator of each boundary node."""
    yield from _members()
    yield from _leaves()
    yield from _splits()
    yield from _node_orders()
    yield from _spread_scores()
    yield from _labels()
    yield from _machines()


def _floats(*values: float) -> Any:
    return tensor_of(np.array(values, np.float32))


def _two_trees(
    *, modes: Sequence[int], targets: int = 2, is_leaf_added: bool = False, **attributes: Any
) -> Generator:
    """Return an ensemble of a tree with two levels and a tree with one branch.

    Args:
        modes: the modes of the nodes: of the root and the inner node of the first tree, and of the
            root of the second tree. The root of the first tree tests the first feature, the other
            nodes test the second feature. The membership set is {1, 2}.
        targets: the number of targets.
        is_leaf_added: whether a third tree consists of a leaf.
        attributes: further attributes.
    """
    leaf = int(is_leaf_added)
    members = {"membership_values": _floats(1, 2, _NAN)} if _MEMBER in modes else {}
    arguments: dict[str, Any] = {
        "tree_roots": [0, 2, *[3] * leaf],
        "nodes_featureids": [0, 1, 1, *[0] * leaf],
        "nodes_splits": _floats(0 if _MEMBER in modes else 2, 0.5, 1.5, *[0] * leaf),
        "nodes_modes": tensor_of(np.array([*modes, *[_LEQ] * leaf], np.uint8)),
        "nodes_truenodeids": [1, 1, 3, *[5] * leaf],
        "nodes_falsenodeids": [0, 2, 4, *[5] * leaf],
        "nodes_trueleafs": [0, 1, 1, *[1] * leaf],
        "nodes_falseleafs": [1] * (3 + leaf),
        "leaf_weights": _floats(0.5, -1.25, 3, 7.5, -2, *[4.25] * leaf),
        "leaf_targetids": [number % targets for number in range(5 + leaf)],
        "n_targets": targets,
        **members,
    }
    return fixed_node(_ROWS, **{**arguments, **attributes})


def _members() -> Iterator[tuple[str, str, Generator]]:
    """Yield trees in which the root tests set membership, and the other nodes compare."""
    for mode, name in enumerate(_MODES):
        aggregate = _SUM if mode % 2 else _AVERAGE
        modes = (_MEMBER, mode, mode)
        tree = _two_trees(
            modes=modes,
            aggregate_function=aggregate,
            post_transform=0,
            nodes_missing_value_tracks_true=[1, 1, 1],
        )
        yield "TreeEnsemble", f"member_and_{name}", tree
    modes = (_MEMBER, _LEQ, _LT)
    for aggregate, name in ((_MIN, "smaller"), (_MAX, "larger")):
        tree = _two_trees(modes=modes, targets=1, aggregate_function=aggregate, post_transform=0)
        yield "TreeEnsemble", f"member_{name}", tree
    tree = _two_trees(modes=modes, nodes_missing_value_tracks_true=[0, 1, 0])
    yield "TreeEnsemble", "member_without_transform", tree


def _leaves() -> Iterator[tuple[str, str, Generator]]:
    """Yield ensembles in which one tree is a leaf, and ensembles that get no rows."""
    leaf = _two_trees(modes=(_LT, _LEQ, _GTE), is_leaf_added=True, aggregate_function=_AVERAGE)
    yield "TreeEnsemble", "two_trees_and_leaf", leaf
    rows = np.zeros((0, 2), np.float32)
    single = _branch(rows, mode=_LEQ, split=0.5)
    yield "TreeEnsemble", "no_rows", single


def _branch(x: np.ndarray[Any, Any], *, mode: int, split: float) -> Generator:
    """Return a TreeEnsemble of one node that compares the first feature."""
    return fixed_node(
        x,
        tree_roots=[0],
        nodes_featureids=[0],
        nodes_splits=_floats(split),
        nodes_modes=tensor_of(np.array([mode], np.uint8)),
        nodes_truenodeids=[0],
        nodes_falsenodeids=[1],
        nodes_trueleafs=[1],
        nodes_falseleafs=[1],
        leaf_weights=_floats(1, 2.5),
        leaf_targetids=[0, 1],
        n_targets=2,
    )


def _splits() -> Iterator[tuple[str, str, Generator]]:
    """Yield features and splits above 6, and infinite ones."""
    largest = float(np.finfo(np.float32).max)
    column = np.array([[_INF], [largest], [-_INF], [8], [9]], np.float32)
    for stem, mode, split in (
        ("above_8", _LEQ, 8.25),
        ("infinite", _EQ, _INF),
        ("largest", _LEQ, largest),
    ):
        yield "TreeEnsemble", f"split_{stem}", _branch(column, mode=mode, split=split)
    x = np.array([[_INF, _INF], [8, 8], [7, 7], [9, 0], [largest, largest]], np.float32)
    for stem, values in (("above_7", [7.5, 8.5]), ("largest", [0.0, largest])):
        for operator in _OLDER:
            yield operator, f"split_{stem}", _older(operator, x, values=values)
    integers = np.array([[2**24 + 3, 1], [2**24, 3]])
    regressor = "TreeEnsembleRegressor"
    close = np.array([[0.5 + 2**-40, 1], [0.5, 1.5 + 2**-40]])
    yield regressor, "split_of_int64", _older(regressor, integers, values=[2.0**24, 1.5])
    yield regressor, "split_of_float64", _older(regressor, close, values=[0.5, 1.5])


_OLDER = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")


def _older(
    operator: str,
    x: np.ndarray[Any, Any],
    *,
    values: Sequence[float] = (0.5, 1.5),
    order: Sequence[int] = range(5),
    weights: Sequence[float] = (0.5, -1.25, 3.0),
    **attributes: Any,
) -> Generator:
    """Return a TreeEnsembleClassifier or TreeEnsembleRegressor of one tree with two branches.

    Args:
        operator: the operator.
        x: the input.
        values: the thresholds of the branches.
        order: the order of the nodes. The nodes 0 and 2 are branches, the others are leaves.
        weights: the weights of the first leaf for each class or target. The weights of the other
            leaves are the same numbers in another order.
        attributes: further attributes.
    """
    is_classifier = operator == "TreeEnsembleClassifier"
    prefix = "class" if is_classifier else "target"
    table: dict[str, list[Any]] = {
        "nodes_nodeids": [0, 1, 2, 3, 4],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_featureids": [0, 0, 1, 0, 0],
        "nodes_values": [values[0], 0.0, values[1], 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 3, 0, 0],
        "nodes_falsenodeids": [2, 0, 4, 0, 0],
    }
    flags = attributes.pop("tracks_true", None)
    if flags is not None:
        table["nodes_missing_value_tracks_true"] = flags
    nodes = {name: [column[number] for number in order] for name, column in table.items()}
    leaves: dict[str, Any] = {
        f"{prefix}_treeids": [0] * 9,
        f"{prefix}_nodeids": [1, 1, 1, 3, 3, 3, 4, 4, 4],
        f"{prefix}_ids": [0, 1, 2] * 3,
        f"{prefix}_weights": [
            weights[(leaf + place) % 3] for leaf in range(3) for place in range(3)
        ],
    }
    if not is_classifier:
        leaves["n_targets"] = 3
    elif "classlabels_strings" not in attributes:
        leaves.setdefault("classlabels_int64s", [5, 3, 7])
    return fixed_node(
        x,
        outputs=2 if is_classifier else None,
        nodes_treeids=[0] * 5,
        **{**nodes, **leaves, **attributes},
    )


_MISSING = np.array([[0, 0], [0.5, 2], [1, 1.5], [1, 3], [_NAN, 2], [1, _NAN]], np.float32)


def _node_orders() -> Iterator[tuple[str, str, Generator]]:
    """Yield trees whose last node is a branch, with rows in which a feature is missing."""
    for operator in _OLDER:
        order = (0, 1, 3, 4, 2)
        yield operator, "branch_last", _older(operator, _MISSING, order=order)
        tree = _older(operator, _MISSING, order=order, tracks_true=[0, 0, 1, 0, 0])
        yield operator, "branch_last_missing", tree


def _spread_scores() -> Iterator[tuple[str, str, Generator]]:
    """Yield scores whose exponentials overflow float32."""
    x, bases = _MISSING[:4], [200.0, -300.0, 100.0]
    weights = (1000.0, -1000.0, 500.0)
    for operator in _OLDER:
        attributes: dict[str, Any] = {"weights": weights, "base_values": bases}
        tree = _older(operator, x, post_transform="SOFTMAX", **attributes)
        yield operator, "spread_softmax", tree
    classifier = "TreeEnsembleClassifier"
    zero = _older(classifier, x, post_transform="SOFTMAX_ZERO", weights=weights, base_values=bases)
    yield classifier, "spread_softmax_zero", zero
    linear = fixed_node(
        np.array([[1.0, -1.0], [-1.0, 0.5]], np.float32),
        coefficients=[900.0, 100.0, -900.0, 300.0, 50.0, 700.0],
        intercepts=[0.5, -0.25, 1.0],
        classlabels_ints=[4, 7, 1],
        post_transform="SOFTMAX",
        outputs=2,
    )
    yield "LinearClassifier", "spread_softmax", linear


def _labels() -> Iterator[tuple[str, str, Generator]]:
    """Yield labels that are negative, do not fit into 8 bits or a float32, or are unsorted."""
    classifier, x = "TreeEnsembleClassifier", _MISSING[:4]
    for stem, labels in (("negative", [-5, 3, -7]), ("large", [2**24 + 1, 300, 2**40 + 1])):
        tree = _older(classifier, x, classlabels_int64s=labels)
        yield classifier, f"labels_{stem}", tree
        linear = fixed_node(
            np.array([[1.0, -1.0], [-1.0, 0.5], [0.5, 2.0]], np.float32),
            coefficients=[1.0, 0.0, -1.0, 0.0, 0.0, 1.0],
            intercepts=[0.0, 0.25, 0.0],
            classlabels_ints=labels,
            outputs=2,
        )
        yield "LinearClassifier", f"labels_{stem}", linear
    texts = _older(classifier, x, classlabels_strings=["c", "a", "b"])
    yield classifier, "labels_unsorted", texts


def _machines() -> Iterator[tuple[str, str, Generator]]:
    """Yield a support vector machine that returns a probability close to 1."""
    x = distinct(3, 2)
    machine: dict[str, Any] = {
        "kernel_type": "LINEAR",
        "kernel_params": [0.5, 0.125, 2.0],
        "support_vectors": [1.0, 2.0, 3.0, 4.0],
    }
    likely = fixed_node(
        x,
        outputs=2,
        coefficients=[0.0, 0.0],
        vectors_per_class=[1, 1],
        rho=[3.0],
        prob_a=[20.0],
        prob_b=[0.125],
        classlabels_ints=[4, 9],
        **machine,
    )
    yield "SVMClassifier", "unlikely_class", likely
