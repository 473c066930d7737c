"""A conversation with a command: greeting, cases, farewell, and what is done when it breaks off."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import onnx

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
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import BackendFailure, ProtocolBreach, Unsupported


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
