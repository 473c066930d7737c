"""Conditions under which a backend fails: properties of failing inputs that passing inputs lack.

A condition has one or two parts, like a path through a decision tree of depth two: the backend
fails a node if an element of it meets all parts. A condition must hold for a wrong element of every
failing input and for no element of a passing input where the fault would be visible.

Many conditions agree with a suite by chance. The search therefore generates inputs, submits them to
the backend, and fits again: first inputs on which the remaining conditions disagree, then inputs
that may contradict the plainest condition. Only a condition that no input contradicts is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import numpy as np

from onnxopt_cli.analysis.explanation.features import (
    WRONG,
    Condition,
    Feature,
    feature_list,
    features,
    fitted_conditions,
    fixed_conditions,
    roundest,
)
from onnxopt_cli.analysis.explanation.generated_inputs import changed, mixed
from onnxopt_cli.analysis.explanation.samples import (
    ALWAYS_SHARE,
    EFFECTS,
    EXCEPTIONS,
    Sample,
    always_wrong,
    common_effects,
    sample,
)
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.operators.call import Call

#: Submits a node to a backend; returns None if the backend returns no outputs.
SubmitCall = Callable[[Call[Array]], Sequence[Array] | None]

# Number of rounds of inputs that distinguish conditions; inputs drawn and submitted in each round.
_LEARNING_ROUNDS = 6
DRAWN_TO_LEARN, SUBMITTED_TO_LEARN = 60, 12
# Generated inputs derive from the smaller half of the known inputs, or from this number of them.
_MIN_BASES = 8
#: Number of attempts to prove a condition. Each draws at most MAX_DRAWN_TO_PROVE inputs. An attempt
#: submits up to SUBMITTED_TO_PROVE inputs that meet the condition, and as many that do not.
PROOFS = 4
SUBMITTED_TO_PROVE, MAX_DRAWN_TO_PROVE = 60, 400
# Smallest number of inputs that meet a condition in its proof, all of which fail. If a quarter of
# such inputs passed, all would fail with a probability of 0.75 ** 11 = 4 %. The proof
# also needs at least MIN_OTHERS inputs that do not meet the condition.
_MIN_PROVEN = 11
# Smallest numbers of inputs for which a changed formula is wrong: if the backend agrees with the
# formula for all of them, and if it agrees for all but one. If the backend returned other outputs
# for a tenth of such inputs, the probability of such an agreement would be below 5 %.
_MIN_ALIKE = (29, 46)
# A condition for part of the failures must account for more failing inputs than this.
_MIN_SUPPORT = 4
# Steps of the bisection that narrows a threshold.
_BISECTIONS = 24
# A threshold is narrow if its gap is at most this share of the threshold.
_NARROW_GAP = 0.01
# Share of generated inputs in which a value lies near a threshold.
_NEAR_THRESHOLD = 0.25
#: Number of first conditions that are continued with a second condition, and of paths that are
#: kept.
BEAM_WIDTH, MAX_PATHS = 40, 200
#: A path is an alternative to the plainest path if neither its cost nor its share of disagreeing
#: elements exceeds that of the plainest path by more than these margins.
COST_MARGIN, DISAGREEMENT_MARGIN = 0.75, 0.02
# Conditions count as equal if at most this share of inputs meets only one of them.
_DIFFERENT_SHARE = 0.01
# A fault is assumed visible where it changes a result by this many units of rounding.
_VISIBLE_ROUNDINGS = 100
#: If no backend can run generated nodes, a condition requires this many failing cases.
MIN_FAILING_CASES = 4
# A condition must account for this share of the run's failing cases.
_MIN_CASES_SHARE = 0.25
# A condition that holds for more than this share of inputs and of their elements is not
# informative.
_MAX_INPUTS_SHARE = 0.9
#: Inputs that lack only one part: the number that must pass, the largest share that may fail.
MIN_PASSING, MAX_FAILING_SHARE = 5, 0.1
# Of inputs that lack only one part, the share that may fail if failures have several reasons.
_MAX_OTHER_REASONS = 0.4
# "Only where" statements: of the inputs that meet the condition, the smallest share that fails.
_MIN_FAILURE_RATE = 0.5
# "Only where" statements: the largest share of the passing cases that meet the condition.
_MAX_PASSING_SHARE = 0.5
#: "Only where" statements: the smallest number of inputs that do not meet the condition, all of
#: which pass. If such inputs failed at a rate of one in ten, 29 of them would all pass with a
#: probability of 0.9 ** 29 = 5 %.
MIN_OTHERS = 29
#: "Only where" statements: the smallest number of inputs that meet the condition. If failures did
#: not depend on the condition, all failing inputs would meet it with a probability below 0.1 %.
MIN_MEETING = 10


@dataclass(frozen=True, slots=True)
class FailureCondition:
    """When a backend fails.

    Attributes:
        text: the statement, with the evidence for it.
        conditions: the parts; empty if two conditions cannot be distinguished.
        effect: the outputs that are wrong, and the content of their wrong elements.
        evidence: the numbers of inputs that meet all parts and fail, and of those that pass; empty
            without parts.
        meets: returns whether an element of a sample meets all parts.
    """

    text: str
    conditions: tuple[Condition, ...]
    effect: str
    evidence: str
    meets: Callable[[Sample], bool]

    @property
    def where(self) -> str:
        """The parts in words."""
        return _text(self.conditions)

    @property
    def names_content(self) -> bool:
        """Whether the statement gives the content of the wrong elements, such as 0."""
        return bool(self.conditions) and "wrong" not in self.effect


def failure_condition(
    samples: Sequence[Sample], submit: SubmitCall | None, mistake: Implementation | None = None
) -> FailureCondition | None:
    """Return the condition under which a backend fails; None if none is found.

    Failures may have several reasons. If the backend can be queried, a condition that accounts for
    part of the failing samples is returned if none accounts for all.

    Args:
        samples: nodes of one operator, failing ones first.
        submit: submits a generated node; None if the backend is not available.
        mistake: the known mistake whose condition is sought; None for any fault.
    """
    failing = sum(each.failed for each in samples)
    if not failing or (not submit and (failing < MIN_FAILING_CASES or failing == len(samples))):
        return None
    return _Search(samples, submit, mistake).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """One or two conditions that agree with the samples.

    Attributes:
        conditions: the parts.
        cost: preference; the smallest is reported.
        disagreement: share of the elements of failing samples that disagree.
        reach: number of failing samples that it accounts for.
    """

    conditions: tuple[Condition, ...]
    cost: float
    disagreement: float
    reach: int


class _Search:
    def __init__(
        self, samples: Sequence[Sample], submit: SubmitCall | None, mistake: Implementation | None
    ) -> None:
        self._samples, self._submit, self._mistake = list(samples), submit, mistake
        self._given = sum(each.failed for each in samples)
        self._passing_cases = [each for each in samples if not each.failed]
        self._random = Random(0)  # noqa: S311 - not a secret
        self._features = feature_list(samples[0].call, samples[0].expected)
        self._fixed = [
            condition
            for index, feature in enumerate(self._features)
            for condition in fixed_conditions(index, feature)
        ]
        # The features that conditions compare with fitted thresholds.
        self._numeric = [
            index for index, feature in enumerate(self._features) if feature.kind != "flag"
        ]
        self._effects: dict[str, int] = {}
        self._always: frozenset[str] = frozenset()
        self._tables: dict[Sample, tuple[Array, Array]] = {}
        self._partial = False
        self._paths: list[_Path] = []
        self._rounds = _LEARNING_ROUNDS

    def run(self) -> FailureCondition | None:
        """Search for a condition of all failures, and if none is found, of part of them."""
        for_all = self._attempt()
        if (for_all and for_all.conditions) or self._submit is None:
            return for_all
        if self._mistake:
            # "Only where" would be false if the mistake occurs under other conditions, too.
            return None
        self._partial = True
        for_part = self._attempt()
        if for_part and for_part.conditions:
            return for_part
        return for_all or self._necessary_condition()

    def _attempt(self) -> FailureCondition | None:
        """Fit conditions, and refute them by generated inputs, until one survives a proof."""
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

    # Fitting ------------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Find the paths that agree with all samples, the plainest first."""
        self._update_effects()
        failing = [each for each in self._samples if each.failed]
        passing = [each for each in self._samples if not each.failed]
        wrong, self._wrong_owners = self._joined(failing, lambda labels: labels == WRONG)
        right, self._right_owners = self._joined(passing, lambda labels: labels > 0)
        self._paths = []
        if not wrong.size or not failing:
            return
        self._wrong, self._right = wrong, right
        self._right_orders = {index: np.argsort(right[index]) for index in self._numeric}
        self._fixed_wrong = _holds(self._fixed, wrong)
        self._fixed_right = _holds(self._fixed, right)
        first = self._level(np.ones(wrong.shape[1], bool), np.ones(right.shape[1], bool))
        with_reach: list[tuple[tuple[Condition, ...], int]] = [
            ((first.conditions[at],), int(first.reach[at]))
            for at in first.consistent(self._least())
        ]
        # The condition of a mistake has only one part, because the search tries several mistakes.
        # Other conditions with two parts are found even if a single part agrees with all samples.
        # Generated inputs must then refute either the conditions with two parts or the single
        # condition.
        parents = [] if self._mistake else first.promising(self._least(), partial=self._partial)
        for at in parents:
            second = self._level(first.wrong[at], first.right[at], first.conditions[at])
            with_reach += [
                ((first.conditions[at], second.conditions[index]), int(second.reach[index]))
                for index in second.consistent(self._least())
            ]
        self._paths = self._ranked(with_reach, failing)

    def _least(self) -> int:
        """Return how many failing samples a path must account for."""
        if not self._partial:
            return len({*self._wrong_owners.tolist()})
        return max(1, int(np.ceil(_MIN_CASES_SHARE * self._given)))

    def _level(self, wrong: Array, right: Array, parent: Condition | None = None) -> _Level:
        """Return all conditions on the elements of one branch of the tree.

        Args:
            wrong: which wrong elements the branch has.
            right: which right elements the branch has.
            parent: the condition of the branch; None at the root.
        """
        wrong_columns, right_columns = np.flatnonzero(wrong), np.flatnonzero(right)
        own_wrong = {index: self._wrong[index, wrong_columns] for index in self._numeric}
        own_right = {index: self._right[index, right_columns] for index in self._numeric}
        fitted = [
            condition
            for index in self._numeric
            for condition in fitted_conditions(
                index, self._features[index], own_wrong[index], self._sorted_right(index, right)
            )
            if not parent or condition.text != parent.text
        ]
        fixed = [
            index
            for index, condition in enumerate(self._fixed)
            if not parent or condition.text != parent.text
        ]
        conditions = [*(self._fixed[index] for index in fixed), *fitted]
        fixed_rows = np.array(fixed, int)
        holds_wrong = np.concatenate(
            [
                self._fixed_wrong[np.ix_(fixed_rows, wrong_columns)],
                _holds(fitted, own_wrong, wrong_columns.size),
            ]
        )
        holds_right = np.concatenate(
            [
                self._fixed_right[np.ix_(fixed_rows, right_columns)],
                _holds(fitted, own_right, right_columns.size),
            ]
        )
        owners = self._wrong_owners[wrong]
        met = _met(holds_wrong, owners)
        columns_given = np.unique(owners) < self._given if self._partial else slice(None)
        return _Level(
            conditions,
            met[:, columns_given].sum(axis=1),
            _met(holds_right, self._right_owners[right]).sum(axis=1),
            holds_wrong,
            holds_right,
        )

    def _sorted_right(self, index: int, right: Array) -> Array:
        """Return the values of a feature in some right elements in ascending order."""
        order = self._right_orders[index]
        return np.asarray(self._right[index, order[right[order]]])

    def _ranked(
        self, with_reach: Sequence[tuple[tuple[Condition, ...], int]], failing: Sequence[Sample]
    ) -> list[_Path]:
        """Return the plainest paths. Elements that disagree add to the cost of a path."""
        plain = sorted(with_reach, key=lambda pair: _cost(pair[0]))[:MAX_PATHS]
        if self._partial and plain:
            most = max(reach for _, reach in plain)
            plain = [pair for pair in plain if pair[1] == most]
        tables = [self._table(each) for each in failing]
        columns = np.concatenate([table for table, _ in tables], axis=1)
        labels = np.concatenate([own for _, own in tables])
        owners = np.repeat(np.arange(len(tables)), [own.size for _, own in tables])
        wrong = labels == WRONG
        totals = np.bincount(owners, wrong, len(tables))
        paths: list[_Path] = []
        for conditions, meets in _meeting_elements([pair[0] for pair in plain], columns):
            met = np.bincount(owners, meets & wrong, len(tables))
            more = np.bincount(owners, meets & ~wrong, len(tables))
            shares = 1 - met / np.maximum(1, totals) + more / np.maximum(1, met + more)
            disagreement = float(np.mean(shares))
            reach = int(np.sum(met > 0))
            cost = _cost(conditions) + disagreement
            paths.append(_Path(conditions, cost, disagreement, reach))
        paths.sort(key=lambda path: path.cost)
        # Paths whose conditions differ only in their thresholds count as one.
        unique = {frozenset(part.key for part in path.conditions): path for path in paths[::-1]}
        return sorted(unique.values(), key=lambda path: path.cost)

    def _update_effects(self) -> None:
        effects, always = common_effects(self._samples), always_wrong(self._samples)
        if (effects, always) != (self._effects, self._always):
            self._effects, self._always = effects, always
            self._tables.clear()

    def _table(self, each: Sample) -> tuple[Array, Array]:
        """Return features and labels of the elements of a sample."""
        if each not in self._tables:
            self._tables[each] = features(
                each.call, each.expected, each.labels(self._effects, self._always)
            )
        return self._tables[each]

    def _joined(
        self, samples: Sequence[Sample], chosen: Callable[[Array], Array]
    ) -> tuple[Array, Array]:
        """Return the features of selected elements, and the number of the sample of each."""
        tables = [np.empty((len(self._features), 0))]
        owners = [np.empty(0, int)]
        for number, each in enumerate(samples):
            table, labels = self._table(each)
            tables.append(table[:, chosen(labels)])
            owners.append(np.full(tables[-1].shape[1], number))
        return np.concatenate(tables, axis=1), np.concatenate(owners)

    def _meets(self, conditions: Sequence[Condition], each: Sample) -> bool:
        table, _ = self._table(each)
        return bool(_holds(conditions, table).all(axis=0).any())

    # Inputs -------------------------------------------------------------------------------------

    def _observe(self, call: Call[Array]) -> Sample | None:
        """Submit a node, and add the result to the samples."""
        returned = self._submit(call) if self._submit else None
        if returned is None:
            return None
        right = [derived_output.branch for derived_output in bound(call)]
        self._samples.append(self._sampled(call, right, returned))
        return self._samples[-1]

    def _sampled(
        self, call: Call[Array], right: Sequence[Branch], returned: Sequence[Array] | None = None
    ) -> Sample:
        mistaken = self._mistake.run(call) if self._mistake else None
        return sample(call, right, returned, mistaken or None)

    def _drawn(self, count: int, *, wide: bool = False) -> Iterator[Sample]:
        """Generate inputs near to known inputs, or mixed from failing and passing inputs."""
        calls = sorted(self._samples, key=lambda each: each.call.size + len(each.call.groups))
        failing = _smaller_half([each.call for each in calls if each.failed])
        passing = _smaller_half([each.call for each in calls if not each.failed]) or failing
        for bases in (failing, failing, passing) * (count // 3):
            base = self._random.choice(bases)
            if wide:
                base = mixed(self._random, base, self._random.choice(passing))
            call = changed(self._random, base, (2, 3, 4, 5) if wide else (1, 1, 1, 2, 2, 3))
            if call and self._paths and self._random.random() < _NEAR_THRESHOLD:
                call = self._near_threshold(call)
            if call is None:
                continue
            branches = [Branch(array, _visible_limit(array)) for array in evaluate(call)]
            each = self._sampled(call, branches)
            # An input without elements that could show the fault is less informative.
            if self._random.random() < max(0.1, self._visible_share(each)):
                yield each

    def _visible_share(self, each: Sample) -> float:
        labels = each.call.split([each.labels(self._effects, self._always)])
        shares = [bool(part.any()) for part in labels if part.size]
        return sum(shares) / max(1, len(shares))

    def _near_threshold(self, call: Call[Array]) -> Call[Array] | None:
        """Set a feature to a value near a threshold of one of the plainest paths."""
        parts = [
            part
            for path in self._paths[:BEAM_WIDTH]
            for part in path.conditions
            if part.gap and self._features[part.feature].vary
        ]
        if not parts:
            return call
        part = self._random.choice(parts)
        low, high = sorted(part.gap or (0.0, 0.0))
        middle = low + self._random.random() * (high - low)
        number = self._random.choice((low, high, middle, roundest(low, high)))
        vary = self._features[part.feature].vary
        return vary(call, number) if vary and np.isfinite(number) else call

    def _informative(self, candidates: Sequence[Sample]) -> list[int]:
        """Return the inputs that distinguish most conditions, then some that test the plainest."""
        if not candidates:
            return []
        predicted = self._predictions(self._paths, candidates)
        weights = np.exp2([2 * (self._paths[0].cost - path.cost) for path in self._paths])
        classes = np.zeros(len(predicted), int)
        chosen: list[int] = []
        for _ in range(SUBMITTED_TO_LEARN // 2):
            scores = [
                np.sum(np.bincount(2 * classes + column, weights) ** 2) for column in predicted.T
            ]
            best = int(np.argmin(np.array(scores)))
            if best in chosen:
                break
            chosen.append(best)
            classes = np.unique(2 * classes + predicted[:, best], return_inverse=True)[1]
        for meets in (True, False) * SUBMITTED_TO_LEARN:
            indices = np.setdiff1d(np.flatnonzero(predicted[0] == meets), chosen)
            chosen += indices[: len(chosen) < SUBMITTED_TO_LEARN].tolist()
        return chosen

    def _predictions(self, paths: Sequence[_Path], candidates: Sequence[Sample]) -> Array:
        """Return for each path and each sample whether an element of the sample meets the path."""
        tables = [self._table(each)[0] for each in candidates]
        owners = np.repeat(np.arange(len(tables)), [table.shape[1] for table in tables])
        columns = np.concatenate(tables, axis=1)
        predicted = np.zeros((len(paths), len(candidates)), bool)
        meeting = _meeting_elements([path.conditions for path in paths], columns)
        for row, (_, meets) in zip(predicted, meeting, strict=True):
            row[owners[meets]] = True
        return predicted

    def _sharpen(self) -> None:
        """Bisect the thresholds of the plainest path, starting from a failing sample.

        Conditions are fitted to all samples only after a bisection, since a fit takes longer than
        the run of a node.
        """
        for place in range(len(self._paths[0].conditions)):
            if not self._paths or place >= len(self._paths[0].conditions):
                return
            conditions = self._paths[0].conditions
            part = conditions[place]
            feature = self._features[part.feature]
            for _ in range(_BISECTIONS):
                if not part.gap or not feature.vary or _is_narrow(part, feature):
                    break
                number = _middle(*part.gap)
                if feature.kind == "count":
                    number = np.floor(number)
                call = self._between(conditions, place, number)
                observed = call and self._observe(call)
                if not observed:
                    break
                right, wrong = part.gap
                part = replace(part, gap=(right, number) if observed.failed else (number, wrong))
            self._fit()

    def _between(
        self, conditions: Sequence[Condition], place: int, number: float
    ) -> Call[Array] | None:
        """Return a failing node in which the feature of one condition has the given value."""
        feature = self._features[conditions[place].feature]
        other_parts = [*conditions[:place], *conditions[place + 1 :]]
        for each in self._samples:
            if each.failed and self._meets(conditions, each) and feature.vary:
                call = feature.vary(each.call, number)
                if call is None:
                    continue
                branches = [Branch(array, _visible_limit(array)) for array in evaluate(call)]
                candidate = self._sampled(call, branches)
                if self._visible_share(candidate) and (
                    not other_parts or self._meets(other_parts, candidate)
                ):
                    return call
        return None

    def _survives_proof(self) -> bool:
        """Return whether new inputs agree with the conditions of the plainest path."""
        met = Counter[bool]()
        for meets, failed in self._outcomes(self._paths[0].conditions):
            # If failures have several reasons, an input may fail for another reason.
            if meets != failed and not (failed and self._partial):
                return False
            met[meets] += 1
        return supports_wherever(met[True], met[False])

    def _outcomes(self, conditions: Sequence[Condition]) -> Iterator[tuple[bool, bool]]:
        """Submit new inputs; yield whether each meets the conditions, and whether it fails."""
        remaining = Counter({True: SUBMITTED_TO_PROVE, False: SUBMITTED_TO_PROVE})
        for candidate in self._drawn(MAX_DRAWN_TO_PROVE, wide=True):
            meets = self._meets(conditions, candidate)
            if remaining[meets] and (seen := self._observe(candidate.call)):
                remaining[meets] -= 1
                yield self._meets(conditions, seen), seen.failed
            if not +remaining:
                return

    # Statements ---------------------------------------------------------------------------------

    def _statement(self) -> FailureCondition | None:
        """Return the plainest path as a statement, if it is informative and not contradicted."""
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
            # If a third condition is possible, or if no new inputs were submitted, the cause may be
            # neither of the two.
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
        effect, besides = _effect_text(met, partly=self._wrong_share(best.conditions, met))
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
        """Return whether nearly all elements of nearly all inputs meet the conditions."""
        if np.mean(predicted) <= _MAX_INPUTS_SHARE:
            return False
        shares = [
            np.mean(_holds(conditions, self._table(candidate)[0]).all(axis=0))
            for candidate in candidates
        ]
        return bool(np.nanmean(shares) > _MAX_INPUTS_SHARE)

    def _reaches_enough(self, failing: Sequence[Sample], met: Sequence[Sample]) -> bool:
        """Return whether a condition accounts for enough failures, if it need not explain all."""
        if not self._partial:
            return True
        reached = {*met}
        cases_share = sum(each in reached for each in failing[: self._given]) / max(1, self._given)
        failing_outside = (len(failing) - len(met)) / max(1, len(self._samples) - len(met))
        return (
            len(met) > _MIN_SUPPORT
            and cases_share >= _MIN_CASES_SHARE
            and failing_outside <= _MAX_OTHER_REASONS
        )

    def _needs_both(self, conditions: Sequence[Condition]) -> bool:
        """Return whether both conditions are necessary: inputs that meet only one of them pass.

        If too few known inputs lack one condition, further inputs are generated and submitted.
        """
        if len(conditions) == 1:
            return True
        outcomes = [Counter[bool](), Counter[bool]()]
        for each in self._samples:
            for place in self._lacking(conditions, each):
                outcomes[place][each.failed] += 1
        for candidate in self._drawn(MAX_DRAWN_TO_PROVE) if self._submit else ():
            places = {place for place in (0, 1) if outcomes[place][False] < MIN_PASSING}
            if not places:
                break
            if places & self._lacking(conditions, candidate) and (
                sample := self._observe(candidate.call)
            ):
                for place in self._lacking(conditions, sample):
                    outcomes[place][sample.failed] += 1
        share = _MAX_OTHER_REASONS if self._partial else MAX_FAILING_SHARE
        return all(
            counts[False] >= MIN_PASSING and counts[True] <= share * counts.total()
            for counts in outcomes
        )

    def _lacking(self, conditions: Sequence[Condition], each: Sample) -> set[int]:
        """Return the positions, 0 or 1, of conditions that elements lack if they meet the other."""
        first, second = _holds(conditions, self._table(each)[0])
        if np.any(first & second):
            return set()
        return {place for place, elements in enumerate((second, first)) if elements.any()}

    def _gaps(self, path: _Path) -> str:
        """Return in words the intervals of the thresholds that are not known exactly."""
        texts = []
        for part in path.conditions:
            feature = self._features[part.feature]
            if part.gap and not _is_narrow(part, feature):
                low, high = sorted(part.gap)
                texts.append(f"the limit is between {low:g} and {high:g}")
        return f" ({' and '.join(texts)})" if texts else ""

    def _exceptions(self, conditions: Sequence[Condition]) -> str:
        """Return in words why some right elements meet the conditions."""
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
            meets = _holds(conditions, table).all(axis=0)
            for bit, reason in enumerate(reasons, start=1):
                applicable[reason] |= bool(np.any(codes[meets] >> bit & 1))
        words = dict.fromkeys(text for (text, *_), holds in applicable.items() if holds)
        subject = names[0] if len(names) == 1 else "each"
        predicted = " or ".join(words).replace("{}", subject)
        return f", unless {predicted}" if predicted else ""

    def _wrong_share(self, conditions: Sequence[Condition], met: Sequence[Sample]) -> float:
        """Return the median share of wrong elements among those that meet the conditions."""
        shares = []
        for each in met:
            table, labels = self._table(each)
            shares.append(np.mean(labels[_holds(conditions, table).all(axis=0)] == WRONG))
        return float(np.median(shares))

    def _shows_elsewhere(self, conditions: Sequence[Condition], met: Iterable[Sample]) -> bool:
        """Return whether elements that meet the conditions of a mistake are right despite it."""
        if self._mistake is None:
            return False
        shares = []
        for each in met:
            table, labels = self._table(each)
            labels_met = labels[_holds(conditions, table).all(axis=0) & (labels > 0)]
            shares.append(np.mean(labels_met == WRONG))
        return bool(np.mean(shares) < ALWAYS_SHARE)

    def _necessary_condition(self) -> FailureCondition | None:
        """Return the plainest condition that all failing inputs meet.

        A fault that depends on uninitialized memory, or on something that no feature describes,
        fails some of the inputs that meet a condition.
        """
        self._partial = False
        for candidate in self._drawn(DRAWN_TO_LEARN):
            if sum(each.failed for each in self._samples) > 2 * _MIN_SUPPORT:
                break
            self._observe(candidate.call)
        self._fit()
        if sum(each.failed for each in self._samples) <= 2 * _MIN_SUPPORT:
            return None
        condition = self._best_necessary()
        if condition and condition.gap:
            self._paths = [_Path((condition,), condition.cost, 0.0, 0)]
            self._sharpen()
            condition = self._best_necessary()
        if condition is None or self._is_common([condition]):
            return None
        met = Counter(self._outcomes([condition]))
        inside = met[True, True] + met[True, False]
        outside = met[False, True] + met[False, False]
        if met[False, True] or not supports_only_where(met[True, True], inside, outside):
            return None
        counts = f"in {met[True, True]} of {inside} such inputs, in 0 of {outside} others"
        text = f"found wrong only where {condition.text} ({counts})"
        parts = (condition,)
        return FailureCondition(text, parts, "wrong", counts, partial(self._meets, parts))

    def _is_common(self, conditions: Sequence[Condition]) -> bool:
        """Return whether most passing cases of the run, if there are enough, meet conditions."""
        if len(self._passing_cases) < MIN_OTHERS:
            return False
        met = sum(self._meets(conditions, each) for each in self._passing_cases)
        return met > _MAX_PASSING_SHARE * len(self._passing_cases)

    def _best_necessary(self) -> Condition | None:
        """Return the condition that all failing samples and the fewest passing samples meet."""
        level = self._level(
            np.ones(self._wrong.shape[1], bool), np.ones(self._right.shape[1], bool)
        )
        total = len({*self._wrong_owners.tolist()})
        passing = max(1, len({*self._right_owners.tolist()}))
        # Conditions on outputs are left out: no fault is visible in an output of 0, for instance.
        usable = [
            at
            for at in np.flatnonzero(level.reach >= total)
            if not self._features[level.conditions[at].feature].of_output
        ]
        if not usable:
            return None
        best = min(
            usable, key=lambda at: (level.contradictions[at] / passing, level.conditions[at].cost)
        )
        return level.conditions[best]


def supports_wherever(meeting: int, others: int) -> bool:
    """Return whether new inputs suffice to state that a backend fails wherever a condition holds.

    Args:
        meeting: number of inputs that meet the condition, all of which fail.
        others: number of inputs that do not meet it, none of which fails for this reason.
    """
    return meeting >= _MIN_PROVEN and others >= MIN_OTHERS


def supports_change(alike: int, unlike: int) -> bool:
    """Return whether enough new inputs support the claim that a backend computes a changed formula.

    Args:
        alike: number of inputs for which the backend returns the outputs of the changed formula,
            which are wrong.
        unlike: number of other inputs for which these outputs are wrong.
    """
    return unlike < len(_MIN_ALIKE) and alike + unlike >= _MIN_ALIKE[unlike]


def supports_only_where(failing: int, meeting: int, others: int) -> bool:
    """Return whether enough inputs support the claim that a backend fails only under a condition.

    Args:
        failing: number of failing inputs, which all meet the condition.
        meeting: number of inputs that meet the condition.
        others: number of inputs that do not meet it.
    """
    return (
        meeting >= MIN_MEETING and others >= MIN_OTHERS and failing >= _MIN_FAILURE_RATE * meeting
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Conditions on the elements of one branch.

    Attributes:
        conditions: the conditions.
        reach: for each, the number of failing samples with a wrong element that meets it.
        contradictions: for each, the number of passing samples with a right element that meets it.
        wrong: a row for each condition: which wrong elements meet it.
        right: a row for each condition: which right elements meet it.
    """

    conditions: list[Condition]
    reach: Array
    contradictions: Array
    wrong: Array
    right: Array

    def consistent(self, least: int) -> list[int]:
        """Return the conditions that nothing contradicts and that reach enough samples."""
        return np.flatnonzero((self.reach >= least) & (self.contradictions == 0)).tolist()

    def promising(self, least: int, *, partial: bool) -> list[int]:
        """Return the conditions to which a second condition is added, the most selective first."""
        usable = np.flatnonzero((self.reach >= least) & (self.contradictions > 0))
        costs = np.array([condition.cost for condition in self.conditions])
        score = self.contradictions / max(1, self.contradictions.max(initial=0))
        if partial:
            score = score - self.reach / max(1, self.reach.max(initial=0))
        return usable[np.argsort((score + 0.02 * costs)[usable], kind="stable")][
            :BEAM_WIDTH
        ].tolist()


def _smaller_half(calls: Sequence[Call[Array]]) -> Sequence[Call[Array]]:
    """Return the first half of calls sorted by size, which run fastest; at least _MIN_BASES."""
    return calls[: max(_MIN_BASES, len(calls) // 2)]


def _cost(conditions: Sequence[Condition]) -> float:
    return sum(condition.cost for condition in conditions) + 0.5 * (len(conditions) - 1)


def _holds(
    conditions: Sequence[Condition], table: Array | Mapping[int, Array], columns: int | None = None
) -> Array:
    """Return a row for each condition: which columns of a table of features meet it.

    Args:
        conditions: the conditions.
        table: the rows of the table by the indices of the features.
        columns: the number of columns, if the table is not an array.
    """
    width = table.shape[1] if isinstance(table, np.ndarray) else columns or 0
    holds = np.empty((len(conditions), width), bool)
    with np.errstate(all="ignore"):
        for row, condition in zip(holds, conditions, strict=True):
            row[:] = condition.test(table[condition.feature])
    return holds


def _meeting_elements(
    paths: Sequence[tuple[Condition, ...]], columns: Array
) -> Iterator[tuple[tuple[Condition, ...], Array]]:
    """Yield the conditions of each path, and which columns of a table of features meet them all.

    A condition that several paths share is evaluated once.
    """
    parts = list({id(part): part for conditions in paths for part in conditions}.values())
    holds = dict(zip(map(id, parts), _holds(parts, columns), strict=True))
    for conditions in paths:
        yield conditions, np.logical_and.reduce([holds[id(part)] for part in conditions])


def _met(holds: Array, owners: Array) -> Array:
    """Return for each row and each owner whether the row is true for one of the owner's columns."""
    if not owners.size:
        return np.zeros((len(holds), 0), bool)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.asarray(np.logical_or.reduceat(holds, starts, axis=1))


def _is_narrow(part: Condition, feature: Feature) -> bool:
    """Return whether the values next to a threshold are known closely enough."""
    right, wrong = part.gap or (0.0, 0.0)
    if feature.kind == "count":
        return abs(right - wrong) <= 1
    largest = max(abs(right), abs(wrong), float(np.finfo(np.float32).tiny))
    return abs(right - wrong) <= _NARROW_GAP * largest


def _middle(low: float, high: float) -> float:
    """Return the arithmetic middle of two numbers, or the geometric one if their ratio is large."""
    if low * high > 0 and max(low / high, high / low) > 10:  # noqa: PLR2004 - a magnitude
        return float(np.sign(low) * np.sqrt(abs(low)) * np.sqrt(abs(high)))
    return low + (high - low) / 2


def _visible_limit(output: Array) -> Array:
    step = _VISIBLE_ROUNDINGS * np.finfo(output.dtype).eps * np.abs(output)
    return np.where(np.isfinite(output), step, 0)


def _text(conditions: Iterable[Condition]) -> str:
    """Return conditions in words: those on the node first, then on the tensor, then on elements."""
    in_order = sorted(conditions, key=lambda condition: condition.feature)
    return " and ".join(dict.fromkeys(condition.text for condition in in_order))


def _effect_text(samples: Sequence[Sample], *, partly: float) -> tuple[str, str]:
    """Return the outputs that are wrong in nearly all samples, and the counts of other outputs."""
    counts = Counter(name for each in samples for name in each.possible)
    always = {name for name, count in counts.items() if count >= ALWAYS_SHARE * len(samples)}
    part = "partly " if partly < ALWAYS_SHARE else ""
    if not always:
        return f"{' or '.join(sorted(counts))} is {part}wrong", ""
    besides = "".join(f", {name} too in {counts[name]}" for name in sorted(counts.keys() - always))
    effects = {
        name: EFFECTS[index] for name, index in common_effects(samples).items() if name in always
    }
    if len({*effects.values()}) > 1:
        texts = [f"{name} is {part}{effect}" for name, effect in effects.items()]
        return " and ".join(texts), besides
    effect, names = next(iter(effects.values())), list(effects)
    if len(names) == 1:
        return f"{names[0]} is {part}{effect}", besides
    return f"{' and '.join(names)} are {part}{effect}", besides
