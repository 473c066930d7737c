"""Inspects, limits and ends other processes and their descendants.

psutil gives information about processes on every system. On Linux, however, this module reads the
descendants, the state and most resources of a process from /proc. psutil would open four files for
each process, and delay the start of each supervisor. To find the children of one process, psutil
would scan all processes of the machine, and miss children that start meanwhile.

**Marks.** On Linux, the runner adopts orphans of its workers, and kills them. The runner may also
have other children that it did not start, and must not kill. For example, a shell that executes the
command with ``exec`` leaves its children to the command, and the first process of a container
adopts every orphan. To tell these children apart, each supervisor marks itself and its descendants:
it lowers a hard resource limit below the limit of the runner. Children inherit the limit, a new
session or environment does not change it, and only root may raise it. The limit on file locks
serves as the mark, because Linux has not enforced this limit since version 2.4.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from onnxopt_cli.core.process_control import can_become_subreaper, can_close_to_others

if TYPE_CHECKING:
    import psutil

#: Whether backends can run in processes of their own. On Windows, processes cannot inherit sockets
#: and cannot read pipes with a deadline.
HAS_WORKERS = sys.platform != "win32"

# A process is considered to have no descendants if this number of successive lists is empty.
_EMPTY_LISTS = 2
_MAX_PAUSE_SECONDS, _PAUSE_STEP_SECONDS = 0.02, 0.001
_RESOURCES = ("memory", "threads", "file descriptors")
_Information = TypeVar("_Information")

# The resource limit that marks processes, and the limit's line in /proc/PID/limits.
_FILE_LOCKS_LIMIT = 10
_FILE_LOCKS_LINE = b"Max file locks"
_MAX_MARK = 2**63 - 1
_LIMIT_ERRORS = (ImportError, OSError, ValueError, LookupError, StopIteration)


@cache
def visible() -> bool:
    """Return whether processes are visible; on Linux, /proc must show this PID namespace.

    In another namespace, the process ids of /proc would denote other processes.
    """
    if sys.platform != "linux":
        return True
    with suppress(OSError):
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - compared as a string
    return False


def weakness() -> str:
    """Describe the weaknesses of isolation on this system; empty for full isolation."""
    if not HAS_WORKERS:
        return "weaker: on this system backends run in this process, and may crash or hang it"
    if sys.platform != "linux":
        return "weaker: on this system processes can leave their parents; daemons are not detected"
    lacking = []
    try:
        import resource

        resource.getrlimit(resource.RLIMIT_DATA)
    except ImportError:
        lacking.append("this Python cannot limit memory; the memory of backends is polled instead")
    except OSError:
        lacking.append("the system limits no memory; the memory of backends is polled instead")
    if not visible():
        lacking.append("/proc shows no processes; leaks and daemons are not detected")
    if not can_become_subreaper():
        lacking.append("daemons can leave their parents on this system, and are not detected")
    if not can_close_to_others():
        lacking.append("the system lets backends inspect this process")
    return f"weaker: {'; '.join(lacking)}" if lacking else ""


def usage(process: int) -> dict[str, int]:
    """Return the bytes of memory and the numbers of threads and file descriptors of a process.

    The result is empty if the process has ended or is not visible.
    """
    if not visible():
        return {}
    held: tuple[int, ...] = ()
    if sys.platform == "linux":
        with suppress(OSError):
            threads = int(_stat(process)[17])
            held = resident(process), threads, len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208
    else:
        held = _ask_psutil(
            process, lambda info: (info.memory_info().rss, info.num_threads(), info.num_fds()), ()
        )
    return dict(zip(_RESOURCES, held, strict=False))


def resident(process: int) -> int:
    """Return the number of resident bytes of a process; 0 if the process has ended."""
    if not visible():
        return 0
    if sys.platform != "linux":
        return _ask_psutil(process, lambda info: info.memory_info().rss, 0)
    with suppress(OSError):
        return _resident(f"/proc/{process}") or _resident(memory_folder(process))
    return 0


def memory_folder(process: int) -> str:
    """Return the folder of /proc that states the memory of a process.

    If the first thread of a process has ended, the folder of the process states no memory. The
    folders of its other threads then state the memory.
    """
    folder = f"/proc/{process}"
    with suppress(OSError):
        if not _resident(folder):
            return next(filter(_resident, thread_folders(process)), folder)
    return folder


def thread_folders(process: int) -> list[str]:
    """Return the folders of /proc for the threads of a process; empty if it has ended."""
    folder = f"/proc/{process}/task"
    with suppress(OSError):
        return [f"{folder}/{thread}" for thread in os.listdir(folder)]  # noqa: PTH208 - runs after every case
    return []


def _resident(folder: str) -> int:
    """Return the resident bytes that the folder of a process or thread in /proc states."""
    return int(read_proc(f"{folder}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(process: int) -> list[int]:
    """Return the ids of the children of a process, including zombies."""
    if not visible():
        return []
    if not _lists_children():
        return _ask_psutil(process, lambda info: [child.pid for child in info.children()], [])
    numbers: list[int] = []
    for thread in thread_folders(process):
        with suppress(OSError):
            numbers += map(int, read_proc(f"{thread}/children").split())
    return numbers


@cache
def _lists_children() -> bool:
    """Return whether the kernel is configured such that /proc lists the children of a process."""
    return os.path.exists("/proc/thread-self/children")  # noqa: PTH110 - pathlib is slow to import


def descendants(process: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    visited: dict[int, None] = {}
    unvisited = children(process)
    while unvisited:
        child = unvisited.pop()
        visited[child] = None
        unvisited += [grandchild for grandchild in children(child) if grandchild not in visited]
    return [*visited]


def end_descendants(
    parent: int, seconds: float, is_selected: Callable[[int], bool] = lambda _child: True
) -> bool:
    """Kill the descendants of a process until none is left, although they may start new ones.

    All descendants are stopped before any of them is killed, so that no process can react to the
    end of another process. Signals are sent to whole process groups, because a forked process stays
    in the group. Orphans that the calling process adopts during a round of kills are killed in the
    next round.

    Args:
        parent: the process; it and its process group receive no signal.
        seconds: time after which to give up.
        is_selected: returns whether to kill a child of the process, with its descendants.

    Returns:
        Whether no descendant is left alive.
    """
    deadline = time.monotonic() + seconds
    pause = 0.0
    empty_lists = 0
    # If some children end while the list of children is read, the list may omit other children.
    # Therefore, a single empty list proves nothing.
    while empty_lists < _EMPTY_LISTS:
        alive = _living_descendants(parent, is_selected)
        empty_lists = 0 if alive else empty_lists + 1
        stopped: set[int] = set()
        while time.monotonic() < deadline:
            running = [process for process in alive if process not in stopped]
            if not running:
                break
            _signal(running, signal.SIGSTOP, parent)
            stopped.update(running)
            alive = _living_descendants(parent, is_selected)
        _signal(alive, signal.SIGKILL, parent)
        if alive and time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(_MAX_PAUSE_SECONDS, pause + _PAUSE_STEP_SECONDS)
    return True


def _living_descendants(parent: int, is_selected: Callable[[int], bool]) -> list[int]:
    """Return the living descendants of a process, and reap dead children of this process."""
    processes = []
    is_own = parent == os.getpid()
    for child in filter(is_selected, children(parent)):
        if is_own:
            with suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG)[0]:
                    continue
        processes += [child, *descendants(child)]
    return [process for process in processes if _is_alive(process)]


def _signal(processes: list[int], number: signal.Signals, parent: int) -> None:
    """Send a signal to processes and their groups.

    The process groups of ``parent`` and of the calling process are excluded.
    """
    done_groups = {_group(parent), os.getpgrp()}
    for process in processes:
        group = _group(process)
        with suppress(OSError):
            os.kill(process, number)
        if group not in done_groups:
            done_groups.add(group)
            with suppress(OSError):
                os.killpg(group, number)


def _group(process: int) -> int:
    """Return the group of a process.

    For a process that has ended, the result is the group of the calling process, to which
    :func:`_signal` sends nothing.
    """
    with suppress(OSError):
        return os.getpgid(process)
    return os.getpgrp()


def _is_alive(process: int) -> bool:
    if sys.platform != "linux":
        return _ask_psutil(process, lambda info: info.status() != "zombie", default=False)
    with suppress(OSError):
        fields = _stat(process)
        # A process whose first thread has ended looks dead, although other threads may be running.
        return fields[0] not in {b"Z", b"X"} or int(fields[17]) > 1
    return False


def _stat(process: int) -> list[bytes]:
    """Return the fields of a process's ``stat`` file on Linux, beginning with the third (state)."""
    # The second field, the program's name in parentheses, may contain any character.
    return read_proc(f"/proc/{process}/stat").rpartition(b")")[2].split()


def name_of(process: int) -> str:
    """Return the name of a process's program; empty if the process has ended."""
    return _ask_psutil(process, lambda info: info.name(), "")


def _ask_psutil(
    process: int, read: Callable[[psutil.Process], _Information], default: _Information
) -> _Information:
    """Return psutil's information on a process; the default if the process is not visible."""
    import psutil

    # AttributeError: psutil lacks a method on this system.
    with suppress(psutil.Error, AttributeError):
        return read(psutil.Process(process))
    return default


def out_of_memory_kills() -> int:
    """Return the number of processes that the kernel has killed because memory ran out."""
    with suppress(OSError):
        lines = read_proc("/proc/vmstat").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(b"oom_kill "))
    return 0


def read_proc(path: str, folder: int | None = None) -> bytes:
    """Return the content of a file of /proc.

    Args:
        path: the path of the file.
        folder: the descriptor of the open folder to which the path is relative.
    """
    descriptor = os.open(path, os.O_RDONLY, dir_fd=folder)
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib is slow to import
        return file.read()


def limit_memory(size: int) -> None:
    """Limit this process, and each process that it starts, to ``size`` bytes of memory.

    The limit is on private writable memory, not on address space, because common runtimes reserve
    far more address space than any machine has memory. The function has no effect on systems that
    lack such a limit.
    """
    # ValueError: the system enforces a further limit, which getrlimit does not report.
    with suppress(ImportError, ValueError, OSError):
        import resource

        if size := allowed_memory(size):
            resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def allowed_memory(size: int) -> int:
    """Return ``size``, or the system's limit on a process's memory if that limit is smaller."""
    try:
        import resource
    except ImportError:
        return size
    try:
        limits = resource.getrlimit(resource.RLIMIT_DATA)
    except OSError:
        # Some containers forbid the system call.
        return size
    finite_limits = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return min([size, *finite_limits]) if size else size


def can_mark() -> bool:
    """Return whether this process can mark its children."""
    with suppress(*_LIMIT_ERRORS):
        import resource

        resource.setrlimit(_FILE_LOCKS_LIMIT, resource.getrlimit(_FILE_LOCKS_LIMIT))
        return sys.platform == "linux" and _own_limit() > 0
    return False


def mark_process() -> None:
    """Mark this process and all its future descendants."""
    with suppress(*_LIMIT_ERRORS):
        import resource

        _, own = resource.getrlimit(_FILE_LOCKS_LIMIT)
        lower = _MAX_MARK if own == resource.RLIM_INFINITY else max(0, own - 1)
        resource.setrlimit(_FILE_LOCKS_LIMIT, (lower, lower))


def is_marked(process: int) -> bool:
    """Return whether a process has a mark that this process does not have."""
    with suppress(*_LIMIT_ERRORS):
        return _limit(process) < _own_limit()
    return False


@cache
def _own_limit() -> float:
    """Return the limit of this process; cached, because other code may lower the limit later."""
    return _limit("self")


def _limit(process: int | str) -> float:
    lines = read_proc(f"/proc/{process}/limits").splitlines()
    hard = next(line for line in lines if line.startswith(_FILE_LOCKS_LINE)).split()[4]
    return float("inf") if hard == b"unlimited" else int(hard)
