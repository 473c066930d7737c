"""The process of a worker, its channel and what it prints; it is left with nothing of it behind."""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from typing import Any, NoReturn

from onnxopt_cli.backends.conversation import Conversation
from onnxopt_cli.core.ci_channels import without_ci_channels
from onnxopt_cli.core.helper_process import STARTED, claimed
from onnxopt_cli.core.linux import become_subreaper, close_to_others
from onnxopt_cli.core.text import printable
from onnxopt_cli.workers.memory import FileKey
from onnxopt_cli.workers.private_folder import name_folder, remove_folder
from onnxopt_cli.workers.process_marks import can_mark, is_marked
from onnxopt_cli.workers.processes import (
    children,
    end_descendants,
    visible,
)
from onnxopt_cli.workers.shared_memory import memory_file

# The worker imports what this process would, from the same places, whatever its folder.
_START = (
    "import sys; *numbers, folder = sys.argv[1:7]; sys.path = sys.argv[7:]; "
    "from onnxopt_cli.workers.worker_main import main; "
    "main(*map(int, numbers), folder)"
)
# How long a supervisor may take to leave nothing behind.
_PATIENCE_SECONDS = 1.0
# How long what has no supervisor any more may take to end.
_SWEEP_SECONDS = 10.0
# What is kept and shown of what a worker prints; and how much is read at a time: all that a pipe
# holds, and no more, so that a flood does not keep the runner from its other work.
_KEPT_BYTES = 16 << 10
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2000
_READ = 64 << 10


class WorkerProcess:
    """A started worker, behind its supervisor where there is one; nothing here waits.

    Args:
        memory: bytes that each process of it may hold, or 0.
        selector: where its descriptors are registered, until they are closed.
        closed: whether no other worker may look into it, from its first moment on (Linux).

    Attributes:
        popen: the process that was started: the supervisor, where there is one.
        conversation: what it is asked, and answers.
        printed: what the worker has printed.
        given: the file in memory with the values that it is given; -1 where there is none.
        returned: the file in memory with those that it returns; -1 where there is none.
    """

    def __init__(
        self, memory: int, selector: selectors.BaseSelector, *, closed: bool = False
    ) -> None:
        self._folder = name_folder()
        self.given, self.returned = memory_file(), memory_file()
        shared = [self.given, self.returned]
        self.popen, self._channel, printed = _start(memory, self._folder, shared, closed)
        reading = self._channel.fileno()
        finish = partial(self._channel.shutdown, socket.SHUT_WR)
        self.conversation = Conversation(self.popen, reading, os.dup(reading), finish, selector)
        self.printed = Printed(printed)
        # Readable when the process has ended; where the system has none, the clock has to do.
        self._ended = -1
        with suppress(AttributeError, OSError):
            self._ended = os.pidfd_open(self.popen.pid)
        self._selector = selector
        for descriptor in (printed, self._ended):
            if descriptor >= 0:
                selector.register(descriptor, selectors.EVENT_READ)

    def shared_files(self, given: int, returned: int) -> dict[FileKey, int]:
        """Return how much of each file in memory is not the worker's own.

        Args:
            given: bytes that the runner has put into the first.
            returned: bytes that an answer may put into the second.
        """
        found = {}
        for descriptor, size in ((self.given, given), (self.returned, returned)):
            if descriptor >= 0:
                status = os.fstat(descriptor)
                found[status.st_dev, status.st_ino] = size
        return found

    def read_printed(self) -> None:
        """Take what it has printed."""
        if not self.printed.read():
            self._unregister(self.printed.descriptor)

    def kill(self) -> bool:
        """Kill the worker and all that it started, if it still runs, and close everything.

        Returns:
            Whether nothing is left alive, as far as can be seen.
        """
        if self.popen.poll() is None:
            _end_supervisor(self.popen)
        STARTED.discard(self.popen.pid)
        dead = not _adopts_orphans() or end_descendants(os.getpid(), _SWEEP_SECONDS, _is_orphan)
        # The supervisor has done this, unless it was killed itself.
        remove_folder(self._folder)
        self.conversation.close()
        self._channel.close()
        others = (self.conversation.writing, self.given, self.returned)
        for descriptor in (*others, self.printed.descriptor, self._ended):
            if descriptor >= 0:
                self._unregister(descriptor)
                os.close(descriptor)
        return dead

    def _unregister(self, descriptor: int) -> None:
        with suppress(KeyError):
            self._selector.unregister(descriptor)


def _start(
    memory: int, folder: str, shared: list[int], closed: bool
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a worker; return it, our end of its channel, and of the pipe that it prints to."""
    close_to_others()
    ours, theirs = socket.socketpair()
    printed, write_end = os.pipe()
    _adopts_orphans()
    numbers = [theirs.fileno(), *shared, os.getpid(), memory]
    # What is executed can be looked into while it starts; what is only forked is as closed as we.
    instead = partial(_serve_instead, *numbers, folder) if closed and forks() else None
    try:
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads, such as those of BLAS.
            warnings.simplefilter("ignore", DeprecationWarning)
            popen = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-u", "-P", "-c", _START, *map(str, numbers), folder, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                pass_fds=[it for it in (theirs.fileno(), *shared) if it >= 0],
                start_new_session=True,
                env=without_ci_channels(os.environ),
                preexec_fn=instead,  # noqa: PLW1509 - it never returns
            )
    except BaseException:
        for descriptor in (ours.detach(), printed, *shared):
            if descriptor >= 0:
                os.close(descriptor)
        raise
    finally:
        theirs.close()
        os.close(write_end)
    STARTED.add(popen.pid)
    return popen, ours, printed


def forks() -> bool:
    """Tell whether closed workers are forked; a program that calls us may have any threads."""
    return sys.platform == "linux" and claimed()


def _serve_instead(channel: int, given: int, returned: int, *others: Any) -> NoReturn:
    """Be a worker in a process that was just forked, in place of executing anything."""
    code = 1
    try:
        gc.freeze()
        kept = sorted({2, channel, given, returned} - {-1})
        for before, after in pairwise([*kept, os.sysconf("SC_OPEN_MAX")]):
            os.closerange(before + 1, after)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        from onnxopt_cli.workers.worker_main import main

        main(channel, given, returned, *others)
        code = 0
    finally:
        os._exit(code)


@cache
def _adopts_orphans() -> bool:
    """Take in what loses its supervisor, from the first worker on; return whether it comes here."""
    return claimed() and visible() and (_alone() or can_mark()) and become_subreaper()


@cache
def _alone() -> bool:
    """Tell whether every orphan that comes here is a worker's.

    Whoever has children already, or is the first process of a container, may get others.
    """
    return os.getpid() != 1 and STARTED.issuperset(children(os.getpid()))


def _end_supervisor(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "linux":
        process.terminate()
        # The backend may have stopped it.
        process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)
            return
    end_descendants(process.pid, _SWEEP_SECONDS)
    # macOS lets no group be signalled in which one has ended and was not waited for.
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _is_orphan(child: int) -> bool:
    """Tell whether a child of this process was once a worker's.

    Supervisors begin sessions, which nothing behind them can leave for an older one; what this
    process starts otherwise stays in its own.
    """
    if child in STARTED:
        return False
    if not _alone():
        return is_marked(child)
    with suppress(OSError):
        return os.getsid(child) != os.getsid(0)
    return False


class Printed:
    """Reads a pipe to which a worker writes.

    Args:
        descriptor: the reading end.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._end = bytearray()
        self._count = 0

    def read(self) -> bool:
        """Take what the pipe holds; return False if nothing will come any more."""
        try:
            data = os.read(self.descriptor, _READ)
        except BlockingIOError:
            return True
        self._count += len(data)
        self._end += data
        del self._end[:-_KEPT_BYTES]
        return bool(data)

    def forget(self) -> None:
        """Let go of what was written so far: it belongs to an earlier case."""
        self._end.clear()
        self._count = 0

    def text(self) -> str:
        """Return the last lines so far, printable; the first says so where some are missing."""
        self.read()
        whole = bytes(self._end).decode("utf-8", "replace").replace("\r\n", "\n").strip("\n")
        lines = whole.split("\n")[-_SHOWN_LINES:]
        shown = "\n".join(lines)[-_SHOWN_CHARACTERS:]
        if not shown:
            return ""
        missing = self._count > _KEPT_BYTES or len(shown) < len(whole)
        start = f"... the end of {self._count} bytes:\n" if missing else ""
        return start + printable(shown, lines=True)
