"""Generators of normalizations, losses and activations with several tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnxopt_cli.suites.operators.node_draft import NodeDraft, Shape

_TYPES = ("float32", "float64", "float16", "bfloat16")
_IMAGE_RANK = 4
_STYLES = ("plain", "halves", "wide")
# For infinities, correct algorithms return different results, for example if they fold the mean
# into the bias.
_NORMALIZED_STYLES = (*_STYLES, *_STYLES, "nan")
# With large values of epsilon, results show where an implementation adds epsilon.
_EPSILONS = (None, 0.125, 0.5, 0.015625)


def _batch_normalization(draft: NodeDraft) -> None:
    shape = draft.shape(2, 4)
    dtype = draft.dtype(0, _TYPES)
    draft.float_attribute("epsilon", _EPSILONS)
    draft.float_attribute("momentum", (None, 0.5, 0.25, 1.0, 0.0))
    if draft.since(14) and draft.attribute("training_mode", (None, 1, 0)):
        draft.outputs = [True, True, True]
    else:
        draft.outputs = [True]
    parameters: Shape = (shape[1],)
    draft.add(draft.tensor(dtype, shape, styles=_NORMALIZED_STYLES))
    for _ in range(3):
        draft.add(draft.tensor(dtype, parameters, styles=_NORMALIZED_STYLES))
    draft.add(
        draft.tensor(
            dtype,
            parameters,
            low=draft.choice((0.125, 0.125, 0.0)),
            high=draft.choice((4.0, 4.0, 20.0)),
        )
    )


def _instance_normalization(draft: NodeDraft) -> None:
    shape = draft.shape(3, 4)
    dtype = draft.dtype(0, _TYPES)
    draft.float_attribute("epsilon", _EPSILONS)
    draft.add(draft.tensor(dtype, shape, styles=_NORMALIZED_STYLES))
    for _ in range(2):
        draft.add(draft.tensor(dtype, (shape[1],), styles=_NORMALIZED_STYLES))


def _require_precision(draft: NodeDraft, dtype: np.dtype[Any]) -> None:
    """Reject doubles if the operator has ``stash_type``, which is float32 by default."""
    draft.require(dtype != np.float64 or not draft.has("stash_type"))


def _group_normalization(draft: NodeDraft) -> None:
    groups = draft.choice((2, 1, 3))
    shape = (draft.size(1, 2), groups * draft.size(1, 2), *draft.shape(1, 2))
    dtype = draft.dtype(0, _TYPES)
    _require_precision(draft, dtype)
    draft.set("num_groups", groups)
    draft.float_attribute("epsilon", _EPSILONS)
    draft.add(draft.tensor(dtype, shape, styles=_NORMALIZED_STYLES))
    # Before version 21, scale and bias have one element per group; later, one per channel.
    count = groups if not draft.since(21) else shape[1]
    for _ in range(2):
        draft.add(draft.tensor(dtype, (count,), styles=_NORMALIZED_STYLES))


def _layer_normalization(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    dtype = draft.dtype(0, _TYPES)
    _require_precision(draft, dtype)
    axis = draft.axis(len(shape))
    draft.set("axis", axis if axis != -1 or draft.maybe() else None)
    draft.float_attribute("epsilon", _EPSILONS)
    draft.add(draft.tensor(dtype, shape, styles=_NORMALIZED_STYLES))
    draft.add(draft.tensor(dtype, shape[axis:], styles=_NORMALIZED_STYLES))
    if len(draft.schema.inputs) > 2:  # noqa: PLR2004 - the bias is the third input
        draft.optional(lambda: draft.tensor(dtype, shape[axis:], styles=_NORMALIZED_STYLES))
        draft.outputs = [True]
        if dtype == np.float32:
            # The mean and the deviation are float32 in the specification, but onnx's reference
            # returns them in the input's type.
            outputs = ([True], [True, True, True], [True, True], [True, False, True])
            draft.outputs = draft.choice(outputs)


def _mean_variance_normalization(draft: NodeDraft) -> None:
    shape = draft.shape(2, 4)
    draft.add(draft.tensor(draft.dtype(0, _TYPES), shape, styles=_STYLES))
    axes = sorted(axis % len(shape) for axis in draft.axes(len(shape)))
    # The default axes suit images.
    draft.set("axes", axes if len(shape) != _IMAGE_RANK or draft.maybe() else None)


def _lp_normalization(draft: NodeDraft) -> None:
    shape = draft.shape(1, 4)
    draft.add(draft.tensor(draft.dtype(0, _TYPES[:3]), shape, styles=_STYLES))
    draft.attribute("axis", (draft.axis(len(shape)), None))
    draft.attribute("p", (None, 1, 2))


def _loss(draft: NodeDraft, *, softmax: bool) -> None:
    shape = draft.shape(2, 4)
    dtype = draft.dtype(0, _TYPES[:3])
    classes = shape[1]
    draft.attribute("reduction", (None, "sum", "none", "mean"))
    ignored = draft.choice((None, 0, classes - 1, -1))
    draft.set("ignore_index", ignored)
    index = draft.dtype(1, ("int64", "int32"))
    targets = draft.state().randint(0, classes, (shape[0], *shape[2:])).astype(index)
    weights = draft.tensor(dtype, (classes,), low=0.25, high=2.0)
    if ignored == -1:
        targets.reshape(-1)[0] = -1
    # The mean of zero elements is undefined.
    draft.require(bool((targets != ignored).any()) if ignored is not None else targets.size)
    draft.add(draft.tensor(dtype, shape, styles=_STYLES))
    draft.add(targets)
    draft.optional(lambda: weights)
    if softmax:
        draft.outputs = draft.choice(([True], [True, True]))


def _negative_log_likelihood(draft: NodeDraft) -> None:
    _loss(draft, softmax=False)


def _softmax_cross_entropy(draft: NodeDraft) -> None:
    _loss(draft, softmax=True)


def _dropout(draft: NodeDraft) -> None:
    shape = draft.shape(0, 4)
    dtype = draft.dtype(0, _TYPES)
    draft.add(draft.tensor(dtype, shape, styles=("plain", "special")))
    if draft.has("ratio"):
        draft.float_attribute("ratio", (None, 0.25, 0.75))
    else:
        draft.attribute("seed", (None, 7))
        ratio_type = draft.dtype(1, _TYPES[:3])
        draft.optional(lambda: np.array(draft.choice((0.25, 0.75, 0.0)), ratio_type))
        # In training mode, the operator is random. The exception is the ratio zero, which drops no
        # element.
        ratio = draft.inputs[1]
        is_zero = isinstance(ratio, np.ndarray) and not ratio.any()
        draft.optional(lambda: np.array(draft.maybe() and is_zero))
    draft.outputs = draft.choice(([True], [True, True]))
    # Before version 12, the specification does not define the values of the mask.
    draft.require(draft.since(12) or draft.outputs == [True])


def _swiglu(draft: NodeDraft) -> None:
    dtype = draft.dtype(0, _TYPES)
    shape = draft.shape(0, 4)
    draft.float_attribute("alpha", (None, 0.5, 2.0, -0.75))
    for _ in range(2):
        draft.add(draft.tensor(dtype, shape, styles=("plain", "halves")))


#: Generators by operator.
NORMALIZATION: Mapping[str, Callable[[NodeDraft], None]] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _layer_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "LpNormalization": _lp_normalization,
    "NegativeLogLikelihoodLoss": _negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": _softmax_cross_entropy,
    "Dropout": _dropout,
    "SwiGLU": _swiglu,
}
