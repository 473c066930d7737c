"""The rules that onnxopt relies on: of every backend, of commands, of backends in Python.

What a command must do stands in :file:`exec/protocol.md`. Most of it no case can ask, such as a
damaged model, a field that nobody knows, or what is printed; so rules are not cases.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper

from onnxopt_cli.backends.check.probe_models import LIKELY
from onnxopt_cli.backends.check.protocol_rule import (
    BackendRule,
    Broken,
    NotShown,
)
from onnxopt_cli.backends.check.subject import (
    CheckedBackend,
    CommandSubject,
    PluginSubject,
    refusal,
)
from onnxopt_cli.backends.check.unknown_operators import says_unsupported
from onnxopt_cli.backends.exec.exec_backend import require_stated
from onnxopt_cli.backends.protocol import normalise_outputs
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.values import (
    Array,
    Value,
    describe,
)
from onnxopt_cli.errors import Unsupported

_STANDARD_OUTPUT = 1
_TEN_MEGABYTES = 10 * 2**20
_NOT_ASCII = ("größe τ/\u7b2c一 \"'", "résultat \U0001f9ea")
_ELEMENT_TYPES = ("float32", "float64", "float16", "int32", "int64", "bool")
# After this time, a command that has something more to say than an answer has said it.
_SILENCE = 0.1
# What a reader that looks for words instead of fields would stumble over.
_EXTRA = '{"id": 0, "request": "shutdown"}'


def _keeps_types(subject: CheckedBackend) -> str:
    """Outputs have the element type and the shape that the operator gives them."""
    shown = []
    for name in _ELEMENT_TYPES:
        array = np.array([[0, 1, 1], [1, 0, 1]]).astype(name)
        own = subject.likeliest.tensor.astype(name)
        asked = subject.ask_what_it_runs(array) or subject.ask_what_it_runs(own)
        if asked is None:
            continue
        # Which types it takes is its own affair.
        if refusal(partial(_require_declared, subject), asked) is None:
            shown.append(name)
    if not shown:
        raise NotShown("it runs no model with any of these types")
    return ", ".join(shown)


def _answers_alike(subject: CheckedBackend) -> str:
    """The same question has the same answer."""
    asked = _what_it_runs(subject)
    first, second = (_outputs(subject, asked) for _ in range(2))
    if len(first) != len(second):
        raise Broken(f"it returned {len(first)} outputs, then {len(second)}")
    for one, other in zip(first, second, strict=True):
        if isinstance(one, np.ndarray) and one.tobytes() != np.asarray(other).tobytes():
            raise Broken("the second answer differs from the first")
    return f"{len(first)} outputs, twice"


def _survives_empty(subject: CheckedBackend) -> str:
    """A tensor without elements is answered in an orderly way."""
    runs = subject.likeliest
    return _survives(subject, np.zeros((*runs.shape[:-2], 0, 3), runs.dtype))


def _survives_large(subject: CheckedBackend) -> str:
    """A tensor of ten megabytes is answered in an orderly way."""
    runs = subject.likeliest
    ones = (1,) * (len(runs.shape) - 1)
    return _survives(subject, np.ones((*ones, _TEN_MEGABYTES // runs.dtype.itemsize), runs.dtype))


def _survives_names(subject: CheckedBackend) -> str:
    """Names of inputs and outputs that are not ASCII are answered in an orderly way."""
    return _survives(subject, subject.likeliest.tensor, _NOT_ASCII)


def _what_it_runs(subject: CheckedBackend) -> Problem:
    """Return a question that the backend can answer.

    Raises:
        NotShown: if there is none.
    """
    if subject.runs is None:
        raise NotShown("it runs no operator that it was asked for")
    return subject.runs.question()


def _outputs(subject: CheckedBackend, asked: Problem) -> Sequence[Value]:
    """Return the outputs of a question, whatever their number, types and shapes.

    One rule is about these; the others would only repeat it.
    """
    return normalise_outputs(subject.returned(asked), asked.model.graph.output)


def _require_declared(subject: CheckedBackend, asked: Problem) -> None:
    """See that the outputs of a question are as many as there should be, of their types and shapes.

    Raises:
        Broken: if they are not.
    """
    declared = asked.model.graph.output
    outputs = _outputs(subject, asked)
    if len(outputs) != len(declared):
        raise Broken(f"it returned {len(outputs)} outputs, expected {len(declared)}")
    for output, expected in zip(outputs, map(_declared, declared), strict=True):
        if describe(output) != describe(expected):
            raise Broken(f"it returned {describe(output)}, expected {describe(expected)}")


def _declared(output: ValueInfoProto) -> Array:
    tensor = output.type.tensor_type
    shape = [dimension.dim_value for dimension in tensor.shape.dim]
    return np.broadcast_to(np.zeros((), helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)


def _survives(subject: CheckedBackend, array: Array, names: tuple[str, str] = ("x", "y")) -> str:
    asked = subject.ask_what_it_runs(array, names)
    if asked is None and subject.runs is not None:
        raise NotShown(f"{subject.runs.operator}, which it runs, takes no such tensor")
    # A backend that runs nothing must at least say so.
    asked = asked or replace(subject.likeliest, operator=LIKELY[0]).question(array, names)
    # To say that it failed is an orderly answer.
    return str(refusal(partial(_outputs, subject), asked) or "it ran")


_SURVIVE = "answer outputs, unsupported or an error, whatever the sizes and names are"

#: In the order in which they are tested.
_COMMON_RULES = (
    BackendRule(
        "says that it does not know an operator",
        "say unsupported, not error, for what is not implemented: only then is a model with "
        "primitive operators tried, and the gap not counted as a defect",
        says_unsupported,
    ),
    BackendRule(
        "gives outputs their element type and shape",
        "return arrays of the dtype and shape that the operator defines",
        _keeps_types,
    ),
    BackendRule(
        "answers the same question alike",
        "look for state that is kept from one case to the next, and for uninitialised memory",
        _answers_alike,
    ),
    BackendRule("survives an empty tensor", _SURVIVE, _survives_empty),
    BackendRule("survives a tensor of 10 MB", _SURVIVE, _survives_large),
    BackendRule("survives names that are not ASCII", _SURVIVE, _survives_names),
)


def _says_hello(command: CommandSubject) -> str:
    started = perf_counter()
    hello = command.session.hello
    taken = perf_counter() - started
    return f"{hello.name} {hello.version}, after {taken:.2f} s"


def _answers(command: CommandSubject, **further: Any) -> str:
    asked = command.likeliest.question()
    try:
        require_stated(asked.model, command.session.hello)
    except Unsupported as error:
        raise NotShown(error.message) from None
    outputs: list[Value] = []
    refused = refusal(lambda item: outputs.extend(command.run(item, **further)), asked)
    return str(refused or f"{len(outputs)} outputs")


def _stays(command: CommandSubject) -> str:
    for _ in range(3):
        _answers(command)
        sleep(_SILENCE)
    return "three cases in one process"


def _refuses_damaged(command: CommandSubject) -> str:
    damaged = command.likeliest.question()
    # All that a command sees of it that takes nodes; any other gets bytes that are not a model.
    damaged.model.graph.node[0].input[0] = "nowhere"
    refused = refusal(partial(command.run, content=b"\xff" * 64), damaged)
    if refused is None:
        raise Broken("it returned outputs for a model that cannot be read")
    _answers(command)
    return str(refused)


def _ends(command: CommandSubject, *, told: bool) -> str:
    _answers(command)
    command.session.close(tell=told)
    return "exit code 0"


#: In the order in which they are tested.
COMMAND_RULES = (
    BackendRule(
        "answers hello",
        "answer the first line with one line of JSON, flushed, with all fields of the protocol",
        _says_hello,
    ),
    BackendRule(
        "answers run with its id, and as many bytes as it says",
        "repeat the request's id; say with bytes how many follow the line, and send them; flush",
        _answers,
    ),
    BackendRule(
        "overlooks fields that it does not know",
        "read the fields that are needed and no others",
        partial(_answers, onnxopt_check=_EXTRA),
    ),
    BackendRule(
        "stays for the next case, and writes nothing unasked",
        "read requests in a loop; send what libraries print to standard error",
        _stays,
    ),
    BackendRule(
        "reports a damaged model, and goes on",
        'answer {"id": ..., "error": "..."} when the model cannot be read, or an input is missing',
        _refuses_damaged,
    ),
    *_COMMON_RULES,
    BackendRule(
        "ends with exit code 0 on shutdown",
        "end the loop at the request shutdown, and release everything in order",
        partial(_ends, told=True),
    ),
    BackendRule(
        "ends with exit code 0 when its input ends",
        "end the loop at the end of standard input too: nobody is there to ask any more",
        partial(_ends, told=False),
    ),
)


def _starts(subject: PluginSubject) -> str:
    return subject.backend.version or "it states no version"


def _returns_outputs(subject: PluginSubject) -> str:
    outputs = _outputs(subject, _what_it_runs(subject))
    return f"{len(outputs)} outputs"


def _leaves_inputs(subject: PluginSubject) -> str:
    asked = _what_it_runs(subject)
    before = {name: np.array(value) for name, value in asked.inputs.items()}
    subject.returned(asked)
    for name, value in before.items():
        if value.tobytes() != np.asarray(asked.inputs[name]).tobytes():
            raise Broken(f"the input {name} is changed after the call")
    return "unchanged"


def _refuses_dangling(subject: PluginSubject) -> str:
    asked = subject.likeliest.question()
    asked.model.graph.node[0].input[0] = "nowhere"
    refused = refusal(subject.returned, asked)
    if refused is None:
        raise Broken("it returned outputs for a node whose input nothing yields")
    return str(refused)


def _prints_nothing(subject: PluginSubject) -> str:
    before = os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_END)
    subject.returned(_what_it_runs(subject))
    written = os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_END) - before
    if written:
        raise Broken(f"{written} bytes on standard output for one case")
    return "nothing"


#: In the order in which they are tested.
PLUGIN_RULES = (
    BackendRule(
        "is found, and has prepare or run",
        "give a class, instance or module with prepare(model, device) or run(model, inputs)",
        _starts,
    ),
    BackendRule(
        "returns a list, tuple or dict of outputs",
        "return every output of the graph, in its order or by name",
        _returns_outputs,
    ),
    BackendRule(
        "leaves its inputs as they are",
        "copy an input before writing into it",
        _leaves_inputs,
    ),
    BackendRule(
        "raises for a model that is wrong",
        "raise any exception but those that end the interpreter",
        _refuses_dangling,
    ),
    *_COMMON_RULES,
    BackendRule(
        "prints nothing",
        "write what a user should read with logging or to standard error, and only on demand",
        _prints_nothing,
    ),
)
