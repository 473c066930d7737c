"""The same work on many things, in several processes where the system can fork."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from onnxopt_cli.isolation.interruption import held_signals, plain_signals

Item = TypeVar("Item")
Done = TypeVar("Done")

# What the forked processes work on; inherited, since closures cannot be sent to them.
_work: list[Callable[[int], object]] = []


def parallel(
    work: Callable[[Item], Done], items: Sequence[Item], jobs: int, chunk: int = 8
) -> Iterator[Done]:
    """Yield ``work(item)`` for every item, in order.

    Args:
        work: any function; what it returns must be picklable if jobs is more than one.
        items: what to call it with.
        jobs: number of processes; one means this process.
        chunk: number of items that a process takes at a time.
    """
    if jobs <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    import multiprocessing

    # macOS can fork, but its libraries may crash in a process that was forked.
    if sys.platform == "darwin" or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(work, items)
        return
    _work.append(lambda index: work(items[index]))
    try:
        context = multiprocessing.get_context("fork")
        try:
            context.Lock()
        except OSError:
            # Locks lie in /dev/shm, which may be full or not there at all.
            yield from map(work, items)
            return
        with held_signals():
            pool = context.Pool(min(jobs, len(items)), _begin, [os.getpid()])
        with pool:
            yield from pool.imap(_call, range(len(items)), chunksize=chunk)
    finally:
        _work.pop()


def _begin(parent: int) -> None:
    """End with the parent, however that ends, and leave Ctrl-C to it."""
    from onnxopt_cli.isolation.keeper import end_with

    plain_signals()
    if sys.platform == "linux":
        end_with(parent, signal.SIGKILL)


def _call(index: int) -> object:
    return _work[-1](index)
