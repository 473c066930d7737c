"""Inputs that change from step to step: a value for each, or a function of X."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxopt_cli.cases.suites.gradients import GRADIENTS, apply_to
from onnxopt_cli.cases.values.declared import DeclaredTensor, too_large
from onnxopt_cli.cases.values.tensor_elements import element_array
from onnxopt_cli.cases.values.tensor_text import DeclareValue, always
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, number
from onnxopt_cli.core.trajectory import Derived
from onnxopt_cli.core.values import Array, dtype_name


@dataclass(frozen=True, slots=True)
class Derivation:
    """An input that a case gives as a function.

    Attributes:
        node: where it is given.
        of: name of the input that it is a function of.
        dtype: element type of that one, and so of this.
        shape: likewise.
        declare: reads a parameter.
    """

    node: Node
    of: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    declare: DeclareValue


def is_function(node: Node) -> bool:
    """Tell whether an input is a function of X."""
    return any(node.field(name) for name in GRADIENTS)


def declare_derived(derivation: Derivation) -> Callable[[], Derived]:
    """Read a function of X, and return what makes it.

    Raises:
        FormatError: if a parameter is no tensor, of another type than X, or of a wrong shape.
    """
    node, dtype = derivation.node, derivation.dtype
    (name, given), *_ = (node.fields or {}).items()
    gradient = GRADIENTS[name]
    parameters = {
        key: _tensor(value, derivation.declare, dtype)
        for key, value in (given.fields or {}).items()
    }
    for key, parameter in parameters.items():
        if parameter.dtype != dtype:
            raise FormatError(
                (given.fields or {})[key],
                f"found {dtype_name(parameter.dtype)}, expected {dtype_name(dtype)} as "
                f"{derivation.of} is",
            )
    shapes = {key: parameter.shape for key, parameter in parameters.items()}
    misfit = gradient.misfit(derivation.shape, shapes)
    if misfit:
        raise FormatError(given, f"found {misfit}")

    def make() -> Derived:
        values: dict[str, Array] = {
            key: np.array(default, dtype)
            for key, default in gradient.defaults.items()
            if default is not None
        }
        values |= {key: parameter.make() for key, parameter in parameters.items()}
        return Derived(derivation.of, apply_to(gradient, values, derivation.shape), dtype)

    return make


def declare_series(
    node: Node, count: int, dtype: np.dtype[Any], declare: DeclareValue
) -> DeclaredTensor:
    """Read the values of all steps, stacked.

    Args:
        node: a tensor with a leading dimension for the steps, ``{cycle: ...}`` or
            ``{linear: ...}``.
        count: number of steps.
        dtype: the element type where none is given.
        declare: reads a tensor.

    Raises:
        FormatError: at the first thing that is wrong with it.
    """
    linear = node.field("linear")
    if linear is not None:
        return _line(linear, count, dtype)
    cycle = node.field("cycle")
    stacked = _tensor(cycle or node, declare, dtype)
    found = stacked.shape[0] if stacked.shape else None
    if cycle is None:
        if found != count:
            raise FormatError(node, f"found {_values(found)}, expected {count}, one for each step")
        return stacked
    if not found:
        raise FormatError(cycle, f"found {_values(found)}, expected a list of them")
    shape = (count, *stacked.shape[1:])
    oversize = too_large(shape)
    if oversize:
        raise FormatError(cycle, f"found {oversize}")
    return DeclaredTensor(
        stacked.dtype, shape, lambda: stacked.make()[np.arange(count) % found, ...]
    )


def _line(node: Node, count: int, dtype: np.dtype[Any]) -> DeclaredTensor:
    fields = node.fields or {}
    first, last = (float(number(fields[name])) for name in ("from", "to"))
    element_array([fields["from"], fields["to"]], dtype)
    over = int(number(fields["over"]))

    def make() -> Array:
        # The last step of the line has its end.
        share = np.minimum(np.arange(count) / max(over - 1, 1), 1.0) if over > 1 else 1.0
        return np.broadcast_to(first + (last - first) * share, count).astype(dtype)

    return DeclaredTensor(dtype, (count,), make)


def _tensor(node: Node, declare: DeclareValue, dtype: np.dtype[Any]) -> DeclaredTensor:
    value = declare(node, always(dtype))
    if not isinstance(value, DeclaredTensor):
        raise FormatError(node, "found no tensor, expected one")
    return value


def _values(found: int | None) -> str:
    return "a single value" if found is None else f"{found} values"
