"""Generate inputs, and submit them to a backend to refute or confirm failure conditions.

Most generated inputs are similar to known inputs. Some of them have a value near the threshold of a
condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np

from onnxopt_cli.analysis.explanation.condition_fitting import (
    BEAM_WIDTH,
    ConditionFitting,
    ConditionPath,
    meeting_elements,
)
from onnxopt_cli.analysis.explanation.features import Condition, Feature, roundest
from onnxopt_cli.analysis.explanation.generated_inputs import (
    changed,
    mixed,
    with_near_values,
    with_other_numbers,
    with_types,
)
from onnxopt_cli.analysis.explanation.required_evidence import supports_wherever
from onnxopt_cli.analysis.explanation.samples import Sample, sample
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.operators.call import Call

#: A function that submits a node to a backend and returns the outputs, or None if the backend
#: returns no outputs.
SubmitCall = Callable[[Call[Array]], Sequence[Array] | None]

#: Number of inputs that are submitted in each round to distinguish conditions.
SUBMITTED_TO_LEARN = 12
# Generated inputs are changed copies of the smallest known inputs: of half of them, but of at least
# _MIN_BASES.
_MIN_BASES = 8
#: An attempt to prove a condition submits at most SUBMITTED_TO_PROVE inputs that meet the
#: condition, and at most SUBMITTED_TO_PROVE other inputs.
SUBMITTED_TO_PROVE = 60
#: The largest number of inputs that an attempt to prove a condition draws.
MAX_DRAWN_TO_PROVE = 400
# Number of failing inputs that are varied in directed ways to refute conditions.
_DIRECTED_BASES = 2
# Largest number of variations of each such input that change a scalar or an attribute.
_OTHER_NUMBERS = 16
# Largest number of steps of the bisection that narrows a threshold.
_BISECTIONS = 24
# A threshold lies in a gap between two known values. The gap is narrow if it is at most _NARROW_GAP
# times the larger magnitude.
_NARROW_GAP = 0.01
# Share of generated inputs in which a value lies near a threshold.
_NEAR_THRESHOLD = 0.25
# A fault is assumed to be visible if it changes a result by more than _VISIBLE_ROUNDINGS machine
# epsilons.
_VISIBLE_ROUNDINGS = 100


class ConditionQueries(ConditionFitting):
    """The known inputs of one operator; generated inputs are submitted and added to them.

    Args:
        samples: nodes of one operator, failing ones first.
        submit: submits a generated node; None if the backend is not available.
        mistake: the known mistake whose condition is sought; None for any fault.
    """

    def __init__(
        self, samples: Sequence[Sample], submit: SubmitCall | None, mistake: Implementation | None
    ) -> None:
        super().__init__(samples, mistake)
        self._submit = submit
        self._random = Random(0)  # noqa: S311 - not a secret

    def _observe(self, call: Call[Array]) -> Sample | None:
        """Submit a node, and add the result to the samples."""
        sample = self._submitted(call)
        if sample:
            self._samples.append(sample)
        return sample

    def _submitted(self, call: Call[Array]) -> Sample | None:
        """Submit a node; the result is None if the backend returns no outputs."""
        returned = self._submit(call) if self._submit else None
        if returned is None:
            return None
        right = [derived_output.branch for derived_output in bound(call)]
        return self._sampled(call, right, returned)

    def _sampled(
        self, call: Call[Array], right: Sequence[Branch], returned: Sequence[Array] | None = None
    ) -> Sample:
        mistaken = self._mistake.run(call) if self._mistake else None
        return sample(call, right, returned, mistaken or None)

    def _drawn(
        self, count: int, copied: Sequence[Sample] = (), *, wide: bool = False
    ) -> Iterator[Sample]:
        """Generate inputs that are changed copies of known inputs.

        Args:
            count: the number of attempts; fewer inputs are yielded.
            copied: the known inputs to copy; all if empty.
            wide: whether to make more changes, and to mix each known input with a passing input.
        """
        calls = sorted(
            copied or self._samples, key=lambda each: each.call.size + len(each.call.groups)
        )
        failing = _smaller_half([each.call for each in calls if each.failed])
        passing = _smaller_half([each.call for each in calls if not each.failed]) or failing
        failing = failing or passing
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
            # An input in which the fault would be visible in few elements is less informative, and
            # is rarely yielded.
            if self._random.random() < max(0.1, self._visible_share(each)):
                yield each

    def _visible_share(self, each: Sample) -> float:
        labels = each.call.split([each.labels(self._effects, self._always)])
        shares = [bool(part.any()) for part in labels if part.size]
        return sum(shares) / max(1, len(shares))

    def _near_threshold(self, call: Call[Array]) -> Call[Array] | None:
        """Return a copy of an input with one feature near a threshold of one of the best paths.

        The result is None if the feature cannot be varied in this input.
        """
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
        """Return the indices of inputs that best distinguish paths or test the plainest path."""
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

    def _predictions(self, paths: Sequence[ConditionPath], candidates: Sequence[Sample]) -> Array:
        """For each path and sample, return whether an element meets all conditions of the path."""
        tables = [self._table(each)[0] for each in candidates]
        owners = np.repeat(np.arange(len(tables)), [table.shape[1] for table in tables])
        columns = np.concatenate(tables, axis=1)
        predicted = np.zeros((len(paths), len(candidates)), bool)
        meeting = meeting_elements([path.conditions for path in paths], columns)
        for row, (_, meets) in zip(predicted, meeting, strict=True):
            row[owners[meets]] = True
        return predicted

    def _sharpen(self) -> None:
        """Bisect the thresholds of the plainest path, starting from a failing sample.

        The conditions are fitted again only after the bisection of a threshold, because a fit to
        all samples takes longer than running a node.
        """
        for place in range(len(self._paths[0].conditions)):
            if not self._paths or place >= len(self._paths[0].conditions):
                return
            conditions = self._paths[0].conditions
            part = conditions[place]
            feature = self._features[part.feature]
            for _ in range(_BISECTIONS):
                if not part.gap or not feature.vary or is_narrow(part, feature):
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
        """Return a variation of a failing node in which one feature has the value ``number``.

        The fault must be visible in the variation, and the conditions on other features must hold.

        Args:
            conditions: the conditions of a path, all of which the failing node meets.
            place: the index of the condition whose feature is varied.
            number: the value.
        """
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
        """Return whether the results of new inputs agree with the plainest path's conditions."""
        met = Counter[bool]()
        conditions = self._paths[0].conditions
        # Variations of a single failing input may refute the conditions, but do not support them.
        # Therefore, only a variation that refutes the conditions is added to the samples.
        for candidate in self._directed_variations(conditions):
            sample = self._submitted(candidate.call)
            if sample and self._refutes(self._meets(conditions, sample), sample.failed):
                self._samples.append(sample)
                return False
        for meets, failed in self._outcomes(conditions):
            if self._refutes(meets, failed):
                return False
            met[meets] += 1
        return supports_wherever(met[True], met[False])

    def _refutes(self, meets: bool, failed: bool) -> bool:
        """Return whether an input refutes conditions.

        If failures may have several causes, an input may also fail without meeting the conditions.
        """
        return meets != failed and not (failed and self._partial)

    def _directed_variations(self, conditions: Sequence[Condition]) -> Iterator[Sample]:
        """Yield variations of a few failing nodes that may refute conditions.

        In some variations, one number is 0 or 1. The number is an operand, an attribute or an
        expected element. Many faults have no effect if the number is 0 or 1, which random inputs
        rarely contain. In other variations, a scalar or an attribute has another value. The fault
        must be visible in an element that meets the conditions.

        Further variations may refute a known mistake: the operands have another combination of
        types, zeros become tiny numbers, or infinite elements become large numbers. If the mistake
        has no effect on a variation, the backend must be right.
        """
        failing = [each for each in self._samples if each.failed and self._meets(conditions, each)]
        numbers = [feature for feature in self._features if feature.kind == "number"]
        for base in failing[:: -(-len(failing) // _DIRECTED_BASES)] if failing else ():
            calls = [
                feature.vary(base.call, number)
                for feature, number in product(numbers, (0.0, 1.0))
                if feature.vary
            ]
            varied_calls = [call for _, _, call in with_other_numbers(base.call)]
            calls += self._random.sample(varied_calls, min(_OTHER_NUMBERS, len(varied_calls)))
            if self._mistake:
                calls += with_types(self._random, base.call)
                calls += [call for _, _, call in with_near_values(base.call)]
            for call in calls:
                if call is None:
                    continue
                branches = [Branch(array, _visible_limit(array)) for array in evaluate(call)]
                candidate = self._sampled(call, branches)
                is_met = self._visible_share(candidate) and self._meets(conditions, candidate)
                if is_met or self._mistake:
                    yield candidate

    def _fails_elsewhere(self, condition: Condition) -> bool:
        """Return whether a variation of a failing input fails without meeting a condition.

        In the variations, a scalar or an attribute has another value. The first variation that
        fails is added to the samples.
        """
        failing = [each for each in self._samples if each.failed]
        for base in failing[:: -(-len(failing) // _DIRECTED_BASES)]:
            for _, _, call in with_other_numbers(base.call):
                branches = [Branch(array, _visible_limit(array)) for array in evaluate(call)]
                if self._meets([condition], self._sampled(call, branches)):
                    continue
                sample = self._submitted(call)
                if sample and sample.failed and not self._meets([condition], sample):
                    self._samples.append(sample)
                    return True
        return False

    def _outcomes(self, conditions: Sequence[Condition]) -> Iterator[tuple[bool, bool]]:
        """Submit new inputs; yield whether each input meets the conditions and whether it fails."""
        remaining = Counter({True: SUBMITTED_TO_PROVE, False: SUBMITTED_TO_PROVE})
        for candidate in self._drawn(MAX_DRAWN_TO_PROVE, wide=True):
            meets = self._meets(conditions, candidate)
            if remaining[meets] and (sample := self._observe(candidate.call)):
                remaining[meets] -= 1
                yield self._meets(conditions, sample), sample.failed
            if not +remaining:
                return


def _smaller_half(calls: Sequence[Call[Array]]) -> Sequence[Call[Array]]:
    """Return the first half of calls that are sorted by size, but at least _MIN_BASES of them.

    Small calls are preferred, because they run fastest.
    """
    return calls[: max(_MIN_BASES, len(calls) // 2)]


def is_narrow(part: Condition, feature: Feature) -> bool:
    """Return whether the gap between the two known values around a threshold is narrow."""
    right, wrong = part.gap or (0.0, 0.0)
    if feature.kind == "count":
        return abs(right - wrong) <= 1
    largest = max(abs(right), abs(wrong), float(np.finfo(np.float32).tiny))
    return abs(right - wrong) <= _NARROW_GAP * largest


def _middle(low: float, high: float) -> float:
    """Return the arithmetic mean of two numbers, or the geometric mean if their ratio is large."""
    if low * high > 0 and max(low / high, high / low) > 10:  # noqa: PLR2004 - a magnitude
        return float(np.sign(low) * np.sqrt(abs(low)) * np.sqrt(abs(high)))
    return low + (high - low) / 2


def _visible_limit(output: Array) -> Array:
    step = _VISIBLE_ROUNDINGS * np.finfo(output.dtype).eps * np.abs(output)
    return np.where(np.isfinite(output), step, 0)
