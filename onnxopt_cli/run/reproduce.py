"""Compares a backend with a wrong implementation: do both return the same outputs?

If the operator has a formula, its known mistakes are evaluated in this process and compared within
error bounds. Otherwise, onnx's corrected reference computes the known mistakes in a forked process,
and they are compared within multiples of the machine epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.compare import absolute_distance, compare_outputs, largest_share
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import nearest
from onnxopt_cli.core.tolerance import Branch, ErrorBound
from onnxopt_cli.core.values import (
    Array,
    NumberKind,
    Value,
    kind_of,
    total_bytes,
)
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.interpret.bound.error_bound import FACTOR, bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, named
from onnxopt_cli.mutation.node_mistakes import node_mistakes
from onnxopt_cli.mutation.node_mutants import NodeMutant
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.nodes import imported_versions, is_standard, plain_domain
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.oracles import Oracles, resolved
from onnxopt_cli.oracle.patching import replaced, replacements
from onnxopt_cli.run.judge import KEPT_BYTES
from onnxopt_cli.workers.forked_processes import (
    ProcessLostError,
    TimeLimitError,
    isolated,
    time_limit,
)

#: The relative rounding error that any implementation may have, in machine epsilons.
MAX_EPSILONS = 4.0
# The rounding error of a wrong implementation may be at most this multiple of the rounding error of
# the formula. The limit does not apply if rounding is the defect.
_MAX_EXTRA_ROUNDING = 1000.0
# A wrong implementation may by chance return an element within the tolerance of the correct value.
# The probability is about the quotient of this tolerance and the error bound of the wrong
# implementation. A quotient below this limit is considered unlikely.
_UNLIKELY = 0.01
#: The reason that :func:`observe` returns for a node of an operator without a formula.
WITHOUT_FORMULA = "without formula"

#: If generated nodes do not confirm a mistake, it must reproduce at least this number of a
#: backend's wrong elements. An element of a boolean output counts as a quarter.
MIN_ELEMENTS_ALIKE = 3.0
# The limits of the process that computes a mistake: seconds and bytes.
_SECONDS, _BYTES = 10.0, 1 << 30
# A mistake reproduces a wrong element of a backend if the values that both return for the element
# differ by at most this share of the backend's error.
_NEAR_SHARE = 0.02
# The type in which a mistake computes, for mistakes with a coarser type than their tensors.
_COARSE: Mapping[str, np.dtype[Any]] = {
    "outputs in float32": np.dtype(np.float32),
    "outputs in 16 bits": np.dtype(np.float16),
}


@dataclass(frozen=True, eq=False)
class Observation:
    """A case of one node, and a backend's response.

    Attributes:
        case: the case's id.
        call: the node and its inputs.
        expected: the expected result by which the run judged; empty after an error.
        returned: the wrong outputs of the backend; empty if it returned none.
        is_plain: whether the graph declares exactly the inputs and outputs of the node, in the
            node's order, and the attributes are sorted by name, as in the graph of a generated
            call.
    """

    case: str
    call: Call[Array]
    expected: Expected
    returned: Sequence[Array] = ()
    is_plain: bool = False

    @cached_property
    def right(self) -> list[Branch]:
        """The formula's outputs with the default error bounds; computed on first access."""
        derived_outputs = [*self.expected.derive().values()] if self.expected.derive else []
        if any(derived_output.factor != FACTOR for derived_output in derived_outputs):
            derived_outputs = []
        return [derived_output.branch for derived_output in derived_outputs or bound(self.call)]


def returned_arrays(result: Result) -> list[Array]:
    """Return the tensors that a backend returned in a failing case."""
    return [value for value in result.returned if isinstance(value, np.ndarray)]


def observe(result: Result, case: Case | None, judging: Judging) -> Observation | str:
    """Return a case and a backend's response as an observation, to compare with known mistakes.

    Args:
        result: a pass, an error, or a failure.
        case: the case; None if it was not found.
        judging: how the run judged outputs.

    Returns:
        The observation, or the reason why the result cannot be compared.
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
            return WITHOUT_FORMULA
        if result.outcome is Outcome.ERROR:
            return Observation(result.case, call, Expected({}, {}))
        expected = resolved(Oracles(judging).expected(problem))
        in_node_order = expected.in_order(problem.model.graph.node[0].output)
        is_plain = _is_plain(problem.model.graph)
        observation = Observation(result.case, call, in_node_order, is_plain=is_plain)
    except (InvalidCase, NodeError, MemoryError):
        return "not readable"
    if result.outcome is not Outcome.FAIL:
        return observation
    # A backend returns outputs in the order of the graph, and an implementation returns them in the
    # order of the node.
    order = [[*expected.outputs].index(name) for name in observation.expected.outputs]
    return _with_returned(observation, result, judging, order)


def _is_plain(graph: onnx.GraphProto) -> bool:
    node = graph.node[0]
    inputs = [info.name for info in graph.input]
    outputs = [info.name for info in graph.output]
    attributes = [attribute.name for attribute in node.attribute]
    in_order = inputs == [*node.input] and outputs == [*node.output]
    return in_order and attributes == sorted(attributes)


def _with_returned(
    observation: Observation, result: Result, judging: Judging, order: Sequence[int]
) -> Observation | str:
    """Add the backend's outputs to an observation; return a reason if they cannot be used.

    Args:
        observation: the observation without returned outputs.
        result: a failure.
        judging: how the run judged outputs.
        order: for each output of the node, its index among the graph's outputs.
    """
    returned = returned_arrays(result)
    if not returned:
        large = total_bytes(observation.expected.outputs.values()) > KEPT_BYTES
        return "large" if large else "not kept"
    if result.diffs and not result.wrong:
        # The failure has a cause other than wrong outputs, for example changed inputs.
        return "with right values"
    if len(returned) == len(order):
        returned = [returned[index] for index in order]
    observation = replace(observation, returned=returned)
    # If the run used the default error bound, the failing outputs exceed that bound.
    judged_by_bound = judging.error_bound == FACTOR and all(
        isinstance(tolerance, ErrorBound) for tolerance in observation.expected.tolerances.values()
    )
    if (not judged_by_bound or judging.signed_zeros) and agree(observation.right, returned):
        return "within rounding"
    return observation


def unlike_mistakes(
    result: Result, case: Case | None, judging: Judging, names: Sequence[str]
) -> str:
    """Return how a failure differs from the failure that known mistakes cause; empty if they agree.

    Args:
        result: a failure.
        case: its case; None if it was not found.
        judging: how the run judged outputs.
        names: the names of known mistakes of the operator. The mistakes act together.
    """
    observation = observe(result, case, judging)
    if observation == WITHOUT_FORMULA and case is not None:
        problem = case.load()
        nodes = problem.model.graph.node
        if len(nodes) == 1 and not problem.model.functions and is_standard(nodes[0]):
            return unlike_node_mistake(result, problem, names)
    if isinstance(observation, str):
        return f"no known mistake can be compared with it: {observation}"
    operator = observation.call.operator
    known_names = [mistake.name for mistake in all_known_mistakes(operator)]
    for name in names:
        if name not in known_names:
            message = f"{operator.name} has no known mistake {name!r}"
            return "; ".join(filter(None, (message, nearest(name, known_names))))
    mistake = named(operator, *names)
    if mistake is None:
        return "these known mistakes exclude each other"
    if not reproduces(mistake, observation, judging):
        return f"the known mistake{'s' * (len(names) > 1)} would return other outputs"
    return ""


def conforms(outputs: Sequence[Array], observation: Observation, judging: Judging) -> bool:
    """Return whether outputs are correct in a case, judged as in the run."""
    expected, tolerance_of = observation.expected, observation.expected.tolerances.__getitem__
    if not judging.signed_zeros:
        return largest_share(expected.outputs, outputs, tolerance_of) <= 1
    diffs = compare_outputs(expected.outputs, outputs, tolerance_of, signed_zeros=True, worst=0)
    return all(diff.agrees for diff in diffs)


def agrees_with(implementation: Implementation, observation: Observation, judging: Judging) -> bool:
    """Return whether a backend with this mistake could pass the observed case."""
    outputs = implementation.run(observation.call)
    if conforms(outputs, observation, judging):
        return True
    rounds = implementation.rounds or implementation.precision is not None
    if not rounds or len(outputs) != len(observation.expected.outputs):
        return False
    # A backend that orders the operations differently may round the outputs of the mistake to the
    # correct values.
    limits = _own_limits(implementation, observation.call, outputs, implementation.precision)
    right = [
        output for output in observation.expected.outputs.values() if isinstance(output, np.ndarray)
    ]
    return agree(limits, right) and _may_be_right(outputs, limits, observation.right)


def reproduces(implementation: Implementation, observation: Observation, judging: Judging) -> bool:
    """Return whether an implementation returns the backend's outputs and also fails the case."""
    outputs = implementation.run(observation.call)
    if not _returns(implementation, outputs, observation):
        return False
    same = [output.tobytes() for output in outputs] == [
        output.tobytes() for output in observation.returned
    ]
    return same or not conforms(outputs, observation, judging)


def reproduces_wrong_elements(
    implementation: Implementation, observation: Observation, *, is_loose: bool = False
) -> bool:
    """Return whether an implementation reproduces all wrong elements of a backend.

    If the backend is wrong at a position of one output, all outputs of the same optimized tensor
    are compared at this position. The implementation must return the backend's values there.

    Args:
        implementation: the implementation.
        observation: a case, and the backend's outputs.
        is_loose: whether the roundings of the backend may be much larger than a few machine
            epsilons, for example because of cancellation.
    """
    outputs = implementation.run(observation.call)
    if not len(outputs) == len(observation.right) == len(observation.returned):
        return False
    wrong_elements = [
        np.ones(returned.shape, bool)
        if (returned.dtype, returned.shape) != (branch.expected.dtype, branch.expected.shape)
        else branch.wrong(returned)
        for branch, returned in zip(observation.right, observation.returned, strict=True)
    ]
    affected_elements = _in_any_output(observation.call, wrong_elements)
    for output, branch, returned, wrong, affected in zip(
        outputs,
        observation.right,
        observation.returned,
        wrong_elements,
        affected_elements,
        strict=True,
    ):
        expected = branch.expected
        if not affected.any():
            continue
        if (output.dtype, output.shape) != (returned.dtype, returned.shape):
            return False
        limit = _rounding(output)
        if (returned.dtype, returned.shape) == (expected.dtype, expected.shape):
            limit = limit + branch.limit
            if not branch.wrong(output)[wrong].all():
                return False
        limit = limit * (_MAX_EXTRA_ROUNDING if is_loose else 1)
        if Branch(output, limit).wrong(returned)[affected].any():
            return False
    return True


def _in_any_output(call: Call[Array], masks: Sequence[Array]) -> list[Array]:
    """For each output, return the union of the masks of all outputs of the same tensor."""
    groups = len(call.groups)
    if any(map(call.operator.carries, call.operator.outputs)):
        return [*masks]
    return [
        np.logical_or.reduce([mask for mask in masks[place % groups :: groups]
                              if mask.shape == own.shape])
        for place, own in enumerate(masks)
    ]  # fmt: skip


def differ(right: Sequence[Branch], first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Return whether two responses to the same inputs differ by more than rounding errors.

    Responses with different types or shapes always differ. Values are compared only if both
    responses have the expected types and shapes.
    """
    structure = [(output.dtype, output.shape) for output in first]
    expected = [(branch.expected.dtype, branch.expected.shape) for branch in right]
    if structure != [(output.dtype, output.shape) for output in second]:
        return True
    return structure == expected and any(
        Branch(output, branch.limit).wrong(again).any()
        for branch, output, again in zip(right, first, second, strict=True)
    )


def returns(implementation: Implementation, call: Call[Array], returned: Sequence[Array]) -> bool:
    """Return whether an implementation returns a backend's outputs for a node."""
    observation = Observation("", call, Expected({}, {}), returned)
    return _returns(implementation, implementation.run(call), observation)


def returns_where_decided(
    implementation: Implementation, call: Call[Array], returned: Sequence[Array]
) -> bool:
    """Return whether an implementation returns a backend's outputs, except where roundings decide.

    If several values of an element are accepted, roundings decide a comparison in the formula. At
    the position of this element, the outputs of its tensor are not compared.
    """
    outputs = implementation.run(call)
    right = [derived_output.branch for derived_output in bound(call)]
    if not len(outputs) == len(right) == len(returned):
        return False
    undecided_elements = _in_any_output(call, [*map(_several_accepted, right)])
    limits = [
        np.where(undecided, np.inf, _rounding(output) + branch.limit)
        for output, branch, undecided in zip(outputs, right, undecided_elements, strict=True)
    ]
    return agree([*map(Branch, outputs, limits)], returned)


def _several_accepted(branch: Branch) -> Array:
    """Return a mask of the elements of which several values are accepted."""
    several = np.zeros(branch.expected.shape, bool)
    alternative = branch.otherwise
    while alternative is not None:
        several |= Branch(branch.expected, np.zeros(several.shape)).wrong(alternative.expected)
        alternative = alternative.otherwise
    return several


def refuses(implementation: Implementation, observation: Observation) -> bool:
    """Return whether an implementation raises an error in a case."""
    return not implementation.run(observation.call)


def _returns(
    implementation: Implementation, outputs: Sequence[Array], observation: Observation
) -> bool:
    """Return whether a backend returned the outputs of an implementation, up to rounding.

    Tolerances are tried in increasing order of cost: a few epsilons, the error bound of the
    formula, and the error bound of the mistake itself.
    """
    returned = observation.returned
    if [(output.dtype, output.shape) for output in outputs] != [
        (output.dtype, output.shape) for output in returned
    ]:
        return False
    coarse = _coarse_type(implementation, outputs, observation.call)
    fits = not coarse or all(_fits(output, coarse) for output in returned)
    limits = [_rounding(output) for output in outputs]
    # If a mistake rounds some outputs to a coarser type, it may leave its other outputs unrounded.
    may_have_all_digits = fits or implementation.precision is None
    if may_have_all_digits and agree([*map(Branch, outputs, limits)], returned):
        return True
    if not fits:
        return False
    for index, right in enumerate(observation.right[: len(outputs)]):
        if right.limit.size == limits[index].size:
            limits[index] = limits[index] + right.limit.reshape(limits[index].shape)
    # Deriving the error bound of the mistake takes long, so first try a much wider tolerance.
    rounds = coarse or implementation.rounds
    if not rounds and not all(map(_are_near, outputs, returned, limits)):
        return False
    if agree([*map(Branch, outputs, limits)], returned):
        return True
    return agree(_own_limits(implementation, observation.call, outputs, coarse), returned)


def _are_near(output: Array, returned: Array, limit: Array) -> bool:
    """Return whether all pairs of finite elements agree within a very wide tolerance."""
    with np.errstate(all="ignore"):
        far = np.abs(output - returned) > _MAX_EXTRA_ROUNDING * limit
    return not np.any(far & np.isfinite(output) & np.isfinite(returned))


def _may_be_right(
    outputs: Sequence[Array], limits: Sequence[Branch], right: Sequence[Branch]
) -> bool:
    """Return whether a mistake could return correct outputs by chance if it rounds differently.

    Args:
        outputs: the outputs of the mistake.
        limits: the outputs of the mistake, with their error bounds.
        right: the expected outputs, with their error bounds.
    """
    probability = 1.0
    for output, own, expected in zip(outputs, limits, right, strict=True):
        with np.errstate(all="ignore"):
            share = expected.limit / (own.otherwise or own).limit
        share = share[expected.wrong(output) & (share < _UNLIKELY)]
        probability *= float(np.prod(share))
    return probability > _UNLIKELY**2


def _fits(output: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a type represents all elements of an output exactly."""
    with np.errstate(all="ignore"):
        return np.array_equal(output.astype(dtype).astype(output.dtype), output, equal_nan=True)


def _coarse_type(
    implementation: Implementation, outputs: Sequence[Array], call: Call[Array]
) -> np.dtype[Any] | None:
    """Return the type in which a mistake computes, if it is coarser than the outputs' type."""
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
    """Return the outputs of a mistake with their error bounds; empty if no bound is known.

    Args:
        implementation: the mistake.
        call: the node.
        outputs: the outputs of the mistake.
        coarse: the type to which all values are rounded, if it is coarser than the types of the
            tensors; else None.
    """
    if implementation.compute is not evaluate and coarse is None:
        return []
    wrong = implementation.altered(call)
    try:
        with np.errstate(all="ignore"):
            limits = bound(wrong if coarse is None else _in_type(wrong, coarse))
    except Exception:  # noqa: BLE001 - a wrong formula may fail in every way
        return []
    if [derived_output.expected.shape for derived_output in limits] != [
        output.shape for output in outputs
    ]:
        return []
    # The exact output of the mistake always agrees, even if the error bound is centered on another
    # value.
    return [
        Branch(output, np.zeros(output.shape), derived_output.branch)
        for output, derived_output in zip(outputs, limits, strict=True)
    ]


def _in_type(call: Call[Array], dtype: np.dtype[Any]) -> Call[Array]:
    """Return a call in which floats of types wider than ``dtype`` are converted to ``dtype``."""

    def cast(array: Array) -> Array:
        fine = array.dtype.kind == "f" and array.itemsize > dtype.itemsize
        return array.astype(dtype) if fine else array

    groups = tuple(tuple(map(cast, group)) for group in call.groups)
    return replace(call, scalars=tuple(map(cast, call.scalars)), groups=groups)


def _rounding(output: Array) -> Array:
    """Return a tolerance of a few epsilons for each finite float, and 0 for all other elements."""
    if kind_of(output.dtype) is not NumberKind.FLOAT:
        return np.zeros(output.shape)
    size = np.abs(np.asarray(output, np.float64))
    epsilon = float(ml_dtypes.finfo(output.dtype).eps)  # type: ignore[no-untyped-call]
    return np.where(np.isfinite(size), MAX_EPSILONS * epsilon * size, 0.0)


def agree(expected: Sequence[Branch], outputs: Sequence[Array]) -> bool:
    """Return whether outputs have the expected types and shapes, and values within the limits."""
    return len(expected) == len(outputs) and all(
        (branch.expected.dtype, branch.expected.shape) == (output.dtype, output.shape)
        and not branch.wrong(output).any()
        for branch, output in zip(expected, outputs, strict=True)
    )


def unlike_node_mistake(result: Result, problem: Problem, names: Sequence[str]) -> str:
    """Return how a failure differs from the failure that a known mistake causes.

    The text is empty if the failures are equal. The model is not trusted, so onnx's corrected
    reference computes the mistake in a forked process.

    Args:
        result: a failure.
        problem: its case: a model of one node, whose operator belongs to ONNX and has no formula.
        names: the name of one known mistake. Several mistakes of such an operator cannot act
            together.
    """
    (node,) = problem.model.graph.node
    domain = plain_domain(node.domain)
    opset = imported_versions(problem.model)[domain]
    mistakes = node_mistakes(domain, node.op_type, opset)
    for name in names:
        if name not in mistakes:
            message = f"{node.op_type} has no known mistake {name!r}"
            return "; ".join(filter(None, (message, nearest(name, [*mistakes]))))
    if len(names) > 1:
        return f"known mistakes of {node.op_type} cannot be combined"
    if not result.returned:
        return "no known mistake can be compared with it: not kept"
    mistake = mistakes[names[0]]

    def work() -> Iterator[float]:
        def compute(model: Any, inputs: Mapping[str, Value]) -> Sequence[Value]:
            return ReferenceModel(model).run(inputs)

        with replaced(*replacements()), np.errstate(all="ignore"):
            try:
                with time_limit(_SECONDS):
                    outputs = mistake.outputs(problem.model, problem.inputs, compute)
                    right = compute(problem.model, problem.inputs)
            except (TimeLimitError, Exception):  # noqa: BLE001 - any exception of the reference
                return
            yield elements_alike(mistake, outputs or (), result.returned, right)

    alike = None
    with suppress(ProcessLostError), closing(isolated(work, _SECONDS, _BYTES)) as counts:
        alike = next(counts, None)
    if alike is None:
        return "the known mistake cannot be computed in this case"
    return "" if alike else "the known mistake would return other outputs"


def elements_alike(
    mistake: NodeMutant,
    outputs: Sequence[Value],
    returned: Sequence[Value],
    right: Sequence[Value],
) -> float:
    """Return the number of wrong elements that a mistake and a backend share.

    The result is 0 if the outputs of the mistake differ from those of the backend.

    Args:
        mistake: the mistake.
        outputs: the outputs of the mistake.
        returned: the outputs of the backend.
        right: the correct outputs.
    """
    coarse = _COARSE.get(mistake.name)
    if len(outputs) != len(returned) or len(right) != len(returned):
        return 0.0
    counts = [
        _shared(mistaken, actual, correct, coarse)
        for mistaken, actual, correct in zip(outputs, returned, right, strict=True)
    ]
    return 0.0 if None in counts else float(sum(filter(None, counts)))


def _count(value: Value) -> int:
    """Return the number of elements of all tensors in a value."""
    if isinstance(value, list):
        return sum(map(_count, value))
    return value.size if isinstance(value, np.ndarray) else 1


def _shared(
    mistaken: Value, actual: Value, correct: Value, coarse: np.dtype[Any] | None
) -> float | None:
    """Return the number of wrong elements that two outputs share; None if the outputs differ."""
    if not isinstance(mistaken, np.ndarray) or not isinstance(actual, np.ndarray):
        if repr(mistaken) != repr(actual):
            return None
        return float(_count(actual)) if repr(actual) != repr(correct) else 0.0
    if (mistaken.dtype, mistaken.shape) != (actual.dtype, actual.shape):
        return None
    comparable = None
    if isinstance(correct, np.ndarray) and (correct.dtype, correct.shape) == (
        mistaken.dtype,
        mistaken.shape,
    ):
        comparable = correct
    if mistaken.dtype.kind == "f" or mistaken.dtype.name == "bfloat16":
        with np.errstate(all="ignore"):
            alike = _floats_alike(mistaken, actual, comparable, coarse)
    elif not np.array_equal(mistaken, actual):
        alike = None
    else:
        wrong = (
            0 if comparable is None else int(np.count_nonzero(np.asarray(mistaken != comparable)))
        )
        alike = wrong / 4 if mistaken.dtype == bool else float(wrong)
    if alike is None or comparable is not None:
        return alike
    return alike + MIN_ELEMENTS_ALIKE


def _floats_alike(
    mistaken: Array, actual: Array, correct: Array | None, coarse: np.dtype[Any] | None
) -> float | None:
    """Return the number of wrong elements that two outputs share; None if the outputs differ."""
    epsilon = float(ml_dtypes.finfo(mistaken.dtype).eps)  # type: ignore[no-untyped-call]
    roundings = 64 if mistaken.dtype.itemsize > 2 else 4  # noqa: PLR2004 - types of 16 bits
    wide, returned = mistaken.astype(np.float64), actual.astype(np.float64)
    if coarse is not None and coarse.itemsize < mistaken.dtype.itemsize:
        if not np.array_equal(actual.astype(coarse).astype(mistaken.dtype), actual, equal_nan=True):
            return None
        epsilon, roundings = float(np.finfo(coarse).eps), 16
    finite = np.abs(wide[np.isfinite(wide)])
    # Use the median, because a few large elements do not show how all other elements are rounded.
    scale = float(np.median(finite)) if finite.size else 0.0
    limit = roundings * epsilon * (np.abs(wide) + scale)
    distance = absolute_distance(wide, returned)
    agrees = (distance == 0) | (distance <= limit)
    if correct is None:
        return float(mistaken.size) if agrees.all() else None
    error = absolute_distance(correct.astype(np.float64), returned)
    if coarse is not None:
        wrong = error > 0
    else:
        least = 2 * epsilon * np.abs(wide)
        limit = np.minimum(limit, np.maximum(_NEAR_SHARE * error, least))
        # Ignore nearly correct elements, because many mistakes reproduce them.
        wrong = (error > least / _NEAR_SHARE) | ((error > 0) & (distance == 0))
    agrees = (distance == 0) | (distance <= limit)
    return float(np.count_nonzero(wrong)) if agrees.all() else None
