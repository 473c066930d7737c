"""The process of a command, which is untrusted and restarted after a fault.

The command stays in the process group and session of its parent, so that a signal to those also
kills the command; it ignores Ctrl-C. On Linux, the kernel also kills it when the thread that
started it ends. Pipes with deadlines require a POSIX system.
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
from onnxopt_cli.core.process_control import end_with
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import (
    BackendDied,
    BackendDiedEarlier,
    BackendFailure,
    BackendUnavailable,
    Unsupported,
)

# Time limit for a command to end after a shutdown request.
_SHUTDOWN_SECONDS = 5.0
_Parsed = TypeVar("_Parsed")


class Command:
    """A command, started by the first request. Its standard error is that of this process.

    A command that dies, hangs or violates the protocol is killed; the next request restarts it.

    Args:
        command: the program, looked up as by a shell, and its arguments.
        timeout: time limit of a response in seconds.
        called: the command's name in messages, such as "the command".
    """

    def __init__(self, command: Sequence[str], timeout: float, called: str = "the command") -> None:
        self._command = command
        self._timeout = timeout
        self._called = called
        self._conversation: Conversation | None = None

    def request(
        self,
        request: dict[str, Any],
        read: Callable[[dict[str, Any], memoryview], _Parsed],
        values: ValueWriter | None = None,
    ) -> _Parsed:
        """Send a request and return the parsed response; kill the command if that is not possible.

        Args:
            request: the request, without its number.
            read: parses the response and its raw bytes, or raises ProtocolBreach.
            values: the raw bytes of the values in the request.

        Raises:
            BackendUnavailable: if the program does not exist or cannot be executed.
            BackendDiedEarlier: if the command ended before it read the request.
            BackendDied: if it ends, or closes its output, before it has responded.
            BackendHangs: if it does not respond in time.
            ProtocolBreach: if it sends output without a request, or an invalid response.
            UnusableOutput: if the request cannot be sent.
        """
        self._conversation = conversation = self._conversation or self._start()
        try:
            with self._named():
                with _earlier(lambda: True):
                    # Detect an exit or unrequested output since the last response.
                    conversation.poll()
                    if not conversation.open:
                        conversation.wait()
                with _earlier(conversation.unread):
                    conversation.send(request, self._timeout, values)
                    response = conversation.wait()
                parsed = read(*response)
                conversation.require_no_more()
                return parsed
        except (Unsupported, BackendFailure):
            raise
        except BaseException:
            self.kill()
            raise

    def close(self, *, tell: bool = True) -> None:
        """Close the command's input, and wait for its exit, if it runs.

        Args:
            tell: whether to send the request ``shutdown`` first.

        Raises:
            BackendDied: if it ends with a nonzero exit code.
            BackendHangs: if it does not end in time, and is killed.
        """
        if self._conversation is None:
            return
        with self._named():
            try:
                self._conversation.end(_SHUTDOWN_SECONDS, tell=tell)
                self._conversation.wait()
            except BackendDied as death:
                if self._conversation.process.returncode:
                    raise BackendDied(f"{death.message} after shutdown") from None
            finally:
                self.kill()

    def kill(self) -> None:
        """Kill the command, if it runs."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            # Leaving the context closes the pipes and waits for the process.
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
        # Neither pipe is None, because both arguments above are PIPE.
        responses, requests = [pipe for pipe in (process.stdout, process.stdin) if pipe]
        descriptors = responses.fileno(), requests.fileno()
        return Conversation(process, *descriptors, requests.close, selectors.DefaultSelector())

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Prepend the subject to messages of the conversation."""
        try:
            yield
        except BREAKDOWNS as error:
            raise type(error)(f"{self._called} {error.message}", hint=error.hint) from None


@contextmanager
def _earlier(unread: Callable[[], bool]) -> Iterator[None]:
    """Convert BackendDied to BackendDiedEarlier if the request was not read."""
    try:
        yield
    except BackendDied as death:
        if unread():
            raise BackendDiedEarlier(death.message) from None
        raise


def _begin(parent: int) -> None:
    """Prepare the process before it becomes the command."""
    # A terminal sends Ctrl-C to the command as well; onnxopt alone decides when to end it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent, signal.SIGKILL)


def _program(name: str) -> str:
    if sys.platform == "win32":
        raise BackendUnavailable(
            "commands, other interpreters and checks of plugins work on POSIX systems only",
            hint="onnxopt run with python: works here",
        )
    if path := shutil.which(name):
        return path
    problem = "does not exist"
    hint = "" if os.sep in name else "write exec:./NAME for a file in this folder"
    if os.sep in name and Path(name).is_dir():
        problem = "is a folder"
    elif os.sep in name and os.path.lexists(name):
        problem, hint = "cannot be executed", f"chmod +x {shlex.quote(name)}"
    raise BackendUnavailable(f"the command {printable(name)} {problem}", hint=printable(hint))
