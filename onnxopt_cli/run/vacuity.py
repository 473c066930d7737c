"""The vacuity check: whether a backend that computes nothing would also pass.

A backend that rejects every model passes the rejection cases. A backend that returns its inputs,
zeros or NaN passes the cases with such expected outputs. A pass of this kind counts only if the
backend also passes a probe: a similar node with valid, nontrivial inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.backends.host import Request, Response
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import (
    Array,
    Value,
    describe,
)
from onnxopt_cli.errors import InvalidCase
from onnxopt_cli.operators.nodes import operator_names
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.run.executors import Executor
from onnxopt_cli.suites.plain_node import (
    PlainNode,
    computes,
    is_an_input,
    is_trivial,
    plain_pair,
)

# For an operator without a formula, at most this number of cases serve as probes of a backend.
_MAX_PROBES = 20
_NO_PROBE = "no other case shows whether the backend computes it; add one beside this case"


class ProbeNotRunError(Exception):
    """A probe was not run, because the run or the backend has ended; the message says which one."""


@dataclass(eq=False)
class VacuityCheck:
    """Records which operators backends compute; each backend runs each probe once.

    Attributes:
        probe_cases: cases that serve as probes of operators without a formula.
    """

    probe_cases: Iterable[Case] = ()
    # By backend and probe, the fault of the probe's outputs; empty if they are correct.
    _findings: dict[tuple[object, ...], str] = field(default_factory=dict)

    def reason(self, executor: Executor, problem: Problem, response: Response) -> str:
        """Return why a pass is vacuous; empty if it is not.

        Args:
            executor: the backend, on which probes may run.
            problem: the problem of the case that passed.
            response: the backend's response to it.

        Raises:
            ProbeNotRunError: if a probe is needed, but the run or the backend has ended.
        """
        operator = problem.operator
        nodes = problem.model.graph.node
        if problem.must_reject:
            if operator is None:
                finding = self._finding_for_model(executor, problem.model)
                return f"rejected, but {finding}" if finding else ""
            pair = plain_pair(operator, nodes[0], problem.inputs)
            finding = self._finding_for_pair(executor, pair)
            return f"rejected, but with the fault removed {finding}" if finding else ""
        if problem.trajectory is not None or response.outputs is None:
            return ""
        if operator is None:
            return self._reason_without_formula(executor, problem, response.outputs)
        if not is_trivial(response.outputs, problem.inputs):
            return ""
        pair = plain_pair(operator, nodes[0], problem.inputs)
        finding = self._finding_for_pair(executor, pair) if pair else ""
        return f"right, but for nontrivial expected outputs {finding}" if finding else ""

    def _finding_for_pair(
        self, executor: Executor, pair: tuple[PlainNode, PlainNode] | None
    ) -> str:
        """Return why a backend does not compute a pair of nodes; empty if it does.

        The reason continues a sentence whose subject is the backend or the pass.
        """
        if pair is None:
            return "no node of the operator shows whether it computes anything"
        inputs = pair[0].inputs.values()
        key = executor, pair[0].model.SerializeToString(), *(value.tobytes() for value in inputs)
        if key not in self._findings:
            self._findings[key] = _run_pair(executor, pair)
        return self._findings[key]

    def _reason_without_formula(
        self, executor: Executor, problem: Problem, outputs: Sequence[Value]
    ) -> str:
        """Return why a correct result is vacuous; empty if it is not, or if no probe exists."""
        nodes = problem.model.graph.node
        if _computed(outputs, problem):
            if len(nodes) == 1:
                self._findings[executor, nodes[0].domain, nodes[0].op_type] = ""
            return ""
        first_finding = ""
        for node in nodes:
            finding = self._finding_for_operator(executor, node, _types(problem))
            if not finding:
                return ""
            if finding != _NO_PROBE:
                first_finding = first_finding or f"for {printable(node.op_type)} {finding}"
        if not first_finding:
            return ""
        return f"right, but the expected output is a constant or an input, and {first_finding}"

    def _finding_for_model(self, executor: Executor, model: onnx.ModelProto) -> str:
        """Name an operator of a rejected model that the backend may be unable to compute."""
        for node in model.graph.node:
            finding = self._finding_for_operator(executor, node, None)
            if finding:
                return f"for {printable(node.op_type)} {finding}"
        return ""

    def _finding_for_operator(
        self, executor: Executor, node: onnx.NodeProto, types: frozenset[np.dtype[Any]] | None
    ) -> str:
        """Return why nothing shows that a backend computes the operator of a node.

        Args:
            executor: the backend.
            node: the node.
            types: the element types of the case's inputs; None for a rejection case, for which the
                node cases of onnx are also probes.
        """
        operator = registry().find(node.domain, node.op_type)
        if operator is not None:
            return self._finding_for_pair(executor, plain_pair(operator, node, {}))
        findings, key = self._findings, (executor, node.domain, node.op_type)
        if key in findings:
            return ""
        if (*key, types) not in findings:
            finding = _run_probe_cases(executor, node.op_type, self.probe_cases, types)
            if finding == _NO_PROBE and types is None:
                # Imported late: generating onnx's cases takes long.
                from onnxopt_cli.cases.onnx.corpora import corpus

                cases = corpus("onnx-node")[0]
                finding = _run_probe_cases(executor, node.op_type, cases, types)
            # One computed probe is enough for all element types.
            findings[(*key, types) if finding else key] = finding
        return findings.get((*key, types), "")


def _types(problem: Problem) -> frozenset[np.dtype[Any]]:
    """Return the element types of a case's inputs."""
    return frozenset(
        value.dtype for value in problem.inputs.values() if isinstance(value, np.ndarray)
    )


def _run_probe_cases(
    executor: Executor, name: str, cases: Iterable[Case], types: frozenset[np.dtype[Any]] | None
) -> str:
    count = 0
    for problem in _probes(cases, name):
        response = _response(executor, problem.model, problem.inputs)
        if _computed(response.outputs or (), problem):
            return ""
        # A runtime that does not support all types of an operator may report this as any error.
        has_other_types = types is not None and not _types(problem) <= types
        ignored = Outcome.UNSUPPORTED, *((Outcome.ERROR,) if has_other_types else ())
        count += response.failure not in ignored
        if count == _MAX_PROBES:
            break
    return f"it computes none of {count} other cases" if count else _NO_PROBE


def _run_pair(executor: Executor, pair: tuple[PlainNode, PlainNode]) -> str:
    returned: list[Sequence[Value]] = []
    for node in pair:
        response = _response(executor, node.model, node.inputs)
        if response.outputs is None:
            return f"it ends in {response.failure}: {response.message}"
        names = [output.name for output in node.model.graph.output]
        if len(response.outputs) != len(names):
            return f"it returns {len(response.outputs)} outputs, expected {len(names)}"
        for name, right, value in zip(names, node.expected, response.outputs, strict=True):
            if describe(value) != describe(right):
                return f"it returns {name} as {describe(value)}, expected {describe(right)}"
        returned.append(response.outputs)
    if computes(pair, returned):
        return ""
    return "it returns inputs, or outputs that do not depend on them"


def _probes(cases: Iterable[Case], name: str) -> Iterator[Problem]:
    """Yield the cases of a single node of an operator with a nontrivial expected output."""
    # Most cases do not state their operators before they are loaded, and loading all takes long.
    lower_name = name.lower()
    rated = [(rating, case) for case in cases if (rating := _likelihood(case, name, lower_name))]
    for _, case in sorted(rated, key=itemgetter(0), reverse=True):
        try:
            problem = case.load()
        except InvalidCase:
            continue
        if problem.must_reject or operator_names(problem.model) != (name,):
            continue
        if _computed(list((problem.stored or {}).values()), problem):
            yield problem


def _computed(outputs: Sequence[Value], problem: Problem) -> bool:
    """Return whether at least one output is neither a constant nor an input."""
    return any(
        isinstance(value, np.ndarray)
        and describe(value) == describe(right)
        and (_varies(value, problem) if value.size > 1 else _is_new(value, problem))
        for value, right in zip(outputs, (problem.stored or {}).values(), strict=False)
    )


def _varies(value: Array, problem: Problem) -> bool:
    """Return whether a tensor has at least two different elements and is not an input."""
    first = value.reshape(-1)[0]
    has_numbers = (value == value).any()  # noqa: PLR0124 - False for NaN, of any type
    return bool((value != first).any() and has_numbers) and not is_an_input(value, problem.inputs)


def _is_new(value: Array, problem: Problem) -> bool:
    """Return whether a scalar is neither an input value nor a trivial constant."""
    if value.size != 1 or value.dtype not in (np.float32, np.float64) or not np.isfinite(value):
        return False
    arrays = [array for array in problem.inputs.values() if isinstance(array, np.ndarray)]
    magnitudes = [np.abs(array).reshape(-1) for array in arrays if array.dtype == value.dtype]
    return bool((np.abs(value) != np.concatenate([[0.0, 1.0], *magnitudes])).all())


def _likelihood(case: Case, name: str, lower_name: str) -> int:
    """Return how likely it is that a case is one of an operator; 0 if it is not.

    The directories of ONNX tests are named after operators: ``test_reduce_l1_default_axes``.
    """
    if case.operators:
        return 3 * (case.operators == (name,))
    joined, words = _words(case.id)
    if joined.startswith(lower_name):
        return 2
    return int(lower_name in words or lower_name.startswith(words[0]))


@lru_cache(10_000)
def _words(case_id: str) -> tuple[str, list[str]]:
    words = case_id.split("/")[-2:][0].lower().removeprefix("test_").split("_")
    return "".join(words), words


def _response(executor: Executor, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Response:
    response = executor.submit(Request(model, inputs))()
    if isinstance(response, str):
        raise ProbeNotRunError(response)
    return response
