"""Wrong implementations of any operator whose formula is right and whose handling of a node is not.

The tensors are grouped, shaped or traversed in a wrong way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import Call
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.readings.evaluate import evaluate
from onnxopt_cli.readings.implementation import Compute, Implementation

Group = tuple[Array, ...]
Groups = tuple[Group, ...]


def wrong_node(operator: Operator) -> Iterator[Implementation]:
    """Yield the implementations; some may equal the formula on every input."""
    yield from _wrong_groups(operator)
    yield from _wrong_shapes(operator)
    yield from _wrong_broadcasts()
    yield from _wrong_loops()


def _wrong_groups(operator: Operator) -> Iterator[Implementation]:
    first, *others = operator.tensors
    names = ", ".join(f"{name}{group}" for group in (1, 2) for name in operator.tensors)
    yield Implementation(
        "inputs of several tensors interleaved",
        f"They are taken in the order {names}.",
        compute=regrouped(_interleaved),
    )
    names = ", ".join(f"{name}{group}" for group in (1, 2) for name in operator.outputs)
    yield Implementation(
        "outputs of several tensors interleaved",
        f"They are returned in the order {names}.",
        compute=_outputs_interleaved,
    )
    yield Implementation(
        "tensors returned in reverse order",
        "The last one's results come first.",
        compute=_outputs_rearranged(lambda outputs: outputs[::-1]),
    )
    yield Implementation(
        "results of the first tensor returned for all",
        "The others' results are lost.",
        compute=_outputs_rearranged(lambda outputs: [outputs[0]] * len(outputs)),
    )
    yield Implementation(
        "outputs of the first tensor only",
        "The others' outputs are missing.",
        compute=_outputs_rearranged(lambda outputs: outputs[:1]),
    )
    yield Implementation(
        "only the first tensor updated",
        "The others are returned as they were given.",
        compute=_updated_where(lambda group, _: group == 0),
    )
    yield Implementation(
        "last of several tensors not updated",
        "It is returned as it was given.",
        compute=_updated_where(lambda group, count: count == 1 or group < count - 1),
    )
    for position, name in enumerate(others, start=1):
        yield Implementation(
            f"{name} of the first tensor used for all",
            f"Each tensor has its own {first}.",
            compute=regrouped(_first_used_for_all(position)),
        )
        yield Implementation(
            f"{name} of several tensors in reverse order",
            f"The last {name} belongs to the first {first}.",
            compute=regrouped(_reversed_at(position)),
        )
    for position, scalar in enumerate(operator.scalars):
        if "int64" in scalar.dtypes:
            yield Implementation(
                f"{scalar.name} counts tensors",
                "It grows by one from each tensor of a node to the next.",
                compute=_counting(position),
            )


def _wrong_shapes(operator: Operator) -> Iterator[Implementation]:
    changes: dict[str, Callable[[Array], Array]] = {
        "scalars come back with a dimension": lambda output: (
            output.reshape(1) if output.ndim == 0 else output
        ),
        "results come back flat": lambda output: output.reshape(-1) if output.ndim else output,
        "dimensions of one are dropped": np.squeeze,
        "results come back in column-major order": lambda output: output.ravel(order="F").reshape(
            output.shape
        ),
        "empty results come back with an element": lambda output: (
            output if output.size else np.zeros(1, output.dtype)
        ),
        "results come back transposed": np.transpose,
    }
    for name, change in changes.items():
        yield Implementation(name, "The elements are right.", compute=_each_output(change))
    yield Implementation(
        "empty results are left out",
        "A node with an empty tensor has an output less.",
        compute=lambda call: [output for output in evaluate(call) if output.size],
    )
    for position, scalar in enumerate(operator.scalars):
        yield Implementation(
            f"shape of {scalar.name} leaks into the results",
            "One element of rank 1 broadcasts like any tensor.",
            compute=_enlarged(position),
        )
    yield Implementation(
        "results have their operand's shape",
        "A tensor that broadcasts comes back in its own shape.",
        compute=_own_shapes,
    )


def _wrong_broadcasts() -> Iterator[Implementation]:
    fills: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
        "first element of broadcast operands used for all": lambda operand, shape: np.full(
            shape, operand.ravel()[0]
        ),
        "broadcast operands read without strides": np.resize,
        "broadcast operands padded with zeros": lambda operand, shape: np.pad(
            operand.ravel(), (0, int(np.prod(shape)) - operand.size)
        ).reshape(shape),
        "broadcast operands refused": _refuse,
    }
    for name, fill in fills.items():
        yield Implementation(
            name,
            "Operands of the optimized tensor's own shape are read right.",
            compute=regrouped(_filled(fill)),
        )


def _wrong_loops() -> Iterator[Implementation]:
    kept: dict[str, Callable[[int], slice]] = {
        "tail of a loop by four left out": lambda size: slice(size - size % 4, size),
        "tail of a loop by sixteen left out": lambda size: slice(size - size % 16, size),
        "first element left out": lambda _: slice(0, 1),
        "last element left out": lambda size: slice(max(size - 1, 0), size),
        "only the first element updated": lambda size: slice(1, size),
        "only the first 1024 elements updated": lambda size: slice(1024, size),
        "only the first 65536 elements updated": lambda size: slice(65536, size),
    }
    for name, elements in kept.items():
        yield Implementation(
            name,
            "Elements left out come back as they were given.",
            compute=_elements_kept(elements),
        )


def regrouped(change: Callable[[Groups], Groups]) -> Compute:
    """Compute the formula on other groups."""
    return lambda call: evaluate(replace(call, groups=change(call.groups)))


def _interleaved(groups: Groups) -> Groups:
    flat = [tensor for members in zip(*groups, strict=True) for tensor in members]
    size = len(groups[0])
    return tuple(tuple(flat[start : start + size]) for start in range(0, len(flat), size))


def _first_used_for_all(position: int) -> Callable[[Groups], Groups]:
    return lambda groups: tuple(
        _with_value(group, position, groups[0][position]) for group in groups
    )


def _reversed_at(position: int) -> Callable[[Groups], Groups]:
    return lambda groups: tuple(
        _with_value(group, position, other[position])
        for group, other in zip(groups, reversed(groups), strict=True)
    )


def _with_value(group: Group, position: int, value: Array) -> Group:
    """Exchange one tensor's values; its type, and with it the result's, stays."""
    changed = value.astype(group[position].dtype)
    return (*group[:position], changed, *group[position + 1 :])


def _filled(fill: Callable[[Array, tuple[int, ...]], Array]) -> Callable[[Groups], Groups]:
    def change(groups: Groups) -> Groups:
        return tuple(
            tuple(
                tensor if tensor.shape == group[0].shape else fill(tensor, group[0].shape)
                for tensor in group
            )
            for group in groups
        )

    return change


def _refuse(_operand: Array, _shape: tuple[int, ...]) -> Array:
    raise ValueError("shapes differ")


def _counting(position: int) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        single = []
        for index, group in enumerate(call.groups):
            scalars = list(call.scalars)
            scalars[position] = scalars[position] + index
            single.append(evaluate(replace(call, scalars=tuple(scalars), groups=(group,))))
        return [output for members in zip(*single, strict=True) for output in members]

    return compute


def _outputs_interleaved(call: Call[Array]) -> list[Array]:
    outputs, groups = evaluate(call), len(call.groups)
    return [output for group in range(groups) for output in outputs[group::groups]]


def _outputs_rearranged(change: Callable[[list[Array]], list[Array]]) -> Compute:
    """Rearrange the groups' results of each kind of output."""

    def compute(call: Call[Array]) -> list[Array]:
        outputs, groups = evaluate(call), len(call.groups)
        return [
            output
            for start in range(0, len(outputs), groups)
            for output in change(outputs[start : start + groups])
        ]

    return compute


def _updated_where(updated: Callable[[int, int], bool]) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        groups = len(call.groups)
        return [
            output if updated(index % groups, groups) else old
            for index, (output, old) in enumerate(zip(evaluate(call), _olds(call), strict=True))
        ]

    return compute


def _elements_kept(elements: Callable[[int], slice]) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        outputs = evaluate(call)
        for output, old in zip(outputs, _olds(call), strict=True):
            kept = elements(output.size)
            output.flat[kept] = old.ravel()[kept]
        return outputs

    return compute


def _each_output(change: Callable[[Array], Array]) -> Compute:
    return lambda call: [change(output) for output in evaluate(call)]


def _enlarged(position: int) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        shape = call.scalars[position].shape
        return [
            np.broadcast_to(output, np.broadcast_shapes(shape, output.shape))
            for output in evaluate(call)
        ]

    return compute


def _own_shapes(call: Call[Array]) -> list[Array]:
    outputs = evaluate(call)
    return [
        output.ravel()[: source.size].reshape(source.shape)
        for output, (source, _) in zip(outputs, sources(call), strict=True)
    ]


def _olds(call: Call[Array]) -> list[Array]:
    """Return the tensor that each output replaces, in the output's shape."""
    return [np.broadcast_to(source, first.shape) for source, first in sources(call)]


def sources(call: Call[Array]) -> list[tuple[Array, Any]]:
    """Return for each output the inputs that have its element type and its shape."""
    inputs = call.inputs
    return [(inputs[like], inputs[base]) for like, base in call.operator.places(len(call.groups))]
