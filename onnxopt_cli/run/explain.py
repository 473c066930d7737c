"""Which known mistake, or which two, reproduces what a failing backend returned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import ml_dtypes
import numpy as np

from onnxopt_cli.compare import compare_outputs
from onnxopt_cli.core.case import Case
from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.record import Explanation
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.tolerance import Budget
from onnxopt_cli.core.values import Array
from onnxopt_cli.distance import Kind, kind_of
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.single_node import sole_call
from onnxopt_cli.readings.bound import FACTOR, Judgement, bound
from onnxopt_cli.readings.deviate import deviations
from onnxopt_cli.readings.evaluate import evaluate
from onnxopt_cli.readings.implementation import Implementation, both

#: What an implementation that is wrong around the formula may round differently, in spacings.
_SPACINGS = 4.0
_BEYOND = 1000.0


@dataclass(frozen=True, slots=True)
class _Failure:
    """A case that a backend failed, with what it returned: nothing if it raised an error."""

    case: str
    call: Call[Array]
    right: Sequence[Judgement]
    returned: Sequence[Array]


def explain(results: Sequence[Result], cases: Mapping[str, Case]) -> list[Explanation]:
    """Explain the failures of each backend in each operator with a formula.

    An explanation reproduces every failing case whose outputs are known, and refuses what the
    backend refused with an error, if any does both; where several do, the first that would also
    pass the cases that passed is named.

    Args:
        results: all results of a run.
        cases: the cases by id.
    """
    explanations = []
    for backend in dict.fromkeys(result.backend for result in results):
        mine = [result for result in results if result.backend == backend]
        failing = [result for result in mine if can_be_explained(result)]
        passed = [result.case for result in mine if result.outcome is Outcome.PASS]
        failures: dict[Operator, list[_Failure]] = {}
        for result in failing:
            call = _call(cases.get(result.case))
            if call is not None:
                failure = _Failure(result.case, call, bound(call), _arrays(result))
                failures.setdefault(call.operator, []).append(failure)
        for operator, group in failures.items():
            passing = [
                call
                for call in (_call(cases.get(name)) for name in passed)
                if call is not None and call.operator is operator
            ]
            found = _explain(backend, operator, group, passing)
            explanations += [] if found is None else [found]
    return explanations


def can_be_explained(result: Result) -> bool:
    """Tell whether it is known what the backend did in a failing case: return values, or refuse."""
    if result.outcome is Outcome.ERROR:
        return True
    return result.outcome is Outcome.FAIL and bool(_arrays(result))


def _arrays(result: Result) -> list[Array]:
    return [value for value in result.returned if isinstance(value, np.ndarray)]


def reproduces(explanation: Explanation, result: Result, case: Case) -> bool:
    """Tell whether what explains some failures reproduces another one, too."""
    call = _call(case)
    if call is None or call.operator.name != explanation.operator or not result.returned:
        return False
    failure = _Failure(result.case, call, bound(call), _arrays(result))
    candidates = (*deviations(call.operator), *_pairs(call.operator))
    return any(_reproduces(it, failure) for it in candidates if it.name in explanation.deviations)


def _call(case: Case | None) -> Call[Array] | None:
    if case is None:
        return None
    try:
        content = case.read()
        one_step = not content.rejects and content.trajectory is None
        return sole_call(content.model, content.inputs) if one_step else None
    except (InvalidCase, NodeError):
        return None


def _explain(
    backend: str, operator: Operator, failures: Sequence[_Failure], passing: Sequence[Call[Array]]
) -> Explanation | None:
    # Small cases first: most candidates fall at the first one.
    failures = sorted(failures, key=lambda it: sum(array.size for array in it.returned))
    names = tuple(failure.case for failure in failures)
    known = deviations(operator)
    if not all(failure.returned for failure in failures):
        # An error may have any reason, so only what refuses these cases and no others explains it.
        fitting = [it for it in _fitting(known, failures) if _passes(it, passing)]
        if fitting:
            return _named(backend, operator, fitting, names)
        failures = [failure for failure in failures if failure.returned]
        names = tuple(failure.case for failure in failures)
    if not failures:
        return None
    for candidates in (known, _pairs(operator)):
        fitting = _fitting(candidates, failures)
        fitting = [it for it in fitting if _passes(it, passing)] or fitting
        if fitting:
            return _named(backend, operator, fitting, names)
    text = (
        f"none of {len(known)} known mistakes, nor two of them, reproduces {_cases(len(failures))}"
    )
    return Explanation(backend, operator.name, text, (), names)


def _fitting(
    candidates: Iterable[Implementation], failures: Sequence[_Failure]
) -> list[Implementation]:
    return [it for it in candidates if all(_reproduces(it, each) for each in failures)]


def _named(
    backend: str, operator: Operator, fitting: Sequence[Implementation], names: tuple[str, ...]
) -> Explanation:
    text = _sentence(operator, fitting, len(names))
    return Explanation(backend, operator.name, text, (fitting[0].name,), names)


def _sentence(operator: Operator, fitting: Sequence[Implementation], count: int) -> str:
    first = fitting[0]
    seen = f", as in {', '.join(first.seen_in)}" if first.seen_in else ""
    others = f" (or {len(fitting) - 1} more that they cannot tell apart)" if fitting[1:] else ""
    return (
        f"consistent with {first.name!r}{seen}: {_cases(count)}{others}; "
        f"see onnxopt show {operator.name}"
    )


def _cases(count: int) -> str:
    return f"{count} of {count} failing cases" if count > 1 else "the failing case"


def _pairs(operator: Operator) -> Iterator[Implementation]:
    """Yield pairs of the mistakes that a person would name; pairs of all would be too many."""
    named = {deviation.name for deviation in operator.deviations}
    own = [it for it in deviations(operator) if it.name in named]
    for first, second in combinations(own, 2):
        pair = both(first, second)
        if pair is not None:
            yield pair


def _reproduces(implementation: Implementation, failure: _Failure) -> bool:
    outputs = implementation.run(failure.call)
    same = len(outputs) == len(failure.returned) and all(
        mine.dtype == theirs.dtype and mine.shape == theirs.shape
        for mine, theirs in zip(outputs, failure.returned, strict=True)
    )
    if not same:
        return False
    limits = [_rounding(output) for output in outputs]
    for position, right in enumerate(failure.right[: len(outputs)]):
        if right.limit.size == limits[position].size:
            limits[position] = limits[position] + right.limit.reshape(limits[position].shape)
    if _agree(outputs, failure.returned, limits):
        return True
    # The mistake may round worse than the formula, but not beyond all measure; asking how much
    # costs more than all of the above.
    if not _agree(outputs, failure.returned, [_BEYOND * limit for limit in limits]):
        return False
    own = _own_limits(implementation, failure.call)
    return bool(own) and _agree(outputs, failure.returned, own)


def _own_limits(implementation: Implementation, call: Call[Array]) -> list[Array]:
    """Return how far an implementation with this mistake may be off; empty if no bound is known."""
    if implementation.compute is not evaluate:
        return []
    try:
        return [judgement.limit for judgement in bound(implementation.altered(call))]
    except Exception:  # noqa: BLE001 - a wrong formula may fail in every way
        return []


def _rounding(output: Array) -> Array:
    """Return a few spacings of each element; nothing where it is no finite float."""
    if kind_of(output.dtype) is not Kind.FLOAT:
        return np.zeros(output.shape)
    size = np.abs(np.asarray(output, np.float64))
    epsilon = float(ml_dtypes.finfo(output.dtype).eps)  # type: ignore[no-untyped-call]
    return np.where(np.isfinite(size), _SPACINGS * epsilon * size, 0.0)


def _passes(implementation: Implementation, passing: Sequence[Call[Array]]) -> bool:
    """Tell whether an implementation would pass the cases that the backend passed."""
    for call in passing:
        right = bound(call)
        outputs = implementation.run(call)
        if not _judged([it.expected for it in right], outputs, (it.budget for it in right)):
            return False
    return True


def _agree(expected: Sequence[Array], actual: Sequence[Array], limits: Iterable[Array]) -> bool:
    return _judged(expected, actual, (Budget(limit, FACTOR) for limit in limits))


def _judged(expected: Sequence[Array], actual: Sequence[Array], given: Iterable[Budget]) -> bool:
    names = [str(index) for index in range(len(expected))]
    budgets = dict(zip(names, given, strict=True))
    values = dict(zip(names, expected, strict=True))
    diffs = compare_outputs(values, actual, budgets.__getitem__, worst=0)
    return all(diff.agrees for diff in diffs)
