"""Replace functions of onnx's reference and of NumPy, and recognize errors of the reference.

A correction of the reference registers its function with :func:`replaces`. The correction takes
effect only inside a block in which :func:`replaced` applies :func:`replacements`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, reduce
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_REPLACEMENTS: list[tuple[str, Callable[..., Any]]] = []
_ACCELERATIONS: set[Callable[..., Any]] = set()
# Matches the messages of the reference about operators that it does not implement. Most of these
# errors have the type NotImplementedError. For an unimplemented version of a domain, the reference
# raises a plain RuntimeError.
_UNKNOWN_OPERATOR = re.compile(
    r"(?:Node type|No registered schema for operator|No registered implementation for operator|"
    r"No implementation for operator|No implementation was found for node type) "
    r"'(?P<name>.*?)' (?:and |from |)domain '(?P<domain>.*?)'"
    r"(?: is unknown,| and version |,|\.| in\n)"
)
# A module of NumPy that is linked with the BLAS library.
_LINKED_MODULE = "numpy.linalg._umath_linalg"
# Templates of OpenBLAS's function names, for NumPy's wheels and for other builds.
_OPENBLAS_NAMES = ("scipy_openblas_{}64_", "openblas_{}64_", "openblas_{}")


@contextmanager
def replaced(*functions: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace functions, given as (module or class, name, replacement), in a ``with`` block."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in functions]
    try:
        for replacement in functions:
            setattr(*replacement)
        yield
    finally:
        for original in originals:
            setattr(*original)


def replaces(*places: str) -> Callable[[F], F]:
    """Return a decorator that registers a replacement of functions of onnx's reference.

    The first argument of the replacement is the original function. For a method, the first argument
    is the node, and the second is the original method.

    Args:
        places: the functions to replace, as dotted paths of the module, the class if any, and the
            name.
    """

    def register(function: F) -> F:
        _REPLACEMENTS.extend((place, function) for place in places)
        return function

    return register


def accelerates(*places: str) -> Callable[[F], F]:
    """Return a decorator like :func:`replaces` for a faster function with the same results.

    Args:
        places: the functions to replace, as for :func:`replaces`.
    """

    def register(function: F) -> F:
        _ACCELERATIONS.add(function)
        return replaces(*places)(function)

    return register


def is_acceleration(function: Callable[..., Any]) -> bool:
    """Return whether a function was registered by :func:`accelerates`."""
    return function in _ACCELERATIONS


@cache
def replacements() -> list[tuple[Any, str, Any]]:
    """Return the registered replacements in the form of the arguments of :func:`replaced`."""
    bound = []
    for place, function in _REPLACEMENTS:
        *within, name = place.split(".")
        owner = reduce(getattr, within, reference_modules())
        bind = _method if isinstance(owner, type) else partial
        bound.append((owner, name, bind(function, getattr(owner, name))))
    return bound


@contextmanager
def corrected() -> Iterator[None]:
    """Apply all corrections of onnx's reference in a ``with`` block, without NumPy's warnings.

    Matrix products run in one thread. Most products of a model are so small that further threads
    would mostly wait. In large products, the sums could depend on the number of threads.
    """
    with np.errstate(all="ignore"), replaced(*replacements()), one_blas_thread():
        yield


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let OpenBLAS use one thread in a ``with`` block.

    BLAS libraries other than OpenBLAS are not affected.
    """
    if (functions := blas_thread_functions()) is None:
        yield
        return
    get_threads, set_threads = functions
    before = get_threads()
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)


@cache
def blas_thread_functions() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return functions that get and set OpenBLAS's number of threads; None without OpenBLAS."""
    module = importlib.util.find_spec(_LINKED_MODULE)
    if module is None or module.origin is None:
        return None
    # ctypes also searches the libraries that are linked with the module.
    library = ctypes.CDLL(module.origin)
    for name in _OPENBLAS_NAMES:
        getter, setter = name.format("get_num_threads"), name.format("set_num_threads")
        if hasattr(library, getter) and hasattr(library, setter):
            return getattr(library, getter), getattr(library, setter)
    return None


def reference_modules() -> Any:
    """Return the package whose attributes are the modules of the reference's operators."""
    from onnx.reference import ops

    # This import also makes the operators of ai.onnx.ml available as an attribute of ``ops``.
    from onnx.reference.ops.aionnxml import _op_list  # noqa: F401

    return ops


def unimplemented_operator(error: BaseException) -> str:
    """Return the operator that the reference reports as missing, as ``domain:name``.

    The result is empty for an error of another kind.
    """
    match = _UNKNOWN_OPERATOR.match(str(error))
    return f"{match['domain'] or 'ai.onnx'}:{match['name']}" if match else ""


def _method(function: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return a method that calls a replacement, but is faster than ``functools.partialmethod``."""
    return lambda node, *args, **kwargs: function(node, original, *args, **kwargs)
