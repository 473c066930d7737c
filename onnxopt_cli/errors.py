"""All errors that a user can see. An error states what happened, where, and what to do about it.

::

    OnnxoptError
     ├── UsageError           exit 2   an option, a path or a name is wrong
     ├── InvalidCase          exit 2   a case file breaks its format; lists every problem found
     │    └── BeyondLimit     exit 2   a case is valid, but too large for onnxopt
     ├── BackendUnavailable   exit 4   the backend could not be started
     ├── NothingSelected      exit 5   no case matches the selection
     ├── NodeError                     a node breaks its operator's signature
     ├── Unsupported                   a backend does not know an operator, opset, type or device
     ├── NotApplicable                 the lowering refuses a node, so the case does not run
     ├── UnusableOutput                a value is not an ONNX value, or cannot be sent
     ├── BackendFailure                a backend reports a failure
     ├── BackendDied                   a backend's process ended before it responded
     │    └── BackendDiedEarlier       it ended even before it read the request
     ├── BackendHangs                  a backend did not respond in time
     └── ProtocolBreach                a backend violated its protocol

``NodeError`` and the errors after it concern a single case. The run converts such an error to the
outcome of the case, and continues.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

#: Beginning of a message about a MemoryError; the caller appends the purpose of the memory.
OUT_OF_MEMORY = "there is not enough memory"


def is_debugging() -> bool:
    """Return whether tracebacks of bugs in onnxopt are shown, because ONNXOPT_DEBUG is set."""
    return bool(os.environ.get("ONNXOPT_DEBUG"))


class OnnxoptError(Exception):
    """Base class of all errors whose messages are meant for users.

    Args:
        message: what happened, in one sentence.
        hint: what to do about it; may be empty.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(OnnxoptError):
    """Raised if an option, a path or a name on the command line is wrong."""

    exit_code = 2


# This module must run on Python 3.9, whose dataclasses do not support slots.
@dataclass(frozen=True)
class Fault:
    """A fault of a case file.

    Attributes:
        where: ``path:line``, or only a path for a binary file.
        what: the case and the field, followed by the actual and the expected content.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class InvalidCase(OnnxoptError):
    """Raised if a case file or directory breaks its format; the error lists all faults."""

    exit_code = 2

    def __init__(self, problems: list[Fault] | tuple[Fault, ...], *, hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint=hint)
        self.problems = tuple(problems)


class BeyondLimit(InvalidCase):
    """Raised if a valid case exceeds a limit of onnxopt; a run skips such a case."""


class BackendUnavailable(OnnxoptError):
    """Raised if a backend does not start: it is missing, not installed or not importable."""

    exit_code = 4


class NothingSelected(OnnxoptError):
    """Raised if the selection contains no case."""

    exit_code = 5


class NodeError(OnnxoptError):
    """Raised if a node, its attributes or its inputs break the operator's signature."""


class Unsupported(OnnxoptError):
    """Raised if a backend does not know an operator, an opset, a type or a device.

    Args:
        message: the backend's own words.
        operator: the unknown operator as ``domain:name``; empty if something else is unsupported.
    """

    def __init__(self, message: str, *, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator


class NotApplicable(OnnxoptError):
    """Raised if the lowering refuses a node, so that a case does not run and has no verdict."""


class UnusableOutput(OnnxoptError):
    """Raised if a value is too large for a message, or of a kind that models do not use."""


class BackendFailure(OnnxoptError):
    """Raised if a backend reports a failure in its response; the message is the backend's."""


class BackendDied(OnnxoptError):
    """Raised if a backend's process ended, or closed its channel, before it responded."""


class BackendDiedEarlier(BackendDied):
    """Raised if a backend ended before it read the request, so the request is not the cause."""


class BackendHangs(OnnxoptError):
    """Raised if a backend did not respond in time, and was killed."""


class ProtocolBreach(OnnxoptError):
    """Raised if a backend violated its protocol, so that its responses are not used."""
