"""Whether a worker holds more after a case than it ever did: memory, threads, files, processes.

Growth alone is no leak: what is imported or allocated once, and kept, also grows. So the worker
runs the case again; only what grows every time, and is still there a moment later, is called a
leak. A process that has lost its parent is one at once, as no process will wait for it.
"""

from __future__ import annotations

import sys
import time
from enum import Enum, auto

from onnxopt_cli.core.text import printable
from onnxopt_cli.isolation.processes import children, descendants, name_of, usage

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

    DONE = auto()
    AGAIN = auto()
    WAIT = auto()


class Watch:
    """Looks at a worker after each case.

    Args:
        keeper: the process whose first child the worker is.

    Attributes:
        leak: what the last case left behind, in words; empty if nothing.
    """

    def __init__(self, keeper: int) -> None:
        self.leak = ""
        self._keeper = keeper
        # Only Linux has keepers, whose first child is the worker; orphans become others.
        kept = children(keeper) if sys.platform == "linux" else []
        self._worker = kept[0] if kept else keeper
        self._known_orphans = set(kept[1:])
        self._most = self._amounts()
        # What was held before the suspicious case, and what grew each time that it ran.
        self._before: dict[str, int] = {}
        self._suspects: dict[str, int] = {}
        self._confirmations = 0

    def after_answer(self) -> Step:
        """Look at the worker when it has answered, for the first time or again."""
        orphans = self._new_orphans()
        if orphans:
            self.leak = f"leaves processes behind: {', '.join(orphans)}"
            return self._clear()
        before, held = self._most, self._amounts()
        grown = {
            what: more
            for what, amount in held.items()
            if (more := amount - before.get(what, 0)) > _ALLOWED[what]
        }
        # Memory that grows slowly must not add up to a leak of the case that it happens to be at.
        self._most = {what: max(n, before.get(what, 0)) for what, n in held.items()}
        if not self._suspects:
            self.leak = ""
            self._before, self._suspects = before, grown
        else:
            self._suspects = {what: n for what, n in self._suspects.items() if what in grown}
        if not self._suspects:
            return self._clear()
        if self._confirmations == _CONFIRMATIONS:
            return Step.WAIT
        self._confirmations += 1
        return Step.AGAIN

    def after_wait(self) -> Step:
        """Look at the worker when what was about to end has ended."""
        held = self._amounts()
        left = [
            f"{amount >> 20} MiB of memory" if what == "memory" else f"{amount} {what}"
            for what, amount in self._suspects.items()
            if held.get(what, 0) - self._before.get(what, 0)
            > _CONFIRMATIONS * max(1, _ALLOWED[what])
        ]
        if left:
            self.leak = f"leaves {' and '.join(left)} behind each time that it runs"
        return self._clear()

    def _clear(self) -> Step:
        self._suspects, self._confirmations = {}, 0
        return Step.DONE

    def _amounts(self) -> dict[str, int]:
        held = usage(self._worker)
        return held and {**held, "child processes": len(descendants(self._worker))}

    def _new_orphans(self) -> list[str]:
        """Return the names of processes that have lost their parent since the last look."""
        found = self._orphans()
        if found:
            time.sleep(_GRACE_SECONDS)
            found &= self._orphans()
        self._known_orphans |= found
        return sorted(printable(name_of(process)) or str(process) for process in found)

    def _orphans(self) -> set[int]:
        if self._worker == self._keeper:
            return set()
        return set(children(self._keeper)) - self._known_orphans - {self._worker}
