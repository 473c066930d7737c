"""What failing cases have in common that passing ones do not: one sentence, or none.

A sentence has at most two traits, and says that a case fails where an element has them. It must
hold in every failing case, at an element that is wrong, and in no case that passed. Many sentences
do that by chance. So the backend is asked further inputs that tell those apart which are left, and
others on which the best one may turn out wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import Random

import numpy as np

from onnxopt_cli.core.tolerance import Branch
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.grade.further import further
from onnxopt_cli.grade.traits import WRONG, Trait, feature_places, features, traits
from onnxopt_cli.readings.bound.bound import DerivedOutput, bound
from onnxopt_cli.readings.evaluate import evaluate

#: Asks a backend a node; None if it returns nothing.
Ask = Callable[[Call[Array]], Sequence[Array] | None]

#: So many further inputs are asked, in rounds.
QUESTIONS = 50
_ROUNDS = 5
_POOL = 220
#: So many sentences are weighed, the plainest first.
_SENTENCES = 400
#: A sentence that is worse by so much is not an alternative.
_PLAINER = 0.75
#: Sentences that differ in a smaller share of inputs say the same.
_SAME = 0.01
#: Of fewer failing cases anything can be said, unless the backend can be asked.
_FEW = 4
#: What is said of a larger share of inputs says nothing.
_ALWAYS = 0.9
#: Where a smaller share of inputs fails, or elsewhere a larger one of the rest, nothing is said.
_OFTEN = 0.6


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A node, and whether a backend failed it.

    Attributes:
        call: the node.
        failed: whether the backend failed it.
        marked: by output, for each tensor, flat: WRONG for elements that are, 1 for those that
            were judged and came from computing, 0 for others.
        effect: what wrong elements are, in words.
    """

    call: Call[Array]
    failed: bool
    marked: Mapping[str, Sequence[Array]]
    effect: str = ""

    def wrong(self, output: str) -> bool:
        """Tell whether an output has wrong elements."""
        return any((mark == WRONG).any() for mark in self.marked[output])


def sample(call: Call[Array], right: Sequence[DerivedOutput], returned: Sequence[Array]) -> Sample:
    """Return what a backend's outputs say of a node."""
    marked = {
        name: [np.zeros(it[0].size, int) for it in call.groups] for name in call.operator.outputs
    }
    structure = [(it.expected.dtype, it.expected.shape) for it in right]
    if structure != [(it.dtype, it.shape) for it in returned]:
        everything = {name: [it + WRONG for it in marks] for name, marks in marked.items()}
        return Sample(call, True, everything, "has another type or shape")
    effects: set[str] = set()
    for judged, output, (name, group, source) in zip(right, returned, _outputs(call), strict=True):
        wrong = _wrong(judged, output)
        if group is None:
            marked[name] = [it + (WRONG if wrong.any() else 1) for it in marked[name]]
        else:
            usable = _computed(judged.expected, source) & ~judged.branch.weak
            marked[name][group] = np.where(wrong, WRONG, usable).reshape(-1)
        if wrong.any():
            same = np.array_equal(output[wrong], source[wrong], equal_nan=True)
            what = "what it was" if same else "NaN" if np.isnan(output[wrong]).all() else "wrong"
            effects.add(f"{name} is {what if output[wrong].any() else '0'}")
    return Sample(call, bool(effects), marked, " and ".join(sorted(effects)))


def _outputs(call: Call[Array]) -> Iterator[tuple[str, int | None, Array]]:
    """Yield each output's name, its tensor's place, if it is of one, and what it replaces."""
    operator, inputs = call.operator, call.inputs
    places = iter(operator.places(len(call.groups)))
    for name in operator.outputs:
        for group in [None] if operator.carries(name) else range(len(call.groups)):
            like, base = next(places)
            yield name, group, np.broadcast_to(inputs[like], inputs[base].shape)


def _computed(expected: Array, source: Array) -> Array:
    """Tell which elements a fault would show in, whatever it does."""
    return np.isfinite(expected) & (expected != 0) & (expected != source)


def _wrong(judged: DerivedOutput, output: Array) -> Array:
    wrong = np.ones(output.shape, bool)
    branch: Branch | None = judged.branch
    with np.errstate(all="ignore"):
        while branch is not None:
            near = np.abs(output.astype(float) - branch.expected) <= branch.limit
            equal = (output == branch.expected) | (np.isnan(output) & np.isnan(branch.expected))
            wrong &= ~(near | equal | np.isinf(branch.limit))
            branch = branch.otherwise
    return wrong


def common_ground(
    operator: Operator,
    samples: list[Sample],
    ask: Ask | None,
    seed: int = 0,
    *,
    several: bool = False,
) -> tuple[str, Callable[[Sample], bool] | None]:
    """Return what failing cases have in common; nothing if no sentence does.

    Args:
        operator: of all nodes.
        samples: what is known; what the backend is asked is added.
        ask: asks the backend; None if it cannot be asked.
        seed: of the further inputs.
        several: whether failures may have several reasons; then a sentence is enough that holds in
            as many failing cases as any, if the backend can be asked.

    Returns:
        The sentence, or that two cannot be told apart; and what it says of a node, if it is clear.
    """
    failing = sum(it.failed for it in samples)
    if not ask and (failing < _FEW or failing == len(samples)):
        return "", None
    random = Random(seed)  # noqa: S311 - no secret
    return _Ground(operator, samples, random, several=several and ask is not None).sentence(ask)


class _Ground:
    def __init__(
        self, operator: Operator, samples: list[Sample], random: Random, *, several: bool
    ) -> None:
        self._operator, self._samples, self._random = operator, samples, random
        self._several, self._given = several, sum(it.failed for it in samples)
        self._places = feature_places(operator)
        self._outputs: set[str] = set()
        self._rows: list[tuple[Array, Array]] = []
        self._known: list[Trait] = []
        self._pairs = np.empty((0, 2), int)
        self._costs = np.empty(0)

    def sentence(self, ask: Ask | None) -> tuple[str, Callable[[Sample], bool] | None]:
        best, stable = "", False
        for turn in range(_ROUNDS + 1):
            self._separate()
            if not self._pairs.size:
                return self._often()
            pool = self._pool()
            said = self._predictions(pool)
            best, stable = self._words(0), best == self._words(0)
            if ask is None or turn == _ROUNDS:
                break
            for at in self._questions(said, QUESTIONS // _ROUNDS):
                call = pool[at][0]
                returned = ask(call)
                if returned is not None:
                    self._samples.append(sample(call, bound(call), returned))
        if np.mean(said[0]) > _ALWAYS or (ask is not None and not stable):
            return self._often()
        for at in np.flatnonzero(self._costs <= self._costs[0] + _PLAINER).tolist():
            if np.mean(said[at] != said[0]) > _SAME:
                other = self._words(at)
                return f"cannot tell whether it fails wherever {best} or wherever {other}", None
        says = partial(self._says, list(self._pairs[0]))
        found = [it for it in self._samples if it.failed and says(it)]
        failing = sum(it.failed for it in self._samples)
        elsewhere = (failing - len(found)) / max(1, len(self._samples) - len(found))
        if self._several and (len(found) <= _FEW or elsewhere > 1 - _OFTEN):
            return self._often()
        effects = {it.effect for it in found}
        outputs = [name for name in sorted(self._outputs) if any(it.wrong(name) for it in found)]
        wrong = f"{' and '.join(outputs)} {'are' if len(outputs) > 1 else 'is'} wrong"
        effect = effects.pop() if len(effects) == 1 else wrong
        return f"{effect} wherever {best}", says

    def _often(self) -> tuple[str, Callable[[Sample], bool] | None]:
        """Count failures where a trait is that all given ones have, and elsewhere.

        What depends on memory that nobody wrote fails often, and no condition says when.
        """
        if not self._several:
            return "", None
        known = sorted(traits(self._operator, {}), key=lambda it: it.cost)
        failed = np.array([it.failed for it in self._samples])
        has = np.stack([self._columns(known, rows).any(axis=0) for rows, _ in self._rows])
        share, elsewhere = (
            np.sum(where & failed[:, None], axis=0) / np.maximum(1, np.sum(where, axis=0))
            for where in (has, ~has)
        )
        given = has[np.flatnonzero(failed)[: self._given]].all(axis=0)
        usable = given & (np.sum(has & failed[:, None], axis=0) > 2 * _FEW)
        usable &= (share >= _OFTEN) & (elsewhere <= 1 - _ALWAYS) & (has.mean(axis=0) <= _ALWAYS)
        if not usable.any():
            return "", None
        at = int(np.argmax(np.where(usable, share - elsewhere, -1)))
        trait = known[at]
        bad, other = (int(np.sum(failed & where)) for where in (has[:, at], ~has[:, at]))
        most, rest = int(np.sum(has[:, at])), int(np.sum(~has[:, at]))
        words = f"wrong in {bad} of {most} inputs where {trait.words}, in {other} of {rest} others"
        return words, lambda node: bool(np.any(self._columns([trait], self._features(node)[0])))

    def _separate(self) -> None:
        """Find the sentences that hold in all failing samples and in no other, plainest first."""
        outputs = {
            name for it in self._samples for name in it.marked if it.failed and it.wrong(name)
        }
        if outputs != self._outputs:
            self._outputs, self._rows = outputs, []
        self._rows += map(self._features, self._samples[len(self._rows) :])
        wrong: list[Array] = []
        right: list[Array] = []
        for (rows, marks), it in zip(self._rows, self._samples, strict=True):
            if not it.failed:
                right.append(rows)
            elif (marks == WRONG).any():
                wrong.append(rows[marks == WRONG])
        if not wrong:
            self._pairs = self._pairs[:0]
            return
        everything = np.concatenate([*wrong, *right])
        seen: dict[str, list[float]] = {}
        for name, place in self._places.items():
            values = np.unique(np.concatenate(wrong)[:, place])
            if np.all(np.isfinite(values)) and np.all(values == np.round(values)):
                ends = (*values[:3], *values[-3:])
                seen[name] = [float(it) + by for it in ends for by in (0, 1)]
        known = sorted(traits(self._operator, seen), key=lambda it: it.cost)
        columns = self._columns(known, everything)
        kept = np.flatnonzero(columns.any(axis=0))
        self._known, columns = [known[at] for at in kept], columns[:, kept]
        parts = np.split(columns, np.cumsum([len(it) for it in (*wrong, *right)])[:-1])
        passed = _unique(columns[sum(len(it) for it in wrong) :])
        alive = self._hold(map(_unique, parts[: len(wrong)]), passed.T @ passed == 0)
        costs = np.array([it.cost for it in self._known])
        first, second = np.nonzero(np.triu(alive))
        total = costs[first] + np.where(first == second, 0, costs[second] + 0.5)
        plainest = np.argsort(total, kind="stable")[:_SENTENCES]
        first, second, total = first[plainest], second[plainest], total[plainest]
        # A sentence that wrong elements speak against is less plain.
        for part in parts[: len(wrong)]:
            total += (1 - np.mean(part[:, first] & part[:, second], axis=0)) / len(wrong)
        order = np.argsort(total, kind="stable")
        self._pairs = np.stack([first, second], axis=1)[order]
        self._costs = total[order]

    def _hold(self, failing: Iterator[Array], alive: Array) -> Array:
        """Tell which of some pairs of traits hold in all failing samples, or in as many as any."""
        if not self._several:
            for own in failing:
                alive &= own.T @ own > 0
            return alive
        # Further inputs may fail for other reasons.
        reached = np.zeros(alive.shape, int)
        for own in islice(failing, self._given):
            reached += alive & (own.T @ own > 0)
        return reached == max(1, reached.max())

    def _features(self, node: Sample) -> tuple[Array, Array]:
        return features(node.call, self._marks(node.marked))

    def _marks(self, marked: Mapping[str, Sequence[Array]]) -> list[Array]:
        """Return the marks of a node's elements in the outputs that are wrong anywhere."""
        marks = zip(*(marked[name] for name in self._outputs), strict=True)
        return [np.maximum.reduce(each) for each in marks]

    def _columns(self, known: Sequence[Trait], rows: Array) -> Array:
        with np.errstate(all="ignore"):
            found = [np.asarray(it.holds(rows[:, self._places[it.feature]])) for it in known]
        return np.stack(found, axis=1)

    def _pool(self) -> list[tuple[Call[Array], list[Array]]]:
        """Draw further inputs, most near to failing ones, and mark where a fault would show."""
        failing = [it.call for it in self._samples if it.failed]
        others = [it.call for it in self._samples if not it.failed] or failing
        pool = []
        for bases in (failing, failing, others) * (_POOL // 3):
            call = further(self._random, self._random.choice(bases))
            if call is None:
                continue
            marked = {
                name: [np.zeros(it[0].size, int) for it in call.groups] for name in self._outputs
            }
            for output, (name, group, source) in zip(evaluate(call), _outputs(call), strict=True):
                if name in marked and group is not None:
                    marked[name][group] = _computed(output, source).reshape(-1).astype(int)
            marks = self._marks(marked)
            # Where right results are trivial, a fault seldom shows.
            if not any(it.any() for it in marks):
                if self._random.randrange(10):
                    continue
                marks = [it + 1 for it in marks]
            pool.append((call, marks))
        return pool

    def _predictions(self, pool: Sequence[tuple[Call[Array], list[Array]]]) -> Array:
        """Return for each sentence and each node whether it is said to fail."""
        used, places = np.unique(self._pairs, return_inverse=True)
        first, second = places.reshape(self._pairs.shape).T
        known = [self._known[at] for at in used]
        said = np.zeros((len(self._pairs), len(pool)), bool)
        for at, (call, marks) in enumerate(pool):
            columns = self._columns(known, features(call, marks)[0])
            said[:, at] = np.any(columns[:, first] & columns[:, second], axis=0)
        return said

    def _questions(self, said: Array, count: int) -> list[int]:
        """Choose nodes on which sentences differ most, then some that try the best one."""
        weights = np.exp2(-2 * (self._costs - self._costs[0]))
        classes = np.zeros(len(said), int)
        chosen: list[int] = []
        for _ in range(count * 3 // 4):
            scores = [np.sum(np.bincount(2 * classes + it, weights) ** 2) for it in said.T]
            best = int(np.argmin(np.array(scores)))
            if best in chosen:
                break
            chosen.append(best)
            classes = np.unique(2 * classes + said[:, best], return_inverse=True)[1]
        for fails in (True, False) * count:
            rest = np.setdiff1d(np.flatnonzero(said[0] == fails), chosen)
            chosen += rest[: len(chosen) < count].tolist()
        return chosen

    def _words(self, at: int) -> str:
        return " and ".join(dict.fromkeys(self._known[place].words for place in self._pairs[at]))

    def _says(self, pair: Sequence[int], node: Sample) -> bool:
        rows, _ = self._features(node)
        return bool(np.any(np.all(self._columns([self._known[at] for at in pair], rows), axis=1)))


def _unique(columns: Array) -> Array:
    """Return rows of booleans, each once, as numbers."""
    numbers = columns.astype(np.float32)
    keys = numbers @ np.random.RandomState(1).rand(columns.shape[1])
    return numbers[np.unique(keys, return_index=True)[1]]
