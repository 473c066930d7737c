"""A command under a filter of system calls, as containers and older kernels have them.

Run as a program: ``forbidding.py ERRNO CALL,CALL COMMAND...``. The filter is the kernel's own
(seccomp), so that libraries and all processes that the command starts meet it, too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

#: System calls by number on x86-64.
CALLS = {
    "vfork_or_fork": 56,
    "getrlimit": 97, "setrlimit": 160, "prlimit64": 302, "sched_getaffinity": 204, "flock": 73,
    "prctl": 157, "unshare": 272, "pidfd_open": 434, "memfd_create": 319, "close_range": 436,
    "linkat": 265, "fsync": 74, "sched_setaffinity": 203, "copy_file_range": 326, "statx": 332,
    "sendfile": 40, "preadv": 295, "pwritev": 296, "epoll_create1": 291, "eventfd2": 290,
    "getrandom": 318, "ptrace": 101, "userfaultfd": 323, "clone3": 435, "rseq": 334,
    "membarrier": 324, "faccessat2": 439, "openat2": 437, "setsid": 112, "waitid": 247,
    "renameat2": 316, "mlock": 149, "madvise": 28, "fadvise64": 221, "fallocate": 285,
    "inotify_init1": 294, "timerfd_create": 283, "signalfd4": 289, "sysinfo": 99, "getcpu": 309,
    "sched_getscheduler": 145, "getpriority": 140, "pidfd_send_signal": 424, "kcmp": 312,
}  # fmt: skip
#: Whether this machine can filter them by these numbers.
AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"

_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_CLONE_VM = 0x100
_FIRST_ARGUMENT = 16


def forbid(number: int, calls: list[str]) -> None:
    """Have system calls of this process and its descendants fail with an error.

    ``fork`` stands for processes that are copies of their parent, alone.
    """
    program = []

    def put(code: int, value: int, yes: int = 0, no: int = 0) -> None:
        program.append(struct.pack("HBBI", code, yes, no, value))

    put(_LOAD, 0)
    for call in calls:
        if call == "fork":
            # What shares memory with its parent is a thread, or about to execute something.
            put(_EQUAL, CALLS["vfork_or_fork"], 0, 4)
            put(_LOAD, _FIRST_ARGUMENT)
            put(_SET, _CLONE_VM, 1, 0)
            put(_RETURN, _ERRNO | number)
            put(_RETURN, _ALLOW)
        else:
            put(_EQUAL, CALLS[call], 0, 1)
            put(_RETURN, _ERRNO | number)
    put(_RETURN, _ALLOW)
    code = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_SECCOMP, _FILTER, ctypes.c_ulong(ctypes.addressof(head)), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


if __name__ == "__main__":
    forbid(getattr(errno, sys.argv[1]), sys.argv[2].split(","))
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - the command that is asked for
