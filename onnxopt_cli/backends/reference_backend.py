"""onnx's own reference evaluator, as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import onnx

from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Value
from onnxopt_cli.errors import Unsupported

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

# How the evaluator says that it has nothing for a node. Most are NotImplementedError, but a version
# of a domain without an implementation is a plain RuntimeError.
_UNKNOWN_OPERATOR = re.compile(
    r"(?:Node type|No registered schema for operator|No registered implementation for operator|"
    r"No implementation for operator|No implementation was found for node type) "
    r"'(?P<name>.*?)' (?:and |from |)domain '(?P<domain>.*?)'"
    r"(?: is unknown,| and version |,|\.| in\n)"
)
# What follows is everything that it knows, which says nothing about the model.
_LISTING = re.compile(r"( Available implementations:| in)\n.*", re.DOTALL)


class ReferenceBackend:
    """The backend ``onnx-reference``.

    An operator's implementation that raises NotImplementedError, for a mode or an attribute, says
    in Python's own word that it does not know it, so that counts as unsupported; all else that an
    implementation raises is its failure.
    """

    name = "onnx-reference"

    @property
    def version(self) -> str:
        """The version of onnx."""
        return f"onnx {onnx.__version__}"

    def prepare(self, model: onnx.ModelProto) -> ReferenceModel:
        """Load the implementation of every node.

        Raises:
            Unsupported: if one has none.
        """
        from onnx.reference import ReferenceEvaluator

        with reporting_unsupported():
            return ReferenceModel(ReferenceEvaluator(model))


class ReferenceModel:
    """A model in onnx's reference evaluator, or in one derived from it."""

    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        self._evaluator = evaluator

    def run(self, inputs: Mapping[str, Value]) -> Sequence[object]:
        """Compute the graph's outputs in order.

        Raises:
            Unsupported: if an operator's implementation says that something is not implemented.
        """
        with reporting_unsupported(), np.errstate(all="ignore"):
            returned = self._evaluator.run(None, dict(inputs))
        types = self._evaluator.output_types
        return [_unwrapped(value, of_type) for value, of_type in zip(returned, types, strict=True)]


def _unwrapped(value: object, declared: onnx.TypeProto) -> object:
    """Take an optional out of the list of one that the evaluator's operator Optional puts it in."""
    if not declared.HasField("optional_type") or not isinstance(value, list) or len(value) != 1:
        return value
    holds_sequence = declared.optional_type.elem_type.HasField("sequence_type")
    is_wrapped = not holds_sequence or value[0] is None or isinstance(value[0], list)
    return value[0] if is_wrapped else value


@contextmanager
def reporting_unsupported() -> Iterator[None]:
    """Turn what onnx's reference evaluator raises for what it does not know into Unsupported."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        message = str(error)
        match = _UNKNOWN_OPERATOR.match(message)
        if match is None and not isinstance(error, NotImplementedError):
            raise
        operator = f"{match['domain'] or 'ai.onnx'}:{match['name']}" if match else ""
        words = printable(_LISTING.sub("", message), lines=True)
        raise Unsupported(words, operator=operator) from error
