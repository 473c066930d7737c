"""TreeEnsemble with ``post_transform``, evaluated for all samples and trees together.

onnx's reference builds Python objects for each tree in each run, and evaluates the samples one by
one. This module computes the same scores. It also applies ``post_transform``, which the reference
ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.patching import replaces

# Values of the attribute aggregate_function.
_AVERAGE, _SUM, _MIN, _MAX = range(4)
# Values of the attribute post_transform. PROBIT is rejected in corrected_reference.py.
_NONE, _SOFTMAX, _LOGISTIC, _SOFTMAX_ZERO = range(4)
# Suffix of the names of attributes that are tensors of doubles.
_DOUBLES = "_as_tensor"
# For each value of nodes_modes, the comparison of a feature with the split.
_COMPARISONS: dict[int, Callable[[Array, Array], Array]] = {
    0: np.less_equal,
    1: np.less,
    2: np.greater_equal,
    3: np.greater,
    4: np.equal,
    5: np.not_equal,
}


@dataclass(frozen=True)
class _Trees:
    """The nodes of all trees, as arrays.

    Attributes:
        splits: for each node, the number with which a feature is compared.
        features: for each node, the index of the feature.
        modes: for each node, the key of the comparison.
        missing: for each node, whether NaN leads to the true branch.
        branches: the indices of the false branches and of the true branches of all nodes.
        leaves: for each of these branches, whether it is a leaf.
        roots: for each tree, the index of its root. If a tree is a single leaf, both branches of
            its root lead to this leaf.
    """

    splits: Array
    features: Array
    modes: Array
    missing: Array
    branches: Array
    leaves: Array
    roots: Array

    @classmethod
    def of(cls, splits: Array, attributes: dict[str, Any], roots: Any) -> _Trees:
        """Return the trees that the attributes of a node define."""
        modes = np.asarray(attributes["nodes_modes"])
        stated = attributes["nodes_missing_value_tracks_true"]
        missing = np.zeros(modes.shape, bool) if stated is None else np.asarray(stated, bool)
        branches, leaves = (
            np.stack([np.asarray(attributes[f"nodes_{side}{name}"]) for side in ("false", "true")])
            for name in ("nodeids", "leafs")
        )
        features = np.asarray(attributes["nodes_featureids"])
        return cls(splits, features, modes, missing, branches, leaves != 0, np.asarray(roots))

    def reached(self, x: Array) -> Array:
        """Return, for each sample and each tree, the index of the leaf that the sample reaches.

        Raises:
            ValueError: if a sample reaches no leaf, because the nodes form a cycle.
        """
        index = np.tile(self.roots, (len(x), 1))
        samples, trees = np.nonzero(np.ones(index.shape, bool))
        for _ in range(len(self.modes) + 1):
            if not len(samples):
                return index
            nodes = index[samples, trees]
            holds = self._holds(x[samples, self.features[nodes]], nodes).astype(np.intp)
            index[samples, trees] = self.branches[holds, nodes]
            inner = ~self.leaves[holds, nodes]
            samples, trees = samples[inner], trees[inner]
        raise ValueError("the nodes of a tree form a cycle")

    def _holds(self, values: Array, nodes: Array) -> Array:
        """Return, for each node, whether its condition holds for a value."""
        modes, splits = self.modes[nodes], self.splits[nodes]
        holds = np.zeros(len(nodes), bool)
        for mode in np.unique(modes).tolist():
            holds |= (modes == mode) & _COMPARISONS[mode](values, splits)
        return holds | (self.missing[nodes] & np.isnan(values))


@replaces("aionnxml.op_tree_ensemble.TreeEnsemble._run")
def _ensemble(node: Any, original: Any, x: Array, **attributes: Any) -> Any:
    """Return the transformed scores.

    If any node tests set membership, the reference computes the ensemble.
    """
    is_defined = (
        attributes["aggregate_function"] in range(_MAX + 1)
        and set(attributes["nodes_modes"]) <= _COMPARISONS.keys()
    )
    scores = _scores(x, attributes) if is_defined else original(node, x, **attributes)[0]
    return (_transformed(scores, attributes["post_transform"]),)


def _transformed(scores: Array, transform: int) -> Array:
    """Return the scores of each sample after a transform.

    Raises:
        NotImplementedError: if the transform is not NONE, SOFTMAX, LOGISTIC or SOFTMAX_ZERO.
    """
    from onnx.reference.ops.aionnxml import _common_classifier

    functions: dict[int, Callable[[Array], Array]] = {
        _SOFTMAX: _common_classifier.softmax,
        _LOGISTIC: _common_classifier.logistic,
        _SOFTMAX_ZERO: _common_classifier.softmax_zero,
    }
    if transform == _NONE or not scores.size:
        return scores
    if transform not in functions:
        raise NotImplementedError(f"TreeEnsemble with post_transform {transform}")
    return functions[transform](scores).astype(scores.dtype)


def _scores(x: Array, attributes: dict[str, Any]) -> Array:
    """Return the aggregated weights of the leaves that each sample reaches."""
    combine = attributes["aggregate_function"]
    trees = _Trees.of(np.asarray(attributes["nodes_splits"]), attributes, attributes["tree_roots"])
    leaves = trees.reached(x)
    weights = np.asarray(attributes["leaf_weights"])[leaves].astype(np.float64)
    targets = np.asarray(attributes["leaf_targetids"])[leaves]
    if combine == _AVERAGE:
        weights = weights / leaves.shape[1]
    limits = np.finfo(x.dtype)
    initial = {_MIN: limits.max, _MAX: limits.min}.get(combine, 0)
    result = np.full((len(x), attributes["n_targets"]), initial, x.dtype)
    samples = np.arange(len(x))
    # Aggregate tree by tree, as the reference does, because a sum depends on the order of its
    # terms.
    for weight, target in zip(weights.T, targets.T, strict=True):
        before = result[samples, target]
        if combine == _MIN:
            after = np.where(weight < before, weight, before)
        elif combine == _MAX:
            after = np.where(weight > before, weight, before)
        else:
            after = before + weight
        result[samples, target] = after
    return result


@replaces("aionnxml.op_tree_ensemble_helper.TreeEnsemble.__init__")
def _trees_of_attributes(trees: Any, original: Any, **attributes: Any) -> None:
    """Read tensors of doubles, and lead NaN to the false branch by default.

    The reference ignores these tensors. If ``nodes_missing_value_tracks_true`` is not set, it
    raises an error for NaN.
    """
    attributes = with_doubles(attributes)
    name = "nodes_missing_value_tracks_true"
    if attributes.get(name) is None:
        attributes[name] = [0] * len(attributes["nodes_treeids"])
    original(trees, **attributes)


def with_doubles(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of trees in which tensors of doubles replace lists of floats.

    For example, ``base_values_as_tensor`` replaces ``base_values``.
    """
    doubles = {
        name.removesuffix(_DOUBLES): value
        for name, value in attributes.items()
        if name.endswith(_DOUBLES) and value is not None
    }
    return {**attributes, **doubles}
