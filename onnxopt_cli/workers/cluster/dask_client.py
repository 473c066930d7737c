"""Sends cases, audits and searches to other machines through Dask.

Dask connects the machines, transfers bytes and lists the workers. onnxopt assigns the work, one
batch at a time to each worker. If a worker is lost, each item of its batch is sent to a second
worker; if that is lost, too, the item is given up.

The parties of a Dask cluster must trust each other, because they unpickle the data that they
receive. Data that a backend under test has returned is never pickled (see
:mod:`onnxopt_cli.workers.cluster.sidecar`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import re
import signal
import stat
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b
from importlib.util import find_spec
from ipaddress import ip_address
from itertools import pairwise, starmap
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.untrusted_files import MAX_CASE_BYTES, Malformed, read_regular_file
from onnxopt_cli.errors import BackendUnavailable, UsageError
from onnxopt_cli.workers.cluster.sidecar import (
    Setup,
    Sidecar,
    end,
    versions,
)
from onnxopt_cli.workers.interruption import Interruption
from onnxopt_cli.workers.private_folder import temporary_folder

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as DaskFuture

Done = TypeVar("Done")

# The number of seconds in which a worker should process a batch.
_BATCH_SECONDS = 1.0
# The largest number of items in a batch.
_MAX_BATCH_ITEMS = 1000
# Assumed time in seconds that the client needs for each batch. With more workers, batches become
# larger, so that the client can serve all workers in time.
_CLIENT_SECONDS_PER_BATCH = 0.01
# An item is not sent again after this number of workers have been lost with it.
_MAX_TRIES = 2
# Seconds between two requests for the list of workers.
_LIST_SECONDS = 0.5
# The interval between two requests for the list of workers grows by this number of seconds for each
# worker.
_LIST_SECONDS_PER_WORKER = 0.005
# The number of seconds without a heartbeat after which a worker is considered lost.
_MAX_SILENCE_SECONDS = 30.0
# Seconds that the scheduler has to respond.
_SCHEDULER_SECONDS = 20.0
# Seconds within which the first worker has to appear.
_WORKERS_SECONDS = 60.0
# If items have no time limit, a worker has this number of seconds to receive files and to start.
_JOINING_SECONDS = 600.0
# Seconds that closing the connections may take.
_CLOSING_SECONDS = 10.0
_TICK_SECONDS = 0.05
# Largest number of bytes of a scheduler file.
_MAX_FILE_BYTES = 1 << 20
# The number of seconds within which Dask must write the scheduler file, which is empty at first.
_FILE_SECONDS = 2.0
# Largest number of characters of an error message from Dask.
_MAX_ERROR_CHARS = 300
_MAX_LOSS_CHARS = 200
# Largest number of bytes of a response in JSON.
_MAX_RESPONSE_BYTES = 1 << 26
# Errors that may be raised when an invalid response is read.
_INVALID_RESPONSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
# The largest number of files and folders below the paths of --ship.
_MAX_SHIPPED_ENTRIES = 100_000
# The approximate number of bytes of files that are sent together.
_FILES_AT_ONCE_BYTES = 32 << 20


class LostError(Exception):
    """A worker was lost, or sent an invalid response, while it processed an item.

    The message names the worker and the reason, for each worker that was lost with the item.
    """


@dataclass(eq=False)
class Cluster:
    """A connection to a cluster, which may be a local cluster that the connection starts.

    The connection runs in a thread of its own.

    Attributes:
        where: the address of a scheduler, the path of its file, ``local``, or ``local:N``. A local
            cluster has N workers, by default one for each processor.
        interruption: set when the user interrupts the command.
        tell: called with a message for the user about each worker that is not used.
        ship: files and folders to send to every worker.
        tls: three files: the trusted certificates, the client's certificate, and the key of this
            certificate; empty to use the files of Dask's configuration.
        insecure: whether to connect to other machines without TLS.
        packages: additional packages whose versions must agree on all machines.
        client: Dask's client, which only the connection's thread may use.
        local: whether the cluster runs on this machine, so that no files need be sent.
        shipped: the files to send to every worker.
        versions: the versions that every worker must have.
        workers: the group of workers in use; None before it is created.

    Raises:
        UsageError: if ``distributed`` is not installed, or the address is not usable.
        BackendUnavailable: if no scheduler responds at the address.
    """

    where: str
    interruption: Interruption
    tell: Callable[[str], None]
    ship: Sequence[Path] = ()
    tls: Sequence[str] = ()
    insecure: bool = False
    packages: Sequence[str] = ()
    client: Client = field(init=False)
    workers: WorkerGroup | None = None

    def __post_init__(self) -> None:
        if find_spec("distributed") is None:
            raise UsageError("--cluster needs Dask", hint='pip install "onnxopt[cluster]"')
        self.shipped = [*_files_below(self.ship)]
        self.versions = versions(self.packages)
        match = re.fullmatch(r"local(?::([1-9]\d{0,2}))?", self.where)
        self.local = match is not None
        if self.local and not os.access(sys.executable, os.X_OK):
            # Dask would otherwise print a traceback for each of its processes.
            raise UsageError(
                f"Python cannot be started: {printable(sys.executable)} is not executable",
                hint="a local cluster consists of Python processes; run without --cluster",
            )
        self._where = "this machine"
        if not match:
            self._where = _scheduler_address(self.where, insecure=self.insecure)
        self._local_workers = int(match[1] or available_jobs()) if match else 0
        self._stack = AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, daemon=True)
        self._thread.start()
        try:
            self.run(self._connect())
        except BaseException:
            self.close()
            raise

    def _run_loop(self) -> None:
        # The client handles Ctrl-C. The processes that this thread starts do not receive the
        # signal, because the client ends them.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        self._loop.run_forever()
        self._loop.close()

    async def _connect(self) -> None:
        """Connect to the scheduler, or start a local cluster.

        Raises:
            UsageError: if Dask cannot be loaded, or certificates are missing or not usable.
            BackendUnavailable: if no scheduler responds.
        """
        try:
            import distributed
        except Exception as error:
            # Dask inspects the system while it is loaded, which may raise any exception.
            raise UsageError(
                printable(f"Dask cannot be loaded: {type(error).__name__}: {error}"),
                hint='in a container, mount /proc; or pip install --upgrade "onnxopt[cluster]"',
            ) from error

        # Silence Dask's messages, because this module reports lost connections itself.
        for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        # Many functions of the package ``distributed`` have no type annotations.
        module: Any = distributed
        security = self._security(module)
        try:
            where = await self._start_local(module) if self.local else self._where
            # Dask's own timeout does not apply if a peer connects but sends nothing.
            self.client = module.Client(
                where, asynchronous=True, security=security,
                timeout=_SCHEDULER_SECONDS, set_as_default=False,
            )  # fmt: skip
            self._stack.push_async_callback(self.client.close)
            async with asyncio.timeout(_SCHEDULER_SECONDS):
                await self.client
        except TimeoutError:
            reason = f"no response of a scheduler for {_SCHEDULER_SECONDS:g} s"
        except OSError as error:
            reason = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - the peer may send anything, and raise anything
            described = f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]
            reason = described if self.local else _not_a_scheduler(error)
        else:
            return
        problem = f"no scheduler responds at {self._where}"
        if self.local:
            problem = "the local cluster does not start"
        raise BackendUnavailable(printable(f"{problem}: {reason}"))

    async def _start_local(self, distributed: Any) -> Any:
        """Start a cluster on this machine; closing the connection ends it."""
        import dask

        folder = self._stack.enter_context(temporary_folder())
        # Parts of Dask use this folder unless they are given a folder of their own.
        self._stack.enter_context(dask.config.set({"temporary-directory": folder}))
        return await self._stack.enter_async_context(distributed.LocalCluster(
            n_workers=self._local_workers, threads_per_worker=1, memory_limit=0,
            host="127.0.0.1", dashboard_address="127.0.0.1:0", local_directory=folder,
            silence_logs=logging.CRITICAL, asynchronous=True,
        ))  # fmt: skip

    def _security(self, distributed: Any) -> Any:
        """Return Dask's security object with the certificates for a TLS address, else None.

        Raises:
            UsageError: if certificates are missing or not usable.
        """
        if not self._where.startswith("tls"):
            return None
        names = ("tls_ca_file", "tls_client_cert", "tls_client_key")
        paths = dict(zip(names, self.tls, strict=False))
        hint = "" if self.tls else "--tls CA CERT KEY names certificates"
        try:
            security = distributed.Security(require_encryption=True, **paths)
            if security.get_connection_args("client")["ssl_context"]:
                return security
            reason = "no certificates"
        except (OSError, ValueError, TypeError) as error:
            reason = str(error)
        raise UsageError(printable(f"--cluster {self._where}: {reason}"), hint=hint)

    @property
    def size(self) -> int:
        """The number of workers that are in use."""
        return self.workers.size if self.workers else 0

    def start(self, work: Coroutine[Any, Any, Done]) -> Future[Done]:
        """Run a coroutine in the connection's thread, without waiting for the result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Run a coroutine in the connection's thread, and wait for the result.

        Raises:
            KeyboardInterrupt: if the user interrupts the command.
        """
        future = self.start(work)
        while not wait([future], _TICK_SECONDS).done:
            if self.interruption.signal:
                future.cancel()
                raise KeyboardInterrupt
        return future.result()

    def close(self) -> None:
        """Disconnect from the cluster, and end the cluster if it is a local one."""
        with suppress(Exception):
            self.start(self._stack.aclose()).result(_CLOSING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING_SECONDS)

    async def present(self) -> dict[str, dict[str, float]]:
        """Return the last heartbeat's time and the thread count of each worker, by address.

        Raises:
            BackendUnavailable: if the scheduler does not respond, or its response is invalid.
        """
        scheduler: Any = self.client.scheduler
        try:
            # Without a limit, a client that has lost its connection would retry for a long time.
            seconds = _SCHEDULER_SECONDS if self.client.status == "running" else 0
            identity = await asyncio.wait_for(scheduler.identity(n_workers=-1), seconds)
            return {
                str(address): {name: float(worker[name]) for name in ("last_seen", "nthreads")}
                for address, worker in identity["workers"].items()
            }
        except (TimeoutError, OSError):
            problem = "does not respond any more"
        except Exception as error:  # noqa: BLE001 - the scheduler may send anything
            problem = _not_a_scheduler(error)
        raise BackendUnavailable(
            printable(f"the scheduler at {self._where} {problem}"),
            hint="--resume LOG continues a run with a log, with or without --cluster",
        )


def _not_a_scheduler(error: Exception) -> str:
    message = f"sends data that no scheduler sends ({type(error).__name__}: {error})"
    return message[:_MAX_ERROR_CHARS]


def _scheduler_address(where: str, *, insecure: bool) -> str:
    """Return the address of a scheduler, which may be in a file.

    Raises:
        UsageError: if the address is invalid, or if it is on another machine but does not use TLS.
    """
    try:
        if "://" not in where:
            until = monotonic() + _FILE_SECONDS
            while not (text := read_regular_file(where, _MAX_FILE_BYTES)) and monotonic() < until:
                sleep(_TICK_SECONDS)
            where = str(read_json(text)["address"])
        parts = urlsplit(where)
        host, is_valid = str(parts.hostname), parts.scheme in {"tcp", "tls"} and bool(parts.port)
    except (Malformed, ValueError, KeyError, TypeError):
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"--cluster {printable(where)} is neither the address of a scheduler nor its file",
            hint="write local, local:N, tcp://HOST:PORT, tls://HOST:PORT, or the file's path",
        )
    with suppress(ValueError):
        is_allowed = host == "localhost" or parts.scheme == "tls" or insecure
        if is_allowed or ip_address(host).is_loopback:
            return where
    raise UsageError(
        f"--cluster {printable(where)}: without TLS, an attacker on the network could run code on "
        "every machine",
        hint="give --tls CA CERT KEY and a tls:// address; --insecure connects without TLS",
    )


def _files_below(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the paths of the files to ship.

    Raises:
        UsageError: if the folders have too many entries, or the files are too large.
    """
    visited = size = 0
    hint = "ship only the files that the backend needs"
    for path in paths:
        files = []
        for candidate in [path] if path.is_file() else path.rglob("*"):
            visited += 1
            if visited > _MAX_SHIPPED_ENTRIES:
                limit = f"more than {_MAX_SHIPPED_ENTRIES} files and folders"
                raise UsageError(f"--ship {printable(str(path))}: {limit}", hint=hint)
            if candidate.is_file():
                size += candidate.stat().st_size
                files.append(real_place(candidate))
            if size > MAX_CASE_BYTES:
                limit = f"the files have more than {MAX_CASE_BYTES} bytes"
                raise UsageError(f"--ship {printable(str(path))}: {limit}", hint=hint)
        yield from sorted(files)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=20).hexdigest()


@lru_cache(1 << 14)
def real_place(path: Path | str) -> str:
    """Return the absolute path of a file.

    Links are resolved in the path of the folder, but not in the file's name, because the ids of
    cases contain the file's name.
    """
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - called for many strings
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - as above


@dataclass(eq=False, slots=True)
class _Work(Generic[Done]):
    """Items that workers process in batches; the items may be divided into parts.

    Only the cluster's thread calls the methods.

    Attributes:
        request, items, read, files: the arguments of :meth:`WorkerGroup.spread`.
        parts: for each part, the indices of the items that are not assigned yet.
        done: results by the index of their item.
    """

    request: str
    items: Sequence[Any]
    read: Callable[[int, Any], Done]
    files: Callable[[int], Sequence[str]]
    parts: list[range]
    done: SimpleQueue[dict[int, Done | LostError]] = field(default_factory=SimpleQueue)
    # The part that is assigned to each worker.
    _part_of_worker: dict[str, int] = field(default_factory=dict)
    _seconds_per_item: float = 0.0
    # For each lost item: why each worker was lost, by the worker's address. Lost items are sent
    # again one by one.
    _losses: dict[int, dict[str, str]] = field(default_factory=dict)
    _retries: deque[int] = field(default_factory=deque)

    def take(self, address: str, workers: int) -> list[int]:
        """Return the indices of a worker's next batch; empty if no item is currently available."""
        for index in self._retries:
            if workers == 1 or address not in self._losses[index]:
                self._retries.remove(index)
                return [index]
        part = self._part_for(address)
        first, last = self.parts[part].start, self.parts[part].stop
        size = self._batch_size(last - first, workers)
        end = first + min(size, last - first)
        if end < last:
            # If possible, end the batch between two files, because a file whose items are split
            # between batches may be read twice.
            ends = range(end, first + size // 2, -1)
            end = next((index for index in ends if self.files(index - 1) != self.files(index)), end)
        self.parts[part] = range(end, last)
        return [*range(first, end)]

    def _part_for(self, address: str) -> int:
        """Return the part that is assigned to a worker; if it is finished, assign another part."""
        remaining = [*map(len, self.parts)]
        part = self._part_of_worker.get(address)
        if part is None or not remaining[part]:
            workers_of_part = Counter(self._part_of_worker.values())
            part = max(
                range(len(remaining)),
                key=lambda number: remaining[number] / (1 + workers_of_part[number]),
            )
            self._part_of_worker[address] = part
        return part

    def _batch_size(self, remaining: int, workers: int) -> int:
        """Return the number of items of a batch.

        Args:
            remaining: number of items of the part that are not assigned yet.
            workers: number of workers.
        """
        seconds = max(_BATCH_SECONDS, _CLIENT_SECONDS_PER_BATCH * workers)
        size = int(seconds / self._seconds_per_item) if self._seconds_per_item else 1
        # Each worker gets several batches, so that all workers finish at about the same time.
        fair_size = -(-remaining // (2 * max(workers, 1)))
        return max(1, min(size, _MAX_BATCH_ITEMS, fair_size))

    def message(self, batch: Sequence[int]) -> tuple[bytes, list[str]]:
        """Return the request for a batch, and the files that the batch needs."""
        items = [self.items[index] for index in batch]
        request = json.dumps({"request": self.request, "items": items}).encode()
        return request, [path for index in batch for path in self.files(index)]

    def finish(self, batch: Sequence[int], responses: Any, seconds: float) -> None:
        """Record a worker's responses to a batch.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: if the responses are invalid.
        """
        pairs = zip(batch, responses, strict=True)
        self.done.put({index: self.read(index, response) for index, response in pairs})
        latest = seconds / len(batch)
        self._seconds_per_item = (
            (self._seconds_per_item + latest) / 2 if self._seconds_per_item else latest
        )

    def lose(self, batch: Sequence[int], address: str, reason: str) -> None:
        """Queue the items of a lost batch for other workers, or record the items as lost."""
        for index in batch:
            losses = self._losses.setdefault(index, {})
            losses[address if address not in losses else reason] = reason
            if len(losses) < _MAX_TRIES:
                self._retries.append(index)
            else:
                self.done.put({index: LostError("; ".join(losses.values()))})


@dataclass(eq=False, slots=True)
class _Worker:
    """A worker of the cluster.

    Attributes:
        address: the worker's address, which also identifies the worker in messages.
        sidecar: its sidecar.
        loss: set to the reason once the worker is lost.
        files: paths of the files that the worker has.
        heartbeat: the time of the last heartbeat by the scheduler's clock, and the time at which
            this process first saw this heartbeat, by its own clock.
        is_ready: whether the worker has opened the backends, and has the versions of the others.
        refusal: the reason why the worker is not used; None if it is used.
    """

    address: str
    sidecar: DaskFuture[Any] | None = None
    loss: asyncio.Future[str] = field(default_factory=asyncio.Future)
    files: set[str] = field(default_factory=set)
    heartbeat: tuple[float, float] = (0.0, 0.0)
    is_ready: bool = False
    refusal: BackendUnavailable | UsageError | None = None

    def lose(self, reason: str) -> None:
        """Record that the worker is lost, so that code which waits for its responses continues."""
        self.is_ready = False
        if not self.loss.done():
            self.loss.set_result(reason)


class WorkerGroup:
    """Workers that have the same versions of software and have opened the same backends or audit.

    Args:
        cluster: the connection to the workers.
        opener: the module and function to call on each worker, as in :class:`Setup`.
        settings: the argument of the opener.
        patience: time limit of a worker for one item in seconds; None for no limit.

    Attributes:
        hello: the description that the first worker sent; every other worker must send the same.
    """

    def __init__(
        self, cluster: Cluster, opener: str, settings: object, patience: float | None = None
    ) -> None:
        from onnxopt_cli.operators.registry import registry

        self.hello: Any = None
        self._cluster = cluster
        operators = [real_place(path) for path in registry().files]
        folder = str(Path.cwd())
        setup = Setup(cluster.versions, opener, settings, folder, cluster.local, operators)
        self._setup = pickle.dumps(setup)
        self._run = f"run-{uuid4().hex}"
        self._workers: dict[str, _Worker] = {}
        self._failure: Exception | None = None
        self._digests: dict[str, tuple[str, int]] = {}
        self._work: _Work[Any] | None = None
        self._patience = patience
        self._joining_seconds = patience or _JOINING_SECONDS
        self._workerless_since = monotonic()
        cluster.workers = self
        self._watching = cluster.start(self._watch())

    @property
    def size(self) -> int:
        """The number of workers that are in use."""
        return sum(worker.is_ready for worker in self._workers.values())

    def ready(self) -> None:
        """Wait for the first worker.

        Raises:
            UsageError: if all workers are refused, or the opener raises UsageError.
            BackendUnavailable: if no worker appears, or the opener raises BackendUnavailable.
        """
        while self.hello is None:
            self._check()
            if self._cluster.interruption.signal:
                raise KeyboardInterrupt
            sleep(_TICK_SECONDS)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def spread(
        self,
        request: str,
        items: Sequence[Any],
        read: Callable[[int, Any], Done],
        files: Callable[[int], Sequence[str]] = lambda _: (),
        stop: Callable[[], object] = lambda: False,
        part: Callable[[int], object] | None = None,
    ) -> Generator[Done | LostError]:
        """Yield the result of each item in order, or a LostError if the item was lost twice.

        Args:
            request: the name of the request.
            items: the items, as values of JSON.
            read: takes the index of an item and the worker's response, and returns the result;
                raises ValueError, KeyError or TypeError if the response is invalid.
            files: takes the index of an item, and returns the files that the item needs.
            stop: returns whether to stop early.
            part: takes the index of an item, and returns the part to which the item belongs; None
                if there is only one part. A worker receives items of one part until no item of it
                remains. The worker then receives items of the part with the most remaining items
                per worker.

        Raises:
            BackendUnavailable: if the scheduler or all workers are lost.
        """
        ends: list[int] = []
        # The items of a search without a limit cannot be listed, and belong to a single part.
        if part:
            ends = [index for index in range(1, len(items)) if part(index) != part(index - 1)]
        parts = [*starmap(range, pairwise([0, *ends, len(items)]))]
        self._work = work = _Work(request, items, read, files, parts)
        done: dict[int, Done | LostError] = {}
        try:
            for index in range(len(items)):
                while index not in done:
                    if stop() or self._cluster.interruption.signal:
                        return
                    self._check()
                    with suppress(Empty):
                        done |= work.done.get(timeout=_TICK_SECONDS)
                yield done.pop(index)
        finally:
            self._work = None

    def request(self, message: bytes) -> Callable[[], bytes | None]:
        """Send a message to one worker, which processes messages in order.

        Returns:
            A function that waits for the response. The function returns None if the user interrupts
            the command. The function raises LostError if workers are lost. It raises
            BackendUnavailable in the same cases as :meth:`spread`.
        """
        future = self._cluster.start(self._request_any(message))

        def response() -> bytes | None:
            while not wait([future], _TICK_SECONDS).done:
                self._check()
                if self._cluster.interruption.signal:
                    return None
            return future.result()

        return response

    async def _request_any(self, message: bytes) -> bytes:
        losses: list[str] = []
        while len(losses) < _MAX_TRIES:
            worker = next((worker for worker in self._workers.values() if worker.is_ready), None)
            if worker is None:
                await asyncio.sleep(_TICK_SECONDS)
                continue
            try:
                return await self._response(worker, message)
            except LostError as error:
                losses.append(str(error))
        raise LostError("; ".join(losses))

    def everyone(self, message: bytes) -> list[bytes]:
        """Send a message to all workers, and return the responses of all workers that respond."""

        async def request_all() -> list[bytes]:
            responses = [
                self._response(worker, message)
                for worker in self._workers.values()
                if worker.is_ready
            ]
            results = await asyncio.gather(*responses, return_exceptions=True)
            return [result for result in results if isinstance(result, bytes)]

        return self._cluster.run(request_all())

    def close(self) -> None:
        """End the sidecars, even if they are busy."""
        self._watching.cancel()
        with suppress(Exception):
            self._cluster.start(self._end()).result(_CLOSING_SECONDS)

    async def _end(self) -> None:
        present = [address for address, worker in self._workers.items() if not worker.loss.done()]
        for worker in self._workers.values():
            worker.lose("ended")
        if present and self._failure is None:
            client = self._cluster.client
            await client.run(end, self._run, workers=present, on_error="ignore")

    async def _watch(self) -> None:
        """Detect new and lost workers until the group is closed."""
        joining = set()
        try:
            while True:
                present = await self._cluster.present()
                for address, worker in list(self._workers.items()):
                    self._update_worker(worker, present.get(address))
                for address in present.keys() - self._workers.keys():
                    worker = self._workers[address] = _Worker(address)
                    joining.add(asyncio.create_task(self._join(worker, present[address])))
                self._require_workers()
                await asyncio.sleep(_LIST_SECONDS + _LIST_SECONDS_PER_WORKER * len(present))
        except Exception as error:  # noqa: BLE001 - raised by _check in the calling thread
            self._failure = error
            for worker in self._workers.values():
                worker.lose("has lost the scheduler")

    def _update_worker(self, worker: _Worker, status: Mapping[str, float] | None) -> None:
        if status is None:
            worker.lose("was lost")
            del self._workers[worker.address]
        elif status["last_seen"] != worker.heartbeat[0]:
            worker.heartbeat = status["last_seen"], monotonic()
        elif monotonic() - worker.heartbeat[1] > _MAX_SILENCE_SECONDS:
            worker.lose(f"has sent no heartbeat for {_MAX_SILENCE_SECONDS:g} s")

    def _require_workers(self) -> None:
        refusals = [worker.refusal for worker in self._workers.values() if worker.refusal]
        if any(not worker.loss.done() for worker in self._workers.values()):
            self._workerless_since = monotonic()
        elif refusals and len(refusals) == len(self._workers):
            raise refusals[0]
        elif monotonic() - self._workerless_since > _WORKERS_SECONDS:
            raise BackendUnavailable(
                f"the cluster has had no worker for {_WORKERS_SECONDS:g} s",
                hint="dask worker SCHEDULER starts one; onnxopt must be installed there",
            )

    async def _join(self, worker: _Worker, status: Mapping[str, float]) -> None:
        """Start a sidecar on a new worker, and send batches to the worker.

        The worker is refused if its hello differs from that of the first worker.
        """
        worker.heartbeat = status["last_seen"], monotonic()
        try:
            name = f"{self._run}-{uuid4().hex}"
            worker.sidecar = self._submit(worker, Sidecar, name, self._setup)
            shipped = [] if self._cluster.local else self._cluster.shipped
            await self._deliver(worker, shipped)
            hello = await self._call(
                worker, Sidecar.start, worker.sidecar, seconds=self._joining_seconds
            )
            self._check_hello(worker, hello, status["nthreads"])
            await self._serve(worker)
        except LostError as error:
            if worker.is_ready:
                # Forget the worker; if the worker still exists, it is added again with a new
                # sidecar.
                del self._workers[worker.address]
            elif not worker.loss.done():
                reason = str(error).removeprefix(f"{worker.address} ")
                self._refuse(worker, BackendUnavailable(reason))
            worker.lose("ended")
        except (UsageError, BackendUnavailable) as error:
            self._refuse(worker, error)
        except _INVALID_RESPONSE_ERRORS:
            self._refuse(worker, BackendUnavailable("sent an invalid response"))
        except Exception as error:  # noqa: BLE001 - raised by _check in the calling thread
            self._failure = error

    def _refuse(self, worker: _Worker, refusal: UsageError | BackendUnavailable) -> None:
        refusal.message = f"worker {worker.address} {refusal.message}"
        worker.refusal = refusal
        worker.lose("is not used")
        self._cluster.tell(f"not used: {refusal.message}")

    def _check_hello(self, worker: _Worker, response: bytes, threads: float) -> None:
        if threads != 1:
            raise UsageError(f"has {threads:g} threads", hint="start it with --nthreads 1")
        match read_json(response):
            case {"refusal": str(message), "hint": str(hint), "code": code}:
                kind = UsageError if code == UsageError.exit_code else BackendUnavailable
                raise kind(printable(message, lines=True), hint=printable(hint, lines=True))
            case {"hello": hello}:
                if self.hello is None:
                    self.hello = hello
                elif hello != self.hello:
                    raise UsageError(
                        printable(f"has {hello}, but the first worker has {self.hello}")
                    )
                worker.is_ready = True
                return
        raise BackendUnavailable("did not describe its backends")

    async def _serve(self, worker: _Worker) -> None:
        """Send batches to a worker until it is lost."""
        while not worker.loss.done():
            work = self._work
            batch = work.take(worker.address, self.size) if work is not None else []
            if work is None or not batch:
                await asyncio.sleep(_TICK_SECONDS)
                continue
            began = monotonic()
            try:
                message, files = work.message(batch)
                await self._deliver(worker, files)
                response = await self._response(worker, message, len(batch))
                responses = read_json(response, _MAX_RESPONSE_BYTES)
                work.finish(batch, responses, monotonic() - began)
            except LostError as error:
                work.lose(batch, worker.address, str(error))
                raise
            except (BackendUnavailable, *_INVALID_RESPONSE_ERRORS):
                reason = "sent an invalid response"
                work.lose(batch, worker.address, f"{worker.address} {reason}")
                raise BackendUnavailable(reason) from None

    async def _response(self, worker: _Worker, message: bytes, items: int = 1) -> bytes:
        seconds = self._patience and self._patience * items
        response = await self._call(
            worker, Sidecar.request, worker.sidecar, message, seconds=seconds
        )
        if not isinstance(response, bytes):
            raise BackendUnavailable("sent an invalid response")
        return response

    async def _deliver(self, worker: _Worker, paths: Sequence[str]) -> None:
        """Send a worker the files that it lacks."""
        new = [path for path in dict.fromkeys(paths) if path not in worker.files]
        # Files that no longer exist are left out; the worker reports a missing file when it reads
        # the file.
        wanted_files = {
            path: digest_and_mode
            for path in new
            if (digest_and_mode := self._digest_and_mode(path))
        }
        worker.files.update(new)
        deliver = partial(
            self._call, worker, Sidecar.deliver, worker.sidecar, seconds=self._joining_seconds
        )
        contents: dict[str, bytes] = {}
        while wanted_files and (lacking := await deliver(wanted_files, contents)):
            digests = {digest for digest, _ in wanted_files.values()}
            if not {*lacking} <= digests - contents.keys():
                raise BackendUnavailable("sent an invalid response")
            contents = {}
            for path, (digest, mode) in list(wanted_files.items()):
                if digest not in lacking or digest in contents:
                    continue
                if sum(map(len, contents.values())) >= _FILES_AT_ONCE_BYTES:
                    break
                try:
                    content = _read(path)
                except OSError:
                    del wanted_files[path]
                    continue
                # The file may have changed since its digest was computed.
                current_digest = _digest(content)
                wanted_files[path] = self._digests[path] = current_digest, mode
                contents[current_digest] = content

    def _digest_and_mode(self, path: str) -> tuple[str, int] | None:
        """Return the digest and mode of a file; None if it cannot be read."""
        if path not in self._digests:
            with suppress(OSError):
                mode = stat.S_IMODE(Path(path).stat().st_mode)
                self._digests[path] = _digest(_read(path)), mode
        return self._digests.get(path)

    def _submit(
        self, worker: _Worker, function: Callable[..., Any], *arguments: object
    ) -> DaskFuture[Any]:
        submit = self._cluster.client.submit
        return submit(function, *arguments, workers=[worker.address], pure=False)

    async def _call(self, worker: _Worker, *call: Any, seconds: float | None = None) -> Any:
        """Call a function with arguments on a worker, and return the result.

        Raises:
            LostError: if the worker is lost or exceeds the time limit, or the function raises.
        """
        result = asyncio.ensure_future(self._submit(worker, *call))
        events = {result, worker.loss}
        await asyncio.wait(events, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        try:
            if result.done():
                return result.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a function may raise anything
            reason = f"ended: {type(error).__name__}: {error}"[:_MAX_LOSS_CHARS]
        else:
            result.cancel()
            reason = worker.loss.result() if worker.loss.done() else "does not respond"
        raise LostError(printable(f"{worker.address} {reason}"))
