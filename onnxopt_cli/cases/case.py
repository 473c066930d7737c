"""Defines a case and its content (model, inputs, stored outputs), and describes it for reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.core.result import CaseContent, Location, Outcome, Result
from onnxopt_cli.core.text import clipped, exception_text
from onnxopt_cli.core.tolerance import Tolerance
from onnxopt_cli.core.untrusted_files import Signature
from onnxopt_cli.core.values import Array, Value, describe
from onnxopt_cli.errors import (
    OUT_OF_MEMORY,
    Fault,
    InvalidCase,
    NodeError,
    OnnxoptError,
)
from onnxopt_cli.interpret.bound.chained_nodes import Trajectory, first_inputs
from onnxopt_cli.operators.call import (
    Call,
    bind_node,
    sole_call,
    sole_operator,
)
from onnxopt_cli.operators.operator import Operator


@dataclass(frozen=True, slots=True)
class Problem:
    """The content of a case: a model, its inputs and its stored outputs.

    The content may be large, so it is loaded on demand and released after use.

    Attributes:
        model: the model to run, with its external data included.
        inputs: a value for every input of the graph that must be fed, in the graph's order.
        stored: the stored outputs by name, in the graph's order; None if the case has no stored
            outputs. The expected outputs are then computed.
        tolerance: the case's own tolerance for all outputs, or None.
        output_tolerances: the case's own tolerances for single outputs; they take precedence over
            ``tolerance``.
        must_reject: True if a correct backend must reject the model or its inputs.
        trajectory: the steps of a case with several steps. The outputs of a trajectory are the
            stacked outputs of the recorded steps. The model either computes one step, with the
            inputs of the first step, or contains a ``Loop`` over all steps.
        operator: the operator, if the model is one node of an operator with a formula.
        call: the operator's call with the inputs of the case or, for a trajectory, of the first
            step. None if ``operator`` is None, or if the node breaks the operator's signature.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    stored: Mapping[str, Value] | None
    tolerance: Tolerance | None = None
    output_tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    must_reject: bool = False
    trajectory: Trajectory | None = None
    operator: Operator | None = None
    call: Call[Array] | None = None

    @property
    def stepwise(self) -> bool:
        """True if the model is run once for each step of a trajectory."""
        return self.trajectory is not None and self.model is self.trajectory.model


def loading_failure(error: Exception) -> str:
    """Return the message about an error that occurred while a file or case was loaded."""
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY} to read it"
    if isinstance(error, OnnxoptError):
        return error.message
    reason = error.strerror if isinstance(error, OSError) else ""
    return f"cannot be read: {clipped(reason or exception_text(error))}"


class _GuardedLoad:
    """Loads the content of a case, and binds the operator's call; every error becomes InvalidCase.

    Args:
        load: function that loads the problem.
        location: file and line of the case.
    """

    __slots__ = ("load", "location")

    def __init__(self, load: Callable[[], Problem], location: Location) -> None:
        self.load, self.location = load, location

    def __call__(self) -> Problem:
        try:
            return bind_problem(self.load())
        except InvalidCase:
            raise
        except Exception as error:
            hint = error.hint if isinstance(error, NodeError) else ""
            fault = Fault(str(self.location), loading_failure(error))
            raise InvalidCase([fault], hint=hint) from error


def bind_problem(problem: Problem) -> Problem:
    """Bind the call of a problem's operator, unless the loader of the case has already bound it.

    Raises:
        NodeError: if the node breaks its operator's signature, except in a case that a correct
            backend must reject.
    """
    if problem.call is not None:
        return problem
    operator = sole_operator(problem.model)
    call = None
    try:
        if problem.trajectory is not None:
            call = sole_call(problem.trajectory.model, first_inputs(problem.trajectory))
        elif operator is not None:
            call = bind_node(operator, problem.model, problem.inputs)
    except NodeError:
        if not problem.must_reject:
            raise
    return replace(problem, operator=operator, call=call)


@dataclass(frozen=True, slots=True)
class Case:
    """A case with a stable id. The content of the case is loaded on demand.

    Attributes:
        id: the id, independent of how the path was typed: ``spec/adam/adam_multiple``,
            ``onnx-node/test_adam/0``.
        location: file and line, for messages.
        load: function that loads the problem. Every exception of the given function is converted
            to InvalidCase.
        operators: distinct names of the operators in the model; None if they are unknown before the
            case is loaded.
        about: what the case tests, in one sentence.
        source: the origin of the numbers.
        tags: words that select the case.
        suite_version: the version of the suite, 2 for ``conformance@2``; empty if the suite has no
            version.
        files: function that returns, for the path of each file of the case, the ``Signature`` by
            which a changed file is recognized. The signature is empty if the file is not read
            before the case is loaded.
    """

    id: str
    location: Location
    load: Callable[[], Problem]
    operators: tuple[str, ...] | None = None
    about: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    suite_version: str = ""
    files: Callable[[], Mapping[str, Signature | tuple[()]]] = dict

    def __post_init__(self) -> None:
        """Wrap ``load`` so that it raises no exception except InvalidCase."""
        if not isinstance(self.load, _GuardedLoad):
            object.__setattr__(self, "load", _GuardedLoad(self.load, self.location))

    @property
    def suite(self) -> str:
        """The first part of the case's id."""
        return self.id.split("/", 1)[0]

    def __str__(self) -> str:
        return self.id


def files_of(cases: Iterable[Case]) -> set[Path]:
    """Return the files that define cases or contain their data."""
    paths: set[Path] = set()
    for case in cases:
        paths.add(case.location.path)
        paths.update(map(Path, case.files()))
    return paths


def unanswered(case: Case, backend: str, reason: str, outcome: Outcome = Outcome.NOT_RUN) -> Result:
    """Return the result of a case to which the backend has given no response."""
    operators = case.operators or ()
    return Result(case.id, case.location, operators, backend, outcome, message=reason)


# The largest number of inputs in the text about a case.
_MAX_INPUTS = 50
# The largest number of elements of an input in the text about a case.
_MAX_ELEMENTS = 32
# The largest number of nodes in the text about a case.
_MAX_NODES = 20
# The largest number of characters of an element or attribute in the text about a case.
_MAX_TEXT_CHARS = 400


def case_content(case: Case, problem: Problem) -> CaseContent:
    """Return the description of a case, its nodes with their attributes, and its inputs.

    Only the first inputs, and the first elements of each input, are included.
    """
    nodes = problem.model.graph.node
    listed = [node_text(node) for node in nodes[:_MAX_NODES]]
    if (hidden := len(nodes) - _MAX_NODES) > 0:
        listed.append((f"{hidden} more nodes", ""))
    inputs = [
        (name, describe(value), input_text(value, _MAX_ELEMENTS))
        for name, value in [*problem.inputs.items()][:_MAX_INPUTS]
    ]
    if (hidden := len(problem.inputs) - _MAX_INPUTS) > 0:
        inputs.append((f"{hidden} more inputs", "", ""))
    return CaseContent(clipped(case.about, _MAX_TEXT_CHARS), tuple(listed), tuple(inputs))


def input_text(value: Value, most: int) -> str:
    """Return a text with the elements of a value; the text of an empty optional is empty.

    Args:
        value: the value.
        most: maximum number of elements of a tensor; the text of a larger tensor ends with dots.
    """
    if value is None:
        return ""
    if not isinstance(value, np.ndarray):
        return clipped(repr(value), _MAX_TEXT_CHARS)
    elements = ", ".join(str(element) for element in value.reshape(-1)[:most])
    more = ", ..." if value.size > most else ""
    text = elements + more if value.ndim == 0 else f"[{elements}{more}]"
    return clipped(text, 4 * _MAX_TEXT_CHARS)


def node_text(node: onnx.NodeProto) -> tuple[str, str]:
    """Return two texts: a node's operator with its domain, and the node's attributes."""
    name = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
    attributes = (f"{item.name}={_attribute_text(item)}" for item in node.attribute)
    return name, ", ".join(attributes)


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    """Return a text with the value of an attribute."""
    try:
        value = helper.get_attribute_value(attribute)
    except ValueError:
        # A hostile file may have an attribute of an unknown type.
        return "?"
    if isinstance(value, onnx.GraphProto):
        return ", ".join(node.op_type for node in value.node)
    if isinstance(value, float):
        return str(np.float32(value))
    if isinstance(value, onnx.TensorProto):
        return f"a tensor of shape {[*value.dims]}"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return clipped(text, _MAX_TEXT_CHARS)
