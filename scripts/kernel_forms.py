"""Right implementations that are common in kernels of runtimes, for ``right_forms.py``.

The implementations are:

- vectorized, blocked and compensated sums;
- split and tiled products, and fused multiply-add;
- approximations by polynomials as in Cephes and SLEEF;
- reciprocals and roots by Newton's iteration;
- tiled attention, scans by trees, and separable interpolation;
- arithmetic with fixed-point multipliers.

``KERNELS`` maps each operator to its implementations, called forms. A parameter ``form`` of
a function selects one of several algorithms; ``total`` is an algorithm for sums. The functions at
the end of the module yield cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from onnxopt_cli.errors import Unsupported

Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]
Sum = Callable[[Array], Array]
Unary = Callable[[Array], Array]
# Number of terms in a block. The sum of a block is added to the sum of earlier terms.
BLOCK = 32
# Number of terms in a tile. The sum of a tile is added to the sum of earlier terms.
TILE = 16
LOG2_E = 1.44269504088896341


# Sums along the last axis.


def in_order(terms: Array) -> Array:
    """Add the terms one after the other."""
    return np.asarray(np.add.accumulate(terms, axis=-1)[..., -1])


def padded(terms: Array, multiple: int) -> Array:
    """Append zeros along the last axis until its length is a multiple of a number."""
    return np.pad(terms, [(0, 0)] * (terms.ndim - 1) + [(0, -terms.shape[-1] % multiple)])


def in_parts(count: int, terms: Array) -> Array:
    """Compute a split sum: add the terms of each part in sequence, then the sums of the parts."""
    terms = padded(terms, count)
    return in_order(in_order(terms.reshape(*terms.shape[:-1], count, -1)))


def interleaved(count: int, terms: Array) -> Array:
    """Add every n-th term to the same partial sum, like a loop with n accumulators."""
    terms = padded(terms, count)
    return in_order(in_order(np.swapaxes(terms.reshape(*terms.shape[:-1], -1, count), -1, -2)))


def in_blocks(terms: Array) -> Array:
    """Add the terms of each block, then add the sums of the blocks in sequence."""
    terms = padded(terms, BLOCK)
    return in_order(in_order(terms.reshape(*terms.shape[:-1], -1, BLOCK)))


def compensated(terms: Array) -> Array:
    """Add terms with compensation of the rounding error of each addition (Kahan)."""
    total = carried = np.zeros_like(terms[..., 0])
    for term in np.moveaxis(terms, -1, 0):
        corrected = term - carried
        enlarged = total + corrected
        total, carried = enlarged, (enlarged - total) - corrected
    if not np.isfinite(total).all():
        raise Unsupported("the error of an infinite sum is NaN")
    return total


def in_double(terms: Array) -> Array:
    """Add the terms in double, and round the sum once."""
    return np.asarray(terms.astype(np.float64).sum(-1)).astype(terms.dtype)


SUMS: list[Sum] = [
    partial(in_parts, 4),
    partial(interleaved, 4),
    partial(interleaved, 8),
    in_blocks,
    compensated,
    in_double,
]


def fused(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c, rounded once."""
    wide = (np.asarray(array).astype(np.longdouble) for array in (a, b, c))
    first, second, third = wide
    return np.asarray(first * second + third).astype(np.result_type(a, b, c))


def fused_products(count: int, a: Array, b: Array) -> Array:
    """Add products along the last axis by fused multiply-add in several accumulators."""
    a, b = (padded(np.asarray(array), count) for array in np.broadcast_arrays(a, b))
    totals = np.zeros((*a.shape[:-1], count), a.dtype)
    for start in range(0, a.shape[-1], count):
        place = slice(start, start + count)
        totals = fused(a[..., place], b[..., place], totals)
    return in_order(totals)


def products(total: Sum, a: Array, b: Array) -> Array:
    """Add rounded products along the last axis."""
    return total(a * b)


PRODUCTS: list[Callable[[Array, Array], Array]] = [
    *(partial(products, total) for total in SUMS),
    partial(fused_products, 1),
    partial(fused_products, 8),
]


# Elementary functions, as in Cephes, SLEEF and Eigen.


def horner(x: Array, *coefficients: float) -> Array:
    """Evaluate a polynomial, the highest coefficient first."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + x.dtype.type(coefficient)
    return total


def exp_of(x: Array) -> Array:
    """Compute exp as the product of an integer power of two and a polynomial (Cephes expf)."""
    real = np.float32
    if x.dtype != real:
        raise Unsupported("the polynomial is accurate to float32 only")
    bounded = np.clip(x, real(-104), real(89))
    power = np.floor(bounded * real(LOG2_E) + real(0.5))
    remainder = bounded - power * real(0.693359375) - power * real(-2.12194440e-4)
    square = remainder * remainder
    y = horner(
        remainder,
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
    y = y * square + remainder + real(1)
    return np.where(np.isnan(x), x, np.ldexp(y, np.nan_to_num(power).astype(int)))


def log_of(x: Array) -> Array:
    """Compute log from the exponent and a polynomial (Cephes logf)."""
    real = np.float32
    if x.dtype != real:
        raise Unsupported("the polynomial is accurate to float32 only")
    fraction, exponent = np.frexp(x)
    small = fraction < real(math.sqrt(0.5))
    exponent = (exponent - small).astype(real)
    m = np.where(small, fraction + fraction, fraction) - real(1)
    square = m * m
    y = horner(
        m,
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
    y = y * m * square + real(-2.12194440e-4) * exponent - real(0.5) * square
    y = m + y + real(0.693359375) * exponent
    return np.where((x > 0) & np.isfinite(x), y, np.log(x))


def tanh_of(x: Array) -> Array:
    """Compute tanh by a polynomial near zero and exponentials elsewhere (Cephes tanhf)."""
    real = x.dtype.type
    z = np.abs(x)
    square = x * x
    near = horner(
        square,
        -5.70498872745e-3,
        2.06390887954e-2,
        -5.37397155531e-2,
        1.33314422036e-1,
        -3.33332819422e-1,
    )
    far = real(1) - real(2) / (exp_of(np.minimum(z + z, real(80))) + real(1))
    return np.where(z < real(0.625), near * square * x + x, np.copysign(far, x))


def tanh_by_expm1(x: Array) -> Array:
    """Compute tanh from exp(2x) - 1, which is accurate for small operands (fdlibm)."""
    real = x.dtype.type
    z = np.minimum(np.abs(x), real(20))
    power = np.expm1(z + z)
    return np.copysign(power / (power + real(2)), x)


def erf_of(x: Array) -> Array:
    """Compute erf by a polynomial or, far from zero, by the exponential of a polynomial.

    Cutlass and PyTorch use the same algorithm.
    """
    real = x.dtype.type
    z = np.abs(x)
    near = horner(
        x * x,
        -5.61866909e-4,
        4.91381623e-3,
        -2.67075151e-2,
        1.12799220e-1,
        -3.76122952e-1,
        1.28379151e-1,
    )
    far = horner(
        z,
        -1.72853470e-5,
        3.83197126e-4,
        -3.88396438e-3,
        2.42546219e-2,
        -1.06777847e-1,
        -6.34846687e-1,
        -1.28717512e-1,
    )
    far = real(1) - exp_of(np.maximum(far * z - z, real(-100)))
    return np.where(z > real(0.921875), np.copysign(far, x), near * x + x)


def reduced_angle(x: Array) -> tuple[Array, Array]:
    """Return the distance of x from the nearest multiple k pi / 2, and k mod 4."""
    quarter = np.rint(x * x.dtype.type(2 / math.pi))
    if np.abs(quarter).max(initial=0) > 1 << 13:
        raise Unsupported("a large angle")
    remainder = x.astype(np.float64) - quarter.astype(np.float64) * (math.pi / 2)
    return remainder.astype(x.dtype), quarter.astype(int) % 4


def sine_series(x: Array) -> Array:
    """Evaluate the polynomial for sin in [-pi/4, pi/4] (Cephes sinf)."""
    square = x * x
    factor = horner(square, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
    return factor * square * x + x


def cosine_series(x: Array) -> Array:
    """Evaluate the polynomial for cos in [-pi/4, pi/4] (Cephes cosf)."""
    real = x.dtype.type
    square = x * x
    factor = horner(square, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
    return factor * square * square - real(0.5) * square + real(1)


def sin_of(x: Array, first: int = 0) -> Array:
    """Compute the sine, or the cosine if ``first`` (the quadrant at x = 0) is 1."""
    remainder, quadrant = reduced_angle(x)
    quadrant = (quadrant + first) % 4
    value = np.where(quadrant % 2, cosine_series(remainder), sine_series(remainder))
    return np.where(quadrant > 1, -value, value)


def atan_of(x: Array) -> Array:
    """Compute atan by two reductions and a polynomial (Cephes atanf)."""
    real = x.dtype.type
    z = np.abs(x)
    large, middle = z > real(2.414213562373095), z > real(0.4142135623730950)
    with np.errstate(divide="ignore"):
        small = np.where(large, -real(1) / z, np.where(middle, (z - 1) / (z + 1), z))
    start = np.where(large, real(math.pi / 2), np.where(middle, real(math.pi / 4), real(0)))
    square = small * small
    series = horner(
        square, 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1
    )
    return np.copysign(start + (series * square * small + small), x)


def reciprocal_root(steps: int, x: Array) -> Array:
    """Compute 1 / sqrt(x) by Newton's iteration from an estimate of 12 bits (rsqrtps)."""
    real = x.dtype.type
    exact = 1 / np.sqrt(x.astype(np.float64))
    fraction, exponent = np.frexp(exact)
    y = np.ldexp(np.rint(fraction * 4096) / 4096, exponent).astype(x.dtype)
    for _ in range(steps):
        y = y * (real(1.5) - real(0.5) * x * y * y)
    return np.where((x > 0) & np.isfinite(x), y, exact.astype(x.dtype))


def reciprocal(x: Array) -> Array:
    """Compute 1 / x by two steps of Newton's iteration from an estimate of 12 bits (rcpps)."""
    real = x.dtype.type
    with np.errstate(all="ignore"):
        exact = 1 / x.astype(np.float64)
        fraction, exponent = np.frexp(exact)
        y = np.ldexp(np.rint(fraction * 4096) / 4096, exponent).astype(x.dtype)
        for _ in range(2):
            y = y * (real(2) - x * y)
    usual = np.isfinite(exact) & (np.abs(x) > 1e-30) & (np.abs(x) < 1e30)  # noqa: PLR2004
    return np.where(usual, y, exact.astype(x.dtype))


def elementwise(function: Unary) -> Callable[..., list[Array]]:
    """Return the form that applies a function to each element, for operators without attributes."""

    def form(_: Attributes, x: Array) -> list[Array]:
        if x.dtype != np.float32:
            raise Unsupported("polynomials are accurate to float32 only")
        return [np.asarray(function(x))]

    return form


def sigmoid_of(x: Array) -> Array:
    """Compute sigmoid from the exponential of -|x|."""
    real = x.dtype.type
    power = exp_of(-np.abs(x))
    return np.where(x < 0, power, real(1)) / (real(1) + power)


def sigmoid_by_reciprocal(x: Array) -> Array:
    """Compute sigmoid by the reciprocal of 1 + exp(-x)."""
    real = x.dtype.type
    return reciprocal(real(1) + exp_of(-np.maximum(x, real(-80))))


SIGMOIDS: list[Unary] = [sigmoid_of, sigmoid_by_reciprocal]


def expm1_of(x: Array) -> Array:
    """Compute exp(x) - 1, which loses digits near zero."""
    return exp_of(x) - 1


def scaled_exponential(name: str, exponential: Unary, attributes: Attributes, x: Array) -> Any:
    """Compute Elu, Selu or Celu from exp(x) - 1."""
    real = x.dtype.type
    default = {"Selu": 1.67326319217681884765625}.get(name, 1.0)
    alpha = real(attributes.get("alpha", default))
    gamma = real(attributes.get("gamma", 1.05070102214813232421875 if name == "Selu" else 1.0))
    operand = np.minimum(x / alpha if name == "Celu" else x, 0)
    negative = alpha * exponential(operand)
    return [gamma * np.where(x > 0, x, negative)]


def softplus_of(x: Array) -> Array:
    """Compute max(x, 0) + log1p(exp(-|x|))."""
    return np.maximum(x, 0) + np.log1p(exp_of(-np.abs(x)))


def mish_by_quotient(x: Array) -> Array:
    """Compute x (e^2 + 2e) / (e^2 + 2e + 2)."""
    real = x.dtype.type
    power = exp_of(np.minimum(x, real(20)))
    share = power * (power + real(2))
    return x * (share / (share + real(2)))


def gelu(exact_erf: Unary, tanh: Unary, attributes: Attributes, x: Array) -> list[Array]:
    """Compute Gelu."""
    real = x.dtype.type
    if attributes.get("approximate", b"none") == b"tanh":
        inner = x * (real(0.7978845608028654) + real(0.03567740813636141) * (x * x))
        return [real(0.5) * x * (real(1) + tanh(inner))]
    return [real(0.5) * x * (real(1) + exact_erf(x * real(0.7071067811865476)))]


def swish(sigmoid: Unary, attributes: Attributes, x: Array) -> list[Array]:
    """Compute Swish."""
    return [x * sigmoid(x * x.dtype.type(attributes.get("alpha", 1.0)))]


def hard(by_multiplication: bool, attributes: Attributes, x: Array) -> list[Array]:
    """Compute HardSigmoid or HardSwish by a fused operation."""
    real = x.dtype.type
    if by_multiplication:
        return [x * (np.clip(x + real(3), 0, real(6)) * real(1 / 6))]
    alpha, beta = real(attributes.get("alpha", 0.2)), real(attributes.get("beta", 0.5))
    return [np.clip(fused(x, alpha, beta), 0, 1)]


# Reductions.


def rows_of(x: Array, axes: Any, attributes: Attributes) -> tuple[Array, Callable[[Array], Array]]:
    """Move the terms of each sum to the last axis.

    Returns:
        The terms, and a function that restores the shape of the results.
    """
    if x.dtype.kind != "f":
        raise Unsupported("integers")
    axes = attributes.get("axes") if axes is None else axes
    if axes is None or not np.size(axes):
        if attributes.get("noop_with_empty_axes"):
            raise Unsupported("no axes")
        axes = range(x.ndim)
    along = sorted(int(axis) % x.ndim for axis in np.ravel(axes))
    kept_sizes = [size for axis, size in enumerate(x.shape) if axis not in along]
    rows = np.moveaxis(x, along, range(-len(along), 0)).reshape(*kept_sizes, -1)
    if not rows.shape[-1]:
        raise Unsupported("no terms")

    def restored(y: Array) -> Array:
        y = np.asarray(y)
        return np.expand_dims(y, tuple(along)) if attributes.get("keepdims", 1) else y

    return rows, restored


def reduced(
    term: Unary, total: Sum, last: Unary, attributes: Attributes, x: Array, axes: Any = None
) -> list[Array]:
    """Compute a reduction: a function of the sum of terms."""
    rows, restored = rows_of(x, axes, attributes)
    return [restored(last(total(term(rows))))]


def mean(form: str, total: Sum, attributes: Attributes, x: Array, axes: Any = None) -> list[Array]:
    """Compute ReduceMean."""
    rows, restored = rows_of(x, axes, attributes)
    count = x.dtype.type(rows.shape[-1])
    if form == "scaled terms":
        return [restored(total(rows * (x.dtype.type(1) / count)))]
    if form == "running":
        y = rows[..., 0]
        for place in range(1, rows.shape[-1]):
            y = y + (rows[..., place] - y) / x.dtype.type(place + 1)
        return [restored(y)]
    return [restored(total(rows) * (x.dtype.type(1) / count))]


def scaled_norm(attributes: Attributes, x: Array, axes: Any = None) -> list[Array]:
    """Compute ReduceL2 with elements that are divided by the largest element (BLAS nrm2)."""
    rows, restored = rows_of(x, axes, attributes)
    largest = np.abs(rows).max(-1, keepdims=True)
    safe = np.where(largest == 0, x.dtype.type(1), largest)
    return [restored(largest[..., 0] * np.sqrt(in_order((rows / safe) ** 2)))]


def tiled_log_sum(attributes: Attributes, x: Array, axes: Any = None) -> list[Array]:
    """Compute ReduceLogSumExp by tiles; each tile subtracts its own maximum."""
    rows, restored = rows_of(x, axes, attributes)
    largest, total = tiled_sum(rows)
    return [restored((largest + log_of(total))[..., 0])]


def tiled_sum(rows: Array) -> tuple[Array, Array]:
    """Return the maximum and the sum of exponentials by combining the results of all tiles."""
    low = np.finfo(rows.dtype).min
    largest, total = np.full_like(rows[..., :1], low), np.zeros_like(rows[..., :1])
    for start in range(0, rows.shape[-1], TILE):
        tile = rows[..., start : start + TILE]
        larger = np.maximum(largest, tile.max(-1, keepdims=True))
        part = interleaved(4, exp_of(tile - larger))[..., None]
        total = total * exp_of(largest - larger) + part
        largest = larger
    return largest, total


def shares(form: str, attributes: Attributes, x: Array) -> list[Array]:
    """Compute Softmax or LogSoftmax."""
    axis = attributes.get("axis", -1)
    rows = np.moveaxis(x, axis, -1)
    if not rows.size or not np.isfinite(rows).all():
        raise Unsupported("no elements, or infinite ones")
    largest, total = tiled_sum(rows)
    if form == "logarithm":
        y = rows - largest - log_of(total)
    elif form == "shifted":
        y = exp_of(rows - (largest + log_of(total)))
    elif form == "reciprocal":
        y = exp_of(rows - largest) * reciprocal(total)
    else:
        base = rows.dtype.type(LOG2_E)
        powers = np.exp2(fused(rows, base, -(largest * base)))
        y = powers * (rows.dtype.type(1) / interleaved(8, powers)[..., None])
    return [np.moveaxis(y, -1, axis)]


def cumulated(attributes: Attributes, x: Array, axis: Array) -> list[Array]:
    """Compute CumSum by adding elements at doubling distances (Hillis and Steele)."""
    if x.dtype.kind != "f":
        raise Unsupported("integers")
    y = np.moveaxis(x, int(axis), -1)
    y = y[..., ::-1] if attributes.get("reverse") else y
    count, distance = y.shape[-1], 1
    if attributes.get("exclusive"):
        y = np.concatenate([np.zeros_like(y[..., :1]), y[..., :-1]], -1)
    while distance < count:
        y = np.concatenate([y[..., :distance], y[..., distance:] + y[..., :-distance]], -1)
        distance *= 2
    y = y[..., ::-1] if attributes.get("reverse") else y
    return [np.moveaxis(y, -1, int(axis))]


# Products.


def matmul(multiply: Callable[[Array, Array], Array], _: Attributes, a: Array, b: Array) -> Any:
    """Compute MatMul."""
    if a.dtype.kind != "f" or min(a.ndim, b.ndim) < 2 or not a.shape[-1]:  # noqa: PLR2004
        raise Unsupported("vectors, integers or no terms")
    if a.size * b.shape[-1] > 1 << 22:
        raise Unsupported("large operands")
    return [multiply(a[..., :, None, :], np.swapaxes(b, -1, -2)[..., None, :, :])]


def outer(_: Attributes, a: Array, b: Array) -> list[Array]:
    """Compute MatMul by outer products."""
    if a.dtype.kind != "f" or min(a.ndim, b.ndim) < 2:  # noqa: PLR2004
        raise Unsupported("vectors or integers")
    total = np.zeros(np.matmul(a, b).shape, a.dtype)
    for place in range(a.shape[-1]):
        total = fused(a[..., :, place, None], b[..., None, place, :], total)
    return [total]


def gemm(form: str, attributes: Attributes, a: Array, b: Array, *bias: Array) -> list[Array]:
    """Compute Gemm. Alpha is applied, and the bias is added, either before or after the product."""
    if a.dtype.kind != "f":
        raise Unsupported("integers")
    a = a.T if attributes.get("transA") else a
    b = b.T if attributes.get("transB") else b
    alpha, beta = (a.dtype.type(attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    addend = beta * bias[0] if bias and bias[0] is not None else a.dtype.type(0)
    if form == "bias first":
        total = np.broadcast_to(addend, (len(a), b.shape[1])).astype(a.dtype)
        scaled = alpha * a
        for place in range(a.shape[-1]):
            total = fused(scaled[:, place, None], b[None, place, :], total)
        return [total]
    product = interleaved(4, a[:, None, :] * b.T[None, :, :])
    return [fused(np.broadcast_to(alpha, product.shape), product, addend)]


def pooled(form: str, attributes: Attributes, x: Array) -> list[Array]:
    """Compute GlobalAveragePool, or AveragePool without padding."""
    if x.dtype.kind != "f":
        raise Unsupported("integers")
    size = attributes.get("kernel_shape", x.shape[2:])
    plain = {"kernel_shape", "strides", "count_include_pad", "auto_pad", "ceil_mode"}
    defaults = {"auto_pad": b"NOTSET", "ceil_mode": 0}
    if not plain.issuperset(attributes) or any(
        attributes.get(name, default) != default for name, default in defaults.items()
    ):
        raise Unsupported("padding or dilations")
    rank = x.ndim - 2
    windows = np.lib.stride_tricks.sliding_window_view(x, size, tuple(range(2, x.ndim)))
    steps = attributes.get("strides", [1] * rank)
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]
    scale = x.dtype.type(1) / x.dtype.type(math.prod(size))
    if form == "separable":
        y = windows
        for _ in size:
            y = in_order(y)
        return [y * scale]
    terms = windows.reshape(*windows.shape[: 2 + rank], -1)
    total = interleaved(8, terms * scale if form == "scaled terms" else terms)
    return [total if form == "scaled terms" else total * scale]


def channels_last(
    multiply: Callable[[Array, Array], Array],
    attributes: Attributes,
    x: Array,
    w: Array,
    *bias: Any,
) -> list[Array]:
    """Compute Conv by first adding over the channels for each kernel element."""
    rank, group = x.ndim - 2, attributes.get("group", 1)
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or x.size * len(w) > 1 << 18:
        raise Unsupported("auto_pad or large operands")
    pads = np.reshape(attributes.get("pads", [0] * 2 * rank), (2, rank))
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    x = np.pad(x, [(0, 0), (0, 0), *pads.T.tolist()])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(2, x.ndim)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    taps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in dilations))
    windows = windows[taps]
    # The axes are batch, group, space, kernel, channels.
    sizes = windows.shape[2 : 2 + rank]
    columns = np.moveaxis(windows.reshape(len(x), group, -1, *windows.shape[2:]), 2, -1)
    columns = columns.reshape(len(x), group, 1, math.prod(sizes), -1)
    kernels = np.moveaxis(w.reshape(group, len(w) // group, *w.shape[1:]), 2, -1)
    kernels = kernels.reshape(1, group, len(w) // group, 1, -1)
    y = multiply(columns, kernels).reshape(len(x), len(w), *sizes)
    return [y + bias[0].reshape(-1, *[1] * rank) if bias and bias[0] is not None else y]


# Normalizations.


def normalized(
    total: Sum, root: Unary, attributes: Attributes, x: Array, scale: Array, *bias: Array
) -> list[Array]:
    """Compute LayerNormalization with a reciprocal root."""
    axis = attributes.get("axis", -1) % x.ndim
    rows = x.reshape(*x.shape[:axis], -1)
    centred = rows - total(rows)[..., None] / x.dtype.type(rows.shape[-1])
    y = over_root(total, root, attributes, centred.reshape(x.shape), scale)
    return [y + bias[0] if bias and bias[0] is not None else y]


def root_mean_square(
    total: Sum, root: Unary, attributes: Attributes, x: Array, scale: Array
) -> list[Array]:
    """Compute RMSNormalization with a reciprocal root."""
    return [over_root(total, root, attributes, x, scale)]


def over_root(total: Sum, root: Unary, attributes: Attributes, x: Array, scale: Array) -> Array:
    """Divide each group of elements by the root of its mean square, then multiply by a scale."""
    axis = attributes.get("axis", -1) % x.ndim
    if scale.shape != x.shape[axis:]:
        raise Unsupported("a scale that is broadcast")
    real = x.dtype.type
    rows = x.reshape(*x.shape[:axis], -1)
    epsilon = real(np.float32(attributes.get("epsilon", 1e-5)))
    square = total(rows * rows) / real(rows.shape[-1]) + epsilon
    return (rows * root(square)[..., None] * scale.ravel()).reshape(x.shape)


def batch(
    form: str, attributes: Attributes, x: Array, scale: Array, bias: Array, *given: Array
) -> list[Array]:
    """Compute BatchNormalization by given statistics."""
    if attributes.get("training_mode") or "spatial" in attributes or len(given) < 2:  # noqa: PLR2004
        raise Unsupported("training")
    shape = (-1, *[1] * (x.ndim - 2))
    scale, bias, average, variance = (v.reshape(shape) for v in (scale, bias, *given))
    square = variance + x.dtype.type(np.float32(attributes.get("epsilon", 1e-5)))
    factor = scale * reciprocal_root(2, square)
    if form == "fused":
        return [fused(x, factor, fused(-average, factor, bias))]
    return [fused(x - average, factor, bias)]


def unit_vectors(attributes: Attributes, x: Array) -> list[Array]:
    """Compute LpNormalization by a reciprocal."""
    axis, power = attributes.get("axis", -1), attributes.get("p", 2)
    rows = np.moveaxis(np.abs(x), axis, -1)
    total = interleaved(4, rows if power == 1 else rows * rows)[..., None]
    if not (total > 0).all():
        raise Unsupported("a norm of zero")
    scale = reciprocal(total) if power == 1 else reciprocal_root(2, total)
    return [x * np.moveaxis(scale, -1, axis)]


def response(form: str, attributes: Attributes, x: Array) -> list[Array]:
    """Compute LRN, with the power from roots or from a logarithm."""
    real = x.dtype.type
    size = attributes["size"]
    alpha, beta = attributes.get("alpha", 1e-4), attributes.get("beta", 0.75)
    before = (size - 1) // 2
    squares = np.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    windows = np.lib.stride_tricks.sliding_window_view(squares, size, 1)
    base = real(attributes.get("bias", 1.0)) + real(alpha / size) * in_order(windows)
    if form == "roots" and beta == 0.75:  # noqa: PLR2004
        root = np.sqrt(base)
        return [x / (root * np.sqrt(root))]
    return [x * np.power(base, real(-beta))]


# Attention and recurrences.


def attention(form: str, attributes: Attributes, *operands: Array) -> list[Array]:
    """Compute Attention by tiles of keys, for operands with four axes and without mask or cache."""
    q, k, v, *extras = operands
    plain = {"scale", "softcap", "q_num_heads", "kv_num_heads"}
    if not plain.issuperset(attributes) or attributes.get("softcap"):
        raise Unsupported("further attributes")
    if any(value is not None for value in extras) or q.ndim != 4 or q.shape[1] != k.shape[1]:  # noqa: PLR2004
        raise Unsupported("a mask, three axes or groups")
    real = q.dtype.type
    scale = real(attributes.get("scale", 1 / math.sqrt(q.shape[-1])))
    if form == "scaled first":
        q = q * scale
    largest = np.full(q.shape[:-1], np.finfo(q.dtype).min, q.dtype)
    total, y = np.zeros_like(largest), np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    for start in range(0, k.shape[2], TILE):
        keys, values = k[:, :, start : start + TILE], v[:, :, start : start + TILE]
        scores = interleaved(4, q[..., :, None, :] * keys[..., None, :, :])
        scores = scores if form == "scaled first" else scores * scale
        larger = np.maximum(largest, scores.max(-1))
        powers, kept = exp_of(scores - larger[..., None]), exp_of(largest - larger)
        total = total * kept + in_order(powers)
        part = in_order(powers[..., :, None, :] * np.swapaxes(values, -1, -2)[..., None, :, :])
        y, largest = y * kept[..., None] + part, larger
    return [y * reciprocal(total)[..., None]]


@dataclass(frozen=True)
class Staged:
    """A form that stores intermediate results in the type of the model.

    Attributes:
        form: computes the outputs. It receives a function that rounds a result to the stored type.
    """

    form: Callable[..., list[Array]]

    def storing(self, dtype: np.dtype[Any]) -> Callable[..., list[Array]]:
        """Return the form as a function that stores intermediate results in the given type."""
        return partial(self.form, lambda x: x.astype(dtype).astype(x.dtype))


def recurrent_by_float32(form: str, attributes: Attributes, *operands: Any) -> list[Array]:
    """Compute LSTM or RNN without storing intermediate results in the type of the model."""
    return recurrent(form, lambda x: x, attributes, *operands)


def recurrent(form: str, store: Unary, attributes: Attributes, *operands: Any) -> list[Array]:
    """Compute LSTM or RNN in one direction, with one matrix product for all gates of a step."""
    x, w, r, bias, lengths, state, *more = [*operands, *[None] * 5][:8]
    cell, peepholes = more[0], more[1]
    supported = {"hidden_size", "layout", "direction"}
    if not supported.issuperset(attributes) or attributes.get("layout") or len(w) > 1:
        raise Unsupported("several directions, layout or activations")
    if attributes.get("direction", b"forward") != b"forward" or lengths is not None:
        raise Unsupported("direction or lengths")
    size, real = r.shape[-1], x.dtype.type
    h = np.zeros((x.shape[1], size), x.dtype) if state is None else state[0]
    c = np.zeros_like(h) if cell is None else cell[0]
    addend = 0 if bias is None else bias[0, : w.shape[1]] + bias[0, w.shape[1] :]
    weights = np.concatenate([w[0], r[0]], -1)
    outputs = []
    for step in x:
        joined = np.concatenate([step, h], -1)
        gates = store(interleaved(4, joined[:, None, :] * weights) + addend)
        if form == "RNN":
            h = store(tanh_of(gates))
        else:
            if peepholes is not None:
                raise Unsupported("peepholes")
            i, o, f, new = np.split(gates, 4, -1)
            forget, enter = store(sigmoid_of(f)), store(sigmoid_of(i))
            c = store(fused(forget, c, enter * store(tanh_of(new))))
            h = store(store(sigmoid_by_reciprocal(o)) * store(tanh_by_expm1(c)))
        outputs.append(h)
    y = np.stack(outputs)[:, None]
    return [y, h[None]] if form == "RNN" else [y, h[None], c[None] * real(1)]


# Interpolation and quantization.


def linear_weights(sizes: tuple[int, int], scale: Any, attributes: Attributes) -> Array:
    """Return the matrix that interpolates along an axis, with coordinates in float32."""
    real = np.float32
    before, after = sizes
    places = np.arange(after, dtype=real)
    mode = attributes.get("coordinate_transformation_mode", b"half_pixel")
    if mode == b"align_corners":
        steps = real(before - 1) / real(max(1, after - 1))
        x = places * steps
    elif mode == b"asymmetric":
        x = places * (real(1) / real(scale))
    elif mode == b"half_pixel":
        x = (places + real(0.5)) * (real(1) / real(scale)) - real(0.5)
    else:
        raise Unsupported("another mode")
    weights = np.zeros((after, before), real)
    if attributes.get("mode") == b"cubic":
        a = real(attributes.get("cubic_coeff_a", -0.75))
        low = np.floor(x)
        t = x - low
        offsets = (t + real(1), t, real(1) - t, real(2) - t)
        for place, distance in enumerate(offsets):
            inner = ((a + real(2)) * distance - (a + real(3))) * distance * distance + real(1)
            outer = ((a * distance - real(5) * a) * distance + real(8) * a) * distance - real(4) * a
            share = inner if place in {1, 2} else outer
            at = np.clip(low.astype(int) + place - 1, 0, before - 1)
            np.add.at(weights, (np.arange(after), at), share)
        return weights
    x = np.clip(x, 0, before - 1)
    low = np.minimum(np.floor(x).astype(int), before - 1)
    high = np.minimum(low + 1, before - 1)
    share = x - low.astype(real)
    np.add.at(weights, (np.arange(after), low), real(1) - share)
    np.add.at(weights, (np.arange(after), high), share)
    return weights


def resized(attributes: Attributes, x: Array, *others: Any) -> list[Array]:
    """Compute Resize, one axis after the other."""
    scales, lengths = [*others, None, None, None][1:3]
    plain = {"mode", "coordinate_transformation_mode", "cubic_coeff_a", "nearest_mode"}
    if attributes.get("mode") not in {b"linear", b"cubic"} or not plain.issuperset(attributes):
        raise Unsupported("another mode")
    if x.dtype.kind != "f":
        raise Unsupported("integers")
    if lengths is not None and np.size(lengths):
        sizes = [int(length) for length in lengths]
        factors = [after / before for after, before in zip(sizes, x.shape, strict=True)]
    else:
        factors = [float(scale) for scale in scales]
        sizes = [math.floor(before * scale) for before, scale in zip(x.shape, factors, strict=True)]
    y = x
    for axis, (after, factor) in enumerate(zip(sizes, factors, strict=True)):
        if after != x.shape[axis]:
            if not float(factor * x.shape[axis]).is_integer():
                raise Unsupported("a fractional length")
            weights = linear_weights((x.shape[axis], after), factor, attributes)
            rows = np.moveaxis(y, axis, -1)
            y = np.moveaxis(in_order(rows[..., None, :] * weights), -1, axis)
    return [y]


def rotated(attributes: Attributes, x: Array, cosines: Array, sines: Array, *places: Any) -> Any:
    """Compute RotaryEmbedding of a tensor with four axes by fused multiply-add."""
    if places and places[0] is not None:
        cosines, sines = cosines[places[0]], sines[places[0]]
    supported = {"interleaved", "num_heads", "rotary_embedding_dim"}
    size = attributes.get("rotary_embedding_dim") or x.shape[-1]
    if x.ndim != 4 or size != x.shape[-1] or not supported.issuperset(attributes):  # noqa: PLR2004
        raise Unsupported("three axes, further attributes, or a part of the last axis")
    cosines, sines = cosines[:, None], sines[:, None]
    if attributes.get("interleaved"):
        first, second = x[..., ::2], x[..., 1::2]
    else:
        first, second = np.split(x, 2, -1)
    real = fused(first, cosines, -(sines * second))
    imaginary = fused(first, sines, cosines * second)
    if attributes.get("interleaved"):
        return [np.stack([real, imaginary], -1).reshape(x.shape)]
    return [np.concatenate([real, imaginary], -1)]


def logarithmic_loss(attributes: Attributes, scores: Array, labels: Array, *weights: Array) -> Any:
    """Compute SoftmaxCrossEntropyLoss or its parts by tiles, with sums in blocks."""
    if "ignore_index" in attributes or scores.ndim < 2:  # noqa: PLR2004
        raise Unsupported("an ignored class")
    rows = np.moveaxis(scores, 1, -1)
    largest, total = tiled_sum(rows)
    logarithms = rows - largest - log_of(total)
    chosen = -np.take_along_axis(logarithms, labels[..., None].astype(int), -1)[..., 0]
    factor = weights[0][labels] if weights and weights[0] is not None else np.ones_like(chosen)
    reduction = attributes.get("reduction", b"mean")
    y = chosen * factor
    if reduction != b"none":
        y = in_blocks(y.reshape(-1))
    if reduction == b"mean":
        y = y / in_blocks(factor.reshape(-1))
    return [np.asarray(y), np.moveaxis(logarithms, -1, 1)]


def affine_grid(form: str, attributes: Attributes, theta: Array, size: Array) -> list[Array]:
    """Compute AffineGrid from coordinates that are multiples of a step, or quotients."""
    real = theta.dtype.type
    axes = []
    for length in size[2:].tolist():
        places = np.arange(length).astype(theta.dtype)
        if attributes.get("align_corners"):
            if length == 1:
                raise Unsupported("one pixel")
            step = real(2) / real(length - 1)
            axes.append(places * step - real(1))
        elif form == "steps":
            axes.append(places * (real(2) / real(length)) + (real(1) / real(length) - real(1)))
        else:
            axes.append((real(2) * places + real(1)) / real(length) - real(1))
    mesh = np.meshgrid(*axes, indexing="ij")[::-1]
    y = np.zeros((len(theta), *size[2:].tolist(), len(axes)), theta.dtype)
    for row in range(len(axes)):
        weights = theta[:, row].reshape(len(theta), -1, *[1] * len(axes))
        total = np.broadcast_to(weights[:, -1], y.shape[:-1])
        for column, coordinates in enumerate(mesh):
            total = fused(weights[:, column], coordinates[None], total)
        y[..., row] = total
    return [y]


def causal_convolution(
    multiply: Callable[[Array, Array], Array],
    attributes: Attributes,
    x: Array,
    w: Array,
    *rest: Any,
) -> list[Array]:
    """Compute CausalConvWithState; the bias is added to the sum of products."""
    bias, past = [*rest, None, None][:2]
    length = w.shape[-1]
    before = np.zeros((*x.shape[:2], length - 1), x.dtype) if past is None else past
    joined = np.concatenate([before, x], -1)
    windows = np.lib.stride_tricks.sliding_window_view(joined, length, -1)
    y = multiply(windows, w)
    y = y if bias is None else y + bias[:, None]
    if attributes.get("activation", b"none") in {b"silu", b"swish"}:
        y = y * sigmoid_of(y)
    return [y, joined[..., joined.shape[-1] - length + 1 :]]


def dequantized(_: Attributes, x: Array, scale: Array, *zero: Array) -> list[Array]:
    """Compute DequantizeLinear per tensor in float32."""
    if scale.size != 1 or scale.dtype != np.float32 or x.dtype not in (np.int8, np.uint8):
        raise Unsupported("axes or types")
    offset = zero[0].astype(np.float32) if zero and zero[0] is not None else np.float32(0)
    return [(x.astype(np.float32) - offset) * scale]


def sums_of(operator: str, total: Sum) -> Callable[..., list[Array]]:
    """Return a form of a reduction operator that adds its terms by the algorithm ``total``."""

    def same(x: Array) -> Array:
        return x

    steps: dict[str, tuple[Unary, Unary]] = {
        "ReduceSum": (same, same),
        "ReduceL1": (np.abs, same),
        "ReduceL2": (np.square, np.sqrt),
        "ReduceSumSquare": (np.square, same),
        "ReduceLogSum": (same, log_of),
    }
    term, last = steps[operator]
    return partial(reduced, term, total, last)


ROOTS: list[Unary] = [partial(reciprocal_root, 1), lambda x: reciprocal(np.sqrt(x))]

KERNELS: dict[str, list[Any]] = {
    "AffineGrid": [partial(affine_grid, form) for form in ("steps", "quotients")],
    "Atan": [elementwise(atan_of)],
    "Attention": [partial(attention, form) for form in ("scaled first", "scaled scores")],
    "AveragePool": [partial(pooled, form) for form in ("separable", "scaled terms", "lanes")],
    "BatchNormalization": [partial(batch, form) for form in ("fused", "centred")],
    "CausalConvWithState": [partial(causal_convolution, form) for form in PRODUCTS],
    **{
        name: [partial(scaled_exponential, name, form) for form in (np.expm1, expm1_of)]
        for name in ("Celu", "Elu", "Selu")
    },
    "Conv": [partial(channels_last, form) for form in PRODUCTS],
    "Cos": [elementwise(partial(sin_of, first=1))],
    "CumSum": [cumulated],
    "DequantizeLinear": [dequantized],
    "Erf": [elementwise(erf_of)],
    "Exp": [elementwise(exp_of)],
    "Gelu": [partial(gelu, erf_of, tanh_of), partial(gelu, erf_of, tanh_by_expm1)],
    "Gemm": [partial(gemm, form) for form in ("bias first", "scaled product")],
    "GlobalAveragePool": [partial(pooled, form) for form in ("separable", "scaled terms", "lanes")],
    "HardSigmoid": [partial(hard, False)],
    "HardSwish": [partial(hard, True)],
    "LRN": [partial(response, form) for form in ("roots", "power")],
    "LSTM": [partial(recurrent_by_float32, "LSTM"), Staged(partial(recurrent, "LSTM"))],
    "LayerNormalization": [partial(normalized, *form) for form in product(SUMS, ROOTS)],
    "Log": [elementwise(log_of)],
    "LogSoftmax": [partial(shares, "logarithm")],
    "LpNormalization": [unit_vectors],
    "MatMul": [*(partial(matmul, form) for form in PRODUCTS), outer],
    "Mish": [elementwise(mish_by_quotient), elementwise(lambda x: x * tanh_of(softplus_of(x)))],
    "RMSNormalization": [partial(root_mean_square, *form) for form in product(SUMS, ROOTS)],
    "RNN": [partial(recurrent_by_float32, "RNN"), Staged(partial(recurrent, "RNN"))],
    "Reciprocal": [elementwise(reciprocal)],
    "ReduceL2": [scaled_norm, *(sums_of("ReduceL2", total) for total in SUMS)],
    "ReduceLogSumExp": [tiled_log_sum],
    "ReduceMean": [
        *(partial(mean, "", total) for total in SUMS),
        partial(mean, "scaled terms", in_order),
        partial(mean, "running", in_order),
    ],
    **{
        name: [sums_of(name, total) for total in SUMS]
        for name in ("ReduceL1", "ReduceLogSum", "ReduceSum", "ReduceSumSquare")
    },
    "Resize": [resized],
    "RotaryEmbedding": [rotated],
    "Sigmoid": [elementwise(form) for form in SIGMOIDS],
    "Sin": [elementwise(sin_of)],
    "Softmax": [partial(shares, form) for form in ("shifted", "reciprocal", "power of two")],
    "SoftmaxCrossEntropyLoss": [logarithmic_loss],
    "Softplus": [elementwise(softplus_of)],
    "Sqrt": [elementwise(lambda x: np.where(x > 0, x * reciprocal_root(2, x), np.sqrt(x)))],
    "Swish": [partial(swish, form) for form in SIGMOIDS],
    "Tanh": [elementwise(tanh_of), elementwise(tanh_by_expm1)],
}


# Distributions of terms. Some of them have subnormal squares or terms, large means, or terms that
# cancel.
REDUCED = ["normal", "uniform", "mean 20", "mean 1e6", "ramp", "alternating", "wide"]
REDUCED += ["scale 1e-19", "scale 1e-38", "scale 1e-42", "scale 1e36"]
#: A function that draws an array of a given shape from a distribution.
Draw = Callable[..., Array]


def function_cases(draw: Draw) -> Iterator[tuple[str, list[Any], Attributes]]:
    """Yield cases of elementary functions and activations."""
    for size in ("1e-3", "1", "6", "30"):
        x = draw(f"scale {size}", 400)
        for name in ("Atan", "Celu", "Cos", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish"):
            yield name, [x], {}
        for name in ("Mish", "Reciprocal", "Selu", "Sin", "Softplus", "Tanh"):
            yield name, [x], {}
        yield "Log", [np.abs(x)], {}
        yield "Sqrt", [np.abs(x)], {}


def reduction_cases(draw: Draw) -> Iterator[tuple[str, list[Any], Attributes]]:
    """Yield cases of reductions and normalizations."""
    for kind in REDUCED:
        for terms in (3, 50, 900):
            x = draw(kind, 3, terms)
            for name in ("ReduceL1", "ReduceMean"):
                yield name, [x, np.array([1])], {"keepdims": 0}
            yield "ReduceLogSum", [np.abs(x), np.array([1])], {"keepdims": 0}
            yield "CumSum", [x, np.array(1)], {}
            yield "Gemm", [x, draw("normal", terms, 4), draw(kind, 4)], {"alpha": 0.7, "beta": 1.3}
            yield "LpNormalization", [x], {}
            yield "RMSNormalization", [x, draw("uniform", terms)], {}


def layer_cases(draw: Draw) -> Iterator[tuple[str, list[Any], Attributes]]:
    """Yield cases of pools, interpolation, attention and recurrences."""
    for kind in ("normal", "uniform", "mean 1e3"):
        x = draw(kind, 2, 6, 19, 19)
        yield "GlobalAveragePool", [x], {}
        yield "AveragePool", [x], {"kernel_shape": [5, 3], "strides": [2, 1]}
        yield "LRN", [x], {"size": 5, "alpha": 0.02, "beta": 0.75, "bias": 1.0}
        for mode, scale in product(("linear", "cubic"), (2.0, 1.5)):
            x = draw(kind, 1, 2, 8, 10)
            scales = np.array([1, 1, scale, scale], np.float32)
            yield "Resize", [x, None, scales], {"mode": mode}
        q, k, v = (draw(kind if kind != "mean 1e3" else "scale 4", 1, 2, 40, 16) for _ in range(3))
        yield "Attention", [q, k, v], {}
    for hidden, steps in ((4, 3), (16, 12)):
        for name, gates in (("LSTM", 4), ("RNN", 1)):
            x = draw("normal", steps, 2, 3)
            w, r = draw("normal", 1, gates * hidden, 3), draw("normal", 1, gates * hidden, hidden)
            yield name, [x, w, r], {"hidden_size": hidden}
    for kind in ("normal", "mean 20"):
        x, w = draw(kind, 2, 5, 40), draw(kind, 5, 1, 4)
        for activation in ("none", "silu"):
            yield "CausalConvWithState", [x, w, draw("normal", 5)], {"activation": activation}
        for corners in (0, 1):
            sizes = np.array([3, 1, 7, 12])
            yield "AffineGrid", [draw(kind, 3, 2, 3), sizes], {"align_corners": corners}


def further_cases(draw: Draw) -> Iterator[tuple[str, list[Any], Attributes]]:
    """Yield cases of windows, dequantization, rotation, and a loss."""
    for count, periodic in product((2, 8, 100, 3000), (0, 1)):
        for name in ("BlackmanWindow", "HammingWindow", "HannWindow"):
            yield name, [np.array(count)], {"periodic": periodic}
    x = np.arange(256).astype(np.uint8)
    for zero_point in (0, 77):
        yield "DequantizeLinear", [x, np.float32(0.0173), np.uint8(zero_point)], {}
    for kind in ("normal", "mean 20", "mean 1e3", "scale 30"):
        yield "Swish", [draw(kind, 300)], {}
        angles = 6 * draw("uniform", 2, 50, 4)
        for interleaved in (0, 1):
            operands = [draw(kind, 2, 3, 50, 8), np.cos(angles), np.sin(angles)]
            yield "RotaryEmbedding", operands, {"interleaved": interleaved}
        for classes in (2, 60, 3000):
            labels = np.arange(30) % classes
            yield "SoftmaxCrossEntropyLoss", [draw(kind, 30, classes), labels], {}
