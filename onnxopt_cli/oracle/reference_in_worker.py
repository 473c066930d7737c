"""The conditioned reading as something that a worker runs: a model may loop without end.

What it finds goes back as tensors: behind nothing for each declared output, a text that says what
follows, then the tensors of each output, by one reading after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.text import exception_text
from onnxopt_cli.core.values import Value
from onnxopt_cli.oracle.condition_estimate import (
    ConditionedOutput,
    NoReferenceError,
    Reading,
    all_readings,
)


class ConditionedReference:
    """Answers with what is right of a model's outputs, in place of the outputs."""

    def run(self, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Any]:
        """Return the readings; see :func:`readings`."""
        count = len(model.graph.output)
        declared = {it.key: it.value for it in model.metadata_props}
        try:
            found = all_readings(model, inputs, declared.get("onnxopt.math", ""))
        except NoReferenceError as error:
            why = exception_text(error).removeprefix("CannotAskError: ")
            found = [Reading((), [ConditionedOutput(reason=why)] * count)]
        says = json.dumps(
            [
                [
                    reading.second,
                    reading.identities_used,
                    [*map(_said, reading.conditioned_outputs)],
                ]
                for reading in found
            ]
        )
        judged = (
            conditioned_output
            for reading in found
            for conditioned_output in reading.conditioned_outputs
        )
        pairs = (pair for it in judged for pair in (*it.right, *it.reformulated))
        arrays = [array for pair in pairs for array in pair]
        return [None] * count + [np.array([says], dtype=object), *arrays]


def _taken(pairs: Iterator[Any], count: int) -> tuple[Any, ...]:
    return tuple(next(pairs) for _ in range(count))


def _said(conditioned_output: ConditionedOutput) -> tuple[Any, ...]:
    """Return how many results are right of an output, and what is known beside them."""
    it = conditioned_output
    return len(it.right), len(it.reformulated), it.reason, it.units, it.structure, it.labels


def readings(returned: Sequence[Value]) -> list[Reading]:
    """Return the readings that a worker has sent.

    Raises:
        ValueError: if they are none.
    """
    arrays: list[Any] = [it for it in returned if it is not None]
    try:
        (says,), *rest = arrays
        pairs = iter(list(zip(rest[::2], rest[1::2], strict=True)))
        return [
            Reading(
                tuple(second),
                [
                    ConditionedOutput(
                        _taken(pairs, count),
                        _taken(pairs, rough),
                        reason,
                        units,
                        structure,
                        tuple(labels),
                    )
                    for count, rough, reason, units, structure, labels in judged
                ],
                tuple(identities_used),
            )
            for second, identities_used, judged in json.loads(says)
        ]
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError("found no judgements") from error
