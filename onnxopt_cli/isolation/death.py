"""What the end of a worker's process means."""

from __future__ import annotations

import signal

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.core.text import exit_text

# The last words of programs that could get no memory and ended themselves.
_LAST_WORDS = ("std::bad_alloc", "MemoryError", "memory allocation of", "out of memory")


def cause_of_death(code: int, printed: str, *, out_of_memory: bool) -> tuple[Outcome, str]:
    """Return the outcome that a worker's end amounts to, and it in words.

    Args:
        code: its exit code, or the negative number of the signal that ended it.
        printed: the end of what it printed.
        out_of_memory: whether the kernel has killed processes for want of memory meanwhile.
    """
    if code == -signal.SIGKILL and out_of_memory:
        return Outcome.OOM, "was killed by the system, which had run out of memory"
    said = any(words in printed for words in _LAST_WORDS)
    outcome = Outcome.OOM if said and code in {-signal.SIGABRT, 1} else Outcome.CRASH
    return outcome, exit_text(code)
