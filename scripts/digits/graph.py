"""Building an ONNX graph node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: A dimension is a number, or a name where it is free.
Shape = Sequence[int | str]

_OPSETS = {"": 17, "ai.onnx.preview.training": 1, "onnxopt.pruning": 1}
_IR_VERSION = 8


class GraphBuilder:
    """Collects the nodes of a graph, naming each value after what it is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Shape, dtype: type[np.generic] = np.float32) -> str:
        """Declare an input of the graph and return its name."""
        self._inputs.append(_value_info(name, shape, dtype))
        return name

    def constant(self, name: str, value: np.ndarray[Any, Any]) -> str:
        """Add an initializer and return its name."""
        self._constants.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op_type: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Add a node of ONNX's own domain with one output and return that output's name."""
        return self.nodes(op_type, inputs, [name], attributes)[0]

    def nodes(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
        domain: str = "",
    ) -> list[str]:
        """Add a node with any number of outputs and return their names."""
        self._nodes.append(
            helper.make_node(op_type, list(inputs), list(outputs), domain=domain, **attributes)
        )
        return list(outputs)

    def output(self, name: str, shape: Shape) -> None:
        """Declare a float output of the graph."""
        self._outputs.append(_value_info(name, shape, np.float32))

    def model(self) -> onnx.ModelProto:
        """Return the model, importing the domains that occur.

        Raises:
            onnx.checker.ValidationError: if the graph is no valid one.
        """
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._constants
        )
        domains = sorted({node.domain for node in self._nodes} | {""})
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, _OPSETS[domain]) for domain in domains],
            ir_version=_IR_VERSION,
            producer_name="onnxopt",
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def _value_info(name: str, shape: Shape, dtype: type[np.generic]) -> onnx.ValueInfoProto:
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, element_type, list(shape))
