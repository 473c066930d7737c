"""Documented errors of the float32 elementary functions of graphics devices.

A backend selects one of the tables below by the option ``math``. An entry of a table returns the
largest absolute error of a function, given the exact result y and the operands. One ulp in the
source of a table is interpreted as 2u|y|, where u is the unit roundoff. The usual tolerance applies
to functions that are not listed, and to operands for which the source states no accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from onnxopt_cli.core.values import Array

#: A function that returns the largest error of an elementary function, given the function's result
#: and operands.
ErrorOf: TypeAlias = Callable[..., Array]

_ULP = 2.0**-23
_PI = 3.1415926


def _relative(ulps: Callable[[Array], Array]) -> ErrorOf:
    """Return the absolute error of a function; ``ulps`` returns its error in ulps."""
    return lambda y, x: ulps(x) * _ULP * np.abs(y)


def _logarithm(near_one: float, ulps: float) -> ErrorOf:
    """Return the error of a logarithm: ``near_one`` for operands in [0.5, 2], otherwise in ulps."""
    return lambda y, x: np.where((x >= 0.5) & (x <= 2), near_one, ulps * _ULP * np.abs(y))  # noqa: PLR2004


def _periodic(error: float) -> ErrorOf:
    """Return the error of a sine or cosine: constant for operands in [-pi, pi], otherwise 0."""
    return lambda y, x: np.where(np.abs(x) <= _PI, error, 0.0) + 0 * y


def _tangent(sine: float, cosine: float, ulps: float) -> ErrorOf:
    """Return the error of a tangent, computed as sine / cosine.

    The error of the quotient contains the factor 1 / |cos x| = sqrt(1 + tan^2 x).
    """
    return lambda y, x: np.where(
        np.abs(x) <= _PI,
        (sine + np.abs(y) * cosine) * np.sqrt(1 + y * y) + ulps * _ULP * np.abs(y),
        0.0,
    )


def _power(log2_error: Callable[[Array, Array], Array], ulps: Callable[[Array], Array]) -> ErrorOf:
    """Return the error of exp2(exponent log2(base)), given the errors of log2 and of exp2."""

    def error(y: Array, base: Array, exponent: Array) -> Array:
        logarithm = np.log2(np.abs(base))
        product = exponent * logarithm
        inherited = np.abs(exponent) * log2_error(base, logarithm) + _ULP * np.abs(product)
        return np.abs(y) * (np.log(2) * inherited + ulps(product) * _ULP)

    return error


def _log2_error(near_one: float, ulps: float) -> Callable[[Array, Array], Array]:
    return lambda x, y: _logarithm(near_one, ulps)(y, np.abs(x))


def _vulkan_exp_ulps(x: Array) -> Array:
    return 3 + 2 * np.abs(x)


#: Vulkan specification, "Precision of GLSL.std.450 Instructions", which states the errors of exp,
#: log, sin, cos, atan and atan2. The errors of other functions follow from these: tan from
#: sin / cos, sinh and cosh from sums of exp, tanh from sinh / cosh, asin and acos from atan2, and
#: pow(x, y) from exp2(y log2(x)). A division has an error of 2.5 ulp.
_VULKAN: Mapping[str, ErrorOf] = {
    "Exp": _relative(_vulkan_exp_ulps),
    "Log": _logarithm(2.0**-21, 3.0),
    "Sin": _periodic(2.0**-11),
    "Cos": _periodic(2.0**-11),
    "Tan": _tangent(2.0**-11, 2.0**-11, 2.5),
    "Atan": _relative(lambda x: 4096 + 0 * x),
    "Asin": _relative(lambda x: 4096 + 0 * x),
    "Acos": _relative(lambda x: 4096 + 0 * x),
    "Sinh": lambda _y, x: _vulkan_exp_ulps(x) * _ULP * np.cosh(x),
    "Cosh": _relative(_vulkan_exp_ulps),
    "Tanh": lambda y, x: (_vulkan_exp_ulps(x) * (1 + np.abs(y)) + 2.5 * np.abs(y)) * _ULP,
    "Pow": _power(_log2_error(2.0**-21, 3.0), _vulkan_exp_ulps),
}
#: CUDA C++ Programming Guide, "Intrinsic Functions": the errors of __expf, __logf, __sinf, __cosf,
#: __tanf, __powf, __tanhf and __log2f. The compiler option -use_fast_math maps the standard
#: functions to these intrinsic functions.
_CUDA_FAST: Mapping[str, ErrorOf] = {
    "Exp": _relative(lambda x: 2 + np.floor(np.abs(1.173 * x))),
    "Log": _logarithm(2.0**-21.41, 3.0),
    "Sin": _periodic(2.0**-21.41),
    "Cos": _periodic(2.0**-21.19),
    "Tan": _tangent(2.0**-21.41, 2.0**-21.19, 2.0),
    "Tanh": lambda y, _x: 2.0**-11 * np.abs(y),
    "Pow": _power(_log2_error(2.0**-22, 2.0), lambda x: 2 + 0 * x),
}
#: For each value of the option ``math``, the table of errors.
DEVICE_FUNCTIONS: Mapping[str, Mapping[str, ErrorOf]] = {
    "vulkan": _VULKAN,
    "cuda-fast": _CUDA_FAST,
}


def device_error(math: str, op_type: str, operands: list[Array], output: Array) -> Array | None:
    """Return the documented error of each element of a result; None if none is documented."""
    error_of = DEVICE_FUNCTIONS.get(math, {}).get(op_type)
    if error_of is None:
        return None
    error = np.broadcast_to(error_of(output, *operands), output.shape)
    return np.where(np.isfinite(error), error, 0.0)
