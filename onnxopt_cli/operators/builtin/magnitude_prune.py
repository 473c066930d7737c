"""MagnitudePrune, version 1 of onnxopt.pruning."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxopt_cli.operators.operator import (
    Operator,
    mistake_table,
    reformulation_table,
)
from onnxopt_cli.operators.percentile import percentile
from onnxopt_cli.operators.shared_mistakes import PERCENT, wrong_thresholds


def magnitude_prune(W: Any, *, percent: Any) -> tuple[Any, Any]:
    """Set the smallest weights of a layer to zero, and return a mask of the remaining weights.

    Elements whose magnitude is below a percentile of the layer's magnitudes become zero (Han et al.
    2015). Later training multiplies gradients and weights by the mask, so that pruned elements stay
    zero.

    Layers are independent of each other; each has its own threshold. Let the n magnitudes of a
    layer be sorted, and let h = (n - 1) * percent / 100. If h is an integer, the threshold is the
    magnitude of rank h, counted from 0. If h is not an integer, let a and b be the magnitudes of
    the ranks below and above h. The threshold is a if a = b, and otherwise
    a + (b - a) * (h - floor(h)).

    - Ties: the comparison is strict, so magnitudes equal to the threshold are not pruned. Without
      ties, ceil(h) elements become zero. In [1, 1, 1, 1, 2] with percent 60, no element becomes
      zero.
    - The mask is 0 for pruned elements, and 1 for all others, including zeros that are not pruned.
      For example, the threshold of [0, 0, 0, 0, 2] with percent 60 is 0, and no magnitude is below
      0.
    - percent 0: the threshold is the smallest magnitude. Nothing becomes zero. percent 100: the
      threshold is the largest magnitude. All smaller elements become zero.
    - A layer of one element is never pruned; an empty layer stays empty.
    - NaN in a layer: the threshold is NaN. No magnitude is below NaN, so nothing becomes zero.
    - Infinities: they are the largest magnitudes. A threshold between a finite and an infinite
      magnitude is infinite.
    - Rounding: an interpolated threshold has a rounding error. A magnitude that is within this
      error of the threshold may be pruned or not, but W_new and mask must agree.
    - Element types: both outputs have the type of W; the mask consists of the numbers 0 and 1.

    Args:
        W: a layer's weights.
        percent: share of the elements to prune, in percent from 0 to 100 (not a fraction); one
            number for all layers, or one number for each layer.

    Returns:
        New W and its mask, of W's shape.
    """
    threshold = percentile(np.abs(W), percent)
    W_new = np.where(np.abs(W) < threshold, 0, W)
    mask = np.where(np.abs(W) < threshold, 0, 1)
    return W_new, mask


_PRUNED = "W_new = np.where(np.abs(W) < threshold, 0, W)"
_MASK = "mask = np.where(np.abs(W) < threshold, 0, 1)"

KNOWN_MISTAKES = (
    *mistake_table(f"""
    mask of nonzero elements
        The mask is also 0 for elements that are zero but not pruned.
        {_MASK} -> mask = np.where(W_new == 0, 0, 1)
    mask of elements at or above the threshold
        If W contains NaN, the mask is 0 everywhere, although no element is pruned.
        seen in the published code of the ADMM pruning article that gives the formula
        {_MASK} -> mask = np.where(np.abs(W) >= threshold, 1, 0)
    mask of elements above the threshold
        The mask is 0 for elements equal to the threshold, although they are not pruned.
        {_MASK} -> mask = np.where(np.abs(W) > threshold, 1, 0)
    mask of pruned elements
        The mask is 1 for pruned elements and 0 for the others.
        {_MASK} -> mask = np.where(np.abs(W) < threshold, 1, 0)
    mask with signs
        The mask has the signs of the unpruned elements.
        {_MASK} -> mask = np.where(np.abs(W) < threshold, 0, np.sign(W))
    weights not pruned
        W is returned unchanged; only the mask is computed.
        {_PRUNED} -> W_new = W
    """),
    *wrong_thresholds("W"),
)

MAGNITUDE_PRUNE = Operator(
    name="MagnitudePrune",
    domain="onnxopt.pruning",
    version=1,
    formula=magnitude_prune,
    scalars=(),
    tensors=("W",),
    outputs={"W_new": "W", "mask": "W"},
    attributes=(PERCENT,),
    about="Set the weights of smallest magnitude to zero, and return a mask of the others.",
    source="Han et al. 2015, Learning both Weights and Connections for Efficient Neural Networks",
    known_mistakes=KNOWN_MISTAKES,
    reformulations=reformulation_table(f"""
        weights by the mask
            {_PRUNED} -> W_new = np.where(np.logical_not(np.abs(W) < threshold), W, 0)
    """),
)
