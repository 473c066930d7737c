"""Starting the process of a worker, and making sure that it and all it started are gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from onnxopt_cli.run.processes import descendants

# The worker imports what this process would, from the same places, whatever its folder.
_START = (
    "import sys; channel, runner, memory, *sys.path = sys.argv[1:]; "
    "from onnxopt_cli.run.worker_main import main; main(int(channel), int(runner), int(memory))"
)
_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A started worker, behind its keeper where there is one.

    Attributes:
        popen: the process.
        channel: the runner's end of the private socket, not blocking.
        printed: descriptor of the pipe that stdout and stderr go to.
        ended: descriptor that becomes readable when the process ends; None if the system has none.
    """

    popen: subprocess.Popen[bytes]
    channel: socket.socket
    printed: int
    ended: int | None


def start_process(memory: int) -> WorkerProcess:
    """Start a worker.

    Args:
        memory: bytes that each process of it may hold, or 0.
    """
    ours, theirs = socket.socketpair()
    printed, write_end = os.pipe()
    arguments = [str(theirs.fileno()), str(os.getpid()), str(memory), *sys.path]
    try:
        popen = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-u", "-P", "-c", _START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        os.close(printed)
        raise
    finally:
        theirs.close()
        os.close(write_end)
    ours.setblocking(False)
    ended = os.pidfd_open(popen.pid) if hasattr(os, "pidfd_open") else None
    return WorkerProcess(popen, ours, printed, ended)


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and all that it started; return when they are gone."""
    if process.poll() is not None:
        return
    if sys.platform != "linux":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return
    process.terminate()
    try:
        process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        # The keeper does not answer; something has stopped it.
        for descendant in descendants(process.pid):
            with suppress(OSError):
                os.kill(descendant, signal.SIGKILL)
        process.kill()
        process.wait()
