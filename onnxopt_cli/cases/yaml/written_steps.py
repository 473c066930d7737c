"""The steps of a trajectory as an author writes them down, and as the text of a case file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from onnxopt_cli.cases.values.tensor_notation import (
    list_tokens,
    mapping_tokens,
    number_text,
    tensor_tokens,
)
from onnxopt_cli.cases.values.tensor_random import RandomTensor

_FLOAT32 = np.dtype(np.float32)

#: What stands for an input of each step: random data, numbers in nested lists, or a mapping such as
#: ``{"quadratic": {"center": (1.0, 2.0)}}``.
Notation: TypeAlias = "RandomTensor | float | tuple[Notation, ...] | Mapping[str, Notation]"


@dataclass(frozen=True, slots=True)
class WrittenSteps:
    """What a case says of its steps.

    Attributes:
        count: number of steps.
        inputs: inputs that change and are not fed back.
    """

    count: int
    inputs: Mapping[str, Notation]


def notation_tokens(notation: Notation) -> list[str]:
    """Write an input of each step; numbers with as many digits as a double needs."""
    if isinstance(notation, RandomTensor):
        return tensor_tokens(notation, _FLOAT32)
    if isinstance(notation, Mapping):
        return mapping_tokens({name: notation_tokens(it) for name, it in notation.items()})
    if isinstance(notation, tuple):
        return list_tokens([notation_tokens(it) for it in notation])
    return [number_text(notation)]
