"""Wrong ways to the adaptive denominator, an expression that Adam and Adagrad share."""

from __future__ import annotations

from onnxopt_cli.formula.deviation import Deviation

_SUM = "np.sqrt(H_new) + epsilon"


def _instead(name: str, about: str, expression: str) -> Deviation:
    return Deviation(name, about, replace={_SUM: expression})


#: Deviations of every formula with the expression ``np.sqrt(H_new) + epsilon``.
ROOT_AND_EPSILON: tuple[Deviation, ...] = (
    _instead(
        "epsilon squared inside the square root",
        "The square of epsilon is added before the root is taken.",
        "np.sqrt(H_new + epsilon * epsilon)",
    ),
    _instead(
        "epsilon inside and outside the square root",
        "Epsilon is added before and after the root is taken.",
        "np.sqrt(H_new + epsilon) + epsilon",
    ),
    _instead(
        "epsilon multiplied",
        "The root is multiplied by 1 + epsilon.",
        "np.sqrt(H_new) * (1 + epsilon)",
    ),
    _instead(
        "epsilon as the least root",
        "The root is replaced by epsilon only where it is smaller.",
        "np.maximum(np.sqrt(H_new), epsilon)",
    ),
    _instead(
        "epsilon as the least square",
        "H_new is replaced by epsilon only where it is smaller.",
        "np.sqrt(np.maximum(H_new, epsilon))",
    ),
    _instead(
        "no square root",
        "The step divides by H_new plus epsilon.",
        "H_new + epsilon",
    ),
    _instead(
        "step with the old H",
        "H enters the step before its update.",
        "np.sqrt(H) + epsilon",
    ),
    _instead(
        "one denominator for the whole tensor",
        "The root is taken of the mean of H_new.",
        "np.sqrt(np.mean(H_new)) + epsilon",
    ),
)
