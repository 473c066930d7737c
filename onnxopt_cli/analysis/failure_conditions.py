"""What failing cases have in common that passing ones do not: one sentence, or none.

A sentence has at most two feature conditions, and says that a case fails where an element has them.
It must hold in every failing case, at an element that is wrong, and in no case that passed. Many
sentences do that by chance. So the backend is asked further inputs that tell those apart which are
left, and others on which the best one may turn out wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from random import Random

import numpy as np

from onnxopt_cli.analysis.features import (
    WRONG,
    FeatureCondition,
    Range,
    feature_conditions,
    features,
    number_names,
    roundest,
)
from onnxopt_cli.analysis.further_inputs import further, mixed
from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.bound.error_bound import bound
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.operators.call import Call

#: Asks a backend a node; None if it returns nothing.
Ask = Callable[[Call[Array]], Sequence[Array] | None]

#: So many further inputs are asked, in rounds.
_QUESTIONS = 50
_ROUNDS = 5
_POOL_SAMPLES, _MORE_SAMPLES = 220, 130
#: Then so often a sentence is put to the proof: of inputs drawn, so many that it says fail, and as
#: many others, are asked.
_PROOFS = 3
_DRAWN_SAMPLES, _PUT_SAMPLES = 400, {True: 60, False: 60}
#: What is seen in a smaller share is not said without its count.
_NEARLY_ALL_SHARE = 0.95
#: A fault is expected to show where it changes a result by more than so many units of rounding.
_VISIBLE = 100
#: So large a share of further inputs has a number near to where a condition on it turns.
_BESIDE = 0.25
#: So many sentences are weighed, the plainest first.
_SENTENCES = 400
#: A sentence that is worse by so much is not an alternative.
_PLAINER_COST = 0.75
#: Nor is one with which so much more of the elements disagree.
_OFF = 0.02
#: Sentences that differ in a smaller share of inputs say the same.
_SAME_SHARE = 0.01
#: Of fewer failing cases anything can be said, unless the backend can be asked.
_FEW_SAMPLES = 4
#: A sentence that holds in a smaller share of the failing cases may be a part of another truth.
_ENOUGH_SHARE = 0.25
#: What is said of a larger share of inputs says nothing.
_ALWAYS_SHARE = 0.9
#: Each of two conditions is needed if at least so many inputs pass that lack it alone, and only a
#: small share of those fails.
_NEEDED, _IDLE_SHARE = 5, 0.1
#: Where a smaller share of inputs fails, or elsewhere a larger one of the rest, nothing is said.
_OFTEN_SHARE = 0.6


#: What may come in place of a right element, in words, by what is right and what it replaces.
_INSTEAD: dict[str, Callable[[Array, Array], Array]] = {
    "0": lambda new, _: np.zeros_like(new),
    "what it was": lambda _, old: old,
    "NaN": lambda new, _: np.full_like(new, np.nan),
    "negated": lambda new, _: -new,
}
#: Effects of a fault: those; some of which no more is known than where they show; and a wrong
#: structure. What is known of an element is a number with a bit for each.
_EFFECTS = (*_INSTEAD, "wrong", "wrong", "wrong", "wrong", "wrong", "of another type or shape")
#: Those of which no more is known show, in elements with one right value, where it is NaN or
#: infinite; where it is finite and neither 0 nor what it replaces; where it is finite and not 0;
#: where it is finite; and everywhere.
_NOT_FINITE, _CHANGED, _NOT_ZERO, _FINITE, _EVERYWHERE, _STRUCTURE = range(
    len(_INSTEAD), len(_EFFECTS)
)
_IS_WRONG = -1
#: Why an effect may not show in an element, by effect: in words, with the bit that such an element
#: has, and the one that it lacks.
_ZERO = ("{} should be 0", _FINITE, _NOT_ZERO)
_KEPT_WORDS = ("{} should be what it was", _NOT_ZERO, _CHANGED)
_SPECIAL = ("{} should be NaN or infinite", _EVERYWHERE, _FINITE)
_ORDINARY = ("{} should be finite", _EVERYWHERE, _NOT_FINITE)
_SEVERAL = ("several values are right", _STRUCTURE, _EVERYWHERE)
_UNLESS: dict[int, tuple[tuple[str, int, int], ...]] = {
    0: (("that is right", _FINITE, 0), _SPECIAL, _SEVERAL),
    **{at: (("that is right", _EVERYWHERE, at), _SEVERAL) for at in range(1, len(_INSTEAD))},
    _NOT_FINITE: (_ORDINARY, _SEVERAL),
    _CHANGED: (_ZERO, _KEPT_WORDS, _SPECIAL, _SEVERAL),
    _NOT_ZERO: (_ZERO, _SPECIAL, _SEVERAL),
    _FINITE: (_SPECIAL, _SEVERAL),
    _EVERYWHERE: (_SEVERAL,),
    _STRUCTURE: (),
}
#: Several values are right where the limit is a larger share of the expected one.
_WIDE_LIMIT = 0.001
#: Marks an element that is neither wrong nor left out.
_ANY = 1 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A node, and what a backend returned for it.

    Attributes:
        call: the node.
        marked: by output, for the elements of all tensors in a row: _IS_WRONG for those that are;
            for others the effects that would show there, a bit each.
        effects: by output that has wrong elements, those that all of them may have, a bit each.
    """

    call: Call[Array]
    marked: Mapping[str, Array]
    effects: Mapping[str, int]

    @property
    def failed(self) -> bool:
        """Whether the backend failed it."""
        return bool(self.effects)


def sample(
    call: Call[Array], right: Sequence[Branch], returned: Sequence[Array] | None = None
) -> Sample:
    """Return what a backend's outputs say of a node; None for what is right."""
    marked: dict[str, Array] = {}
    effects: dict[str, int] = {}
    if returned is not None and len(returned) != len(right):
        returned = [np.array(None)] * len(right)
    for name, own, old in _outputs(call):
        judged = _joined(right[own])
        new = judged.expected
        instead = np.stack([it(new, old) for it in _INSTEAD.values()])
        shown = judged.wrong(instead)
        # NaN and infinity times zero are not zero.
        finite = np.isfinite(new)
        shown[0] &= finite
        # Where either of two values is right, the other one is no fault.
        sure = _single(judged)
        every = np.ones_like(finite)
        kinds = (~finite, shown[0] & shown[1], shown[0], finite, every)
        where = [*(it & sure for it in kinds), every]
        marks = _bits([*shown, *where])
        if returned is not None:
            wanted = [it.expected for it in right[own]]
            pairs = list(zip(wanted, returned[own], strict=True))
            fit = [(it.dtype, it.shape) == (by.dtype, by.shape) for it, by in pairs]
            actual = _row(by if fits else it for fits, (it, by) in zip(fit, pairs, strict=True))
            unlike = Branch(actual, np.zeros(actual.shape)).wrong(instead)
            # Of the others each is possible that shows here, or need not.
            may = _bits([*~unlike, *(it | ~sure for it in kinds)])
            misfit = ~np.repeat(fit, [it.size for it in wanted])
            may[misfit] = 1 << _STRUCTURE
            wrong = judged.wrong(actual) | misfit
            if wrong.any() or not all(fit):
                most = -1 if all(fit) else 1 << _STRUCTURE
                effects[name] = int(np.bitwise_and.reduce(may[wrong], initial=most))
            marks[wrong] = _IS_WRONG
        if call.operator.carries(name):
            # What is wrong has all bits.
            size = sum(first.size for first, *_ in call.groups)
            marks = np.full(size, np.bitwise_or.reduce(marks))
        marked[name] = marks
    return Sample(call, marked, effects)


def _single(judged: Branch) -> Array:
    """Tell for each element whether one value is right, and others at most close to it."""
    with np.errstate(all="ignore"):
        wide = judged.limit > _WIDE_LIMIT * np.abs(judged.expected.astype(np.float64))
    single, other = ~(wide & (judged.expected != 0)), judged.otherwise
    while other is not None:
        single &= ~Branch(judged.expected, judged.limit).wrong(other.expected)
        other = other.otherwise
    return single


def _bits(masks: Sequence[Array]) -> Array:
    return np.asarray(sum(it.astype(np.int16) << at for at, it in enumerate(masks)), np.int16)


def _outputs(call: Call[Array]) -> Iterator[tuple[str, slice, Array]]:
    """Yield each output's name, its place among the node's, and what it replaces, in a row."""
    old, end = [np.broadcast_to(like, base.shape) for like, base in call.sources], 0
    for name in call.operator.outputs:
        begin, end = end, end + (1 if call.operator.carries(name) else len(call.groups))
        yield name, slice(begin, end), _row(old[begin:end])


def _joined(branches: Sequence[Branch]) -> Branch:
    """Return what is right of the elements of several outputs, in a row."""
    several = any(it.otherwise for it in branches)
    other = _joined([it.otherwise or it for it in branches]) if several else None
    return Branch(_row(it.expected for it in branches), _row(it.limit for it in branches), other)


def _row(arrays: Iterable[Array]) -> Array:
    return np.concatenate([it.reshape(-1) for it in arrays])


def failure_condition(
    samples: Sequence[Sample], ask: Ask | None
) -> tuple[str, Callable[[Sample], bool] | None]:
    """Return what failing cases have in common; nothing if no sentence does.

    Failures may have several reasons. Where the backend can be asked, a sentence is enough that
    holds in as many failing cases as any, if none holds in all.

    Args:
        samples: what is known of nodes of one operator.
        ask: asks the backend; None if it cannot be asked.

    Returns:
        The sentence, or that two cannot be told apart; and what it says of a node, if it is clear.
    """
    failing = sum(it.failed for it in samples)
    if not ask and (failing < _FEW_SAMPLES or failing == len(samples)):
        return "", None
    return _Conditions(samples).sentence(ask)


class _Conditions:
    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples, self._node = list(samples), samples[0].call
        self._random = Random(0)  # noqa: S311 - no secret
        self._several, self._given = False, sum(it.failed for it in samples)
        self._rounds = _ROUNDS
        self._effects: dict[str, int] = {}
        self._always: set[str] = set()
        self._names = number_names(self._node)
        self._ranges: dict[int, Range] = {}
        self._rows: dict[Sample, tuple[Array, Array]] = {}
        self._pool: list[Sample] = []
        self._known: list[FeatureCondition] = []
        self._pairs = np.empty((0, 2), int)
        self._costs = self._reach = self._off = np.empty(0)

    def sentence(self, ask: Ask | None) -> tuple[str, Callable[[Sample], bool] | None]:
        """Look for what is true of all failures; else, where one can ask, of those of a reason."""
        words, says = self._search(ask)
        if ask and not says:
            self._several = True
            one, says = self._search(ask)
            words = one if says else words
        return words, says

    def _search(self, ask: Ask | None) -> tuple[str, Callable[[Sample], bool] | None]:
        """Look for a sentence, and put the plainest to the proof until one stands it."""
        proven, proofs = "", _PROOFS
        self._separate()
        while self._pairs.size and ask and proven != self._words(0):
            if self._rounds:
                self._rounds -= 1
                self._fill_pool()
                loaded_cases = self._questions(self._predictions(), _QUESTIONS // _ROUNDS)
                for at in sorted(loaded_cases, reverse=True):
                    self._put(ask, self._pool.pop(at).call)
                self._separate()
            elif proofs:
                proofs -= 1
                proven = self._words(0) if self._stands(ask) else ""
                self._separate()
            else:
                self._pairs = self._pairs[:0]
        words, says = self._plainest() if self._pairs.size else ("", None)
        return self._often(ask) if ask and self._several and not says else (words, says)

    def _put(self, ask: Ask, call: Call[Array]) -> Sample | None:
        """Ask a node, and keep what is returned."""
        returned = ask(call)
        if returned is None:
            return None
        self._samples.append(sample(call, [it.branch for it in bound(call)], returned))
        return self._samples[-1]

    def _prove(
        self, ask: Ask, conditions: Sequence[FeatureCondition]
    ) -> Iterator[tuple[bool, bool]]:
        """Ask inputs that have little in common with known ones.

        Yields of each whether an element has some feature conditions, and whether the backend
        fails.
        """
        left = Counter(_PUT_SAMPLES)
        for it in self._drawn(_DRAWN_SAMPLES, wide=True):
            said = self._says(conditions, it)
            if left[said] and (answer := self._put(ask, it.call)):
                left[said] -= 1
                yield self._says(conditions, answer), answer.failed
            if not +left:
                return

    def _stands(self, ask: Ask) -> bool:
        """Tell whether further inputs agree with the plainest sentence."""
        met = Counter[bool]()
        for said, failed in self._prove(ask, self._conditions(0)):
            # Where there are several reasons, some other may fail it.
            if said != failed and not (failed and self._several):
                return False
            met[said] += 1
        return min(met[True], met[False]) > _FEW_SAMPLES

    def _plainest(self) -> tuple[str, Callable[[Sample], bool] | None]:
        """Return the plainest sentence, if enough of what fails is where it says."""
        self._fill_pool()
        said = self._predictions()
        # Of earlier inputs those are left that were not asked.
        if np.mean(said[0, -_MORE_SAMPLES:]) > _ALWAYS_SHARE:
            return "", None
        # What holds in fewer of the failing inputs says nothing against the plainest sentence.
        near = (self._costs <= self._costs[0] + _PLAINER_COST) & (self._reach >= self._reach[0])
        near &= self._off <= self._off[0] + _OFF
        near = np.flatnonzero(near).tolist()
        other = next((at for at in near if np.mean(said[at] != said[0]) > _SAME_SHARE), 0)
        if other:
            words = f"wherever {self._words(0)} or wherever {self._words(other)}"
            return f"cannot tell whether it fails {words}", None
        conditions = self._conditions(0)
        if not self._needs_both(conditions):
            return "", None
        says = partial(self._says, conditions)
        failing = [it for it in self._samples if it.failed]
        found = [it for it in failing if says(it)]
        given = sum(map(says, failing[: self._given])) / max(1, self._given)
        elsewhere = (len(failing) - len(found)) / max(1, len(self._samples) - len(found))
        if self._several and (
            len(found) <= _FEW_SAMPLES or given < _ENOUGH_SHARE or elsewhere > 1 - _OFTEN_SHARE
        ):
            return "", None
        # Further inputs may speak against it: how many it has met is for the reader to weigh.
        failed = f"{len(found)} of {len(failing)}" if len(found) < len(failing) else len(failing)
        others = len(self._samples) - len(failing)
        what, besides = _outputs_words(found, partly=self._wrong_share(conditions, found))
        met = f"seen in {failed} inputs that fail{besides}, in none of {others} that pass"
        return f"{what} wherever {self._words(0)}{self._exceptions(conditions)} ({met})", says

    def _needs_both(self, conditions: Sequence[FeatureCondition]) -> bool:
        """Tell whether inputs that lack one of two conditions pass, for either of them."""
        if len({it.words for it in conditions}) == 1:
            return True
        met = [Counter[bool](), Counter[bool]()]
        for it in self._samples:
            rows, _ = self._features(it)
            first, second = _holding(conditions, rows).T
            if not np.any(first & second):
                for lacking, other in enumerate((second, first)):
                    met[lacking][it.failed] += bool(other.any())
        # Where there are several reasons, any input may fail for another one.
        idle = max(_IDLE_SHARE, 1 - _OFTEN_SHARE) if self._several else _IDLE_SHARE
        return all(it[False] >= _NEEDED and it[True] <= idle * it.total() for it in met)

    def _exceptions(self, conditions: Sequence[FeatureCondition]) -> str:
        """Say where elements that meet some conditions are right, because the fault could not show.

        Where it could show, they would have spoken against the sentence.
        """
        names = sorted(self._always) or sorted(self._effects)
        reasons = dict.fromkeys(reason for name in names for reason in _UNLESS[self._effects[name]])
        found = 0
        for it in self._samples:
            marks = np.full(sum(first.size for first, *_ in it.call.groups), _ANY)
            for name in names:
                for at, reason in enumerate(reasons):
                    _, has, lacks = reason
                    own = it.marked[name]
                    if reason in _UNLESS[self._effects[name]]:
                        marks |= (own >> has & ~own >> lacks & 1) << at
            # All count, also those of which nothing is said.
            rows, marks = features(it.call, marks)
            found |= int(np.bitwise_or.reduce(marks[_holding(conditions, rows).all(axis=1)]))
        words = dict.fromkeys(word for at, (word, *_) in enumerate(reasons) if found >> at & 1)
        subject = names[0] if len(names) == 1 else "each"
        said = " or ".join(words).replace("{}", subject)
        return f", unless {said}" if said else ""

    def _wrong_share(
        self, conditions: Sequence[FeatureCondition], found: Sequence[Sample]
    ) -> float:
        """Return the share of elements that meet some conditions and are wrong, at the median."""
        shares = []
        for it in found:
            rows, marks = self._features(it)
            has = _holding(conditions, rows).all(axis=1)
            shares.append(np.mean(marks[has] == WRONG))
        return float(np.median(shares))

    def _often(self, ask: Ask) -> tuple[str, Callable[[Sample], bool] | None]:
        """Count failures where a feature condition is that all given ones have, and elsewhere.

        What depends on memory that nobody wrote fails often, and no condition says when. It is
        counted in inputs that did not choose the feature condition.
        """
        known = sorted(feature_conditions(self._node, {}), key=lambda it: it.cost)
        failed = np.array([it.failed for it in self._samples])
        columns = self._holding(known, self._samples)
        given = np.flatnonzero(failed)[: self._given]
        # Pairs of those feature conditions that all given failures have.
        kept = np.all([columns[at].any(axis=0) for at in given], axis=0)
        known = [it for it, usable in zip(known, kept, strict=True) if usable]
        numbers = [_unique(it[:, kept]) for it in columns]
        has = np.stack([np.triu(it.T @ it > 0) for it in numbers])
        # Of each pair: inputs that have it and those that do not; how many of either fail.
        where = np.stack([has, ~has])
        inputs, bad = where.sum(axis=1), (where & failed[:, None, None]).sum(axis=1)
        share, elsewhere = bad / np.maximum(1, inputs)
        usable = (
            has[given].all(axis=0)
            & (bad[0] > 2 * _FEW_SAMPLES)
            & (has.mean(axis=0) <= _ALWAYS_SHARE)
        )
        if not usable.any():
            return "", None
        better = share - elsewhere - 0.05 * ~np.eye(len(known), dtype=bool)
        pair = np.unravel_index(np.argmax(np.where(usable, better, -2)), usable.shape)
        best = [known[at] for at in dict.fromkeys(pair)]
        met = Counter(self._prove(ask, best))
        with_it, others = (met[has_it, True] + met[has_it, False] for has_it in (True, False))
        rare = min(with_it, others) <= _FEW_SAMPLES
        if (
            rare
            or met[True, True] < _OFTEN_SHARE * with_it
            or met[False, True] > (1 - _ALWAYS_SHARE) * others
        ):
            return "", None
        counts = f"{met[True, True]} of {with_it}", f"{met[False, True]} of {others}"
        words = f"wrong in {counts[0]} inputs where {_words(best)}, in {counts[1]} others"
        return words, partial(self._says, best)

    def _separate(self) -> None:
        """Find the sentences that hold in all failing samples and in no other, plainest first."""
        effects, always = _effects(self._samples), _always_wrong(self._samples)
        if (effects, always) != (self._effects, self._always):
            self._effects, self._always = effects, always
            self._rows.clear()
        wrong: list[Array] = []
        right: list[Array] = []
        beside: list[Array] = []
        for it in self._samples:
            rows, marks = self._features(it)
            if not it.failed:
                right.append(rows)
            elif (marks == WRONG).any():
                wrong.append(rows[:, marks == WRONG])
                beside.append(rows[:, marks == 1])
        if not wrong:
            self._pairs = self._pairs[:0]
            return
        bad = np.concatenate(wrong, axis=1)
        good = np.concatenate([bad[:, :0], *right], axis=1)
        self._ranges = {row: _range(*pair) for row, pair in enumerate(zip(bad, good, strict=True))}
        known = sorted(feature_conditions(self._node, self._ranges), key=lambda it: it.cost)
        columns = _holding(known, bad)
        ends = np.cumsum([it.shape[1] for it in wrong])[:-1]
        holds = [part.any(axis=0) for part in np.split(columns, ends)]
        # Where there are several reasons, further inputs may fail for others.
        share, least = (self._given, _ENOUGH_SHARE) if self._several else (len(wrong), 1)
        kept = np.flatnonzero(np.mean(holds[:share], axis=0) >= least)
        self._known, parts = [known[at] for at in kept], np.split(columns[:, kept], ends)
        passed = _unique(_holding(self._known, good))
        alive = self._hold([*map(_unique, parts[:share])], passed.T @ passed == 0)
        costs = np.array([it.cost for it in self._known])
        first, second = np.nonzero(np.triu(alive))
        total = costs[first] + np.where(first == second, 0, costs[second] + 0.5)
        plainest = np.argsort(total, kind="stable")[:_SENTENCES]
        first, second, total = first[plainest], second[plainest], total[plainest]
        # A sentence that elements speak against is less plain: wrong ones that it leaves out, and
        # right ones of a failing node that it says are wrong.
        reach, off = np.zeros(total.shape, int), np.zeros(total.shape)
        used, places = np.unique([first, second], return_inverse=True)
        chosen, (one, two) = [self._known[at] for at in used], places.reshape(2, -1)
        rest = np.split(
            _holding(chosen, np.concatenate(beside, axis=1)),
            np.cumsum([it.shape[1] for it in beside])[:-1],
        )
        for part, others in zip(parts, rest, strict=True):
            both = part[:, first] & part[:, second]
            met = both.sum(axis=0)
            more = (others[:, one] & others[:, two]).sum(axis=0)
            reach += met > 0
            off += (1 - met / len(both) + more / np.maximum(1, met + more)) / len(wrong)
        total += off
        order = np.argsort(total, kind="stable")
        self._reach, self._off = reach[order], off[order]
        self._pairs = np.stack([first, second], axis=1)[order]
        self._costs = total[order]

    def _hold(self, failing: Sequence[Array], alive: Array) -> Array:
        """Tell which pairs of conditions hold in all failing samples, or in as many as any."""
        reached = np.zeros(alive.shape, np.int32)
        for own in failing:
            holds = own.T @ own > 0
            if self._several:
                reached += holds
            elif not (alive := alive & holds).any():
                break
        most = np.max(reached, where=alive, initial=1)
        return alive & (reached == most) if self._several else alive

    def _features(self, node: Sample) -> tuple[Array, Array]:
        """Return the features of a node's elements that may be wrong, and marks of them."""
        if node not in self._rows:
            self._rows[node] = features(node.call, self._marks(node))
        return self._rows[node]

    def _marks(self, node: Sample) -> Array:
        outputs = [
            np.where(node.marked[name] < 0, WRONG, node.marked[name] >> effect & 1)
            for name, effect in self._effects.items()
        ]
        wrong, shows = np.max(outputs, axis=0) == WRONG, np.min(outputs, axis=0)
        if self._always:
            # What is wrong in every failing node would be in this one, wherever it may show.
            at = [place for place, name in enumerate(self._effects) if name in self._always]
            shows = np.max([outputs[place] for place in at], axis=0)
        # Where one output may not show a fault, it may be another's that is not there.
        return np.where(wrong, WRONG, shows)

    def _holding(self, known: Sequence[FeatureCondition], nodes: Sequence[Sample]) -> list[Array]:
        """Tell for each node which of its elements, by row, have which feature conditions.

        Of all nodes at once: to ask it of each takes longer than all the rest.
        """
        rows = [self._features(it)[0] for it in nodes]
        ends = np.cumsum([it.shape[1] for it in rows])[:-1]
        return np.split(_holding(known, np.concatenate(rows, axis=1)), ends)

    def _fill_pool(self) -> None:
        """Draw further inputs, most near to failing ones."""
        self._pool += self._drawn(_MORE_SAMPLES if self._pool else _POOL_SAMPLES)
        # An operator may have a rule that no change keeps.
        self._pool = self._pool or self._samples[:1]

    def _drawn(self, count: int, *, wide: bool = False) -> Iterator[Sample]:
        """Draw inputs near to known ones, or mixed from failing ones and others."""
        failing = [it.call for it in self._samples if it.failed]
        others = [it.call for it in self._samples if not it.failed] or failing
        for bases in (failing, failing, others) * (count // 3):
            call = self._random.choice(bases)
            if wide:
                call = mixed(self._random, call, self._random.choice(others))
            changed = further(self._random, call, (2, 3, 4, 5) if wide else (1, 1, 1, 2, 2, 3))
            if changed is not None and self._random.random() < _BESIDE:
                changed = self._beside(changed)
            if changed is not None:
                it = sample(changed, [Branch(it, _visible(it)) for it in evaluate(changed)])
                # Where a fault may not show, less is learnt.
                shows = [marks.any() for marks in changed.apart([self._marks(it)]) if marks.size]
                if self._random.random() < max(0.1, sum(shows) / max(1, len(shows))):
                    yield it

    def _beside(self, call: Call[Array]) -> Call[Array] | None:
        """Set a number of a node to one near to where a condition on it turns."""
        turns = [
            (name, low, high)
            for row, name in self._names.items()
            if (it := self._ranges.get(row))
            for low, high in ((it.below, it.least), (it.most, it.above))
            if np.isfinite(low) and np.isfinite(high) and low < high
        ]
        if not turns:
            return call
        name, low, high = self._random.choice(turns)
        share = self._random.random()
        number = self._random.choice((low, high, low + share * (high - low), roundest(low, high)))
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
        scalars = list(call.scalars)
        for place, item in enumerate(call.operator.scalars):
            if item.name == name:
                scalars[place] = np.full_like(scalars[place], number)
        attributes, omitted = call.attributes, call.omitted
        if name in attributes:
            old = attributes[name]
            given = (number,) * len(old) if isinstance(old, tuple) else number
            attributes, omitted = {**attributes, name: given}, omitted - {name}
        changed = replace(call, scalars=tuple(scalars), attributes=attributes, omitted=omitted)
        return further(self._random, changed, (0,))

    def _predictions(self) -> Array:
        """Return for each sentence and each node of the pool whether it is said to fail."""
        used, places = np.unique(self._pairs, return_inverse=True)
        first, second = places.reshape(self._pairs.shape).T
        known = [self._known[at] for at in used]
        said = np.zeros((len(self._pairs), len(self._pool)), bool)
        for at, columns in enumerate(self._holding(known, self._pool)):
            said[:, at] = np.any(columns[:, first] & columns[:, second], axis=0)
        return said

    def _questions(self, said: Array, count: int) -> list[int]:
        """Choose nodes on which sentences differ most, then some that try the best one."""
        weights = np.exp2(-2 * (self._costs - self._costs[0]))
        classes = np.zeros(len(said), int)
        chosen: list[int] = []
        for _ in range(count // 2):
            scores = [np.sum(np.bincount(2 * classes + it, weights) ** 2) for it in said.T]
            best = int(np.argmin(np.array(scores)))
            if best in chosen:
                break
            chosen.append(best)
            classes = np.unique(2 * classes + said[:, best], return_inverse=True)[1]
        # One in which elements may not show what is expected of them, may not tell sentences apart.
        near = said[self._costs <= self._costs[0] + _PLAINER_COST]
        again = np.setdiff1d(np.flatnonzero(near.any(axis=0) & ~near.all(axis=0)), chosen)
        chosen += again[: count * 3 // 4 - len(chosen)].tolist()
        for fails in (True, False) * count:
            rest = np.setdiff1d(np.flatnonzero(said[0] == fails), chosen)
            chosen += rest[: len(chosen) < count].tolist()
        return chosen

    def _words(self, at: int) -> str:
        return _words(self._conditions(at))

    def _conditions(self, at: int) -> list[FeatureCondition]:
        return [self._known[place] for place in self._pairs[at]]

    def _says(self, conditions: Sequence[FeatureCondition], node: Sample) -> bool:
        """Tell whether an element of a node has all of some feature conditions."""
        rows, _ = self._features(node)
        return bool(_holding(conditions, rows).all(axis=1).any())


def _holding(known: Sequence[FeatureCondition], rows: Array) -> Array:
    """Tell which elements have which feature conditions; a row of features has all elements.

    Returns:
        A row for each element and a column for each feature condition.
    """
    found = np.empty((len(known), rows.shape[1]), bool)
    with np.errstate(all="ignore"):
        for row, it in zip(found, known, strict=True):
            row[:] = it.holds(rows[it.feature])
    return found.T


def _range(bad: Array, good: Array) -> Range:
    """Return where a feature's values are in wrong elements and next to these in right ones."""
    values = np.unique(bad)
    if not values.size or not np.all(np.isfinite(values)):
        return Range()
    least, most = values[0], values[-1]
    counts: tuple[float, ...] = ()
    if np.all(values == np.round(values)):
        counts = tuple(it + by for it in (*values[:3], *values[-3:]) for by in (0.0, 1.0))
    below = np.max(good, where=good < least, initial=-np.inf)
    above = np.min(good, where=good > most, initial=np.inf)
    return Range(counts, float(below), float(least), float(most), float(above))


def _visible(output: Array) -> Array:
    step = _VISIBLE * np.finfo(output.dtype).eps * np.abs(output)
    return np.where(np.isfinite(output), step, 0)


def _effects(samples: Sequence[Sample]) -> dict[str, int]:
    """Return the effect of a fault on each output that it changes, by its place among effects."""
    found = {}
    for name in sorted({name for it in samples for name in it.effects}):
        may = reduce(and_, (it.effects[name] for it in samples if name in it.effects))
        may = may or 1 << _EVERYWHERE
        found[name] = (may & -may).bit_length() - 1
    return found


def _always_wrong(samples: Sequence[Sample]) -> set[str]:
    """Return the outputs that are wrong in nearly all failing samples."""
    failing = [it for it in samples if it.failed]
    wrong = Counter(name for it in failing for name in it.effects)
    return {name for name, count in wrong.items() if count >= _NEARLY_ALL_SHARE * len(failing)}


def _words(conditions: Iterable[FeatureCondition]) -> str:
    return " and ".join(dict.fromkeys(it.words for it in conditions))


def _outputs_words(found: Sequence[Sample], *, partly: float) -> tuple[str, str]:
    """Say which outputs are wrong in nearly all of some samples, and in how many others are."""
    wrong = Counter(name for it in found for name in it.effects)
    always = {it for it, count in wrong.items() if count >= _NEARLY_ALL_SHARE * len(found)}
    part = "partly " if partly < _NEARLY_ALL_SHARE else ""
    if not always:
        return f"{' or '.join(sorted(wrong))} is {part}wrong", ""
    besides = (f", {it} too in {wrong[it]}" for it in sorted(wrong.keys() - always))
    words = {it: _EFFECTS[effect] for it, effect in _effects(found).items() if it in always}
    what = next(iter(words.values()))
    if len({*words.values()}) > 1:
        said = " and ".join(f"{name} is {part}{what}" for name, what in words.items())
    elif len(words) == 1:
        said = f"{next(iter(words))} is {part}{what}"
    else:
        many = "what they were" if what == "what it was" else what
        said = f"{' and '.join(words)} are {part}{many}"
    return said, "".join(besides)


def _unique(columns: Array) -> Array:
    """Return rows of booleans, each once, as numbers."""
    numbers = columns.astype(np.float32)
    keys = numbers @ np.random.RandomState(1).rand(columns.shape[1])
    return numbers[np.unique(keys, return_index=True)[1]]
