"""The small process that stands between the runner and a worker, and leaves nothing behind.

The supervisor runs none of the backend's code. It is the subreaper of all that the worker starts,
daemons too, so it sees them, and kills them all when the worker ends, when the runner tells it to
with SIGTERM, or when the runner is gone. Then it removes the worker's temporary files and ends as
the worker did, with the same code or signal, which is how the runner learns of it. If the backend
kills the supervisor, the runner gets what is left: it is a subreaper, too.

Where /proc shows no processes, the supervisor cannot know whom to kill. The worker then gets a PID
namespace, which the kernel clears, if this process may make one; otherwise only its process group
is killed. Where /proc does, no namespace is made: few containers allow it, and backends would see
other process ids than /proc has, or another user.

Linux only; elsewhere the worker stands alone and its process group is all that can be killed.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from onnxopt_cli.core.linux import (
    become_subreaper,
    begin_pid_namespace,
    end_with,
)
from onnxopt_cli.workers.private_folder import enter_folder, remove_folder
from onnxopt_cli.workers.process_marks import mark_process
from onnxopt_cli.workers.processes import end_descendants, visible

# How long killing may go on while new processes start, or stay in a system call.
_LONGEST_SECONDS = 60.0


def fork_supervisor(runner: int, channel: int, folder: str) -> None:
    """Fork, return in the worker, and never return in the supervisor.

    Args:
        runner: the runner's process id.
        channel: the descriptor of the channel, which only the worker may hold.
        folder: the worker's folder for temporary files, made here and removed in the end.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        if os.getppid() == runner:
            enter_folder(folder)
        return
    mark_process()
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGCONT}
    # A program that calls the command may ignore it, and what is ignored is never waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    become_subreaper()
    # From here on the end of the runner is a signal that waits to be seen, so what is made now is
    # removed. This signal is also heard by a supervisor that the backend has stopped.
    end_with(runner, signal.SIGCONT)
    lock = enter_folder(folder)
    contained = not visible() and begin_pid_namespace()
    parent = os.getpid()
    status_reader, status_writer = os.pipe() if contained else (-1, -1)
    worker = _fork(folder)
    if worker:
        os.close(channel)
        _keep(runner, worker, signals, folder, status_reader)
    if contained:
        os.close(status_reader)
        _begin_namespace(signals, channel, status_writer)
        parent = 1
    # Without a group of its own it is still found as what descends from the supervisor.
    with suppress(OSError):
        os.setpgid(0, 0)
    if lock is not None:
        # Only the supervisor holds it: a backend could release it.
        os.close(lock)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    end_with(parent, signal.SIGKILL)


def _begin_namespace(signals: set[signal.Signals], channel: int, status_writer: int) -> None:
    """Fork, return in the worker, and tell the supervisor how it ended in the first process.

    The first process of a namespace ignores most signals, which no worker should do.
    """
    # The number of a parent outside.
    end_with(0, signal.SIGKILL)
    worker = _fork("")
    if not worker:
        os.close(status_writer)
        return
    os.close(channel)
    status = None
    while status is None:
        signal.sigwait(signals)
        status = _reap(worker)
    os.write(status_writer, b"%d" % status)
    os._exit(0)


def _fork(folder: str) -> int:
    """Fork; where the system allows no more processes, say so, leave nothing and end."""
    try:
        return os.fork()
    except OSError as error:
        said = f"the system starts no more processes: {error.strerror}; see ulimit -u, or use -j 1"
        _end_in_words(said, folder)


def _end_in_words(said: str, folder: str) -> NoReturn:
    os.write(2, f"{said}\n".encode())
    remove_folder(folder)
    os._exit(1)


def _keep(
    runner: int, worker: int, signals: set[signal.Signals], folder: str, status_reader: int
) -> NoReturn:
    status: int | None = None
    while status is None:
        try:
            heard = signal.sigwait(signals)
        except OSError as error:
            # The worker ends with this process.
            _end_in_words(f"the system lets no signal be waited for: {error.strerror}", folder)
        if heard == signal.SIGTERM or os.getppid() != runner:
            status = signal.SIGKILL
        else:
            status = _reap(worker)
    if status_reader >= 0 and status == 0:
        status = int(os.read(status_reader, 16) or signal.SIGKILL)
    if not visible():
        _end_unseen(worker)
    # Without children there is nothing to look for.
    if _unreaped(os.P_ALL, 0):
        end_descendants(os.getpid(), _LONGEST_SECONDS)
    remove_folder(folder)
    _end_with_status(status)


def _end_unseen(worker: int) -> None:
    """Kill a worker, unless it has been reaped, and its process group."""
    if _unreaped(os.P_PID, worker):
        with suppress(OSError):
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    with suppress(OSError):
        os.killpg(worker, signal.SIGKILL)


def _unreaped(kind: int, number: int) -> bool:
    """Tell whether there are such children; where the system does not say, there may be."""
    try:
        os.waitid(kind, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except OSError:
        pass
    return True


def _reap(worker: int) -> int | None:
    """Take note of all that has ended; return the worker's status if it is among them."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                found = ended[1]
    return found


def _end_with_status(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
