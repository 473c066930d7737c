"""Evaluation of formulas with PyTorch, whose arithmetic is independent of NumPy's."""

from __future__ import annotations

import operator as python
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.lib.mixins import NDArrayOperatorsMixin

from onnxopt_cli.interpret.evaluate import rounded
from onnxopt_cli.interpret.reformulations import (
    _are_numbers,
    _of_numbers,
    scalar_dtype,
)
from onnxopt_cli.interpret.vocabulary import OF_NOTHING
from onnxopt_cli.operators.percentile import percentile

torch = pytest.importorskip("torch")


def computed_by_torch(call):
    """Return the outputs of a call, computed with PyTorch and its type promotion."""
    rate = scalar_dtype(call)
    results = call.apply(
        lambda scalar: _TorchOperand(torch.tensor(scalar.reshape(()).astype(rate))),
        lambda tensor: _TorchOperand(torch.tensor(tensor)),
        lambda value: _TorchOperand(float(value)),
    )
    return [
        rounded(np.asarray(result.tensor), like.dtype, first.shape)
        for result, like, first in results
    ]


@dataclass(frozen=True, eq=False)
class _TorchOperand(NDArrayOperatorsMixin):
    """A tensor of PyTorch, or a plain number, as an operand of a formula.

    The class implements NumPy's dispatch protocols.
    """

    tensor: Any

    def __bool__(self):
        return bool(self.tensor)

    def __array_ufunc__(self, ufunc, _, *inputs):
        values = list(map(_torch_value, inputs))
        if _are_numbers(values):
            return _TorchOperand(_of_numbers(ufunc, values))
        operation = _OPERATIONS.get(ufunc) or _torch_function(ufunc)
        return _TorchOperand(operation(*values))

    def __array_function__(self, function, _, inputs, __):
        return _TorchOperand(_torch_function(function)(*map(_torch_value, inputs)))


#: Python operators that replace functions of PyTorch. The operators accept a number as either
#: operand, and the functions do not.
_OPERATIONS = {
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


def _torch_function(function):
    if function is percentile:
        return _torch_percentile
    if function in OF_NOTHING:
        return lambda tensor: _torch_reduced(function, tensor)
    return getattr(torch, function.__name__)


def _torch_reduced(function, tensor):
    if not tensor.numel():
        return torch.tensor(OF_NOTHING[function], dtype=tensor.dtype)
    return getattr(torch, function.__name__)(tensor)


def _torch_percentile(tensor, percent):
    """Compute the percentile by its definition; torch.quantile returns NaN beside infinities."""
    elements = tensor.reshape(-1).sort().values
    if elements.numel() == 0 or elements.isnan().any():
        return torch.tensor(torch.nan, dtype=tensor.dtype)
    rank = (elements.numel() - 1) * percent / 100
    lower = int(rank)
    a, b = elements[lower], elements[min(lower + 1, elements.numel() - 1)]
    return a if rank == lower or a == b else torch.lerp(a, b, rank - lower)


def _torch_value(operand):
    return operand.tensor if isinstance(operand, _TorchOperand) else operand
