"""Run code in forked processes, or in this process if the system cannot fork safely.

:func:`parallel` applies a function to many items. :func:`isolated` runs code that may hang, exhaust
the memory or crash. :func:`time_limit` and :func:`memory_limit` limit a block of code.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from onnxopt_cli.backends.conversation import TICK_SECONDS
from onnxopt_cli.core.process_control import (
    STARTED,
    fork_helper,
    held_signals,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


Item = TypeVar("Item")
Done = TypeVar("Done")

# Number of chunks that a process has at a time, so that it never waits for the next chunk.
_CHUNKS_IN_FLIGHT = 2
# The largest number of chunks per process that are computed before their results are requested.
_CHUNKS_AHEAD = 8
# Seconds that a process has to end a call into C after its time limit.
_GRACE_SECONDS = 10.0


def parallel(
    work: Callable[[Item], Done],
    items: Sequence[Item],
    jobs: int,
    chunk: int = 8,
    stop: Callable[[], object] = lambda: False,
) -> Generator[Done]:
    """Yield ``work(item)`` for every item, in order.

    If a forked process ends, if ``work`` raises an exception there, or if a result cannot be
    pickled, this process does the work again. Therefore, no result is lost, and exceptions of
    ``work`` are raised in this process.

    Args:
        work: any function; its results should be picklable if there are several jobs.
        items: the arguments of ``work``.
        jobs: number of processes; 1 means this process.
        chunk: number of items that a process takes at a time.
        stop: returns whether to stop early.
    """
    chunks = [items[start : start + chunk] for start in range(0, len(items), chunk)]
    # macOS can fork, but its libraries may crash in a forked process.
    if min(jobs, len(chunks)) <= 1 or sys.platform in {"darwin", "win32"}:
        yield from map(work, items)
        return
    from multiprocessing.connection import wait

    unassigned = deque(range(len(chunks)))
    done: dict[int, list[Done] | None] = {}
    with ExitStack() as stack:
        helpers: list[_Helper] = []
        with held_signals(), suppress(OSError):
            while len(helpers) < min(jobs, len(chunks)):
                helpers.append(_Helper(lambda number: [*map(work, chunks[number])], helpers))
                stack.callback(helpers[-1].end)
        for number, items_of_chunk in enumerate(chunks):
            end = number + _CHUNKS_AHEAD * jobs
            while number not in done and not stop():
                for helper in helpers:
                    # Near the end, each process has only one chunk, so that idle processes take the
                    # last chunks.
                    is_near_end = len(unassigned) <= len(helpers) * _CHUNKS_IN_FLIGHT
                    most = 1 if is_near_end else _CHUNKS_IN_FLIGHT
                    while unassigned and unassigned[0] < end and len(helper.assigned) < most:
                        helper.assign(unassigned.popleft())
                busy = [helper for helper in helpers if helper.assigned]
                ready = wait([helper.connection for helper in busy], TICK_SECONDS)
                for helper in [helper for helper in busy if helper.connection in ready]:
                    done |= helper.receive()
                if not any(number in helper.assigned for helper in helpers):
                    done.setdefault(number, None)
            if stop():
                return
            results = done.pop(number)
            yield from map(work, items_of_chunk) if results is None else results


class _Helper:
    """A forked process that works on chunks.

    Args:
        work: the function that the process calls with the number of each chunk.
        others: processes whose connections the new process must close.

    Attributes:
        connection: the connection to the process.
        assigned: numbers of the chunks that the process has not finished, in order.

    Raises:
        OSError: if the system allows no more processes or open files.
    """

    def __init__(self, work: Callable[[int], object], others: Sequence[_Helper]) -> None:
        from multiprocessing.connection import Pipe

        self.assigned: deque[int] = deque()
        self.connection, theirs = Pipe()

        def serve() -> None:
            for helper in (self, *others):
                helper.connection.close()
            _work(theirs, work)

        self._process = fork_helper(serve)
        theirs.close()

    def assign(self, number: int) -> None:
        """Send the number of a chunk to the process."""
        self.assigned.append(number)
        # If the process has ended, sending fails here, and receive() reports the end.
        with suppress(OSError):
            self.connection.send(number)

    def receive(self) -> dict[int, list[Done] | None]:
        """Return results by chunk number; a chunk that failed has None."""
        try:
            results: list[Done] | None = self.connection.recv()
            return {self.assigned.popleft(): results}
        except (OSError, EOFError):
            unfinished, self.assigned = self.assigned, deque()
            return dict.fromkeys(unfinished)

    def end(self) -> None:
        """Kill the process."""
        _end(self._process, self.connection)


def _work(connection: Connection, work: Callable[[int], object]) -> NoReturn:
    while True:
        number = connection.recv()
        try:
            connection.send(work(number))
        except Exception:  # noqa: BLE001 - raised again in the parent
            connection.send(None)


def _end(process: int, connection: Connection) -> None:
    """Kill a forked process, and close the connection to it."""
    # If SIGCHLD is ignored, the system reaps the process and waitpid fails.
    with suppress(OSError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    STARTED.discard(process)
    connection.close()


class ProcessLostError(Exception):
    """The process ended or was killed before it had yielded all items."""


class TimeLimitError(BaseException):
    """Code took longer than its time limit.

    TimeLimitError is not a subclass of Exception, so that code which catches Exception does not
    catch it.
    """


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TimeLimitError` in the block once it has used ``seconds`` of processor time.

    Processor time does not depend on the load of the machine. Calls into C are not interrupted.
    Only the main thread may use this function.
    """

    def expire(_signal: int, _frame: object) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def isolated(work: Callable[[], Iterable[Item]], silence: float, memory: int) -> Generator[Item]:
    """Run a function in a forked process, and yield the items that the function yields.

    If processes cannot be forked safely, the function runs in this process.

    Args:
        work: yields items that can be pickled.
        silence: number of seconds, to which a grace period is added. If the process yields no item
            for this time, it is killed.
        memory: bytes that the forked process may allocate in addition to the memory of its parent.

    Raises:
        ProcessLostError: if the process is killed or crashes.
    """
    if sys.platform in {"darwin", "win32"}:
        yield from work()
        return
    from multiprocessing.connection import Pipe

    with held_signals():
        ours, theirs = Pipe(duplex=False)

        def serve() -> None:
            ours.close()
            _limit_memory(memory)
            for item in work():
                theirs.send((item,))
            theirs.send(None)

        process = fork_helper(serve)
    theirs.close()
    try:
        while True:
            if not ours.poll(silence + _GRACE_SECONDS):
                raise ProcessLostError(f"took more than {silence:g} s")
            message: Any = ours.recv()
            if message is None:
                return
            yield message[0]
    except (OSError, EOFError) as error:
        raise ProcessLostError("crashed") from error
    finally:
        _end(process, ours)


@contextmanager
def memory_limit(memory: int) -> Iterator[None]:
    """Limit the memory that code in the block may allocate, in bytes.

    macOS and Windows cannot limit the memory of a block.
    """
    if sys.platform in {"darwin", "win32"}:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    _limit_memory(memory, before[1])
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _limit_memory(memory: int, most: int | None = None) -> None:
    """Limit the address space of the calling process to its current size plus further bytes.

    Args:
        memory: the number of further bytes.
        most: the hard limit, up to which the process may raise the limit; None for no hard limit.
    """
    # Some systems lack the module resource.
    import resource

    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a real file
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(
            resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY if most is None else most)
        )
