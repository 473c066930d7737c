"""Search for failures.

Each round searches for one failure of a new kind, and shrinks it. The next round searches for
another kind. Without a time limit, the examples that run on the backend do not depend on the clock,
so a seed reproduces the findings.

In a cluster, a worker only reports whether a portion of the examples contains a failure of a new
kind. This process then searches the portion again, and shrinks the failure. The examples of this
second search may run on any worker. Because only this process shrinks failures, each failure is
shrunk once, and the findings depend neither on the number of workers nor on the order of their
responses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from onnxopt_cli.backends.host import Incident
from onnxopt_cli.config.run_config import Execution
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.record import explanation_from_json, explanation_to_json
from onnxopt_cli.core.text import nearest
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import BackendUnavailable, NothingSelected, OnnxoptError, UsageError
from onnxopt_cli.fuzz.choices import has_result
from onnxopt_cli.fuzz.drawn_examples import Example, GeneratedExample, NodeExample
from onnxopt_cli.fuzz.driver import (
    Abort,
    RoundOver,
    Task,
    drive,
    failure,
    refusals,
)
from onnxopt_cli.fuzz.findings import (
    FailureKind,
    Finding,
    Findings,
    Trial,
    attempt,
    kinds_of,
)
from onnxopt_cli.fuzz.random_graph import RandomGraph
from onnxopt_cli.operators.call import Call, bind
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.run.executors import (
    Executor,
    open_executors,
    weak_isolation,
)
from onnxopt_cli.suites.operators.generators import GENERATORS, NOT_COVERED
from onnxopt_cli.workers.cluster.dask_client import LostError
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.private_folder import temporary_folder

if TYPE_CHECKING:
    from onnxopt_cli.run.remote import Remote

T = TypeVar("T")

#: Number of examples in a portion. Shards and the workers of a cluster process whole portions.
#: Hypothesis keeps all examples of a portion in memory.
_PORTION_EXAMPLES = 200
#: Number of examples in a search without a limit.
_ENDLESS = 1 << 40
#: Shrinking ends after this number of failures that require a restart of the worker.
_MAX_COSTLY_FAILURES = 30
#: Hypothesis considers a failure reproducible if the example has failed this number of times. From
#: then on, smaller() shrinks single nodes and random graphs, because it needs fewer attempts than
#: hypothesis.
_REPRODUCIBLE_FAILURES = 2
#: Maximum number of examples from smaller() that are tried to shrink a failure.
_MAX_SHRINK_ATTEMPTS = 300
#: Explaining a finding may always take this number of seconds, even if the search then exceeds its
#: time limit.
_MIN_EXPLAIN_SECONDS = 1.0
#: The largest number of failures of earlier runs that are replayed.
_MAX_REPLAYED_FAILURES = 1000
#: The elements of a tensor are split into this number of parts. For each part, an example that
#: contains only this part is tried.
_ELEMENT_PARTS = 8


class Chosen(NamedTuple):
    """The operators under test in a search.

    Attributes:
        operators: the operators with a formula.
        generated: the names of operators without a formula.
    """

    operators: list[Operator]
    generated: list[str]


def chosen_operators(names: Sequence[str], excluded: Sequence[str] = ()) -> Chosen:
    """Return the operators with the given names, except for excluded operators.

    Args:
        names: names of operators; empty for all operators with a formula.
        excluded: names of operators to leave out.

    Raises:
        NothingSelected: if every operator is excluded.
        UsageError: if a name is unknown.
    """
    operator_names = [operator.name for operator in registry().operators]
    for name in (*names, *excluded):
        if registry().named(name) is None and name not in GENERATORS:
            for reason, operators in NOT_COVERED.items():
                if name in operators:
                    raise UsageError(f"no examples can be generated for {reason}, such as {name}")
            message = f"no operator {name!r} with a formula or a generator"
            hint = nearest(name, [*operator_names, *GENERATORS], ", ".join(operator_names))
            raise UsageError(message, hint=hint)
    included = {registry().named(name) for name in names or operator_names}
    included -= {registry().named(name) for name in excluded}
    generated = [name for name in dict.fromkeys(names) if registry().named(name) is None]
    chosen = Chosen(
        [operator for operator in registry().operators if operator in included],
        [name for name in generated if name not in excluded],
    )
    if not any(chosen):
        raise NothingSelected("every operator is excluded")
    return chosen


class _Portions:
    """The portions into which the examples of a search are divided.

    Args:
        task: the search.
        tried: number of examples that were tried before the first portion.

    Attributes:
        numbers: the numbers of the portions in this shard of the search. The number of a portion
            determines its examples, regardless of which process tries them.
    """

    def __init__(self, task: Task, tried: int) -> None:
        first, step = 1, 1
        if task.shard:
            first, step = task.shard.index, task.shard.count
            # The first shard tries all invalid nodes before other examples, but may skip the
            # invalid nodes of some operators. All shards must divide the examples in the same way.
            # Therefore, the number of tried examples includes the skipped nodes.
            tried = sum(1 + len(broken) for _, broken in refusals(task.operators))
        self._examples = _ENDLESS if task.examples is None else max(0, task.examples - tried)
        self.numbers = range(first, -(-self._examples // _PORTION_EXAMPLES) + 1, step)

    def size(self, number: int) -> int:
        """Return the number of examples that a portion contains."""
        return min(_PORTION_EXAMPLES, self._examples - (number - 1) * _PORTION_EXAMPLES)


class Search:
    """A search in progress, created by :func:`open_search`.

    Attributes:
        tried: number of tried examples, not counting those that were tried to shrink a failure.
        findings: the findings.
    """

    def __init__(self, task: Task, executor: Executor, interruption: Interruption) -> None:
        self.tried = 0
        self.findings = Findings(executor)
        self._task = task
        self._executor = executor
        self._interruption = interruption
        self._drive = partial(drive, task)
        self._end = float("inf")
        self._most_tried = 0

    @property
    def _over(self) -> bool:
        spent = self._task.examples is not None and self.tried >= self._task.examples
        return spent or monotonic() >= self._end

    def run(self) -> Iterator[Finding]:
        """Yield each distinct failure after it has been shrunk.

        Failures of earlier runs come first. An interruption by the user ends the search early.

        Raises:
            BackendUnavailable: if the backend cannot be restarted.
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
        """Start the clock.

        The time limit does not include the start of the backend.
        """
        if self._task.seconds is not None:
            self._end = monotonic() + self._task.seconds

    def outside(self) -> list[Incident]:
        """Shut the backend down, and return the failures that occurred outside of examples."""
        return [] if self._interruption.signal else self._executor.finish()

    def _replay(self) -> Iterator[Finding]:
        """Try the examples that failed in earlier runs.

        Hypothesis forgets the examples that pass now.
        """
        failures: list[Trial] = []

        def replay(example: Example) -> None:
            trial = self._attempt(example)
            if trial.failed:
                failures.append(trial)
                raise failure(self.findings.kinds(trial)[0])

        self._drive(replay, _MAX_REPLAYED_FAILURES, 0)
        # Examples with a single kind of failure come first.
        for trial in sorted(failures, key=lambda trial: len(kinds_of(trial))):
            kind = self.findings.new(trial)
            if kind is not None:
                smallest = self._smallest(trial, kind)
                yield self._add(Finding(kind, smallest, replayed=True), ())

    def _refusals(self) -> Iterator[Finding]:
        """Try the invalid nodes, which a correct backend must reject.

        For each operator, a simple valid node is tried first. If the worker must be restarted after
        this node, the invalid nodes of the operator are skipped, because they would probably
        require a restart as well. Failures of valid nodes are found and reported in later rounds.
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
        self._show_tried()

    def _show_tried(self) -> None:
        """Show the progress. It does not decrease when a portion is searched again."""
        self._most_tried = max(self._most_tried, self.tried)
        self._task.tried(self._most_tried)

    def _rounds(self) -> Iterator[Finding]:
        """Search each portion repeatedly until it has no failure of a new kind."""
        portions = _Portions(self._task, self.tried)
        for number, is_new in zip(portions.numbers, self._may_have_new(portions), strict=False):
            tried, size = self.tried, portions.size(number)
            most_tried = tried
            while is_new:
                # Examples of other portions must not affect explanations. Otherwise, the
                # explanations would depend on the order of the workers' responses.
                self.findings.forget_passed()
                self.tried = tried
                try:
                    finding = self._search(number, size)
                finally:
                    # A portion may be searched several times with the same examples, but each
                    # example is counted only once.
                    self.tried = most_tried = max(self.tried, most_tried)
                if finding is None:
                    break
                yield finding
            # If the time limit ended the portion early, self.tried already has the exact value.
            if not is_new or monotonic() < self._end:
                self.tried = tried + size
            self._show_tried()

    def has_new(self, number: int, most: int) -> bool:
        """Return whether a portion of the examples contains a failure of a new kind.

        Args:
            number: number of the portion.
            most: number of examples of the portion.
        """
        self._begin()
        is_new = False

        def try_example(example: Example) -> None:
            nonlocal is_new
            trial = self._attempt(example)
            is_new = trial.failed and self.findings.new(trial) is not None
            if is_new:
                raise RoundOver

        try:
            self._drive(try_example, most, number)
        except Abort as abort:
            raise abort.reason from None
        return is_new

    def _may_have_new(self, _portions: _Portions) -> Iterator[bool]:
        """Yield whether the next portion may contain a new failure, until the search ends.

        On a single machine, this is not known in advance, so the result is always True.
        """
        return iter(lambda: not self._over, False)

    def _search(self, number: int, most: int) -> Finding | None:
        """Try the examples of a round until a failure of a new kind occurs, and shrink the failure.

        Args:
            number: number of the round, which determines its examples.
            most: number of examples in the round.
        """
        new = _NewFailure()

        def try_example(example: Example) -> None:
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
                new.trials.append(trial)
                if new.is_costly:
                    raise RoundOver
                raise failure(new.kind)

        completed, reproducible = self._drive(try_example, most, number)
        if new.kind is None:
            return None
        # The last example of a completed round is the smallest failing example.
        trial = new.trials[-1] if completed else min(new.trials, key=lambda trial: trial.size)
        if reproducible:
            trial = self._smallest(trial, new.kind)
        return self._add(Finding(new.kind, trial, flaky=not reproducible), new.trials)

    def _smallest(self, trial: Trial, kind: FailureKind) -> Trial:
        """Remove parts of an example as long as its kind of failure remains.

        The result is the trial of the smallest example, which may be ``trial`` itself.
        """
        attempts, costly = _MAX_SHRINK_ATTEMPTS, _MAX_COSTLY_FAILURES
        candidates = smaller(trial.example)
        with suppress(RoundOver):
            while attempts > 0 and costly > 0 and (example := next(candidates, None)) is not None:
                attempts -= 1
                candidate = self._attempt(example)
                costly -= candidate.is_costly
                if candidate.failed and kind in self.findings.kinds(candidate):
                    trial, candidates = candidate, smaller(example)
        return trial

    def _attempt(self, example: Example) -> Trial:
        if monotonic() >= self._end:
            raise RoundOver
        try:
            trial = attempt(example, self._executor)
        except OnnxoptError as error:
            raise Abort(error) from error
        self.findings.record(trial)
        return trial

    def _add(self, finding: Finding, similar: Sequence[Trial]) -> Finding:
        """Explain a finding and store it.

        The explanation may exceed the time limit by a second.
        """
        seconds = max(self._end - monotonic(), _MIN_EXPLAIN_SECONDS)
        return self.findings.add(finding, similar, min(self._task.explain_time, seconds))


@dataclass(slots=True)
class _NewFailure:
    """A failure of a new kind that occurred in a round.

    Attributes:
        kind: the new kind; None until a failure of a new kind occurs.
        trials: the examples with a failure of the new kind, in the order in which they were tried.
    """

    kind: FailureKind | None = None
    trials: list[Trial] = field(default_factory=list)

    @property
    def is_costly(self) -> bool:
        """Whether hypothesis should stop shrinking the failure."""
        if isinstance(self.trials[-1].example, RandomGraph):
            return len(self.trials) >= _REPRODUCIBLE_FAILURES
        costly = [trial for trial in self.trials if trial.is_costly]
        single_node = any(isinstance(trial.example, NodeExample) for trial in costly)
        return len(costly) >= (_REPRODUCIBLE_FAILURES if single_node else _MAX_COSTLY_FAILURES)


@contextmanager
def open_search(
    task: Task,
    interruption: Interruption,
    tell: Callable[[str], None] = lambda _: None,
    open_progress: OpenProgress = hide_progress,
) -> Iterator[Search]:
    """Start the backend and yield a search; afterwards, shut the backend down.

    Args:
        task: the examples, the backend and the limits of the search.
        interruption: set when the user interrupts the search.
        tell: called with each warning, before the search begins.
        open_progress: opens a progress display while an adapter is installed.

    Raises:
        UsageError: if the backend specification is invalid, or hypothesis is not installed.
        BackendUnavailable: if the backend does not start.
    """
    limits = task.execution.limits
    if task.seconds is not None:
        limits = replace(limits, timeout=min(limits.timeout, task.seconds))
    execution = replace(task.execution, limits=limits, jobs=1)
    opened = open_executors(
        [task.backend], execution, interruption, cluster=task.cluster, open_progress=open_progress
    )
    with opened as (executor,):
        if find_spec("hypothesis") is None:
            raise UsageError("fuzzing needs hypothesis", hint='pip install "onnxopt[fuzz]"')
        if weak := weak_isolation(execution, [task.backend]):
            tell(weak)
        executor.ready()
        kind = _ClusterSearch if task.cluster else Search
        yield kind(task, executor, interruption)


class _ClusterSearch(Search):
    """A search that all workers of a cluster perform."""

    def _may_have_new(self, portions: _Portions) -> Iterator[bool]:
        workers = cast("Remote", self._executor).workers
        sent = _Requests(self._task, self.findings, portions, self._end)

        def stop() -> bool:
            return monotonic() >= self._end

        function = f"{__name__}:has_new"
        for is_new in workers.spread(function, sent, lambda _, value: bool(value), stop=stop):
            if isinstance(is_new, LostError):
                raise BackendUnavailable(f"workers lost with their machines: {is_new}")
            yield is_new


class _Requests(Sequence[dict[str, Any]]):
    """The requests to search the portions of a task.

    A request is created only when it is sent. It contains the failures that are known at that time,
    and the remaining time.
    """

    def __init__(self, task: Task, findings: Findings, portions: _Portions, end: float) -> None:
        self._task, self._findings, self._portions, self._end = task, findings, portions, end

    def __len__(self) -> int:
        return len(self._portions.numbers)

    def __getitem__(self, place: Any) -> Any:
        task, number = self._task, self._portions.numbers[place]
        return {
            "operators": [*(operator.name for operator in task.operators), *task.generated],
            "single_nodes": task.single_nodes,
            "graphs": task.graphs,
            "seed": task.seed,
            "number": number,
            "size": self._portions.size(number),
            "seconds": None if task.seconds is None else self._end - monotonic(),
            "known": [
                [*astuple(kind), explanation and explanation_to_json(explanation)]
                for kind, explanation in list(self._findings.all.items())
            ],
        }


def has_new(executors: Sequence[Executor], portion: Mapping[str, Any]) -> bool:
    """Return whether a portion contains a failure of a new kind. This function runs on a worker.

    Args:
        executors: a list of a single executor, which runs the backend.
        portion: the request, an element of :class:`_Requests`.
    """
    (executor,) = executors
    with temporary_folder() as memory:
        chosen = chosen_operators(portion["operators"])
        task = Task(
            chosen.operators,
            executor.specification.given,
            Execution(),
            portion["seed"],
            examples=None,
            seconds=portion["seconds"],
            memory=Path(memory),
            generated=chosen.generated,
            single_nodes=portion["single_nodes"],
            graphs=portion["graphs"],
        )
        search = Search(task, executor, Interruption())
        for *kind, explanation in portion["known"]:
            search.findings.all[FailureKind(*kind)] = explanation and explanation_from_json(
                explanation
            )
        return search.has_new(portion["number"], portion["size"])


def smaller(example: Example) -> Iterator[Example]:
    """Yield smaller examples, the smallest first.

    Hypothesis shrinks choices. A single choice determines a whole tensor or a whole graph, so
    hypothesis cannot remove elements or nodes. This function removes them.

    Repeated application to its own results ends after finitely many steps. For a model of several
    nodes of operators with a formula, nothing is yielded.
    """
    if isinstance(example, RandomGraph):
        yield from filter(_is_computable, example.smaller())
    if isinstance(example, GeneratedExample):
        yield from example.smaller()
    if not isinstance(example, NodeExample):
        return
    operator = example.operator
    node = bind(operator, [*example.inputs.values()], example.attributes)
    parts = chain(
        map(node.group, range(len(node.groups)) if len(node.groups) > 1 else ()),
        _fewer_elements(node),
        _single_precision(node),
        _fewer_attributes(node),
        _simple_numbers(node),
    )
    for part in parts:
        if has_result(operator, part.attributes, part.scalars):
            names = operator.input_names(len(part.groups))
            inputs = dict(zip(names, part.inputs, strict=True))
            yield replace(example, attributes=dict(part.attributes), inputs=inputs)


def _is_computable(graph: RandomGraph) -> bool:
    """Return whether onnx's reference can compute a graph."""
    try:
        graph.problem()
    except Exception:  # noqa: BLE001 - the reference raises any error
        return False
    return True


def _fewer_elements(node: Call[Array]) -> Iterator[Call[Array]]:
    for number, group in enumerate(node.groups):
        for fewer in _fewer(group):
            yield replace(node, groups=_exchanged(node.groups, number, fewer))
    for number, scalar in enumerate(node.scalars):
        if scalar.ndim:
            yield replace(node, scalars=_exchanged(node.scalars, number, scalar.reshape(())))


def _single_precision(node: Call[Array]) -> Iterator[Call[Array]]:
    with np.errstate(over="ignore"):
        single = [
            array.astype(np.float32) if array.dtype == np.float64 else array
            for array in node.inputs
        ]
    if any(array.dtype == np.float64 for array in node.inputs):
        yield bind(node.operator, single, node.attributes)


def _fewer_attributes(node: Call[Array]) -> Iterator[Call[Array]]:
    for item in node.operator.attributes:
        if item.name in node.attributes and not item.required:
            fewer = {key: value for key, value in node.attributes.items() if key != item.name}
            yield replace(node, attributes=fewer)


def _simple_numbers(node: Call[Array]) -> Iterator[Call[Array]]:
    first_tensor, arrays = len(node.scalars), node.inputs
    # The simplest rate is 1. With a rate of 0, most errors would not affect the outputs.
    simple = tuple(
        np.full_like(array, array.dtype.kind != "i" and place < first_tensor)
        for place, array in enumerate(arrays)
    )
    places = [place for place, array in enumerate(arrays) if _differ(array, simple[place])]
    # The first attempts simplify all inputs but one. If the backend fails one of them, few further
    # attempts are needed, which saves time if the failure is a crash.
    candidates = [
        _exchanged(simple, place, arrays[place])
        for place in (places if len(places) > 2 else ())  # noqa: PLR2004
    ]
    for place in places:
        candidates.append(_exchanged(arrays, place, simple[place]))
        ones = np.ones_like(arrays[place])
        if place >= first_tensor and _differ(arrays[place], ones):
            candidates.append(_exchanged(arrays, place, ones))
    for inputs in candidates:
        yield bind(node.operator, inputs, node.attributes)


def _fewer(group: tuple[Array, ...]) -> Iterator[tuple[Array, ...]]:
    """Yield groups with fewer elements; for a single element, groups of lower rank."""
    shape, size = group[0].shape, group[0].size
    full = tuple(np.broadcast_to(tensor, shape).ravel() for tensor in group)
    if size > 1:
        # Small parts are tried first. If the backend fails one of them, few further attempts are
        # needed, which saves time if the failure is a crash.
        for number in dict.fromkeys((min(_ELEMENT_PARTS, size), 2)):
            for places in np.array_split(np.arange(size), number):
                yield tuple(tensor[places] for tensor in full)
    elif size == 1 and shape:
        yield tuple(tensor.reshape(()) for tensor in full)
    elif len(shape) > 1:
        yield full


def _differ(left: Array, right: Array) -> bool:
    return left.tobytes() != right.tobytes()


def _exchanged(members: tuple[T, ...], place: int, member: T) -> tuple[T, ...]:
    return (*members[:place], member, *members[place + 1 :])
