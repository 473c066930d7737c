"""Questions about what is next to a rank among the elements of a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from onnxopt_cli.cases.suites.author import Author
from onnxopt_cli.cases.suites.question import Question


def ranks(author: Author) -> Iterator[Question]:
    """Ask for what is next to a rank among the elements, where an attribute may choose one."""
    layers = (
        ("whole_rank", 0.5, (3, -1, 2, -5, 4), "An element at the threshold"),
        ("signed_rank", 0.25, (-6, 1, -2, 5, 3, -4, 0.5, 7, -8), "Elements of both signs"),
        ("some_zero", 0.5, (0, 3, 0, -1, 2, 0, -4), "Zeros below the threshold"),
        ("between_ranks", 0.6, (0.5, -4, 3, 1.5), "A threshold between two elements"),
        ("ties", 0.6, (1, -1, 1, 1, 2), "Equal magnitudes at the threshold"),
        ("ties_above", 0.5, (4, -4, 1, 0.5, 4, -2, 4), "Equal magnitudes at the threshold"),
        ("mostly_zero", 0.6, (0, 0, 0, -0.0, 2), "A threshold of zero"),
        ("one_element", 1.0, (-3,), "One element"),
    )
    for name, (word, fraction, values, what) in product(author.limits, layers):
        about = f"{what}: catches another rank, and another comparison with it."
        zero = dict.fromkeys(author.operator.tensors, np.zeros(len(values)))
        given = author.ordinary | {name: author.within(name, fraction)}
        tensors = zero | {author.first: np.array(values, float)}
        yield author.ask(f"{name}_{word}", about, given=given, tensors=tensors)
