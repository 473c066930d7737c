"""The audit of operators without a formula: which mutants of a node the cases reject.

The mutants are derived from the operator's schema and from the code of onnx's reference. They run
on the same evaluator as the reference oracle, with the same corrections. The outputs of a mutant
are judged as in ``run``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import Any

import numpy as np
import onnx
from onnx import defs

from onnxopt_cli.analysis.node_reformulations import node_reformulations
from onnxopt_cli.analysis.node_search import (
    EVALUATION_SECONDS,
    MAX_TIMEOUTS,
    TIMEOUT,
    NodeImplementation,
    attempted,
    computing,
    excess,
    prepared,
    run_implementation,
    run_in_turn,
    search_nodes,
)
from onnxopt_cli.analysis.node_variations import Variation, variations
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.config.run_config import Execution, Judging, LoweringMode
from onnxopt_cli.core.tolerance import Drawn, ErrorBound
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import Fault, InvalidCase
from onnxopt_cli.mutation.code_mutants import code_mutants
from onnxopt_cli.mutation.node_mutants import (
    MutantKind,
    NodeMutant,
    equivalence_proof,
    node_mutants,
)
from onnxopt_cli.operators.nodes import imported_versions, is_standard, plain_domain
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.evaluator import ReferenceModel
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.oracles import Oracles, resolved
from onnxopt_cli.oracle.reference_code import (
    preparing_functions,
    reference_functions,
    uncalled_functions,
)
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle
from onnxopt_cli.run.executors import open_executors
from onnxopt_cli.workers.forked_processes import memory_limit
from onnxopt_cli.workers.interruption import Interruption

# The largest number of mutants of an operator's code. If there are more, mutants are chosen at
# regular intervals over the code.
_MAX_CODE_MUTANTS = 400
#: By default, a mutant counts as equivalent if it agrees with its operator on EQUIVALENCE_INPUTS
#: valid nodes.
EQUIVALENCE_INPUTS = 300
#: A mutant that counts as equivalent without a proof is unresolved if it has been compared with its
#: operator on fewer than RESOLVING_INPUTS valid nodes.
RESOLVING_INPUTS = 10_000
# Proofs of equivalence that do not follow from the schema.
_UNCALLED = "No node that is judged calls the changed function of onnx's reference."
_SAME_VERSION = "The reference computes both versions by the same code with the same parameters."
# Memory limit in bytes while nodes for surviving mutants are drawn.
_VARIATION_BYTES = 1 << 27
# Number of nodes in the first draw for surviving mutants.
_FIRST_NODES = 300
# Number of nodes in each later draw.
_FURTHER_NODES = 1000


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
        """Yield the case, the output and the number of inconclusive elements of each output.

        Outputs without inconclusive elements are left out. An element is inconclusive if its
        tolerance exceeds both 1 and the largest finite magnitude of the output.
        """
        for name, value in self.expected.outputs.items():
            tolerance = self.expected.tolerances[name]
            if not isinstance(tolerance, ErrorBound) or not isinstance(value, np.ndarray):
                continue
            limit = tolerance.at(np.arange(value.size)).limit
            finite = np.abs(value[np.isfinite(value)].astype(np.float64))
            count = int((~(limit <= max(finite.max(initial=0.0), 1.0))).sum())
            if count:
                yield self.case, name, count


def find_node_trials(
    cases: Sequence[Case],
    judging: Judging,
    jobs: int,
    progress: Callable[[int, int], None],
    operators: Sequence[str] = (),
) -> tuple[dict[str, list[NodeTrial]], list[Fault]]:
    """Read the cases that consist of one node of an operator without a formula.

    Cases are skipped if they cannot be loaded, if their outputs are random, or if a backend must
    reject them.

    Args:
        cases: the cases.
        judging: how outputs are judged.
        jobs: number of processes that compute condition estimates.
        progress: called with the numbers of finished and of all cases.
        operators: names of the operators to audit, in upper or lower case; empty for all.

    Returns:
        The trials by the name of their operator, the smallest first, and a fault for each case
        whose stored outputs contradict the reference.
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
    """Submit a case to the reference oracle, and yield a function that returns the trial.

    The function waits for the oracle. Nothing is yielded for a case that is skipped.
    """
    if case.operators and all(map(registry().named, case.operators)):
        return
    try:
        problem = case.load()
        if not _is_single_node(problem):
            return
        # The operator of the node is compared, because the operators of a case also include the
        # operators in the body of a loop.
        if names and problem.model.graph.node[0].op_type.lower() not in names:
            return
    except InvalidCase:
        # The audit of operators with a formula reports invalid cases.
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

    Mutants that are proven equivalent are left out.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        opset: the version of the domain.
    """
    mutants = _mutants_with_proofs(domain, op_type, opset)
    return {name: mutant for name, (mutant, proof) in mutants.items() if not proof}


def proven_mutants(trials: Sequence[NodeTrial]) -> Mapping[str, str]:
    """Return the proof of equivalence of each mutant that has one, by the name of the mutant.

    A proof is valid for all opset versions of the trials in which the mutant exists.
    """
    unproven = {*implementation_names("automatic", trials)}
    return {
        name: proof
        for version in _versions(trials)
        for name, (_, proof) in _mutants_with_proofs(*version).items()
        if name not in unproven
    }


@cache
def _mutants_with_proofs(
    domain: str, op_type: str, opset: int
) -> Mapping[str, tuple[NodeMutant, str]]:
    """Return an operator's mutants by name, each with a proof of equivalence.

    The proof is an empty text if the mutant is not proven equivalent.
    """
    schema = defs.get_schema(op_type, opset, domain)
    mutants: dict[str, tuple[NodeMutant, str]] = {}
    for mutant in node_mutants(domain, op_type, opset, with_equivalent=True):
        reason = equivalence_proof(schema, mutant.name)
        if mutant.version is not None and not _computes_otherwise(
            domain, op_type, opset, mutant.version
        ):
            reason = _SAME_VERSION
        mutants[mutant.name] = mutant, reason
    functions = reference_functions(domain, op_type, opset)
    uncalled = uncalled_functions(domain, op_type, opset)
    preparing = preparing_functions(domain, op_type, opset)
    changes = [mutant for function in functions for mutant in code_mutants(function)]
    step = max(1.0, len(changes) / _MAX_CODE_MUTANTS)
    chosen = dict.fromkeys(
        int(index * step) for index in range(min(len(changes), _MAX_CODE_MUTANTS))
    )
    for change in (changes[index] for index in chosen):
        reason = _UNCALLED if change.function in uncalled else ""
        mutant = NodeMutant(
            change.name,
            MutantKind.REFERENCE,
            change.about,
            code=change,
            at_preparation=change.function in preparing,
        )
        # Two functions may have the same name although only one of them is called. Then the mutant
        # of the called function is kept.
        if change.name not in mutants or (mutants[change.name][1] and not reason):
            mutants[change.name] = mutant, reason
    return mutants


def _computes_otherwise(domain: str, op_type: str, opset: int, earlier: int) -> bool:
    """Return whether onnx's reference may compute an earlier version of a node differently.

    The reference computes both versions alike if they have the same parameters, use the same
    functions, and none of the functions reads the version.
    """
    functions = reference_functions(domain, op_type, opset)
    codes = [function.__code__ for function in functions]
    reads_version = any(
        "opsets" in code.co_consts or any("opset" in name for name in code.co_names)
        for code in codes
    )
    return (
        not functions
        or reads_version
        or functions != reference_functions(domain, op_type, earlier)
        or _parameters(domain, op_type, opset) != _parameters(domain, op_type, earlier)
    )


def _parameters(domain: str, op_type: str, opset: int) -> object:
    """Return the names of inputs and outputs, and the defaults of attributes."""
    schema = defs.get_schema(op_type, opset, domain)
    defaults = {
        name: (entry.type, entry.default_value.SerializeToString(deterministic=True))
        for name, entry in schema.attributes.items()
    }
    names = [[formal.name for formal in formals] for formals in (schema.inputs, schema.outputs)]
    return names, defaults


def implementation_names(kind: str, trials: Sequence[NodeTrial]) -> Sequence[str]:
    """Return the names of an operator's mutants or reformulations in all versions of its trials."""
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
        distinguishing: attributes and inputs that distinguish a survivor; None without such a node.
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
    seconds: float = inf,
) -> list[NodeOutcome]:
    """Run implementations on the trials of their operator, and survivors on additional inputs.

    Args:
        names: the implementations' names.
        kind: "automatic" for mutants, "right" for reformulations.
        trials: the trials of the operator, the smallest first.
        thorough: whether a rejected mutant runs on all trials.
        inputs: largest number of additional nodes on which a surviving mutant runs.
        seconds: processor time after which no more nodes are drawn.
    """
    outcomes = outcomes_on_trials(names, kind, trials, thorough=thorough)
    alive = [index for index, outcome in enumerate(outcomes) if outcome.survives]
    if kind != "automatic" or not alive:
        return outcomes
    for name, result in _distinguished([names[index] for index in alive], trials, inputs, seconds):
        index = names.index(name)
        outcomes[index] = replace(
            outcomes[index],
            equivalent=result.example is None,
            inputs=result.examined,
            distinguishing=result.example.described() if result.example else None,
        )
    return outcomes


@dataclass(frozen=True, slots=True)
class _Distinction:
    """The result of running a mutant on valid nodes that may distinguish it from its operator.

    Attributes:
        example: a node that distinguishes the mutant; None without such a node.
        examined: number of nodes that do not distinguish it.
    """

    example: Variation | None
    examined: int


def _distinguished(
    names: Sequence[str], trials: Sequence[NodeTrial], inputs: int, seconds: float
) -> Iterator[tuple[str, _Distinction]]:
    """Search, near the nodes of the trials, for nodes that distinguish each mutant.

    Args:
        names: the mutants' names.
        trials: the trials of the operator.
        inputs: largest number of nodes on which each mutant runs.
        seconds: processor time after which no further nodes are drawn.
    """
    check = partial(reference_state, trials, _operator_trials(tuple(trials)))
    drawn = variations([(trial.model, trial.inputs) for trial in trials], EVALUATION_SECONDS)
    examined = dict.fromkeys(names, 0)
    end = _processor_seconds() + seconds
    number = 0
    while examined and number < inputs and _processor_seconds() < end:
        limit = min(_FURTHER_NODES if number else _FIRST_NODES, inputs - number)
        # The memory is limited, because changed sizes may result in huge outputs.
        with memory_limit(_VARIATION_BYTES):
            batch = list(islice(drawn, limit))
        if not batch:
            break
        number += len(batch)
        # Small nodes come first, because users see the first node that distinguishes a mutant.
        batch.sort(key=lambda variation: variation.size)
        forms = mutant_forms([*examined], trials[0].operator, batch)
        evaluators = prepared(variation.model for variation in batch)
        results = search_nodes(forms, batch, evaluators, check)
        for name, result in zip(forms, results, strict=True):
            examined[name] += result.examined - len(result.nodes)
            if result.nodes:
                yield name, _Distinction(batch[result.nodes[0]], examined.pop(name))
    for name, count in examined.items():
        yield name, _Distinction(None, count)


def mutant_forms(
    names: Iterable[str], operator: NodeOperator, nodes: Iterable[Variation]
) -> Mapping[str, Mapping[int, NodeMutant | None]]:
    """Return mutants by name and by the opset versions of nodes."""
    by_version = {
        opset: operator_mutants(operator.domain, operator.name, opset)
        for opset in {variation.opset for variation in nodes}
    }
    return {
        name: {opset: mutants.get(name) for opset, mutants in by_version.items()} for name in names
    }


def _processor_seconds() -> float:
    """Return the processor time of this process and of ended child processes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def outcomes_on_trials(
    names: Sequence[str], kind: str, trials: Sequence[NodeTrial], *, thorough: bool
) -> list[NodeOutcome]:
    """Run implementations on the trials of their operator.

    The arguments are those of :func:`node_outcomes`. If a reformulation exceeds the limit of time
    or memory on a trial, the trial is skipped, because exceeding a limit says nothing about the
    tolerance. Mutants skip every trial that rejects onnx's reference in the model's own types. An
    example is a sum of many 16-bit numbers. Such a trial would reject even a mutant without effect.
    """
    is_mutant = kind == "automatic"
    evaluators = _operator_trials(tuple(trials))
    by_name = {name: _in_versions(name, kind, trials) for name in names}
    accepts_reference = cache(partial(_accepts_reference, trials, evaluators))

    def run(name: str) -> Iterator[tuple[int, float | None, str]]:
        entries = by_name[name]
        compute = computing(evaluators, entries)
        succeeded = is_killed = False
        timeouts = 0
        for index, trial in enumerate(trials):
            outputs, failure = run_implementation(
                entries[trial.opset], trial.model, trial.inputs, compute
            )
            if failure == TIMEOUT and not is_mutant:
                yield index, None, ""
                continue
            ran = outputs is not None and not failure
            ratio = _ratio(trial, outputs, failure)
            if is_mutant and ratio > 1 and not failure and not accepts_reference(index):
                yield index, None, "ran"
                succeeded = True
                continue
            yield index, ratio, failure or ("ran" if ran else "")
            succeeded |= ran
            is_killed |= ratio > 1
            timeouts += failure == TIMEOUT
            is_over = (succeeded and is_killed and not thorough) or timeouts >= MAX_TIMEOUTS
            if is_mutant and is_over:
                return

    check = partial(reference_state, trials, evaluators)
    outcomes: list[NodeOutcome] = []
    results = run_in_turn(names, run, EVALUATION_SECONDS, check)
    for name, (events, was_lost) in zip(names, results, strict=True):
        first = next(entry for entry in by_name[name].values() if entry is not None)
        mutant_kind = str(first.kind) if isinstance(first, NodeMutant) else ""
        ratios: list[float | None] = [None] * len(trials)
        for index, ratio, _ in events:
            ratios[index] = ratio
        if was_lost and is_mutant:
            ratios[min(len(events), len(trials) - 1)] = float("inf")
        ran = {event for _, _, event in events}
        failed = was_lost or bool(ran - {"", "ran"})
        is_stillborn = is_mutant and failed and "ran" not in ran
        outcomes.append(NodeOutcome(first.about, mutant_kind, tuple(ratios), is_stillborn))
    return outcomes


def _ratio(trial: NodeTrial, outputs: Sequence[Value] | None, failure: str) -> float:
    """Return the largest error / tolerance of outputs; 0 if the implementation has no effect."""
    if failure:
        return inf
    return 0.0 if outputs is None else trial.excess(outputs)


def _accepts_reference(
    trials: Sequence[NodeTrial], evaluators: Mapping[int, ReferenceModel], index: int
) -> bool:
    """Return whether a trial accepts the reference's outputs in the types of the model."""
    trial, compute = trials[index], computing(evaluators, {})
    outputs, failure = attempted(partial(compute, trial.model, trial.inputs))
    return not failure and _ratio(trial, outputs, failure) <= 1


def _in_versions(
    name: str, kind: str, trials: Sequence[NodeTrial]
) -> Mapping[int, NodeImplementation | None]:
    """Return an implementation for each opset version; None where it does not exist."""
    return {
        opset: _implementations(kind, domain, op_type, opset).get(name)
        for domain, op_type, opset in _versions(trials)
    }


def reference_state(trials: Sequence[NodeTrial], evaluators: Mapping[int, ReferenceModel]) -> str:
    """Return a text that describes the outputs of onnx's reference on trials."""
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


@lru_cache(maxsize=1)
def _operator_trials(trials: tuple[NodeTrial, ...]) -> dict[int, ReferenceModel]:
    """Return the evaluators of an operator's cases. Each process prepares the evaluators once."""
    return prepared(trial.model for trial in trials)
