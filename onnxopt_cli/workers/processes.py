"""Other processes: what they hold, what they may hold, and how to end them.

psutil says it on every system. On Linux what is asked after every case, who descends from whom, and
who lives is read from /proc by hand: psutil opens four files for the first, looks at all processes
of the machine for the children of one, and misses those that start meanwhile; and a supervisor
would have to load it.
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

from onnxopt_cli.core.linux import can_become_subreaper, can_close_to_others

if TYPE_CHECKING:
    import psutil

#: Whether backends can have processes of their own. Windows hands no process a socket when it
#: starts, nor lets a pipe be read with a deadline.
HAS_WORKERS = sys.platform != "win32"

# How often nothing must be found before nothing is left.
_LOOKS = 2
_HELD = ("memory", "threads", "file descriptors")
_Said = TypeVar("_Said")


@cache
def visible() -> bool:
    """Tell whether processes can be seen; on Linux /proc has to be of our own PID namespace.

    In a namespace under the /proc of another one, numbers would be those of other processes.
    """
    if sys.platform != "linux":
        return True
    with suppress(OSError):
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - a string will do
    return False


def weakness() -> str:
    """Return what isolation lacks here, in words; empty if nothing."""
    if not HAS_WORKERS:
        return "weaker: on this system backends run in this process, and may crash or hang it"
    if sys.platform != "linux":
        return "weaker: this system lets processes leave their parents; daemons go unseen"
    lacking = []
    try:
        import resource

        resource.getrlimit(resource.RLIMIT_DATA)
    except ImportError:
        lacking.append("this Python cannot limit memory; what a backend holds is looked at instead")
    except OSError:
        lacking.append("the system limits no memory; what a backend holds is looked at instead")
    if not visible():
        lacking.append("/proc shows no process; leaks and daemons go unseen")
    if not can_become_subreaper():
        lacking.append("the system lets daemons leave their parents; they go unseen")
    if not can_close_to_others():
        lacking.append("the system lets backends look into this process")
    return f"weaker: {'; '.join(lacking)}" if lacking else ""


def usage(process: int) -> dict[str, int]:
    """Return the amounts of memory (bytes), threads and file descriptors that a process holds.

    Empty if it has gone or cannot be seen.
    """
    if not visible():
        return {}
    held: tuple[int, ...] = ()
    if sys.platform == "linux":
        with suppress(OSError):
            fields = _stat(process)
            memory = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            held = memory, int(fields[17]), len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208
    else:
        held = _said(process, lambda it: (it.memory_info().rss, it.num_threads(), it.num_fds()), ())
    return dict(zip(_HELD, held, strict=False))


def resident(process: int) -> int:
    """Return the resident bytes of a process, 0 if it has gone."""
    return _said(process, lambda it: it.memory_info().rss, 0) if visible() else 0


def children(process: int) -> list[int]:
    """Return the children of a process, ended ones that nobody waited for included."""
    if not visible():
        return []
    if not _lists_children():
        return _said(process, lambda it: [child.pid for child in it.children()], [])
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208 - asked at every case
            with suppress(OSError):
                found += map(int, read_proc(f"/proc/{process}/task/{thread}/children").split())
    return found


@cache
def _lists_children() -> bool:
    """Tell whether /proc lists children, which not every Linux kernel is built to do."""
    return os.path.exists("/proc/thread-self/children")  # noqa: PTH110 - pathlib takes time to load


def descendants(process: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    found: dict[int, None] = {}
    unseen = children(process)
    while unseen:
        child = unseen.pop()
        found[child] = None
        unseen += [grandchild for grandchild in children(child) if grandchild not in found]
    return [*found]


def end_descendants(
    parent: int, seconds: float, mine: Callable[[int], bool] = lambda _child: True
) -> bool:
    """Kill what descends from a process until nothing is left, whatever it does meanwhile.

    All are stopped before any is killed, so that none sees another end and replaces it. Groups are
    signalled whole: no member can fork its way out of that. What this process gets from dead
    parents on the way is found in the next round.

    Args:
        parent: the process; it is not harmed, nor is its process group.
        seconds: when to give up.
        mine: tells which of its children this is about.

    Returns:
        Whether nothing is left alive.
    """
    deadline = time.monotonic() + seconds
    pause = 0.0
    quiet = 0
    # A list of children that is read while some of them end may lack others, so one look at an
    # empty one proves nothing.
    while quiet < _LOOKS:
        found = _family(parent, mine)
        quiet = 0 if found else quiet + 1
        stopped: set[int] = set()
        while (fresh := [it for it in found if it not in stopped]) and time.monotonic() < deadline:
            _signal(fresh, signal.SIGSTOP, parent)
            stopped.update(fresh)
            found = _family(parent, mine)
        _signal(found, signal.SIGKILL, parent)
        if found and time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(0.02, pause + 0.001)
    return True


def _family(parent: int, mine: Callable[[int], bool]) -> list[int]:
    """Return the living descendants of a process, and reap the dead that are our own children."""
    found = []
    own = parent == os.getpid()
    for child in filter(mine, children(parent)):
        if own:
            with suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG)[0]:
                    continue
        found += [child, *descendants(child)]
    return [process for process in found if _is_alive(process)]


def _signal(processes: list[int], number: signal.Signals, parent: int) -> None:
    """Send a signal to processes and to their groups, save to a group that the parent is in."""
    spared = {_group(parent), os.getpgrp()}
    for process in processes:
        group = _group(process)
        with suppress(OSError):
            os.kill(process, number)
        if group not in spared:
            spared.add(group)
            with suppress(OSError):
                os.killpg(group, number)


def _group(process: int) -> int:
    """Return a process's group; our own, which nothing is sent to, if it has gone."""
    with suppress(OSError):
        return os.getpgid(process)
    return os.getpgrp()


def _is_alive(process: int) -> bool:
    if sys.platform != "linux":
        return _said(process, lambda it: it.status() != "zombie", otherwise=False)
    with suppress(OSError):
        fields = _stat(process)
        # A process whose first thread has ended looks dead, though others may run.
        return fields[0] not in {b"Z", b"X"} or int(fields[17]) > 1
    return False


def _stat(process: int) -> list[bytes]:
    """Return what Linux says of a process from its state on, the third field of its ``stat``."""
    # The program's name stands in parentheses and may contain anything.
    return read_proc(f"/proc/{process}/stat").rpartition(b")")[2].split()


def name_of(process: int) -> str:
    """Return the name of a process's program, empty if it has gone."""
    return _said(process, lambda it: it.name(), "")


def _said(process: int, ask: Callable[[psutil.Process], _Said], otherwise: _Said) -> _Said:
    """Return what psutil says of a process; something else if it has gone or cannot be seen."""
    import psutil

    # AttributeError: what psutil lacks on this system.
    with suppress(psutil.Error, AttributeError):
        return ask(psutil.Process(process))
    return otherwise


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory."""
    with suppress(OSError):
        lines = read_proc("/proc/vmstat").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(b"oom_kill "))
    return 0


def read_proc(path: str) -> bytes:
    """Return a file of /proc."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib costs a worker's start time
        return file.read()


def limit_memory(size: int) -> None:
    """Let this process, and those it starts, get no more memory than ``size`` bytes each.

    The limit is on private writable memory, not on address space, which honest runtimes reserve in
    amounts that no machine has. Where the system has no such limit nothing happens.
    """
    # ValueError: the system has another limit, which it does not say.
    with suppress(ImportError, ValueError, OSError):
        import resource

        if size := allowed_memory(size):
            resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def allowed_memory(size: int) -> int:
    """Return how much of ``size`` bytes a process may hold by the system's own limit, if any."""
    try:
        import resource
    except ImportError:
        return size
    try:
        limits = resource.getrlimit(resource.RLIMIT_DATA)
    except OSError:
        # The system has the call and allows nobody to make it, as in some containers.
        return size
    allowed = [it for it in limits if it != resource.RLIM_INFINITY]
    return min([size, *allowed]) if size else size
