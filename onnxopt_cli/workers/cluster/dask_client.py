"""Other machines, through Dask: one way to send work there, for cases, audits and searches.

Dask connects the machines, moves bytes and says who is there. Which worker gets what is decided
here, one piece of work each at a time, so that a machine that is lost is known to be lost with that
piece: it is tried on one more machine, and never on a third.

All of Dask's parties unpickle what they are sent, so they trust each other. What a backend under
test has returned is never among that: see :mod:`onnxopt_cli.workers.cluster.sidecar`.
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
import tempfile
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

from onnxopt_cli.cases.tensors.regular_file import Malformed, read_regular_file
from onnxopt_cli.core.blocks import available_jobs
from onnxopt_cli.core.codec import read_json
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import BackendUnavailable, UsageError
from onnxopt_cli.workers.cluster.sidecar import (
    Setup,
    Sidecar,
    end,
    versions,
)
from onnxopt_cli.workers.interruption import Interruption

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as Answer

Done = TypeVar("Done")

# A batch should take so long, of what is left of the work at most a part, and have no more items.
_BATCH_SECONDS = 1.0
# With many workers longer: the client can see to one batch in so many seconds.
_TASK_SECONDS = 0.01
_LARGEST_BATCH = 1000
# On so many machines that are lost a piece of work is tried.
_TRIES = 2
# How often it is looked who is there, and after how long without a sign of life a worker is lost.
_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 30.0
# How long the scheduler may take to answer, and workers to come where there is none.
_SCHEDULER_SECONDS = 20.0
_WORKERS_SECONDS = 60.0
# How long what is left may take to end.
_ENDING_SECONDS = 10.0
_TICK_SECONDS = 0.05
# Bytes that a scheduler's file may have, and how long it may have none: it is there before it is
# written.
_LARGEST_FILE = 1 << 20
_FILE_SECONDS = 2.0
# Characters of what Dask says of a peer that is none.
_MAX_ERROR_CHARS = 300
# What reading something else than an answer may raise.
_ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
# Bytes of files that are sent at once.
_SENT = 32 << 20


class LostError(Exception):
    """A worker was lost, or answered what is no answer, while it had a piece of work: who and how.

    Of work that was lost each time it names all of them.
    """


@dataclass(eq=False)
class Cluster:
    """A connection to a cluster, in a thread of its own; a local one is started, and ended.

    Attributes:
        where: ``local`` or ``local:N``, without a number with a worker for each processor; the
            address of a scheduler, or its file.
        interruption: set when the user wants to end.
        tell: called with what the user should know: which workers are refused.
        ship: files and folders that every worker is sent.
        tls: files of the certificates to trust, our own, and its key; none for what Dask's
            configuration says.
        insecure: whether to go without TLS to other machines.
        packages: what workers must have in our version beside what all have.
        client: Dask's client, which only the thread may use.
        local: whether all of it is on this machine, where files need not be sent.
        shipped: the files that every worker is sent.
        versions: what every worker must have.
        workers: the workers that do something for us, once there are some.

    Raises:
        UsageError: if ``distributed`` is not installed, or the address is none that may be used.
        BackendUnavailable: if nobody answers there.
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
        self._where = "this machine" if match else _scheduler(self.where, insecure=self.insecure)
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
        # Ctrl-C is for the client: what is started from here does not hear it, and is ended by it.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        self._loop.run_forever()

    async def _connect(self) -> None:
        import dask
        import distributed

        # What is logged of lost connections is told by us.
        for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        # Much of it has no types.
        module: Any = distributed
        make, security = self._stack.enter_async_context, self._security(module)
        try:
            where = None
            if self.local:
                folder = tempfile.TemporaryDirectory(prefix="onnxopt-", ignore_cleanup_errors=True)
                self._stack.callback(folder.cleanup)
                # What has no folder of its own locks one there.
                places = {"temporary-directory": folder.name}
                self._stack.enter_context(dask.config.set(places))
                where = await make(module.LocalCluster(
                    n_workers=self._local_workers, threads_per_worker=1, memory_limit=0,
                    host="127.0.0.1", dashboard_address="127.0.0.1:0", local_directory=folder.name,
                    silence_logs=logging.CRITICAL, asynchronous=True,
                ))  # fmt: skip
            # Dask's own timeout does not hold where somebody accepts the connection in silence.
            self.client = module.Client(
                where or self._where, asynchronous=True, security=security,
                timeout=_SCHEDULER_SECONDS, set_as_default=False,
            )  # fmt: skip
            self._stack.push_async_callback(self.client.close)
            async with asyncio.timeout(_SCHEDULER_SECONDS):
                await self.client
        except TimeoutError:
            why = f"it has said nothing that a scheduler says for {_SCHEDULER_SECONDS:g} s"
        except OSError as error:
            why = str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001 - what is there may send anything
            # Even a number of bytes that no machine has.
            why = f"what is there sends something else ({type(error).__name__}: {error})"[
                :_MAX_ERROR_CHARS
            ]
        else:
            return
        raise BackendUnavailable(printable(f"no scheduler answers at {self._where}: {why}"))

    def _security(self, distributed: Any) -> Any:
        """Return the certificates to speak with; None where the address asks for none.

        Raises:
            UsageError: if there are none, or they cannot be used.
        """
        if not self._where.startswith("tls"):
            return None
        names = ("tls_ca_file", "tls_client_cert", "tls_client_key")
        given = dict(zip(names, self.tls, strict=False))
        hint = "" if self.tls else "--tls CA CERT KEY names certificates"
        try:
            security = distributed.Security(require_encryption=True, **given)
            if security.get_connection_args("client")["ssl_context"]:
                return security
            why = "there are no certificates"
        except (OSError, ValueError, TypeError) as error:
            why = str(error)
        raise UsageError(printable(f"--cluster {self._where}: {why}"), hint=hint)

    @property
    def size(self) -> int:
        """How many workers are at work."""
        return self.workers.size if self.workers else 0

    def start(self, work: Coroutine[Any, Any, Done]) -> Future[Done]:
        """Have the thread do something meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Done]) -> Done:
        """Have the thread do something, and wait for it.

        Raises:
            KeyboardInterrupt: if the user wants to end.
        """
        future = self.start(work)
        while not wait([future], _TICK_SECONDS).done:
            if self.interruption.signal:
                future.cancel()
                raise KeyboardInterrupt
        return future.result()

    def close(self) -> None:
        """Leave the cluster, and end a local one."""
        with suppress(Exception):
            self.start(self._stack.aclose()).result(_ENDING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ENDING_SECONDS)

    async def present(self) -> dict[str, dict[str, float]]:
        """Return when the scheduler last saw each worker, and its threads, by its address.

        Raises:
            BackendUnavailable: if it does not answer, or not as a scheduler.
        """
        scheduler: Any = self.client.scheduler
        try:
            # It would try again for long to connect.
            seconds = _SCHEDULER_SECONDS if self.client.status == "running" else 0
            found = await asyncio.wait_for(scheduler.identity(n_workers=-1), seconds)
            return {
                str(address): {name: float(worker[name]) for name in ("last_seen", "nthreads")}
                for address, worker in found["workers"].items()
            }
        except (TimeoutError, OSError):
            how = "does not answer any more"
        except Exception as error:  # noqa: BLE001 - whatever it sends
            how = f"sends something else ({type(error).__name__}: {error})"[:_MAX_ERROR_CHARS]
        raise BackendUnavailable(
            printable(f"the scheduler at {self._where} {how}"),
            hint="a run with a log goes on with --resume LOG, with or without --cluster",
        )


def _scheduler(where: str, *, insecure: bool) -> str:
    """Return a scheduler's address, if it may be used.

    Raises:
        UsageError: if it is none, or would be spoken to in the clear on another machine.
    """
    try:
        if "://" not in where:
            until = monotonic() + _FILE_SECONDS
            while not (text := read_regular_file(where, _LARGEST_FILE)) and monotonic() < until:
                sleep(_TICK_SECONDS)
            where = str(read_json(text)["address"])
        parts = urlsplit(where)
        host, known = str(parts.hostname), parts.scheme in {"tcp", "tls"} and parts.port
    except (Malformed, ValueError, KeyError, TypeError):
        known = None
    if not known:
        raise UsageError(
            f"--cluster {printable(where)} is neither the address of a scheduler nor its file",
            hint="write local, local:N, tcp://HOST:PORT, tls://HOST:PORT, or the file's path",
        )
    with suppress(ValueError):
        here = host == "localhost" or parts.scheme == "tls" or insecure
        if here or ip_address(host).is_loopback:
            return where
    raise UsageError(
        f"--cluster {printable(where)}: whoever is on the way could run code on every machine",
        hint="give --tls CA CERT KEY and a tls:// address; --insecure goes without TLS",
    )


def _files_below(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (real_place(it) for it in found if it.is_file())


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


@lru_cache(1 << 14)
def real_place(path: Path | str) -> str:
    """Return a path under which a file has the names that its ids are made of."""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100 - many, and strings do
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - as above


@dataclass(eq=False, slots=True)
class _Work(Generic[Done]):
    """What is asked of workers, batch by batch; only the cluster's thread calls it.

    Attributes:
        request: as :meth:`WorkerGroup.spread` has it, and so are the items, read and files.
        parts: the places of each part that nobody has taken.
        done: what has come, by place.
    """

    request: str
    items: Sequence[Any]
    read: Callable[[int, Any], Done]
    files: Callable[[int], Sequence[str]]
    parts: list[range]
    done: SimpleQueue[dict[int, Done | LostError]] = field(default_factory=SimpleQueue)
    # The part that each worker is at.
    _at: dict[str, int] = field(default_factory=dict)
    _pace: float = 0.0
    # What was lost is tried again alone, by place with where and how.
    _lost: dict[int, dict[str, str]] = field(default_factory=dict)
    _again: deque[int] = field(default_factory=deque)

    def take(self, address: str, workers: int) -> list[int]:
        """Return the places of what a worker is to do next; none if there is nothing now."""
        for place in self._again:
            if workers == 1 or address not in self._lost[place]:
                self._again.remove(place)
                return [place]
        left = [*map(len, self.parts)]
        at = self._at.get(address, 0)
        if address not in self._at or not left[at]:
            there = Counter(self._at.values())
            at = max(range(len(left)), key=lambda it: left[it] / (1 + there[it]))
            self._at[address] = at
        seconds = max(_BATCH_SECONDS, _TASK_SECONDS * workers)
        size = int(seconds / self._pace) if self._pace else 1
        size = max(1, min(size, _LARGEST_BATCH, -(-left[at] // (2 * max(workers, 1)))))
        first, last = self.parts[at].start, self.parts[at].stop
        end = first + min(size, left[at])
        if end < last:
            # Whoever has a file in two batches may have to read it twice.
            ends = range(end, first + size // 2, -1)
            end = next((it for it in ends if self.files(it - 1) != self.files(it)), end)
        self.parts[at] = range(end, last)
        return [*range(first, end)]

    def message(self, batch: Sequence[int]) -> tuple[bytes, list[str]]:
        """Return the request for what stands at some places, and the files that it needs."""
        items = [self.items[place] for place in batch]
        request = json.dumps({"request": self.request, "items": items}).encode()
        return request, [path for place in batch for path in self.files(place)]

    def finish(self, batch: Sequence[int], answers: Any, seconds: float) -> None:
        """Take a worker's answer.

        Raises:
            ValueError: if it is none; KeyError, TypeError, AttributeError likewise.
        """
        pairs = zip(batch, answers, strict=True)
        self.done.put({place: self.read(place, answer) for place, answer in pairs})
        pace = seconds / len(batch)
        self._pace = (self._pace + pace) / 2 if self._pace else pace

    def lose(self, batch: Sequence[int], address: str, how: str) -> None:
        """Have it done again, by a worker that has not lost it, or not any more."""
        for place in batch:
            lost = self._lost.setdefault(place, {})
            lost[address if address not in lost else how] = how
            if len(lost) < _TRIES:
                self._again.append(place)
            else:
                self.done.put({place: LostError("; ".join(lost.values()))})


@dataclass(eq=False, slots=True)
class _Worker:
    """A worker of the cluster.

    Attributes:
        address: its address, which is its name for the user, too.
        sidecar: what it holds for us.
        gone: why it is lost, once it is.
        files: paths that it has.
        seen: the last sign of life, as the scheduler has it, and when that was new.
        told: whether it is ready, and agrees.
        refused: why it is not used, if it is not.
    """

    address: str
    sidecar: Answer[Any] | None = None
    gone: asyncio.Future[str] = field(default_factory=asyncio.Future)
    files: set[str] = field(default_factory=set)
    seen: tuple[float, float] = (0.0, 0.0)
    told: bool = False
    refused: BackendUnavailable | UsageError | None = None

    def lose(self, how: str) -> None:
        """Let nobody wait for it any more."""
        self.told = False
        if not self.gone.done():
            self.gone.set_result(how)


class WorkerGroup:
    """Workers that agree, and have opened the same thing.

    Args:
        cluster: the connection to them.
        opener: the module and function that open it, as a :class:`Setup` has it.
        terms: what that is called with.
        patience: in how many seconds a worker has to be done with an item; None for no limit.

    Attributes:
        hello: what the first worker said of what it has opened; all others say the same.
        size: how many there are.
    """

    def __init__(
        self, cluster: Cluster, opener: str, terms: object, patience: float | None = None
    ) -> None:
        from onnxopt_cli.operators.registry import registry

        self.hello: Any = None
        self._cluster = cluster
        operators = [real_place(it) for it in registry().files]
        here = str(Path.cwd())
        setup = Setup(cluster.versions, opener, terms, here, cluster.local, operators)
        self._setup = pickle.dumps(setup)
        self._run = f"run-{uuid4().hex}"
        self._workers: dict[str, _Worker] = {}
        self._failure: Exception | None = None
        self._digests: dict[str, tuple[str, int]] = {}
        self._work: _Work[Any] | None = None
        self._patience = patience
        self._alone_since = monotonic()
        cluster.workers = self
        self._watching = cluster.start(self._watch())

    @property
    def size(self) -> int:
        """How many workers are at work."""
        return sum(it.told for it in self._workers.values())

    def ready(self) -> None:
        """Wait for the first worker.

        Raises:
            UsageError: if all workers are refused, or what is to be opened is wrong.
            BackendUnavailable: if no worker comes, or it cannot be opened.
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
        """Yield what comes of each item, in order; of one that was lost each time, how it was.

        Args:
            request: what is asked.
            items: what it is asked of each time, as JSON has it.
            read: makes what is yielded of an item's place and its answer; raises ValueError,
                KeyError or TypeError if that is none.
            files: the files that an item needs.
            stop: tells whether to stop early, as when the user wants to end.
            part: of which part of the work an item is, which one worker does best: as far as there
                are enough parts, each worker is at another one. None if all is one part.

        Raises:
            BackendUnavailable: if the scheduler or all workers are lost.
        """
        # A search that only time ends has more items than can be looked at; they are one part.
        ends = [it for it in range(1, len(items)) if part(it) != part(it - 1)] if part else []
        parts = [*starmap(range, pairwise([0, *ends, len(items)]))]
        self._work = work = _Work(request, items, read, files, parts)
        done: dict[int, Done | LostError] = {}
        try:
            for place in range(len(items)):
                while place not in done:
                    if stop() or self._cluster.interruption.signal:
                        return
                    self._check()
                    with suppress(Empty):
                        done |= work.done.get(timeout=_TICK_SECONDS)
                yield done.pop(place)
        finally:
            self._work = None

    def ask(self, message: bytes) -> Callable[[], bytes | None]:
        """Ask one worker, in order; what is returned waits for its answer.

        The answer is None where the user wants to end. It raises LostError where workers were lost,
        and BackendUnavailable as :meth:`spread` does.
        """
        future = self._cluster.start(self._asked(message))

        def answer() -> bytes | None:
            while not wait([future], _TICK_SECONDS).done:
                self._check()
                if self._cluster.interruption.signal:
                    return None
            return future.result()

        return answer

    async def _asked(self, message: bytes) -> bytes:
        lost: list[str] = []
        while len(lost) < _TRIES:
            worker = next((it for it in self._workers.values() if it.told), None)
            if worker is None:
                await asyncio.sleep(_TICK_SECONDS)
                continue
            try:
                return await self._answer(worker, message)
            except LostError as error:
                lost.append(str(error))
        raise LostError("; ".join(lost))

    def everyone(self, message: bytes) -> list[bytes]:
        """Return the answers of all workers that answer."""

        async def every() -> list[bytes]:
            asked = [self._answer(it, message) for it in self._workers.values() if it.told]
            found = await asyncio.gather(*asked, return_exceptions=True)
            return [it for it in found if isinstance(it, bytes)]

        return self._cluster.run(every())

    def close(self) -> None:
        """End what runs on the workers, whatever it is doing."""
        self._watching.cancel()
        with suppress(Exception):
            self._cluster.start(self._end()).result(_ENDING_SECONDS)

    async def _end(self) -> None:
        here = [it for it in self._workers if not self._workers[it].gone.done()]
        for worker in self._workers.values():
            worker.lose("ended")
        if here and self._failure is None:
            client = self._cluster.client
            await client.run(end, self._run, workers=here, on_error="ignore")

    async def _watch(self) -> None:
        """Look who comes and goes, until the end."""
        joining = set()
        try:
            while True:
                present = await self._cluster.present()
                for address, worker in list(self._workers.items()):
                    self._see(worker, present.get(address))
                for address in present.keys() - self._workers.keys():
                    worker = self._workers[address] = _Worker(address)
                    joining.add(asyncio.create_task(self._join(worker, present[address])))
                self._require_workers()
                await asyncio.sleep(_LOOK_SECONDS + len(present) / 200)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error
            for worker in self._workers.values():
                worker.lose("has lost the scheduler")

    def _see(self, worker: _Worker, found: Mapping[str, float] | None) -> None:
        if found is None:
            worker.lose("was lost")
            del self._workers[worker.address]
        elif found["last_seen"] != worker.seen[0]:
            worker.seen = found["last_seen"], monotonic()
        elif monotonic() - worker.seen[1] > _SILENT_SECONDS:
            worker.lose("gives no sign of life")

    def _require_workers(self) -> None:
        refused = [it.refused for it in self._workers.values() if it.refused]
        if any(not it.gone.done() for it in self._workers.values()):
            self._alone_since = monotonic()
        elif refused and len(refused) == len(self._workers):
            raise refused[0]
        elif monotonic() - self._alone_since > _WORKERS_SECONDS:
            raise BackendUnavailable(
                f"the cluster has had no worker for {_WORKERS_SECONDS:g} s",
                hint="dask worker SCHEDULER starts one; it needs onnxopt installed",
            )

    async def _join(self, worker: _Worker, found: Mapping[str, float]) -> None:
        """Let a worker open what the others have, if it agrees with them; then give it work."""
        worker.seen = found["last_seen"], monotonic()
        try:
            name = f"{self._run}-{uuid4().hex}"
            worker.sidecar = self._submit(worker, Sidecar, name, self._setup)
            shipped = [] if self._cluster.local else self._cluster.shipped
            await self._deliver(worker, shipped)
            hello = await self._call(worker, Sidecar.start, worker.sidecar)
            self._take_hello(worker, hello, found["nthreads"])
            await self._serve(worker)
        except LostError as error:
            if worker.told:
                # The machine is there, and gets another process.
                del self._workers[worker.address]
            elif not worker.gone.done():
                self._refuse(worker, BackendUnavailable(str(error)))
            worker.lose("ended")
        except (UsageError, BackendUnavailable) as error:
            self._refuse(worker, error)
        except _ODD:
            self._refuse(worker, BackendUnavailable("sent what is not an answer"))
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error

    def _refuse(self, worker: _Worker, why: UsageError | BackendUnavailable) -> None:
        why.message = f"worker {worker.address} {why.message}"
        worker.refused = why
        worker.lose("is not used")
        self._cluster.tell(f"not used: {why.message}")

    def _take_hello(self, worker: _Worker, answer: bytes, threads: float) -> None:
        if threads != 1:
            raise UsageError(f"has {threads:g} threads", hint="start it with --nthreads 1")
        match read_json(answer):
            case {"refusal": str(message), "hint": str(hint), "code": code}:
                kind = UsageError if code == UsageError.exit_code else BackendUnavailable
                raise kind(printable(message, lines=True), hint=printable(hint, lines=True))
            case {"hello": hello}:
                if self.hello is None:
                    self.hello = hello
                elif hello != self.hello:
                    what = f"has {hello}, not {self.hello} as the first worker"
                    raise UsageError(printable(what))
                worker.told = True
                return
        raise BackendUnavailable("did not say what it has")

    async def _serve(self, worker: _Worker) -> None:
        """Give a worker batch after batch."""
        while not worker.gone.done():
            work = self._work
            batch = work.take(worker.address, self.size) if work is not None else []
            if work is None or not batch:
                await asyncio.sleep(_TICK_SECONDS)
                continue
            began = monotonic()
            try:
                message, files = work.message(batch)
                await self._deliver(worker, files)
                answer = await self._answer(worker, message, len(batch))
                work.finish(batch, read_json(answer, 1 << 26), monotonic() - began)
            except LostError as error:
                work.lose(batch, worker.address, str(error))
                raise
            except _ODD:
                said = "sent what is not an answer"
                work.lose(batch, worker.address, f"{worker.address} {said}")
                raise BackendUnavailable(said) from None

    async def _answer(self, worker: _Worker, message: bytes, items: int = 1) -> bytes:
        seconds = self._patience and self._patience * items
        found = await self._call(worker, Sidecar.ask, worker.sidecar, message, seconds=seconds)
        if not isinstance(found, bytes):
            raise BackendUnavailable("sent what is not an answer")
        return found

    async def _deliver(self, worker: _Worker, paths: Sequence[str]) -> None:
        """Send a worker files that it does not have."""
        new = [path for path in dict.fromkeys(paths) if path not in worker.files]
        # What is not here any more is missed where it is read.
        wanted = {path: found for path in new if (found := self._seen(path))}
        worker.files.update(new)
        deliver = partial(self._call, worker, Sidecar.deliver, worker.sidecar)
        places = {digest: path for path, (digest, _) in wanted.items()}
        sent: dict[str, bytes] = {}
        while wanted and (lacking := await deliver(wanted, sent)):
            sent = {}
            for digest in lacking:
                if sum(map(len, sent.values())) < _SENT:
                    sent[digest] = _read(places[digest])

    def _seen(self, path: str) -> tuple[str, int] | None:
        """Return the digest and mode of a file; None if it cannot be read."""
        if path not in self._digests:
            with suppress(OSError):
                mode = stat.S_IMODE(Path(path).stat().st_mode)
                self._digests[path] = blake2b(_read(path), digest_size=20).hexdigest(), mode
        return self._digests.get(path)

    def _submit(
        self, worker: _Worker, function: Callable[..., Any], *arguments: object
    ) -> Answer[Any]:
        submit = self._cluster.client.submit
        return submit(function, *arguments, workers=[worker.address], pure=False)

    async def _call(self, worker: _Worker, *what: Any, seconds: float | None = None) -> Any:
        """Return what a function returns on a worker.

        Raises:
            LostError: if the worker is lost, takes longer, or the function raises something.
        """
        result = asyncio.ensure_future(self._submit(worker, *what))
        either = {result, worker.gone}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        try:
            if result.done():
                return result.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is
            how = f"ended: {type(error).__name__}: {error}"[:200]
        else:
            result.cancel()
            how = worker.gone.result() if worker.gone.done() else "does not answer"
        raise LostError(printable(f"{worker.address} {how}"))
