"""Large tensors in blocks that fit the cache, on the cores that are free."""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from onnxopt_cli.core.values import Array

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

#: Elements of a block: its temporaries in the wide type fit a cache of the second level.
BLOCK = 1 << 14
#: Smaller tensors are computed whole: threads would cost more than they save.
LARGE = 4 * BLOCK


def in_blocks(compute: Callable[[slice], T], size: int, block: int = BLOCK) -> Iterator[T]:
    """Yield what is computed of the blocks of a flat array, in order; an empty array is one block.

    Args:
        compute: is given the places of a block; called in threads where the array is large, which
            treat floating-point errors as this one does.
        size: number of elements of the array.
        block: number of elements of a block.
    """
    places = (slice(start, min(start + block, size)) for start in range(0, max(size, 1), block))
    if size < LARGE or (jobs := available_jobs()) == 1:
        yield from map(compute, places)
        return
    # glibc gives the end of its heap back with every block, and the system clears it again, until
    # a piece as large as this has been freed.
    np.empty(1 << 24, np.uint8)
    # Not worth importing for small tensors.
    from concurrent.futures import ThreadPoolExecutor

    errors = partial(np.seterr, **np.geterr())
    with ThreadPoolExecutor(jobs, initializer=errors) as pool:
        ahead: deque[Future[T]] = deque()
        for place in places:
            ahead.append(pool.submit(compute, place))
            if len(ahead) > 2 * jobs:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def room(count: int, dtype: np.dtype[Any]) -> Array:
    """Return a flat array to be filled, in pages that the system gives one by one.

    NumPy asks for huge pages: to find and clear one takes a busy or a virtual machine longer than
    to read a file into it.

    Raises:
        MemoryError: if there is no room.
    """
    size = count * dtype.itemsize
    if size < LARGE:
        return np.empty(count, dtype)
    try:
        return np.frombuffer(mmap.mmap(-1, size, access=mmap.ACCESS_COPY), dtype)
    except OSError as error:
        raise MemoryError from error


def joined(blocks: Iterable[Sequence[Array]], size: int) -> list[Array]:
    """Return flat arrays of a size that have the parts of these blocks, none of which is kept."""
    arrays: list[Array] = []
    start = 0
    for parts in blocks:
        arrays = arrays or [room(size, np.result_type(part)) for part in parts]
        places = slice(start, start := start + parts[0].size)
        for array, part in zip(arrays, parts, strict=True):
            array[places] = part
    return arrays


def available_jobs() -> int:
    """Return the number of processors that this process may use."""
    # Not every system has it, and a container may forbid it.
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
