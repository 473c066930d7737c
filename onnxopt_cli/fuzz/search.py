"""The search for failures.

Each round looks for one kind of failure that is not known yet, and shrinks it; the next round goes
on with the kinds that are left. How often the backend is asked does not depend on the clock, unless
there is a limit on the time, so that a seed gives the same findings again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from onnxopt_cli.core.text import nearest
from onnxopt_cli.errors import NothingSelected, OnnxoptError
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.fuzz.driver import Abort, RoundOver, Task, drive, failure, refusals
from onnxopt_cli.fuzz.findings import (
    FailureKind,
    Finding,
    Findings,
    Trial,
    attempt,
    kinds_of,
)
from onnxopt_cli.fuzz.graph_example import Example
from onnxopt_cli.fuzz.node_example import NodeExample
from onnxopt_cli.fuzz.shrink import smaller
from onnxopt_cli.isolation.interruption import Interruption
from onnxopt_cli.isolation.response import Incident
from onnxopt_cli.operators import OPERATORS, operator_named
from onnxopt_cli.run.executors import Executor

#: Hypothesis remembers all examples of a portion, which shards and workers of a cluster share.
_PORTION = 200
#: More than anybody tries.
_ENDLESS = 1 << 40
#: Of failures that cost a process or the timeout so many are enough to shrink one.
_COSTLY_FAILURES = 30
#: With so many hypothesis knows that a failure is steady; what makes a node smaller needs fewer.
_STEADY = 2
#: Tries to make a failure smaller when hypothesis is done.
_LAST_TRIES = 300
#: So many seconds a finding may be explained when the time is over.
_LEAST_EXPLAINING = 1.0
#: As many earlier failures are replayed.
_REPLAYED = 1000


def chosen_operators(names: Sequence[str], excluded: Sequence[str] = ()) -> list[Operator]:
    """Return the operators of these names, all with a formula if there are none, but some.

    Raises:
        NothingSelected: if a name is of no operator with a formula, or none is left.
    """
    known = {operator.name: operator for operator in OPERATORS}
    for name in (*names, *excluded):
        if operator_named(name) is None:
            what = f"there is no operator {name!r} with a formula"
            raise NothingSelected(what, hint=nearest(name, known, ", ".join(known)))
    wanted = set(map(operator_named, names or known)) - set(map(operator_named, excluded))
    if not wanted:
        raise NothingSelected("every operator is excluded")
    return [operator for operator in OPERATORS if operator in wanted]


class Portions:
    """The examples of a search in equal parts, whoever tries them.

    Args:
        task: what to search.
        tried: number of examples that were tried before.

    Attributes:
        numbers: of the parts that belong to the search's shard; each decides what its examples are.
    """

    def __init__(self, task: Task, tried: int) -> None:
        first, step = 1, 1
        if task.shard:
            first, step = task.shard.index, task.shard.count
            # The first shard tries these; what it leaves out of them the others cannot know.
            tried = sum(1 + len(broken) for _, broken in refusals(task.operators))
        self._examples = _ENDLESS if task.examples is None else max(0, task.examples - tried)
        self.numbers = range(first, (self._examples + _PORTION - 1) // _PORTION + 1, step)

    def size(self, number: int) -> int:
        """Return how many examples a part has."""
        return min(_PORTION, self._examples - (number - 1) * _PORTION)


class Search:
    """A search in progress, from :func:`onnxopt_cli.fuzz.cluster_search.open_search`.

    Attributes:
        tried: number of examples so far, those tried to shrink a failure not among them.
        findings: what was found.
    """

    def __init__(self, task: Task, executor: Executor, interruption: Interruption) -> None:
        self.tried = 0
        self.findings = Findings()
        self._task = task
        self._executor = executor
        self._interruption = interruption
        self._drive = partial(drive, task)
        self._end = float("inf")

    @property
    def _over(self) -> bool:
        spent = self._task.examples is not None and self.tried >= self._task.examples
        return spent or monotonic() >= self._end

    def run(self) -> Iterator[Finding]:
        """Yield each distinct failure, made as small as possible; earlier ones first.

        It ends early where the user wants it to.

        Raises:
            BackendUnavailable: if the backend cannot be started any more.
        """
        self._begin()
        try:
            yield from self._replay()
            if self._task.shard is None or self._task.shard.index == 1:
                yield from self._refusals()
            yield from self._rounds()
        except Abort as abort:
            if not self._interruption.signal:
                raise abort.reason from None

    def _begin(self) -> None:
        """Count the time from here: what a backend needs to start is not spent on examples."""
        if self._task.seconds is not None:
            self._end = monotonic() + self._task.seconds

    def outside(self) -> list[Incident]:
        """Shut the backend down, and return what it did outside of the examples."""
        return [] if self._interruption.signal else self._executor.finish()

    def _replay(self) -> Iterator[Finding]:
        """Try the failures of earlier runs; what no longer fails is forgotten."""
        failures: list[Trial] = []

        def replay(example: Example) -> None:
            trial = self._attempt(example)
            if trial.failed:
                failures.append(trial)
                raise failure(self.findings.kinds(trial)[0])

        self._drive(replay, _REPLAYED, 0)
        # What is of one kind alone is its best example.
        for trial in sorted(failures, key=lambda each: len(kinds_of(each))):
            kind = self.findings.new(trial)
            if kind is not None:
                smallest = self._smallest(trial, kind)
                yield self._add(Finding(kind, smallest, replayed=True), ())

    def _refusals(self) -> Iterator[Finding]:
        """Try what a right backend must refuse; failures of unbroken nodes are left to the search.

        Where a simple node costs a process or the timeout, so may all that are like it.
        """
        with suppress(RoundOver):
            for node, broken in refusals(self._task.operators):
                if self._counted(node).is_costly:
                    continue
                for example in broken:
                    trial = self._counted(example)
                    kind = self.findings.new(trial) if trial.failed else None
                    if kind is not None:
                        yield self._add(Finding(kind, trial), ())

    def _counted(self, example: Example) -> Trial:
        if self._over:
            raise RoundOver
        trial = self._attempt(example)
        self._count()
        return trial

    def _count(self) -> None:
        self.tried += 1
        self._task.tried(self.tried)

    def _rounds(self) -> Iterator[Finding]:
        """Search each portion, if it has something new, until nothing new is left in it."""
        portions = Portions(self._task, self.tried)
        for number, is_new in zip(portions.numbers, self._may_have_new(portions), strict=False):
            tried, size = self.tried, portions.size(number)
            while is_new:
                # What others have shown may depend on who was first.
                self.findings.forget_passed()
                self.tried = tried
                finding = self._search(number, size)
                if finding is None:
                    break
                yield finding
            # Where the time ended while it was searched, those that were counted were tried.
            if not is_new or monotonic() < self._end:
                self.tried = tried + size
            self._task.tried(self.tried)

    def has_new(self, number: int, most: int) -> bool:
        """Tell whether a round of examples has a failure of a new kind."""
        self._begin()
        found = False

        def look(example: Example) -> None:
            nonlocal found
            trial = self._attempt(example)
            found = trial.failed and self.findings.new(trial) is not None
            if found:
                raise RoundOver

        try:
            self._drive(look, most, number)
        except Abort as abort:
            raise abort.reason from None
        return found

    def _may_have_new(self, _portions: Portions) -> Iterator[bool]:
        """Tell of each portion whether it may have something new, until the search is over."""
        return iter(lambda: not self._over, False)

    def _search(self, number: int, most: int) -> Finding | None:
        """Try a round of examples, up to the first failure of a new kind; make that smaller.

        Args:
            number: of the round, which decides what its examples are.
            most: how many there are.
        """
        new = _NewFailure()

        def look(example: Example) -> None:
            trial = self._attempt(example)
            if new.kind is None:
                self._count()
            if not trial.failed:
                return
            if new.kind is None:
                new.kind = self.findings.new(trial)
                if new.kind is not None:
                    self._task.shrinking(new.kind)
            if new.kind is not None and new.kind in self.findings.kinds(trial):
                new.seen.append(trial)
                if new.is_costly:
                    raise RoundOver
                raise failure(new.kind)

        whole, steady = self._drive(look, most, number)
        if new.kind is None:
            return None
        # A search that ends by itself ends with the smallest example.
        trial = new.seen[-1] if whole else min(new.seen, key=lambda each: each.size)
        if steady:
            trial = self._smallest(trial, new.kind)
        return self._add(Finding(new.kind, trial, flaky=not steady), new.seen)

    def _smallest(self, trial: Trial, kind: FailureKind) -> Trial:
        """Leave out of an example what the failure does not need."""
        tries, costly = _LAST_TRIES, _COSTLY_FAILURES
        candidates = smaller(trial.example)
        with suppress(RoundOver):
            while tries and costly and (example := next(candidates, None)) is not None:
                tries -= 1
                other = self._attempt(example)
                costly -= other.is_costly
                if other.failed and kind in self.findings.kinds(other):
                    trial, candidates = other, smaller(example)
        return trial

    def _attempt(self, example: Example) -> Trial:
        if monotonic() >= self._end:
            raise RoundOver
        try:
            trial = attempt(example, self._executor)
        except OnnxoptError as error:
            raise Abort(error) from error
        self.findings.saw(trial)
        return trial

    def _add(self, finding: Finding, seen: Sequence[Trial]) -> Finding:
        """Explain and keep a finding; a search that is limited in time is a second late at most."""
        left = max(self._end - monotonic(), _LEAST_EXPLAINING)
        return self.findings.add(finding, seen, min(self._task.explain_time, left))


@dataclass(slots=True)
class _NewFailure:
    """The failure that a round has found, if any, and all examples of it."""

    kind: FailureKind | None = None
    seen: list[Trial] = field(default_factory=list)

    @property
    def is_costly(self) -> bool:
        costly = [trial for trial in self.seen if trial.is_costly]
        alone = any(isinstance(trial.example, NodeExample) for trial in costly)
        return len(costly) >= (_STEADY if alone else _COSTLY_FAILURES)
