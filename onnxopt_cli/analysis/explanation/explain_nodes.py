"""Explanations of failures in operators without a formula: known mistakes and conditions.

A hypothesis says that a backend is wrong wherever a node meets a condition, and possibly that it
then returns the outputs of a known mistake. A hypothesis must agree with all cases of the run: the
backend must fail the cases that the hypothesis predicts to fail, and must not pass a case in which
the defect would be visible. If the backend can be run again, valid nodes near to failing and
passing cases are generated and submitted. The hypothesis must also agree with their results, in
particular with those of nodes that are generated after the hypothesis has been chosen.

Known mistakes and the correct outputs of generated nodes are computed by onnx's reference in a
forked process, since a model is not trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from operator import attrgetter
from os import getpid
from time import process_time
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx

from onnxopt_cli.analysis.explanation.explain import SearchClock, least_seconds
from onnxopt_cli.analysis.explanation.explain_remaining import (
    CHANGES_WHEN_REPEATED,
    MIN_CHANGING_SHARE,
    REPEATED_CASES,
)
from onnxopt_cli.analysis.explanation.node_samples import (
    IGNORED,
    PROBES,
    Effect,
    NodeSample,
    Trait,
    effects_by_mistake,
    effects_on,
    fitted_limits,
    judged_node,
)
from onnxopt_cli.analysis.node_search import on_corrected_reference
from onnxopt_cli.analysis.node_variations import Variation, neighbours
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.core.record import NOT_TRIED, UNEXPLAINED, Cause, Explanation
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.values import Array, NumberKind, Value, kind_of
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.mutation.node_mistakes import node_mistakes
from onnxopt_cli.mutation.node_mutants import MutantKind, NodeMutant
from onnxopt_cli.operators.native_onnx import die_with_models
from onnxopt_cli.operators.nodes import imported_versions, is_standard, plain_domain
from onnxopt_cli.oracle.distributions import is_random
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.executors import ModelRunner
from onnxopt_cli.run.reproduce import MIN_ELEMENTS_ALIKE
from onnxopt_cli.workers.forked_processes import ProcessLostError

#: Cases with more elements than this are not examined.
MAX_ELEMENTS = 1 << 16
#: Largest numbers of failing and of passing cases that are examined.
MAX_FAILING, MAX_PASSING = 60, 160
#: Seconds for one operator of a backend that can be run again, and for all operators together.
OPERATOR_SECONDS, MAX_SECONDS = 20.0, 100.0
#: Seconds after which a process that yields no item is ended. An item is the effect of a mistake on
#: all cases, which takes long on a busy machine.
SILENCE_SECONDS = 30.0
#: Rounds of generated nodes that distinguish hypotheses, and nodes in each. A further round tests
#: the best hypothesis.
ROUNDS, NODES_PER_ROUND = 3, 40
#: Largest number of nodes that are generated in a round; at most NODES_PER_ROUND are submitted.
MAX_ATTEMPTS = 240
#: A mistake must reproduce this share of the failures in which it has an effect.
MIN_ALIKE_SHARE = 0.75
#: Share of the generated nodes that may contradict a hypothesis.
MAX_CONTRADICTING_SHARE = 0.02
#: A proof requires this many failing generated nodes that agree with the hypothesis, and this many
#: passing ones that do not contradict it.
MIN_AGREEING, MIN_OTHERS = 4, 4
#: A condition requires this many failing nodes that meet it, and this many right nodes that do not
#: meet it. These nodes must have been generated after the condition was chosen. If a quarter of the
#: nodes that meet it were right, or a quarter of the others wrong, 11 nodes would all agree with
#: the condition with a probability of 0.75 ** 11 = 4 %.
MIN_MEETING, MIN_OUTSIDE = 11, 11
#: A condition alone is not stated if more than this share of the nodes that do not meet it fail as
#: well.
MAX_OTHER_SHARE = 0.1
#: The largest share of the nodes outside a condition of one part without limits that may fail, and
#: the largest probability with which all nodes that meet the condition may fail by chance.
MAX_OTHER_SHARE_OF_PLAIN, MAX_CHANCE = 0.5, 1e-9
#: A condition of two parts requires this number of passing nodes that meet only the second part,
#: and the same number of passing nodes that meet only the first.
MIN_LACKING = 3
#: If no backend can run generated nodes, a condition requires this many failing cases that meet
#: it, and this many passing cases that do not.
MIN_FAILING_CASES, MIN_PASSING_CASES = 3, 3
#: Two outputs for the same inputs are different if they differ by more than this fraction of the
#: largest element.
REPEATED_RTOL = 1e-3
#: Largest number of causes that are stated for one operator.
MAX_CAUSES = 3
# The cost of a mistake, of a failing case that is not explained, and of a failing generated node
# that is not explained. The last number is the largest total cost of such cases and nodes.
_MISTAKE_COST, _CASE_COST, _NODE_COST, _MAX_LEFT_COST = 0.4, 0.4, 0.1, 4.0
# Additional cost of an earlier version of the operator, which differs in more than one way.
_VERSION_COST = 0.5
# Largest number of mistakes for which a condition is sought.
_MAX_RESTRICTED = 24
# Largest number of rivals, other mistakes with the same effect, that a statement names.
_MAX_RIVALS = 2
# Number of mistakes for which limits on numbers are sought, and largest number of these conditions.
_MISTAKES_WITH_LIMITS, _MAX_LIMITS = 3, 40
# Largest number of mistakes that are kept although they reproduce only a few wrong elements.
_MAX_DOUBTFUL = 12
# Largest number of hypotheses that are tested on new inputs.
_MAX_PROOFS = 4
# Cost of a second part of a condition. A hypothesis whose cost exceeds that of the best one by less
# than the second number is a rival.
_PAIR_COST, _RIVAL_COST = 0.5, 0.15
# Largest number of hypotheses that are kept.
_MAX_RANKED = 60
# Largest number of nodes from which new nodes are generated; seconds of the reference for each
# node.
_MAX_BASES, _NODE_SECONDS = 24, 0.5
# The effects of a mistake on nodes whose outputs it changes.
_EFFECTS = frozenset({Effect.ALIKE, Effect.UNLIKE})

_Item = TypeVar("_Item")
# The purpose of a generated node: the rival that it distinguishes from the mistake of a hypothesis,
# or the parts of the condition that it meets.
_NodeKind: TypeAlias = NodeMutant | frozenset[Trait]


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A statement about when a backend fails.

    Attributes:
        traits: the parts of the condition; empty if the mistake has no further condition.
        mistake: the mistake; None for any wrong outputs.
        cost: the hypothesis of the least cost is reported.
    """

    traits: tuple[Trait, ...]
    mistake: NodeMutant | None
    cost: float

    @property
    def text(self) -> str:
        """The statement in words."""
        where = " and ".join(trait.text for trait in self.traits)
        if self.mistake is None:
            return f"wrong wherever {where}"
        return f"{self.mistake.name!r}" + (f" wherever {where}" if where else "")

    @property
    def key(self) -> str:
        """A text that identifies the hypothesis, apart from the limits in its condition."""
        mistake = self.mistake.name if self.mistake else ""
        return " and ".join([mistake, *(trait.key for trait in self.traits)])

    @property
    def dependence(self) -> str:
        """The words for the change that shows whether a node depends on the condition."""
        is_left_out = all(
            trait.ignoring.endswith(IGNORED) for trait in self.traits if trait.ignoring
        )
        return "leaving it out" if is_left_out else "its value"

    @property
    def uncertainty(self) -> str:
        """The intervals of the limits that are not known exactly, in words."""
        gaps = [gap for trait in self.traits if trait.limits for gap in trait.limits.gaps]
        if not gaps:
            return ""
        subject = "the limit is" if len(gaps) == 1 else "the limits are"
        intervals = [f"between {low:g} and {high:g}" for low, high in gaps]
        return f" ({subject} {', and '.join(intervals)})"

    def meets(self, sample: NodeSample) -> bool:
        """Return whether a node meets the condition."""
        return all(trait.holds(sample) for trait in self.traits)

    def explains(self, sample: NodeSample) -> bool:
        """Return whether a failing node agrees with the statement."""
        if not sample.failed or not self.meets(sample):
            return False
        if self.mistake is not None:
            return sample.effects.get(self.mistake.name) is Effect.ALIKE
        return self._shows(sample)

    def _shows(self, sample: NodeSample) -> bool:
        """Return whether the attributes and inputs of the condition have an effect on a node."""
        return all(
            sample.effects.get(trait.ignoring, Effect.UNLIKE) is not Effect.NONE
            for trait in self.traits
            if trait.ignoring
        )

    def has_exceptions(self, samples: Iterable[NodeSample]) -> bool:
        """Return whether a passing node meets the condition, but does not depend on it."""
        return self.mistake is None and any(
            sample.failed is False and self.meets(sample) and not self._shows(sample)
            for sample in samples
        )

    def contradicts(self, sample: NodeSample) -> bool:
        """Return whether a node passes although the statement says that it fails."""
        if sample.failed is not False or not self.meets(sample):
            return False
        if self.mistake is not None:
            return sample.effects.get(self.mistake.name) is not Effect.NONE
        return self._shows(sample)

    def leaves_out(self, sample: NodeSample) -> bool:
        """Return whether a node is predicted to pass only because it does not meet the condition.

        A node on which the mistake has no effect does not show whether the condition matters.
        """
        if self.meets(sample):
            return False
        effect = sample.effects.get(self.mistake.name) if self.mistake else None
        return effect is not Effect.NONE

    def differs(self, sample: NodeSample) -> bool:
        """Return whether a failing node has wrong outputs other than those of the mistake."""
        return (
            self.mistake is not None
            and bool(sample.failed)
            and self.meets(sample)
            and sample.effects.get(self.mistake.name) is Effect.UNLIKE
        )


def explain_nodes(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    formulas: Iterable[str],
    *,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    ask: ModelRunner | None = None,
    cases_only: Iterable[str] = (),
    known_result: Callable[[Problem], Expected | None] = lambda _: None,
) -> list[Explanation]:
    """Explain the failures of each backend in each operator without a formula.

    Args:
        results: all results of a run.
        cases: the cases by id.
        formulas: names of the operators with a formula, which are skipped.
        seconds: limit of the processor time of the search and of the time that the backends take;
            None for a fifth of the time that the cases took or :data:`OPERATOR_SECONDS` for each
            failing operator, up to :data:`MAX_SECONDS`, whichever is longer. Operators that were
            not examined in this time are among the explanations, without a cause.
        progress: called with the current activity.
        ask: submits a model to a backend, given by name; returns None if the backend fails.
            Without ``ask``, only the cases of the run can confirm a statement.
        cases_only: names of backends to which no generated nodes are submitted.
        known_result: returns the expected result of a case of the run; None if it is not cached.
    """
    without_queries = frozenset(cases_only)
    with_formula = frozenset(formulas)
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        judged = result.outcome is Outcome.PASS or (result.outcome is Outcome.FAIL and result.diffs)
        if (
            judged
            and len(result.operators) == 1
            and not with_formula.intersection(result.operators)
        ):
            groups.setdefault((result.backend, result.operators[0]), []).append(result)
    failing = {
        key: group
        for key, group in groups.items()
        if any(result.outcome is Outcome.FAIL for result in group)
    }
    if not failing:
        return []
    # Loaded here once, instead of in each forked process.
    from onnxopt_cli.oracle import reference_in_worker  # noqa: F401

    if seconds is None:
        total = sum(result.seconds for result in results)
        seconds = max(least_seconds(total), min(MAX_SECONDS, OPERATOR_SECONDS * len(failing)))
    clock = SearchClock()
    end = clock.now() + seconds
    timed_ask = ask and clock.timed(ask)
    explanations: list[Explanation] = []
    for number, ((backend, operator), group) in enumerate(failing.items()):
        share = (end - clock.now()) / (len(failing) - number)
        if share <= 0:
            explanations.append(_unexamined(backend, operator, group))
            continue
        progress(f"explaining {operator}")
        submit = (
            partial(timed_ask, backend) if timed_ask and backend not in without_queries else None
        )
        samples = _samples(group, cases, known_result)
        search = _NodeSearch(backend, operator, group, samples, submit, clock, share)
        if explanation := search.run():
            explanations.append(explanation)
        elif search.ran_out_of_time:
            explanations.append(_unexamined(backend, operator, group))
    return explanations


def _unexamined(backend: str, operator: str, results: Iterable[Result]) -> Explanation:
    """Return the explanation of an operator that was not examined in time."""
    count = sum(result.outcome is Outcome.FAIL for result in results)
    note = f"{UNEXPLAINED}, out of time"
    return Explanation(backend, operator, (), {NOT_TRIED: {"fail": count}}, note, False)


class _NodeSearch:
    """The search for explanations of the failures of one backend in one operator."""

    def __init__(
        self,
        backend: str,
        operator: str,
        results: Sequence[Result],
        samples: list[NodeSample],
        submit: Callable[[onnx.ModelProto, Mapping[str, Value]], Sequence[Value] | None] | None,
        clock: SearchClock,
        seconds: float,
    ) -> None:
        self._backend, self._operator, self._submit = backend, operator, submit
        self._clock, self._end = clock, clock.now() + seconds
        self._failing_cases = tuple(
            result.case for result in results if result.outcome is Outcome.FAIL
        )
        self._failing = len(self._failing_cases)
        self._samples = samples
        # Mistakes that reproduce failing cases, by name; the likely ones first.
        self._candidates: list[str] = []
        # Mistakes that reproduce too few wrong elements to be named without generated nodes.
        self._doubtful: list[str] = []
        self._mistakes: dict[str, NodeMutant] = {}
        self._accepted: list[Hypothesis] = []
        self._seed = 0

    @property
    def ran_out_of_time(self) -> bool:
        """Whether the search has used its time."""
        return self._remaining() <= 0

    def run(self) -> Explanation | None:
        """Search, and return the explanation; None if no hypothesis is accepted."""
        if not any(sample.failed for sample in self._samples):
            return None
        if self._changes_when_repeated():
            cause = Cause(CHANGES_WHEN_REPEATED, self._failing_cases)
            return Explanation(self._backend, self._operator, (cause,))
        self._examine_cases()
        if self._submit and self._samples:
            for _ in range(MAX_CAUSES):
                another_needed = self._find_proven()
                if not (self._drop_refuted() or another_needed):
                    break
            self._drop_insufficient()
        else:
            self._find_supported()
        causes = self._causes()
        if not causes:
            return None
        remaining = self._failing - sum(len(cause.cases) for cause in causes)
        unexplained = {UNEXPLAINED: {"fail": remaining}} if remaining else {}
        return Explanation(self._backend, self._operator, causes, unexplained)

    def _changes_when_repeated(self) -> bool:
        """Rerun a few failing nodes, and return whether a third of them return other outputs.

        A backend whose outputs change keeps state, and no condition on a node describes its
        failures.
        """
        failing = [sample for sample in self._samples if sample.failed][:REPEATED_CASES]
        differing = sum(map(self._differs_again, failing))
        return differing >= MIN_CHANGING_SHARE * len(failing)

    def _differs_again(self, sample: NodeSample) -> bool:
        if self._submit is None:
            return False
        first, second = (self._submit(sample.model, sample.inputs) for _ in range(2))
        responses = [sample.returned, first, second]
        return any(
            earlier is not None
            and later is not None
            and (len(earlier) != len(later) or any(map(_far_apart, earlier, later)))
            for earlier, later in pairwise(responses)
        )

    # Statements ---------------------------------------------------------------------------------

    def _find_supported(self) -> None:
        """Accept hypotheses that the cases of the run alone support."""
        for _ in range(MAX_CAUSES):
            ranked = self._hypotheses()
            if not ranked or not self._cases_support(ranked):
                return
            self._accepted.append(ranked[0])

    def _cases_support(self, ranked: Sequence[Hypothesis]) -> bool:
        """Return whether the cases of the run suffice to state the first hypothesis."""
        best = ranked[0]
        failing = [
            sample for sample in self._open_failures() if sample.case and best.explains(sample)
        ]
        passing = [
            sample
            for sample in self._samples
            if sample.case and sample.failed is False and not best.meets(sample)
        ]
        if best.mistake is not None and best.mistake.name in self._doubtful:
            return False
        if best.mistake is not None and not best.traits:
            is_distinguished = any(
                sample.failed is False and self._has_no_effect(best, sample)
                for sample in self._samples
            )
            return len(failing) >= MIN_FAILING_CASES or is_distinguished
        rivals = [
            hypothesis
            for hypothesis in ranked[1:]
            if hypothesis.traits and hypothesis.cost < best.cost + _RIVAL_COST
        ]
        return (
            len(failing) >= MIN_FAILING_CASES
            and len(passing) >= MIN_PASSING_CASES
            and len(best.traits) == 1
            and not rivals
        )

    @staticmethod
    def _has_no_effect(hypothesis: Hypothesis, sample: NodeSample) -> bool:
        mistake = hypothesis.mistake
        return mistake is not None and sample.effects.get(mistake.name) is Effect.NONE

    def _find_proven(self) -> bool:
        """Accept a further hypothesis that generated nodes support.

        Returns:
            Whether a hypothesis was accepted, and failing cases remain for another one.
        """
        best_key = ""
        # The number of nodes that were known when a hypothesis became the best one, by its key.
        known: dict[str, int] = {}
        for _ in range(ROUNDS):
            ranked = self._hypotheses()
            if not ranked or self.ran_out_of_time or best_key == ranked[0].key:
                break
            best_key = ranked[0].key
            known.setdefault(best_key, len(self._samples))
            self._generate(ranked[0])
        for _ in range(_MAX_PROOFS):
            ranked = self._hypotheses()
            if not ranked:
                return False
            best = ranked[0]
            first = known.setdefault(best.key, len(self._samples))
            self._generate(best)
            if not self._is_consistent(best):
                continue
            supported = self._is_proven(best, self._samples[first:])
            if not best.traits:
                supported = supported or self._cases_support(ranked)
            if supported and self._needs_all_parts(best):
                self._accepted.append(best)
                return any(sample.case for sample in self._open_failures())
            if self.ran_out_of_time:
                return False
        return False

    def _drop_refuted(self) -> bool:
        """Drop the accepted hypotheses that no longer agree with all nodes.

        Nodes that are generated to test one hypothesis may refute another, whose failing cases then
        need another cause.

        Returns:
            Whether a hypothesis was dropped.
        """
        consistent = [*filter(self._is_consistent, self._accepted)]
        is_dropped = len(consistent) < len(self._accepted)
        self._accepted = consistent
        return is_dropped

    def _is_proven(self, hypothesis: Hypothesis, fresh: Sequence[NodeSample]) -> bool:
        """Return whether nodes that were generated after a hypothesis was chosen confirm it."""
        agreeing = sum(
            hypothesis.explains(sample) and not _any_explains(self._accepted, sample)
            for sample in fresh
        )
        right = [sample for sample in fresh if sample.failed is False]
        passing = sum(not hypothesis.contradicts(sample) for sample in right)
        outside = sum(map(hypothesis.leaves_out, right))
        return (
            agreeing >= MIN_AGREEING
            and passing >= MIN_OTHERS
            and (not hypothesis.traits or supports_condition(agreeing, outside))
        )

    def _drop_insufficient(self) -> None:
        """Drop conditions without a mistake if no accepted hypothesis covers many failing nodes.

        A condition is also dropped if the other hypotheses explain nearly all of its nodes.
        """
        for hypothesis in [*self._accepted]:
            if hypothesis.mistake is None and not self._acts_alone(hypothesis):
                self._accepted.remove(hypothesis)
        outside = [
            sample
            for sample in self._samples
            if not any(
                hypothesis.meets(sample)
                if hypothesis.mistake is None
                else hypothesis.explains(sample)
                for hypothesis in self._accepted
            )
        ]
        wrong = sum(bool(sample.failed) for sample in outside)
        if wrong > MAX_OTHER_SHARE * len(outside):
            share = wrong / len(outside)
            self._accepted = [
                hypothesis
                for hypothesis in self._accepted
                if hypothesis.mistake is not None or self._is_unlikely(hypothesis, share)
            ]

    def _is_unlikely(self, hypothesis: Hypothesis, share: float) -> bool:
        """Return whether many failing nodes are unlikely to meet a plain condition by chance.

        Args:
            hypothesis: a hypothesis without a mistake.
            share: share of the nodes without an accepted hypothesis that fail.
        """
        if len(hypothesis.traits) > 1 or hypothesis.traits[0].limits is not None:
            return False
        agreeing = self._explained_alone(hypothesis)
        return share <= MAX_OTHER_SHARE_OF_PLAIN and share**agreeing <= MAX_CHANCE

    def _acts_alone(self, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis is the only one that explains enough generated nodes."""
        return self._explained_alone(hypothesis) >= MIN_MEETING

    def _explained_alone(self, hypothesis: Hypothesis) -> int:
        """Return the number of generated nodes that a hypothesis explains, and no other."""
        other_hypotheses = [other for other in self._accepted if other is not hypothesis]
        return sum(
            not sample.case
            and hypothesis.explains(sample)
            and not _any_explains(other_hypotheses, sample)
            for sample in self._samples
        )

    def _needs_all_parts(self, hypothesis: Hypothesis) -> bool:
        """Return whether most nodes that lack only one part of a condition are right.

        If most nodes that lack a part are wrong nevertheless, the fault does not depend on the
        part. Nodes count as wrong even if another statement explains them.
        """
        if len(hypothesis.traits) == 1:
            return True
        for part in hypothesis.traits:
            other_parts = Hypothesis(
                tuple(trait for trait in hypothesis.traits if trait is not part),
                hypothesis.mistake,
                0.0,
            )
            outside = [
                sample
                for sample in self._samples
                if not part.holds(sample) and other_parts.meets(sample)
            ]
            wrong = sum(map(other_parts.explains, outside))
            right = sum(map(other_parts.contradicts, outside))
            if right < MIN_LACKING or wrong > MAX_OTHER_SHARE * (right + wrong):
                return False
        return True

    def _causes(self) -> tuple[Cause, ...]:
        """Return as causes the accepted hypotheses that still agree with all nodes."""
        causes: list[Cause] = []
        explained: set[str] = set()
        for hypothesis in self._accepted:
            if not self._is_consistent(hypothesis):
                continue
            ids = tuple(
                sample.case
                for sample in self._samples
                if sample.case and sample.case not in explained and hypothesis.explains(sample)
            )
            if ids:
                explained.update(ids)
                names = (hypothesis.mistake.name,) if hypothesis.mistake else ()
                text = hypothesis.text
                if rivals := self._rivals(hypothesis):
                    text += f" (or {' or '.join(map(repr, rivals))} with the same effect here)"
                if hypothesis.has_exceptions(self._samples):
                    text += f", if {hypothesis.dependence} changes the result"
                text += hypothesis.uncertainty + self._evidence(hypothesis, len(ids))
                causes.append(Cause(text, ids, names))
        return tuple(causes)

    def _evidence(self, hypothesis: Hypothesis, failing_cases: int) -> str:
        """Return the numbers of nodes that agree with a condition, and of others that fail.

        Generated nodes that other causes explain are not counted.

        Args:
            hypothesis: the hypothesis. Without a condition, the evidence is empty.
            failing_cases: number of failing cases that the hypothesis explains.
        """
        if not hypothesis.traits:
            return ""
        if self._submit is None:
            passing = sum(
                sample.failed is False and not hypothesis.meets(sample) for sample in self._samples
            )
            return f" (seen in {failing_cases} cases that fail, in none of {passing} that pass)"
        other_hypotheses = [other for other in self._accepted if other is not hypothesis]
        generated = [
            sample
            for sample in self._samples
            if not sample.case and not _any_explains(other_hypotheses, sample)
        ]
        agreeing = sum(map(hypothesis.explains, generated))
        against = sum(map(hypothesis.contradicts, generated))
        outside = [sample for sample in generated if hypothesis.leaves_out(sample)]
        wrong = sum(bool(sample.failed) for sample in outside)
        of_others = f"{wrong} of {len(outside)} others"
        return f" ({agreeing} of {agreeing + against} generated nodes, {of_others})"

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

    def _open_failures(self) -> list[NodeSample]:
        """Return the failing nodes that no accepted hypothesis explains."""
        return [
            sample
            for sample in self._samples
            if sample.failed and not _any_explains(self._accepted, sample)
        ]

    def _is_consistent(self, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis agrees with all nodes."""
        rivals = [accepted for accepted in self._accepted if accepted is not hypothesis]
        return agrees_with_nodes(hypothesis, self._samples, self._candidates, rivals)

    def _hypotheses(self) -> list[Hypothesis]:
        """Return the hypotheses that agree with all nodes, the best first."""
        failures = self._open_failures()
        if not any(sample.case for sample in failures):
            return []
        # Some number may separate a few cases by chance, which only generated nodes can reveal.
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
        """Return conditions that limit a number to values of failing nodes."""
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
                    # Further values inside the interval are tried only for attributes.
                    if limits.low and limits.high and not number.attribute:
                        continue
                    inside = sum(limits.contain(numbers) for numbers in wrong)
                    with_counts[limits.statement()] = inside
        return sorted(with_counts, key=lambda trait: (-with_counts[trait], trait.cost, trait.text))[
            :_MAX_LIMITS
        ]

    # Nodes --------------------------------------------------------------------------------------

    def _examine_cases(self) -> None:
        """Find the traits of the cases, and the mistakes that reproduce failing cases."""
        cases = [*self._samples]
        mistakes = self._mistakes_of(cases)

        def work() -> Iterator[tuple[int | str, Any, Any]]:
            judges = {}
            for index, sample in enumerate(cases):
                if judge := judged_node(sample):
                    judges[index] = judge
                    yield index, judge.traits, judge.numbers
            for name, mistake in mistakes.items():
                yield name, *effects_on(mistake, judges)

        elements: dict[str, float] = {}
        for key, value, effects in self._forked(work, self._remaining()):
            if isinstance(key, int):
                cases[key].traits, cases[key].numbers = value, effects
            elif value or key.endswith(PROBES):
                elements[key] = value
                self._mistakes[key] = mistakes[key]
                for index, effect in effects.items():
                    cases[index].effects[key] = effect
        self._samples = [sample for sample in cases if sample.traits]
        self._candidates = [key for key, count in elements.items() if count >= MIN_ELEMENTS_ALIKE]
        if not self._candidates and self._submit:
            self._doubtful = [key for key, count in elements.items() if count][:_MAX_DOUBTFUL]
            self._candidates = [*self._doubtful]

    @staticmethod
    def _mistakes_of(samples: Sequence[NodeSample]) -> dict[str, NodeMutant]:
        mistakes: dict[str, NodeMutant] = {}
        versions = dict.fromkeys(_operator_version(sample.model) for sample in samples)
        for domain, op_type, opset in versions:
            mistakes = {**node_mistakes(domain, op_type, opset), **mistakes}
        return mistakes

    def _generate(self, best: Hypothesis) -> None:
        """Submit generated nodes, and keep those for which the backend returns outputs.

        Args:
            best: the hypothesis that the nodes test.
        """
        assert self._submit is not None  # noqa: S101 - only called with a backend
        failing = _bases(self._open_failures())
        passing = _bases(sample for sample in self._samples if sample.failed is False)
        if not failing:
            return
        self._seed += 1
        answered: list[NodeSample] = []
        seconds = min(self._remaining(), OPERATOR_SECONDS / (2 * ROUNDS))
        rivals = [self._mistakes[name] for name in self._rivals(best)]
        gaps = [
            (trait.limits.number.attribute, gap)
            for trait in best.traits
            if trait.limits and trait.limits.number.attribute
            for gap in trait.limits.gaps
        ]
        nodes = partial(neighbours, failing, passing, self._seed, _NODE_SECONDS, gaps)
        for variation in self._forked(lambda: _test_nodes(nodes(), best, rivals), seconds):
            if variation is None:
                continue
            returned = self._submit(variation.model, variation.inputs)
            if returned is not None:
                answered.append(_generated_sample(variation, returned))
        self._examine_generated(answered)

    def _is_possible(self, name: str) -> bool:
        """Return whether a mistake may explain failures, possibly with a condition."""
        effects = [sample.effects.get(name) for sample in self._samples if sample.failed]
        alike = effects.count(Effect.ALIKE)
        return alike >= MIN_ALIKE_SHARE * (alike + effects.count(Effect.UNLIKE)) * 0.5

    def _examine_generated(self, samples: Sequence[NodeSample]) -> None:
        """Judge generated nodes, and find their traits and the effects of candidates."""
        candidates = [name for name in self._candidates if self._is_possible(name)]
        probes = [name for name in self._mistakes if name.endswith(PROBES)]
        names = dict.fromkeys((*candidates, *probes))

        def work() -> Iterator[Any]:
            for index, sample in enumerate(samples):
                judge = judged_node(sample)
                if judge is None:
                    continue
                effects = effects_by_mistake([self._mistakes[name] for name in names], judge)
                if effects is not None:
                    yield index, judge.failed, judge.traits, judge.numbers, effects

        for index, failed, traits, numbers, effects in self._forked(work, self._remaining()):
            sample = samples[index]
            sample.failed, sample.traits = failed, traits
            sample.numbers, sample.effects = numbers, effects
        self._samples += [sample for sample in samples if sample.traits]

    # Time ---------------------------------------------------------------------------------------

    def _remaining(self) -> float:
        """Return the seconds that remain for this search."""
        return self._end - self._clock.now()

    def _forked(self, work: Callable[[], Iterator[_Item]], seconds: float) -> Iterator[_Item]:
        """Yield the items of a function that runs with the corrected reference in a fork.

        Iteration ends early if the process crashes or exceeds its processor time, which is part of
        the time of this search.
        """
        parent = getpid()

        def timed() -> Iterator[tuple[float, list[_Item]]]:
            if getpid() != parent:
                # A model that crashes onnx may end this process, so no further helper process is
                # needed.
                die_with_models()
            began = process_time()
            for item in work():
                used = process_time() - began
                yield used, [item]
                if used > seconds:
                    return
            yield process_time() - began, []

        used = 0.0
        with suppress(ProcessLostError):
            for total, items in on_corrected_reference(timed, SILENCE_SECONDS):
                self._clock.add(total - used)
                used = total
                yield from items


def supports_condition(meeting: int, others: int) -> bool:
    """Return whether generated nodes suffice to state a condition.

    Args:
        meeting: number of failing nodes that meet the condition.
        others: number of passing nodes that do not meet it.
    """
    return meeting >= MIN_MEETING and others >= MIN_OUTSIDE


def agrees_with_nodes(
    hypothesis: Hypothesis,
    samples: Sequence[NodeSample],
    candidates: Iterable[str],
    accepted: Iterable[Hypothesis],
) -> bool:
    """Return whether a hypothesis agrees with all nodes.

    Args:
        hypothesis: the hypothesis.
        samples: the nodes.
        candidates: names of the mistakes that reproduce failing cases.
        accepted: other hypotheses, which explain some of the nodes.
    """
    against = [sample for sample in samples if hypothesis.contradicts(sample)]
    if any(sample.case for sample in against):
        return False
    agreeing = [
        sample
        for sample in samples
        if hypothesis.explains(sample) and not _any_explains(accepted, sample)
    ]
    generated = sum(not sample.case for sample in agreeing)
    if len(against) > MAX_CONTRADICTING_SHARE * (generated + len(against)):
        return False
    if hypothesis.mistake is not None and hypothesis.traits:
        # The condition is wrong if the backend has the mistake on nodes that do not meet it.
        plain = Hypothesis((), hypothesis.mistake, 0.0)
        elsewhere = sum(
            plain.explains(sample) and not hypothesis.meets(sample) for sample in samples
        )
        if elsewhere > MAX_CONTRADICTING_SHARE * len(agreeing):
            return False
    differing = [
        sample
        for sample in samples
        if hypothesis.differs(sample) and not _any_explains(accepted, sample)
    ]
    if len(agreeing) >= MIN_ALIKE_SHARE * (len(agreeing) + len(differing)):
        return True
    separate = _separate_mistakes(hypothesis, samples, candidates)
    differing_alone = sum(
        not any(sample.effects.get(name) in _EFFECTS for name in separate) for sample in differing
    )
    return len(agreeing) >= MIN_ALIKE_SHARE * (len(agreeing) + differing_alone)


def _separate_mistakes(
    hypothesis: Hypothesis, samples: Iterable[NodeSample], candidates: Iterable[str]
) -> list[str]:
    """Return the mistakes that a backend may have in addition to that of a hypothesis.

    Each returned mistake reproduces a failure on which the mistake of the hypothesis has no effect.
    Conversely, the mistake of the hypothesis reproduces a failure on which the returned mistake has
    no effect. No returned mistake has an effect on nodes that pass. On nodes on which both mistakes
    have an effect, the outputs of the backend differ from those of either mistake alone.
    """
    if hypothesis.mistake is None:
        return []
    own_name = hypothesis.mistake.name
    failing = [sample.effects for sample in samples if sample.failed]
    passing = [sample.effects for sample in samples if sample.failed is False]
    return [
        name
        for name in candidates
        if _acts_alone(name, own_name, failing)
        and _acts_alone(own_name, name, failing)
        and all(effects.get(name) is Effect.NONE for effects in passing)
    ]


def _acts_alone(name: str, other: str, effects: Iterable[Mapping[str, Effect]]) -> bool:
    """Return whether a mistake reproduces a failing node on which another has no effect."""
    return any(
        of_node.get(name) is Effect.ALIKE and of_node.get(other) is Effect.NONE
        for of_node in effects
    )


def _any_explains(hypotheses: Iterable[Hypothesis], sample: NodeSample) -> bool:
    return any(hypothesis.explains(sample) for hypothesis in hypotheses)


def _far_apart(first: Value, second: Value) -> bool:
    """Return whether two outputs differ by more than another order of operations would cause."""
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
        # Of traits that hold for the same nodes, only the simplest is kept.
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
        shows = self._shows
        holds = shows.astype(np.float32)
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


def _samples(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    known_result: Callable[[Problem], Expected | None],
) -> list[NodeSample]:
    """Return the cases that can be examined, the smallest first."""
    samples: list[NodeSample] = []
    for result in results:
        failed = result.outcome is Outcome.FAIL
        if failed and (not result.wrong or not result.returned):
            continue
        case = cases.get(result.case)
        try:
            problem = case.load() if case else None
        except (InvalidCase, NodeError, MemoryError):
            continue
        if problem is None or problem.must_reject or problem.trajectory is not None:
            continue
        nodes = problem.model.graph.node
        if len(nodes) != 1 or problem.model.functions or not is_standard(nodes[0]):
            continue
        # The outputs of these nodes differ from run to run, whether they are right or wrong.
        if is_random(nodes[0], imported_versions(problem.model).get("", 0), problem.inputs):
            continue
        stored = None
        if problem.stored is not None:
            names = [output.name for output in problem.model.graph.output]
            stored = [problem.stored[name] for name in names if name in problem.stored]
            stored = stored if len(stored) == len(names) else None
        returned = result.returned if failed else None
        sample = NodeSample(result.case, problem.model, problem.inputs, stored, returned, failed)
        if sample.size <= MAX_ELEMENTS:
            samples.append(sample)
    samples.sort(key=attrgetter("size"))
    failing = [sample for sample in samples if sample.failed][:MAX_FAILING]
    examined = failing + [sample for sample in samples if not sample.failed][:MAX_PASSING]
    for sample in examined:
        sample.expected = known_result(sample.problem)
    return examined


def _generated_sample(variation: Variation, returned: Sequence[Value] | None) -> NodeSample:
    return NodeSample("", variation.model, variation.inputs, variation.outputs, returned, None)


def _test_nodes(
    variations: Iterable[Variation | None], hypothesis: Hypothesis, rivals: Sequence[NodeMutant]
) -> Iterator[Variation | None]:
    """Yield the nodes of a round that test a hypothesis, and None in place of other nodes.

    To test a condition, some nodes must meet it and others lack one of its parts, and the mistake
    must have an effect on them. To exclude a rival, some nodes must distinguish it from the
    mistake. Random nodes may contain few nodes of one of these kinds.

    Args:
        variations: random nodes; None in place of an invalid one.
        hypothesis: the hypothesis.
        rivals: other mistakes that explain the same nodes as the mistake of the hypothesis.
    """
    parts = frozenset(hypothesis.traits)
    kinds: set[_NodeKind] = {*rivals}
    if parts:
        kinds |= {parts, *(parts - {part} for part in parts)}
    needed = dict.fromkeys(kinds, NODES_PER_ROUND // (len(kinds) + 1))
    # Nodes of any kind, which may support another hypothesis.
    needed_others = NODES_PER_ROUND - sum(needed.values())
    for variation in islice(variations, MAX_ATTEMPTS):
        if variation is None:
            yield None
            continue
        node_kinds = _kinds_of_node(variation, hypothesis, rivals)
        needed_kinds = [kind for kind in node_kinds if needed.get(kind)]
        if needed_kinds:
            needed[needed_kinds[0]] -= 1
        elif needed_others:
            needed_others -= 1
        else:
            yield None
            continue
        yield variation
        if not needed_others and not any(needed.values()):
            return


def _kinds_of_node(
    variation: Variation, hypothesis: Hypothesis, rivals: Sequence[NodeMutant]
) -> list[_NodeKind]:
    """Return the rivals that a node distinguishes, and the parts of a condition that it meets.

    A node on which the mistake of the hypothesis has no effect does not test its condition.
    """
    judge = judged_node(_generated_sample(variation, variation.outputs))
    if judge is None:
        return []
    mistake = hypothesis.mistake
    kinds: list[_NodeKind] = []
    if mistake is not None:
        kinds += [rival for rival in rivals if judge.distinguishes(mistake, rival)]
        if not judge.may_show(mistake):
            return kinds
    sample = judge.sample
    sample.traits, sample.numbers = judge.traits, judge.numbers
    return [*kinds, frozenset(part for part in hypothesis.traits if part.holds(sample))]


def _operator_version(model: onnx.ModelProto) -> tuple[str, str, int]:
    node = model.graph.node[0]
    domain = plain_domain(node.domain)
    return domain, node.op_type, imported_versions(model)[domain]


def _bases(samples: Iterable[NodeSample]) -> list[BoundNode]:
    """Return small nodes from which new nodes are generated: cases, then generated nodes."""
    ordered = sorted(samples, key=lambda sample: (not sample.case, sample.size))
    return [BoundNode.of(sample.model, sample.inputs) for sample in ordered[:_MAX_BASES]]
