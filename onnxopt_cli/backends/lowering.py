"""Running a model on a backend that may not know its operators."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import onnx
from onnx import helper

from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    normalise_outputs,
)
from onnxopt_cli.config.run_config import LoweringMode
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import (
    NodeError,
    NotApplicable,
    Unsupported,
)
from onnxopt_cli.interpret.single_node import sole_call
from onnxopt_cli.operators.nodes import nodes_within

_Made: TypeAlias = "dict[str, Prepared]"

#: Why a case does not apply to a backend that is given primitive operators.
REFUSED_BY_LOWERING = "our own lowering refuses the node before the backend is asked"

# Older models have no imports.
_FIRST_WITH_IMPORTS = 3
# The last opset of that IR version; runtimes hardly know the ones before it.
_OLDEST = 8
# By IR version the first opset that it brought; the table begins with the oldest.
_FIRST_OPSETS = {row[1]: row[2] for row in reversed(helper.VERSION_TABLE)}


@dataclass(eq=False)
class ModelRunner:
    """Runs models on a backend that may not know their operators.

    Attributes:
        backend: the backend.
        lowering: when it is given primitive operators.
        lowered: whether the last model was to run as primitive operators.
    """

    backend: Backend
    lowering: LoweringMode
    lowered: bool = False
    # What the backend has said of each operator that it does not know; it is not asked again.
    _unknown: dict[str, str] = field(default_factory=dict)
    # The model that runs again and again, and what the backend has made of it.
    _kept: tuple[onnx.ModelProto, _Made] = field(default_factory=lambda: (onnx.ModelProto(), {}))

    def run(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], *, keep: bool = False
    ) -> tuple[list[Value], bool]:
        """Run a model, lowered if need be.

        Args:
            model: the model.
            inputs: what it is fed.
            keep: whether the prepared model is kept for the next time that the same one runs.

        Returns:
            The graph's outputs in order, and whether the backend was given primitive operators.

        Raises:
            Unsupported: if the backend does not know something, and lowering does not help.
            NotApplicable: if the model is a node that breaks its operator's signature, and is to
                be lowered.
            UnusableOutput: if it returned something that is not a valid value.
            BaseException: whatever else the backend raises is its failure.
        """
        self.lowered = False
        known, made = self._kept
        if not (keep and (known is model or known == model)):
            made = {}
        self._kept = (model, made) if keep else (onnx.ModelProto(), {})
        always = self.lowering is LoweringMode.ALWAYS
        replaceable = _replaceable(model) if always or self._unknown else ()
        said = [self._unknown[operator] for operator in replaceable if operator in self._unknown]
        if said or (always and replaceable):
            return self._run_lowered(model, inputs, made, said[0] if said else "")
        try:
            if "own" not in made:
                made["own"] = self.backend.prepare(_importing_default(model))
            return normalise_outputs(made["own"].run(inputs), model.graph.output), False
        except Unsupported as error:
            replaceable = () if self.lowering is LoweringMode.NEVER else _replaceable(model)
            if not replaceable or (error.operator and error.operator not in replaceable):
                raise
            if error.operator:
                self._unknown[error.operator] = error.message
            return self._run_lowered(model, inputs, made, error.message)

    def _run_lowered(
        self, model: onnx.ModelProto, inputs: Mapping[str, Value], made: _Made, reason: str
    ) -> tuple[list[Value], bool]:
        self.lowered = True
        try:
            if "lowered" not in made:
                made["lowered"] = self.backend.prepare(_lowered(model, inputs, reason))
            # Lowering changes neither number nor types of a graph's outputs.
            return normalise_outputs(made["lowered"].run(inputs), model.graph.output), True
        except Unsupported as error:
            if error.message == reason or isinstance(error, _Unlowerable):
                raise
            message = _joined(reason, f"of the lowered model: {error.message}")
            raise Unsupported(message, operator=error.operator) from error


def _replaceable(model: onnx.ModelProto) -> tuple[str, ...]:
    # Not worth importing for a backend that knows everything.
    from onnxopt_cli.interpret.lower.lower_model import formula_operators

    return formula_operators(model)


def _importing_default(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, with the default domain among its imports.

    Several runtimes refuse a model without, though ONNX asks only for the domains that it uses. It
    gets the version that its functions import, else the first one that its IR version brought:
    whoever reads the one knows the other.
    """
    default = {"", "ai.onnx"}
    imported = {opset.domain for opset in model.opset_import}
    if model.ir_version < _FIRST_WITH_IMPORTS or default & imported:
        return model
    if any(node.domain in default for node in nodes_within(model.graph.node)):
        # A model that uses what it does not import is wrong, and is to stay so.
        return model
    own = chain.from_iterable(function.opset_import for function in model.functions)
    versions = [opset.version for opset in own if opset.domain in default]
    completed = deepcopy(model)
    newest = max(first_opset for first_opset in _FIRST_OPSETS if first_opset <= model.ir_version)
    version = max(versions, default=max(_OLDEST, _FIRST_OPSETS[newest]))
    completed.opset_import.append(helper.make_opsetid("", version))
    return completed


def _lowered(model: onnx.ModelProto, inputs: Mapping[str, Value], reason: str) -> onnx.ModelProto:
    from onnxopt_cli.interpret.lower.lower_model import lower

    try:
        return lower(model).model
    except NodeError as error:
        # It is not the backend that refuses a node which breaks its signature. All else that stands
        # in lowering's way, such as an opset that is too old, says nothing about the node.
        if breaks_signature(model, inputs):
            raise NotApplicable(REFUSED_BY_LOWERING) from error
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
