"""The work of a cluster on one of its machines, in a process beside the Dask worker there.

Dask's worker only keeps this process and passes bytes on: it imports no backend, and what it is
asked for in one run leaves nothing for the next. In the process everything is as on one machine: a
backend runs in supervised workers of its own, and never sees Dask.

Whatever is written lies in a folder of ours in the Dask worker's own: files by their content, which
stay for later runs, and for each run a tree in which they stand as they do at the client.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
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

#: Answers a request: what it says in JSON, and its raw bytes.
Handler: TypeAlias = Callable[[Any, memoryview], bytes]
#: Opens what answers, from the terms of a setup and the folder with the files; and says hello.
Opener: TypeAlias = Callable[[Any, Path], AbstractContextManager[tuple[Any, Handler]]]

# How long the process may take to end.
_PATIENCE_SECONDS = 3.0
_START = "import sys; from onnxopt_cli.workers.cluster.sidecar import main; main(int(sys.argv[1]))"


@dataclass(frozen=True, slots=True)
class Setup:
    """What a machine is to do.

    Attributes:
        versions: what it must have, from :func:`versions`.
        opener: the module and function that open it, an :data:`Opener`.
        terms: what that is called with.
        here: the client's current folder.
        local: whether it is the current folder here, too, and not a copy of it.
        operators: files of operators, as absolute paths at the client.
    """

    versions: Mapping[str, str]
    opener: str
    terms: Any
    here: str
    local: bool
    operators: Sequence[str]


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions here that verdicts depend on, of more packages if need be."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("onnxopt_cli", "onnx", "numpy", "ml_dtypes", *packages):
        with suppress(ImportError):
            found[name] = str(import_module(name).__version__)
    return found


def placed(tree: Path, path: str) -> Path:
    """Return where a file of the client stands in a tree."""
    return tree / path.lstrip("/\\").replace(":", "")


class Sidecar:
    """The process of a run beside this Dask worker, which holds it as long as the client lives.

    Args:
        run: a name that begins with the run's, which is its folder's, too.
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

    def deliver(self, wanted: Mapping[str, tuple[str, int]], sent: Mapping[str, bytes]) -> set[str]:
        """Put files into the tree; return the digests of those that are not here.

        Args:
            wanted: digest and mode of each file, by its path at the client.
            sent: contents by digest.
        """
        for digest, content in sent.items():
            (self._files / digest).write_bytes(content)
        lacking = {it for it, _ in wanted.values() if not (self._files / it).exists()}
        for path, (digest, mode) in wanted.items() if not lacking else ():
            place = placed(self._tree, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            # No links: what a backend writes into one must not be there for the next run.
            shutil.copyfile(self._files / digest, place)
            place.chmod(mode | 0o600)
        return lacking

    def start(self) -> bytes:
        """Start the process, and return the hello or the refusal that it answers with."""
        setup: Setup = pickle.loads(self._setup)  # noqa: S301 - of the client, who is trusted
        temporary = self._tree / ".tmp"
        temporary.mkdir()
        folder = Path(setup.here) if setup.local else placed(self._tree, setup.here)
        folder.mkdir(parents=True, exist_ok=True)
        # The worker's environment, not the client's.
        environment = {**without_ci_channels(os.environ), "TMPDIR": str(temporary)}
        environment["ONNXOPT_CACHE_DIR"] = str(temporary)
        sent = [(placed(self._tree, it), it) for it in setup.operators]
        paths = [str(mine) if mine.exists() else it for mine, it in sent]
        environment["ONNXOPT_OPERATORS"] = os.pathsep.join(paths)
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd=folder,
            env=environment,
        )
        theirs.close()
        self._connection.send_bytes(os.fsencode(self._tree))
        return self.ask(self._setup)

    def ask(self, request: bytes) -> bytes:
        """Return the process's answer to a request.

        Raises:
            EOFError: if it has ended.
        """
        self._connection.send_bytes(request)
        return self._connection.recv_bytes()

    def close(self) -> None:
        """End the process, whatever it is doing, and remove the run's files."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._connection.close()
        shutil.rmtree(self._tree, ignore_errors=True)

    def __del__(self) -> None:
        """End with what holds it: the scheduler lets go of it when the client is gone."""
        self.close()

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        """Stay here: a worker that is retired sends what it holds to others, as nothing."""
        return str, ()


_sidecars: WeakValueDictionary[str, Sidecar] = WeakValueDictionary()


def end(run: str) -> None:
    """End the processes of a run beside this Dask worker, even while one is asked something."""
    for name, sidecar in list(_sidecars.items()):
        if name.startswith(run):
            sidecar.close()


def main(descriptor: int) -> None:
    """Answer requests, in the process beside the Dask worker."""
    from onnxopt_cli.core.helper_process import claim_process
    from onnxopt_cli.core.linux import end_with
    from onnxopt_cli.errors import OnnxoptError, UsageError
    from onnxopt_cli.workers.interruption import Stop, stop_by_raising

    end_with(os.getppid(), signal.SIGTERM)
    claim_process()
    stop_by_raising()
    # The client's Ctrl-C is not heard here, and backends may hear their own.
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    connection = Connection(descriptor)
    with suppress(EOFError, OSError, Stop):
        tree = Path(os.fsdecode(connection.recv_bytes()))
        setup: Setup = pickle.loads(connection.recv_bytes())  # noqa: S301 - as above
        try:
            here = versions(setup.versions)
            other = {name: it for name, it in setup.versions.items() if here.get(name) != it}
            if other:
                wrong = [f"{name} {here.get(name, 'missing')}, not {other[name]}" for name in other]
                raise UsageError(f"has {', '.join(wrong)}")
            module, _, name = setup.opener.partition(":")
            opener: Opener = getattr(import_module(module), name)
            with opener(setup.terms, tree) as (hello, answer):
                connection.send_bytes(json.dumps({"hello": hello}).encode())
                while True:
                    head, _, payload = connection.recv_bytes().partition(b"\n")
                    connection.send_bytes(answer(json.loads(head), memoryview(payload)))
        except OnnxoptError as error:
            said = {"refusal": error.message, "hint": error.hint, "code": error.exit_code}
            connection.send_bytes(json.dumps(said).encode())
