"""Testing a backend against the rules that it must keep.

A command is a process of its own. A backend in Python gets one, as it may crash or hang.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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
from onnxopt_cli.errors import (
    BackendHangs,
    BackendUnavailable,
    ProtocolBreach,
    UsageError,
)

# The process finds modules where this one does.
_START = f"""\
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from {__name__} import serve
serve()
"""
_SECONDS = 60.0
# What is said of a rule, and of which types.
_FINDING_TYPES = {
    **dict.fromkeys(("verdict", "found", "remedy", "write"), str),
    "hung": bool,
    "exit_code": int,
}


def check_backend(text: str) -> Iterator[RuleResult]:
    """Yield what is found of each rule that a backend must keep.

    Where it does not even start, or hangs, the rules that follow are not tested.

    Args:
        text: how the user asks for the backend.

    Raises:
        UsageError: if that is no backend's specification, or an option is unknown.
    """
    specification = parse_specification(text)
    if specification.command:
        specification.require_known(OPTIONS)
        findings = _of_command(specification)
    else:
        findings = _of_plugin(text)
    for index, finding in enumerate(findings):
        starts = index > 0 or finding.verdict is not RuleOutcome.FAIL
        if not starts and finding.exit_code != UsageError.exit_code:
            # Whatever it does instead of starting, other commands end with the same.
            finding = replace(finding, exit_code=BackendUnavailable.exit_code)  # noqa: PLW2901
        yield finding
        if finding.hung or not starts:
            return


def _of_command(specification: Specification) -> Iterator[RuleResult]:
    subject = CommandSubject(specification)
    try:
        for rule in COMMAND_RULES:
            yield apply_rule(rule, subject)
    finally:
        subject.session.kill()


def _of_plugin(text: str) -> Iterator[RuleResult]:
    """Ask a process about each rule; one that ends is replaced for the next rule."""
    command = [sys.executable, "-c", _START, text, json.dumps(sys.path)]
    session = Command(command, _SECONDS, "its process")
    try:
        for index, rule in enumerate(PLUGIN_RULES):
            try:
                said = session.ask({"request": "rule", "rule": index}, _read_finding)
            except BREAKDOWNS as error:
                yield broken(rule, error.message, hung=isinstance(error, BackendHangs))
                continue
            yield RuleResult(rule, RuleOutcome(said.pop("verdict")), **said)
    finally:
        session.kill()


def _read_finding(answer: dict[str, Any], _: memoryview) -> dict[str, Any]:
    """Return what the process says of a rule; the plugin in it may write there, too."""
    said = {name: answer.get(name) for name in _FINDING_TYPES}
    kinds = {name: type(it) for name, it in said.items()}
    if kinds != _FINDING_TYPES or said["verdict"] not in [*RuleOutcome]:
        raise ProtocolBreach("sends something else than what was found")
    return said


def serve() -> None:
    """Answer numbers of rules with findings, until standard input ends."""
    subject = PluginSubject(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What the backend prints is not to be taken for an answer, and can be measured in a file.
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        for request in map(json.loads, sys.stdin):
            result = apply_rule(PLUGIN_RULES[request["rule"]], subject)
            said = {name: getattr(result, name) for name in _FINDING_TYPES}
            answers.write(json.dumps({"id": request["id"], **said}) + "\n")
            answers.flush()
