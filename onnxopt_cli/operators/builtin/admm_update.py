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


def admm_update(W: Any, Z: Any, U: Any, *, percent: Any) -> tuple[Any, Any]:  # noqa: ARG001 - the old Z only determines a type
    """Update the pruned weights and the dual variable of ADMM.

    The node computes the second and third step of scaled ADMM (Boyd et al. 2011, section 3.1.1).
    The second step projects W + U to sparse weights (Zhang et al. 2018, section 4): elements whose
    magnitude is below a percentile of the layer's magnitudes become zero. The third step adds W -
    Z_new to the dual variable.

    Layers are independent of each other; each has its own threshold. Let the n magnitudes of a
    layer be sorted, and let h = (n - 1) * percent / 100. If h is an integer, the threshold is the
    magnitude of rank h, counted from 0. If h is not an integer, let a and b be the magnitudes of
    the ranks below and above h. The threshold is a if a = b, and otherwise
    a + (b - a) * (h - floor(h)).

    - Ties: the comparison is strict, so magnitudes equal to the threshold are not pruned. Without
      ties, ceil(h) elements become zero. In [1, 1, 1, 1, 2] with percent 60, no element becomes
      zero.
    - percent 0: the threshold is the smallest magnitude. Nothing becomes zero, and U_new is zero.
      percent 100: the threshold is the largest magnitude. All smaller elements become zero.
    - A layer of one element is never pruned; an empty layer stays empty.
    - NaN in W + U: the threshold is NaN. No magnitude is below NaN, so nothing becomes zero.
    - Infinities in W + U: they are the largest magnitudes. A threshold between a finite and an
      infinite magnitude is infinite. Where Z_new is infinite, U_new is NaN.
    - Rounding: an element of W + U within its rounding error of the threshold may be pruned or not;
      Z_new and U_new of both decisions are accepted.
    - Element types: Z_new has the type of Z, U_new the type of U; W may have another type. The
      values of Z are not used. U_new may be computed from Z_new before or after Z_new is rounded to
      its type.

    Args:
        W: a layer's weights after the step that minimized loss and penalty.
        Z: the old pruned weights; broadcasts to W's shape.
        U: the scaled dual variable; broadcasts to W's shape.
        percent: share of the elements to prune, in percent from 0 to 100 (not a fraction); one
            number for all layers, or one number for each layer.

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
    # One reformulation computes U_new from the rounded Z_new. It never counts as accurate, because
    # the type of Z_new may be narrower than that of U.
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
