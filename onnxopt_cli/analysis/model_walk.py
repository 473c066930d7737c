"""A walk over the nodes of a model in the order of the graph, with the values of each node.

The values come from the reference oracle, rounded to the model's types. The outputs of operators
that the oracle cannot compute come from the backend. Values that do not fit in memory are kept in
temporary files. If the values of a node are too large even for temporary files, its outputs are not
computed. The walk includes the branch of an If that is taken, and the first iterations of a Loop or
Scan. The functions of the model must have been inlined.
"""

from __future__ import annotations

import math
import sys
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeGuard

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxopt_cli.cases.tensors.proto_values import array_of, tensor_of
from onnxopt_cli.core.text import printable
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.errors import UsageError
from onnxopt_cli.operators.nodes import (
    defined_names,
    dense_array,
    nodes_within,
    plain_domain,
    subgraphs,
    used_names,
)
from onnxopt_cli.workers.private_folder import temporary_folder

#: A function that computes the outputs of a model of one node. If the function cannot compute the
#: outputs, it returns a text with the reason.
Compute = Callable[[onnx.ModelProto, Mapping[str, Value]], Sequence[Value] | str]

#: The reason why a node cannot run if one of its operands could not be computed.
NO_OPERAND = "an operand has no value"
# In a Loop or Scan, the nodes of the first _ITERATIONS iterations are judged one by one.
_ITERATIONS = 2
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
# After _MAX_ENTERED_RUNS nodes, the walk no longer enters bodies and branches. A limit is necessary
# because each level of nested loops doubles the number of nodes.
_MAX_ENTERED_RUNS = 20_000
# Largest number of nodes that one request computes.
_MAX_TOGETHER = 256
# Largest number of bytes that the nodes of one request read.
_MAX_READ_BYTES = 64 << 20
# Largest total number of bytes of all values, most of which are in temporary files.
_MAX_STORED_BYTES = 16 << 30
# Domains of the operators whose nodes one request may compute together.
_DOMAINS_TOGETHER = frozenset({"", "ai.onnx.ml"})
# Bytes of memory that each element of a sequence or map takes in addition to its data.
_ELEMENT_BYTES = 128
_RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the model.

    Attributes:
        key: its key in the store, unique in the whole model.
        constant: whether it does not depend on any input of the model.
    """

    key: str
    constant: bool = False


class ValueStore(MutableMapping[str, Value]):
    """Values by name. Numeric tensors that exceed a memory limit are written to files.

    Args:
        memory: bytes of values that are kept in memory.

    Attributes:
        stored_bytes: bytes of all values, including those in files.
    """

    def __init__(self, memory: int) -> None:
        self.stored_bytes = 0
        self._remaining = memory
        self._values: dict[str, Value] = {}
        self._files: dict[str, tuple[Path, np.dtype[Any], tuple[int, ...]]] = {}
        self._folder = ""
        self._cleanup = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the files."""
        self._cleanup.close()

    def __setitem__(self, name: str, value: Value) -> None:
        """Store a value.

        Raises:
            UsageError: if a file cannot be written.
        """
        if name in self:
            del self[name]
        size = held_bytes(value)
        self.stored_bytes += size
        if size <= self._remaining or not _is_numeric(value):
            self._remaining -= size
            self._values[name] = value
            return
        try:
            if not self._folder:
                self._folder = self._cleanup.enter_context(temporary_folder())
            path = Path(self._folder, str(self._count))
            path.write_bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise UsageError(
                f"cannot keep the value {printable(name)} of {size} bytes in a temporary file: "
                f"{error.strerror or error}",
                hint="set TMPDIR to a folder with more space",
            ) from error
        self._count += 1
        self._files[name] = path, value.dtype, value.shape

    def __getitem__(self, name: str) -> Value:
        if name in self._values:
            return self._values[name]
        path, dtype, shape = self._files[name]
        return np.fromfile(path, np.uint8).view(dtype).reshape(shape)

    def bytes_of(self, name: str) -> int:
        """Return the size of a value, without reading its file."""
        if name in self._files:
            _, dtype, shape = self._files[name]
            return dtype.itemsize * math.prod(shape)
        return held_bytes(self._values[name])

    def __delitem__(self, name: str) -> None:
        size = self.bytes_of(name)
        self.stored_bytes -= size
        if name in self._files:
            self._files.pop(name)[0].unlink()
            return
        self._values.pop(name)
        self._remaining += size

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._files

    def __len__(self) -> int:
        return len(self._values) + len(self._files)


def held_bytes(value: Value) -> int:
    """Return the approximate number of bytes of memory that a value holds."""
    if isinstance(value, list):
        return sum(_ELEMENT_BYTES + held_bytes(element) for element in value)
    if isinstance(value, dict):
        return sum(_ELEMENT_BYTES + sys.getsizeof(entry) for entry in value.values())
    if not isinstance(value, np.ndarray):
        return 0
    return value.nbytes + (0 if _is_numeric(value) else sum(map(sys.getsizeof, value.flat)))


def _is_numeric(value: Value) -> TypeGuard[Array]:
    return isinstance(value, np.ndarray) and value.dtype.kind != "O"


@dataclass(eq=False, slots=True)
class NodeRun:
    """A node as it ran.

    Attributes:
        node: the node; the names of its inputs and outputs are the keys of the values.
        label: its name in its graph, as :func:`node_labels` returns it.
        name: the label, preceded by the names of the control flow nodes that contain the node.
        read: the keys of the values that the node reads.
        constants: the keys of the node's inputs that do not depend on an input of the model.
        holders: the control flow nodes that contain it, outermost first.
        repeated: whether it is part of the body of a Loop or Scan.
        missing: the reason why the reference did not compute the outputs; empty if it did. If the
            reference did not, the outputs come from the backend or are missing.
    """

    node: onnx.NodeProto
    label: str
    name: str
    read: Sequence[str]
    constants: frozenset[str]
    holders: tuple[NodeRun, ...] = ()
    repeated: bool = False
    missing: str = ""

    @property
    def operator(self) -> str:
        """The operator, preceded by its domain unless the domain is the default domain."""
        domain = plain_domain(self.node.domain)
        return f"{domain}.{self.node.op_type}" if domain else self.node.op_type

    @property
    def outputs(self) -> list[str]:
        """The keys of the node's outputs."""
        return [*filter(None, self.node.output)]


def node_labels(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the nodes of a graph.

    A node that has no name of its own, or the same name as another node, is named after its first
    output.
    """
    names = Counter(node.name for node in graph.node)
    return [
        node.name
        if node.name and names[node.name] == 1
        else next(filter(None, node.output), node.op_type)
        for node in graph.node
    ]


def name_nodes(graph: onnx.GraphProto) -> None:
    """Set the names of the nodes of a graph and its subgraphs to their labels."""
    for node, label in zip(graph.node, node_labels(graph), strict=True):
        node.name = label
        for inner in subgraphs(node):
            name_nodes(inner)


def _is_control_flow(node: onnx.NodeProto) -> bool:
    return node.op_type in _CONTROL_FLOW and not plain_domain(node.domain)


def _renamed(node: onnx.NodeProto, keys: Mapping[str, str]) -> onnx.NodeProto:
    """Return a node with other names for the values of the surrounding graph."""
    renamed = onnx.NodeProto()
    renamed.CopyFrom(node)
    _rename(renamed, keys)
    return renamed


def _rename(node: onnx.NodeProto, keys: Mapping[str, str]) -> None:
    node.input[:] = [keys.get(name, name) for name in node.input]
    node.output[:] = [keys.get(name, name) for name in node.output]
    for graph in subgraphs(node):
        inner = defined_names(graph)
        outer_keys = {name: key for name, key in keys.items() if name not in inner}
        for within in graph.node:
            _rename(within, outer_keys)
        for info in graph.output:
            info.name = outer_keys.get(info.name, info.name)


@dataclass(eq=False)
class ModelWalk:
    """Walks a model and keeps its values.

    Attributes:
        model: the model, without functions.
        store: receives the values by key.
        reference: computes a node by the reference, or returns the reason why this is impossible.
        reference_of_nodes: computes consecutive nodes, each from the values of earlier nodes. The
            result for a node is None if the function cannot compute the node.
        backend: computes a node on the backend, or returns the reason why this is impossible.
        types: inferred types of values by name.
        max_bytes: largest number of bytes that a node may read and return; 0 for no limit.
        runs: the nodes that ran, in order.
        outputs: the keys of the model's outputs.
    """

    model: onnx.ModelProto
    store: ValueStore
    reference: Compute
    reference_of_nodes: Compute
    backend: Compute
    types: Mapping[str, onnx.TypeProto]
    max_bytes: int = 0
    runs: list[NodeRun] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    _scopes: int = 0
    _most_together: int = _MAX_TOGETHER
    _returned: list[Any] = field(default_factory=list)

    @property
    def searched(self) -> set[NodeRun]:
        """The If nodes whose selected branches contain nodes that ran."""
        return {
            holder for run in self.runs for holder in run.holders if holder.node.op_type == "If"
        }

    def walk(self, inputs: Mapping[str, Value]) -> Iterator[NodeRun]:
        """Yield the nodes as they run.

        Args:
            inputs: the inputs of the model.
        """
        scope: ChainMap[str, Tensor] = ChainMap()
        for name, value in inputs.items():
            self.store[name] = value
            scope[name] = Tensor(name)
        yield from self._graph(self.model.graph, scope, "", (), repeated=False)
        self.outputs = [
            scope[info.name].key if info.name in scope else "" for info in self.model.graph.output
        ]

    def _graph(
        self,
        graph: onnx.GraphProto,
        scope: ChainMap[str, Tensor],
        prefix: str,
        holders: tuple[NodeRun, ...],
        *,
        repeated: bool,
    ) -> Iterator[NodeRun]:
        for name, array in _initializers(graph):
            if name not in scope:
                scope[name] = Tensor(f"{prefix}{name}", constant=True)
                self.store[scope[name].key] = array
        for is_control_flow, group in groupby(
            zip(graph.node, node_labels(graph), strict=True), lambda pair: _is_control_flow(pair[0])
        ):
            if not is_control_flow:
                yield from self._computed(
                    [
                        self._entered(node, label, scope, prefix, holders, repeated=repeated)
                        for node, label in group
                    ]
                )
                continue
            for node, label in group:
                run = self._entered(node, label, scope, prefix, holders, repeated=repeated)
                self.runs.append(run)
                yield from self._control_flow(node, run, scope)
                yield run

    def _entered(
        self,
        node: onnx.NodeProto,
        label: str,
        scope: ChainMap[str, Tensor],
        prefix: str,
        holders: tuple[NodeRun, ...],
        *,
        repeated: bool,
    ) -> NodeRun:
        """Return a node as it will run, and add the keys of its outputs to the scope."""
        tensors = {name: scope[name] for name in used_names(node) if name in scope}
        keys = {name: tensor.key for name, tensor in tensors.items()}
        keys |= {name: f"{prefix}{name}" for name in node.output if name}
        renamed = _renamed(node, keys)
        run = NodeRun(
            renamed,
            label,
            f"{prefix}{label}",
            used_names(renamed),
            frozenset(tensor.key for tensor in tensors.values() if tensor.constant),
            holders,
            repeated,
        )
        is_random = any(node.op_type.startswith(name) for name in _RANDOM)
        constant = all(tensor.constant for tensor in tensors.values()) and not is_random
        for name in filter(None, node.output):
            scope[name] = Tensor(f"{prefix}{name}", constant)
        return run

    def _computed(self, runs: Sequence[NodeRun]) -> Iterator[NodeRun]:
        """Compute nodes without control flow, and yield all of them except Constant nodes."""
        place = 0
        while place < len(runs):
            count = self._compute_together(runs[place : place + self._most_together])
            if not count:
                self._compute(runs[place])
                count = 1
            for run in runs[place : place + count]:
                if run.node.op_type != "Constant" or plain_domain(run.node.domain):
                    self.runs.append(run)
                    yield run
            place += count

    def _compute_together(self, runs: Sequence[NodeRun]) -> int:
        """Compute as many of the first nodes as possible with one request; return their number."""
        together: list[NodeRun] = []
        known: set[str] = set()
        read_bytes = 0
        for run in runs:
            is_plain = run.operator != "Optional" and (
                plain_domain(run.node.domain) in _DOMAINS_TOGETHER
            )
            if not is_plain or not all(key in known or key in self.store for key in run.read):
                break
            read_bytes += sum(
                self.store.bytes_of(key) for key in {*run.read} - known if key in self.store
            )
            if read_bytes > _MAX_READ_BYTES:
                break
            known |= {*run.read, *run.outputs}
            together.append(run)
        if len(together) <= 1:
            return 0
        keys = [key for run in together for key in run.outputs]
        model, inputs = self.model_of(together, typed=False, with_constants=False, outputs=keys)
        values = self.reference_of_nodes(model, inputs)
        if isinstance(values, str):
            values = []
        computed = dict(zip((info.name for info in model.graph.output), values, strict=False))
        count = 0
        for run in together:
            outputs = [computed.get(key) for key in run.outputs]
            if any(output is None for output in outputs) or self._excess(run, outputs):
                break
            for key, value in zip(run.outputs, outputs, strict=True):
                self.store[key] = self._of_declared_type(key, value)
            count += 1
        # If the reference cannot run a node, other nodes of the same request may not be computed
        # either. The next request then has fewer nodes.
        grown = 2 * self._most_together if count == len(together) else count
        self._most_together = min(_MAX_TOGETHER, max(2, grown))
        return count

    def _control_flow(
        self, node: onnx.NodeProto, run: NodeRun, scope: ChainMap[str, Tensor]
    ) -> Iterator[NodeRun]:
        """Walk the branch of an If, or the first iterations of a body."""
        graphs = {item.name: item.g for item in node.attribute}
        is_entered = len(self.runs) < _MAX_ENTERED_RUNS
        if node.op_type == "If" and is_entered:
            condition: Any = self.store.get(scope[node.input[0]].key)
            if condition is None:
                run.missing = "its condition is unknown"
                return
            branch = graphs["then_branch" if np.all(condition) else "else_branch"]
            inner = scope.new_child()
            prefix = self._prefix(run)
            yield from self._graph(
                branch, inner, prefix, (*run.holders, run), repeated=run.repeated
            )
            for name, info in zip(node.output, branch.output, strict=False):
                key = inner[info.name].key if info.name in inner else ""
                if name and key in self.store:
                    if excess := self._excess(run, [self.store[key]]):
                        run.missing = excess
                        continue
                    self.store[scope[name].key] = self.store[key]
                    # Later nodes read the value of the branch instead of the output of the If.
                    # Therefore, a model of later nodes need not contain the If.
                    scope[name] = inner[info.name]
                elif name:
                    run.missing = "a node of its branch has no value"
            return
        self._compute(run)
        body = graphs.get("body")
        # If the Loop or Scan could not be computed, its body is not walked: the nodes of the body
        # might run forever as well.
        if body is not None and is_entered and any(key in self.store for key in run.outputs):
            for values in self._iterations(node, scope):
                inner = scope.new_child()
                prefix = self._prefix(run)
                for info, value in zip(body.input, values, strict=False):
                    inner[info.name] = Tensor(f"{prefix}{info.name}")
                    self.store[inner[info.name].key] = value
                yield from self._graph(body, inner, prefix, (*run.holders, run), repeated=True)
                self._returned = [
                    self.store.get(inner[info.name].key) if info.name in inner else None
                    for info in body.output
                ]

    def _iterations(self, node: onnx.NodeProto, scope: Mapping[str, Tensor]) -> Iterator[list[Any]]:
        """Yield the inputs of a body for its first iterations."""
        operands: list[Any] = [
            self.store.get(scope[name].key) if name in scope else None for name in node.input
        ]
        if node.op_type == "Loop":
            count, condition, *carried = operands
            for iteration in range(_ITERATIONS):
                stopped = condition is not None and not np.all(condition)
                if stopped or (count is not None and iteration >= int(np.ravel(count)[0])):
                    return
                if any(value is None for value in carried):
                    return
                yield [np.array(iteration, np.int64), np.array(True), *carried]
                condition, *carried = self._returned[: 1 + len(carried)]
            return
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        count = attributes.get("num_scan_inputs", 0)
        states, scanned = operands[: len(operands) - count], operands[len(operands) - count :]
        axes = attributes.get("scan_input_axes") or [0] * count
        directions = attributes.get("scan_input_directions") or [0] * count
        if not all(isinstance(array, np.ndarray) for array in scanned) or not scanned:
            return
        length = scanned[0].shape[axes[0]]
        for iteration in range(min(_ITERATIONS, length)):
            slices = [
                np.take(array, length - 1 - iteration if backward else iteration, axis)
                for array, axis, backward in zip(scanned, axes, directions, strict=False)
            ]
            if any(value is None for value in states):
                return
            yield [*states, *slices]
            states = self._returned[: len(states)]

    def _prefix(self, run: NodeRun) -> str:
        self._scopes += 1
        return f"{run.name}#{self._scopes}/"

    def _compute(self, run: NodeRun) -> None:
        """Compute the outputs of a node and store them."""
        absent = [key for key in run.read if key not in self.store]
        if absent:
            run.missing = NO_OPERAND
            return
        if run.node.op_type == "Optional" and run.read and not plain_domain(run.node.domain):
            # onnx's reference wraps the element of an optional in a list.
            self.store[run.outputs[0]] = self.store[run.read[0]]
            return
        if excess := self._excess(run, ()):
            run.missing = excess
            return
        model, inputs = self.model_of([run], typed=False)
        values = self.reference(model, inputs)
        if isinstance(values, str):
            run.missing = values
            values = self.backend(model, inputs)
            if isinstance(values, str):
                return
        if excess := self._excess(run, values):
            run.missing = excess
            return
        for key, value in zip(run.outputs, values, strict=False):
            self.store[key] = self._of_declared_type(key, value)

    def _excess(self, run: NodeRun, outputs: Iterable[Value]) -> str:
        """Return a message if the values of a node exceed a limit; otherwise an empty text."""
        output_bytes = sum(map(held_bytes, outputs))
        size = output_bytes + sum(map(self.store.bytes_of, {*run.read} & self.store.keys()))
        if self.max_bytes and size > self.max_bytes:
            return f"its values have {size} bytes, but the limit is {self.max_bytes} bytes"
        if self.store.stored_bytes + output_bytes > _MAX_STORED_BYTES:
            return f"the values of the model have more than {_MAX_STORED_BYTES} bytes"
        return ""

    def _of_declared_type(self, key: str, value: Value) -> Value:
        """Convert a value to its inferred type, because the reference's type may differ."""
        declared = self.types.get(key)
        if declared is None or not isinstance(value, np.ndarray):
            return value
        element = declared.tensor_type.elem_type
        if element in (TensorProto.UNDEFINED, TensorProto.STRING) or value.dtype.kind == "O":
            return value
        return value.astype(helper.tensor_dtype_to_np_dtype(element), copy=False)

    def model_of(
        self,
        runs: Sequence[NodeRun],
        *,
        typed: bool = True,
        with_constants: bool = True,
        outputs: Iterable[str] = (),
    ) -> tuple[onnx.ModelProto, dict[str, Value]]:
        """Return a model of some nodes, and the values of its inputs.

        Args:
            runs: the nodes, in order.
            typed: whether to declare the types of the outputs. The types must then be known.
            with_constants: whether values that do not depend on an input of the model become
                initializers instead of inputs.
            outputs: values that must be outputs even if a node of the new model reads them.
        """
        produced = {key for run in runs for key in run.outputs}
        read = dict.fromkeys(key for run in runs for key in run.read)
        constants = {key for run in runs for key in run.constants}
        inputs: dict[str, Value] = {}
        graph = onnx.GraphProto(name="nodes")
        for key in read:
            if key in produced:
                continue
            value = self.store[key]
            if with_constants and key in constants and isinstance(value, np.ndarray):
                graph.initializer.append(tensor_of(value, key))
            else:
                inputs[key] = value
                graph.input.append(self._info(key, value))
        output_keys = {*outputs, *(produced - read.keys())}
        graph.node.extend(run.node for run in runs)
        for run in runs:
            for key in run.outputs:
                if key in output_keys:
                    if typed or self._is_compound(key):
                        graph.output.append(self._info(key, self.store.get(key)))
                    else:
                        graph.output.append(onnx.ValueInfoProto(name=key))
        model = onnx.ModelProto(ir_version=self.model.ir_version, graph=graph)
        model.opset_import.extend(self.model.opset_import)
        model.functions.extend(self.model.functions)
        return model, inputs

    def _is_compound(self, key: str) -> bool:
        """Return whether a value is declared as a sequence, an optional or a map."""
        return key in self.types and not self.types[key].HasField("tensor_type")

    def _info(self, key: str, value: Value) -> onnx.ValueInfoProto:
        if self._is_compound(key):
            return onnx.ValueInfoProto(name=key, type=self.types[key])
        return helper.make_value_info(key, type_of(value))


def type_of(value: Value) -> onnx.TypeProto:
    """Return the type of a value, with the shape of a tensor."""
    if isinstance(value, list):
        inner = type_of(value[0]) if value else type_of(np.zeros(0, np.float32))
        if inner.HasField("tensor_type"):
            inner.tensor_type.ClearField("shape")
        return helper.make_sequence_type_proto(inner)
    if not isinstance(value, np.ndarray):
        return helper.make_optional_type_proto(type_of(np.zeros((), np.float32)))
    element = (
        TensorProto.STRING
        if value.dtype.kind == "O"
        else helper.np_dtype_to_tensor_dtype(value.dtype)
    )
    return helper.make_tensor_type_proto(element, value.shape)


def _initializers(graph: onnx.GraphProto) -> Iterator[tuple[str, Array]]:
    for tensor in graph.initializer:
        yield tensor.name, array_of(tensor)
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, dense_array(sparse)


def count_nodes(model: onnx.ModelProto) -> int:
    """Return the number of nodes of a model, including the nodes of subgraphs."""
    return sum(1 for _ in nodes_within(model.graph.node))
