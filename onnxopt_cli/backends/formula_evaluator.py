"""onnx's reference evaluator, taught the operators with a formula.

Import it when a model needs it: onnx.reference takes longer to load than most cases to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxopt_cli.core.values import Array
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.operators.call import bind, node_attributes
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.readings.evaluate import evaluate


class FormulaEvaluator(ReferenceEvaluator):
    """Evaluates a model, with our operators wherever they stand.

    The base class makes the evaluators of subgraphs and functions from its own class, but hands new
    operators on to subgraphs alone; so the class knows them, not the instance.
    """

    def __init__(self, proto: Any, **settings: Any) -> None:
        super().__init__(proto, **{**settings, "new_ops": _FORMULA_NODES})


class _FormulaNode(OpRun):
    """A node of an operator with a formula."""

    #: Attributes are completed and checked by our signature, not by what onnx knows of the name.
    op_schema = None
    operator: ClassVar[Operator]

    def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
        super().__init__(onnx_node, run_params)
        version = run_params["opsets"].get(onnx_node.domain)
        if version != self.operator.version:
            raise NotImplementedError(
                f"No registered implementation for operator {onnx_node.op_type!r} "
                f"and domain {onnx_node.domain!r}, version {version!r}"
            )

    def run(
        self,
        *operands: Array | None,
        linked_attributes: Mapping[str, Any] | None = None,
        **_context: Any,
    ) -> tuple[Array | None, ...]:
        """Compute the node's outputs; None for those that it leaves out.

        Raises:
            NodeError: if attributes or operands break the operator's signature.
        """
        attributes = node_attributes(self.operator, self._resolved(linked_attributes or {}))
        outputs = evaluate(bind(self.operator, operands, attributes, len(self.output)))
        # A value under the empty name would be taken for every optional input that is left out.
        return tuple(
            value if name else None for name, value in zip(self.output, outputs, strict=True)
        )

    def _run(self, *operands: Array | None, **_attributes: Any) -> tuple[Array | None, ...]:
        return self.run(*operands)

    def _resolved(self, linked: Mapping[str, Any]) -> onnx.NodeProto:
        """Return the node with the values of the function's attributes that it refers to."""
        if not any(attribute.ref_attr_name for attribute in self.onnx_node.attribute):
            return self.onnx_node
        node = onnx.NodeProto()
        node.CopyFrom(self.onnx_node)
        del node.attribute[:]
        node.attribute.extend(
            helper.make_attribute(attribute.name, linked[attribute.ref_attr_name])
            if attribute.ref_attr_name
            else attribute
            for attribute in self.onnx_node.attribute
        )
        return node


#: The base class finds an operator by its class's name.
_FORMULA_NODES = [
    type(operator.name, (_FormulaNode,), {"op_domain": operator.domain, "operator": operator})
    for operator in OPERATORS
]
