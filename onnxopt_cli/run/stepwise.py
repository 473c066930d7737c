"""Running a trajectory step by step on a backend, and following its error over the steps.

Outputs of a step are inputs of the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from onnxopt_cli.backends.host import Request, Response
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.compare import element_shares
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.trajectory import Trajectory
from onnxopt_cli.core.values import (
    Array,
    Value,
    describe,
)
from onnxopt_cli.interpret.bound.chained_bound import derived_array
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.executors import Executor


def stepwise(executor: Executor, problem: Problem, started: Callable[[], None]) -> Response | str:
    """Run all steps, and return the outputs of the recorded steps, stacked.

    The run ends at the first step whose outputs are missing or cannot be fed to the next step.

    Args:
        executor: the backend, which is asked to keep the prepared model for the next step.
        problem: a trajectory, whose model is that of one step.
        started: called when the first step starts.
    """
    trajectory, call = problem.trajectory, problem.call
    assert trajectory is not None and call is not None  # noqa: S101, PT018 - problem.stepwise
    recorded = set(trajectory.recorded)
    names = [value.name for value in trajectory.model.graph.output]
    rows: list[list[Array]] = []
    state: Mapping[str, Array] = trajectory.state
    total = Response([])
    for step in range(1, trajectory.count + 1):
        inputs = trajectory.inputs(step, state, lambda array: array, derived_array)
        step_call = call.with_inputs([*inputs.values()])
        request = Request(trajectory.model, inputs, keep=True, call=step_call)
        response = executor.submit(replace(request, started=started) if step == 1 else request)()
        if isinstance(response, str):
            return response
        total = _joined(total, response)
        if response.outputs is None:
            return replace(total, message=f"step {step}: {response.message}")
        outputs, fault = _usable(response.outputs, names, trajectory, state)
        if fault:
            # Return the outputs as a single row, so that the diff shows their wrong shape.
            rows_of_step = [value[np.newaxis, ...] for value in outputs]
            return replace(total, outputs=[*rows_of_step], message=f"step {step}: {fault}")
        named = dict(zip(names, outputs, strict=True))
        # A backend may return the same buffer at its next call.
        state = {target: named[name].copy() for name, target in trajectory.feedback.items()}
        if step in recorded:
            rows.append([value.copy() for value in outputs])
    return replace(total, outputs=[_stack(values) for values in zip(*rows, strict=True)])


def _joined(total: Response, response: Response) -> Response:
    return replace(
        response,
        lowered=total.lowered or response.lowered,
        changed=tuple(dict.fromkeys((*total.changed, *response.changed))),
        leak=total.leak or response.leak,
        seconds=total.seconds + response.seconds,
    )


def _usable(
    outputs: list[Value], names: list[str], trajectory: Trajectory, state: Mapping[str, Array]
) -> tuple[list[Array], str]:
    """Return the outputs that are tensors, and why the next step cannot use the outputs.

    The reason is empty if it can.
    """
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    if len(outputs) != len(names):
        return arrays, f"returned {len(outputs)} outputs, expected {len(names)}"
    if len(arrays) != len(outputs):
        return arrays, "returned an output that is not a tensor"
    for name, value in zip(names, arrays, strict=True):
        like = state.get(trajectory.feedback.get(name, ""))
        if like is not None and (value.dtype, value.shape) != (like.dtype, like.shape):
            return arrays, f"{name} is {describe(value)}, expected {describe(like)}"
    return arrays, ""


def _stack(rows: Sequence[Array]) -> Value:
    alike = all((row.dtype, row.shape) == (rows[0].dtype, rows[0].shape) for row in rows)
    return np.stack(rows) if alike else list(rows)


def course(
    recorded: Sequence[int], expected: Expected, actual: Sequence[Value], diffs: Sequence[Diff]
) -> tuple[Mapping[int, float], str]:
    """Follow the error of stacked outputs over the recorded steps.

    Args:
        recorded: the recorded steps, in the order of the rows.
        expected: the expected result.
        actual: the outputs of the backend, in the graph's order.
        diffs: the comparison of each output with the expected one.

    Returns:
        The largest error / tolerance of each recorded step, which is infinite for an error where
        the tolerance is zero; empty if an output has another type or shape. And a message with the
        first step that exceeds the tolerance, and the first step with an inconclusive element.
    """
    largest, places = _largest_errors(len(recorded), expected, actual)
    messages = []
    exceeding = np.flatnonzero(largest > 1)
    if exceeding.size:
        first = exceeding[0]
        messages.append(f"first exceeded the tolerance in step {recorded[first]}, {places[first]}")
    if expected.derive is not None and any(diff.inconclusive for diff in diffs):
        masks = [output.branch.inconclusive for output in expected.derive().values()]
        rows = [mask.reshape(len(recorded), -1).any(axis=1) for mask in masks]
        step = recorded[int(np.argmax(np.any(rows, axis=0)))]
        messages.append(f"the case is partly inconclusive from step {step} on")
    return dict(zip(recorded, largest.tolist(), strict=False)), "; ".join(messages)


def _largest_errors(
    step_count: int, expected: Expected, actual: Sequence[Value]
) -> tuple[Array, list[str]]:
    """Return the largest error / tolerance of each step, and its element, such as ``X_new[4]``.

    Both are empty if an output has another type or shape.
    """
    largest = np.zeros(step_count)
    places: list[str] = [""] * step_count
    for (name, right), value in zip(expected.outputs.items(), actual, strict=False):
        if not isinstance(right, np.ndarray) or not isinstance(value, np.ndarray):
            return np.zeros(0), []
        if describe(right) != describe(value):
            return np.zeros(0), []
        errors = element_shares(right, value, expected.tolerances[name]).reshape(step_count, -1)
        if not errors.size:
            continue
        elements = np.argmax(errors, axis=1)
        row_errors = errors[np.arange(step_count), elements]
        for row in np.flatnonzero(row_errors > largest):
            index = [*map(int, np.unravel_index(elements[row], right.shape[1:]))]
            places[row] = f"{name}{index or ''}"
        largest = np.maximum(largest, row_errors)
    return largest, places
