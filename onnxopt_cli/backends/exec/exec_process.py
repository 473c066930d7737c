"""A command that answers requests, whatever it does instead.

It stays in the process group and session of whoever starts it, so that what kills those kills it
too; Ctrl-C alone it does not hear. On Linux the kernel also kills it when the thread that started
it ends. Only POSIX systems let a pipe be read with a deadline, so there are no commands on others.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from onnxopt_cli.backends.conversation import Conversation
from onnxopt_cli.backends.protocol import BREAKDOWNS
from onnxopt_cli.core.ci_channels import without_ci_channels
from onnxopt_cli.core.codec import ValueWriter
from onnxopt_cli.core.linux import end_with
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    BackendDied,
    BackendDiedEarlier,
    BackendFailure,
    BackendUnavailable,
    Unsupported,
)

# How long a command that was told to end may take to be gone.
_GRACE = 5.0
_Answer = TypeVar("_Answer")


class Command:
    """A command, started when it is needed. What it writes to standard error goes to ours.

    One that dies, hangs or breaks the protocol is killed, and started again by the next request.

    Args:
        command: the program, looked up as a shell would, and its arguments.
        timeout: seconds that an answer may take.
        called: the command, where a message says what it did.
    """

    def __init__(self, command: Sequence[str], timeout: float, called: str = "the command") -> None:
        self._command = command
        self._timeout = timeout
        self._called = called
        self._conversation: Conversation | None = None

    def ask(
        self,
        request: dict[str, Any],
        read: Callable[[dict[str, Any], memoryview], _Answer],
        values: ValueWriter | None = None,
    ) -> _Answer:
        """Ask the command something; kill it if anything but a proper answer comes of that.

        Args:
            request: what it is asked.
            read: makes something of the answer and its raw bytes, or raises ProtocolBreach.
            values: what the request holds of values.

        Raises:
            BackendUnavailable: if there is no such program, or it cannot be executed.
            BackendDiedEarlier: if the command has ended before it read the request.
            BackendDied: if it ends, or closes its output, before it has answered.
            BackendHangs: if it has not answered in time.
            ProtocolBreach: if it writes without being asked, or something else than an answer.
            UnusableOutput: if the request cannot be sent.
        """
        self._conversation = conversation = self._conversation or self._start()
        try:
            with self._named():
                with _earlier(lambda: True):
                    # It may have spoken since it answered, or ended.
                    conversation.poll()
                    if not conversation.open:
                        conversation.wait()
                with _earlier(conversation.unread):
                    conversation.ask(request, self._timeout, values)
                    answer = conversation.wait()
                found = read(*answer)
                conversation.require_no_more()
                return found
        except (Unsupported, BackendFailure):
            raise
        except BaseException:
            self.kill()
            raise

    def close(self, *, tell: bool = True) -> None:
        """End the command's input, and wait until it has ended, if it runs.

        Args:
            tell: ask it to shut down before.

        Raises:
            BackendDied: if it ends with another exit code than 0.
            BackendHangs: if it does not end in time, and is killed.
        """
        if self._conversation is None:
            return
        with self._named():
            try:
                self._conversation.end(_GRACE, tell=tell)
                self._conversation.wait()
            except BackendDied as death:
                if self._conversation.process.returncode:
                    raise BackendDied(f"told to end, {death.message}") from None
            finally:
                self.kill()

    def kill(self) -> None:
        """End the command at once, if it runs."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            # This closes the pipes, too, and waits for it.
            with conversation.process as process, conversation.selector:
                process.kill()
                conversation.close()

    def _start(self) -> Conversation:
        program = _program(self._command[0])
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                [program, *self._command[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=without_ci_channels(os.environ),
                preexec_fn=partial(_begin, os.getpid()),  # noqa: PLW1509 - system calls, no lock
            )
        except (OSError, ValueError) as error:
            raise BackendUnavailable(
                f"{printable(shlex.join(self._command))} cannot be executed: "
                f"{printable(str(error))}",
                hint="a script needs a first line such as #!/bin/sh, and permission to execute",
            ) from error
        # Both are there: they were asked for.
        answers, requests = [it for it in (process.stdout, process.stdin) if it]
        descriptors = answers.fileno(), requests.fileno()
        return Conversation(process, *descriptors, requests.close, selectors.DefaultSelector())

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say of whom a message of the conversation is."""
        try:
            yield
        except BREAKDOWNS as error:
            raise type(error)(f"{self._called} {error.message}", hint=error.hint) from None


@contextmanager
def _earlier(unread: Callable[[], bool]) -> Iterator[None]:
    """Tell deaths before a request was read from others."""
    try:
        yield
    except BackendDied as death:
        if unread():
            raise BackendDiedEarlier(death.message) from None
        raise


def _begin(parent: int) -> None:
    """Prepare the process before it becomes the command."""
    # A terminal tells the command of Ctrl-C too; what becomes of the case is ours to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent, signal.SIGKILL)


def _program(name: str) -> str:
    if sys.platform == "win32":
        raise BackendUnavailable(
            "commands, other interpreters and checks of plugins work on POSIX systems only",
            hint="onnxopt run with python: works here",
        )
    if found := shutil.which(name):
        return found
    what, hint = "is not there", "" if os.sep in name else "a file here is written exec:./NAME"
    if os.sep in name and Path(name).is_dir():
        what = "is a folder"
    elif os.sep in name and os.path.lexists(name):
        what, hint = "cannot be executed", f"chmod +x {shlex.quote(name)}"
    raise BackendUnavailable(f"the command {printable(name)} {what}", hint=printable(hint))
