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
        Epsilon is added before the root is taken, and R is used as given.
        seen in Keras 3; optax where epsilon is not 0
        {ROOT} -> np.sqrt(H_new + epsilon)
        {_RATE} -> R
    epsilon inside the square root, no decay, no step where H_new is 0
        Epsilon is added before the root is taken, but not to zero; R is used as given.
        seen in optax
        {ROOT} -> np.sqrt(H_new + np.where(H_new > 0, epsilon, 1))
        {_RATE} -> R
        {_STEP} -> np.where(H_new > 0, r * G_regularized / H_adaptive, 0)
    epsilon taken as 0
        Nothing is added to the root.
        seen in TensorFlow ApplyAdagrad
        {ROOT} -> np.sqrt(H_new)
    epsilon added to H
        Epsilon is added to the sum of squares, and stays in the state.
        H + {_SQUARE} -> H + {_SQUARE} + epsilon
        {ROOT} -> np.sqrt(H_new)
    epsilon added to the quotient
        Epsilon is added to G / sqrt(H_new).
        {ROOT} -> np.sqrt(H_new)
        {_STEP} -> r * (G_regularized / H_adaptive + epsilon)
    epsilon defaults to 0
        As documentation that rounds 1e-6 for print says.
        seen in TVM; tinygrad
        epsilon = 0.0
    epsilon defaults to 1e-7
        As in other libraries.
        epsilon = 1e-7
    epsilon defaults to 1e-10
        As in other libraries.
        epsilon = 1e-10
    decay_factor taken as 0
        R is used as given.
        seen in optax; Keras 3
        {_RATE} -> R
    decay in float32
        1 + T * decay_factor is computed in float32, also where R is double.
        seen in onnx2fx
        1 + T * decay_factor -> 1 + np.float32(T * decay_factor)
    decay without T
        The rate decays once and not with every step.
        T * decay_factor -> decay_factor
    decay multiplied
        R grows with T.
        {_RATE} -> R * (1 + T * decay_factor)
    decay without the one
        R is divided by T * decay_factor.
        1 + T * decay_factor -> T * decay_factor
    decay linear
        R falls in a straight line.
        {_RATE} -> R * (1 - T * decay_factor)
    decay by powers
        R is multiplied by 1 - decay_factor in every step.
        {_RATE} -> R * (1 - decay_factor) ** T
    decay exponential
        R falls with exp(-T * decay_factor).
        {_RATE} -> R * np.exp(-T * decay_factor)
    decay by the root of T
        R is divided by the root of 1 + T * decay_factor.
        {_RATE} -> R / np.sqrt(1 + T * decay_factor)
    decay of H
        The decay divides the old sum of squares, too.
        H + {_SQUARE} -> H / (1 + T * decay_factor) + {_SQUARE}
    H sums magnitudes
        The gradient's magnitude takes the place of its square.
        {_SQUARE} -> np.abs(G_regularized)
    H averages
        The mean of old and new square takes the place of the sum.
        H + {_SQUARE} -> (H + {_SQUARE}) / 2
    H holds one square for the whole tensor
        The mean of the squares is added to every element.
        {_SQUARE} -> np.mean({_SQUARE})
    root of H returned
        The state H is stored as its root.
        return X_new, H_new -> return X_new, np.sqrt(H_new)
    denominator returned
        The state H is stored as the root plus epsilon.
        return X_new, H_new -> return X_new, H_adaptive
    regularisation missing in H
        H sums the square of the plain gradient.
        {_SQUARE} -> G * G
    regularisation missing in the step
        The step takes the plain gradient.
        {_STEP} -> r * G / H_adaptive
    regularisation decoupled
        R * norm_coefficient * X is subtracted beside the step instead of entering the gradient.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - R * norm_coefficient * X
    regularisation decoupled, scaled by the decayed rate
        r * norm_coefficient * X is subtracted beside the step instead of entering the gradient.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - r * norm_coefficient * X
    regularisation after the step
        The result shrinks by norm_coefficient instead of the gradient growing.
        norm_coefficient * X + G -> G
        return X_new, H_new -> return (1 - norm_coefficient) * X_new, H_new
    shapes as NumPy has them
        Results are cast to their tensors' types, but R and T affect their shapes.
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
