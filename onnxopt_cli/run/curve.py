"""How a backend's error grows over the steps of a trajectory, and where it left the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxopt_cli.core.compare import element_shares
from onnxopt_cli.core.tolerance import Tolerance
from onnxopt_cli.core.values import Value


@dataclass(frozen=True, slots=True)
class Curve:
    """The course of a trajectory.

    Attributes:
        shares: by recorded step, the largest share of its limit that an element uses; infinite
            where it is off by anything and may not be.
        departure: the first step, and its worst element, over the limit: ``step 37, X_new[4]``;
            empty if there is none.
    """

    shares: Mapping[int, float] = field(default_factory=dict)
    departure: str = ""


def course(
    recorded: Sequence[int],
    expected: Mapping[str, Value],
    actual: Sequence[Value],
    tolerances: Mapping[str, Tolerance],
) -> Curve:
    """Follow outputs that were stacked step by step; nothing of those of another structure.

    Args:
        recorded: the steps in the order of the rows.
        expected: the expected outputs by name, in the graph's order.
        actual: what the backend returned, in that order.
        tolerances: what each output is judged by.
    """
    most = np.zeros(len(recorded))
    worst: list[str] = [""] * len(recorded)
    for (name, mine), theirs in zip(expected.items(), actual, strict=False):
        if not _comparable(mine, theirs):
            return Curve()
        assert isinstance(mine, np.ndarray)  # noqa: S101 - for the type checker; they are alike
        assert isinstance(theirs, np.ndarray)  # noqa: S101 - as above
        shares = element_shares(mine, theirs, tolerances[name]).reshape(len(recorded), -1)
        if not shares.size:
            continue
        places = np.argmax(shares, axis=1)
        rows = shares[np.arange(len(recorded)), places]
        for row in np.flatnonzero(rows > most):
            worst[row] = f"{name}{_index(places[row], mine.shape[1:])}"
        most = np.maximum(most, rows)
    beyond = np.flatnonzero(most > 1)
    departure = f"step {recorded[beyond[0]]}, {worst[beyond[0]]}" if beyond.size else ""
    return Curve(dict(zip(recorded, most.tolist(), strict=True)), departure)


def _comparable(mine: Value, theirs: Value) -> bool:
    arrays = isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray)
    return arrays and (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)  # type: ignore[union-attr]


def _index(place: int, shape: tuple[int, ...]) -> str:
    index = [int(part) for part in np.unravel_index(place, shape)] if shape else []
    return str(index) if index else ""
