"""Conditions on the wrong elements of an output, for operators without a formula.

A condition states which elements of an output are wrong, what their values are, or both. A
condition may be restricted to nodes with a trait: "elements found wrong only where the window
leaves the input, in nodes with ceil_mode = 1". The condition must hold for every wrong element of
every failing node with the trait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from onnxopt_cli.analysis.explanation.element_features import (
    BROAD_CONTENTS,
    MAX_OUTPUT_ELEMENTS,
    REORDERED,
    WEAK_CONTENTS,
    ElementFeatures,
    element_features,
    is_varied,
    wrong_content,
)
from onnxopt_cli.analysis.explanation.features import LIMIT_DIGITS, number_text
from onnxopt_cli.analysis.explanation.node_samples import NodeSample
from onnxopt_cli.analysis.explanation.node_traits import Trait
from onnxopt_cli.analysis.explanation.required_evidence import MIN_INDEPENDENT, MIN_OTHERS
from onnxopt_cli.core.values import Array
from onnxopt_cli.mutation.bound_node import BoundNode

#: A proof requires MIN_FAILING failing nodes that were generated after the condition was chosen.
MIN_FAILING = 8
#: The elements that confirm a condition might all meet it by chance. The probability of this must
#: be at most MAX_CHANCE.
MAX_CHANCE = 1e-6
#: At least MIN_WRONG_SHARE of the elements that meet a condition must be wrong.
MIN_WRONG_SHARE = 0.2
#: If some wrong elements do not meet a condition, at least SUFFICIENT_SHARE of the elements that
#: meet the condition must be wrong.
SUFFICIENT_SHARE = 0.99
#: If a condition names a trait, at least MIN_RIGHT_WITHOUT new nodes without the trait must be
#: right.
MIN_RIGHT_WITHOUT = 11
#: A trait of all failing nodes is stated if at least MIN_FAILURE_RATE of the nodes with the trait
#: fail.
MIN_FAILURE_RATE = 0.3
#: All independent failing nodes might have a trait by chance. The trait is stated only if the
#: probability of this is at most MAX_CHANCE_OF_TRAIT.
MAX_CHANCE_OF_TRAIT = 1e-3
#: A condition may limit a number, such as the right value of an element, to an interval. Each end
#: of the interval is a limit. A limit is judged by the ELEMENTS_AT_LIMIT elements nearest to the
#: limit that meet the condition. The limit is stated only if at least MIN_WRONG_SHARE_AT_LIMIT of
#: these elements are wrong. Otherwise, the limit may merely be the end of the known values.
MIN_WRONG_SHARE_AT_LIMIT = 0.6
ELEMENTS_AT_LIMIT = 12
#: The gap at a limit lies between the nearest wrong element and the nearest right element beyond
#: the limit, both in nodes with the same types of inputs. A limit is stated only if the gap is at
#: most MAX_GAP times the limit.
MAX_GAP = 0.1
# Cost of a condition that states only a trait of all failing nodes.
_NODES_COST = 1.5
# A condition is a candidate if at least _MIN_CANDIDATE_SHARE of the elements that meet it are
# wrong.
_MIN_CANDIDATE_SHARE = 0.25
# Least evidence for a candidate. Evidence is the negative decimal logarithm of a probability.
_MIN_CANDIDATE_EVIDENCE = 0.6
# More evidence than _MAX_EVIDENCE does not make a condition better.
_MAX_EVIDENCE = 12.0
# Cost of restricting a condition to the nodes with a trait.
_TRAIT_COST = 0.6
# Cost of the second feature in a condition.
_PART_COST = 0.5
# Cost of each limit in a condition.
_LIMIT_COST = 0.3
# Cost of a failing case that a condition leaves unexplained.
_CASE_COST = 0.3
# Cost of a condition that does not explain all wrong elements.
_SUFFICIENT_COST = 0.6
# If elements meet a condition but are right, the cost of the condition increases by their share
# times _SHARE_COST.
_SHARE_COST = 2.0
# Largest total cost of cases that a condition leaves unexplained.
_MAX_LEFT_COST = 3.0
# Number of single conditions from which pairs are formed.
_MAX_PAIRED = 14
# Number of ranked conditions.
_MAX_RANKED = 30
# Least value of the second probability in :func:`_chance`.
_LEAST_CHANCE = 1e-2
# Largest number of traits for which pairs of features are tried.
_MAX_PAIRED_TRAITS = 5
# Largest number of pairs that are kept for each trait.
_MAX_PAIRS = 3


class ElementLimit(NamedTuple):
    """The feature that the number ``name`` of an element lies between two bounds, exclusive.

    For example, the number may be the right value of the element.
    """

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ElementCondition:
    """A statement about the wrong elements of an output.

    Attributes:
        place: the index of the output among the outputs of the graph.
        parts: the features that all wrong elements have; empty if only the content is stated.
        trait: the trait of the nodes for which the statement holds; None for all nodes.
        content: a statement about the values of the wrong elements; may be empty.
        share: among the elements that have all features, the share of wrong elements.
        cost: the condition with the lowest cost is stated.
        is_sufficient: whether all elements with the features are wrong, while elements without the
            features may be wrong for another reason.
        limits: for each feature that is a limit, its text and the limit.
    """

    place: int
    parts: tuple[str, ...]
    trait: Trait | None
    content: str
    share: float
    cost: float
    is_sufficient: bool = False
    limits: tuple[tuple[str, ElementLimit], ...] = ()

    @property
    def key(self) -> str:
        """A text that identifies the condition. The values of its limits are left out."""
        limits = dict(self.limits)
        parts = [limits[part].name if part in limits else part for part in self.parts]
        return "|".join((str(self.place), *parts, self.trait.key if self.trait else ""))

    @property
    def is_of_nodes(self) -> bool:
        """Whether the condition states only a trait of all failing nodes."""
        return not self.parts and not self.content

    def applies_to(self, sample: NodeSample) -> bool:
        """Return whether a node has the trait of the condition."""
        return self.trait is None or sample.has(self.trait)


@dataclass(slots=True)
class _Node:
    """A node with the features of the elements of one output.

    Attributes:
        sample: the node.
        features: the features.
        right: the elements of the right output.
        wrong: a mask of the wrong elements; None if the type or shape of the output is wrong.
        contents: the statements that hold for all wrong elements.
        failed: whether the output is wrong.
        is_varied: whether the right output has enough different elements to show a wrong order.
    """

    sample: NodeSample
    features: ElementFeatures
    right: Array
    wrong: Array | None
    contents: frozenset[str]
    failed: bool
    is_varied: bool

    def meeting(self, parts: Sequence[str]) -> Array | None:
        """Return a mask of the elements with all features; None if a feature does not exist."""
        met = np.ones(self.features.size, bool)
        for part in parts:
            mask = self.features.flags.get(part)
            if mask is None:
                return None
            met &= mask
        return met

    def agrees(self, condition: ElementCondition) -> bool:
        """Return whether all wrong elements agree with a condition."""
        if condition.content and condition.content not in self.contents:
            return False
        if not condition.parts:
            return True
        met = self.meeting(condition.parts)
        return met is not None and self.wrong is not None and bool(met[self.wrong].all())


class ElementConditions:
    """The conditions on wrong elements that agree with known nodes.

    Args:
        samples: the known nodes.
        failures: the failing nodes that no other cause explains.
        place: the index of the output among the outputs of the graph.
    """

    def __init__(
        self, samples: Sequence[NodeSample], failures: Iterable[NodeSample], place: int
    ) -> None:
        self._place = place
        self._limits: dict[str, ElementLimit] = {}
        self.nodes: list[_Node] = []
        failure_ids = {id(sample) for sample in failures}
        for sample in samples:
            if sample.failed is None or (sample.failed and id(sample) not in failure_ids):
                continue
            if node := _examined(sample, place):
                self.nodes.append(node)
        self._failing = [node for node in self.nodes if node.failed]

    def ranked(self) -> list[ElementCondition]:
        """Return the conditions that agree with all nodes, the best first."""
        if not any(node.sample.case for node in self._failing):
            return []
        traits: dict[Trait, None] = {}
        for node in self._failing:
            if node.sample.case:
                traits.update(dict.fromkeys(node.sample.traits))
        groups: list[Trait | None] = [None, *sorted(traits, key=lambda t: (t.cost, t.text))]
        holds = np.array([
            [trait is None or node.sample.has(trait) for node in self.nodes] for trait in groups
        ])  # fmt: skip
        # If several traits hold for the same nodes, only the simplest trait is kept.
        _, first = np.unique(holds, axis=0, return_index=True)
        places = np.sort(first)
        groups, holds = [groups[place] for place in places], holds[places]
        conditions = [
            *self._of_elements(groups, holds),
            *self._of_contents(groups, holds),
            *self._of_nodes(groups, holds),
        ]
        conditions.sort(key=lambda condition: condition.cost)
        return conditions[:_MAX_RANKED]

    # Conditions of elements ---------------------------------------------------------------------

    def _of_elements(
        self, groups: Sequence[Trait | None], holds: Array
    ) -> Iterator[ElementCondition]:
        """Yield conditions that consist of features of elements.

        Args:
            groups: the traits; None for all nodes.
            holds: whether each trait holds for each node.
        """
        self._fit_limits()
        texts = sorted({text for node in self._failing for text in node.features.flags})
        if not texts:
            return
        counts = np.array([_counts(node, [(text,) for text in texts]) for node in self.nodes])
        costs, shares, sufficient = self._costs(counts, groups, holds)
        best = np.argsort(costs, axis=None, kind="stable")[:_MAX_RANKED]
        singles = [divmod(int(place), len(texts)) for place in best]
        singles = [single for single in singles if np.isfinite(costs[single])]
        for group, column in singles:
            condition = self._condition((texts[column],), groups[group], costs[group, column])
            share, only = float(shares[group, column]), bool(sufficient[group, column])
            yield replace(condition, share=share, is_sufficient=only)
        # Pairs of features are tried on all nodes. If a trait occurs in one of the best single
        # conditions, pairs are also tried on the nodes with this trait.
        for group in [*dict.fromkeys([0, *(group for group, _ in singles)])][:_MAX_PAIRED_TRAITS]:
            columns = self._paired(counts, holds[group])
            # A pair of a lower and an upper limit is not tried. Such a pair can describe any
            # interval of values, and often fits by accident.
            pairs = [
                (texts[first], texts[second])
                for first, second in combinations(columns, 2)
                if not {texts[first], texts[second]} <= self._limits.keys()
            ]
            if not pairs:
                continue
            of_pairs = np.array([_counts(node, pairs) for node in self.nodes])
            pair_costs, pair_shares, of_others = self._costs(
                of_pairs, [groups[group]], holds[[group]]
            )
            for index in np.argsort(pair_costs[0])[:_MAX_PAIRS]:
                if np.isfinite(pair_costs[0, index]):
                    cost = pair_costs[0, index] + _PART_COST
                    condition = self._condition(pairs[index], groups[group], cost)
                    share = float(pair_shares[0, index])
                    yield replace(condition, share=share, is_sufficient=bool(of_others[0, index]))

    def _paired(self, counts: Array, within: Array) -> list[int]:
        """Return the features from which pairs are formed, the most selective first.

        All wrong elements and few right elements have such a feature.
        """
        failing = np.array([node.failed for node in self.nodes]) & within
        possible = (counts[failing][:, :, 3] == 0).all(axis=0)
        met, wrong = counts[within][:, :, 0].sum(axis=0), counts[within][:, :, 1].sum(axis=0)
        shares = np.where(possible & (met > 0), wrong / np.maximum(met, 1), 0)
        distinct: dict[bytes, int] = {}
        for column in np.argsort(-shares, kind="stable"):
            if shares[column] <= 0 or len(distinct) >= _MAX_PAIRED:
                break
            distinct.setdefault(counts[:, column].tobytes(), int(column))
        return [*distinct.values()]

    def _costs(
        self, counts: Array, groups: Sequence[Trait | None], holds: Array
    ) -> tuple[Array, Array, Array]:
        """Return the cost of each feature as a condition on the nodes with each trait.

        Args:
            counts: for each node and feature, the result of :func:`_counts`.
            groups: the traits; None for all nodes.
            holds: whether each trait holds for each node.

        Returns:
            Three arrays, for each trait and feature: the cost, which is infinite if nodes
            contradict the condition; the share of wrong elements; and whether the condition is
            sufficient but not necessary.
        """
        failing = np.array([node.failed for node in self.nodes])
        cases = np.array([bool(node.sample.case) for node in self.nodes]) & failing
        within = holds.astype(np.float64)
        met, wrong, evidence, disagrees, sufficient_evidence = (
            within @ counts[:, :, place] for place in range(5)
        )
        share = wrong / np.maximum(met, 1)
        covered = within @ (cases[:, None] * (1 - counts[:, :, 3]))
        is_necessary = (disagrees == 0) & (share >= _MIN_CANDIDATE_SHARE)
        is_sufficient = ~is_necessary & (share >= SUFFICIENT_SHARE)
        evidence = np.where(is_sufficient, sufficient_evidence, evidence)
        valid = (is_necessary | is_sufficient) & (covered > 0)
        valid &= evidence >= _MIN_CANDIDATE_EVIDENCE
        trait_costs = np.array([_TRAIT_COST * trait.cost if trait else 0.0 for trait in groups])
        left_costs = np.minimum(_MAX_LEFT_COST, _CASE_COST * (cases.sum() - covered))
        total = trait_costs[:, None] + left_costs + _SHARE_COST * (1 - share)
        total = total - np.minimum(evidence, _MAX_EVIDENCE) / _MAX_EVIDENCE
        total = total + _SUFFICIENT_COST * is_sufficient
        return np.where(valid, total, np.inf), share, is_sufficient

    def _condition(
        self, parts: tuple[str, ...], trait: Trait | None, cost: float
    ) -> ElementCondition:
        """Return a condition and, if possible, a statement that holds for all wrong elements."""
        failing = [node for node in self._failing if trait is None or node.sample.has(trait)]
        limits = tuple((part, self._limits[part]) for part in parts if part in self._limits)
        content = _common_content(failing, weak=True)
        cost = float(cost) + _LIMIT_COST * len(limits)
        condition = ElementCondition(self._place, parts, trait, content, 0.0, cost, limits=limits)
        return self._refitted(condition)

    def add_limits(self, condition: ElementCondition) -> None:
        """Add the limits of a condition to the features of all elements."""
        for text, limit in condition.limits:
            self._add_limit(text, limit)

    def _fit_limits(self) -> None:
        """Add features that limit a number to the range of the wrong elements."""
        failing = [node for node in self._failing if node.wrong is not None]
        names = {name for node in failing for name in node.features.numbers}
        for name in sorted(names):
            for limit in self._fitted_limits(name, (), None):
                self._add_limit(_limit_text(limit), limit)

    def _fitted_limits(
        self, name: str, other_parts: Sequence[str], trait: Trait | None
    ) -> Iterator[ElementLimit]:
        """Yield limits of a number that separate wrong elements from the nearest right elements.

        Args:
            name: the name of the number.
            other_parts: only elements with these features are considered.
            trait: only nodes with this trait are considered; None for all nodes.
        """
        wrong, right = [np.empty(0)], [np.empty(0)]
        for node in self.nodes:
            numbers = node.features.numbers.get(name)
            met = node.meeting(other_parts) if trait is None or node.sample.has(trait) else None
            if met is not None and numbers is not None and node.wrong is not None:
                wrong.append(numbers[met & node.wrong])
                right.append(numbers[met & ~node.wrong])
        values, right_values = np.concatenate(wrong), np.concatenate(right)
        if not values.size or not np.isfinite(values).all():
            return
        right_values = right_values[np.isfinite(right_values)]
        below = right_values[right_values < values.min()]
        above = right_values[right_values > values.max()]
        # The true limit lies between the last right element and the first wrong element. The right
        # element is used as the limit: elements are wrong only beyond it, wherever the true limit
        # lies.
        if below.size:
            yield ElementLimit(name, float(below.max()), np.inf)
        if above.size:
            yield ElementLimit(name, -np.inf, float(above.min()))

    def _refitted(self, condition: ElementCondition) -> ElementCondition:
        """Return a condition with new limits, fitted to the elements with all its other features.

        Elements without these other features are ignored: they may be right although their numbers
        are within the limits.
        """
        for text, limit in condition.limits:
            other_parts = [part for part in condition.parts if part != text]
            for fitted in self._fitted_limits(limit.name, other_parts, condition.trait):
                if (fitted.high == np.inf) == (limit.high == np.inf):
                    new_text = _limit_text(fitted)
                    self._add_limit(new_text, fitted)
                    condition = replace(
                        condition,
                        parts=tuple(new_text if part == text else part for part in condition.parts),
                        limits=tuple(
                            (new_text, fitted) if part == text else (part, part_limit)
                            for part, part_limit in condition.limits
                        ),
                    )
        return condition

    def _add_limit(self, text: str, limit: ElementLimit) -> None:
        self._limits[text] = limit
        for node in self.nodes:
            numbers = node.features.numbers.get(limit.name)
            if numbers is not None:
                with np.errstate(invalid="ignore"):
                    within = numbers > limit.low if limit.high == np.inf else numbers < limit.high
                    node.features.flags[text] = within

    # Conditions of contents ---------------------------------------------------------------------

    def _of_contents(
        self, groups: Sequence[Trait | None], holds: Array
    ) -> Iterator[ElementCondition]:
        """Yield conditions that state how outputs are wrong, but not which elements are wrong."""
        cases = sum(bool(node.sample.case) for node in self._failing)
        for trait, within in zip(groups, holds, strict=True):
            if trait is not None and not trait.is_parameter:
                # Failing nodes often share a shape or special values by accident.
                continue
            failing = [
                node for node, holds_for in zip(self.nodes, within, strict=True)
                if holds_for and node.failed
            ]  # fmt: skip
            content = _common_content(failing, weak=False)
            covered = sum(bool(node.sample.case) for node in failing)
            if content and covered:
                cost = 1.0 + (_TRAIT_COST * trait.cost if trait else 0.0)
                cost += min(_MAX_LEFT_COST, _CASE_COST * (cases - covered))
                yield ElementCondition(self._place, (), trait, content, 0.0, cost)

    def _of_nodes(self, groups: Sequence[Trait | None], holds: Array) -> Iterator[ElementCondition]:
        """Yield conditions that state only a trait of all failing nodes, nothing about elements."""
        failing = np.array([node.failed for node in self.nodes])
        rates = (holds & failing).sum(axis=1) / np.maximum(1, holds.sum(axis=1))
        has_all = np.asarray(holds[:, failing].all(axis=1))
        for trait, rate, is_necessary in zip(groups, rates, has_all, strict=True):
            # Failing nodes often share a shape or special values by accident.
            if trait is None or not trait.is_parameter:
                continue
            if is_necessary and rate >= MIN_FAILURE_RATE:
                cost = _NODES_COST + _TRAIT_COST * trait.cost + _SHARE_COST * (1 - float(rate))
                yield ElementCondition(self._place, (), trait, "", float(rate), cost)

    # Proofs -------------------------------------------------------------------------------------

    def agrees(self, condition: ElementCondition) -> bool:
        """Return whether all failing nodes with the trait agree with a condition."""
        if condition.is_sufficient:
            return condition.share >= SUFFICIENT_SHARE
        return all(
            node.agrees(condition) for node in self._failing if condition.applies_to(node.sample)
        )

    def is_confirmed(self, condition: ElementCondition) -> bool:
        """Return whether all nodes agree with a condition, and independent nodes confirm it.

        Nodes that are not independent are changed copies of failing nodes, and may agree with a
        condition by accident.
        """
        self.add_limits(condition)
        independent = [
            node
            for node in self._failing
            if node.sample.is_independent
            and condition.applies_to(node.sample)
            and node.agrees(condition)
        ]
        if len(independent) < MIN_INDEPENDENT or not self.agrees(condition):
            return False
        if condition.is_sufficient and condition.limits:
            # If a condition is only sufficient, elements beyond a limit may also be wrong, for
            # another reason. Therefore, the elements do not show where the fault ends.
            return False
        if not condition.is_sufficient and any(
            node.failed and not condition.applies_to(node.sample) for node in self.nodes
        ):
            return False
        return all(self._is_sharp(condition, limit) for _, limit in condition.limits)

    def updated(self, condition: ElementCondition) -> ElementCondition:
        """Recompute the limits of a condition, and its share of wrong elements, from all nodes."""
        self.add_limits(condition)
        condition = self._refitted(condition)
        nodes = [node for node in self.nodes if condition.applies_to(node.sample)]
        if not condition.parts or not nodes:
            return condition
        met, wrong = np.sum([_counts(node, [condition.parts])[0, :2] for node in nodes], axis=0)
        return replace(condition, share=float(wrong / max(met, 1)))

    def _is_sharp(self, condition: ElementCondition, limit: ElementLimit) -> bool:
        """Return whether the elements near a limit show that the fault begins at the limit."""
        bound = limit.low if np.isfinite(limit.low) else limit.high
        other_parts = [part for part in condition.parts if (part, limit) not in condition.limits]
        distances, wrong = [np.empty(0)], [np.empty(0, bool)]
        # Distances of the nearest wrong element and of the nearest element beyond the limit, by the
        # types of the inputs. In nodes of other types, elements beyond the limit may be right only
        # because of their type.
        nearest: dict[tuple[str, ...], tuple[float, float]] = {}
        for node in self.nodes:
            numbers = node.features.numbers.get(limit.name)
            if numbers is None or node.wrong is None or not condition.applies_to(node.sample):
                continue
            met, met_otherwise = node.meeting(condition.parts), node.meeting(other_parts)
            if met is None or met_otherwise is None:
                continue
            with np.errstate(invalid="ignore", over="ignore"):
                is_beyond = numbers <= limit.low if limit.high == np.inf else numbers >= limit.high
                inside = np.abs(numbers[met] - bound)
                beyond = np.abs(numbers[is_beyond & met_otherwise] - bound)
            distances.append(inside)
            wrong.append(node.wrong[met])
            types = node.sample.input_types
            nearest_wrong, nearest_beyond = nearest.get(types, (np.inf, np.inf))
            nearest[types] = (
                inside[wrong[-1]].min(initial=nearest_wrong),
                beyond.min(initial=nearest_beyond),
            )
        order = np.argsort(np.concatenate(distances), kind="stable")
        is_wrong = np.concatenate(wrong)[order]
        is_enough = is_wrong.size >= ELEMENTS_AT_LIMIT and is_wrong.any()
        gap = min(map(sum, nearest.values()), default=np.inf)
        share = is_wrong[:ELEMENTS_AT_LIMIT].mean() if is_enough else 0.0
        return bool(share >= MIN_WRONG_SHARE_AT_LIMIT and gap <= MAX_GAP * abs(bound))

    def is_proven(self, condition: ElementCondition, fresh: Sequence[NodeSample]) -> bool:
        """Return whether nodes that were generated after a condition was chosen confirm it."""
        fresh_ids = {id(sample) for sample in fresh}
        nodes = [node for node in self.nodes if id(node.sample) in fresh_ids]
        nodes_with_trait = [node for node in nodes if condition.applies_to(node.sample)]
        failing = [node for node in nodes_with_trait if node.failed]
        if not condition.is_of_nodes:
            failing = _distinct(failing)
        if len(failing) < MIN_FAILING or not self.is_confirmed(condition):
            return False
        if condition.content == REORDERED:
            failing = [node for node in failing if node.is_varied]
            if len(failing) < MIN_FAILING:
                return False
        if condition.parts:
            column = 4 if condition.is_sufficient else 2
            counts = np.array([_counts(node, [condition.parts])[0] for node in failing])
            evidence = counts[:, column].sum()
            # A sufficient condition does not explain all wrong elements, so it is often accidental.
            required = 2 if condition.is_sufficient else 1
            if np.count_nonzero(counts[:, 0]) < required * MIN_FAILING:
                return False
            if evidence < -np.log10(MAX_CHANCE) * required or condition.share < MIN_WRONG_SHARE:
                return False
        if condition.trait is None or condition.is_sufficient:
            return True
        right_new = sum(not node.failed and not condition.applies_to(node.sample) for node in nodes)
        if condition.is_of_nodes:
            return (
                right_new >= MIN_OTHERS
                and self._chance_of_trait(condition.trait) <= MAX_CHANCE_OF_TRAIT
            )
        return right_new >= MIN_RIGHT_WITHOUT

    def _chance_of_trait(self, trait: Trait) -> float:
        """Return the probability that all independent failing nodes have a trait by chance.

        Changed copies of failing nodes do not count, because most of them have the same traits as
        their originals.
        """
        independent = [node for node in self.nodes if node.sample.is_independent]
        share = sum(node.sample.has(trait) for node in independent) / max(1, len(independent))
        return float(share ** sum(node.failed for node in independent))

    def explained(self, condition: ElementCondition) -> list[NodeSample]:
        """Return the failing nodes that a condition explains."""
        return [
            node.sample
            for node in self._failing
            if condition.applies_to(node.sample) and node.agrees(condition)
        ]

    def text(
        self,
        condition: ElementCondition,
        output: str,
        fault: str = "found wrong",
        *,
        has_other_causes: bool = False,
    ) -> str:
        """Return a condition in words, with the evidence.

        Args:
            condition: the condition.
            output: the name of the output; empty if the operator has one output.
            fault: a description of the failures.
            has_other_causes: whether other stated causes explain failures that do not meet the
                condition.
        """
        otherwise = "otherwise " if has_other_causes else ""
        nodes_with_trait = [node for node in self.nodes if condition.applies_to(node.sample)]
        generated_failures = [
            node for node in nodes_with_trait if node.failed and not node.sample.case
        ]
        where = f", in nodes in which {condition.trait.text}" if condition.trait else ""
        of_output = f" of {output}" if output else ""
        if condition.is_of_nodes:
            meeting = [node for node in nodes_with_trait if not node.sample.case]
            other_nodes = sum(not node.sample.case for node in self.nodes) - len(meeting)
            # The condition concerns one output. Other outputs may be wrong in nodes without the
            # trait.
            subject = f"{output} " if output else ""
            trait = condition.trait.text if condition.trait else ""
            return (
                f"{subject}{otherwise}{fault} only where {trait} "
                f"({len(generated_failures)} of {len(meeting)} generated nodes, "
                f"0 of {other_nodes} others)"
            )
        if not condition.parts:
            is_of_elements = _is_of_elements(condition.content)
            subject = (
                f"wrong elements{of_output}" if is_of_elements else f"a wrong {output or 'output'}"
            )
            # All generated failing nodes agree with the condition.
            count = len(generated_failures)
            nodes_in_words = f"{'other ' * has_other_causes}failing generated nodes"
            evidence = f"({count} of {count} {nodes_in_words})"
            beginning = "otherwise, " * has_other_causes
            return f"{beginning}{subject} {condition.content}{where} {evidence}"
        counts = np.array([_counts(node, [condition.parts])[0] for node in nodes_with_trait])
        met, wrong_met = int(counts[:, 0].sum()), int(counts[:, 1].sum())
        other_elements = sum(node.features.size for node in nodes_with_trait) - met
        wrong = sum(
            node.wrong.sum() for node in nodes_with_trait if node.failed and node.wrong is not None
        )
        if wrong_met == met and not condition.limits:
            quantifier = "found wrong wherever"
        elif condition.is_sufficient:
            quantifier = "mostly found wrong where"
        else:
            quantifier = f"{otherwise}found wrong only where"
        parts = " and ".join(condition.parts)
        content = ""
        if condition.content:
            subject = "they" if _is_of_elements(condition.content) else "the output"
            content = f"; {subject} {condition.content}"
        return (
            f"elements{of_output} {quantifier} {parts}{where}{content} "
            f"({wrong_met} of {met} such elements, {wrong - wrong_met} of {other_elements} others)"
        )


def _examined(sample: NodeSample, place: int) -> _Node | None:
    """Return a node with the features of an output; None if it cannot be examined.

    In a search for the causes of errors that a backend raises, the elements have no features.
    """
    if sample.is_for_errors:
        failed = bool(sample.failed)
        nothing = np.empty(0)
        return _Node(sample, ElementFeatures(0), nothing, None, frozenset(), failed, False)
    if sample.outputs is None or place >= len(sample.outputs.right):
        return None
    right = sample.outputs.right[place]
    if not isinstance(right, np.ndarray) or not 0 < right.size <= MAX_OUTPUT_ELEMENTS:
        return None
    wrong: Array | None = np.zeros(right.size, bool)
    if sample.failed:
        if sample.returned is None or place >= len(sample.outputs.wrong):
            return None
        of_output = sample.outputs.wrong[place]
        wrong = None if of_output is None else of_output.reshape(-1)
    if place not in sample.elements:
        sample.elements[place] = element_features(BoundNode.of(sample.model, sample.inputs), right)
    features = sample.elements[place]
    failed = bool(sample.failed) and (wrong is None or bool(wrong.any()))
    contents: frozenset[str] = frozenset()
    if failed and sample.returned is not None:
        contents = wrong_content(features, right, sample.returned[place], wrong)
    return _Node(sample, features, right.reshape(-1), wrong, contents, failed, is_varied(right))


def _counts(node: _Node, conditions: Sequence[tuple[str, ...]]) -> Array:
    """Return how the elements of a node agree with conditions.

    Args:
        node: the node.
        conditions: the features of each condition.

    Returns:
        Five numbers for each condition:

        0. the number of elements that meet the condition;
        1. the number of wrong elements among them;
        2. the evidence that all wrong elements meet the condition;
        3. 1 if a wrong element does not meet the condition, otherwise 0;
        4. the evidence that all elements that meet the condition are wrong.

        Evidence is the negative decimal logarithm of a probability.
    """
    counts = np.zeros((len(conditions), 5))
    counts[:, 3] = node.failed
    flags = node.features.flags
    known_places = [index for index, parts in enumerate(conditions) if flags.keys() >= {*parts}]
    if not known_places or node.wrong is None:
        return counts
    met = np.array([flags[conditions[index][0]] for index in known_places])
    for place in range(1, len(conditions[0])):
        met &= np.array([flags[conditions[index][place]] for index in known_places])
    counts[known_places, 0] = met.sum(axis=1)
    if node.failed:
        counts[known_places, 1] = met[:, node.wrong].sum(axis=1)
        disagrees = counts[known_places, 1] < np.count_nonzero(node.wrong)
        counts[known_places, 3] = disagrees
        sizes = np.array([
            node.features.size - _undecided(node.features, conditions[index], mask)
            for index, mask in zip(known_places, met, strict=True)
        ])  # fmt: skip
        met_share = met.sum(axis=1) / np.maximum(1, sizes)
        wrong_share = np.count_nonzero(node.wrong) / np.maximum(1, sizes)
        only_met = _chance(met_share, 1 - wrong_share)
        counts[known_places, 2] = -np.log10(np.where(disagrees, 1.0, only_met))
        all_wrong = (counts[known_places, 1] == counts[known_places, 0]) & (
            counts[known_places, 0] > 0
        )
        every_met = _chance(wrong_share, 1 - met_share)
        counts[known_places, 4] = -np.log10(np.where(all_wrong, every_met, 1.0))
    return counts


def _undecided(features: ElementFeatures, parts: Sequence[str], met: Array) -> int:
    """Return the number of elements that neither meet a condition nor support it.

    These elements would be right even if they had a fault, because a fault is invisible in them.

    Args:
        features: the features of the elements.
        parts: the features of the condition.
        met: the elements that meet the condition.
    """
    masks = [features.undecided[part] for part in parts if part in features.undecided]
    return int(np.count_nonzero(~met & np.any(masks, axis=0))) if masks else 0


def _distinct(nodes: Sequence[_Node]) -> list[_Node]:
    """Return one of the nodes for each right output.

    Nodes with equal right outputs are probably copies of one node, so they are not independent
    evidence.
    """
    return [*{str(node.right.tolist()): node for node in nodes}.values()]


def _chance(first: Array, second: Array | float) -> Array:
    """Return a bound on the probability that all elements of a set have a feature by chance.

    The elements of a node depend on each other, so the bound is not a product over all elements.
    The bound is the smaller of two probabilities: the probability that a random element has the
    feature, and the probability that a random element does not belong to the set.

    Args:
        first: the share of the elements that have the feature.
        second: the share of the elements that do not belong to the set.
    """
    return np.where(first < 1, np.minimum(first, np.maximum(second, _LEAST_CHANCE)), 1.0)


def _limit_text(limit: ElementLimit) -> str:
    """Return a limit in words: NAME is more than LOW, or NAME is less than HIGH."""
    is_lower = limit.high == np.inf
    words = (
        f"more than {number_text(limit.low, LIMIT_DIGITS)}"
        if is_lower
        else (f"less than {number_text(limit.high, LIMIT_DIGITS)}")
    )
    return f"{limit.name} is {words}"


def _is_of_elements(content: str) -> bool:
    """Return whether a statement is about the wrong elements instead of the whole output."""
    return content.startswith("are ")


def _common_content(nodes: Sequence[_Node], *, weak: bool) -> str:
    """Return the most informative statement that holds for the wrong elements of all nodes.

    Statements in WEAK_CONTENTS are considered only if ``weak`` is true. The result is empty if no
    statement holds.
    """
    if not nodes:
        return ""
    common_contents = frozenset.intersection(*(node.contents for node in nodes))
    candidates = [content for content in common_contents if weak or content not in WEAK_CONTENTS]
    return min(candidates, key=_order_of_content, default="")


def _order_of_content(content: str) -> tuple[bool, bool, int]:
    return content in WEAK_CONTENTS, content in BROAD_CONTENTS, len(content)
