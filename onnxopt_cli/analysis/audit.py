"""How good a suite is: which wrong implementations it rejects, and whether it rejects right ones.

Every case whose model is one node of an operator with a formula is put to every wrong
implementation of that operator, named and automatic, and to every right one that rounds
differently, and judged as ``run`` would judge it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Judging, Shard
from onnxopt_cli.core.compare import largest_share
from onnxopt_cli.core.tolerance import ErrorBound
from onnxopt_cli.core.values import Array
from onnxopt_cli.errors import Fault, InvalidCase
from onnxopt_cli.interpret.implementation import Implementation
from onnxopt_cli.interpret.reformulations import reformulations
from onnxopt_cli.mutation.equivalence import distinguishing_input, equivalent
from onnxopt_cli.mutation.known_mistakes import known_mistakes
from onnxopt_cli.mutation.mutants import mutants
from onnxopt_cli.operators.call import Attributes, Call
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.expected import Expected, expected_result
from onnxopt_cli.workers.parallel import parallel

#: Cases with more elements are put only to implementations that at most one other case rejects.
_LARGE_ELEMENTS = 40
#: A rejection by so many times a limit is clear: no other case is asked unless all are to be.
_CLEAR_EXCESS = 1e7


#: An operator's name, the kind of its implementation, and its number among those; or what is
#: INCONCLUSIVE.
Task: TypeAlias = tuple[str, str, int]
INCONCLUSIVE = "inconclusive"
#: Case, output and number of elements that the case cannot judge.
Inconclusive: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class AuditedCase:
    """A case that an operator's implementations can be put to.

    Attributes:
        case: its id.
        call: the node and its inputs.
        key: the outputs and how far off they may be.
    """

    case: str
    call: Call[Array]
    key: Expected

    @property
    def turn(self) -> tuple[bool, int]:
        """Sorts first what rejects most: many elements in double, of those that take no time."""
        doubles = all(getattr(it, "dtype", None) == np.float64 for it in self.key.outputs.values())
        elements = self.call.size
        first = doubles and elements <= _LARGE_ELEMENTS
        return not first, -elements if first else elements

    def excess(self, outputs: Sequence[Array]) -> float:
        """Return the largest share of its limit that an output uses; over 1 is a rejection."""
        return largest_share(self.key.outputs, outputs, self.key.tolerances.__getitem__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one implementation.

    Attributes:
        name: the implementation's name.
        about: what is wrong with it.
        excess: for each trial, the largest share of its limit that an output used; None where the
            trial was not needed.
        equivalent: True for one that equals the formula on every input.
        apart: attributes and inputs that tell a survivor from the formula.
    """

    name: str
    about: str
    excess: tuple[float | None, ...]
    equivalent: bool = False
    apart: tuple[Attributes, dict[str, Array]] | None = None

    @property
    def rejecting(self) -> list[int]:
        """The places of the trials that reject it."""
        return [place for place, share in enumerate(self.excess) if share and share > 1]

    @property
    def rejected(self) -> bool:
        """True if a trial rejects it."""
        return bool(self.rejecting)

    @property
    def largest(self) -> float:
        """The largest share of its limit that an output used in any trial."""
        return max((share for share in self.excess if share is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class MutationScore:
    """How good a suite is for one operator.

    Attributes:
        operator: the operator.
        trials: the cases, by rising size.
        thorough: whether wrong implementations were put to more cases than the first that rejects
            them clearly.
        inconclusive: what the cases cannot judge.
        named: what became of the named known mistakes.
        automatic: what became of the automatic mutants.
        right: what became of the reformulations.
    """

    operator: Operator
    trials: tuple[AuditedCase, ...]
    thorough: bool
    inconclusive: tuple[Inconclusive, ...]
    named: tuple[Verdict, ...]
    automatic: tuple[Verdict, ...]
    right: tuple[Verdict, ...]

    @property
    def survivors(self) -> list[Verdict]:
        """Wrong implementations that no case rejects."""
        wrong = self.named + self.automatic
        return [verdict for verdict in wrong if not verdict.rejected and not verdict.equivalent]

    @property
    def false_alarms(self) -> list[tuple[Verdict, str]]:
        """Right implementations that a case rejects, with the first such case."""
        alarms = (verdict for verdict in self.right if verdict.rejected)
        return [(verdict, self.trials[verdict.rejecting[0]].case) for verdict in alarms]

    @property
    def redundant(self) -> list[str] | None:
        """Cases without which as many wrong implementations would be rejected, one at a time.

        None if the mutation score is not thorough.
        """
        if not self.thorough:
            return None
        rejecting = [verdict.rejecting for verdict in self.named + self.automatic]
        needed = {places[0] for places in rejecting if len(places) == 1}
        return [trial.case for index, trial in enumerate(self.trials) if index not in needed]


def find_trials(
    cases: Sequence[Case], judging: Judging
) -> tuple[dict[str, list[AuditedCase]], list[Fault]]:
    """Read the cases that can be audited, by the name of their operator.

    Returns:
        The trials of each operator, smallest first, and what is wrong with invalid cases.
    """
    trials: dict[str, list[AuditedCase]] = {operator.name: [] for operator in registry().operators}
    problems: list[Fault] = []
    for case in cases:
        try:
            problem = case.load()
            # What a wrong implementation does in one step, the other cases ask.
            if problem.must_reject or problem.trajectory:
                continue
            key = _at_once(expected_result(problem, case.location, judging))
            call = problem.call
        except InvalidCase as error:
            problems += error.problems
            continue
        if key.contradictions:
            problems.append(Fault(str(case.location), f"{case.id}: contradicts the formula"))
        elif call is not None:
            trials[call.operator.name].append(AuditedCase(case.id, call, key.of_node))
    for mine in trials.values():
        mine.sort(key=lambda trial: trial.call.size)
    return trials, problems


def _at_once(key: Expected) -> Expected:
    """Return a key whose limits are derived once, not each time for what is asked of blocks."""
    if key.formula is None or not key.formula.blocks:
        return key
    formula = replace(key.formula, blocks=())
    tolerances = {
        name: formula.error_bound(name) if isinstance(it, ErrorBound) else it
        for name, it in key.tolerances.items()
    }
    return replace(key, formula=formula, tolerances=tolerances)


def audit(
    trials: dict[str, list[AuditedCase]],
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    thorough: bool = True,
    shard: Shard | None = None,
    elsewhere: Callable[[Sequence[Task]], Iterable[Verdict | Sequence[Inconclusive]]] | None = None,
) -> list[MutationScore]:
    """Grade the trials of every operator that has some.

    Args:
        trials: from :func:`find_trials`.
        jobs: number of processes.
        progress: called with how many implementations are done, and how many there are.
        thorough: whether to look for redundant cases, too, which takes many times as long.
        shard: the part of the implementations to look at; None for all.
        elsewhere: yields what comes of tasks, in order, from other machines; None for this one.
    """
    present = [operator for operator in registry().operators if trials[operator.name]]
    tasks: list[Task] = []
    for operator in present:
        for kind, implementations in KINDS.items():
            tasks += [(operator.name, kind, at) for at in range(len(implementations(operator)))]
        # By now all limits are known.
        tasks.append((operator.name, INCONCLUSIVE, 0))
    if shard:
        tasks = tasks[shard.index - 1 :: shard.count]
    work = partial(outcome, trials=trials, thorough=thorough)
    outcomes = elsewhere(tasks) if elsewhere else parallel(work, tasks, jobs)
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for count, ((name, kind, _), one) in enumerate(zip(tasks, outcomes, strict=True), start=1):
        progress(count, len(tasks))
        found[name, kind] += [one] if isinstance(one, Verdict) else one
    return [
        MutationScore(
            operator,
            tuple(trials[operator.name]),
            thorough and not shard,
            *(tuple(found[operator.name, kind]) for kind in (INCONCLUSIVE, *KINDS)),
        )
        for operator in present
    ]


def outcome(
    task: Task, trials: Mapping[str, Sequence[AuditedCase]], *, thorough: bool
) -> Verdict | Sequence[Inconclusive]:
    """Return what becomes of one implementation; or what an operator's cases cannot judge."""
    name, kind, _ = task
    mine = trials[name]
    if kind == INCONCLUSIVE:
        return [
            (trial.case, output, elements)
            for trial in mine
            if trial.key.formula is not None
            for output, derived_output in trial.key.formula.derived_outputs.items()
            if (elements := derived_output.inconclusive)
        ]
    one, wrong = implementation(task), kind != "right"
    excess: list[float | None] = [None] * len(mine)
    largest, rejections = 0.0, 0
    for index in sorted(range(len(mine)), key=lambda it: mine[it].turn):
        # A right one is put to all cases.
        if wrong and rejections > 1 and mine[index].call.size > _LARGE_ELEMENTS:
            continue
        if wrong and largest > _CLEAR_EXCESS and not thorough:
            break
        excess[index] = share = mine[index].excess(one.run(mine[index].call))
        largest, rejections = max(largest, share), rejections + (share > 1)
    same, apart = False, None
    if wrong and not rejections:
        operator = _operator(name)
        same = equivalent(operator, one)
        apart = None if same else distinguishing_input(operator, one)
    return Verdict(one.name, one.about, tuple(excess), same, apart)


def implementation(task: Task) -> Implementation:
    """Return the implementation that a task is about."""
    name, kind, index = task
    return KINDS[kind](_operator(name))[index]


def _operator(name: str) -> Operator:
    return next(it for it in registry().operators if it.name == name)


#: Of implementations, as fields of a grade: what returns those of an operator.
KINDS = {"named": known_mistakes, "automatic": mutants, "right": reformulations}
