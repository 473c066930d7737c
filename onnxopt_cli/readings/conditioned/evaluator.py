"""onnx's reference evaluator, with a visitor at every node that it runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from onnxopt_cli.core.values import Value
from onnxopt_cli.formula.nodes import spell_out_defaults
from onnxopt_cli.readings.conditioned.coordinates import moved_coordinates, operators
from onnxopt_cli.readings.conditioned.pooling import fast_pooling
from onnxopt_cli.readings.conditioned.widen import (
    widened_function,
    widened_model,
    widened_value,
)

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun

_ADDED = (np.float32, np.float64)
_MATRIX = 2
# More are not added up one by one: that takes seconds.
_MOST_PRODUCTS = 1 << 26
#: Computes the outputs of a node from its inputs.
Compute = Callable[..., tuple[Any, ...]]
#: Called for each node that runs, with the node and what computes it, then with its inputs.
Visitor = Callable[["OpRun", Compute, Sequence[Any]], tuple[Any, ...]]


class Evaluated:
    """A model that is ready to be run by onnx's reference, visited at every node.

    Nodes with subgraphs or function bodies are not visited themselves: what they consist of is.

    Args:
        model: the model.
        wide: whether to compute in double whatever its types are.
    """

    def __init__(self, model: onnx.ModelProto, *, wide: bool = False) -> None:
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import OpFunction, OpFunctionContextDependant

        def visited(node: OpRun, run: Compute, *inputs: Any, **context: Any) -> tuple[Any, ...]:
            def compute(*given: Any) -> tuple[Any, ...]:
                outputs = run(*given, **context)
                # Some yield float32 whatever they are given, others scalars that are no arrays.
                return tuple(map(widened_value if wide else _array, map(_array, outputs)))

            return self._visitor(node, compute, inputs)

        class Visited(ReferenceEvaluator):
            """Subgraphs and functions are run by evaluators of the same class."""

            def __init__(self, proto: Any, **settings: Any) -> None:
                if wide and isinstance(proto, onnx.FunctionProto):
                    proto = widened_function(proto)
                super().__init__(proto, **settings | {"new_ops": operators()})

            def _init(self) -> None:
                super()._init()
                for node in self.rt_nodes_:
                    # A number of NumPy makes what is computed with Python's float32.
                    for name, value in list(vars(node).items()) if wide else ():
                        if isinstance(value, np.floating):
                            setattr(node, name, float(value))
                    inner = isinstance(node, (OpFunction, OpFunctionContextDependant))
                    if not inner and not node.has_subgraph:
                        node.run = partial(visited, node, node.run)

        complete = spell_out_defaults(model)
        self._evaluator = Visited(widened_model(complete) if wide else complete)
        self._wide = wide
        self._visitor: Visitor = _pass

    def run(self, inputs: Mapping[str, Value], visitor: Visitor | None = None) -> list[Any]:
        """Return the outputs of the graph.

        Raises:
            Exception: whatever the reference raises.
        """
        self._visitor = visitor or _pass
        fed = {name: widened_value(it) if self._wide else it for name, it in inputs.items()}
        with np.errstate(all="ignore"), fast_pooling(), moved_coordinates(np.zeros_like):
            return list(self._evaluator.run(None, fed))


@contextmanager
def sums_in_order() -> Iterator[None]:
    """Let NumPy add up float32 and float64 one term after the other meanwhile.

    It adds by pairs, which is far more accurate than what most runtimes do. The evaluator has to be
    made within.
    """
    numpy: Any = np
    kept = {name: getattr(np, name) for name in ("sum", "mean", "prod", "dot", "matmul")}

    def added(name: str, array: Any, axis: Any = None, *more: Any, **rest: Any) -> Any:
        given = np.asarray(array)
        unlike = more or rest.keys() - {"keepdims", "dtype"}
        if unlike or given.dtype not in _ADDED or not given.size:
            return kept[name](array, axis, *more, **rest)
        places = range(given.ndim) if axis is None else np.atleast_1d(axis).tolist()
        summed = sorted(int(it) % given.ndim for it in places)
        terms = np.moveaxis(given, summed, range(-len(summed), 0))
        terms = terms.reshape(*terms.shape[: given.ndim - len(summed)], -1)
        found = (np.cumprod if name == "prod" else np.cumsum)(terms, axis=-1)[..., -1]
        found = found / given.dtype.type(terms.shape[-1]) if name == "mean" else found
        return np.expand_dims(found, summed) if rest.get("keepdims") else found

    def multiplied(name: str, a: Any, b: Any) -> Any:
        # Of more axes NumPy's dot is another product.
        matrices = a.ndim == b.ndim == _MATRIX or (name == "matmul" and min(a.ndim, b.ndim) > 1)
        if not matrices or a.dtype not in _ADDED or not 0 < a.size * b.shape[-1] < _MOST_PRODUCTS:
            return kept[name](a, b)
        terms = (a[..., at, None] * b[..., at, None, :] for at in range(a.shape[-1]))
        return reduce(operator.add, terms)

    for name in kept:
        setattr(numpy, name, partial(multiplied if name in {"dot", "matmul"} else added, name))
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(numpy, name, function)


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _pass(_node: OpRun, compute: Compute, inputs: Sequence[Any]) -> tuple[Any, ...]:
    return compute(*inputs)
