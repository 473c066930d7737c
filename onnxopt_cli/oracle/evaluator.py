"""Models that run on onnx's reference, with a visitor at each node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Value
from onnxopt_cli.operators.functions import with_bound_functions
from onnxopt_cli.oracle.corrections.corrected_reference import operators
from onnxopt_cli.oracle.corrections.wide_norms import scaled
from onnxopt_cli.oracle.patching import corrected, replaced
from onnxopt_cli.oracle.widen import (
    in_double,
    widened,
    widened_value,
)

_SEQUENTIAL_TYPES = (np.float32, np.float64)
_MATRIX_RANK = 2
# Names of the default domain.
_DEFAULT_DOMAIN = ("", "ai.onnx")
# Larger matrix products are not summed sequentially, which would take seconds.
_MAX_SEQUENTIAL_PRODUCTS = 1 << 26
#: Computes the outputs of a node from its inputs.
Compute = Callable[..., tuple[Any, ...]]


#: Called for each node; returns its outputs. The arguments are the node with the attributes that
#: the evaluator reads, the function that computes it, its inputs, and the number of nodes visited
#: before.
Visitor = Callable[[SimpleNamespace, Compute, Sequence[Any], int], Sequence[Any]]


def compute_only(_node: Any, compute: Compute, inputs: Sequence[Any], _index: int) -> Sequence[Any]:
    """Compute a node: the visitor without an effect of its own."""
    return compute(*inputs)


class ReferenceModel:
    """A model that runs on onnx's reference, with a visitor at each node.

    For a node with subgraphs or a function body, the nodes within are visited in its place.

    Args:
        model: the model.
        expanded: operators that are replaced by their published function bodies.
        functions: functions that replace operators.
        wide: whether to compute in double instead of the model's own types.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        expanded: Sequence[str] = (),
        functions: Mapping[str, onnx.FunctionProto] | None = None,
        *,
        wide: bool = False,
    ) -> None:
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import OpFunction, OpRunExpand

        prepare = partial(self._prepare, OpFunction)
        expansions = [type(name, (OpRunExpand,), {}) for name in expanded]
        new_operators = [*expansions, *operators()]

        class VisitedEvaluator(ReferenceEvaluator):
            """An evaluator that runs subgraphs and functions by evaluators of the same class."""

            def __init__(self, proto: Any, **settings: Any) -> None:
                if isinstance(proto, onnx.FunctionProto):
                    proto = widened(proto) if wide else copy(proto)
                    # onnx's reference chooses bodies by the actual types only if there is a type.
                    proto.value_info.add()
                super().__init__(proto, **settings | {"new_ops": new_operators})

            def _load_impl(self, node: Any, input_types: Any = None) -> Any:
                function = (functions or {}).get(node.op_type)
                if function is None or node.domain not in _DEFAULT_DOMAIN:
                    return super()._load_impl(node, input_types)
                return partial(OpFunction, impl=VisitedEvaluator(function))

            def _init(self) -> None:
                super()._init()
                self.rt_nodes_ = [*map(prepare, self.rt_nodes_)]

        self._wide = wide
        self._visitor: Visitor = compute_only
        self._visit_count = 0
        complete = with_bound_functions(model)
        self._evaluator = VisitedEvaluator(widened(complete) if wide else complete)

    def _prepare(self, function: type, node: Any) -> SimpleNamespace:
        """Return the attributes of a node that the evaluator reads.

        Reading them from the node's message each time would be slow.
        """
        for name, value in list(vars(node).items()) if self._wide else ():
            if isinstance(value, np.floating):
                # A float32 scalar of NumPy would turn results with Python floats into float32.
                setattr(node, name, float(value))
            elif name == "stash_type" and not isinstance(node, function):
                # The reference's own operators accept only this value. In a wide model they compute
                # in double nevertheless.
                setattr(node, name, onnx.TensorProto.FLOAT)
        # The reference's own method is slow even if it logs nothing.
        node._log = lambda *_: None  # noqa: SLF001
        copied = {"input": [*node.input], "output": [*node.output]}
        for name in ("onnx_node", "op_type", "has_linked_attribute", "need_context", "run"):
            copied[name] = getattr(node, name)
        opsets = node.run_params.get("opsets", {})
        copied["opset"] = opsets.get(node.onnx_node.domain, 0)
        prepared = SimpleNamespace(**copied)
        if not node.has_subgraph and not isinstance(node, function):
            prepared.run = partial(self._visit, prepared, node.run)
        return prepared

    def _visit(
        self, node: SimpleNamespace, run: Compute, *inputs: Any, **context: Any
    ) -> tuple[Any, ...]:
        if self._wide:
            run = scaled(node.onnx_node, run)

        def compute(*operands: Any) -> tuple[Any, ...]:
            outputs = map(_array, run(*operands, **context))
            # Some operators return float32 for operands of any type, others scalars.
            return tuple(map(widened_value, outputs) if self._wide else outputs)

        self._visit_count += 1
        return tuple(self._visitor(node, compute, inputs, self._visit_count - 1))

    def run(self, inputs: Mapping[str, Value], visitor: Visitor = compute_only) -> list[Any]:
        """Return the outputs of the graph.

        Raises:
            Exception: any exception that the reference raises.
        """
        self._visitor, self._visit_count = visitor, 0
        fed = {name: widened_value(v) if self._wide else v for name, v in inputs.items()}
        with replaced(*(in_double() if self._wide else ())):
            return list(self._evaluator.run(None, fed))


def native_outputs(model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Value]:
    """Return the outputs of a model as onnx's corrected reference computes them in its own types.

    Raises:
        Exception: any exception that the reference raises.
    """
    with corrected():
        return ReferenceModel(model).run(inputs)


def sequential_sums(
    *, scaled: bool = False, from_last: bool = False
) -> AbstractContextManager[None]:
    """Let NumPy's sums and products of float32 and float64 be sequential in a block.

    NumPy sums pairwise, which is far more accurate than the sums of most runtimes. A
    :class:`ReferenceModel` must be created within the block.

    Args:
        scaled: whether each term of a mean is multiplied by the reciprocal of their number, instead
            of dividing the sum.
        from_last: whether sums begin with the last term.
    """
    step = -1 if from_last else 1

    def reduced(pairwise: Any, cumulate: Any, array: Any, axis: Any = None, **kwargs: Any) -> Any:
        numbers = np.asarray(array)
        supported = numbers.dtype in _SEQUENTIAL_TYPES and numbers.size
        if kwargs.keys() - {"keepdims", "dtype"} or not supported:
            return pairwise(array, axis, **kwargs)
        places = range(numbers.ndim) if axis is None else np.atleast_1d(axis).tolist()
        axes = sorted(int(place) % numbers.ndim for place in places)
        terms = np.moveaxis(numbers, axes, range(-len(axes), 0))
        terms = terms.reshape(*terms.shape[: numbers.ndim - len(axes)], -1)
        count = numbers.dtype.type(terms.shape[-1])
        if pairwise in means and scaled:
            terms = terms * (1 / count)
        result = cumulate(terms[..., ::step], axis=-1)[..., -1]
        result = result / count if pairwise in means and not scaled else result
        return np.expand_dims(result, axes) if kwargs.get("keepdims") else result

    def multiplied(blocked: Any, a: Any, b: Any) -> Any:
        # numpy.dot of more than two axes does not multiply matrices of a batch.
        batched = blocked is matmul and min(a.ndim, b.ndim) > 1
        matrices = a.ndim == b.ndim == _MATRIX_RANK or batched
        if not matrices or a.dtype not in _SEQUENTIAL_TYPES:
            return blocked(a, b)
        if not 0 < a.size * b.shape[-1] < _MAX_SEQUENTIAL_PRODUCTS:
            return blocked(a, b)
        terms = (a[..., k, None] * b[..., k, None, :] for k in range(a.shape[-1])[::step])
        return reduce(operator.add, terms)

    means, matmul = {np.mean, np.average}, np.matmul
    return replaced(
        (np, "sum", partial(reduced, np.sum, np.cumsum)),
        (np, "mean", partial(reduced, np.mean, np.cumsum)),
        (np, "average", partial(reduced, np.average, np.cumsum)),
        (np, "prod", partial(reduced, np.prod, np.cumprod)),
        (np, "dot", partial(multiplied, np.dot)),
        (np, "matmul", partial(multiplied, matmul)),
    )


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value
