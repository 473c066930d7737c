"""A trajectory on a backend: its steps in order, and how its error grows over them.

What a step returns is what the next one is fed.
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
    """Run all steps; return what the recorded ones returned, stacked.

    Where a step returns nothing, or what cannot be fed to the next one, the rest does not run.

    Args:
        executor: the backend; it keeps the prepared model from step to step.
        problem: a trajectory, whose model is that of one step.
        started: called when the first one starts.
    """
    trajectory, call = problem.trajectory, problem.call
    assert trajectory is not None and call is not None  # noqa: S101, PT018 - one that is stepwise
    recorded = set(trajectory.recorded)
    names = [value.name for value in trajectory.model.graph.output]
    rows: list[list[Array]] = []
    state: Mapping[str, Array] = trajectory.state
    total = Response([])
    for step in range(1, trajectory.count + 1):
        fed = trajectory.inputs(step, state, lambda array: array, derived_array)
        request = Request(trajectory.model, fed, keep=True, call=call.with_inputs([*fed.values()]))
        response = executor.submit(replace(request, started=started) if step == 1 else request)()
        if isinstance(response, str):
            return response
        total = _joined(total, response)
        if response.outputs is None:
            return replace(total, message=f"step {step}: {response.message}")
        outputs, wrong = _usable(response.outputs, names, trajectory, state)
        if wrong:
            # One row, so that it says what it is beside what was expected.
            first = [value[np.newaxis, ...] for value in outputs]
            return replace(total, outputs=[*first], message=f"step {step}: {wrong}")
        named = dict(zip(names, outputs, strict=True))
        # A backend may return the same buffer at its next call.
        state = {taken: named[name].copy() for name, taken in trajectory.feedback.items()}
        if step in recorded:
            rows.append([value.copy() for value in outputs])
    return replace(total, outputs=[_stack(kept) for kept in zip(*rows, strict=True)])


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
    """Return the outputs that are tensors, and why they cannot be fed to the next step, if so."""
    arrays = [value for value in outputs if isinstance(value, np.ndarray)]
    if len(outputs) != len(names):
        return arrays, f"returned {len(outputs)} outputs, expected {len(names)}"
    if len(arrays) != len(outputs):
        return arrays, "returned what is not a tensor"
    for name, value in zip(names, arrays, strict=True):
        like = state.get(trajectory.feedback.get(name, ""))
        if like is not None and (value.dtype, value.shape) != (like.dtype, like.shape):
            return arrays, f"{name} is {describe(value)}, expected {describe(like)}"
    return arrays, ""


def _stack(rows: Sequence[Array]) -> Value:
    alike = all((row.dtype, row.shape) == (rows[0].dtype, rows[0].shape) for row in rows)
    return np.stack(rows) if alike else list(rows)


def course(
    recorded: Sequence[int], key: Expected, actual: Sequence[Value], diffs: Sequence[Diff]
) -> tuple[Mapping[int, float], str]:
    """Follow outputs that were stacked step by step.

    Args:
        recorded: the steps in the order of the rows.
        key: what was expected.
        actual: what the backend returned, in the graph's order.
        diffs: the outputs, judged.

    Returns:
        By recorded step, the largest share of its limit that an element uses, infinite where it is
        off by anything and may not be, nothing if an output has another structure; and what to say
        of the steps, such as which was the first over the limit: ``step 37, X_new[4]``.
    """
    most, worst = _largest_shares(len(recorded), key, actual)
    words = []
    beyond = np.flatnonzero(most > 1)
    if beyond.size:
        words.append(
            f"first exceeded the tolerance in step {recorded[beyond[0]]}, {worst[beyond[0]]}"
        )
    if key.formula is not None and any(diff.inconclusive for diff in diffs):
        limits = [it.branch.inconclusive for it in key.formula.derived_outputs.values()]
        rows = [inconclusive.reshape(len(recorded), -1).any(axis=1) for inconclusive in limits]
        first = recorded[int(np.argmax(np.any(rows, axis=0)))]
        words.append(f"the case is inconclusive in part from step {first}")
    return dict(zip(recorded, most.tolist(), strict=False)), "; ".join(words)


def _largest_shares(steps: int, key: Expected, actual: Sequence[Value]) -> tuple[Array, list[str]]:
    """Return by step the largest share of a limit, and where it is; nothing of other structures."""
    most = np.zeros(steps)
    worst: list[str] = [""] * steps
    for (name, mine), theirs in zip(key.outputs.items(), actual, strict=False):
        if not isinstance(mine, np.ndarray) or not isinstance(theirs, np.ndarray):
            return np.zeros(0), []
        if describe(mine) != describe(theirs):
            return np.zeros(0), []
        shares = element_shares(mine, theirs, key.tolerances[name]).reshape(steps, -1)
        if not shares.size:
            continue
        places = np.argmax(shares, axis=1)
        rows = shares[np.arange(steps), places]
        for row in np.flatnonzero(rows > most):
            index = [*map(int, np.unravel_index(places[row], mine.shape[1:]))]
            worst[row] = f"{name}{index or ''}"
        most = np.maximum(most, rows)
    return most, worst
