"""A command that answers requests, whatever it does instead.

It stays in the process group and session of whoever starts it, so that what kills those kills it
too; Ctrl-C alone it does not hear. On Linux the kernel also kills it when the thread that started
it ends. Only POSIX systems let a pipe be read with a deadline, so there are no commands on others.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnxopt_cli.backends.conversation import Conversation
from onnxopt_cli.core.codec import ValueWriter
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendDied, BackendUnavailable

_PR_SET_PDEATHSIG = 1
# How long a command that was told to end may take to be gone.
_GRACE = 5.0


class CommandProcess:
    """A running command. What it writes to standard error goes to ours.

    Args:
        command: the program, looked up as a shell would, and its arguments.

    Raises:
        BackendUnavailable: if there is no such program, or it cannot be executed.
    """

    def __init__(self, command: Sequence[str]) -> None:
        program = _program(command[0])
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                [program, *command[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                preexec_fn=_begin_child(),  # noqa: PLW1509 - system calls alone, no lock
            )
        except (OSError, ValueError) as error:
            raise BackendUnavailable(
                f"{printable(shlex.join(command))} cannot be executed: {printable(str(error))}",
                hint="a script needs a first line such as #!/bin/sh, and permission to execute",
            ) from error
        self._selector = selectors.DefaultSelector()
        # Both are there: they were asked for.
        self._pipes = [it for it in (self._process.stdout, self._process.stdin) if it]
        reading, writing = self._pipes
        self.conversation = Conversation(
            self._process, reading.fileno(), writing.fileno(), writing.close, self._selector
        )

    def ask(
        self, message: dict[str, Any], seconds: float, values: ValueWriter | None = None
    ) -> tuple[dict[str, Any], memoryview]:
        """Send a request and return the answer and its raw bytes.

        Raises:
            BackendDied: if the command ends, or closes its output, before it has answered.
            BackendHangs: if it has not answered in time.
            ProtocolBreach: if it writes without being asked, or something else than an answer.
            UnusableOutput: if the request cannot be sent.
        """
        # It may have spoken since it answered.
        self.conversation.poll()
        self.conversation.ask(message, seconds, values)
        return self.conversation.wait()

    def close(self, *, tell: bool = True) -> None:
        """End the command's input, and wait until it has ended.

        Args:
            tell: ask it to shut down before.

        Raises:
            BackendDied: if it ends with another exit code than 0.
            BackendHangs: if it does not end in time.
        """
        try:
            self.conversation.end(_GRACE, tell=tell)
            self.conversation.wait()
        except BackendDied as death:
            if self._process.returncode:
                raise BackendDied(f"told to end, {death.message}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """End the command at once, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self.conversation.close()
        for pipe in self._pipes:
            pipe.close()
        self._selector.close()


def _program(name: str) -> str:
    if sys.platform == "win32":
        raise BackendUnavailable(
            "commands, other interpreters and checks of plugins work on POSIX systems only",
            hint="onnxopt run with python: works here",
        )
    found = shutil.which(name)
    if found:
        return found
    what, hint = "is not there", "" if os.sep in name else "a file here is written exec:./NAME"
    if os.sep in name and Path(name).is_dir():
        what = "is a folder"
    elif os.sep in name and os.path.lexists(name):
        what, hint = "cannot be executed", f"chmod +x {shlex.quote(name)}"
    raise BackendUnavailable(f"the command {printable(name)} {what}", hint=printable(hint))


def _begin_child() -> Callable[[], None]:
    """Return what the command's process does before it becomes the command."""
    # Looked up before the fork: after it, only system calls are safe.
    linux = sys.platform.startswith("linux")
    control = ctypes.CDLL(None, use_errno=True).prctl if linux else None
    parent = os.getpid()

    def begin() -> None:
        # A terminal tells the command of Ctrl-C too; what becomes of the case is ours to say.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if control is not None:
            control(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return begin
