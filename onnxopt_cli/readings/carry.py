"""The bound reading over many steps: value and error of a step are what the next one starts from.

What a step returns is known up to an error; so is the gradient that is computed from it, and all of
that enters the formula again. An error only grows where the formula lets it grow: averages damp it,
gradients of steep functions multiply it. Errors are added up as if they never cancelled, so the
bound of a long trajectory with a steep gradient ends beyond use, and then says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from onnxopt_cli.core.trajectory import Derived, Trajectory
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.single_node import sole_call
from onnxopt_cli.readings.bound import FACTOR, Judgement, judged
from onnxopt_cli.readings.bounded import either, output
from onnxopt_cli.readings.evaluate import widen
from onnxopt_cli.readings.precision import precision_of
from onnxopt_cli.readings.uncertain import Uncertain, uncertain_outputs


@lru_cache(maxsize=2)
def carried_bound(trajectory: Trajectory, factor: float = FACTOR) -> Mapping[str, Judgement]:
    """Return what the recorded steps must return, and how far off they may be.

    The reference goes its own way from the first step on, in the wide type, and is not rounded in
    between. Where rounding decides a choice, the error covers both sides of it.

    Args:
        trajectory: the steps.
        factor: multiple of the carried error that is allowed, as for a single step.

    Returns:
        By output, of the recorded steps stacked: ``[recorded, ...]``.

    Raises:
        NodeError: if node and inputs break the operator's signature.
    """
    recorded = set(trajectory.recorded)
    names = [value.name for value in trajectory.model.graph.output]
    kept: dict[str, list[Uncertain]] = {name: [] for name in names}
    call = _first_call(trajectory)
    state = {name: Uncertain.exact(value) for name, value in trajectory.state.items()}
    with np.errstate(all="ignore"):
        for step in range(1, trajectory.count + 1):
            fed = trajectory.inputs(step, state, Uncertain.exact, _derive)
            outputs = dict(zip(names, _step(call, list(fed.values())), strict=True))
            state = {taken: outputs[name] for name, taken in trajectory.feedback.items()}
            if step in recorded:
                for name, rows in kept.items():
                    rows.append(outputs[name])
        return {name: _stacked(rows, factor) for name, rows in kept.items()}


def first_inputs(trajectory: Trajectory) -> dict[str, Array]:
    """Return what the first step is fed."""
    return trajectory.inputs(1, trajectory.state, lambda array: array, derived_array)


def derived_array(derived: Derived, value: Array) -> Array:
    """Return a derived input of what a backend returned, computed wide and rounded once."""
    with np.errstate(all="ignore"):
        result = derived.formula(widen(value))
        return np.asarray(result).astype(derived.dtype).reshape(value.shape)


def _derive(derived: Derived, operand: Uncertain) -> Uncertain:
    result = output(derived.formula(operand.tensor), precision_of(derived.dtype))
    return Uncertain(derived.dtype, operand.shape, bounded=either(result))


def _first_call(trajectory: Trajectory) -> Call[Array]:
    call = sole_call(trajectory.model, first_inputs(trajectory))
    if call is None:
        raise NodeError("a trajectory's model must be one node of an operator with a formula")
    return call


def _step(first: Call[Array], fed: list[Uncertain]) -> list[Uncertain]:
    scalars, tensors = fed[: len(first.scalars)], fed[len(first.scalars) :]
    groups = len(first.groups)
    call: Call[Uncertain] = Call(
        first.operator,
        first.attributes,
        tuple(scalars),
        tuple(tuple(tensors[group::groups]) for group in range(groups)),
    )
    return uncertain_outputs(call)


def _stacked(rows: list[Uncertain], factor: float) -> Judgement:
    values = np.stack([row.value for row in rows])
    errors = np.stack([row.error for row in rows])
    return judged(values, errors, rows[0].dtype, values.shape, factor)
