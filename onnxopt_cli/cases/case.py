"""Cases, and the problem that each one loads: a model, its inputs and its stored outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import onnx

from onnxopt_cli.core.location import Location
from onnxopt_cli.core.result import Outcome, Result
from onnxopt_cli.core.text import clipped, exception_text
from onnxopt_cli.core.tolerance import Tolerance
from onnxopt_cli.core.trajectory import Trajectory
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import (
    OUT_OF_MEMORY,
    Fault,
    InvalidCase,
    NodeError,
    OnnxoptError,
)
from onnxopt_cli.interpret.single_node import (
    bind_node,
    sole_call,
    sole_operator,
)
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator

#: What tells a file from another, and from itself after a change: device, inode, size, and the
#: times of the last change of its content and of anything. Who changes a file can set the first
#: time back, but not the second. None is a file that did not stay the same while it was read.
Signature = tuple[int, int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class Problem:
    """The heavy part of a case: loaded when it is needed, and released after.

    Attributes:
        model: what the backend runs; external data are already read into it.
        inputs: a value for every input of the graph that must be fed, in the graph's order.
        stored: the stored outputs by name, in the graph's order; None if there are none, as the
            formula yields them.
        tolerance: the case's own tolerance for all outputs, or None.
        output_tolerances: the case's own tolerances for single outputs, which precede it.
        must_reject: True if a right backend must refuse the model or its inputs.
        trajectory: the steps, if there are many. The outputs are then those of the recorded steps,
            stacked. The model is that of one step, with the inputs of the first; or one with a
            ``Loop`` that runs them all.
        operator: the operator with a formula of which the model is one node; None otherwise.
        call: the operator's call with the inputs, of a trajectory that of the first step; None
            without an operator, and where the node breaks the operator's signature.
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
    """Return a message that something could not be loaded because of an error."""
    if isinstance(error, MemoryError):
        return f"{OUT_OF_MEMORY} to read it"
    if isinstance(error, OnnxoptError):
        return error.message
    reason = error.strerror if isinstance(error, OSError) else ""
    return f"cannot be read: {clipped(reason or exception_text(error))}"


class _GuardedLoad:
    """Loads the problem of a case and binds its call; every error is one of the case.

    Args:
        load: loads the problem.
        location: where the case stands.
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
    """Bind the operator's call, unless the loader of the problem has.

    Raises:
        NodeError: if a node that is not to be rejected breaks its operator's signature.
    """
    if problem.call is not None:
        return problem
    operator = sole_operator(problem.model)
    call = None
    try:
        if problem.trajectory is not None:
            # Not worth importing for cases of one step.
            from onnxopt_cli.interpret.bound.chained_bound import first_inputs

            call = sole_call(problem.trajectory.model, first_inputs(problem.trajectory))
        elif operator is not None:
            call = bind_node(operator, problem.model, problem.inputs)
    except NodeError:
        if not problem.must_reject:
            raise
    return replace(problem, operator=operator, call=call)


@dataclass(frozen=True, slots=True)
class Case:
    """A case under its stable id.

    Attributes:
        id: does not depend on how the path was typed: ``spec/adam/adam_multiple``,
            ``onnx-node/test_adam/0``.
        location: where it stands, for messages.
        load: loads the problem; raises no exception but InvalidCase.
        operators: names of the operators in the model, without repetition, where they are known
            without reading; None otherwise.
        about: what the case asks, one sentence.
        source: where the numbers come from.
        tags: words to select by.
        suite_version: of the suite, as in ``conformance@2``; empty if it states none.
        files: finds the files that the case is read from, by path: those that finding it has read
            with their signatures, and others that reading it will open, with an empty one.
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
        """Let loading raise nothing but InvalidCase."""
        if not isinstance(self.load, _GuardedLoad):
            object.__setattr__(self, "load", _GuardedLoad(self.load, self.location))

    @property
    def suite(self) -> str:
        """The first part of the id."""
        return self.id.split("/", 1)[0]

    def __str__(self) -> str:
        return self.id


def unanswered(case: Case, backend: str, why: str, outcome: Outcome = Outcome.NOT_RUN) -> Result:
    """Return the result of a case without a response from the backend."""
    operators = case.operators or ()
    return Result(case.id, case.location, operators, backend, outcome, message=why)
