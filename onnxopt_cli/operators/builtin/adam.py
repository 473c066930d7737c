"""Adam, version 1 of ai.onnx.preview.training."""

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
    BIAS_CORRECTION,
    CORRECTION,
    RATE,
    REGULARIZED_GRADIENT,
    ROOT,
    ROOT_AND_EPSILON,
)


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


_V_NEW = "alpha * V + (1 - alpha) * G_regularized"
_SQUARE = "(G_regularized * G_regularized)"
_H_NEW = f"beta * H + (1 - beta) * {_SQUARE}"
# The corrections of the single moments: of V_new, and of the root of H_new.
_OF_V = "np.where(T > 0, 1 - alpha**T, 1)"
_OF_ROOT = "np.where(T > 0, np.sqrt(1 - beta**T), 1)"
_STEP = "R_adjusted * V_new / H_sqrt"
_DECAYED = "(1 - norm_coefficient_post) * X_new"
_RESULT = f"return {_DECAYED}, V_new, H_new"

KNOWN_MISTAKES = (
    *mistake_table(f"""
    epsilon added after bias correction
        Epsilon is added to the root of the corrected second moment, not of the uncorrected one.
        seen in PyTorch 1.3 and later; optax; ONNX Runtime AdamW mode 0
        {ROOT} -> np.sqrt(H_new) + epsilon * {_OF_ROOT}
    epsilon added to the root of the corrected H
        As in algorithm 1 of the paper; a negative correction may leave a root, too.
        seen in Apex; tinygrad
        {ROOT} -> np.sqrt(H_new / np.where(T > 0, 1 - beta**T, 1)) + epsilon
        {CORRECTION} -> R / {_OF_V}
    epsilon added after bias correction with the exponent T + 1
        Both moments are corrected as where T counts from 0, then epsilon is added.
        seen in optax, T being its count before the step
        {ROOT} -> np.sqrt(H_new) + epsilon * np.sqrt(1 - beta ** (T + 1))
        {CORRECTION} -> R * np.sqrt(1 - beta ** (T + 1)) / (1 - alpha ** (T + 1))
    epsilon inside the square root
        Epsilon is added before the root is taken.
        {ROOT} -> np.sqrt(H_new + epsilon)
    epsilon added to H
        Epsilon is added to the second moment, and stays in the state.
        {_H_NEW} -> {_H_NEW} + epsilon
        {ROOT} -> np.sqrt(H_new)
    epsilon added to the quotient
        Epsilon is added to V_new / sqrt(H_new).
        {ROOT} -> np.sqrt(H_new)
        {_STEP} -> R_adjusted * (V_new / H_sqrt + epsilon)
    epsilon defaults to 0
        As documentation that rounds 1e-6 for print says.
        seen in tinygrad
        epsilon = 0.0
    epsilon defaults to 1e-2
        As the test cases of the operator use.
        seen in TVM
        epsilon = 1e-2
    epsilon defaults to 1e-7
        As in other libraries.
        seen in Keras
        epsilon = 1e-7
    epsilon defaults to 1e-8
        As in the paper.
        epsilon = 1e-8
    defaults not rounded to float32
        beta left out is the double next to 0.999, and not the float32 that a node would hold.
        seen in tinygrad
    bias-corrected V returned
        The state V is stored corrected.
        {_RESULT} -> return {_DECAYED}, V_new / {_OF_V}, H_new
    bias-corrected H returned
        The state H is stored corrected.
        {_RESULT} -> return {_DECAYED}, V_new, H_new / np.where(T > 0, 1 - beta**T, 1)
    V summed instead of averaged
        The gradient enters V without 1 - alpha.
        {_V_NEW} -> alpha * V + G_regularized
    H summed instead of averaged
        The squared gradient is added to H, as in Adagrad.
        {_H_NEW} -> H + G_regularized * G_regularized
    alpha weighs the gradient
        alpha and 1 - alpha are exchanged.
        {_V_NEW} -> (1 - alpha) * V + alpha * G_regularized
    beta weighs the gradient
        beta and 1 - beta are exchanged.
        {_H_NEW} -> (1 - beta) * H + beta * {_SQUARE}
    H averages magnitudes
        The gradient's magnitude takes the place of its square.
        {_SQUARE} -> np.abs(G_regularized)
    AdaMax
        H is the decayed maximum of the gradient's magnitudes.
        {_H_NEW} -> np.maximum(beta * H, np.abs(G_regularized))
    AMSGrad
        The larger of the old and the new second moment is used.
        {ROOT} -> np.sqrt(np.maximum(H, H_new)) + epsilon
    AdaBelief
        H averages the squared distance of the gradient from V_new.
        {_SQUARE} -> (G_regularized - V_new) * (G_regularized - V_new)
    NAdam
        The step looks ahead as Nesterov's does.
        {_STEP} -> R_adjusted * (alpha * V_new + (1 - alpha) * G_regularized) / H_sqrt
    RMSProp
        The step takes the gradient itself instead of V_new.
        {_STEP} -> R_adjusted * G_regularized / H_sqrt
    step with the old V
        V enters before its update.
        {_STEP} -> R_adjusted * V / H_sqrt
    regularisation missing in V
        V averages the plain gradient.
        {_V_NEW} -> alpha * V + (1 - alpha) * G
    regularisation missing in H
        H averages the square of the plain gradient.
        {_SQUARE} -> G * G
    regularisation decoupled
        R * norm_coefficient * X is subtracted beside the step instead of entering the gradient.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - R * norm_coefficient * X
    regularisation decoupled, scaled by the corrected rate
        R_adjusted * norm_coefficient * X is subtracted beside the step, and the gradient is plain.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - R_adjusted * norm_coefficient * X
    regularisation after the step
        The result shrinks by norm_coefficient instead of the gradient growing.
        norm_coefficient * X + G -> G
        {_DECAYED} -> (1 - norm_coefficient_post) * ((1 - norm_coefficient) * X_new)
    decay before the step, scaled by R
        X shrinks by R * norm_coefficient_post, and the step is not shrunk.
        seen in PyTorch AdamW
        X - {_STEP} -> (1 - R * norm_coefficient_post) * X - {_STEP}
        {_RESULT} -> return X_new, V_new, H_new
    decay before the step, scaled by the corrected rate
        X shrinks by R_adjusted * norm_coefficient_post, and the step is not shrunk.
        X - {_STEP} -> (1 - R_adjusted * norm_coefficient_post) * X - {_STEP}
        {_RESULT} -> return X_new, V_new, H_new
    decay before the step
        X shrinks by norm_coefficient_post, and the step is not shrunk.
        X - {_STEP} -> (1 - norm_coefficient_post) * X - {_STEP}
        {_RESULT} -> return X_new, V_new, H_new
    decay scaled by R
        The result shrinks by R * norm_coefficient_post.
        1 - norm_coefficient_post -> 1 - R * norm_coefficient_post
    decay scaled by the corrected rate
        The result shrinks by R_adjusted * norm_coefficient_post.
        1 - norm_coefficient_post -> 1 - R_adjusted * norm_coefficient_post
    X_new comes back in double for T > 0
        T is an integer array, whose powers make everything double.
        seen in onnx.reference
    several tensors come back in float32
        One tensor keeps its type.
        seen in onnx.reference
    attributes combined in float32
        1 - alpha, 1 - beta and 1 - norm_coefficient_post are rounded to float32.
        seen in onnx.reference
    types and shapes as NumPy has them
        Results are not cast, so R and T affect their types and shapes.
        seen in onnx.reference
    shapes as NumPy has them, several tensors in float32
        One tensor comes back in NumPy's type.
        seen in onnx.reference
    """),
    *BIAS_CORRECTION,
    *ROOT_AND_EPSILON,
    *REGULARIZED_GRADIENT,
)

# With a smaller alpha, the difference from a large V loses the remainder of V and all of G.
_SLOW = "1 - alpha <= alpha / 2 and 1 - beta <= beta / 2"
# If nearly all of X decays, the remainder has the rounding error of X.
_SUBTRACTS = "abs(1 - norm_coefficient_post) >= 0.5"
# Without this condition, a division by zero makes X_new infinite and the difference NaN.
_FINITE = "abs(alpha) != 1 and epsilon > 0"
# Then the correction of the root is zero, and a quotient by it has no value.
_NO_ROOT = "beta == 1"

REFORMULATIONS = reformulation_table(f"""
    quotient of the moments first
        {_STEP} -> R_adjusted * (V_new / H_sqrt)
    rate divided by the root first
        {_STEP} -> R_adjusted / H_sqrt * V_new
    moments corrected one by one
        {CORRECTION} -> R
        {_STEP} -> R * (V_new / {_OF_V}) / (H_sqrt / {_OF_ROOT})
    root and epsilon corrected one by one
        {CORRECTION} -> {CORRECTION} if {_NO_ROOT} else R / {_OF_V}
        {ROOT} -> {ROOT} if {_NO_ROOT} else np.sqrt(H_new) / {_OF_ROOT} + epsilon / {_OF_ROOT}
    one denominator
        {CORRECTION} -> R * {_OF_ROOT}
        {_STEP} -> R_adjusted * V_new / ({_OF_V} * H_sqrt)
    quotient of the corrections first
        {RATE} -> R * (np.sqrt(1 - beta**T) / (1 - alpha**T))
    one minus the power by expm1
        1 - beta**T -> -np.expm1(T * np.log(beta)) if 0 < beta <= 1 else 1 - beta**T
        1 - alpha**T -> -np.expm1(T * np.log(alpha)) if 0 < alpha <= 1 else 1 - alpha**T
    power less one
        1 - beta**T -> -(beta**T - 1)
        1 - alpha**T -> -(alpha**T - 1)
    denominator divided by the rate
        seen in PyTorch, capturable
        {_STEP} -> V_new / (H_sqrt / R_adjusted)
    averages moved by a share of the difference
        seen in TensorFlow; Keras
        accurate if {_SLOW}
        {_V_NEW} -> V + (G_regularized - V) * (1 - alpha)
        {_H_NEW} -> H + ({_SQUARE} - H) * (1 - beta)
    averages moved from the nearer end
        seen in PyTorch
        accurate if {_SLOW}
        {_V_NEW} -> V + (1 - alpha) * (G_regularized - V) if abs(1 - alpha) < 0.5 \
            else G_regularized - (G_regularized - V) * (1 - (1 - alpha))
        {_H_NEW} -> H + (1 - beta) * ({_SQUARE} - H) if abs(1 - beta) < 0.5 \
            else {_SQUARE} - ({_SQUARE} - H) * (1 - (1 - beta))
    weight times gradient first
        seen in PyTorch
        (1 - beta) * {_SQUARE} -> ((1 - beta) * G_regularized) * G_regularized
    square by a power
        seen in optax
        {_SQUARE} -> G_regularized**2
    decay subtracted
        seen in Keras; TensorFlow Addons
        accurate if {_FINITE} and {_SUBTRACTS}
        {_DECAYED} -> X_new - norm_coefficient_post * X_new
    decay distributed over the step
        {_DECAYED} -> (1 - norm_coefficient_post) * X \
            - (1 - norm_coefficient_post) * (R_adjusted * V_new / H_sqrt)
    step negated and added
        seen in PyTorch
        X - {_STEP} -> -R_adjusted * V_new / H_sqrt + X
""")

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
    known_mistakes=KNOWN_MISTAKES,
    reformulations=REFORMULATIONS,
    suite="conformance",
)
