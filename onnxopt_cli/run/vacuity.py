"""The vacuity check: whether a backend that computes nothing would pass, too.

A backend that rejects every model also passes the rejection cases; one that returns its inputs,
zeros or NaN passes each case whose expected outputs are just these. Such a pass counts only if the
backend computes the operator: it runs a similar node whose inputs are valid and not trivial.
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

# Cases of an operator without a formula that are run at most, until the backend computes one.
_TRIES = 20
_NO_CASE = "no other case shows whether it runs; put one beside this case"


class ProbeNotRunError(Exception):
    """A probe was not run, because the run or the backend has ended; the message says which."""


@dataclass(eq=False)
class VacuityCheck:
    """Knows which operators backends compute; each backend runs each probe once.

    Attributes:
        neighbours: cases that serve as probes of operators without a formula.
    """

    neighbours: Iterable[Case] = ()
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def reason(self, executor: Executor, problem: Problem, response: Response) -> str:
        """Return why a pass is vacuous; empty if it is not.

        Args:
            executor: the backend, which may have to run probes.
            problem: the problem of the case that passed.
            response: the backend's response to it.

        Raises:
            ProbeNotRunError: if that cannot be found out any more.
        """
        operator = problem.operator
        nodes = problem.model.graph.node
        if problem.must_reject:
            if operator is None:
                said = self._of_model(executor, problem.model)
                return f"refused, but {said}" if said else ""
            said = self._asked(executor, plain_pair(operator, nodes[0], problem.inputs))
            return f"refused, but for the same inputs without what is wrong {said}" if said else ""
        if problem.trajectory is not None or response.outputs is None:
            return ""
        if operator is None:
            return self._without_formula(executor, problem, response.outputs)
        if not is_trivial(response.outputs, problem.inputs):
            return ""
        pair = plain_pair(operator, nodes[0], problem.inputs)
        said = self._asked(executor, pair) if pair else ""
        return f"right, but where right is neither empty nor an input {said}" if said else ""

    def _asked(self, executor: Executor, pair: tuple[PlainNode, PlainNode] | None) -> str:
        """Say what a backend does with two nodes, if it does not compute them."""
        if pair is None:
            return "no node of the operator shows whether it computes anything"
        inputs = pair[0].inputs.values()
        key = executor, pair[0].model.SerializeToString(), *(value.tobytes() for value in inputs)
        if key not in self._known:
            self._known[key] = _shortcoming(executor, pair)
        return self._known[key]

    def _without_formula(
        self, executor: Executor, problem: Problem, outputs: Sequence[Value]
    ) -> str:
        """Say why a right result is not earned; where no case can tell, it is."""
        nodes = problem.model.graph.node
        if _computed(outputs, problem):
            if len(nodes) == 1:
                self._known[executor, nodes[0].domain, nodes[0].op_type] = ""
            return ""
        said = ""
        for node in nodes:
            what = self._of_operator(executor, node, _types(problem))
            if not what:
                return ""
            if what != _NO_CASE:
                said = said or f"of {printable(node.op_type)} {what}"
        return f"right, but a constant or an input is right here, and {said}" if said else ""

    def _of_model(self, executor: Executor, model: onnx.ModelProto) -> str:
        """Say which operator of a refused model a backend has not shown to compute."""
        for node in model.graph.node:
            said = self._of_operator(executor, node, None)
            if said:
                return f"of {printable(node.op_type)} {said}"
        return ""

    def _of_operator(
        self, executor: Executor, node: onnx.NodeProto, types: frozenset[np.dtype[Any]] | None
    ) -> str:
        """Say why a backend has not shown that it computes a node.

        Args:
            executor: the backend.
            node: the node.
            types: of what it was fed; None if it refused, so that onnx's own cases may tell, too.
        """
        operator = registry().find(node.domain, node.op_type)
        if operator is not None:
            return self._asked(executor, plain_pair(operator, node, {}))
        known, key = self._known, (executor, node.domain, node.op_type)
        if key in known:
            return ""
        if (*key, types) not in known:
            said = _of_cases(executor, node.op_type, self.neighbours, types)
            if said == _NO_CASE and types is None:
                # They are made only where they are needed.
                from onnxopt_cli.cases.onnx.corpora import corpus

                said = _of_cases(executor, node.op_type, corpus("onnx-node")[0], types)
            # What it has computed once, it computes, whatever it was fed.
            known[(*key, types) if said else key] = said
        return known.get((*key, types), "")


def _types(problem: Problem) -> frozenset[np.dtype[Any]]:
    """Return the element types of what a case is fed."""
    return frozenset(it.dtype for it in problem.inputs.values() if isinstance(it, np.ndarray))


def _of_cases(
    executor: Executor, name: str, cases: Iterable[Case], types: frozenset[np.dtype[Any]] | None
) -> str:
    tried = 0
    for problem in _telling(cases, name):
        response = _response(executor, problem.model, problem.inputs)
        if _computed(response.outputs or (), problem):
            return ""
        # A runtime may lack many of an operator's types, in whatever way it says so.
        other = types is not None and not _types(problem) <= types
        lacks = Outcome.UNSUPPORTED, *((Outcome.ERROR,) if other else ())
        tried += response.failure not in lacks
        if tried == _TRIES:
            break
    return f"it computes none of {tried} other cases" if tried else _NO_CASE


def _shortcoming(executor: Executor, pair: tuple[PlainNode, PlainNode]) -> str:
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
    return "" if computes(pair, returned) else "it returns inputs, or what does not depend on them"


def _telling(cases: Iterable[Case], name: str) -> Iterator[Problem]:
    """Yield cases of one node of an operator with an output that has to be computed."""
    # Reading all cases that do not say their operators would take long.
    own = name.lower()
    rated = [(rating, case) for case in cases if (rating := _likelihood(case, name, own))]
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
    """Tell whether an output is neither a constant nor an input."""
    return any(
        isinstance(value, np.ndarray)
        and describe(value) == describe(right)
        and (_varies(value, problem) if value.size > 1 else _is_new(value, problem))
        for value, right in zip(outputs, (problem.stored or {}).values(), strict=False)
    )


def _varies(value: Array, problem: Problem) -> bool:
    """Tell whether a tensor has unlike elements, other than those of an input."""
    first = value.reshape(-1)[0]
    numbers = (value == value).any()  # noqa: PLR0124 - not all NaN, of any type
    return bool((value != first).any() and numbers) and not is_an_input(value, problem.inputs)


def _is_new(value: Array, problem: Problem) -> bool:
    """Tell whether a single float is none that an input has, nor one that anybody guesses."""
    if value.size != 1 or value.dtype not in (np.float32, np.float64) or not np.isfinite(value):
        return False
    known = [it for it in problem.inputs.values() if isinstance(it, np.ndarray)]
    alike = [np.abs(it).reshape(-1) for it in known if it.dtype == value.dtype]
    return bool((np.abs(value) != np.concatenate([[0.0, 1.0], *alike])).all())


def _likelihood(case: Case, name: str, own: str) -> int:
    """Tell how likely a case is one of an operator, ``own`` being its name in lower case; 0 if not.

    The directories of ONNX tests are named after operators: ``test_reduce_l1_default_axes``.
    """
    if case.operators:
        return 3 * (case.operators == (name,))
    together, words = _words(case.id)
    if together.startswith(own):
        return 2
    return int(own in words or own.startswith(words[0]))


@lru_cache(10_000)
def _words(case_id: str) -> tuple[str, list[str]]:
    words = case_id.split("/")[-2:][0].lower().removeprefix("test_").split("_")
    return "".join(words), words


def _response(executor: Executor, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> Response:
    response = executor.submit(Request(model, inputs))()
    if isinstance(response, str):
        raise ProbeNotRunError(response)
    return response
