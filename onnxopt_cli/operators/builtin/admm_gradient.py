"""AdmmGradient, version 1 of onnxopt.pruning."""

from __future__ import annotations

from typing import Any

import numpy as np  # noqa: F401 - used in the expressions of known mistakes

from onnxopt_cli.operators.operator import (
    NOWHERE,
    Attribute,
    Operator,
    Reformulation,
    mistake_table,
)


def admm_gradient(G: Any, W: Any, Z: Any, U: Any, *, rho: Any) -> tuple[Any]:
    """Add the gradient of the ADMM penalty to a layer's gradient.

    The ADMM penalty of a layer is (rho / 2) * ||W - Z + U||^2 (Boyd et al. 2011, section 3.1.1).
    The gradient of the penalty with respect to W is added to the gradient of the loss::

        G_new = G + rho * (W - Z + U)

    Layers are independent of each other.

    - Element types: G_new has the type of G; W, Z and U may have other types.
    - NaN in any input makes the element NaN; infinities follow IEEE arithmetic.
    - An empty layer stays empty; a layer of one element is computed like any other.

    Args:
        G: gradient of the loss with respect to the layer's weights.
        W: the weights; broadcasts to G's shape.
        Z: the pruned weights; broadcasts to G's shape.
        U: the scaled dual variable; broadcasts to G's shape.
        rho: weight of the penalty; any number.

    Returns:
        The new gradient, of G's shape.
    """
    return (G + rho * (W - Z + U),)


_RESIDUAL = "W - Z + U"
_PENALTY = f"rho * ({_RESIDUAL})"

KNOWN_MISTAKES = mistake_table(f"""
    gradient of the norm not squared
        The residual is divided by twice its norm, as if the norm in the penalty were not \
            squared.
        seen in the published code of the ADMM pruning article that gives the formula
        seen in bzantium/pytorch-admm-pruning
        {_PENALTY} -> rho / 2 * ({_RESIDUAL}) \
            / np.maximum(np.sqrt(np.sum(({_RESIDUAL}) * ({_RESIDUAL}))), 1e-300)
    rho halved
        The gradient keeps the factor rho / 2 of the penalty.
        {_PENALTY} -> rho / 2 * ({_RESIDUAL})
    rho doubled
        The residual is multiplied by 2 * rho, as if the factor of the penalty were rho.
        {_PENALTY} -> 2 * rho * ({_RESIDUAL})
    rho left out
        The residual is added without the factor rho.
        {_PENALTY} -> ({_RESIDUAL})
    U subtracted
        The dual variable is subtracted from the residual instead of added.
        {_RESIDUAL} -> W - Z - U
    U left out
        The residual is W - Z, without the dual variable.
        {_RESIDUAL} -> W - Z
    U not scaled
        U is treated as the unscaled multiplier, which is not multiplied by rho.
        {_PENALTY} -> (rho * (W - Z) + U)
    Z left out
        The residual is W + U, so that weights are drawn towards zero instead of towards Z.
        {_RESIDUAL} -> W + U
    gradient subtracted
        The gradient of the penalty is subtracted instead of added.
        G + {_PENALTY} -> G - {_PENALTY}
    sign of the residual
        Only the sign of the residual is used, as in the gradient of a sum of magnitudes.
        {_RESIDUAL} -> np.sign({_RESIDUAL})
    averaged over the elements
        The gradient of the penalty is divided by the number of elements.
        {_PENALTY} -> {_PENALTY} / np.maximum(np.size(G), 1)
""")

ADMM_GRADIENT = Operator(
    name="AdmmGradient",
    domain="onnxopt.pruning",
    version=1,
    formula=admm_gradient,
    scalars=(),
    tensors=("G", "W", "Z", "U"),
    outputs={"G_new": "G"},
    attributes=(Attribute("rho"),),
    about="A gradient plus the gradient of the ADMM penalty.",
    source="Boyd et al. 2011, Distributed Optimization and Statistical Learning via ADMM",
    known_mistakes=KNOWN_MISTAKES,
    reformulations=(
        Reformulation("penalty first", {f"G + {_PENALTY}": f"{_PENALTY} + G"}),
        # If U is small, W + U is rounded to the precision of W, and U - Z to that of Z. If W and Z
        # cancel, the lost digits of U are missing in the result.
        Reformulation("U added first", {_RESIDUAL: "W + U - Z"}, accurate=NOWHERE),
        Reformulation("Z subtracted from U first", {_RESIDUAL: "U - Z + W"}, accurate=NOWHERE),
    ),
)
