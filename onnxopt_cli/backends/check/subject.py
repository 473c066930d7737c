"""A backend while it is tested against rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from onnxopt_cli.backends.check.questions import CANDIDATES, OPSETS, Question, question
from onnxopt_cli.backends.exec_backend import require_stated, timeout_of
from onnxopt_cli.backends.exec_messages import Hello
from onnxopt_cli.backends.exec_session import CommandSession
from onnxopt_cli.backends.protocol import Backend
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import BackendDied, BackendHangs, ProtocolBreach

#: A backend that does one of these has not answered at all.
BREAKDOWNS = (BackendDied, BackendHangs, ProtocolBreach)


class Subject:
    """A backend that can be asked to run models."""

    def __init__(self) -> None:
        self._runs: tuple[str, int] | None = None

    def returned(self, asked: Question) -> object:
        """Return what the backend answers, as it is."""
        raise NotImplementedError

    def ask_what_it_runs(
        self, array: Array, names: tuple[str, str] = ("x", "y")
    ) -> Question | None:
        """Return a question about a tensor that the backend can answer, None if there is none."""
        if self._runs is None:
            self._runs = self._find_what_it_runs()
        if self._runs is None:
            return None
        operator, opset = self._runs
        return question(operator, array, opset, names=names)

    @property
    def dtype(self) -> np.dtype[Any]:
        """An element type that the backend may know."""
        return np.dtype(np.float32)

    def tensor(self) -> Array:
        """Return a small tensor, the same at every call."""
        return np.array([1, 2, 3], self.dtype)

    @property
    def opsets(self) -> tuple[int, ...]:
        """Versions of ai.onnx that the backend may know, the likeliest first."""
        return OPSETS

    @property
    def opset(self) -> int:
        """The version that the backend knows, or the likeliest."""
        return self._runs[1] if self._runs else self.opsets[0]

    def _find_what_it_runs(self) -> tuple[str, int] | None:
        array = self.tensor()
        for operator in CANDIDATES:
            for opset in self.opsets:
                try:
                    self.returned(question(operator, array, opset))
                except BREAKDOWNS:
                    raise
                except Exception:  # noqa: BLE001, S112 - what it says instead is for the rules
                    continue
                return operator, opset
        return None


class PluginSubject(Subject):
    """A backend in Python.

    Args:
        text: how the user asks for it.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self._backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        """The backend; loading it may raise."""
        if self._backend is None:
            self._backend = resolve_backend(self._text)
        return self._backend

    def returned(self, asked: Question) -> object:
        """Return what the backend answers, as it is."""
        return self.backend.prepare(asked.model).run(asked.inputs)


class CommandSubject(Subject):
    """A command.

    Args:
        specification: how the user asks for it.
    """

    def __init__(self, specification: Specification) -> None:
        super().__init__()
        self._specification = specification
        self._hello: Hello | None = None
        self.timeout = timeout_of(specification)
        self.session = CommandSession(specification.command, self.timeout)

    @property
    def hello(self) -> Hello:
        """What the command says of itself; asking may raise."""
        if self._hello is None:
            self._hello = self.session.greet()
        return self._hello

    @property
    def dtype(self) -> np.dtype[Any]:
        """The first number type that the command states, float32 before all others."""
        stated = [helper.tensor_dtype_to_np_dtype(dtype) for dtype in sorted(self.hello.dtypes)]
        return next((dtype for dtype in stated if dtype.kind in "fiu"), super().dtype)

    @property
    def opsets(self) -> tuple[int, ...]:
        """Versions of ai.onnx that the command states."""
        lowest, highest = self.hello.domains.get("", (min(OPSETS), max(OPSETS)))
        return tuple(dict.fromkeys(min(max(opset, lowest), highest) for opset in OPSETS))

    def returned(self, asked: Question) -> list[Value]:
        """Return the outputs of a model, if the command states all that it needs."""
        require_stated(asked.model, self.hello)
        return self.run(asked)

    def run(
        self, asked: Question, content: bytes | None = None, extra: str | None = None
    ) -> list[Value]:
        """Have the command run a model.

        Args:
            asked: the model and its inputs.
            content: what the model file holds instead of that model.
            extra: a further field of the request.
        """
        device = self._specification.options.get("device", self.hello.devices[0])
        if content is None:
            content = asked.model.SerializeToString()
        further = {} if extra is None else {"onnxopt_check": extra}
        return self.session.run(content, asked.model.graph, asked.inputs, device, **further)

    def restart(self) -> None:
        """Go on with a new process, after the old one was told to end."""
        self._hello = None
        self.session = CommandSession(self._specification.command, self.timeout)
