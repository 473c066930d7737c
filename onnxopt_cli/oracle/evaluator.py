"""onnx's reference evaluator, with a visitor at every node that it runs."""

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
from onnxopt_cli.oracle.rounding.patched_functions import replaced
from onnxopt_cli.oracle.widen import (
    in_double,
    widened,
    widened_value,
)

_ADDED = (np.float32, np.float64)
_MATRIX = 2
# How the default domain may be written.
_DEFAULT = ("", "ai.onnx")
# More are not added up one by one: that takes seconds.
_MOST_PRODUCTS = 1 << 26
#: Computes the outputs of a node from its inputs.
Compute = Callable[..., tuple[Any, ...]]


#: Called for each node that runs, returns its outputs. It is given the node, as far as it is looked
#: at, what computes it, its inputs, and how many nodes were visited before.
Visitor = Callable[[SimpleNamespace, Compute, Sequence[Any], int], Sequence[Any]]


class Evaluated:
    """A model that is ready to be run by onnx's reference, visited at every node.

    Nodes with subgraphs or function bodies are not visited themselves: what they consist of is.

    Args:
        model: the model.
        looked_into: operators whose function bodies are run in their place.
        instead: functions that are run in place of operators.
        wide: whether to compute in double, and not in the model's own types.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        looked_into: Sequence[str] = (),
        instead: Mapping[str, onnx.FunctionProto] | None = None,
        *,
        wide: bool = False,
    ) -> None:
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import OpFunction, OpRunExpand

        prepare = partial(self._prepare, OpFunction)
        better = [*(type(it, (OpRunExpand,), {}) for it in looked_into), *operators()]

        class Visited(ReferenceEvaluator):
            """Subgraphs and functions are run by evaluators of the same class."""

            def __init__(self, proto: Any, **settings: Any) -> None:
                if isinstance(proto, onnx.FunctionProto):
                    proto = widened(proto) if wide else copy(proto)
                    # Or onnx's reference would not choose bodies by the types that it finds.
                    proto.value_info.add()
                super().__init__(proto, **settings | {"new_ops": better})

            def _load_impl(self, node: Any, input_types: Any = None) -> Any:
                function = (instead or {}).get(node.op_type)
                if function is None or node.domain not in _DEFAULT:
                    return super()._load_impl(node, input_types)
                return partial(OpFunction, impl=Visited(function))

            def _init(self) -> None:
                super()._init()
                self.rt_nodes_ = [*map(prepare, self.rt_nodes_)]

        self._wide = wide
        self._visitor: Visitor = _pass
        self._at = 0
        complete = with_bound_functions(model)
        self._evaluator = Visited(widened(complete) if wide else complete)

    def _prepare(self, function: type, node: Any) -> SimpleNamespace:
        """Return what the evaluator looks at; to look into the node's message takes long."""
        # A number of NumPy makes what is computed with Python's float32.
        for name, value in list(vars(node).items()) if self._wide else ():
            if isinstance(value, np.floating):
                setattr(node, name, float(value))
            elif name == "stash_type" and not isinstance(node, function):
                # Of what has no body here the reference knows no other, and computes in double.
                setattr(node, name, onnx.TensorProto.FLOAT)
        # It would ask three others whether to say anything.
        node._log = lambda *_: None  # noqa: SLF001
        copied = {"input": [*node.input], "output": [*node.output]}
        for name in ("onnx_node", "op_type", "has_linked_attribute", "need_context", "run"):
            copied[name] = getattr(node, name)
        opsets = node.run_params.get("opsets", {})
        copied["opset"] = opsets.get(node.onnx_node.domain, 0)
        step = SimpleNamespace(**copied)
        if not node.has_subgraph and not isinstance(node, function):
            step.run = partial(self._visited, step, node.run)
        return step

    def _visited(
        self, node: SimpleNamespace, run: Compute, *inputs: Any, **context: Any
    ) -> tuple[Any, ...]:
        def compute(*given: Any) -> tuple[Any, ...]:
            outputs = map(_array, run(*given, **context))
            # Some yield float32 whatever they are given, others scalars that are no arrays.
            return tuple(map(widened_value, outputs) if self._wide else outputs)

        self._at += 1
        return tuple(self._visitor(node, compute, inputs, self._at - 1))

    def run(self, inputs: Mapping[str, Value], visitor: Visitor | None = None) -> list[Any]:
        """Return the outputs of the graph.

        Raises:
            Exception: whatever the reference raises.
        """
        self._visitor, self._at = visitor or _pass, 0
        fed = {name: widened_value(it) if self._wide else it for name, it in inputs.items()}
        with replaced(*(in_double() if self._wide else ())):
            return list(self._evaluator.run(None, fed))


def sums_in_order(*, scaled: bool = False) -> AbstractContextManager[None]:
    """Let NumPy add up float32 and float64 one term after the other meanwhile.

    It adds by pairs, which is far more accurate than what most runtimes do. The evaluator has to be
    made within.

    Args:
        scaled: whether each term of a mean is multiplied by the reciprocal of their number before,
            and not the sum divided by the number.
    """

    def added(slow: Any, in_order: Any, array: Any, axis: Any = None, **rest: Any) -> Any:
        given = np.asarray(array)
        if rest.keys() - {"keepdims", "dtype"} or given.dtype not in _ADDED or not given.size:
            return slow(array, axis, **rest)
        places = range(given.ndim) if axis is None else np.atleast_1d(axis).tolist()
        summed = sorted(int(it) % given.ndim for it in places)
        terms = np.moveaxis(given, summed, range(-len(summed), 0))
        terms = terms.reshape(*terms.shape[: given.ndim - len(summed)], -1)
        count = given.dtype.type(terms.shape[-1])
        if slow in means and scaled:
            terms = terms * (1 / count)
        found = in_order(terms, axis=-1)[..., -1]
        found = found / count if slow in means and not scaled else found
        return np.expand_dims(found, summed) if rest.get("keepdims") else found

    def multiplied(slow: Any, a: Any, b: Any) -> Any:
        # Of more axes NumPy's dot is another product.
        matrices = a.ndim == b.ndim == _MATRIX or (slow is matmul and min(a.ndim, b.ndim) > 1)
        if not matrices or a.dtype not in _ADDED or not 0 < a.size * b.shape[-1] < _MOST_PRODUCTS:
            return slow(a, b)
        terms = (a[..., at, None] * b[..., at, None, :] for at in range(a.shape[-1]))
        return reduce(operator.add, terms)

    means, matmul = {np.mean, np.average}, np.matmul
    return replaced(
        (np, "sum", partial(added, np.sum, np.cumsum)),
        (np, "mean", partial(added, np.mean, np.cumsum)),
        (np, "average", partial(added, np.average, np.cumsum)),
        (np, "prod", partial(added, np.prod, np.cumprod)),
        (np, "dot", partial(multiplied, np.dot)),
        (np, "matmul", partial(multiplied, matmul)),
    )


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _pass(_node: Any, compute: Compute, inputs: Sequence[Any], _at: int) -> Sequence[Any]:
    return compute(*inputs)
