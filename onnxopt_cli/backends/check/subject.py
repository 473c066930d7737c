"""A backend under check, and the probes that it supports."""

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
    ProbeModel,
    all_operators,
    formulas,
)
from onnxopt_cli.backends.check.protocol_rule import RuleBroken
from onnxopt_cli.backends.exec.exec_backend import (
    CommandSession,
    require_supported,
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

# Element types, the most common first.
_DTYPES = tuple(
    map(np.dtype, ("float32", "float64", "int64", "int32", "float16", "bool", "uint8", "int8"))
)
# A backend that compiles each model would take too long for all probes.
_SEARCH_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A backend's response other than outputs.

    Attributes:
        text: the message as reports show it.
        unsupported: whether the response counts as unsupported, not as an error.
        kind: name of the exception's class; empty for the response of a command.
    """

    text: str
    unsupported: bool
    kind: str = ""

    def __str__(self) -> str:
        return f"it {'reports unsupported' if self.unsupported else 'fails'}: {self.text}"


def refusal(run: Callable[[Problem], object], problem: Problem) -> Refusal | None:
    """Return a backend's refusal of a problem; None if it returns outputs."""
    try:
        run(problem)
    except (RuleBroken, *BREAKDOWNS):
        raise
    except Unsupported as error:
        return Refusal(error.message, unsupported=True, kind=type(error).__name__)
    except Exception as error:  # noqa: BLE001 - a backend may raise anything
        kind = "" if isinstance(error, BackendFailure) else type(error).__name__
        return Refusal(error_text(error), unsupported=False, kind=kind)
    return None


class CheckedBackend:
    """A backend under check.

    Args:
        text: the backend as the user specified it.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def raw_outputs(self, problem: Problem) -> object:
        """Run a problem and return the backend's outputs unconverted."""
        raise NotImplementedError

    @cached_property
    def supported(self) -> ProbeModel | None:
        """The first probe that the backend runs; None if none ran within the time limit."""
        end = monotonic() + _SEARCH_SECONDS
        for probe in self._candidates():
            if monotonic() > end:
                break
            try:
                problem = probe.problem()
            except ValueError:
                continue
            if refusal(self.raw_outputs, problem) is None:
                return probe
        return None

    @property
    def probe(self) -> ProbeModel:
        """The supported probe, or the most common one if the backend supports none."""
        return self.supported or next(self._candidates())

    def problem_with(self, array: Array, names: tuple[str, str] = ("x", "y")) -> Problem | None:
        """Return the supported probe as a problem whose input is this tensor.

        None if the backend supports no probe, or its operator does not accept the tensor.
        """
        probe = self.supported
        with suppress(ValueError):
            return probe.problem(array, names) if probe else None
        return None

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """Element types that the backend may support, the most common first."""
        return _DTYPES

    @property
    def opsets(self) -> tuple[int, ...]:
        """Versions of ai.onnx that the backend may support, the most common first."""
        return OPSETS

    def _candidates(self) -> Iterator[ProbeModel]:
        """Yield common operators, then operators with a formula, then all operators."""
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
                yield ProbeModel(name, opset, dtype, shape)


class PluginSubject(CheckedBackend):
    """A backend in Python.

    Args:
        text: the backend as the user specified it.
    """

    @cached_property
    def backend(self) -> Backend:
        """The backend; loading it may raise any exception."""
        return resolve_backend(self.text)

    def raw_outputs(self, problem: Problem) -> object:
        """Run a problem and return the backend's outputs unconverted."""
        return self.backend.prepare(problem.model).run(problem.inputs)


class CommandSubject(CheckedBackend):
    """A command.

    Args:
        specification: the command as the user specified it.
    """

    def __init__(self, specification: Specification) -> None:
        super().__init__(specification.text)
        self._specification = specification
        self.session = CommandSession(specification.command, timeout_of(specification))

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The element types that the command lists, the most common first."""
        listed = [DTYPES[name] for name in sorted(self.session.hello.dtypes)]
        numbers = [dtype for dtype in listed if dtype.kind in "fiub" and dtype not in _DTYPES]
        return (*(dtype for dtype in _DTYPES if dtype in listed), *numbers) or _DTYPES

    @property
    def opsets(self) -> tuple[int, ...]:
        """Versions of ai.onnx that the command lists."""
        lowest, highest = (self.session.hello.domains or {}).get("", (min(OPSETS), max(OPSETS)))
        return tuple(dict.fromkeys(min(max(opset, lowest), highest) for opset in OPSETS))

    def raw_outputs(self, problem: Problem) -> list[Value]:
        """Run a problem if the command lists its domains, versions and element types."""
        require_supported(problem.model, self.session.hello)
        return self.run(problem)

    def run(self, problem: Problem, content: bytes | None = None, **fields: str) -> list[Value]:
        """Submit a problem to the command.

        Args:
            problem: the model and its inputs.
            content: the bytes to send instead of the serialized model.
            **fields: additional fields of the request, which the command must ignore.
        """
        device = self._specification.options.get("device", self.session.hello.devices[0])
        content = content or problem.model.SerializeToString()
        patterns = self._specification.options.get("unsupported"), self.session.hello.unsupported
        with recognising([compile_pattern(pattern) for pattern in patterns if pattern]):
            return self.session.run(problem.model, content, problem.inputs, device=device, **fields)
