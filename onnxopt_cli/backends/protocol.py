"""The interface of backends, the conversion of outputs, and errors about unsupported features.

An output that has a dtype keeps this dtype. Python numbers have no dtype. They get the declared
element type if it can represent their values; a float type may round the values.

A regular expression recognises the backend's own errors about unsupported features. The option
``unsupported`` or the backend itself states the expression. The expression is searched for in the
text that reports show: the error's type and message, up to 4,000 characters. Crashes, timeouts,
protocol violations, exhausted memory and exits of the interpreter never count as unsupported.
"""

from __future__ import annotations

import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from reprlib import repr as shortened
from typing import Any

import numpy as np
import onnx
from onnx import TypeProto, ValueInfoProto, helper

from onnxopt_cli.core.text import clipped, exception_text, printable
from onnxopt_cli.core.values import (
    Array,
    NumberKind,
    Value,
    is_string,
    kind_of,
)
from onnxopt_cli.errors import (
    BackendDied,
    BackendFailure,
    BackendHangs,
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    Unsupported,
    UnusableOutput,
    UsageError,
)

# The largest number of characters of a backend's specification that is not shortened in messages.
_MAX_BACKEND_CHARS = 300


@dataclass(frozen=True)  # no slots, because Python 3.9 lacks them: see exec/other_interpreter.py
class Prepared:
    """A model that a backend has accepted.

    Attributes:
        run: computes the graph's outputs. Its argument has a value for every required input of the
            graph, in the graph's order. It raises Unsupported if the backend lacks a feature but
            detects this only during the run; any other exception is a failure of the backend.
    """

    run: Callable[[Mapping[str, Value]], Any]


class Backend:
    """An implementation of ONNX under test.

    Attributes:
        name: the backend as the user specified it: ``onnxruntime``, ``python:my.module:Backend``.
        version: the implementation and its version: ``onnxruntime 1.31.1``; empty if unknown.
        unsupported: a regular expression, compiled or as text, that matches errors about
            unsupported features; None if the backend declares none.
    """

    name: str
    version: str
    unsupported: Any = None

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model.

        Raises:
            Unsupported: if the backend lacks an operator, opset, type or device of the model.
            Exception: any other exception is a failure of the backend.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the backend's resources; end its processes and wait for them.

        Raises:
            BackendDied: if a process ends with an error.
            BackendHangs: if a process does not end.
        """


@contextmanager
def reporting(unsupported: Callable[[BaseException], Unsupported | None]) -> Iterator[None]:
    """Convert exceptions that report an unsupported feature to Unsupported.

    Args:
        unsupported: returns Unsupported for an exception that reports an unsupported feature, and
            None for any other exception.
    """
    try:
        yield
    except BaseException as error:
        converted = unsupported(error)
        if converted is None:
            raise
        raise converted from error


def misused(backend: str, problem: str, hint: str = "") -> UsageError:
    """Return the error for an invalid specification of a backend."""
    return UsageError(f"backend {_shortened(backend)}{problem}", hint=hint)


def unavailable(backend: str, problem: str, hint: str = "") -> BackendUnavailable:
    """Return the error for a backend that does not start."""
    return BackendUnavailable(f"backend {_shortened(backend)}{problem}", hint=hint)


def start_problem(error: BackendUnavailable, *names: str) -> str:
    """Return the reason why a backend does not start, without the backend's name.

    Args:
        error: the error.
        names: the names under which the error may mention the backend.
    """
    for name, end in product(names, (" does not start: ", ": ")):
        beginning = f"backend {_shortened(name)}{end}"
        if error.message.startswith(beginning):
            return error.message.removeprefix(beginning)
    return error.message


def _shortened(backend: str) -> str:
    return printable(clipped(backend, _MAX_BACKEND_CHARS))


@contextmanager
def starting(backend: str) -> Iterator[None]:
    """Convert exceptions during the start of a backend, even SystemExit, to BackendUnavailable."""
    try:
        yield
    except (OnnxoptError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise unavailable(backend, f" does not start: {exception_text(error)}") from error


#: Errors that mean that a backend failed to respond at all.
BREAKDOWNS = (BackendDied, BackendHangs, ProtocolBreach)

_PYTHON = (bool, int, float, complex, str, bytes)
_TEXT = (str, bytes, np.str_, np.bytes_)
# Kinds of numbers in increasing rank; each kind includes the kinds of lower rank.
_WIDTH = {NumberKind.BOOLEAN: 0, NumberKind.INTEGER: 1, NumberKind.FLOAT: 2, NumberKind.COMPLEX: 3}


def normalise_outputs(returned: object, declared: Sequence[ValueInfoProto]) -> list[Value]:
    """Return a backend's outputs in the graph's order.

    A wrong number of outputs is preserved. Shapes, element types and structures that differ from
    the declaration are preserved as well, because the comparison reports them.

    Args:
        returned: a list or tuple of outputs, or a dict by name. A tensor is any value that NumPy
            converts to an array, including nested lists and scalars. A sequence is a list or tuple,
            an empty optional is None, and a map is a dict.
        declared: the graph's outputs.

    Raises:
        UnusableOutput: if an output cannot be converted.
    """
    types = [output.type for output in declared]
    names = [output.name for output in declared]
    if isinstance(returned, dict):
        # A missing output becomes None; undeclared outputs follow the declared outputs.
        by_name = {key: value for key, value in returned.items() if type(key) is str}
        if len(by_name) < len(returned):
            raise UnusableOutput("the backend returned a dict whose keys are not output names")
        values = [by_name.pop(name, None) for name in names]
        names += [printable(name) for name in by_name]
        values += by_name.values()
    elif isinstance(returned, (list, tuple)):
        values = list(returned)
        names += [f"output {position}" for position in range(len(names), len(values))]
    else:
        raise UnusableOutput(
            f"the backend returned a {type(returned).__name__}; expected a list or tuple of "
            "outputs, or a dict of them by name"
        )
    types += [TypeProto()] * (len(values) - len(types))
    return list(map(_value, values, types, names))


def _value(returned: object, declared: TypeProto, place: str) -> Value:
    kind = declared.WhichOneof("value")
    if returned is None:
        return None
    if kind == "optional_type":
        return _value(returned, declared.optional_type.elem_type, place)
    if kind == "sequence_type" and isinstance(returned, (list, tuple)):
        element = declared.sequence_type.elem_type
        return [_value(item, element, f"{place}[{index}]") for index, item in enumerate(returned)]
    if kind == "map_type" and isinstance(returned, dict):
        element = declared.map_type.value_type
        keys = [_key(key, place) for key in returned]
        return {
            key: _value(item, element, f"{place}[{shortened(key)}]")
            for key, item in zip(keys, returned.values())  # noqa: B905 - Python 3.9
        }
    try:
        array = _array(returned, declared.tensor_type.elem_type)
    except Exception as error:
        raise UnusableOutput(f"{place} is not a tensor: {exception_text(error)}") from error
    if array.dtype == object and any(type(item) not in _TEXT for item in array.flat):
        kind_name = printable(type(returned).__name__)
        raise UnusableOutput(
            f"{place} is a {kind_name}, which is not a tensor of numbers or strings"
        )
    return array


def _array(returned: object, element_type: int) -> Array:
    if not isinstance(returned, (list, tuple, *_PYTHON)):
        array = np.asarray(returned)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    leaves = list(_leaves(returned))
    if any(isinstance(leaf, (str, bytes)) for leaf in leaves):
        # The string types of NumPy drop null characters at the end.
        return np.array(returned, dtype=object)
    array = np.asarray(returned)
    if not element_type or any(type(leaf) not in _PYTHON for leaf in leaves):
        return array
    return _with_type(array, helper.tensor_dtype_to_np_dtype(element_type))


def _with_type(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert Python numbers to the declared dtype, unless the conversion changes a value."""
    if not array.size:
        return array.astype(dtype)
    if array.dtype == object or is_string(dtype):
        return array
    own_kind, declared_kind = kind_of(array.dtype), kind_of(dtype)
    if _WIDTH[own_kind] > _WIDTH[declared_kind] or (own_kind is NumberKind.BOOLEAN) != (
        declared_kind is NumberKind.BOOLEAN
    ):
        return array
    with np.errstate(all="ignore"):
        typed = array.astype(dtype)
    if declared_kind is not NumberKind.INTEGER:
        return typed
    # The signs are compared as well, because a negative number survives the round trip through an
    # unsigned type.
    same = np.array_equal(typed.astype(array.dtype), array)
    return typed if same and np.array_equal(typed < 0, array < 0) else array


def _leaves(nested: object) -> Iterator[object]:
    if isinstance(nested, (list, tuple)):
        for item in nested:
            yield from _leaves(item)
    else:
        yield nested


def _key(key: object, place: str) -> int | str:
    if isinstance(key, np.integer):
        return int(key)
    if type(key) in (int, str):
        return key  # type: ignore[return-value]
    raise UnusableOutput(f"{place} is not a map: a key is a {printable(type(key).__name__)}")


Patterns = Sequence[re.Pattern[str]]

# Matches the texts of exceptions that C++ code raises where Python code raises MemoryError.
_OUT_OF_MEMORY = re.compile("std::bad_alloc|bad allocation|Failed to allocate memory")
_NEVER_CONVERTED = (KeyboardInterrupt, SystemExit, MemoryError, Unsupported, BackendUnavailable)
_MAX_PATTERN_CHARS = 1000
# Only this number of characters at the beginning of a message is searched.
_MAX_SEARCHED_CHARS = 4000
# The time limit of a search, which takes microseconds unless the pattern backtracks exponentially.
_SEARCH_SECONDS = 1.0


class Recognised(Unsupported):
    """An error of a backend that matches a pattern for unsupported features."""


def compile_pattern(written: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        ValueError: if the text is invalid, or matches the empty text and hence every text. The
            message describes the error and, if known, its position.
    """
    if len(written) > _MAX_PATTERN_CHARS:
        raise ValueError(f"is longer than {_MAX_PATTERN_CHARS} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pattern = re.compile(written, flags)
    except re.error as error:
        where = "" if error.pos is None else f" at character {error.pos + 1}"
        raise ValueError(f"is not a regular expression: {printable(error.msg)}{where}") from None
    except (OverflowError, RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"is not a regular expression: {printable(str(error))}") from None
    if pattern.search(""):
        raise ValueError("would match every error, because it matches an empty text")
    return pattern


def with_patterns(backend: Backend, written: Sequence[str]) -> Backend:
    """Return the backend, wrapped in :class:`Recognising` if there are patterns for its errors.

    Args:
        backend: the backend.
        written: regular expressions, in addition to the backend's own.

    Raises:
        BackendUnavailable: if the backend's attribute ``unsupported`` is not a regular expression.
    """
    stated = backend.unsupported
    patterns = [] if stated is None else [_own_pattern(backend.name, stated)]
    patterns += map(compile_pattern, written)
    return Recognising(backend, patterns) if patterns else backend


def _own_pattern(backend: str, stated: object) -> re.Pattern[str]:
    flags = 0
    if isinstance(stated, re.Pattern):
        flags, stated = stated.flags, stated.pattern
    if not isinstance(stated, str):
        kind = printable(type(stated).__name__)
        problem = f": its attribute unsupported is a {kind}, not a regular expression"
        raise unavailable(backend, problem)
    try:
        return compile_pattern(stated, flags)
    except ValueError as error:
        problem = f": its attribute unsupported, {printable(stated)!r}, {error}"
        raise unavailable(backend, problem) from None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports that memory was exhausted."""
    text = error_text(error)
    # A Python command reports a MemoryError as text.
    by_command = isinstance(error, BackendFailure) and re.match(r"\w*MemoryError\b", text)
    return isinstance(error, MemoryError) or bool(by_command or _OUT_OF_MEMORY.search(text))


def error_text(error: BaseException) -> str:
    """Return the text of a backend's error as reports show it."""
    return error.message if isinstance(error, OnnxoptError) else exception_text(error)


def recognising(patterns: Patterns) -> AbstractContextManager[None]:
    """Convert errors that a pattern matches to Recognised.

    Raises:
        BackendFailure: if the search for a pattern takes too long; its message contains the error's
            text.
    """
    return reporting(partial(_recognised, patterns))


def _recognised(patterns: Patterns, error: BaseException) -> Recognised | None:
    if isinstance(error, (*BREAKDOWNS, *_NEVER_CONVERTED)) or out_of_memory(error):
        return None
    text = error_text(error)
    try:
        with _deadline():
            matches = any(pattern.search(text[:_MAX_SEARCHED_CHARS]) for pattern in patterns)
    except _TooLong:
        raise BackendFailure(
            f"the search for unsupported=REGEX was stopped after {_SEARCH_SECONDS:g} s; the "
            f"searched message is: {text}"
        ) from error
    return Recognised(text) if matches else None


class Recognising(Backend):
    """A backend whose errors are converted to Recognised if a pattern matches them.

    Args:
        backend: the wrapped backend.
        patterns: regular expressions for errors about unsupported features.
    """

    def __init__(self, backend: Backend, patterns: Patterns) -> None:
        self.name = backend.name
        self.version = backend.version
        self._backend = backend
        self._patterns = patterns

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model on the wrapped backend."""
        with recognising(self._patterns):
            run = self._backend.prepare(model).run
        return Prepared(reporting(partial(_recognised, self._patterns))(run))

    def close(self) -> None:
        """Close the wrapped backend."""
        self._backend.close()


class _TooLong(BaseException):
    """The search for a pattern takes longer than its time limit."""


@contextmanager
def _deadline() -> Iterator[None]:
    """Raise _TooLong after a second.

    The time limit works only in the main thread, which receives signals.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def late(_number: int, _frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, late)
    timer = signal.setitimer(signal.ITIMER_REAL, _SEARCH_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
