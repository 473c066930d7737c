"""The small process that stands between the runner and a worker, and leaves nothing behind.

The keeper runs none of the backend's code. It is the subreaper of all that the worker starts,
daemons too, so it sees them, and kills them all when the worker ends, when the runner tells it to
with SIGTERM, or when the runner is gone. Then it removes the worker's temporary files and ends as
the worker did, with the same code or signal, which is how the runner learns of it.

Linux only; elsewhere the worker stands alone and its process group is all that can be killed.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from typing import NoReturn

from onnxopt_cli.run.private_folder import remove_folder
from onnxopt_cli.run.processes import descendants

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
# Killing takes another round while processes are born.
_ROUNDS = 200


def stand_between(runner: int, channel: int, folder: str) -> None:
    """Fork, return in the worker, and never return in the keeper.

    Args:
        runner: the runner's process id.
        channel: the descriptor of the channel, which only the worker may hold.
        folder: the worker's folder for temporary files, removed in the end.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return
    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _prctl(_SET_CHILD_SUBREAPER, 1)
    _end_with(runner, signal.SIGTERM)
    keeper = os.getpid()
    worker = os.fork()
    if not worker:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        _end_with(keeper, signal.SIGKILL)
        return
    os.close(channel)
    _keep(worker, signals, folder)


def _end_with(parent: int, number: signal.Signals) -> None:
    """Be sent a signal when the parent ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, number)
    if os.getppid() != parent:
        # It ended before we had said so.
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _keep(worker: int, signals: set[signal.Signals], folder: str) -> NoReturn:
    status: int | None = None
    while status is None:
        if signal.sigwait(signals) == signal.SIGTERM:
            status = signal.SIGKILL
        else:
            status = _reap(worker)
    for _ in range(_ROUNDS):
        left = descendants(os.getpid())
        if not left:
            break
        for process in left:
            _kill(process)
        _reap(worker)
        time.sleep(0.001)
    remove_folder(folder)
    _end_as(status)


def _reap(worker: int) -> int | None:
    """Take note of all that has ended; return the worker's status if it is among them."""
    found = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not process:
            return found
        if process == worker:
            found = status


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        return


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
