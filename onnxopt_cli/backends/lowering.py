"""Run a model on a backend, in an older opset or lowered to primitive operators if necessary."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import onnx
from onnx import helper

from onnxopt_cli.backends.older_opsets import older_models
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
from onnxopt_cli.operators.call import sole_call
from onnxopt_cli.operators.nodes import nodes_within

# The prepared model by form: "original", "opset N" or "lowered".
_PreparedForms: TypeAlias = "dict[str, Prepared]"

#: The reason why a case does not apply to a backend that runs primitive operators.
REFUSED_BY_LOWERING = "onnxopt's lowering rejects the node, so the backend did not run it"

# Models of older IR versions have no opset imports.
_FIRST_IR_WITH_IMPORTS = 3
# The last opset of that IR version; runtimes hardly support earlier ones.
_MIN_OPSET = 8
# The first opset of each IR version. The table begins with the oldest row, and later entries of
# a dict replace earlier ones, hence `reversed`.
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
    # The backend's message for each unsupported operator; later models skip the failing attempt.
    _unsupported: dict[str, str] = field(default_factory=dict)
    # The last model that was requested with `keep`, and its prepared forms.
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
            BaseException: any other exception of the backend is its failure.
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
        """Run a model in the newest older opset that the backend supports, if there is one."""
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
    # Imported lazily: a backend that supports all operators never needs it.
    from onnxopt_cli.interpret.lower.lower_model import formula_operators

    return formula_operators(model)


def _importing_default(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with an import of the default domain.

    ONNX requires imports of the used domains only, but several runtimes reject a model that does
    not import the default domain. The added version is that of the model's functions, otherwise
    the first opset of the model's IR version: a runtime that reads that IR version supports it.
    """
    default = {"", "ai.onnx"}
    imported = {opset.domain for opset in model.opset_import}
    if model.ir_version < _FIRST_IR_WITH_IMPORTS or default & imported:
        return model
    if any(node.domain in default for node in nodes_within(model.graph.node)):
        # Do not repair an invalid model that uses a domain without an import.
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
        # A node that breaks its signature was rejected by lowering, not by the backend. If
        # lowering fails for another reason, such as an opset that is too old, the backend's error
        # is reported.
        if breaks_signature(model, inputs):
            raise NotApplicable(REFUSED_BY_LOWERING) from error
        raise _Unlowerable(_joined(reason, f"it cannot be lowered: {error.message}")) from error


def breaks_signature(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> bool:
    """Return whether a model is one node that breaks its operator's signature."""
    try:
        sole_call(model, inputs)
    except NodeError:
        return True
    return False


class _Unlowerable(Unsupported):
    """The model cannot be lowered, so the backend did not run it."""


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
