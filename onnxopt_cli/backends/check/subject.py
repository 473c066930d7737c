"""A backend while it is tested against rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from time import monotonic
from typing import Any

import numpy as np

from onnxopt_cli.backends.check.probe_models import (
    LIKELY,
    OPSETS,
    SHAPES,
    Runs,
    all_operators,
    formulas,
)
from onnxopt_cli.backends.check.protocol_rule import Broken
from onnxopt_cli.backends.exec.exec_backend import (
    CommandSession,
    require_stated,
    timeout_of,
)
from onnxopt_cli.backends.protocol import BREAKDOWNS, Backend
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.backends.unsupported import (
    compile_pattern,
    error_text,
    recognising,
)
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.core.values import (
    DTYPES,
    Array,
    Value,
)
from onnxopt_cli.errors import BackendFailure, Unsupported

# Element types, the likeliest first.
_DTYPES = tuple(
    map(np.dtype, ("float32", "float64", "int64", "int32", "float16", "bool", "uint8", "int8"))
)
# A backend that compiles each model is not asked for all that there is.
_SEARCH_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a backend says instead of answering.

    Attributes:
        text: as reports show it.
        known: it counts as unsupported.
        kind: name of the exception's class; empty if it was not one.
    """

    text: str
    known: bool
    kind: str = ""

    def __str__(self) -> str:
        return f"it {'says unsupported' if self.known else 'reports'}: {self.text}"


def refusal(ask: Callable[[Problem], object], asked: Problem) -> Refusal | None:
    """Return what a backend says instead of answering a question; None if it answers."""
    try:
        ask(asked)
    except (Broken, *BREAKDOWNS):
        raise
    except Unsupported as error:
        return Refusal(error.message, known=True, kind=type(error).__name__)
    except Exception as error:  # noqa: BLE001 - what it raises is what is looked for
        kind = "" if isinstance(error, BackendFailure) else type(error).__name__
        return Refusal(error_text(error), known=False, kind=kind)
    return None


class CheckedBackend:
    """A backend that can be asked to run models.

    Args:
        text: how the user asks for it.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def returned(self, asked: Problem) -> object:
        """Return what the backend answers, as it is."""
        raise NotImplementedError

    @cached_property
    def runs(self) -> Runs | None:
        """The likeliest thing that the backend runs; None if nothing was found."""
        end = monotonic() + _SEARCH_SECONDS
        for runs in self._candidates():
            if monotonic() > end:
                break
            try:
                asked = runs.question()
            except ValueError:
                continue
            if refusal(self.returned, asked) is None:
                return runs
        return None

    @property
    def likeliest(self) -> Runs:
        """What the backend runs, or what most do."""
        return self.runs or next(self._candidates())

    def ask_what_it_runs(self, array: Array, names: tuple[str, str] = ("x", "y")) -> Problem | None:
        """Return a question that the backend can answer, about a tensor of its own kind or another.

        None if there is none, or the operator takes no such tensor.
        """
        runs = self.runs
        with suppress(ValueError):
            return runs.question(array, names) if runs else None
        return None

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Element types that the backend may know, the likeliest first."""
        return _DTYPES

    @property
    def opsets(self) -> tuple[int, ...]:
        """Versions of ai.onnx that the backend may know, the likeliest first."""
        return OPSETS

    def _candidates(self) -> Iterator[Runs]:
        """Yield what most backends run, then operators with a formula, then all that there is."""
        dtypes, opsets, vector = self.dtypes, self.opsets, SHAPES[:1]
        searches = [
            (dtypes[:1], vector, LIKELY, opsets),
            (dtypes, vector, formulas(), opsets[:1]),
            (dtypes[1:], vector, LIKELY, opsets),
            (dtypes, SHAPES, all_operators(), opsets[:1]),
            *((dtypes[:1], SHAPES, all_operators(), (opset,)) for opset in opsets[1:]),
        ]
        for search in searches:
            for dtype, shape, name, opset in product(*search):
                yield Runs(name, opset, dtype, shape)


class PluginSubject(CheckedBackend):
    """A backend in Python.

    Args:
        text: how the user asks for it.
    """

    @cached_property
    def backend(self) -> Backend:
        """The backend; loading it may raise."""
        return resolve_backend(self.text)

    def returned(self, asked: Problem) -> object:
        """Return what the backend answers, as it is."""
        return self.backend.prepare(asked.model).run(asked.inputs)


class CommandSubject(CheckedBackend):
    """A command.

    Args:
        specification: how the user asks for it.
    """

    def __init__(self, specification: Specification) -> None:
        super().__init__(specification.text)
        self._specification = specification
        self.session = CommandSession(specification.command, timeout_of(specification))

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The types that the command states, the likeliest first."""
        stated = [DTYPES[name] for name in sorted(self.session.hello.dtypes)]
        numbers = [dtype for dtype in stated if dtype.kind in "fiub" and dtype not in _DTYPES]
        return (*(dtype for dtype in _DTYPES if dtype in stated), *numbers) or _DTYPES

    @property
    def opsets(self) -> tuple[int, ...]:
        """Versions of ai.onnx that the command states."""
        lowest, highest = (self.session.hello.domains or {}).get("", (min(OPSETS), max(OPSETS)))
        return tuple(dict.fromkeys(min(max(opset, lowest), highest) for opset in OPSETS))

    def returned(self, asked: Problem) -> list[Value]:
        """Return the outputs of a model, if the command states all that it needs."""
        require_stated(asked.model, self.session.hello)
        return self.run(asked)

    def run(self, asked: Problem, content: bytes | None = None, **further: str) -> list[Value]:
        """Have the command run a model.

        Args:
            asked: the model and its inputs.
            content: what the model file holds instead of that model.
            **further: fields of the request, which the command must overlook.
        """
        device = self._specification.options.get("device", self.session.hello.devices[0])
        content = content or asked.model.SerializeToString()
        written = self._specification.options.get("unsupported"), self.session.hello.unsupported
        with recognising([compile_pattern(pattern) for pattern in written if pattern]):
            return self.session.run(asked.model, content, asked.inputs, device=device, **further)
