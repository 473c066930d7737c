"""Find conditions under which a backend fails.

A condition has one or two parts, like a path through a decision tree of depth two. The backend
fails a node if at least one element of the node meets all parts. In every failing input, a wrong
element must meet the condition. In a passing input, no element may meet the condition if the fault
would be visible in the element.

Many conditions agree with a suite by chance. The search therefore generates inputs for which the
remaining conditions predict different results, submits the inputs, and fits the conditions again.
Finally, the search submits inputs that may contradict the plainest condition. A condition is
reported only if no input contradicts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from onnxopt_cli.analysis.explanation.condition_fitting import (
    MIN_CASES_SHARE,
    ConditionPath,
    meeting_columns,
)
from onnxopt_cli.analysis.explanation.condition_queries import (
    MAX_DRAWN_TO_PROVE,
    ConditionQueries,
    SubmitCall,
    is_narrow,
)
from onnxopt_cli.analysis.explanation.features import WRONG, Condition, features, number_text
from onnxopt_cli.analysis.explanation.required_evidence import MIN_OTHERS, supports_only_where
from onnxopt_cli.analysis.explanation.samples import (
    ALWAYS_SHARE,
    EFFECTS,
    EXCEPTIONS,
    Sample,
    common_effects,
)
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.implementation import Implementation

# Largest number of rounds in which inputs are submitted to distinguish conditions.
_LEARNING_ROUNDS = 6
#: Number of inputs that are drawn in each round to distinguish conditions.
DRAWN_TO_LEARN = 60
#: Largest number of attempts to prove a condition.
PROOFS = 4
# If a condition accounts for only a part of the failures, this part must have more than
# _MIN_SUPPORT failing inputs.
_MIN_SUPPORT = 4
#: The plainest path is the path with the lowest cost. An alternative may cost at most COST_MARGIN
#: more.
COST_MARGIN = 0.75
#: The disagreement of an alternative may exceed that of the plainest path by at most
#: DISAGREEMENT_MARGIN.
DISAGREEMENT_MARGIN = 0.02
# Two conditions count as equal if at most _DIFFERENT_SHARE of the inputs meet only one of them.
_DIFFERENT_SHARE = 0.01
#: The number of failing cases that a condition requires if the backend cannot run generated nodes.
MIN_FAILING_WITHOUT_QUERIES = 4
# A condition is not informative if both of two shares exceed _MAX_INPUTS_SHARE: the share of inputs
# that meet it, and the average share of the elements of an input that meet it.
_MAX_INPUTS_SHARE = 0.9
#: A part of a condition is necessary only if at least MIN_PASSING inputs without this part, but
#: with the other part, pass.
MIN_PASSING = 5
#: Of the inputs that meet only one of two parts, at most MAX_FAILING_SHARE may fail.
MAX_FAILING_SHARE = 0.1
# If failures may have several causes, _MAX_OTHER_REASONS replaces MAX_FAILING_SHARE.
_MAX_OTHER_REASONS = 0.4
# An "only where" statement is not made if more than _MAX_PASSING_SHARE of the passing cases meet
# its condition.
_MAX_PASSING_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class FailureCondition:
    """A condition under which a backend fails, with the evidence for it.

    Attributes:
        text: the statement, with the evidence for it.
        conditions: the parts of the condition; empty if two conditions cannot be distinguished.
        effect: the wrong outputs, and what their wrong elements have in common.
        evidence: two counts in words: the inputs that meet all parts and fail, and the inputs that
            pass; empty without parts.
        meets: returns whether an element of a sample meets all parts.
        is_necessary: whether the statement is that all failing inputs meet the condition.
    """

    text: str
    conditions: tuple[Condition, ...]
    effect: str
    evidence: str
    meets: Callable[[Sample], bool]
    is_necessary: bool = False

    @property
    def where(self) -> str:
        """The parts of the condition, in words."""
        return _text(self.conditions)

    @property
    def names_content(self) -> bool:
        """Whether the statement describes the content of the wrong elements, for example 0."""
        return bool(self.conditions) and "wrong" not in self.effect


def failure_condition(
    samples: Sequence[Sample], submit: SubmitCall | None, mistake: Implementation | None = None
) -> FailureCondition | None:
    """Return the condition under which a backend fails; None if none is found.

    Failures may have several causes. If no condition accounts for all failing samples, a condition
    for a part of them is returned, provided that the backend can run generated nodes.

    Args:
        samples: nodes of one operator, failing ones first.
        submit: submits a generated node; None if the backend is not available.
        mistake: the known mistake whose condition is sought; None for any fault.
    """
    failing = sum(each.failed for each in samples)
    if not failing or (
        not submit and (failing < MIN_FAILING_WITHOUT_QUERIES or failing == len(samples))
    ):
        return None
    return _Search(samples, submit, mistake).run()


class _Search(ConditionQueries):
    """The search for the condition of one operator's failures."""

    def __init__(
        self, samples: Sequence[Sample], submit: SubmitCall | None, mistake: Implementation | None
    ) -> None:
        super().__init__(samples, submit, mistake)
        self._passing_cases = [each for each in samples if not each.failed]
        self._rounds = _LEARNING_ROUNDS

    def run(self) -> FailureCondition | None:
        """Search for a condition of all failures, then for a condition of a part of them."""
        for_all = self._attempt()
        if (for_all and for_all.conditions) or self._submit is None:
            return for_all
        if self._mistake:
            # The statement "only where" would be false, because the mistake may also occur under
            # other conditions.
            return None
        self._partial = True
        for_part = self._attempt()
        if for_part and for_part.conditions:
            return for_part
        return for_all or self._necessary_condition()

    def _attempt(self) -> FailureCondition | None:
        """Fit conditions, and try to refute them by generated inputs.

        Returns:
            A proven condition; without a backend, the best fitted condition; None if none exists.
        """
        self._fit()
        if self._submit is None:
            return self._statement() if self._paths else None
        for _ in range(self._rounds):
            if not self._paths:
                break
            self._rounds -= 1
            candidates = [*self._drawn(DRAWN_TO_LEARN)]
            for at in self._informative(candidates):
                self._observe(candidates[at].call)
            self._fit()
        for _ in range(PROOFS):
            if not self._paths:
                break
            self._sharpen()
            proven = self._paths and self._survives_proof()
            self._fit()
            if proven and self._paths:
                return self._statement()
        return None

    # Statements ---------------------------------------------------------------------------------

    def _statement(self) -> FailureCondition | None:
        """Return the statement of the plainest path; None if it is contradicted or too general."""
        best = self._paths[0]
        candidates = [*self._drawn(DRAWN_TO_LEARN * 2)]
        if not candidates:
            return None
        near = [
            path
            for path in self._paths
            if path.cost <= best.cost + COST_MARGIN
            and path.disagreement <= best.disagreement + DISAGREEMENT_MARGIN
            and path.reach >= best.reach
        ]
        predicted = self._predictions(near, candidates)
        if self._says_nothing(best.conditions, candidates, predicted[0]):
            return None
        rivals = [
            (path, row)
            for path, row in zip(near, predicted, strict=True)
            if np.mean(row != predicted[0]) > _DIFFERENT_SHARE
        ]
        if rivals:
            other_path, other_row = rivals[0]
            has_third = any(np.mean(row != other_row) > _DIFFERENT_SHARE for _, row in rivals)
            # If a third condition is possible, perhaps neither of the two conditions is the cause.
            # The same is true if no new inputs were submitted.
            if has_third or self._submit is None:
                return None
            either = f"wherever {_text(best.conditions)} or wherever {_text(other_path.conditions)}"
            text = f"cannot tell whether it fails {either}"
            return FailureCondition(text, (), "", "", lambda _: True)
        if not self._needs_both(best.conditions):
            return None
        failing = [each for each in self._samples if each.failed]
        met = [each for each in failing if self._meets(best.conditions, each)]
        if not self._reaches_enough(failing, met) or self._shows_elsewhere(best.conditions, met):
            return None
        passing = len(self._samples) - len(failing)
        effect, besides = _effect_text(met, is_partial=self._has_right(best.conditions, met))
        count = f"{len(met)} of {len(failing)}" if len(met) < len(failing) else f"{len(met)}"
        evidence = f"seen in {count} inputs that fail{besides}, in none of {passing} that pass"
        where = f"{_text(best.conditions)}{self._gaps(best)}{self._exceptions(best.conditions)}"
        return FailureCondition(
            f"{effect} wherever {where} ({evidence})",
            best.conditions,
            effect,
            evidence,
            partial(self._meets, best.conditions),
        )

    def _says_nothing(
        self, conditions: Sequence[Condition], candidates: Sequence[Sample], predicted: Array
    ) -> bool:
        """Return whether the conditions hold for nearly all elements of nearly all inputs."""
        if np.mean(predicted) <= _MAX_INPUTS_SHARE:
            return False
        columns = [
            meeting_columns(conditions, self._table(candidate)[0]).all(axis=0)
            for candidate in candidates
        ]
        # An input may have no elements.
        shares = [meeting.mean() for meeting in columns if meeting.size]
        return bool(shares) and bool(np.mean(shares) > _MAX_INPUTS_SHARE)

    def _reaches_enough(self, failing: Sequence[Sample], met: Sequence[Sample]) -> bool:
        """Return whether a condition explains enough failures to be reported."""
        if not self._partial:
            return True
        reached = {*met}
        cases_share = sum(each in reached for each in failing[: self._given]) / max(1, self._given)
        failing_outside = (len(failing) - len(met)) / max(1, len(self._samples) - len(met))
        return (
            len(met) > _MIN_SUPPORT
            and cases_share >= MIN_CASES_SHARE
            and failing_outside <= _MAX_OTHER_REASONS
        )

    def _needs_both(self, conditions: Sequence[Condition]) -> bool:
        """Return whether both conditions are necessary: inputs that meet only one of them pass.

        If too few known inputs meet only one condition, more inputs are generated and submitted.
        """
        if len(conditions) == 1:
            return True
        share = _MAX_OTHER_REASONS if self._partial else MAX_FAILING_SHARE
        for place in (0, 1):
            samples = [each for each in self._samples if place in self._lacking(conditions, each)]
            outcomes = Counter(each.failed for each in samples)
            # Copies of the samples are drawn, because there may be too few samples.
            for candidate in self._drawn(MAX_DRAWN_TO_PROVE, samples) if self._submit else ():
                if outcomes[False] >= MIN_PASSING:
                    break
                if place in self._lacking(conditions, candidate) and (
                    sample := self._observe(candidate.call)
                ):
                    outcomes[sample.failed] += place in self._lacking(conditions, sample)
            if outcomes[False] < MIN_PASSING or outcomes[True] > share * outcomes.total():
                return False
        return True

    def _lacking(self, conditions: Sequence[Condition], each: Sample) -> set[int]:
        """Return which of two conditions an element violates although it meets the other condition.

        The result is empty if any element meets both conditions.
        """
        first, second = meeting_columns(conditions, self._table(each)[0])
        if np.any(first & second):
            return set()
        return {place for place, elements in enumerate((second, first)) if elements.any()}

    def _gaps(self, path: ConditionPath) -> str:
        """Describe the interval of each threshold that is not known exactly."""
        texts = []
        for part in path.conditions:
            feature = self._features[part.feature]
            if part.gap and not is_narrow(part, feature):
                low, high = sorted(part.gap)
                texts.append(f"the limit is between {number_text(low)} and {number_text(high)}")
        return f" ({' and '.join(texts)})" if texts else ""

    def _exceptions(self, conditions: Sequence[Condition]) -> str:
        """Describe why some right elements meet the conditions."""
        names = sorted(self._always) or sorted(self._effects)
        reasons = dict.fromkeys(
            reason for name in names for reason in EXCEPTIONS[self._effects[name]]
        )
        applicable = dict.fromkeys(reasons, False)
        for each in self._samples:
            applies = {
                reason: np.any(
                    [
                        each.visible[name][reason[1]] & ~each.visible[name][reason[2]]
                        & ~each.wrong[name]
                        for name in names
                        if reason in EXCEPTIONS[self._effects[name]]
                    ],
                    axis=0,
                )
                for reason in reasons
            }  # fmt: skip
            codes = np.ones(each.size, np.int16)
            for bit, elements in enumerate(applies.values(), start=1):
                codes |= elements.astype(np.int16) << bit
            table, codes = features(each.call, each.expected, codes)
            meets = meeting_columns(conditions, table).all(axis=0)
            for bit, reason in enumerate(reasons, start=1):
                applicable[reason] |= bool(np.any(codes[meets] >> bit & 1))
        words = dict.fromkeys(text for (text, *_), holds in applicable.items() if holds)
        subject = names[0] if len(names) == 1 else "each"
        predicted = " or ".join(words).replace("{}", subject)
        return f", unless {predicted}" if predicted else ""

    def _has_right(self, conditions: Sequence[Condition], met: Iterable[Sample]) -> bool:
        """Return whether a right element of a failing sample meets the conditions.

        Elements in which the fault would be invisible are not considered.
        """
        tables = map(self._table, met)
        return any(
            (labels[meeting_columns(conditions, table).all(axis=0)] != WRONG).any()
            for table, labels in tables
        )

    def _shows_elsewhere(self, conditions: Sequence[Condition], met: Iterable[Sample]) -> bool:
        """Return whether many elements are right although they meet the conditions of a mistake."""
        if self._mistake is None:
            return False
        shares = []
        for each in met:
            table, labels = self._table(each)
            labels_met = labels[meeting_columns(conditions, table).all(axis=0) & (labels > 0)]
            shares.append(np.mean(labels_met == WRONG))
        return bool(np.mean(shares) < ALWAYS_SHARE)

    def _necessary_condition(self) -> FailureCondition | None:
        """Return the plainest condition that all failing inputs meet.

        Not all inputs that meet this condition need to fail. For example, a fault may depend on
        uninitialized memory, or on a property that is not among the features.
        """
        self._partial = False
        for candidate in self._drawn(DRAWN_TO_LEARN):
            if sum(each.failed for each in self._samples) > 2 * _MIN_SUPPORT:
                break
            self._observe(candidate.call)
        self._fit()
        if sum(each.failed for each in self._samples) <= 2 * _MIN_SUPPORT:
            return None
        for _ in range(PROOFS):
            condition = self._best_necessary()
            if condition and condition.gap:
                self._paths = [ConditionPath((condition,), condition.cost, 0.0, 0)]
                self._sharpen()
                condition = self._best_necessary()
            if condition is None or self._is_common([condition]):
                return None
            if not self._fails_elsewhere(condition):
                return self._only_where(condition)
            # The new failing input does not meet this condition. Perhaps all failing inputs meet
            # another one.
            self._fit()
        return None

    def _only_where(self, condition: Condition) -> FailureCondition | None:
        """Return the statement that all failing inputs meet a condition, if it is supported."""
        met = Counter(self._outcomes([condition]))
        inside = met[True, True] + met[True, False]
        outside = met[False, True] + met[False, False]
        if met[False, True] or not supports_only_where(met[True, True], inside, outside):
            return None
        self._fit()
        if not self._covers_wrong_elements(condition):
            return None
        counts = f"in {met[True, True]} of {inside} such inputs, in 0 of {outside} others"
        text = f"found wrong only where {condition.text} ({counts})"
        parts = (condition,)
        meets = partial(self._meets, parts)
        return FailureCondition(text, parts, "wrong", counts, meets, is_necessary=True)

    def _is_common(self, conditions: Sequence[Condition]) -> bool:
        """Return whether most passing cases meet all conditions; False if too few cases pass."""
        if len(self._passing_cases) < MIN_OTHERS:
            return False
        met = sum(self._meets(conditions, each) for each in self._passing_cases)
        return met > _MAX_PASSING_SHARE * len(self._passing_cases)

    def _covers_wrong_elements(self, condition: Condition) -> bool:
        """Return whether all known wrong elements meet a condition.

        If an output is carried from tensor to tensor, its error does not belong to an element.
        Then each failing sample needs only one element that meets the condition.
        """
        meets = meeting_columns([condition], self._wrong)[0]
        carries = self._samples[0].call.operator.carries
        if any(map(carries, self._effects)):
            return {*self._wrong_owners[meets].tolist()} == {*self._wrong_owners.tolist()}
        return bool(meets.all())

    def _best_necessary(self) -> Condition | None:
        """Return the condition that all wrong elements and the fewest passing samples meet."""
        level = self._level(
            np.ones(self._wrong.shape[1], bool), np.ones(self._right.shape[1], bool)
        )
        total = len({*self._wrong_owners.tolist()})
        passing = max(1, len({*self._right_owners.tolist()}))
        # Conditions on outputs are left out. They may describe only where a fault is visible: for
        # example, a fault may be invisible in an output of 0.
        usable = [
            at
            for at in np.flatnonzero(level.reach >= total)
            if not self._features[level.conditions[at].feature].of_output
            and self._covers_wrong_elements(level.conditions[at])
        ]
        if not usable:
            return None
        best = min(
            usable, key=lambda at: (level.contradictions[at] / passing, level.conditions[at].cost)
        )
        return level.conditions[best]


def _text(conditions: Iterable[Condition]) -> str:
    """Describe conditions: first conditions on the node, then on the tensor, then on elements."""
    in_order = sorted(conditions, key=lambda condition: condition.feature)
    return " and ".join(dict.fromkeys(condition.text for condition in in_order))


def _effect_text(samples: Sequence[Sample], *, is_partial: bool) -> tuple[str, str]:
    """Describe the outputs that are wrong in nearly all samples, and count other wrong outputs.

    Args:
        samples: failing samples.
        is_partial: whether some of the elements that meet the condition are right.
    """
    counts = Counter(name for each in samples for name in each.possible)
    always = {name for name, count in counts.items() if count >= ALWAYS_SHARE * len(samples)}
    part = "partly " if is_partial else ""
    if not always:
        return f"{' or '.join(sorted(counts))} is found to be {part}wrong", ""
    besides = "".join(f", {name} too in {counts[name]}" for name in sorted(counts.keys() - always))
    effects = {
        name: EFFECTS[index] for name, index in common_effects(samples).items() if name in always
    }
    if len({*effects.values()}) > 1:
        texts = [f"{name} is found to be {part}{effect}" for name, effect in effects.items()]
        return " and ".join(texts), besides
    effect, names = next(iter(effects.values())), list(effects)
    if len(names) == 1:
        return f"{names[0]} is found to be {part}{effect}", besides
    return f"{' and '.join(names)} are found to be {part}{effect}", besides
