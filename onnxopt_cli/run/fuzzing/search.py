"""The search for failures: hypothesis makes the choices, and makes failing examples smaller.

Each round looks for one kind of failure that is not known yet, and shrinks it; the next round goes
on with the kinds that are left. How often the backend is asked does not depend on the clock, unless
there is a limit on the time, so that a seed gives the same findings again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from onnxopt_cli.errors import OnnxoptError, UsageError
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.run.executors import Executor
from onnxopt_cli.run.fuzzing.example import Example
from onnxopt_cli.run.fuzzing.examples import examples, refusals
from onnxopt_cli.run.fuzzing.findings import Finding, Findings, Kind
from onnxopt_cli.run.fuzzing.kinds import kinds_of
from onnxopt_cli.run.fuzzing.smaller import smaller
from onnxopt_cli.run.fuzzing.trial import Interrupted, Trial, attempt

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

#: Hypothesis remembers all examples of a round, so a round ends after so many.
_ROUND = 2000
#: Of failures that cost a process or the timeout so many are enough to shrink one.
_COSTLY_FAILURES = 30
#: Tries to make a failure smaller when hypothesis is done.
_LAST_TRIES = 300
#: As many earlier failures are replayed.
_REPLAYED = 1000


@dataclass(frozen=True, slots=True)
class Task:
    """What to search, and for how long.

    Attributes:
        operators: whose examples are drawn.
        executor: the backend.
        seed: of all choices.
        examples: how many to try; None for no limit.
        seconds: how long to search; None for no limit.
        memory: the folder in which failures are remembered from run to run.
        tried: called after each example with the number of examples so far.
        shrinking: called with a new kind of failure, before it is made smaller.
    """

    operators: Sequence[Operator]
    executor: Executor
    seed: int
    examples: int | None
    seconds: float | None
    memory: Path
    tried: Callable[[int], None] = lambda _: None
    shrinking: Callable[[Kind], None] = lambda _: None


class Search:
    """A search in progress.

    Attributes:
        tried: number of examples so far, those tried to shrink a failure not among them.
        findings: what was found.

    Raises:
        UsageError: if hypothesis is not installed.
    """

    def __init__(self, task: Task) -> None:
        if find_spec("hypothesis") is None:
            raise UsageError("fuzzing needs hypothesis", hint='pip install "onnxopt[fuzz]"')
        self.tried = 0
        self.findings = Findings()
        self._task = task
        self._rounds = 0
        self._end = float("inf") if task.seconds is None else monotonic() + task.seconds

    @property
    def _over(self) -> bool:
        spent = self._task.examples is not None and self.tried >= self._task.examples
        return spent or monotonic() >= self._end

    def run(self) -> Iterator[Finding]:
        """Yield each distinct failure, made as small as possible; earlier ones first.

        Raises:
            Interrupted: if the user wants the run to end.
            BackendUnavailable: if the backend cannot be started any more.
        """
        yield from self._replay()
        yield from self._refusals()
        while not self._over:
            finding = self._search()
            if finding is not None:
                yield finding

    def _replay(self) -> Iterator[Finding]:
        """Try the failures of earlier runs; what no longer fails is forgotten."""
        from hypothesis import Phase

        failures: list[Trial] = []

        def replay(example: Example) -> None:
            trial = self._attempt(example)
            if trial.failed:
                failures.append(trial)
                raise _failure(self.findings.kinds(trial)[0])

        self._drive(replay, [Phase.reuse], _REPLAYED)
        # What is of one kind alone is its best example.
        for trial in sorted(failures, key=lambda each: len(kinds_of(each))):
            kind = self.findings.new(trial)
            if kind is not None:
                smallest = self._smallest(trial, kind)
                yield self.findings.add(Finding(kind, smallest, replayed=True), ())

    def _refusals(self) -> Iterator[Finding]:
        """Try what a right backend must refuse; other failures of the same examples can wait."""
        for example in refusals(self._task.operators):
            if self._over:
                return
            try:
                trial = self._attempt(example)
            except _RoundOver:
                return
            except _Abort as abort:
                raise abort.reason from None
            self._count()
            kind = self.findings.new(trial) if trial.accepted_a_breach else None
            if kind is not None:
                yield self.findings.add(Finding(kind, trial), ())

    def _count(self) -> None:
        self.tried += 1
        self._task.tried(self.tried)

    def _search(self) -> Finding | None:
        """Try a round of examples, up to the first failure of a new kind; make that smaller."""
        from hypothesis import Phase

        hunt = _Hunt()

        def hunt_for(example: Example) -> None:
            trial = self._attempt(example)
            if hunt.kind is None:
                self._count()
            if not trial.failed:
                return
            if hunt.kind is None:
                hunt.kind = self.findings.new(trial)
                if hunt.kind is not None:
                    self._task.shrinking(hunt.kind)
            if hunt.kind is not None and hunt.kind in self.findings.kinds(trial):
                hunt.seen.append(trial)
                if hunt.is_costly:
                    raise _RoundOver
                raise _failure(hunt.kind)

        left = _ROUND if self._task.examples is None else self._task.examples - self.tried
        self._rounds += 1
        whole, steady = self._drive(hunt_for, [Phase.generate, Phase.shrink], min(_ROUND, left))
        if hunt.kind is None:
            return None
        # A search that ends by itself ends with the smallest example.
        trial = hunt.seen[-1] if whole else min(hunt.seen, key=lambda each: each.size)
        if steady:
            trial = self._smallest(trial, hunt.kind)
        return self.findings.add(Finding(hunt.kind, trial, flaky=not steady), hunt.seen)

    def _smallest(self, trial: Trial, kind: Kind) -> Trial:
        """Leave out of an example what the failure does not need."""
        tries, costly = _LAST_TRIES, _COSTLY_FAILURES
        candidates = smaller(trial.example)
        try:
            while tries and costly and (example := next(candidates, None)) is not None:
                tries -= 1
                other = self._attempt(example)
                costly -= other.is_costly
                if other.failed and kind in self.findings.kinds(other):
                    trial, candidates = other, smaller(example)
        except _RoundOver:
            pass
        except _Abort as abort:
            raise abort.reason from None
        return trial

    def _attempt(self, example: Example) -> Trial:
        if monotonic() >= self._end:
            raise _RoundOver
        try:
            return attempt(example, self._task.executor)
        except (Interrupted, OnnxoptError) as error:
            raise _Abort(error) from error

    def _drive(
        self, attempted: Callable[[Example], None], phases: list[Any], most: int
    ) -> tuple[bool, bool]:
        """Let hypothesis call a function with examples; it raises where one fails.

        Returns:
            Whether it ended by itself, and whether failures failed every time.
        """
        import hypothesis
        from hypothesis import HealthCheck, Phase, Verbosity
        from hypothesis.errors import Flaky

        settings = hypothesis.settings(
            max_examples=most,
            phases=phases,
            database=self._database(),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=Phase.reuse in phases,
            print_blob=False,
        )

        def test(example: Example) -> None:
            # The database knows a test by its source, which must be one for all phases.
            attempted(example)

        seed = hypothesis.seed(_mixed(self._task.seed, self._rounds))
        # A seed turns the database off; settings that come after it turn it on again.
        given: Callable[[Any], Any] = hypothesis.given(examples(tuple(self._task.operators)))
        driven = settings(seed(given(test)))
        try:
            with _at_home_in(self._task.memory), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                driven()
        except _RoundOver:
            return False, True
        except _Abort as abort:
            raise abort.reason from None
        except Flaky:
            return False, False
        except (_Failure, SkipTest):
            # Skipped is what has nothing to replay.
            return True, True
        except ExceptionGroup as group:
            if group.split((_Failure, Flaky))[1] is not None:
                raise
        return True, True

    def _database(self) -> ExampleDatabase:
        from hypothesis.database import DirectoryBasedExampleDatabase

        # Choices mean something only for the same operators.
        names = [self._task.executor.name, *(it.qualified_name for it in self._task.operators)]
        digest = blake2b("\n".join(names).encode("utf-8", "replace"), digest_size=8).hexdigest()
        return DirectoryBasedExampleDatabase(self._task.memory / digest)


@contextmanager
def _at_home_in(folder: Path) -> Iterator[None]:
    """Let hypothesis leave its own notes in a folder, and nowhere else."""
    from hypothesis.configuration import set_hypothesis_home_dir

    set_hypothesis_home_dir(folder)
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)


@dataclass(slots=True)
class _Hunt:
    """The failure that a round has found, if any, and all examples of it."""

    kind: Kind | None = None
    seen: list[Trial] = field(default_factory=list)

    @property
    def is_costly(self) -> bool:
        return sum(trial.is_costly for trial in self.seen) >= _COSTLY_FAILURES


class _Failure(Exception):
    """An example failed; hypothesis tells failures apart by their class."""


class _RoundOver(BaseException):
    """The round ends here; not an Exception, which hypothesis would take for a failure."""


class _Abort(BaseException):
    """The whole search ends here."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


@cache
def _failure_class(kind: Kind) -> type[_Failure]:
    return type("Failure", (_Failure,), {"__doc__": kind.what})


def _failure(kind: Kind) -> _Failure:
    return _failure_class(kind)(kind.what)


def _mixed(seed: int, rounds: int) -> int:
    """Return a seed of its own for each round."""
    return int.from_bytes(blake2b(f"{seed}/{rounds}".encode(), digest_size=8).digest(), "big")
