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
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.readings.conditioned.conditioned import CannotAskError, Judgement, condition


class Asked:
    """Answers with what is right of a model's outputs, in place of the outputs."""

    def run(self, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Any]:
        """Return the judgements of all outputs; see :func:`judgements`."""
        try:
            declared = {it.key: it.value for it in model.metadata_props}
            found = condition(model, inputs, declared.get("onnxopt.math", ""))
        except CannotAskError as error:
            why = exception_text(error).removeprefix("CannotAskError: ")
            found = [Judgement(None, reason=why)] * len(model.graph.output)
        says = np.empty(1, dtype=object)
        says[0] = json.dumps([[it.reason, len(it.others)] for it in found])
        arrays = [array for judgement in found for array in _arrays(judgement)]
        return [None] * len(model.graph.output) + [says, *arrays]


def _arrays(judgement: Judgement) -> list[Array]:
    if judgement.expected is None or judgement.limit is None:
        return []
    pairs = [(judgement.expected, judgement.limit), *judgement.others]
    return [array for pair in pairs for array in pair]


def judgements(returned: Sequence[Value]) -> list[Judgement]:
    """Return the judgements that a worker has sent.

    Raises:
        ValueError: if they are none.
    """
    rest = iter([it for it in returned if isinstance(it, np.ndarray)])
    found = []
    try:
        for reason, others in json.loads(next(rest)[0]):
            if reason:
                found.append(Judgement(None, reason=reason))
                continue
            (expected, limit), *pairs = [(next(rest), next(rest)) for _ in range(others + 1)]
            found.append(Judgement(expected, limit, tuple(pairs)))
    except (StopIteration, TypeError, LookupError) as error:
        raise ValueError("found no judgements") from error
    return found
