"""Wrong implementations that give a formula other operands or return other results.

They follow from the signature: each tensor, attribute and output on its own and in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from onnxopt_cli.formula.operator import Attribute, Operator
from onnxopt_cli.formula.rewrite import Formula
from onnxopt_cli.readings.implementation import Implementation

Operands = dict[str, Any]
Results = tuple[Any, ...]


def wrong_arguments(operator: Operator) -> Iterator[Implementation]:
    """Yield the implementations; some may equal the formula on every input."""
    yield from _wrong_scalars(operator)
    yield from _wrong_tensors(operator)
    for attribute in operator.attributes:
        yield from _wrong_attribute(operator, attribute)
    numeric = [attribute.name for attribute in operator.attributes if not attribute.choices]
    yield from _exchanged(operator, numeric)
    yield from _wrong_results(operator)


def _wrong_scalars(operator: Operator) -> Iterator[Implementation]:
    for scalar in operator.scalars:
        name = scalar.name
        changes: dict[str, Callable[[Any], Any]] = {
            f"{name} taken as 1": np.ones_like,
            f"{name} negated": np.negative,
        }
        if "int64" in scalar.dtypes:
            changes |= {
                f"{name} taken as 0": np.zeros_like,
                f"{name} + 1": lambda value: value + 1,
                f"{name} - 1": lambda value: value - 1,
                f"magnitude of {name}": np.abs,
            }
        else:
            changes |= {f"{name} squared": np.square, f"root of {name}": np.sqrt}
        for title, change in changes.items():
            yield _given(operator, title, "Every tensor sees it so.", name, change)


def _wrong_tensors(operator: Operator) -> Iterator[Implementation]:
    yield from _exchanged(operator, operator.tensors)
    for name in operator.tensors:
        changes: dict[str, Callable[[Any], Any]] = {
            f"{name} taken as 0": np.zeros_like,
            f"{name} negated": np.negative,
            f"{name} clipped to [-1, 1]": lambda value: np.clip(value, -1, 1),
            f"{name} truncated to integers": np.trunc,
            f"NaN in {name} taken as 0": lambda value: np.where(np.isnan(value), 0, value),
        }
        for title, change in changes.items():
            yield _given(operator, title, "Before anything is computed.", name, change)


def _wrong_attribute(operator: Operator, attribute: Attribute) -> Iterator[Implementation]:
    name = attribute.name
    if attribute.choices:
        for choice in attribute.choices:
            yield _given(
                operator,
                f"{name} taken as {choice}",
                "The attribute is not read.",
                name,
                _always(choice),
            )
        following = dict(
            zip(attribute.choices, attribute.choices[1:] + attribute.choices[:1], strict=True)
        )
        about = "Each is taken for another."
        yield _given(operator, f"values of {name} exchanged", about, name, following.__getitem__)
        return
    for value in (0.0, 1.0):
        yield _given(
            operator,
            f"{name} taken as {value:g}",
            "The attribute is not read.",
            name,
            _always(value),
        )
    about = "Before anything is computed."
    yield _given(operator, f"{name} negated", about, name, np.negative)
    yield _given(operator, f"{name} squared", about, name, np.square)
    whole = sum(attribute.limits or (0.0, 1.0))
    yield _given(
        operator,
        f"{whole:g} - {name} for {name}",
        about,
        name,
        lambda given: given.dtype.type(whole) - given,
    )
    if attribute.default is not None:
        yield _given(
            operator,
            f"{name} taken as its default",
            "The attribute is not read.",
            name,
            _always(attribute.default),
        )
        for wrong in dict.fromkeys((0.0, 1.0, attribute.default * 10)):
            yield Implementation(
                f"{name} defaults to {wrong:g}",
                f"A node that leaves {name} out means {attribute.default:g}.",
                defaults={name: wrong},
            )


def _wrong_results(operator: Operator) -> Iterator[Implementation]:
    outputs, sources = list(operator.outputs), list(operator.outputs.values())
    for first, second in combinations(range(len(outputs)), 2):
        yield _resulting(
            operator,
            f"outputs {outputs[first]} and {outputs[second]} exchanged",
            "Each stands in the other's place.",
            _swapped(first, second),
        )
        for wrong, right in ((first, second), (second, first)):
            yield _resulting(
                operator,
                f"{outputs[right]} returned as {outputs[wrong]}, too",
                "Both lie in one buffer.",
                _copied(right, wrong),
            )
    for position, (output, source) in enumerate(zip(outputs, sources, strict=True)):
        changes: dict[str, Callable[[Any, Any], Any]] = {
            f"{source} returned as {output}": lambda old, _: old,
            f"{output} negated": lambda _, new: -new,
            f"{output} halved": lambda _, new: new / 2,
            f"{output} returned as its change": lambda old, new: new - old,
            f"{output} changed in the other direction": lambda old, new: old - (new - old),
            f"{output} changed twice as far": lambda old, new: new + (new - old),
            f"{output} clipped to [-1, 1]": lambda _, new: np.clip(new, -1, 1),
            f"{output} without its sign": lambda _, new: np.abs(new),
            f"NaN in {output} returned as 0": lambda _, new: np.where(np.isnan(new), 0, new),
            f"infinity in {output} returned as NaN": lambda _, new: np.where(
                np.isinf(new), np.nan, new
            ),
            f"one NaN in {output} returned as all NaN": lambda _, new: new + 0 * np.sum(new),
        }
        for title, change in changes.items():
            yield _resulting(
                operator,
                title,
                "After everything is computed.",
                _changed(position, source, change),
            )


def _exchanged(operator: Operator, names: Sequence[str]) -> Iterator[Implementation]:
    for first, second in combinations(names, 2):
        about = "Each is taken for the other."
        alter = _renamed({first: second, second: first})
        yield _operands(operator, f"{first} and {second} exchanged", about, alter)


def _given(
    operator: Operator, name: str, about: str, operand: str, change: Callable[[Any], Any]
) -> Implementation:
    """Return the implementation that changes one operand first."""
    return _operands(
        operator,
        name,
        about,
        lambda operands: {**operands, operand: change(operands[operand])},
    )


def _operands(
    operator: Operator, name: str, about: str, alter: Callable[[Operands], Operands]
) -> Implementation:
    order = _positional(operator)

    def change(formula: Formula) -> Formula:
        def altered(*values: Any, **attributes: Any) -> Results:
            operands = alter(dict(zip(order, values, strict=True)) | attributes)
            results: Results = formula(**operands)
            return results

        return altered

    return Implementation(name, about, change=change)


def _resulting(
    operator: Operator, name: str, about: str, alter: Callable[[Operands, Results], Results]
) -> Implementation:
    order = _positional(operator)

    def change(formula: Formula) -> Formula:
        def altered(*values: Any, **attributes: Any) -> Results:
            results = formula(*values, **attributes)
            return alter(dict(zip(order, values, strict=True)), results)

        return altered

    return Implementation(name, about, change=change)


def _positional(operator: Operator) -> tuple[str, ...]:
    return (*(scalar.name for scalar in operator.scalars), *operator.tensors)


def _always(value: float | str) -> Callable[[Any], Any]:
    return lambda given: value if isinstance(value, str) else given.dtype.type(value)


def _renamed(names: dict[str, str]) -> Callable[[Operands], Operands]:
    return lambda operands: operands | {new: operands[old] for new, old in names.items()}


def _swapped(first: int, second: int) -> Callable[[Operands, Results], Results]:
    def alter(_: Operands, results: Results) -> Results:
        swapped = list(results)
        swapped[first], swapped[second] = results[second], results[first]
        return tuple(swapped)

    return alter


def _copied(source: int, target: int) -> Callable[[Operands, Results], Results]:
    return lambda _, results: (*results[:target], results[source], *results[target + 1 :])


def _changed(
    position: int, source: str, change: Callable[[Any, Any], Any]
) -> Callable[[Operands, Results], Results]:
    def alter(operands: Operands, results: Results) -> Results:
        changed = change(operands[source], results[position])
        return (*results[:position], changed, *results[position + 1 :])

    return alter
