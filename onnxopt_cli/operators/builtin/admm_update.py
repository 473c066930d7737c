"""AdmmUpdate, version 1 of onnxopt.pruning."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.operators.operator import (
    NOWHERE,
    Operator,
    mistake_table,
    reformulation_table,
)
from onnxopt_cli.operators.percentile import percentile
from onnxopt_cli.operators.shared_mistakes import PERCENT, wrong_thresholds


def admm_update(W: Any, Z: Any, U: Any, *, percent: Any) -> tuple[Any, Any]:  # noqa: ARG001 - the new Z needs no old one
    """Prune the weights as ADMM sees them, and move the dual variable.

    The second and third step of scaled ADMM (Boyd et al. 2011, section 3.1.1). The second step is a
    projection on sparse weights (Zhang et al. 2018, section 4): elements of W + U whose magnitude
    is below a percentile of the layer's magnitudes become zero. The third step adds the residual of
    the projection, with the new Z, to the dual variable.

    Each layer is computed on its own, with its own threshold. With the n magnitudes sorted and
    h = (n - 1) * percent / 100, the threshold is the magnitude of rank h (counted from 0); for a
    fractional h it is a + (b - a) * (h - floor(h)) between its neighbours a and b. It is exactly a
    where h is whole or a = b.

    - Ties: the comparison is strict, so that magnitudes equal to the threshold stay. Without ties
      ceil(h) elements become zero, in [1, 1, 1, 1, 2] with percent 60 none.
    - percent 0: the threshold is the smallest magnitude, nothing becomes zero, U_new is zero.
      percent 100: the largest magnitude stays, all smaller ones become zero.
    - A layer of one element keeps it for every percent; an empty layer stays empty.
    - NaN anywhere in W + U makes the threshold NaN: nothing is below it, and nothing becomes zero.
    - Infinite elements are the largest magnitudes, and a threshold between a finite and an infinite
      one is infinite. Where an infinite element stays in Z_new, U_new is NaN.
    - Rounding: by its rounding error, an element of W + U may fall on either side of a close
      threshold. Z_new and U_new are accepted with either.
    - Element types: Z_new has that of the old Z and U_new that of the old U; W may have another.
      The values of the old Z are not used. U_new may be computed from Z_new before or after its
      rounding to its type.

    Args:
        W: a layer's weights after the step that minimized loss and penalty.
        Z: the old pruned weights; broadcasts to W's shape.
        U: the scaled dual variable; broadcasts to W's shape.
        percent: share of the elements to prune, in percent from 0 to 100 (not a fraction); one
            number for all layers, or one for each.

    Returns:
        New Z and U, of W's shape.
    """
    V = W + U
    threshold = percentile(np.abs(V), percent)
    Z_new = np.where(np.abs(V) < threshold, 0, V)
    U_new = U + W - Z_new
    return Z_new, U_new


_U_NEW = "U_new = U + W - Z_new"
_Z_NEW = "Z_new = np.where(np.abs(V) < threshold, 0, V)"

KNOWN_MISTAKES = (
    *mistake_table(f"""
    U with the old Z
        The dual variable is updated with the old Z instead of the new one.
        {_U_NEW} -> U_new = U + W - Z
    U moved in the other direction
        The residual W - Z_new is subtracted from U instead of added.
        {_U_NEW} -> U_new = U - W + Z_new
    U without the old U
        The new U is the residual W - Z_new alone, without the sum of earlier residuals.
        {_U_NEW} -> U_new = W - Z_new
    U not updated
        The old U is returned; only Z is updated.
        {_U_NEW} -> U_new = U
    W projected without U
        W is projected instead of W + U.
        V = W + U -> V = W
    threshold and mask from W
        The elements of W + U are kept or pruned by the magnitudes of W and their percentile.
        threshold = percentile(np.abs(V), percent) -> threshold = percentile(np.abs(W), percent)
        {_Z_NEW} -> Z_new = np.where(np.abs(W) < threshold, 0, V)
    threshold from W
        The magnitudes of W + U are compared with a percentile of the magnitudes of W.
        percentile(np.abs(V), percent) -> percentile(np.abs(W), percent)
    weights kept instead of W + U
        Unpruned elements of Z_new are those of W.
        {_Z_NEW} -> Z_new = np.where(np.abs(V) < threshold, 0, W)
    U subtracted from W
        W - U is projected instead of W + U.
        V = W + U -> V = W - U
    """),
    *wrong_thresholds("V"),
)

ADMM_UPDATE = Operator(
    name="AdmmUpdate",
    domain="onnxopt.pruning",
    version=1,
    formula=admm_update,
    scalars=(),
    tensors=("W", "Z", "U"),
    outputs={"Z_new": "Z", "U_new": "U"},
    attributes=(PERCENT,),
    about="Project weights plus dual variable on sparse weights; update the dual variable.",
    source="Zhang et al. 2018, A Systematic DNN Weight Pruning Framework using ADMM",
    known_mistakes=KNOWN_MISTAKES,
    # Rounded to its type, Z_new has that type's digits.
    reformulations=reformulation_table(f"""
        residual first
            {_U_NEW} -> U_new = V - Z_new
        Z_new rounded to its type first
            accurate if {NOWHERE}
            U + W - Z_new -> U + W - Z_new.astype(Z.dtype)
        kept where not below
            {_Z_NEW} -> Z_new = np.where(np.logical_not(np.abs(V) < threshold), V, 0)
    """),
)
