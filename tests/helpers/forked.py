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
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

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
    folder, arguments = os.fspath(cwd or Path.cwd()), [os.fspath(word) for word in words]
    command = [sys.executable, "-m", "onnxopt_cli", *arguments]
    environment = dict(os.environ if env is None else env)
    # Hypothesis draws constants that it finds in the modules that are loaded.
    if "fuzz" in words or not _starts_as_others(environment):
        return subprocess.run(
            command, cwd=folder, env=environment, text=text, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
    answers, theirs = socket.socketpair()
    pipes = [os.pipe(), os.pipe()]
    with answers, theirs, Path(os.devnull).open("rb") as nothing:
        given = [nothing.fileno(), *(writer for _, writer in pipes), theirs.fileno()]
        message = json.dumps([folder, arguments, environment]).encode()
        socket.send_fds(_forker(), [message], given)
        theirs.close()
        for _, writer in pipes:
            os.close(writer)
        number = int(_line(answers))
        try:
            printed = _read([reader for reader, _ in pipes], time.monotonic() + timeout)
            answers.settimeout(timeout)
            code = int(_line(answers))
        except TimeoutError:
            os.kill(number, signal.SIGKILL)
            raise subprocess.TimeoutExpired(command, timeout) from None
        finally:
            for reader, _ in pipes:
                os.close(reader)
    out, err = (part.decode().replace("\r\n", "\n") if text else part for part in printed)
    return subprocess.CompletedProcess(command, code, out, err)


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


def _read(descriptors: list[int], end: float) -> list[bytes]:
    """Read all of them to their ends.

    Raises:
        TimeoutError: if they do not come in time.
    """
    found = {descriptor: [] for descriptor in descriptors}
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                found[key.fd].append(os.read(key.fd, 1 << 16))
                if not found[key.fd][-1]:
                    selector.unregister(key.fd)
    return [b"".join(parts) for parts in found.values()]


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
    for room in ("core", "formula"):
        package = import_module(f"onnxopt_cli.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    assert "onnxopt_cli.operators" not in sys.modules
    gc.freeze()


def _serve(control: socket.socket) -> bool:
    """Fork for each command that comes; return True in the child, False when no more come."""
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
                return False
            number = os.fork()
            if not number:
                selector.close()
                control.close()
                for ended, (_, answers) in running.items():
                    os.close(ended)
                    answers.close()
                _become(json.loads(message), given)
                return True
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
    folder, arguments, environment = command
    os.setsid()
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
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [sys.executable, "-m", "onnxopt_cli", *arguments]
    random.seed()
    sys.modules["numpy"].random.seed()


if __name__ == "__main__":
    _import_libraries()
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module("onnxopt_cli", run_name="__main__", alter_sys=True)
