"""Owns a worker's process, its channel and its captured output, and cleans all of them up."""

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
from onnxopt_cli.operators.native_onnx import leave_helper
from onnxopt_cli.workers.private_folder import name_folder, remove_folder
from onnxopt_cli.workers.processes import (
    can_mark,
    children,
    end_descendants,
    is_marked,
    visible,
)
from onnxopt_cli.workers.resources import FileKey
from onnxopt_cli.workers.worker_messages import create_memory_file

# The worker gets the import path of this process, independent of the current folder.
_START = (
    "import sys; *numbers, folder = sys.argv[1:7]; sys.path = sys.argv[7:]; "
    "from onnxopt_cli.workers.worker_main import main; "
    "main(*map(int, numbers), folder)"
)
# Time limit for a supervisor to clean up.
_CLEANUP_SECONDS = 1.0
# Time limit for killing processes without a supervisor.
_KILLING_SECONDS = 10.0
# Size of the end of a worker's output that is kept, and of the shorter end that messages show.
_KEPT_BYTES = 16 << 10
_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 2000
# Read at most the content of a full pipe at a time, so that a worker that prints without pause
# cannot keep the runner busy.
_READ_BYTES = 64 << 10


class WorkerProcess:
    """A worker's process, with its supervisor on Linux; of its methods, only :meth:`kill` blocks.

    Args:
        memory: memory limit of each process of the worker in bytes, or 0.
        selector: the selector with which its descriptors are registered until they are closed.
        closed: whether to keep other workers from inspecting it from its start on (Linux only).

    Attributes:
        popen: the started process: the supervisor on Linux, else the worker.
        conversation: the requests to the worker and its responses.
        printed: the output of the worker.
        input_file: descriptor of the file in memory for inputs; -1 if the system has none.
        output_file: descriptor of the file in memory for outputs; -1 if the system has none.
    """

    def __init__(
        self, memory: int, selector: selectors.BaseSelector, *, closed: bool = False
    ) -> None:
        self._folder = name_folder()
        self.input_file, self.output_file = create_memory_file(), create_memory_file()
        shared = [self.input_file, self.output_file]
        self.popen, self._channel, printed = _start(memory, self._folder, shared, closed)
        reading = self._channel.fileno()
        finish = partial(self._channel.shutdown, socket.SHUT_WR)
        self.conversation = Conversation(self.popen, reading, os.dup(reading), finish, selector)
        self.printed = Printed(printed)
        # Readable when the process has ended. On systems without it, regular polls detect the end.
        self._ended = -1
        with suppress(AttributeError, OSError):
            self._ended = os.pidfd_open(self.popen.pid)
        self._selector = selector
        for descriptor in (printed, self._ended):
            if descriptor >= 0:
                selector.register(descriptor, selectors.EVENT_READ)

    def shared_files(self, input_bytes: int, output_bytes: int) -> dict[FileKey, int]:
        """Return the bytes of each file in memory that do not count as memory of the worker.

        Args:
            input_bytes: size of the inputs in shared memory.
            output_bytes: largest accepted size of the outputs.
        """
        sizes = {}
        for descriptor, size in ((self.input_file, input_bytes), (self.output_file, output_bytes)):
            if descriptor >= 0:
                status = os.fstat(descriptor)
                sizes[status.st_dev, status.st_ino] = size
        return sizes

    def read_printed(self) -> None:
        """Read the output that the worker has printed."""
        if not self.printed.read():
            self._unregister(self.printed.descriptor)

    def kill(self) -> bool:
        """Kill the worker and all processes that it started, and close all descriptors.

        Returns:
            Whether no visible process is left alive.
        """
        if self.popen.poll() is None:
            _end_supervisor(self.popen)
        STARTED.discard(self.popen.pid)
        dead = not _adopts_orphans() or end_descendants(os.getpid(), _KILLING_SECONDS, _is_orphan)
        # Already done by the supervisor, unless the backend has killed it.
        remove_folder(self._folder)
        self.conversation.close()
        self._channel.close()
        descriptors = (
            self.conversation.writing,
            self.input_file,
            self.output_file,
            self.printed.descriptor,
            self._ended,
        )
        for descriptor in descriptors:
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
    """Start a worker; return it, and the runner's ends of its channel and of its output pipe."""
    close_to_others()
    runner_end, worker_end = socket.socketpair()
    printed, write_end = os.pipe()
    _adopts_orphans()
    numbers = [worker_end.fileno(), *shared, os.getpid(), memory]
    # Other processes can inspect a program while it starts. A forked process, by contrast, inherits
    # the protection of this process.
    serve = partial(_serve_forked, *numbers, folder) if closed and forks() else None
    try:
        with warnings.catch_warnings():
            # Newer versions of Python warn of forks if there are threads, such as those of BLAS.
            warnings.simplefilter("ignore", DeprecationWarning)
            popen = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-u", "-P", "-c", _START, *map(str, numbers), folder, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                pass_fds=[
                    descriptor for descriptor in (worker_end.fileno(), *shared) if descriptor >= 0
                ],
                start_new_session=True,
                env=without_ci_channels(os.environ),
                preexec_fn=serve,  # noqa: PLW1509 - it never returns
            )
    except BaseException:
        for descriptor in (runner_end.detach(), printed, *shared):
            if descriptor >= 0:
                os.close(descriptor)
        raise
    finally:
        worker_end.close()
        os.close(write_end)
    STARTED.add(popen.pid)
    return popen, runner_end, printed


def forks() -> bool:
    """Return whether closed workers are forked, which requires control of this process's threads.

    Only the command has this control.
    """
    return sys.platform == "linux" and claimed()


def _serve_forked(channel: int, input_file: int, output_file: int, *settings: Any) -> NoReturn:
    """Run a worker in a process that was just forked, instead of executing a program."""
    code = 1
    try:
        gc.freeze()
        leave_helper()
        open_descriptors = sorted({2, channel, input_file, output_file} - {-1})
        for before, after in pairwise([*open_descriptors, os.sysconf("SC_OPEN_MAX")]):
            os.closerange(before + 1, after)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        from onnxopt_cli.workers.worker_main import main

        main(channel, input_file, output_file, *settings)
        code = 0
    finally:
        os._exit(code)


@cache
def _adopts_orphans() -> bool:
    """Make this process adopt orphans of workers, if possible; return whether it does."""
    return claimed() and visible() and (_orphans_are_workers() or can_mark()) and become_subreaper()


@cache
def _orphans_are_workers() -> bool:
    """Return whether every orphan that this process adopts was started by a worker.

    A process that already has children, or is the first of a container, may adopt other orphans.
    """
    return os.getpid() != 1 and STARTED.issuperset(children(os.getpid()))


def _end_supervisor(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "linux":
        process.terminate()
        # The backend may have stopped the supervisor.
        process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLEANUP_SECONDS)
            return
    end_descendants(process.pid, _KILLING_SECONDS)
    # macOS rejects signals to a group that contains a zombie.
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _is_orphan(child: int) -> bool:
    """Return whether a child of this process is an orphan of a worker.

    Supervisors begin new sessions, and their descendants cannot join an older session. All other
    processes that this process starts stay in its session.
    """
    if child in STARTED:
        return False
    if not _orphans_are_workers():
        return is_marked(child)
    with suppress(OSError):
        return os.getsid(child) != os.getsid(0)
    return False


class Printed:
    """Reads the output of a worker from a pipe, and keeps its end.

    Args:
        descriptor: the reading end of the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._end = bytearray()
        self._count = 0

    def read(self) -> bool:
        """Read the content of the pipe; return False at its end."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        self._count += len(data)
        self._end += data
        del self._end[:-_KEPT_BYTES]
        return bool(data)

    def forget(self) -> None:
        """Discard the output that belongs to an earlier case."""
        self._end.clear()
        self._count = 0

    def text(self) -> str:
        """Return the last lines, printable; if lines are missing, the first line says so."""
        self.read()
        end_text = bytes(self._end).decode("utf-8", "replace").replace("\r\n", "\n").strip("\n")
        lines = end_text.split("\n")[-_SHOWN_LINES:]
        shown_text = "\n".join(lines)[-_SHOWN_CHARACTERS:]
        if not shown_text:
            return ""
        is_cut = self._count > _KEPT_BYTES or len(shown_text) < len(end_text)
        start = f"... the end of {self._count} bytes:\n" if is_cut else ""
        return start + printable(shown_text, lines=True)
