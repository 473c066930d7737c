"""Adagrad, version 1 of ai.onnx.preview.training."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.operators.operator import (
    FLOATS,
    Attribute,
    Operator,
    Scalar,
    mistake_table,
    reformulation_table,
)
from onnxopt_cli.operators.shared_mistakes import (
    REGULARIZED_GRADIENT,
    ROOT,
    ROOT_AND_EPSILON,
)


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
        T: update count, scalar integer; at T = 0 the learning rate is R.
        X, G, H: the tensor, its gradient, its accumulated squared gradient; G and H broadcast to
            X's shape.

    Returns:
        New X and H, of X's shape.
    """
    r = R / (1 + T * decay_factor)
    # Add the gradient of 0.5 * norm_coefficient * ||X||^2.
    G_regularized = norm_coefficient * X + G
    H_new = H + G_regularized * G_regularized
    # The part of the learning rate that adapts to each coordinate.
    H_adaptive = np.sqrt(H_new) + epsilon
    X_new = X - r * G_regularized / H_adaptive
    return X_new, H_new


_RATE = "R / (1 + T * decay_factor)"
_SQUARE = "G_regularized * G_regularized"
_STEP = "r * G_regularized / H_adaptive"

KNOWN_MISTAKES = (
    *mistake_table(f"""
    epsilon inside the square root
        Epsilon is added before the root is taken.
        seen in optax; Keras 3
        {ROOT} -> np.sqrt(H_new + epsilon)
    epsilon inside the square root, no decay
        Epsilon is added before the root is taken, and the rate R does not decay.
        seen in Keras 3; optax where epsilon is not 0
        {ROOT} -> np.sqrt(H_new + epsilon)
        {_RATE} -> R
    epsilon inside the square root, no decay, no step where H_new is 0
        Epsilon is added before the root is taken, no step is made where H_new is 0, and the \
            rate R does not decay.
        seen in optax
        {ROOT} -> np.sqrt(H_new + np.where(H_new > 0, epsilon, 1))
        {_RATE} -> R
        {_STEP} -> np.where(H_new > 0, r * G_regularized / H_adaptive, 0)
    epsilon taken as 0
        Epsilon is not added to the root.
        seen in TensorFlow ApplyAdagrad
        {ROOT} -> np.sqrt(H_new)
    epsilon added to H
        Epsilon is added to the sum of squares, and the output H_new includes it.
        H + {_SQUARE} -> H + {_SQUARE} + epsilon
        {ROOT} -> np.sqrt(H_new)
    epsilon added to the quotient
        Epsilon is added to G / sqrt(H_new).
        {ROOT} -> np.sqrt(H_new)
        {_STEP} -> r * (G_regularized / H_adaptive + epsilon)
    epsilon defaults to 0
        The default of epsilon is 0 instead of 1e-6.
        seen in TVM; tinygrad
        epsilon = 0.0
    epsilon defaults to 1e-7
        The default of epsilon is 1e-7, as in other libraries, instead of 1e-6.
        epsilon = 1e-7
    epsilon defaults to 1e-10
        The default of epsilon is 1e-10, as in other libraries, instead of 1e-6.
        epsilon = 1e-10
    decay_factor taken as 0
        The rate R does not decay.
        seen in optax; Keras 3
        {_RATE} -> R
    decay in float32
        1 + T * decay_factor is computed in float32, even if R is double.
        seen in onnx2fx
        1 + T * decay_factor -> 1 + np.float32(T * decay_factor)
    decay without T
        R is divided by 1 + decay_factor for every T.
        T * decay_factor -> decay_factor
    decay multiplied
        R is multiplied by 1 + T * decay_factor instead of divided.
        {_RATE} -> R * (1 + T * decay_factor)
    decay without the added one
        R is divided by T * decay_factor instead of 1 + T * decay_factor.
        1 + T * decay_factor -> T * decay_factor
    decay linear
        R is multiplied by 1 - T * decay_factor.
        {_RATE} -> R * (1 - T * decay_factor)
    decay by powers
        R is multiplied by (1 - decay_factor)^T.
        {_RATE} -> R * (1 - decay_factor) ** T
    decay exponential
        R is multiplied by exp(-T * decay_factor).
        {_RATE} -> R * np.exp(-T * decay_factor)
    decay by the root of T
        R is divided by the root of 1 + T * decay_factor.
        {_RATE} -> R / np.sqrt(1 + T * decay_factor)
    decay of H
        The old H is also divided by 1 + T * decay_factor.
        H + {_SQUARE} -> H / (1 + T * decay_factor) + {_SQUARE}
    H sums magnitudes
        The magnitude of the gradient is added to H instead of its square.
        {_SQUARE} -> np.abs(G_regularized)
    H averages
        H_new is the mean of H and the squared gradient instead of their sum.
        H + {_SQUARE} -> (H + {_SQUARE}) / 2
    H holds one square for the whole tensor
        The mean of the squared gradient over the tensor is added to every element of H.
        {_SQUARE} -> np.mean({_SQUARE})
    root of H returned
        The output H_new is the root of the sum of squares.
        return X_new, H_new -> return X_new, np.sqrt(H_new)
    denominator returned
        The output H_new is the denominator, the root of the sum of squares plus epsilon.
        return X_new, H_new -> return X_new, H_adaptive
    regularisation missing in H
        The square that is added to H is that of the gradient without regularisation.
        {_SQUARE} -> G * G
    regularisation missing in the step
        The step uses the gradient without regularisation.
        {_STEP} -> r * G / H_adaptive
    regularisation decoupled
        R * norm_coefficient * X is subtracted from X instead of being part of the gradient.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - R * norm_coefficient * X
    regularisation decoupled, scaled by the decayed rate
        r * norm_coefficient * X is subtracted from X instead of being part of the gradient; r \
            is the decayed rate.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - r * norm_coefficient * X
    regularisation after the step
        X_new is multiplied by 1 - norm_coefficient; the gradient has no regularisation.
        norm_coefficient * X + G -> G
        return X_new, H_new -> return (1 - norm_coefficient) * X_new, H_new
    shapes broadcast by NumPy
        Outputs have the types of their tensors, but their shapes are broadcast with R and T.
        seen in onnx.reference
    """),
    *ROOT_AND_EPSILON,
    *REGULARIZED_GRADIENT,
)

REFORMULATIONS = reformulation_table(f"""
    quotient first
        {_STEP} -> r * (G_regularized / H_adaptive)
    rate divided by the root first
        {_STEP} -> r / H_adaptive * G_regularized
    one denominator
        {_RATE} -> R
        {_STEP} -> r * G_regularized / ((1 + T * decay_factor) * H_adaptive)
    decay by a reciprocal
        {_RATE} -> R * (1 / (1 + T * decay_factor))
    square by a power
        seen in Keras
        {_SQUARE} -> G_regularized**2
    step negated and added
        seen in PyTorch
        X - {_STEP} -> -r * G_regularized / H_adaptive + X
""")

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
    known_mistakes=KNOWN_MISTAKES,
    reformulations=REFORMULATIONS,
    suite="conformance",
)
