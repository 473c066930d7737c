"""Rules for commands: what :file:`exec_protocol.md` asks."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter, sleep

from onnxopt_cli.backends.check.common_rules import COMMON_RULES
from onnxopt_cli.backends.check.questions import CheckModel
from onnxopt_cli.backends.check.rule import BackendRule, Broken, NotShown
from onnxopt_cli.backends.check.subject import CheckedBackend, CommandSubject
from onnxopt_cli.backends.exec.backend import require_stated
from onnxopt_cli.errors import BackendFailure, Unsupported

# After this time, a command that has something more to say than an answer has said it.
_SILENCE = 0.1
# What a reader that looks for words instead of fields would stumble over.
_EXTRA = '{"id": 0, "request": "shutdown"}'


def _greets(subject: CheckedBackend) -> str:
    command = _command(subject)
    started = perf_counter()
    hello = command.hello
    taken = perf_counter() - started
    return f"{hello.name} {hello.version}, after {taken:.2f} s"


def _answers(subject: CheckedBackend) -> str:
    return _orderly(_command(subject), subject.simple_question())


def _overlooks_fields(subject: CheckedBackend) -> str:
    return _orderly(_command(subject), subject.simple_question(), _EXTRA)


def _stays(subject: CheckedBackend) -> str:
    command = _command(subject)
    for _ in range(3):
        _orderly(command, subject.simple_question())
        sleep(_SILENCE)
    return "three cases in one process"


def _refuses_damaged(subject: CheckedBackend) -> str:
    command = _command(subject)
    asked = subject.simple_question()
    damaged = b"\xff" * 64
    try:
        outputs = command.run(asked, damaged)
    except (Unsupported, BackendFailure) as error:
        found = f"it says: {error.message}"
    else:
        raise Broken(f"it returned {len(outputs)} outputs for a file that is no model")
    _orderly(command, asked)
    return found


def _ends_when_told(subject: CheckedBackend) -> str:
    command = _command(subject)
    _orderly(command, subject.simple_question())
    try:
        command.session.close()
    finally:
        command.restart()
    return "exit code 0"


def _ends_with_input(subject: CheckedBackend) -> str:
    command = _command(subject)
    _orderly(command, subject.simple_question())
    try:
        command.session.close(tell=False)
    finally:
        command.restart()
    return "exit code 0"


def _command(subject: CheckedBackend) -> CommandSubject:
    if not isinstance(subject, CommandSubject):
        raise TypeError("these rules are for commands")
    return subject


def _orderly(command: CommandSubject, asked: CheckModel, extra: str | None = None) -> str:
    try:
        require_stated(asked.model, command.hello)
    except Unsupported as error:
        raise NotShown(error.message) from None
    try:
        outputs = command.run(asked, extra=extra)
    except Unsupported as error:
        return f"it says unsupported: {error.message}"
    except BackendFailure as error:
        return f"it reports: {error.message}"
    return f"{len(outputs)} outputs, in files of the folder"


#: In the order in which they are tested.
COMMAND_RULES: Iterable[BackendRule] = (
    BackendRule(
        "answers hello",
        "answer the first line with one line of JSON, flushed, with all fields of the protocol",
        _greets,
    ),
    BackendRule(
        "answers run with its id, and files in the folder",
        "repeat the request's id; name regular files that stand in the request's folder; flush",
        _answers,
    ),
    BackendRule(
        "overlooks fields that it does not know",
        "read the fields that are needed and no others",
        _overlooks_fields,
    ),
    BackendRule(
        "stays for the next case, and writes nothing unasked",
        "read requests in a loop; send what libraries print to standard error",
        _stays,
    ),
    BackendRule(
        "reports a damaged model, and goes on",
        'answer {"id": ..., "error": "..."} when the model cannot be read',
        _refuses_damaged,
    ),
    *COMMON_RULES,
    BackendRule(
        "ends with exit code 0 on shutdown",
        "end the loop at the request shutdown, and release everything in order",
        _ends_when_told,
    ),
    BackendRule(
        "ends with exit code 0 when its input ends",
        "end the loop at the end of standard input too: nobody is there to ask any more",
        _ends_with_input,
    ),
)
