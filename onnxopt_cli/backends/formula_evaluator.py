"""onnx's reference evaluator, taught the operators with a formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.attributes import node_attributes
from onnxopt_cli.formula.call import bind
from onnxopt_cli.formula.nodes import all_nodes, subgraphs
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.operators import OPERATORS
from onnxopt_cli.readings.evaluate import evaluate

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun


def formula_evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return an evaluator of a model, with our operators wherever they stand.

    Raises:
        NotImplementedError: if there is nothing for an operator, or for its version.
    """
    return _evaluator_class()(_with_dense_initializers(model))


def _with_dense_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model as it is, or a copy without sparse initializers, at which onnx's fails."""

    def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
        yield model.graph
        for node in all_nodes(model):
            yield from subgraphs(node)

    if not any(graph.sparse_initializer for graph in graphs(model)):
        return model
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    for graph in graphs(dense):
        graph.initializer.extend(map(_dense, graph.sparse_initializer))
        del graph.sparse_initializer[:]
    return dense


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        array.reshape(-1)[indices] = values
    else:
        array[tuple(indices.T)] = values
    return numpy_helper.from_array(array, sparse.values.name)


@cache
def _evaluator_class() -> type[ReferenceEvaluator]:
    from onnx.reference import ReferenceEvaluator

    nodes = [_node_class(operator) for operator in OPERATORS]

    class FormulaEvaluator(ReferenceEvaluator):
        """The base class makes evaluators of subgraphs and functions from its own class.

        It hands new operators on to those of subgraphs alone, so the class has to know them.
        """

        def __init__(self, proto: Any, **settings: Any) -> None:
            super().__init__(proto, **{**settings, "new_ops": nodes})

    return FormulaEvaluator


def _node_class(operator: Operator) -> type[OpRun]:
    from onnx.reference.op_run import OpRun

    class FormulaNode(OpRun):
        """A node of an operator with a formula."""

        op_domain = operator.domain
        #: Attributes are completed and checked by our signature, not by what onnx knows.
        op_schema = None

        def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
            super().__init__(onnx_node, run_params)
            version = run_params["opsets"].get(operator.domain)
            if version != operator.version:
                raise NotImplementedError(
                    f"No registered implementation for operator {operator.name!r} "
                    f"and domain {operator.domain!r}, version {version!r}"
                )

        def run(
            self,
            *operands: Array | None,
            linked_attributes: Mapping[str, Any] | None = None,
            **_context: Any,
        ) -> tuple[Array | None, ...]:
            node = _resolved(self.onnx_node, linked_attributes or {})
            return _compute(operator, node, operands)

        def _run(self, *_operands: Any, **_attributes: Any) -> None:
            """Nothing calls it; the base class asks for it."""

    # The evaluator finds an operator by its class's name.
    FormulaNode.__name__ = operator.name
    return FormulaNode


def _resolved(node: onnx.NodeProto, linked: Mapping[str, Any]) -> onnx.NodeProto:
    """Return a node of a function with the values of the function's attributes it refers to."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    resolved = onnx.NodeProto()
    resolved.CopyFrom(node)
    del resolved.attribute[:]
    resolved.attribute.extend(
        helper.make_attribute(attribute.name, linked[attribute.ref_attr_name])
        if attribute.ref_attr_name
        else attribute
        for attribute in node.attribute
    )
    return resolved


def _compute(
    operator: Operator, node: onnx.NodeProto, operands: Sequence[Array | None]
) -> tuple[Array | None, ...]:
    call = bind(operator, operands, node_attributes(operator, node), len(node.output))
    # A value under the empty name would be taken for every optional input that is left out.
    return tuple(
        value if name else None for name, value in zip(node.output, evaluate(call), strict=True)
    )
