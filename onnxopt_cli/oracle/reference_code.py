"""The Python functions that compute an operator on onnx's corrected reference."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import Any

from onnxopt_cli.oracle import patching
from onnxopt_cli.oracle.corrections.corrected_reference import operators
from onnxopt_cli.oracle.patching import replaced, replacements

# Modules that compute operators, in contrast to modules that evaluate graphs or check types.
_COMPUTING = (
    "onnx.reference.ops.",
    "onnxopt_cli.oracle.corrections.",
    "onnxopt_cli.oracle.rounding.normalizations",
    "onnxopt_cli.oracle.rounding.exponentials",
)
# A method of onnx's base class that checks types and logs before and after the computation.
_CHECKING_MODULE, _CHECKING = "onnx.reference.ops._op", "run"
# The module of the base class of all operators.
_INFRASTRUCTURE = "onnx.reference.op_run"
# Methods that describe an object in a message or for debugging.
_DESCRIBING = frozenset({"__format__", "__repr__", "__str__"})
# The functions of each operator that are called only for nodes that are invalid or not judged.
_UNJUDGED = {
    # The correction calls the original for negative padding, and if the number of columns is wrong.
    "Col2Im": {"Col2Im._run"},
    # The correction calls the original if the rank is not 4, and the original rejects such
    # operands.
    "DeformConv": {"DeformConv._run"},
    # onnxopt does not judge nodes with PROBIT.
    "LinearClassifier": {"compute_probit"},
    "SVMClassifier": {"compute_probit"},
}
# Names of the methods that are called when the evaluator of a node is created.
_PREPARING = ("__init__", "need_context")
# Functions that find attributes by names that need not occur in the code.
_DYNAMIC = frozenset({"__dict__", "eval", "getattr", "globals", "vars"})
# Names by which a method calls the methods of base classes.
_BASES = frozenset({"__class__", "super"})
# A correction receives the original function as a parameter. If the correction calls the original,
# the name of the parameter is _CALLED; otherwise, the name is "_original".
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

    A function that a correction replaces is omitted unless the correction calls it. The result is
    empty if the reference computes the operator by its published function body.

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


@cache
def uncalled_functions(domain: str, op_type: str, opset: int) -> frozenset[FunctionType]:
    """Return the functions of an operator's computation that no judged node calls.

    A function may be uncalled because a correction replaces its only caller, or because a derived
    class overrides it. A function counts as called in three cases: if onnx's reference calls a
    function of this name in every operator, if another called function contains the name, or if
    Python calls the function implicitly. Functions that only describe objects in messages count as
    uncalled. The arguments are those of :func:`reference_functions`.
    """
    functions = reference_functions(domain, op_type, opset)
    with replaced(*replacements()):
        implementation = _implementation(domain, op_type, opset)
        if implementation is None or not _is_readable(implementation):
            return frozenset()
        mentioned = [_names_in_every_operator(implementation)]
        aliases = _aliases(implementation)
        classes_of = _overridden(implementation)
        unjudged = _UNJUDGED.get(op_type, ())
        uncalled = {*functions}
        called: set[FunctionType] = set(functions)
        while called:
            called = {
                function
                for function in uncalled
                if function.__qualname__ not in unjudged
                and (
                    _is_special(function.__name__)
                    or any(
                        not names.isdisjoint({function.__name__, *aliases.get(function, ())})
                        and not names.isdisjoint(classes_of.get(function, names))
                        for names in mentioned
                    )
                )
            }
            uncalled -= called
            mentioned += [_names_from(function, implementation) for function in called]
    # All closures of one definition share its code.
    codes = {function.__code__ for function in functions if function not in uncalled}
    return frozenset(function for function in uncalled if function.__code__ not in codes)


@cache
def preparing_functions(domain: str, op_type: str, opset: int) -> frozenset[FunctionType]:
    """Return the functions that may be called when the evaluator of an operator is created.

    A function counts as called if a method of :data:`_PREPARING`, or another such function,
    contains its name. The arguments are those of :func:`reference_functions`.
    """
    remaining = {*reference_functions(domain, op_type, opset)}
    preparing: set[FunctionType] = set()
    with replaced(*replacements()):
        implementation = _implementation(domain, op_type, opset)
        if implementation is None:
            return frozenset()
        aliases = _aliases(implementation)
        names = {*_PREPARING}
        while called := {
            function
            for function in remaining
            if not names.isdisjoint({function.__name__, *aliases.get(function, ())})
        }:
            remaining -= called
            preparing |= called
            names = {name for function in called for name in _names_from(function, implementation)}
    return frozenset(preparing)


def _is_special(name: str) -> bool:
    """Return whether Python calls a method implicitly, except to describe an object."""
    return name.startswith("__") and name.endswith("__") and name not in _DESCRIBING


def _is_readable(implementation: type) -> bool:
    """Return whether all bases of a class are in :data:`_COMPUTING` or shared by all operators."""
    return all(
        base.__module__.startswith(_COMPUTING) or base.__module__ == _INFRASTRUCTURE
        for base in implementation.__mro__[:-1]
        if base is not ABC
    )


def _names_in_every_operator(implementation: type) -> set[str]:
    """Return the names of the methods that onnx's reference may call in every operator."""
    names: set[str] = set()
    for base in implementation.__mro__:
        is_computing = base.__module__.startswith(_COMPUTING)
        for name, value in vars(base).items():
            if not is_computing or name.startswith("__"):
                names.add(name)
            is_checking = (base.__module__, name) == (_CHECKING_MODULE, _CHECKING)
            if isinstance(value, FunctionType) and (is_checking or not is_computing):
                names |= {*_names(value.__code__)}
    return names - _DESCRIBING - _DYNAMIC - _BASES


def _aliases(implementation: type) -> dict[FunctionType, set[str]]:
    """Return, for each method or correction, the names of the attributes that hold it."""
    aliases: dict[FunctionType, set[str]] = {}
    held = [(name, value) for base in implementation.__mro__ for name, value in vars(base).items()]
    held += [(name, value) for _, name, value in replacements()]
    for name, value in held:
        for function in _unwrapped(value):
            aliases.setdefault(function, set()).add(name)
    return aliases


def _overridden(implementation: type) -> dict[FunctionType, frozenset[str]]:
    """Return the overridden methods, each with the names by which derived classes may call it.

    These names are :data:`_BASES` and the names of the classes that define the method.
    """
    effective: set[FunctionType] = set()
    classes_of: dict[FunctionType, frozenset[str]] = {}
    found: set[str] = set()
    for base in implementation.__mro__:
        for name, value in vars(base).items():
            for function in _unwrapped(value):
                if name in found:
                    classes = classes_of.get(function, _BASES)
                    classes_of[function] = classes | {base.__name__}
                else:
                    effective.add(function)
        found.update(vars(base))
    return {method: names for method, names in classes_of.items() if method not in effective}


def _names_from(function: FunctionType, implementation: type) -> set[str]:
    """Return the names in a function's code, and the names of the functions that it refers to."""
    names = {*_texts(function.__code__)}
    for value in _referenced(function):
        items = value.values() if isinstance(value, dict) else value
        is_container = isinstance(value, dict | list | tuple | set | frozenset)
        for item in items if is_container else (value,):
            names.add(getattr(item, "__name__", ""))
            names |= {inner.__name__ for inner in _unwrapped(item)}
    if not names.isdisjoint(_DYNAMIC):
        names |= {name for base in implementation.__mro__ for name in vars(base)}
    return names


def _texts(code: CodeType) -> Iterator[str]:
    """Yield the names and string constants in code, including those of inner functions."""
    yield from code.co_names
    pending = list(code.co_consts)
    while pending:
        constant = pending.pop()
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            pending += constant
        elif isinstance(constant, CodeType):
            yield from _texts(constant)


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
    """Yield the methods of a class and of its bases, except the methods that check types."""
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
        # This is a correction of a function: a partial object that binds the original.
        yield from _unwrapped(value.func)
        if _calls_original(value.func):
            yield from (item for bound in value.args for item in _unwrapped(bound))
    elif isinstance(value, FunctionType) and value.__module__ == patching.__name__:
        # This is a correction of a method: a closure over the correction and the original.
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
    """Yield the functions that a function may call in modules of :data:`_COMPUTING`."""
    for value in _referenced(function):
        if getattr(value, "__module__", None) is not None or isinstance(value, partial):
            for called in _unwrapped(value):
                if called.__module__.startswith(_COMPUTING):
                    yield called
        if isinstance(value, type) and value.__module__.startswith(_COMPUTING):
            yield from _methods(value)


def _referenced(function: FunctionType) -> list[Any]:
    """Return the values of globals, module attributes and closure cells that a function uses."""
    names = _names(function.__code__)
    values = [function.__globals__.get(name) for name in names]
    for module in [value for value in values if isinstance(value, ModuleType)]:
        if module.__name__.startswith(_COMPUTING):
            values += [getattr(module, name, None) for name in names]
    for cell in function.__closure__ or ():
        # The cell of a closure is empty while the function is being defined.
        try:
            values.append(cell.cell_contents)
        except ValueError:
            continue
    return values


def _names(code: CodeType) -> list[str]:
    """Return the global names and attributes that code uses, including those of inner functions."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _names(constant)
    return list(dict.fromkeys(names))
