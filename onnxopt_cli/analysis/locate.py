"""Find the nodes of a model that a backend computes wrongly.

The search has four steps:

1. :class:`~onnxopt_cli.analysis.model_walk.ModelWalk` computes the values of all nodes.
2. Each node is judged alone, as a model of one node. Its inputs are the computed values, and its
   expected outputs come from the oracle. Nodes that read a wrong output are therefore not
   reported as wrong themselves.
3. If all nodes are right when they run alone, the whole model is judged. If the whole model is
   wrong, it is reduced to a smallest failing subgraph.
4. If nothing is wrong, the result lists the nodes whose roundings contribute most to the
   tolerances.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from time import monotonic

import numpy as np
import onnx

from onnxopt_cli.analysis.explanation.explain import explain
from onnxopt_cli.analysis.model_walk import (
    ModelWalk,
    NodeRun,
    ValueStore,
    count_nodes,
    name_nodes,
    node_labels,
)
from onnxopt_cli.analysis.subgraph import SearchEndedError, smallest_failing
from onnxopt_cli.backends.host import Request
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.config.run_config import Limits
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import clipped, printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import BeyondLimit, Fault, UsageError
from onnxopt_cli.operators.call import sole_operator
from onnxopt_cli.operators.native_onnx import OnnxRefusal, infer_shapes, inline_functions
from onnxopt_cli.operators.nodes import spell_out_defaults
from onnxopt_cli.oracle.estimate.reference_values import NoReferenceError
from onnxopt_cli.oracle.reference_in_worker import (
    CONTRIBUTIONS,
    ERROR_CONTRIBUTIONS,
    NODE_VALUES,
    RETURNED,
    VALUES,
    parsed_contributions,
)
from onnxopt_cli.oracle.reference_oracle import ReferenceResponse
from onnxopt_cli.run.executors import Executor
from onnxopt_cli.run.judge import LIMIT
from onnxopt_cli.run.runner import Plan, run, run_case

# Largest number of bytes of values that are kept in memory; further values are written to files.
_KEPT_BYTES = 256 << 20
# A node is judged if its values take at most 1/8 of the memory limit. Judging needs several copies
# of the values in double precision, and two nodes may be judged at the same time.
_MEMORY_DIVISOR = 8
# The largest number of wrong nodes for which a test directory is written.
_MAX_REPRODUCTIONS = 100
# Largest number of subgraphs that are judged in the search for a smallest failing subgraph.
_MAX_SUBGRAPHS = 2_000
_LIMITS = Limits()
# The time limit of each phase of the search, as a multiple of the time limit of a case.
_TIMEOUTS_OF_PHASE = 10
_MAX_REASON_CHARS = 300
# Contributions with a share below _LEAST_SHARE are not named.
_LEAST_SHARE = 0.05
# To measure its contribution to the error, each node runs again as a model of one node. All nodes
# together may take _MEASURE_SECONDS.
_MEASURE_SECONDS = 30.0
# Time limit, in seconds, of the search for known mistakes that explain a wrong node of a training
# operator.
_EXPLAIN_SECONDS = 10.0
# A node may be right in its first run and wrong in a second run. The reported cause then begins
# with these words.
_RIGHT_AT_FIRST = "right when it ran first, wrong when it ran again: "
_RIGHT = frozenset({Outcome.PASS, Outcome.VACUOUS})
# Outcomes without outputs. The reason for such an outcome may be that the backend cannot run the
# node without the other nodes of the model.
_WITHOUT_OUTPUTS = frozenset({Outcome.ERROR, Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM})
# Outcomes for which a model has neither tolerances nor errors.
_WITHOUT_RESULT = _WITHOUT_OUTPUTS | {Outcome.UNSUPPORTED, Outcome.INVALID, Outcome.SKIP}


@dataclass(frozen=True, slots=True)
class LocatedNode:
    """A node that a backend computes wrongly.

    Attributes:
        node: its name.
        operator: its operator.
        output: the output with the largest error.
        error_over_tolerance: the largest error / tolerance; infinite if no error is allowed; None
            if an output is missing or has a wrong structure.
        cause: the wrong elements, and a known mistake that reproduces them.
        backend: the backend.
        problem: the case that reproduces the failure; None if a limit on the number or the memory
            of such cases is reached.
        result: the result of that case.
    """

    node: str
    operator: str
    output: str
    error_over_tolerance: float | None
    cause: str
    backend: str
    problem: Problem | None
    result: Result


@dataclass(frozen=True, slots=True)
class NodeContribution:
    """The contribution of a node to the tolerance of an output.

    Attributes:
        output: the output.
        node: the name of the node.
        operator: its operator; empty for a node of a lowered operator.
        share: the share of the squared tolerance, from 0 to 1.
        digits_lost: number of decimal digits lost to cancellation in Add or Sub; 0 for other
            operators.
    """

    output: str
    node: str
    operator: str
    share: float
    digits_lost: float


@dataclass(frozen=True, slots=True)
class ErrorContribution:
    """The contribution of a node to the error of an output on a backend.

    Attributes:
        output: the output.
        node: the name of the node.
        operator: its operator; empty for a node of a lowered operator.
        share: the share of the squared error, from 0 to 1.
        backend: the backend.
    """

    output: str
    node: str
    operator: str
    share: float
    backend: str


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A node that backends compute differently, although all backends are within the tolerance.

    Attributes:
        node: its name.
        operator: its operator.
        errors: the largest error / tolerance, by backend.
    """

    node: str
    operator: str
    errors: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A node that cannot be judged.

    Attributes:
        node: its name.
        operator: its operator.
        reason: why it cannot be judged.
        backend: the backend.
    """

    node: str
    operator: str
    reason: str
    backend: str


@dataclass(frozen=True, slots=True)
class Located:
    """The result of a search for the wrong nodes of a model.

    Attributes:
        nodes: the number of nodes that ran.
        wrong: the wrong nodes in the order of the graph.
        not_judged: the nodes that cannot be judged.
        subgraph: by backend, the names of nodes that fail together although each is right alone.
        reproductions: by backend, the case of the subgraph; absent if the case exceeds a limit.
        unreduced: by backend, why no wrong node or subgraph was found although the model is wrong.
        whole: the result of the whole model, by backend; empty if it was not judged.
        contributions: the largest contributions of nodes to the tolerances, largest first.
        error_contributions: the largest contributions of nodes to the errors of each backend.
        disagreements: nodes that backends compute differently within the tolerance.
        interrupted: whether the user ended the search.
    """

    nodes: int
    wrong: tuple[LocatedNode, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
    subgraph: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reproductions: Mapping[str, Problem] = field(default_factory=dict)
    unreduced: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, Result] = field(default_factory=dict)
    contributions: tuple[NodeContribution, ...] = ()
    error_contributions: tuple[ErrorContribution, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    interrupted: bool = False


def locate(
    case: Case, plan: Plan, limits: Limits = _LIMITS, open_progress: OpenProgress = hide_progress
) -> Located:
    """Find the wrong nodes of a model.

    Args:
        case: the model with its inputs; stored outputs are ignored.
        plan: the backends, which have started, and the reference oracle; the cases of the plan are
            ignored.
        limits: the limits of the backends. The memory limit determines the largest values that are
            judged. The time limit of a case determines how long each phase of the search may take.
        open_progress: opens a progress display.

    Raises:
        InvalidCase: if the case cannot be loaded.
        UsageError: if the case exceeds a limit of onnxopt.
    """
    try:
        problem = replace(case.load(), stored=None, tolerance=None, output_tolerances={})
    except BeyondLimit as error:
        raise UsageError(f"{LIMIT}{error.message}") from error
    with ValueStore(_KEPT_BYTES) as store:
        max_bytes = limits.memory // _MEMORY_DIVISOR
        seconds = _TIMEOUTS_OF_PHASE * limits.timeout
        return _Search(case, problem, plan, store, open_progress, max_bytes, seconds).locate()


def first_wrong_node(case: Case, plan: Plan, seconds: float) -> LocatedNode | None:
    """Return the first wrong node of a model in the order of the graph, if found in time.

    Args:
        case: the model with its inputs.
        plan: the backend, which has started, and the reference oracle.
        seconds: the time limit.

    Raises:
        InvalidCase: if the case cannot be loaded.
    """
    problem = replace(case.load(), stored=None, tolerance=None, output_tolerances={})
    with ValueStore(_KEPT_BYTES) as store:
        search = _Search(case, problem, plan, store, hide_progress, _KEPT_BYTES, seconds)
        return search.first_wrong(monotonic() + seconds)


class _Search:
    def __init__(
        self,
        case: Case,
        problem: Problem,
        plan: Plan,
        store: ValueStore,
        open_progress: OpenProgress,
        max_bytes: int,
        seconds: float,
    ) -> None:
        # How many more findings may be kept for test directories, and of how many bytes in total.
        self._reproductions_left, self._bytes_left = _MAX_REPRODUCTIONS, max_bytes or math.inf
        self._case, self._problem, self._plan = case, problem, plan
        self._open_progress, self._seconds = open_progress, seconds
        self._is_unfinished = False
        model = _without_functions(problem.model)
        self._walk = ModelWalk(
            model,
            store,
            partial(self._values, partial(self._of_oracle, VALUES)),
            partial(self._values, partial(self._of_oracle, NODE_VALUES)),
            partial(self._values, plan.backends[0].submit),
            _inferred_types(model),
            max_bytes,
        )

    def locate(self) -> Located:
        walk = self._walk
        total = count_nodes(walk.model)
        end = monotonic() + self._seconds
        with self._open_progress("computing", "nodes") as tick:
            for done, _ in enumerate(walk.walk(self._problem.inputs), start=1):
                tick(min(done, total), total)
                if self._plan.interruption.signal:
                    return Located(len(walk.runs), interrupted=True)
                if monotonic() > end:
                    self._is_unfinished = True
                    break
        results, row = self._results()
        located = self._findings(results)
        if located.interrupted:
            return located
        doubtful = any(result.outcome in _WITHOUT_OUTPUTS for _, row in results for result in row)
        if located.wrong and not doubtful:
            return located
        row = row or self._judged_model()
        located = replace(located, whole={result.backend: result for result in row})
        if doubtful:
            located = self._with_failures(located, results)
        located = self._with_subgraphs(located)
        # The contributions also explain why a model is inconclusive.
        has_errors = any(result.diffs or result.outcome not in _WITHOUT_RESULT for result in row)
        is_decided = located.wrong or located.subgraph or located.interrupted
        if is_decided or not has_errors or self._is_unfinished:
            return located
        return replace(
            located,
            contributions=self._contributions(),
            error_contributions=tuple(self._error_contributions(located.whole)),
        )

    def _results(self) -> tuple[list[tuple[NodeRun, tuple[Result, ...]]], tuple[Result, ...]]:
        """Judge the nodes one by one.

        If everything else is right, it is not necessary to judge an If whose branch has been
        searched.

        Returns:
            The nodes with their results, and the results of the whole model on each backend. The
            latter are empty if the whole model has not been judged.
        """
        results = self._judged_nodes(searched=False)
        row: tuple[Result, ...] = ()
        if not self._walk.searched or self._plan.interruption.signal:
            return results, row
        outcomes = {result.outcome for _, row in results for result in row}
        if outcomes.isdisjoint({Outcome.FAIL, *_WITHOUT_OUTPUTS}):
            row = self._judged_model()
            if _RIGHT.issuperset(result.outcome for result in row):
                return results, row
        return [*results, *self._judged_nodes(searched=True)], row

    def _judged_model(self) -> tuple[Result, ...]:
        """Judge the whole model, and return its result on each backend."""
        with self._open_progress("judging", "models") as tick:
            tick(0, 1)
            return run_case(self._plan, replace(self._case, load=lambda: self._problem))

    def first_wrong(self, end: float) -> LocatedNode | None:
        """Judge nodes in the order of the graph until one is wrong or the time limit has passed."""
        for node_run in self._walk.walk(self._problem.inputs):
            if monotonic() > end or self._plan.interruption.signal:
                return None
            if not node_run.missing:
                problem_of = partial(self._problem_of, [node_run])
                (result,) = run_case(
                    self._plan, Case(self._case.id, self._case.location, problem_of)
                )
                if result.outcome is Outcome.FAIL:
                    return self._wrong_node(node_run, result)
        return None

    def _contributions(self) -> tuple[NodeContribution, ...]:
        """Return the largest contributions of nodes to the tolerances of the outputs."""
        with self._open_progress("measuring", "models") as tick:
            tick(0, 1)
            values = self._values(
                partial(self._of_oracle, CONTRIBUTIONS), self._walk.model, self._problem.inputs
            )
        if isinstance(values, str):
            return ()
        runs = {node_run.label: node_run for node_run in self._walk.runs}
        return tuple(
            NodeContribution(
                output,
                label,
                runs[label].operator if label in runs else "",
                share,
                self._digits_lost(runs.get(label)),
            )
            for output, label, share in _shares(values)
        )

    def _error_contributions(self, whole: Mapping[str, Result]) -> Iterator[ErrorContribution]:
        """Yield the largest contributions of nodes to the errors of each backend.

        Nothing is yielded for a backend that computes the whole model wrongly. A model with control
        flow has no contributions, because its nodes may run several times or not at all.

        Args:
            whole: the result of the whole model by backend.
        """
        runs = self._walk.runs
        if any(node_run.missing or node_run.holders for node_run in runs):
            return
        operators = {node_run.label: node_run.operator for node_run in runs}
        for executor in self._plan.backends:
            if whole[executor.name].outcome is Outcome.FAIL:
                continue
            returned = self._returned_by(executor)
            if not returned:
                continue
            inputs = {**self._problem.inputs, **returned}
            submit = partial(self._of_oracle, ERROR_CONTRIBUTIONS)
            values = self._values(submit, self._walk.model, inputs)
            if isinstance(values, str):
                continue
            for output, label, share in _shares(values):
                operator = operators.get(label, "")
                yield ErrorContribution(output, label, operator, share, executor.name)

    def _returned_by(self, executor: Executor) -> dict[str, Value]:
        """Run each node again as a model of one node, and return the tensors of a backend.

        The result is empty if the nodes take too long, the tensors take too much memory, or the
        backend returns no outputs for a node. The keys are the names of the values with the prefix
        :data:`RETURNED`.
        """
        returned: dict[str, Value] = {}
        remaining, end = _KEPT_BYTES, monotonic() + _MEASURE_SECONDS
        with self._open_progress("measuring", "nodes") as tick:
            for count, node_run in enumerate(self._walk.runs, start=1):
                model, inputs = self._walk.model_of([node_run])
                values = self._values(executor.submit, model, inputs)
                stopped = self._plan.interruption.signal or monotonic() > end
                if stopped or isinstance(values, str):
                    return {}
                for info, value in zip(model.graph.output, values, strict=False):
                    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
                        returned[f"{RETURNED}{info.name}"] = value
                        remaining -= value.nbytes
                if remaining < 0:
                    return {}
                tick(count, len(self._walk.runs))
        return returned

    def _digits_lost(self, node_run: NodeRun | None) -> float:
        """Return the number of decimal digits lost to cancellation in Add or Sub; otherwise 0."""
        if node_run is None or node_run.node.op_type not in {"Add", "Sub"}:
            return 0.0
        keys = (*node_run.node.input, *node_run.node.output)
        sizes = [_size(self._walk.store.get(key)) for key in keys]
        return math.log10(max(sizes[:-1]) / sizes[-1]) if min(sizes) > 0 else 0.0

    def _judged_nodes(self, *, searched: bool) -> list[tuple[NodeRun, tuple[Result, ...]]]:
        """Judge each node as a model of one node; return the nodes with their results.

        Args:
            searched: whether the If nodes whose branches have been searched are judged, or all
                other nodes.
        """
        chosen = self._walk.searched
        judged = [run for run in self._walk.runs if not run.missing and (run in chosen) == searched]
        indices = {id(node_run): index for index, node_run in enumerate(self._walk.runs)}
        cases = [
            Case(
                f"{self._case.id}:{indices[id(node_run)]}",
                self._case.location,
                partial(self._problem_of, [node_run]),
            )
            for node_run in judged
        ]
        results: list[tuple[NodeRun, tuple[Result, ...]]] = []
        end = monotonic() + self._seconds
        rows = closing(run(replace(self._plan, cases=cases)))
        with self._open_progress("judging", "nodes") as tick, rows as judged_rows:
            for node_run, row in zip(judged, judged_rows, strict=False):
                results.append((node_run, row))
                tick(len(results), len(judged))
                if monotonic() > end:
                    break
        return results

    def _findings(self, results: Sequence[tuple[NodeRun, tuple[Result, ...]]]) -> Located:
        """Return the nodes that are wrong, and the nodes that cannot be judged."""
        wrong: dict[tuple[int, str], tuple[NodeRun, LocatedNode]] = {}
        not_judged: dict[tuple[int, str], NotJudged] = {}
        rows = {id(node_run): row for node_run, row in results}
        # The nodes of a branch are judged instead of the If that contains the branch.
        searched = self._walk.searched
        late = f"limit of time: the earlier nodes took {self._seconds:g} s; raise --timeout"
        for node_run in self._walk.runs:
            is_skipped = id(node_run) not in rows and node_run not in searched
            if node_run.missing or is_skipped:
                for executor in self._plan.backends:
                    not_judged[id(node_run), executor.name] = NotJudged(
                        node_run.name, node_run.operator, node_run.missing or late, executor.name
                    )
            for result in rows.get(id(node_run), ()):
                key = id(node_run), result.backend
                if result.outcome is Outcome.FAIL:
                    wrong[key] = node_run, self._wrong_node(node_run, result)
                elif (reason := _reason(result)) and node_run not in searched:
                    not_judged[key] = NotJudged(
                        node_run.name, node_run.operator, reason, result.backend
                    )
        not_reached = [
            NotJudged(label, operator, late, executor.name)
            for label, operator in self._not_reached()
            for executor in self._plan.backends
        ]
        # A control flow node is reported as wrong only if no node within it is wrong.
        blamed = {
            (id(holder), finding.backend)
            for node_run, finding in wrong.values()
            for holder in node_run.holders
        }
        order = {id(node_run): index for index, node_run in enumerate(self._walk.runs)}
        ordered_findings = [
            (order[id(node_run)], finding)
            for node_run, finding in wrong.values()
            if (id(node_run), finding.backend) not in blamed
        ]
        return Located(
            len(self._walk.runs),
            tuple(finding for _, finding in sorted(ordered_findings, key=lambda pair: pair[0])),
            (*(entry for key, entry in not_judged.items() if key not in wrong), *not_reached),
            disagreements=tuple(self._disagreements(results)),
            interrupted=bool(self._plan.interruption.signal),
        )

    def _not_reached(self) -> list[tuple[str, str]]:
        """Return the names and operators of the nodes that the walk did not reach in time."""
        if not self._is_unfinished:
            return []
        reached = {node_run.label for node_run in self._walk.runs if not node_run.holders}
        graph = self._walk.model.graph
        return [
            (label, node.op_type)
            for node, label in zip(graph.node, node_labels(graph), strict=True)
            if label not in reached and node.op_type != "Constant"
        ]

    def _disagreements(
        self, results: Sequence[tuple[NodeRun, tuple[Result, ...]]]
    ) -> Iterator[Disagreement]:
        """Yield nodes that all backends compute within the tolerance, but with different errors."""
        for node_run, row in results:
            if len(row) > 1 and all(result.outcome in _RIGHT for result in row):
                errors = {
                    result.backend: max((diff.tolerance_used for diff in result.diffs), default=0.0)
                    for result in row
                }
                if max(errors.values()) > min(errors.values()):
                    yield Disagreement(node_run.name, node_run.operator, errors)

    def _wrong_node(self, node_run: NodeRun, result: Result) -> LocatedNode:
        worst = max(
            (diff for diff in result.diffs if not diff.agrees),
            key=lambda diff: math.inf if diff.structure else diff.tolerance_used,
            default=None,
        )
        share = None if worst is None or worst.structure else worst.tolerance_used
        problem = self._reproduction([node_run])
        return LocatedNode(
            node_run.name,
            node_run.operator,
            worst.name if worst else "",
            share,
            self._cause(result, problem),
            result.backend,
            problem,
            result,
        )

    def _cause(self, result: Result, problem: Problem | None) -> str:
        """Describe the wrong elements and, for an operator with a formula, a known mistake."""
        if problem is None:
            return result.message
        if sole_operator(problem.model) is None or result.outcome is not Outcome.FAIL:
            return result.message
        case = Case(result.case, result.location, lambda: replace(problem, stored=None))
        explanations = explain(
            [result], {case.id: case}, self._plan.judging, seconds=_EXPLAIN_SECONDS
        )
        texts = [explanation.text for explanation in explanations if explanation.causes]
        return "; ".join([*texts, result.message])

    def _with_failures(
        self, located: Located, results: Sequence[tuple[NodeRun, tuple[Result, ...]]]
    ) -> Located:
        """Report a node that returned no outputs as wrong if the whole model has the same outcome.

        Another outcome suggests that the backend merely cannot run a model of one node.
        """
        further = [
            self._wrong_node(node_run, result)
            for node_run, row in results
            for result in row
            if result.outcome in _WITHOUT_OUTPUTS
            and located.whole[result.backend].outcome is result.outcome
        ]
        names = {(finding.node, finding.backend) for finding in further}
        return replace(
            located,
            wrong=(*located.wrong, *further),
            not_judged=tuple(
                entry for entry in located.not_judged if (entry.node, entry.backend) not in names
            ),
        )

    def _with_subgraphs(self, located: Located) -> Located:
        """Reduce the model for each backend that is right on every node but wrong on the model."""
        backends = {finding.backend for finding in located.wrong}
        further: list[LocatedNode] = []
        subgraphs: dict[str, tuple[str, ...]] = {}
        reproductions: dict[str, Problem] = {}
        unreduced: dict[str, str] = {}
        for executor in self._plan.backends:
            result = located.whole[executor.name]
            if executor.name in backends or result.outcome is not Outcome.FAIL:
                continue
            runs = [
                node_run
                for node_run in self._walk.runs
                if not node_run.missing and not node_run.repeated and node_run.node.op_type != "If"
            ]
            with self._open_progress("reducing", "subgraphs") as tick:
                fails = _Counted(partial(self._fails, executor), tick, monotonic() + self._seconds)
                smallest: list[NodeRun] = []
                together = self._result_together(executor, runs)
                if together.outcome is Outcome.FAIL:
                    with suppress(SearchEndedError):
                        smallest = smallest_failing(runs, fails)
                elif not self._plan.interruption.signal:
                    unreduced[executor.name] = _why_unreduced(together)
                if len(smallest) == 1:
                    further += self._wrong_again(executor, smallest[0])
                elif smallest:
                    subgraphs[executor.name] = tuple(node_run.name for node_run in smallest)
                    if (problem := self._reproduction(smallest)) is not None:
                        reproductions[executor.name] = problem
        return replace(
            located,
            wrong=(*located.wrong, *further),
            subgraph=subgraphs,
            reproductions=reproductions,
            unreduced=unreduced,
            interrupted=bool(self._plan.interruption.signal),
        )

    def _wrong_again(self, executor: Executor, node_run: NodeRun) -> Iterator[LocatedNode]:
        """Rerun a node that was right in its first run, and yield the node if it is wrong now."""
        result = self._result_together(executor, [node_run])
        if result.outcome is Outcome.FAIL:
            finding = self._wrong_node(node_run, result)
            yield replace(finding, cause=f"{_RIGHT_AT_FIRST}{finding.cause}")

    def _fails(self, executor: Executor, runs: Sequence[NodeRun]) -> bool:
        """Return whether some nodes are wrong on a backend if they run together.

        Raises:
            SearchEndedError: if the user has interrupted the search.
        """
        if self._plan.interruption.signal:
            raise SearchEndedError
        return self._result_together(executor, runs).outcome is Outcome.FAIL

    def _result_together(self, executor: Executor, runs: Sequence[NodeRun]) -> Result:
        """Return the result of running some nodes as one model on a backend."""
        case = Case(self._case.id, self._case.location, partial(self._problem_of, runs))
        (result,) = run_case(replace(self._plan, backends=(executor,)), case)
        return result

    def _problem_of(self, runs: Sequence[NodeRun], *, stored: bool = False) -> Problem:
        """Return the model and inputs of some nodes; if ``stored``, with the expected outputs.

        Raises:
            BeyondLimit: if the values of the nodes exceed the memory limit.
        """
        size, max_bytes = self._bytes_of(runs), self._walk.max_bytes
        if max_bytes and size > max_bytes:
            excess = f"its values have {size} bytes, but the limit is {max_bytes} bytes"
            raise BeyondLimit([Fault(str(self._case.location), excess)])
        model, inputs = self._walk.model_of(runs, outputs=self._read_elsewhere(runs))
        outputs = {info.name: self._walk.store[info.name] for info in model.graph.output}
        return Problem(model, inputs, outputs if stored else None)

    def _reproduction(self, runs: Sequence[NodeRun]) -> Problem | None:
        """Return a case's content with which some nodes fail again; None if it exceeds a limit."""
        size = self._bytes_of(runs)
        if not self._reproductions_left or size > self._bytes_left:
            return None
        self._reproductions_left -= 1
        self._bytes_left -= size
        return self._problem_of(runs, stored=True)

    def _bytes_of(self, runs: Sequence[NodeRun]) -> int:
        """Return the total number of bytes of the values that some nodes read and return."""
        produced = {key for node_run in runs for key in node_run.outputs}
        read = {key for node_run in runs for key in node_run.read} - produced
        keys = read | self._read_elsewhere(runs)
        return sum(map(self._walk.store.bytes_of, keys & self._walk.store.keys()))

    def _read_elsewhere(self, runs: Sequence[NodeRun]) -> set[str]:
        """Return the outputs of nodes that are read by other nodes or are outputs of the model.

        For a single node, all outputs that have a value are returned.
        """
        if len(runs) == 1:
            return set(runs[0].outputs) & self._walk.store.keys()
        inside = {id(node_run) for node_run in runs}
        read = {
            key
            for node_run in self._walk.runs
            if id(node_run) not in inside
            for key in node_run.read
        }
        return {*read, *self._walk.outputs} & {key for item in runs for key in item.outputs}

    def _of_oracle(self, key: str, request: Request) -> Callable[[], ReferenceResponse | str]:
        """Submit a model to the oracle; return a function that waits for the response.

        Args:
            key: the metadata key that requests the kind of result.
            request: the model and its inputs. The metadata and the node names of the model are
                changed.
        """
        oracle = self._plan.oracle.reference
        assert oracle is not None  # noqa: S101 - the plan has an oracle
        assert oracle.workers is not None  # noqa: S101 - the oracle of a plan has workers
        onnx.helper.set_model_props(request.model, {key: "1"})
        name_nodes(request.model.graph)
        return oracle.workers()(request.model, request.inputs)

    def _values(
        self,
        submit: Callable[[Request], Callable[[], ReferenceResponse | str]],
        model: onnx.ModelProto,
        inputs: Mapping[str, Value],
    ) -> Sequence[Value] | str:
        """Return the outputs of a model, or why they are missing."""
        sent = onnx.ModelProto()
        sent.CopyFrom(model)
        response = submit(Request(sent, inputs))()
        if isinstance(response, str):
            return response
        if response.outputs is None:
            reason = response.message.removeprefix(f"{NoReferenceError.__name__}: ")
            return clipped(reason or str(response.failure), _MAX_REASON_CHARS)
        return response.outputs


def _shares(values: Sequence[Value]) -> list[tuple[str, str, float]]:
    """Return the output, the node and the share of each contribution, the largest first.

    All iterations of the body of a Loop or Scan count as one node. Small contributions are left
    out.
    """
    shares: defaultdict[tuple[str, str], float] = defaultdict(float)
    for entry in parsed_contributions(values):
        shares[entry.output, entry.node] += entry.share
    # The oracle estimates the total from sums with random signs. Therefore, the shares may add up
    # to more than 1.
    totals: defaultdict[str, float] = defaultdict(float)
    for (output, _), share in shares.items():
        totals[output] += share
    relative = {key: share / max(totals[key[0]], 1.0) for key, share in shares.items()}
    ordered = sorted(relative.items(), key=lambda item: -item[1])
    return [(output, node, share) for (output, node), share in ordered if share >= _LEAST_SHARE]


def _size(value: Value) -> float:
    """Return the root of the mean square of a tensor; 0 for another value."""
    if not isinstance(value, np.ndarray) or value.dtype.kind == "O" or not value.size:
        return 0.0
    with np.errstate(all="ignore"):
        size = float(np.sqrt(np.mean(np.square(np.abs(value.astype(np.float64))))))
    return size if math.isfinite(size) else 0.0


class _Counted:
    """Judges each subgraph at most once, and shows the progress.

    The number of subgraphs and the time are limited.
    """

    def __init__(
        self,
        fails: Callable[[Sequence[NodeRun]], bool],
        tick: Callable[[int, int], object],
        end: float,
    ) -> None:
        self._fails, self._tick, self._end = fails, tick, end
        self._known: dict[bytes, bool] = {}

    def __call__(self, runs: Sequence[NodeRun]) -> bool:
        # The key of a subgraph is a digest. A tuple of the nodes would take much memory.
        key = sha256(array("Q", map(id, runs))).digest()
        if key not in self._known:
            if len(self._known) == _MAX_SUBGRAPHS or monotonic() > self._end:
                raise SearchEndedError
            self._known[key] = self._fails(runs)
            self._tick(len(self._known), 0)
        return self._known[key]


def _reason(result: Result) -> str:
    """Return why a result does not decide whether its node is right; empty if it decides."""
    if result.outcome in _RIGHT:
        elements = sum(diff.elements for diff in result.diffs)
        inconclusive = sum(diff.inconclusive for diff in result.diffs)
        return "inconclusive at these inputs" if elements and inconclusive == elements else ""
    if result.outcome is Outcome.LEAK:
        return ""
    text = clipped(printable(result.message), _MAX_REASON_CHARS)
    own_reasons = (Outcome.INVALID, Outcome.NOT_RUN)
    if result.outcome in own_reasons or result.message.startswith(LIMIT):
        return text
    return f"{result.outcome} alone: {text}" if text else f"{result.outcome} alone"


def _why_unreduced(together: Result) -> str:
    """Return why a wrong model is not reduced.

    Args:
        together: the result of running all judged nodes as one model.
    """
    if together.outcome in _RIGHT:
        return "the nodes are right in a model of their own"
    return clipped(printable(together.message), _MAX_REASON_CHARS) or str(together.outcome)


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the bodies of its functions in place of their calls, if possible."""
    if not model.functions:
        return model
    names = sorted({(function.domain, function.name) for function in model.functions})
    with suppress(OnnxRefusal):
        return inline_functions(spell_out_defaults(model), names)
    return model


def _inferred_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types of the values of a graph that are declared or can be inferred."""
    with suppress(OnnxRefusal):
        model = infer_shapes(model)
    graph = model.graph
    return {info.name: info.type for info in (*graph.value_info, *graph.input, *graph.output)}
