"""The supervisor: a small process between the runner and a worker that cleans up after the worker.

The supervisor runs no code of the backend. It is the subreaper of all processes that the worker
starts, including daemons. It kills all of them when the worker ends, when the runner sends SIGTERM,
or when the runner ends. Then it removes the worker's temporary files and ends with the worker's
exit code or signal, from which the runner learns how the worker ended. If the backend kills the
supervisor, the remaining processes become children of the runner, which is also a subreaper.

Where /proc shows no processes, the supervisor cannot find the descendants. If it may create a PID
namespace, the worker then runs in one, whose processes the kernel kills; otherwise the supervisor
kills only the worker's process group. Where /proc shows processes, no namespace is created: few
containers allow it, and process ids in the namespace would differ from those in /proc.

Supervisors exist only on Linux; on other systems only the worker's process group can be killed.
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
from onnxopt_cli.workers.processes import end_descendants, mark_process, visible

# Time limit for killing, while processes start new ones or stay in a system call.
_KILLING_SECONDS = 60.0


def fork_supervisor(runner: int, channel: int, folder: str) -> None:
    """Fork, return in the worker, and never return in the supervisor.

    Args:
        runner: the runner's process id.
        channel: the descriptor of the channel, which only the worker may keep open.
        folder: the worker's folder for temporary files; created here, and removed by the
            supervisor.
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
    # The parent process may ignore SIGCHLD; sigwait would then never return it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    become_subreaper()
    # From here on, the end of the runner sends SIGCONT, which stays pending, so everything created
    # from now on is removed. SIGCONT also wakes a supervisor that the backend has stopped.
    end_with(runner, signal.SIGCONT)
    lock = enter_folder(folder)
    has_namespace = not visible() and begin_pid_namespace()
    parent = os.getpid()
    status_reader, status_writer = os.pipe() if has_namespace else (-1, -1)
    worker = _fork(folder)
    if worker:
        os.close(channel)
        _supervise(runner, worker, signals, folder, status_reader)
    if has_namespace:
        os.close(status_reader)
        _begin_namespace(signals, channel, status_writer)
        parent = 1
    # Without a process group of its own, the worker is still found as a descendant.
    with suppress(OSError):
        os.setpgid(0, 0)
    if lock is not None:
        # Only the supervisor keeps the lock: a backend could release it.
        os.close(lock)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    end_with(parent, signal.SIGKILL)


def _begin_namespace(signals: set[signal.Signals], channel: int, status_writer: int) -> None:
    """Fork the worker from the first process of the namespace, and return in the worker.

    The first process waits for the worker and sends its status to the supervisor. The worker cannot
    be the first process itself, because the kernel ignores most signals to that one.
    """
    # A parent outside the namespace has process id 0.
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
    """Fork; if the system allows no more processes, print a message, clean up and exit."""
    try:
        return os.fork()
    except OSError as error:
        reason = f"the system allows no more processes: {error.strerror}"
        _exit_with_message(f"{reason}; see ulimit -u, or use -j 1", folder)


def _exit_with_message(message: str, folder: str) -> NoReturn:
    os.write(2, f"{message}\n".encode())
    remove_folder(folder)
    os._exit(1)


def _supervise(
    runner: int, worker: int, signals: set[signal.Signals], folder: str, status_reader: int
) -> NoReturn:
    status: int | None = None
    while status is None:
        try:
            received = signal.sigwait(signals)
        except OSError as error:
            # The kernel ends the worker with this process.
            _exit_with_message(f"the system does not allow sigwait: {error.strerror}", folder)
        if received == signal.SIGTERM or os.getppid() != runner:
            status = signal.SIGKILL
        else:
            status = _reap(worker)
    if status_reader >= 0 and status == 0:
        status = int(os.read(status_reader, 16) or signal.SIGKILL)
    if not visible():
        _end_group(worker)
    if _has_unreaped(os.P_ALL, 0):
        end_descendants(os.getpid(), _KILLING_SECONDS)
    remove_folder(folder)
    _end_with_status(status)


def _end_group(worker: int) -> None:
    """Kill a worker, unless it has been reaped, and its process group."""
    if _has_unreaped(os.P_PID, worker):
        with suppress(OSError):
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
    with suppress(OSError):
        os.killpg(worker, signal.SIGKILL)


def _has_unreaped(id_kind: int, number: int) -> bool:
    """Return whether this process has children that it has not reaped.

    True if the system cannot tell. The arguments select the children, as those of ``waitid`` do.
    """
    try:
        os.waitid(id_kind, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except OSError:
        pass
    return True


def _reap(worker: int) -> int | None:
    """Reap all children that have ended; return the status of the worker if it is among them."""
    worker_status = None
    with suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            if process == worker:
                worker_status = status
    return worker_status


def _end_with_status(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
