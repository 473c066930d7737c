"""The audit of operators without a formula: which mutants of a node the cases reject.

The mutants follow from the operator's schema and from the code of onnx's reference. They run on the
same evaluator as the reference oracle, with the same corrections, and their outputs are judged as
in ``run``.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from hashlib import blake2b
from time import monotonic
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx

from onnxopt_cli.analysis.node_reformulations import NodeReformulation, node_reformulations
from onnxopt_cli.analysis.node_variations import Variation, variations
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.config.run_config import Execution, Judging, LoweringMode
from onnxopt_cli.core.compare import compare_outputs, largest_share
from onnxopt_cli.core.tolerance import Drawn, ErrorBound
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import Fault, InvalidCase
from onnxopt_cli.mutation.code_mutants import code_mutants, patched
from onnxopt_cli.mutation.node_mutants import Compute, MutantKind, NodeMutant, node_mutants
from onnxopt_cli.operators.nodes import imported_versions, is_standard, plain_domain
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.oracles import Oracles, resolved
from onnxopt_cli.oracle.patching import replaced, replacements
from onnxopt_cli.oracle.reference_code import reference_functions
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle, estimated_here
from onnxopt_cli.run.executors import open_executors
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.isolated import (
    ProcessLostError,
    TimeLimitError,
    isolated,
    memory_limit,
    time_limit,
)

#: An operator has at most this many mutants of its code; they are spread over the code evenly.
MAX_CODE_MUTANTS = 400
#: By default, a mutant counts as equivalent if none of this many valid nodes, made by changing
#: those of the cases, and half as many generated ones distinguishes it.
EQUIVALENCE_INPUTS = 200
#: Seconds that the evaluation of a node may take.
EVALUATION_SECONDS = 2.0
#: A mutant that takes longer than this on one node fails.
MUTANT_SECONDS = 0.5
#: Bytes that a mutant may allocate.
EVALUATION_BYTES = 1 << 30
# Bytes that may be allocated for the outputs of a node on which survivors run.
_VARIATION_BYTES = 1 << 27
# A mutant that has exceeded its time on this number of nodes does not run on others.
_MAX_TIMEOUTS = 2
# Differences that are confirmed by a condition estimate, which takes long, for each mutant.
_MAX_CONFIRMATIONS = 12
# A search for a distinguishing node yields a heartbeat about this often, in place of the index of a
# node, so that its process is not killed for silence.
_HEARTBEAT_SECONDS = 0.5
_HEARTBEAT = -1
# A tolerance is never smaller than this number of units in the last place.
_LEAST_ULPS = 4

T = TypeVar("T")
NodeImplementation: TypeAlias = NodeMutant | NodeReformulation


@dataclass(frozen=True, slots=True)
class NodeOperator:
    """An operator of ONNX without a formula.

    Attributes:
        domain: its domain; empty for the default domain.
        name: its name.
    """

    domain: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class NodeTrial:
    """A case of one node on which mutants can run.

    Attributes:
        case: the case's id.
        operator: its operator.
        opset: the version of the operator's domain.
        model: the model.
        inputs: its inputs.
        expected: the expected outputs with their tolerances.
    """

    case: str
    operator: NodeOperator
    opset: int
    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    expected: Expected

    @property
    def size(self) -> int:
        """Number of elements of all inputs."""
        return sum(v.size for v in self.inputs.values() if isinstance(v, np.ndarray))

    def excess(self, outputs: Sequence[Value]) -> float:
        """Return the largest error / tolerance of an output; a value over 1 is a rejection."""
        return excess(self.expected, outputs)

    def digest(self) -> str:
        """Return a hash of the node, its inputs and its expected outputs."""
        content = blake2b(self.case.encode(), digest_size=16)
        content.update(self.model.SerializeToString(deterministic=True))
        for value in (*self.inputs.values(), *self.expected.outputs.values()):
            is_plain = isinstance(value, np.ndarray) and value.dtype != object
            content.update(value.tobytes() if is_plain else repr(value).encode())  # type: ignore[union-attr]
        return content.hexdigest()

    def inconclusive(self) -> Iterator[tuple[str, str, int]]:
        """Yield case, output and number of elements whose tolerance admits any ordinary value."""
        for name, value in self.expected.outputs.items():
            tolerance = self.expected.tolerances[name]
            if not isinstance(tolerance, ErrorBound) or not isinstance(value, np.ndarray):
                continue
            limit = tolerance.at(np.arange(value.size)).limit
            finite = np.abs(value[np.isfinite(value)].astype(np.float64))
            count = int((~(limit <= max(finite.max(initial=0.0), 1.0))).sum())
            if count:
                yield self.case, name, count


def excess(expected: Expected, outputs: Sequence[Value]) -> float:
    """Return the largest error / tolerance of outputs by the most favourable accepted result."""
    accepted = [expected, *expected.alternatives]
    return min(_excess(result, outputs) for result in accepted)


def _excess(expected: Expected, outputs: Sequence[Value]) -> float:
    tolerance_of = expected.tolerances.__getitem__
    if all(isinstance(value, np.ndarray) for value in expected.outputs.values()):
        return largest_share(expected.outputs, outputs, tolerance_of)
    if len(outputs) != len(expected.outputs):
        return float("inf")
    diffs = compare_outputs(expected.outputs, outputs, tolerance_of)
    return 0.0 if all(diff.agrees for diff in diffs) else float("inf")


def find_node_trials(
    cases: Sequence[Case],
    judging: Judging,
    jobs: int,
    progress: Callable[[int, int], None],
    operators: Sequence[str] = (),
) -> tuple[dict[str, list[NodeTrial]], list[Fault]]:
    """Read the cases of one node of an operator without a formula, by the operator's name.

    Cases that cannot be loaded, whose outputs are random or which a backend must reject are
    skipped.

    Args:
        cases: the cases.
        judging: how outputs are judged.
        jobs: number of processes that estimate conditions.
        progress: called with the numbers of finished and of all cases.
        operators: names of operators, in any case, to which the audit is limited; empty for all.

    Returns:
        The trials of each operator, the smallest first, and the faults of cases whose stored
        outputs contradict the reference.
    """
    reference_oracle = ReferenceOracle(judging)
    oracles = Oracles(judging, reference_oracle)
    execution = Execution(lowering=LoweringMode.NEVER, jobs=jobs)
    trials: dict[str, list[NodeTrial]] = {}
    faults: list[Fault] = []
    pending: deque[Callable[[], NodeTrial | Fault | None]] = deque()
    names = frozenset(name.lower() for name in operators)

    def finish() -> None:
        trial = pending.popleft()()
        if isinstance(trial, NodeTrial):
            trials.setdefault(trial.operator.name, []).append(trial)
        elif trial is not None:
            faults.append(trial)

    with open_executors((), execution, Interruption(), reference_oracle):
        for count, case in enumerate(cases, start=1):
            pending.extend(_submitted(case, oracles, names))
            if len(pending) > 2 * jobs:
                finish()
            progress(count, len(cases))
        while pending:
            finish()
    for operator_trials in trials.values():
        operator_trials.sort(key=lambda trial: trial.size)
    return dict(sorted(trials.items())), faults


def _submitted(
    case: Case, oracles: Oracles, names: frozenset[str]
) -> Iterator[Callable[[], NodeTrial | Fault | None]]:
    """Submit a case to the reference oracle; yield a function that waits and returns its trial."""
    if case.operators and all(map(registry().named, case.operators)):
        return
    try:
        problem = case.load()
        if not _is_single_node(problem):
            return
        # The model of a loop also contains the operators of its body.
        if names and problem.model.graph.node[0].op_type.lower() not in names:
            return
    except InvalidCase:
        # The audit of operators with a formula reports it.
        return
    expected = oracles.expected(problem)
    yield lambda: _trial(case, problem, resolved(expected))


def _is_single_node(problem: Problem) -> bool:
    model = problem.model
    return (
        len(model.graph.node) == 1
        and problem.call is None
        and not problem.must_reject
        and problem.trajectory is None
        and not model.functions
        and is_standard(model.graph.node[0])
    )


def _trial(case: Case, problem: Problem, expected: Expected) -> NodeTrial | Fault | None:
    if any(isinstance(tolerance, Drawn) for tolerance in expected.tolerances.values()):
        return None
    if expected.contradictions:
        return Fault(str(case.location), f"{case.id}: contradicts onnx's reference")
    if expected.unusable:
        return None
    node = problem.model.graph.node[0]
    operator = NodeOperator(plain_domain(node.domain), node.op_type)
    opset = imported_versions(problem.model)[operator.domain]
    return NodeTrial(case.id, operator, opset, problem.model, problem.inputs, expected)


@cache
def operator_mutants(domain: str, op_type: str, opset: int) -> Mapping[str, NodeMutant]:
    """Return the mutants of an operator by name: from its schema, then from the reference's code.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        opset: the version of the domain.
    """
    mutants = {mutant.name: mutant for mutant in node_mutants(domain, op_type, opset)}
    functions = reference_functions(domain, op_type, opset)
    changes = [mutant for function in functions for mutant in code_mutants(function)]
    step = max(1.0, len(changes) / MAX_CODE_MUTANTS)
    chosen = dict.fromkeys(
        int(index * step) for index in range(min(len(changes), MAX_CODE_MUTANTS))
    )
    for mutant in (changes[index] for index in chosen):
        patch = partial(patched, mutant.function, mutant.code)
        mutants.setdefault(
            mutant.name,
            NodeMutant(
                mutant.name,
                MutantKind.REFERENCE,
                mutant.about,
                patch=patch,
                at_preparation=mutant.function.__name__ == "__init__",
            ),
        )
    return mutants


def implementation_names(kind: str, trials: Sequence[NodeTrial]) -> Sequence[str]:
    """Return the names of an operator's implementations of a kind, for all versions in trials."""
    return _names_in_versions(kind, tuple(_versions(trials)))


@cache
def _names_in_versions(kind: str, versions: tuple[tuple[str, str, int], ...]) -> Sequence[str]:
    names: dict[str, None] = {}
    for domain, op_type, opset in versions:
        names |= dict.fromkeys(_implementations(kind, domain, op_type, opset))
    return list(names)


def _versions(trials: Sequence[NodeTrial]) -> Sequence[tuple[str, str, int]]:
    versions = {(trial.operator.domain, trial.operator.name, trial.opset) for trial in trials}
    return sorted(versions, reverse=True)


def _implementations(
    kind: str, domain: str, op_type: str, opset: int
) -> Mapping[str, NodeImplementation]:
    if kind == "automatic":
        return operator_mutants(domain, op_type, opset)
    if kind == "right":
        return {entry.name: entry for entry in node_reformulations(op_type)}
    return {}


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The result of an implementation on the trials of its operator.

    Attributes:
        about: its description.
        mutant_kind: its kind of defect; empty for a reformulation.
        excess: for each trial, the largest error / tolerance of an output; None if it was skipped.
        stillborn: whether it failed on every node on which it has an effect.
        equivalent: whether no further input distinguishes it.
        inputs: number of further inputs of a mutant that no trial rejects.
        distinguishing: attributes and inputs that distinguish a survivor; None without any.
    """

    about: str
    mutant_kind: str
    excess: tuple[float | None, ...]
    stillborn: bool = False
    equivalent: bool = False
    inputs: int = 0
    distinguishing: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None

    @property
    def survives(self) -> bool:
        """Whether no trial rejects the implementation, and it runs on some node."""
        return not self.stillborn and all(not ratio or ratio <= 1 for ratio in self.excess)


def node_outcomes(
    names: Sequence[str],
    kind: str,
    trials: Sequence[NodeTrial],
    *,
    thorough: bool,
    inputs: int = EQUIVALENCE_INPUTS,
) -> list[NodeOutcome]:
    """Run implementations on the trials of their operator, and survivors on further inputs.

    Args:
        names: the implementations' names.
        kind: "automatic" for mutants, "right" for reformulations.
        trials: the trials of the operator, the smallest first.
        thorough: whether a rejected mutant runs on all trials.
        inputs: number of variations of the trials' nodes on which surviving mutants run.
    """
    outcomes = outcomes_on_trials(names, kind, trials, thorough=thorough)
    alive = [index for index, outcome in enumerate(outcomes) if outcome.survives]
    if kind != "automatic" or not alive:
        return outcomes
    candidates, evaluators = _operator_variations(tuple(trials), inputs)
    distinguishing = distinguishing_nodes(
        [names[index] for index in alive],
        trials[0].operator,
        candidates,
        evaluators,
        partial(reference_state, trials, _operator_trials(tuple(trials))),
    )
    for index, nodes in zip(alive, distinguishing, strict=True):
        outcomes[index] = replace(
            outcomes[index],
            equivalent=not nodes,
            inputs=len(candidates),
            distinguishing=candidates[nodes[0]].described() if nodes else None,
        )
    return outcomes


def outcomes_on_trials(
    names: Sequence[str], kind: str, trials: Sequence[NodeTrial], *, thorough: bool
) -> list[NodeOutcome]:
    """Run implementations on the trials of their operator; the arguments of node_outcomes."""
    is_mutant = kind == "automatic"
    evaluators = _operator_trials(tuple(trials))
    by_name = {name: _in_versions(name, kind, trials) for name in names}

    def run(name: str) -> Iterator[tuple[int, float, str]]:
        entries = by_name[name]
        compute = computing(evaluators, entries)
        succeeded = is_killed = False
        timeouts = 0
        for index, trial in enumerate(trials):
            outputs, failure = run_implementation(
                entries[trial.opset], trial.model, trial.inputs, compute
            )
            ran = outputs is not None and not failure
            ratio = float("inf") if failure else trial.excess(outputs or ()) if ran else 0.0
            yield index, ratio, failure or ("ran" if ran else "")
            succeeded |= ran
            is_killed |= ratio > 1
            timeouts += failure == "timeout"
            is_over = (succeeded and is_killed and not thorough) or timeouts >= _MAX_TIMEOUTS
            if is_mutant and is_over:
                return

    check = partial(reference_state, trials, evaluators)
    outcomes: list[NodeOutcome] = []
    results = _in_turn(names, run, EVALUATION_SECONDS, check)
    for name, (events, was_lost) in zip(names, results, strict=True):
        first = next(entry for entry in by_name[name].values() if entry is not None)
        mutant_kind = str(first.kind) if isinstance(first, NodeMutant) else ""
        ratios: list[float | None] = [None] * len(trials)
        for index, ratio, _ in events:
            ratios[index] = ratio
        if was_lost:
            ratios[min(len(events), len(trials) - 1)] = float("inf")
        ran = {event for _, _, event in events}
        failed = was_lost or bool(ran - {"", "ran"})
        is_stillborn = is_mutant and failed and "ran" not in ran
        outcomes.append(NodeOutcome(first.about, mutant_kind, tuple(ratios), is_stillborn))
    return outcomes


def _in_versions(
    name: str, kind: str, trials: Sequence[NodeTrial]
) -> Mapping[int, NodeImplementation | None]:
    """Return an implementation in the opset versions of trials; None where it does not exist."""
    return {
        opset: _implementations(kind, domain, op_type, opset).get(name)
        for domain, op_type, opset in _versions(trials)
    }


def _in_turn(
    items: Sequence[str],
    work: Callable[[str], Iterator[T]],
    silence: float,
    check: Callable[[], str],
) -> list[tuple[list[T], bool]]:
    """Return the results that a function yields for each item, and whether it ended the process.

    One forked process handles all items, since starting a process takes longer than most mutants.
    The process is replaced if its first item ends it. If another item ends it, or an item has
    changed its state, all are worked on again in several processes, so that no item has an effect
    on another.

    Args:
        items: the items.
        work: yields results for an item.
        silence: seconds without a result after which the process is killed.
        check: describes the state that no item may change.
    """
    results: list[tuple[list[T], bool]] = []
    events: list[T] = []

    def run(remaining: Sequence[str]) -> Iterator[T | bool | None]:
        before = check()
        for item in remaining:
            yield from work(item)
            yield None
        # Whether the state is unchanged.
        yield check() == before

    while len(results) < len(items):
        events = []
        begun = len(results)
        is_changed = False
        try:
            for event in on_corrected_reference(partial(run, items[begun:]), silence):
                if event is None:
                    results.append((events, False))
                    events = []
                elif isinstance(event, bool):
                    is_changed = not event
                else:
                    events.append(event)
        except ProcessLostError:
            if len(results) == begun:
                results.append((events, True))
            else:
                # An earlier item of this process may have caused the end.
                is_changed = True
        if is_changed and len(items) > 1:
            middle = len(items) // 2
            return [
                *_in_turn(items[:middle], work, silence, check),
                *_in_turn(items[middle:], work, silence, check),
            ]
    return results


def reference_state(trials: Sequence[NodeTrial], evaluators: Mapping[int, ReferenceModel]) -> str:
    """Return the outputs of onnx's reference on trials as text."""
    compute = computing(evaluators, {})
    texts: list[str] = []
    for trial in trials:
        try:
            outputs = compute(trial.model, trial.inputs)
        except Exception as error:  # noqa: BLE001 - any exception that the reference raises
            texts.append(repr(error))
            continue
        texts += [
            f"{value.dtype} {value.tolist()}" if isinstance(value, np.ndarray) else repr(value)
            for value in outputs
        ]
    return "\n".join(texts)


def on_corrected_reference(work: Callable[[], Iterator[T]], silence: float) -> Iterator[T]:
    """Yield the items of a function that runs with the corrected reference in a forked process."""

    def corrected() -> Iterator[T]:
        with replaced(*replacements()), np.errstate(all="ignore"):
            yield from work()

    with closing(isolated(corrected, silence, EVALUATION_BYTES)) as items:
        yield from items


def prepared(nodes: Sequence[NodeTrial | Variation]) -> dict[int, ReferenceModel]:
    """Return evaluators of nodes by the identities of their models."""
    evaluators: dict[int, ReferenceModel] = {}
    with replaced(*replacements()):
        for node in nodes:
            # The evaluator of a model that the reference cannot run is created in vain.
            with suppress(Exception):
                evaluators[id(node.model)] = ReferenceModel(node.model)
    return evaluators


def computing(
    evaluators: Mapping[int, ReferenceModel], entries: Mapping[int, NodeImplementation | None]
) -> Compute:
    """Return a function that computes models on the corrected reference.

    Prepared evaluators are used, which saves most of the time, unless a mutant changes how the
    evaluator of a node is prepared. The caller must have corrected the reference.
    """
    if any(isinstance(entry, NodeMutant) and entry.at_preparation for entry in entries.values()):
        evaluators = {}

    def compute(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Sequence[Value]:
        evaluator = evaluators.get(id(model)) or ReferenceModel(model)
        # A mutant may change its inputs, which other mutants get as well.
        return evaluator.run({name: _copied(value) for name, value in inputs.items()})

    return compute


def _copied(value: Value) -> Value:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def run_implementation(
    entry: NodeImplementation | None,
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    compute: Compute,
) -> tuple[Sequence[Value] | None, str]:
    """Return outputs, None without an effect on this node; and how the implementation failed."""
    if entry is None:
        return None, ""
    try:
        with time_limit(MUTANT_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return entry.outputs(model, inputs, compute), ""
    except TimeLimitError:
        return [], "timeout"
    except (Exception, SystemExit):  # noqa: BLE001 - a mutant may raise any exception
        return [], "error"


def distinguishing_nodes(
    names: Sequence[str],
    operator: NodeOperator,
    candidates: Sequence[Variation],
    evaluators: Mapping[int, ReferenceModel],
    check: Callable[[], str],
    limit: int = 1,
) -> list[list[int]]:
    """Return the indices of the first nodes that distinguish each mutant from its operator.

    Args:
        names: the mutants' names.
        operator: the operator.
        candidates: nodes of the operator.
        evaluators: the result of :func:`prepared` for the nodes.
        check: describes the state of the reference, which no mutant may change.
        limit: number of nodes after which the search for a mutant ends.
    """
    opsets = {variation.opset for variation in candidates}
    expected: dict[int, Expected | None] = {}

    def search(name: str) -> Iterator[int]:
        # Generated nodes have versions that the cases lack.
        by_version = {
            opset: operator_mutants(operator.domain, operator.name, opset).get(name)
            for opset in opsets
        }
        compute = computing(evaluators, by_version)
        confirmations = count = timeouts = 0
        last_heartbeat = monotonic()
        for index, variation in enumerate(candidates):
            entry = by_version[variation.opset]
            outputs, failure = run_implementation(entry, variation.model, variation.inputs, compute)
            timeouts += failure == "timeout"
            if timeouts >= _MAX_TIMEOUTS:
                yield index
                return
            if outputs is not None and not failure and may_differ(variation.outputs, outputs):
                if index not in expected:
                    expected[index] = _estimated(variation)
                result = expected[index]
                if result is not None and excess(result, outputs) > 1:
                    yield index
                    count += 1
                else:
                    confirmations += 1
            if count >= limit or confirmations >= _MAX_CONFIRMATIONS:
                return
            if monotonic() > last_heartbeat + _HEARTBEAT_SECONDS:
                last_heartbeat = monotonic()
                yield _HEARTBEAT

    results = _in_turn(names, search, 15 * EVALUATION_SECONDS, check)
    return [[index for index in events if index != _HEARTBEAT] for events, _ in results]


@lru_cache(maxsize=1)
def _operator_trials(trials: tuple[NodeTrial, ...]) -> dict[int, ReferenceModel]:
    """Return the evaluators of an operator's cases, which each process prepares once."""
    return prepared(trials)


@lru_cache(maxsize=1)
def _operator_variations(
    trials: tuple[NodeTrial, ...], count: int
) -> tuple[Sequence[Variation], dict[int, ReferenceModel]]:
    """Return varied nodes of an operator's cases with evaluators, made once in each process."""
    nodes = [(trial.model, trial.inputs) for trial in trials]
    # A change of sizes may make the outputs huge.
    with memory_limit(_VARIATION_BYTES):
        varied = variations(nodes, count, EVALUATION_SECONDS)
    # The first node that distinguishes a mutant is shown, so small ones come first.
    varied.sort(key=lambda variation: variation.size)
    return varied, prepared(varied)


def may_differ(expected: Sequence[Value], actual: Sequence[Value]) -> bool:
    """Return whether outputs differ by more than any tolerance's least value."""
    if len(expected) != len(actual):
        return True
    for right, output in zip(expected, actual, strict=True):
        if not isinstance(right, np.ndarray) or not isinstance(output, np.ndarray):
            if repr(right) != repr(output):
                return True
            continue
        if right.shape != output.shape or right.dtype != output.dtype:
            return True
        if right.dtype.kind not in "fc":
            if right.dtype == object or right.dtype.kind in "iub":
                differs = not np.array_equal(right, output)
            else:
                differs = right.tobytes() != output.tobytes()
            if differs:
                return True
            continue
        with np.errstate(all="ignore"):
            close = np.abs(right - output) <= _LEAST_ULPS * np.spacing(np.abs(right))
        if not (close | (right == output) | (np.isnan(right) & np.isnan(output))).all():
            return True
    return False


def _estimated(variation: Variation) -> Expected | None:
    """Return the expected outputs of a varied node; None without a condition estimate."""
    names = [output.name for output in variation.model.graph.output]
    stored = dict(zip(names, variation.outputs, strict=True))
    problem = Problem(variation.model, variation.inputs, stored)
    try:
        with time_limit(4 * EVALUATION_SECONDS):
            expected = estimated_here(problem)
    except (TimeLimitError, Exception):  # noqa: BLE001 - a node without an estimate shows nothing
        return None
    return None if expected.contradictions else expected
