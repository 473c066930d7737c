"""Backends that try to leave a process or a folder behind in the bad case."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import hostile
from hostile import SLEEP, Misbehaves, Well, misbehaving

#: An argument of the started processes. A test finds the processes by this argument, even if their
#: environment is empty.
MARK = next((name for name in os.environ if name.startswith("ONNXOPT_TEST_")), "")
BEGAN = time.monotonic()


def begin_daemon():
    """Start a daemon: return True in the daemon, and False in this process.

    The daemon has a session of its own, and its parent has ended.
    """
    if child := os.fork():
        os.waitpid(child, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 256)
    return True


def rename_itself():
    """Become a program with another name and an empty environment."""
    os.execve(SLEEP, [MARK, "300"], {})  # noqa: S606 - as a backend would


def stop_itself():
    os.kill(os.getpid(), signal.SIGSTOP)
    rename_itself()


def beat():
    """Update a file to show that the process is alive; end the process after 30 seconds."""
    Path("pulse").write_text(str(time.monotonic()))
    if time.monotonic() > BEGAN + 30:
        os._exit(0)


def hop():
    """Fork and exit repeatedly; each child has a new session and process group."""
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
        beat()


def multiply():
    """Start children continuously."""
    while True:
        if not os.fork():
            time.sleep(0.5)
            os._exit(0)
        time.sleep(0.002)
        beat()


def revive():
    """Run as two processes. When one of them ends, the other one starts it again."""
    partner = os.fork() or os.getppid()
    while True:
        beat()
        try:
            os.kill(partner, 0)
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
        except ProcessLookupError:
            partner = os.fork() or os.getppid()


def lose_main_thread():
    """End the main thread while another thread runs, so that the process appears to be dead."""

    def go_on():
        while True:
            beat()
            time.sleep(0.01)

    threading.Thread(target=go_on).start()
    ctypes.CDLL(None).pthread_exit(None)


def kill_supervisor():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


# This program replaces the program of a worker's process that already has children.
KILLS_SUPERVISOR = """
import os, signal, time
if not os.fork():
    os.setsid()
    time.sleep(0.2)
    if os.fork():
        os._exit(0)
    time.sleep(300)
time.sleep(0.1)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(60)
"""


def leave(life, end=kill_supervisor):
    """Return a backend that starts a daemon and then ends.

    Args:
        life: the function that the daemon runs.
        end: the function that ends the backend.
    """

    def misbehave():
        if begin_daemon():
            life()
            os._exit(0)
        time.sleep(0.1)
        end()

    return misbehaving(misbehave)


def breed_to_the_end():
    """Start daemons continuously, and kill the supervisor."""

    def breed():
        while True:
            if begin_daemon():
                rename_itself()

    threading.Thread(target=breed, daemon=True).start()
    time.sleep(0.1)
    kill_supervisor()


def stop_supervisor():
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(0)


sleeps = leave(rename_itself)
is_stopped = leave(stop_itself)
hops = leave(hop)
multiplies = leave(multiply)
revives = leave(revive)
loses_main_thread = leave(lose_main_thread)
breeds_to_the_end = misbehaving(breed_to_the_end)
stops_supervisor = leave(revive, stop_supervisor)
dies_with_supervisor = leave(
    rename_itself, lambda: (os.kill(os.getppid(), signal.SIGKILL), os._exit(0))
)
runs_a_program = leave(
    rename_itself,
    lambda: os.execv(sys.executable, [sys.executable, "-c", KILLS_SUPERVISOR]),  # noqa: S606 - as above
)
is_well_kept = leave(hop, lambda: os._exit(0))


class KillsSupervisorWhileItStarts(Well):
    def __init__(self):
        if begin_daemon():
            rename_itself()
        kill_supervisor()


class KillsSupervisorAtTeardown(Misbehaves):
    """A backend that leaves a daemon behind at shutdown."""

    def misbehave(self):
        atexit.register(self.leave)

    def leave(self):
        if begin_daemon():
            rename_itself()
        kill_supervisor()


def temporary():
    return Path(os.environ["TMPDIR"])


def dig():
    """Leave folders behind that are nested too deeply for a path."""
    os.chdir(temporary())
    for _ in range(3000):
        os.mkdir("d")  # noqa: PTH102 - its path is too long
        os.chdir("d")
    Path("file").touch()
    os._exit(0)


def lock_up():
    """Leave folders behind that even their owner may not read."""
    inner = temporary() / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for folder in (inner, inner.parent, temporary()):
        folder.chmod(0)
    os._exit(0)


def link():
    """Leave links to other files and folders in the worker's folder."""
    precious = Path("precious").absolute()
    own_folder = temporary()
    (own_folder / "file").symlink_to(precious / "file")
    (own_folder / "folder").symlink_to(precious)
    (own_folder / "inner").mkdir()
    (own_folder / "inner" / "folder").symlink_to(precious)
    os._exit(0)


def replace():
    """Replace the worker's folder with a link."""
    temporary().rmdir()
    temporary().symlink_to(Path("precious").absolute())
    os._exit(0)


digs = misbehaving(dig)
locks_up = misbehaving(lock_up)
links = misbehaving(link)
replaces = misbehaving(replace)


class InTurn(hostile.InTurn):
    backends = globals()
