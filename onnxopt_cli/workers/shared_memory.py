"""Files in memory through which large values pass between the runner and a worker.

Each worker has two, which the runner makes: one for what it is given, one for what it returns. They
have no name, so nothing of them is left when the last process that holds them ends, however that
is. Where the system has none, or no room for one, values pass through the channel.

The runner never maps a file: it reads, so a worker that cuts its file short or writes into it again
has sent less or something else, and cannot end the runner. The worker maps what it is given
privately, twice: pages that the backend writes into become its own, and our own code compares them
with the others.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from onnxopt_cli.core.blocks import room
from onnxopt_cli.errors import ProtocolBreach

#: Fewer bytes pass through the channel.
LARGE = 1 << 20
#: Each buffer begins at a multiple of so many bytes, so that tensors of every type may lie there.
ALIGNMENT = 64


def memory_file() -> int:
    """Return the descriptor of a new file in memory; -1 where there are none."""
    with suppress(AttributeError, OSError):
        return os.memfd_create("onnxopt")
    return -1


def fill(descriptor: int, buffers: Sequence[bytes | memoryview], most: float = float("inf")) -> int:
    """Put buffers into a file in memory in place of what it holds.

    Args:
        descriptor: of the file; -1 if there is none.
        buffers: what to put into it, in this order.
        most: how large the file may become.

    Returns:
        The size of the file; 0 if they are not worth it, or too large, or there is no room.
    """
    sizes = [memoryview(it).nbytes for it in buffers]
    whole = sum(size + -size % ALIGNMENT for size in sizes)
    if descriptor < 0 or sum(sizes) < LARGE or whole > most:
        return 0
    place = 0
    try:
        os.ftruncate(descriptor, 0)
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while view:
                count = os.pwrite(descriptor, view, place)
                place, view = place + count, view[count:]
            place += -place % ALIGNMENT
        os.ftruncate(descriptor, place)
    except OSError:
        os.ftruncate(descriptor, 0)
        return 0
    return place


def taken(descriptor: int, size: object, most: int) -> memoryview:
    """Return what a worker has put into its file, and empty that.

    Args:
        descriptor: of the file; -1 if there is none.
        size: what the worker says of its size.
        most: bytes that it may have.

    Raises:
        ProtocolBreach: if there is less in it, or it is larger.
    """
    if descriptor < 0 or type(size) is not int or not 0 < size <= most:
        raise ProtocolBreach(f"shared something else than 1 to {most} bytes")
    whole, place = room(size, np.dtype(np.uint8)).data, 0
    while place < size and (count := os.preadv(descriptor, [whole[place:]], place)):
        place += count
    if place < size:
        raise ProtocolBreach(f"shared less than the {size} bytes that it announced")
    os.ftruncate(descriptor, 0)
    return whole


def mapped(descriptor: int, size: int) -> memoryview:
    """Return what the runner has put into a worker's file, in memory of the worker's own."""
    return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))
