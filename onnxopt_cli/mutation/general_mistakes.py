"""Known mistakes that any operator with a formula can have.

A mistake is a row of a table: a name and a change. A change applies to operands or results of the
formula, to inputs or outputs of the node, or to the types of the computation. The formula is
evaluated in the wide type for each group. A group is a tensor with its gradient and its states; a
node has one group for each tensor that it updates.

The tables come first. They are followed by the hooks: each hook applies changes at one place, such
as the outputs of the node, and returns implementations. For some operators, a row may be equivalent
to the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, count
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.evaluate import evaluate, widen
from onnxopt_cli.interpret.implementation import Compute, Implementation
from onnxopt_cli.operators.call import Attributes, Call
from onnxopt_cli.operators.operator import (
    Attribute,
    AttributeValue,
    Operator,
)
from onnxopt_cli.operators.rewrite import Formula

#: A table of changes by the name of the mistake. The parameters of a change depend on the hook that
#: applies the change.
Rows = dict[str, Any]
Operands = dict[str, Any]
Results = tuple[Any, ...]
Groups = tuple[tuple[Array, ...], ...]

_FLOAT32 = np.dtype(np.float32)
_DOUBLE = np.dtype(np.float64)
_HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

_BEFORE = "The values are changed before the formula is evaluated."
_UNREAD = "The attribute's value in the node is ignored."


def generated(operator: Operator) -> Iterator[Implementation]:
    """Yield the known mistakes that follow from an operator's signature."""
    for table in (
        _wrong_operands, _wrong_attributes, _wrong_results, _sparse_updates, _wrong_groups,
        _wrong_shapes, _wrong_loops, _coarse_numbers, _wrong_types, _promoted_types,
        _wrong_reductions,
    ):  # fmt: skip
        yield from table(operator)


def _wrong_operands(operator: Operator) -> Iterator[Implementation]:
    for name, integer in ((scalar.name, "int64" in scalar.dtypes) for scalar in operator.scalars):
        rows: Rows = {f"{name} taken as 1": np.ones_like, f"{name} negated": np.negative}
        if integer:
            rows |= {
                f"{name} taken as 0": np.zeros_like,
                f"{name} + 1": lambda value: value + 1,
                f"{name} - 1": lambda value: value - 1,
                f"magnitude of {name}": np.abs,
            }
        else:
            rows |= {f"{name} squared": np.square, f"root of {name}": np.sqrt}
        yield from _operand(
            operator, name, "The changed value is used for all tensors of the node.", rows
        )
    yield from _exchanged(operator, operator.tensors)
    for name in operator.tensors:
        rows = {
            f"{name} taken as 0": np.zeros_like,
            f"{name} negated": np.negative,
            f"{name} clipped to [-1, 1]": lambda value: np.clip(value, -1, 1),
            f"{name} truncated to integers": np.trunc,
            f"NaN in {name} taken as 0": lambda value: np.where(np.isnan(value), 0, value),
        }
        yield from _operand(operator, name, _BEFORE, rows)


def _wrong_attributes(operator: Operator) -> Iterator[Implementation]:
    for attribute in operator.attributes:
        yield from (_wrong_word if attribute.choices else _wrong_number)(operator, attribute)
    yield from _exchanged(
        operator, [attribute.name for attribute in operator.attributes if not attribute.choices]
    )


def _wrong_word(operator: Operator, attribute: Attribute) -> Iterator[Implementation]:
    name, choices = attribute.name, attribute.choices
    rows: Rows = {f"{name} taken as {choice}": _always(choice) for choice in choices}
    yield from _operand(operator, name, _UNREAD, rows)
    following = dict(zip(choices, choices[1:] + choices[:1], strict=True))
    rows = {f"values of {name} exchanged": following.get}
    about = "Each value of the attribute is read as the next value in the signature."
    yield from _operand(operator, name, about, rows)


def _wrong_number(operator: Operator, attribute: Attribute) -> Iterator[Implementation]:
    name, default = attribute.name, attribute.default
    total = sum(attribute.limits or (0.0, 1.0))
    rows: Rows = {f"{name} taken as {value:g}": _number(value) for value in (0.0, 1.0)}
    yield from _operand(operator, name, _UNREAD, rows)
    rows = {
        f"{name} negated": np.negative,
        f"{name} squared": np.square,
        f"{total:g} - {name} for {name}": lambda number: _number(total)(number) - number,
    }
    yield from _operand(operator, name, _BEFORE, rows)
    if default is not None:
        rows = {f"{name} taken as its default": _number(default)}
        yield from _operand(operator, name, _UNREAD, rows)
        for wrong in dict.fromkeys((0.0, 1.0, default * 10)):
            about = f"If a node omits {name}, {wrong:g} is used instead of {default:g}."
            yield Implementation(f"{name} defaults to {wrong:g}", about, defaults={name: wrong})


def _wrong_results(operator: Operator) -> Iterator[Implementation]:
    for (i, first), (j, second) in combinations(enumerate(operator.outputs), 2):
        rows: Rows = {f"outputs {first} and {second} exchanged": {i: j, j: i}}
        yield from _picked(operator, "Each output is returned in the place of the other.", rows)
        rows = {
            f"{second} returned as {first}, too": {i: j},
            f"{first} returned as {second}, too": {j: i},
        }
        about = "The values of one output overwrite those of the other, as if both shared a buffer."
        yield from _picked(operator, about, rows)
    for name, source in operator.outputs.items():
        rows = {
            f"{source} returned as {name}": lambda old, _: old,
            f"{name} negated": lambda _, new: -new,
            f"{name} halved": lambda _, new: new / 2,
            f"{name} returned as its change": lambda old, new: new - old,
            f"{name} changed in the other direction": lambda old, new: old - (new - old),
            f"{name} changed twice as far": lambda old, new: new + (new - old),
            f"{name} clipped to [-1, 1]": lambda _, new: np.clip(new, -1, 1),
            f"{name} without its sign": lambda _, new: np.abs(new),
            f"NaN in {name} returned as 0": lambda _, new: np.where(np.isnan(new), 0, new),
            f"infinity in {name} returned as NaN": lambda _, new: np.where(
                np.isinf(new), np.nan, new
            ),
            f"one NaN in {name} returned as all NaN": lambda _, new: new + 0 * np.sum(new),
        }
        yield from _result(operator, name, "The output is changed after its computation.", rows)


def _sparse_updates(operator: Operator) -> Iterator[Implementation]:
    """Yield mistakes that do not update those parts of a tensor whose gradient or state is zero."""
    sources = list(operator.outputs.values())
    for name in operator.tensors[1:] if set(sources) <= set(operator.tensors) else ():
        rows: Rows = {
            f"elements left out where {name} is 0": lambda zero: zero,
            f"rows left out where {name} is 0": lambda zero: (
                np.all(zero, axis=-1, keepdims=True) if zero.ndim > 1 else np.zeros_like(zero)
            ),
            f"tensors left out where {name} is 0": np.all,
        }

        def after(
            part: Callable[[Array], Array], operands: Operands, results: Results, name: str = name
        ) -> Results:
            unchanged = part(np.broadcast_to(operands[name], results[0].shape) == 0)
            return tuple(
                np.where(unchanged, operands[source], result)
                for source, result in zip(sources, results, strict=True)
            )

        about = "Where the element, row or tensor is all zero, the outputs equal the inputs."
        yield from _around(operator, about, rows, after=after)


def _wrong_groups(operator: Operator) -> Iterator[Implementation]:
    rows: Rows = {"inputs of several tensors interleaved": _interleaved}
    about = "The inputs are read in the order X1, G1, X2, G2 instead of X1, X2, G1, G2."
    yield from _rows(about, regrouped, rows)
    rows = {
        "outputs of several tensors interleaved": lambda call, new: [
            output
            for group, _ in enumerate(call.groups)
            for output in new[group :: len(call.groups)]
        ]
    }
    about = "All outputs of the first tensor come first, then all outputs of the second."
    yield from _rows(about, _outputs, rows)
    rows = {
        "tensors returned in reverse order": lambda new, _: new[::-1],
        "results of the first tensor returned for all": lambda new, _: new[:1] * len(new),
        "outputs of the first tensor only": lambda new, _: new[:1],
        "only the first tensor updated": lambda new, old: new[:1] + old[1:],
        "last of several tensors not updated": lambda new, old: (
            [*new[:-1], old[-1]] if len(new) > 1 else new
        ),
    }
    yield from _rows("A node with one tensor is computed correctly.", _each_kind, rows)
    for position, name in enumerate(operator.tensors[1:], start=1):
        first = operator.tensors[0]
        about = f"Each {first} has its own {name}, but the {name} of another {first} is used."
        yield from _rows(about, partial(_tensor_of_other, position), _of_others(name))
    for position, scalar in enumerate(operator.scalars):
        if "int64" in scalar.dtypes:
            about = f"{scalar.name} grows by one from each tensor of a node to the next."
            yield from _rows(about, _counting, {f"{scalar.name} counts tensors": position})


def _wrong_shapes(operator: Operator) -> Iterator[Implementation]:
    rows: Rows = {
        "scalars returned with a dimension": lambda new: new.reshape(new.shape or 1),
        "results returned flat": lambda new: new.reshape(-1) if new.ndim else new,
        "dimensions of one are dropped": np.squeeze,
        "results returned in column-major order": lambda new: new.ravel("F").reshape(new.shape),
        "empty results returned with an element": lambda new: (
            new if new.size else np.zeros(1, new.dtype)
        ),
        "results returned transposed": np.transpose,
    }
    about = "The values are correct, but their shape or order is wrong."
    yield from _rows(about, _each_output, rows)
    rows = {"empty results are left out": lambda _, new: [output for output in new if output.size]}
    yield from _rows("Outputs without elements are not returned.", _outputs, rows)
    rows = {f"shape of {scalar.name} leaks into the results": position
            for position, scalar in enumerate(operator.scalars)}  # fmt: skip
    about = "A scalar of shape [1] is broadcast like a tensor, so a result of rank 0 gets rank 1."
    yield from _rows(about, _enlarged, rows)
    rows = {
        "results have their operand's shape": lambda new, like, _: new.ravel()[: like.size].reshape(
            like.shape
        )
    }
    about = "A result has the shape that its input had before broadcasting."
    yield from _rows(about, _each_place, rows)
    rows = {
        "first element of broadcast operands used for all": lambda tensor, shape: np.full(
            shape, tensor.ravel()[0]
        ),
        "broadcast operands read without strides": np.resize,
        "broadcast operands padded with zeros": lambda tensor, shape: np.pad(
            tensor.ravel(), (0, math.prod(shape) - tensor.size)
        ).reshape(shape),
        "broadcast operands refused": _refuse,
    }
    yield from _rows("Operands that are not broadcast are read correctly.", _filled, rows)
    for position, name in enumerate(operator.tensors[1:], start=1):
        about = f"If {name} is broadcast, its elements are read as a flat array and repeated."
        rows = {f"broadcast {name} read without strides": np.resize}
        yield from _rows(about, partial(_filled_operand, position), rows)


def _wrong_loops(_: Operator) -> Iterator[Implementation]:
    rows: Rows = {
        "tail of a loop by four left out": lambda size: slice(size - size % 4, size),
        "tail of a loop by sixteen left out": lambda size: slice(size - size % 16, size),
        "first element left out": lambda _: slice(0, 1),
        "last element left out": lambda size: slice(max(size - 1, 0), size),
        "only the first element updated": lambda size: slice(1, size),
        "only the first 1024 elements updated": lambda size: slice(1024, size),
        "only the first 65536 elements updated": lambda size: slice(65536, size),
    }
    yield from _rows(
        "Elements that are not computed keep their input values.", _elements_kept, rows
    )


def _coarse_numbers(operator: Operator) -> Iterator[Implementation]:
    yield Implementation(
        "double computed in float32",
        "Every operation rounds to float32, even if the tensors are double.",
        ("tinygrad",),
        compute=partial(evaluate, dtype=_FLOAT32),
        precision=_FLOAT32,
    )
    roundings: Rows = {name: _through(dtype) for name, dtype in _HALVES.items()} | {"TF32": _tf32}
    yield from _rows(_BEFORE, _each_tensor, {"double read as float32": _through(_FLOAT32)})
    rows: Rows = {"double returned through float32": _through(_FLOAT32)}
    yield from _rows("Results are rounded to float32, then converted.", _each_output, rows)
    for name, dtype in _HALVES.items():
        about, compute = f"Every operation rounds to {name}.", partial(evaluate, dtype=dtype)
        yield Implementation(f"computed in {name}", about, compute=compute, precision=dtype)
    rows = {f"tensors rounded to {name}": change for name, change in roundings.items()}
    yield from _rows(_BEFORE, _each_tensor, rows)
    rows = {f"results rounded to {name}": change for name, change in roundings.items()}
    about = "Results are rounded, then converted to the type that the specification requires."
    yield from _rows(about, _each_output, rows)
    rows = {"overflow returned as the largest number": _saturated}
    yield from _rows("Results saturate at the largest number of their type.", _each_output, rows)
    for position, scalar in enumerate(operator.scalars):
        name = scalar.name
        if "int64" in scalar.dtypes:
            rows = {
                f"{name} read as int32": lambda value: value.astype(np.int32),
                f"{name} read as unsigned": lambda value: value.astype(np.uint64),
                f"{name} rounded to float32": lambda value: value.astype(np.float32),
            }
        else:
            rows = {f"{name} rounded to {dtype}": _through(dtype)
                    for dtype in (_FLOAT32, *_HALVES.values())}  # fmt: skip
        yield from _rows(_BEFORE, partial(_scalar, position), rows)
    about = "0.999 is read as the nearest double, not as the float32 that the node stores."
    yield from _rows(about, _each_attribute, {"attributes not rounded to float32": _decimal})
    of_defaults = partial(_each_attribute, only_defaults=True)
    yield from _rows(about, of_defaults, {"defaults not rounded to float32": _decimal})
    yield Implementation(
        "attributes combined in float32",
        "Expressions that contain only attributes, such as 1 - alpha, are rounded to float32.",
        compute=partial(evaluate, attributes=_FLOAT32),
    )
    rows = {f"attributes rounded to {name}": dtype.type for name, dtype in _HALVES.items()}
    yield from _rows(_BEFORE, _each_attribute, rows)


def _wrong_types(operator: Operator) -> Iterator[Implementation]:
    rows: Rows = {
        "results returned in float32": lambda *_: _FLOAT32,
        "results returned in double": lambda *_: _DOUBLE,
        "results returned in float16": lambda *_: np.dtype(np.float16),
    }
    rates = [scalar.name for scalar in operator.scalars if "int64" not in scalar.dtypes]
    for position, name in enumerate([*operator.tensors, *rates]):
        rows[f"results returned in the type of {name}"] = lambda call, group, position=position: (
            [*call.groups[group], *(scalar for scalar in call.scalars if scalar.dtype.kind == "f")][
                position
            ].dtype
        )
    about = "Results have the named type even if the specification requires another one."
    yield from _rows(about, _typed, rows)
    rows = {
        "several tensors returned in float32": lambda call, new: (
            new if len(call.groups) == 1 else [output.astype(_FLOAT32) for output in new]
        )
    }
    yield from _rows("The results of a node with one tensor keep their types.", _outputs, rows)
    if operator.counts:
        rows = {f"{next(iter(operator.outputs))} returned in double for T > 0": _first_in_double}
        about = "NumPy promotes an expression of an integer and a float32 array to double."
        yield from _rows(about, _outputs, rows)
    rows = {
        f"all tensors rounded to the type of {operator.tensors[0]}": lambda tensor, first: (
            tensor.astype(first.dtype).astype(tensor.dtype)
        )
    }
    about = "Tensors are rounded before the formula is evaluated; the types of results are correct."
    yield from _rows(about, _each_beside, rows)


def _promoted_types(_: Operator) -> Iterator[Implementation]:
    """Yield mistakes in which results have the types and shapes of NumPy's promotion."""
    rows: Rows = {
        "types and shapes promoted by NumPy": lambda promoted, _own, _tensors: promoted,
        "shapes broadcast by NumPy": lambda _promoted, own, _tensors: own,
        "shapes broadcast by NumPy, several tensors in float32": lambda promoted, _own, tensors: (
            _FLOAT32 if tensors > 1 else promoted
        ),
    }
    about = "Scalars are broadcast with the tensors, and the outputs have the resulting shape."
    yield from _rows(about, _promoted, rows)


def _wrong_reductions(operator: Operator) -> Iterator[Implementation]:
    """Yield mistakes of reductions: wrong tensors, wrong elements or wrong attributes."""
    carries = any(map(operator.carries, operator.outputs))
    if not carries:
        about = "A reduction over one tensor includes the elements of all other tensors."
        yield Implementation("several tensors computed as one", about, compute=_joined)
    for name in (attribute.name for attribute in operator.attributes if attribute.each):
        about = "The attribute has one number for each tensor, but the wrong number is used."
        yield from _rows(about, partial(_numbers_of_other, name), _of_others(name))
    if carries:
        rows: Rows = {
            "all tensors but the first left out": lambda groups: groups[:1],
            "last of several tensors left out": lambda groups: groups[: max(len(groups) - 1, 1)],
        }
        yield from _rows("The omitted tensors do not contribute to the result.", regrouped, rows)
        rows = {
            "last element of each tensor left out": lambda tensor, first: _full(tensor, first)[:-1]
        }
        about = "The omitted elements do not contribute to the result."
        yield from _rows(about, _each_beside, rows)


def _of_others(name: str) -> Rows:
    return {
        f"{name} of the first tensor used for all": lambda item: item[:1] * len(item),
        f"{name} of the last tensor used for all": lambda item: item[-1:] * len(item),
        f"{name} of several tensors in reverse order": lambda item: item[::-1],
    }


# Hooks around the formula. In each group, they change operands and results by name.


def _around(
    operator: Operator,
    about: str,
    rows: Rows,
    before: Callable[[Any, Operands], Operands] = lambda _, operands: operands,
    after: Callable[[Any, Operands, Results], Results] = lambda _, __, results: results,
) -> Iterator[Implementation]:
    """Yield mistakes that change the operands before the formula, or the results after it.

    Args:
        operator: the operator.
        about: description of the mistakes.
        rows: the mistakes; each change is passed to ``before`` and ``after``.
        before: given a change and the operands, returns changed operands.
        after: given a change, the unchanged operands and the results, returns changed results.
    """
    names = operator.input_names(1)

    def changed(row: Any, formula: Formula) -> Formula:
        def altered(*values: Any, **attributes: Any) -> Results:
            # If two mistakes are combined, one of them calls the other and passes all operands by
            # name.
            operands = dict(zip(names, values, strict=False)) | attributes
            return after(row, operands, formula(**before(row, operands)))

        return altered

    for name, row in rows.items():
        yield Implementation(name, about, change=partial(changed, row))


def _operand(operator: Operator, name: str, about: str, rows: Rows) -> Iterator[Implementation]:
    """Yield mistakes that change one operand before the formula is evaluated."""

    def before(change: Any, operands: Operands) -> Operands:
        return operands | {name: change(operands[name])}

    return _around(operator, about, rows, before)


def _exchanged(operator: Operator, names: Sequence[str]) -> Iterator[Implementation]:
    """Yield mistakes that exchange two of the named operands."""
    rows = {f"{a} and {b} exchanged": {a: b, b: a} for a, b in combinations(names, 2)}

    def before(places: dict[str, str], operands: Operands) -> Operands:
        return operands | {name: operands[other] for name, other in places.items()}

    return _around(operator, "Each of the two values is used instead of the other.", rows, before)


def _result(operator: Operator, result: str, about: str, rows: Rows) -> Iterator[Implementation]:
    """Yield mistakes that change one result. A change receives the old tensor and the result."""
    place, source = list(operator.outputs).index(result), operator.outputs[result]

    def after(change: Any, operands: Operands, results: Results) -> Results:
        changed = change(operands[source], results[place])
        return (*results[:place], changed, *results[place + 1 :])

    return _around(operator, about, rows, after=after)


def _picked(operator: Operator, about: str, rows: Rows) -> Iterator[Implementation]:
    """Yield mistakes that return one result as another output.

    Each change maps the position of an output to the position of the result that is returned there.
    """

    def after(places: dict[int, int], _: Operands, results: Results) -> Results:
        return tuple(results[places.get(place, place)] for place in range(len(results)))

    return _around(operator, about, rows, after=after)


def _decimal(value: float) -> float:
    """Return the double that is nearest to the shortest decimal text of a float32 value."""
    return float(str(np.float32(value)))


def _always(value: str) -> Callable[[str], str]:
    return lambda _: value


def _number(value: float) -> Callable[[Any], Any]:
    return lambda number: number.dtype.type(value)


# Hooks around the node. They change its inputs, attributes or outputs.


def _rows(about: str, hook: Callable[[Any], Compute], rows: Rows) -> Iterator[Implementation]:
    for name, change in rows.items():
        yield Implementation(name, about, compute=hook(change))


def regrouped(change: Callable[[Groups], Groups]) -> Compute:
    """Return a computation that changes the groups, and then evaluates the formula."""
    return lambda call: evaluate(replace(call, groups=change(call.groups)))


def _each_beside(change: Callable[[Array, Array], Array]) -> Compute:
    """Return a computation that changes each tensor.

    The change also receives the first tensor of the group.
    """
    return regrouped(
        lambda groups: tuple(
            tuple(change(tensor, group[0]) for tensor in group) for group in groups
        )
    )


def _each_tensor(change: Callable[[Array], Array]) -> Compute:
    return _each_beside(lambda tensor, _: change(tensor))


def _filled(fill: Callable[[Array, tuple[int, ...]], Array]) -> Compute:
    """Return a computation in which ``fill`` replaces the broadcasting of operands."""
    return _each_beside(
        lambda tensor, first: tensor if tensor.shape == first.shape else fill(tensor, first.shape)
    )


def _filled_operand(position: int, fill: Callable[[Array, tuple[int, ...]], Array]) -> Compute:
    """Return a computation in which ``fill`` replaces the broadcasting of one operand."""

    def filled(group: tuple[Array, ...]) -> tuple[Array, ...]:
        tensor, shape = group[position], group[0].shape
        if tensor.shape == shape:
            return group
        return (*group[:position], fill(tensor, shape), *group[position + 1 :])

    return regrouped(lambda groups: tuple(map(filled, groups)))


def _tensor_of_other(position: int, change: Callable[[Groups], Groups]) -> Compute:
    """Return a computation in which a group uses one tensor of another group.

    The tensor is converted to the type of the tensor that it replaces.
    """

    def exchanged(groups: Groups) -> Groups:
        return tuple(
            (
                *group[:position],
                source[position].astype(group[position].dtype),
                *group[position + 1 :],
            )
            for group, source in zip(groups, change(groups), strict=True)
        )

    return regrouped(exchanged)


def _scalar(position: int, change: Callable[[Array], Array]) -> Compute:
    def compute(call: Call[Array]) -> list[Array]:
        scalars = list(call.scalars)
        scalars[position] = change(scalars[position])
        return evaluate(replace(call, scalars=tuple(scalars)))

    return compute


def _counting(position: int) -> Compute:
    """Return a computation that adds 0 to a scalar for the first group, 1 for the second, etc."""

    def compute(call: Call[Array]) -> list[Array]:
        before = count()
        return call.by_group(_scalar(position, lambda value: value + next(before)))

    return compute


def _each_attribute(change: Callable[[float], float], *, only_defaults: bool = False) -> Compute:
    def changed(value: AttributeValue) -> AttributeValue:
        if isinstance(value, tuple):
            return tuple(float(change(number)) for number in value)
        return value if isinstance(value, str) else float(change(value))

    return _attributes(
        lambda call: {
            name: value if only_defaults and name not in call.omitted else changed(value)
            for name, value in call.attributes.items()
        }
    )


def _numbers_of_other(name: str, change: Callable[[Any], Any]) -> Compute:
    """Return a computation in which a group uses the attribute's number for another group."""
    return _attributes(lambda call: {**call.attributes, name: change(call.attributes[name])})


def _attributes(changed: Callable[[Call[Array]], Attributes]) -> Compute:
    return lambda call: evaluate(replace(call, attributes=changed(call)))


def _outputs(change: Callable[[Call[Array], list[Array]], list[Array]]) -> Compute:
    return lambda call: change(call, evaluate(call))


def _each_output(change: Callable[[Array], Array]) -> Compute:
    return lambda call: list(map(change, evaluate(call)))


def _each_place(change: Callable[[Array, Array, Array], Array]) -> Compute:
    """Return a computation that changes each output.

    ``change`` receives the output and two inputs: one with the type of the output, and one with the
    shape of the output.
    """
    return _outputs(
        lambda call, new: [
            change(output, *sources) for output, sources in zip(new, call.sources, strict=True)
        ]
    )


def _each_kind(change: Callable[[list[Array], list[Array]], list[Array]]) -> Compute:
    """Return a computation that changes an output, such as X_new, in all groups together.

    A change receives the values of this output in all groups, and the old values of the tensors.
    """

    def changed(call: Call[Array], new: list[Array]) -> list[Array]:
        old = [np.broadcast_to(like, first.shape) for like, first in call.sources]
        size = len(call.groups)
        kinds = [slice(start, start + size) for start in range(0, len(new), size)]
        return [output for kind in kinds for output in change(new[kind], old[kind])]

    return _outputs(changed)


def _elements_kept(elements: Callable[[int], slice]) -> Compute:
    """Return a computation in which some elements of each output keep their old values."""

    def changed(new: Array, like: Array, first: Array) -> Array:
        unchanged = elements(new.size)
        new.flat[unchanged] = _full(like, first)[unchanged]
        return new

    return _each_place(changed)


def _enlarged(position: int) -> Compute:
    """Return a computation whose outputs are broadcast with a scalar."""

    def changed(call: Call[Array], new: list[Array]) -> list[Array]:
        shape = call.scalars[position].shape
        return [np.broadcast_to(output, np.broadcast_shapes(shape, output.shape)) for output in new]

    return _outputs(changed)


def _typed(dtype: Callable[[Call[Array], int], np.dtype[Any]]) -> Compute:
    """Return a computation whose outputs have a type that depends on the call and the group."""
    return _outputs(
        lambda call, new: [
            output.astype(dtype(call, place % len(call.groups))) for place, output in enumerate(new)
        ]
    )


def _promoted(choose: Callable[[Any, Any, int], np.dtype[Any]]) -> Compute:
    """Return a computation whose outputs have the shapes that NumPy's broadcasting yields.

    Args:
        choose: returns the type of an output, given NumPy's type, the type that the specification
            requires, and the number of groups.
    """

    def compute(call: Call[Array]) -> list[Array]:
        # Attributes are float32, and so are expressions that contain only attributes.
        exact = call.apply(lambda scalar: widen(scalar.reshape(())), widen, np.float32)
        promoted = call.apply(_branching, _branching, np.float32)
        return [
            np.broadcast_to(np.asarray(value), np.shape(as_numpy)).astype(
                choose(np.asarray(as_numpy).dtype, own.dtype, len(call.groups))
            )
            for (value, own, _), (as_numpy, _, _) in zip(exact, promoted, strict=True)
        ]

    return compute


class _Branching(np.ndarray[Any, Any]):
    """An array for which ``np.where`` with a condition of one element returns a branch unchanged.

    As with ``if``, the type of the other branch has no effect on the type of the result.
    """

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and np.size(args[0]) == 1:
            return args[1] if np.all(args[0]) else args[2]
        return super().__array_function__(function, types, args, kwargs)


def _branching(array: Array) -> _Branching:
    return array.view(_Branching)


# Changes that are too long for a row of a table.


def _full(tensor: Array, first: Array) -> Array:
    """Return the elements of a tensor, broadcast to the shape of its group's first tensor."""
    return np.broadcast_to(tensor, first.shape).ravel()


def _interleaved(groups: Groups) -> Groups:
    """Return the groups that result if X1, X2, G1, G2 are read in the order X1, G1, X2, G2."""
    flat = [tensor for members in zip(*groups, strict=True) for tensor in members]
    size = len(groups[0])
    return tuple(tuple(flat[start : start + size]) for start in range(0, len(flat), size))


def _refuse(_operand: Array, _shape: tuple[int, ...]) -> Array:
    raise ValueError("shapes differ")


def _first_in_double(call: Call[Array], outputs: list[Array]) -> list[Array]:
    counts = [value for value in call.scalars if value.dtype.kind == "i"]
    groups = len(call.groups) if all(count.item() > 0 for count in counts) else 0
    return [output.astype(_DOUBLE) for output in outputs[:groups]] + outputs[groups:]


def _joined(call: Call[Array]) -> list[Array]:
    """Compute all groups as one group of all elements.

    The computation uses the types of the first group. Each output is then converted to the type of
    its own tensor.
    """
    outputs = call.split(evaluate(call.concatenated))
    return [
        output.astype(like.dtype) for output, (like, _) in zip(outputs, call.sources, strict=True)
    ]


def _through(dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    return lambda tensor: tensor.astype(dtype).astype(tensor.dtype)


def _tf32(tensor: Array) -> Array:
    """Round to NVIDIA's TensorFloat-32, which has 11 significant bits and the range of float32."""
    fraction, exponent = np.frexp(tensor.astype(_FLOAT32))
    rounded_fraction = np.ldexp(np.rint(np.ldexp(fraction, 11)), exponent - 11)
    return np.asarray(rounded_fraction).astype(tensor.dtype)


def _saturated(tensor: Array) -> Array:
    largest = np.finfo(tensor.dtype).max
    return np.where(np.isinf(tensor), np.copysign(largest, tensor), tensor)
