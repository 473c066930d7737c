"""A mark on every process behind a supervisor, by which the runner knows them when they come to it.

A command may have children that it did not start: a shell that executes it as its last act leaves
its own to it, and the first process of a container gets every orphan. So it must not take each
orphan for one of a worker. The mark is a hard limit that is lower than the runner's own: children
inherit it, no session or environment of theirs changes it, and only root may raise it. The limit is
that on file locks, which Linux has not enforced since 2.4.

Linux only; elsewhere no orphan comes to the runner.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache

from onnxopt_cli.workers.processes import read_proc

_FILE_LOCKS = 10
_LINE = b"Max file locks"
_MAX_MARK = 2**63 - 1
_FAILURES = (ImportError, OSError, ValueError, LookupError, StopIteration)


def can_mark() -> bool:
    """Tell whether what this process starts can be marked, by asking for what is so already."""
    with suppress(*_FAILURES):
        import resource

        resource.setrlimit(_FILE_LOCKS, resource.getrlimit(_FILE_LOCKS))
        return sys.platform == "linux" and _own_limit() > 0
    return False


def mark_process() -> None:
    """Mark this process and all that will descend from it."""
    with suppress(*_FAILURES):
        import resource

        _, own = resource.getrlimit(_FILE_LOCKS)
        lower = _MAX_MARK if own == resource.RLIM_INFINITY else max(0, own - 1)
        resource.setrlimit(_FILE_LOCKS, (lower, lower))


def is_marked(process: int) -> bool:
    """Tell whether a process has a mark that this one has not."""
    with suppress(*_FAILURES):
        return _limit(process) < _own_limit()
    return False


@cache
def _own_limit() -> float:
    """Return the limit of this process before it has started anything: others may lower it."""
    return _limit("self")


def _limit(process: int | str) -> float:
    lines = read_proc(f"/proc/{process}/limits").splitlines()
    hard = next(line for line in lines if line.startswith(_LINE)).split()[4]
    return float("inf") if hard == b"unlimited" else int(hard)
