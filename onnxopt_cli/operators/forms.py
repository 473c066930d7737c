"""Right ways to write an operator's formula that round differently: no tolerance may reject one.

Only forms that are as accurate as the formula and do the same with NaN and Inf belong here; where
R is infinite, those that distribute it over a sum do so only if no part is zero or of another sign.
Left out are, for what they lose:

- ``V + (1 - alpha) * (G - V)`` for a moving average: an infinite V becomes NaN.
- ``X_new - norm_coefficient_post * X_new``: cancels where norm_coefficient_post is near 1.
- ``G`` for ``norm_coefficient * X + G`` where norm_coefficient is 0: drops NaN and Inf in X.
- ``(1 - alpha) * norm_coefficient * X + (1 - alpha) * G``: rounds twice where X and G cancel.
- powers by repeated multiplication: the error grows with T, to a tenth at a million in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Form:
    """How a right implementation differs from the formula as it is written.

    Attributes:
        name: what is done, in a few words; unique in an operator.
        replace: expressions or statements of the formula, and what stands in their place.
    """

    name: str
    replace: Mapping[str, str]


_RATE = "R * np.sqrt(1 - beta**T) / (1 - alpha**T)"
_ADAM_STEP = "R_adjusted * V_new / H_sqrt"
_ROOT = "np.sqrt(H_new) + epsilon"
_CORRECTED = "np.where(T > 0, R * np.sqrt(1 - beta**T) / (1 - alpha**T), R)"

ADAM_FORMS = (
    Form("quotient of the moments first", {_ADAM_STEP: "R_adjusted * (V_new / H_sqrt)"}),
    Form("rate divided by the root first", {_ADAM_STEP: "R_adjusted / H_sqrt * V_new"}),
    Form(
        "moments corrected one by one",
        {
            _CORRECTED: "R",
            _ADAM_STEP: "R * (V_new / np.where(T > 0, 1 - alpha**T, 1))"
            " / (H_sqrt / np.where(T > 0, np.sqrt(1 - beta**T), 1))",
        },
    ),
    # Without a value where the correction of the root is zero.
    Form(
        "root and epsilon corrected one by one",
        {
            _CORRECTED: f"{_CORRECTED} if beta == 1 else R / np.where(T > 0, 1 - alpha**T, 1)",
            _ROOT: f"{_ROOT} if beta == 1"
            " else np.sqrt(H_new) / np.where(T > 0, np.sqrt(1 - beta**T), 1)"
            " + epsilon / np.where(T > 0, np.sqrt(1 - beta**T), 1)",
        },
    ),
    Form(
        "one denominator",
        {
            _CORRECTED: "R * np.where(T > 0, np.sqrt(1 - beta**T), 1)",
            _ADAM_STEP: "R_adjusted * V_new / (np.where(T > 0, 1 - alpha**T, 1) * H_sqrt)",
        },
    ),
    Form(
        "quotient of the corrections first",
        {_RATE: "R * (np.sqrt(1 - beta**T) / (1 - alpha**T))"},
    ),
    Form(
        "one minus the power by expm1",
        {
            "1 - beta**T": "-np.expm1(T * np.log(beta)) if 0 < beta < 1 else 1 - beta**T",
            "1 - alpha**T": "-np.expm1(T * np.log(alpha)) if 0 < alpha < 1 else 1 - alpha**T",
        },
    ),
    Form(
        "weight times gradient first",
        {
            "(1 - beta) * (G_regularized * G_regularized)": "((1 - beta) * G_regularized)"
            " * G_regularized"
        },
    ),
    Form(
        "decay distributed over the step",
        {
            "(1 - norm_coefficient_post) * X_new": "(1 - norm_coefficient_post) * X"
            " - (1 - norm_coefficient_post) * (R_adjusted * V_new / H_sqrt)"
        },
    ),
    Form("step negated and added", {f"X - {_ADAM_STEP}": "-R_adjusted * V_new / H_sqrt + X"}),
)

_ADAGRAD_STEP = "r * G_regularized / H_adaptive"

ADAGRAD_FORMS = (
    Form("quotient first", {_ADAGRAD_STEP: "r * (G_regularized / H_adaptive)"}),
    Form("rate divided by the root first", {_ADAGRAD_STEP: "r / H_adaptive * G_regularized"}),
    Form(
        "one denominator",
        {
            "R / (1 + T * decay_factor)": "R",
            _ADAGRAD_STEP: "r * G_regularized / ((1 + T * decay_factor) * H_adaptive)",
        },
    ),
    Form(
        "decay by a reciprocal",
        {"R / (1 + T * decay_factor)": "R * (1 / (1 + T * decay_factor))"},
    ),
    Form("square by a power", {"G_regularized * G_regularized": "G_regularized**2"}),
    Form("step negated and added", {f"X - {_ADAGRAD_STEP}": "-r * G_regularized / H_adaptive + X"}),
)

MOMENTUM_FORMS = (
    Form(
        "rate distributed over the Nesterov step",
        {
            "R * (G_regularized + alpha * V_new)": "(R * G_regularized + (R * alpha) * V_new)",
        },
    ),
    Form(
        "Nesterov step term by term",
        {
            "X - R * (G_regularized + alpha * V_new)": "X - R * G_regularized"
            " - R * (alpha * V_new)",
        },
    ),
    Form(
        "rate distributed over V_new",
        {"X - R * V_new": "X - ((R * alpha) * V + (R * beta_adjusted) * G_regularized)"},
    ),
    Form("step negated and added", {"X - R * V_new": "-R * V_new + X"}),
)
