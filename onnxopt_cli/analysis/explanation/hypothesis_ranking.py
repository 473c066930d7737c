"""The hypotheses that agree with all known nodes, the best first.

The cost of a hypothesis grows with the number and the kind of its parts, and with the failures that
it leaves unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from onnxopt_cli.analysis.explanation.hypotheses import (
    MAX_CONTRADICTING_SHARE,
    Hypothesis,
    agrees_with_nodes,
    any_explains,
)
from onnxopt_cli.analysis.explanation.node_examination import NodeExamination
from onnxopt_cli.analysis.explanation.node_samples import Effect, NodeSample, Trait, fitted_limits
from onnxopt_cli.core.values import Array
from onnxopt_cli.mutation.node_mutants import MutantKind, NodeMutant

# Cost of a mistake.
_MISTAKE_COST = 0.4
# Cost of a failing case that a hypothesis does not explain.
_CASE_COST = 0.4
# Cost of a failing generated node that a hypothesis does not explain.
_NODE_COST = 0.1
# Largest total cost of failing cases and nodes that a hypothesis does not explain.
_MAX_LEFT_COST = 4.0
# Additional cost of an earlier version of the operator, which differs in more than one way.
_VERSION_COST = 0.5
# Cost of a second part of a condition.
_PAIR_COST = 0.5
# Largest number of mistakes for which a condition is sought.
_MAX_RESTRICTED = 24
# Largest number of rivals, other mistakes with the same effect, that a statement names.
_MAX_RIVALS = 2
# Largest number of mistakes for which limits on numbers are sought.
_MISTAKES_WITH_LIMITS = 3
# Largest number of conditions with limits on numbers.
_MAX_LIMITS = 40
# Largest number of hypotheses that are kept.
_MAX_RANKED = 60


class HypothesisRanking(NodeExamination):
    """The hypotheses that agree with the known nodes.

    The arguments are those of :class:`NodeExamination`.
    """

    def _accepted_besides(self, hypothesis: Hypothesis) -> list[Hypothesis]:
        """Return the accepted hypotheses except a given hypothesis."""
        return [accepted for accepted in self._accepted if accepted is not hypothesis]

    def _hypotheses(self) -> list[Hypothesis]:
        """Return the hypotheses that agree with all nodes, the best first."""
        failures = self._open_failures()
        if not any(sample.case for sample in failures):
            return []
        # Limits on numbers require generated nodes, because some number may separate a few cases by
        # chance.
        limits = self._limits(failures) if self._submit else []
        table = _Table(self._samples, failures, limits)
        with_costs: list[tuple[float, Hypothesis]] = []
        for place, name in enumerate(self._candidates):
            mistake = self._mistakes[name]
            cost = _MISTAKE_COST + 0.001 * place
            cost += _VERSION_COST * (mistake.kind is MutantKind.VERSION)
            plain = Hypothesis((), mistake, cost)
            if self._is_consistent(plain):
                explained = np.array([plain.explains(sample) for sample in self._samples])
                with_costs.append((cost + table.cost_left(explained), plain))
            elif place < _MAX_RESTRICTED:
                with_costs += table.conditions(mistake, cost)
        with_costs += table.conditions(None, 0.0)
        with_costs.sort(key=_total_cost)
        return [
            hypothesis
            for _, hypothesis in with_costs[:_MAX_RANKED]
            if self._is_consistent(hypothesis)
        ]

    def _limits(self, failures: Sequence[NodeSample]) -> list[Trait]:
        """Return conditions that limit a number of a node to the values of failing nodes."""
        passing = [sample for sample in self._samples if sample.failed is False]
        mistakes = [None, *self._candidates[:_MISTAKES_WITH_LIMITS]]
        with_counts: dict[Trait, int] = {}
        for name in mistakes:
            wrong = [
                sample.numbers
                for sample in failures
                if name is None or sample.effects.get(name) is Effect.ALIKE
            ]
            for number in {*chain.from_iterable(wrong)}:
                shown_by = name or number.ignoring
                right = [
                    sample.numbers[number]
                    for sample in passing
                    if number in sample.numbers and sample.effects.get(shown_by) is not Effect.NONE
                ]
                values = [numbers[number] for numbers in wrong if number in numbers]
                for limits in fitted_limits(number, np.array(values), np.array(right)):
                    # An interval of lengths or values often separates a few nodes by accident.
                    # Therefore, further values inside the interval are tried only for attributes.
                    if limits.low and limits.high and not number.attribute:
                        continue
                    inside = sum(limits.contain(numbers) for numbers in wrong)
                    with_counts[limits.statement()] = inside
        return sorted(with_counts, key=lambda trait: (-with_counts[trait], trait.cost, trait.text))[
            :_MAX_LIMITS
        ]

    def _open_failures(self) -> list[NodeSample]:
        """Return the failing nodes that no accepted hypothesis explains."""
        return [
            sample
            for sample in self._samples
            if sample.failed and not any_explains(self._accepted, sample)
        ]

    def _is_consistent(self, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis agrees with all nodes."""
        rivals = self._accepted_besides(hypothesis)
        return agrees_with_nodes(hypothesis, self._samples, self._candidates, rivals)

    def _rivals(self, hypothesis: Hypothesis) -> list[str]:
        """Return names of other mistakes that explain all nodes that a hypothesis explains."""
        if hypothesis.mistake is None:
            return []
        explained = [sample for sample in self._samples if hypothesis.explains(sample)]
        return [
            name
            for name in self._candidates
            if name != hypothesis.mistake.name
            and all(sample.effects.get(name) is Effect.ALIKE for sample in explained)
            and self._is_consistent(replace(hypothesis, mistake=self._mistakes[name]))
        ][:_MAX_RIVALS]


def _total_cost(pair: tuple[float, Hypothesis]) -> float:
    return pair[0]


class _Table:
    """The traits of all nodes as arrays, to test many conditions at once."""

    def __init__(
        self,
        samples: Sequence[NodeSample],
        failures: Sequence[NodeSample],
        limits: Iterable[Trait],
    ) -> None:
        traits = {trait for sample in failures if sample.case for trait in sample.traits}
        traits.update(limits)
        self._samples = samples
        # Of several traits that hold for the same nodes, only the simplest is kept.
        rows: dict[tuple[bytes, bytes], tuple[Trait, Array, Array]] = {}
        for trait in sorted(traits, key=lambda trait: (trait.cost, trait.text)):
            holds = np.array([trait.holds(sample) for sample in samples])
            effects = [sample.effects.get(trait.ignoring, Effect.UNLIKE) for sample in samples]
            shows = holds & np.array([effect is not Effect.NONE for effect in effects])
            rows.setdefault((holds.tobytes(), shows.tobytes()), (trait, holds, shows))
        self._traits = [trait for trait, _, _ in rows.values()]
        self._holds = np.array([holds for _, holds, _ in rows.values()], bool)
        self._shows = np.array([shows for _, _, shows in rows.values()], bool)
        opened = {id(sample) for sample in failures}
        self._failing = np.array([id(sample) in opened for sample in samples])
        self._passing = np.array([sample.failed is False for sample in samples])
        self._telling = np.array([sample.is_telling for sample in samples])
        self._cases = np.array([bool(sample.case) for sample in samples])
        self._weights = np.where(self._cases, _CASE_COST, _NODE_COST) * self._failing

    def cost_left(self, explained: Array) -> float:
        """Return the cost of the failures that are not explained."""
        return min(_MAX_LEFT_COST, float(self._weights[~explained].sum()))

    def conditions(self, mistake: NodeMutant | None, cost: float) -> list[tuple[float, Hypothesis]]:
        """Return conditions of one and two traits that no case contradicts, with total costs.

        Args:
            mistake: the mistake that has the condition; None for any wrong outputs.
            cost: the cost of the mistake.
        """
        if not self._traits:
            return []
        agreeing, weights = self._failing, self._weights
        shows = self._shows & self._telling
        holds = self._shows.astype(np.float32)
        if mistake is not None:
            effects = [sample.effects.get(mistake.name, Effect.UNLIKE) for sample in self._samples]
            alike = np.array([effect is Effect.ALIKE for effect in effects])
            visible = np.array([effect is not Effect.NONE for effect in effects])
            agreeing = self._failing & alike
            weights = self._weights * alike
            shows = self._holds & visible
            holds = self._holds.astype(np.float32)
        against = (shows & self._passing).astype(np.float32)
        against_cases = (against * self._cases) @ against.T
        against_nodes = (against * ~self._cases) @ against.T
        agreeing_nodes = (holds * (agreeing & ~self._cases)) @ holds.T
        agreeing_cases = (holds * (agreeing & self._cases)) @ holds.T
        covered = (holds * weights) @ holds.T
        limit = MAX_CONTRADICTING_SHARE * (agreeing_nodes + against_nodes)
        valid = (against_cases == 0) & (against_nodes <= limit) & (agreeing_cases > 0)
        costs = np.array([trait.cost for trait in self._traits])
        total = costs[:, None] + costs[None, :]
        np.fill_diagonal(total, costs)
        own_costs = cost + total + _PAIR_COST * ~np.eye(len(costs), dtype=bool)
        remaining = np.minimum(_MAX_LEFT_COST, self._weights.sum() - covered)
        totals = np.where(np.triu(valid), own_costs + remaining, np.inf)
        conditions = []
        for place in np.argsort(totals, axis=None, kind="stable")[:_MAX_RANKED]:
            row, column = divmod(int(place), len(costs))
            if not np.isfinite(totals[row, column]):
                break
            parts = {self._traits[row]: None, self._traits[column]: None}
            hypothesis = Hypothesis(tuple(parts), mistake, float(own_costs[row, column]))
            conditions.append((float(totals[row, column]), hypothesis))
        return conditions
