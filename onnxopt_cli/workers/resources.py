"""Measures the memory that the processes of a worker hold, and detects resources that a case leaks.

**Memory.** The sum of the resident sizes (RSS) of processes is only an estimate. If ten forks share
a page, the sum counts the page ten times. The sum omits files in memory that no process has mapped,
such as a memfd or an unlinked file of /dev/shm; these files are found among the open files of each
process. If the resident sizes and the files together exceed the limit, the kernel is asked for the
proportional set size (PSS) of each process, which takes much longer. A file in memory is then
counted only once, even if its pages are mapped. Mapped pages of other files are not counted,
because the kernel can drop them.

No cgroup is created, because few users have permission to create cgroups. The cgroup of a container
cannot be used either, because it includes the runner.

**Leaks.** Growth alone does not prove a leak, because imports and caches also need memory. If the
resources of a worker have grown, the worker therefore runs the case several times again. A resource
is reported if it grows in every run, and if the worker still holds it a moment later. A process
that has lost its parent is reported immediately, because no process will wait for it.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import cache
from typing import TypeAlias

from onnxopt_cli.core.process_control import share_descriptors
from onnxopt_cli.core.text import printable
from onnxopt_cli.workers.processes import (
    children,
    descendants,
    memory_folder,
    name_of,
    read_proc,
    resident,
    thread_folders,
    usage,
)

#: Identifies a file by its device and inode number.
FileKey: TypeAlias = tuple[int, int]

_BLOCK_BYTES = 512
_MEMFD_PREFIX, _SHARED_PREFIX = "/memfd:", "/dev/shm/"  # noqa: S108 - compared, not written to
_DELETED_SUFFIX = " (deleted)"
_MEMORY_FILE_SYSTEMS = {b"tmpfs", b"ramfs", b"hugetlbfs", b"devtmpfs"}
# Columns of /proc/sysvipc/shm: process id of the creator, attached processes, resident bytes.
_CREATOR_COLUMN, _ATTACHED_COLUMN, _RESIDENT_COLUMN = 4, 6, 14

# If a run of a case increases a resource of the worker by more than this amount, the case is
# checked for leaks. Memory is in bytes.
_ALLOWED_GROWTH = {
    "memory": 32 << 20,
    "threads": 0,
    "file descriptors": 0,
    "child processes": 0,
}
# The number of times that a case is run again; a resource that grows in each run has leaked.
_CONFIRMATIONS = 3
# Seconds that an orphaned process has to end by itself.
_ORPHAN_GRACE_SECONDS = 0.05
#: Seconds that threads and child processes of a case have to end by themselves.
SETTLING_SECONDS = 0.5


def held_bytes(
    processes: Collection[int],
    exact_above: int = 0,
    foreign_bytes: Mapping[FileKey, int] | None = None,
) -> int:
    """Return the bytes of memory that processes hold.

    Args:
        processes: their process ids; processes that have ended count as 0.
        exact_above: a limit in bytes; a quick estimate is returned if the estimate does not exceed
            the limit.
        foreign_bytes: for some files in memory, the number of bytes that the processes do not own.
    """
    rough = sum(map(resident, processes))
    if sys.platform != "linux":
        return rough
    files: dict[FileKey, int] = {}
    for process in processes:
        files |= memory_files(process)
    for key, size in (foreign_bytes or {}).items():
        if key in files:
            files[key] = max(0, files[key] - size)
    unmapped = sum(files.values()) + _unattached_bytes(processes)
    if (rough := rough + unmapped) <= exact_above:
        return rough
    proportional = sum(map(_proportional_bytes, processes)) + unmapped
    if proportional <= exact_above or not files:
        return proportional
    return sum(_bytes_outside_files(process, files) for process in processes) + unmapped


def memory_files(process: int) -> dict[FileKey, int]:
    """Return the sizes of a process's open files that are in memory.

    A file with a name counts only if it is open for writing, because another program may have
    written a file that the process only reads.
    """
    sizes = {}
    threads = thread_folders(process)
    mounts = _visible_mounts(threads)
    for thread in _with_own_descriptors(threads):
        with (
            suppress(OSError),
            _open_folder(f"{thread}/fd") as files,
            _open_folder(f"{thread}/fdinfo") as information,
        ):
            for descriptor in os.listdir(files):  # noqa: PTH208 - runs after every case
                with suppress(OSError):
                    if _is_in_memory(descriptor, files, information, mounts):
                        status = os.stat(descriptor, dir_fd=files)
                        if stat.S_ISREG(status.st_mode):
                            sizes[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return sizes


@contextmanager
def _open_folder(path: str) -> Iterator[int]:
    """Open a folder, so that its files can be opened without a search for the folder."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def _with_own_descriptors(threads: Sequence[str]) -> list[str]:
    """For each table of descriptors, return the folder in /proc of one thread that uses the table.

    Usually, all threads of a process share one table.
    """
    folders: dict[int, str] = {}
    for folder in threads:
        thread = int(os.path.basename(folder))  # noqa: PTH119 - runs after every case
        if not any(share_descriptors(thread, known_thread) for known_thread in folders):
            folders[thread] = folder
    return [*folders.values()]


def _is_in_memory(
    descriptor: str, files: int, information: int, mounts: Mapping[bytes, bytes]
) -> bool:
    """Return whether a descriptor denotes a file that :func:`memory_files` counts, such as a memfd.

    The file itself is not accessed, because the backend may control its file system.

    Args:
        descriptor: the number of the descriptor.
        files: an open folder ``fd`` of /proc, which contains the descriptor.
        information: the open folder ``fdinfo`` beside ``files``.
        mounts: the result of :func:`_visible_mounts`.
    """
    target = os.readlink(descriptor, dir_fd=files)
    if not target.startswith("/") or target == os.devnull:
        return False
    # Drivers add lines of their own, and the value may be missing, as in the line "iff:" of
    # /dev/net/tun.
    lines = read_proc(descriptor, information).splitlines()
    fields = {name: value for name, _, value in (line.partition(b":\t") for line in lines)}
    mount = fields.get(b"mnt_id")
    if mount is None:
        # gVisor does not state the mount.
        return target.startswith((_MEMFD_PREFIX, _SHARED_PREFIX))
    if mount not in mounts:
        return target.startswith(_MEMFD_PREFIX)
    is_read_only = int(fields[b"flags"], 8) & os.O_ACCMODE == os.O_RDONLY
    counts = target.endswith(_DELETED_SUFFIX) or not is_read_only
    return counts and mounts[mount] in _MEMORY_FILE_SYSTEMS


def _visible_mounts(threads: Sequence[str]) -> Mapping[bytes, bytes]:
    """Return the type of the file system of each mount, by the mount's id.

    The result contains the mounts that this process or at least one of the threads sees. Threads
    that share descriptors can have mount namespaces of their own.

    Args:
        threads: the threads' folders in /proc.
    """
    mounts: Mapping[bytes, bytes] = {}
    namespaces = set()
    with suppress(OSError):
        mounts = _own_mounts().current()
        namespaces.add(_mount_namespace("/proc/self"))
    for folder in threads:
        with suppress(OSError):
            namespace = _mount_namespace(folder)
            if namespace not in namespaces:
                namespaces.add(namespace)
                mounts = {**mounts, **_mounts(folder)}
    return mounts


class _OwnMounts:
    """The mounts that this process sees. They are read again only if the kernel reports a change.

    Raises:
        OSError: if /proc does not list the mounts.
    """

    def __init__(self) -> None:
        # After each change of the mounts, the kernel reports an urgent event of this file once.
        file = os.open("/proc/self/mountinfo", os.O_RDONLY)
        self._changes = select.poll()
        self._changes.register(file, select.POLLPRI)
        self._mounts = _mounts("/proc/self")

    def current(self) -> Mapping[bytes, bytes]:
        """Return the type of the file system of each mount, by the mount's id."""
        if self._changes.poll(0):
            self._mounts = _mounts("/proc/self")
        return self._mounts


_own_mounts = cache(_OwnMounts)


def _mount_namespace(folder: str) -> str:
    return os.readlink(f"{folder}/ns/mnt")  # noqa: PTH115 - runs after every case


def _mounts(thread: str) -> Mapping[bytes, bytes]:
    """Return the type of the file system of each mount that a thread sees, by the mount's id.

    Args:
        thread: the thread's folder in /proc.

    Raises:
        OSError: if the thread has ended.
    """
    mounts = {}
    for line in read_proc(f"{thread}/mountinfo").splitlines():
        mount, _, file_system = line.partition(b" - ")
        mounts[mount.split(b" ", 1)[0]] = file_system.split(b" ", 1)[0]
    return mounts


def _device(text: bytes) -> int:
    major, _, minor = text.partition(b":")
    return os.makedev(int(major, 16), int(minor, 16))


def _unattached_bytes(processes: Collection[int]) -> int:
    """Return the bytes of the processes' System V segments that no process has attached."""
    held = 0
    with suppress(OSError, ValueError, IndexError):
        for line in read_proc("/proc/sysvipc/shm").splitlines()[1:]:
            fields = [*map(int, line.split())]
            if fields[_CREATOR_COLUMN] in processes and not fields[_ATTACHED_COLUMN]:
                held += fields[_RESIDENT_COLUMN]
    return held


def _proportional_bytes(process: int) -> int:
    """Return the proportional set size of a process, without pages of files on disks."""
    sizes = _rollup(process)
    if b"Pss:" not in sizes:
        return resident(process)
    return sizes[b"Pss:"] - sizes.get(b"Pss_File:", 0)


def _rollup(process: int) -> dict[bytes, int]:
    """Return the proportional sizes of a process by the kernel's names, such as ``Pss_File:``."""
    with suppress(OSError):
        lines = read_proc(f"{memory_folder(process)}/smaps_rollup").splitlines()
        return {line.split()[0]: _kibibytes(line) for line in lines if line.startswith(b"Pss")}
    return {}


def _bytes_outside_files(process: int, files: Collection[FileKey]) -> int:
    """Return the proportional set size of a process without mapped pages of files.

    Files in memory and files on disks are excluded. Private copies of their pages are included.
    """
    try:
        on_disks = _rollup(process).get(b"Pss_File:", 0)
        return sum(_mapping_bytes(process, files)) - on_disks
    except OSError:
        return _proportional_bytes(process)


def _mapping_bytes(process: int, files: Collection[FileKey]) -> Iterator[int]:
    counted_field = b"Pss:"
    for line in read_proc(f"{memory_folder(process)}/smaps").splitlines():
        if line.startswith(counted_field):
            yield _kibibytes(line)
        elif not line.split(b" ", 1)[0].endswith(b":"):
            _, _, _, device, inode = line.split()[:5]
            is_counted_file = (_device(device), int(inode)) in files
            counted_field = b"Anonymous:" if is_counted_file else b"Pss:"


def _kibibytes(line: bytes) -> int:
    return int(line.split()[1]) << 10


class Step(Enum):
    """The action that a leak check requests before it continues."""

    #: Run the case again, to confirm a leak.
    AGAIN = auto()
    #: Wait while threads and child processes end.
    WAIT = auto()


class LeakCheck:
    """After each case, compares the resources of a worker with their previous maxima.

    Args:
        supervisor: process id of the supervisor, whose first child is the worker.
        foreign_files: files in memory that do not belong to the worker.
    """

    def __init__(self, supervisor: int, foreign_files: Collection[FileKey] = ()) -> None:
        self._supervisor, self._foreign_files = supervisor, frozenset(foreign_files)
        # Supervisors exist only on Linux. The first child of a supervisor is the worker, and all
        # its other children are orphans.
        adopted = children(supervisor) if sys.platform == "linux" else []
        self._worker = adopted[0] if adopted else supervisor
        self._known_orphans = set(adopted[1:])
        self._largest = self._amounts()

    def steps(self) -> Iterator[Step | str]:
        """Check the worker after its response, and again after each requested action.

        Yields:
            The next step; at the end, a description of the leak, which is empty without a leak.
        """
        before = self._largest
        suspects: dict[str, int] = {}
        for step in (*[Step.AGAIN] * _CONFIRMATIONS, Step.WAIT):
            if orphans := self._new_orphans():
                yield f"leaves processes behind: {', '.join(orphans)}"
                return
            growth = self._growth()
            suspects = {
                name: amount for name, amount in (suspects or growth).items() if name in growth
            }
            if not suspects:
                yield ""
                return
            yield step
        held = self._amounts()
        leaks = [
            f"{amount >> 20} MiB of memory" if name == "memory" else f"{amount} {name}"
            for name, amount in suspects.items()
            if held.get(name, 0) - before.get(name, 0)
            > _CONFIRMATIONS * max(1, _ALLOWED_GROWTH[name])
        ]
        yield f"leaves {' and '.join(leaks)} behind each time that it runs" if leaks else ""

    def _growth(self) -> dict[str, int]:
        """Return the growth of each resource over its previous maximum, if it exceeds the limit."""
        largest, held = self._largest, self._amounts()
        # The maxima are updated after each case, so that slow growth over many cases is not
        # attributed to a single case.
        self._largest = {name: max(amount, largest.get(name, 0)) for name, amount in held.items()}
        growth = {name: amount - largest.get(name, 0) for name, amount in held.items()}
        return {name: amount for name, amount in growth.items() if amount > _ALLOWED_GROWTH[name]}

    def _amounts(self) -> dict[str, int]:
        held = usage(self._worker)
        if not held:
            return held
        child_processes = descendants(self._worker)
        files: dict[FileKey, int] = {}
        for process in (self._worker, *child_processes):
            files |= memory_files(process)
        # The usage of the worker includes neither its child processes nor files in memory that it
        # has not mapped.
        held["memory"] += sum(map(resident, child_processes))
        held["memory"] += sum(size for key, size in files.items() if key not in self._foreign_files)
        return {**held, "child processes": len(child_processes)}

    def _new_orphans(self) -> list[str]:
        """Return the names of processes that have lost their parent since the last check."""
        orphans = self._orphans()
        if orphans:
            time.sleep(_ORPHAN_GRACE_SECONDS)
            orphans &= self._orphans()
        self._known_orphans |= orphans
        return sorted(printable(name_of(process)) or str(process) for process in orphans)

    def _orphans(self) -> set[int]:
        if self._worker == self._supervisor:
            return set()
        return set(children(self._supervisor)) - self._known_orphans - {self._worker}
