"""The effects of known mistakes on nodes of operators without a formula.

A mistake has an effect on a node if its outputs are wrong there. It explains a failure if they are
also those of the backend, within a few roundings. Nodes must be judged in a forked process with the
corrected reference, since a model is not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import onnx

from onnxopt_cli.analysis.node_search import (
    EVALUATION_SECONDS,
    computing,
    excess,
    may_differ,
    run_implementation,
)
from onnxopt_cli.analysis.node_traits import Trait, node_traits
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.values import Value
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mutants import NodeMutant
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.reference_oracle import estimated_here
from onnxopt_cli.run.reproduce import elements_alike
from onnxopt_cli.workers.forked_processes import TimeLimitError, time_limit

# Number of failing cases on which each mistake is tried first.
_FIRST_CASES = 4
#: Endings of the names of mistakes that ignore an attribute or input, or change a default. They
#: show whether a node depends on it.
IGNORED, CHANGED = " ignored", " changed"
PROBES = (IGNORED, CHANGED)


class Effect(Enum):
    """The effect of a mistake on a node, compared with the backend's outputs."""

    NONE = 0
    ALIKE = 1
    UNLIKE = 2


@dataclass(eq=False)
class NodeSample:
    """A node that the backend has run.

    Attributes:
        case: the id of the case; empty for a generated node.
        model: the model of the node.
        inputs: its inputs.
        right: its correct outputs in the graph's order.
        returned: the backend's outputs; None for a case that passes.
        failed: whether the outputs are wrong; None if that is not known yet.
        traits: the traits of the node.
        effects: the effects of mistakes by name.
    """

    case: str
    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    right: Sequence[Value] | None
    returned: Sequence[Value] | None
    failed: bool | None
    traits: frozenset[Trait] = frozenset()
    effects: dict[str, Effect] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of elements of all inputs."""
        return sum(v.size for v in self.inputs.values() if isinstance(v, np.ndarray))


@dataclass(frozen=True, eq=False)
class JudgedNode:
    """A node with its expected result, in the process that computes mistakes.

    Attributes:
        sample: the node.
        expected: its expected result.
        native: the outputs of the correct operator in the model's own types.
        failed: whether the backend's outputs are wrong.
        traits: the traits of the node.
    """

    sample: NodeSample
    expected: Expected
    native: Sequence[Value]
    failed: bool
    traits: frozenset[Trait]

    def effect(self, mistake: NodeMutant) -> tuple[Effect, float]:
        """Return the effect of a mistake, and how many wrong elements it reproduces."""
        sample = self.sample
        outputs, failure = run_implementation(
            mistake, sample.model, sample.inputs, computing({}, {})
        )
        if outputs is None:
            return Effect.NONE, 0.0
        if failure:
            return Effect.UNLIKE, 0.0
        if not may_differ(self.native, outputs):
            return Effect.NONE, 0.0
        try:
            if excess(self.expected, outputs) <= 1:
                return Effect.NONE, 0.0
        except (TypeError, ValueError):
            return Effect.UNLIKE, 0.0
        if not self.failed or sample.returned is None:
            return Effect.UNLIKE, 0.0
        right = [*self.expected.outputs.values()]
        elements = elements_alike(mistake, outputs, sample.returned, right)
        return (Effect.ALIKE, elements) if elements else (Effect.UNLIKE, 0.0)


def judged_node(sample: NodeSample) -> JudgedNode | None:
    """Return a node with its expected result; None if that cannot be estimated."""
    try:
        with time_limit(EVALUATION_SECONDS):
            native = computing({}, {})(sample.model, sample.inputs)
            right = native if sample.right is None else sample.right
            names = [output.name for output in sample.model.graph.output]
            stored = dict(zip(names, right, strict=True))
            problem = Problem(sample.model, sample.inputs, stored)
            node = BoundNode.of(sample.model, sample.inputs)
            traits = node_traits(node, stored)
            expected = estimated_here(problem)
            if expected.unusable or expected.contradictions:
                return None
            failed = sample.failed
            if failed is None:
                assert sample.returned is not None  # noqa: S101 - generated nodes are answered
                failed = may_differ([*expected.outputs.values()], sample.returned) and (
                    excess(expected, sample.returned) > 1
                )
            if not failed and not any(v.size for v in right if isinstance(v, np.ndarray)):
                # Outputs without elements agree with most mistakes.
                return None
            return JudgedNode(sample, expected, native, failed, traits)
    except (TimeLimitError, Exception):  # noqa: BLE001 - the node cannot be judged
        return None


def effects_on(
    mistake: NodeMutant, judges: Mapping[int, JudgedNode]
) -> tuple[float, dict[int, Effect]]:
    """Return how many wrong elements a mistake reproduces, and its effects on cases by number."""
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
        effects |= {index: judges[index].effect(mistake)[0] for index in further}
    return elements, effects
