"""What a worker may use of time, memory and output."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_TEARDOWN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that a user may set.

    Attributes:
        timeout: seconds that a case may take.
        startup: seconds that a backend may take to start.
        memory: bytes that a process of the backend may hold, and all of a worker's together; 0 for
            no limit.
    """

    timeout: float = 60.0
    startup: float = 60.0
    memory: int = 4 << 30

    @property
    def teardown(self) -> float:
        """Seconds that a worker may take to end when it is asked to."""
        return min(self.timeout, _LONGEST_TEARDOWN_SECONDS)


def limit_memory(size: int) -> None:
    """Let this process, and those it starts, get no more memory than ``size`` bytes each.

    The limit is on private writable memory, not on address space, which honest runtimes reserve in
    amounts that no machine has. Where the system has no such limit nothing happens.
    """
    import resource

    size = allowed_memory(size)
    if size:
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def allowed_memory(size: int) -> int:
    """Return how much of ``size`` bytes a process may hold by the system's own limit, if any."""
    try:
        import resource
    except ImportError:
        return size
    allowed = [
        it for it in resource.getrlimit(resource.RLIMIT_DATA) if it != resource.RLIM_INFINITY
    ]
    return min([size, *allowed]) if size else size
