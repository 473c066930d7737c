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
        T: update count, scalar integer, zero in the first step.
        X, G, V: the tensor, its gradient, its momentum; G and V broadcast to X's shape.
        mode: ``standard`` or ``nesterov``.

    Returns:
        New X and V, of X's shape.
    """
    # Gradient of 0.5 * norm_coefficient * ||X||^2 added to the given one.
    G_regularized = norm_coefficient * X + G
    # The first step uses the unscaled gradient.
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
        At T <= 0, V_new is the gradient, and the old V is ignored.
        seen in PyTorch SGD
        {_V_NEW} -> np.where(T > 0, alpha * V, 0) + beta_adjusted * G_regularized
    gradient dampened by 1 - alpha
        1 - alpha takes the place of beta.
        {_BETA} -> np.where(T > 0, 1 - alpha, 1)
    gradient dampened by 1 - beta
        beta is taken for a dampening.
        {_BETA} -> np.where(T > 0, 1 - beta, 1)
    beta taken as 1
        The gradient is always taken whole.
        seen in optax; TensorFlow
        {_BETA} -> 1
    beta taken as 1 for Nesterov
        Nesterov momentum knows no dampening.
        seen in PyTorch SGD
        {_BETA} -> np.where(T > 0, 1 if mode == 'nesterov' else beta, 1)
    beta at every T
        The first step, too, is weighted.
        {_BETA} -> beta
    beta from T = 2
        The second step takes the gradient whole, too.
        T > 0 -> T > 1
    beta at T >= 0
        The first step, too, is weighted.
        T > 0 -> T >= 0
    beta at T != 0
        Negative T is weighted.
        T > 0 -> T != 0
    beta at T <= 0 only
        The branches are exchanged.
        T > 0 -> T <= 0
    beta weighs V
        alpha weighs the gradient; beta weighs V, which the first step takes whole.
        {_V_NEW} -> beta_adjusted * V + alpha * G_regularized
    beta weighs the sum
        V is weighted by beta beside alpha.
        {_V_NEW} -> beta_adjusted * (alpha * V + G_regularized)
    beta to the power of T
        The gradient's weight decays with every step.
        {_BETA} -> np.where(T > 0, beta**T, 1)
    alpha at T > 0 only
        The condition for beta is applied to alpha.
        {_V_NEW} -> np.where(T > 0, alpha, 1) * V + beta * G_regularized
    velocity holds the step
        V is decayed and reduced by R * beta * G, then added to X.
        {_V_NEW} -> alpha * V - R * beta_adjusted * G_regularized
        {_NESTEROV_STEP} -> X + alpha * V_new - R * beta_adjusted * G_regularized
        {_STANDARD_STEP} -> X + V_new
    velocity holds the step, beta taken as 1
        V is decayed and reduced by R * G, then added to X.
        seen in Keras SGD
        {_V_NEW} -> alpha * V - R * G_regularized
        {_NESTEROV_STEP} -> X + alpha * V_new - R * G_regularized
        {_STANDARD_STEP} -> X + V_new
    learning rate inside V
        R multiplies the gradient before it enters V, and V is subtracted as it is.
        {_V_NEW} -> alpha * V + R * beta_adjusted * G_regularized
        {_NESTEROV_STEP} -> X - (R * G_regularized + alpha * V_new)
        {_STANDARD_STEP} -> X - V_new
    V averaged
        alpha and 1 - alpha weigh V and the gradient.
        {_V_NEW} -> alpha * V + (1 - alpha) * G_regularized
    step with the old V
        V enters before its update.
        {_STANDARD_STEP} -> X - R * V
    step by the sign of V
        Only the sign of V_new is used.
        {_STANDARD_STEP} -> X - R * np.sign(V_new)
    Nesterov with the old V
        The step looks ahead from V before its update.
        {_NESTEROV} -> G_regularized + alpha * V
    Nesterov without the gradient
        The step is alpha * V_new alone.
        {_NESTEROV} -> alpha * V_new
    Nesterov without alpha
        V_new enters the step whole.
        {_NESTEROV} -> G_regularized + V_new
    Nesterov with beta on the gradient
        As from (1 + alpha) * V_new - alpha * V, which is the same only where beta is 1.
        {_NESTEROV} -> beta_adjusted * G_regularized + alpha * V_new
    Nesterov with beta on V
        beta takes alpha's place in the step.
        {_NESTEROV} -> G_regularized + beta_adjusted * V_new
    Nesterov blending gradient and V
        The gradient is weighted by 1 - alpha.
        {_NESTEROV} -> (1 - alpha) * G_regularized + alpha * V_new
    Nesterov with the plain gradient
        The step leaves the regularisation out.
        {_NESTEROV} -> G + alpha * V_new
    Nesterov's lookahead on V
        The look-ahead value of the step is stored as V.
        X_new = {_NESTEROV_STEP} -> V_new = {_NESTEROV}; X_new = X - R * V_new
    Nesterov looks ahead twice
        The lookahead is applied to its own result.
        {_NESTEROV} -> G_regularized + alpha * ({_NESTEROV})
    regularisation missing in V
        V sums the plain gradient.
        {_V_NEW} -> alpha * V + beta_adjusted * G
    regularisation decoupled
        R * norm_coefficient * X is subtracted beside the step instead of entering the gradient.
        norm_coefficient * X + G -> G
        {_NESTEROV_STEP} -> {_NESTEROV_STEP} - R * norm_coefficient * X
        {_STANDARD_STEP} -> {_STANDARD_STEP} - R * norm_coefficient * X
    regularisation after the step
        The result shrinks by norm_coefficient instead of the gradient growing.
        norm_coefficient * X + G -> G
        return X_new, V_new -> return (1 - norm_coefficient) * X_new, V_new
    types and shapes as NumPy has them
        Results are not cast, so R and T affect their types and shapes.
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
