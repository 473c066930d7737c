"""Whether a worker holds more after a case than it ever did: memory, threads, files, processes.

Growth alone is no leak: what is imported or allocated once, and kept, also grows. So the worker
runs the case again; only what grows every time, and is still there a moment later, is called a
leak. A process that has lost its parent is one at once, as no process will wait for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from enum import Enum, auto

from onnxopt_cli.core.text import printable
from onnxopt_cli.workers.memory import FileKey, memory_files
from onnxopt_cli.workers.processes import (
    children,
    descendants,
    name_of,
    resident,
    usage,
)

#: What a case may keep without being asked again.
_ALLOWED = {"memory": 32 << 20, "threads": 0, "file descriptors": 0, "child processes": 0}
# How often a case must run again, and grow each time, before growth is called a leak.
_CONFIRMATIONS = 3
# How long a process that has lost its parent may take to end by itself.
_GRACE_SECONDS = 0.05
#: How long what a case started may take to end by itself.
SETTLING_SECONDS = 0.5


class Step(Enum):
    """What the worker must do before the watch can tell."""

    AGAIN = auto()
    WAIT = auto()


class Watch:
    """Looks at a worker after each case.

    Args:
        supervisor: the process whose first child the worker is.
        spared: files in memory that are not the worker's.
    """

    def __init__(self, supervisor: int, spared: Collection[FileKey] = ()) -> None:
        self._supervisor, self._spared = supervisor, frozenset(spared)
        # Only Linux has supervisors, whose first child is the worker; orphans become others.
        kept = children(supervisor) if sys.platform == "linux" else []
        self._worker = kept[0] if kept else supervisor
        self._known_orphans = set(kept[1:])
        self._most = self._amounts()

    def look(self) -> Iterator[Step | str]:
        """Look at the worker when it has answered, and whenever it has done what was yielded.

        Yields:
            What it must do; in the end what the case left behind, in words, empty if nothing.
        """
        before = self._most
        suspects: dict[str, int] = {}
        for step in (*[Step.AGAIN] * _CONFIRMATIONS, Step.WAIT):
            if orphans := self._new_orphans():
                yield f"leaves processes behind: {', '.join(orphans)}"
                return
            grown = self._growth()
            suspects = {what: n for what, n in (suspects or grown).items() if what in grown}
            if not suspects:
                yield ""
                return
            yield step
        held = self._amounts()
        left = [
            f"{amount >> 20} MiB of memory" if what == "memory" else f"{amount} {what}"
            for what, amount in suspects.items()
            if held.get(what, 0) - before.get(what, 0) > _CONFIRMATIONS * max(1, _ALLOWED[what])
        ]
        yield f"leaves {' and '.join(left)} behind each time that it runs" if left else ""

    def _growth(self) -> dict[str, int]:
        """Return by how much the worker holds more than it ever did, where that is too much."""
        most, held = self._most, self._amounts()
        # Memory that grows slowly must not add up to a leak of the case that it happens to be at.
        self._most = {what: max(n, most.get(what, 0)) for what, n in held.items()}
        growth = {what: n - most.get(what, 0) for what, n in held.items()}
        return {what: more for what, more in growth.items() if more > _ALLOWED[what]}

    def _amounts(self) -> dict[str, int]:
        held = usage(self._worker)
        if not held:
            return held
        below = descendants(self._worker)
        files: dict[FileKey, int] = {}
        for process in (self._worker, *below):
            files |= memory_files(process)
        # A file in memory need be mapped nowhere, and a child may be the one that grows.
        held["memory"] += sum(map(resident, below))
        held["memory"] += sum(size for key, size in files.items() if key not in self._spared)
        return {**held, "child processes": len(below)}

    def _new_orphans(self) -> list[str]:
        """Return the names of processes that have lost their parent since the last look."""
        found = self._orphans()
        if found:
            time.sleep(_GRACE_SECONDS)
            found &= self._orphans()
        self._known_orphans |= found
        return sorted(printable(name_of(process)) or str(process) for process in found)

    def _orphans(self) -> set[int]:
        if self._worker == self._supervisor:
            return set()
        return set(children(self._supervisor)) - self._known_orphans - {self._worker}
