"""Find causes of failures that no known mistake reproduces; test mistakes on generated inputs.

:mod:`~onnxopt_cli.analysis.explanation.explain` finds a cover: known mistakes that agree with the
cases of a run, and together reproduce as many failing cases as possible. This module submits
generated inputs to the backend. The results may contradict a known mistake. For failing cases that
no known mistake reproduces, the module tries these causes in order:

1. The outputs depend on earlier runs.
2. The backend computes a changed formula.
3. The backend has a known mistake, or computes a changed formula, but only under a condition.
4. The backend fails under a condition.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from random import Random
from time import process_time
from typing import NamedTuple

import numpy as np

from onnxopt_cli.analysis.call_changes import single_changes_of_call
from onnxopt_cli.analysis.counterfactuals import counterfactual_text, find_counterfactuals
from onnxopt_cli.analysis.explanation.condition_queries import SubmitCall
from onnxopt_cli.analysis.explanation.failure_conditions import FailureCondition, failure_condition
from onnxopt_cli.analysis.explanation.formula_changes import formula_changes
from onnxopt_cli.analysis.explanation.generated_inputs import (
    changed,
    checked,
    with_near_values,
    with_other_numbers,
    with_other_ranks,
)
from onnxopt_cli.analysis.explanation.required_evidence import supports_change
from onnxopt_cli.analysis.explanation.samples import (
    NOT_FINITE,
    Sample,
    has_common_content,
    sample,
)
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.record import Cause
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.mutation.known_mistakes import all_known_mistakes, is_likely, named
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.run.reproduce import (
    Observation,
    agree,
    agrees_with,
    differ,
    reproduces,
    reproduces_wrong_elements,
    returns,
    returns_where_decided,
)

#: A mistake is confirmed by submitting SUBMITTED_TO_CONFIRM generated inputs on which the mistake
#: is wrong.
SUBMITTED_TO_CONFIRM = 24
#: To find these inputs, at most DRAWN_TO_CONFIRM inputs are drawn.
DRAWN_TO_CONFIRM = 96
#: A mistake is dropped if the backend is right in more than MAX_RIGHT_SHARE of the submitted
#: inputs.
MAX_RIGHT_SHARE = 0.1
#: A mistake is dropped if it reproduces less than MIN_ALIKE_SHARE of the backend's wrong results.
MIN_ALIKE_SHARE = 0.5
#: Directed variations of failing inputs have nearly special values of an operand, another value of
#: a scalar or an attribute, or another number of axes. A mistake is dropped if variations of the
#: same kind contradict it: at least MIN_UNLIKE values, and more than MAX_UNLIKE_SHARE of the values
#: for which the mistake or the backend is wrong. A few values may contradict it because of
#: roundings, or because the backend has another fault, too.
MAX_UNLIKE_SHARE = 0.15
MIN_UNLIKE = 2
#: Number of failing cases from which directed variations are derived.
DIRECTED_CASES = 3
#: A mistake in rounding is confirmed if the backend's wrong elements are much nearer to the values
#: of the mistake than to the expected values. The median ratio of the two distances must be at most
#: MAX_DISTANCE_RATIO.
MAX_DISTANCE_RATIO = 0.5
#: Time limit of the search for changes of the formula, in seconds. This search also ends when half
#: of the time of the whole search has passed.
CHANGE_SECONDS = 5.0
#: Largest number of changes of the formula that are tested on generated inputs. The limit applies
#: separately to tests without a condition and tests with a condition.
MAX_TESTED_CHANGES = 8
#: Number of failing cases from which the constants in changed formulas are determined.
CONSTANT_CASES = 3
#: A change of the formula must reproduce at least MIN_REPRODUCED_SHARE of the failing cases.
MIN_REPRODUCED_SHARE = 0.75
#: A change of the formula may be wrong in one passing case, or in MAX_CONTRADICTING_SHARE of all
#: passing cases if that is more.
MAX_CONTRADICTING_SHARE = 0.01
#: A change of the formula is confirmed by submitting SUBMITTED_FOR_CHANGE generated inputs on which
#: the change is wrong.
SUBMITTED_FOR_CHANGE = 60
#: To find these inputs, at most DRAWN_FOR_CHANGE inputs are drawn.
DRAWN_FOR_CHANGE = 500
#: If several changes have the same outputs for all cases, at most MAX_EQUAL_CHANGES are tested.
#: Generated inputs may refute one of them, and confirm another.
MAX_EQUAL_CHANGES = 3
#: Before the condition of a mistake is sought, the mistake is tested on NEAR_INPUTS changed copies
#: of the inputs of failing cases.
NEAR_INPUTS = 16
#: The search for the condition of a mistake ends if too many of n wrong outputs differ from the
#: outputs of the mistake. The limit is MIN_CONTRADICTING + MAX_RIGHT_SHARE * n.
MIN_CONTRADICTING = 3
#: Largest number of known mistakes for which a condition is sought.
MAX_RESTRICTED = 4
#: The condition of a mistake is sought only if the mistake reproduces RESTRICTED_CASES failing
#: cases.
RESTRICTED_CASES = 6
#: Number of passing cases that determine the order in which mistakes are tried.
PASSING_CASES = 36
#: Counterfactuals are tried first on COUNTERFACTUAL_CASES failing cases, then on up to
#: COUNTERFACTUAL_INPUTS generated failing inputs, and then on the other failing cases.
COUNTERFACTUAL_CASES = 8
COUNTERFACTUAL_INPUTS = 24
#: To find failing inputs, at most DRAWN_FOR_COUNTERFACTUALS inputs are drawn.
DRAWN_FOR_COUNTERFACTUALS = 96
#: Larger failing cases are left out.
MAX_COUNTERFACTUAL_ELEMENTS = 4096
#: Number of failing cases that run twice, to test whether outputs depend on earlier runs.
REPEATED_CASES = 12
#: Outputs depend on earlier runs if the outputs of at least MIN_CHANGING_SHARE of the repeated
#: cases change.
MIN_CHANGING_SHARE = 1 / 3
#: The text of the cause in reports if outputs depend on earlier runs.
CHANGES_WHEN_REPEATED = (
    "the same node with the same inputs returns other outputs when it runs again"
)


def contradicts(
    mistake: Implementation,
    reproduced: Sequence[Observation],
    passing: Sequence[Observation],
    cover: Sequence[Implementation],
    submit: SubmitCall | None,
) -> bool:
    """Return whether the evidence shows that a backend does not have a mistake.

    The evidence consists of the roundings in the failing cases and of generated inputs.

    Args:
        mistake: the mistake.
        reproduced: the failing cases that it reproduces.
        passing: passing cases.
        cover: the mistake, and the other mistakes of the backend.
        submit: submits a generated node; None if the backend is not available.
    """
    if mistake.rounds:
        return not _rounds_alike(mistake, reproduced)
    # If the mistake is to compute in a coarser type, the backend may compute in this type but in
    # another order. Then the backend may be right on an input on which the mistake is wrong.
    # Therefore, generated inputs cannot refute such a mistake.
    if submit is None or mistake.precision is not None:
        return False
    bases = [observation.call for observation in (*reproduced, *passing)]
    counts = Counter(_outcomes(mistake, cover, submit, [bases]))
    wrong = counts["alike"] + counts["other"]
    return (
        counts["right"] > MAX_RIGHT_SHARE * counts.total()
        or counts["alike"] < MIN_ALIKE_SHARE * wrong
        or _is_unlike_varied(mistake, reproduced, cover, submit)
    )


def _is_unlike_varied(
    mistake: Implementation,
    reproduced: Sequence[Observation],
    cover: Sequence[Implementation],
    submit: SubmitCall,
) -> bool:
    """Return whether a backend differs from a mistake on directed variations of failing inputs.

    For example, a backend that treats all tiny numbers as 0 differs from a mistake in which only 0
    is treated specially, and a backend that is wrong only for large T differs from a mistake that
    does not depend on T. The backend must be right where the mistake has no effect, and only there.
    Where the mistake has an effect, the wrong outputs of the backend may differ from those of the
    mistake, because the backend may also have another fault, such as an ignored attribute.

    The arguments are those of :func:`contradicts`.
    """
    alike: defaultdict[str, set[float]] = defaultdict(set)
    unlike: defaultdict[str, set[float]] = defaultdict(set)
    for observation in spread(reproduced, DIRECTED_CASES):
        for name, number, varied in chain(
            with_near_values(observation.call),
            with_other_numbers(observation.call),
            with_other_ranks(observation.call),
        ):
            returned = submit(varied)
            if returned is None:
                continue
            right = [derived_output.branch for derived_output in bound(varied)]
            is_right, is_silent = agree(right, returned), agree(right, mistake.run(varied))
            if not is_right and any(
                returns(other_mistake, varied, returned) for other_mistake in cover
            ):
                alike[name].add(number)
            elif is_right != is_silent and not returns_where_decided(mistake, varied, returned):
                unlike[name].add(number)
        # The time limit may end the search before the next case.
        if any(
            len(numbers) >= MIN_UNLIKE
            and len(numbers) > MAX_UNLIKE_SHARE * len(alike[name] | numbers)
            for name, numbers in unlike.items()
        ):
            return True
    return False


def changes_when_repeated(remaining: Sequence[Observation], submit: SubmitCall) -> bool:
    """Rerun a few failing nodes, and return whether the outputs of at least a third change.

    If outputs change, the backend keeps state, and no condition on the inputs describes its
    failures. A third suffices, because the outputs of some nodes may hardly depend on the state.
    """
    few = sorted(remaining, key=_extremeness)[:REPEATED_CASES]
    differing = sum(_differs_again(observation, submit) for observation in few)
    return differing >= MIN_CHANGING_SHARE * len(few)


class _EqualChanges(NamedTuple):
    """Changes of the formula with the same outputs for all cases, and the cases they reproduce."""

    changes: list[Implementation]
    cases: Sequence[Observation]


@dataclass(frozen=True, eq=False)
class CauseSearch:
    """The search for a cause of the failing cases that a cover does not reproduce.

    Attributes:
        operator: the operator.
        judging: how the run judged outputs.
        remaining: the failing cases that the cover does not reproduce.
        passing: all other cases: the backend passes them, or the cover reproduces them.
        cover: known mistakes of the backend.
        submit: submits a generated node; None if the backend is not available.
        seconds: time limit of the search.
    """

    operator: Operator
    judging: Judging
    remaining: Sequence[Observation]
    passing: Sequence[Observation]
    cover: Sequence[Implementation]
    submit: SubmitCall | None
    seconds: float

    def cause(self) -> Cause | None:
        """Return the cause and its cases; None if no cause is found."""
        changes = self._formula_changes() if self.submit else []
        if self.submit and (cause := self._unrestricted_change(changes, self.submit)):
            return cause
        mistakes = [] if self.cover else self._mistakes_to_restrict()
        likely = [mistake for mistake in mistakes if is_likely(self.operator, mistake)]
        if cause := self._restricted_mistake(likely):
            return cause
        unlikely = [mistake for mistake in mistakes if mistake not in likely]
        return self._conditional_cause([*unlikely, *self._possible_changes(changes)])

    # Changes of the formula ---------------------------------------------------------------------

    def _formula_changes(self) -> list[_EqualChanges]:
        """Return changes of the formula with the cases that they reproduce.

        Changes with the same outputs for all cases belong together. Of these changes, the plainest
        ones are kept.
        """
        ordinary = sorted(self.remaining, key=_extremeness)[:CONSTANT_CASES]
        few = [*ordinary, *spread(self.remaining, RESTRICTED_CASES)]
        end = process_time() + min(CHANGE_SECONDS, self.seconds / 2)
        changes: dict[tuple[int, ...], _EqualChanges] = {}
        for change in formula_changes(self.operator, ordinary):
            if process_time() > end:
                break
            if not _reproduces_most(change, few):
                continue
            reproduced = _reproduced_cases(change, self.remaining)
            if len(reproduced) < MIN_REPRODUCED_SHARE * len(self.remaining):
                continue
            outputs = tuple(
                hash(output.tobytes())
                for observation in (*self.remaining, *self.passing)
                for output in change.run(observation.call)
            )
            equal = changes.setdefault(outputs, _EqualChanges([], reproduced))
            if len(equal.changes) < MAX_EQUAL_CHANGES:
                equal.changes.append(change)
        return [*changes.values()]

    def _unrestricted_change(
        self, changes: Iterable[_EqualChanges], submit: SubmitCall
    ) -> Cause | None:
        """Return a change that agrees with cases and generated inputs; None if no change agrees.

        A few cases may contradict the change: at a discontinuity of the change, the result depends
        on roundings.
        """
        tested = 0
        most = max(1, int(MAX_CONTRADICTING_SHARE * len(self.passing)))
        for equal in sorted(changes, key=lambda equal: -len(equal.cases)):
            # All changes with the same outputs agree with the same cases.
            plainest = equal.changes[0]
            contradicting = (
                observation
                for observation in self.passing
                if not agrees_with(plainest, observation, self.judging)
            )
            if len([*islice(contradicting, most + 1)]) > most:
                continue
            cases = [
                observation
                for observation in equal.cases
                if reproduces(plainest, observation, self.judging)
            ]
            if len(cases) < MIN_REPRODUCED_SHARE * len(equal.cases):
                continue
            for change in equal.changes:
                if self._is_confirmed(change, cases, submit) and not _is_unlike_varied(
                    change, cases, [change], submit
                ):
                    return self._cause_of(change, cases)
            tested += 1
            if tested == MAX_TESTED_CHANGES:
                break
        return None

    def _is_confirmed(
        self, change: Implementation, cases: Sequence[Observation], submit: SubmitCall
    ) -> bool:
        """Return whether the results of generated inputs agree with a change of the formula."""
        failing = [observation.call for observation in cases]
        right_calls = [observation.call for observation in self.passing] or failing
        bases = (failing, right_calls)
        numbers = SUBMITTED_FOR_CHANGE, DRAWN_FOR_CHANGE
        counts, unlike = Counter[str](), 0
        for outcome in _outcomes(change, [change], submit, bases, *numbers):
            counts[outcome] += 1
            unlike = counts["right"] + counts["other"]
            if unlike > 1:
                return False
        return supports_change(counts["alike"], unlike)

    def _possible_changes(self, changes: Iterable[_EqualChanges]) -> list[Implementation]:
        """Return a few changes for which a condition may be found, the most likely first."""
        complete = [
            equal.changes[0] for equal in changes if len(equal.cases) == len(self.remaining)
        ]
        return self._by_wrong_passing_cases(complete)[:MAX_RESTRICTED]

    # Conditions ---------------------------------------------------------------------------------

    def _mistakes_to_restrict(self) -> list[Implementation]:
        """Return mistakes that reproduce all wrong elements, but also change right elements."""
        few = spread(self.remaining, RESTRICTED_CASES)
        mistakes = [
            mistake
            for mistake in all_known_mistakes(self.operator)
            if not mistake.rounds
            and mistake.precision is None
            and all(reproduces_wrong_elements(mistake, observation) for observation in few)
            and all(
                reproduces_wrong_elements(mistake, observation) for observation in self.remaining
            )
        ]
        mistakes.sort(key=lambda mistake: not is_likely(self.operator, mistake))
        return self._by_wrong_passing_cases(mistakes)[:MAX_RESTRICTED]

    def _by_wrong_passing_cases(self, mistakes: Sequence[Implementation]) -> list[Implementation]:
        """Sort mistakes by the number of passing cases that they change, in ascending order.

        A mistake that changes few passing cases probably needs only a simple condition.
        """
        few = self.passing[:PASSING_CASES]
        return sorted(
            mistakes,
            key=lambda mistake: sum(
                not agrees_with(mistake, observation, self.judging) for observation in few
            ),
        )

    def _conditional_cause(self, mistakes: Sequence[Implementation]) -> Cause | None:
        """Return a cause that is restricted by a condition; None if no condition is found.

        The cause is one of ``mistakes``, or wrong outputs of any kind.
        """
        submit = self._submit_unexplained if self.submit else None
        samples = _samples(self.remaining, self.passing)
        # If no program is known to make the mistake, a statement such as "negated wherever ..." is
        # easier to understand.
        before_mistakes = bool(mistakes) and has_common_content(samples)
        condition = failure_condition(samples, submit) if before_mistakes else None
        if not (condition and condition.names_content):
            if cause := self._restricted_mistake(mistakes):
                return cause
            if not before_mistakes:
                condition = failure_condition(samples, submit)
        if condition is None:
            return None
        # The inputs whose failures the cover explains need not meet a necessary condition.
        otherwise = "otherwise " if condition.is_necessary and self.cover else ""
        return Cause(otherwise + condition.text, case_ids(self._cases_meeting(condition)))

    # Counterfactuals ----------------------------------------------------------------------------

    def counterfactual_cause(self) -> Cause | None:
        """Return single changes of failing inputs after which the backend is right, as a cause.

        The result is None if there are no such changes.
        """
        if self.submit is None:
            return None
        end = process_time() + self.seconds
        small = [
            observation
            for observation in self.remaining
            if observation.call.size <= MAX_COUNTERFACTUAL_ELEMENTS
        ]
        few = spread(small, COUNTERFACTUAL_CASES)
        further = [observation for observation in small if observation not in few]
        cases = [_samples([observation], ())[0] for observation in few]
        generated = self._generated_failures(few, end) if few else []
        others = [_samples([observation], ())[0] for observation in further]
        tried = [*cases, *generated, *others]
        ids = [*case_ids(few), *[""] * len(generated), *case_ids(further)]
        samples_by_call = {id(each.call): each for each in tried}

        def outcomes(pairs: Sequence[tuple[Call[Array], Call[Array]]]) -> Iterator[bool | None]:
            for original, call in pairs:
                if process_time() > end:
                    return
                yield self._is_right(samples_by_call[id(original)], call)

        counterfactuals = find_counterfactuals(
            [each.call for each in tried],
            lambda call: single_changes_of_call(call, _wrong_group(samples_by_call[id(call)])),
            outcomes,
        )
        explained = [
            case
            for place, case in enumerate(ids)
            if case and any(place in each.repaired for each in counterfactuals)
        ]
        if not explained:
            return None
        # Outputs that a mistake of the cover explains counted as right.
        success = "otherwise right" if self.cover else "right"
        return Cause(counterfactual_text(counterfactuals, success, "inputs"), tuple(explained))

    def _generated_failures(self, bases: Sequence[Observation], end: float) -> list[Sample]:
        """Return changed copies of failing cases on which the backend is wrong as well."""
        random = Random(0)  # noqa: S311 - not a secret
        generated: list[Sample] = []
        for _ in range(DRAWN_FOR_COUNTERFACTUALS):
            if len(generated) == COUNTERFACTUAL_INPUTS or process_time() > end:
                break
            call = changed(random, random.choice(bases).call, (1, 1, 2))
            if call and call.size <= MAX_COUNTERFACTUAL_ELEMENTS:
                each = self._submitted(call)
                if each and each.failed:
                    generated.append(each)
        return generated

    def _submitted(self, call: Call[Array]) -> Sample | None:
        returned = self._submit_unexplained(call)
        if returned is None:
            return None
        return sample(call, [derived_output.branch for derived_output in bound(call)], returned)

    def _is_right(self, original: Sample, changed_call: Call[Array]) -> bool | None:
        """Return whether the backend is right on a changed copy of a failing input.

        The result is None if the copy is not valid. It is also None if an output of the copy hides
        faults that would be visible in the original, for example because no element of the output
        changes.
        """
        call = checked(changed_call)
        result = self._submitted(call) if call else None
        if result is None:
            return None
        for name in original.possible:
            before, after = (each.visible[name].any(axis=1) for each in (original, result))
            hidden = np.flatnonzero(before & ~after)
            if np.setdiff1d(hidden, [NOT_FINITE]).size:
                return None
        return not result.failed

    def _submit_unexplained(self, call: Call[Array]) -> Sequence[Array] | None:
        """Submit a node, and return its outputs.

        If a known mistake of the cover explains the outputs, the expected outputs are returned
        instead.
        """
        returned = self.submit(call) if self.submit else None
        if returned and any(returns(mistake, call, returned) for mistake in self.cover):
            return evaluate(call)
        return returned

    def _restricted_mistake(self, mistakes: Iterable[Implementation]) -> Cause | None:
        """Find the first mistake that a condition can restrict to the failing cases.

        Returns:
            The mistake with its condition as a cause; None if no mistake has such a condition.
        """
        for mistake in mistakes:
            if self.submit and not self._reproduces_near(mistake, self.submit):
                continue
            outcomes = Counter[bool]()
            compared = _compared(self.submit, mistake, outcomes) if self.submit else None
            samples = _samples(self.remaining, self.passing, mistake)
            try:
                condition = failure_condition(samples, compared, mistake)
            except _ContradictedError:
                continue
            if condition and condition.conditions and self._agrees(outcomes):
                met = self._cases_meeting(condition, mistake)
                where = f", but only where {condition.where} ({condition.evidence})"
                return self._cause_of(mistake, met, where)
        return None

    def _agrees(self, outcomes: Counter[bool]) -> bool:
        """Return whether a mistake reproduced enough of the wrong outputs on generated inputs.

        Many mistakes and changes are tried, so that one of them may agree with most inputs by
        accident.
        """
        return not self.submit or supports_change(outcomes[True], outcomes[False])

    def _reproduces_near(self, mistake: Implementation, submit: SubmitCall) -> bool:
        """Return whether a mistake reproduces the wrong elements of inputs near to failing cases.

        The test is much faster than the search for a condition.
        """
        random = Random(0)  # noqa: S311 - not a secret
        outcomes = Counter[bool]()
        compared = _compared(submit, mistake, outcomes)
        with suppress(_ContradictedError):
            for _ in range(2 * NEAR_INPUTS):
                call = changed(random, random.choice(self.remaining).call, (1,))
                if call is not None:
                    compared(call)
                if outcomes.total() == NEAR_INPUTS:
                    break
        return outcomes[False] <= MAX_RIGHT_SHARE * outcomes.total()

    def _cases_meeting(
        self, condition: FailureCondition, mistake: Implementation | None = None
    ) -> list[Observation]:
        """Return the remaining cases that meet a condition."""
        samples = _samples(self.remaining, (), mistake)
        return [
            observation
            for observation, node in zip(self.remaining, samples, strict=True)
            if condition.meets(node)
        ]

    def _cause_of(
        self, mistake: Implementation, cases: Iterable[Observation], where: str = ""
    ) -> Cause:
        """Return a known mistake or a change of the formula as the cause of some cases."""
        text = f"{mistake.name!r}{where}"
        if named(self.operator, mistake.name):
            return Cause(text, case_ids(cases), (mistake.name,))
        return Cause(f"consistent with the change {text}", case_ids(cases))


def case_ids(observations: Iterable[Observation]) -> tuple[str, ...]:
    """Return the ids of the cases to which observations belong."""
    return tuple(observation.case for observation in observations)


def spread(cases: Sequence[Observation], count: int) -> Sequence[Observation]:
    """Return ``count`` cases at regular intervals from the smaller half of the cases."""
    small = cases[: max(count, len(cases) // 2)]
    return small[:: -(-len(small) // count)] if small else small


def _outcomes(
    mistake: Implementation,
    cover: Sequence[Implementation],
    submit: SubmitCall,
    bases: Sequence[Sequence[Call[Array]]],
    submitted: int = SUBMITTED_TO_CONFIRM,
    drawn: int = DRAWN_TO_CONFIRM,
) -> Iterator[str]:
    """Yield one word for the result of each generated input on which a mistake is wrong.

    The word is "right" if the backend is right. It is "alike" if the backend returns the outputs of
    a mistake of the cover. It is "other" if the backend returns other wrong outputs. An input is
    left out if the outputs differ from those of the mistake only where several values are accepted.

    Args:
        mistake: the mistake.
        cover: the mistakes of the backend, including this mistake.
        submit: submits a node.
        bases: groups of nodes; each input is a changed copy of a node of a random group.
        submitted: largest number of submitted inputs. The mistake is wrong on each of these inputs.
        drawn: number of inputs that are drawn.
    """
    random = Random(0)  # noqa: S311 - not a secret
    remaining = submitted
    for _ in range(drawn):
        group = random.choice(bases) if len(bases) > 1 else bases[0]
        call = changed(random, random.choice(group), (1, 2, 3, 4, 5, 6))
        mistaken = mistake.run(call) if call else []
        if call is None or not mistaken:
            continue
        right = [derived_output.branch for derived_output in bound(call)]
        if agree(right, mistaken):
            continue
        returned = submit(call)
        if returned is None:
            continue
        outcome = "right"
        if not agree(right, returned):
            alike = any(returns(known_mistake, call, returned) for known_mistake in cover)
            outcome = "alike" if alike else "other"
        # If roundings decide a comparison, the backend may decide it otherwise than the mistake.
        if outcome != "alike" and returns_where_decided(mistake, call, returned):
            continue
        remaining -= 1
        yield outcome
        if not remaining:
            return


def _rounds_alike(mistake: Implementation, reproduced: Iterable[Observation]) -> bool:
    """Return whether the backend's values are nearer to those of a mistake than to the right ones.

    If a mistake consists only of coarser roundings, its effect is as small as the tolerance.
    Therefore, agreement within the tolerance does not confirm the mistake.
    """
    ratios: list[float] = []
    for observation in reproduced:
        for right, own, returned in zip(
            observation.right,
            mistake.run(observation.call),
            observation.returned,
            strict=False,
        ):
            if own.shape != returned.shape:
                continue
            wrong = right.wrong(returned) & np.isfinite(returned) & np.isfinite(own)
            returned_wide, own_wide = (array[wrong].astype(np.float64) for array in (returned, own))
            error = np.abs(returned_wide - right.expected[wrong])
            ratios += (np.abs(returned_wide - own_wide) / error).tolist()
    return not ratios or float(np.median(ratios)) <= MAX_DISTANCE_RATIO


class _ContradictedError(Exception):
    """Raised if the wrong elements of a backend differ from those of a mistake."""


def _compared(submit: SubmitCall, mistake: Implementation, outcomes: Counter[bool]) -> SubmitCall:
    """Return a function that submits nodes and compares wrong outputs with those of a mistake.

    The function counts equal and different outputs. It raises an error if too many differ.
    """

    def compare(call: Call[Array]) -> Sequence[Array] | None:
        returned = submit(call)
        right = [derived_output.branch for derived_output in bound(call)] if returned else []
        if returned and not agree(right, returned):
            observation = Observation("", call, Expected({}, {}), returned)
            is_alike = reproduces_wrong_elements(mistake, observation)
            # Outputs that differ only by roundings do not count.
            if is_alike or not reproduces_wrong_elements(mistake, observation, is_loose=True):
                outcomes[is_alike] += 1
            if outcomes[False] > MIN_CONTRADICTING + MAX_RIGHT_SHARE * outcomes.total():
                raise _ContradictedError
        return returned

    return compare


def _differs_again(observation: Observation, submit: SubmitCall) -> bool:
    """Return whether a node returns other outputs when it runs again."""
    responses = [submit(observation.call) for _ in range(2)]
    if observation.is_plain:
        responses.insert(0, observation.returned)
    return any(
        bool(earlier and later) and differ(observation.right, earlier or (), later or ())
        for earlier, later in pairwise(responses)
    )


def _samples(
    failing: Sequence[Observation],
    passing: Sequence[Observation],
    mistake: Implementation | None = None,
) -> list[Sample]:
    """Return observations as samples; the outputs of ``passing`` count as right."""
    pairs = [
        *((observation, observation.returned) for observation in failing),
        *((observation, None) for observation in passing),
    ]
    return [
        sample(
            observation.call,
            observation.right,
            returned,
            (mistake.run(observation.call) or None) if mistake else None,
        )
        for observation, returned in pairs
    ]


def _extremeness(observation: Observation) -> float:
    """Return the largest value of abs(log10(abs(x))) among the input elements x.

    Extreme values hide the effect of other operands. For example, adding a constant to 1e30 has no
    effect.
    """
    logarithms = [0.0]
    for tensor in observation.call.inputs:
        finite = np.isfinite(tensor)
        size = np.abs(tensor[finite & (tensor != 0)].astype(np.float64))
        logarithms += np.abs(np.log10(size)).tolist()
        logarithms += [np.inf] * (not finite.all())
    return max(logarithms)


def _reproduced_cases(
    mistake: Implementation, observations: Iterable[Observation]
) -> list[Observation]:
    """Return the cases whose wrong elements a mistake reproduces."""
    return [
        observation
        for observation in observations
        if reproduces_wrong_elements(mistake, observation)
    ]


def _reproduces_most(mistake: Implementation, observations: Sequence[Observation]) -> bool:
    """Return whether a mistake reproduces the wrong elements of most cases.

    The remaining cases are skipped as soon as too many differ, usually after the first cases.
    """
    missed = 0
    for observation in observations:
        missed += not reproduces_wrong_elements(mistake, observation)
        if missed > (1 - MIN_REPRODUCED_SHARE) * len(observations):
            return False
    return True


def _wrong_group(failing: Sample) -> int:
    """Return the index of the first group of tensors with a wrong element."""
    wrong = np.any([*failing.wrong.values()], axis=0)
    ends = np.cumsum([first.size for first, *_ in failing.call.groups])
    places = np.flatnonzero(wrong)
    return int(np.searchsorted(ends, places[0], side="right")) if places.size else 0
