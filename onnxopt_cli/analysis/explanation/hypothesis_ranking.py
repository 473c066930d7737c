"""Rank the hypotheses that agree with all known nodes, the best first.

The cost of a hypothesis depends on the number and the kinds of its parts, and on the failures that
the hypothesis does not explain.
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
from onnxopt_cli.analysis.explanation.node_samples import Effect, NodeSample
from onnxopt_cli.analysis.explanation.node_traits import Trait, fitted_limits
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
# Additional cost of the mistake "computed as in an earlier version", because versions differ in
# several ways.
_VERSION_COST = 0.5
# Cost of each part of a condition after the first.
_PART_COST = 0.5
# Largest number of pairs of traits to which a third trait is added.
_MAX_EXTENDED = 40
# Largest number of mistakes for which a condition is sought.
_MAX_RESTRICTED = 24
# A rival is another mistake with the same effect. A statement names at most _MAX_RIVALS rivals.
_MAX_RIVALS = 2
# Largest number of mistakes for which limits on numbers are sought.
_MISTAKES_WITH_LIMITS = 3
# Largest number of conditions with limits on numbers.
_MAX_LIMITS = 40
# A condition is preferred to the best condition if it is more general, explains at least
# _GENERAL_FACTOR times as many failing nodes, and costs at most _GENERAL_COST more.
_GENERAL_FACTOR = 1.25
_GENERAL_COST = 0.5
# Largest number of hypotheses that are kept.
_MAX_RANKED = 60


class HypothesisRanking:
    """The hypotheses that agree with the known nodes.

    Args:
        nodes: the known nodes and the mistakes that may explain their failures.

    Attributes:
        accepted: the hypotheses that will be stated. A failure that one of them explains needs no
            other hypothesis.
    """

    def __init__(self, nodes: NodeExamination) -> None:
        self._nodes = nodes
        self.accepted: list[Hypothesis] = []

    def accepted_besides(self, hypothesis: Hypothesis) -> list[Hypothesis]:
        """Return the accepted hypotheses other than ``hypothesis``."""
        return [accepted for accepted in self.accepted if accepted is not hypothesis]

    def hypotheses(self) -> list[Hypothesis]:
        """Return the hypotheses that agree with all nodes, the best first."""
        failures = self.open_failures()
        if not any(sample.case for sample in failures):
            return []
        # Limits on numbers are tried only if nodes can be generated to test them. A node has many
        # numbers, one of which often separates a few cases by chance.
        limits = self._limits(failures) if self._nodes.submit else []
        table = _Table(self._nodes.samples, failures, limits)
        with_costs: list[tuple[float, Hypothesis]] = []
        for place, name in enumerate(self._nodes.candidates):
            mistake = self._nodes.mistakes[name]
            cost = _MISTAKE_COST + 0.001 * place
            cost += _VERSION_COST * (mistake.kind is MutantKind.VERSION)
            plain = Hypothesis((), mistake, cost)
            if self.is_consistent(plain):
                explained = np.array([plain.explains(sample) for sample in self._nodes.samples])
                with_costs.append((cost + table.cost_left(explained), plain))
            elif place < _MAX_RESTRICTED:
                with_costs += table.conditions(mistake, cost)
        with_costs += table.conditions(None, 0.0)
        with_costs.sort(key=_total_cost)
        ranked = [
            hypothesis
            for _, hypothesis in with_costs[:_MAX_RANKED]
            if self.is_consistent(hypothesis)
        ]
        return self._general_first(ranked)

    def _general_first(self, ranked: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Move a condition to the front if it is more general than the first one and explains more.

        Nodes that are generated from one failing case often share a trait by accident. A more
        general condition may also hold in failures that are already explained. Such a condition is
        more likely to be the cause. A mistake may also agree by accident if it reproduces only a
        few elements, such as a single truth value.
        """
        if not ranked:
            return []
        best = ranked[0]
        is_doubtful = best.mistake is not None and best.mistake.name in self._nodes.doubtful
        if best.mistake is not None and not is_doubtful:
            return [*ranked]
        max_cost = best.cost + _GENERAL_COST + _MISTAKE_COST * is_doubtful
        failures = [sample for sample in self._nodes.samples if sample.failed]
        explained = {id(sample) for sample in failures if best.explains(sample)}
        first, most = best, _GENERAL_FACTOR * len(explained)
        for hypothesis in ranked[1:]:
            if hypothesis.mistake is not None or hypothesis.cost > max_cost:
                continue
            of_other = {id(sample) for sample in failures if hypothesis.explains(sample)}
            if explained < of_other and len(of_other) >= most:
                first, most = hypothesis, len(of_other) + 1
        return [first, *(hypothesis for hypothesis in ranked if hypothesis is not first)]

    def _limits(self, failures: Sequence[NodeSample]) -> list[Trait]:
        """Return conditions that limit a number to an interval around values of failing nodes."""
        passing = [sample for sample in self._nodes.samples if sample.failed is False]
        mistakes = [None, *self._nodes.candidates[:_MISTAKES_WITH_LIMITS]]
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
                    if number in sample.numbers
                    and sample.effects.get(shown_by) is not Effect.NONE
                    and (name is not None or sample.is_telling)
                ]
                values = [numbers[number] for numbers in wrong if number in numbers]
                for limits in fitted_limits(number, np.array(values), np.array(right)):
                    # Intervals with two limits are used only for attributes: an interval of lengths
                    # or values often separates a few nodes by accident.
                    if limits.low and limits.high and not number.attribute:
                        continue
                    inside = sum(limits.contain(numbers) for numbers in wrong)
                    with_counts[limits.statement()] = inside
        return sorted(with_counts, key=lambda trait: (-with_counts[trait], trait.cost, trait.text))[
            :_MAX_LIMITS
        ]

    def open_failures(self) -> list[NodeSample]:
        """Return the failing nodes that no accepted hypothesis explains."""
        return [
            sample
            for sample in self._nodes.samples
            if sample.failed and not any_explains(self.accepted, sample)
        ]

    def separate_failures(self) -> list[NodeSample]:
        """Return the failing nodes on which no accepted mistake has an effect.

        An accepted mistake may be the cause of a failure although it does not reproduce the
        outputs, for example because of other roundings. Therefore, failures on which it has an
        effect are left out.
        """
        mistakes = [hypothesis for hypothesis in self.accepted if hypothesis.mistake]
        return [
            sample
            for sample in self.open_failures()
            if not any(hypothesis.differs(sample) for hypothesis in mistakes)
        ]

    def is_consistent(self, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis agrees with all nodes."""
        rivals = self.accepted_besides(hypothesis)
        return agrees_with_nodes(hypothesis, self._nodes.samples, self._nodes.candidates, rivals)

    def rivals(self, hypothesis: Hypothesis) -> list[str]:
        """Return names of other mistakes that explain all nodes that a hypothesis explains."""
        if hypothesis.mistake is None:
            return []
        explained = [sample for sample in self._nodes.samples if hypothesis.explains(sample)]
        return [
            name
            for name in self._nodes.candidates
            if name != hypothesis.mistake.name
            and all(sample.effects.get(name) is Effect.ALIKE for sample in explained)
            and self.is_consistent(replace(hypothesis, mistake=self._nodes.mistakes[name]))
        ][:_MAX_RIVALS]


def _total_cost(pair: tuple[float, Hypothesis]) -> float:
    return pair[0]


class _Table:
    """The traits of all nodes as arrays, so that many conditions can be tested together."""

    def __init__(
        self,
        samples: Sequence[NodeSample],
        failures: Sequence[NodeSample],
        limits: Iterable[Trait],
    ) -> None:
        traits = {trait for sample in failures if sample.case for trait in sample.traits}
        traits.update(limits)
        self._samples = samples
        # If several traits hold for the same nodes, only the simplest trait is kept.
        rows: dict[tuple[bytes, bytes], tuple[Trait, Array, Array]] = {}
        for trait in sorted(traits, key=lambda trait: (trait.cost, trait.text)):
            holds = np.array([sample.has(trait) for sample in samples])
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
        """Return conditions of up to three traits that no case contradicts, with their total costs.

        Three traits are combined only if no shorter condition explains all failures.

        Args:
            mistake: the mistake that has the condition; None for any wrong outputs.
            cost: the cost of the mistake.
        """
        if not self._traits:
            return []
        masks = self._masks(mistake)
        trait_costs = np.array([trait.cost for trait in self._traits])
        valid, left, against = self._evaluated(masks, masks.holds, masks.against)
        total = trait_costs[:, None] + trait_costs[None, :]
        np.fill_diagonal(total, trait_costs)
        costs = cost + total + _PART_COST * ~np.eye(len(trait_costs), dtype=bool)
        totals = np.where(np.triu(valid), costs + left, np.inf)
        conditions = []
        for row, column in _least(totals, _MAX_RANKED):
            parts = {self._traits[row]: None, self._traits[column]: None}
            hypothesis = Hypothesis(tuple(parts), mistake, float(costs[row, column]))
            conditions.append((float(totals[row, column]), hypothesis))
        if (valid & (left <= 0)).any():
            return conditions
        # A third trait is added to pairs of traits that hold in many failing nodes but also in
        # passing nodes.
        pairs = _least(np.where(np.triu(~valid, 1), costs + left + against, np.inf), _MAX_EXTENDED)
        if not pairs:
            return conditions
        rows, columns = map(list, zip(*pairs, strict=True))
        of_pairs = [mask[rows] * mask[columns] for mask in (masks.holds, masks.against)]
        valid, left, _ = self._evaluated(masks, *of_pairs)
        costs = costs[rows, columns][:, None] + trait_costs[None, :] + _PART_COST
        totals = np.where(valid, costs + left, np.inf)
        for pair, third in _least(totals, _MAX_RANKED):
            traits = tuple(self._traits[place] for place in (*pairs[pair], third))
            hypothesis = Hypothesis(traits, mistake, float(costs[pair, third]))
            conditions.append((float(totals[pair, third]), hypothesis))
        return conditions

    def _masks(self, mistake: NodeMutant | None) -> _Masks:
        """Return which nodes agree with each trait as a condition, and which contradict it."""
        if mistake is None:
            against = self._shows & self._telling & self._passing
            return _Masks(self._shows, against, self._failing, self._weights)
        effects = [sample.effects.get(mistake.name, Effect.UNLIKE) for sample in self._samples]
        alike = np.array([effect is Effect.ALIKE for effect in effects])
        visible = np.array([effect is not Effect.NONE for effect in effects])
        against = self._holds & visible & self._passing
        return _Masks(self._holds, against, self._failing & alike, self._weights * alike)

    def _evaluated(self, masks: _Masks, held: Array, shown: Array) -> tuple[Array, Array, Array]:
        """Evaluate each combination of a condition and one more trait.

        Args:
            masks: the masks of single traits.
            held: for each condition, the nodes that meet it.
            shown: for each condition, the nodes that contradict it.

        Returns:
            Three arrays with an entry for each pair of a condition and a trait:

            - whether the nodes agree with the combination;
            - the cost of the failures that the combination does not explain;
            - the cost of the nodes that contradict the combination.
        """
        cases = self._cases
        against_cases = (shown * cases) @ masks.against.T
        against_nodes = (shown * ~cases) @ masks.against.T
        agreeing_nodes = (held * (masks.agreeing & ~cases)) @ masks.holds.T
        agreeing_cases = (held * (masks.agreeing & cases)) @ masks.holds.T
        limit = MAX_CONTRADICTING_SHARE * (agreeing_nodes + against_nodes)
        valid = (against_cases == 0) & (against_nodes <= limit) & (agreeing_cases > 0)
        covered = (held * masks.weights) @ masks.holds.T
        uncovered_cost = np.minimum(_MAX_LEFT_COST, self._weights.sum() - covered)
        against = _CASE_COST * against_cases + _NODE_COST * against_nodes
        return valid, np.maximum(0, np.round(uncovered_cost, 6)), against


class _Masks:
    """The nodes that agree with each trait as the condition of a mistake, or contradict it.

    Attributes:
        holds: a row for each trait: 1 for the nodes that agree with the trait, 0 for other nodes.
        against: a row for each trait: 1 for the nodes that contradict it, 0 for other nodes.
        agreeing: a mask of the failing nodes whose outputs the mistake reproduces.
        weights: the cost of each failing node that a condition does not explain.
    """

    def __init__(self, holds: Array, against: Array, agreeing: Array, weights: Array) -> None:
        self.holds, self.against = holds.astype(np.float32), against.astype(np.float32)
        self.agreeing, self.weights = agreeing, weights


def _least(totals: Array, count: int) -> list[tuple[int, int]]:
    """Return the row and column of each of the ``count`` smallest finite numbers of a matrix.

    The smallest number comes first.
    """
    places = np.argsort(totals, axis=None, kind="stable")[:count]
    pairs = [divmod(int(place), totals.shape[1]) for place in places]
    return [pair for pair in pairs if np.isfinite(totals[pair])]
