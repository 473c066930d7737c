"""Right ways to write an operator's formula that round differently: no tolerance may reject one.

Only forms belong here that are as accurate as the formula, at least where they say so. Some of them
subtract infinity from itself: where an input is infinite, that is right, too
(:mod:`onnxopt_cli.readings.bound.infinite`). NaN in an input they keep. Left out are, for what they
lose:

- ``G`` for ``norm_coefficient * X + G`` where norm_coefficient is 0: drops NaN and Inf in X.
- ``(1 - alpha) * norm_coefficient * X + (1 - alpha) * G``: rounds twice where X and G cancel.
- ``(1 + alpha) * V_new - alpha * V`` for Nesterov's step: rounds V twice where it cancels.
- powers by repeated multiplication: the error grows with T, to a tenth at a million in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from onnxopt_cli.formula.rewrite import Formula, rewrite


# Compared by identity, so that what is made from one can be kept.
@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How a right implementation differs from the formula as it is written.

    Attributes:
        name: what is done, in a few words; unique in an operator.
        replace: expressions or statements of the formula, and what stands in their place.
        seen_in: public implementations known to compute it so.
        accurate: where the form is as good as the formula for finite inputs, an expression of the
            attributes; all of ``replace`` are then expressions. Empty if it is so everywhere.
    """

    name: str
    replace: Mapping[str, str]
    seen_in: tuple[str, ...] = ()
    accurate: str = ""

    @lru_cache  # noqa: B019 - forms live as long as their operators
    def written(self, formula: Formula) -> Formula:
        """Return the formula as this form writes it, whatever the attributes are.

        Raises:
            ValueError: if the formula has not what is to be replaced.
        """
        return rewrite(formula, self.replace)

    @lru_cache  # noqa: B019 - as above
    def written_where_accurate(self, formula: Formula) -> Formula:
        """Return the formula as this form writes it where it is as accurate, or as it is.

        Raises:
            ValueError: if the formula has not what is to be replaced.
        """
        if not self.accurate:
            return self.written(formula)
        return rewrite(
            formula,
            {old: f"({new}) if {self.accurate} else ({old})" for old, new in self.replace.items()},
        )


_RATE = "R * np.sqrt(1 - beta**T) / (1 - alpha**T)"
_ADAM_STEP = "R_adjusted * V_new / H_sqrt"
_ROOT = "np.sqrt(H_new) + epsilon"
_SQUARE = "(G_regularized * G_regularized)"
_V_NEW = "alpha * V + (1 - alpha) * G_regularized"
_H_NEW = f"beta * H + (1 - beta) * {_SQUARE}"
_DECAYED = "(1 - norm_coefficient_post) * X_new"
# With a smaller alpha, the difference from a large V loses what is left of V and all of G.
_SLOW = "1 - alpha <= alpha / 2 and 1 - beta <= beta / 2"
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
        "denominator divided by the rate",
        {_ADAM_STEP: "V_new / (H_sqrt / R_adjusted)"},
        ("PyTorch, capturable",),
    ),
    Form(
        "averages moved by a share of the difference",
        {
            _V_NEW: "V + (G_regularized - V) * (1 - alpha)",
            _H_NEW: f"H + ({_SQUARE} - H) * (1 - beta)",
        },
        ("TensorFlow", "Keras"),
        accurate=_SLOW,
    ),
    Form(
        "averages moved from the nearer end",
        {
            _V_NEW: "V + (1 - alpha) * (G_regularized - V) if abs(1 - alpha) < 0.5"
            " else G_regularized - (G_regularized - V) * (1 - (1 - alpha))",
            _H_NEW: f"H + (1 - beta) * ({_SQUARE} - H) if abs(1 - beta) < 0.5"
            f" else {_SQUARE} - ({_SQUARE} - H) * (1 - (1 - beta))",
        },
        ("PyTorch",),
        accurate=_SLOW,
    ),
    Form(
        "weight times gradient first",
        {f"(1 - beta) * {_SQUARE}": "((1 - beta) * G_regularized) * G_regularized"},
        ("PyTorch",),
    ),
    Form("square by a power", {_SQUARE: "G_regularized**2"}, ("optax",)),
    Form(
        "decay subtracted",
        {_DECAYED: "X_new - norm_coefficient_post * X_new"},
        ("Keras", "TensorFlow Addons"),
        # A division by zero makes X_new infinite, and the difference NaN.
        accurate="norm_coefficient_post <= 0.5 and alpha != 1 and epsilon > 0",
    ),
    Form(
        "decay distributed over the step",
        {
            _DECAYED: "(1 - norm_coefficient_post) * X"
            " - (1 - norm_coefficient_post) * (R_adjusted * V_new / H_sqrt)"
        },
    ),
    Form(
        "step negated and added",
        {f"X - {_ADAM_STEP}": "-R_adjusted * V_new / H_sqrt + X"},
        ("PyTorch",),
    ),
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
    Form("square by a power", {"G_regularized * G_regularized": "G_regularized**2"}, ("Keras",)),
    Form(
        "step negated and added",
        {f"X - {_ADAGRAD_STEP}": "-r * G_regularized / H_adaptive + X"},
        ("PyTorch",),
    ),
)

MOMENTUM_FORMS = (
    Form(
        "rate distributed over the Nesterov step",
        {
            "R * (G_regularized + alpha * V_new)": "(R * G_regularized + (R * alpha) * V_new)",
        },
        ("TensorFlow",),
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
    Form("step negated and added", {"X - R * V_new": "-R * V_new + X"}, ("PyTorch",)),
)
