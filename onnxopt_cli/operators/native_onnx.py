"""Run onnx's checker, shape inference and inliner in a helper process, because they may crash.

The checker, shape inference and inliner are C++ code that trusts its input: a model of a few bytes
can crash the process, loop forever, or exhaust the memory. The helper process has limits of time
and memory. One process handles all models until a model crashes it or exceeds the time limit. After
a crash, the model is tried again in a new process, because an earlier model may have corrupted the
memory of the crashed process.

In a command on Linux, the helper is a fork of the command's process. Otherwise, the helper is a
separate program. On Windows, no helper is used, because backends also run in the command's process.
Workers do not use a helper either: a worker itself may crash, and its helper would count as a
process that the backend has left behind.

All other code calls onnx's checker, shape inference and inliner through this module;
``tests/test_architecture.py`` checks this rule.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import onnx
from google.protobuf.message import EncodeError
from onnx import checker, inliner, shape_inference

from onnxopt_cli.core.process_control import (
    STARTED,
    claimed,
    fork_helper,
    plain_signals,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: Seconds that onnx may take for one model.
TIME_SECONDS = 60
#: Bytes of memory that onnx may use for one model.
MEMORY_BYTES = 4 << 30

_Model: TypeAlias = onnx.ModelProto | bytes

# The parent process waits for the helper's time limit and these additional seconds.
_GRACE_SECONDS = 5
# The largest number of bytes of a model that onnx accepts or returns.
_MAX_MODEL_BYTES = 2**31 - 1
_MAX_MESSAGE_CHARS = 20_000
# The largest number of results that _require caches.
_MAX_REMEMBERED = 10_000
_TOOK_LONG = f"took more than {TIME_SECONDS} seconds"
# The first byte of a helper's response. It states whether onnx accepted the model.
_ACCEPTED, _REFUSED = b"+", b"-"
# The program of a helper that is not forked. The program registers the operators of this process.
_PROGRAM = (
    "import sys; descriptor, *sys.path = sys.argv[1:]; "
    "from onnxopt_cli.operators.registry import registry; registry().register_schemas(); "
    "from onnxopt_cli.operators.native_onnx import serve; serve(int(descriptor))"
)


class OnnxRefusal(Exception):
    """Raised if onnx refuses a model or crashes on it; the message states the reason."""


class TooLargeForOnnx(OnnxRefusal):
    """Raised if a model exceeds onnx's size limit."""


def check_model(model: _Model, *, full: bool = False) -> None:
    """Check a model with onnx's checker.

    Args:
        model: the model, or its bytes.
        full: whether to infer types and shapes as well.

    Raises:
        OnnxRefusal: if the checker finds a fault, or crashes.
    """
    _require("checker", model, full_check=full)


def check_shapes(model: _Model, **options: bool) -> None:
    """Infer the types and shapes of a model, and check that they agree.

    Raises:
        OnnxRefusal: if types or shapes do not agree, or onnx crashes.
    """
    _require("shape inference", model, **options)


def infer_shapes(model: _Model, **options: bool) -> onnx.ModelProto:
    """Return a model with the types and shapes that onnx infers.

    Args:
        model: the model, or its bytes.
        options: ``check_type``, ``strict_mode`` and ``data_prop`` of ``onnx.shape_inference``.

    Raises:
        OnnxRefusal: if onnx finds a contradiction, or crashes.
    """
    return onnx.ModelProto.FromString(_HELPER.perform("shape inference", _bytes(model), options))


def inline_functions(model: _Model, functions: Sequence[tuple[str, str]]) -> onnx.ModelProto:
    """Return a model with the bodies of functions in place of their calls.

    Args:
        model: the model, or its bytes.
        functions: domain and name of each function.

    Raises:
        OnnxRefusal: if onnx cannot inline the functions, or crashes.
    """
    options = {"functions": [*functions]}
    return onnx.ModelProto.FromString(_HELPER.perform("inliner", _bytes(model), options))


def die_with_models() -> None:
    """Run onnx in this process from now on. A model may then crash this process."""
    _HELPER.needless = True


def leave_helper() -> None:
    """Close this process's copy of the connection between its parent and the helper.

    Call this function after a fork, before any other descriptor is closed. Later, the descriptor of
    the connection may belong to another file.
    """
    _HELPER.end()


def renew() -> None:
    """End the helper. The next request starts a new one, which knows all registered operators."""
    _refusals.clear()
    _HELPER.end()


# For each checked model, the reason why onnx refused the model; empty if onnx accepted it. A key
# consists of the part of onnx, the digest of the model, and the options.
_refusals: dict[tuple[Any, ...], str] = {}


def _require(part: str, model: _Model, **options: bool) -> None:
    """Check a model with a part of onnx, unless the result is cached.

    Raises:
        OnnxRefusal: if onnx refuses the model.
    """
    data = _bytes(model)
    key = part, sha256(data).digest(), *sorted(options.items())
    if key not in _refusals:
        refusal = ""
        try:
            _HELPER.perform(part, data, options, needs_result=False)
        except OnnxRefusal as error:
            refusal = str(error)
        if len(_refusals) >= _MAX_REMEMBERED:
            _refusals.clear()
        _refusals[key] = refusal
    if _refusals[key]:
        raise OnnxRefusal(_refusals[key])


def _bytes(model: _Model) -> bytes:
    try:
        data = model if isinstance(model, bytes) else model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise TooLargeForOnnx(str(error)) from None
    if len(data) > _MAX_MODEL_BYTES:
        raise TooLargeForOnnx(f"it has {len(data)} bytes; onnx accepts {_MAX_MODEL_BYTES}")
    return data


class _Helper:
    """The helper process, which handles one model after the other.

    Attributes:
        needless: whether onnx runs in this process, without a helper.
    """

    def __init__(self) -> None:
        self.needless = sys.platform == "win32"
        self._lock = Lock()
        self._connection: Connection | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._process = self._parent = 0

    def perform(
        self, part: str, model: bytes, options: dict[str, Any], *, needs_result: bool = True
    ) -> bytes:
        """Run a part of onnx on a model in the helper process, and return its result.

        Args:
            part: the part of onnx, such as the checker.
            model: the model.
            options: arguments of the part.
            needs_result: whether to return the resulting model. Otherwise, the model is only
                checked.

        Raises:
            OnnxRefusal: if onnx refuses the model, or crashes.
            OSError: if the helper cannot be started.
        """
        if self.needless:
            return _perform(part, model, options)
        # A request begins with one line of JSON, which contains no line breaks.
        request = json.dumps([part, options, needs_result]).encode() + b"\n" + model
        with self._lock:
            response = self._exchange(request)
            if isinstance(response, str) and response != _TOOK_LONG:
                response = self._exchange(request)
        if isinstance(response, str):
            raise OnnxRefusal(f"onnx's {part} {response}")
        if response[:1] == _REFUSED:
            raise OnnxRefusal(response[1:].decode("utf-8", "replace"))
        return response[1:]

    def end(self) -> None:
        """End the helper process if it runs."""
        with self._lock:
            self._end()

    def _exchange(self, request: bytes) -> bytes | str:
        """Return the helper's response, or a description of how the helper ended."""
        if self._connection is None or self._parent != os.getpid():
            self._start()
        try:
            connection = self._connection
            assert connection is not None  # noqa: S101 - the helper was started
            connection.send_bytes(request)
            if not connection.poll(TIME_SECONDS + _GRACE_SECONDS):
                self._end()
                return _TOOK_LONG
            return connection.recv_bytes(_MAX_MODEL_BYTES + 1)
        except (OSError, EOFError) as error:
            code = self._end()
            return _words(code) if code else f"cannot run: {error or 'its process has ended'}"
        except BaseException:
            # A late response would be read as the response to the next request. Therefore, the
            # process is ended.
            self._end()
            raise

    def _start(self) -> None:
        """Start the helper process.

        Raises:
            OSError: if the system allows no more processes or open files.
        """
        from multiprocessing.connection import Pipe

        self._connection, helper_end = Pipe()
        self._parent = os.getpid()
        descriptor = helper_end.fileno()
        try:
            if sys.platform == "linux" and claimed():
                self._process = fork_helper(partial(_serve_forked, descriptor))
            else:
                self._program = subprocess.Popen(  # noqa: S603 - our own interpreter
                    [sys.executable, "-P", "-c", _PROGRAM, str(descriptor), *sys.path],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                )
                self._process = self._program.pid
                STARTED.add(self._process)
        except BaseException:
            self._end()
            raise
        finally:
            helper_end.close()

    def _end(self) -> int:
        """Kill the process if it still runs, and return its exit code; 0 if unknown."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, 0
        program, self._program = self._program, None
        if connection is not None:
            connection.close()
        if not process or self._parent != os.getpid():
            # The helper belongs to the process from which this process was forked.
            return 0
        STARTED.discard(process)
        # waitpid fails if a parent of this process has set SIGCHLD to be ignored.
        with suppress(OSError):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
            code = os.waitstatus_to_exitcode(status)
            if program is not None:
                # Without this assignment, Python would warn that the process is still running.
                program.returncode = code
            return code
        return 0


_HELPER = _Helper()
atexit.register(_HELPER.end)


def _words(code: int) -> str:
    """Return a description of how a process ended, given its exit code."""
    if code == -signal.SIGALRM:
        return _TOOK_LONG
    if code < 0:
        with suppress(ValueError):
            return f"crashed with signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def serve(descriptor: int) -> NoReturn:
    """Serve requests until the connection is closed."""
    from multiprocessing.connection import Connection

    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # Data that the fork shares with its parent count towards the limit. Therefore, their size
        # is added to the limit.
        held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY_BYTES, held + MEMORY_BYTES))
    plain_signals()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    connection = Connection(descriptor)
    while True:
        request, _, model = connection.recv_bytes().partition(b"\n")
        part, options, needs_result = json.loads(request)
        _set_alarm(TIME_SECONDS)
        try:
            result = _perform(part, model, options)
            response = _ACCEPTED + result if needs_result else _ACCEPTED
        except OnnxRefusal as error:
            response = _REFUSED + str(error).encode("utf-8", "replace")
        _set_alarm(0)
        connection.send_bytes(response)


def _set_alarm(seconds: int) -> None:
    """Set the alarm that ends this process even while C++ code runs; 0 for no alarm.

    If the system has no timers, only the parent limits the time.
    """
    with suppress(OSError):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _serve_forked(descriptor: int) -> NoReturn:
    # All descriptors of the parent except the connection are closed. The standard streams become
    # the null device, because memory allocators write errors to stderr.
    for before, after in pairwise([-1, descriptor, os.sysconf("SC_OPEN_MAX")]):
        os.closerange(before + 1, after)
    while os.open(os.devnull, os.O_RDWR) < 2:  # noqa: PLR2004 - standard error
        pass
    serve(descriptor)


def _perform(part: str, model: bytes, options: dict[str, Any]) -> bytes:
    """Run a part of onnx on a model in this process.

    Raises:
        OnnxRefusal: if onnx refuses the model.
    """
    try:
        if part == "checker":
            checker.check_model(model, **options)
            return b""
        if part == "inliner":
            functions = [(domain, name) for domain, name in options["functions"]]
            parsed = onnx.ModelProto.FromString(model)
            result = inliner.inline_selected_functions(parsed, functions).SerializeToString()
        else:
            result = shape_inference.infer_shapes(model, **options).SerializeToString()
    except MemoryError:
        message = f"onnx's {part} needs more than {MEMORY_BYTES >> 20} MiB of memory"
        raise OnnxRefusal(message) from None
    except Exception as error:  # noqa: BLE001 - errors of onnx and protobuf have no common base
        raise OnnxRefusal((str(error) or type(error).__name__)[:_MAX_MESSAGE_CHARS]) from None
    return result
