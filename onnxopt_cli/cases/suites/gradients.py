"""Gradients as functions of X, each written once as a NumPy formula that every reading can read.

Parameters are numbers of X's type, held in the wide type. What a formula computes from parameters
alone must be exact, since only what it computes from X is followed by the bound reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array


def quadratic(X: Any, *, curvature: Any, center: Any) -> Any:
    """Gradient of ``sum(curvature / 2 * (X - center)**2)``; the parameters broadcast to X."""
    return curvature * (X - center)


def rosenbrock(X: Any, *, valley: Any, elements: Any) -> Any:
    """Gradient of ``sum(valley * (x[i + 1] - x[i]**2)**2 + (1 - x[i])**2)`` over a vector X.

    ``valley`` is 100 in the original (Rosenbrock 1960), which has two elements; ``elements`` is the
    unit matrix, whose rows take all elements but the last, and all but the first.
    """
    these, following = elements[:-1] @ X, elements[1:] @ X
    bend = following - these * these
    down = 4 * valley * these * bend + 2 * (1 - these)
    return elements[1:].T @ (2 * valley * bend) - elements[:-1].T @ down


def logistic(X: Any, *, features: Any, labels: Any) -> Any:
    """Gradient of the mean logistic loss of weights X on a data set.

    ``features`` is a matrix with a row a sample and a column an element of X, ``labels`` a vector
    of 0 and 1 (Hastie, Tibshirani, Friedman 2009, section 4.4.1).
    """
    probability = 1 / (1 + np.exp(-(features @ X)))
    return features.T @ (probability - labels) / len(labels)


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient that a case can name.

    Attributes:
        formula: called with X and the parameters.
        defaults: by the name of each parameter, its value where the case gives none; None if the
            case must give it.
        misfit: says what is wrong with parameters for an X of a shape; empty if nothing.
        constants: other arguments of the formula, made for X's shape.
    """

    formula: Callable[..., Any]
    defaults: Mapping[str, float | None]
    misfit: Callable[[tuple[int, ...], Mapping[str, tuple[int, ...]]], str]
    constants: Callable[[tuple[int, ...]], Mapping[str, Array]] = lambda _shape: {}


def _quadratic_misfit(shape: tuple[int, ...], given: Mapping[str, tuple[int, ...]]) -> str:
    for name, own in given.items():
        try:
            fits = np.broadcast_shapes(shape, own) == shape
        except ValueError:
            fits = False
        if not fits:
            return f"{name} of shape {list(own)}, expected one that broadcasts to {list(shape)}"
    return ""


def _rosenbrock_misfit(shape: tuple[int, ...], given: Mapping[str, tuple[int, ...]]) -> str:
    if len(shape) != 1 or shape[0] < 2:  # noqa: PLR2004 - it joins neighbours
        return f"an X of shape {list(shape)}, expected a vector of at least 2 elements"
    valley = given.get("valley", ())
    return f"valley of shape {list(valley)}, expected a number" if valley else ""


def _logistic_misfit(shape: tuple[int, ...], given: Mapping[str, tuple[int, ...]]) -> str:
    if len(shape) != 1:
        return f"an X of shape {list(shape)}, expected a vector"
    features, labels = given["features"], given["labels"]
    if len(labels) != 1 or not labels[0]:
        return f"labels of shape {list(labels)}, expected a vector"
    if features != (*labels, *shape):
        return f"features of shape {list(features)}, expected {[*labels, *shape]}"
    return ""


#: The gradients by the names that case files know.
GRADIENTS: Mapping[str, Gradient] = {
    "quadratic": Gradient(quadratic, {"curvature": 1.0, "center": 0.0}, _quadratic_misfit),
    "rosenbrock": Gradient(
        rosenbrock,
        {"valley": 100.0},
        _rosenbrock_misfit,
        constants=lambda shape: {"elements": np.eye(shape[0])},
    ),
    "logistic": Gradient(logistic, {"features": None, "labels": None}, _logistic_misfit),
}


def apply_to(
    gradient: Gradient, parameters: Mapping[str, Array], shape: tuple[int, ...]
) -> Callable[[Any], Any]:
    """Return the gradient as a function of an X of a shape alone."""
    given = {**parameters, **gradient.constants(shape)}
    wide = {name: value.astype(np.longdouble) for name, value in given.items()}
    return lambda X: gradient.formula(X, **wide)
