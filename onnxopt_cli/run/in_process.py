"""A backend in the runner's own process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from onnxopt_cli.backends.lowering import Kept, LoweringMode
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.core.values import Value
from onnxopt_cli.isolation.interruption import Interruption
from onnxopt_cli.isolation.response import Aside, Response, keeping, respond, tear_down

if TYPE_CHECKING:
    from onnxopt_cli.run.executors import Pending


class InProcess:
    """A backend in this process, which shares its fate."""

    ahead = 1

    def __init__(self, text: str, lowering: LoweringMode, interruption: Interruption) -> None:
        self._text = text
        self._backend = resolve_backend(text)
        self._lowering = lowering
        self._interruption = interruption
        self._kept: Kept | None = None
        self.name = text
        self.version = self._backend.version

    def ready(self) -> None:
        """Do nothing: it has started."""

    def submit(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, Value],
        started: Callable[[], None],
        *,
        keep: bool = False,
    ) -> Pending:
        """Have a case run when its result is asked for."""

        def run() -> Response | str:
            if self._interruption.signal:
                return "interrupted"
            started()
            self._kept = keeping(self._kept, model) if keep else None
            return respond(self._backend, model, inputs, self._lowering, self._kept)

        return _Later(run)

    def renew(self) -> None:
        """Make the backend anew, as far as that is possible within one process."""
        self._backend = resolve_backend(self._text)
        self._kept = None

    def finish(self) -> list[Aside]:
        """End it; return what went wrong then. All else outside of cases it did to this process."""
        trouble = tear_down(self._backend)
        if trouble is None:
            return []

        return [Aside("teardown", *trouble)]


@dataclass(frozen=True, slots=True)
class _Later:
    run: Callable[[], Response | str]

    def result(self) -> Response | str:
        return self.run()
