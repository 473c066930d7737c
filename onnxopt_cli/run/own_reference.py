"""Our own reference: what it computes by a formula in this process, all other models in workers.

A formula takes as much time and memory as its inputs let expect, and its nodes are checked before.
Any other model may loop without end or make terabytes out of a few bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import onnx

from onnxopt_cli.core.values import Value
from onnxopt_cli.isolation.response import Aside
from onnxopt_cli.readings.single_node import sole_operator
from onnxopt_cli.run.in_process import InProcess

if TYPE_CHECKING:
    from onnxopt_cli.isolation.pool import Pool
    from onnxopt_cli.run.executors import Pending


class OwnReference:
    """A reference that trusts its own formulas and nothing else.

    Args:
        here: it in this process.
        open_pool: starts it in workers; called when there is a model for them.
    """

    def __init__(self, here: InProcess, open_pool: Callable[[], Pool]) -> None:
        self._here = here
        self._open_pool = open_pool
        self._pool: Pool | None = None
        self.name = here.name
        self.version = here.version

    @property
    def ahead(self) -> int:
        """As many as the workers have use for, once there are any."""
        return self._pool.ahead if self._pool else self._here.ahead

    def ready(self) -> None:
        """Do nothing: it has started as far as is known to be needed."""

    def submit(
        self,
        model: onnx.ModelProto,
        inputs: Mapping[str, Value],
        started: Callable[[], None],
        *,
        keep: bool = False,
    ) -> Pending:
        """Have a case run in the place that is right for its model."""
        if sole_operator(model) is not None:
            return self._here.submit(model, inputs, started, keep=keep)
        if self._pool is None:
            self._pool = self._open_pool()
        return self._pool.submit(model, inputs, started, keep=keep)

    def renew(self) -> None:
        """Make the backend anew in both places."""
        self._here.renew()
        if self._pool is not None:
            self._pool.renew()

    def finish(self) -> list[Aside]:
        """End it in both places; return what it did outside of any case."""
        return [*self._here.finish(), *(self._pool.finish() if self._pool else ())]
