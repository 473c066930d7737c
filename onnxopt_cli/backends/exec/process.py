"""A command that answers lines with lines, whatever it does instead.

It stays in the process group and session of whoever starts it, so that what kills those kills it
too; Ctrl-C alone it does not hear. On Linux the kernel also kills it when the thread that started
it ends. Only POSIX systems let a pipe be read with a deadline, so there are no commands on others.
"""

from __future__ import annotations

import ctypes
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from onnxopt_cli.core.text import exit_text, printable
from onnxopt_cli.errors import BackendDied, BackendHangs, BackendUnavailable, ProtocolBreach

#: The longest line that is read, with its line end.
LONGEST_LINE = 1 << 20

_CHUNK = 1 << 16
_PR_SET_PDEATHSIG = 1
# How long a command that has closed its output, or was told to end, may take to be gone.
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
        # Both are there: they were asked for.
        self._input, self._output = (
            stream.fileno() for stream in (self._process.stdin, self._process.stdout) if stream
        )
        os.set_blocking(self._input, False)

    @property
    def ended(self) -> bool:
        """Whether the command is gone."""
        return self._process.poll() is not None

    def ask(self, line: bytes, seconds: float) -> bytes:
        """Send a line and return the line that answers it, without its end.

        Raises:
            BackendDied: if the command ends, or closes its output, before it has answered.
            BackendHangs: if it has not answered in time.
            ProtocolBreach: if it writes without being asked, more than one line, or a line that
                is too long.
        """
        if self._ready(0):
            said = _shown(self._read())
            raise ProtocolBreach(f"the command wrote {said} before it was asked anything")
        deadline = monotonic() + seconds
        unsent, received = memoryview(line), bytearray()
        while b"\n" not in received and len(received) < LONGEST_LINE:
            ready = self._ready(deadline - monotonic(), writing=bool(unsent))
            if not ready:
                raise BackendHangs(
                    f"the command did not answer within {seconds:g} s, and was killed"
                )
            if self._input in ready:
                unsent = self._write(unsent)
            if self._output in ready:
                received += self._read()
        answer, _, more = bytes(received).partition(b"\n")
        if len(answer) >= LONGEST_LINE:
            raise ProtocolBreach(f"the command wrote a line of more than {LONGEST_LINE} bytes")
        if unsent:
            raise ProtocolBreach("the command answered before it had read the request")
        if more:
            raise ProtocolBreach(f"after its answer, the command wrote {_shown(more)}")
        return answer

    def close(self, farewell: bytes) -> None:
        """Send a last line, close the command's input, and wait until it has ended.

        Raises:
            BackendDied: if it ends with another exit code than 0.
            BackendHangs: if it does not end in time; it is killed then.
        """
        with suppress(OSError):
            self._write(memoryview(farewell))
        self._close_pipes()
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BackendHangs(
                f"the command did not end within {_GRACE:g} s of being told to, and was killed"
            ) from None
        if code:
            raise BackendDied(f"the command, told to end, {exit_text(code)}")

    def kill(self) -> None:
        """End the command at once, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def _ready(self, seconds: float, *, writing: bool = False) -> set[int]:
        """Wait until there is something to read, or room to write; return which of the pipes."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        if writing:
            poll.register(self._input, select.POLLOUT)
        return {descriptor for descriptor, _ in poll.poll(max(0, seconds * 1000))}

    def _write(self, data: memoryview) -> memoryview:
        try:
            return data[os.write(self._input, data) :]
        except BrokenPipeError:
            # A command that no longer listens may still have something to say.
            return data[:0]

    def _read(self) -> bytes:
        data = os.read(self._output, _CHUNK)
        if data:
            return data
        try:
            code = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            raise BackendDied("the command closed its standard output, and went on") from None
        raise BackendDied(f"the command {exit_text(code)}, without an answer")

    def _close_pipes(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()


def _program(name: str) -> str:
    if os.name != "posix":
        raise BackendUnavailable("exec: works on POSIX systems only", hint="use python: here")
    found = shutil.which(name)
    if found:
        return found
    exists = os.path.lexists(name) and os.sep in name
    what = "cannot be executed" if exists else "is not there"
    hint = f"chmod +x {shlex.quote(name)}" if exists else "a file here is written exec:./NAME"
    raise BackendUnavailable(f"the command {printable(name)} {what}", hint=printable(hint))


def _shown(data: bytes) -> str:
    """Return the beginning of what a command wrote, as text."""
    shown = printable(data[:80].decode("utf-8", "backslashreplace"))
    return f"{shown!r}{' ...' if len(data) > 80 else ''}"  # noqa: PLR2004 - as much as is shown


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
