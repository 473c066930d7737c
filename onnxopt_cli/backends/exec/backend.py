"""Backends that are commands, in any language: ``exec:COMMAND``.

How one is spoken to stands in :file:`protocol.md`, which ``onnxopt backends protocol`` prints.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import onnx
from onnx import TensorProto, TypeProto

from onnxopt_cli import __version__
from onnxopt_cli.backends.exec.folder import MODEL, read_values, write_case
from onnxopt_cli.backends.exec.messages import (
    PROTOCOL,
    Hello,
    read_hello,
    read_run,
    request_line,
)
from onnxopt_cli.backends.exec.process import CommandProcess
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import (
    BackendFailure,
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    Unsupported,
    UsageError,
)
from onnxopt_cli.formula.nodes import all_nodes

#: What may be said of a command.
OPTIONS = ("timeout", "device", "unsupported")

_SECONDS = 60.0


class ExecBackend:
    """The backend ``exec:COMMAND``: a command that is started once and asked case after case.

    One that dies, hangs or breaks the protocol is killed, and started again for the next case.

    Options:
        timeout: seconds that an answer may take; 60 by default.
        device: one of the devices that the command states; its first by default.
        unsupported: what an ``error`` has in its text that says that something is not supported.

    Raises:
        UsageError: if an option is unknown or has no such value.
        BackendUnavailable: if the command cannot be started, does not greet as the protocol says,
            or lacks the device.
    """

    def __init__(self, specification: Specification) -> None:
        specification.require_known(OPTIONS)
        self.name = specification.text
        self._session = CommandSession(specification.command, timeout_of(specification))
        # At the latest when the interpreter ends; nobody could then be told of an error.
        self._finalizer = weakref.finalize(self, _close_silently, self._session)
        try:
            self._hello = self._session.greet()
        except OnnxoptError as error:
            self._finalizer()
            raise BackendUnavailable(
                f"backend {printable(self.name)} does not start: {error.message}",
                hint=error.hint or "onnxopt backends protocol shows what it is asked",
            ) from error
        self._device = self._hello.devices[0]
        wanted = specification.options.get("device", self._device)
        if wanted not in self._hello.devices:
            self._finalizer()
            raise BackendUnavailable(
                f"backend {printable(self.name)} does not support the device {printable(wanted)}",
                hint=f"it states {', '.join(self._hello.devices)}",
            )
        self._device = wanted

    @property
    def version(self) -> str:
        """The name and version that the command states."""
        return f"{self._hello.name} {self._hello.version}"

    @property
    def unsupported(self) -> str:
        """What errors have in their text that say "not supported"; empty if none is stated."""
        return self._hello.unsupported

    def prepare(self, model: onnx.ModelProto) -> _Prepared:
        """Accept a model of domains, versions and element types that the command states.

        Raises:
            Unsupported: if the command does not state one of them.
        """
        require_stated(model, self._hello)
        return _Prepared(self._session, model, self._device)

    def close(self) -> None:
        """Tell the command to end, and wait for it.

        Raises:
            BackendDied: if it ends with another exit code than 0.
            BackendHangs: if it does not end, and is killed.
        """
        if self._finalizer.detach():
            self._session.close()


class _Prepared:
    """A model for a command."""

    def __init__(self, session: CommandSession, model: onnx.ModelProto, device: str) -> None:
        self._session = session
        self._model = model
        self._device = device

    def run(self, inputs: Mapping[str, Value]) -> Sequence[object]:
        return self._session.run(
            self._model.SerializeToString(), self._model.graph, inputs, self._device
        )


def timeout_of(specification: Specification) -> float:
    """Return the seconds that an answer may take.

    Raises:
        UsageError: if the option ``timeout`` is no positive number.
    """
    text = specification.options.get("timeout", str(_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"backend {printable(specification.text)}: timeout is {printable(text)!r}, "
            "expected seconds"
        )
    return seconds


def require_stated(model: onnx.ModelProto, hello: Hello) -> None:
    """Refuse a model that needs what a command does not state.

    Raises:
        Unsupported: if it has an operator of a domain or version, or an input or output of an
            element type, that the command does not state.
    """
    own = {function.domain for function in model.functions}
    imported = {_plain(opset.domain): opset.version for opset in model.opset_import}
    for node in all_nodes(model):
        domain = _plain(node.domain)
        if domain in own and domain not in hello.domains:
            continue
        lowest, highest = hello.domains.get(domain, (0, 0))
        version = imported.get(domain, 0)
        if not lowest <= version <= highest or not highest:
            stated = f"states the versions {lowest} to {highest}" if highest else "states none"
            raise Unsupported(
                printable(
                    f"{node.op_type} is of {domain or 'ai.onnx'} version {version}; "
                    f"the command {stated}"
                ),
                operator=f"{domain}:{node.op_type}",
            )
    for value in (*model.graph.input, *model.graph.output):
        for element_type in _element_types(value.type):
            if element_type not in hello.dtypes:
                name = TensorProto.DataType.Name(element_type)
                raise Unsupported(
                    printable(f"{value.name} is of {name}, which the command does not state")
                )


def _element_types(declared: TypeProto) -> Iterator[int]:
    kind = declared.WhichOneof("value")
    if kind == "tensor_type" and declared.tensor_type.elem_type in TensorProto.DataType.values():
        yield declared.tensor_type.elem_type
    elif kind == "sequence_type":
        yield from _element_types(declared.sequence_type.elem_type)
    elif kind == "optional_type":
        yield from _element_types(declared.optional_type.elem_type)
    elif kind == "map_type":
        yield from _element_types(declared.map_type.value_type)


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _close_silently(session: CommandSession) -> None:
    with suppress(OnnxoptError):
        session.close()


class CommandSession:
    """A command, started when it is needed, and the private folder that it is given.

    A command that dies, hangs or breaks the protocol is killed, and started again by the next
    request.

    Args:
        command: the program and its arguments.
        timeout: seconds that an answer may take.
    """

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._command = command
        self._timeout = timeout
        self._numbers = count(1)
        self._process: CommandProcess | None = None
        self._hello: Hello | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="onnxopt-"))

    def greet(self) -> Hello:
        """Start the command and return what it says of itself.

        Raises:
            BackendUnavailable: if it cannot be executed.
            BackendFailure: if it answers that it cannot start.
            BackendDied, BackendHangs, ProtocolBreach: if it does not answer as it should, or says
                otherwise than when it was started before.
        """
        self._process = CommandProcess(self._command)
        with self._breaking_off():
            number = next(self._numbers)
            line = request_line(number, "hello", protocol=PROTOCOL, onnxopt=__version__)
            hello = read_hello(self._process.ask(line, self._timeout), number)
            if self._hello is not None and self._hello != hello:
                raise ProtocolBreach("the command, started again, says other things of itself")
            self._hello = hello
            return hello

    def run(
        self,
        model: bytes,
        graph: onnx.GraphProto,
        inputs: Mapping[str, Value],
        device: str,
        **extra: object,
    ) -> list[Value]:
        """Have the command run a model.

        Args:
            model: the content of the model file.
            graph: declares the model's inputs and outputs.
            inputs: a value for every input of the graph that must be fed.
            device: one of the devices that the command states.
            **extra: further fields of the request, which the command must overlook.

        Raises:
            Unsupported: if the command says so, or no file can hold an input or output.
            BackendFailure: if it says that it failed.
            BackendDied, BackendHangs, ProtocolBreach: if it does not answer as it should.
            BackendUnavailable: if it has ended before, and cannot be executed again.
        """
        if self._process is None:
            self.greet()
        number = next(self._numbers)
        folder = self._folder / f"case_{number}"
        try:
            line = request_line(
                number,
                "run",
                device=device,
                folder=str(folder),
                model=MODEL,
                inputs=write_case(folder, model, graph, inputs),
                outputs=[
                    {"name": output.name, "file": f"output_{index}.pb"}
                    for index, output in enumerate(graph.output)
                ],
                **extra,
            )
            with self._breaking_off() as process:
                files = read_run(process.ask(line, self._timeout), number)
                return read_values(folder, files, graph.output)
        finally:
            # A command may leave anything there, also what cannot be removed.
            shutil.rmtree(folder, ignore_errors=True)

    def close(self, *, tell: bool = True) -> None:
        """End the command, wait for it, and remove the folder.

        Args:
            tell: ask the command to end; else only its input ends.

        Raises:
            BackendDied: if it ends with another exit code than 0.
            BackendHangs: if it does not end, and is killed.
        """
        process, self._process = self._process, None
        try:
            if process is not None:
                process.close(request_line(next(self._numbers), "shutdown") if tell else b"")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def _breaking_off(self) -> Iterator[CommandProcess]:
        """Kill the command if anything but a proper answer comes of what is done within."""
        process = self._process
        if process is None:
            raise RuntimeError("the command has not been started")
        try:
            yield process
        except (Unsupported, BackendFailure):
            raise
        except BaseException:
            self._process = None
            process.kill()
            raise
