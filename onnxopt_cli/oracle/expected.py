"""The expected result of a case, from the formula of its operator or from its stored outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from sys import intern
from typing import Protocol, TypeAlias

import numpy as np

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.config.run_config import Judging, ToleranceRule
from onnxopt_cli.core.compare import compare_outputs, surely_agrees
from onnxopt_cli.core.result import Diff
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Branch,
    ErrorBound,
    Provenance,
    Tolerance,
    Ulps,
)
from onnxopt_cli.core.values import Array, Value, is_string
from onnxopt_cli.interpret.bound.chained_nodes import bound_trajectory, evaluate_trajectory
from onnxopt_cli.interpret.bound.error_bound import (
    DerivedOutput,
    bound,
    least_errors,
)
from onnxopt_cli.interpret.evaluate import (
    enough_for,
    evaluate,
    has_blocks,
    in_parts,
)
from onnxopt_cli.operators.call import Call
from onnxopt_cli.oracle.number_texts import number_texts

_WRONG_TEXTS = (
    "the stored strings are not texts of the numbers that the model casts to strings: the case is "
    "wrong, not the backend"
)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected result of a case.

    Attributes:
        outputs: the expected values by name, in the graph's order; empty if the model must be
            rejected.
        tolerances: the tolerance of each output, by name.
        invalid: why the case is invalid; empty for a valid case.
        contradictions: the stored outputs that contradict the oracle.
        derive: a function that derives the error bounds of all outputs, by name in the node's
            order. None if the result does not come from a formula.
        alternatives: other correct results. All outputs of a backend must match the same result.
        note: for an alternative, a remark that is added to the result of a backend that matches it.
        contested: whether this result follows from the second reading of an ambiguous
            specification.
        unknown: why onnxopt cannot compute the outputs of a case that stores none; empty if onnxopt
            can.
    """

    outputs: Mapping[str, Value]
    tolerances: Mapping[str, Tolerance]
    invalid: str = ""
    contradictions: tuple[Diff, ...] = ()
    derive: Callable[[], Mapping[str, DerivedOutput]] | None = None
    alternatives: tuple[Expected, ...] = ()
    note: str = ""
    contested: bool = False
    unknown: str = ""

    @property
    def unusable(self) -> str:
        """The reason why outputs cannot be compared with this result; empty if they can."""
        return self.invalid or self.unknown

    def in_order(self, names: Iterable[str]) -> Expected:
        """Return the expected result with its outputs in another order."""
        return replace(self, outputs={name: self.outputs[name] for name in names})


#: A function that waits for an expected result and returns it.
PendingExpected: TypeAlias = Callable[[], Expected]


class Oracle(Protocol):
    """A source of expected results."""

    def expected(self, problem: Problem, math: str = "") -> Expected | PendingExpected | None:
        """Return the expected result of a case, or a function that waits for this result.

        Args:
            problem: the problem of a case that a correct backend accepts.
            math: the ``math`` option of the backend.

        Returns:
            None if this oracle has no result for the problem.
        """


@dataclass(frozen=True)
class FormulaOracle:
    """An oracle that evaluates formulas. Stored outputs must agree with the formula.

    Attributes:
        judging: how outputs are judged.
        bound_once: whether the error bounds of large tensors are derived once, for all elements.
            Otherwise, each comparison derives them for the elements that differ.
    """

    judging: Judging
    bound_once: bool = False

    def expected(self, problem: Problem, _math: str = "") -> Expected | None:
        """Return the outputs of the formula; None for a model without a formula."""
        factor, stored = self.judging.error_bound, problem.stored or {}
        evaluated = _evaluated(problem, factor)
        if evaluated is None:
            return None
        values, derive = evaluated
        call = None if problem.trajectory else problem.call
        if call is not None and not self.bound_once and has_blocks(call):
            error_bounds = _error_bounds_in_blocks(call, values, factor)
        else:
            error_bounds = {name: _error_bound(name, derive, factor) for name in values}
        outputs: dict[str, Value] = {}
        tolerances: dict[str, Tolerance] = {}
        contradictions: list[Diff] = []
        for name in _output_names(problem):
            stated, derived = _stated(problem, name), error_bounds[name]
            tolerances[name] = _effective_tolerance(stated, derived, self.judging)
            # The error bound applies to the value of the formula, and a stored value may have been
            # rounded.
            is_exact = name not in stored or tolerances[name] is derived
            outputs[name] = values[name] if is_exact else stored[name]
            if name in stored:
                contradictions += _contradiction(name, values[name], stored[name], derived, stated)
        reason = ""
        if contradictions:
            reason = "the stored outputs differ from the operator's formula by more than rounding: "
            reason += "the case is wrong, not the backend"
        return Expected(outputs, tolerances, reason, tuple(contradictions), derive)


@dataclass(frozen=True)
class StoredOracle:
    """An oracle whose expected results are the outputs that a case stores.

    Attributes:
        judging: how outputs are judged.
    """

    judging: Judging

    def expected(self, problem: Problem, _math: str = "") -> Expected | None:
        """Return the stored outputs with the case's tolerances; None if none are stored."""
        return None if problem.stored is None else stored_outputs(problem, self.judging)


def stored_outputs(problem: Problem, judging: Judging) -> Expected:
    """Return the stored outputs with the case's tolerances.

    If the case stores no outputs, the value of each output is None.
    """
    names = _output_names(problem)
    stored = dict.fromkeys(names) if problem.stored is None else problem.stored
    texts = number_texts(problem.model, problem.inputs)
    tolerances = {
        name: texts.get(name) or _effective_tolerance(_stated(problem, name), None, judging)
        for name in names
    }
    outputs = {name: stored[name] for name in names if name in stored}
    contradictions = [
        diff
        for name, value in outputs.items()
        if name in texts and isinstance(value, np.ndarray) and is_string(value.dtype)
        for diff in compare_outputs({name: texts[name].texts(value)}, [value], texts.__getitem__)
        if not diff.agrees
    ]
    reason = _WRONG_TEXTS if contradictions else ""
    return Expected(outputs, tolerances, reason, tuple(contradictions))


def _output_names(problem: Problem) -> list[str]:
    """Return the names of the outputs, interned because they occur in the diffs of many cases."""
    return [intern(output.name) for output in problem.model.graph.output]


def _evaluated(
    problem: Problem, factor: float
) -> tuple[Mapping[str, Array], Callable[[], Mapping[str, DerivedOutput]]] | None:
    """Evaluate the formula of a model; None for a model without one.

    Returns:
        The outputs by name, in the node's order, and a function that derives their error bounds.
        Deriving a bound takes many times as long as evaluating the formula. An output that is
        bitwise equal to the expected output needs no bound.
    """
    derive: Callable[[], list[DerivedOutput]]
    if (trajectory := problem.trajectory) is not None:
        names, outputs = _output_names(problem), evaluate_trajectory(trajectory)
        derive = lambda: [*bound_trajectory(trajectory, factor).values()]  # noqa: E731
    elif (call := problem.call) is not None:
        names = [intern(name) for name in problem.model.graph.node[0].output]
        outputs, derive = evaluate(call), partial(bound, call, factor)
    else:
        return None
    values = dict(zip(names, outputs, strict=True))
    return values, cache(lambda: dict(zip(names, derive(), strict=True)))


def _error_bound(
    name: str, derive: Callable[[], Mapping[str, DerivedOutput]], factor: float
) -> ErrorBound:
    """Return the error bound of an output, derived on first use."""

    def at(places: Array) -> Branch:
        return derive()[name].branch.at(places)

    return ErrorBound(at, factor)


def _error_bounds_in_blocks(
    call: Call[Array], values: Mapping[str, Array], factor: float
) -> dict[str, ErrorBound]:
    """Return error bounds that are derived for the requested elements only."""
    blocks = [in_parts(call.group(index)) for index in range(len(call.groups))]

    def error_bound(index: int, value: Array) -> ErrorBound:
        output, group = divmod(index, len(blocks))
        block = blocks[group]

        def at(places: Array) -> Branch:
            branch = bound(block.at(places), factor, enough_for(block))[output].branch
            expected = value.reshape(-1)[places]
            with np.errstate(all="ignore"):
                distance = np.abs(np.float64(expected) - np.float64(branch.expected))
            # Because of rounding, the error bound and the formula may take different branches of
            # ``np.where``. The value on the branch of the error bound is then expected.
            expected = np.where(distance > branch.limit, branch.expected, expected)
            return replace(branch, expected=expected)

        return ErrorBound(at, factor, least=factor * least_errors(block)[output])

    return {name: error_bound(index, value) for index, (name, value) in enumerate(values.items())}


def tolerance_override(judging: Judging) -> Tolerance | None:
    """Return the tolerance from the command line, which overrides all others; None if not set."""
    if judging.ulp is not None:
        return Ulps(judging.ulp, Provenance.COMMAND_LINE)
    if judging.rtol is None and judging.atol is None:
        return None
    rtol = ONNX_DEFAULT.rtol if judging.rtol is None else judging.rtol
    atol = ONNX_DEFAULT.atol if judging.atol is None else judging.atol
    return replace(ONNX_DEFAULT, rtol=rtol, atol=atol, provenance=Provenance.COMMAND_LINE)


def _stated(problem: Problem, name: str) -> Tolerance | None:
    """Return the tolerance that the case states for an output."""
    return problem.output_tolerances.get(name, problem.tolerance)


def _effective_tolerance(
    stated: Tolerance | None, derived: Tolerance | None, judging: Judging
) -> Tolerance:
    """Return the tolerance of an output, given the case's tolerance and the error bound."""
    if (override := tolerance_override(judging)) is not None:
        return override
    if judging.tolerance is ToleranceRule.ONNX:
        return ONNX_DEFAULT
    if judging.tolerance is not None and derived is not None:
        return derived
    return stated or derived or ONNX_DEFAULT


def _contradiction(
    name: str, formula: Array, stored: Value, derived: ErrorBound, stated: Tolerance | None
) -> list[Diff]:
    """Return the differences between a stored output and the output of the formula.

    The list is empty if both outputs agree within the derived error bound, or within the tolerance
    that the case states.
    """
    if isinstance(stored, np.ndarray) and surely_agrees(formula, stored, derived):
        return []
    diffs: tuple[Diff, ...] = ()
    for tolerance in (derived, stated):
        if tolerance is not None:
            diffs = compare_outputs({name: formula}, [stored], {name: tolerance}.__getitem__)
            if all(diff.agrees for diff in diffs):
                return []
    return [diff for diff in diffs if not diff.agrees]
