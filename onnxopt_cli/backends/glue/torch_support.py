"""Conversion of values to and from torch, and an import of torchvision without CUDA.

The wheels of torchvision need the libraries of CUDA. Without these libraries, torchvision does not
load its C++ operators. Its import then fails, because it refers to two operators that are not
declared. This module declares the two operators. A call of any C++ operator of torchvision then
raises the error "Couldn't load custom C++ ops".

RoiAlign is an exception: without its C++ operator, torchvision runs Python code, which it compiles
with ``torch.compile``. The compilation takes up to half a minute for a model, so this module
disables it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from onnxopt_cli.core.values import DTYPES, Value
from onnxopt_cli.errors import Unsupported

# The value of numpy.dtype.isbuiltin for a type that ml_dtypes has registered.
_REGISTERED = 2
# Types that torch declares although it has no operators for them.
_PLACEHOLDERS = {"int2", "int4", "uint2", "uint4"}
# Declarations of the operators to which the import of torchvision refers.
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# If a library is no longer referenced, torch removes its operators.
_kept: list[object] = []


def to_torch(value: Value) -> Any:
    """Convert a tensor to a torch tensor with memory of its own; convert a sequence to a list.

    Raises:
        Unsupported: if torch lacks the element type, or the value is a map.
    """
    import torch

    if value is None:
        return None
    if isinstance(value, list):
        return [to_torch(element) for element in value]
    if isinstance(value, dict):
        raise Unsupported("torch has no maps")
    array = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
    name = array.dtype.name
    dtype = None if name in _PLACEHOLDERS else getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Unsupported(f"torch has no tensors of type {name}")
    if array.dtype.isbuiltin != _REGISTERED:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.itemsize}")).view(dtype)


def from_torch(result: Any) -> Any:
    """Convert torch tensors, also in lists and tuples, to arrays; keep other values unchanged."""
    import torch

    if isinstance(result, (list, tuple)):
        return [from_torch(element) for element in result]
    if not isinstance(result, torch.Tensor):
        return result
    tensor = result.detach().cpu().contiguous()
    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    if dtype.isbuiltin != _REGISTERED:
        return tensor.resolve_conj().resolve_neg().numpy()
    return tensor.view(getattr(torch, f"uint{8 * dtype.itemsize}")).numpy().view(dtype)


def import_torchvision() -> None:
    """Import torchvision; if its C++ operators cannot be loaded, declare them first."""
    import torch

    try:
        import torchvision
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            library.define(schema)
        _kept.append(library)
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        import torchvision  # noqa: F401
