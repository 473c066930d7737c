"""Questions whose right answer is a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from onnxopt_cli.cases.suites.author import Author
from onnxopt_cli.cases.suites.question import Given, Question
from onnxopt_cli.formula.operator import AttributeValue


def refusals(author: Author) -> Iterator[Question]:
    """Ask for what must be refused."""
    ordinary = author.ask("refused", "", shapes=[(3,)])
    inputs = dict(ordinary.inputs)
    cases: list[tuple[str, str, Mapping[str, Given], dict[str, AttributeValue]]] = []
    if author.stepped:
        last, first = author.stepped[-1], author.first
        short = {name: value for name, value in inputs.items() if name != last}
        wide = inputs | {last: np.full((2, 3), 0.5, np.float32)}
        about = f"{last} would enlarge {first}: {first}'s shape must not change."
        cases = [
            ("short", f"{last} is missing: it must not be made up.", short, {}),
            ("enlarging", about, wide, {}),
        ]
    for name, limits in author.limits.items():
        for word, value in (("low", limits[0] - 0.5), ("high", limits[1] + 0.5)):
            about = f"{name} = {value:g}: it must not be clipped."
            cases.append((f"{word}_{name}", about, inputs, {name: (value,)}))
    for name in author.each:
        number = author.within(name, 0.5)
        about = f"{name} has two numbers for one tensor: none of them must be made up."
        cases.append((f"two_of_{name}", about, inputs, {name: (number, number)}))
    for name in author.choices:
        about = f"{name} has a value that is not allowed: it must not pass for another."
        cases.append((f"unknown_{name}", about, inputs, {name: "bogus"}))
    for name, about, given, attributes in cases:
        yield Question(
            f"refuses_{name}",
            about,
            author.operator,
            given,
            dict(ordinary.attributes) | attributes,
            tags=("conformance", "refusal"),
            rejects=True,
        )
