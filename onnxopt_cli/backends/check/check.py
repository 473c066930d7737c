"""What kind of backend is tested against which rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from onnxopt_cli.backends.check.command_rules import COMMAND_RULES
from onnxopt_cli.backends.check.plugin_process import findings_in_process
from onnxopt_cli.backends.check.plugin_rules import PLUGIN_RULES
from onnxopt_cli.backends.check.rule import RuleOutcome, RuleResult, apply_rule
from onnxopt_cli.backends.check.subject import CommandSubject
from onnxopt_cli.backends.exec.backend import OPTIONS
from onnxopt_cli.backends.specification import Specification, parse_specification
from onnxopt_cli.errors import BackendUnavailable, OnnxoptError, UsageError


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
        findings = findings_in_process(text, tuple(PLUGIN_RULES))
    for index, finding in enumerate(findings):
        if (
            index == 0
            and finding.verdict is RuleOutcome.FAIL
            and finding.exit_code != UsageError.exit_code
        ):
            # Whatever it does instead of starting, other commands end with the same.
            finding = replace(finding, exit_code=BackendUnavailable.exit_code)  # noqa: PLW2901
        yield finding
        if finding.hung or (index == 0 and finding.verdict is RuleOutcome.FAIL):
            return


def _of_command(specification: Specification) -> Iterator[RuleResult]:
    subject = CommandSubject(specification)
    try:
        for rule in COMMAND_RULES:
            yield apply_rule(rule, subject)
    finally:
        with suppress(OnnxoptError):
            subject.session.close()
