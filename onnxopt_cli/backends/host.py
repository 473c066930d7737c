"""Requests to a backend, the backend's responses, and the host that runs the requests.

The host runs a model unchanged or, if the backend lacks a feature, in an older opset or lowered to
primitive operators.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import perf_counter
from traceback import walk_tb
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.backends.older_opsets import older_models
from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    error_text,
    normalise_outputs,
    out_of_memory,
)
from onnxopt_cli.backends.reference import NumpyBackend, compute_node
from onnxopt_cli.backends.resolve import create_backend
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.config.run_config import Limits, LoweringMode
from onnxopt_cli.core.result import RAISED_AT, SETTLED, Outcome
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import (
    BackendDied,
    BackendDiedEarlier,
    BackendHangs,
    NodeError,
    NotApplicable,
    OnnxoptError,
    ProtocolBreach,
    Unsupported,
)
from onnxopt_cli.operators.call import Call, breaks_signature, sole_operator
from onnxopt_cli.operators.nodes import nodes_within

_COMPARED_BYTES = 1 << 20
_OUTCOMES: Mapping[type[OnnxoptError], Outcome] = {
    Unsupported: Outcome.UNSUPPORTED,
    NotApplicable: Outcome.SKIP,
    BackendDied: Outcome.CRASH,
    BackendHangs: Outcome.TIMEOUT,
    ProtocolBreach: Outcome.PROTOCOL,
}
#: Outcomes that the process of a backend can report instead of outputs.
FAILURES = frozenset({*_OUTCOMES.values(), Outcome.OOM, Outcome.ERROR})


@dataclass(frozen=True, slots=True)
class Request:
    """A model and inputs that a backend is to run.

    Attributes:
        model: the model.
        inputs: a value for every input of the graph that must be fed.
        started: called when the run starts.
        keep: whether to keep the prepared model for requests with the same model.
        collect: whether to collect garbage before the response, so that unreachable objects do
            not count as leaked.
        expected_bytes: size of the expected outputs, if known, else 0.
        writable_inputs: a second copy of the inputs that the backend may modify; None to copy
            them.
        formula_loop: whether onnxopt generated the model as a ``Loop`` around a formula, which runs
            as many steps as the case has.
        call: the call of a formula, if the model is one node with this call; only backends in this
            process use the call.
        joinable: whether the model may run in a batch, together with those of other requests.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Value]
    started: Callable[[], None] = lambda: None
    keep: bool = False
    collect: bool = False
    expected_bytes: int = 0
    writable_inputs: Mapping[str, Value] | None = None
    formula_loop: bool = False
    call: Call[Array] | None = None
    joinable: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """A backend's response to a request.

    Attributes:
        outputs: the outputs in the graph's order; None after a failure.
        failure: the kind of failure; None if the backend returned outputs.
        message: the reason for the failure; empty for a response with outputs.
        lowered: whether the backend ran primitive operators.
        opset: the older opset in which the backend ran the model; 0 for the model's own.
        earlier: whether an earlier request may have caused the failure, so that a new worker must
            run the request again.
        changed: names of the inputs that the backend modified.
        leak: a description of leaked resources; empty without a leak.
        seconds: wall time in the backend.
        printed: the end of the backend's output to stdout and stderr, if captured.
        batch: the number of cases whose models ran as one; 0 for a case that ran alone.
    """

    outputs: list[Value] | None = None
    failure: Outcome | None = None
    message: str = ""
    lowered: bool = False
    earlier: bool = False
    changed: tuple[str, ...] = ()
    leak: str = ""
    seconds: float = 0.0
    printed: str = ""
    opset: int = 0
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault of a backend outside of all cases.

    Attributes:
        place: ``teardown`` or ``between-cases``.
        outcome: the kind of fault.
        message: a description of the fault.
    """

    place: str
    outcome: Outcome
    message: str


def is_formula(request: Request) -> bool:
    """Return whether the model of a request is one node of an operator with a formula."""
    return request.call is not None or sole_operator(request.model) is not None


class Host:
    """Runs requests on a backend in this process, and closes the backend.

    Args:
        specification: the backend.
        lowering: when to lower models to primitive operators.
        limits: the time limits of a backend that is a command.

    Raises:
        UsageError: if the backend does not exist.
        BackendUnavailable: if the backend does not start.
    """

    def __init__(
        self, specification: Specification, lowering: LoweringMode, limits: Limits
    ) -> None:
        self._backend = create_backend(specification, limits)
        older_opsets = specification.options.get("opset") == "auto"
        self._runner = ModelRunner(self._backend, lowering, older_opsets)
        is_numpy = isinstance(self._backend, NumpyBackend)
        self._computes_calls = is_numpy and lowering is not LoweringMode.ALWAYS
        self.version = self._backend.version

    def respond(self, request: Request) -> Response:
        """Run a request.

        Exceptions of the backend, except KeyboardInterrupt, become responses.
        """
        inputs = request.inputs
        # Formulas do not modify their inputs.
        if not (isinstance(self._backend, NumpyBackend) and is_formula(request)):
            inputs = request.writable_inputs or {
                name: _copy(value) for name, value in request.inputs.items()
            }
        started = perf_counter()
        try:
            outputs: list[Value]
            if self._computes_calls and request.call is not None:
                outputs, lowered = compute_node(request.model, request.call), False
            else:
                outputs, lowered = self._runner.run(request.model, inputs, keep=request.keep)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a backend may raise anything
            failure, seconds = _failure(error), perf_counter() - started
            lowered = self._runner.lowered and failure not in SETTLED
            source = _error_source() if failure is Outcome.ERROR else ""
            text = error_text(error)
            earlier = isinstance(error, BackendDiedEarlier)
            opset = self._runner.opset
            return Response(
                None, failure, text, lowered, earlier, seconds=seconds, printed=source, opset=opset
            )
        seconds = perf_counter() - started
        originals = () if inputs is request.inputs else request.inputs.items()
        changed = tuple(name for name, value in originals if not same_bits(value, inputs.get(name)))
        opset = self._runner.opset
        return Response(outputs, lowered=lowered, changed=changed, seconds=seconds, opset=opset)

    def close(self) -> tuple[Outcome, str] | None:
        """Close the backend; return the kind and the description of an error, or None."""
        try:
            self._backend.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a backend may raise anything
            return _failure(error), error_text(error)
        return None


#: Folders that contain installed code, as opposed to a backend under development.
_INSTALLED_FOLDERS = (str(Path(__file__).parents[1]), *sysconfig.get_paths().values())


def _error_source() -> str:
    """Return the file and line of the user's code that raised the error; may be empty."""
    # The attribute error.__traceback__ is not used, because an exception class of the backend may
    # override it.
    traceback = sys.exc_info()[2]
    places = ((frame.f_code.co_filename, line) for frame, line in walk_tb(traceback))
    own_places = [place for place in places if not place[0].startswith(("<", *_INSTALLED_FOLDERS))]
    if not own_places:
        return ""
    path, line = own_places[-1]
    return f"{RAISED_AT}{printable(path)}:{line}"


def _failure(error: BaseException) -> Outcome:
    for kind, outcome in _OUTCOMES.items():
        if isinstance(error, kind):
            return outcome
    return Outcome.OOM if out_of_memory(error) else Outcome.ERROR


def _copy(value: Value) -> Value:
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return None if value is None else np.array(value, order="C")


def same_bits(before: Value, after: Value) -> bool:
    """Return whether two values agree in every bit and in structure."""
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(same_bits, before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(
            same_bits(value, after[key]) for key, value in before.items()
        )
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return before is None and after is None
    if before.dtype != after.dtype or before.shape != after.shape:
        return False
    if before.dtype == object:
        return bool(np.array_equal(before, after))
    # Bits are compared, so that NaN equals itself, and 0.0 differs from -0.0.
    old_bytes, new_bytes = (
        np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (before, after)
    )
    blocks = [
        slice(start, start + _COMPARED_BYTES) for start in range(0, old_bytes.size, _COMPARED_BYTES)
    ]
    return all(np.array_equal(old_bytes[block], new_bytes[block]) for block in blocks)


# The prepared model for each form: "original", "opset N" or "lowered".
_PreparedForms: TypeAlias = "dict[str, Prepared]"

# The reason why a case does not apply to a backend that runs primitive operators.
_REFUSED_BY_LOWERING = "onnxopt's lowering rejects the node, so the backend did not run it"

# Models with an older IR version have no opset imports.
_FIRST_IR_WITH_IMPORTS = 3
# The last opset that models with an IR version may use; few runtimes support earlier opsets.
_MIN_OPSET = 8
# The first opset of each IR version. The rows of the table are read from the newest to the oldest,
# so that the oldest row of each IR version determines the value.
_FIRST_OPSETS = {row[1]: row[2] for row in reversed(helper.VERSION_TABLE)}


@dataclass(eq=False)
class ModelRunner:
    """Runs models on a backend, lowered if necessary.

    Attributes:
        backend: the backend.
        lowering: when to lower models to primitive operators.
        older_opsets: whether to run a model that is unsupported in an older opset.
        lowered: whether the last model was lowered.
        opset: the older opset of the last model; 0 for the model's own.
    """

    backend: Backend
    lowering: LoweringMode
    older_opsets: bool = False
    lowered: bool = False
    opset: int = 0
    # The backend's message for each unsupported operator; for later models with the operator, the
    # failing attempt is skipped.
    _unsupported: dict[str, str] = field(default_factory=dict)
    # The last model that was requested with `keep`, and the prepared forms of the model.
    _kept: tuple[onnx.ModelProto, _PreparedForms] = field(
        default_factory=lambda: (onnx.ModelProto(), {})
    )

    def run(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], *, keep: bool = False
    ) -> tuple[list[Value], bool]:
        """Run a model, in an older opset or lowered if necessary.

        Args:
            model: the model.
            inputs: the input values by name.
            keep: whether to keep the prepared model for the next run of the same model.

        Returns:
            The graph's outputs in order, and whether the model was lowered.

        Raises:
            Unsupported: if the backend lacks a feature, and lowering does not help.
            NotApplicable: if the model is a node that breaks its operator's signature, and has to
                be lowered.
            UnusableOutput: if the backend returned an invalid value.
            BaseException: any other exception that the backend raises, which counts as a failure of
                the backend.
        """
        self.lowered, self.opset = False, 0
        kept_model, forms = self._kept
        if not (keep and (kept_model is model or kept_model == model)):
            forms = {}
        self._kept = (model, forms) if keep else (onnx.ModelProto(), {})
        always = self.lowering is LoweringMode.ALWAYS
        replaceable = _replaceable(model) if always or self._unsupported else ()
        reasons = [self._unsupported[name] for name in replaceable if name in self._unsupported]
        if reasons or (always and replaceable):
            return self._run_lowered(model, inputs, forms, reasons[0] if reasons else "")
        try:
            if "original" not in forms:
                forms["original"] = self.backend.prepare(_importing_default(model))
            return normalise_outputs(forms["original"].run(inputs), model.graph.output), False
        except Unsupported as error:
            outputs = self._run_older(model, inputs, forms) if self.older_opsets else None
            if outputs is not None:
                return outputs, False
            replaceable = () if self.lowering is LoweringMode.NEVER else _replaceable(model)
            if not replaceable or (error.operator and error.operator not in replaceable):
                raise
            if error.operator:
                self._unsupported[error.operator] = error.message
            return self._run_lowered(model, inputs, forms, error.message)

    def _run_older(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], forms: _PreparedForms
    ) -> list[Value] | None:
        """Run a model in the newest older opset that the backend supports, if any."""
        for version, older in older_models(model):
            self.opset = version
            try:
                form = f"opset {version}"
                if form not in forms:
                    forms[form] = self.backend.prepare(older)
                return normalise_outputs(forms[form].run(inputs), model.graph.output)
            except Unsupported:
                self.opset = 0
        return None

    def _run_lowered(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, Value],
        forms: _PreparedForms,
        reason: str,
    ) -> tuple[list[Value], bool]:
        self.lowered = True
        try:
            if "lowered" not in forms:
                forms["lowered"] = self.backend.prepare(_lowered(model, inputs, reason))
            # Lowering preserves the number and types of the graph's outputs.
            return normalise_outputs(forms["lowered"].run(inputs), model.graph.output), True
        except Unsupported as error:
            if error.message == reason or isinstance(error, _Unlowerable):
                raise
            message = _joined(reason, f"of the lowered model: {error.message}")
            raise Unsupported(message, operator=error.operator) from error


def _replaceable(model: onnx.ModelProto) -> tuple[str, ...]:
    # The module is imported late, because it is not needed if the backend supports all operators.
    from onnxopt_cli.interpret.lower.lower_model import formula_operators

    return formula_operators(model)


def _importing_default(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with an import of the default domain.

    ONNX requires only imports of the domains that a model uses, but several runtimes reject a model
    that does not import the default domain. The added version is the version that the model's
    functions import, or else the first opset of the model's IR version, which every runtime that
    reads the IR version supports.
    """
    default = {"", "ai.onnx"}
    imported = {opset.domain for opset in model.opset_import}
    if model.ir_version < _FIRST_IR_WITH_IMPORTS or default & imported:
        return model
    if any(node.domain in default for node in nodes_within(model.graph.node)):
        # Do not add an import for an invalid model that uses a domain without importing it.
        return model
    function_imports = chain.from_iterable(function.opset_import for function in model.functions)
    versions = [opset.version for opset in function_imports if opset.domain in default]
    completed = deepcopy(model)
    newest = max(first_opset for first_opset in _FIRST_OPSETS if first_opset <= model.ir_version)
    version = max(versions, default=max(_MIN_OPSET, _FIRST_OPSETS[newest]))
    completed.opset_import.append(helper.make_opsetid("", version))
    return completed


def _lowered(model: onnx.ModelProto, inputs: Mapping[str, Value], reason: str) -> onnx.ModelProto:
    from onnxopt_cli.interpret.lower.lower_model import lower

    try:
        return lower(model).model
    except NodeError as error:
        # If the node breaks its operator's signature, the lowering rejected it, not the backend. If
        # lowering fails for another reason, such as an opset that is too old, the backend's error
        # is reported.
        if breaks_signature(model, inputs):
            raise NotApplicable(_REFUSED_BY_LOWERING) from error
        raise _Unlowerable(_joined(reason, f"it cannot be lowered: {error.message}")) from error


class _Unlowerable(Unsupported):
    """The model cannot be lowered, so the backend did not run it."""


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
