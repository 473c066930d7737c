"""The condition estimate: exact values of a model's outputs, and tolerances for them.

A model without a formula of ours runs on onnx's reference: once in double, which gives the exact
value y of each element, and eight times in double with roundings of the model's own types injected
(:mod:`~onnxopt_cli.oracle.rounding.injection`), which gives the values y_r. It also runs by each
accepted reformulation, which gives the values z: in its own types, by the function bodies that ONNX
publishes, and with sequential sums. For each element

    unit      = max(|y_r - y|, u |y|, |z - y| / 4)    over all r, and all z within 64 units of y
    tolerance = c unit + lambda,    c = 16, or 4 for 16-bit types

where u is the unit roundoff, and lambda the smallest normal number of the type if the element may
be flushed to zero, else 0. The unit is the movement of an element by one rounding, that is, its
condition times u. An output that no rounding moves has the unit 0: it must be exact. A model of
doubles is perturbed by 2^27 roundings, and its movements are divided by 2^27.

A difference that is not proportional to the roundings does not widen the tolerance. Where z
overflows, a perturbation crosses a discontinuity, or the operand of a root becomes negative, the
value of that run is an alternative: it is accepted for that element beside y, with a tolerance of
its own.
``docs/conditioned.md`` gives the reason of each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import combinations
from time import monotonic
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.backends.reference import unimplemented_operator
from onnxopt_cli.core.text import clipped, exception_text, printable
from onnxopt_cli.core.values import (
    Array,
    Value,
    structure_of,
)
from onnxopt_cli.errors import NodeError
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.gradient.reverse_mode import expand_gradients, has_gradient
from onnxopt_cli.interpret.lower.lower_model import formula_operators, lower
from onnxopt_cli.operators.call import sole_call
from onnxopt_cli.operators.nodes import all_nodes, operator_names, with_bound_functions
from onnxopt_cli.oracle.corrections.contested import (
    CONTESTED,
    questions_at,
    second_readings,
)
from onnxopt_cli.oracle.corrections.corrected_reference import (
    INTEGER_ROUNDING,
    INTERPOLATING,
    unsupported_reason,
    whole_numbers,
)
from onnxopt_cli.oracle.estimate.contributions import (
    Contribution,
    contributions,
    error_contributions,
)
from onnxopt_cli.oracle.estimate.gradient_check import (
    unconfirmed_elements,
    with_inconclusive_elements,
)
from onnxopt_cli.oracle.estimate.shared_prefix import SharedPrefix
from onnxopt_cli.oracle.evaluator import (
    Compute,
    ReferenceModel,
    Visitor,
    compute_only,
    finite_like,
    native_outputs,
    sequential_sums,
)
from onnxopt_cli.oracle.excluded_inputs import excluded_input
from onnxopt_cli.oracle.function_body import (
    CALLED,
    published_body,
    subtracting_operators,
)
from onnxopt_cli.oracle.patching import corrected, replaced
from onnxopt_cli.oracle.rounding.coordinates import GRIDS, coordinate_errors, moved_coordinates
from onnxopt_cli.oracle.rounding.exponentials import OPERATORS, in_one_pass
from onnxopt_cli.oracle.rounding.flushed_terms import with_flushed_root
from onnxopt_cli.oracle.rounding.injection import (
    SHORT_UNITS,
    SINGLE_ROUNDOFF,
    UNITS,
    Injector,
    RoundingSite,
    SiteRecorder,
    VisitedNode,
    has_long_sums,
    largest_magnitude,
)
from onnxopt_cli.oracle.rounding.node_kinds import DEFINED, NodeClass, NodeKind
from onnxopt_cli.oracle.rounding.operator_identities import (
    WITHIN,
    identities,
    identities_in,
)
from onnxopt_cli.oracle.rounding.overflowing_sums import MEANS, may_overflow, with_overflow
from onnxopt_cli.oracle.rounding.perturbations import RUNS
from onnxopt_cli.oracle.rounding.scales import WINDOWS, mixes_infinite, spread
from onnxopt_cli.oracle.rounding.short_floats import (
    SHIFTED,
    dtypes_of,
    requests_short_sums,
    takes_exact_operands,
)
from onnxopt_cli.oracle.stacked import outputs_of_runs
from onnxopt_cli.oracle.widen import (
    ROUNDOFF,
    SINGLE,
    in_double,
    is_short,
    is_wide,
    rounded_like,
    single_value,
    smallest_normal,
    widened,
    widened_value,
)

# A reformulation that differs from y by more units does not measure the condition. Where it
# overflows, its value is an alternative.
_REFORMULATION_UNITS = 64.0
# With this share of a reformulation's error as the unit, 16 units are four times its error.
_REFORMULATION_SHARE = 1 / 4
# Sequential sums may round equal terms in the same direction, so that their error grows to 2^14
# roundings. Twice the error of an element is accepted if the error is at most 1/16 of the largest
# output; otherwise the result of the sequential sum is an alternative.
_MAX_SEQUENTIAL_ERROR, _SEQUENTIAL_SHARE = 2.0**14, 16
# To test an output for discontinuities, the perturbed runs are repeated with roundings that are
# smaller by this factor.
_FINER = 64.0
_MAX_VISITS = 20_000
# Limits of the outputs of consecutive nodes that are computed together.
_MAX_BYTES_OF_NODES, _SECONDS_OF_NODES = 64 << 20, 2.0
#: Beginning of the reason for a missing estimate if onnx's reference lacks an operator.
UNIMPLEMENTED = "onnx's reference does not implement"
# Events that are recorded in the run of a model in its own types. An intermediate result leaves the
# range of its type; NumPy reports the first two of these events by these names:
_OVERFLOW, _UNDERFLOW, _SUBNORMAL = "overflow", "underflow", "subnormal"
# NaN or infinity is among the operands that a fast algorithm mixes:
_SPREADS = "spreads"
# A sum may overflow in another order of its terms:
_REORDERED = "reordered"
_MAX_MESSAGE_CHARS = 200
# Recorded among the contested questions: a node interpolates between integers.
_INTEGERS = "integers"
# Labels of alternatives.
_OUT_OF_RANGE = "the result in the model's own types; an intermediate result leaves their range"
_FLUSHED = "the result with zeros for subnormal numbers"
_SEQUENTIAL = "the result of sequential sums"
_LOWEST = "the lowest finite number for a masked score"
# Normalizations with the attribute ``stash_type``, and the opset version that introduced it. Its
# default is float32.
_STASHING = {"GroupNormalization": 21, "LayerNormalization": 17}
# With more contested questions in a model, their combinations are not tried.
_MAX_COMBINED_QUESTIONS = 2
_SPECIALS = (np.nan, np.inf, -np.inf)
_TRAINING_DOMAIN = "ai.onnx.preview.training"
# Names of the reformulations of a graph.
_BODIES, _IDENTITIES = "bodies", "identities"


class NoReferenceError(Exception):
    """The condition of the model cannot be estimated. The message states the reason."""


@dataclass(frozen=True, slots=True)
class ConditionedOutput:
    """The expected values of one output.

    Attributes:
        right: pairs of a correct value of the output and the tolerances of its elements, float64.
            An element may match any of the values. The first value is the exact one, rounded to the
            output's dtype; for a discrete output, it is the reference's result, with a tolerance of
            zero. Empty if there is a ``reason``.
        reformulated: like ``right``, for operators that are computed by identities that preserve
            only absolute accuracy; empty if this makes no difference.
        reason: why the condition of this output cannot be estimated; empty if it can.
        units: the tolerance in units; 0 if the tolerances are all zero.
        labels: a description of each pair in ``right``; an empty or missing one stands for none.
        structure: the structure of the output if it is not a tensor, see :func:`structure_of`.
    """

    right: tuple[tuple[Array, Array], ...] = ()
    reformulated: tuple[tuple[Array, Array], ...] = ()
    reason: str = ""
    units: float = 0.0
    structure: Any = None
    labels: tuple[str, ...] = ()

    def with_alternatives(self, alternative: ConditionedOutput, label: str) -> ConditionedOutput:
        """Return an output that also accepts the correct values of an alternative."""
        labels = [*self.labels, *[""] * (len(self.right) - len(self.labels)), label]
        labels += [text or label for text in alternative.labels[1:]]
        return replace(self, right=self.right + alternative.right, labels=tuple(labels))


@dataclass(frozen=True, slots=True)
class Reading:
    """The expected values of all outputs by one reading of each contested question.

    Attributes:
        second: the names of the questions whose second reading applies.
        conditioned_outputs: one per output.
        identities_used: the identities by which operators may be computed, if they make a
            difference.
    """

    second: tuple[str, ...]
    conditioned_outputs: list[ConditionedOutput]
    identities_used: tuple[str, ...] = ()


def all_readings(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str = ""
) -> list[Reading]:
    """Estimate the condition of a model by each reading of the contested questions in it.

    Args:
        model: a model whose operators onnx's reference implements.
        inputs: a value for each input of the graph that must be fed.
        math: the arithmetic that a backend declares, a key of
            :data:`~onnxopt_cli.oracle.rounding.injection.MATH`; or empty.

    Returns:
        The result by the first readings of all questions, then those by other readings that differ.

    Raises:
        NoReferenceError: if the condition cannot be estimated.
    """
    encountered: set[str] = set()
    readings = [_reading(model, inputs, math, encountered=encountered)]
    names = [question.name for question in CONTESTED if question.name in encountered]
    most_at_once = len(names) if len(names) <= _MAX_COMBINED_QUESTIONS else 1
    for count in range(1, most_at_once + 1):
        for second in combinations(names, count):
            # With a second reading, the reference may be unable to run the model.
            with suppress(NoReferenceError):
                reading = _reading(model, inputs, math, second)
                if not any(_same_reading(reading, earlier) for earlier in readings):
                    readings.append(reading)
    return _with_confirmed_derivatives(model, inputs, readings)


def _with_confirmed_derivatives(
    model: onnx.ModelProto, inputs: Mapping[str, Value], readings: list[Reading]
) -> list[Reading]:
    """Return readings in which the unconfirmed elements of derivatives are inconclusive."""
    if not has_gradient(model):
        return readings
    try:
        masks = unconfirmed_elements(model, inputs)
    except Exception as error:
        why = f"the function that Gradient differentiates does not run: {_first_line(error)}"
        raise NoReferenceError(why) from error
    confirmed = []
    for reading in readings:
        outputs = [
            _confirmed_output(output, masks[declared.name])
            for output, declared in zip(
                reading.conditioned_outputs, model.graph.output, strict=True
            )
        ]
        confirmed.append(replace(reading, conditioned_outputs=outputs))
    return confirmed


def _confirmed_output(output: ConditionedOutput, unconfirmed: Array) -> ConditionedOutput:
    if not unconfirmed.any() or output.reason:
        return output
    return replace(
        output,
        right=with_inconclusive_elements(output.right, unconfirmed),
        reformulated=with_inconclusive_elements(output.reformulated, unconfirmed),
        units=output.units or UNITS,
    )


def reference_values(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Any]:
    """Return the outputs of a model, computed in double and rounded to the model's own types.

    A single node with a formula is computed by the formula. It is not lowered, because nodes of old
    opsets cannot be lowered.

    Raises:
        NoReferenceError: if onnx's reference cannot run the model.
    """
    try:
        call = sole_call(model, inputs)
    except NodeError as error:
        raise NoReferenceError(error.message) from error
    if call is not None:
        outputs = dict(zip(model.graph.node[0].output, evaluate(call), strict=True))
        return [outputs[info.name] for info in model.graph.output]
    model = _prepared(model, inputs)
    with corrected():
        try:
            native = ReferenceModel(model).run(inputs)
        except Exception as error:
            raise NoReferenceError(f"onnx's reference: {_first_line(error)}") from error
        try:
            exact = ReferenceModel(model, wide=True).run(inputs)
        except Exception:  # noqa: BLE001 - some operators run in the model's own types only
            return native
    return [*map(rounded_like, exact, native)]


def values_of_nodes(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Array | None]:
    """Return the outputs of consecutive nodes, each computed as :func:`reference_values` would.

    Args:
        model: nodes without subgraphs, in order; all their outputs are outputs of the model. A type
            that an output declares is the type in which later nodes read it.
        inputs: the inputs of the model.

    Returns:
        One entry per output of the model. The evaluation ends, and all further entries are None, if
        onnx's reference cannot run a node, returns another type, or takes much time or memory.
    """
    declared = {info.name: info.type.tensor_type.elem_type for info in model.graph.output}
    values: dict[str, Any] = {}
    remaining, end = _MAX_BYTES_OF_NODES, monotonic() + _SECONDS_OF_NODES
    with corrected(), suppress(Exception):
        native_model = ReferenceModel(model)
        wide_model = ReferenceModel(model, wide=True, like=native_model)
        known = {"": None, **native_model.arrays, **inputs}
        for node, wide_node in zip(native_model.nodes, wide_model.nodes, strict=True):
            outputs = native_model.visits.outputs_of(node, known)
            doubles = {name: widened_value(known[name]) for name in node.input}
            exact = outputs
            # Some operators run in the model's own types only.
            with suppress(Exception), replaced(*in_double()):
                exact = wide_model.visits.outputs_of(wide_node, doubles)
            outputs = [*map(rounded_like, exact, outputs)]
            named = {name: v for name, v in zip(node.output, outputs, strict=False) if name}
            if not all(_has_type(value, declared[name]) for name, value in named.items()):
                break
            values |= named
            known |= named
            remaining -= sum(value.nbytes for value in named.values())
            if remaining < 0 or monotonic() > end:
                break
    return [values.get(name) for name in declared]


def _has_type(value: Any, element: int) -> bool:
    """Return whether a value is a tensor of a declared element type, which may be undefined."""
    if not isinstance(value, np.ndarray):
        return False
    if element == onnx.TensorProto.UNDEFINED:
        return True
    if value.dtype == object:
        return element == onnx.TensorProto.STRING
    return element == helper.np_dtype_to_tensor_dtype(value.dtype)


def node_error_contributions(
    model: onnx.ModelProto, inputs: Mapping[str, Value], returned: Mapping[str, Array]
) -> list[Contribution]:
    """Return the largest contributions of nodes to the error of each output.

    Args:
        model: the model.
        inputs: its inputs.
        returned: outputs of nodes that a backend ran alone, by name.

    Raises:
        NoReferenceError: if onnx's reference cannot run the model.
    """
    model = _prepared(model, inputs)
    with corrected():
        try:
            return error_contributions(model, inputs, returned)
        except Exception as error:
            raise NoReferenceError(f"onnx's reference: {_first_line(error)}") from error


def node_contributions(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Contribution]:
    """Return the largest contributions of nodes to the tolerance of each output.

    Raises:
        NoReferenceError: if onnx's reference cannot run the model.
    """
    model = _prepared(model, inputs)
    visited: list[VisitedNode] = []

    def record(
        node: Any, compute: Compute, operands: Sequence[Any], _index: int
    ) -> tuple[Any, ...]:
        outputs = compute(*operands)
        visited.append(_visited_node(node, operands, outputs))
        return outputs

    with corrected():
        try:
            ReferenceModel(model).run(inputs, record)
            return contributions(model, inputs, visited)
        except Exception as error:
            raise NoReferenceError(f"onnx's reference: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    # Further lines may list all operators of the reference.
    return clipped(exception_text(error).split("\n", 1)[0], _MAX_MESSAGE_CHARS)


def _failure(error: Exception) -> str:
    if operator := unimplemented_operator(error):
        return f"{UNIMPLEMENTED} {printable(operator)}"
    return f"onnx's reference does not run it in double: {_first_line(error)}"


def condition(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str = ""
) -> list[ConditionedOutput]:
    """Estimate the condition of a model by the first readings alone; see :func:`all_readings`."""
    return _reading(model, inputs, math).conditioned_outputs


def _reading(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    second: Sequence[str] = (),
    encountered: set[str] | None = None,
) -> Reading:
    model = _prepared(model, inputs)
    questions = set() if encountered is None else encountered
    with corrected(), replaced(*second_readings(second)):
        outputs = _estimate(model, inputs, math, questions)
    identities_used: tuple[str, ...] = ()
    if any(output.reformulated for output in outputs):
        entries = identities_in(published_body(model, inputs) or model)
        identities_used = tuple(entry.identity_name for entry in entries)
    return Reading(tuple(second), outputs, identities_used)


def _prepared(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> onnx.ModelProto:
    """Return a model in which nodes with a formula of ours are lowered, and gradients expanded.

    A node with a formula is replaced by its lowering, and a Gradient node by the nodes of the
    backward pass. The roundings of each of these nodes count.

    Raises:
        NoReferenceError: if a node breaks its operator's signature, or cannot be lowered.
    """
    try:
        if has_gradient(model):
            model = expand_gradients(model, inputs, native_outputs)
        lowered = lower(model).model if formula_operators(model) else model
        return with_bound_functions(lowered)
    except NodeError as error:
        raise NoReferenceError(error.message) from error


def _same_reading(first: Reading, second: Reading) -> bool:
    """Return whether two readings accept the same outputs, bitwise."""
    return all(
        a.reason == b.reason
        and _same_values(a.right, b.right)
        and _same_values(a.reformulated, b.reformulated)
        for a, b in zip(first.conditioned_outputs, second.conditioned_outputs, strict=True)
    )


def _same_values(
    first: Sequence[tuple[Array, Array]], second: Sequence[tuple[Array, Array]]
) -> bool:
    """Return whether correct values and their tolerances are bitwise equal."""
    return len(first) == len(second) and all(
        np.array_equal(a, b, equal_nan=a.dtype != object)
        for pairs in zip(first, second, strict=True)
        for a, b in zip(*pairs, strict=True)
    )


def _estimate(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str, encountered: set[str]
) -> list[ConditionedOutput]:
    """Estimate the condition of a model; see :func:`all_readings`.

    Args:
        model: the model.
        inputs: its inputs.
        math: the declared arithmetic.
        encountered: receives the contested questions that nodes of the model raise.
    """
    nodes = list(all_nodes(model))
    shared = _Shared(math, encountered, _shared_prefix(model))
    if why := next(filter(None, map(unsupported_reason, nodes)), ""):
        raise NoReferenceError(f"onnx's reference {why}")
    try:
        if {node.op_type for node in nodes} <= DEFINED:
            first_run = _FirstRun(shared, is_model=True, is_node=len(nodes) == 1)
            return [
                _defined_output(value) for value in ReferenceModel(model).run(inputs, first_run)
            ]
        evaluations = _evaluate(model, inputs, shared)
    except (NoReferenceError, MemoryError):
        raise
    except Exception as error:
        if any(map(is_short, inputs.values())) and len(nodes) == 1:
            # Some published bodies combine constants of float32 with operands of any type, which is
            # an error for 16-bit operands.
            return _estimate_in_single(model, inputs, math, encountered)
        raise NoReferenceError(_failure(error)) from error
    bodies = _evaluate_bodies(model, inputs, shared, evaluations)
    columns = list(zip(evaluations, bodies, strict=True) if bodies else zip(evaluations))
    outputs = list(map(_conditioned_output, columns))
    for index, evaluation in enumerate(_evaluate_identities(model, inputs, shared)):
        wider = _conditioned_output((*columns[index], evaluation)).right
        if not _same_values(outputs[index].right, wider):
            outputs[index] = replace(outputs[index], reformulated=wider)
    if operator_names(model) == ("Attention",):
        outputs = list(map(_with_lowest_scores, outputs))
    if _INTEGERS in encountered:
        outputs = _with_either_integer(model, inputs, outputs)
    return _with_flushed_inputs(model, inputs, math, encountered, outputs)


def _shared_prefix(model: onnx.ModelProto) -> SharedPrefix:
    """Return the nodes that a graph has in common with its reformulations."""
    if len(model.graph.node) == 1:
        return SharedPrefix({})
    by_identity = {
        operator for entry in identities_in(model) for operator in (entry.operator, *entry.within)
    }
    changed = {_BODIES: {*subtracting_operators(model)}, _IDENTITIES: by_identity}
    return SharedPrefix.of(
        model, {name: operators for name, operators in changed.items() if operators}
    )


def _defined_output(output: Any) -> ConditionedOutput:
    """Return the expected values of an output whose operators have exactly one correct result."""
    if not isinstance(output, np.ndarray):
        return ConditionedOutput(reason="it is not a tensor", structure=structure_of(output))
    exact, flushed = np.zeros(output.shape), np.asarray(_flushed(output))
    defined = ConditionedOutput(((output, exact),))
    if flushed is output:
        return defined
    return defined.with_alternatives(ConditionedOutput(((flushed, exact),)), _FLUSHED)


def _estimate_in_single(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str, encountered: set[str]
) -> list[ConditionedOutput]:
    """Estimate the only node of a model in float32, and round its outputs to 16 bits."""
    single = {name: single_value(value) for name, value in inputs.items()}
    outputs = _estimate(widened(model, SINGLE), single, math, encountered)
    return [
        _narrowed(conditioned_output, output.type.tensor_type.elem_type)
        for conditioned_output, output in zip(outputs, model.graph.output, strict=True)
    ]


def _narrowed(conditioned_output: ConditionedOutput, elem_type: int) -> ConditionedOutput:
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    if not conditioned_output.right or ROUNDOFF.get(dtype, 0) <= SINGLE_ROUNDOFF:
        return conditioned_output
    right = [
        _alternative(value.astype(np.float64), SHORT_UNITS * ROUNDOFF[dtype], tolerance, dtype)
        for value, tolerance in conditioned_output.right
    ]
    return replace(conditioned_output, right=tuple(right))


@dataclass(frozen=True, slots=True)
class _Shared:
    """State that the evaluations of a model and of its reformulations share.

    Attributes:
        math: the declared arithmetic.
        encountered: receives the contested questions that nodes of the model raise.
        prefix: the nodes before the first that is reformulated.
        classes: the classes of nodes that ran, by node and types of operands.
        unchanged: models without replaced operators, each with whether it computes in double, and
            the reference model that runs it.
    """

    math: str
    encountered: set[str]
    prefix: SharedPrefix = field(default_factory=lambda: SharedPrefix({}))
    classes: dict[object, NodeClass] = field(default_factory=dict)
    unchanged: list[tuple[onnx.ModelProto, bool, ReferenceModel]] = field(default_factory=list)

    def reference_model(
        self,
        model: onnx.ModelProto,
        expanded: Sequence[str],
        functions: Mapping[str, onnx.FunctionProto] | None,
        *,
        wide: bool = False,
    ) -> ReferenceModel:
        """Return a reference model that shares initializers and nodes with earlier ones.

        See :class:`~onnxopt_cli.oracle.evaluator.ReferenceModel` for the arguments.
        """
        same = [(known, like) for proto, known, like in self.unchanged if proto is model]
        like = dict(same).get(wide) or next((like for _, like in same), None)
        created = ReferenceModel(model, expanded, functions, wide=wide, like=like)
        if not expanded and not functions:
            self.unchanged.append((model, wide, created))
        return created


@dataclass
class _Evaluation:
    """One output of a model, computed by one reformulation of it.

    Attributes:
        native: the output in the model's own types.
        exact: the output in double.
        perturbed: the output in double in each perturbed run; empty if no run moves it.
        finely_perturbed: like ``perturbed``, with roundings divided by 64; empty if the output
            crosses no discontinuity.
        sequential: the outputs in the model's own types with sequential sums, one per algorithm;
            empty if no sum is long.
        out_of_range: further outputs in the model's own types if an intermediate result leaves the
            range of its type: unchanged, with subnormal numbers flushed to zero, and with NaN or
            infinity spread by a fast algorithm.
        underflows: whether an intermediate result within a node underflows.
        overflows: whether an intermediate result overflows.
        step: the size of the injected roundings, in roundings of the model's types.
        accumulation: operator and kind of a model's only node if it accumulates 16-bit operands;
            else None.
        elementwise: whether the model is a single node that rounds each element of its outputs
            once.
        units: the tolerance in units.
        direct_bound: the largest error of each element by a direct evaluation of a single node;
            None if it is not bounded.
    """

    native: Any
    exact: Any
    perturbed: Sequence[Any]
    finely_perturbed: Sequence[Any] = ()
    sequential: list[Any] = field(default_factory=list)
    out_of_range: list[Any] = field(default_factory=list)
    underflows: bool = False
    overflows: bool = False
    step: float = 1.0
    accumulation: tuple[str, NodeKind] | None = None
    elementwise: bool = False
    units: float = UNITS
    direct_bound: Array | None = None

    @cached_property
    def movements(self) -> list[tuple[Array, Array]]:
        """The movement of each element in each perturbed run, and the moved output."""
        return [*_distances(self.perturbed, self.exact)]


def _evaluate_bodies(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    shared: _Shared,
    evaluations: Sequence[_Evaluation],
) -> list[_Evaluation]:
    """Evaluate the function bodies that ONNX publishes for a model's nodes.

    Args:
        model: the model.
        inputs: its inputs.
        shared: the state that evaluations share.
        evaluations: the evaluations of the model itself, one per output.

    Returns:
        One evaluation per output; none if no node has an accepted body.
    """
    bodies = _evaluate_stable_bodies(model, inputs, shared, evaluations[0].accumulation)
    return [
        _without_overflow(body, evaluation.exact)
        for body, evaluation in zip(bodies, evaluations, strict=False)
    ]


def _evaluate_stable_bodies(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    shared: _Shared,
    accumulation: tuple[str, NodeKind] | None,
) -> list[_Evaluation]:
    """Evaluate the published bodies of the operators whose bodies are stable; empty if none is."""
    if not WINDOWS.keys().isdisjoint(operator_names(model)) and len(model.graph.node) == 1:
        # The scale of a window's error already bounds the roundings of the published body.
        return []
    try:
        if accumulation:
            return _evaluate_accumulating_body(model, inputs, shared, accumulation)
        if body := published_body(model, inputs):
            return _evaluate(body, inputs, shared, CALLED)
        expanded = subtracting_operators(model)
        return _evaluate(model, inputs, shared, expanded, name=_BODIES) if expanded else []
    except MemoryError:
        # Tolerances without the body would be too narrow.
        raise
    except Exception:  # noqa: BLE001 - onnx's reference may lack an operator of the body
        return []


def _without_overflow(body: _Evaluation, exact: Any) -> _Evaluation:
    """Return an evaluation with the exact values of elements that overflow in it alone.

    The body of ``Softplus``, log(exp(x) + 1), is infinite in float32 from 89 on. Such a body loses
    all digits of a result that onnx's reference computes, so it is not an accepted reformulation
    there. An overflow of the reference in the model's own types is accepted all the same.

    Args:
        body: the evaluation of an output by the published body.
        exact: the output in double, computed by onnx's reference.
    """
    return replace(
        body,
        native=finite_like(body.native, exact),
        exact=finite_like(body.exact, exact),
        perturbed=[finite_like(output, exact) for output in body.perturbed],
        finely_perturbed=[finite_like(output, exact) for output in body.finely_perturbed],
        sequential=[finite_like(output, exact) for output in body.sequential],
        out_of_range=[finite_like(output, exact) for output in body.out_of_range],
    )


def _evaluate_accumulating_body(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    shared: _Shared,
    accumulation: tuple[str, NodeKind],
) -> list[_Evaluation]:
    """Evaluate the published body of a node that accumulates 16-bit operands."""
    if takes_exact_operands(*accumulation) and accumulation[0] not in SHIFTED:
        single = {name: single_value(value) for name, value in inputs.items()}
        body = published_body(widened(model, SINGLE), single)
        evaluations = _evaluate(body, single, shared, CALLED) if body else []
        for evaluation in evaluations:
            # Accept as many roundings of float32 as for a float32 model.
            evaluation.step *= SHORT_UNITS / UNITS
        return evaluations
    body = published_body(model, inputs)
    evaluations = _evaluate(body, inputs, shared, CALLED) if body else []
    for evaluation in evaluations:
        # The node computes in float32: an overflow of its body in 16 bits is not evidence of one.
        evaluation.native, evaluation.out_of_range = evaluation.exact, []
    return evaluations


def _evaluate_identities(
    model: onnx.ModelProto, inputs: Mapping[str, Value], shared: _Shared
) -> list[_Evaluation]:
    """Evaluate a model by the identities that are accepted for its nodes; empty without any."""
    try:
        model = published_body(model, inputs) or model
        if not (entries := identities_in(model)):
            return []
        expanded = [name for entry in entries for name in entry.within]
        evaluations = _evaluate(model, inputs, shared, expanded, identities(), name=_IDENTITIES)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as for published bodies
        return []
    for evaluation in evaluations:
        if _coarsest([evaluation.native]) > SINGLE_ROUNDOFF:
            # The identity ran in 16 bits; runtimes compute it in float32.
            evaluation.native = evaluation.exact
    return evaluations


@dataclass
class _FirstRun:
    """The visitor of the first run of a model in its own types.

    Attributes:
        shared: the state that evaluations of the model and of its reformulations share.
        is_model: whether the run is that of the model itself, not of a reformulation.
        is_node: whether the model consists of one node.
        visited: the nodes that ran.
        types: for each of these nodes, the dtypes of its outputs.
        range_events: the events by which intermediate results leave the range of their types.
        special_events: other events by which outputs may become NaN or infinite: a fast algorithm
            mixes such a value with other elements, or a sum overflows in another order of its
            terms.
    """

    shared: _Shared
    is_model: bool
    is_node: bool
    visited: list[VisitedNode] = field(default_factory=list)
    types: list[list[np.dtype[Any] | None]] = field(default_factory=list)
    range_events: set[str] = field(default_factory=set)
    special_events: set[str] = field(default_factory=set)

    def __call__(
        self, node: Any, compute: Compute, operands: Sequence[Any], _index: int
    ) -> tuple[Any, ...]:
        is_complete = not node.has_linked_attribute
        if is_complete and (why := excluded_input(node.onnx_node, operands, is_model=self.is_node)):
            raise NoReferenceError(why)
        self.shared.encountered.update(questions_at(node, operands))
        self.shared.encountered.update([_INTEGERS] * _interpolates_integers(node, operands))
        outputs = compute(*operands)
        self.range_events.update(_range_events(operands, outputs))
        self.special_events.update([_SPREADS] * mixes_infinite(node, operands))
        self.special_events.update([_REORDERED] * may_overflow(node.op_type, operands))
        self.visited.append(_visited_node(node, operands, outputs))
        self.types.append(dtypes_of(outputs))
        if self.is_model:
            self.shared.prefix.observe(node, operands, outputs)
        if len(self.visited) > _MAX_VISITS:
            raise NoReferenceError(f"it runs more than {_MAX_VISITS} nodes")
        return outputs


def _evaluate(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    shared: _Shared,
    expanded: Sequence[str] = (),
    functions: Mapping[str, onnx.FunctionProto] | None = None,
    name: str = "",
) -> list[_Evaluation]:
    """Run a model in its own types, in double, and in double with injected roundings.

    Args:
        model: the model.
        inputs: its inputs.
        shared: the state that evaluations of the model and of its reformulations share.
        expanded: operators that are replaced by their published function bodies.
        functions: functions that replace operators.
        name: the name of the reformulation; empty for the model itself.

    Returns:
        One evaluation per output.
    """
    is_node = len(list(all_nodes(model))) == 1
    first_run = _FirstRun(shared, is_model=not name, is_node=is_node)
    range_events = first_run.range_events
    reference_model = partial(shared.reference_model, model, expanded, functions)
    native_model = reference_model()
    with _numpy_range_events(range_events):
        native = native_model.run(inputs, first_run)
    if not name:
        shared.prefix.observe_end(native)
    run = partial(shared.prefix.run, name)
    wide_model = reference_model(wide=True)
    doubles = {key: widened_value(value) for key, value in inputs.items()}
    create_recorder = partial(SiteRecorder, first_run.visited, shared.math, shared.classes)
    exact, recorder = run("exact", wide_model, doubles, create_recorder)
    in_short = requests_short_sums(model)
    visitor = compute_only if in_short else recorder.native_visitor(first_run.types)
    if visitor is not compute_only:
        native = _run_with_range_events(native_model, inputs, visitor, range_events)
    perturbed_outputs = partial(
        _perturbed_outputs,
        run,
        wide_model,
        doubles,
        recorder.sites,
        peak_bytes=wide_model.visits.peak_bytes,
    )
    perturbed = perturbed_outputs(recorder.step) if recorder.has_movements else [()] * len(native)
    columns = zip(native, exact, perturbed, strict=True)
    evaluations = [_Evaluation(*column, step=recorder.step) for column in columns]
    # Subnormal numbers are rounded to a few values, which act as discontinuities.
    rounds_coarsely = not range_events.isdisjoint({_UNDERFLOW, _SUBNORMAL})
    if (recorder.may_jump or rounds_coarsely) and any(map(_may_have_jumped, evaluations)):
        finely_perturbed = perturbed_outputs(recorder.step / _FINER)
        for evaluation, outputs in zip(evaluations, finely_perturbed, strict=True):
            evaluation.finely_perturbed = outputs
    sequential = []
    for key, algorithm in _sequential_algorithms(recorder.sites).items():
        with algorithm:
            sequential.append(run(key, native_model, inputs, lambda: compute_only)[0])
    if recorder.direct_bound is not None:
        roundoff = recorder.sites[0].roundoff
        evaluations[0].direct_bound = roundoff * recorder.direct_bound
    events = range_events | first_run.special_events
    out_of_range = _out_of_range_outputs(native_model, inputs, native, events, visitor)
    if _REORDERED in events:
        visitors = (partial(_overflowing, visitor, recorder.sites, value) for value in _SPECIALS)
        reordered = [native_model.run(inputs, overflowing) for overflowing in visitors]
        out_of_range += [outputs for outputs in reordered if not _same_outputs(outputs, native)]
    for index, evaluation in enumerate(evaluations):
        evaluation.sequential = [outputs[index] for outputs in sequential]
        evaluation.elementwise = recorder.elementwise
        evaluation.accumulation = None if visitor is compute_only else recorder.accumulation
        evaluation.overflows = _OVERFLOW in range_events
        evaluation.underflows = _UNDERFLOW in range_events
        evaluation.out_of_range = [outputs[index] for outputs in out_of_range]
        # 16-bit outputs are computed in float32, and rounded a few times.
        if _coarsest([evaluation.native]) > SINGLE_ROUNDOFF and shared.math != "float16-sums":
            evaluation.units = SHORT_UNITS
    return evaluations


def _visited_node(node: Any, operands: Sequence[Any], outputs: Sequence[Any]) -> VisitedNode:
    before, after = _coarsest(operands), _coarsest(outputs)
    # The input R of a training operator, and values that depend on R alone, may be float32 while
    # the tensors are doubles.
    mixed = node.onnx_node.domain == _TRAINING_DOMAIN
    roundoff = max(before, after) if mixed else after or before
    if node.op_type in GRIDS:
        # Where positions move by roundings of float32, roundings of double would have no effect.
        roundoff = max(roundoff, min(before, SINGLE_ROUNDOFF))
    if _normalizes_in_single(node):
        roundoff = max(roundoff, SINGLE_ROUNDOFF)
    if node.onnx_node.name == WITHIN:
        roundoff = min(roundoff, SINGLE_ROUNDOFF)
    # Positions from a grid may be computed in the type of the grid. Other positions follow from
    # scales, which are float32.
    position_roundoff = (
        max(before, after) if node.op_type in GRIDS else min(roundoff, SINGLE_ROUNDOFF)
    )
    return VisitedNode(node.op_type, roundoff, position_roundoff, narrows=after > before > 0)


def _normalizes_in_single(node: Any) -> bool:
    """Return whether the ``stash_type`` of a node asks for statistics in float32."""
    if node.opset < _STASHING.get(node.op_type, node.opset + 1):
        return False
    stated = [item.i for item in node.onnx_node.attribute if item.name == "stash_type"]
    return not stated or stated[0] == onnx.TensorProto.FLOAT


def _coarsest(values: Sequence[Any]) -> float:
    """Return the largest unit roundoff of some values; 0 if they are all discrete."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    return max((ROUNDOFF.get(array.dtype, 0.0) for array in arrays), default=0.0)


def _perturbed_outputs(
    run: Callable[..., tuple[list[Any], Visitor]],
    wide_model: ReferenceModel,
    inputs: Mapping[str, Value],
    sites: Sequence[RoundingSite],
    step: float,
    *,
    peak_bytes: int,
) -> list[tuple[Any, ...]]:
    """Return for each output its values in all perturbed runs."""

    def outputs(runs: Sequence[int]) -> list[Any]:
        create_injector = partial(Injector, sites, step, runs)
        return run((step, tuple(runs)), wide_model, inputs, create_injector)[0]

    return [*zip(*outputs_of_runs(outputs, RUNS, peak_bytes), strict=True)]


def _sequential_algorithms(
    sites: Sequence[RoundingSite],
) -> dict[str, AbstractContextManager[None]]:
    """Return context managers that make sums sequential, by algorithm; empty without long sums."""
    if not any(map(has_long_sums, sites)):
        return {}
    operators = {site.op_type for site in sites}
    algorithms = {
        "from the first term": sequential_sums(),
        "from the last term": sequential_sums(from_last=True),
    }
    if not operators.isdisjoint(MEANS):
        algorithms["of scaled terms"] = sequential_sums(scaled=True)
        algorithms["updated"] = sequential_sums(updated=True)
    if not operators.isdisjoint(OPERATORS):
        blocks = in_one_pass(of_logarithms="ReduceLogSumExp" in operators)
        algorithms |= {f"in one pass, {place}": block for place, block in enumerate(blocks)}
    return algorithms


def _numpy_range_events(events: set[str]) -> AbstractContextManager[Any]:
    """Return a context manager that records overflow and underflow that NumPy reports."""
    return np.errstate(over="call", under="call", call=lambda event, _: events.add(event))


def _range_events(operands: Sequence[Any], outputs: Sequence[Any]) -> Iterator[str]:
    """Yield the events by which a node's outputs leave the range of their types."""
    tensors = _float_tensors(outputs)
    if any(_flushed(tensor) is not tensor for tensor in tensors):
        yield _SUBNORMAL
    # Outputs are seldom infinite, so they are examined before the operands.
    if any(np.isinf(tensor).any() for tensor in tensors) and all(
        np.isfinite(operand).all() for operand in _float_tensors(operands)
    ):
        yield _OVERFLOW


def _float_tensors(values: Sequence[Any]) -> list[Array]:
    return [v for v in values if isinstance(v, np.ndarray) and v.dtype in ROUNDOFF]


def _run_with_range_events(
    native_model: ReferenceModel, inputs: Mapping[str, Value], visitor: Visitor, events: set[str]
) -> list[Any]:
    """Run a model with a visitor; replace the recorded events by the events of this run."""
    events.clear()

    def record(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
        outputs = visitor(node, compute, operands, index)
        events.update(_range_events(operands, outputs))
        return outputs

    with _numpy_range_events(events):
        return native_model.run(inputs, record)


def _out_of_range_outputs(
    native_model: ReferenceModel,
    inputs: Mapping[str, Value],
    native: list[Any],
    events: set[str],
    visitor: Visitor,
) -> list[list[Any]]:
    """Return further outputs of a model if an intermediate result leaves the range of its type."""
    small = not events.isdisjoint({_SUBNORMAL, _UNDERFLOW})
    results = [native] if small or _OVERFLOW in events else []
    if small:
        results.append(native_model.run(inputs, partial(_flushing, visitor)))
    if _SPREADS in events:
        visitors = [partial(_spreading, visitor, special) for special in _SPECIALS]
        results += [native_model.run(inputs, spreading) for spreading in visitors]
    return results


def _flushing(
    visitor: Visitor, node: Any, compute: Compute, operands: Sequence[Any], index: int
) -> list[Any]:
    outputs = visitor(node, compute, operands, index)
    return [_flushed(with_flushed_root(node, operands, output)) for output in outputs]


def _flushed(value: Value) -> Value:
    """Return a tensor with zeros for subnormal numbers; itself if it has none."""
    if not isinstance(value, np.ndarray) or value.dtype not in ROUNDOFF:
        return value
    small = (value != 0) & (np.abs(value) < smallest_normal(value.dtype))
    return np.where(small, value.dtype.type(0), value) if small.any() else value


def _spreading(
    visitor: Visitor,
    special: float,
    node: Any,
    compute: Compute,
    operands: Sequence[Any],
    index: int,
) -> Sequence[Any]:
    outputs = visitor(node, compute, operands, index)
    if not mixes_infinite(node, operands):
        return outputs
    return [spread(node, operands, outputs[0], special), *outputs[1:]]


def _overflowing(
    visitor: Visitor,
    sites: Sequence[RoundingSite],
    special: float,
    node: Any,
    compute: Compute,
    operands: Sequence[Any],
    index: int,
) -> Sequence[Any]:
    outputs = visitor(node, compute, operands, index)
    same_node = index < len(sites) and sites[index].op_type == node.op_type
    if not same_node or not may_overflow(node.op_type, operands):
        return outputs
    node_class = sites[index].node_class
    return [
        with_overflow(node, node_class, compute, operands, outputs[0], special),
        *outputs[1:],
    ]


def _same_outputs(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether two lists of outputs have equal tensors; other values are ignored."""
    return all(
        np.array_equal(a, b, equal_nan=a.dtype in ROUNDOFF)
        for a, b in zip(first, second, strict=True)
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    )


def _conditioned_output(evaluations: Sequence[_Evaluation]) -> ConditionedOutput:
    """Return the expected values of an output, given its evaluations by several reformulations."""
    native, exact = evaluations[0].native, evaluations[0].exact
    if not isinstance(native, np.ndarray) or not isinstance(exact, np.ndarray):
        return ConditionedOutput(reason="it is not a tensor", structure=structure_of(native))
    if native.shape != exact.shape:
        return ConditionedOutput(reason="its shape depends on the type that it is computed in")
    perturbed = evaluations[0].perturbed
    if perturbed and all(np.shape(output) != exact.shape for output in perturbed):
        return ConditionedOutput(reason="its shape depends on roundings")
    if native.dtype not in ROUNDOFF:
        return ConditionedOutput(tuple(_discrete_values(evaluations, native)))
    return _float_output(evaluations, native, exact)


def _discrete_values(
    evaluations: Sequence[_Evaluation], native: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield the value of a discrete output, then other values that roundings may lead to."""
    values: list[Array] = []
    for evaluation in evaluations:
        for value in (evaluation.native, evaluation.exact, *evaluation.perturbed):
            if values and (native.dtype == object or getattr(value, "dtype", None) != native.dtype):
                continue
            same_shape = value.shape == native.shape
            if same_shape and not any(np.array_equal(value, earlier) for earlier in values):
                values.append(value)
                yield value, np.zeros(native.shape)


def _float_output(
    evaluations: Sequence[_Evaluation], native: Array, exact: Array
) -> ConditionedOutput:
    """Return the expected values of a floating-point output."""
    roundoff, tiny = ROUNDOFF[native.dtype], smallest_normal(native.dtype)
    rounding = np.nan_to_num(roundoff * np.abs(exact).astype(np.float64), posinf=0.0)
    units = evaluations[0].units
    alternatives: list[tuple[Array, str]] = []
    unit, jumps = _largest_unit(evaluations, exact, rounding)
    alternatives += [(value, "") for value in jumps]
    if unit is None:
        unit = np.zeros(exact.shape)
    else:
        overflows = any(evaluation.overflows for evaluation in evaluations)
        underflows = any(evaluation.underflows for evaluation in evaluations)
        for distance, value in _distances(
            [v for evaluation in evaluations for v in (evaluation.native, evaluation.exact)], exact
        ):
            close = distance <= _REFORMULATION_UNITS * np.maximum(unit, rounding) + tiny
            if underflows:
                # Subnormal intermediate results have few significant digits.
                close |= distance <= np.abs(exact) / _REFORMULATION_UNITS
            unit = np.where(close, np.maximum(unit, distance * _REFORMULATION_SHARE), unit)
            infinite = ~np.isfinite(value) & overflows
            lost = np.isfinite(exact) & (infinite | ((value == 0) & (exact != 0)))
            if lost.any():
                alternatives.append((np.where(lost, value, exact), _OUT_OF_RANGE))
        unit = _bounded(unit, evaluations[0])
        for distance, value in _distances(
            [v for evaluation in evaluations for v in evaluation.out_of_range], exact
        ):
            different = distance > _REFORMULATION_UNITS * np.maximum(unit, rounding) + tiny
            if different.any():
                alternatives.append((np.where(different, value, exact), _OUT_OF_RANGE))
        for distance, value in _distances(
            [v for evaluation in evaluations for v in evaluation.sequential], exact
        ):
            # The error of a normalized element is relative to the mean, so it may exceed 2^14
            # roundings of the element. It is compared with units and the largest output, too.
            share = np.minimum(
                _MAX_SEQUENTIAL_ERROR * unit, largest_magnitude(exact) / _SEQUENTIAL_SHARE
            )
            close = distance <= np.maximum(_MAX_SEQUENTIAL_ERROR * rounding, share)
            different = ~close & (distance <= _MAX_SEQUENTIAL_ERROR * unit)
            if different.any():
                alternatives.append((np.where(different, value, exact), _SEQUENTIAL))
            unit = np.maximum(unit, np.where(close, distance, 0.0) * 2 / units)
    tolerance = units * unit
    # A device may flush an element that may be subnormal.
    tolerance = tolerance + np.where(np.abs(exact) - tolerance < tiny, tiny, 0.0)
    branches = (
        _alternative(value, units * roundoff, tolerance, native.dtype) for value, _ in alternatives
    )
    right = ((exact.astype(native.dtype), tolerance), *branches)
    has_tolerance = any(limit.any() for _, limit in right)
    labels = ("", *(label for _, label in alternatives))
    return ConditionedOutput(right, units=units if has_tolerance else 0.0, labels=labels)


def _largest_unit(
    evaluations: Sequence[_Evaluation], exact: Array, rounding: Array
) -> tuple[Array | None, list[Array]]:
    """Return the units of an output, and its values on other sides of discontinuities.

    Args:
        evaluations: the evaluations of an output by several reformulations.
        exact: the output in double.
        rounding: the size of a rounding of each element.

    Returns:
        The movement of each element by one rounding, or None if the output is not rounded; and the
        values.
    """
    unit, values, rounds = np.zeros(exact.shape), [], False
    for evaluation in evaluations:
        moved, jumps = _unit(evaluation, exact)
        rounds |= evaluation.elementwise or bool((moved > 0).any())
        unit = np.maximum(unit, moved)
        values += jumps
    return np.maximum(unit, rounding) if rounds else None, values


def _bounded(unit: Array, evaluation: _Evaluation) -> Array:
    """Limit units so that the tolerance does not exceed the error of direct evaluations."""
    bound = evaluation.direct_bound
    if bound is None or bound.shape != unit.shape:
        return unit
    return np.where(np.isfinite(bound), np.minimum(unit, bound / evaluation.units), unit)


def _unit(evaluation: _Evaluation, exact: Array) -> tuple[Array, list[Array]]:
    """Return the units of an output in one evaluation, and its values beyond discontinuities."""
    unit = np.zeros(exact.shape)
    if np.shape(evaluation.exact) != exact.shape:
        return unit, []
    # Where a perturbed run overflows or takes the root of a negative number, only the other runs
    # measure the movement.
    movements, fine_movements = (
        [(np.where(np.isfinite(distance), distance, 0.0), value) for distance, value in pairs]
        for pairs in (
            evaluation.movements,
            _distances(evaluation.finely_perturbed, evaluation.exact),
        )
    )
    largest, finest = (
        reduce(np.maximum, (distance for distance, _ in pairs), unit)
        for pairs in (movements, fine_movements)
    )
    # The movement is proportional to the roundings, at the minimum of an even function to their
    # squares, and at the zero of a root to their square roots. Any other ratio of the movements by
    # large and small roundings reveals a discontinuity.
    jumps = ((finest > largest / 4) | (finest < largest / (8 * _FINER**2))) & (largest > 0)
    jumps &= bool(fine_movements)
    values: list[Array] = []
    without_root = reduce(
        np.logical_or, (np.isnan(value) for _, value in movements), np.zeros(exact.shape, bool)
    )
    if (without_root & np.isfinite(exact)).any():
        values.append(np.where(without_root, np.nan, exact))
    for distance, value in movements:
        jumped = jumps & (distance > largest / 4)
        unit = np.maximum(unit, np.where(jumped, 0.0, distance))
        beyond = np.where(jumped, value, exact)
        if jumped.any() and not any(np.array_equal(beyond, v, equal_nan=True) for v in values):
            values.append(beyond)
    return unit / evaluation.step, values


def _may_have_jumped(evaluation: _Evaluation) -> bool:
    """Return whether a movement of an output is large enough to cross a discontinuity."""
    native, exact = evaluation.native, evaluation.exact
    if not is_wide(exact) or getattr(native, "dtype", None) not in ROUNDOFF:
        return False
    share = min(4096 * ROUNDOFF[native.dtype] * evaluation.step, 0.02)
    limit = share * largest_magnitude(exact)
    return any((distance > limit).any() for distance, _ in evaluation.movements)


def _distances(values: Sequence[Any], exact: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the distance of each value from the exact one, and the value in double.

    Values of other shapes are omitted.
    """
    for value in values:
        wide: Any = widened_value(value)
        if is_wide(wide) and wide.shape == exact.shape:
            distance = np.abs(wide - exact).astype(np.float64)
            same = (wide == exact) | (np.isnan(wide) & np.isnan(exact))
            yield np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance)), wide


def _alternative(
    value: Array, relative: float, tolerance: Array, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Return an alternative in an output's dtype, and its tolerances.

    Args:
        value: the alternative in double.
        relative: its relative tolerance.
        tolerance: the tolerances of the exact value, which are the least of the alternative.
        dtype: the dtype of the output.
    """
    relative_tolerance = relative * np.abs(value)
    finite = np.where(np.isfinite(relative_tolerance), relative_tolerance, 0.0)
    return value.astype(dtype), np.maximum(tolerance, finite)


def _with_lowest_scores(conditioned_output: ConditionedOutput) -> ConditionedOutput:
    """Accept the lowest finite number for a masked score of -inf."""
    for expected, tolerance in conditioned_output.right[:1]:
        masked = np.isneginf(expected) if expected.dtype in ROUNDOFF else np.zeros(1)
        if masked.any():
            lowest = float(ml_dtypes.finfo(expected.dtype).min)  # type: ignore[no-untyped-call]
            scores = np.where(masked, lowest, expected).astype(expected.dtype)
            # A finite bias may have been added to the lowest number.
            near = np.where(masked, UNITS * ROUNDOFF[expected.dtype] * -lowest, tolerance)
            with_lowest = conditioned_output.with_alternatives(
                ConditionedOutput(((scores, near),)), _LOWEST
            )
            return replace(with_lowest, units=UNITS)
    return conditioned_output


def _interpolates_integers(node: Any, operands: Sequence[Any]) -> bool:
    return node.op_type in INTERPOLATING and operands[0].dtype.kind in "iu"


def _with_either_integer(
    model: onnx.ModelProto, inputs: Mapping[str, Value], outputs: Sequence[ConditionedOutput]
) -> list[ConditionedOutput]:
    """Accept both integers next to a number that is interpolated between integers.

    If the coordinates are rounded, a number close to an integer may be moved across it.
    """
    neighbours = []
    for toward, away in ((np.floor, -1.0), (np.ceil, 1.0)):
        with (
            replaced((INTEGER_ROUNDING, "toward", toward)),
            replaced((onnx.numpy_helper, "saturate_cast", whole_numbers)),
        ):
            neighbours.append(ReferenceModel(model).run(inputs))
            neighbours += _beyond_integers(model, inputs, toward, away)
    return [
        output
        if output.reason
        else replace(
            output, right=output.right + tuple((value, np.zeros(value.shape)) for value in values)
        )
        for output, *values in zip(outputs, *neighbours, strict=True)
    ]


def _beyond_integers(
    model: onnx.ModelProto, inputs: Mapping[str, Value], toward: Any, away: float
) -> list[list[Any]]:
    """Return outputs rounded down or up after errors of coordinates; empty if these are exact.

    Args:
        model: a model that interpolates between integers.
        inputs: its inputs.
        toward: the function that rounds, ``np.floor`` or ``np.ceil``.
        away: the sign of an error that moves a number across an integer in that direction.
    """
    is_rounded = False

    def moved_by(sign: float, size: Array) -> Array:
        nonlocal is_rounded
        is_rounded = True
        return np.asarray(sign * UNITS * SINGLE_ROUNDOFF * size)

    def visit(node: Any, compute: Compute, operands: Sequence[Any], _index: int) -> Sequence[Any]:
        nonlocal is_rounded
        place = GRIDS.get(node.op_type)
        if place is not None and node.op_type in INTERPOLATING:
            is_rounded |= bool(coordinate_errors(node.op_type, operands[place]).any())
        return compute(*operands)

    def beyond(values: Array) -> Array:
        error = UNITS * SINGLE_ROUNDOFF * np.abs(values)
        return np.asarray(toward(values + away * error))

    results = []
    with replaced((INTEGER_ROUNDING, "toward", beyond), (INTEGER_ROUNDING, "tolerance", 0.0)):
        for sign in (-1.0, 1.0):
            with moved_coordinates(partial(moved_by, sign), selects=True):
                results.append(ReferenceModel(model).run(inputs, visit))
    return results if is_rounded else []


def _with_flushed_inputs(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    encountered: set[str],
    outputs: list[ConditionedOutput],
) -> list[ConditionedOutput]:
    """Accept the outputs of a device that flushes subnormal inputs to zero."""
    flushed = {name: _flushed(value) for name, value in inputs.items()}
    if all(value is inputs[name] for name, value in flushed.items()):
        return outputs
    results = []
    for output, alternative in zip(
        outputs, _estimate(model, flushed, math, encountered), strict=True
    ):
        wider = alternative.reformulated or alternative.right
        reformulated = output.reformulated and output.reformulated + wider
        extended = output.with_alternatives(alternative, _FLUSHED)
        results.append(replace(extended, reformulated=reformulated))
    return results
