"""Our own reference: operators with a formula in NumPy, all others in onnx's evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx

from onnxopt_cli.backends.formula_evaluator import formula_evaluator
from onnxopt_cli.backends.protocol import Prepared
from onnxopt_cli.backends.reference_backend import ReferenceModel, reporting_unsupported
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.formula.function_defaults import spell_out_defaults
from onnxopt_cli.readings.evaluate import evaluate
from onnxopt_cli.readings.single_node import sole_call, sole_operator

if TYPE_CHECKING:
    from onnxopt_cli.formula.call import Call


class NumpyBackend:
    """The backend ``numpy``."""

    name = "numpy"

    @property
    def version(self) -> str:
        """The version of NumPy."""
        return f"numpy {np.__version__}"

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model.

        Raises:
            Unsupported: if onnx's evaluator has nothing for an operator.
        """
        if sole_operator(model) is not None:
            return _Formula(model)
        with reporting_unsupported():
            return ReferenceModel(formula_evaluator(spell_out_defaults(model)))


class _Formula:
    """A model that is one node with a formula."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def run(self, inputs: Mapping[str, Value]) -> list[Array]:
        # Not None: only models that are one node of ours come here.
        call = cast("Call[Array]", sole_call(self._model, inputs))
        outputs = zip(self._model.graph.node[0].output, evaluate(call), strict=True)
        return [value for name, value in outputs if name]
