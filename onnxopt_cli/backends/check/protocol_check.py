"""Check whether a backend follows the rules that onnxopt relies on.

:file:`exec/protocol.md` specifies the rules for commands. The rules are not cases, because a case
cannot contain a damaged model, a request with an unknown field, or printed output. A command runs
in a process of its own; so does a plugin, because it may crash or hang.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper

from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment
from onnxopt_cli.backends.check.checked_backend import (
    LIKELY,
    CheckedBackend,
    CheckedCommand,
    CheckedPlugin,
    refusal,
)
from onnxopt_cli.backends.check.protocol_rule import (
    BackendRule,
    RuleBroken,
    RuleNotShown,
    RuleOutcome,
    RuleResult,
    apply_rule,
    broken,
)
from onnxopt_cli.backends.check.unknown_operators import reports_unknown_operators
from onnxopt_cli.backends.exec.exec_backend import (
    MORE_TIME,
    OPTIONS,
    Command,
    require_supported,
)
from onnxopt_cli.backends.protocol import BREAKDOWNS, normalise_outputs
from onnxopt_cli.backends.specification import Specification, parse_specification
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.core.values import (
    Array,
    Value,
    describe,
)
from onnxopt_cli.errors import (
    BackendHangs,
    BackendUnavailable,
    ProtocolBreach,
    Unsupported,
    UsageError,
)

_STANDARD_OUTPUT = 1
_TEN_MEGABYTES = 10 * 2**20
_NOT_ASCII = ("größe τ/\u7b2c一 \"'", "résultat \U0001f9ea")
_ELEMENT_TYPES = ("float32", "float64", "float16", "int32", "int64", "bool")
# Seconds to wait after a response, in case the backend sends output that was not requested.
_SILENCE_SECONDS = 0.1
# The value of a field that the protocol does not define. The value shuts down a
# command that searches the line for the word "shutdown" instead of parsing the JSON.
_UNKNOWN_FIELD = '{"id": 0, "request": "shutdown"}'


def _keeps_types(subject: CheckedBackend) -> str:
    """The outputs have the element type and the shape that the operator defines."""
    supported_types = []
    for name in _ELEMENT_TYPES:
        matrix = np.array([[0, 1, 1], [1, 0, 1]]).astype(name)
        tensor = subject.probe.tensor.astype(name)
        problem = subject.problem_with(matrix) or subject.problem_with(tensor)
        if problem is None:
            continue
        # A backend may refuse an element type.
        if refusal(partial(_require_declared, subject), problem) is None:
            supported_types.append(name)
    if not supported_types:
        raise RuleNotShown("it runs no model with any of these types")
    return ", ".join(supported_types)


def _answers_alike(subject: CheckedBackend) -> str:
    """The backend returns the same outputs when it gets the same inputs again."""
    problem = _supported_problem(subject)
    first, second = (_outputs(subject, problem) for _ in range(2))
    if len(first) != len(second):
        raise RuleBroken(f"it returned {len(first)} outputs, then {len(second)}")
    for before, after in zip(first, second, strict=True):
        if isinstance(before, np.ndarray) and before.tobytes() != np.asarray(after).tobytes():
            raise RuleBroken("the second outputs differ from the first")
    return f"{len(first)} outputs, twice"


def _survives_empty(subject: CheckedBackend) -> str:
    """The backend responds properly to a tensor without elements."""
    probe = subject.probe
    return _survives(subject, np.zeros((*probe.shape[:-2], 0, 3), probe.dtype))


def _survives_large(subject: CheckedBackend) -> str:
    """The backend responds properly to a tensor of ten megabytes."""
    probe = subject.probe
    shape = (1,) * (len(probe.shape) - 1) + (_TEN_MEGABYTES // probe.dtype.itemsize,)
    return _survives(subject, np.ones(shape, probe.dtype))


def _survives_names(subject: CheckedBackend) -> str:
    """The backend responds properly to a model whose inputs and outputs have non-ASCII names."""
    return _survives(subject, subject.probe.tensor, _NOT_ASCII)


def _supported_problem(subject: CheckedBackend) -> Problem:
    """Return a probe that the backend supports: a model with its inputs.

    Raises:
        RuleNotShown: if the backend supports none of the probes.
    """
    if subject.supported is None:
        raise RuleNotShown("it runs none of the operators that were tried")
    return subject.supported.problem()


def _outputs(subject: CheckedBackend, problem: Problem) -> Sequence[Value]:
    """Return the outputs of a model without checking their number, types and shapes.

    The rule :func:`_keeps_types` checks the number, types and shapes.
    """
    return normalise_outputs(subject.raw_outputs(problem), problem.model.graph.output)


def _require_declared(subject: CheckedBackend, problem: Problem) -> None:
    """Check the number, types and shapes of the outputs.

    Raises:
        RuleBroken: if the outputs differ from the declared outputs.
    """
    declared = problem.model.graph.output
    outputs = _outputs(subject, problem)
    if len(outputs) != len(declared):
        raise RuleBroken(f"it returned {len(outputs)} outputs, expected {len(declared)}")
    for output, expected in zip(outputs, map(_declared, declared), strict=True):
        if describe(output) != describe(expected):
            raise RuleBroken(f"it returned {describe(output)}, expected {describe(expected)}")


def _declared(output: ValueInfoProto) -> Array:
    tensor = output.type.tensor_type
    shape = [dimension.dim_value for dimension in tensor.shape.dim]
    return np.broadcast_to(np.zeros((), helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)


def _survives(subject: CheckedBackend, array: Array, names: tuple[str, str] = ("x", "y")) -> str:
    problem = subject.problem_with(array, names)
    if problem is None and subject.supported is not None:
        operator = subject.supported.operator
        raise RuleNotShown(f"the backend runs {operator}, which does not accept the tensor")
    # A backend that supports no probe must also respond properly.
    problem = problem or replace(subject.probe, operator=LIKELY[0]).problem(array, names)
    # An error is a proper response, but a crash or a timeout is not.
    return str(refusal(partial(_outputs, subject), problem) or "it ran")


_SURVIVE = "respond with outputs, unsupported or an error for all sizes and names"

#: The rules for all backends, in the order of the checks.
_COMMON_RULES = (
    BackendRule(
        "reports an unknown operator as unsupported",
        "report a missing operator as unsupported, not as an error: onnxopt then tries a model of "
        "primitive operators, whereas an error counts as a defect",
        reports_unknown_operators,
    ),
    BackendRule(
        "returns outputs of the declared type and shape",
        "return arrays of the dtype and shape that the operator defines",
        _keeps_types,
    ),
    BackendRule(
        "returns the same outputs for the same inputs",
        "look for state that persists from one case to the next, and for uninitialised memory",
        _answers_alike,
    ),
    BackendRule("survives an empty tensor", _SURVIVE, _survives_empty),
    BackendRule("survives a tensor of 10 MB", _SURVIVE, _survives_large),
    BackendRule("survives names that are not ASCII", _SURVIVE, _survives_names),
)


def _says_hello(command: CheckedCommand) -> str:
    started = perf_counter()
    hello = command.session.hello
    seconds = perf_counter() - started
    return f"{hello.name} {hello.version}, after {seconds:.2f} s"


def _answers(command: CheckedCommand, **fields: Any) -> str:
    problem = command.probe.problem()
    try:
        require_supported(problem.model, command.session.hello)
    except Unsupported as error:
        raise RuleNotShown(error.message) from None
    outputs: list[Value] = []
    refused = refusal(lambda item: outputs.extend(command.run(item, **fields)), problem)
    return str(refused or f"{len(outputs)} outputs")


def _stays(command: CheckedCommand) -> str:
    for _ in range(3):
        _answers(command)
        sleep(_SILENCE_SECONDS)
    return "three cases in one process"


def _refuses_damaged(command: CheckedCommand) -> str:
    damaged = command.probe.problem()
    # Commands that accept single nodes receive a damaged node; all other commands receive the
    # damaged model `content`.
    damaged.model.graph.node[0].input[0] = "nowhere"
    refused = refusal(partial(command.run, content=b"\xff" * 64), damaged)
    if refused is None:
        raise RuleBroken("it returned outputs for a model that cannot be read")
    _answers(command)
    return str(refused)


def _ends(command: CheckedCommand, *, told: bool) -> str:
    _answers(command)
    command.session.close(tell=told)
    return "exit code 0"


#: The rules for commands, in the order of the checks.
COMMAND_RULES = (
    BackendRule(
        "responds to hello",
        "respond to the first line with one line of JSON that has all required fields, and flush",
        _says_hello,
    ),
    BackendRule(
        "responds to run with its id and the stated number of bytes",
        "repeat the request's id, state in bytes the number of bytes after the line, and flush",
        _answers,
    ),
    BackendRule(
        "ignores unknown fields",
        "read the fields that you need, and accept all others",
        partial(_answers, onnxopt_check=_UNKNOWN_FIELD),
    ),
    BackendRule(
        "runs further cases, and writes nothing without a request",
        "read requests in a loop, and redirect the output of libraries to standard error",
        _stays,
    ),
    BackendRule(
        "reports a damaged model, and continues",
        'respond with {"id": ..., "error": "..."} if the model or an input is invalid',
        _refuses_damaged,
    ),
    *_COMMON_RULES,
    BackendRule(
        "ends with exit code 0 on shutdown",
        "end the loop at the request shutdown, release all resources, and exit with 0",
        partial(_ends, told=True),
    ),
    BackendRule(
        "ends with exit code 0 when its input ends",
        "end the loop at the end of standard input too, because no request can follow",
        partial(_ends, told=False),
    ),
)


def _starts(subject: CheckedPlugin) -> str:
    return subject.backend.version or "it has no version"


def _returns_outputs(subject: CheckedPlugin) -> str:
    outputs = _outputs(subject, _supported_problem(subject))
    return f"{len(outputs)} outputs"


def _leaves_inputs(subject: CheckedPlugin) -> str:
    problem = _supported_problem(subject)
    before = {name: np.array(value) for name, value in problem.inputs.items()}
    subject.raw_outputs(problem)
    for name, value in before.items():
        if value.tobytes() != np.asarray(problem.inputs[name]).tobytes():
            raise RuleBroken(f"the call changed the input {name}")
    return "unchanged"


def _refuses_dangling(subject: CheckedPlugin) -> str:
    problem = subject.probe.problem()
    problem.model.graph.node[0].input[0] = "nowhere"
    refused = refusal(subject.raw_outputs, problem)
    if refused is None:
        raise RuleBroken("it returned outputs for a node with an undefined input")
    return str(refused)


def _prints_nothing(subject: CheckedPlugin) -> str:
    before = os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_END)
    subject.raw_outputs(_supported_problem(subject))
    written = os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_END) - before
    if written:
        raise RuleBroken(f"{written} bytes on standard output for one case")
    return "nothing"


#: The rules for plugins, in the order of the checks.
PLUGIN_RULES = (
    BackendRule(
        "can be loaded, and has prepare or run",
        "give a class, instance or module with prepare(model, device) or run(model, inputs)",
        _starts,
    ),
    BackendRule(
        "returns a list, tuple or dict of outputs",
        "return every output of the graph, in its order or by name",
        _returns_outputs,
    ),
    BackendRule(
        "does not modify its inputs",
        "copy an input before writing into it",
        _leaves_inputs,
    ),
    BackendRule(
        "raises an exception for an invalid model",
        "raise any exception except those that end the interpreter",
        _refuses_dangling,
    ),
    *_COMMON_RULES,
    BackendRule(
        "prints nothing",
        "write messages for users with logging or to standard error, and only on demand",
        _prints_nothing,
    ),
)


# The process imports modules from the same paths as the current process.
_START = f"""\
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from {__name__} import serve
serve()
"""
_SECONDS = 60.0
# The fields of a result that the process sends, with the types of their values.
_RESULT_TYPES = {
    **dict.fromkeys(("verdict", "observed", "remedy", "option"), str),
    "hung": bool,
    "exit_code": int,
}


def check_backend(text: str, open_progress: OpenProgress = hide_progress) -> Iterator[RuleResult]:
    """Yield the result of each rule for a backend.

    If the backend does not start, or hangs, the remaining rules are not checked.

    Args:
        text: the backend as the user specified it.
        open_progress: opens a progress display for the installation of an adapter.

    Raises:
        UsageError: if the specification is malformed, or an option is unknown.
        BackendUnavailable: if an adapter cannot be installed.
    """
    specification = parse_specification(text)
    if specification.adapter:
        AdapterEnvironment.of(specification).create(open_progress)
    if specification.command:
        specification.require_known(OPTIONS)
        results = _command_results(specification)
    else:
        results = _plugin_results(specification)
    for index, result in enumerate(results):
        starts = index > 0 or result.verdict is not RuleOutcome.FAIL
        if not starts and result.exit_code != UsageError.exit_code:
            # Every onnxopt command exits with 4 if a backend does not start.
            result = replace(result, exit_code=BackendUnavailable.exit_code)  # noqa: PLW2901
        yield result
        if result.hung or not starts:
            return


def _command_results(specification: Specification) -> Iterator[RuleResult]:
    subject = CheckedCommand(specification)
    try:
        for rule in COMMAND_RULES:
            yield apply_rule(rule, subject)
    finally:
        subject.session.kill()


def _plugin_results(specification: Specification) -> Iterator[RuleResult]:
    """Check a plugin in another process.

    If the process ends, it is restarted for the next rule.
    """
    seconds, remedy = _SECONDS, "look for a deadlock or an endless loop"
    if specification.adapter:
        seconds, remedy = max(seconds, specification.timeout or 0), MORE_TIME
    command = [sys.executable, "-c", _START, specification.text, json.dumps(sys.path)]
    session = Command(command, seconds, "its process")
    try:
        for index, rule in enumerate(PLUGIN_RULES):
            try:
                fields = session.request({"request": "rule", "rule": index}, _read_result)
            except BREAKDOWNS as error:
                hung = isinstance(error, BackendHangs)
                yield broken(rule, error.message, remedy if hung else "", hung=hung)
                continue
            yield RuleResult(rule, RuleOutcome(fields.pop("verdict")), **fields)
    finally:
        session.kill()


def _read_result(response: dict[str, Any], _: memoryview) -> dict[str, Any]:
    """Return the fields of a result.

    The fields are validated, because the plugin runs in the process and may forge a response.
    """
    fields = {name: response.get(name) for name in _RESULT_TYPES}
    types = {name: type(value) for name, value in fields.items()}
    if types != _RESULT_TYPES or fields["verdict"] not in [*RuleOutcome]:
        raise ProtocolBreach("sent something other than the result of a rule")
    return fields


def serve() -> None:
    """Read numbers of rules, and respond to each with a result, until standard input ends."""
    subject = CheckedPlugin(sys.argv[1])
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # The output of the plugin goes to a file, so that the output is not mistaken for a response,
    # and its size is known.
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        for request in map(json.loads, sys.stdin):
            result = apply_rule(PLUGIN_RULES[request["rule"]], subject)
            fields = {name: getattr(result, name) for name in _RESULT_TYPES}
            responses.write(json.dumps({"id": request["id"], **fields}) + "\n")
            responses.flush()
