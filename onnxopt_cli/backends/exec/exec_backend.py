"""Backends that are commands, in any language: ``exec:COMMAND``.

:file:`protocol.md`, which ``onnxopt backends protocol`` prints, specifies the protocol. Responses
are parsed strictly.

The process of a command is untrusted, and is restarted after a fault. The command stays in the
process group and session of its parent, so that a signal to the group or session also kills the
command. Commands ignore Ctrl-C. On Linux, the kernel also kills the command when the thread that
started the command ends. Pipes with deadlines require a POSIX system.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import onnx
from onnx import AttributeProto, TensorProto, TypeProto, helper

from onnxopt_cli import __version__
from onnxopt_cli.backends.conversation import Conversation
from onnxopt_cli.backends.exec.other_interpreter import interpreter_command
from onnxopt_cli.backends.protocol import (
    BREAKDOWNS,
    Backend,
    Prepared,
    compile_pattern,
    unavailable,
)
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.cases.tensors.proto_values import array_of
from onnxopt_cli.config.run_config import Limits
from onnxopt_cli.core.ci_channels import without_ci_channels
from onnxopt_cli.core.codec import PROTOCOL, ValueReader, ValueWriter, run_request
from onnxopt_cli.core.process_control import end_with
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import DTYPES, Value, dtype_name, dtype_named
from onnxopt_cli.errors import (
    BackendDied,
    BackendDiedEarlier,
    BackendFailure,
    BackendHangs,
    BackendUnavailable,
    OnnxoptError,
    ProtocolBreach,
    Unsupported,
    UnusableOutput,
)
from onnxopt_cli.operators.nodes import all_nodes, plain_domain

_MAX_NAME_CHARS = 200
_REQUIRED_FIELDS = ("protocol", "name", "version")
_OPTIONAL_FIELDS = ("domains", "dtypes", "devices", "form", "unsupported")


@dataclass(frozen=True, slots=True)
class Hello:
    """The response of a command to ``hello``.

    Attributes:
        name: name of the implementation.
        version: version of the implementation.
        domains: lowest and highest opset version by domain; the default domain is ``""``. None for
            a command that accepts models of all domains and versions.
        dtypes: names of the supported element types.
        devices: names of the devices; the first is the default.
        unsupported: a regular expression that matches errors about unsupported features; may be
            empty.
        nodes: whether the command receives single nodes as JSON instead of models.
    """

    name: str
    version: str
    domains: Mapping[str, tuple[int, int]] | None
    dtypes: frozenset[str]
    devices: tuple[str, ...]
    unsupported: str = ""
    nodes: bool = False


def _read_hello(response: dict[str, Any], payload: memoryview) -> Hello:
    """Parse the response to ``hello``.

    Raises:
        BackendFailure: if the command responds with an error.
        ProtocolBreach: if the command implements another protocol, or violates the protocol.
    """
    _require_success(response, payload)
    ValueReader(payload).end()
    protocol = response.get("protocol", PROTOCOL)
    if protocol != PROTOCOL:
        raise ProtocolBreach(
            f"implements the protocol {_as_json(protocol)}; this version of onnxopt implements "
            f"{PROTOCOL}, which onnxopt backends protocol describes"
        )
    _require_fields(response, _REQUIRED_FIELDS, _OPTIONAL_FIELDS)
    pattern = response.get("unsupported", "")
    if "unsupported" in response:
        _require(isinstance(pattern, str), '"unsupported" is', pattern, "a regular expression")
        try:
            compile_pattern(pattern)
        except ValueError as error:
            raise ProtocolBreach(
                f'sent a response in which "unsupported" is {_as_json(pattern)}, which {error}'
            ) from None
    form = response.get("form", "model")
    _require(form in ("model", "node"), '"form" is', form, '"model" or "node"')
    dtypes = _names(response.get("dtypes", [*DTYPES]), "dtypes")
    for name in dtypes:
        _require(name in DTYPES, '"dtypes" have', name, "a name such as float32")
    name, version = _name(response, "name"), _name(response, "version")
    domains = _domains(response["domains"]) if "domains" in response else None
    devices = tuple(_names(response.get("devices", ["CPU"]), "devices"))
    return Hello(name, version, domains, frozenset(dtypes), devices, pattern, form == "node")


def _read_outputs(response: dict[str, Any], payload: memoryview) -> tuple[list[Value], list[str]]:
    """Parse the response to ``run``; return the outputs and the names of modified inputs.

    Raises:
        Unsupported: if the command responds that a feature is unsupported.
        BackendFailure: if the command responds with an error.
        ProtocolBreach: if the command violates the protocol.
    """
    _require_success(response, payload)
    reader = ValueReader(payload)
    if "unsupported" in response:
        _require_fields(response, ("unsupported",), ("operator",))
        reader.end()
        operator = _name(response, "operator") if "operator" in response else ""
        raise Unsupported(_text(response, "unsupported"), operator=operator)
    _require_fields(response, ("outputs",), ("changed",))
    changed = response.get("changed", [])
    are_names = isinstance(changed, list) and all(isinstance(name, str) for name in changed)
    _require(are_names, '"changed" are', changed, "a list of names")
    _require(isinstance(response["outputs"], list), '"outputs" are', response["outputs"], "a list")
    values = [reader.value(described) for described in response["outputs"]]
    reader.end()
    return values, changed


def _require_success(response: dict[str, Any], payload: memoryview) -> None:
    if "error" in response:
        _require_fields(response, ("error",))
        ValueReader(payload).end()
        raise BackendFailure(_text(response, "error"))


def _require_fields(
    response: Mapping[str, object], fields: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    unknown = [_as_json(field) for field in response if field not in {*fields, *optional}]
    if unknown:
        raise ProtocolBreach(f"sent a response with the unknown field {', '.join(unknown)}")
    missing = [field for field in fields if field not in response]
    if missing:
        raise ProtocolBreach(f"sent a response that lacks {', '.join(missing)}")


def _require(holds: bool, place: str, value: object, expected: str) -> None:
    if not holds:
        raise ProtocolBreach(
            f"sent a response in which {place} {_as_json(value)}, expected {expected}"
        )


def _text(response: Mapping[str, object], field: str) -> str:
    text = response[field]
    _require(isinstance(text, str) and bool(text.strip()), f'"{field}" is', text, "a text")
    return printable(str(text), lines=True)


def _name(response: Mapping[str, object], field: str) -> str:
    return _names([response[field]], field)[0]


def _names(names: Any, field: str) -> list[str]:
    _require(isinstance(names, list) and bool(names), f'"{field}" are', names, "a list")
    for name in names:
        is_name = isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS
        _require(is_name, f'"{field}" has', name, "a name")
    return list(map(printable, names))


def _domains(domains: Any) -> dict[str, tuple[int, int]]:
    is_mapping = isinstance(domains, dict) and bool(domains)
    _require(is_mapping, '"domains" are', domains, "versions by domain")
    ranges: dict[str, tuple[int, int]] = {}
    for domain, versions in domains.items():
        are_two = isinstance(versions, list) and list(map(type, versions)) == [int, int]
        is_range = bool(domain) and are_two and 1 <= versions[0] <= versions[1]
        place = f'"domains" give {_as_json(domain)} the versions'
        _require(is_range, place, versions, "[lowest, highest]")
        ranges[plain_domain(domain)] = versions[0], versions[1]
    return ranges


def _as_json(value: object) -> str:
    return printable(json.dumps(value, ensure_ascii=False)[:80])


# Seconds that a command has to end after a shutdown request. On a loaded machine, a process that
# has imported torch needs more than 5 seconds. A worker has a longer time limit, so the command
# ends first.
_SHUTDOWN_SECONDS = 20.0
_Parsed = TypeVar("_Parsed")


class Command:
    """A command that the first request starts.

    The command inherits standard error from this process. A command that dies, hangs or violates
    the protocol is killed; the next request restarts it.

    Args:
        command: the program, looked up as by a shell, and its arguments.
        timeout: time limit of a response in seconds.
        called: the command's name in messages, such as "the command".
    """

    def __init__(self, command: Sequence[str], timeout: float, called: str = "the command") -> None:
        self._command = command
        self._timeout = timeout
        self._called = called
        self._conversation: Conversation | None = None

    def request(
        self,
        request: dict[str, Any],
        read: Callable[[dict[str, Any], memoryview], _Parsed],
        values: ValueWriter | None = None,
        *,
        seconds: float | None = None,
    ) -> _Parsed:
        """Send a request, and return the parsed response; after a failure, kill the command.

        Args:
            request: the request, without its number.
            read: parses the response and its raw bytes, or raises ProtocolBreach.
            values: the raw bytes of the values in the request.
            seconds: the time limit of this response; None for the time limit ``timeout`` of the
                command.

        Raises:
            BackendUnavailable: if the program does not exist or cannot be executed.
            BackendDiedEarlier: if the command ended before it read the request.
            BackendDied: if the command ends, or closes its output, before it has responded.
            BackendHangs: if the command does not respond in time.
            ProtocolBreach: if the command sends output without a request, or an invalid response.
            UnusableOutput: if the request cannot be sent.
        """
        self._conversation = conversation = self._conversation or self._start()
        try:
            with self._named():
                with _earlier(lambda: True):
                    # Detect whether the command has ended or sent unrequested output since the last
                    # response.
                    conversation.poll()
                    if not conversation.open:
                        conversation.wait()
                with _earlier(conversation.unread):
                    conversation.send(request, seconds or self._timeout, values)
                    response = conversation.wait()
                parsed = read(*response)
                conversation.require_no_more()
                return parsed
        except (Unsupported, BackendFailure):
            raise
        except BaseException:
            self.kill()
            raise

    def close(self, *, tell: bool = True) -> None:
        """Close the command's input and wait for its exit, if the command is running.

        Args:
            tell: whether to send the request ``shutdown`` first.

        Raises:
            BackendDied: if the command ends with a nonzero exit code.
            BackendHangs: if the command does not end in time, and is killed.
        """
        if self._conversation is None:
            return
        with self._named():
            try:
                self._conversation.end(_SHUTDOWN_SECONDS, tell=tell)
                self._conversation.wait()
            except BackendDied as death:
                if self._conversation.process.returncode:
                    raise BackendDied(f"{death.message} after shutdown") from None
            finally:
                self.kill()

    def kill(self) -> None:
        """Kill the command if it is running."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            # Leaving the context closes the pipes and waits for the process to end.
            with conversation.process as process, conversation.selector:
                process.kill()
                conversation.close()

    def _start(self) -> Conversation:
        program = _program(self._command[0])
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                [program, *self._command[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=without_ci_channels(os.environ),
                preexec_fn=partial(_begin, os.getpid()),  # noqa: PLW1509 - system calls, no lock
            )
        except (OSError, ValueError) as error:
            raise BackendUnavailable(
                f"{printable(shlex.join(self._command))} cannot be executed: "
                f"{printable(str(error))}",
                hint="a script needs a first line such as #!/bin/sh, and permission to execute",
            ) from error
        # The pipes are not None, because both arguments above are PIPE.
        responses, requests = [pipe for pipe in (process.stdout, process.stdin) if pipe]
        descriptors = responses.fileno(), requests.fileno()
        return Conversation(process, *descriptors, requests.close, selectors.DefaultSelector())

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Begin the message of each error about the process with the command's name."""
        try:
            yield
        except BREAKDOWNS as error:
            raise type(error)(f"{self._called} {error.message}", hint=error.hint) from None


@contextmanager
def _earlier(unread: Callable[[], bool]) -> Iterator[None]:
    """Convert BackendDied to BackendDiedEarlier if the process had not read the request."""
    try:
        yield
    except BackendDied as death:
        if unread():
            raise BackendDiedEarlier(death.message) from None
        raise


def _begin(parent: int) -> None:
    """Prepare the new process before it executes the command."""
    # A terminal sends Ctrl-C to the command as well, although only onnxopt decides when the
    # command ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent, signal.SIGKILL)


def _program(name: str) -> str:
    if sys.platform == "win32":
        raise BackendUnavailable(
            "commands, other interpreters and checks of plugins work on POSIX systems only",
            hint="onnxopt run accepts backends of the form python:... here",
        )
    if path := shutil.which(name):
        return path
    problem = "does not exist"
    hint = "" if os.sep in name else "write exec:./NAME for a file in this folder"
    if os.sep in name and Path(name).is_dir():
        problem = "is a folder"
    elif os.sep in name and os.path.lexists(name):
        problem, hint = "cannot be executed", f"chmod +x {shlex.quote(name)}"
    raise BackendUnavailable(f"the command {printable(name)} {problem}", hint=printable(hint))


#: Options for backends that are commands.
OPTIONS = ("timeout", "device", "unsupported")

#: Advice for a command that does not respond in time.
MORE_TIME = "if the backend is slow, allow more time with its option timeout=SECONDS"
# Types of attributes that JSON can represent.
_PLAIN_ATTRIBUTE_TYPES = {
    AttributeProto.AttributeType.Value(f"{kind}{plural}")
    for kind in ("FLOAT", "INT", "STRING", "TENSOR")
    for plural in ("", "S")
}


class ExecBackend(Backend):
    """A backend that is a command. The command is started once for all cases.

    The command is ``exec:COMMAND``, or the interpreter of a plugin with the option ``python``.

    A command that dies, hangs or violates the protocol is killed, and restarted for the next case.

    Args:
        specification: the command and its options.
        limits: the time limits of the start and of each response, unless the option ``timeout`` is
            given.

    Options:
        timeout: time limit of a response in seconds.
        device: one of the devices that the command lists; the first by default.
        python: the interpreter of a plugin.
        unsupported: a regular expression that matches errors about unsupported features.

    Raises:
        UsageError: if an option is unknown or has an invalid value.
        BackendUnavailable: if the command cannot be started, sends an invalid response to
            ``hello``, or lacks the device.
    """

    def __init__(self, specification: Specification, limits: Limits) -> None:
        options = specification.options
        specification.require_known((*OPTIONS, "python") if specification.source else OPTIONS)
        self.name = specification.text
        command = specification.command or interpreter_command(specification)
        self._session = CommandSession(command, response_limits(specification, limits))
        # The finalizer ends the command when this interpreter exits. Errors at the exit of the
        # interpreter cannot be reported.
        self._finalizer = weakref.finalize(self, _close_silently, self._session)
        try:
            self._hello = self._session.hello
        except OnnxoptError as error:
            self._finalizer()
            protocol = "onnxopt backends protocol shows the requests"
            needs = "the interpreter needs Python 3.9, NumPy 1.24 and onnx 1.14, or newer"
            advice = protocol if specification.command else needs
            hint = error.hint or (MORE_TIME if isinstance(error, BackendHangs) else advice)
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
            Unsupported: if the command does not list a domain, version or element type of the
                model.
        """
        require_supported(model, self._hello)
        content = model.SerializeToString()
        run = self._session.run
        # The function refers to `self`, so that the prepared model keeps the command alive.
        return Prepared(lambda inputs: run(model, content, inputs, device=self._device))

    def close(self) -> None:
        """Shut the command down and wait for it.

        Raises:
            BackendDied: if the command ends with a nonzero exit code.
            BackendHangs: if the command does not end, and is killed.
        """
        if self._finalizer.detach():
            self._session.close()


def require_supported(model: onnx.ModelProto, hello: Hello) -> None:
    """Reject a model that needs a feature which the response to ``hello`` does not list.

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


def response_limits(specification: Specification, limits: Limits) -> Limits:
    """Return the limits of a command; the option ``timeout`` replaces both time limits.

    Raises:
        UsageError: if the option is not a positive number.
    """
    seconds = specification.timeout
    if seconds is None:
        return limits
    return replace(limits, timeout=seconds, startup_timeout=seconds)


class CommandSession(Command):
    """A command that implements the protocol of commands.

    Args:
        command: the program, looked up as by a shell, and its arguments.
        limits: the time limits of the first response and of all other responses.
    """

    _hello: Hello | None = None

    def __init__(self, command: Sequence[str], limits: Limits) -> None:
        super().__init__(command, limits.timeout)
        self._startup_timeout = limits.startup_timeout

    @property
    def hello(self) -> Hello:
        """The response of the command to ``hello``.

        Raises:
            BackendUnavailable: if the command cannot be executed.
            BackendFailure: if the command responds that it cannot start.
            BackendDied, BackendHangs, ProtocolBreach: if the command does not respond properly, or
                its response differs from the response before a restart.
        """

        def read(response: dict[str, Any], payload: memoryview) -> Hello:
            hello = _read_hello(response, payload)
            if self._hello not in (None, hello):
                raise ProtocolBreach(
                    "sent a different response to hello after a restart",
                    hint="send the same response to hello each time",
                )
            return hello

        if self._conversation is None or self._hello is None:
            request = {"request": "hello", "protocol": PROTOCOL, "onnxopt": __version__}
            self._hello = self.request(request, read, seconds=self._startup_timeout)
        return self._hello

    def run(
        self, model: onnx.ModelProto, content: bytes, inputs: Mapping[str, Value], **fields: object
    ) -> list[Value]:
        """Run a model with the command.

        Args:
            model: the model.
            content: the serialized model, for a command that takes models.
            inputs: a value for every required input of the graph.
            **fields: further fields of the request: the ``device``, and unknown fields, which the
                command must ignore.

        Raises:
            Unsupported: if the command reports an unsupported feature, or the inputs cannot be
                sent.
            BackendFailure: if the command responds with an error.
            BackendDied, BackendHangs, ProtocolBreach: if the command does not respond properly.
            BackendUnavailable: if the command had ended, and cannot be executed again.
        """
        hello = self.hello
        graph = model.graph
        outputs_by_name = {output.name: output for output in graph.output}
        sent_inputs = inputs
        if hello.nodes:
            # The request lists the outputs in the node's order, and contains the initializers as
            # inputs.
            outputs_by_name = {name: outputs_by_name[name] for name in graph.node[0].output if name}
            initializers = {tensor.name: array_of(tensor) for tensor in graph.initializer}
            sent_inputs = {**initializers, **inputs}
        declarations = list(map(_declared, outputs_by_name.values()))
        try:
            sent_model = b"" if hello.nodes else content
            request, values = run_request(sent_model, sent_inputs, **fields, outputs=declarations)
            if hello.nodes:
                request["node"] = _node_to_json(model, values)
        except UnusableOutput as error:
            raise Unsupported(f"the case cannot be sent: {error.message}") from error
        outputs, changed = self.request(request, _read_outputs, values)
        for name in changed:
            if name in inputs:
                # Mark the input as modified: the host compares the inputs after this function has
                # returned.
                cast("dict[str, Value]", inputs)[name] = None
        if len(outputs) != len(outputs_by_name):
            return outputs
        values_by_name = dict(zip(outputs_by_name, outputs, strict=True))
        return [values_by_name[output.name] for output in graph.output]


def _sole_node(model: onnx.ModelProto) -> onnx.NodeProto | None:
    """Return the node of a model that JSON can represent as a single node; else None."""
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
        return values.put(array_of(value))
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
    # If the installed onnx does not define a type, the model is sent to the command, which rejects
    # the type.
    if not number or number not in TensorProto.DataType.values():
        return set()
    dtype = dtype_named(TensorProto.DataType.Name(number))
    return set() if dtype is None else {dtype_name(dtype)}
