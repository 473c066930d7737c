"""What the runner asks of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import onnx

from onnxopt_cli.core.values import Value


class Prepared(Protocol):
    """A model that a backend has accepted."""

    def run(self, inputs: Mapping[str, Value]) -> Sequence[object]:
        """Compute the graph's outputs in order.

        Args:
            inputs: a value for every input of the graph that must be fed, in the graph's order.

        Raises:
            Unsupported: if the backend finds only now that it does not know something.
            Exception: anything else is the backend's failure.
        """


class Backend(Protocol):
    """Something that runs ONNX models, under test."""

    @property
    def name(self) -> str:
        """The backend as the user asked for it: ``onnxruntime``, ``python:my.module:Backend``."""

    @property
    def version(self) -> str:
        """The implementation and its version: ``onnxruntime 1.31.1``; empty if unknown."""

    def prepare(self, model: onnx.ModelProto) -> Prepared:
        """Accept a model.

        Raises:
            Unsupported: if the backend does not know an operator, opset, type or device of it.
            Exception: anything else is the backend's failure.
        """


@runtime_checkable
class Closable(Protocol):
    """A backend that has started something, which is to be ended with it."""

    def close(self) -> None:
        """End it, and wait until it has ended.

        Raises:
            BackendDied: if it does not end as it should.
            BackendHangs: if it does not end at all.
        """
