"""Reformulations: correct implementations that round differently, which must be accepted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.arithmetic import (
    Arithmetic,
    added_by_size,
    added_in_double,
    added_in_lanes,
    added_in_order,
    added_in_reverse,
    computed,
    computed_by_onnxruntime,
    flushed,
    power_rounded_once,
    power_squared,
    reciprocal_quotient,
    root_by_newton,
    root_by_reciprocal,
)
from onnxopt_cli.interpret.evaluate import evaluate, is_elementwise
from onnxopt_cli.interpret.implementation import Compute, Implementation
from onnxopt_cli.operators.call import Call
from onnxopt_cli.operators.operator import Operator


@cache
def reformulations(operator: Operator) -> tuple[Implementation, ...]:
    """Return all reformulations of an operator, with unique names.

    They are the formula itself in every arithmetic, and each rewritten formula in a few
    arithmetics.
    """
    return tuple(_all_reformulations(operator))


def _all_reformulations(operator: Operator) -> Iterator[Implementation]:
    for name, (about, compute) in _ARITHMETICS.items():
        if compute is _BLOCKS and not is_elementwise(operator):
            continue
        yield Implementation(name, about, compute=compute)
    for package, (name, about, compute) in _FOREIGN.items():
        if find_spec(package):
            yield Implementation(name, about, compute=compute)
    if "sum" in operator.formula.__code__.co_names:
        for name, add_up in _SUMS.items():
            yield Implementation(
                name,
                inspect.getdoc(add_up) or "",
                compute=computed(Arithmetic({np.sum: add_up})),
            )
    for form in operator.reformulations:
        for name, compute in _ARITHMETICS_OF_REFORMULATIONS.items():
            replaced = "; ".join(f"{new} for {old}" for old, new in form.replace.items())
            yield Implementation(
                f"{form.name}, {name}",
                f"Computes {replaced}.",
                form.seen_in,
                change=form.written_where_accurate,
                compute=compute,
            )


def _with_scalars_in(
    choose: Callable[[Call[Array], Sequence[Array]], np.dtype[Any]], compute: Compute
) -> Compute:
    """Return a function that converts the float scalars of a call before it computes the call.

    Args:
        choose: function from a call and the tensors of one of its groups to the type of scalars.
        compute: function that computes the converted call.
    """

    def convert_and_compute(call: Call[Array], dtype: np.dtype[Any]) -> list[Array]:
        output_types = set(call.operator.outputs.values())
        # If an output has the type of a scalar, as loss_new has the type of loss, the digits of the
        # scalar are part of the result, so the scalar may be widened but not narrowed.
        scalars = tuple(
            scalar.astype(
                np.result_type(dtype, scalar.dtype) if item.name in output_types else dtype
            )
            if scalar.dtype.kind == "f"
            else scalar
            for item, scalar in zip(call.operator.scalars, call.scalars, strict=True)
        )
        outputs = compute(replace(call, scalars=scalars))
        return [
            output.astype(like.dtype)
            for output, (like, _) in zip(outputs, call.sources, strict=True)
        ]

    def converted(call: Call[Array]) -> list[Array]:
        dtypes = {choose(call, group) for group in call.groups}
        if len(dtypes) == 1:
            return convert_and_compute(call, *dtypes)
        return call.by_group(lambda part: convert_and_compute(part, choose(part, part.groups[0])))

    return converted


def _widest_type(call: Call[Array], group: Sequence[Array]) -> np.dtype[Any]:
    floats = [scalar.dtype for scalar in call.scalars if scalar.dtype.kind == "f"]
    return np.result_type(*floats, *group)


def _with_typed_attributes(call: Call[Array]) -> list[Array]:
    dtype = np.result_type(*call.groups[0])
    return computed(Arithmetic(), dtype.type)(call)


def _by_blocks(call: Call[Array]) -> list[Array]:
    """Compute one group in blocks with a remainder, as a vectorized loop does."""
    first = call.groups[0][0]
    starts = range(0, max(first.size, 1), _BLOCK)
    blocks = [_OWN_TYPES(call.at(slice(start, start + _BLOCK))) for start in starts]
    return [np.concatenate(parts).reshape(first.shape) for parts in zip(*blocks, strict=True)]


def _group_by_group(compute: Compute) -> Compute:
    return lambda call: call.by_group(compute)


_OWN_TYPES = computed(Arithmetic())
_RECIPROCAL = computed(Arithmetic({np.divide: reciprocal_quotient}))
_FUSED = computed(Arithmetic(fused=True))
_BLOCK = 1000
_BLOCKS = _group_by_group(_by_blocks)

_SUMS: Mapping[str, Callable[[Any], Any]] = {
    "added in order": added_in_order,
    "added in reverse": added_in_reverse,
    "added by rising magnitude": added_by_size,
    "added in eight lanes": added_in_lanes,
    "added in double": added_in_double,
}

_ARITHMETICS: dict[str, tuple[str, Compute]] = {
    "in the inputs' types": (
        "Rounds every operation to the type of its operands; powers of T have R's type.",
        _OWN_TYPES,
    ),
    "attributes in the tensors' type": (
        "Also rounds expressions of attributes alone, such as 1 - alpha, to the tensors' type.",
        _group_by_group(_with_typed_attributes),
    ),
    "scalars in double": (
        "Computes expressions of R and T alone in double.",
        _with_scalars_in(lambda _call, _group: np.dtype(np.float64), _OWN_TYPES),
    ),
    "scalars in the tensor's type": (
        "Rounds R to the type of X first.",
        _with_scalars_in(lambda _call, group: group[0].dtype, _OWN_TYPES),
    ),
    "in double": (
        "Computes in double, and rounds only the outputs to their types.",
        partial(evaluate, dtype=np.dtype(np.float64)),
    ),
    "in the widest type": (
        "Computes in the widest type, and rounds only the outputs to their types.",
        evaluate,
    ),
    "in blocks": ("Computes a thousand elements at a time.", _BLOCKS),
    "reciprocals": (
        "Multiplies by rounded reciprocals instead of dividing.",
        _RECIPROCAL,
    ),
    "reciprocal roots": (
        "Computes roots as a * rsqrt(a) with a correctly rounded rsqrt.",
        computed(Arithmetic({np.sqrt: root_by_reciprocal})),
    ),
    "reciprocal roots by Newton": (
        "Computes roots as a * rsqrt(a) with an rsqrt of half the digits and one Newton step.",
        computed(Arithmetic({np.sqrt: root_by_newton, np.divide: reciprocal_quotient})),
    ),
    "fused multiply-add": (
        "Does not round a product before it is added.",
        _FUSED,
    ),
    "powers rounded once": (
        "Rounds the exact powers of T to R's type.",
        computed(Arithmetic({np.power: power_rounded_once})),
    ),
    "powers by squaring": (
        "Computes powers by repeated squaring in R's type, as compilers do for integer exponents.",
        computed(Arithmetic({np.power: power_squared})),
    ),
    "subnormals flushed": (
        "Replaces subnormal operands and results by zero.",
        computed(Arithmetic(finish=flushed)),
    ),
}

_FOREIGN: dict[str, tuple[str, str, Compute]] = {
    "onnxruntime": (
        "lowered, on ONNX Runtime",
        "Computes the graph of primitive operators.",
        computed_by_onnxruntime,
    ),
}

# If R is narrower than the tensors, it is converted to their type first. A reformulation may
# combine R with an attribute where the formula does not, and would otherwise round the result to
# R's type.
_ARITHMETICS_OF_REFORMULATIONS = {
    "R in the widest type": _with_scalars_in(_widest_type, _OWN_TYPES),
    "reciprocals": _with_scalars_in(_widest_type, _RECIPROCAL),
    "fused multiply-add": _with_scalars_in(_widest_type, _FUSED),
}
