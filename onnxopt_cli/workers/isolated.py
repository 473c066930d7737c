"""Run code in a forked process, because it may hang, exhaust the memory or crash."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from onnxopt_cli.core.helper_process import STARTED, fork_helper, held_signals

Item = TypeVar("Item")

# Time for a process to end a call into C after its time limit.
_GRACE_SECONDS = 10.0


class ProcessLostError(Exception):
    """The process ended or was killed before it had yielded all items."""


class TimeLimitError(BaseException):
    """Code took longer than its limit. Not an Exception, which the code may handle."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TimeLimitError` in Python code of the block that takes more processor time.

    Processor time does not depend on the load of the machine. Calls into C are not interrupted.
    Only the main thread may use this.
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
    """Yield the items that a function yields in a forked process.

    Where processes cannot be forked safely, the function runs in this process.

    Args:
        work: yields items that can be pickled.
        silence: time in seconds without an item, after which (and a grace period) the process is
            killed.
        memory: bytes that the process may allocate in addition to those of this process.

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
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        STARTED.discard(process)
        ours.close()


@contextmanager
def memory_limit(memory: int) -> Iterator[None]:
    """Limit the memory that code in the block may allocate, in bytes.

    macOS and Windows have no such limit.
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
    """Limit the address space of this process to its current size plus further bytes.

    Args:
        memory: the number of further bytes.
        most: the hard limit, up to which the process may raise the limit; None for no hard limit.
    """
    # Some systems lack this module.
    import resource

    with suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a real file
            pages = int(file.read().split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(
            resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY if most is None else most)
        )
