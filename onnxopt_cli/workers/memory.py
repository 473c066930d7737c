"""What processes hold in memory together, each page counted once.

The resident size of a process counts a page that ten forks share ten times, and does not count at
all what a file in memory holds that nobody has mapped: a memfd, or an unlinked file of /dev/shm. So
such files are looked for among the open ones of each process, and where the sum of resident sizes
and files is too much, the kernel is asked for each process's part of what it shares (PSS), which
takes it far longer. What is mapped of such a file is counted with the file.

No cgroup is made: few users may make one, and a container's own counts the runner, too.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TypeAlias

from onnxopt_cli.workers.processes import read_proc, resident

#: A file, by its device and its number there.
FileKey: TypeAlias = tuple[int, int]

_BLOCK_BYTES = 512
_MEMFD, _SHARED = "/memfd:", "/dev/shm/"  # noqa: S108 - looked for, not written to
_DELETED = " (deleted)"
_IN_MEMORY = {b"tmpfs", b"ramfs", b"hugetlbfs"}
# Places in a line of /proc/sysvipc/shm: who made a segment, who has attached it, what it holds.
_MAKER, _ATTACHED, _RESIDENT = 4, 6, 14


def held_bytes(
    processes: Collection[int], most: int = 0, spared: Mapping[FileKey, int] | None = None
) -> int:
    """Return the bytes that processes hold, or any number up to ``most`` if they hold no more.

    Args:
        processes: their numbers; of those that have gone nothing is counted.
        most: how many bytes need not be counted exactly.
        spared: files in memory of which so many bytes are not theirs.
    """
    rough = sum(map(resident, processes))
    if sys.platform != "linux":
        return rough
    files: dict[FileKey, int] = {}
    for process in processes:
        files |= memory_files(process)
    for key, size in (spared or {}).items():
        if key in files:
            files[key] = max(0, files[key] - size)
    unmapped = sum(files.values()) + _unattached(processes)
    if (rough := rough + unmapped) <= most:
        return rough
    proportional = sum(map(_proportional, processes)) + unmapped
    if proportional <= most or not files:
        return proportional
    return sum(_mapped_beside(process, files) for process in processes) + unmapped


def memory_files(process: int) -> dict[FileKey, int]:
    """Return the bytes of each open file of a process that is in memory and has no lasting name.

    A file of /dev/shm counts whether it has a name there or not.
    """
    found = {}
    folder = f"/proc/{process}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - asked at every case
            with suppress(OSError):
                # What the link says needs no answer of the file system, which may be a backend's.
                place = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - as above
                if place.startswith((_MEMFD, _SHARED)) or place.endswith(_DELETED):
                    status = os.stat(f"{folder}/{name}")  # noqa: PTH116 - as above
                    kept = place.startswith((_MEMFD, _SHARED)) or status.st_dev in _devices()
                    if kept and stat.S_ISREG(status.st_mode):
                        found[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return found


@cache
def _devices() -> frozenset[int]:
    """Return the devices of file systems in memory."""
    found = set()
    with suppress(OSError):
        for line in read_proc("/proc/self/mountinfo").splitlines():
            before, _, after = line.partition(b" - ")
            if after.split(b" ", 1)[0] in _IN_MEMORY:
                found.add(_device(before.split()[2]))
    return frozenset(found)


def _device(text: bytes, base: int = 10) -> int:
    major, _, minor = text.partition(b":")
    return os.makedev(int(major, base), int(minor, base))


def _unattached(processes: Collection[int]) -> int:
    """Return the bytes of System V segments that processes have made and nobody has attached."""
    held = 0
    with suppress(OSError, ValueError, IndexError):
        for line in read_proc("/proc/sysvipc/shm").splitlines()[1:]:
            fields = [*map(int, line.split())]
            if fields[_MAKER] in processes and not fields[_ATTACHED]:
                held += fields[_RESIDENT]
    return held


def _proportional(process: int) -> int:
    """Return the resident bytes of a process, of shared pages its part."""
    with suppress(OSError):
        for line in read_proc(f"/proc/{process}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return _kibibytes(line)
    return resident(process)


def _mapped_beside(process: int, files: Collection[FileKey]) -> int:
    """Return the same without what is mapped of some files; copies of their pages count."""
    try:
        return sum(_parts(process, files))
    except OSError:
        return _proportional(process)


def _parts(process: int, files: Collection[FileKey]) -> Iterator[int]:
    counted = b"Pss:"
    for line in read_proc(f"/proc/{process}/smaps").splitlines():
        if line.startswith(counted):
            yield _kibibytes(line)
        elif not line.split(b" ", 1)[0].endswith(b":"):
            _, _, _, device, number = line.split()[:5]
            counted = b"Anonymous:" if (_device(device, 16), int(number)) in files else b"Pss:"


def _kibibytes(line: bytes) -> int:
    return int(line.split()[1]) << 10
