"""The backends ``numpy`` and ``onnx-reference``, which run in this Python interpreter.

``numpy`` computes an operator with a formula by this formula. All other operators are computed by
onnx's reference evaluator with the corrections of the oracle. ``onnx-reference`` is onnx's
evaluator without changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.backends.protocol import (
    Backend,
    Prepared,
    reporting,
)
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import NodeError, Unsupported
from onnxopt_cli.interpret.evaluate import evaluate
from onnxopt_cli.interpret.gradient.reverse_mode import expand_gradients, has_gradient
from onnxopt_cli.operators.call import bind, node_attributes, sole_call, sole_operator
from onnxopt_cli.operators.nodes import (
    spell_out_defaults,
    with_dense_tensors,
)
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.oracle.patching import corrected, unimplemented_operator

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    from onnxopt_cli.operators.call import Call


class NumpyBackend(Backend):
    """The backend ``numpy``."""

    name = "numpy"
    version = f"numpy {np.__version__}"

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model.

        A model with Gradient nodes is differentiated when it runs, because the shapes of its inputs
        are known only then.

        Raises:
            Unsupported: if onnx's evaluator does not implement an operator.
        """
        if sole_operator(model) is not None:
            return Prepared(partial(_compute_node, model))
        if has_gradient(model):
            return Prepared(partial(_run_differentiated, model))
        with reporting(_unsupported):
            return Prepared(reporting(_unsupported)(partial(_corrected, _numpy_evaluator(model))))


def _run_differentiated(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[object]:
    """Run a model with Gradient nodes, whose derivatives are computed in reverse mode."""
    try:
        expanded = expand_gradients(model, inputs, _evaluated)
    except NodeError as error:
        raise Unsupported(error.message, operator="ai.onnx.preview.training:Gradient") from error
    return _evaluated(expanded, inputs)


def _evaluated(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[object]:
    with reporting(_unsupported):
        return _corrected(_numpy_evaluator(model), inputs)


def _numpy_evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    return _evaluator_class()(with_dense_tensors(spell_out_defaults(model)))


def _corrected(evaluator: ReferenceEvaluator, inputs: Mapping[str, Value]) -> list[object]:
    """Run an evaluator with the corrections of onnx's reference."""
    with corrected():
        return _returned(evaluator, inputs)


def _compute_node(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    # At this point, sole_call does not return None, because `prepare` passes only models that are
    # one node of an operator with a formula.
    return compute_node(model, cast("Call[Array]", sole_call(model, inputs)))


def compute_node(model: onnx.ModelProto, call: Call[Array]) -> list[Value]:
    """Return the outputs of a single-node model, in the graph's order, given the node's call."""
    outputs = dict(zip(model.graph.node[0].output, evaluate(call), strict=True))
    return [outputs[output.name] for output in model.graph.output]


# Matches the list of the evaluator's implementations at the end of some messages.
_LISTING = re.compile(r"( Available implementations:| in)\n.*", re.DOTALL)


class ReferenceBackend(Backend):
    """The backend ``onnx-reference``.

    If the implementation of an operator raises NotImplementedError for a mode or an attribute, the
    node is unsupported. Any other exception of an implementation counts as a failure.
    """

    name = "onnx-reference"
    version = f"onnx {onnx.__version__}"

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Load the implementation of every node.

        Raises:
            Unsupported: if a node has no implementation.
        """
        from onnx.reference import ReferenceEvaluator

        with reporting(_unsupported):
            evaluator = ReferenceEvaluator(model)
        return Prepared(reporting(_unsupported)(partial(_returned, evaluator)))


def _returned(evaluator: ReferenceEvaluator, inputs: Mapping[str, Value]) -> list[object]:
    """Return the outputs of an evaluator, without NumPy's warnings."""
    with np.errstate(all="ignore"):
        returned = evaluator.run(None, dict(inputs))
    types = evaluator.output_types
    return [_unwrapped(value, of_type) for value, of_type in zip(returned, types, strict=True)]


def _unwrapped(value: object, declared: onnx.TypeProto) -> object:
    """Return an output; unwrap the element of an optional that the evaluator wraps in a list."""
    if not declared.HasField("optional_type") or not isinstance(value, list) or len(value) != 1:
        return value
    holds_sequence = declared.optional_type.elem_type.HasField("sequence_type")
    is_wrapped = not holds_sequence or value[0] is None or isinstance(value[0], list)
    return value[0] if is_wrapped else value


def _unsupported(error: BaseException) -> Unsupported | None:
    if not isinstance(error, NotImplementedError | RuntimeError):
        return None
    message = str(error)
    operator = unimplemented_operator(error)
    if not operator and not isinstance(error, NotImplementedError):
        return None
    return Unsupported(printable(_LISTING.sub("", message), lines=True), operator=operator)


@cache
def _evaluator_class() -> type[ReferenceEvaluator]:
    from onnx.reference import ReferenceEvaluator

    # The import is late because runs of the NumPy reference on formulas do not need the module.
    from onnxopt_cli.oracle.corrections.corrected_reference import operators

    nodes = [*map(_node_class, registry().operators), *operators()]

    class FormulaEvaluator(ReferenceEvaluator):
        """An evaluator with corrected operators and the nodes of all operators with a formula.

        The base class evaluates subgraphs and functions with new evaluators of the same class. The
        base class passes ``new_ops`` to evaluators of subgraphs but not of functions, so every
        evaluator sets ``new_ops`` itself.
        """

        def __init__(self, proto: Any, **settings: Any) -> None:
            super().__init__(proto, **{**settings, "new_ops": nodes})

    return FormulaEvaluator


def _node_class(operator: Operator) -> type[OpRun]:
    from onnx.reference.op_run import OpRun

    class FormulaNode(OpRun):
        """A node of an operator with a formula."""

        op_domain = operator.domain
        #: Defaults and checks of attributes come from the signature in onnxopt, not from onnx's
        #: schema.
        op_schema = None

        def __init__(self, onnx_node: onnx.NodeProto, run_params: dict[str, Any]) -> None:
            super().__init__(onnx_node, run_params)
            version = run_params["opsets"].get(operator.domain)
            if version != operator.version:
                raise NotImplementedError(
                    f"No registered implementation for operator {operator.name!r} "
                    f"and domain {operator.domain!r}, version {version!r}"
                )

        def run(self, *operands: Any, linked_attributes: Any = None, **_: Any) -> tuple[Any, ...]:
            node = _resolved(self.onnx_node, linked_attributes or {})
            call = bind(operator, operands, node_attributes(operator, node), len(node.output))
            values = zip(node.output, evaluate(call), strict=True)
            # A value under the empty name would be passed to every absent optional input.
            return tuple(value if name else None for name, value in values)

        def _run(self, *_operands: Any, **_attributes: Any) -> None:
            """Do nothing.

            The method is never called, but the base class requires it.
            """

    # The evaluator looks up an operator by the name of its class.
    FormulaNode.__name__ = operator.name
    return FormulaNode


def _resolved(node: onnx.NodeProto, linked: Mapping[str, Any]) -> onnx.NodeProto:
    """Return a node of a function with the references to the function's attributes resolved."""
    resolved = deepcopy(node)
    for attribute in resolved.attribute:
        if attribute.ref_attr_name:
            value = linked[attribute.ref_attr_name]
            attribute.CopyFrom(helper.make_attribute(attribute.name, value))
    return resolved
