"""Backends that are commands, in any language: ``exec:COMMAND``.

:file:`protocol.md`, which ``onnxopt backends protocol`` prints, specifies the protocol.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import onnx
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper

from onnxopt_cli import __version__
from onnxopt_cli.backends.exec.exec_messages import (
    Hello,
    read_hello,
    read_outputs,
)
from onnxopt_cli.backends.exec.exec_process import Command
from onnxopt_cli.backends.exec.other_interpreter import interpreter_command
from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    misused,
    unavailable,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.codec import PROTOCOL, ValueWriter, run_request
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value, dtype_name, dtype_named
from onnxopt_cli.errors import (
    OnnxoptError,
    ProtocolBreach,
    Unsupported,
    UnusableOutput,
)
from onnxopt_cli.operators.nodes import all_nodes, plain_domain

#: Options of a command.
OPTIONS = ("timeout", "device", "unsupported")

_SECONDS = 60.0
# Types of attributes that JSON can represent.
_PLAIN_ATTRIBUTE_TYPES = {
    AttributeProto.AttributeType.Value(f"{kind}{plural}")
    for kind in ("FLOAT", "INT", "STRING", "TENSOR")
    for plural in ("", "S")
}


class ExecBackend(Backend):
    """A backend that is a command, started once for all cases.

    The command is ``exec:COMMAND``, or the interpreter of a plugin with the option ``python``.

    A command that dies, hangs or violates the protocol is killed, and restarted for the next case.

    Options:
        timeout: time limit of a response in seconds; 60 by default.
        device: one of the devices that the command lists; the first by default.
        python: the interpreter of a plugin.
        unsupported: a regular expression that matches errors about unsupported features.

    Raises:
        UsageError: if an option is unknown or has an invalid value.
        BackendUnavailable: if the command cannot be started, sends an invalid response to
            ``hello``, or lacks the device.
    """

    def __init__(self, specification: Specification) -> None:
        options = specification.options
        specification.require_known((*OPTIONS, "python") if specification.source else OPTIONS)
        self.name = specification.text
        command = specification.command or interpreter_command(specification)
        self._session = CommandSession(command, timeout_of(specification))
        # Ends the command when this interpreter exits; errors can no longer be reported then.
        self._finalizer = weakref.finalize(self, _close_silently, self._session)
        try:
            self._hello = self._session.hello
        except OnnxoptError as error:
            self._finalizer()
            protocol = "onnxopt backends protocol shows the requests"
            needs = "the interpreter needs Python 3.9, NumPy 1.24 and onnx 1.14, or newer"
            hint = error.hint or (protocol if specification.command else needs)
            raise unavailable(self.name, f" does not start: {error.message}", hint) from error
        self.version = f"{self._hello.name} {self._hello.version}"
        self.unsupported = self._hello.unsupported or None
        self._device = options.get("device", self._hello.devices[0])
        if self._device not in self._hello.devices:
            self._finalizer()
            problem = f" does not support the device {printable(self._device)}"
            raise unavailable(self.name, problem, f"it supports {', '.join(self._hello.devices)}")

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model if the command lists its domains, versions and element types.

        Raises:
            Unsupported: if the command does not list one of them.
        """
        require_supported(model, self._hello)
        content = model.SerializeToString()
        run = self._session.run
        # The closure refers to `self`, so that the prepared model keeps the command alive.
        return Prepared(lambda inputs: run(model, content, inputs, device=self._device))

    def close(self) -> None:
        """Shut the command down and wait for it.

        Raises:
            BackendDied: if it ends with a nonzero exit code.
            BackendHangs: if it does not end, and is killed.
        """
        if self._finalizer.detach():
            self._session.close()


def timeout_of(specification: Specification) -> float:
    """Return the time limit of a response in seconds.

    Raises:
        UsageError: if the option ``timeout`` is not a positive number.
    """
    text = specification.options.get("timeout", str(_SECONDS))
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise misused(specification.text, f": timeout is {printable(text)!r}, expected seconds")


def require_supported(model: onnx.ModelProto, hello: Hello) -> None:
    """Reject a model that requires features that a command does not list in its ``hello``.

    Raises:
        Unsupported: if the command does not list the domain and version of an operator, or the
            element type of an input or output.
    """
    function_domains = {function.domain for function in model.functions}
    imported = {plain_domain(opset.domain): opset.version for opset in model.opset_import}
    for node in all_nodes(model):
        domain = plain_domain(node.domain)
        if hello.domains is None or (domain in function_domains and domain not in hello.domains):
            continue
        lowest, highest = hello.domains.get(domain, (0, 0))
        version = imported.get(domain, 0)
        if not lowest <= version <= highest or not highest:
            supported = f"the versions {lowest} to {highest}" if highest else "no version of it"
            needed = f"{node.op_type} belongs to {domain or 'ai.onnx'} version {version}"
            message = printable(f"{needed}; the command supports {supported}")
            raise Unsupported(message, operator=f"{domain}:{node.op_type}")
    for value in (*model.graph.input, *model.graph.output):
        for name in _element_types(value.type) - hello.dtypes:
            message = f"{value.name} has the type {name}, which the command does not support"
            raise Unsupported(printable(message))
    if hello.nodes and _sole_node(model) is None:
        raise Unsupported("the command accepts single nodes, not models")


def _close_silently(session: CommandSession) -> None:
    with suppress(OnnxoptError):
        session.close()


class CommandSession(Command):
    """A command that implements the protocol."""

    _hello: Hello | None = None

    @property
    def hello(self) -> Hello:
        """The response of the command to ``hello``.

        Raises:
            BackendUnavailable: if the command cannot be executed.
            BackendFailure: if it responds that it cannot start.
            BackendDied, BackendHangs, ProtocolBreach: if it does not respond properly, or its
                response differs from that before a restart.
        """

        def read(response: dict[str, Any], payload: memoryview) -> Hello:
            hello = read_hello(response, payload)
            if self._hello not in (None, hello):
                raise ProtocolBreach(
                    "sent a different response to hello after a restart",
                    hint="send the same response to hello each time",
                )
            return hello

        if self._conversation is None or self._hello is None:
            request = {"request": "hello", "protocol": PROTOCOL, "onnxopt": __version__}
            self._hello = self.request(request, read)
        return self._hello

    def run(
        self, model: onnx.ModelProto, content: bytes, inputs: Mapping[str, Value], **fields: object
    ) -> list[Value]:
        """Run a model with the command.

        Args:
            model: the model.
            content: the serialized model, for a command that takes models.
            inputs: a value for every required input of the graph.
            **fields: fields of the request: the ``device``, and unknown fields, which the command
                must ignore.

        Raises:
            Unsupported: if the command reports an unsupported feature, or the inputs cannot be
                sent.
            BackendFailure: if the command responds with an error.
            BackendDied, BackendHangs, ProtocolBreach: if it does not respond properly.
            BackendUnavailable: if it had ended, and cannot be executed again.
        """
        hello = self.hello
        graph = model.graph
        outputs_by_name = {output.name: output for output in graph.output}
        sent_inputs = inputs
        if hello.nodes:
            # The request has the node's outputs, in the node's order, and its initializers.
            outputs_by_name = {name: outputs_by_name[name] for name in graph.node[0].output if name}
            initializers = {
                tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer
            }
            sent_inputs = {**initializers, **inputs}
        declarations = list(map(_declared, outputs_by_name.values()))
        try:
            sent_model = b"" if hello.nodes else content
            request, values = run_request(sent_model, sent_inputs, **fields, outputs=declarations)
            if hello.nodes:
                request["node"] = _node_to_json(model, values)
        except UnusableOutput as error:
            raise Unsupported(f"the case cannot be sent: {error.message}") from error
        outputs, changed = self.request(request, read_outputs, values)
        for name in changed:
            if name in inputs:
                # The host compares the inputs next, and finds this one modified.
                cast("dict[str, Value]", inputs)[name] = None
        if len(outputs) != len(outputs_by_name):
            return outputs
        values_by_name = dict(zip(outputs_by_name, outputs, strict=True))
        return [values_by_name[output.name] for output in graph.output]


def _sole_node(model: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return the node of a single-node model with attributes that JSON can represent, or None."""
    graph = model.graph
    if model.functions or graph.sparse_initializer or len(graph.node) != 1:
        return None
    (node,) = graph.node
    same_outputs = sorted(output.name for output in graph.output) == sorted(
        name for name in node.output if name
    )
    are_plain = all(attribute.type in _PLAIN_ATTRIBUTE_TYPES for attribute in node.attribute)
    return node if same_outputs and are_plain else None


def _node_to_json(model: onnx.ModelProto, values: ValueWriter) -> dict[str, Any]:
    """Return the node of a single-node model as JSON; the default domain is ``ai.onnx``.

    Args:
        model: the model.
        values: receives the elements of tensors among the attributes.
    """
    (node,) = model.graph.node
    imported = {plain_domain(opset.domain): opset.version for opset in model.opset_import}
    return {
        "op_type": node.op_type,
        "domain": node.domain or "ai.onnx",
        "version": imported.get(plain_domain(node.domain), 0),
        "attributes": {
            attribute.name: _plain(helper.get_attribute_value(attribute), values)
            for attribute in node.attribute
        },
        "inputs": list(node.input),
        "outputs": list(node.output),
    }


def _plain(value: Any, values: ValueWriter) -> Any:
    if isinstance(value, TensorProto):
        return values.put(numpy_helper.to_array(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, float):
        # JSON cannot represent NaN and infinities.
        return value if abs(value) < float("inf") else str(value)
    return value if isinstance(value, int) else [_plain(item, values) for item in value]


def _declared(output: onnx.ValueInfoProto) -> dict[str, Any]:
    """Return the declaration of an output: its name, and the dtype and shape of a tensor.

    An unknown dimension or shape is null.
    """
    tensor = output.type.tensor_type
    if not tensor.elem_type:
        return {"name": output.name}
    shape = [
        dimension.dim_value if dimension.HasField("dim_value") else None
        for dimension in tensor.shape.dim
    ]
    return {
        "name": output.name,
        "dtype": next(iter(_element_types(output.type)), None),
        "shape": shape if tensor.HasField("shape") else None,
    }


def _element_types(value: TypeProto) -> set[str]:
    """Return the name of the element type of the tensors in a value; empty if it is unknown."""
    kind = value.WhichOneof("value")
    if kind in {"sequence_type", "optional_type"}:
        return _element_types(getattr(value, kind).elem_type)
    if kind == "map_type":
        return _element_types(value.map_type.value_type)
    number = value.tensor_type.elem_type
    # A type that the installed onnx does not define is left to the command, which rejects it.
    if not number or number not in TensorProto.DataType.values():
        return set()
    dtype = dtype_named(TensorProto.DataType.Name(number))
    return set() if dtype is None else {dtype_name(dtype)}
