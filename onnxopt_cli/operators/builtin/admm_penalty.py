"""AdmmPenalty, version 1 of onnxopt.pruning."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.operators.operator import (
    FLOATS,
    NOWHERE,
    Attribute,
    Operator,
    Reformulation,
    Scalar,
    mistake_table,
)


def admm_penalty(loss: Any, W: Any, Z: Any, U: Any, *, rho: Any) -> tuple[Any]:
    """The loss of ADMM training: the original loss plus the distance from the pruned weights.

    Scaled form of the augmented Lagrangian (Boyd et al. 2011, section 3.1.1). The node adds the
    penalties of all layers to one loss, in their order::

        loss_new = loss + sum over the layers of (rho / 2) * ||W - Z + U||^2

    where ||.||^2 is the sum of the squares of all elements.

    - Element types: loss_new has the type of loss; the layers may have other types.
    - Order of summation: the squares of a layer are summed in any order, and the penalty of the
      layer is then added to the loss.
    - loss_new is NaN if an input contains NaN, or if infinities of opposite signs are added.
    - An empty layer adds nothing; a layer of one element adds (rho / 2) * (W - Z + U)^2.
    - rho may be any number. If rho is 0, loss_new equals loss, except that infinities or NaN in a
      layer make it NaN.

    Args:
        loss: the loss, a tensor of one element and any rank.
        W: a layer's weights.
        Z: the pruned weights; broadcasts to W's shape.
        U: the scaled dual variable; broadcasts to W's shape.
        rho: weight of the penalty.

    Returns:
        The new loss, of the loss's shape.
    """
    # Difference from the pruned weights, plus the dual variable.
    residual = W - Z + U
    return (loss + rho / 2 * np.sum(residual * residual),)


_SQUARED = "np.sum(residual * residual)"
_RESIDUAL = "W - Z + U"
_SCALED = f"rho / 2 * {_SQUARED}"

KNOWN_MISTAKES = mistake_table(f"""
    norm not squared
        The norm of the residual is used instead of its square.
        seen in the published code of the ADMM pruning article that gives the formula
        seen in bzantium/pytorch-admm-pruning
        {_SQUARED} -> np.sqrt({_SQUARED})
    root of the norm
        The root of the residual's norm is used instead of the square of the norm.
        seen in NNI 2.9
        {_SQUARED} -> np.sqrt(np.sqrt({_SQUARED}))
    rho inside the norm
        The residual is scaled by the root of rho / 2, and its norm is not squared.
        {_SCALED} -> np.sqrt({_SCALED})
    rho without the half
        The factor is rho instead of rho / 2, so that the penalty is twice as large.
        rho / 2 -> rho
    magnitudes summed
        The magnitudes of the residual are summed instead of its squares.
        {_SQUARED} -> np.sum(np.abs(residual))
    mean of the squares
        The sum of the squares is divided by the number of elements.
        {_SQUARED} -> np.mean(residual * residual)
    square of the sum
        The elements are added before they are squared.
        {_SQUARED} -> np.sum(residual) ** 2
    largest square
        The largest square is used instead of the sum of the squares.
        {_SQUARED} -> np.max(residual * residual, initial=0)
    U subtracted
        The dual variable is subtracted from the residual instead of added.
        {_RESIDUAL} -> W - Z - U
    U left out
        The residual is W - Z, without the dual variable.
        {_RESIDUAL} -> W - Z
    Z left out
        The residual is W + U, so that weights decay towards zero instead of towards Z.
        {_RESIDUAL} -> W + U
    loss left out
        Only the penalty is returned.
        loss + {_SCALED} -> {_SCALED}
    loss multiplied by rho / 2
        rho / 2 multiplies the loss as well as the sum of the squares.
        loss + {_SCALED} -> rho / 2 * (loss + {_SQUARED})
    unscaled dual variable
        U is treated as the unscaled multiplier, whose product with W - Z is added.
        {_SCALED} -> rho / 2 * np.sum((W - Z) * (W - Z)) + np.sum(U * (W - Z))
    squared dual variable subtracted
        rho / 2 times the sum of the squares of U is subtracted, which does not change the \
            gradient with respect to W.
        {_SCALED} -> {_SCALED} - rho / 2 * np.sum(U * U)
""")

ADMM_PENALTY = Operator(
    name="AdmmPenalty",
    domain="onnxopt.pruning",
    version=1,
    formula=admm_penalty,
    scalars=(Scalar("loss", FLOATS),),
    tensors=("W", "Z", "U"),
    outputs={"loss_new": "loss"},
    attributes=(Attribute("rho"),),
    about="A loss plus the ADMM penalty of every layer's distance from its pruned weights.",
    source="Boyd et al. 2011, Distributed Optimization and Statistical Learning via ADMM",
    known_mistakes=KNOWN_MISTAKES,
    reformulations=(
        Reformulation("half at the end", {_SCALED: f"rho * ({_SQUARED} / 2)"}),
        Reformulation(
            "weight on every square", {_SCALED: "np.sum(rho / 2 * (residual * residual))"}
        ),
        Reformulation("squares by a power", {"residual * residual": "residual**2"}),
        # If U is small, W + U is rounded to the precision of W, and U - Z to that of Z. If W and Z
        # cancel, the lost digits of U are missing in the result.
        Reformulation("U added first", {_RESIDUAL: "W + U - Z"}, accurate=NOWHERE),
        Reformulation("Z subtracted from U first", {_RESIDUAL: "U - Z + W"}, accurate=NOWHERE),
    ),
)
