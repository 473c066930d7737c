"""A growing list of ONNX nodes in which nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import Array


class Recorder:
    """Records the nodes that replace one node.

    Args:
        fresh: returns a name that is free in the model, and readable from the op_type it is given.
    """

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self._fresh = fresh
        self._nodes: list[onnx.NodeProto] = []
        self._known: dict[object, str] = {}

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Return the name of what an operator yields, recorded where it is not yet."""
        key = (op_type, inputs, tuple(sorted(attributes.items())))
        return self._once(key, op_type, inputs, attributes)

    def constant(self, value: Array) -> str:
        """Return the name of a constant, recorded where it is not yet."""
        # Bits, not values: NaN is one constant, and 0.0 and -0.0 are two.
        key = (value.dtype, value.shape, value.tobytes())
        return self._once(key, "Constant", (), {"value": numpy_helper.from_array(value)})

    def finish(self, outputs: Mapping[str, str]) -> list[onnx.NodeProto]:
        """Return the nodes that the outputs need.

        Args:
            outputs: for each name that the graph knows, the recorded name of what it shall hold.
        """
        mine = {node.output[0] for node in self._nodes}
        renamed: dict[str, str] = {}
        copies = []
        for name, recorded in outputs.items():
            if recorded in mine and recorded not in renamed:
                renamed[recorded] = name
            else:
                # An input handed through, or one value under two names.
                copies.append((recorded, name))
        nodes = self._needed(set(outputs.values()))
        for node in nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        return nodes + [
            helper.make_node(
                "Identity", [renamed.get(source, source)], [name], name=self._fresh("Identity")
            )
            for source, name in copies
        ]

    def _once(
        self, key: object, op_type: str, inputs: tuple[str, ...], attributes: Mapping[str, Any]
    ) -> str:
        if key not in self._known:
            name = self._fresh(op_type)
            node = helper.make_node(op_type, inputs, [name], name=name, **attributes)
            # Of its two outputs, values and indices, the first is the one that is used.
            node.output.extend([self._fresh(f"{op_type}_indices")] if op_type == "TopK" else [])
            self._nodes.append(node)
            self._known[key] = name
        return self._known[key]

    def _needed(self, wanted: set[str]) -> list[onnx.NodeProto]:
        kept = []
        for node in reversed(self._nodes):
            if node.output[0] in wanted:
                wanted.update(node.input)
                kept.append(node)
        return kept[::-1]
