"""Check a backend against the rules.

A command runs in its own process; a plugin gets a process of its own, because it may crash or hang.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment
from onnxopt_cli.backends.check.protocol_rule import (
    RuleOutcome,
    RuleResult,
    apply_rule,
    broken,
)
from onnxopt_cli.backends.check.protocol_rules import COMMAND_RULES, PLUGIN_RULES
from onnxopt_cli.backends.check.subject import CommandSubject, PluginSubject
from onnxopt_cli.backends.exec.exec_backend import OPTIONS
from onnxopt_cli.backends.exec.exec_process import Command
from onnxopt_cli.backends.protocol import BREAKDOWNS
from onnxopt_cli.backends.specification import Specification, parse_specification
from onnxopt_cli.core.progress import OpenProgress, hide_progress
from onnxopt_cli.errors import (
    BackendHangs,
    BackendUnavailable,
    ProtocolBreach,
    UsageError,
)

# The process imports modules from the same paths as this one.
_START = f"""\
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from {__name__} import serve
serve()
"""
_SECONDS = 60.0
# The fields of a result that the process sends, with their types.
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
        results = _plugin_results(text)
    for index, result in enumerate(results):
        starts = index > 0 or result.verdict is not RuleOutcome.FAIL
        if not starts and result.exit_code != UsageError.exit_code:
            # The exit code of every onnxopt command for a backend that does not start.
            result = replace(result, exit_code=BackendUnavailable.exit_code)  # noqa: PLW2901
        yield result
        if result.hung or not starts:
            return


def _command_results(specification: Specification) -> Iterator[RuleResult]:
    subject = CommandSubject(specification)
    try:
        for rule in COMMAND_RULES:
            yield apply_rule(rule, subject)
    finally:
        subject.session.kill()


def _plugin_results(text: str) -> Iterator[RuleResult]:
    """Check a plugin in another process, which is restarted for the next rule if it ends."""
    command = [sys.executable, "-c", _START, text, json.dumps(sys.path)]
    session = Command(command, _SECONDS, "its process")
    try:
        for index, rule in enumerate(PLUGIN_RULES):
            try:
                fields = session.request({"request": "rule", "rule": index}, _read_result)
            except BREAKDOWNS as error:
                yield broken(rule, error.message, hung=isinstance(error, BackendHangs))
                continue
            yield RuleResult(rule, RuleOutcome(fields.pop("verdict")), **fields)
    finally:
        session.kill()


def _read_result(response: dict[str, Any], _: memoryview) -> dict[str, Any]:
    """Return the fields of a result; the plugin in the process may have forged the response."""
    fields = {name: response.get(name) for name in _RESULT_TYPES}
    types = {name: type(value) for name, value in fields.items()}
    if types != _RESULT_TYPES or fields["verdict"] not in [*RuleOutcome]:
        raise ProtocolBreach("sent something other than the result of a rule")
    return fields


def serve() -> None:
    """Respond to each number of a rule with a result, until standard input ends."""
    subject = PluginSubject(sys.argv[1])
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # Output of the plugin goes to a file: it is then not mistaken for a response, and its size is
    # known.
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        for request in map(json.loads, sys.stdin):
            result = apply_rule(PLUGIN_RULES[request["rule"]], subject)
            fields = {name: getattr(result, name) for name in _RESULT_TYPES}
            responses.write(json.dumps({"id": request["id"], **fields}) + "\n")
            responses.flush()
