"""Case templates about the graph around a node: names, orders, shared values, and initializers.

A node finds its inputs, outputs and attributes by name. Nothing depends on the order in which the
graph declares them, on how names sort, on whether two inputs are one value, or on whether the graph
holds one as an initializer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from onnxopt_cli.cases.onnx.node_model import Wiring
from onnxopt_cli.cases.yaml.case_writer import CaseTemplate, Given
from onnxopt_cli.suites.case_template import (
    RATE,
    Author,
    Shapes,
)

#: So many tensors that their numbers sort otherwise as text.
_TEXT_GROUPS = 11
_LONG_PREFIX = "a_name_that_says_where_in_a_large_model_the_tensor_is/" * 2
_SHAPE = (4,)
#: What mostly fails with another wiring, as with the reverse order.
_ONLY_THOROUGH = (
    "inputs_turned", "attributes_as_declared", "initializers_first", "names_of_one_ending",
)  # fmt: skip
#: Of attributes with a number for each tensor, in a rising order and in another one.
_SHARES_OF_EACH = ((0.25, 0.75, 0.5), (0.5, 0.25, 0.75))
#: What is asked of several tensors, too.
_OF_MANY = ("inputs_reversed", "outputs_reversed", "names_exchanged", "names_falling", "together")


def wirings(author: Author, numbers: Sequence[int], *, thorough: bool) -> Iterator[CaseTemplate]:
    """Yield the case templates.

    Args:
        author: of the operator.
        numbers: how many tensors the nodes optimize.
        thorough: whether also what other case templates nearly always tell.
    """
    for number in dict.fromkeys(numbers):
        template = author.ask("", "", shapes=[_SHAPE] * number, turn=False)
        for word, what, wiring in _plain_wirings(author, template):
            if word in _ONLY_THOROUGH and not thorough:
                continue
            if number == numbers[0] or word in _OF_MANY:
                about = f"{what}: catches what is found by its place, or by another's name."
                asked = author.ask(_name(word, number), about, shapes=[_SHAPE] * number)
                yield replace(asked, wiring=wiring)
    many = author.ask("", "", shapes=[(2,)] * _TEXT_GROUPS, turn=False)
    counted = {own: f"{place}" for place, own in enumerate(many.inputs, start=1)}
    about = "Names are numbers, 9 before 10: catches names that are sorted as text."
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
    """Yield wirings of a node whose inputs are values of their own: a word, what it is, itself."""
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
            what = "The node's attributes in another order"
            yield f"attributes_{word}", what, Wiring(attributes=order)
    swapped = _turned(scalars) | _turned(tensors) | _turned(outputs)
    if any(own != other for own, other in swapped.items()):
        yield "names_exchanged", "Each input has the name of another", Wiring(names=swapped)
    everything = [*names, *outputs]
    digits = len(str(len(everything)))
    falling = {own: f"t{len(everything) - it:0{digits}}" for it, own in enumerate(everything)}
    yield "names_falling", "Names that sort in reverse", Wiring(names=falling)
    long = {own: f"{_LONG_PREFIX}{it}" for it, own in enumerate(everything)}
    yield "names_long", "Long names that differ at their end", Wiring(names=long)
    endings = {own: f"{it}/layer.weight:0" for it, own in enumerate(everything)}
    yield "names_of_one_ending", "Names that differ at their beginning", Wiring(names=endings)
    capitals = {
        own: "".join("wW"[it >> bit & 1] for bit in range(len(everything).bit_length()))
        for it, own in enumerate(everything)
    }
    yield "names_in_capitals", "Names that differ in case alone", Wiring(names=capitals)
    held: Mapping[str, Sequence[str]] = {
        "scalars": scalars,
        "first": tensors[:1],
        "last": tensors[-1:],
        "all_but_first": tensors[1:],
        "tensors": tensors if scalars else [],
    }
    for word, some in held.items():
        if some:
            what = "The graph holds inputs of the node as initializers"
            yield f"initializers_{word}", what, Wiring(initializers=some)
    most = (tensors[1:] or tensors) + scalars[:1]
    if len(most) < len(names):
        wiring = Wiring(initializers=most[::-1], inputs=names[::-1])
        yield "initializers_declared", "Initializers that are declared as inputs, too", wiring
        together = Wiring(swapped, names[::-1], outputs[::-1], most[:1], attributes[::-1])
        yield "together", "Other names, orders and an initializer", together


def _turned(names: Sequence[str]) -> dict[str, str]:
    return dict(zip(names, [*names[1:], *names[:1]], strict=True))


def _shared(author: Author, number: int) -> Iterator[CaseTemplate]:
    """Yield case templates in which two inputs of the node are one value."""
    operator = author.operator
    groups: list[tuple[str, Sequence[Sequence[tuple[str, int]]]]] = [
        (f"{one}_{other}", [[(one, 0), (other, 0)]])
        for one, other in combinations(operator.tensors, 2)
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
        yield _with_shared(author, f"wired_shared_{word}", [_SHAPE] * size, alike)
    for name, tensor in product(author.each, operator.tensors):
        for place, own in enumerate(_SHARES_OF_EACH):
            pair = [(tensor, group) for group in range(len(own))]
            asked = _with_shared(
                author, f"wired_shared_{tensor}_of_each_{name}_{place}", [_SHAPE] * len(own), [pair]
            )
            each = {name: tuple(author.within(name, share) for share in own)}
            yield replace(asked, attributes={**asked.attributes, **each})
    if author.rate:
        # A scalar is a tensor of no dimensions, too.
        template = author.ask("", "", shapes=[()])
        for tensor in operator.tensors:
            inputs: dict[str, Given] = dict(template.inputs)
            inputs[tensor] = np.array(RATE, np.float32)
            yield replace(
                template,
                name=f"wired_shared_{author.rate}_{tensor}",
                about=f"{author.rate} and {tensor} are one value: catches one that is lost.",
                inputs=inputs,
                wiring=Wiring(names={tensor: author.rate}),
            )


def _with_shared(
    author: Author,
    name: str,
    shapes: Shapes,
    alike: Sequence[Sequence[tuple[str, int]]],
) -> CaseTemplate:
    """Return a case template in which the tensors of some places are one value each."""
    operator = author.operator
    template = author.ask(name, "", shapes=shapes)
    names: dict[str, str] = {}
    inputs = dict(template.inputs)
    for places in alike:
        own = [_own_name(author, place, len(shapes)) for place in places]
        value = author.tensor(places[0][0], places[0][1], shapes[places[0][1]])
        if any(tensor in author.nonnegative for tensor, _ in places):
            value = np.abs(value)
        for each in own:
            inputs[each] = np.asarray(value, np.float32)
        names |= dict.fromkeys(own[1:], own[0])
    said = ", ".join(" and ".join((own, *(name for name in names if names[name] == own)))
                     for own in dict.fromkeys(names.values()))  # fmt: skip
    about = f"{said} are one value of the graph: catches one that is lost or changed in between."
    assert operator is template.operator  # noqa: S101
    return replace(template, about=about, inputs=inputs, wiring=Wiring(names=names))


def _own_name(author: Author, place: tuple[str, int], groups: int) -> str:
    operator, (tensor, group) = author.operator, place
    position = operator.tensors.index(tensor) * groups + group
    return operator.input_names(groups)[len(operator.scalars) + position]
