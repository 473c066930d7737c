"""A trajectory on a backend, step by step: what a step returns is what the next one is fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from onnxopt_cli.core.trajectory import Trajectory
from onnxopt_cli.core.values import Array, Value, describe
from onnxopt_cli.isolation.response import Response
from onnxopt_cli.readings.bound.carry import derived_array
from onnxopt_cli.run.executors import Executor


class Stepwise:
    """The steps of a trajectory, the next of which is submitted when the last has its answer.

    Args:
        executor: the backend; it keeps the prepared model from step to step.
        trajectory: the steps.
        started: called when the first one starts.
    """

    def __init__(
        self, executor: Executor, trajectory: Trajectory, started: Callable[[], None]
    ) -> None:
        self._executor = executor
        self._trajectory = trajectory
        self._started = started

    def result(self) -> Response | str:
        """Run all steps; return what the recorded ones returned, stacked.

        Where a step returns nothing, or what cannot be fed to the next one, the rest does not run.
        """
        trajectory = self._trajectory
        recorded = set(trajectory.recorded)
        rows: list[list[Array]] = [[] for _ in trajectory.model.graph.output]
        state: Mapping[str, Array] = trajectory.state
        total = Response([])
        for step in range(1, trajectory.count + 1):
            fed = trajectory.inputs(step, state, lambda array: array, derived_array)
            started = self._started if step == 1 else _nothing
            response = self._executor.submit(trajectory.model, fed, started, keep=True).result()
            if isinstance(response, str):
                return response
            total = _joined(total, response)
            if response.outputs is None:
                return replace(total, message=f"step {step}: {response.message}")
            outputs, wrong = _usable(response.outputs, trajectory, state)
            if wrong:
                # One row, so that it says what it is beside what was expected.
                first = [value[np.newaxis, ...] for value in outputs]
                return replace(total, outputs=[*first], message=f"step {step}: {wrong}")
            names = [value.name for value in trajectory.model.graph.output]
            named = dict(zip(names, outputs, strict=True))
            # A backend may return the same buffer at its next call.
            state = {taken: named[name].copy() for name, taken in trajectory.feedback.items()}
            if step in recorded:
                for kept, value in zip(rows, outputs, strict=True):
                    kept.append(value.copy())
        return replace(total, outputs=[_stack(kept) for kept in rows])


def _nothing() -> None:
    """Do nothing: the case has started already."""


def _joined(total: Response, response: Response) -> Response:
    return replace(
        response,
        lowered=total.lowered or response.lowered,
        changed=tuple(dict.fromkeys((*total.changed, *response.changed))),
        leak=total.leak or response.leak,
        seconds=total.seconds + response.seconds,
    )


def _usable(
    outputs: list[Value], trajectory: Trajectory, state: Mapping[str, Array]
) -> tuple[list[Array], str]:
    """Return the outputs that are tensors, and why they cannot be fed to the next step, if so."""
    names = [value.name for value in trajectory.model.graph.output]
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    if len(outputs) != len(names):
        return arrays, f"returned {len(outputs)} outputs, expected {len(names)}"
    if len(arrays) != len(outputs):
        return arrays, "returned what is no tensor"
    for name, value in zip(names, arrays, strict=True):
        like = state.get(trajectory.feedback.get(name, ""))
        if like is not None and (value.dtype, value.shape) != (like.dtype, like.shape):
            return arrays, f"{name} is {describe(value)}, expected {describe(like)}"
    return arrays, ""


def _stack(rows: list[Array]) -> Value:
    alike = all((row.dtype, row.shape) == (rows[0].dtype, rows[0].shape) for row in rows)
    return np.stack(rows) if alike else list(rows)
