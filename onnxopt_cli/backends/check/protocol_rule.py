"""Define rules for backends, and check whether a backend follows a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from onnxopt_cli.backends.exec.exec_backend import MORE_TIME
from onnxopt_cli.core.text import exception_text
from onnxopt_cli.errors import BackendHangs, OnnxoptError


class RuleOutcome(StrEnum):
    """The verdict on a backend under one rule."""

    PASS = "pass"  # noqa: S105 - a term of conformance testing, not a password
    FAIL = "fail"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True)
class BackendRule:
    """A rule.

    Attributes:
        name: the behaviour of a backend that follows the rule.
        remedy: the advice for a backend that breaks the rule.
        test: checks a backend and describes its behaviour. Raises RuleNotShown if the rule cannot
            be tested; RuleBroken or any other exception means that the backend breaks the rule.
    """

    name: str
    remedy: str
    test: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of a check.

    Attributes:
        rule: the rule.
        verdict: whether the backend follows the rule.
        observed: the behaviour of the backend.
        hung: whether the backend did not respond in time; the remaining rules are then skipped.
        remedy: the advice to the user, either that of the rule or more specific advice.
        option: the command-line option with which the backend would follow the rule; empty if
            there is no such option.
        exit_code: the exit code of the command.
    """

    rule: BackendRule
    verdict: RuleOutcome
    observed: str
    hung: bool = False
    remedy: str = ""
    option: str = ""
    exit_code: int = 0


class RuleBroken(Exception):
    """The backend violates the rule. Tests of rules raise this error for :func:`apply_rule`.

    Args:
        observed: the behaviour of the backend.
        remedy: more specific advice than the rule's.
        option: the command-line option with which the backend would follow the rule.
    """

    def __init__(self, observed: str, remedy: str = "", option: str = "") -> None:
        super().__init__(observed)
        self.remedy = remedy
        self.option = option


class RuleNotShown(Exception):
    """The rule cannot be tested with this backend; the message gives the reason."""


def apply_rule(rule: BackendRule, subject: object) -> RuleResult:
    """Check a backend against a rule.

    Every exception except RuleNotShown and KeyboardInterrupt means that the backend breaks the
    rule.
    """
    try:
        return RuleResult(rule, RuleOutcome.PASS, rule.test(subject))
    except KeyboardInterrupt:
        raise
    except RuleNotShown as error:
        return RuleResult(rule, RuleOutcome.NOT_SHOWN, str(error))
    except RuleBroken as error:
        return broken(rule, str(error), error.remedy, option=error.option)
    except OnnxoptError as error:
        hung, code = isinstance(error, BackendHangs), error.exit_code
        remedy = error.hint or (MORE_TIME if hung else "")
        return broken(rule, error.message, remedy, hung=hung, exit_code=code)
    except BaseException as error:  # noqa: BLE001 - a backend may raise anything
        return broken(rule, exception_text(error))


def broken(rule: BackendRule, observed: str, remedy: str = "", **fields: Any) -> RuleResult:
    """Return the result for a rule that the backend breaks.

    Args:
        rule: the rule.
        observed: the behaviour of the backend.
        remedy: the advice to the user; by default the rule's.
        **fields: further fields of the result.
    """
    fields = {"remedy": remedy or rule.remedy, "exit_code": 1, **fields}
    return RuleResult(rule, RuleOutcome.FAIL, observed, **fields)
