"""A model on a backend, opened once and run many times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from digits.network import Array
from onnxopt_cli.backends.protocol import Backend, normalise_outputs
from onnxopt_cli.errors import Unsupported
from onnxopt_cli.readings.lower.model import lower

Tensors = Mapping[str, Array]


class PreparedModel:
    """A model on a backend, lowered if the backend lacks an operator.

    Raises:
        Unsupported: if lowering does not help.
    """

    def __init__(self, backend: Backend, model: onnx.ModelProto) -> None:
        self._outputs = model.graph.output
        self._inputs = [value.name for value in model.graph.input]
        try:
            self._prepared = backend.prepare(model)
        except Unsupported:
            self._prepared = backend.prepare(lower(model).model)

    def run(self, values: Tensors) -> dict[str, Array]:
        """Return the outputs by name; values that are no inputs are left alone."""
        returned = self._prepared.run({name: values[name] for name in self._inputs})
        arrays = normalise_outputs(returned, self._outputs)
        return {value.name: np.asarray(it) for value, it in zip(self._outputs, arrays, strict=True)}
