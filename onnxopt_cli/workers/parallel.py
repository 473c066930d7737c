"""The same work on many things, in several processes where the system can fork."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

from onnxopt_cli.backends.conversation import TICK_SECONDS
from onnxopt_cli.core.helper_process import (
    STARTED,
    fork_helper,
    held_signals,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Done = TypeVar("Done")

# Chunks that a process has at a time, so that it need not wait; and how far all may be ahead.
_ITEMS_IN_FLIGHT = 2
_ITEMS_AHEAD = 8


def parallel(
    work: Callable[[Item], Done],
    items: Sequence[Item],
    jobs: int,
    chunk: int = 8,
    stop: Callable[[], object] = lambda: False,
) -> Generator[Done]:
    """Yield ``work(item)`` for every item, in order.

    What a process cannot do, because it ends, or the work raises or returns what cannot be sent,
    is done again in this process. So nothing is lost, and what is raised is raised here.

    Args:
        work: any function; what it returns should be picklable if jobs is more than one.
        items: what to call it with.
        jobs: number of processes; one means this process.
        chunk: number of items that a process takes at a time.
        stop: tells whether to stop early.
    """
    chunks = [items[start : start + chunk] for start in range(0, len(items), chunk)]
    # macOS can fork, but its libraries may crash in a process that was forked.
    if min(jobs, len(chunks)) <= 1 or sys.platform in {"darwin", "win32"}:
        yield from map(work, items)
        return
    from multiprocessing.connection import wait

    unasked = deque(range(len(chunks)))
    done: dict[int, list[Done] | None] = {}
    with ExitStack() as stack:
        helpers: list[_Helper] = []
        with held_signals(), suppress(OSError):
            while len(helpers) < min(jobs, len(chunks)):
                helpers.append(_Helper(lambda number: [*map(work, chunks[number])], helpers))
                stack.callback(helpers[-1].end)
        for number, here in enumerate(chunks):
            ahead = number + _ITEMS_AHEAD * jobs
            while number not in done and not stop():
                for helper in helpers:
                    # The last ones go to whoever is idle.
                    most = _ITEMS_IN_FLIGHT if len(unasked) > len(helpers) * _ITEMS_IN_FLIGHT else 1
                    while unasked and unasked[0] < ahead and len(helper.asked) < most:
                        helper.ask(unasked.popleft())
                ready = wait([it.connection for it in helpers if it.asked], TICK_SECONDS)
                for helper in [it for it in helpers if it.connection in ready]:
                    done |= helper.answer()
                if not any(number in helper.asked for helper in helpers):
                    done.setdefault(number, None)
            if stop():
                return
            found = done.pop(number)
            yield from map(work, here) if found is None else found


class _Helper:
    """A process that was forked to work.

    Args:
        work: what it calls with each number that it is asked for.
        others: what it must not hold the connections of.

    Attributes:
        connection: from which answers come.
        asked: the numbers that it has not answered, in order.

    Raises:
        OSError: if the system allows no more processes or open files.
    """

    def __init__(self, work: Callable[[int], object], others: Sequence[_Helper]) -> None:
        from multiprocessing.connection import Pipe

        self.asked: deque[int] = deque()
        self.connection, theirs = Pipe()

        def serve() -> None:
            for held in (self, *others):
                held.connection.close()
            _work(theirs, work)

        self._process = fork_helper(serve)
        theirs.close()

    def ask(self, number: int) -> None:
        """Have it call its work with a number."""
        self.asked.append(number)
        # Whether it has ended is seen where its answer is awaited.
        with suppress(OSError):
            self.connection.send(number)

    def answer(self) -> dict[int, list[Done] | None]:
        """Return what it has answered by number; None for what it could not do."""
        try:
            found: list[Done] | None = self.connection.recv()
            return {self.asked.popleft(): found}
        except (OSError, EOFError):
            left, self.asked = self.asked, deque()
            return dict.fromkeys(left)

    def end(self) -> None:
        """Kill it."""
        # Where whoever started the command ignores the end of children, nothing is left of one.
        with suppress(OSError):
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
        STARTED.discard(self._process)
        self.connection.close()


def _work(connection: Connection, work: Callable[[int], object]) -> NoReturn:
    while True:
        number = connection.recv()
        try:
            connection.send(work(number))
        except Exception:  # noqa: BLE001 - whatever it is, it happens again in the parent
            connection.send(None)
