"""Momentum, standard and Nesterov, version 1 of ai.onnx.preview.training."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.operators.operator import FLOATS, Attribute, Operator, Scalar


def momentum(  # noqa: D417 - the operands are described together
    R: Any,
    T: Any,
    X: Any,
    G: Any,
    V: Any,
    *,
    alpha: Any,
    beta: Any,
    mode: str,
    norm_coefficient: Any,
) -> tuple[Any, Any]:
    """One step of gradient descent with momentum.

    Args:
        R: learning rate, scalar.
        T: update count, scalar integer, zero in the first step.
        X, G, V: the tensor, its gradient, its momentum; G and V broadcast to X's shape.
        mode: ``standard`` or ``nesterov``.

    Returns:
        New X and V, of X's shape.
    """
    # Gradient of 0.5 * norm_coefficient * ||X||^2 added to the given one.
    G_regularized = norm_coefficient * X + G
    # The first step takes the gradient whole.
    beta_adjusted = np.where(T > 0, beta, 1)
    V_new = alpha * V + beta_adjusted * G_regularized
    if mode == "nesterov":
        X_new = X - R * (G_regularized + alpha * V_new)
    else:
        X_new = X - R * V_new
    return X_new, V_new


MOMENTUM = Operator(
    name="Momentum",
    domain="ai.onnx.preview.training",
    version=1,
    formula=momentum,
    scalars=(Scalar("R", FLOATS), Scalar("T", ("int64",))),
    tensors=("X", "G", "V"),
    outputs={"X_new": "X", "V_new": "V"},
    attributes=(
        Attribute("alpha"),
        Attribute("beta"),
        Attribute("mode", choices=("standard", "nesterov")),
        Attribute("norm_coefficient"),
    ),
    about="One step of gradient descent with standard or Nesterov momentum.",
    source="https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Momentum.html",
)
