"""Whether a wrong implementation does in a case what a backend did there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import ml_dtypes
import numpy as np

from onnxopt_cli.core.case import Case
from onnxopt_cli.core.compare import compare_outputs, largest_share
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.tolerance import Branch, Budget
from onnxopt_cli.core.values import Array, NumberKind, kind_of
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.bound.bound import FACTOR, DerivedOutput, bound
from onnxopt_cli.readings.evaluate import evaluate
from onnxopt_cli.readings.implementation import Implementation, both
from onnxopt_cli.readings.mistakes.deviate import all_deviations
from onnxopt_cli.readings.single_node import sole_call
from onnxopt_cli.run.answer_key import AnswerKey, JudgeOptions, answer_key
from onnxopt_cli.run.judge import KEPT_BYTES

#: What an implementation that is wrong around the formula may round differently, in spacings.
_SPACINGS = 4.0
_BEYOND = 1000.0


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A case of one node, and what a backend did there.

    Attributes:
        case: the case's id.
        call: the node and its inputs.
        key: what must come back, as the run judged it.
        right: what the formula says of each output; empty if the backend returned what is right.
        returned: the wrong outputs that the backend returned; empty if it returned none.
    """

    case: str
    call: Call[Array]
    key: AnswerKey
    right: Sequence[DerivedOutput] = ()
    returned: Sequence[Array] = ()

    @property
    def size(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for group in self.call.groups for tensor in group)


def returned_arrays(result: Result) -> list[Array]:
    """Return the tensors that a backend returned in a failing case."""
    return [value for value in result.returned if isinstance(value, np.ndarray)]


def observe(result: Result, case: Case | None, judging: JudgeOptions) -> Observation | str:
    """Return what a result says of the backend's formula.

    Args:
        result: a pass, an error, or a failure.
        case: the case, if it could be found.
        judging: how the run judged outputs.

    Returns:
        What was observed; or, in a word or two, why there is none.
    """
    if case is None:
        return "not found"
    try:
        content = case.read()
        if content.trajectory is not None:
            return "trajectory"
        if content.rejects:
            return "wrongly accepted" if result.outcome is Outcome.FAIL else str(result.outcome)
        call = sole_call(content.model, content.inputs)
        if call is None:
            return "without formula"
        if result.outcome is Outcome.ERROR:
            return Observation(result.case, call, AnswerKey({}, {}))
        seen = Observation(result.case, call, answer_key(content, case.location, judging))
    except (InvalidCase, NodeError, MemoryError):
        return "not readable"
    return _failure(seen, result) if result.outcome is Outcome.FAIL else seen


def _failure(seen: Observation, result: Result) -> Observation | str:
    """Return an observation with what the backend returned; why not if nothing is wrong."""
    returned = returned_arrays(result)
    if not returned:
        outputs = seen.key.outputs.values()
        size = sum(it.nbytes for it in outputs if isinstance(it, np.ndarray))
        return "large" if size > KEPT_BYTES else "not kept"
    if result.diffs and all(diff.agrees for diff in result.diffs):
        # What is wrong is not the values: the backend has written into its inputs.
        return "with right values"
    right = bound(seen.call)
    if _judged([it.expected for it in right], returned, (it.budget for it in right)):
        return "within rounding"
    return replace(seen, right=right, returned=returned)


def conforms(outputs: Sequence[Array], seen: Observation, judging: JudgeOptions) -> bool:
    """Tell whether outputs are right in a case, as the run judged it."""
    key, tolerance_of = seen.key, seen.key.tolerances.__getitem__
    if not judging.signed_zeros:
        return largest_share(key.outputs, outputs, tolerance_of) <= 1
    diffs = compare_outputs(key.outputs, outputs, tolerance_of, signed_zeros=True, worst=0)
    return all(diff.agrees for diff in diffs)


def reproduces(implementation: Implementation, seen: Observation, judging: JudgeOptions) -> bool:
    """Tell whether an implementation returns what a backend returned, and fails the case by it."""
    outputs = implementation.run(seen.call)
    return _returns(implementation, outputs, seen) and not conforms(outputs, seen, judging)


def refuses(implementation: Implementation, seen: Observation) -> bool:
    """Tell whether an implementation gives no answer in a case."""
    return not implementation.run(seen.call)


@cache
def named(operator: Operator, name: str) -> Implementation | None:
    """Return the mistake, or the pair of them, that has a name."""
    for candidates in (all_deviations(operator), pairs(operator)):
        for candidate in candidates:
            if candidate.name == name:
                return candidate
    return None


def pairs(operator: Operator) -> Iterator[Implementation]:
    """Yield pairs of the mistakes that a person would name; pairs of all would be too many."""
    names = {deviation.name for deviation in operator.deviations}
    own = [it for it in all_deviations(operator) if it.name in names]
    for first, second in combinations(own, 2):
        pair = both(first, second)
        if pair is not None:
            yield pair


def _returns(implementation: Implementation, outputs: Sequence[Array], seen: Observation) -> bool:
    same = len(outputs) == len(seen.returned) and all(
        mine.dtype == theirs.dtype and mine.shape == theirs.shape
        for mine, theirs in zip(outputs, seen.returned, strict=True)
    )
    if not same:
        return False
    limits = [_rounding(output) for output in outputs]
    for position, right in enumerate(seen.right[: len(outputs)]):
        if right.limit.size == limits[position].size:
            limits[position] = limits[position] + right.limit.reshape(limits[position].shape)
    if _agree(outputs, seen.returned, limits):
        return True
    # The mistake may round worse than the formula, but not beyond all measure; asking how much
    # costs more than all of the above.
    if not _agree(outputs, seen.returned, [_BEYOND * limit for limit in limits]):
        return False
    own = _own_limits(implementation, seen.call)
    return bool(own) and _agree(outputs, seen.returned, own)


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
    if kind_of(output.dtype) is not NumberKind.FLOAT:
        return np.zeros(output.shape)
    size = np.abs(np.asarray(output, np.float64))
    epsilon = float(ml_dtypes.finfo(output.dtype).eps)  # type: ignore[no-untyped-call]
    return np.where(np.isfinite(size), _SPACINGS * epsilon * size, 0.0)


def _agree(expected: Sequence[Array], actual: Sequence[Array], limits: Iterable[Array]) -> bool:
    right = map(Branch, expected, limits)
    return _judged(expected, actual, (Budget(it.at, FACTOR) for it in right))


def _judged(expected: Sequence[Array], actual: Sequence[Array], given: Iterable[Budget]) -> bool:
    names = [str(index) for index in range(len(expected))]
    budgets = dict(zip(names, given, strict=True))
    values = dict(zip(names, expected, strict=True))
    return largest_share(values, actual, budgets.__getitem__) <= 1
