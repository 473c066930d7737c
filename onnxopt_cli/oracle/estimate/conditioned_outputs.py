"""The expected values and tolerances of a model's output, derived from the output's evaluations.

An :class:`Evaluation` holds the values of an output in all runs of the model or of a reformulation.
The unit of an element is its largest movement by a rounding, and the tolerance of the element is a
multiple of the unit (:mod:`~onnxopt_cli.oracle.estimate.condition_estimate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from onnxopt_cli.core.tolerance import SHORT_UNITS
from onnxopt_cli.core.values import Array, structure_of
from onnxopt_cli.oracle.rounding.injection import (
    SINGLE_ROUNDOFF,
    UNITS,
    largest_magnitude,
)
from onnxopt_cli.oracle.rounding.node_kinds import NodeKind
from onnxopt_cli.oracle.widen import (
    ROUNDOFF,
    is_wide,
    largest_finite,
    smallest_normal,
    widened_value,
)

# The error of a reformulation widens the tolerance if the error is at most this number of units. If
# a reformulation overflows, its value becomes an alternative.
_REFORMULATION_UNITS = 64.0
# The unit is _REFORMULATION_SHARE times the error of a reformulation, so that a tolerance of 16
# units is four times the error.
_REFORMULATION_SHARE = 1 / 4
# The largest accepted error of a sequential sum, in roundings of the type in which the sum is
# accumulated. The error may be large, because equal terms may all be rounded in the same direction.
_MAX_SEQUENTIAL_ERROR = 2.0**14
# The error of a sequential sum widens the tolerance if the error is at most 1 / _SEQUENTIAL_SHARE
# of the largest output. Otherwise, the result of the sequential sum is an alternative.
_SEQUENTIAL_SHARE = 16
# To detect discontinuities, the perturbed runs are repeated with roundings divided by FINER.
FINER = 64.0
# The labels of alternatives.
_OUT_OF_RANGE = "the result in the model's own types; an intermediate result leaves their range"
_ACROSS_RANGE = "a number within the tolerance, on the other side of the largest finite number"
_SEQUENTIAL = "the result of sequential sums"
_LOWEST = "the lowest finite number for a masked score"


@dataclass(frozen=True, slots=True)
class ConditionedOutput:
    """The expected values of one output.

    Attributes:
        right: pairs of a correct value of the output and the tolerances of its elements, as
            float64. An element may match any of the values. The first value is the exact value,
            rounded to the output's dtype. If the output is discrete, the first value is the
            reference's result, with a tolerance of zero. Empty if there is a ``reason``.
        reformulated: like ``right``, if operators are also computed by identities that preserve
            only absolute accuracy; empty if the identities make no difference.
        reason: why the condition of this output cannot be estimated; empty if it can.
        units: the tolerance in units; 0 if the tolerances are all zero.
        labels: a description of each pair in ``right``. The description of a pair may be empty or
            missing.
        structure: the structure of the output if it is not a tensor, see :func:`structure_of`.
    """

    right: tuple[tuple[Array, Array], ...] = ()
    reformulated: tuple[tuple[Array, Array], ...] = ()
    reason: str = ""
    units: float = 0.0
    structure: Any = None
    labels: tuple[str, ...] = ()

    def with_alternatives(self, alternative: ConditionedOutput, label: str) -> ConditionedOutput:
        """Return an output that also accepts the correct values of an alternative.

        Elements are compared place by place, so values of another shape are ignored. An example is
        the output of NonZero on a device that flushes inputs to zero.
        """
        if not self.right:
            return self
        shape = self.right[0][0].shape
        texts = [label, *alternative.labels[1:]]
        texts += [label] * (len(alternative.right) - len(texts))
        added = [
            (pair, text or label)
            for pair, text in zip(alternative.right, texts, strict=False)
            if pair[0].shape == shape
        ]
        labels = (*self.labels, *[""] * (len(self.right) - len(self.labels)))
        return replace(
            self,
            right=(*self.right, *(pair for pair, _ in added)),
            labels=(*labels, *(text for _, text in added)),
        )


def narrowed_output(conditioned_output: ConditionedOutput, elem_type: int) -> ConditionedOutput:
    """Round a float32 output to a 16-bit element type; for other types, return it unchanged."""
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    if not conditioned_output.right or ROUNDOFF.get(dtype, 0) <= SINGLE_ROUNDOFF:
        return conditioned_output
    right = [
        _alternative_value(
            value.astype(np.float64), SHORT_UNITS * ROUNDOFF[dtype], tolerance, dtype
        )
        for value, tolerance in conditioned_output.right
    ]
    return replace(conditioned_output, right=tuple(right))


@dataclass
class Evaluation:
    """One output of a model, computed by one reformulation of the model.

    Attributes:
        native: the output in the model's own types.
        exact: the output in double.
        perturbed: the output in double in each perturbed run; empty if no run moves it.
        finely_perturbed: like ``perturbed``, with roundings divided by :data:`FINER`; empty if the
            output crosses no discontinuity.
        sequential: the output in the model's own types, computed with sequential sums, once per
            algorithm; empty if no sum is long.
        out_of_range: further outputs in the model's own types if an intermediate result leaves the
            range of its type: the unchanged output, the output with subnormal numbers flushed to
            zero, and outputs in which NaN or infinity spreads as in a fast algorithm.
        underflows: whether an intermediate result within a node underflows.
        overflows: whether an intermediate result overflows.
        step: the size of an injected rounding, in roundings of the model's types.
        accumulation: the operator and kind of a model's only node if the node accumulates 16-bit
            operands; else None.
        elementwise: whether the model is a single node that rounds each element of its outputs
            once.
        units: the tolerance in units.
        direct_bound: for a single node, the largest error of each element by direct evaluations;
            None if the error is not bounded.
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
        """For each perturbed run, the distances from the exact output, and the perturbed output."""
        return [*_distances(self.perturbed, self.exact)]


def expected_output(evaluations: Sequence[Evaluation]) -> ConditionedOutput:
    """Return the expected values of an output, given its evaluation by each reformulation."""
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
    evaluations: Sequence[Evaluation], native: Array
) -> Iterator[tuple[Array, Array]]:
    """Yield the value of a discrete output, then each other value that perturbed runs return."""
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
    evaluations: Sequence[Evaluation], native: Array, exact: Array
) -> ConditionedOutput:
    """Return the expected values of a floating-point output."""
    roundoff, tiny = ROUNDOFF[native.dtype], smallest_normal(native.dtype)
    rounding = _without_infinity(roundoff * np.abs(exact).astype(np.float64, copy=False))
    units = evaluations[0].units
    alternatives: list[tuple[Array, str]] = []
    unit, jumps = _largest_unit(evaluations, exact, rounding)
    alternatives += [(value, "") for value in jumps]
    if unit is None:
        unit = np.zeros(exact.shape)
    else:
        unit, lost_values = _with_reformulations(unit, evaluations, exact, rounding, tiny)
        alternatives += [(value, _OUT_OF_RANGE) for value in lost_values]
        unit = _bounded(unit, evaluations[0])
    for distance, value in _distances(
        [v for evaluation in evaluations for v in evaluation.out_of_range], exact
    ):
        different = distance > _REFORMULATION_UNITS * np.maximum(unit, rounding) + tiny
        if different.any():
            alternatives.append((np.where(different, value, exact), _OUT_OF_RANGE))
    # 16-bit terms are accumulated in float32.
    accumulated_share = min(1.0, SINGLE_ROUNDOFF / roundoff)
    for distance, value in _distances(
        [v for evaluation in evaluations for v in evaluation.sequential], exact
    ):
        # The error of a normalized element is relative to the mean, so the error may exceed 2^14
        # roundings of the element itself. The error of a sequential sum is therefore also compared
        # with ``unit``, and with the largest output.
        share = np.minimum(
            _MAX_SEQUENTIAL_ERROR * unit, largest_magnitude(exact) / _SEQUENTIAL_SHARE
        )
        accumulated = rounding * accumulated_share
        close = distance <= np.maximum(_MAX_SEQUENTIAL_ERROR * accumulated, share)
        different = ~close & (distance <= _MAX_SEQUENTIAL_ERROR * unit)
        if different.any():
            alternatives.append((np.where(different, value, exact), _SEQUENTIAL))
        unit = np.maximum(unit, np.where(close, distance, 0.0) * 2 / units)
    tolerance = units * unit
    # A device may flush an element to zero if the element may be subnormal.
    may_be_flushed = np.abs(exact) - tolerance < tiny
    if may_be_flushed.any():
        tolerance = tolerance + np.where(may_be_flushed, tiny, 0.0)
    alternatives += [
        (value, _ACROSS_RANGE) for value in _across_range(exact, tolerance, native.dtype)
    ]
    branches = (
        _alternative_value(value, units * roundoff, tolerance, native.dtype)
        for value, _ in alternatives
    )
    right = ((exact.astype(native.dtype), tolerance), *branches)
    has_tolerance = any(limit.any() for _, limit in right)
    labels = ("", *(label for _, label in alternatives))
    return ConditionedOutput(right, units=units if has_tolerance else 0.0, labels=labels)


def _with_reformulations(
    unit: Array, evaluations: Sequence[Evaluation], exact: Array, rounding: Array, tiny: float
) -> tuple[Array, list[Array]]:
    """Return units that allow for the errors of reformulations, and outputs with lost elements.

    Args:
        unit: the unit of each element.
        evaluations: the evaluations of the output by each reformulation.
        exact: the output in double.
        rounding: the size of one rounding of each element.
        tiny: the smallest normal number of the output's type.

    Returns:
        The units, and the outputs of reformulations in which elements overflow or vanish.
    """
    overflows = any(evaluation.overflows for evaluation in evaluations)
    underflows = any(evaluation.underflows for evaluation in evaluations)
    other_outputs = [evaluation.native for evaluation in evaluations]
    other_outputs += [evaluation.exact for evaluation in evaluations[1:]]
    lost_values = []
    for distance, value in _distances(other_outputs, exact):
        share = distance * _REFORMULATION_SHARE
        if (share > unit).any():
            close = distance <= _REFORMULATION_UNITS * np.maximum(unit, rounding) + tiny
            if underflows:
                # Subnormal intermediate results have few significant digits.
                close |= distance <= np.abs(exact) / _REFORMULATION_UNITS
            unit = np.where(close, np.maximum(unit, share), unit)
        if overflows or not value.all():
            infinite = ~np.isfinite(value) & overflows
            lost = np.isfinite(exact) & (infinite | ((value == 0) & (exact != 0)))
            if lost.any():
                lost_values.append(np.where(lost, value, exact))
    return unit, lost_values


def _across_range(exact: Array, tolerance: Array, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield infinities accepted for finite results, and numbers accepted for infinite results.

    If the tolerance of a finite result reaches beyond the largest finite number, an infinity is
    accepted, because accepted numbers are rounded to infinity. If a result beyond the largest
    finite number has a tolerance that reaches into the range, the largest finite number is
    accepted.

    Args:
        exact: the output in double.
        tolerance: its tolerances.
        dtype: the dtype of the output.
    """
    largest = largest_finite(dtype)
    if exact.dtype.kind != "f" or not (np.abs(exact) + tolerance > largest).any():
        return
    with np.errstate(over="ignore"):
        rounded = exact.astype(dtype).astype(np.float64)
        for sign in (1.0, -1.0):
            farthest = (exact + sign * tolerance).astype(dtype).astype(np.float64)
            crosses = np.isinf(farthest) & np.isfinite(tolerance) & np.isfinite(exact)
            crosses &= farthest != rounded
            nearest = np.isfinite((exact - sign * tolerance).astype(dtype).astype(np.float64))
            returns = (rounded == sign * np.inf) & nearest
            if crosses.any() or returns.any():
                yield np.where(crosses, farthest, np.where(returns, sign * largest, exact))


def _largest_unit(
    evaluations: Sequence[Evaluation], exact: Array, rounding: Array
) -> tuple[Array | None, list[Array]]:
    """Return the units of an output, and the output's values across nearby discontinuities.

    Args:
        evaluations: the evaluations of an output by several reformulations.
        exact: the output in double.
        rounding: the size of one rounding of each element.

    Returns:
        The unit of each element, or None if the output is not rounded; and the values across
        discontinuities.
    """
    unit, values, rounds = np.zeros(exact.shape), [], False
    for evaluation in evaluations:
        if not evaluation.perturbed:
            rounds |= evaluation.elementwise
            continue
        moved, jumps = _unit(evaluation, exact)
        rounds |= evaluation.elementwise or bool((moved > 0).any())
        unit = np.maximum(unit, moved)
        values += jumps
    return np.maximum(unit, rounding) if rounds else None, values


def _bounded(unit: Array, evaluation: Evaluation) -> Array:
    """Return the units of an output, limited so that the tolerance is at most the error bound."""
    bound = evaluation.direct_bound
    if bound is None or bound.shape != unit.shape:
        return unit
    return np.where(np.isfinite(bound), np.minimum(unit, bound / evaluation.units), unit)


def _unit(evaluation: Evaluation, exact: Array) -> tuple[Array, list[Array]]:
    """Return the units of an output in one evaluation, and the values across discontinuities."""
    unit = np.zeros(exact.shape)
    if np.shape(evaluation.exact) != exact.shape:
        return unit, []
    movements = evaluation.movements
    fine_movements = [*_distances(evaluation.finely_perturbed, evaluation.exact)]
    largest, finest = (
        reduce(np.maximum, (_without_infinity(distance) for distance, _ in pairs), unit)
        for pairs in (movements, fine_movements)
    )
    values: list[Array] = []
    if not all(_is_finite(distance) for distance, _ in movements):
        without_root = np.any([np.isnan(value) for _, value in movements], axis=0)
        if (without_root & np.isfinite(exact)).any():
            values.append(np.where(without_root, np.nan, exact))
    unit = largest
    if fine_movements:
        # The movement of an output is usually proportional to the roundings. At the minimum of an
        # even function, it is proportional to the squares of the roundings, and at the zero of a
        # root, to their square roots. Any other ratio between the movements by large and by small
        # roundings reveals a discontinuity.
        jumps = ((finest > largest / 4) | (finest < largest / (8 * FINER**2))) & (largest > 0)
        unit = np.zeros(exact.shape)
        for distance, value in movements:
            movement = _without_infinity(distance)
            jumped = jumps & (movement > largest / 4)
            unit = np.maximum(unit, np.where(jumped, 0.0, movement))
            beyond = np.where(jumped, value, exact)
            if jumped.any() and not any(np.array_equal(beyond, v, equal_nan=True) for v in values):
                values.append(beyond)
    if getattr(evaluation.native, "dtype", None) == np.float64:
        # Doubles are perturbed in double, so a run may overflow although the exact value is finite.
        # The unit is then infinite. The runs that do not overflow may hide an error, because two
        # cancelling terms may move identically in all of them.
        infinite = [np.isinf(value) for _, value in movements]
        unit = np.where(np.isfinite(exact) & np.any(infinite, axis=0), np.inf, unit)
    return unit if evaluation.step == 1 else unit / evaluation.step, values


def may_have_jumped(evaluation: Evaluation) -> bool:
    """Return whether an output moves far enough that it may have crossed a discontinuity."""
    native, exact = evaluation.native, evaluation.exact
    if not is_wide(exact) or getattr(native, "dtype", None) not in ROUNDOFF:
        return False
    share = min(4096 * ROUNDOFF[native.dtype] * evaluation.step, 0.02)
    limit = share * largest_magnitude(exact)
    return any((distance > limit).any() for distance, _ in evaluation.movements)


def _distances(values: Sequence[Any], exact: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the distance of each value from the exact value, and the value in double.

    Values whose shape differs from the shape of ``exact`` are omitted.
    """
    for value in values:
        wide: Any = widened_value(value)
        if is_wide(wide) and wide.shape == exact.shape:
            distance = np.abs(wide - exact).astype(np.float64, copy=False)
            # Comparing the values takes longer than finding the largest distance.
            if not _is_finite(distance):
                same = (wide == exact) | (np.isnan(wide) & np.isnan(exact))
                distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
            yield distance, wide


def _without_infinity(distance: Array) -> Array:
    """Return the distances of a perturbed run, with 0 in place of infinity.

    If a perturbed run overflows or takes the root of a negative number, only the other runs measure
    the movement of the element.
    """
    return distance if _is_finite(distance) else np.where(np.isfinite(distance), distance, 0.0)


def _is_finite(distance: Array) -> bool:
    """Return whether all elements are finite, if none is negative."""
    return bool(np.isfinite(distance.max(initial=0.0)))


def _alternative_value(
    value: Array, relative: float, tolerance: Array, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Return an alternative value in an output's dtype, and the tolerances of this value.

    Args:
        value: the alternative value in double.
        relative: the relative tolerance of the alternative value.
        tolerance: the tolerances of the exact value. Those of the alternative value are at least as
            large.
        dtype: the dtype of the output.
    """
    relative_tolerance = relative * np.abs(value)
    finite = np.where(np.isfinite(relative_tolerance), relative_tolerance, 0.0)
    return value.astype(dtype), np.maximum(tolerance, finite)


def with_lowest_scores(conditioned_output: ConditionedOutput) -> ConditionedOutput:
    """Return an output that accepts the lowest finite number in place of -inf for masked scores."""
    for expected, tolerance in conditioned_output.right[:1]:
        masked = np.isneginf(expected) if expected.dtype in ROUNDOFF else np.zeros(1)
        if masked.any():
            lowest = float(ml_dtypes.finfo(expected.dtype).min)  # type: ignore[no-untyped-call]
            scores = np.where(masked, lowest, expected).astype(expected.dtype)
            # If a finite bias has been added to the score, the output differs from the lowest
            # number.
            near = np.where(masked, UNITS * ROUNDOFF[expected.dtype] * -lowest, tolerance)
            with_lowest = conditioned_output.with_alternatives(
                ConditionedOutput(((scores, near),)), _LOWEST
            )
            return replace(with_lowest, units=UNITS)
    return conditioned_output
