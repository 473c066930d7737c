"""Reuse the results of a model in the runs of its reformulations.

A reformulation of a model computes some operators in another way. The boundary of the reformulation
is the first node with such an operator. Before the boundary, the results of the reformulation are
bitwise equal to those of the model. A value crosses the boundary if a node before the boundary
computes it, and the boundary node or a later node reads it. Values that cross a boundary are kept,
within a memory limit. The run of the reformulation then begins at the boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import onnx

from onnxopt_cli.core.values import Value
from onnxopt_cli.operators.nodes import all_nodes
from onnxopt_cli.oracle.evaluator import Compute, ReferenceModel, Visitor
from onnxopt_cli.oracle.stacked import Stacked

V = TypeVar("V", bound=Visitor)

# The largest number of bytes of the values that are kept for all runs together.
_MAX_KEPT_BYTES = 64 << 20
# Arrays with fewer bytes than this number are kept even if no later node reads them, because small
# arrays may decide control flow.
_SMALL_BYTES = 1 << 12
# Operators that read values before the visitor is called, so that the visitor misses the reads.
_HIDDEN_READERS = frozenset({"Loop", "Scan", "SequenceMap"})


# Marks an output that is not kept. The marker is not None, because None denotes an omitted operand.
# It is a `Stacked`, because the reference accepts only a few types of outputs.
_NOT_KEPT = Stacked(())


class _CannotResumeError(Exception):
    """Raised if a run executes other nodes than the first run, or reads a discarded value."""


@runtime_checkable
class ResumableVisitor(Protocol):
    """A visitor whose state can be saved and restored."""

    def __call__(
        self, node: Any, compute: Compute, operands: Sequence[Any], index: int
    ) -> Sequence[Any]:
        """Visit a node."""

    def state(self) -> Any:
        """Return the state before the next node."""

    def resume(self, state: Any) -> None:
        """Restore a state that :meth:`state` returned."""


@dataclass(frozen=True, slots=True)
class _Crossing:
    """The values that cross a boundary in one run.

    Attributes:
        outputs: the outputs of each node before the boundary, with a placeholder for each output
            that is not kept.
        state: the state of the visitor at the boundary; None if the visitor has none.
    """

    outputs: Sequence[Sequence[Any]]
    state: Any


@dataclass
class SharedPrefix:
    """The results of a model that the runs of its reformulations can reuse.

    Attributes:
        changed: for each reformulation, by name, the operators that it computes in another way.
        boundaries: for each reformulation, by name, the number of nodes before the first node with
            such an operator.
    """

    changed: Mapping[str, Collection[str]]
    boundaries: dict[str, int] = field(default_factory=dict)
    _names: list[Sequence[str]] = field(default_factory=list)
    _last_reads: list[list[float]] = field(default_factory=list)
    _places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _held: list[Any] = field(default_factory=list)
    _kept: dict[tuple[str, object], _Crossing] = field(default_factory=dict)
    _kept_arrays: dict[int, Any] = field(default_factory=dict)
    _kept_bytes: int = 0

    @classmethod
    def of(cls, model: onnx.ModelProto, changed: Mapping[str, Collection[str]]) -> SharedPrefix:
        """Return an object that records the boundaries of a model's reformulations.

        The object records no boundary if the visitor does not see all values that the operators of
        the model read.

        Args:
            model: the model.
            changed: for each reformulation, by name, the operators that it computes in another way.
        """
        operators = {node.op_type for node in all_nodes(model)}
        return cls({} if operators & _HIDDEN_READERS else changed)

    def observe(self, node: Any, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record, in the first run of the model, which earlier outputs a node reads."""
        if not self.changed:
            return
        index = len(self._names)
        for operand in operands:
            self._read(operand, index)
        for name, operators in self.changed.items():
            if node.op_type in operators:
                self.boundaries.setdefault(name, index)
        self._names.append(node.output)
        self._last_reads.append([0.0] * len(outputs))
        for place, output in enumerate(outputs):
            # If a node returns one of its operands, an object is the output of several nodes.
            self._places.setdefault(id(output), []).append((index, place))
        # Keep the outputs alive, so that no later object gets the id of an output.
        self._held.append(outputs)

    def observe_end(self, returned: Sequence[Any]) -> None:
        """Record the outputs of the model, after its first run."""
        for output in returned:
            self._read(output, float("inf"))
        self._places.clear()
        self._held.clear()

    def _read(self, value: Any, reader: float) -> None:
        for index, output in self._places.get(id(value), ()):
            self._last_reads[index][output] = reader

    def run(
        self,
        name: str,
        key: object,
        model: ReferenceModel,
        inputs: Mapping[str, Value],
        create_visitor: Callable[[], V],
    ) -> tuple[list[Any], V]:
        """Run the model and keep results for its reformulations, or run a reformulation.

        If the values that the first changed node and later nodes read have been kept, the run of
        the reformulation starts at this node; otherwise, it starts at the inputs.

        Args:
            name: the name of the reformulation; empty for the model itself.
            key: identifies the run. A run of the model and the corresponding runs of its
                reformulations have equal keys.
            model: the model or reformulation.
            inputs: its inputs.
            create_visitor: creates the visitor.

        Returns:
            The outputs, and the visitor after the run.
        """
        visitor = create_visitor()
        if not name:
            return self._run_and_keep(key, model, inputs, visitor), visitor
        crossing = self._kept.pop((name, key), None)
        if crossing is not None:
            try:
                return self._resumed(name, crossing, model, inputs, visitor), visitor
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - an error of the reformulation occurs again below
                visitor = create_visitor()
        return model.run(inputs, visitor), visitor

    def _run_and_keep(
        self, key: object, model: ReferenceModel, inputs: Mapping[str, Value], visitor: Visitor
    ) -> list[Any]:
        if not self.boundaries:
            return model.run(inputs, visitor)
        end = max(self.boundaries.values())
        ends = {*self.boundaries.values()} - {0}
        outputs: list[Sequence[Any]] = []
        states: dict[int, Any] = {}
        same_nodes = True

        def record(
            node: Any, compute: Compute, operands: Sequence[Any], index: int
        ) -> Sequence[Any]:
            nonlocal same_nodes
            if index in ends and isinstance(visitor, ResumableVisitor):
                states[index] = visitor.state()
            results = visitor(node, compute, operands, index)
            if index < end:
                same_nodes = same_nodes and node.output == self._names[index]
                if same_nodes:
                    outputs.append([self._crossing(index, *pair) for pair in enumerate(results)])
            return results

        returned = model.run(inputs, record)
        if same_nodes:
            for name, boundary in sorted(self.boundaries.items(), key=lambda item: -item[1]):
                self._keep(name, key, outputs[:boundary], states.get(boundary))
        return returned

    def _crossing(self, index: int, place: int, value: Any) -> Any:
        """Return an output if the run of any reformulation can reuse it, else a placeholder."""
        reader = self._last_reads[index][place]
        crosses = any(index < boundary <= reader for boundary in self.boundaries.values())
        return value if crosses or _is_small(value) else _NOT_KEPT

    def _keep(self, name: str, key: object, outputs: Sequence[Sequence[Any]], state: Any) -> None:
        """Keep the outputs of earlier nodes that a reformulation reads, if memory permits."""
        boundary, kept = self.boundaries[name], []
        for reads, values in zip(self._last_reads, outputs, strict=False):
            kept.append(
                [
                    value if reader >= boundary or _is_small(value) else _NOT_KEPT
                    for reader, value in zip(reads, values, strict=True)
                ]
            )
        # Arrays that occur in several runs, such as those of Constant nodes, are counted once.
        added = {
            id(value): value
            for values in kept
            for value in values
            if isinstance(value, np.ndarray | Stacked) and id(value) not in self._kept_arrays
        }
        size = sum(array.nbytes for array in added.values())
        if boundary and self._kept_bytes + size <= _MAX_KEPT_BYTES:
            self._kept_bytes += size
            self._kept_arrays |= added
            self._kept[name, key] = _Crossing(kept, state)

    def _resumed(
        self,
        name: str,
        crossing: _Crossing,
        model: ReferenceModel,
        inputs: Mapping[str, Value],
        visitor: Visitor,
    ) -> list[Any]:
        """Run a reformulation of a model, and return its outputs.

        Nodes before the boundary, the first node that the reformulation computes in another way,
        are not computed; their kept outputs are used instead.

        Raises:
            _CannotResumeError: if control flow leads to other nodes, or a value is not kept.
        """
        boundary = self.boundaries[name]

        def skip(node: Any, compute: Compute, operands: Sequence[Any], index: int) -> Sequence[Any]:
            if index < boundary:
                if node.output != self._names[index]:
                    raise _CannotResumeError
                return crossing.outputs[index]
            _require_kept(operands)
            if index == boundary and isinstance(visitor, ResumableVisitor):
                visitor.resume(crossing.state)
            return visitor(node, compute, operands, index)

        returned = model.run(inputs, skip)
        _require_kept(returned)
        return returned


def _require_kept(values: Sequence[Any]) -> None:
    if any(value is _NOT_KEPT for value in values):
        raise _CannotResumeError


def _is_small(value: Any) -> bool:
    """Return whether a value is always kept, because it is a small array or not an array."""
    return not isinstance(value, np.ndarray | Stacked) or value.nbytes <= _SMALL_BYTES
