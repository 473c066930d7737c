"""Pools as the specification has them, many windows at once.

onnx's reference marks padding by NaN, so that it drops a NaN of the input, takes SAME_* windows
for dense where they are dilated, and finds indices in one of two ways, of which each has errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array, dtype_name
from onnxopt_cli.oracle.corrections.replacements import instead_of
from onnxopt_cli.oracle.corrections.windows import strided_windows

_SHORT_TYPES = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Where the windows of a pool are; arrays with one number a spatial axis.

    Attributes:
        size: the input's lengths.
        front: padding before the first element.
        back: padding behind the last one, as it is stated.
        count: how many windows there are.
        reach: the lengths of a window.
        step: from one window to the next.
        apart: from one element of a window to the next.
    """

    size: Array
    front: Array
    back: Array
    count: Array
    reach: Array
    step: Array
    apart: Array

    def padded(self, x: Array, value: Any) -> Array:
        """Return what all windows lie in: with so much behind the input as they reach."""
        whole = np.full([*x.shape[: -self.size.size], *self._extent], value, x.dtype)
        kept = np.minimum(self.size, np.maximum(self._extent - self.front, 0))
        inside: Any = (..., *map(slice, self.front, self.front + kept))
        taken: Any = (..., *map(slice, kept))
        whole[inside] = x[taken]
        return whole

    def windows(self, whole: Array) -> Array:
        """Return the windows of what :meth:`padded` returned, each along a last axis."""
        found = strided_windows(whole, self.reach, self.step, self.apart)
        return found.reshape(*found.shape[: -self.size.size], -1)

    def within(self, *, padding: bool) -> Array:
        """Tell which elements of each window lie in the input, or in it and its padding."""
        places = np.indices(self._extent.tolist())
        first = np.zeros_like(self.front) if padding else self.front
        end = self.front + self.size + (self.back if padding else 0)
        shape = (-1, *[1] * self.size.size)
        inside = (places >= first.reshape(shape)) & (places < end.reshape(shape))
        return self.windows(np.asarray(inside.all(axis=0)))

    @property
    def _extent(self) -> Array:
        return (self.count - 1) * self.step + self.reach


def _geometry(x: Array, about: dict[str, Any]) -> _Geometry:
    size = np.array(x.shape[2:])
    ones = [1] * size.size
    step, apart = (np.array(about.get(it) or ones) for it in ("strides", "dilations"))
    reach = (np.array(about["kernel_shape"]) - 1) * apart + 1
    kind = about.get("auto_pad") or "NOTSET"
    if kind.startswith("SAME"):
        count = -(-size // step)
        total = np.maximum((count - 1) * step + reach - size, 0)
        front = total // 2 if kind == "SAME_UPPER" else total - total // 2
        return _Geometry(size, front, total - front, count, reach, step, apart)
    pads = [0] * 2 * size.size if kind == "VALID" else about.get("pads") or [0] * 2 * size.size
    front, back = np.reshape(pads, (2, -1))
    room = size + front + back - reach
    count = room // step + 1
    if about.get("ceil_mode"):
        count = -(-room // step) + 1
        # A window that would begin behind the input is ignored.
        count -= (count - 1) * step >= size + front
    if count.min() < 1:
        raise ValueError("a window of a pool is larger than what it lies in")
    return _Geometry(size, front, back, count, reach, step, apart)


def _wide(x: Array) -> Array:
    """Return what is added up: what has 16 bits in float32."""
    return x.astype(np.float32) if dtype_name(x.dtype) in _SHORT_TYPES else x


@instead_of("op_average_pool.AveragePool_1._run", "op_average_pool.AveragePool_7._run")
@instead_of("op_average_pool.AveragePool_11._run", "op_average_pool.AveragePool_19._run")
def _averaged(_pool: Any, _kept: Any, x: Array, **about: Any) -> tuple[Array]:
    """Divide by what counts: the input's elements, and those of stated padding if they do."""
    found = _geometry(x, about)
    counted = found.within(padding=bool(about.get("count_include_pad"))).sum(axis=-1)
    total = np.sum(found.windows(found.padded(_wide(x), 0)), axis=-1)
    return ((total / counted.astype(total.dtype)).astype(x.dtype),)


@instead_of("op_lp_pool.LpPool._run")
def _root_of_powers(pool: Any, _kept: Any, x: Array, **about: Any) -> tuple[Array]:
    found, power = _geometry(x, about), about.get("p") or pool.p
    powers = np.abs(_wide(x)) ** power
    total = np.sum(found.windows(found.padded(powers, 0)), axis=-1)
    return ((total ** (1 / power)).astype(x.dtype),)


@instead_of("op_max_pool.MaxPool._run")
def _largest(pool: Any, _kept: Any, x: Array, **about: Any) -> tuple[Array, ...]:
    """Take the largest element of each window, NaN if there is one, and where it is first."""
    found = _geometry(x, about)
    if not found.within(padding=False).any(axis=-1).all():
        raise ValueError("a window of a pool lies in its padding alone")
    lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    windows = found.windows(found.padded(x, lowest))
    largest: Array = windows.max(axis=-1)
    if len(pool.onnx_node.output) == 1:
        return (largest,)
    alike = windows == largest[..., None]
    if x.dtype.kind == "f":
        alike |= np.isnan(windows)
    first = np.argmax(alike & found.within(padding=False), axis=-1)[..., None]
    # Of the elements of a padded image, numbered, the windows say which are theirs.
    lengths, columns = found.size.tolist(), about.get("storage_order")
    numbers = np.arange(found.size.prod()).reshape(lengths[::-1] if columns else lengths)
    numbers = numbers.T if columns else numbers
    places = found.windows(found.padded(numbers, -1))
    places = np.broadcast_to(places, windows.shape)
    chosen = np.take_along_axis(places, first, -1)[..., 0]
    images = np.arange(x.shape[0] * x.shape[1]) * found.size.prod()
    return largest, chosen + images.reshape(*x.shape[:2], *[1] * found.size.size)
