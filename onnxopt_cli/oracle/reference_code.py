"""The Python functions that compute an operator on onnx's corrected reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from onnxopt_cli.oracle import patching
from onnxopt_cli.oracle.corrections.corrected_reference import operators
from onnxopt_cli.oracle.patching import replaced, replacements

# Modules that compute operators. The other modules of onnx's reference evaluate graphs or check
# types.
_COMPUTING = (
    "onnx.reference.ops.",
    "onnxopt_cli.oracle.corrections.",
    "onnxopt_cli.oracle.rounding.normalizations",
    "onnxopt_cli.oracle.rounding.exponentials",
)
# A method of onnx's base class that checks types and logs before and after the computation.
_CHECKING_MODULE, _CHECKING = "onnx.reference.ops._op", "run"
# The name of a correction's parameter for the original function if the correction calls that
# function; otherwise the parameter is named "_original".
_CALLED = "original"
_LOADERS = {
    "": "onnx.reference.ops",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview": "onnx.reference.ops.aionnx_preview",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}


@cache
def reference_functions(domain: str, op_type: str, opset: int) -> tuple[FunctionType, ...]:
    """Return the functions that compute an operator, each after the functions that call it.

    A function that a correction replaces is left out, unless the correction calls it. The result is
    empty for an operator that the reference computes by its published function body.

    Args:
        domain: the operator's domain; empty for the default domain.
        op_type: the operator's name.
        opset: the version of the domain.
    """
    with replaced(*replacements()):
        implementation = _implementation(domain, op_type, opset)
        if implementation is None:
            return ()
        functions: dict[FunctionType, None] = {}
        pending = list(_methods(implementation))
        while pending:
            function = pending.pop(0)
            if function not in functions:
                if function.__module__.startswith(_COMPUTING):
                    functions[function] = None
                pending += _called(function)
        return tuple(functions)


def _implementation(domain: str, op_type: str, opset: int) -> type | None:
    """Return the class that computes an operator, or None."""
    for corrected in operators():
        if corrected.__name__ == op_type and getattr(corrected, "op_domain", "") == domain:
            return corrected
    try:
        loaded = import_module(_LOADERS[domain]).load_op(domain, op_type, opset)
    except Exception:  # noqa: BLE001 - the reference raises many types for operators without a class
        return None
    return loaded if isinstance(loaded, type) else None


def _methods(implementation: type) -> Iterator[FunctionType]:
    """Yield the methods of a class and of its bases, except methods that check types."""
    for base in implementation.__mro__:
        if not base.__module__.startswith(_COMPUTING):
            continue
        for name, value in vars(base).items():
            if (base.__module__, name) != (_CHECKING_MODULE, _CHECKING):
                yield from _unwrapped(value)


def _unwrapped(value: Any) -> Iterator[FunctionType]:
    """Yield the functions that a callable object calls."""
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, partial):
        # A correction of a function: a partial object that binds the original.
        yield from _unwrapped(value.func)
        if _calls_original(value.func):
            yield from (item for bound in value.args for item in _unwrapped(bound))
    elif isinstance(value, FunctionType) and value.__module__ == patching.__name__:
        # A correction of a method: a closure over the correction and the original.
        cells = dict(zip(value.__code__.co_freevars, (value.__closure__ or ()), strict=True))
        if "original" not in cells:
            return
        correction = cells["function"].cell_contents
        yield from _unwrapped(correction)
        if _calls_original(correction):
            yield from _unwrapped(cells["original"].cell_contents)
    elif isinstance(value, FunctionType):
        yield value


def _calls_original(correction: Any) -> bool:
    code = getattr(correction, "__code__", None)
    return code is not None and _CALLED in code.co_varnames[: code.co_argcount]


def _called(function: FunctionType) -> Iterator[FunctionType]:
    """Yield the functions of computing modules that a function may call."""
    names = _names(function.__code__)
    values = [function.__globals__.get(name) for name in names]
    for module in [value for value in values if isinstance(value, ModuleType)]:
        if module.__name__.startswith(_COMPUTING):
            values += [getattr(module, name, None) for name in names]
    for cell in function.__closure__ or ():
        # A closure's cell is empty while its function is being defined.
        try:
            values.append(cell.cell_contents)
        except ValueError:
            continue
    for value in values:
        if getattr(value, "__module__", None) is not None or isinstance(value, partial):
            for called in _unwrapped(value):
                if called.__module__.startswith(_COMPUTING):
                    yield called
        if isinstance(value, type) and value.__module__.startswith(_COMPUTING):
            yield from _methods(value)


def _names(code: CodeType) -> list[str]:
    """Return the global names and attributes that code uses, inner functions included."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant)
    return list(dict.fromkeys(names))
