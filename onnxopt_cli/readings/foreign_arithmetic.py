"""The formula computed by other libraries: ONNX Runtime, on the lowered graph, and PyTorch."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.lib.mixins import NDArrayOperatorsMixin
from onnx import helper

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.percentile import percentile
from onnxopt_cli.readings.bound.arithmetic import scalar_dtype
from onnxopt_cli.readings.evaluate import rounded
from onnxopt_cli.readings.lower.call import lower_call
from onnxopt_cli.readings.lower.graph_tensors import GraphTensor
from onnxopt_cli.readings.lower.model import OLDEST_OPSET

#: The oldest that carries the oldest opset.
_IR_VERSION = 7


def computed_by_onnxruntime(call: Call[Array]) -> list[Array]:
    """Compute a node by its lowered graph on ONNX Runtime's CPU, with one thread."""
    numbers = count()
    inputs: dict[str, Array] = {}

    def symbol(array: Array) -> GraphTensor:
        name = f"input_{next(numbers)}"
        inputs[name] = array
        return GraphTensor(name, array.dtype, array.shape)

    scalars = tuple(map(symbol, call.scalars))
    groups = tuple(tuple(map(symbol, group)) for group in call.groups)
    model = _lowered(Call(call.operator, call.attributes, scalars, groups))
    return list(_session(model.SerializeToString(deterministic=True)).run(None, inputs))


def computed_by_torch(call: Call[Array]) -> list[Array]:
    """Compute a node on PyTorch's tensors, whose types combine as PyTorch combines them."""
    torch = import_module("torch")
    rate = scalar_dtype(call)
    results = call.apply(
        lambda scalar: _TorchOperand(torch.tensor(scalar.reshape(()).astype(rate))),
        lambda tensor: _TorchOperand(torch.tensor(tensor)),
        float,
    )
    return [
        rounded(result.tensor.numpy(), like.dtype, first.shape) for result, like, first in results
    ]


def _lowered(call: Call[GraphTensor]) -> onnx.ModelProto:
    inputs = call.inputs
    outputs = [
        GraphTensor(f"output_{index}", inputs[like].dtype, inputs[base].shape)
        for index, (like, base) in enumerate(call.operator.places(len(call.groups)))
    ]
    fresh = count()
    nodes = lower_call(
        call, [output.name for output in outputs], lambda stem: f"{stem}_{next(fresh)}"
    )
    graph = helper.make_graph(
        nodes, call.operator.name, list(map(_declared, inputs)), list(map(_declared, outputs))
    )
    opsets = [helper.make_opsetid("", OLDEST_OPSET)]
    return helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=opsets)


def _declared(tensor: GraphTensor) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(tensor.dtype)
    return helper.make_tensor_value_info(tensor.name, element, tensor.shape)


@lru_cache(maxsize=64)
def _session(model: bytes) -> Any:
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    # Its optimizer drops a product with a double that float32 takes for 1, such as 1 - 1e-8.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True, eq=False)
class _TorchOperand(NDArrayOperatorsMixin):
    """A tensor of PyTorch that joins in through NumPy's dispatch."""

    tensor: Any

    def __array_ufunc__(self, ufunc: np.ufunc, _: str, *inputs: Any) -> _TorchOperand:
        operation = _OPERATIONS.get(ufunc) or _torch_function(ufunc)
        return _TorchOperand(operation(*map(_torch_value, inputs)))

    def __array_function__(
        self, function: Callable[..., Any], _: Any, inputs: Sequence[Any], __: Any
    ) -> _TorchOperand:
        return _TorchOperand(_torch_function(function)(*map(_torch_value, inputs)))


#: What takes numbers beside tensors only as an operator.
_OPERATIONS: Mapping[np.ufunc, Callable[..., Any]] = {
    np.add: python.add,
    np.subtract: python.sub,
    np.multiply: python.mul,
    np.divide: python.truediv,
    np.power: python.pow,
    np.greater: python.gt,
    np.less: python.lt,
    np.greater_equal: python.ge,
    np.less_equal: python.le,
}


def _torch_function(function: Callable[..., Any]) -> Any:
    if function is percentile:
        return _torch_percentile
    return getattr(import_module("torch"), function.__name__)


def _torch_percentile(tensor: Any, percent: float) -> Any:
    """Interpolate as the definition does: PyTorch's quantile has no answer beside infinity."""
    torch = import_module("torch")
    elements = tensor.reshape(-1).sort().values
    if elements.numel() == 0 or elements.isnan().any():
        return torch.tensor(torch.nan, dtype=tensor.dtype)
    rank = (elements.numel() - 1) * percent / 100
    lower = int(rank)
    a, b = elements[lower], elements[min(lower + 1, elements.numel() - 1)]
    return a if rank == lower or a == b else torch.lerp(a, b, rank - lower)


def _torch_value(operand: Any) -> Any:
    return operand.tensor if isinstance(operand, _TorchOperand) else operand
