"""The sidecar: a process beside a Dask worker that does the work of onnxopt there.

The Dask worker only starts the sidecar and forwards bytes. The Dask worker imports no backend, so
one run cannot affect the next. The sidecar works like a command on one machine: backends run in
supervised workers of the sidecar, and have no access to Dask.

All files are in a subfolder of the Dask worker's folder. The subfolder contains a store, in which
files are named by their digests, and which later runs reuse. For each run, the subfolder also
contains a tree with copies of the client's files at their original paths.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from onnxopt_cli.core.ci_channels import without_ci_channels
from onnxopt_cli.core.files import write_atomically

#: A function that responds to a request, which consists of JSON and raw bytes.
Handler: TypeAlias = Callable[[Any, memoryview], bytes]
#: A function that opens the backends of a run, given the settings of a setup and the tree of files.
#: The function yields the hello message and a handler of requests.
Opener: TypeAlias = Callable[[Any, Path], AbstractContextManager[tuple[Any, Handler]]]

# Seconds that the process has to end after SIGTERM.
_ENDING_SECONDS = 3.0
_START = "import sys; from onnxopt_cli.workers.cluster.sidecar import main; main(int(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Setup:
    """The configuration of a sidecar.

    Attributes:
        versions: required versions, from :func:`versions`.
        opener: the module and the name of an :data:`Opener`, joined by a colon.
        settings: the first argument of the opener.
        folder: the client's current folder.
        local: whether to use ``folder`` itself instead of a copy.
        operators: operator files, as absolute paths on the client.
    """

    versions: Mapping[str, str]
    opener: str
    settings: Any
    folder: str
    local: bool
    operators: Sequence[str]


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of Python, of packages on which verdicts depend, and of further packages.

    Args:
        packages: names of further packages.
    """
    installed = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("onnxopt_cli", "onnx", "numpy", "ml_dtypes", *packages):
        with suppress(ImportError):
            installed[name] = str(import_module(name).__version__)
    return installed


def placed(tree: Path, path: str) -> Path:
    """Return the path of the copy of a client's file in a tree.

    Args:
        tree: the folder of the copies.
        path: the absolute path of the file on the client.
    """
    # The colon after the drive of a Windows path is removed. Other colons are part of a name.
    return tree / re.sub(r"^/+|^([A-Za-z]):[/\\]+", r"\1/", path).lstrip("/")


class Sidecar:
    """Starts and ends the sidecar process; the Dask worker keeps this object for the client.

    Args:
        run: the name of the folder, which begins with the name of the run.
        setup: a pickled :class:`Setup`.
    """

    def __init__(self, run: str, setup: bytes) -> None:
        from distributed import get_worker

        self._files = Path(get_worker().local_directory, "onnxopt", "files")
        self._tree = self._files.parent / run
        self._tree.mkdir(0o700, parents=True)
        self._files.mkdir(0o700, exist_ok=True)
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        _sidecars[run] = self

    def deliver(
        self, wanted: Mapping[str, tuple[str, int]], contents: Mapping[str, bytes]
    ) -> set[str]:
        """Store contents; if the store then has all wanted files, copy them into the tree.

        Args:
            wanted: digest and mode of each file, by its path on the client.
            contents: contents by digest.

        Returns:
            The digests that the store lacks.
        """
        for digest, content in contents.items():
            # Without an atomic write, an incomplete file would remain in the store if the disk is
            # full.
            write_atomically(self._files / digest, content)
        lacking = {digest for digest, _ in wanted.values() if not (self._files / digest).exists()}
        for path, (digest, mode) in wanted.items() if not lacking else ():
            target = placed(self._tree, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            # With a link instead of a copy, a backend could modify the store for later runs.
            shutil.copyfile(self._files / digest, target)
            target.chmod(mode | 0o600)
        return lacking

    def start(self) -> bytes:
        """Start the process, and return its first message: a hello or a refusal."""
        setup: Setup = pickle.loads(self._setup)  # noqa: S301 - from the client, which is trusted
        temporary = self._tree / ".tmp"
        temporary.mkdir()
        folder = Path(setup.folder) if setup.local else placed(self._tree, setup.folder)
        folder.mkdir(parents=True, exist_ok=True)
        # os.environ is the environment of the Dask worker, not of the client.
        environment = {**without_ci_channels(os.environ), "TMPDIR": str(temporary)}
        environment["ONNXOPT_CACHE_DIR"] = str(temporary)
        copies = [(path, placed(self._tree, path)) for path in setup.operators]
        paths = [str(copy) if copy.exists() else path for path, copy in copies]
        environment["ONNXOPT_OPERATORS"] = os.pathsep.join(paths)
        self._connection, process_end = Pipe()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-P", "-c", _START, str(process_end.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[process_end.fileno()],
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
        process_end.close()
        self._connection.send_bytes(os.fsencode(self._tree))
        return self.request(self._setup)

    def request(self, request: bytes) -> bytes:
        """Return the response of the process to a request.

        Raises:
            EOFError: if the process has ended.
        """
        self._connection.send_bytes(request)
        return self._connection.recv_bytes()

    def close(self) -> None:
        """End the process, even if it is busy, and remove the files of the run."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._connection.close()
        shutil.rmtree(self._tree, ignore_errors=True)

    def __del__(self) -> None:
        """End the process when the scheduler releases this object, because the client has ended."""
        self.close()

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        """Pickle as an empty string.

        A Dask worker that retires sends its objects to other workers, where a sidecar is not
        usable.
        """
        return str, ()


_sidecars: WeakValueDictionary[str, Sidecar] = WeakValueDictionary()


def end(run: str) -> None:
    """End the sidecar processes of a run beside this Dask worker, even if they are busy."""
    for name, sidecar in list(_sidecars.items()):
        if name.startswith(run):
            sidecar.close()


def main(descriptor: int) -> None:
    """Respond to requests in the sidecar process."""
    from onnxopt_cli.core.process_control import claim_process, end_with
    from onnxopt_cli.errors import OnnxoptError, UsageError
    from onnxopt_cli.workers.interruption import Stop, stop_by_raising

    end_with(os.getppid(), signal.SIGTERM)
    claim_process()
    stop_by_raising()
    # The Dask worker may block signals. Ctrl-C at the client does not reach this process.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    connection = Connection(descriptor)
    with suppress(EOFError, OSError, Stop):
        tree = Path(os.fsdecode(connection.recv_bytes()))
        setup: Setup = pickle.loads(connection.recv_bytes())  # noqa: S301 - as above
        try:
            installed = versions(setup.versions)
            differences = [
                f"{name} {installed.get(name, 'missing')}, not {version}"
                for name, version in setup.versions.items()
                if installed.get(name) != version
            ]
            if differences:
                raise UsageError(f"has {', '.join(differences)}")
            module, _, name = setup.opener.partition(":")
            opener: Opener = getattr(import_module(module), name)
            with opener(setup.settings, tree) as (hello, respond):
                connection.send_bytes(json.dumps({"hello": hello}).encode())
                while True:
                    head, _, payload = connection.recv_bytes().partition(b"\n")
                    connection.send_bytes(respond(json.loads(head), memoryview(payload)))
        except OnnxoptError as error:
            refusal = {"refusal": error.message, "hint": error.hint, "code": error.exit_code}
            connection.send_bytes(json.dumps(refusal).encode())
