"""A process of its own for a backend in Python, which may crash or hang while it is tested."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxopt_cli.backends.check.rule import BackendRule, RuleOutcome, RuleResult, apply_rule, broken
from onnxopt_cli.backends.check.subject import BREAKDOWNS, PluginSubject
from onnxopt_cli.backends.exec.process import CommandProcess
from onnxopt_cli.errors import BackendHangs, OnnxoptError

# The process finds modules where this one does.
_START = f"""\
import json, sys
sys.path[:] = json.loads(sys.argv.pop())
from {__name__} import serve
serve()
"""
_SECONDS = 60.0


def findings_in_process(text: str, rules: Sequence[BackendRule]) -> Iterator[RuleResult]:
    """Yield what is found of each rule; a process that ends is replaced for the next rule.

    Args:
        text: how the user asks for the backend.
        rules: the rules for backends in Python.
    """
    process = None
    try:
        for index, rule in enumerate(rules):
            if process is None:
                process = CommandProcess(_command(text))
            try:
                line = process.ask(f"{index}\n".encode(), _SECONDS)
            except BREAKDOWNS as error:
                process.kill()
                process = None
                hung = isinstance(error, BackendHangs)
                yield broken(rule, _of_backend(error), hung=hung)
                continue
            finding = RuleResult(rule, *json.loads(line))
            yield replace(finding, verdict=RuleOutcome(finding.verdict))
    finally:
        if process is not None:
            process.kill()


def serve() -> None:
    """Answer numbers of rules with findings, until standard input ends."""
    from onnxopt_cli.backends.check.plugin_rules import PLUGIN_RULES

    rules = tuple(PLUGIN_RULES)
    subject = PluginSubject(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What the backend prints is not to be taken for an answer, and can be measured in a file.
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        for line in sys.stdin:
            finding = apply_rule(rules[int(line)], subject)
            said = (
                finding.verdict,
                finding.found,
                finding.hung,
                finding.remedy,
                finding.write,
                finding.exit_code,
            )
            answers.write(json.dumps(said) + "\n")
            answers.flush()


def _command(text: str) -> list[str]:
    return [sys.executable, "-c", _START, text, json.dumps(sys.path)]


def _of_backend(error: OnnxoptError) -> str:
    return error.message.replace("the command", "its process")
