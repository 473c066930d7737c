"""What must come back from a case, how far off it may be, whether the case contradicts itself."""

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
    """The outputs to come, judged by their tolerances.

    Attributes:
        outputs: the expected values by name, in the graph's order.
        tolerances: a tolerance for each of them.
        contradictions: stored outputs that the formula rejects; not empty if the case is wrong.
        formula: what the formula says of the outputs; None where no formula of ours applies.
        alternatives: what is right as a whole in other ways.
    """

    outputs: Mapping[str, Value]
    tolerances: Mapping[str, Tolerance]
    contradictions: tuple[Diff, ...] = ()
    formula: FormulaOutputs | None = None
    alternatives: tuple[Alternative, ...] = ()

    @property
    def of_node(self) -> Expected:
        """The key with its outputs in the node's order, in which an operator returns them."""
        if self.formula is None or [*self.formula.expected] == [*self.outputs]:
            return self
        return replace(self, outputs={name: self.outputs[name] for name in self.formula.expected})


@dataclass(frozen=True, slots=True)
class Alternative:
    """Outputs that are right as a whole beside those of an expected result.

    Attributes:
        note: what is said of a result that agrees with them.
        key: the outputs and their tolerances.
        contested: whether they follow from the second reading of a contested question.
    """

    note: str
    key: Expected
    contested: bool


@dataclass(frozen=True)
class FormulaOutputs:
    """What the formula says of a case's outputs: their values at once, their limits when asked.

    Limits cost many times as much as values, and what is equal to the bit needs none.

    Attributes:
        expected: the outputs by name, in the node's order.
        derive: derives the limits of all of them.
        factor: multiple of the rounding bound that is allowed.
        blocks: the call of each group, if limits are derived only where they are asked for.
    """

    expected: Mapping[str, Array]
    derive: Callable[[], list[DerivedOutput]]
    factor: float
    blocks: Sequence[Call[Array]] = ()

    @cached_property
    def derived_outputs(self) -> Mapping[str, DerivedOutput]:
        """The outputs with their limits, by name."""
        return dict(zip(self.expected, self.derive(), strict=True))

    def error_bound(self, name: str) -> ErrorBound:
        """Return the limit of an output."""
        if not self.blocks:
            # Derived when it is asked for.
            return ErrorBound(lambda at: self.derived_outputs[name].branch.at(at), self.factor)  # noqa: PLW0108
        output, group = divmod(list(self.expected).index(name), len(self.blocks))
        call = self.blocks[group]

        def at(places: Array) -> Branch:
            branch = bound(call.at(places), self.factor, enough_for(call))[output].branch
            expected = self.expected[name].reshape(-1)[places]
            with np.errstate(all="ignore"):
                distance = np.abs(np.float64(expected) - np.float64(branch.expected))
            # Unless it is on the other side of a choice that rounding decides.
            expected = np.where(distance > branch.limit, branch.expected, expected)
            return replace(branch, expected=expected)

        return ErrorBound(at, self.factor, least=self.factor * least_errors(call)[output])


def tolerance_override(judging: Judging) -> Tolerance | None:
    """Return the tolerance whose numbers the user gives, which precedes all others."""
    if judging.ulp is not None:
        return Ulps(judging.ulp, Provenance.COMMAND_LINE)
    if judging.rtol is None and judging.atol is None:
        return None
    rtol = ONNX_DEFAULT.rtol if judging.rtol is None else judging.rtol
    atol = ONNX_DEFAULT.atol if judging.atol is None else judging.atol
    return replace(ONNX_DEFAULT, rtol=rtol, atol=atol, provenance=Provenance.COMMAND_LINE)


def expected_result(problem: Problem, where: Location, judging: Judging) -> Expected:
    """Say what must come back from a case that a right backend accepts.

    Args:
        problem: the case's problem.
        where: the case's location, for messages.
        judging: how the user wants outputs to be judged.

    Raises:
        InvalidCase: if node and inputs break the operator's signature, or nothing says what the
            outputs are.
    """
    # Diffs keep them, and those of many cases are the same.
    names = [intern(output.name) for output in problem.model.graph.output]
    try:
        formula = _formula_outputs(problem, names, judging.error_bound)
    except NodeError as error:
        raise InvalidCase([Fault(str(where), error.message)], hint=error.hint) from error
    if problem.stored is None and formula is None:
        what = "the outputs are not given, and the model is not one node of an operator of ours"
        raise InvalidCase([Fault(str(where), what)])
    outputs: dict[str, Value] = {}
    tolerances: dict[str, Tolerance] = {}
    contradictions: list[Diff] = []
    for name in names:
        own = problem.output_tolerances.get(name, problem.tolerance)
        derived = None if formula is None else formula.error_bound(name)
        tolerances[name] = _strongest(own, derived, judging)
        if problem.stored is not None and name in problem.stored:
            outputs[name] = problem.stored[name]
        if formula is None or derived is None:
            continue
        value = formula.expected[name]
        if name in outputs:
            contradictions += _contradiction(name, value, outputs[name], derived, own)
        if name not in outputs or tolerances[name] is derived:
            # The tolerance lies around the formula's value, not around one that was stored rounded.
            outputs[name] = value
    return Expected(outputs, tolerances, tuple(contradictions), formula)


def _formula_outputs(problem: Problem, names: list[str], factor: float) -> FormulaOutputs | None:
    """Return what the formula says of the outputs; None where no formula of ours applies."""
    trajectory = problem.trajectory
    if trajectory is not None:
        # Not worth importing for cases of one step.
        from onnxopt_cli.interpret.bound.chained_bound import bound_trajectory, evaluate_trajectory

        def of_steps() -> list[DerivedOutput]:
            return list(bound_trajectory(trajectory, factor).values())

        values = evaluate_trajectory(trajectory)
        return FormulaOutputs(dict(zip(names, values, strict=True)), of_steps, factor)
    call = problem.call
    if call is None:
        return None
    own = [intern(name) for name in problem.model.graph.node[0].output]
    return FormulaOutputs(
        dict(zip(own, evaluate(call), strict=True)),
        partial(bound, call, factor),
        factor,
        [in_parts(call.group(it)) for it in range(len(call.groups))] if has_blocks(call) else (),
    )


def _strongest(own: Tolerance | None, derived: Tolerance | None, judging: Judging) -> Tolerance:
    if (override := tolerance_override(judging)) is not None:
        return override
    if judging.tolerance is ToleranceRule.ONNX:
        return ONNX_DEFAULT
    if judging.tolerance is not None and derived is not None:
        return derived
    return own or derived or ONNX_DEFAULT


def _contradiction(
    name: str, formula: Array, stored: Value, derived: ErrorBound, own: Tolerance | None
) -> list[Diff]:
    """Compare a stored output with the formula's; a tolerance that accepts it is enough."""
    if isinstance(stored, np.ndarray) and surely_agrees(formula, stored, derived):
        return []
    diffs: tuple[Diff, ...] = ()
    for tolerance in (derived, own):
        if tolerance is not None:
            diffs = compare_outputs({name: formula}, [stored], {name: tolerance}.__getitem__)
            if all(diff.agrees for diff in diffs):
                return []
    return [diff for diff in diffs if not diff.agrees]
