"""Nodes that a backend has run: their correct outputs, and the effects of known mistakes on them.

A mistake has an effect on a node if it makes the outputs of the node wrong. A mistake explains a
failure if it yields the outputs of the backend, except for a few roundings. Nodes must be judged in
a forked process with the corrected reference, because models are not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

import ml_dtypes
import numpy as np
import onnx

from onnxopt_cli.analysis.explanation.element_features import MAX_OUTPUT_ELEMENTS, ElementFeatures
from onnxopt_cli.analysis.explanation.node_traits import (
    CHANGED,
    PROBES,
    NodeNumber,
    Trait,
    node_numbers,
    node_traits,
)
from onnxopt_cli.analysis.node_search import (
    EVALUATION_SECONDS,
    TIMEOUT,
    computing,
    excess,
    may_differ,
    run_implementation,
)
from onnxopt_cli.analysis.node_variations import copied
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.compare import element_shares
from onnxopt_cli.core.tolerance import Tolerance
from onnxopt_cli.core.values import Array, Value, describe
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mutants import NodeMutant
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.reference_oracle import estimated_here
from onnxopt_cli.run.reproduce import elements_alike
from onnxopt_cli.workers.forked_processes import TimeLimitError, time_limit

# Number of elements of each output that are compared to find different values.
_MAX_COMPARED = 64
# Number of failing cases on which each mistake is tried first.
_FIRST_CASES = 4


class Effect(Enum):
    """The effect of a mistake on a node, compared with the backend's outputs."""

    NONE = 0
    ALIKE = 1
    UNLIKE = 2


@dataclass(frozen=True, slots=True)
class JudgedOutputs:
    """The correct outputs of a node, and the wrong elements of a backend's outputs.

    Attributes:
        right: the correct outputs in the graph's order.
        wrong: for each output, a mask of the wrong elements; None for an output of a wrong type or
            shape. The sequence is empty if the backend's outputs are correct.
    """

    right: Sequence[Value]
    wrong: Sequence[Array | None] = ()


@dataclass(eq=False)
class NodeSample:
    """A node that a backend has run.

    Attributes:
        case: the id of the case; empty for a generated node.
        model: the model of the node.
        inputs: its inputs.
        right: its correct outputs in the graph's order. For a generated node, onnx's corrected
            reference computes them in the model's own types.
        returned: the backend's outputs; None for a case that passes.
        failed: whether the outputs are wrong; None if this is not yet known. In a search for the
            causes of errors, whether the backend raised an error.
        traits: the traits of the node, without limits of numbers.
        numbers: the numbers of the node that a condition may limit.
        effects: the effects of mistakes by name.
        expected: the expected result; None if it is not known yet.
        outputs: its correct outputs, and the wrong elements of the backend's outputs; None if they
            are large.
        elements: the features of the elements of outputs, by the position of the output.
        is_for_errors: whether the node belongs to a search for the causes of errors.
        is_independent: whether the node was generated without any part of a failing node.
        is_directed: whether the node was generated to refute a statement. Such a node may show
            other faults, too.
    """

    case: str
    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    right: Sequence[Value] | None
    returned: Sequence[Value] | None
    failed: bool | None
    traits: frozenset[Trait] = frozenset()
    numbers: Mapping[NodeNumber, float] = field(default_factory=dict)
    effects: dict[str, Effect] = field(default_factory=dict)
    expected: Expected | None = None
    outputs: JudgedOutputs | None = None
    elements: dict[int, ElementFeatures] = field(default_factory=dict)
    is_for_errors: bool = False
    is_independent: bool = False
    is_directed: bool = False

    @property
    def problem(self) -> Problem:
        """The content of a case with this node. Known correct outputs become stored outputs."""
        if self.right is None:
            return Problem(self.model, self.inputs, None)
        names = [output.name for output in self.model.graph.output]
        return Problem(self.model, self.inputs, dict(zip(names, self.right, strict=True)))

    def has(self, trait: Trait) -> bool:
        """Return whether the node has a trait."""
        if trait.limits is None:
            return trait in self.traits
        return trait.limits.contain(self.numbers)

    @property
    def is_telling(self) -> bool:
        """Whether a fault would probably be visible in the outputs of the node."""
        return self.is_for_errors or not (self.has_no_finite_output or self.has_equal_elements)

    @cached_property
    def has_equal_elements(self) -> bool:
        """Whether some floating-point input has several elements, all of which are equal.

        A fault that exchanges or repeats elements is invisible in such a node.
        """
        arrays = [value for value in self.inputs.values() if isinstance(value, np.ndarray)]
        return any(
            array.size > 1 and "float" in array.dtype.name and bool((array == array.flat[0]).all())
            for array in arrays
        )

    @cached_property
    def has_no_finite_output(self) -> bool:
        """Whether all correct values are 0, infinite or NaN; a wrong factor is then invisible."""
        if self.outputs is None:
            return False
        arrays = [value for value in self.outputs.right if isinstance(value, np.ndarray)]
        if len(arrays) < len(self.outputs.right):
            return False
        if not any(value.size for value in arrays):
            return True
        numbers = [value.astype(np.float64) for value in arrays if "float" in value.dtype.name]
        if len(numbers) < len(arrays):
            return False
        return not any((np.isfinite(values) & (values != 0)).any() for values in numbers)

    @property
    def has_empty_outputs(self) -> bool:
        """Whether the correct outputs are known, and are tensors without elements."""
        return (
            self.outputs is not None
            and len(self._right_arrays) == len(self.outputs.right)
            and not any(array.size for array in self._right_arrays)
        )

    @cached_property
    def may_hide_faults(self) -> bool:
        """Whether a fault may have no effect on the node by coincidence.

        For example, a wrong rounding has no effect on values of few digits.
        """
        return self.has_repeated_elements or self.has_short_outputs

    @cached_property
    def has_repeated_elements(self) -> bool:
        """Whether elements of the first input, or of a floating-point input, are equal."""
        arrays = [value for value in self.inputs.values() if isinstance(value, np.ndarray)]
        return any(
            np.unique(array).size < array.size
            for place, array in enumerate(arrays)
            if array.dtype.kind != "O" and (place == 0 or "float" in array.dtype.name)
        )

    @cached_property
    def has_short_outputs(self) -> bool:
        """Whether all correct values are wider than 16 bits, and all are exact in 16 bits."""
        return self._has_wide_outputs and not self._has_long_value

    @cached_property
    def has_long_outputs(self) -> bool:
        """Whether all correct values are wider than 16 bits, and one is not exact in 16 bits."""
        return self._has_wide_outputs and self._has_long_value

    @property
    def _right_arrays(self) -> list[Array]:
        right = self.outputs.right if self.outputs else ()
        return [value for value in right if isinstance(value, np.ndarray)]

    @property
    def _has_wide_outputs(self) -> bool:
        return (
            self.outputs is not None
            and len(self._right_arrays) == len(self.outputs.right)
            and all(array.dtype in (np.float32, np.float64) for array in self._right_arrays)
        )

    @property
    def _has_long_value(self) -> bool:
        with np.errstate(over="ignore"):
            return not all(
                any(
                    np.array_equal(array.astype(short).astype(array.dtype), array, equal_nan=True)
                    for short in (np.float16, ml_dtypes.bfloat16)
                )
                for array in self._right_arrays
            )

    @property
    def distinct_outputs(self) -> int:
        """The number of different correct values, up to 2; infinities and NaN do not count.

        A node whose correct values are all equal shows fewer faults than other nodes.
        """
        values = {
            value
            for array in self._right_arrays
            for value in array.reshape(-1)[:_MAX_COMPARED].tolist()
            if not isinstance(value, float) or np.isfinite(value)
        }
        return min(len(values), 2)

    @property
    def has_truth_values(self) -> bool:
        """Whether the backend returned only truth values."""
        return bool(self.returned) and all(
            isinstance(value, np.ndarray) and value.dtype == bool for value in self.returned or ()
        )

    @property
    def input_types(self) -> tuple[str, ...]:
        """The element types of the inputs that are tensors, in the graph's order."""
        return tuple(v.dtype.name for v in self.inputs.values() if isinstance(v, np.ndarray))

    @property
    def size(self) -> int:
        """Number of elements of all inputs."""
        return sum(v.size for v in self.inputs.values() if isinstance(v, np.ndarray))


class _NotEstimatedError(Exception):
    """Raised if the correct outputs of a node, or their tolerances, cannot be estimated."""


class _TooSlowError(Exception):
    """Raised if a mistake takes too long, for example because it loops forever."""


@dataclass(eq=False)
class JudgedNode:
    """A node with its correct outputs, as used in the process that computes mistakes.

    Attributes:
        sample: the node.
        native: the outputs of the correct operator in the model's own types.
        traits: the traits of the node.
        numbers: the numbers of the node.
        failed: whether the backend's outputs are wrong.
    """

    sample: NodeSample
    native: Sequence[Value]
    traits: frozenset[Trait]
    numbers: Mapping[NodeNumber, float]
    failed: bool = False

    @cached_property
    def _estimate(self) -> Expected | None:
        """The expected result; None if it cannot be estimated.

        Computing the estimate is the slowest step of judging a node. The estimate is needed only if
        outputs differ from those of the correct operator.
        """
        sample = self.sample
        expected = sample.expected
        try:
            if expected is None:
                right = self.native if sample.right is None else sample.right
                with time_limit(EVALUATION_SECONDS):
                    expected = estimated_here(replace(sample, right=right).problem)
        except (TimeLimitError, Exception):  # noqa: BLE001 - any error of onnx's reference
            return None
        return None if expected.unusable or expected.contradictions else expected

    @property
    def expected(self) -> Expected:
        """The expected result of the node.

        Raises:
            _NotEstimatedError: if the expected result cannot be estimated.
        """
        if self._estimate is None:
            raise _NotEstimatedError
        return self._estimate

    def is_wrong(self, outputs: Sequence[Value]) -> bool:
        """Return whether outputs are wrong.

        Raises:
            _NotEstimatedError: if the outputs cannot be judged.
        """
        return may_differ(self.native, outputs) and excess(self.expected, outputs) > 1

    @property
    def outputs(self) -> JudgedOutputs | None:
        """The correct outputs, and the backend's wrong elements; None if outputs are large."""
        right = self.native if self.sample.right is None else self.sample.right
        if (
            sum(value.size for value in right if isinstance(value, np.ndarray))
            > MAX_OUTPUT_ELEMENTS
        ):
            return None
        returned = self.sample.returned
        if not self.failed or returned is None:
            return JudgedOutputs(right)
        expected = min(
            (self.expected, *self.expected.alternatives),
            key=lambda result: excess(result, returned),
        )
        wrong = [
            _wrong_elements(value, actual, expected.tolerances[name])
            for (name, value), actual in zip(expected.outputs.items(), returned, strict=False)
        ]
        return JudgedOutputs([*expected.outputs.values()], wrong)

    def effect(self, mistake: NodeMutant) -> tuple[Effect, float]:
        """Return the effect of a mistake, and the number of wrong elements that it reproduces.

        Raises:
            _NotEstimatedError: if the outputs cannot be judged.
            _TooSlowError: if the mistake takes too long.
        """
        sample = self.sample
        outputs, failure = run_implementation(mistake, sample.model, sample.inputs, self._compute)
        if outputs is None:
            return Effect.NONE, 0.0
        if failure == TIMEOUT:
            raise _TooSlowError
        if failure:
            return Effect.UNLIKE, 0.0
        try:
            if not self.is_wrong(outputs):
                return Effect.NONE, 0.0
        except (TypeError, ValueError):
            return Effect.UNLIKE, 0.0
        if not self.failed or sample.returned is None:
            return Effect.UNLIKE, 0.0
        right = [*self.expected.outputs.values()]
        elements = elements_alike(mistake, outputs, sample.returned, right)
        return (Effect.ALIKE, elements) if elements else (Effect.UNLIKE, 0.0)

    def may_show(self, mistake: NodeMutant) -> bool:
        """Return whether a mistake changes the outputs by more than a few roundings."""
        sample = self.sample
        outputs, _ = run_implementation(mistake, sample.model, sample.inputs, self._compute)
        return outputs is not None and may_differ(self.native, outputs)

    def distinguishes(self, first: NodeMutant, second: NodeMutant) -> bool:
        """Return whether two mistakes compute different outputs of the node."""
        sample = self.sample
        outputs = [
            run_implementation(mistake, sample.model, sample.inputs, self._compute)
            for mistake in (first, second)
        ]
        of_first, of_second = (
            self.native if returned is None else returned for returned, _ in outputs
        )
        return may_differ(of_first, of_second)

    def _compute(self, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Sequence[Value]:
        """Compute a model; the outputs of the unchanged node are already known."""
        if model is self.sample.model and inputs is self.sample.inputs:
            return [copied(value) for value in self.native]
        return computing({}, {})(model, inputs)


def _wrong_elements(expected: Value, actual: Value, tolerance: Tolerance) -> Array | None:
    """Return a mask of the wrong elements of an output; None if its type or shape is wrong."""
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return None
    if describe(expected) != describe(actual):
        return None
    return element_shares(expected, actual, tolerance) > 1


def judged_node(sample: NodeSample) -> JudgedNode | None:
    """Return a node with its correct outputs; None if it cannot be judged."""
    try:
        with time_limit(EVALUATION_SECONDS):
            native = sample.right
            if native is None or sample.case:
                native = computing({}, {})(sample.model, sample.inputs)
            right = native if sample.right is None else sample.right
            names = [output.name for output in sample.model.graph.output]
            outputs = dict(zip(names, right, strict=True))
            node = BoundNode.of(sample.model, sample.inputs)
            judge = JudgedNode(sample, native, node_traits(node, outputs), node_numbers(node))
        if sample.is_for_errors:
            judge.failed = bool(sample.failed)
        elif sample.failed is None:
            assert sample.returned is not None  # noqa: S101 - generated nodes have outputs
            judge.failed = judge.is_wrong(sample.returned)
        elif sample.failed:
            judge.failed = bool(judge.expected)
    except (TimeLimitError, Exception):  # noqa: BLE001 - the node cannot be judged
        return None
    return judge


def effects_by_mistake(
    mistakes: Iterable[NodeMutant], judge: JudgedNode
) -> dict[str, Effect] | None:
    """Return the effects of mistakes on a node, by the name of the mistake.

    The result is None if an effect cannot be determined.
    """
    effects: dict[str, Effect] = {}
    for mistake in mistakes:
        try:
            effects[mistake.name] = judge.effect(mistake)[0]
        except _TooSlowError:
            effects[mistake.name] = Effect.UNLIKE
        except _NotEstimatedError:
            return None
    return effects


def effects_on(
    mistake: NodeMutant, judges: Mapping[int, JudgedNode]
) -> tuple[float, dict[int, Effect]]:
    """Return the number of wrong elements that a mistake reproduces, and its effects by case index.

    If the mistake takes too long, no effects are returned.
    """
    try:
        return _effects_on(mistake, judges)
    except _TooSlowError:
        return 0.0, {}


def _effects_on(
    mistake: NodeMutant, judges: Mapping[int, JudgedNode]
) -> tuple[float, dict[int, Effect]]:
    effects: dict[int, Effect] = {}
    elements = 0.0
    for index, judge in judges.items():
        if judge.failed:
            effects[index], alike = judge.effect(mistake)
            elements += alike
            unlike = sum(effect is Effect.UNLIKE for effect in effects.values())
            if unlike >= _FIRST_CASES and Effect.ALIKE not in effects.values():
                break
    if mistake.name.endswith(CHANGED):
        elements = 0.0
    if elements or mistake.name.endswith(PROBES):
        further = [index for index in judges if index not in effects]
        for index in further:
            try:
                effects[index] = judges[index].effect(mistake)[0]
            except _NotEstimatedError:
                # A passing case that cannot be judged does not contradict the mistake.
                effects[index] = Effect.NONE
    return elements, effects
