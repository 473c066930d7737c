"""Audit a suite: find the mutants that it does not reject, and the reformulations that it rejects.

Every known mistake, every automatic mutant and every reformulation of an operator runs on the
suite's cases with this operator as the only node. Outputs are judged as in ``run``. The module
:mod:`~onnxopt_cli.analysis.node_audit` audits operators without a formula.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, groupby
from math import inf
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.analysis.node_audit import (
    EQUIVALENCE_INPUTS,
    RESOLVING_INPUTS,
    NodeOperator,
    NodeTrial,
    implementation_names,
    node_outcomes,
    proven_mutants,
)
from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging, Shard
from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.core.values import Array, describe
from onnxopt_cli.errors import BeyondLimit, Fault, InvalidCase
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.interpret.reformulations import reformulations
from onnxopt_cli.mutation.equivalence import distinguishing_input, equivalent
from onnxopt_cli.mutation.known_mistakes import known_mistakes
from onnxopt_cli.mutation.mutants import mutants
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.oracles import Oracles, resolved
from onnxopt_cli.workers.forked_processes import parallel
from onnxopt_cli.workers.interruption import Interruption

#: A mutant runs on a case with more than LARGE_ELEMENTS elements only if fewer than two other cases
#: reject the mutant.
LARGE_ELEMENTS = 40
# If an error exceeds _CLEAR_ERROR_RATIO times the tolerance, the mutant is clearly wrong. Then the
# mutant runs on no further case, except in a thorough audit.
_CLEAR_ERROR_RATIO = 1e7
#: Largest number of tasks in a batch. A process receives one batch at a time.
_BATCH = 16


#: An operator's name, a kind of implementation (a key of KINDS) and the implementation's index. The
#: kind INCONCLUSIVE denotes the task of finding the operator's inconclusive elements.
Task: TypeAlias = tuple[str, str, int]
INCONCLUSIVE = "inconclusive"
#: The id of a case, the name of an output, and the number of its inconclusive elements.
Inconclusive: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True)
class AuditedCase:
    """A case on which implementations of an operator can run.

    Attributes:
        case: the case's id.
        call: the node and its inputs.
        expected: the expected outputs with their tolerances.
    """

    case: str
    call: Call[Array]
    expected: Expected
    _excess: dict[bytes, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def order(self) -> tuple[bool, int]:
        """Sort key: cases that probably reject the most mutants come first.

        Small cases in double precision come first, the largest of them at the front. All other
        cases follow, the smallest of them at the front. The size of a case is its number of
        elements.
        """
        outputs = self.expected.outputs.values()
        doubles = all(getattr(value, "dtype", None) == np.float64 for value in outputs)
        elements = self.call.size
        first = doubles and elements <= LARGE_ELEMENTS
        return not first, -elements if first else elements

    def excess(self, outputs: Sequence[Array]) -> float:
        """Return the largest error / tolerance of any output; above 1, the outputs are rejected.

        Many implementations return the same outputs. Equal outputs are judged only once.
        """
        key = _digest(outputs)
        if key not in self._excess:
            expected = self.expected
            self._excess[key] = largest_share(
                expected.outputs, outputs, expected.tolerances.__getitem__
            )
        return self._excess[key]


def _digest(outputs: Sequence[Array]) -> bytes:
    """Return a hash of the types, shapes and elements of outputs."""
    outputs_hash = blake2b(digest_size=16)
    for output in outputs:
        outputs_hash.update(describe(output).encode() + output.tobytes())
    return outputs_hash.digest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of running one implementation on the cases of its operator.

    Attributes:
        name: the implementation's name.
        about: its defect in one sentence.
        excess: for each trial, which is a case or a generated node, the largest error / tolerance
            of any output; None if the trial was skipped.
        equivalent: whether the implementation and the operator agree on all inputs that were tried.
        distinguishing: attributes and inputs on which a survivor differs from the operator.
        mutant_kind: the kind of defect if the operator has no formula; otherwise empty.
        stillborn: whether the implementation fails on every node that its defect affects. A
            stillborn mutant counts neither as rejected nor as surviving.
        inputs: the number of additional inputs on which a mutant ran after no trial rejected it.
    """

    name: str
    about: str
    excess: tuple[float | None, ...]
    equivalent: bool = False
    distinguishing: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    mutant_kind: str = ""
    stillborn: bool = False
    inputs: int = 0

    @property
    def unresolved(self) -> bool:
        """Whether a mutant counts as equivalent although it ran on few inputs.

        The value is always False for operators with a formula.
        """
        return self.equivalent and bool(self.mutant_kind) and self.inputs < RESOLVING_INPUTS

    @property
    def rejecting(self) -> list[int]:
        """The indices of the trials that reject the implementation."""
        return [index for index, ratio in enumerate(self.excess) if ratio and ratio > 1]

    @property
    def rejected(self) -> bool:
        """Whether a trial rejects the implementation."""
        return bool(self.rejecting)

    @property
    def largest(self) -> float:
        """The largest error / tolerance of an output in any trial."""
        return max((ratio for ratio in self.excess if ratio is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class MutationScore:
    """The mutation score of a suite for one operator.

    Attributes:
        operator: the operator.
        trials: the cases, the smallest first.
        thorough: whether mutants ran on further cases after a clear rejection.
        inconclusive: the elements that the cases cannot judge.
        named: the verdicts on the known mistakes.
        automatic: the verdicts on the automatic mutants.
        right: the verdicts on the reformulations.
    """

    operator: Operator | NodeOperator
    trials: tuple[AuditedCase | NodeTrial, ...]
    thorough: bool
    inconclusive: tuple[Inconclusive, ...]
    named: tuple[Verdict, ...]
    automatic: tuple[Verdict, ...]
    right: tuple[Verdict, ...]

    @property
    def survivors(self) -> list[Verdict]:
        """Scored mutants that no case rejects."""
        return [verdict for verdict in self.scored if not verdict.rejected]

    @property
    def scored(self) -> list[Verdict]:
        """Mutants that are neither equivalent nor stillborn."""
        wrong = self.named + self.automatic
        return [verdict for verdict in wrong if not (verdict.equivalent or verdict.stillborn)]

    @property
    def value(self) -> float | None:
        """The share of mutants that the cases reject; None if no mutant is scored."""
        scored = self.scored
        rejected = sum(verdict.rejected for verdict in scored)
        return rejected / len(scored) if scored else None

    @property
    def least_value(self) -> float | None:
        """The share of mutants that the cases reject if unresolved mutants count as survivors."""
        counted = len(self.scored) + len(self.unresolved)
        rejected = sum(verdict.rejected for verdict in self.scored)
        return rejected / counted if counted else None

    @property
    def unresolved(self) -> list[Verdict]:
        """Mutants that count as equivalent although they ran on few inputs."""
        return [verdict for verdict in self.automatic if verdict.unresolved]

    @property
    def proven(self) -> Mapping[str, str]:
        """The proof for each mutant that is proven equivalent. Such a mutant runs on no case."""
        if isinstance(self.operator, Operator):
            return {}
        return proven_mutants([trial for trial in self.trials if isinstance(trial, NodeTrial)])

    @property
    def false_alarms(self) -> list[tuple[Verdict, str]]:
        """Reformulations that a case rejects, with the first such case."""
        alarms = (verdict for verdict in self.right if verdict.rejected)
        return [(verdict, self.trials[verdict.rejecting[0]].case) for verdict in alarms]

    @property
    def redundant(self) -> list[str] | None:
        """Cases that reject only mutants which other cases also reject.

        The value is None if the audit is not thorough. If one redundant case is removed from the
        suite, the suite still rejects the same mutants.
        """
        if not self.thorough:
            return None
        rejecting = [verdict.rejecting for verdict in self.named + self.automatic]
        needed = {indices[0] for indices in rejecting if len(indices) == 1}
        return [trial.case for index, trial in enumerate(self.trials) if index not in needed]


def find_trials(
    cases: Sequence[Case], judging: Judging
) -> tuple[dict[str, list[AuditedCase]], list[Fault]]:
    """Read the cases that can be audited, and group them by operator.

    Returns:
        The trials of each operator, the smallest first, and the faults of invalid cases.
    """
    trials: dict[str, list[AuditedCase]] = {operator.name: [] for operator in registry().operators}
    problems: list[Fault] = []
    # The error bounds of all elements are derived in one step. Otherwise, each mutant would require
    # new derivations, because each mutant is wrong in different elements.
    oracles = Oracles(judging, bound_once=True)
    for case in cases:
        try:
            problem = case.load()
        except BeyondLimit:
            continue
        except InvalidCase as error:
            problems += error.problems
            continue
        # Trajectories are skipped, because other cases test the single steps.
        call = None if problem.must_reject or problem.trajectory else problem.call
        if call is None:
            continue
        expected = resolved(oracles.expected(problem))
        if expected.unusable:
            problems.append(Fault(str(case.location), f"{case.id}: contradicts the formula"))
        else:
            expected = expected.in_order(problem.model.graph.node[0].output)
            trials[call.operator.name].append(AuditedCase(case.id, call, expected))
    for operator_trials in trials.values():
        operator_trials.sort(key=lambda trial: trial.call.size)
    return trials, problems


def audit(
    trials: dict[str, list[AuditedCase]],
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    thorough: bool = True,
    shard: Shard | None = None,
    elsewhere: Callable[[Sequence[Task]], Iterable[Verdict | Sequence[Inconclusive]]] | None = None,
    node_trials: Mapping[str, Sequence[NodeTrial]] | None = None,
    elsewhere_nodes: bool = False,
    inputs: int = EQUIVALENCE_INPUTS,
    seconds: float = inf,
    interruption: Interruption | None = None,
) -> list[MutationScore]:
    """Compute the mutation score of every operator with trials.

    Args:
        trials: from :func:`find_trials`.
        jobs: number of processes.
        progress: called with the numbers of finished and of all implementations.
        thorough: whether to also find redundant cases; the audit then takes many times as long.
        shard: the part of the implementations to audit; None for all.
        elsewhere: runs tasks on other machines, and yields their outcomes in order; None to run the
            tasks on this machine.
        node_trials: from :func:`~onnxopt_cli.analysis.node_audit.find_node_trials`.
        elsewhere_nodes: whether ``elsewhere`` also yields the outcomes of operators without a
            formula; otherwise these tasks run on this machine.
        inputs: for operators without a formula, the largest number of additional nodes on which a
            surviving mutant runs.
        seconds: processor time after which no more of these nodes are drawn.
        interruption: records a signal from the user. The signal ends the audit, and the scores then
            count only the finished implementations. If None, KeyboardInterrupt is raised instead.
    """
    present = [operator for operator in registry().operators if trials[operator.name]]
    nodes = node_trials or {}
    tasks = _all_tasks(present, nodes)
    if shard:
        tasks = tasks[shard.index - 1 :: shard.count]
    work = partial(
        _batch_outcomes,
        trials=trials,
        thorough=thorough,
        node_trials=nodes,
        inputs=inputs,
        seconds=seconds,
    )
    distributed = [
        task for task in tasks if elsewhere and (elsewhere_nodes or task[0] not in nodes)
    ]
    # A single process receives all tasks as one batch, because every batch draws its own additional
    # nodes.
    limit = _BATCH if jobs > 1 else len(tasks)
    batches = [*_batches(tasks[len(distributed) :], limit)]
    outcomes = chain(
        elsewhere(distributed) if elsewhere and distributed else (),
        chain.from_iterable(parallel(work, batches, jobs, chunk=1)),
    )
    by_kind: dict[tuple[str, str], list[Any]] = defaultdict(list)
    try:
        for count, (task, result) in enumerate(zip(tasks, outcomes, strict=True), start=1):
            progress(count, len(tasks))
            name, kind, _ = task
            by_kind[name, kind] += [result] if isinstance(result, Verdict) else result
    except KeyboardInterrupt:
        if interruption is None:
            raise
        examined = {name for name, _ in by_kind}
        present = [operator for operator in present if operator.name in examined]
        nodes = {name: trials for name, trials in nodes.items() if name in examined}
        thorough = False
    audited: list[tuple[Operator | NodeOperator, Sequence[AuditedCase | NodeTrial]]] = [
        *((operator, trials[operator.name]) for operator in present),
        *((own_trials[0].operator, own_trials) for own_trials in nodes.values()),
    ]
    return [
        MutationScore(
            operator,
            tuple(own_trials),
            thorough and not shard,
            *(tuple(by_kind[operator.name, kind]) for kind in (INCONCLUSIVE, *KINDS)),
        )
        for operator, own_trials in audited
    ]


def _all_tasks(
    operators: Iterable[Operator], node_trials: Mapping[str, Sequence[NodeTrial]]
) -> list[Task]:
    """Return all tasks: first of operators with a formula, then of operators without one."""
    tasks: list[Task] = []
    for operator in operators:
        for kind, implementations in KINDS.items():
            indices = range(len(implementations(operator)))
            tasks += [(operator.name, kind, index) for index in indices]
        # The task INCONCLUSIVE comes last, because it reuses error bounds from the other tasks.
        tasks.append((operator.name, INCONCLUSIVE, 0))
    for name, trials in node_trials.items():
        for kind in KINDS:
            indices = range(len(implementation_names(kind, trials)))
            tasks += [(name, kind, index) for index in indices]
        tasks.append((name, INCONCLUSIVE, 0))
    return tasks


def _batches(tasks: Sequence[Task], limit: int) -> Iterator[Sequence[Task]]:
    """Split tasks into batches of at most ``limit`` tasks with the same operator and kind."""
    for _, group in groupby(tasks, key=lambda task: task[:2]):
        remaining = [*group]
        for start in range(0, len(remaining), limit):
            yield remaining[start : start + limit]


def _batch_outcomes(
    tasks: Sequence[Task],
    trials: Mapping[str, Sequence[AuditedCase]],
    node_trials: Mapping[str, Sequence[NodeTrial]],
    inputs: int,
    seconds: float,
    *,
    thorough: bool,
) -> Sequence[Verdict | Sequence[Inconclusive]]:
    """Return the outcomes of tasks of one operator and kind."""
    name, kind, _ = tasks[0]
    if name not in node_trials:
        return [outcome(task, trials, thorough=thorough) for task in tasks]
    own_trials = node_trials[name]
    if kind == INCONCLUSIVE:
        return [[entry for trial in own_trials for entry in trial.inconclusive()]]
    all_names = implementation_names(kind, own_trials)
    names = [all_names[index] for _, _, index in tasks]
    judged = node_outcomes(
        names, kind, own_trials, thorough=thorough, inputs=inputs, seconds=seconds
    )
    return [
        Verdict(
            implementation_name,
            entry.about,
            entry.excess,
            entry.equivalent,
            entry.distinguishing,
            entry.mutant_kind,
            entry.stillborn,
            entry.inputs,
        )
        for implementation_name, entry in zip(names, judged, strict=True)
    ]


def outcome(
    task: Task, trials: Mapping[str, Sequence[AuditedCase]], *, thorough: bool
) -> Verdict | Sequence[Inconclusive]:
    """Run a task: return the verdict on an implementation, or the inconclusive elements."""
    name, kind, index = task
    operator_trials = trials[name]
    if kind == INCONCLUSIVE:
        return [
            (trial.case, output, elements)
            for trial in operator_trials
            if trial.expected.derive is not None
            for output, derived_output in trial.expected.derive().items()
            if (elements := derived_output.inconclusive)
        ]
    audited, is_mutant = implementation(task), kind != "right"
    excess: list[float | None] = [None] * len(operator_trials)
    largest, rejections = 0.0, 0
    for index, trial in sorted(enumerate(operator_trials), key=lambda pair: pair[1].order):
        # Reformulations run on all cases.
        if is_mutant and rejections > 1 and trial.call.size > LARGE_ELEMENTS:
            continue
        if is_mutant and largest > _CLEAR_ERROR_RATIO and not thorough:
            break
        excess[index] = ratio = trial.excess(audited.run(trial.call))
        largest, rejections = max(largest, ratio), rejections + (ratio > 1)
    is_equivalent, distinguishing = False, None
    if is_mutant and not rejections:
        operator = _operator(name)
        is_equivalent = equivalent(operator, audited)
        distinguishing = None if is_equivalent else distinguishing_input(operator, audited)
    return Verdict(audited.name, audited.about, tuple(excess), is_equivalent, distinguishing)


def implementation(task: Task) -> Implementation:
    """Return the implementation that a task tests; its operator must have a formula."""
    name, kind, index = task
    return KINDS[kind](_operator(name))[index]


def _operator(name: str) -> Operator:
    return next(operator for operator in registry().operators if operator.name == name)


#: Functions that return the implementations of an operator, by the kind of implementation.
#: The kinds are names of fields of :class:`MutationScore`.
KINDS = {"named": known_mistakes, "automatic": mutants, "right": reformulations}
