"""Momentum, standard and Nesterov, version 1 of ai.onnx.preview.training."""

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
from onnxopt_cli.operators.shared_mistakes import REGULARIZED_GRADIENT


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
        T: update count, scalar integer, 0 in the first step.
        X, G, V: the tensor, its gradient, its momentum; G and V broadcast to X's shape.
        mode: ``standard`` or ``nesterov``.

    Returns:
        New X and V, of X's shape.
    """
    # Add the gradient of 0.5 * norm_coefficient * ||X||^2.
    G_regularized = norm_coefficient * X + G
    # The first step does not scale the gradient by beta.
    beta_adjusted = np.where(T > 0, beta, 1)
    V_new = alpha * V + beta_adjusted * G_regularized
    if mode == "nesterov":
        X_new = X - R * (G_regularized + alpha * V_new)
    else:
        X_new = X - R * V_new
    return X_new, V_new


_BETA = "np.where(T > 0, beta, 1)"
_V_NEW = "alpha * V + beta_adjusted * G_regularized"
_NESTEROV = "G_regularized + alpha * V_new"
_NESTEROV_STEP = f"X - R * ({_NESTEROV})"
_STANDARD_STEP = "X - R * V_new"

KNOWN_MISTAKES = (
    *mistake_table(f"""
    first step ignores V
        For T <= 0, V_new is the gradient, and the old V is ignored.
        seen in PyTorch SGD
        {_V_NEW} -> np.where(T > 0, alpha * V, 0) + beta_adjusted * G_regularized
    gradient dampened by 1 - alpha
        The gradient is weighted by 1 - alpha instead of beta.
        {_BETA} -> np.where(T > 0, 1 - alpha, 1)
    gradient dampened by 1 - beta
        The gradient is weighted by 1 - beta, as if beta were a dampening factor.
        {_BETA} -> np.where(T > 0, 1 - beta, 1)
    beta taken as 1
        The gradient is never weighted by beta.
        seen in optax; TensorFlow
        {_BETA} -> 1
    beta taken as 1 for Nesterov
        In the mode nesterov, the gradient is not weighted by beta.
        seen in PyTorch SGD
        {_BETA} -> np.where(T > 0, 1 if mode == 'nesterov' else beta, 1)
    beta at every T
        The gradient is also weighted by beta for T <= 0.
        {_BETA} -> beta
    beta from T = 2
        The gradient is not weighted by beta for T = 1 either.
        T > 0 -> T > 1
    beta at T >= 0
        The gradient is also weighted by beta for T = 0.
        T > 0 -> T >= 0
    beta at T != 0
        The gradient is also weighted by beta for negative T.
        T > 0 -> T != 0
    beta at T <= 0 only
        The gradient is weighted by beta for T <= 0 instead of for T > 0.
        T > 0 -> T <= 0
    beta weighs V
        beta multiplies V, except for T <= 0, and alpha multiplies the gradient.
        {_V_NEW} -> beta_adjusted * V + alpha * G_regularized
    beta weighs the sum
        beta multiplies the whole sum, alpha * V + gradient, instead of only the gradient.
        {_V_NEW} -> beta_adjusted * (alpha * V + G_regularized)
    beta to the power of T
        The gradient is weighted by beta^T instead of beta.
        {_BETA} -> np.where(T > 0, beta**T, 1)
    alpha at T > 0 only
        For T <= 0, V is not weighted by alpha, and the gradient is weighted by beta.
        {_V_NEW} -> np.where(T > 0, alpha, 1) * V + beta * G_regularized
    velocity holds the step
        V holds the step: V_new is alpha * V - R * beta * gradient, and is added to X.
        {_V_NEW} -> alpha * V - R * beta_adjusted * G_regularized
        {_NESTEROV_STEP} -> X + alpha * V_new - R * beta_adjusted * G_regularized
        {_STANDARD_STEP} -> X + V_new
    velocity holds the step, beta taken as 1
        V holds the step: V_new is alpha * V - R * gradient, and is added to X.
        seen in Keras SGD
        {_V_NEW} -> alpha * V - R * G_regularized
        {_NESTEROV_STEP} -> X + alpha * V_new - R * G_regularized
        {_STANDARD_STEP} -> X + V_new
    learning rate inside V
        R multiplies the gradient that is added to V; V_new is subtracted without the factor R.
        {_V_NEW} -> alpha * V + R * beta_adjusted * G_regularized
        {_NESTEROV_STEP} -> X - (R * G_regularized + alpha * V_new)
        {_STANDARD_STEP} -> X - V_new
    V averaged
        V is an average: alpha weighs the old V, and 1 - alpha weighs the gradient.
        {_V_NEW} -> alpha * V + (1 - alpha) * G_regularized
    step with the old V
        The step uses V before its update.
        {_STANDARD_STEP} -> X - R * V
    step by the sign of V
        The step uses only the sign of V_new.
        {_STANDARD_STEP} -> X - R * np.sign(V_new)
    Nesterov with the old V
        The Nesterov step uses alpha * V with V before its update.
        {_NESTEROV} -> G_regularized + alpha * V
    Nesterov without the gradient
        The Nesterov step is R * alpha * V_new, without the gradient.
        {_NESTEROV} -> alpha * V_new
    Nesterov without alpha
        The Nesterov step uses V_new without the factor alpha.
        {_NESTEROV} -> G_regularized + V_new
    Nesterov with beta on the gradient
        The gradient is also weighted by beta in the Nesterov step.
        {_NESTEROV} -> beta_adjusted * G_regularized + alpha * V_new
    Nesterov with beta on V
        In the Nesterov step, V_new is multiplied by beta instead of alpha.
        {_NESTEROV} -> G_regularized + beta_adjusted * V_new
    Nesterov blending gradient and V
        In the Nesterov step, the gradient is weighted by 1 - alpha.
        {_NESTEROV} -> (1 - alpha) * G_regularized + alpha * V_new
    Nesterov with the plain gradient
        The Nesterov step uses the gradient without regularisation.
        {_NESTEROV} -> G + alpha * V_new
    Nesterov's lookahead stored as V
        The output V_new is gradient + alpha * V_new, the value by which the Nesterov step moves \
            X.
        X_new = {_NESTEROV_STEP} -> V_new = {_NESTEROV}; X_new = X - R * V_new
    Nesterov looks ahead twice
        In the Nesterov step, gradient + alpha * V_new takes the place of V_new.
        {_NESTEROV} -> G_regularized + alpha * ({_NESTEROV})
    regularisation missing in V
        The gradient that is added to V has no regularisation.
        {_V_NEW} -> alpha * V + beta_adjusted * G
    regularisation decoupled
        R * norm_coefficient * X is subtracted from X instead of being part of the gradient.
        norm_coefficient * X + G -> G
        {_NESTEROV_STEP} -> {_NESTEROV_STEP} - R * norm_coefficient * X
        {_STANDARD_STEP} -> {_STANDARD_STEP} - R * norm_coefficient * X
    regularisation after the step
        X_new is multiplied by 1 - norm_coefficient; the gradient has no regularisation.
        norm_coefficient * X + G -> G
        return X_new, V_new -> return (1 - norm_coefficient) * X_new, V_new
    types and shapes promoted by NumPy
        Outputs have the types and shapes that NumPy derives from all operands, R and T \
            included.
        seen in onnx.reference
    """),
    *REGULARIZED_GRADIENT,
)

REFORMULATIONS = reformulation_table(f"""
    rate distributed over the Nesterov step
        seen in TensorFlow
        R * ({_NESTEROV}) -> (R * G_regularized + (R * alpha) * V_new)
    Nesterov step term by term
        {_NESTEROV_STEP} -> X - R * G_regularized - R * (alpha * V_new)
    rate distributed over V_new
        {_STANDARD_STEP} -> X - ((R * alpha) * V + (R * beta_adjusted) * G_regularized)
    step negated and added
        seen in PyTorch
        {_STANDARD_STEP} -> -R * V_new + X
""")

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
    known_mistakes=KNOWN_MISTAKES,
    reformulations=REFORMULATIONS,
    suite="conformance",
)
