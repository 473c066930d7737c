"""Explain failures in operators without a formula by known mistakes and conditions.

A hypothesis states that a backend is wrong wherever a node meets a condition. It may also state
that the backend then returns the outputs of a known mistake. A hypothesis must agree with all cases
of the run: the backend must fail every case for which the hypothesis predicts a visible failure.

If the backend can run again, valid nodes that are similar to failing and passing cases are
generated and submitted. The hypothesis must also agree with the results of these nodes. The most
important nodes are those that are generated after the hypothesis has been chosen.

Errors are examined separately. The condition of an error must hold for the nodes on which the
backend raises an error, but not for the nodes on which the backend returns outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from math import inf
from operator import attrgetter

import onnx

from onnxopt_cli.analysis.counterfactuals import counterfactual_text, find_counterfactuals
from onnxopt_cli.analysis.explanation.element_conditions import (
    ElementCondition,
    ElementConditions,
)
from onnxopt_cli.analysis.explanation.explain import SearchClock, note_on_bug, stopped_after
from onnxopt_cli.analysis.explanation.explain_remaining import CHANGES_WHEN_REPEATED
from onnxopt_cli.analysis.explanation.hypotheses import (
    Hypothesis,
    any_explains,
    supports_condition,
)
from onnxopt_cli.analysis.explanation.hypothesis_ranking import HypothesisRanking
from onnxopt_cli.analysis.explanation.node_examination import (
    NodeExamination,
    SearchLimit,
    SubmitNode,
)
from onnxopt_cli.analysis.explanation.node_samples import Effect, NodeSample
from onnxopt_cli.analysis.explanation.node_selection import (
    generated_sample,
    integer_attributes,
    sample_for_errors,
    select_nodes,
    small_nodes,
)
from onnxopt_cli.analysis.explanation.required_evidence import (
    MIN_INDEPENDENT,
    MIN_MEETING,
)
from onnxopt_cli.analysis.node_changes import single_changes
from onnxopt_cli.analysis.node_variations import neighbours, valid_variation
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.core.record import NOT_TRIED, UNEXPLAINED, Cause, Explanation
from onnxopt_cli.core.result import EXPLAINED, Outcome, Result
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import InvalidCase, NodeError
from onnxopt_cli.mutation.bound_node import BoundNode
from onnxopt_cli.operators.nodes import imported_versions, is_standard
from onnxopt_cli.oracle.distributions import is_random
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.executors import ModelRunner

#: The largest number of elements of an examined case.
MAX_ELEMENTS = 1 << 16
#: Largest number of failing cases that are examined.
MAX_FAILING = 60
#: Largest number of passing cases that are examined.
MAX_PASSING = 160
#: The limit of the search for each failing operator of a backend.
OPERATOR_LIMIT = SearchLimit(12_000, 60.0)
#: All searches together are limited to at most MAX_OPERATOR_LIMITS times OPERATOR_LIMIT.
MAX_OPERATOR_LIMITS = 2
#: Number of rounds of generated nodes that distinguish hypotheses. One more round tests the best
#: hypothesis.
ROUNDS = 3
#: A proof requires MIN_AGREEING failing generated nodes that agree with the hypothesis.
MIN_AGREEING = 4
#: A proof requires MIN_UNCONTRADICTED passing generated nodes that do not contradict the
#: hypothesis.
MIN_UNCONTRADICTED = 4
#: If a condition has no known mistake, at most MAX_OTHER_SHARE of the nodes that do not meet the
#: condition may fail.
MAX_OTHER_SHARE = 0.1
#: A condition is plain if it has one part, and the part is a statement about a parameter. Of the
#: nodes that do not meet a plain condition, up to MAX_OTHER_SHARE_OF_PLAIN may fail. It must then
#: be unlikely that all nodes that meet the condition fail by chance.
MAX_OTHER_SHARE_OF_PLAIN = 0.3
#: The probability that all nodes that meet a plain condition fail by chance must be at most
#: MAX_CHANCE.
MAX_CHANCE = 1e-9
#: If a condition has several parts, each part must be the only part that is lacking in MIN_LACKING
#: passing nodes.
MIN_LACKING = 3
#: At least MIN_MEETING_CASES failing cases must agree with a statement if the backend cannot run
#: generated nodes, or if generated nodes do not suffice.
MIN_MEETING_CASES = 3
#: If the backend cannot run generated nodes, a condition requires MIN_OTHER_CASES passing cases
#: that do not meet it.
MIN_OTHER_CASES = 3
#: Largest number of causes that are stated for one operator.
MAX_CAUSES = 3
# For each outcome, the share of the limit that a search gets. The search for causes of errors gets
# a smaller share, because it tries no known mistakes.
_SHARES = {Outcome.FAIL: 1.0, Outcome.ERROR: 0.35}
# Descriptions of the failures for which causes are sought.
_FAULTS = {Outcome.FAIL: "found wrong", Outcome.ERROR: "found to raise an error"}
# Descriptions of the results of nodes without these failures.
_SUCCESSES = {Outcome.FAIL: "right", Outcome.ERROR: "no error"}
# Largest number of hypotheses that are tested on new inputs.
_MAX_PROOFS = 6
# Number of attempts to prove one hypothesis.
_MAX_ATTEMPTS = 2
# A hypothesis is a rival of the best hypothesis if its cost is higher by less than _RIVAL_COST.
_RIVAL_COST = 0.15
# The share of a search's limit that is reserved for conditions on elements and for traits of all
# failing nodes. For errors, only such traits are sought.
_ELEMENTS_SHARES = {Outcome.FAIL: 0.2, Outcome.ERROR: 0.15}
# Number of rounds of generated nodes for conditions on elements.
_ELEMENT_ROUNDS = 8
# Largest number of outputs whose elements are examined.
_MAX_OUTPUTS = 2
# The share of a search's limit that is reserved for validating the statements at the end.
_VALIDATION_SHARE = 0.3
# The share of a search's limit that is reserved for counterfactuals.
_COUNTERFACTUAL_SHARE = 0.15
# Number of rounds of generated nodes that validate each statement. If the limit does not suffice,
# _LEAST_VALIDATION_ROUNDS rounds are enough.
_VALIDATION_ROUNDS = 5
_LEAST_VALIDATION_ROUNDS = 2
# Nodes are generated to test the _MAX_TESTED best conditions on elements, and the best condition on
# nodes (only a trait of all failing nodes).
_MAX_TESTED = 3
# If a condition depends on an integer attribute, some generated nodes take the value of the
# attribute from this interval.
_TRIED_INTEGERS = (0.0, 6.0)
# Counterfactuals are tried first on _COUNTERFACTUAL_CASES failing cases, then on up to
# _COUNTERFACTUAL_NODES generated nodes, and then on the remaining failing cases.
_COUNTERFACTUAL_CASES = 8
_COUNTERFACTUAL_NODES = 32
# If fewer than _MIN_COUNTERFACTUAL_NODES nodes fail, further nodes are generated in up to
# _COUNTERFACTUAL_ROUNDS rounds.
_MIN_COUNTERFACTUAL_NODES = 20
_COUNTERFACTUAL_ROUNDS = 3
# Seconds that onnx's reference may take for each generated node.
_NODE_SECONDS = 0.5


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
        seconds: limit of the search. Both the processor time of the search and the time of the
            backends count. If None, each failing operator has the limit :data:`OPERATOR_LIMIT`, and
            all operators together have :data:`MAX_OPERATOR_LIMITS` times this limit. An operator
            that is not examined within the limit gets an explanation without a cause.
        progress: called with the current activity.
        ask: submits a model to the backend with a given name; returns an outcome if the backend
            fails. Without ``ask``, only the cases of the run can confirm a statement.
        cases_only: names of backends to which no generated nodes are submitted.
        known_result: returns the expected result of a case of the run; None if it is not cached.
    """
    without_queries = frozenset(cases_only)
    with_formula = frozenset(formulas)
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        is_examined = result.outcome in {Outcome.PASS, Outcome.ERROR} or (
            result.outcome is Outcome.FAIL and result.diffs
        )
        if (
            is_examined
            and len(result.operators) == 1
            and not with_formula.intersection(result.operators)
        ):
            groups.setdefault((result.backend, result.operators[0]), []).append(result)
    failing = [
        (outcome, key, group)
        for outcome in EXPLAINED
        for key, group in groups.items()
        if _is_explicable(outcome, group)
    ]
    if not failing:
        return []
    # The modules that judge nodes are loaded once, instead of in each forked process.
    from onnxopt_cli.oracle import reference_in_worker  # noqa: F401

    limit = OPERATOR_LIMIT.share(min(MAX_OPERATOR_LIMITS, _total_share(failing)))
    if seconds is not None:
        limit = SearchLimit(inf, seconds)
    clock = SearchClock()
    end = limit.after(clock)
    timed_ask = ask and clock.timed(ask)
    explanations: list[Explanation] = []
    for number, (outcome, (backend, operator), group) in enumerate(failing):
        share = end.remaining(clock).share(_SHARES[outcome] / _total_share(failing[number:]))
        if share.is_used_up:
            in_time = share.seconds > 0
            explanations.append(_unexamined(backend, operator, group, outcome, in_time=in_time))
            continue
        step = f"explaining {operator} (search {number + 1} of {len(failing)})"
        progress(step)
        operator_end = share.after(clock)
        submit = (
            partial(_submitted, timed_ask, backend, partial(progress, step))
            if timed_ask and backend not in without_queries
            else None
        )
        samples = _samples(group, cases, known_result, outcome)
        samples = [
            sample
            for sample in samples
            if _has_outputs(sample, submit, is_at_limit=operator_end.remaining(clock).is_used_up)
        ]
        remaining = operator_end.remaining(clock)
        search = _NodeSearch(backend, operator, group, samples, submit, clock, remaining, outcome)
        explanation = search.run()
        in_time = search.in_time and operator_end.remaining(clock).seconds > 0
        if explanation is None and search.was_limited:
            explanation = _unexamined(backend, operator, group, outcome, in_time=in_time)
        elif explanation and not in_time and not explanation.note:
            note = stopped_after(share.seconds)
            explanation = replace(explanation, note=note, complete=False)
        if explanation:
            explanations.append(explanation)
    return explanations


def _submitted(
    ask: ModelRunner,
    backend: str,
    tell: Callable[[], None],
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
) -> Sequence[Value] | Outcome:
    """Report the current step of the search, and run a node on a backend."""
    tell()
    return ask(backend, model, inputs)


def _total_share(failing: Iterable[tuple[Outcome, tuple[str, str], Sequence[Result]]]) -> float:
    """Return the sum of the shares of time that several searches receive."""
    return sum(_SHARES[outcome] for outcome, _, _ in failing)


def _is_explicable(outcome: Outcome, results: Iterable[Result]) -> bool:
    """Return whether the cases of an operator may show the cause of an outcome.

    If a backend raises an error in all cases of an operator, the cases do not show the reason.
    """
    outcomes = {result.outcome for result in results}
    return outcome in outcomes and (outcome is not Outcome.ERROR or len(outcomes) > 1)


def _samples(
    results: Sequence[Result],
    cases: Mapping[str, Case],
    known_result: Callable[[Problem], Expected | None],
    outcome: Outcome,
) -> list[NodeSample]:
    """Return the cases that can be examined, the smallest first.

    Args:
        results: the results of a backend in an operator.
        cases: the cases by id.
        known_result: returns the expected result of a case; None if it is not cached.
        outcome: the outcome whose causes are sought.
    """
    sampled = (_sample(result, cases.get(result.case), outcome) for result in results)
    samples = [sample for sample in sampled if sample and sample.size <= MAX_ELEMENTS]
    samples.sort(key=attrgetter("size"))
    failing = [sample for sample in samples if sample.failed][:MAX_FAILING]
    examined = failing + [sample for sample in samples if not sample.failed][:MAX_PASSING]
    for sample in examined:
        sample.expected = known_result(sample.problem)
    return examined


def _sample(result: Result, case: Case | None, outcome: Outcome) -> NodeSample | None:
    """Return the node of a case; None if it is not a single node with fixed outputs."""
    is_for_errors, failed = outcome is Outcome.ERROR, result.outcome is outcome
    if not is_for_errors and (result.outcome is Outcome.ERROR or (failed and not result.wrong)):
        return None
    try:
        problem = case.load() if case else None
    except (InvalidCase, NodeError, MemoryError):
        return None
    if problem is None or problem.must_reject or problem.trajectory is not None:
        return None
    nodes = problem.model.graph.node
    if len(nodes) != 1 or problem.model.functions or not is_standard(nodes[0]):
        return None
    # Cases with random outputs are skipped, because their outputs differ from run to run.
    if is_random(nodes[0], imported_versions(problem.model).get("", 0), problem.inputs):
        return None
    stored = None
    if problem.stored is not None:
        names = [output.name for output in problem.model.graph.output]
        stored = [problem.stored[name] for name in names if name in problem.stored]
        stored = stored if len(stored) == len(names) else None
    return NodeSample(
        result.case,
        problem.model,
        problem.inputs,
        stored,
        result.returned if failed else None,
        failed,
        is_for_errors=is_for_errors,
    )


def _has_outputs(sample: NodeSample, submit: SubmitNode | None, *, is_at_limit: bool) -> bool:
    """Return whether the outputs of a failing node are known, or can be obtained by a second run.

    The run did not keep large outputs and outputs that are not tensors.

    Args:
        sample: the node.
        submit: submits the node again; None if the backend is not available.
        is_at_limit: whether the limit of the search forbids a second run.
    """
    if not sample.failed or sample.is_for_errors or sample.returned:
        return True
    if submit is None or is_at_limit:
        return False
    returned = submit(sample.model, sample.inputs)
    sample.returned = None if isinstance(returned, Outcome) else returned
    return bool(sample.returned)


def _unexamined(
    backend: str, operator: str, results: Iterable[Result], outcome: Outcome, *, in_time: bool
) -> Explanation:
    """Return an explanation which states that the limit of a search was too small.

    The text is the same for all operators, so that reports can list operators together.

    Args:
        backend: the backend's name.
        operator: the operator's name.
        results: the results of the backend in the operator.
        outcome: the outcome whose causes were sought.
        in_time: whether the search ended before its time limit.
    """
    count = sum(result.outcome is outcome for result in results)
    note = "not fully examined" if in_time else "not fully examined within the time limit"
    return Explanation(backend, operator, (), {NOT_TRIED: {str(outcome): count}}, note, False)


class _NodeSearch:
    """The search for explanations of the failures of one backend in one operator.

    The search explains wrong outputs, or errors if ``outcome`` is ``Outcome.ERROR``.

    Attributes:
        in_time: False if an earlier part of the search used all of its time.
    """

    def __init__(
        self,
        backend: str,
        operator: str,
        results: Sequence[Result],
        samples: list[NodeSample],
        submit: SubmitNode | None,
        clock: SearchClock,
        limit: SearchLimit,
        outcome: Outcome = Outcome.FAIL,
    ) -> None:
        self._nodes = NodeExamination(samples, submit, clock, limit)
        self._ranking = HypothesisRanking(self._nodes)
        self._clock, self._limit = clock, limit
        self._backend, self._operator = backend, operator
        self._outcome = outcome
        self._failing_cases = tuple(result.case for result in results if result.outcome is outcome)
        self._failing = len(self._failing_cases)
        self._seed = 0
        self._was_earlier_part_limited, self.in_time = False, True
        # For each condition on elements, the number of nodes that were known when the condition was
        # first considered.
        self._known_nodes: dict[str, int] = {}

    @property
    def was_limited(self) -> bool:
        """Whether a part of the search used all of its evaluations or its time."""
        return self._was_earlier_part_limited or self._nodes.is_at_limit

    def run(self) -> Explanation | None:
        """Search for hypotheses, and return the explanation; None if no hypothesis is accepted."""
        try:
            return self._found_explanation()
        except Exception as error:  # noqa: BLE001 - the search may have any bug
            unexplained = {NOT_TRIED: {str(self._outcome): self._failing}}
            return Explanation(self._backend, self._operator, (), unexplained, note_on_bug(error))

    def _found_explanation(self) -> Explanation | None:
        if not any(sample.failed for sample in self._nodes.samples):
            return None
        if self._nodes.changes_when_repeated():
            cause = Cause(CHANGES_WHEN_REPEATED, self._failing_cases)
            return Explanation(self._backend, self._operator, (cause,))
        end = self._nodes.end
        # The search for mistakes and conditions on nodes leaves three shares of the limit: for
        # conditions on elements, for the validation, and for counterfactuals.
        validation_share = 1 - _COUNTERFACTUAL_SHARE
        elements_share = validation_share - _VALIDATION_SHARE
        nodes_share = elements_share - _ELEMENTS_SHARES[self._outcome]
        self._nodes.end = self._limit.share(nodes_share).after(self._clock)
        elements_end = self._limit.share(elements_share).after(self._clock)
        validation_end = self._limit.share(validation_share).after(self._clock)
        self._nodes.examine_cases()
        if self._nodes.submit and self._nodes.samples:
            self._ranked_element_conditions(())
            for _ in range(MAX_CAUSES):
                another_needed = self._find_proven()
                if not (self._drop_refuted() or another_needed):
                    break
            self._drop_insufficient()
        else:
            self._find_supported()
        conditions: list[ElementCondition] = []
        if self._nodes.submit:
            self._begin_part(elements_end)
            conditions = self._find_element_conditions()
        self._begin_part(validation_end)
        if self._nodes.submit:
            conditions = self._confirmed(conditions)
        self._begin_part(end)
        causes = self._causes() + self._element_causes(conditions)
        if self._nodes.submit:
            causes += self._counterfactual_causes(causes, has_conditions=bool(conditions))
        if not causes:
            return None
        remaining = self._failing - sum(len(cause.cases) for cause in causes)
        unexplained = {UNEXPLAINED: {str(self._outcome): remaining}} if remaining else {}
        return Explanation(self._backend, self._operator, causes, unexplained)

    def _begin_part(self, end: SearchLimit) -> None:
        """Record whether the last part reached its limit, then set the limit of the next part."""
        self._was_earlier_part_limited = self.was_limited
        self.in_time = self.in_time and self._nodes.remaining().seconds > 0
        self._nodes.end = end

    # Acceptance ---------------------------------------------------------------------------------

    def _find_supported(self) -> None:
        """Accept hypotheses for which the cases of the run are sufficient evidence."""
        for _ in range(MAX_CAUSES):
            ranked = self._ranking.hypotheses()
            if not ranked or not self._cases_support(ranked):
                return
            self._ranking.accepted.append(ranked[0])

    def _cases_support(self, ranked: Sequence[Hypothesis]) -> bool:
        """Return whether the cases of the run are sufficient evidence for the first hypothesis."""
        best = ranked[0]
        failing = [
            sample
            for sample in self._ranking.open_failures()
            if sample.case and best.explains(sample)
        ]
        passing = [
            sample
            for sample in self._nodes.samples
            if sample.case and sample.failed is False and not best.meets(sample)
        ]
        if best.mistake is not None and best.mistake.name in self._nodes.doubtful:
            return False
        if best.mistake is not None and not best.traits:
            is_distinguished = any(
                sample.failed is False and self._has_no_effect(best, sample)
                for sample in self._nodes.samples
            )
            return len(failing) >= MIN_MEETING_CASES or is_distinguished
        rivals = [
            hypothesis
            for hypothesis in ranked[1:]
            if hypothesis.traits and hypothesis.cost < best.cost + _RIVAL_COST
        ]
        return (
            len(failing) >= MIN_MEETING_CASES
            and len(passing) >= MIN_OTHER_CASES
            and len(best.traits) == 1
            and not rivals
        )

    @staticmethod
    def _has_no_effect(hypothesis: Hypothesis, sample: NodeSample) -> bool:
        mistake = hypothesis.mistake
        return mistake is not None and sample.effects.get(mistake.name) is Effect.NONE

    def _find_proven(self) -> bool:
        """Search for one more hypothesis that generated nodes support, and accept it.

        Returns:
            Whether to continue: True if a hypothesis was accepted and failing cases remain.
        """
        best_key = ""
        # For the key of each hypothesis, the number of nodes that were known when the hypothesis
        # became the best one.
        known: dict[str, int] = {}
        for _ in range(ROUNDS):
            ranked = self._ranking.hypotheses()
            if not ranked or self._nodes.is_at_limit or best_key == ranked[0].key:
                break
            best_key = ranked[0].key
            known.setdefault(best_key, len(self._nodes.samples))
            self._generate(ranked[0])
        attempts: Counter[str] = Counter()
        for _ in range(_MAX_PROOFS):
            ranked = [
                hypothesis
                for hypothesis in self._ranking.hypotheses()
                if attempts[hypothesis.key] < _MAX_ATTEMPTS
            ]
            if not ranked:
                return False
            best = ranked[0]
            attempts[best.key] += 1
            first = known.setdefault(best.key, len(self._nodes.samples))
            self._generate(best)
            if not self._ranking.is_consistent(best):
                continue
            supported = self._is_proven(best, self._nodes.samples[first:])
            explained_cases = sum(
                bool(sample.case) and best.explains(sample) for sample in self._nodes.samples
            )
            if not best.traits and explained_cases >= MIN_MEETING_CASES:
                supported = supported or self._cases_support(ranked)
            if supported and self._needs_all_parts(best):
                self._ranking.accepted.append(best)
                return any(sample.case for sample in self._ranking.open_failures())
            if self._nodes.is_at_limit:
                return False
        return False

    def _generate(self, best: Hypothesis, *, is_directed: bool = False) -> None:
        """Submit generated nodes, and keep the nodes for which the backend returns outputs.

        In a search for the causes of errors, the nodes that raise errors are kept as well.

        Args:
            best: the hypothesis that the nodes test.
            is_directed: whether the nodes validate the hypothesis; see :func:`neighbours`.
        """
        assert self._nodes.submit is not None  # noqa: S101 - only called with a backend
        # A node that the hypothesis does not explain cannot become a counterexample by one change.
        failures = (
            [sample for sample in self._nodes.samples if best.explains(sample)]
            if is_directed
            else self._ranking.open_failures()
        )
        if not failures:
            failures = [sample for sample in self._nodes.samples if sample.failed]
        failing = small_nodes(failures)
        passing = small_nodes(sample for sample in self._nodes.samples if sample.failed is False)
        if not failing:
            return
        self._seed += 1
        answered: list[NodeSample] = []
        rivals = [self._nodes.mistakes[name] for name in self._ranking.rivals(best)]
        gaps = [
            (trait.limits.number.attribute, gap)
            for trait in best.traits
            if trait.limits and trait.limits.number.attribute
            for gap in trait.limits.gaps
        ]
        # A condition on an integer attribute may be refuted by values that no failing case has.
        gaps += [(name, _TRIED_INTEGERS) for name in integer_attributes(best, failing[0])]
        stated = [trait.parameter for trait in best.traits if trait.parameter]
        nodes = partial(
            neighbours, failing, passing, self._seed, _NODE_SECONDS, gaps, stated, is_directed
        )
        for variation in self._nodes.forked(
            lambda: ((1, node) for node in select_nodes(nodes(), best, rivals)),
            self._nodes.remaining(),
        ):
            if variation is None:
                continue
            returned = self._nodes.submit(variation.model, variation.inputs)
            is_raised = returned is Outcome.ERROR
            if self._outcome is Outcome.ERROR:
                if is_raised or not isinstance(returned, Outcome):
                    answered.append(sample_for_errors(variation, is_raised=is_raised))
            elif not isinstance(returned, Outcome):
                answered.append(generated_sample(variation, returned))
        for sample in answered:
            sample.is_directed = is_directed
        self._nodes.examine_generated(answered)

    def _drop_refuted(self) -> bool:
        """Drop the accepted hypotheses that no longer agree with all nodes.

        A node that is generated to test one hypothesis may refute another. Then the failing cases
        of the refuted hypothesis need another cause.

        Returns:
            Whether a hypothesis was dropped.
        """
        consistent = [*filter(self._ranking.is_consistent, self._ranking.accepted)]
        is_dropped = len(consistent) < len(self._ranking.accepted)
        self._ranking.accepted = consistent
        return is_dropped

    def _is_proven(self, hypothesis: Hypothesis, fresh: Sequence[NodeSample]) -> bool:
        """Return whether nodes that were generated after a hypothesis was chosen confirm it."""
        agreeing = sum(
            hypothesis.explains(sample) and not any_explains(self._ranking.accepted, sample)
            for sample in fresh
        )
        right = [sample for sample in fresh if sample.failed is False]
        passing = sum(not hypothesis.contradicts(sample) for sample in right)
        if agreeing < MIN_AGREEING or passing < MIN_UNCONTRADICTED:
            return False
        if not self._is_independent(hypothesis):
            return False
        if not hypothesis.traits:
            return True
        if hypothesis.mistake is None:
            return supports_condition(agreeing, sum(map(hypothesis.leaves_out, right)))
        # Outputs that equal those of a mistake are strong evidence for the mistake. Therefore, one
        # right node that does not meet the condition suffices to show that a condition is needed.
        return agreeing >= MIN_MEETING and any(
            sample.failed is False and hypothesis.leaves_out(sample)
            for sample in self._nodes.samples
        )

    def _is_independent(self, hypothesis: Hypothesis) -> bool:
        """Return whether enough independent nodes confirm a hypothesis.

        Nodes that are not independent are changed copies of failing nodes, and may all agree with
        the hypothesis by accident.
        """
        confirming = sum(
            sample.is_independent and hypothesis.explains(sample) for sample in self._nodes.samples
        )
        return confirming >= MIN_INDEPENDENT

    def _confirmed(self, conditions: Sequence[ElementCondition]) -> list[ElementCondition]:
        """Validate hypotheses and conditions; after a refutation, also search for a new hypothesis.

        The arguments and the result are those of :meth:`_validated`.
        """
        accepted = len(self._ranking.accepted)
        validated = self._validated(conditions)
        if len(self._ranking.accepted) < accepted and not self._nodes.is_at_limit:
            # The nodes that refute a hypothesis may support another hypothesis.
            self._find_proven()
            validated = self._validated(validated)
        return validated

    def _validated(self, conditions: Sequence[ElementCondition]) -> list[ElementCondition]:
        """Submit nodes with more changes, and drop the statements that these nodes refute.

        Hypotheses that are refuted or cannot be tested within the limit are no longer accepted.

        Args:
            conditions: the conditions on elements that are to be stated.

        Returns:
            The conditions that were tested and are still confirmed.
        """
        of_conditions = [
            Hypothesis((condition.trait,) if condition.trait else (), None, 0.0)
            for condition in conditions
        ]
        accepted = self._ranking.accepted
        are_tested = self._generate_directed([*accepted, *of_conditions])
        self._ranking.accepted = [*compress(accepted, are_tested)]
        validated = [*compress(conditions, are_tested[len(accepted) :])]
        while self._drop_refuted():
            pass
        self._ranking.accepted = [*filter(self._needs_all_parts, self._ranking.accepted)]
        self._drop_insufficient()
        confirmed: list[ElementCondition] = []
        for condition in validated:
            element_conditions = self._element_conditions(condition.place, confirmed)
            element_conditions.add_limits(condition)
            # If elements of the new nodes are wrong outside of a limit, the limit was accidental.
            # The condition is dropped, because a new limit would be accidental, too.
            if not element_conditions.agrees(condition):
                continue
            updated = element_conditions.updated(condition)
            if element_conditions.is_confirmed(updated):
                confirmed.append(updated)
        return confirmed

    def _generate_directed(self, hypotheses: Sequence[Hypothesis]) -> list[bool]:
        """Submit nodes that validate hypotheses; return for each whether it had enough rounds.

        Each round tests all hypotheses, so that none of them uses the limit of the others.
        """
        rounds = [0] * len(hypotheses)
        for _ in range(_VALIDATION_ROUNDS):
            for place, hypothesis in enumerate(hypotheses):
                if not self._nodes.is_at_limit:
                    self._generate(hypothesis, is_directed=True)
                    rounds[place] += 1
        return [number >= _LEAST_VALIDATION_ROUNDS for number in rounds]

    def _drop_insufficient(self) -> None:
        """Drop accepted conditions that have no known mistake and too little evidence.

        A condition is dropped if other hypotheses explain nearly all nodes that meet it. A
        condition that may hold by chance is also dropped if many failing nodes meet no accepted
        hypothesis.
        """
        for hypothesis in [*self._ranking.accepted]:
            if hypothesis.mistake is None and not self._acts_alone(hypothesis):
                self._ranking.accepted.remove(hypothesis)
        outside = [
            sample
            for sample in self._nodes.samples
            if sample.failed is not None
            and not sample.case
            and not sample.is_directed
            and not any(
                hypothesis.meets(sample)
                if hypothesis.mistake is None
                else hypothesis.explains(sample)
                for hypothesis in self._ranking.accepted
            )
        ]
        wrong = sum(bool(sample.failed) for sample in outside)
        if wrong > MAX_OTHER_SHARE * len(outside):
            share = wrong / len(outside)
            self._ranking.accepted = [
                hypothesis
                for hypothesis in self._ranking.accepted
                if hypothesis.mistake is not None or self._is_unlikely(hypothesis, share)
            ]

    def _is_unlikely(self, hypothesis: Hypothesis, share: float) -> bool:
        """Return whether failing nodes are unlikely to meet a plain condition by chance.

        A plain condition has one part, which is a statement about a parameter. Statements about
        shapes and values are not plain, because many nodes have the same shapes and values.

        The probability assumes independent nodes, although similar nodes are not independent. It
        ignores passing nodes, because another test refutes a condition that a passing node meets.

        Args:
            hypothesis: a hypothesis without a mistake.
            share: among the nodes that meet no accepted hypothesis, the share of failing nodes.
        """
        if len(hypothesis.traits) > 1 or not hypothesis.traits[0].is_parameter:
            return False
        agreeing = self._explained_alone(hypothesis)
        return share <= MAX_OTHER_SHARE_OF_PLAIN and share**agreeing <= MAX_CHANCE

    def _acts_alone(self, hypothesis: Hypothesis) -> bool:
        """Return whether a hypothesis is the only explanation of enough generated nodes."""
        return self._explained_alone(hypothesis) >= MIN_MEETING

    def _explained_alone(self, hypothesis: Hypothesis) -> int:
        """Return the number of generated nodes that only this hypothesis explains."""
        rivals = self._ranking.accepted_besides(hypothesis)
        return sum(
            not sample.case and hypothesis.explains(sample) and not any_explains(rivals, sample)
            for sample in self._nodes.samples
        )

    def _needs_all_parts(self, hypothesis: Hypothesis) -> bool:
        """Return whether all parts of a condition are needed.

        A part is needed if the backend is right on most nodes that meet all other parts but not
        this one. A node counts as wrong even if another statement explains its failure.
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
                for sample in self._nodes.samples
                if not sample.has(part) and other_parts.meets(sample)
            ]
            wrong = sum(map(other_parts.explains, outside))
            right = sum(map(other_parts.contradicts, outside))
            if right < MIN_LACKING or wrong > MAX_OTHER_SHARE * (right + wrong):
                return False
        return True

    # Elements -----------------------------------------------------------------------------------

    def _find_element_conditions(self) -> list[ElementCondition]:
        """Return conditions on the elements of outputs for failures without another cause."""
        accepted: list[ElementCondition] = []
        while len(accepted) < MAX_CAUSES and not self._nodes.is_at_limit:
            condition = self._proven_element_condition(accepted)
            if condition is None:
                break
            accepted.append(condition)
        return accepted

    def _element_causes(self, conditions: Sequence[ElementCondition]) -> tuple[Cause, ...]:
        """Return a cause for each condition on elements that explains failing cases."""
        causes: list[Cause] = []
        for number, condition in enumerate(conditions):
            element_conditions = self._element_conditions(condition.place, conditions[:number])
            element_conditions.add_limits(condition)
            explained = element_conditions.explained(condition)
            ids = tuple(sample.case for sample in explained if sample.case)
            if ids:
                text = element_conditions.text(
                    condition,
                    self._output(condition.place),
                    _FAULTS[self._outcome],
                    has_other_causes=bool(self._ranking.accepted or causes),
                )
                causes.append(Cause(text, ids))
        return tuple(causes)

    def _element_conditions(
        self, place: int, accepted: Sequence[ElementCondition]
    ) -> ElementConditions:
        """Return conditions on an output, fitted to failures that ``accepted`` does not explain."""
        failures = self._ranking.separate_failures()
        for condition in accepted:
            earlier = ElementConditions(self._nodes.samples, failures, condition.place)
            earlier.add_limits(condition)
            explained = {id(sample) for sample in earlier.explained(condition)}
            failures = [sample for sample in failures if id(sample) not in explained]
        return ElementConditions(self._nodes.samples, failures, place)

    def _proven_element_condition(
        self, accepted: Sequence[ElementCondition]
    ) -> ElementCondition | None:
        """Return a condition on elements, confirmed by generated nodes; None if none is found."""
        for number in range(_ELEMENT_ROUNDS):
            conditions, ranked = self._ranked_element_conditions(accepted)
            for condition in ranked:
                fresh = self._nodes.samples[self._known_nodes[condition.key] :]
                if conditions.is_proven(condition, fresh):
                    return condition
            if not ranked or self._nodes.is_at_limit:
                return None
            of_nodes = [condition for condition in ranked if condition.is_of_nodes]
            tested = [*dict.fromkeys(ranked[:_MAX_TESTED] + of_nodes[:1])]
            best = tested[number % len(tested)]
            self._generate(Hypothesis((best.trait,) if best.trait else (), None, 0.0))
        return None

    def _ranked_element_conditions(
        self, accepted: Sequence[ElementCondition]
    ) -> tuple[ElementConditions, list[ElementCondition]]:
        """Return the best conditions on the elements of the output that is most often wrong.

        Nodes that are generated after this call are evidence for the returned conditions.
        """
        counts = Counter(
            place
            for sample in self._ranking.separate_failures()
            if sample.case and sample.outputs
            for place, wrong in enumerate(sample.outputs.wrong)
            if wrong is None or wrong.any()
        )
        # An error does not belong to a particular output.
        places = (
            [0] if self._outcome is Outcome.ERROR else [*dict(counts.most_common(_MAX_OUTPUTS))]
        )
        conditions = self._element_conditions(0, accepted)
        ranked: list[ElementCondition] = []
        for place in places:
            conditions = self._element_conditions(place, accepted)
            ranked = conditions.ranked()
            if ranked:
                break
        for condition in ranked:
            self._known_nodes.setdefault(condition.key, len(self._nodes.samples))
        return conditions, ranked

    def _output(self, place: int) -> str:
        """Return the name of an output; empty for errors, and if there is only one output."""
        if self._outcome is Outcome.ERROR:
            return ""
        node = BoundNode.of(self._nodes.samples[0].model, self._nodes.samples[0].inputs)
        formals = node.schema.outputs
        if formals[0].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
            return f"output {place + 1}"
        if len(formals) == 1:
            return ""
        return str(formals[min(node.output_places[place], len(formals) - 1)].name)

    # Counterfactuals ----------------------------------------------------------------------------

    def _counterfactual_causes(
        self, causes: Sequence[Cause], *, has_conditions: bool
    ) -> tuple[Cause, ...]:
        """Return a cause for the failures that have no other cause, based on counterfactuals.

        Args:
            causes: the other causes.
            has_conditions: whether conditions on elements are among them. These may be the reason
                why generated nodes fail.
        """
        explained = {case for cause in causes for case in cause.cases}
        failing = self._failures_without_cause(explained)
        cases = [sample for sample in failing if sample.case]
        generated = [sample for sample in failing if not sample.case and not has_conditions]
        generated.sort(key=lambda sample: (not sample.is_independent, sample.is_directed))
        few, further = cases[:_COUNTERFACTUAL_CASES], cases[_COUNTERFACTUAL_CASES:]
        tried = [*few, *generated[:_COUNTERFACTUAL_NODES], *further]
        bound = [BoundNode.of(sample.model, sample.inputs) for sample in tried]
        samples = {id(node): sample for node, sample in zip(bound, tried, strict=True)}
        if not cases:
            return ()
        counterfactuals = find_counterfactuals(
            bound,
            single_changes,
            lambda pairs: self._outcomes([(samples[id(node)], new) for node, new in pairs]),
        )
        ids = tuple(
            sample.case
            for place, sample in enumerate(tried)
            if sample.case and any(place in each.repaired for each in counterfactuals)
        )
        if not ids:
            return ()
        text = counterfactual_text(counterfactuals, _SUCCESSES[self._outcome], "nodes")
        return (Cause(text, ids),)

    def _failures_without_cause(self, explained: Container[str]) -> list[NodeSample]:
        """Return failing nodes without a cause; if there are too few, generate further nodes.

        Args:
            explained: ids of the failing cases that have a cause.
        """
        failing: list[NodeSample] = []
        for number in range(_COUNTERFACTUAL_ROUNDS + 1):
            separate = self._ranking.separate_failures()
            failing = [sample for sample in separate if sample.case not in explained]
            is_enough = len(failing) >= _MIN_COUNTERFACTUAL_NODES
            if is_enough or not any(sample.case for sample in failing):
                break
            if number < _COUNTERFACTUAL_ROUNDS and not self._nodes.is_at_limit:
                self._generate(Hypothesis((), None, 0.0))
        return failing

    def _outcomes(self, pairs: Sequence[tuple[NodeSample, BoundNode]]) -> list[bool | None]:
        """Return whether the backend is right on changed nodes.

        The result is None for a node that is not valid or that would hide a fault. The list ends
        early if the limit is reached.

        Args:
            pairs: failing nodes, each with a changed copy.
        """
        assert self._nodes.submit is not None  # noqa: S101 - only called with a backend
        is_for_errors = self._outcome is Outcome.ERROR
        changed: list[NodeSample | None] = []
        for variation in self._nodes.forked(
            lambda: ((1, valid_variation(node, _NODE_SECONDS)) for _, node in pairs),
            self._nodes.remaining(),
        ):
            returned = self._nodes.submit(variation.model, variation.inputs) if variation else None
            if variation is None or returned is None:
                changed.append(None)
            elif is_for_errors:
                changed.append(
                    sample_for_errors(variation, is_raised=isinstance(returned, Outcome))
                )
            elif isinstance(returned, Outcome):
                changed.append(None)
            else:
                changed.append(generated_sample(variation, returned))
        if not is_for_errors:
            self._nodes.judge([sample for sample in changed if sample])
        return [
            None if sample is None or sample.failed is None or _hides_faults(original, sample)
            else not sample.failed
            for (original, _), sample in zip(pairs, changed, strict=False)
        ]  # fmt: skip

    # Statements ---------------------------------------------------------------------------------

    def _causes(self) -> tuple[Cause, ...]:
        """Return the causes of the accepted hypotheses that still agree with all nodes."""
        causes: list[Cause] = []
        explained: set[str] = set()
        for hypothesis in self._ranking.accepted:
            if not self._ranking.is_consistent(hypothesis):
                continue
            if hypothesis.is_empty(self._nodes.samples):
                continue
            ids = tuple(
                sample.case
                for sample in self._nodes.samples
                if sample.case and sample.case not in explained and hypothesis.explains(sample)
            )
            if ids:
                explained.update(ids)
                names = (hypothesis.mistake.name,) if hypothesis.mistake else ()
                text = hypothesis.text(
                    _FAULTS[self._outcome],
                    is_contradicted=any(map(hypothesis.contradicts, self._nodes.samples)),
                )
                if rivals := self._ranking.rivals(hypothesis):
                    text += f" (or {' or '.join(map(repr, rivals))} with the same effect here)"
                if hypothesis.has_exceptions(self._nodes.samples):
                    text += f", if {hypothesis.dependence} changes the result"
                if exceptions := hypothesis.silent_exceptions(self._nodes.samples):
                    text += f", unless {' or '.join(exceptions)}"
                text += hypothesis.uncertainty + self._evidence(hypothesis, len(ids))
                causes.append(Cause(text, ids, names))
        return tuple(causes)

    def _evidence(self, hypothesis: Hypothesis, failing_cases: int) -> str:
        """Return in words how many nodes agree with a hypothesis, and how many other nodes fail.

        Generated nodes that other causes explain are not counted.

        Args:
            hypothesis: the hypothesis. Without a condition, the evidence is empty.
            failing_cases: number of failing cases that the hypothesis explains.
        """
        if not hypothesis.traits:
            return ""
        if self._nodes.submit is None:
            passing = sum(
                sample.failed is False and not hypothesis.meets(sample)
                for sample in self._nodes.samples
            )
            return f" (seen in {failing_cases} cases that fail, in none of {passing} that pass)"
        rivals = self._ranking.accepted_besides(hypothesis)
        generated = [
            sample
            for sample in self._nodes.samples
            if not sample.case and not any_explains(rivals, sample)
        ]
        agreeing = sum(map(hypothesis.explains, generated))
        against = sum(map(hypothesis.contradicts, generated))
        outside = [sample for sample in generated if hypothesis.leaves_out(sample)]
        wrong = sum(bool(sample.failed) for sample in outside)
        of_others = f"{wrong} of {len(outside)} others"
        return f" ({agreeing} of {agreeing + against} generated nodes, {of_others})"


def _hides_faults(original: NodeSample, changed: NodeSample) -> bool:
    """Return whether a changed node has fewer different correct values than the original."""
    if original.is_for_errors or original.outputs is None:
        return False
    return changed.distinct_outputs < original.distinct_outputs or (
        changed.has_no_finite_output and not original.has_no_finite_output
    )
