"""Operators of ai.onnx.ml whose outputs are float32 for operands of every type.

The operand may be float32, double, int32 or int64. The reference returns results in the type of
the operand. It therefore truncates results to integers, and does not round doubles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.oracle.corrections.trees import with_doubles
from onnxopt_cli.oracle.patching import reference_modules, replaces

#: Operators of ai.onnx.ml that convert integers to floats before they compute.
CONVERTING = frozenset(
    {"FeatureVectorizer", "LinearClassifier", "LinearRegressor", "Normalizer", "Scaler"}
    | {"SVMClassifier", "SVMRegressor"}
)

# The reference divides by at least this number.
_LEAST_DIVISOR = 1e-30


def in_single(x: Array) -> Array:
    """Return numbers as float32 or, in a model that is computed in double, as doubles."""
    # While a model is computed in double, ``op_svm_helper.np.float32`` is float64.
    names = reference_modules().aionnxml.op_svm_helper.np
    return x.astype(names.float32)


@replaces("aionnxml.op_normalizer.Normalizer._run")
def _normalized(_node: Any, _original: Any, x: Array, norm: str) -> tuple[Array]:
    """Normalize by NumPy's sums, which the condition estimate can compute sequentially.

    A tensor of shape [C] is a single row.
    """
    x = in_single(x)
    axis = 0 if x.ndim == 1 else 1
    if norm == "MAX":
        divisor = np.max(np.abs(x), axis=axis, keepdims=True, initial=0)
    elif norm == "L1":
        divisor = np.sum(np.abs(x), axis=axis, keepdims=True)
    else:
        divisor = np.sqrt(np.sum(np.square(x), axis=axis, keepdims=True))
    return (in_single(x / np.maximum(divisor, x.dtype.type(_LEAST_DIVISOR))),)


@replaces("aionnxml.op_scaler.Scaler._run")
def _scaled(node: Any, original: Any, x: Array, **attributes: Any) -> tuple[Array]:
    (y,) = original(node, in_single(x), **attributes)
    return (in_single(y),)


@replaces("aionnxml.op_feature_vectorizer.FeatureVectorizer._run")
def _vectorized(
    node: Any, original: Any, *operands: Array, inputdimensions: Any = None
) -> tuple[Array]:
    """Concatenate rows. A vector is a single row, not a column as in the reference."""
    rows = [np.atleast_2d(operand) for operand in operands]
    lengths = inputdimensions or [row.shape[1] for row in rows]
    (y,) = original(node, *rows, inputdimensions=lengths)
    return (in_single(y),)


@replaces("aionnxml.op_linear_regressor.LinearRegressor._run")
def _linear_regression(
    node: Any, original: Any, x: Array, intercepts: Any = None, **attributes: Any
) -> tuple[Array]:
    """Add 0 if the intercepts are omitted. The reference adds NaN."""
    intercepts = 0.0 if intercepts is None else intercepts
    return _regression(node, original, in_single(x), intercepts=intercepts, **attributes)


@replaces("aionnxml.op_svm_regressor.SVMRegressor._run")
def _svm_regression(node: Any, original: Any, x: Array, **attributes: Any) -> tuple[Array]:
    return _regression(node, original, in_single(x), **attributes)


@replaces("aionnxml.op_tree_ensemble_regressor.TreeEnsembleRegressor._run")
def _tree_regression(node: Any, original: Any, x: Array, **attributes: Any) -> tuple[Array]:
    # The nodes of trees compare features without rounding them.
    exact = x if x.dtype == np.float32 else x.astype(np.float64)
    return _regression(node, original, exact, **with_doubles(attributes))


def _regression(
    node: Any, original: Any, x: Array, post_transform: str = "NONE", **attributes: Any
) -> tuple[Array]:
    """Return the transformed scores of each sample.

    The reference supports only the transform NONE.
    """
    transform = {"SOFTMAX": _shares, "LOGISTIC": _sigmoid}.get(post_transform)
    passed = "NONE" if transform else post_transform
    (scores,) = original(node, x, post_transform=passed, **attributes)
    return (in_single(transform(scores) if transform else scores),)


def _shares(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _sigmoid(scores: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-scores)))
