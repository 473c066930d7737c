"""How much each tolerance catches: right outputs with an error put in, judged by both.

This needs no formula and no backend: what is right of a case's outputs is asked, changed in ways
that wrong backends change it, and judged as ``run`` would judge it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from onnxopt_cli.oracle.expected import Expected, expected_result
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle
from onnxopt_cli.run.executors import open_executors
from onnxopt_cli.workers.interruption import Interruption

_FLOATS = (np.float16, np.float32, np.float64)
# Flushed below this, which is far above what is subnormal.
_SMALL_SIZE = 1e-6
# Whole numbers below this have a neighbour in every type.
_WHOLE = 1000


@dataclass(frozen=True, slots=True)
class InjectedErrors:
    """A case with an error put into its outputs.

    Attributes:
        case: its id.
        operator: its operators, in a row.
        error: what was put in; one of :data:`ERRORS`.
        moves: whether the outputs have to be exact, as where data are moved.
        onnx: whether ONNX's tolerance catches it.
        conditioned: whether ours does.
    """

    case: str
    operator: str
    error: str
    moves: bool
    onnx: bool
    conditioned: bool

    @property
    def exchange_missed(self) -> bool:
        """True if ours lets neighbours be exchanged in an output that has to be exact."""
        return self.moves and self.error == EXCHANGED and not self.conditioned


def _largest(array: Array) -> Any:
    """Return the largest finite magnitude, 0 if there is none."""
    return np.abs(array[np.isfinite(array)]).max(initial=0)


def _off(share: float, array: Array) -> Array:
    """Move each element by a share of the largest."""
    return array + array.dtype.type(share * float(_largest(array)))


def _swapped(array: Array) -> Array:
    flat = array.reshape(-1).copy()
    differ = (flat[1:] != flat[:-1]) & ~((flat[1:] != flat[1:]) & (flat[:-1] != flat[:-1]))
    for at in np.flatnonzero(differ)[:1]:
        flat[[at, at + 1]] = flat[[at + 1, at]]
    return flat.reshape(array.shape)


def _exchanged(array: Array) -> Array:
    """Exchange the last two axes; where they are of unlike length, the elements in their order."""
    if array.ndim < 2:  # noqa: PLR2004 - two axes
        return array
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)).reshape(array.shape)


def _clamped(array: Array) -> Array:
    most = _largest(array) * array.dtype.type(0.99)
    return np.where(np.isfinite(array), np.clip(array, -most, most), array)


def _without_tail(array: Array) -> Array:
    return np.where(np.abs(array) < float(_largest(array)) * 2.0**-10, array.dtype.type(0), array)


def _rounded(array: Array) -> Array:
    """Let one whole number be its neighbour; leave other numbers."""
    flat = array.reshape(-1).copy()
    whole = np.flatnonzero((flat == np.floor(flat)) & (np.abs(flat) < _WHOLE))
    if whole.size == flat.size and flat.size:
        flat[whole[0]] += flat.dtype.type(1)
    return flat.reshape(array.shape)


#: What is put in, by name; a change that changes nothing is left out.
ERRORS: Mapping[str, Callable[[Array], Array]] = {
    "times 1 + 1e-5": lambda it: it * it.dtype.type(1 + 1e-5),
    **{f"off by 2^-{it} of the scale": partial(_off, 2.0**-it) for it in (8, 12, 16, 20)},
    "neighbours exchanged": _swapped,
    "axes exchanged": _exchanged,
    "clamped to 0.99 of the largest": _clamped,
    "below 2^-10 of the largest dropped": _without_tail,
    "below 1e-6 flushed": lambda it: np.where(np.abs(it) < _SMALL_SIZE, it.dtype.type(0), it),
    "a whole number rounded the other way": _rounded,
}
EXCHANGED = "neighbours exchanged"


def inject_errors(
    cases: Sequence[Case], jobs: int, tick: Callable[[int, int], None]
) -> list[InjectedErrors]:
    """Put every error into the outputs of every case that has outputs of floats.

    Args:
        cases: the cases; what cannot be read, is random or has other outputs than tensors is left
            out.
        jobs: number of processes.
        tick: told how many of all are done.
    """
    judging = Judging(tolerance=ToleranceRule.CONDITIONED)
    reference_oracle = ReferenceOracle(judging)
    execution = Execution(lowering=LoweringMode.NEVER, jobs=jobs)
    found: list[InjectedErrors] = []
    waiting: deque[Callable[[], Iterator[InjectedErrors]]] = deque()
    with open_executors((), execution, Interruption(), reference_oracle):
        for at, case in enumerate(cases, start=1):
            waiting.extend(_asked(case, judging, reference_oracle))
            if len(waiting) > 2 * jobs:
                found += waiting.popleft()()
            tick(at, len(cases))
        for injected in waiting:
            found += injected()
    return found


def _asked(
    case: Case, judging: Judging, reference_oracle: ReferenceOracle
) -> Iterator[Callable[[], Iterator[InjectedErrors]]]:
    try:
        problem = case.load()
        if problem.must_reject or problem.stored is None:
            return
        key = expected_result(problem, case.location, judging)
    except InvalidCase:
        return
    names = operator_names(problem.model)
    operator = names[0] if len(problem.model.graph.node) == 1 else "(several)"
    complete = reference_oracle.ask(problem, key) or (lambda: key)
    yield lambda: _of_case(case.id, operator, key, complete())


def _of_case(
    case: str, operator: str, key: Expected, complete: Expected
) -> Iterator[InjectedErrors]:
    right: dict[str, Array] = {
        name: value for name, value in complete.outputs.items() if isinstance(value, np.ndarray)
    }
    tolerances = complete.tolerances
    ways = [complete, *(it.expected for it in complete.alternatives)]
    drawn = any(isinstance(it, Drawn) for it in tolerances.values())
    if len(right) < len(complete.outputs) or drawn or complete.contradictions:
        return
    stored: dict[str, Value] = dict(key.outputs)
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
                largest_share(it.outputs, outputs, it.tolerances.__getitem__) > 1 for it in ways
            ),
        )


def _is_exact(value: Array, tolerance: object) -> bool:
    """Tell whether an output has to be exact, but that what is subnormal may be flushed."""
    if value.dtype not in _FLOATS or not isinstance(tolerance, ErrorBound):
        return value.dtype not in _FLOATS
    limit = tolerance.at(np.arange(value.size)).limit
    return float(limit.max(initial=0)) <= float(np.finfo(value.dtype).smallest_normal)


def _changed(array: Array, change: Callable[[Array], Array]) -> Array:
    """Return a changed array of the same type; the array itself where nothing has changed."""
    if array.dtype not in _FLOATS:
        return array
    changed = change(array).astype(array.dtype)
    same = (changed == array) | (np.isnan(changed) & np.isnan(array))
    return array if same.all() else changed
