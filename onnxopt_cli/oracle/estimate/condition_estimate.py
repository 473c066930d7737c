"""The condition estimate: exact values of a model's outputs, and tolerances for them.

A model without a formula runs on onnx's reference in double: once without injected roundings (the
exact run), and eight times with them (the perturbed runs). The injected roundings are those of the
model's own types (:mod:`~onnxopt_cli.oracle.rounding.injection`). For each element, the exact run
gives the value y, and the perturbed runs give the values y_r. Other correct computations of the
model, its reformulations, give the values z. A reformulation computes in the model's own types,
replaces operators by the function bodies that ONNX publishes, or adds sequentially. For each
element

    unit      = max(|y_r - y|, u |y|, |z - y| / 4)    over all r, and all z within 64 units of y
    tolerance = c unit + lambda,    c = 16, or 4 for 16-bit types

Here, u is the unit roundoff. lambda is the smallest normal number of the type if the element may be
flushed to zero; otherwise, lambda is 0. The unit is the movement of an element by one rounding,
that is, its condition times u. An output that no rounding moves has the unit 0 and must be exact. A
model of doubles is perturbed by 2^27 roundings, and its movements are divided by 2^27.

Three differences are not proportional to the roundings: z overflows, a perturbation crosses a
discontinuity, or the operand of a root becomes negative. These differences do not widen the
tolerance. Instead, the value of the run with such a difference becomes an alternative: the value is
accepted for its element in addition to y, with a tolerance of its own. ``docs/conditioned.md``
gives the reason for each rule.

:mod:`~onnxopt_cli.oracle.estimate.evaluations` runs the model and its reformulations.
:mod:`~onnxopt_cli.oracle.estimate.conditioned_outputs` derives units and tolerances from the values
of these runs. This module chooses the reformulations of a model. It also chooses the readings of
the model's contested questions, which are questions that two published sources of ONNX answer
differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.tolerance import SHORT_UNITS
from onnxopt_cli.core.values import Array, Value, structure_of
from onnxopt_cli.interpret.gradient.reverse_mode import has_gradient
from onnxopt_cli.operators.nodes import all_nodes, operator_names, plain_domain
from onnxopt_cli.oracle.corrections.contested import CONTESTED, second_readings
from onnxopt_cli.oracle.corrections.corrected_reference import (
    INTEGER_ROUNDING,
    INTERPOLATING,
    whole_numbers,
)
from onnxopt_cli.oracle.corrections.float_outputs import CONVERTING
from onnxopt_cli.oracle.estimate.conditioned_outputs import (
    ConditionedOutput,
    Evaluation,
    expected_output,
    narrowed_output,
    with_lowest_scores,
)
from onnxopt_cli.oracle.estimate.evaluations import (
    INTEGERS,
    FirstRun,
    SharedState,
    coarsest_roundoff,
    evaluate_model,
)
from onnxopt_cli.oracle.estimate.gradient_check import (
    unconfirmed_elements,
    with_inconclusive_elements,
)
from onnxopt_cli.oracle.estimate.reference_values import (
    NoReferenceError,
    first_line,
    prepared_model,
    reference_failure,
    require_supported,
)
from onnxopt_cli.oracle.estimate.shared_prefix import SharedPrefix
from onnxopt_cli.oracle.evaluator import Compute, ReferenceModel, finite_like
from onnxopt_cli.oracle.function_body import CALLED, published_body, subtracting_operators
from onnxopt_cli.oracle.patching import corrected, replaced
from onnxopt_cli.oracle.rounding.injection import SINGLE_ROUNDOFF, UNITS
from onnxopt_cli.oracle.rounding.intermediate_values import (
    GRIDS,
    coordinate_errors,
    moved_coordinates,
)
from onnxopt_cli.oracle.rounding.node_kinds import DEFINED, NodeKind, listed_kind
from onnxopt_cli.oracle.rounding.operator_identities import identities, identities_in
from onnxopt_cli.oracle.rounding.scales import WINDOWS
from onnxopt_cli.oracle.rounding.short_floats import SHIFTED, takes_exact_operands
from onnxopt_cli.oracle.widen import (
    ROUNDOFF,
    SINGLE,
    flushed_value,
    is_short,
    single_value,
    widened,
    widened_value,
)

#: If onnx's corrected reference rejects the operands of a node, the reason for the missing estimate
#: begins with this text.
REJECTED = "onnx's corrected reference rejects the operands"
# Matches NumPy's messages about arrays that exceed one of NumPy's limits. Such arrays are valid.
_BEYOND_NUMPY = re.compile(r"too (big|large)|aximum (allowed|supported) dimension")
_FLUSHED = "the result with zeros for subnormal numbers"
# If a model has at most this number of contested questions, combinations of second readings are
# also tried. Otherwise, second readings are tried one at a time.
_MAX_COMBINED_QUESTIONS = 2
# The names of the reformulations of a graph.
_BODIES, _IDENTITIES = "bodies", "identities"


@dataclass(frozen=True, slots=True)
class Reading:
    """The expected values of all outputs, for one answer to each contested question.

    A question is contested if published sources answer it differently. Each answer is a reading.

    Attributes:
        second: the names of the questions whose second reading applies.
        conditioned_outputs: the expected values, one entry per output.
        identities_used: the identities by which operators may be computed; empty if they do not
            change the accepted outputs.
    """

    second: tuple[str, ...]
    conditioned_outputs: list[ConditionedOutput]
    identities_used: tuple[str, ...] = ()


def all_readings(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str = ""
) -> list[Reading]:
    """Return condition estimates of a model, one for each reading of its contested questions.

    Args:
        model: a model whose operators onnx's reference implements.
        inputs: a value for each graph input that must be fed.
        math: the arithmetic that a backend declares, a key of
            :data:`~onnxopt_cli.oracle.rounding.injection.MATH`; empty if it declares none.

    Returns:
        First the result for the first readings of all questions. Then, for other readings, each
        result that differs from all earlier results.

    Raises:
        NoReferenceError: if the condition cannot be estimated.
    """
    encountered: set[str] = set()
    readings = [_reading(model, inputs, math, encountered=encountered)]
    names = [question.name for question in CONTESTED if question.name in encountered]
    most_at_once = len(names) if len(names) <= _MAX_COMBINED_QUESTIONS else 1
    for count in range(1, most_at_once + 1):
        for second in combinations(names, count):
            # The reference may be unable to run the model with a second reading.
            with suppress(NoReferenceError):
                reading = _reading(model, inputs, math, second)
                if not any(_same_reading(reading, earlier) for earlier in readings):
                    readings.append(reading)
    return _with_confirmed_derivatives(model, inputs, readings)


def _with_confirmed_derivatives(
    model: onnx.ModelProto, inputs: Mapping[str, Value], readings: list[Reading]
) -> list[Reading]:
    """Return the readings, with unconfirmed elements of derivatives marked as inconclusive."""
    if not has_gradient(model):
        return readings
    try:
        masks = unconfirmed_elements(model, inputs)
    except Exception as error:
        why = f"the function that Gradient differentiates does not run: {first_line(error)}"
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


def _rejection(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> str:
    """Return why onnx's reference rejects an operand of any node of a model, or an empty string.

    NumPy and the reference raise ValueError or IndexError if shapes do not fit together, or if an
    index is out of bounds. The model runs in its own types, because a run in double can fail for
    other reasons. If an operand of the node has no elements, the result is empty, because NumPy
    raises ValueError for some valid operations on empty arrays.
    """
    operands_of_node: Sequence[Any] = ()

    def visit(_node: Any, compute: Compute, operands: Sequence[Any], _index: int) -> Sequence[Any]:
        nonlocal operands_of_node
        operands_of_node = operands
        return compute(*operands)

    try:
        ReferenceModel(model).run(inputs, visit)
    except (ValueError, IndexError) as error:
        is_empty = any(isinstance(x, np.ndarray) and not x.size for x in operands_of_node)
        if is_empty or _BEYOND_NUMPY.search(str(error)):
            return ""
        return f"{REJECTED}: {first_line(error)}"
    except Exception:  # noqa: BLE001 - the reference fails for another reason
        return ""
    return ""


def condition(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str = ""
) -> list[ConditionedOutput]:
    """Return the estimate for the first reading of each question; see :func:`all_readings`."""
    return _reading(model, inputs, math).conditioned_outputs


def _reading(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    math: str,
    second: Sequence[str] = (),
    encountered: set[str] | None = None,
) -> Reading:
    model = prepared_model(model, inputs)
    if not CONVERTING.isdisjoint(operator_names(model)) and len(model.graph.node) == 1:
        inputs = {name: _as_doubles(value) for name, value in inputs.items()}
    questions = set() if encountered is None else encountered
    with corrected(), replaced(*second_readings(second)):
        outputs = _estimate(model, inputs, math, questions)
    identities_used: tuple[str, ...] = ()
    if any(output.reformulated for output in outputs):
        entries = identities_in(published_body(model, inputs) or model)
        identities_used = tuple(entry.identity_name for entry in entries)
    return Reading(tuple(second), outputs, identities_used)


def _as_doubles(value: Value) -> Value:
    """Return integers as doubles, because roundings are injected into floats only."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        return value.astype(np.float64)
    return value


def _same_reading(first: Reading, second: Reading) -> bool:
    """Return whether two readings accept bitwise the same outputs."""
    return all(
        a.reason == b.reason
        and _same_values(a.right, b.right)
        and _same_values(a.reformulated, b.reformulated)
        for a, b in zip(first.conditioned_outputs, second.conditioned_outputs, strict=True)
    )


def _same_values(
    first: Sequence[tuple[Array, Array]], second: Sequence[tuple[Array, Array]]
) -> bool:
    """Return whether correct values and their tolerances are equal."""
    return len(first) == len(second) and all(
        np.array_equal(a, b, equal_nan=a.dtype != object)
        for pairs in zip(first, second, strict=True)
        for a, b in zip(*pairs, strict=True)
    )


def _estimate(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str, encountered: set[str]
) -> list[ConditionedOutput]:
    """Return a condition estimate of a model; see :func:`all_readings`.

    Args:
        model: the model.
        inputs: its inputs.
        math: the declared arithmetic.
        encountered: receives the contested questions that the nodes of the model raise.
    """
    nodes = list(all_nodes(model))
    shared = SharedState(math, encountered, _shared_prefix(model))
    require_supported(model)
    try:
        if {node.op_type for node in nodes} <= DEFINED:
            first_run = FirstRun(shared, is_model=True, is_node=len(nodes) == 1)
            return [
                _defined_output(value) for value in ReferenceModel(model).run(inputs, first_run)
            ]
        if len(nodes) == 1 and (moved := _moved_outputs(model, inputs, shared)):
            return moved
        evaluations = evaluate_model(model, inputs, shared)
    except (NoReferenceError, MemoryError):
        raise
    except Exception as error:
        if any(map(is_short, inputs.values())) and len(nodes) == 1:
            # Some published bodies combine float32 constants with operands of any type, which is an
            # error for 16-bit operands.
            return _estimate_in_single(model, inputs, math, encountered)
        raise NoReferenceError(
            _rejection(model, inputs) or reference_failure(error, " in double")
        ) from error
    bodies = _evaluate_bodies(model, inputs, shared, evaluations)
    columns = list(zip(evaluations, bodies, strict=True) if bodies else zip(evaluations))
    outputs = list(map(expected_output, columns))
    for index, evaluation in enumerate(_evaluate_identities(model, inputs, shared)):
        wider = expected_output((*columns[index], evaluation)).right
        if not _same_values(outputs[index].right, wider):
            outputs[index] = replace(outputs[index], reformulated=wider)
    if operator_names(model) == ("Attention",):
        outputs = list(map(with_lowest_scores, outputs))
    if INTEGERS in encountered:
        outputs = _with_either_integer(model, inputs, outputs)
    return _with_flushed_inputs(model, inputs, math, encountered, outputs)


def _shared_prefix(model: onnx.ModelProto) -> SharedPrefix:
    """Return the store of results that a graph shares with its reformulations."""
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
    """Return the expected values of an output whose operators define exactly one correct result."""
    if not isinstance(output, np.ndarray):
        return ConditionedOutput(reason="it is not a tensor", structure=structure_of(output))
    exact, flushed = np.zeros(output.shape), np.asarray(flushed_value(output))
    defined = ConditionedOutput(((output, exact),))
    if flushed is output:
        return defined
    return defined.with_alternatives(ConditionedOutput(((flushed, exact),)), _FLUSHED)


def _moved_outputs(
    model: onnx.ModelProto, inputs: Mapping[str, Value], shared: SharedState
) -> list[ConditionedOutput]:
    """Return the expected values of the outputs of a node that is known to move data.

    Roundings do not change moved data, so a single run in the model's own types suffices.

    Returns:
        One expected value per output. The list is empty if the node may round. It is also empty if
        a value has 16 bits or is infinite, NaN or subnormal, because an output may then have
        several accepted values.
    """
    (node,) = model.graph.node or [None]
    is_exact = node is not None and listed_kind(node.op_type) is NodeKind.EXACT
    if not is_exact or plain_domain(node.domain) or not all(map(_is_ordinary, inputs.values())):
        return []
    values = ReferenceModel(model).run(inputs, FirstRun(shared, is_model=True, is_node=True))
    if not all(map(_is_ordinary, values)):
        return []
    return [expected_output([Evaluation(value, widened_value(value), ())]) for value in values]


def _is_ordinary(value: Any) -> bool:
    """Return whether a tensor has no infinities, NaN, subnormal numbers or 16-bit numbers."""
    if not isinstance(value, np.ndarray) or is_short(value):
        return False
    is_rounded = value.dtype in ROUNDOFF
    return not is_rounded or (bool(np.isfinite(value).all()) and flushed_value(value) is value)


def _estimate_in_single(
    model: onnx.ModelProto, inputs: Mapping[str, Value], math: str, encountered: set[str]
) -> list[ConditionedOutput]:
    """Estimate a single node of 16-bit types in float32, and round the outputs to 16 bits."""
    single = {name: single_value(value) for name, value in inputs.items()}
    outputs = _estimate(widened(model, SINGLE), single, math, encountered)
    return [
        narrowed_output(conditioned_output, output.type.tensor_type.elem_type)
        for conditioned_output, output in zip(outputs, model.graph.output, strict=True)
    ]


def _evaluate_bodies(
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    shared: SharedState,
    evaluations: Sequence[Evaluation],
) -> list[Evaluation]:
    """Evaluate a model with the function bodies that ONNX publishes for its nodes.

    Args:
        model: the model.
        inputs: its inputs.
        shared: the state that all evaluations share.
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
    shared: SharedState,
    accumulation: tuple[str, NodeKind] | None,
) -> list[Evaluation]:
    """Evaluate stable published bodies of a model; return an empty list if no operator has one."""
    if not WINDOWS.keys().isdisjoint(operator_names(model)) and len(model.graph.node) == 1:
        # The error scale of a window operator already includes the roundings of the published body.
        return []
    try:
        if accumulation:
            return _evaluate_accumulating_body(model, inputs, shared, accumulation)
        if body := published_body(model, inputs):
            return evaluate_model(body, inputs, shared, CALLED)
        expanded = subtracting_operators(model)
        return evaluate_model(model, inputs, shared, expanded, name=_BODIES) if expanded else []
    except MemoryError:
        # Without the published body, the tolerance would be too narrow.
        raise
    except Exception:  # noqa: BLE001 - onnx's reference may lack an operator of the body
        return []


def _without_overflow(body: Evaluation, exact: Any) -> Evaluation:
    """Return the evaluation of a body, with exact values where only the body overflows.

    The body of ``Softplus``, log(exp(x) + 1), is infinite in float32 from x = 89 on, although
    onnx's reference computes a finite result. Where only the body overflows, it is not an accepted
    reformulation. An overflow of the reference itself, in the model's own types, is accepted.

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
    shared: SharedState,
    accumulation: tuple[str, NodeKind],
) -> list[Evaluation]:
    """Evaluate the published body of a node that accumulates 16-bit operands."""
    if takes_exact_operands(*accumulation) and accumulation[0] not in SHIFTED:
        single = {name: single_value(value) for name, value in inputs.items()}
        body = published_body(widened(model, SINGLE), single)
        evaluations = evaluate_model(body, single, shared, CALLED) if body else []
        for evaluation in evaluations:
            # A 16-bit model may have as many float32 roundings as a float32 model, so its float32
            # roundings get the tolerance UNITS instead of SHORT_UNITS.
            evaluation.step *= SHORT_UNITS / UNITS
        return evaluations
    body = published_body(model, inputs)
    evaluations = evaluate_model(body, inputs, shared, CALLED) if body else []
    for evaluation in evaluations:
        # The node computes in float32. An overflow of its body in 16 bits therefore does not show
        # that the node overflows.
        evaluation.native, evaluation.out_of_range = evaluation.exact, []
    return evaluations


def _evaluate_identities(
    model: onnx.ModelProto, inputs: Mapping[str, Value], shared: SharedState
) -> list[Evaluation]:
    """Evaluate a model by the accepted identities; return an empty list if none applies."""
    try:
        model = published_body(model, inputs) or model
        if not (entries := identities_in(model)):
            return []
        expanded = [name for entry in entries for name in entry.within]
        evaluations = evaluate_model(
            model, inputs, shared, expanded, identities(), name=_IDENTITIES
        )
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as for published bodies
        return []
    for evaluation in evaluations:
        if coarsest_roundoff([evaluation.native]) > SINGLE_ROUNDOFF:
            # The identity was evaluated in 16 bits, but runtimes compute it in float32.
            evaluation.native = evaluation.exact
    return evaluations


def _with_either_integer(
    model: onnx.ModelProto, inputs: Mapping[str, Value], outputs: Sequence[ConditionedOutput]
) -> list[ConditionedOutput]:
    """Return outputs that accept, for each interpolated number, both integers next to it.

    The images consist of integers. A rounding of the coordinates may move an interpolated number
    across an integer.
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
    """Return the outputs rounded down or up, after errors are added to the coordinates.

    The result is empty if no coordinate has an error.

    Args:
        model: a model that interpolates between integers.
        inputs: its inputs.
        toward: the rounding function, ``np.floor`` or ``np.ceil``.
        away: -1 for ``np.floor``, 1 for ``np.ceil``: the sign of the errors that are added to the
            interpolated numbers before they are rounded.
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
    """Return outputs that also accept the results of a device that flushes subnormal inputs."""
    flushed = {name: flushed_value(value) for name, value in inputs.items()}
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
