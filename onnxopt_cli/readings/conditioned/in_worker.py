"""The conditioned reading as something that a worker runs: a model may loop without end.

What it finds goes back as tensors: behind nothing for each declared output, a text that says what
follows, then the tensors of each output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.text import exception_text
from onnxopt_cli.core.values import Value
from onnxopt_cli.readings.conditioned.conditioned import CannotAskError, Judgement, condition


class Asked:
    """Answers with what is right of a model's outputs, in place of the outputs."""

    def run(self, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Any]:
        """Return the judgements of all outputs; see :func:`judgements`."""
        count = len(model.graph.output)
        declared = {it.key: it.value for it in model.metadata_props}
        try:
            found = condition(model, inputs, declared.get("onnxopt.math", ""))
        except CannotAskError as error:
            why = exception_text(error).removeprefix("CannotAskError: ")
            found = [Judgement(reason=why)] * count
        says = json.dumps([[it.reason, len(it.right)] for it in found])
        arrays = [array for judgement in found for pair in judgement.right for array in pair]
        return [None] * count + [np.array([says], dtype=object), *arrays]


def judgements(returned: Sequence[Value]) -> list[Judgement]:
    """Return the judgements that a worker has sent.

    Raises:
        ValueError: if they are none.
    """
    arrays: list[Any] = [it for it in returned if it is not None]
    try:
        (says,), *rest = arrays
        pairs = iter(list(zip(rest[::2], rest[1::2], strict=True)))
        return [
            Judgement(tuple(next(pairs) for _ in range(count)), reason)
            for reason, count in json.loads(says)
        ]
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError("found no judgements") from error
