"""Process large tensors on all available processors, in blocks that fit the processors' caches."""

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

#: Number of elements of a block. The temporaries of a block, in float64, fit a second-level cache.
BLOCK = 1 << 14
#: The smallest number of elements for which a tensor is split. For fewer elements, threads would
#: cost more time than they save.
LARGE_ELEMENTS = 4 * BLOCK


def in_blocks(compute: Callable[[slice], T], size: int, block: int = BLOCK) -> Iterator[T]:
    """Yield a result for each block of a flat array, in order; an empty array is one block.

    Args:
        compute: function from the slice of a block to a result. For a large array, the function
            runs in several threads, with the floating-point error handling of the calling thread.
        size: number of elements of the array.
        block: number of elements of a block.
    """
    places = (slice(start, min(start + block, size)) for start in range(0, max(size, 1), block))
    if size < LARGE_ELEMENTS or (jobs := available_jobs()) == 1:
        yield from map(compute, places)
        return
    # By default, glibc returns the memory of each temporary to the system, which clears the pages
    # before it provides them again. glibc does this only for sizes above a threshold, and freeing
    # one array of 16 MB raises this threshold.
    np.empty(1 << 24, np.uint8)
    # Small tensors do not need this module.
    from concurrent.futures import ThreadPoolExecutor

    errors = partial(np.seterr, **np.geterr())
    with ThreadPoolExecutor(jobs, initializer=errors) as pool:
        pending: deque[Future[T]] = deque()
        for place in places:
            pending.append(pool.submit(compute, place))
            if len(pending) > 2 * jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def room(count: int, dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized flat array in memory pages of normal size, not in huge pages.

    NumPy requests huge pages for large arrays. On a busy or virtual machine, the system takes
    longer to find and clear a huge page than to read data from a file into the page.

    Raises:
        MemoryError: if there is not enough memory.
    """
    size = count * dtype.itemsize
    if size < LARGE_ELEMENTS:
        return np.empty(count, dtype)
    try:
        return np.frombuffer(mmap.mmap(-1, size, access=mmap.ACCESS_COPY), dtype)
    except OSError as error:
        raise MemoryError from error


def joined(blocks: Iterable[Sequence[Array]], size: int) -> list[Array]:
    """Return flat arrays that are assembled from blocks; a block is released once it is copied.

    Args:
        blocks: for each block, its part of every array.
        size: number of elements of each array.
    """
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
    # Some systems lack sched_getaffinity, and a container may forbid its use.
    with suppress(AttributeError, OSError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
