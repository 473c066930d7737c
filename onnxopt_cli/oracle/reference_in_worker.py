"""A backend that returns condition estimates of a model's outputs instead of the outputs.

The backend runs in a worker, because a model may loop forever.

The response consists of an empty value for each declared output, a JSON text that describes the
readings, and the tensors of the readings. A reading is one answer to the questions that the
published sources of ONNX answer differently. The tensors are pairs of a correct value and its
tolerances, ordered by reading and output. If the metadata of the model contain the key
:data:`VALUES`, :data:`NODE_VALUES`, :data:`CONTRIBUTIONS` or :data:`ERROR_CONTRIBUTIONS`, the
response has different content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import onnx

from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.oracle.estimate.condition_estimate import Reading, all_readings
from onnxopt_cli.oracle.estimate.conditioned_outputs import ConditionedOutput
from onnxopt_cli.oracle.estimate.contributions import (
    Contribution,
    node_contributions,
    node_error_contributions,
)
from onnxopt_cli.oracle.estimate.reference_values import (
    NoReferenceError,
    reference_values,
    values_of_nodes,
)

#: The key in a model's metadata that requests the outputs instead of a condition estimate.
VALUES = "onnxopt.values"
#: The key in a model's metadata that requests the outputs of consecutive nodes, see
#: :func:`values_of_nodes`.
NODE_VALUES = "onnxopt.node-values"
#: The key in a model's metadata that requests the contributions of nodes to the tolerances.
#: :func:`parsed_contributions` parses the response.
CONTRIBUTIONS = "onnxopt.contributions"
#: The key in a model's metadata that requests the contributions of nodes to the errors of a
#: backend.
ERROR_CONTRIBUTIONS = "onnxopt.error-contributions"
#: The prefix of the names of additional inputs, which hold the outputs that a backend returned for
#: nodes.
RETURNED = "onnxopt.returned/"


class ConditionedReference:
    """A backend that returns condition estimates of a model's outputs instead of the outputs."""

    def run(self, model: onnx.ModelProto, inputs: Mapping[str, Value]) -> list[Any]:
        """Return the readings of a model, in the form that :func:`readings` parses."""
        output_count = len(model.graph.output)
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        if VALUES in metadata:
            return reference_values(model, inputs)
        if NODE_VALUES in metadata:
            return values_of_nodes(model, inputs)
        if CONTRIBUTIONS in metadata:
            return _contributions_response(output_count, node_contributions(model, inputs))
        if ERROR_CONTRIBUTIONS in metadata:
            returned: dict[str, Any] = {
                name.removeprefix(RETURNED): value
                for name, value in inputs.items()
                if name.startswith(RETURNED)
            }
            fed = {name: inputs[name] for name in inputs if not name.startswith(RETURNED)}
            contributions = node_error_contributions(model, fed, returned)
            return _contributions_response(output_count, contributions)
        try:
            results = all_readings(model, inputs, metadata.get("onnxopt.math", ""))
        except NoReferenceError as error:
            reason = printable(str(error), lines=True)
            results = [Reading((), [ConditionedOutput(reason=reason)] * output_count)]
        outputs = [output for reading in results for output in reading.conditioned_outputs]
        description = json.dumps(
            [
                [
                    reading.second,
                    reading.identities_used,
                    [*map(_description, reading.conditioned_outputs)],
                ]
                for reading in results
            ]
        )
        pairs = [pair for output in outputs for pair in (*output.right, *output.reformulated)]
        tensors = [tensor for pair in pairs for tensor in pair]
        return [None] * output_count + [np.array([description], dtype=object), *tensors]


def _contributions_response(output_count: int, contributions: Sequence[Contribution]) -> list[Any]:
    text = json.dumps([astuple(entry) for entry in contributions])
    return [None] * output_count + [np.array([text], dtype=object)]


def _description(output: ConditionedOutput) -> tuple[Any, ...]:
    """Return the fields of an output for JSON; a list of tensors is replaced by its length."""
    return (
        len(output.right),
        len(output.reformulated),
        output.reason,
        output.units,
        output.structure,
        output.labels,
    )


def readings(returned: Sequence[Value]) -> list[Reading]:
    """Return the readings in a worker's response.

    Raises:
        ValueError: if the response has another form.
    """
    values: list[Any] = [value for value in returned if value is not None]
    try:
        (description,), *tensors = values
        pairs = iter(list(zip(tensors[::2], tensors[1::2], strict=True)))
        return [
            Reading(
                tuple(second),
                [_parsed_output(fields, pairs) for fields in outputs],
                tuple(identities_used),
            )
            for second, identities_used, outputs in json.loads(description)
        ]
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError("the condition estimate returned an invalid response") from error


def parsed_contributions(returned: Sequence[Value]) -> list[Contribution]:
    """Return the contributions in a worker's response.

    Raises:
        ValueError: if the response has another form.
    """
    values: list[Any] = [value for value in returned if value is not None]
    try:
        ((text,),) = values
        return [
            Contribution(str(output), str(node), float(share))
            for output, node, share in json.loads(text)
        ]
    except (TypeError, ValueError) as error:
        raise ValueError("the oracle returned invalid contributions") from error


def _parsed_output(fields: Sequence[Any], pairs: Iterator[Any]) -> ConditionedOutput:
    right_count, reformulated_count, reason, units, structure, labels = fields
    right = tuple(next(pairs) for _ in range(right_count))
    reformulated = tuple(next(pairs) for _ in range(reformulated_count))
    return ConditionedOutput(right, reformulated, reason, units, structure, tuple(labels))
