"""Whether a worker holds more after a case than it ever did: memory, threads, files, processes.

Growth alone is no leak: what is imported or allocated once, and kept, also grows. So the worker
runs the case again, and only what grows every time is called a leak. A process that has lost its
parent is one at once: nobody will ever wait for it.
"""

from __future__ import annotations

import time

from onnxopt_cli.core.text import printable
from onnxopt_cli.run.processes import children, descendants, name_of, usage

#: How often a case must run again, and grow each time, before growth is called a leak.
CONFIRMATIONS = 3

#: Memory that a case may keep without being asked again.
_MEMORY = 32 << 20
# How long a process that has lost its parent may take to end by itself.
_GRACE_SECONDS = 0.05


class Watch:
    """Looks at a worker after each case.

    Args:
        keeper: the process whose first child the worker is.
    """

    def __init__(self, keeper: int) -> None:
        self._keeper = keeper
        kept = children(keeper)
        self._worker = kept[0] if kept else keeper
        self._known_orphans = set(kept[1:])
        self._marks: dict[str, int] = {}
        self.growth()

    def growth(self) -> dict[str, int]:
        """Return by how much each thing exceeds the most that was seen before; empty if none."""
        held = usage(self._worker)
        if held is None:
            return {}
        amounts = {
            "memory": held.memory,
            "threads": held.threads,
            "file descriptors": held.descriptors,
            "child processes": len(descendants(self._worker)),
        }
        grown = {
            what: amount - self._marks.get(what, amount)
            for what, amount in amounts.items()
            if amount - self._marks.get(what, amount) > (_MEMORY if what == "memory" else 0)
        }
        # Memory that grows slowly must not add up to a leak of the case that it happens to be at.
        for what, amount in amounts.items():
            self._marks[what] = max(amount, self._marks.get(what, 0))
        return grown

    def orphans(self) -> list[str]:
        """Return the names of processes that have lost their parent since the last look."""
        found = self._orphans()
        if found:
            time.sleep(_GRACE_SECONDS)
            found &= self._orphans()
        self._known_orphans |= found
        return sorted(printable(name_of(process)) or str(process) for process in found)

    def _orphans(self) -> set[int]:
        return set(children(self._keeper)) - self._known_orphans - {self._worker}


def describe_growth(grown: dict[str, int]) -> str:
    """Say what leaked, each time that the case ran."""
    parts = [
        f"{amount >> 20} MiB of memory" if what == "memory" else f"{amount} {what}"
        for what, amount in grown.items()
    ]
    return f"leaves {' and '.join(parts)} behind each time that it runs"
