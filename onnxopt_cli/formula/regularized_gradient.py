"""Wrong ways to the regularised gradient, a line that the training operators share."""

from __future__ import annotations

from onnxopt_cli.formula.deviation import Deviation

_SUM = "norm_coefficient * X + G"


def _instead(name: str, about: str, expression: str) -> Deviation:
    return Deviation(name, about, replace={_SUM: expression})


#: Deviations of every formula with the expression ``norm_coefficient * X + G``.
REGULARIZED_GRADIENT: tuple[Deviation, ...] = (
    _instead(
        "regularisation of twice the strength",
        "The gradient of norm_coefficient * ||X||^2, without the half.",
        "2 * norm_coefficient * X + G",
    ),
    _instead(
        "regularisation of half the strength",
        "The half of 0.5 * norm_coefficient * ||X||^2 stays in its gradient.",
        "0.5 * norm_coefficient * X + G",
    ),
    _instead(
        "regularisation by the absolute values",
        "The gradient of norm_coefficient * ||X||_1 is added.",
        "norm_coefficient * np.sign(X) + G",
    ),
    _instead(
        "regularisation scaled by the learning rate",
        "norm_coefficient is multiplied by R before the step multiplies it again.",
        "R * norm_coefficient * X + G",
    ),
    _instead(
        "regularisation of the gradient instead of the tensor",
        "norm_coefficient multiplies G.",
        "norm_coefficient * G + G",
    ),
    _instead(
        "regularisation blends tensor and gradient",
        "G is weighted by 1 - norm_coefficient.",
        "norm_coefficient * X + (1 - norm_coefficient) * G",
    ),
    _instead(
        "regularisation by the norm instead of its square",
        "The gradient of norm_coefficient * ||X||, X over its length, is added.",
        "norm_coefficient * X / np.maximum(np.sqrt(np.sum(X * X)), 1e-12) + G",
    ),
    _instead(
        "gradient clipped by value",
        "Every element of G is clipped to [-1, 1].",
        "norm_coefficient * X + np.clip(G, -1, 1)",
    ),
    _instead(
        "gradient clipped by norm",
        "G is scaled to length 1 where it is longer.",
        "norm_coefficient * X + G / np.maximum(1, np.sqrt(np.sum(G * G)))",
    ),
    _instead(
        "gradient centred",
        "The mean of G is subtracted from it.",
        "norm_coefficient * X + (G - np.mean(G))",
    ),
    _instead(
        "gradient normalised",
        "G is divided by its length.",
        "norm_coefficient * X + G / np.maximum(np.sqrt(np.sum(G * G)), 1e-12)",
    ),
    _instead(
        "gradient averaged over the elements",
        "G is divided by the number of its elements.",
        "norm_coefficient * X + G / np.maximum(np.size(G), 1)",
    ),
    _instead(
        "sign of the gradient",
        "Only the sign of G is used.",
        "norm_coefficient * X + np.sign(G)",
    ),
)
