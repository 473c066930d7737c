"""Measure how many injected errors ONNX's tolerance and the conditioned tolerance catch.

The analysis needs neither a formula nor a backend. The reference oracle computes the right outputs
of a case. This module injects typical errors of wrong backends into these outputs, and judges the
changed outputs as in ``run``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import (
    Execution,
    Judging,
    LoweringMode,
    ToleranceRule,
)
from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Drawn,
    ErrorBound,
)
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import InvalidCase
from onnxopt_cli.operators.nodes import operator_names
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.oracles import Oracles, resolved
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle
from onnxopt_cli.run.executors import open_executors
from onnxopt_cli.workers.interruption import Interruption

_FLOATS = (np.float16, np.float32, np.float64)
# The error "below 1e-6 flushed" sets elements of smaller magnitude to zero. All subnormal numbers
# are far below this limit.
_FLUSH_LIMIT = 1e-6
# The limit below which integers and their neighbours are exact in every type.
_MAX_INTEGER = 1000


@dataclass(frozen=True, slots=True)
class InjectedErrors:
    """An error that is injected into the outputs of a case, and the tolerances that catch it.

    Attributes:
        case: the case's id.
        operator: the operator, or "(several)".
        error: the name of the error in :data:`ERRORS`.
        moves: whether the outputs must be exact, for example because the operator only moves data.
        onnx: whether ONNX's tolerance catches the error.
        conditioned: whether the conditioned tolerance catches it.
    """

    case: str
    operator: str
    error: str
    moves: bool
    onnx: bool
    conditioned: bool

    @property
    def exchange_missed(self) -> bool:
        """Whether the tolerance accepts exchanged neighbours although the outputs must be exact."""
        return self.moves and self.error == _EXCHANGED and not self.conditioned


def _largest(array: Array) -> Any:
    """Return the largest finite magnitude, or 0 if no element is finite."""
    return np.abs(array[np.isfinite(array)]).max(initial=0)


def _shifted(share: float, array: Array) -> Array:
    """Add a fraction of the largest magnitude to each element."""
    return array + array.dtype.type(share * float(_largest(array)))


def _swapped(array: Array) -> Array:
    """Exchange the first two neighbours that differ."""
    flat = array.reshape(-1).copy()
    both_nan = np.isnan(flat[1:]) & np.isnan(flat[:-1])
    differ = (flat[1:] != flat[:-1]) & ~both_nan
    for index in np.flatnonzero(differ)[:1]:
        flat[[index, index + 1]] = flat[[index + 1, index]]
    return flat.reshape(array.shape)


def _exchanged(array: Array) -> Array:
    """Exchange the last two axes, then reshape the array to its original shape."""
    if array.ndim < 2:  # noqa: PLR2004 - two axes
        return array
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)).reshape(array.shape)


def _clamped(array: Array) -> Array:
    limit = _largest(array) * array.dtype.type(0.99)
    return np.where(np.isfinite(array), np.clip(array, -limit, limit), array)


def _without_tail(array: Array) -> Array:
    return np.where(np.abs(array) < float(_largest(array)) * 2.0**-10, array.dtype.type(0), array)


def _rounded(array: Array) -> Array:
    """Add 1 to the first element if all elements are integers."""
    flat = array.reshape(-1).copy()
    integers = np.flatnonzero((flat == np.floor(flat)) & (np.abs(flat) < _MAX_INTEGER))
    if integers.size == flat.size and flat.size:
        flat[integers[0]] += flat.dtype.type(1)
    return flat.reshape(array.shape)


#: The errors by name. An error is not injected into a case if it would not change the outputs.
ERRORS: Mapping[str, Callable[[Array], Array]] = {
    "times 1 + 1e-5": lambda array: array * array.dtype.type(1 + 1e-5),
    **{
        f"off by 2^-{exponent} of the scale": partial(_shifted, 2.0**-exponent)
        for exponent in (8, 12, 16, 20)
    },
    "neighbours exchanged": _swapped,
    "axes exchanged": _exchanged,
    "clamped to 0.99 of the largest": _clamped,
    "below 2^-10 of the largest dropped": _without_tail,
    "below 1e-6 flushed": lambda array: np.where(
        np.abs(array) < _FLUSH_LIMIT, array.dtype.type(0), array
    ),
    "a whole number rounded the other way": _rounded,
}
_EXCHANGED = "neighbours exchanged"


def inject_errors(
    cases: Sequence[Case], jobs: int, tick: Callable[[int, int], None]
) -> list[InjectedErrors]:
    """Inject every error into the outputs of every case whose outputs are floats.

    Args:
        cases: the cases. A case is skipped if it is invalid, if its outputs are random, or if an
            output is not a tensor.
        jobs: number of processes.
        tick: called with the numbers of finished and of all cases.
    """
    judging = Judging(tolerance=ToleranceRule.CONDITIONED)
    reference_oracle = ReferenceOracle(judging)
    oracles = Oracles(judging, reference_oracle)
    execution = Execution(lowering=LoweringMode.NEVER, jobs=jobs)
    results: list[InjectedErrors] = []
    pending: deque[Callable[[], Iterator[InjectedErrors]]] = deque()
    with open_executors((), execution, Interruption(), reference_oracle):
        for count, case in enumerate(cases, start=1):
            pending.extend(_submitted(case, oracles))
            if len(pending) > 2 * jobs:
                results += pending.popleft()()
            tick(count, len(cases))
        for finish in pending:
            results += finish()
    return results


def _submitted(case: Case, oracles: Oracles) -> Iterator[Callable[[], Iterator[InjectedErrors]]]:
    """Submit a case to the reference oracle, and yield a function that injects the errors.

    The function waits for the oracle. Nothing is yielded for a case that is skipped.
    """
    try:
        problem = case.load()
        if problem.must_reject or problem.stored is None:
            return
        without_reference = resolved(replace(oracles, reference=None).expected(problem))
    except InvalidCase:
        return
    names = operator_names(problem.model)
    operator = names[0] if len(problem.model.graph.node) == 1 else "(several)"
    expected = oracles.expected(problem)
    stored = without_reference.outputs
    yield lambda: _injected(case.id, operator, stored, resolved(expected))


def _injected(
    case: str, operator: str, stored: Mapping[str, Value], expected: Expected
) -> Iterator[InjectedErrors]:
    """Inject each error into the outputs of a case, and judge the changed outputs.

    Args:
        case: the case's id.
        operator: the case's operator.
        stored: the stored outputs.
        expected: the expected result.
    """
    right: dict[str, Array] = {
        name: value for name, value in expected.outputs.items() if isinstance(value, np.ndarray)
    }
    tolerances = expected.tolerances
    accepted = [expected, *expected.alternatives]
    random = any(isinstance(tolerance, Drawn) for tolerance in tolerances.values())
    if len(right) < len(expected.outputs) or random or expected.unusable:
        return
    moves = all(_is_exact(value, tolerances[name]) for name, value in right.items())
    for error, change in ERRORS.items():
        with np.errstate(all="ignore"):
            wrong = {name: _changed(value, change) for name, value in right.items()}
        if all(wrong[name] is value for name, value in right.items()):
            continue
        outputs = list(wrong.values())
        yield InjectedErrors(
            case,
            operator,
            error,
            moves,
            onnx=largest_share(stored, outputs, lambda _: ONNX_DEFAULT) > 1,
            conditioned=all(
                largest_share(result.outputs, outputs, result.tolerances.__getitem__) > 1
                for result in accepted
            ),
        )


def _is_exact(value: Array, tolerance: object) -> bool:
    """Return whether an output must be exact, except that subnormal numbers may become zero."""
    if value.dtype not in _FLOATS or not isinstance(tolerance, ErrorBound):
        return value.dtype not in _FLOATS
    limit = tolerance.at(np.arange(value.size)).limit
    return float(limit.max(initial=0)) <= float(np.finfo(value.dtype).smallest_normal)


def _changed(array: Array, change: Callable[[Array], Array]) -> Array:
    """Return a changed array of the same type, or the array itself if no element changes."""
    if array.dtype not in _FLOATS:
        return array
    changed = change(array).astype(array.dtype)
    same = (changed == array) | (np.isnan(changed) & np.isnan(array))
    return array if same.all() else changed
