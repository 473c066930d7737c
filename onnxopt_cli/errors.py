"""Every error a user can meet: what happened, where, and what to do about it.

::

    OnnxoptError
     ├── UsageError           exit 2   an option, a path or a name is wrong
     ├── InvalidCase          exit 2   a case file breaks its format; lists every problem found
     ├── BackendUnavailable   exit 4   the backend could not be started
     ├── NothingSelected      exit 5   no case matches the selection
     ├── NodeError                     a node breaks its operator's signature
     ├── Unsupported                   a backend says that it does not know something
     ├── NotApplicable                 our own lowering refuses a node, so no backend is asked
     ├── UnusableOutput                a backend returned what is no value of ONNX
     ├── BackendFailure                a backend says that it failed
     ├── BackendDied                   a backend's process ended before it answered
     ├── BackendHangs                  a backend did not answer in time
     └── ProtocolBreach                a backend said what its protocol does not allow

All from NodeError on are about one case: the run turns them into outcomes and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How messages say that Python's MemoryError was raised; what for follows.
OUT_OF_MEMORY = "there is not enough memory"


class OnnxoptError(Exception):
    """Base of all errors whose message is meant for a user.

    Args:
        message: what happened, one sentence.
        hint: what to do about it, or empty.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(OnnxoptError):
    """An option, a path or a name on the command line is wrong."""

    exit_code = 2


@dataclass(frozen=True)  # without slots: Python 3.9 imports this, too
class Fault:
    """One thing wrong with a case file.

    Attributes:
        where: ``path:line``, or a path alone where lines mean nothing.
        what: the case and field, then what was found and what was expected.
    """

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class InvalidCase(OnnxoptError):
    """A case file or directory breaks its format; all that is wrong with it, at once."""

    exit_code = 2

    def __init__(self, problems: list[Fault] | tuple[Fault, ...], *, hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint=hint)
        self.problems = tuple(problems)


class BackendUnavailable(OnnxoptError):
    """The backend could not be started: not there, not installed, not importable."""

    exit_code = 4


class NothingSelected(OnnxoptError):
    """The selection left no case to run."""

    exit_code = 5


class NodeError(OnnxoptError):
    """A node, its attributes or its inputs break the operator's signature."""


class Unsupported(OnnxoptError):
    """A backend does not know an operator, an opset, a type or a device.

    Args:
        message: the backend's own words.
        operator: the unknown operator as ``domain:name``, where that is what is missing.
    """

    def __init__(self, message: str, *, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator


class NotApplicable(OnnxoptError):
    """Our own lowering refuses a node, so the backend is not asked and has no verdict."""


class UnusableOutput(OnnxoptError):
    """A backend returned something that is no tensor, sequence, optional or map."""


class BackendFailure(OnnxoptError):
    """A backend reports, in an answer of its protocol, that it failed; the message is its own."""


class BackendDied(OnnxoptError):
    """A backend's process ended, or closed its channel, before it answered."""


class BackendDiedEarlier(BackendDied):
    """A backend's process ended before it read what it was asked, which is not to blame."""


class BackendHangs(OnnxoptError):
    """A backend did not answer in time, and was killed."""


class ProtocolBreach(OnnxoptError):
    """A backend said what its protocol does not allow, so that nothing it said counts."""
