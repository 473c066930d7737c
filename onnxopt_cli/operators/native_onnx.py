"""onnx's checker, shape inference and inliner, in a process that may die.

They are C++ that trusts its input: a model of a few bytes can end the process with a signal, loop
for ever, or fill the memory. So they run in a helper process, under limits of time and memory. The
helper is kept until a model ends it. It is asked about a model that ended it once more, in a fresh
process: an earlier model may have damaged its memory.

The helper is a fork of a command on Linux, otherwise a program of its own. On Windows, where
backends run in the command's process, too, there is none.

No other module calls these parts of onnx; ``tests/test_architecture.py`` sees to it. What workers
call is the exception: they are processes that may die, and a helper of theirs would count as a
process that the backend has left behind.
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

from onnxopt_cli.core.helper_process import (
    STARTED,
    claimed,
    fork_helper,
    plain_signals,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: How long onnx may take over a model, and how many bytes it may get for it.
TIME_SECONDS = 60
MEMORY_BYTES = 4 << 30

_Model: TypeAlias = onnx.ModelProto | bytes

# How much longer than the helper itself its parent waits for it to end.
_GRACE_SECONDS = 5
# onnx takes no larger models; what it infers is in one, too.
_MAX_MODEL_BYTES = 2**31 - 1
_MAX_MESSAGE_CHARS = 20_000
_MAX_REMEMBERED = 10_000
_TOOK_LONG = f"took more than {TIME_SECONDS} seconds"
# How an answer begins.
_ACCEPTED, _REFUSED = b"+", b"-"
# The program of a helper that is not forked. It knows the same operators.
_PROGRAM = (
    "import sys; descriptor, *sys.path = sys.argv[1:]; "
    "from onnxopt_cli.operators.registry import registry; registry().register_schemas(); "
    "from onnxopt_cli.operators.native_onnx import serve; serve(int(descriptor))"
)


class OnnxRefusal(Exception):
    """onnx refuses a model, or did not survive it; the message says why."""


class TooLargeForOnnx(OnnxRefusal):
    """The model is larger than any that onnx takes."""


def check_model(model: _Model, *, full: bool = False) -> None:
    """Have onnx's checker look at a model.

    Args:
        model: the model, or its bytes.
        full: whether types and shapes are inferred, too.

    Raises:
        OnnxRefusal: if it finds something, or does not survive the model.
    """
    _require("checker", model, full_check=full)


def check_shapes(model: _Model, **how: bool) -> None:
    """Infer types and shapes as :func:`infer_shapes` does, only to see whether they agree.

    Raises:
        OnnxRefusal: if they do not, or onnx does not survive the model.
    """
    _require("shape inference", model, **how)


def infer_shapes(model: _Model, **how: bool) -> onnx.ModelProto:
    """Return a model with the types and shapes that onnx infers.

    Args:
        model: the model, or its bytes.
        how: ``check_type``, ``strict_mode`` and ``data_prop`` of ``onnx.shape_inference``.

    Raises:
        OnnxRefusal: if it finds a contradiction, or does not survive the model.
    """
    return onnx.ModelProto.FromString(_HELPER.ask("shape inference", _bytes(model), how))


def inline_functions(model: _Model, functions: Sequence[tuple[str, str]]) -> onnx.ModelProto:
    """Return a model with the bodies of functions in place of their calls.

    Args:
        model: the model, or its bytes.
        functions: domain and name of each.

    Raises:
        OnnxRefusal: if that cannot be done, or onnx does not survive the model.
    """
    how = {"functions": [*functions]}
    return onnx.ModelProto.FromString(_HELPER.ask("inliner", _bytes(model), how))


def die_with_models() -> None:
    """Say that this process may die of a model: it is a worker, and needs no helper."""
    _HELPER.needless = True


def renew() -> None:
    """Let the next model meet a fresh helper, which knows what this process has learnt since."""
    _remembered.clear()
    _HELPER.end()


# What onnx has said of models, by what was asked and the digest of the model; empty if nothing.
_remembered: dict[tuple[Any, ...], str] = {}


def _require(what: str, model: _Model, **how: bool) -> None:
    """Ask where no answer is needed; what was asked before is not asked again."""
    data = _bytes(model)
    key = what, sha256(data).digest(), *sorted(how.items())
    if key not in _remembered:
        refusal = ""
        try:
            _HELPER.ask(what, data, how, answer=False)
        except OnnxRefusal as error:
            refusal = str(error)
        if len(_remembered) >= _MAX_REMEMBERED:
            _remembered.clear()
        _remembered[key] = refusal
    if _remembered[key]:
        raise OnnxRefusal(_remembered[key])


def _bytes(model: _Model) -> bytes:
    try:
        data = model if isinstance(model, bytes) else model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise TooLargeForOnnx(str(error)) from None
    if len(data) > _MAX_MODEL_BYTES:
        raise TooLargeForOnnx(f"it has {len(data)} bytes; onnx takes {_MAX_MODEL_BYTES}")
    return data


class _Helper:
    """A process that asks onnx about one model after the other.

    Attributes:
        needless: whether this process asks onnx itself.
    """

    def __init__(self) -> None:
        self.needless = sys.platform == "win32"
        self._lock = Lock()
        self._connection: Connection | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._process = self._parent = 0

    def ask(self, what: str, model: bytes, how: dict[str, Any], *, answer: bool = True) -> bytes:
        """Return what onnx makes of a model.

        Args:
            what: of what part of onnx.
            model: the model.
            how: it is asked.
            answer: whether more is wanted than that it refuses nothing.

        Raises:
            OnnxRefusal: if it refuses the model, or ends of it.
        """
        if self.needless:
            return _perform(what, model, how)
        # JSON has no line breaks.
        request = json.dumps([what, how, answer]).encode() + b"\n" + model
        with self._lock:
            ended = self._exchange(request)
            if isinstance(ended, str) and ended != _TOOK_LONG:
                ended = self._exchange(request)
        if isinstance(ended, str):
            raise OnnxRefusal(f"onnx's {what} {ended}")
        if ended[:1] == _REFUSED:
            raise OnnxRefusal(ended[1:].decode("utf-8", "replace"))
        return ended[1:]

    def end(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _exchange(self, request: bytes) -> bytes | str:
        """Return an answer; in words how the process has ended if it has."""
        try:
            if self._connection is None or self._parent != os.getpid():
                self._start()
            connection = self._connection
            assert connection is not None  # noqa: S101 - it was just started
            connection.send_bytes(request)
            if not connection.poll(TIME_SECONDS + _GRACE_SECONDS):
                self._end()
                return _TOOK_LONG
            return connection.recv_bytes(_MAX_MODEL_BYTES + 1)
        except (OSError, EOFError) as error:
            code = self._end()
            return _words(code) if code else f"cannot be asked: {error or 'it ended'}"
        except BaseException:
            # It may still answer, and not to what it is asked next.
            self._end()
            raise

    def _start(self) -> None:
        from multiprocessing.connection import Pipe

        self._connection, theirs = Pipe()
        self._parent = os.getpid()
        descriptor = theirs.fileno()
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
        finally:
            theirs.close()

    def _end(self) -> int:
        """Kill the process if it has not ended, and return its exit code; 0 if that is unknown."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, 0
        program, self._program = self._program, None
        if connection is not None:
            connection.close()
        if not process or self._parent != os.getpid():
            # A fork of the process that it belongs to has its own.
            return 0
        STARTED.discard(process)
        # Where whoever started us ignores the end of children, nothing is left of one.
        with suppress(OSError):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
            code = os.waitstatus_to_exitcode(status)
            if program is not None:
                # Python would complain that nobody has waited for it.
                program.returncode = code
            return code
        return 0


_HELPER = _Helper()
atexit.register(_HELPER.end)


def _words(code: int) -> str:
    """Say how a process has ended."""
    if code == -signal.SIGALRM:
        return _TOOK_LONG
    if code < 0:
        with suppress(ValueError):
            return f"crashed with signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def serve(descriptor: int) -> NoReturn:
    """Answer questions about models until nobody asks any more."""
    from multiprocessing.connection import Connection

    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # On top of what a fork has from its parent.
        held = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY_BYTES, held + MEMORY_BYTES))
    plain_signals()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    connection = Connection(descriptor)
    while True:
        request, _, model = connection.recv_bytes().partition(b"\n")
        what, how, answer = json.loads(request)
        # It ends this process wherever that is.
        signal.setitimer(signal.ITIMER_REAL, TIME_SECONDS)
        try:
            made = _perform(what, model, how)
            said = _ACCEPTED + made if answer else _ACCEPTED
        except OnnxRefusal as error:
            said = _REFUSED + str(error).encode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(said)


def _serve_forked(descriptor: int) -> NoReturn:
    # Nothing else that the parent has open, and nothing to print to: allocators complain there.
    for before, after in pairwise([-1, descriptor, os.sysconf("SC_OPEN_MAX")]):
        os.closerange(before + 1, after)
    while os.open(os.devnull, os.O_RDWR) < 2:  # noqa: PLR2004 - standard error
        pass
    serve(descriptor)


def _perform(what: str, model: bytes, how: dict[str, Any]) -> bytes:
    """Have onnx do something with a model in this process.

    Raises:
        OnnxRefusal: if it refuses the model.
    """
    from onnx import checker, inliner, shape_inference

    made = b""
    try:
        if what == "checker":
            checker.check_model(model, **how)
        elif what == "inliner":
            functions = [(domain, name) for domain, name in how["functions"]]
            parsed = onnx.ModelProto.FromString(model)
            made = inliner.inline_selected_functions(parsed, functions).SerializeToString()
        else:
            made = shape_inference.infer_shapes(model, **how).SerializeToString()
    except MemoryError:
        what = f"onnx's {what} needs more than {MEMORY_BYTES >> 20} MiB of memory"
        raise OnnxRefusal(what) from None
    except Exception as error:  # noqa: BLE001 - onnx raises its own and protobuf's, of no common base
        raise OnnxRefusal((str(error) or type(error).__name__)[:_MAX_MESSAGE_CHARS]) from None
    return made
