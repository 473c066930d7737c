"""Run commands by forking a process that has imported the libraries, which saves processor time.

:func:`run_command` corresponds to ``subprocess.run([sys.executable, "-m", "onnxopt_cli", ...])``.
On Linux, a server process imports NumPy, onnx and other libraries, and those modules of onnxopt
that do not depend on the registry, and forks for each command. The command runs in its own process
and session, with its arguments, current folder, environment, standard streams and exit code.
``__main__`` runs from its first line, and workers are started as usual.

Differences from a new interpreter: the libraries are already imported; all commands share one hash
seed, and BLAS uses one thread; /proc shows the command line and environment of the server. Tests of
the start of the command must therefore start an interpreter. An environment that affects the start
of Python or a library (a variable of :data:`_READ_EARLY`, another PYTHONPATH) also starts one.

:func:`start_command` does the same without waiting, also for Dask's own programs.

:func:`fork_or_start` does the same for workers, and for processes that check a plugin: the parent
forks, and the child removes all modules of onnxopt.
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
_MAX_MESSAGE_BYTES = 1 << 18
_INITIAL_ENVIRONMENT = dict(os.environ)
# Libraries that most commands use, and that start no thread when they are imported.
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
    """Run ``onnxopt`` with empty standard input; return its exit code and output.

    Raises:
        subprocess.TimeoutExpired: after ``timeout`` seconds; the command has been killed.
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
    """Start ``onnxopt``, or another module, with empty standard input.

    Args:
        customize: the folder of a ``sitecustomize.py``, for the command and its children.
    """
    environment = dict(os.environ if env is None else env)
    kind = _Forked if _can_fork(environment) else subprocess.Popen
    if customize is not None:
        environment["PYTHONPATH"] = f"{customize}{os.pathsep}{REPOSITORY}"
    return kind(
        [sys.executable, "-m", module, *map(os.fspath, words)], cwd=cwd or Path.cwd(),
        env=environment, stdin=subprocess.DEVNULL, **streams,
    )  # fmt: skip


class _Forked(subprocess.Popen):
    """A process that the server forks."""

    def _execute_child(self, arguments: list[str], *more: Any) -> None:
        folder, environment = more[4:6]
        pipes = more[9:15]
        streams = [
            pipe if pipe >= 0 else number for number, pipe in enumerate((pipes[0], *pipes[3::2]))
        ]
        self._answers, server_end = socket.socketpair()
        workers = subprocess._fork_exec is fork_or_start
        message = json.dumps([os.fspath(folder), arguments[2:], environment, workers]).encode()
        with server_end:
            socket.send_fds(_server(), [message], [*streams, server_end.fileno()])
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


def _can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether the server's libraries are in the state that this environment yields."""

    def early(variables: Mapping[str, str]) -> dict[str, str]:
        variables = {**variables, "PYTHONPATH": ""}
        return {name: value for name, value in variables.items() if name.startswith(_READ_EARLY)}

    initial_path = _INITIAL_ENVIRONMENT.get("PYTHONPATH")
    path = environment.get("PYTHONPATH", initial_path)
    return (
        hasattr(os, "pidfd_open")
        and path in {str(REPOSITORY), initial_path}
        and early(environment) == early(_INITIAL_ENVIRONMENT)
    )


def _line(answers: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += answers.recv(1) or b"the server has ended\n"
    return line


@cache
def _server() -> socket.socket:
    """Start the server; return the socket to which commands are sent."""
    client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, __file__, str(server_end.fileno())], pass_fds=[server_end.fileno()],
        cwd=REPOSITORY, env={**_INITIAL_ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
        # Pipes as for a command, because Python inspects its standard streams at its start.
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    server_end.close()

    def end() -> None:
        client_end.close()
        process.communicate()

    atexit.register(end)
    return client_end


def _import_libraries() -> None:
    for name in _LIBRARIES:
        import_module(name)
    for name in ("core", "operators"):
        package = import_module(f"onnxopt_cli.{name}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            # The registry depends on the operator files that a command names.
            if module.name != "onnxopt_cli.operators.registry" and not module.ispkg:
                import_module(module.name)
    assert "onnxopt_cli.operators.registry" not in sys.modules
    gc.freeze()


def _serve(control: socket.socket) -> str:
    """Fork for each command; return the module to run in the child, "" in the server at its end."""
    running: dict[int, tuple[int, socket.socket]] = {}
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd in running:
                selector.unregister(key.fd)
                _send_exit_code(key.fd, *running.pop(key.fd))
                continue
            message, descriptors, _, _ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, 4)
            if not message:
                return ""
            command = json.loads(message)
            if "--cluster" in command[1] or command[1][0].startswith("distributed."):
                # Imported on demand: it takes long, and few tests need it.
                import_module("distributed")
                gc.freeze()
            number = os.fork()
            if not number:
                selector.close()
                control.close()
                for ended, (_, answers) in running.items():
                    os.close(ended)
                    answers.close()
                _become(command, descriptors)
                return command[1][0]
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            answers = socket.socket(fileno=descriptors[3])
            ended = os.pidfd_open(number)
            running[ended] = number, answers
            selector.register(ended, selectors.EVENT_READ)
            answers.sendall(b"%d\n" % number)


def _send_exit_code(ended: int, number: int, answers: socket.socket) -> None:
    os.close(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    # The test may have closed its end.
    with answers, suppress(OSError):
        answers.sendall(b"%d\n" % code)


def _become(command: list, descriptors: list[int]) -> None:
    """Bring this process into the state of an interpreter that was started for a command."""
    folder, arguments, environment, workers = command
    if workers:
        subprocess._fork_exec = fork_or_start
    os.setsid()
    for name in environment:
        if name.startswith("ONNXOPT_TEST_"):
            # Set the process name: /proc shows the initial environment, which lacks the variable.
            ctypes.CDLL(None).prctl(_PR_SET_NAME, name[-15:].encode(), 0, 0, 0)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(folder)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    after = environment.get("PYTHONPATH", "").split(os.pathsep)
    # The first entry is the folder of this file.
    default_path = [path for path in sys.path[1:] if path not in before]
    sys.path[:] = [folder, *filter(None, after), *default_path]
    sys.argv = ["-m", *arguments[1:]]
    sys.orig_argv = [sys.executable, "-m", *arguments]
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()


# Tests may replace sys.executable by a program that cannot be started.
_PYTHON = sys.executable
# Missing on Windows.
_start = getattr(subprocess, "_fork_exec", None)
# The constant `_START` of each module is the code with which it starts Python.
_STARTING = ("onnxopt_cli.workers.worker_process", "onnxopt_cli.backends.check.protocol_check")
# These libraries start threads, which a forked process lacks.
_NOT_FORKABLE = frozenset({"openvino", "torch"})
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15


def fork_or_start(
    arguments: Sequence[str], executables: Sequence[bytes], close_fds: bool, *more: object
) -> int:
    """Start a process for ``subprocess``, by a fork of this one if it is to run plugins.

    A replacement of ``subprocess._fork_exec``, with the same parameters and result.
    """
    kept, folder, variables, *streams = more[:9]
    _, told, _, session, group, _, _, _, _, before = more[9:19]
    words = list(arguments)
    at = words.index("-c") + 1 if "-c" in words else 0
    if (
        words[0] != _PYTHON
        or not (
            at
            and words[at] in [getattr(sys.modules.get(name), "_START", None) for name in _STARTING]
        )
        or not (close_fds and folder is variables is None and group < 0)
        or not _can_fork(os.environ)
        or not _NOT_FORKABLE.isdisjoint(sys.modules)
    ):
        return _start(arguments, executables, close_fds, *more)
    with warnings.catch_warnings():
        # The warning concerns locks of other threads; the child uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        number = os.fork()
    if number:
        return number
    code = 1
    try:
        # Objects of the parent must not be collected here: closing their descriptors would close
        # descriptors of the child with the same numbers.
        gc.freeze()
        if session:
            os.setsid()
        _take_descriptors([streams[0], streams[3], streams[5]], {*kept} - {told})
        if before is not None:
            before()
        _reset_interpreter()
        code = contextvars.Context().run(_execute, *words[at:])
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(code)


def _take_descriptors(streams: Sequence[int], kept: set[int]) -> None:
    """Make descriptors other than -1 the standard streams, and close all that are not kept."""
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


def _reset_interpreter() -> None:
    """Reset this interpreter to its state after startup."""
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
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if "_pytest" not in type(finder).__module__
    ]
    site_packages = [path for path in sys.path if "site-packages" in path]
    libraries = (str(Path(os.__file__).parent), *site_packages)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.startswith(("onnxopt_cli", "multiprocessing")) or (
            file and not file.startswith(libraries)
        ):
            del sys.modules[name]
    importlib.invalidate_caches()
    # Discard the parent's folder for temporary files: a worker has its own.
    tempfile.tempdir = None
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _execute(code: str, *arguments: str) -> int:
    """Execute code as a new interpreter would; return its exit code."""
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
