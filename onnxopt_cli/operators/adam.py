"""Adam, version 1 of ai.onnx.preview.training."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.operators.operator import FLOATS, Attribute, Operator, Scalar


def adam(  # noqa: D417 - the operands are described together
    R: Any,
    T: Any,
    X: Any,
    G: Any,
    V: Any,
    H: Any,
    *,
    alpha: Any,
    beta: Any,
    epsilon: Any,
    norm_coefficient: Any,
    norm_coefficient_post: Any,
) -> tuple[Any, Any, Any]:
    """One step of Adam in its epsilon-hat form (Kingma and Ba 2015, end of section 2).

    Epsilon is added to the root of the uncorrected second moment. T counts from 1 as in the paper;
    T <= 0 means no bias correction.

    Args:
        R: learning rate, scalar.
        T: update count, scalar integer.
        X, G, V, H: the tensor, its gradient, its averaged gradient, its averaged squared gradient;
            G, V and H broadcast to X's shape.

    Returns:
        New X, V and H, of X's shape.
    """
    # Gradient of 0.5 * norm_coefficient * ||X||^2 added to the given one.
    G_regularized = norm_coefficient * X + G
    V_new = alpha * V + (1 - alpha) * G_regularized
    H_new = beta * H + (1 - beta) * (G_regularized * G_regularized)
    H_sqrt = np.sqrt(H_new) + epsilon
    # Bias correction of both moments, folded into the learning rate.
    R_adjusted = np.where(T > 0, R * np.sqrt(1 - beta**T) / (1 - alpha**T), R)
    X_new = X - R_adjusted * V_new / H_sqrt
    return (1 - norm_coefficient_post) * X_new, V_new, H_new


ADAM = Operator(
    name="Adam",
    domain="ai.onnx.preview.training",
    version=1,
    formula=adam,
    scalars=(Scalar("R", FLOATS), Scalar("T", ("int64",))),
    tensors=("X", "G", "V", "H"),
    outputs={"X_new": "X", "V_new": "V", "H_new": "H"},
    attributes=(
        Attribute("alpha", 0.9),
        Attribute("beta", 0.999),
        Attribute("epsilon", 1e-6),
        Attribute("norm_coefficient", 0.0),
        Attribute("norm_coefficient_post", 0.0),
    ),
    about="One step of Adam: momentum scaled by the root of the averaged squared gradient.",
    source="https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adam.html",
)
