"""How far off a training step may be in float32, and all steps before it: a bound carried along.

The optimizer is the formula of its operator on values with error bounds. The layers are written
down here the same way. Sums of n products may be off by n unit roundoffs of the sum of the
magnitudes, in whatever order they are added (Higham 2002, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from digits.data import Images
from digits.network import LAYERS, SHAPES, Array
from digits.optimizers import DOMAIN, Optimizer
from onnxopt_cli.formula.call import complete_attributes
from onnxopt_cli.operators import find_operator
from onnxopt_cli.readings.bound.bounded import Bounded, covering, given, number, output
from onnxopt_cli.readings.evaluate import WIDE
from onnxopt_cli.readings.vocabulary import Level, precision_of

_PRECISION = precision_of(np.dtype(np.float32))
_SCALAR = precision_of(np.dtype(np.float32), Level.SCALAR)
_U = _PRECISION.unit_roundoff
# An exponential or a logarithm of a library, in unit roundoffs.
_ELEMENTARY = 4


def exactly(tensor: Array) -> Bounded:
    """Return a tensor that is given."""
    return given(tensor, _PRECISION)


def carried_step(
    optimizer: Optimizer, tensors: Mapping[str, Bounded], steps: int, batch: Images
) -> dict[str, Bounded]:
    """Return the outputs of a dense training step by name, with a bound on the error of each.

    Args:
        optimizer: the optimizer.
        tensors: parameters and states, with what they may be off already.
        steps: number of steps before this one.
        batch: the images.
    """
    with np.errstate(all="ignore"):
        return _carried_step(optimizer, tensors, steps, batch)


def _carried_step(
    optimizer: Optimizer, tensors: Mapping[str, Bounded], steps: int, batch: Images
) -> dict[str, Bounded]:
    hidden = {0: exactly(batch.pixels)}
    sums: dict[int, Bounded] = {}
    for layer in LAYERS:
        sums[layer] = _product(hidden[layer - 1], tensors[f"W{layer}"]) + tensors[f"b{layer}"]
        hidden[layer] = np.maximum(sums[layer], 0)
    loss, gradient = _loss(sums[LAYERS[-1]], batch.labels)
    outputs = {"loss": loss}
    for layer in reversed(LAYERS):
        outputs[f"gradient_W{layer}"] = _product(_transposed(hidden[layer - 1]), gradient)
        outputs[f"gradient_b{layer}"] = _column_sums(gradient)
        if layer > 1:
            gradient = _product(gradient, _transposed(tensors[f"W{layer}"]))
            gradient = gradient * _slope(sums[layer - 1])
    return outputs | optimizer_step(optimizer, tensors, outputs, steps)


def optimizer_step(
    optimizer: Optimizer, tensors: Mapping[str, Bounded], outputs: Mapping[str, Bounded], steps: int
) -> dict[str, Bounded]:
    """Return new parameters and states by name, given gradients among a step's other outputs."""
    operator = find_operator(DOMAIN, optimizer.op_type)
    assert operator is not None  # noqa: S101 - the workload is made of operators with a formula
    attributes: dict[str, Any] = {
        name: value if isinstance(value, str) else number(value)  # type: ignore[arg-type]
        for name, value in complete_attributes(operator, optimizer.attributes).items()
    }
    rate = given(np.array(optimizer.rate, np.float32), _SCALAR)
    count = given(np.array(optimizer.first_count + steps), _SCALAR)
    results: dict[str, Bounded] = {}
    for name in SHAPES:
        states = [f"{state}_{name}" for state in optimizer.states]
        operands = [tensors[name], outputs[f"gradient_{name}"], *(tensors[it] for it in states)]
        with np.errstate(all="ignore"):
            new = operator.formula(rate, count, *operands, **attributes)
        for target, result in zip((name, *states), new, strict=True):
            rounded = covering(*output(result, _PRECISION))
            results[f"{target}_new"] = _bounded(rounded.value, rounded.error)
    return results


def _loss(logits: Bounded, labels: Array) -> tuple[Bounded, Bounded]:
    """Return the mean cross-entropy, and its gradient with respect to the logits."""
    count, classes = logits.value.shape
    # Subtracting the largest logit changes nothing but the rounding.
    shifted = logits.value - logits.value.max(axis=1, keepdims=True)
    error = logits.error + _U * np.abs(shifted)
    largest_error = np.max(error, axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=1, keepdims=True)
    roundings = (2 * _ELEMENTARY + classes + 2) * _U
    probability = exponentials / total
    relative = np.expm1(error + largest_error) + roundings
    wanted = np.eye(classes)[labels]
    excess = _bounded(probability, probability * relative) - wanted
    own = np.sum(wanted * shifted, axis=1)
    losses = np.log(total[:, 0]) - own
    losses_error = (
        largest_error[:, 0]
        + roundings
        + _ELEMENTARY * _U * np.log(total[:, 0])
        + np.sum(wanted * error, axis=1)
        + _U * losses
    )
    mean_error = np.mean(losses_error) + (count + 1) * _U * np.mean(losses + losses_error)
    return _bounded(np.mean(losses), mean_error), excess / count


def _product(a: Bounded, b: Bounded) -> Bounded:
    """Multiply matrices."""
    a_size, b_size = a.magnitude, b.magnitude
    a_error, b_error = (np.broadcast_to(it.error, it.value.shape) for it in (a, b))
    inherited = a_size @ b_error + a_error @ (b_size + b_error)
    rounding = a.value.shape[1] * _U * ((a_size + a_error) @ (b_size + b_error))
    return _bounded(a.value @ b.value, inherited + rounding)


def _column_sums(a: Bounded) -> Bounded:
    error = np.broadcast_to(a.error, a.value.shape)
    rounding = (len(a.value) - 1) * _U * np.sum(a.magnitude + error, axis=0)
    return _bounded(np.sum(a.value, axis=0), np.sum(error, axis=0) + rounding)


def _slope(a: Bounded) -> Bounded:
    """Return ReLU's slope, which may be either where rounding decides the sign."""
    undecided = (a.magnitude <= a.error) & (a.error > 0)
    return _bounded((a.value > 0).astype(WIDE), np.float64(undecided))


def _transposed(a: Bounded) -> Bounded:
    return _bounded(a.value.T, np.broadcast_to(a.error, a.value.shape).T)


def _bounded(value: Any, error: Any) -> Bounded:
    return Bounded(np.asarray(value, WIDE), np.float64(error), precision=_PRECISION)
