"""Simulate other systems by removing modules and functions that they lack.

The remaining functions still behave as on this system.

The program ``other_systems.py ERRNO CALL,CALL COMMAND...`` executes a command. The named system
calls fail with the error, as they do in containers and on older kernels. A filter of the kernel
(seccomp) makes the calls fail in libraries and in all child processes as well.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

from places import REPOSITORY

# These packages must see the real platform, so they are imported before names are removed.
_BEFORE = """
import ctypes, multiprocessing, selectors, shutil, socket, subprocess, sysconfig, tempfile, uuid
sysconfig.get_config_vars()
import click, numpy, onnx, platformdirs, psutil, rich.console, yaml
import os, pathlib, signal, sys

def without(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

def no_module(*names):
    sys.modules.update(dict.fromkeys(names))
"""
_NO_PROC = """
exists = os.path.exists
os.path.exists = lambda path: not str(path).startswith("/proc") and exists(path)
"""
_NOTHING_WIDER = """
import numpy
numpy.longdouble = numpy.float64
"""
_WITHOUT = {
    "ARM": _NOTHING_WIDER,
    "ARM without quads": f"""{_NOTHING_WIDER}
import sys
sys.modules["numpy_quaddtype"] = None
""",
    # psutil must be imported first, because it imports one of these modules on Linux.
    "no modules": """
import psutil
import sys
sys.modules.update(dict.fromkeys(("resource", "fcntl")))
""",
    "macOS": f"""{_BEFORE}{_NO_PROC}{_NOTHING_WIDER}
sys.platform = "darwin"
without(os, "pidfd_open", "sched_getaffinity", "O_PATH", "O_TMPFILE", "O_DIRECT", "pipe2", "waitid")
without(signal, "pidfd_send_signal", "sigtimedwait", "sigwaitinfo")
selectors.DefaultSelector = selectors.SelectSelector
""",
    "Windows": f"""{_BEFORE}{_NO_PROC}{_NOTHING_WIDER}
sys.platform = "win32"
no_module("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "readline")
without(
    os, "fork", "forkpty", "register_at_fork", "pidfd_open", "sched_getaffinity", "readv", "writev",
    "geteuid", "getuid", "getgid", "getegid", "getsid", "setsid", "getpgid", "getpgrp", "setpgid",
    "killpg", "waitid", "wait3", "wait4", "mkfifo", "mknod", "fchmod", "chown", "fchown", "statvfs",
    "O_PATH", "O_TMPFILE", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC",
    "posix_fadvise", "pipe2", "uname", "getloadavg", "sysconf", "WIFSIGNALED",
)
os.supports_dir_fd = os.supports_fd = os.supports_follow_symlinks = frozenset()
without(
    signal, "SIGHUP", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGALRM", "SIGPIPE", "SIGCHLD", "SIGUSR1",
    "SIGBUS", "SIGQUIT", "pthread_sigmask", "pthread_kill", "sigwait", "setitimer", "ITIMER_REAL",
    "alarm", "pidfd_send_signal", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "sigtimedwait",
)
selectors.DefaultSelector = selectors.SelectSelector
# Newer Pythons call this function to find programs.
import shutil, types
shutil._winapi = types.SimpleNamespace(NeedCurrentDirectoryForExePath=lambda _: True)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
without(psutil.Process, "num_fds")
""",
}  # fmt: skip
SYSTEMS = tuple(name for name in _WITHOUT if name != "ARM without quads")


def run_elsewhere(system: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``onnxopt`` and its workers in a folder, as on a system in SYSTEMS."""
    start = folder / f"python of {system}"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(_WITHOUT[system])
    return subprocess.run(
        [sys.executable, "-m", "onnxopt_cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(start), str(REPOSITORY)])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


#: Numbers of system calls on x86-64.
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
    "kill": 62, "setpgid": 109, "getsid": 124, "getpgid": 121, "rt_sigtimedwait": 128, "wait4": 61,
    "pipe2": 293, "socketpair": 53, "ioctl": 16, "ftruncate": 77, "setitimer": 38,
    "utimensat": 280, "rename": 82, "chmod": 90, "fchmod": 91, "mkdir": 83, "unlink": 87,
    "unlinkat": 263, "rmdir": 84, "poll": 7, "epoll_wait": 232, "umask": 95, "sendmsg": 46,
    "sched_getscheduler": 145, "getpriority": 140, "pidfd_send_signal": 424, "kcmp": 312,
    "sigaltstack": 131, "getsockopt": 55, "recvfrom": 45,
}  # fmt: skip
#: True if the machine has these numbers of system calls and can filter system calls.
AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"

_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_CLONE_VM = 0x100
_FIRST_ARGUMENT = 16


def forbid(number: int, calls: list[str]) -> None:
    """Make system calls of this process and its descendants fail with an error.

    Args:
        number: the number of the error.
        calls: names in CALLS, or ``fork``, which denotes the creation of a copy of a process.
    """
    program = []

    def put(code: int, value: int, yes: int = 0, no: int = 0) -> None:
        program.append(struct.pack("HBBI", code, yes, no, value))

    put(_LOAD, 0)
    for call in calls:
        if call == "fork":
            # Calls with CLONE_VM are permitted. They create threads, or processes that immediately
            # execute another program.
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
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - the command in the arguments
