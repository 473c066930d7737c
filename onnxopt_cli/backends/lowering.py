"""Running a model on a backend that may not know its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from weakref import WeakKeyDictionary

import onnx
from onnx import helper

from onnxopt_cli.backends.protocol import Backend, Prepared, normalise_outputs
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import NodeError, NotApplicable, Unsupported
from onnxopt_cli.formula.nodes import nodes_within
from onnxopt_cli.readings.single_node import sole_call

#: Why a case does not apply to a backend that is given primitive operators.
NOT_ASKED = "our own lowering refuses the node before the backend is asked"


class LoweringMode(StrEnum):
    """When a backend is given primitive operators instead of those with a formula."""

    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a backend returned.

    Attributes:
        outputs: the graph's outputs in order.
        lowered: True if the backend was given primitive operators.
    """

    outputs: list[Value]
    lowered: bool


# Older models have no imports.
_FIRST_WITH_IMPORTS = 3
# The last opset of that IR version; runtimes hardly know the ones before it.
_OLDEST = 8

#: What each backend has said of each operator that it does not know; it is not asked again.
_UNKNOWN: WeakKeyDictionary[Backend, dict[str, str]] = WeakKeyDictionary()


@dataclass(slots=True)
class Kept:
    """A model that runs again and again, and what a backend has made of it.

    Attributes:
        model: the model.
        own: as it was prepared.
        lowered: as it was prepared with primitive operators.
    """

    model: onnx.ModelProto
    own: Prepared | None = None
    lowered: tuple[onnx.ModelProto, Prepared] | None = None


def run_model(
    backend: Backend,
    model: onnx.ModelProto,
    inputs: Mapping[str, Value],
    lowering: LoweringMode,
    kept: Kept | None = None,
) -> Answer:
    """Run a model on a backend, lowered if need be.

    Args:
        backend: the backend.
        model: the model.
        inputs: what it is fed.
        lowering: when it is given primitive operators.
        kept: what was made of the model when it ran before, which this run adds to; None if it
            runs once.

    Raises:
        Unsupported: if the backend does not know something, and lowering does not help.
        NotApplicable: if the model is a node that breaks its operator's signature, and is to be
            lowered.
        UnusableOutput: if it returned something that is no value.
        BaseException: whatever else the backend raises is its failure.
    """
    kept = kept or Kept(model)
    if lowering is LoweringMode.NEVER:
        return _run(backend, inputs, kept)
    unknown = _UNKNOWN.setdefault(backend, {})
    if lowering is LoweringMode.ALWAYS or unknown:
        replaceable = _replaceable(model)
        missing = [operator for operator in replaceable if operator in unknown]
        if missing:
            return _run_lowered(backend, inputs, kept, unknown[missing[0]])
        if lowering is LoweringMode.ALWAYS and replaceable:
            return _run_lowered(backend, inputs, kept)
    try:
        return _run(backend, inputs, kept)
    except Unsupported as error:
        replaceable = _replaceable(model)
        if not replaceable or (error.operator and error.operator not in replaceable):
            raise
        if error.operator:
            unknown[error.operator] = error.message
        return _run_lowered(backend, inputs, kept, error.message)


def _replaceable(model: onnx.ModelProto) -> tuple[str, ...]:
    # Not worth importing for a backend that knows everything.
    from onnxopt_cli.readings.lower.model import formula_operators

    return formula_operators(model)


def _importing_default(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, with the default domain among its imports.

    Several runtimes refuse a model without, though ONNX asks only for the domains that it uses. It
    gets the version that its functions import, else the first one that its IR version brought:
    whoever reads the one knows the other.
    """
    default = {"", "ai.onnx"}
    if model.ir_version < _FIRST_WITH_IMPORTS or any(
        opset.domain in default for opset in model.opset_import
    ):
        return model
    if any(node.domain in default for node in nodes_within(model.graph.node)):
        # A model that uses what it does not import is wrong, and is to stay so.
        return model
    versions = {
        opset.version
        for function in model.functions
        for opset in function.opset_import
        if opset.domain in default
    }
    if not versions:
        rows = [row for row in helper.VERSION_TABLE if row[1] <= model.ir_version]
        newest = max(row[1] for row in rows)
        versions = {max(_OLDEST, min(row[2] for row in rows if row[1] == newest))}
    completed = onnx.ModelProto()
    completed.CopyFrom(model)
    completed.opset_import.append(helper.make_opsetid("", max(versions)))
    return completed


def _run(backend: Backend, inputs: Mapping[str, Value], kept: Kept) -> Answer:
    kept.own = kept.own or backend.prepare(_importing_default(kept.model))
    returned = kept.own.run(inputs)
    return Answer(normalise_outputs(returned, kept.model.graph.output), lowered=False)


def _run_lowered(
    backend: Backend, inputs: Mapping[str, Value], kept: Kept, reason: str = ""
) -> Answer:
    try:
        if kept.lowered is None:
            lowered = _lowered(kept.model, inputs, reason)
            kept.lowered = lowered, backend.prepare(lowered)
        model, prepared = kept.lowered
        return Answer(normalise_outputs(prepared.run(inputs), model.graph.output), lowered=True)
    except Unsupported as error:
        if error.message == reason or isinstance(error, _Unlowerable):
            raise
        message = _joined(reason, f"of the lowered model: {error.message}")
        raise Unsupported(message, operator=error.operator) from error


def _lowered(model: onnx.ModelProto, inputs: Mapping[str, Value], reason: str) -> onnx.ModelProto:
    from onnxopt_cli.readings.lower.model import lower

    try:
        return lower(model).model
    except NodeError as error:
        # It is not the backend that refuses a node which breaks its signature. All else that stands
        # in lowering's way, such as an opset that is too old, says nothing about the node.
        if breaks_signature(model, inputs):
            raise NotApplicable(NOT_ASKED) from error
        raise _Unlowerable(_joined(reason, f"it cannot be lowered: {error.message}")) from error


def breaks_signature(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> bool:
    """Tell whether a model is one node that breaks its operator's signature."""
    try:
        sole_call(model, inputs)
    except NodeError:
        return True
    return False


class _Unlowerable(Unsupported):
    """The model cannot be lowered, so the backend was not asked."""


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
