"""Whether a wrong implementation does in a case what a backend did there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.compare import compare_outputs, largest_share
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.tolerance import Branch, ErrorBound
from onnxopt_cli.core.values import (
    Array,
    NumberKind,
    kind_of,
    total_bytes,
)
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.interpret.bound.error_bound import FACTOR, bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.operators.call import Call
from onnxopt_cli.oracle.expected import Expected, expected_result
from onnxopt_cli.run.judge import KEPT_BYTES

#: What an implementation that is wrong around the formula may round differently, in spacings.
_SPACINGS = 4.0
_BEYOND = 1000.0
# An element hardly happens to lie so close to what is right, as a share of how far it may be off.
_UNLIKELY = 0.01


@dataclass(frozen=True, eq=False)
class Observation:
    """A case of one node, and what a backend did there.

    Attributes:
        case: the case's id.
        call: the node and its inputs.
        key: what must come back, as the run judged it; empty if nothing did.
        returned: the wrong outputs that the backend returned; empty if it returned none.
    """

    case: str
    call: Call[Array]
    key: Expected
    returned: Sequence[Array] = ()

    @cached_property
    def right(self) -> list[Branch]:
        """What the formula says of each output, with the usual limits, which cost much."""
        formula = self.key.formula
        if formula is None or formula.factor != FACTOR:
            return [it.branch for it in bound(self.call)]
        return [it.branch for it in formula.derived_outputs.values()]


def returned_arrays(result: Result) -> list[Array]:
    """Return the tensors that a backend returned in a failing case."""
    return [value for value in result.returned if isinstance(value, np.ndarray)]


def observe(result: Result, case: Case | None, judging: Judging) -> Observation | str:
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
        problem = case.load()
        if problem.trajectory is not None:
            return "trajectory"
        if problem.must_reject:
            return "wrongly accepted" if result.outcome is Outcome.FAIL else str(result.outcome)
        call = problem.call
        if call is None:
            return "without formula"
        if result.outcome is Outcome.ERROR:
            return Observation(result.case, call, Expected({}, {}))
        key = expected_result(problem, case.location, judging)
        seen = Observation(result.case, call, key.of_node)
    except (InvalidCase, NodeError, MemoryError):
        return "not readable"
    # What came back is in the graph's order.
    order = [[*key.outputs].index(name) for name in seen.key.outputs]
    return _failure(seen, result, judging, order) if result.outcome is Outcome.FAIL else seen


def _failure(
    seen: Observation, result: Result, judging: Judging, order: Sequence[int]
) -> Observation | str:
    """Return an observation with what the backend returned; why not if nothing is wrong."""
    returned = returned_arrays(result)
    if not returned:
        large = total_bytes(seen.key.outputs.values()) > KEPT_BYTES
        return "large" if large else "not kept"
    if result.diffs and not result.wrong:
        # What is wrong is not the values: the backend has written into its inputs.
        return "with right values"
    if len(returned) == len(order):
        returned = [returned[place] for place in order]
    seen = replace(seen, returned=returned)
    # What was judged by the formula's limits is beyond them.
    derived = judging.error_bound == FACTOR and all(
        isinstance(it, ErrorBound) for it in seen.key.tolerances.values()
    )
    if (not derived or judging.signed_zeros) and _judged(seen.right, returned):
        return "within rounding"
    return seen


def conforms(outputs: Sequence[Array], seen: Observation, judging: Judging) -> bool:
    """Tell whether outputs are right in a case, as the run judged it."""
    key, tolerance_of = seen.key, seen.key.tolerances.__getitem__
    if not judging.signed_zeros:
        return largest_share(key.outputs, outputs, tolerance_of) <= 1
    diffs = compare_outputs(key.outputs, outputs, tolerance_of, signed_zeros=True, worst=0)
    return all(diff.agrees for diff in diffs)


def agrees_with(implementation: Implementation, seen: Observation, judging: Judging) -> bool:
    """Tell whether a backend with this mistake may pass a case that a backend has passed."""
    outputs = implementation.run(seen.call)
    if conforms(outputs, seen, judging):
        return True
    rounds = implementation.rounds or implementation.precision is not None
    if not rounds or len(outputs) != len(seen.key.outputs):
        return False
    # Another order of operations may have rounded to what is right.
    own = _own_limits(implementation, seen.call, outputs, implementation.precision)
    right = [it for it in seen.key.outputs.values() if isinstance(it, np.ndarray)]
    return _judged(own, right) and _may_be_right(outputs, own, seen.right)


def reproduces(implementation: Implementation, seen: Observation, judging: Judging) -> bool:
    """Tell whether an implementation returns what a backend returned, and fails the case by it."""
    outputs = implementation.run(seen.call)
    if not _returns(implementation, outputs, seen):
        return False
    mine, theirs = ([it.tobytes() for it in each] for each in (outputs, seen.returned))
    return mine == theirs or not conforms(outputs, seen, judging)


def returns(implementation: Implementation, call: Call[Array], returned: Sequence[Array]) -> bool:
    """Tell whether an implementation returns for a node what a backend returned."""
    seen = Observation("", call, Expected({}, {}), returned)
    return _returns(implementation, implementation.run(call), seen)


def refuses(implementation: Implementation, seen: Observation) -> bool:
    """Tell whether an implementation gives no answer in a case."""
    return not implementation.run(seen.call)


def _returns(implementation: Implementation, outputs: Sequence[Array], seen: Observation) -> bool:
    mine, theirs = ([(it.dtype, it.shape) for it in each] for each in (outputs, seen.returned))
    if mine != theirs:
        return False
    coarse = _coarse(implementation, outputs, seen.call)
    fits = not coarse or all(_fits(output, coarse) for output in seen.returned)
    limits = [_rounding(output) for output in outputs]
    # Where only types are wrong, other outputs may have all digits of theirs.
    loosely = fits or implementation.precision is None
    if loosely and _judged([*map(Branch, outputs, limits)], seen.returned):
        return True
    if not fits:
        return False
    for position, right in enumerate(seen.right[: len(outputs)]):
        if right.limit.size == limits[position].size:
            limits[position] = limits[position] + right.limit.reshape(limits[position].shape)
    # The mistake may round worse than the formula, but not by more than 1000 times, unless it is
    # that it rounds. Asking how much costs more than all else here.
    loose = coarse or implementation.rounds
    if not loose and not all(map(_near, outputs, seen.returned, limits)):
        return False
    if _judged([*map(Branch, outputs, limits)], seen.returned):
        return True
    return _judged(_own_limits(implementation, seen.call, outputs, coarse), seen.returned)


def _near(output: Array, returned: Array, limit: Array) -> bool:
    """Tell whether what is finite on both sides is not far apart."""
    with np.errstate(all="ignore"):
        apart = np.abs(output - returned) > _BEYOND * limit
    return not np.any(apart & np.isfinite(output) & np.isfinite(returned))


def _may_be_right(outputs: Sequence[Array], own: Sequence[Branch], right: Sequence[Branch]) -> bool:
    """Tell whether what a mistake gets wrong may come out right by chance, in another order.

    Of what is off by far more than the formula allows each element would have to.
    """
    chance = 1.0
    for output, mine, theirs in zip(outputs, own, right, strict=True):
        with np.errstate(all="ignore"):
            share = theirs.limit / (mine.otherwise or mine).limit
        share = share[theirs.wrong(output) & (share < _UNLIKELY)]
        chance *= float(np.prod(share))
    return chance > _UNLIKELY**2


def _fits(output: Array, dtype: np.dtype[Any]) -> bool:
    """Tell whether a type holds all elements of an output as they are."""
    with np.errstate(all="ignore"):
        return np.array_equal(output.astype(dtype).astype(output.dtype), output, equal_nan=True)


def _coarse(
    implementation: Implementation, outputs: Sequence[Array], call: Call[Array]
) -> np.dtype[Any] | None:
    """Return the type that a mistake computes in where that is coarser than the right one."""
    if implementation.precision is not None:
        return implementation.precision
    for output, (like, _) in zip(outputs, call.sources, strict=False):
        if output.dtype.kind == "f" and output.itemsize < like.itemsize:
            return output.dtype
    return None


def _own_limits(
    implementation: Implementation,
    call: Call[Array],
    outputs: Sequence[Array],
    coarse: np.dtype[Any] | None,
) -> list[Branch]:
    """Return how far what has this mistake may be off; empty if no bound is known.

    Args:
        implementation: the mistake.
        call: the node.
        outputs: what the mistake yields for it.
        coarse: what everything is rounded to, if that is coarser than the tensors' types.
    """
    if implementation.compute is not evaluate and coarse is None:
        return []
    wrong = implementation.altered(call)
    try:
        with np.errstate(all="ignore"):
            limits = bound(wrong if coarse is None else _in_type(wrong, coarse))
    except Exception:  # noqa: BLE001 - a wrong formula may fail in every way
        return []
    if [it.expected.shape for it in limits] != [it.shape for it in outputs]:
        return []
    # What it yields is right by any limit, also where the bound's formula yields something else.
    pairs = zip(outputs, limits, strict=True)
    return [Branch(it, np.zeros(it.shape), by.branch) for it, by in pairs]


def _in_type(call: Call[Array], dtype: np.dtype[Any]) -> Call[Array]:
    """Return a call whose floats are no finer than a type."""

    def cast(array: Array) -> Array:
        fine = array.dtype.kind == "f" and array.itemsize > dtype.itemsize
        return array.astype(dtype) if fine else array

    groups = tuple(tuple(map(cast, group)) for group in call.groups)
    return replace(call, scalars=tuple(map(cast, call.scalars)), groups=groups)


def _rounding(output: Array) -> Array:
    """Return a few spacings of each element; nothing where it is no finite float."""
    if kind_of(output.dtype) is not NumberKind.FLOAT:
        return np.zeros(output.shape)
    size = np.abs(np.asarray(output, np.float64))
    epsilon = float(ml_dtypes.finfo(output.dtype).eps)  # type: ignore[no-untyped-call]
    return np.where(np.isfinite(size), _SPACINGS * epsilon * size, 0.0)


def _judged(right: Sequence[Branch], actual: Sequence[Array]) -> bool:
    """Tell whether outputs are what is right, of its types and shapes, within its limits."""
    return len(right) == len(actual) and all(
        (it.expected.dtype, it.expected.shape) == (output.dtype, output.shape)
        and not it.wrong(output).any()
        for it, output in zip(right, actual, strict=True)
    )
