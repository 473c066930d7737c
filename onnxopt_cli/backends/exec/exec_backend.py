"""Backends that are commands, in any language: ``exec:COMMAND``.

How one is spoken to stands in :file:`protocol.md`, which ``onnxopt backends protocol`` prints.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import onnx
from onnx import numpy_helper

from onnxopt_cli import __version__
from onnxopt_cli.backends.exec.exec_messages import (
    Hello,
    read_hello,
    read_outputs,
)
from onnxopt_cli.backends.exec.exec_process import Command
from onnxopt_cli.backends.exec.json_graph import (
    declared,
    element_types,
    node_to_json,
    sole_node,
)
from onnxopt_cli.backends.exec.other_interpreter import interpreter_command
from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    misused,
    unavailable,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.codec import PROTOCOL, run_request
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import (
    OnnxoptError,
    ProtocolBreach,
    Unsupported,
    UnusableOutput,
)
from onnxopt_cli.operators.nodes import all_nodes, plain_domain

#: What may be said of a command.
OPTIONS = ("timeout", "device", "unsupported")

_SECONDS = 60.0


class ExecBackend(Backend):
    """A backend that is a command, which is started once and asked case after case.

    It is ``exec:COMMAND``, or the interpreter of a plugin that names one.

    One that dies, hangs or breaks the protocol is killed, and started again for the next case.

    Options:
        timeout: seconds that an answer may take; 60 by default.
        device: one of the devices that the command states; its first by default.
        python: of a plugin, the interpreter.
        unsupported: what an ``error`` has in its text that says that something is not supported.

    Raises:
        UsageError: if an option is unknown or has no such value.
        BackendUnavailable: if the command cannot be started, does not greet as the protocol says,
            or lacks the device.
    """

    def __init__(self, specification: Specification) -> None:
        options = specification.options
        specification.require_known((*OPTIONS, "python") if specification.source else OPTIONS)
        self.name = specification.text
        command = specification.command or interpreter_command(specification)
        self._session = CommandSession(command, timeout_of(specification))
        # At the latest when the interpreter ends; nobody could then be told of an error.
        self._finalizer = weakref.finalize(self, _close_silently, self._session)
        try:
            self._hello = self._session.hello
        except OnnxoptError as error:
            self._finalizer()
            asked = "onnxopt backends protocol shows what it is asked"
            needs = "the interpreter needs Python 3.9, NumPy 1.24 and onnx 1.14, or newer"
            hint = error.hint or (asked if specification.command else needs)
            raise unavailable(self.name, f" does not start: {error.message}", hint) from error
        self.version = f"{self._hello.name} {self._hello.version}"
        self.unsupported = self._hello.unsupported or None
        self._device = options.get("device", self._hello.devices[0])
        if self._device not in self._hello.devices:
            self._finalizer()
            what = f" does not support the device {printable(self._device)}"
            raise unavailable(self.name, what, f"it states {', '.join(self._hello.devices)}")

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model of domains, versions and element types that the command states.

        Raises:
            Unsupported: if the command does not state one of them.
        """
        require_stated(model, self._hello)
        content = model.SerializeToString()
        run = self._session.run
        # What was prepared keeps the command alive, too.
        return Prepared(lambda inputs: run(model, content, inputs, device=self._device))

    def close(self) -> None:
        """Tell the command to end, and wait for it.

        Raises:
            BackendDied: if it ends with another exit code than 0.
            BackendHangs: if it does not end, and is killed.
        """
        if self._finalizer.detach():
            self._session.close()


def timeout_of(specification: Specification) -> float:
    """Return the seconds that an answer may take.

    Raises:
        UsageError: if the option ``timeout`` is no positive number.
    """
    text = specification.options.get("timeout", str(_SECONDS))
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise misused(specification.text, f": timeout is {printable(text)!r}, expected seconds")


def require_stated(model: onnx.ModelProto, hello: Hello) -> None:
    """Refuse a model that needs what a command does not state.

    Raises:
        Unsupported: if it has an operator of a domain or version, or an input or output of an
            element type, that the command does not state.
    """
    own = {function.domain for function in model.functions}
    imported = {plain_domain(opset.domain): opset.version for opset in model.opset_import}
    for node in all_nodes(model):
        domain = plain_domain(node.domain)
        if hello.domains is None or (domain in own and domain not in hello.domains):
            continue
        lowest, highest = hello.domains.get(domain, (0, 0))
        version = imported.get(domain, 0)
        if not lowest <= version <= highest or not highest:
            stated = f"states the versions {lowest} to {highest}" if highest else "states none"
            found = f"{node.op_type} is of {domain or 'ai.onnx'} version {version}"
            said = printable(f"{found}; the command {stated}")
            raise Unsupported(said, operator=f"{domain}:{node.op_type}")
    for value in (*model.graph.input, *model.graph.output):
        for name in element_types(value.type) - hello.dtypes:
            said = f"{value.name} is of {name}, which the command does not state"
            raise Unsupported(printable(said))
    if hello.nodes and sole_node(model) is None:
        raise Unsupported("the command takes single nodes, and no models")


def _close_silently(session: CommandSession) -> None:
    with suppress(OnnxoptError):
        session.close()


class CommandSession(Command):
    """A command that speaks our protocol."""

    _hello: Hello | None = None

    @property
    def hello(self) -> Hello:
        """What the command says of itself when it is started.

        Raises:
            BackendUnavailable: if it cannot be executed.
            BackendFailure: if it answers that it cannot start.
            BackendDied, BackendHangs, ProtocolBreach: if it does not answer as it should, or says
                otherwise than when it was started before.
        """

        def read(answer: dict[str, Any], payload: memoryview) -> Hello:
            hello = read_hello(answer, payload)
            if self._hello not in (None, hello):
                raise ProtocolBreach(
                    "started again, says other things of itself",
                    hint="answer hello with the same words each time",
                )
            return hello

        if self._conversation is None or self._hello is None:
            request = {"request": "hello", "protocol": PROTOCOL, "onnxopt": __version__}
            self._hello = self.ask(request, read)
        return self._hello

    def run(
        self, model: onnx.ModelProto, content: bytes, inputs: Mapping[str, Value], **more: object
    ) -> list[Value]:
        """Have the command run a model.

        Args:
            model: the model.
            content: what is sent of it to a command that takes models.
            inputs: a value for every input of the graph that must be fed.
            **more: fields of the request: the ``device``, one that the command states, and others,
                which the command must overlook.

        Raises:
            Unsupported: if the command says so, or the request cannot be sent.
            BackendFailure: if it says that it failed.
            BackendDied, BackendHangs, ProtocolBreach: if it does not answer as it should.
            BackendUnavailable: if it has ended before, and cannot be executed again.
        """
        hello = self.hello
        graph = model.graph
        own = {output.name: output for output in graph.output}
        fed = inputs
        if hello.nodes:
            # The node alone is sent: with what the graph holds for it, its outputs in its order.
            own = {name: own[name] for name in graph.node[0].output if name}
            held = {it.name: numpy_helper.to_array(it) for it in graph.initializer}
            fed = {**held, **inputs}
        promised = list(map(declared, own.values()))
        try:
            written = b"" if hello.nodes else content
            request, values = run_request(written, fed, **more, outputs=promised)
            if hello.nodes:
                request["node"] = node_to_json(model, values)
        except UnusableOutput as error:
            raise Unsupported(f"the case cannot be sent: {error.message}") from error
        outputs, changed = self.ask(request, read_outputs, values)
        for name in changed:
            if name in inputs:
                # As if it had written into the value here, which is looked at next.
                cast("dict[str, Value]", inputs)[name] = None
        if len(outputs) != len(own):
            return outputs
        by_name = dict(zip(own, outputs, strict=True))
        return [by_name[output.name] for output in graph.output]
