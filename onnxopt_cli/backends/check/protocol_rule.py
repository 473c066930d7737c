"""A rule that every backend must keep, and what was found of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from onnxopt_cli.core.text import exception_text
from onnxopt_cli.errors import BackendHangs, OnnxoptError


class RuleOutcome(StrEnum):
    """What is known of a rule and a backend."""

    PASS = "pass"  # noqa: S105 - the word of conformance testing, no password
    FAIL = "fail"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True)
class BackendRule:
    """A rule.

    Attributes:
        name: what a backend does that keeps it.
        remedy: what to do about a backend that does not.
        test: says what the backend did; raises Broken or NotShown, and anything else that it
            raises breaks the rule too.
    """

    name: str
    remedy: str
    test: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What was found of a rule.

    Attributes:
        rule: the rule.
        verdict: whether it is kept.
        found: what the backend did.
        hung: whether it did not answer, so that every other rule would take as long.
        remedy: what to do; the rule's own advice unless there is better.
        write: the option of a command that would mend it; empty if there is none.
        exit_code: what the command ends with for it.
    """

    rule: BackendRule
    verdict: RuleOutcome
    found: str
    hung: bool = False
    remedy: str = ""
    write: str = ""
    exit_code: int = 0


class Broken(Exception):
    """The backend breaks the rule; the message says how. No user ever meets this one.

    Args:
        found: what it did.
        remedy: what to do about it, where that is better advice than the rule's.
        write: the option of a command that would mend it.
    """

    def __init__(self, found: str, remedy: str = "", write: str = "") -> None:
        super().__init__(found)
        self.remedy = remedy
        self.write = write


class NotShown(Exception):
    """The backend gave no occasion to tell; the message says why. No user ever meets this one."""


def apply_rule(rule: BackendRule, subject: object) -> RuleResult:
    """Test a backend against a rule; whatever it raises, except KeyboardInterrupt, is a finding."""
    try:
        return RuleResult(rule, RuleOutcome.PASS, rule.test(subject))
    except KeyboardInterrupt:
        raise
    except NotShown as error:
        return RuleResult(rule, RuleOutcome.NOT_SHOWN, str(error))
    except Broken as error:
        return broken(rule, str(error), error.remedy, write=error.write)
    except OnnxoptError as error:
        hung, code = isinstance(error, BackendHangs), error.exit_code
        return broken(rule, error.message, error.hint, hung=hung, exit_code=code)
    except BaseException as error:  # noqa: BLE001 - a backend may raise anything
        return broken(rule, exception_text(error))


def broken(rule: BackendRule, found: str, remedy: str = "", **others: Any) -> RuleResult:
    """Return that a rule is broken."""
    said = {"remedy": remedy or rule.remedy, "exit_code": 1, **others}
    return RuleResult(rule, RuleOutcome.FAIL, found, **said)
