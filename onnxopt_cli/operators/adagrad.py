"""Adagrad, version 1 of ai.onnx.preview.training."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.operators.operator import FLOATS, Attribute, Operator, Scalar


def adagrad(  # noqa: D417 - the operands are described together
    R: Any,
    T: Any,
    X: Any,
    G: Any,
    H: Any,
    *,
    decay_factor: Any,
    epsilon: Any,
    norm_coefficient: Any,
) -> tuple[Any, Any]:
    """One step of Adagrad (Duchi, Hazan and Singer 2011, figure 1).

    Args:
        R: initial learning rate, scalar.
        T: update count, scalar integer; the decay makes no difference at T = 0.
        X, G, H: the tensor, its gradient, its accumulated squared gradient; G and H broadcast to
            X's shape.

    Returns:
        New X and H, of X's shape.
    """
    r = R / (1 + T * decay_factor)
    # Gradient of 0.5 * norm_coefficient * ||X||^2 added to the given one.
    G_regularized = norm_coefficient * X + G
    H_new = H + G_regularized * G_regularized
    # The part of the learning rate that adapts to each coordinate.
    H_adaptive = np.sqrt(H_new) + epsilon
    X_new = X - r * G_regularized / H_adaptive
    return X_new, H_new


ADAGRAD = Operator(
    name="Adagrad",
    domain="ai.onnx.preview.training",
    version=1,
    formula=adagrad,
    scalars=(Scalar("R", FLOATS), Scalar("T", ("int64",))),
    tensors=("X", "G", "H"),
    outputs={"X_new": "X", "H_new": "H"},
    attributes=(
        Attribute("decay_factor", 0.0),
        Attribute("epsilon", 1e-6),
        Attribute("norm_coefficient", 0.0),
    ),
    about="One step of Adagrad: the gradient scaled by the root of its accumulated square.",
    source="https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Adagrad.html",
)
