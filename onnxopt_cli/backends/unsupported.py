"""Recognise a backend's own errors about unsupported features by a regular expression.

The regular expression is the option ``unsupported``, or the backend declares it. It is searched in
the text that reports show, the error's type and message, up to 4,000 characters. Crashes, timeouts,
protocol violations, exhausted memory and exits of the interpreter are never unsupported.
"""

from __future__ import annotations

import re
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import onnx

from onnxopt_cli.backends.protocol import (
    BREAKDOWNS,
    Backend,
    Prepared,
    reporting,
    unavailable,
)
from onnxopt_cli.core.text import exception_text, printable
from onnxopt_cli.errors import (
    BackendFailure,
    BackendUnavailable,
    OnnxoptError,
    Unsupported,
)

Patterns = Sequence[re.Pattern[str]]

# Texts of exceptions that C++ code raises where Python code raises MemoryError.
_OUT_OF_MEMORY = re.compile("std::bad_alloc|bad allocation|Failed to allocate memory")
_NEVER_CONVERTED = (KeyboardInterrupt, SystemExit, MemoryError, Unsupported, BackendUnavailable)
_MAX_PATTERN_CHARS = 1000
_MAX_SEARCHED_CHARS = 4000
# The search of 4,000 characters takes microseconds, unless the pattern backtracks exponentially.
_SECONDS = 1.0


class Recognised(Unsupported):
    """A backend's error that a pattern for unsupported features matches."""


def compile_pattern(written: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        ValueError: if it is invalid, or matches the empty text and hence every text. The message
            describes the error and, if known, its position.
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
    """Return the backend, wrapped in :class:`Recognising` if there is a pattern for its errors.

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
        raise unavailable(backend, f": its unsupported is a {kind}, expected a regular expression")
    try:
        return compile_pattern(stated, flags)
    except ValueError as error:
        problem = f": its unsupported, {printable(stated)!r}, {error}"
        raise unavailable(backend, problem) from None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports that memory was exhausted."""
    text = error_text(error)
    # A command in Python reports a MemoryError as text.
    by_command = isinstance(error, BackendFailure) and re.match(r"\w*MemoryError\b", text)
    return isinstance(error, MemoryError) or bool(by_command or _OUT_OF_MEMORY.search(text))


def error_text(error: BaseException) -> str:
    """Return the text of a backend's error as reports show it."""
    return error.message if isinstance(error, OnnxoptError) else exception_text(error)


def recognising(patterns: Patterns) -> AbstractContextManager[None]:
    """Convert errors that a pattern matches to Recognised.

    Raises:
        BackendFailure: with the error's text, if a pattern takes too long.
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
            f"the search for unsupported=REGEX was stopped after {_SECONDS:g} s in the message: "
            f"{text}"
        ) from error
    return Recognised(text) if matches else None


class Recognising(Backend):
    """A backend whose errors are converted to Recognised if a pattern matches.

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
    """The search for a pattern exceeds its time limit."""


@contextmanager
def _deadline() -> Iterator[None]:
    """Raise _TooLong after a second, but only in the main thread, which receives signals."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def late(_number: int, _frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, late)
    timer = signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
