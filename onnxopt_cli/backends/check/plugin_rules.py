"""Rules for backends in Python."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from onnxopt_cli.backends.check.common_rules import COMMON_RULES, answered, what_it_runs
from onnxopt_cli.backends.check.rule import BackendRule, Broken, NotShown
from onnxopt_cli.backends.check.subject import CheckedBackend, PluginSubject
from onnxopt_cli.core.text import exception_text
from onnxopt_cli.errors import Unsupported

_STANDARD_OUTPUT = 1


def _starts(subject: CheckedBackend) -> str:
    if not isinstance(subject, PluginSubject):
        raise TypeError("these rules are for backends in Python")
    return subject.backend.version or "it states no version"


def _returns_outputs(subject: CheckedBackend) -> str:
    outputs = answered(subject, what_it_runs(subject, subject.tensor()))
    return f"{len(outputs)} outputs"


def _leaves_inputs(subject: CheckedBackend) -> str:
    asked = what_it_runs(subject, subject.tensor())
    before = {name: np.array(value) for name, value in asked.inputs.items()}
    subject.returned(asked)
    for name, value in before.items():
        if value.tobytes() != np.asarray(asked.inputs[name]).tobytes():
            raise Broken(f"the input {name} is changed after the call")
    return "unchanged"


def _refuses_dangling(subject: CheckedBackend) -> str:
    asked = subject.simple_question()
    asked.model.graph.node[0].input[0] = "nowhere"
    try:
        subject.returned(asked)
    except Unsupported as error:
        return f"it says unsupported: {error.message}"
    except Exception as error:  # noqa: BLE001 - any exception is a refusal
        return f"it raises {exception_text(error)}"
    raise Broken("it returned outputs for a node whose input nothing yields")


def _prints_nothing(subject: CheckedBackend) -> str:
    before = os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_END)
    asked = subject.ask_what_it_runs(subject.tensor())
    if asked is None:
        raise NotShown("it runs none of the models")
    subject.returned(asked)
    written = os.lseek(_STANDARD_OUTPUT, 0, os.SEEK_END) - before
    if written:
        raise Broken(f"{written} bytes on standard output for one case")
    return "nothing"


#: In the order in which they are tested.
PLUGIN_RULES: Iterable[BackendRule] = (
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
    *COMMON_RULES,
    BackendRule(
        "prints nothing",
        "write what a user should read with logging or to standard error, and only on demand",
        _prints_nothing,
    ),
)
