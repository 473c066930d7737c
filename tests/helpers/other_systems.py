"""Python as on another system, as far as this one can take away what that one lacks.

What is simulated is which modules, functions and names are there, not how the other system behaves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from places import REPOSITORY

# What a standard library and other packages decide by the platform, they decide before it changes.
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
    # psutil needs one of them itself, on Linux alone.
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
# Newer Pythons ask it where programs are.
import shutil, types
shutil._winapi = types.SimpleNamespace(NeedCurrentDirectoryForExePath=lambda _: True)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
without(psutil.Process, "num_fds")
""",
}  # fmt: skip
SYSTEMS = tuple(name for name in _WITHOUT if name != "ARM without quads")


def run_elsewhere(system: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder as on another system, one of SYSTEMS; so do its workers."""
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
