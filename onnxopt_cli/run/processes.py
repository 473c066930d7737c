"""What Linux tells of other processes in /proc; elsewhere there is nothing to see, and no error."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds.

    Attributes:
        memory: resident bytes.
        threads: number of its threads.
        descriptors: number of its open file descriptors.
    """

    memory: int
    threads: int
    descriptors: int


def usage(process: int) -> Usage | None:
    """Return what a process holds; None if it has gone or cannot be seen."""
    fields = _stat(process)
    if fields is None:
        return None
    try:
        descriptors = len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208 - asked at every case
    except OSError:
        return None
    return Usage(int(fields[21]) * _PAGE, int(fields[17]), descriptors)


def resident(process: int) -> int:
    """Return the resident bytes of a process, 0 if it has gone."""
    fields = _stat(process)
    return 0 if fields is None else int(fields[21]) * _PAGE


def children(process: int) -> list[int]:
    """Return the children of a process, ended ones that nobody waited for included."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208 - asked at every case
            listed = Path(f"/proc/{process}/task/{thread}/children").read_bytes()
            found += map(int, listed.split())
    except FileNotFoundError:
        # The process or thread has gone, or this kernel does not list children.
        return found or _children_by_parent(process)
    except OSError:
        return found
    return found


def descendants(process: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    found: list[int] = []
    unseen = children(process)
    while unseen:
        child = unseen.pop()
        found.append(child)
        unseen += [grandchild for grandchild in children(child) if grandchild not in found]
    return found


def name_of(process: int) -> str:
    """Return the name of a process's program, empty if it has gone."""
    try:
        return (_PROC / str(process) / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory."""
    try:
        text = (_PROC / "vmstat").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


def _stat(process: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the state on."""
    try:
        descriptor = os.open(f"/proc/{process}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # The program's name stands in parentheses and may contain anything.
    return text.rpartition(b")")[2].split()


def _children_by_parent(process: int) -> list[int]:
    found = []
    try:
        names = [name for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - as above
    except OSError:
        return []
    for name in names:
        fields = _stat(int(name))
        if fields is not None and int(fields[1]) == process:
            found.append(int(name))
    return found
