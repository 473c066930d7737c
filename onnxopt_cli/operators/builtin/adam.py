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
    # Add the gradient of 0.5 * norm_coefficient * ||X||^2.
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
# The divisors by which V_new and the root of H_new are corrected.
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
        H_new is divided by 1 - beta^T before its root is taken, as in algorithm 1 of the paper.
        seen in Apex; tinygrad
        {ROOT} -> np.sqrt(H_new / np.where(T > 0, 1 - beta**T, 1)) + epsilon
        {CORRECTION} -> R / {_OF_V}
    epsilon added after bias correction with the exponent T + 1
        Both moments are corrected with T + 1, even for T <= 0, and epsilon is added afterwards.
        seen in optax, T being its count before the step
        {ROOT} -> np.sqrt(H_new) + epsilon * np.sqrt(1 - beta ** (T + 1))
        {CORRECTION} -> R * np.sqrt(1 - beta ** (T + 1)) / (1 - alpha ** (T + 1))
    epsilon inside the square root
        Epsilon is added before the root is taken.
        {ROOT} -> np.sqrt(H_new + epsilon)
    epsilon added to H
        Epsilon is added to the second moment, and the output H_new includes it.
        {_H_NEW} -> {_H_NEW} + epsilon
        {ROOT} -> np.sqrt(H_new)
    epsilon added to the quotient
        Epsilon is added to V_new / sqrt(H_new).
        {ROOT} -> np.sqrt(H_new)
        {_STEP} -> R_adjusted * (V_new / H_sqrt + epsilon)
    epsilon defaults to 0
        The default of epsilon is 0 instead of 1e-6.
        seen in tinygrad
        epsilon = 0.0
    epsilon defaults to 1e-2
        The default of epsilon is 1e-2, the value in the operator's test cases, instead of 1e-6.
        seen in TVM
        epsilon = 1e-2
    epsilon defaults to 1e-7
        The default of epsilon is 1e-7, as in other libraries, instead of 1e-6.
        seen in Keras
        epsilon = 1e-7
    epsilon defaults to 1e-8
        The default of epsilon is 1e-8, as in the paper, instead of 1e-6.
        epsilon = 1e-8
    defaults not rounded to float32
        An omitted beta is the double nearest to 0.999 instead of the float32 nearest to it.
        seen in tinygrad
    bias-corrected V returned
        The output V_new is divided by its bias correction.
        {_RESULT} -> return {_DECAYED}, V_new / {_OF_V}, H_new
    bias-corrected H returned
        The output H_new is divided by its bias correction.
        {_RESULT} -> return {_DECAYED}, V_new, H_new / np.where(T > 0, 1 - beta**T, 1)
    V summed instead of averaged
        The gradient is added to V without the factor 1 - alpha.
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
        H averages the magnitude of the gradient instead of its square.
        {_SQUARE} -> np.abs(G_regularized)
    AdaMax
        H is the decayed maximum of the gradient's magnitudes.
        {_H_NEW} -> np.maximum(beta * H, np.abs(G_regularized))
    AMSGrad
        The step uses the larger of H and H_new.
        {ROOT} -> np.sqrt(np.maximum(H, H_new)) + epsilon
    AdaBelief
        H averages the square of the difference between the gradient and V_new.
        {_SQUARE} -> (G_regularized - V_new) * (G_regularized - V_new)
    NAdam
        The step uses alpha * V_new + (1 - alpha) * gradient instead of V_new.
        {_STEP} -> R_adjusted * (alpha * V_new + (1 - alpha) * G_regularized) / H_sqrt
    RMSProp
        The step uses the gradient instead of its average V_new.
        {_STEP} -> R_adjusted * G_regularized / H_sqrt
    step with the old V
        The step uses V before its update.
        {_STEP} -> R_adjusted * V / H_sqrt
    regularisation missing in V
        V averages the gradient without regularisation.
        {_V_NEW} -> alpha * V + (1 - alpha) * G
    regularisation missing in H
        H averages the square of the gradient without regularisation.
        {_SQUARE} -> G * G
    regularisation decoupled
        R * norm_coefficient * X is subtracted from X instead of being part of the gradient.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - R * norm_coefficient * X
    regularisation decoupled, scaled by the corrected rate
        r * norm_coefficient * X is subtracted from X instead of being part of the gradient; r \
            is the bias-corrected rate.
        norm_coefficient * X + G -> G
        X - {_STEP} -> X - {_STEP} - R_adjusted * norm_coefficient * X
    regularisation after the step
        X_new is multiplied by 1 - norm_coefficient; the gradient has no regularisation.
        norm_coefficient * X + G -> G
        {_DECAYED} -> (1 - norm_coefficient_post) * ((1 - norm_coefficient) * X_new)
    decay before the step, scaled by R
        The old X is multiplied by 1 - R * norm_coefficient_post; X_new is not.
        seen in PyTorch AdamW
        X - {_STEP} -> (1 - R * norm_coefficient_post) * X - {_STEP}
        {_RESULT} -> return X_new, V_new, H_new
    decay before the step, scaled by the corrected rate
        The old X is multiplied by 1 - r * norm_coefficient_post, r being the bias-corrected \
            rate; X_new is not.
        X - {_STEP} -> (1 - R_adjusted * norm_coefficient_post) * X - {_STEP}
        {_RESULT} -> return X_new, V_new, H_new
    decay before the step
        The old X is multiplied by 1 - norm_coefficient_post; X_new is not.
        X - {_STEP} -> (1 - norm_coefficient_post) * X - {_STEP}
        {_RESULT} -> return X_new, V_new, H_new
    decay scaled by R
        X_new is multiplied by 1 - R * norm_coefficient_post.
        1 - norm_coefficient_post -> 1 - R * norm_coefficient_post
    decay scaled by the corrected rate
        X_new is multiplied by 1 - r * norm_coefficient_post, r being the bias-corrected rate.
        1 - norm_coefficient_post -> 1 - R_adjusted * norm_coefficient_post
    X_new returned in double for T > 0
        For T > 0, powers with the integer array T make X_new double, even if X has another type.
        seen in onnx.reference
    several tensors returned in float32
        If a node has several tensors, its outputs are float32; the outputs of a single tensor \
            keep its type.
        seen in onnx.reference
    attributes combined in float32
        1 - alpha, 1 - beta and 1 - norm_coefficient_post are rounded to float32.
        seen in onnx.reference
    types and shapes promoted by NumPy
        Outputs have the types and shapes that NumPy derives from all operands, R and T \
            included.
        seen in onnx.reference
    shapes broadcast by NumPy, several tensors in float32
        Outputs have the shapes that NumPy derives from all operands; they are float32 for \
            several tensors, and have NumPy's type for a single tensor.
        seen in onnx.reference
    """),
    *BIAS_CORRECTION,
    *ROOT_AND_EPSILON,
    *REGULARIZED_GRADIENT,
)

# A condition on the attributes: the averages change slowly. If they change fast, alpha * V is small
# compared with V. The rounding error of G - V is relative to V, so it may hide alpha * V and G.
_SLOW = "1 - alpha <= alpha / 2 and 1 - beta <= beta / 2"
# A condition that excludes values of norm_coefficient_post near 1. For such values, the difference
# X_new - norm_coefficient_post * X_new is much smaller than X_new, but its rounding error is as
# large as that of X_new.
_SUBTRACTS = "abs(1 - norm_coefficient_post) >= 0.5"
# A condition on the attributes. If it does not hold, a division by zero may make X_new infinite.
# Then the difference of two infinities is NaN.
_FINITE = "abs(alpha) != 1 and epsilon > 0"
# If beta is 1, the correction of the root is 0, and a division by the correction is undefined.
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
