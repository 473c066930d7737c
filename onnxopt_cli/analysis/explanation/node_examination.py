"""Examine nodes: find their traits, and the effects of known mistakes on them.

onnx's reference computes the outputs of known mistakes and the correct outputs of generated nodes.
It runs in a forked process, because models are not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from os import getpid
from time import process_time
from typing import Any, TypeVar

import numpy as np
import onnx

from onnxopt_cli.analysis.explanation.explain import SearchClock
from onnxopt_cli.analysis.explanation.explain_remaining import MIN_CHANGING_SHARE, REPEATED_CASES
from onnxopt_cli.analysis.explanation.hypotheses import MIN_ALIKE_SHARE
from onnxopt_cli.analysis.explanation.node_samples import (
    Effect,
    NodeSample,
    effects_by_mistake,
    effects_on,
    judged_node,
)
from onnxopt_cli.analysis.explanation.node_traits import PROBES
from onnxopt_cli.analysis.node_search import on_corrected_reference
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.values import NumberKind, Value, kind_of
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mistakes import mistakes_in_versions
from onnxopt_cli.mutation.node_mutants import NodeMutant
from onnxopt_cli.operators.native_onnx import die_with_models
from onnxopt_cli.run.reproduce import MIN_ELEMENTS_ALIKE
from onnxopt_cli.workers.forked_processes import ProcessLostError

#: A process is ended if it yields no item for SILENCE_SECONDS. The limit is high: an item consists
#: of the effects of one mistake on all cases, and a busy machine may compute them slowly.
SILENCE_SECONDS = 30.0
#: Two outputs for the same inputs count as different if they differ by more than REPEATED_RTOL
#: times the largest element.
REPEATED_RTOL = 1e-3
# No further mistake is tried after this share of the limit of a search.
_EXAMINATION_SHARE = 0.6
# Largest number of mistakes that are kept although they reproduce only a few wrong elements.
_MAX_DOUBTFUL = 12

#: A function that submits a model of one node to a backend. The function returns the outputs, or
#: the outcome if the backend returns no outputs.
SubmitNode = Callable[[onnx.ModelProto, Mapping[str, Value]], Sequence[Value] | Outcome]
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class SearchLimit:
    """The evaluations and the seconds that a search may use.

    An evaluation is a run of a node on the backend, an attempt to generate a node, or the
    computation of a node or of a mistake by onnx's reference. The number of evaluations does not
    depend on the machine, so a repeated search has the same result. The limit in seconds ends a
    search whose evaluations are slow.
    """

    evaluations: float
    seconds: float

    def share(self, fraction: float) -> SearchLimit:
        """Return a limit with a fraction of these evaluations and seconds."""
        return SearchLimit(fraction * self.evaluations, fraction * self.seconds)

    def after(self, clock: SearchClock) -> SearchLimit:
        """Return the end of a search that begins now, as totals of evaluations and seconds."""
        return SearchLimit(clock.evaluations + self.evaluations, clock.now() + self.seconds)

    def remaining(self, clock: SearchClock) -> SearchLimit:
        """Return what remains until the end of a search; the end comes from :meth:`after`."""
        return SearchLimit(self.evaluations - clock.evaluations, self.seconds - clock.now())

    @property
    def is_used_up(self) -> bool:
        """Whether no evaluation or no time is left."""
        return self.evaluations <= 0 or self.seconds <= 0


class NodeExamination:
    """The known nodes of one operator, and the mistakes that may explain their failures.

    Args:
        samples: the nodes of the cases.
        submit: submits a generated node; None if the backend is not available.
        clock: counts the evaluations and the time of the search.
        limit: the limit of the search.

    Attributes:
        samples: the known nodes: first the nodes of the cases, then generated nodes.
        submit: as for the arguments.
        end: the totals of evaluations and seconds at which the search must end.
        mistakes: the mistakes that reproduce failing cases or show the effect of a parameter.
        candidates: names of the mistakes that may explain failures, the most likely first.
        doubtful: names of the candidates that reproduce only a few wrong elements. Only generated
            nodes can confirm such a candidate.
    """

    def __init__(
        self,
        samples: list[NodeSample],
        submit: SubmitNode | None,
        clock: SearchClock,
        limit: SearchLimit,
    ) -> None:
        self.samples, self.submit = samples, submit
        self._clock, self.end = clock, limit.after(clock)
        self.candidates: list[str] = []
        self.doubtful: list[str] = []
        self.mistakes: dict[str, NodeMutant] = {}

    @property
    def is_at_limit(self) -> bool:
        """Whether the search has used all of its evaluations or its time."""
        return self.remaining().is_used_up

    def remaining(self) -> SearchLimit:
        """Return the limit that remains for the search."""
        return self.end.remaining(self._clock)

    def forked(
        self, work: Callable[[], Iterator[tuple[int, _Item]]], limit: SearchLimit
    ) -> Iterator[_Item]:
        """Run a generator in a forked process with the corrected reference, and yield its items.

        Iteration ends early if the process crashes or exceeds the limit. Its evaluations and its
        processor time also count towards the limit of this search.

        Args:
            work: yields items, each with the number of evaluations that it took.
            limit: the limit of the evaluations and the processor time.
        """
        parent = getpid()

        def limited() -> Iterator[tuple[int, float, list[_Item]]]:
            if getpid() != parent:
                # If a model crashes onnx, only this forked process ends. Therefore, onnx needs no
                # additional process.
                die_with_models()
            began, evaluations = process_time(), 0
            for count, item in work():
                used, evaluations = process_time() - began, evaluations + count
                yield count, used, [item]
                if used > limit.seconds or evaluations > limit.evaluations:
                    return
            yield 0, process_time() - began, []

        used = 0.0
        with suppress(ProcessLostError):
            for count, total, items in on_corrected_reference(limited, SILENCE_SECONDS):
                self._clock.evaluations += count
                self._clock.add(total - used)
                used = total
                yield from items

    def changes_when_repeated(self) -> bool:
        """Rerun a few failing nodes, and return whether the outputs of at least a third change.

        If outputs change, the backend keeps state, and no condition on a node describes its
        failures.
        """
        failing = [sample for sample in self.samples if sample.failed][:REPEATED_CASES]
        differing = sum(map(self._differs_again, failing))
        return differing >= MIN_CHANGING_SHARE * len(failing)

    def _differs_again(self, sample: NodeSample) -> bool:
        if self.submit is None:
            return False
        first, second = (self.submit(sample.model, sample.inputs) for _ in range(2))
        if sample.is_for_errors:
            return not first == second == Outcome.ERROR
        responses = [sample.returned, first, second]
        return any(
            earlier is not None
            and not isinstance(earlier, Outcome)
            and not isinstance(later, Outcome)
            and later is not None
            and (len(earlier) != len(later) or any(map(_far_apart, earlier, later)))
            for earlier, later in pairwise(responses)
        )

    def examine_cases(self) -> None:
        """Find the traits of the cases, and the mistakes that reproduce failing cases."""
        cases = [*self.samples]
        # A known mistake changes outputs, so it cannot explain an error.
        tried = [sample for sample in cases if not sample.is_for_errors]
        mistakes = self._mistakes_of(tried)

        def work() -> Iterator[tuple[int, tuple[int | str, Any, Any, Any]]]:
            judges = {}
            for index, sample in enumerate(cases):
                if judge := judged_node(sample):
                    judges[index] = judge
                    yield 1, (index, judge.traits, judge.numbers, judge.outputs)
            for name, mistake in mistakes.items():
                alike, effects = effects_on(mistake, judges)
                yield 1 + len(effects), (name, alike, effects, None)

        elements: dict[str, float] = {}
        for key, value, effects, outputs in self.forked(
            work, self.remaining().share(_EXAMINATION_SHARE)
        ):
            if isinstance(key, int):
                cases[key].traits, cases[key].numbers = value, effects
                cases[key].outputs = outputs
            elif value or (effects and key.endswith(PROBES)):
                elements[key] = value
                self.mistakes[key] = mistakes[key]
                for index, effect in effects.items():
                    cases[index].effects[key] = effect
        self.samples = [sample for sample in cases if sample.traits]
        self.candidates = [key for key, count in elements.items() if count >= MIN_ELEMENTS_ALIKE]
        if not self.candidates and self.submit:
            self.doubtful = [key for key, count in elements.items() if count][:_MAX_DOUBTFUL]
            self.candidates = [*self.doubtful]

    @staticmethod
    def _mistakes_of(samples: Sequence[NodeSample]) -> dict[str, NodeMutant]:
        schemas = [BoundNode.of(sample.model, sample.inputs).schema for sample in samples]
        if not schemas:
            return {}
        versions = sorted({schema.since_version for schema in schemas}, reverse=True)
        return mistakes_in_versions(schemas[0].domain, schemas[0].name, versions)

    def _is_possible(self, name: str) -> bool:
        """Return whether a mistake, possibly with a condition, may explain failures."""
        effects = [sample.effects.get(name) for sample in self.samples if sample.failed]
        alike = effects.count(Effect.ALIKE)
        return alike >= MIN_ALIKE_SHARE * (alike + effects.count(Effect.UNLIKE)) * 0.5

    def judge(self, samples: Sequence[NodeSample]) -> None:
        """Judge generated nodes without adding them to the known nodes.

        A node that cannot be judged within the limit keeps the unknown result None.
        """

        def work() -> Iterator[tuple[int, Any]]:
            for index, sample in enumerate(samples):
                if judge := judged_node(sample):
                    yield 1, (index, judge.failed, judge.outputs)

        for index, failed, outputs in self.forked(work, self.remaining()):
            samples[index].failed, samples[index].outputs = failed, outputs

    def examine_generated(self, samples: Sequence[NodeSample]) -> None:
        """Judge generated nodes, and find their traits and the effects of candidates."""
        candidates = [name for name in self.candidates if self._is_possible(name)]
        probes = [name for name in self.mistakes if name.endswith(PROBES)]
        names = dict.fromkeys((*candidates, *probes))

        def work() -> Iterator[tuple[int, Any]]:
            for index, sample in enumerate(samples):
                judge = judged_node(sample)
                if judge is None:
                    continue
                effects = effects_by_mistake([self.mistakes[name] for name in names], judge)
                if effects is not None:
                    judged = judge.failed, judge.traits, judge.numbers, judge.outputs
                    yield 1 + len(effects), (index, *judged, effects)

        for index, failed, traits, numbers, outputs, effects in self.forked(work, self.remaining()):
            sample = samples[index]
            sample.outputs = outputs
            sample.failed, sample.traits = failed, traits
            sample.numbers, sample.effects = numbers, effects
        self.samples += [sample for sample in samples if sample.traits]


def _far_apart(first: Value, second: Value) -> bool:
    """Return whether two outputs differ too much to result from another order of operations."""
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        return False
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return True
    if kind_of(first.dtype) is not NumberKind.FLOAT:
        return not np.array_equal(first, second)
    earlier, later = first.astype(np.float64), second.astype(np.float64)
    finite = np.isfinite(earlier) & np.isfinite(later)
    largest = float(np.max(np.abs(earlier[finite]), initial=0.0))
    close = np.isclose(earlier, later, rtol=0, atol=REPEATED_RTOL * largest, equal_nan=True)
    return not close.all()
