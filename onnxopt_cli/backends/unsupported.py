"""Errors in a backend's own words that say that it does not know something.

A regular expression says which: the option ``unsupported``, or what the backend states of itself.
It is searched for in the text that reports show, the error's type and message, 4,000 characters at
most. What is no answer at all stays what it is: a crash, a hang, a breach of the protocol, memory
that runs out, an interpreter that is to end.
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

# How C++ says what MemoryError says, in the words of an exception's text.
_OUT_OF_MEMORY = re.compile("std::bad_alloc|bad allocation|Failed to allocate memory")
_NOT_SAID = (KeyboardInterrupt, SystemExit, MemoryError, Unsupported, BackendUnavailable)
_MAX_PATTERN_CHARS = 1000
# Of a text so many characters are searched.
_SEARCHED = 4000
# A text of 4,000 characters takes microseconds, unless the pattern tries ways without end.
_SECONDS = 1.0


class Recognised(Unsupported):
    """A backend's error that a pattern takes for "not supported"."""


def compile_pattern(written: str, flags: int = 0) -> re.Pattern[str]:
    """Return a regular expression.

    Raises:
        ValueError: if it is not one, or finds something in an empty text and so in every text. The
            message says what it is, and where that is known at which character.
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
        raise ValueError("would take every error for unsupported: it matches an empty text")
    return pattern


def with_patterns(backend: Backend, option: str | None) -> Backend:
    """Return a backend whose errors are looked at, if there is a pattern for them.

    Args:
        backend: the backend.
        option: the regular expression that the user gives; None if he gives none.

    Raises:
        BackendUnavailable: if something that the backend states is no regular expression.
    """
    stated = backend.unsupported
    patterns = [] if stated is None else [_own_pattern(backend.name, stated)]
    if option is not None:
        patterns.append(compile_pattern(option))
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
        what = f": its unsupported, {printable(stated)!r}, {error}"
        raise unavailable(backend, what) from None


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that there was not enough memory."""
    text = error_text(error)
    # A command in Python says it in its own words.
    said = isinstance(error, BackendFailure) and re.match(r"\w*MemoryError\b", text)
    return isinstance(error, MemoryError) or bool(said or _OUT_OF_MEMORY.search(text))


def error_text(error: BaseException) -> str:
    """Return what reports show of a backend's error."""
    return error.message if isinstance(error, OnnxoptError) else exception_text(error)


def recognising(patterns: Patterns) -> AbstractContextManager[None]:
    """Turn errors that a pattern matches into Recognised.

    Raises:
        BackendFailure: with the error's text, if a pattern takes too long.
    """
    return reporting(partial(_recognised, patterns))


def _recognised(patterns: Patterns, error: BaseException) -> Recognised | None:
    if isinstance(error, (*BREAKDOWNS, *_NOT_SAID)) or out_of_memory(error):
        return None
    text = error_text(error)
    try:
        with _deadline():
            found = any(pattern.search(text[:_SEARCHED]) for pattern in patterns)
    except _TooLong:
        raise BackendFailure(
            f"searching for unsupported=REGEX took more than {_SECONDS:g} s, and was given up, "
            f"in {text}"
        ) from error
    return Recognised(text) if found else None


class Recognising(Backend):
    """A backend, some of whose errors say that it does not know something.

    Args:
        backend: the backend.
        patterns: what such an error has in its text.
    """

    def __init__(self, backend: Backend, patterns: Patterns) -> None:
        self.name = backend.name
        self.version = backend.version
        self._backend = backend
        self._patterns = patterns

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model, as the backend does."""
        with recognising(self._patterns):
            run = self._backend.prepare(model).run
        return Prepared(reporting(partial(_recognised, self._patterns))(run))

    def close(self) -> None:
        """End the backend."""
        self._backend.close()


class _TooLong(BaseException):
    """A pattern takes too long."""


@contextmanager
def _deadline() -> Iterator[None]:
    """Raise _TooLong after a second; elsewhere than in a main thread the case's timeout holds."""
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
