"""Case templates for the graph around a node: names, orders, shared values, and initializers.

A node refers to its inputs, outputs and attributes by name. The results of a node must not depend
on the order of the graph's declarations, on the sort order of the names, on whether two inputs are
the same value, or on whether an input is an initializer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from onnxopt_cli.cases.case_template import (
    RATE,
    Author,
    Shapes,
)
from onnxopt_cli.cases.onnx.node_model import Wiring
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, TemplateInput

#: If the numbers of this many tensors are sorted as text, 10 precedes 9.
_TEXT_GROUPS = 11
_LONG_PREFIX = "a_name_that_says_where_in_a_large_model_the_tensor_is/" * 2
_SHAPE = (4,)
#: Names of wirings. If one of them detects a mistake, another wiring usually detects it as well.
_ONLY_THOROUGH = (
    "inputs_turned", "attributes_as_declared", "initializers_first", "names_of_one_ending",
)  # fmt: skip
#: Values of an attribute that has a number for each tensor, as shares of the attribute's range.
_SHARES_OF_EACH = ((0.25, 0.75, 0.5), (0.5, 0.25, 0.75))
#: Wirings that are also tested in nodes with several tensors.
_FOR_SEVERAL_TENSORS = (
    "inputs_reversed",
    "outputs_reversed",
    "names_exchanged",
    "names_falling",
    "together",
)


def wirings(author: Author, numbers: Sequence[int], *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates.

    Args:
        author: creates the operator's templates.
        numbers: the numbers of tensors that the nodes optimize.
        thorough: whether to include the wirings of ``_ONLY_THOROUGH``.
    """
    for number in dict.fromkeys(numbers):
        template = author.template("", "", shapes=[_SHAPE] * number, turn=False)
        for word, summary, wiring in _plain_wirings(author, template):
            if word in _ONLY_THOROUGH and not thorough:
                continue
            if number == numbers[0] or word in _FOR_SEVERAL_TENSORS:
                about = f"{summary}: detects lookup by position or by a wrong name."
                wired = author.template(_name(word, number), about, shapes=[_SHAPE] * number)
                yield replace(wired, wiring=wiring)
    many = author.template("", "", shapes=[(2,)] * _TEXT_GROUPS, turn=False)
    counted = {name: f"{place}" for place, name in enumerate(many.inputs, start=1)}
    about = "Names are numbers, 9 before 10: detects names that are sorted as text."
    yield replace(
        many,
        name=_name("names_counted", _TEXT_GROUPS),
        about=about,
        wiring=Wiring(names=counted, inputs=[*many.inputs][::-1]),
    )
    yield from _shared(author, numbers[-1])


def _name(word: str, number: int, *words: str) -> str:
    return "_".join(("wired", word, *([str(number)] if number > 1 else []), *words))


def _plain_wirings(author: Author, template: CaseTemplate) -> Iterator[tuple[str, str, Wiring]]:
    """Yield name, summary and wiring of graphs in which all inputs are separate values."""
    operator = author.operator
    names = [*template.inputs]
    count = len(operator.scalars)
    scalars, tensors = names[:count], names[count:]
    outputs = operator.output_names(len(tensors) // len(operator.tensors))
    attributes = [item.name for item in operator.attributes]
    if len(names) > 1:
        yield "inputs_reversed", "Graph inputs in reverse order", Wiring(inputs=names[::-1])
        half = len(names) // 2
        turned = names[half:] + names[:half]
        yield "inputs_turned", "Graph inputs in another order", Wiring(inputs=turned)
    if len(outputs) > 1:
        reverse = Wiring(outputs=outputs[::-1])
        yield "outputs_reversed", "Graph outputs in reverse order", reverse
    if len(attributes) > 1:
        for word, order in (("falling", sorted(attributes)[::-1]), ("as_declared", attributes)):
            summary = "The node's attributes in another order"
            yield f"attributes_{word}", summary, Wiring(attributes=order)
    swapped = _turned(scalars) | _turned(tensors) | _turned(outputs)
    if any(name != new_name for name, new_name in swapped.items()):
        yield "names_exchanged", "Each input has the name of another", Wiring(names=swapped)
    everything = [*names, *outputs]
    digits = len(str(len(everything)))
    falling = {name: f"t{len(everything) - i:0{digits}}" for i, name in enumerate(everything)}
    yield "names_falling", "Names that sort in reverse", Wiring(names=falling)
    long = {name: f"{_LONG_PREFIX}{i}" for i, name in enumerate(everything)}
    yield "names_long", "Long names that differ at their end", Wiring(names=long)
    endings = {name: f"{i}/layer.weight:0" for i, name in enumerate(everything)}
    yield "names_of_one_ending", "Names that differ at their beginning", Wiring(names=endings)
    capitals = {
        name: "".join("wW"[i >> bit & 1] for bit in range(len(everything).bit_length()))
        for i, name in enumerate(everything)
    }
    yield "names_in_capitals", "Names that differ only in letter case", Wiring(names=capitals)
    held: Mapping[str, Sequence[str]] = {
        "scalars": scalars,
        "first": tensors[:1],
        "last": tensors[-1:],
        "all_but_first": tensors[1:],
        "tensors": tensors if scalars else [],
    }
    for word, initializers in held.items():
        if initializers:
            summary = "Inputs of the node are initializers"
            yield f"initializers_{word}", summary, Wiring(initializers=initializers)
    initializers = (tensors[1:] or tensors) + scalars[:1]
    if len(initializers) < len(names):
        wiring = Wiring(initializers=initializers[::-1], inputs=names[::-1])
        yield "initializers_declared", "Initializers that are also declared as inputs", wiring
        together = Wiring(swapped, names[::-1], outputs[::-1], initializers[:1], attributes[::-1])
        yield "together", "Changed names and orders, and an initializer", together


def _turned(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(names, [*names[1:], *names[:1]], strict=True))


def _shared(author: Author, number: int) -> Iterator[CaseTemplate]:
    """Yield case templates in which two inputs of the node are the same value."""
    operator = author.operator
    groups: list[tuple[str, Sequence[Sequence[tuple[str, int]]]]] = [
        (f"{first}_{second}", [[(first, 0), (second, 0)]])
        for first, second in combinations(operator.tensors, 2)
    ]
    everything = [(tensor, 0) for tensor in operator.tensors]
    if len(everything) > 1 + 1:
        groups.append(("all", [everything]))
    for tensor in operator.tensors:
        pair = [(tensor, group) for group in range(max(2, number))]
        groups.append((f"{tensor}_of_all", [pair]))
    if len(operator.tensors) > 1:
        first, second = operator.tensors[:2]
        groups.append((f"{second}_{first}_across", [[(first, 1), (second, 0)]]))
    for word, alike in groups:
        size = 1 + max(group for places in alike for _, group in places)
        yield shared_values(author, f"wired_shared_{word}", [_SHAPE] * size, alike)
    for name, tensor in product(author.each, operator.tensors):
        for place, shares in enumerate(_SHARES_OF_EACH):
            pair = [(tensor, group) for group in range(len(shares))]
            template_name = f"wired_shared_{tensor}_of_each_{name}_{place}"
            template = shared_values(author, template_name, [_SHAPE] * len(shares), [pair])
            each = {name: tuple(author.within(name, share) for share in shares)}
            yield replace(template, attributes={**template.attributes, **each})
    if author.rate:
        # A tensor without dimensions can be the same value as a scalar.
        template = author.template("", "", shapes=[()])
        for tensor in operator.tensors:
            inputs: dict[str, TemplateInput] = dict(template.inputs)
            inputs[tensor] = np.array(RATE, np.float32)
            yield replace(
                template,
                name=f"wired_shared_{author.rate}_{tensor}",
                about=f"{author.rate} and {tensor} are the same value: detects a missing input.",
                inputs=inputs,
                wiring=Wiring(names={tensor: author.rate}),
            )


def shared_values(
    author: Author,
    name: str,
    shapes: Shapes,
    alike: Sequence[Sequence[tuple[str, int]]],
) -> CaseTemplate:
    """Return a case template in which the tensors of each list in ``alike`` are the same value."""
    template = author.template(name, "", shapes=shapes)
    names: dict[str, str] = {}
    inputs = dict(template.inputs)
    for places in alike:
        place_names = [author.slot_name(*place, len(shapes)) for place in places]
        value = author.tensor(places[0][0], places[0][1], shapes[places[0][1]])
        if any(tensor in author.nonnegative for tensor, _ in places):
            value = np.abs(value)
        for input_name in place_names:
            inputs[input_name] = np.asarray(value, np.float32)
        names |= dict.fromkeys(place_names[1:], place_names[0])
    shared = ", ".join(
        " and ".join((value_name, *(name for name in names if names[name] == value_name)))
        for value_name in dict.fromkeys(names.values())
    )
    about = f"{shared} are the same value: detects a missing input or an overwritten value."
    return replace(template, about=about, inputs=inputs, wiring=Wiring(names=names))
