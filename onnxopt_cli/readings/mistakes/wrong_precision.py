"""Wrong implementations of any operator whose formula is right and whose number types are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import AttributeValue, Operator
from onnxopt_cli.readings.evaluate import evaluate, one_element, rounded, widen
from onnxopt_cli.readings.implementation import Compute, Implementation

_FLOAT32 = np.dtype(np.float32)
_DOUBLE = np.dtype(np.float64)
_HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

Rounding = Callable[[Array], Array]


def wrong_precision(operator: Operator) -> Iterator[Implementation]:
    """Yield the implementations; some may equal the formula on every input."""
    yield from _coarse_arithmetic()
    yield from _wrong_result_types(operator)
    for position, scalar in enumerate(operator.scalars):
        yield from _coarse_scalar(position, scalar.name, integer="int64" in scalar.dtypes)
    yield from _wrong_attributes()


def _coarse_arithmetic() -> Iterator[Implementation]:
    yield Implementation(
        "double computed in float32",
        "Everything is rounded to float32 at every operation, also where the tensors are double.",
        ("tinygrad",),
        compute=_computed_in(_FLOAT32),
    )
    yield Implementation(
        "double read as float32",
        "Double tensors are rounded to float32 before anything is computed.",
        compute=_tensors_rounded(_through(_FLOAT32)),
    )
    yield Implementation(
        "double returned through float32",
        "Results are rounded to float32 before they become double.",
        compute=_results_rounded(_through(_FLOAT32)),
    )
    for name, dtype in _HALVES.items():
        yield Implementation(
            f"computed in {name}",
            f"Everything is rounded to {name} at every operation.",
            compute=_computed_in(dtype),
        )
    roundings = {name: _through(dtype) for name, dtype in _HALVES.items()} | {"TF32": _tf32}
    for name, rounding in roundings.items():
        yield Implementation(
            f"tensors rounded to {name}",
            "Before anything is computed.",
            compute=_tensors_rounded(rounding),
        )
        yield Implementation(
            f"results rounded to {name}",
            "They are stored so, and come back in their own type.",
            compute=_results_rounded(rounding),
        )
    yield Implementation(
        "overflow returned as the largest number",
        "Results saturate where they leave the range of their type.",
        compute=_results_rounded(_saturated),
    )


def _wrong_result_types(operator: Operator) -> Iterator[Implementation]:
    types: dict[str, Callable[[Call[Array], int], np.dtype[Any]]] = {
        "results come back in float32": lambda _call, _group: _FLOAT32,
        "results come back in double": lambda _call, _group: _DOUBLE,
        "results come back in float16": lambda _call, _group: np.dtype(np.float16),
    }
    for position, name in enumerate(operator.tensors):
        types[f"results come back in the type of {name}"] = _type_of_tensor(position)
    for position, scalar in enumerate(operator.scalars):
        if "int64" not in scalar.dtypes:
            types[f"results come back in the type of {scalar.name}"] = _type_of_scalar(position)
    for name, dtype in types.items():
        yield Implementation(
            name, "Whatever their tensors' own types are.", compute=_results_typed(dtype)
        )
    yield Implementation(
        "several tensors come back in float32",
        "One tensor keeps its type.",
        compute=_several_in_float32,
    )
    if operator.counts:
        first = next(iter(operator.outputs))
        yield Implementation(
            f"{first} comes back in double for T > 0",
            "An integer in a formula makes its result double.",
            compute=_first_in_double,
        )
    yield Implementation(
        f"all tensors rounded to the type of {operator.tensors[0]}",
        "Before anything is computed, in a node with types of both kinds.",
        compute=_rounded_to_first,
    )


def _coarse_scalar(position: int, name: str, *, integer: bool) -> Iterator[Implementation]:
    changes: dict[str, Rounding] = (
        {
            f"{name} read as int32": lambda value: value.astype(np.int32),
            f"{name} read as unsigned": lambda value: value.astype(np.uint64),
            f"{name} rounded to float32": lambda value: value.astype(_FLOAT32),
        }
        if integer
        else {
            f"{name} rounded to {dtype}": _through(dtype) for dtype in (_FLOAT32, *_HALVES.values())
        }
    )
    for title, change in changes.items():
        yield Implementation(
            title, "Before anything is computed.", compute=_scalar_changed(position, change)
        )


def _wrong_attributes() -> Iterator[Implementation]:
    yield Implementation(
        "attributes not rounded to float32",
        "0.999 is taken for the double next to 0.999, and not for the float32 that a node holds.",
        compute=_attributes_changed(lambda value: float(str(np.float32(value)))),
    )
    yield Implementation(
        "attributes combined in float32",
        "What follows from attributes alone, as 1 - alpha, is rounded to float32.",
        compute=_attributes_in_float32,
    )
    for name, dtype in _HALVES.items():
        yield Implementation(
            f"attributes rounded to {name}",
            "Before anything is computed.",
            compute=_attributes_changed(_number_through(dtype)),
        )


def _computed_in(dtype: np.dtype[Any]) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        applied = call.apply(
            lambda value: value.reshape(()).astype(dtype),
            lambda value: value.astype(dtype),
            dtype.type,
        )
        return [rounded(result, like.dtype, first.shape) for result, like, first in applied]

    return compute


def _tensors_rounded(rounding: Rounding) -> Compute:
    return lambda call: evaluate(
        replace(call, groups=tuple(tuple(map(rounding, group)) for group in call.groups))
    )


def _results_rounded(rounding: Rounding) -> Compute:
    return lambda call: [rounding(output) for output in evaluate(call)]


def _scalar_changed(position: int, change: Rounding) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        scalars = list(call.scalars)
        scalars[position] = change(scalars[position])
        return evaluate(replace(call, scalars=tuple(scalars)))

    return compute


def _attributes_changed(change: Callable[[float], float]) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        changed = {name: _changed(value, change) for name, value in call.attributes.items()}
        return evaluate(replace(call, attributes=changed))

    return compute


def _attributes_in_float32(call: Call[Array]) -> list[Array]:
    applied = call.apply(one_element, widen, _FLOAT32.type)
    return [rounded(result, like.dtype, first.shape) for result, like, first in applied]


def _changed(value: AttributeValue, change: Callable[[float], float]) -> AttributeValue:
    if isinstance(value, str):
        return value
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)


def _results_typed(dtype: Callable[[Call[Array], int], np.dtype[Any]]) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        return [
            output.astype(dtype(call, index % len(call.groups)))
            for index, output in enumerate(evaluate(call))
        ]

    return compute


def _type_of_tensor(position: int) -> Callable[[Call[Array], int], np.dtype[Any]]:
    return lambda call, group: call.groups[group][position].dtype


def _type_of_scalar(position: int) -> Callable[[Call[Array], int], np.dtype[Any]]:
    return lambda call, _: call.scalars[position].dtype


def _several_in_float32(call: Call[Array]) -> list[Array]:
    outputs = evaluate(call)
    return outputs if len(call.groups) == 1 else [output.astype(_FLOAT32) for output in outputs]


def _first_in_double(call: Call[Array]) -> list[Array]:
    outputs = evaluate(call)
    counts = [value for value in call.scalars if value.dtype.kind == "i"]
    if all(count.item() > 0 for count in counts):
        outputs[: len(call.groups)] = [
            output.astype(_DOUBLE) for output in outputs[: len(call.groups)]
        ]
    return outputs


def _rounded_to_first(call: Call[Array]) -> list[Array]:
    groups = tuple(
        tuple(tensor.astype(group[0].dtype).astype(tensor.dtype) for tensor in group)
        for group in call.groups
    )
    return evaluate(replace(call, groups=groups))


def _through(dtype: np.dtype[Any]) -> Rounding:
    return lambda tensor: tensor.astype(dtype).astype(tensor.dtype)


def _number_through(dtype: np.dtype[Any]) -> Callable[[float], float]:
    return lambda value: float(dtype.type(value))


def _tf32(tensor: Array) -> Array:
    """Round to the 11 significant bits of NVIDIA's TensorFloat-32, which has float32's range."""
    fraction, exponent = np.frexp(tensor.astype(_FLOAT32))
    rounded_fraction = np.ldexp(np.rint(np.ldexp(fraction, 11)), exponent - 11)
    return np.asarray(rounded_fraction).astype(tensor.dtype)


def _saturated(tensor: Array) -> Array:
    largest = np.finfo(tensor.dtype).max
    return np.where(np.isinf(tensor), np.copysign(largest, tensor), tensor)
