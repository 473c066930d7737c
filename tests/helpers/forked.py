"""The command, without the processor time that it takes to import the libraries.

:func:`run_command` does what ``subprocess.run([sys.executable, "-m", "onnxopt_cli", ...])`` would.
On Linux a process that has imported NumPy, onnx and others, and nothing of ours that depends on
the operators there are, forks for each command. That is the real one, in a process and a session of
its own, with its arguments, current folder, environment, standard streams and exit code;
``__main__`` runs from its first line, and workers are started as ever.

What is not the same: those modules are there already; one hash seed, and one thread for BLAS, serve
all commands; /proc shows the command line and environment of the process that forked. So what is
about how the command starts must not come here. What Python or a library reads as it starts (a
variable of :data:`_READ_EARLY`, another PYTHONPATH) is noticed, and an interpreter started.

:func:`start_command` is the same for one that is not waited for, and for Dask's own programs.

:func:`fork_or_start` does likewise for the workers that a command starts, and for those in which a
plugin is checked: the process that asks forks, and the child forgets all modules that are ours.
"""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import runpy
import select
import selectors
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
_READ_EARLY = (
    *("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "TZ", "OMP_", "OPENBLAS_", "MKL_"),
    *("NUMPY_", "NPY_", "ONNX_", "PROTOCOL_BUFFERS_"),
)
_LONGEST_MESSAGE = 1 << 18
_FIRST = dict(os.environ)
# None of them starts a thread. What few commands use is left to them.
_LIBRARIES = (
    *("click", "difflib", "hashlib", "numpy", "onnx", "platformdirs", "psutil", "yaml"),
    *("rich.console", "rich.panel", "rich.progress", "rich.syntax", "rich.table"),
)


def run_command(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: bool = True,
    timeout: float = 600,
) -> subprocess.CompletedProcess:
    """Run ``onnxopt`` with nothing to read; return its exit code and what it printed.

    Raises:
        subprocess.TimeoutExpired: after so many seconds; it has been killed.
    """
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_command(*words, cwd=cwd, env=env, text=text, **streams) as process:
        try:
            printed = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, *printed)


def start_command(
    *words: str | Path,
    module: str = "onnxopt_cli",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    customize: Path | None = None,
    **streams: Any,
) -> subprocess.Popen:
    """Start ``onnxopt``, or another module, with nothing to read.

    Args:
        customize: the folder of a ``sitecustomize.py``, for it and all that it starts.
    """
    environment = dict(os.environ if env is None else env)
    kind = _Forked if _starts_as_others(environment) else subprocess.Popen
    if customize is not None:
        environment["PYTHONPATH"] = f"{customize}{os.pathsep}{REPOSITORY}"
    return kind(
        [sys.executable, "-m", module, *map(os.fspath, words)], cwd=cwd or Path.cwd(),
        env=environment, stdin=subprocess.DEVNULL, **streams,
    )  # fmt: skip


class _Forked(subprocess.Popen):
    """A process that the one process forks, where ``Popen`` starts one."""

    def _execute_child(self, arguments: list[str], *more: Any) -> None:
        folder, environment = more[4:6]
        pipes = more[9:15]
        streams = [its if its >= 0 else at for at, its in enumerate((pipes[0], *pipes[3::2]))]
        self._answers, theirs = socket.socketpair()
        workers = subprocess._fork_exec is fork_or_start
        message = json.dumps([os.fspath(folder), arguments[2:], environment, workers]).encode()
        with theirs:
            socket.send_fds(_forker(), [message], [*streams, theirs.fileno()])
        self._close_pipe_fds(*pipes)
        self.pid = int(_line(self._answers))
        self._child_created = True

    def _internal_poll(self, **_: Any) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(_line(self._answers))
            self._answers.close()
        return self.returncode


def _starts_as_others(environment: Mapping[str, str]) -> bool:
    """Tell whether a command imports what the one process has imported, and in the same way."""

    def early(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(_READ_EARLY)}

    first = _FIRST.get("PYTHONPATH")
    path = environment.get("PYTHONPATH", first)
    return (
        hasattr(os, "pidfd_open")
        and path in {str(REPOSITORY), first}
        and early({**environment, "PYTHONPATH": ""}) == early({**_FIRST, "PYTHONPATH": ""})
    )


def _line(answers: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += answers.recv(1) or b"the process that forks has ended\n"
    return line


@cache
def _forker() -> socket.socket:
    """Start the process that forks; return where it takes commands until this process ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
        cwd=REPOSITORY, env={**_FIRST, "OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
        # Pipes, as those of a command are: Python looks at its streams when it starts.
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    theirs.close()

    def end() -> None:
        ours.close()
        process.communicate()

    atexit.register(end)
    return ours


def _import_libraries() -> None:
    for name in _LIBRARIES:
        import_module(name)
    for name in ("core", "operators"):
        package = import_module(f"onnxopt_cli.{name}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            # The registry runs the operator files that a command names.
            if module.name != "onnxopt_cli.operators.registry" and not module.ispkg:
                import_module(module.name)
    assert "onnxopt_cli.operators.registry" not in sys.modules
    gc.freeze()


def _serve(control: socket.socket) -> str:
    """Fork for each command that comes; return its module in the child, "" when no more come."""
    running: dict[int, tuple[int, socket.socket]] = {}
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd in running:
                selector.unregister(key.fd)
                _tell_how_it_ended(key.fd, *running.pop(key.fd))
                continue
            message, given, _, _ = socket.recv_fds(control, _LONGEST_MESSAGE, 4)
            if not message:
                return ""
            command = json.loads(message)
            if "--cluster" in command[1] or command[1][0].startswith("distributed."):
                # Half of what it takes to start a worker, and few tests need it.
                import_module("distributed")
                gc.freeze()
            number = os.fork()
            if not number:
                selector.close()
                control.close()
                for ended, (_, answers) in running.items():
                    os.close(ended)
                    answers.close()
                _become(command, given)
                return command[1][0]
            for descriptor in given[:3]:
                os.close(descriptor)
            answers = socket.socket(fileno=given[3])
            ended = os.pidfd_open(number)
            running[ended] = number, answers
            selector.register(ended, selectors.EVENT_READ)
            answers.sendall(b"%d\n" % number)


def _tell_how_it_ended(ended: int, number: int, answers: socket.socket) -> None:
    os.close(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    # Whoever asked may have given up.
    with answers, suppress(OSError):
        answers.sendall(b"%d\n" % code)


def _become(command: list, given: list[int]) -> None:
    """Make this process what an interpreter is that was started for a command."""
    folder, arguments, environment, workers = command
    if workers:
        subprocess._fork_exec = fork_or_start
    os.setsid()
    for name in environment:
        if name.startswith("ONNXOPT_TEST_"):
            # /proc does not show the variable.
            ctypes.CDLL(None).prctl(_PR_SET_NAME, name[-15:].encode(), 0, 0, 0)
    for number, descriptor in enumerate(given[:3]):
        os.dup2(descriptor, number)
    for descriptor in given:
        os.close(descriptor)
    os.chdir(folder)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    after = environment.get("PYTHONPATH", "").split(os.pathsep)
    # The first is this file's folder.
    known = [path for path in sys.path[1:] if path not in before]
    sys.path[:] = [folder, *filter(None, after), *known]
    sys.argv = ["-m", *arguments[1:]]
    sys.orig_argv = [sys.executable, "-m", *arguments]
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()


# Tests may let it stand for what cannot be started.
_PYTHON = sys.executable
# Windows has none.
_start = getattr(subprocess, "_fork_exec", None)
# Each has the code that it starts Python with.
_STARTING = ("onnxopt_cli.workers.worker_process", "onnxopt_cli.backends.check.protocol_check")
# Their threads are not in a process that is forked.
_NOT_TO_BE_FORKED = frozenset({"openvino", "torch"})
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15


def fork_or_start(
    arguments: Sequence[str], executables: Sequence[bytes], close_fds: bool, *more: object
) -> int:
    """Start a process for ``subprocess``; where it is to run plugins, by a fork of this one.

    It is to stand for ``subprocess._fork_exec``, takes the same, and returns the process's id.
    """
    kept, folder, variables, *streams = more[:9]
    _, told, _, session, group, _, _, _, _, before = more[9:19]
    words = list(arguments)
    at = words.index("-c") + 1 if "-c" in words else 0
    if (
        words[0] != _PYTHON
        or not (
            at and words[at] in [getattr(sys.modules.get(it), "_START", None) for it in _STARTING]
        )
        or not (close_fds and folder is variables is None and group < 0)
        or not _starts_as_others(os.environ)
        or not _NOT_TO_BE_FORKED.isdisjoint(sys.modules)
    ):
        return _start(arguments, executables, close_fds, *more)
    with warnings.catch_warnings():
        # Other threads hold nothing that the child waits for.
        warnings.simplefilter("ignore", DeprecationWarning)
        number = os.fork()
    if number:
        return number
    code = 1
    try:
        # What closes when it is forgotten would close descriptors that are others by then.
        gc.freeze()
        if session:
            os.setsid()
        _take_descriptors([streams[0], streams[3], streams[5]], {*kept} - {told})
        if before is not None:
            before()
        _forget_what_was()
        code = contextvars.Context().run(_execute, *words[at:])
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(code)


def _take_descriptors(streams: Sequence[int], kept: set[int]) -> None:
    """Make these the standard streams, where they are not -1, and close all others."""
    copies = [os.dup(stream) if stream >= 0 else stream for stream in streams]
    for number, copy in enumerate(copies):
        if copy >= 0:
            os.dup2(copy, number)
    last = 2
    for number in (*sorted(kept - {0, 1, 2}), 1 << 16):
        os.closerange(last + 1, number)
        last = number
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        unbuffered = os.fdopen(number, f"{mode}b", 0, closefd=False)
        stream = io.TextIOWrapper(
            unbuffered if mode == "w" else io.BufferedReader(unbuffered),
            errors="backslashreplace" if number == 2 else "strict", write_through=True,
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _forget_what_was() -> None:
    """Make the state of this interpreter what it is after a start."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.disable()
    atexit._clear()
    sys.settrace(None)
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    importlib.reload(warnings)
    sys.meta_path[:] = [it for it in sys.meta_path if "_pytest" not in type(it).__module__]
    libraries = (str(Path(os.__file__).parent), *(it for it in sys.path if "site-packages" in it))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.startswith(("onnxopt_cli", "multiprocessing")) or (
            file and not file.startswith(libraries)
        ):
            del sys.modules[name]
    importlib.invalidate_caches()
    # Where this process has its files: a worker has its own folder.
    tempfile.tempdir = None
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _execute(code: str, *arguments: str) -> int:
    """Execute code as an interpreter does; return its exit code."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = ["-c", *arguments]
    ended = 0
    try:
        exec(compile(code, "<string>", "exec"), main.__dict__)  # noqa: S102 - it is ours
    except SystemExit as exit_:
        if isinstance(exit_.code, str):
            sys.stderr.write(f"{exit_.code}\n")
        ended = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException as error:  # noqa: BLE001 - it is shown
        sys.excepthook(type(error), error, error.__traceback__)
        ended = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    return ended & 255


if __name__ == "__main__":
    _import_libraries()
    if module := _serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
