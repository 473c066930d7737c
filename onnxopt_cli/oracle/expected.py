"""The expected result of a case: its outputs and their tolerances, from a formula or stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from sys import intern

import numpy as np

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.config.run_config import Judging, ToleranceRule
from onnxopt_cli.core.compare import compare_outputs, surely_agrees
from onnxopt_cli.core.diff import Diff
from onnxopt_cli.core.location import Location
from onnxopt_cli.core.tolerance import (
    ONNX_DEFAULT,
    Branch,
    ErrorBound,
    Provenance,
    Tolerance,
    Ulps,
)
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import (
    Fault,
    InvalidCase,
    NodeError,
)
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


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected outputs and their tolerances.

    Attributes:
        outputs: the expected values by name, in the graph's order.
        tolerances: the tolerance of each output, by name.
        contradictions: stored outputs that the formula rejects; the case is invalid unless this
            is empty.
        formula: the outputs of the formula; None for a model without one.
        alternatives: other correct results. A backend's outputs must all match the same one.
        complete: whether the outputs are known. Those of a model without stored outputs are None
            until the reference oracle has computed them.
    """

    outputs: Mapping[str, Value]
    tolerances: Mapping[str, Tolerance]
    contradictions: tuple[Diff, ...] = ()
    formula: FormulaOutputs | None = None
    alternatives: tuple[Alternative, ...] = ()
    complete: bool = True

    @property
    def in_node_order(self) -> Expected:
        """The expected result with its outputs in the order of the node instead of the graph."""
        if self.formula is None or [*self.formula.expected] == [*self.outputs]:
            return self
        return replace(self, outputs={name: self.outputs[name] for name in self.formula.expected})


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another correct result of a case.

    Attributes:
        note: added to the result of a backend that matches this alternative.
        expected: its outputs and their tolerances.
        contested: whether it follows from the second reading of an ambiguous specification.
    """

    note: str
    expected: Expected
    contested: bool


@dataclass(frozen=True)
class FormulaOutputs:
    """The outputs of the formula, and their error bounds, which are derived on first use.

    Deriving an error bound takes many times as long as evaluating the formula, and an output that
    is bitwise equal to the expected one does not need it.

    Attributes:
        expected: the outputs by name, in the node's order.
        derive: derives the error bounds of all outputs.
        factor: the tolerance is this multiple of the error bound.
        blocks: the call of each group, if bounds can be derived for single elements; else empty.
    """

    expected: Mapping[str, Array]
    derive: Callable[[], list[DerivedOutput]]
    factor: float
    blocks: Sequence[Call[Array]] = ()

    @cached_property
    def derived_outputs(self) -> Mapping[str, DerivedOutput]:
        """The outputs with their error bounds, by name."""
        return dict(zip(self.expected, self.derive(), strict=True))

    def error_bound(self, name: str) -> ErrorBound:
        """Return the error bound of an output."""
        if not self.blocks:
            # Derived on first use.
            return ErrorBound(lambda at: self.derived_outputs[name].branch.at(at), self.factor)  # noqa: PLW0108
        output, group = divmod(list(self.expected).index(name), len(self.blocks))
        call = self.blocks[group]

        def at(places: Array) -> Branch:
            branch = bound(call.at(places), self.factor, enough_for(call))[output].branch
            expected = self.expected[name].reshape(-1)[places]
            with np.errstate(all="ignore"):
                distance = np.abs(np.float64(expected) - np.float64(branch.expected))
            # A rounded value may take the other branch of a choice: use the bound's value then.
            expected = np.where(distance > branch.limit, branch.expected, expected)
            return replace(branch, expected=expected)

        return ErrorBound(at, self.factor, least=self.factor * least_errors(call)[output])


def tolerance_override(judging: Judging) -> Tolerance | None:
    """Return the tolerance from the command line, which overrides all others; None without one."""
    if judging.ulp is not None:
        return Ulps(judging.ulp, Provenance.COMMAND_LINE)
    if judging.rtol is None and judging.atol is None:
        return None
    rtol = ONNX_DEFAULT.rtol if judging.rtol is None else judging.rtol
    atol = ONNX_DEFAULT.atol if judging.atol is None else judging.atol
    return replace(ONNX_DEFAULT, rtol=rtol, atol=atol, provenance=Provenance.COMMAND_LINE)


def expected_result(problem: Problem, where: Location, judging: Judging) -> Expected:
    """Return the expected result of a case that a correct backend accepts.

    Args:
        problem: the case's problem.
        where: the case's location, for messages.
        judging: how outputs are judged.

    Raises:
        InvalidCase: if node and inputs break the operator's signature.
    """
    # Interned because the diffs of many cases hold the same names.
    names = [intern(output.name) for output in problem.model.graph.output]
    try:
        formula = _formula_outputs(problem, names, judging.error_bound)
    except NodeError as error:
        raise InvalidCase([Fault(str(where), error.message)], hint=error.hint) from error
    complete = problem.stored is not None or formula is not None
    outputs: dict[str, Value] = {}
    tolerances: dict[str, Tolerance] = {}
    contradictions: list[Diff] = []
    for name in names:
        stated = problem.output_tolerances.get(name, problem.tolerance)
        derived = None if formula is None else formula.error_bound(name)
        tolerances[name] = _effective_tolerance(stated, derived, judging)
        if problem.stored is not None and name in problem.stored:
            outputs[name] = problem.stored[name]
        elif not complete:
            outputs[name] = None
        if formula is None or derived is None:
            continue
        value = formula.expected[name]
        if name in outputs:
            contradictions += _contradiction(name, value, outputs[name], derived, stated)
        if name not in outputs or tolerances[name] is derived:
            # The error bound is around the formula's value; a stored value may have been rounded.
            outputs[name] = value
    return Expected(outputs, tolerances, tuple(contradictions), formula, complete=complete)


def _formula_outputs(problem: Problem, names: list[str], factor: float) -> FormulaOutputs | None:
    """Return the outputs of the formula; None for a model without one."""
    trajectory = problem.trajectory
    if trajectory is not None:
        # Importing it would delay runs without trajectories.
        from onnxopt_cli.interpret.bound.chained_bound import bound_trajectory, evaluate_trajectory

        def derive_steps() -> list[DerivedOutput]:
            return list(bound_trajectory(trajectory, factor).values())

        values = evaluate_trajectory(trajectory)
        return FormulaOutputs(dict(zip(names, values, strict=True)), derive_steps, factor)
    call = problem.call
    if call is None:
        return None
    node_names = [intern(name) for name in problem.model.graph.node[0].output]
    return FormulaOutputs(
        dict(zip(node_names, evaluate(call), strict=True)),
        partial(bound, call, factor),
        factor,
        [in_parts(call.group(index)) for index in range(len(call.groups))]
        if has_blocks(call)
        else (),
    )


def _effective_tolerance(
    stated: Tolerance | None, derived: Tolerance | None, judging: Judging
) -> Tolerance:
    """Return the tolerance of an output, given that of the case and the formula's error bound."""
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
    """Compare a stored output with the formula's; return no diff if either tolerance accepts it."""
    if isinstance(stored, np.ndarray) and surely_agrees(formula, stored, derived):
        return []
    diffs: tuple[Diff, ...] = ()
    for tolerance in (derived, stated):
        if tolerance is not None:
            diffs = compare_outputs({name: formula}, [stored], {name: tolerance}.__getitem__)
            if all(diff.agrees for diff in diffs):
                return []
    return [diff for diff in diffs if not diff.agrees]
