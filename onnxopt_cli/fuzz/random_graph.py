"""Random graphs of common ONNX operators. They reveal defects in optimizers and fusions.

The operands of a node are mostly results of the latest nodes. Constants are often neutral elements,
such as 0 for a sum. Some nodes are drawn in chains that runtimes fuse. Inputs contain ordinary
numbers, zeros of both signs, subnormal numbers, infinities and NaN. The tolerances are condition
estimates of the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.data_set import directory_files
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.cases.onnx.node_model import tensor_info, whole_model
from onnxopt_cli.core.values import Array, random_state
from onnxopt_cli.fuzz.choices import NAME, Source
from onnxopt_cli.operators.nodes import untyped_model
from onnxopt_cli.oracle.evaluator import native_outputs
from onnxopt_cli.oracle.reference_outputs import reference_outputs
from onnxopt_cli.suites.operators.node_draft import Choices, SeededChoices, Unsuitable

_OPSET = 17
_MIN_NODES, _MAX_NODES = 2, 12
_MAX_ELEMENTS = 256
_MAX_RANK = 4
_SEEDS = 1 << 40
_VALUE_SEEDS = 1 << 12
_DTYPE = np.dtype(np.float32)
# Scalar constants. Optimizers treat some constants specially, such as 1 and 0.
_CONSTANTS = (1.0, 0.0, 2.0, -1.0, 0.5, -0.0, 3.0, 0.1)
_SHAPES = ((2, 3), (3,), (1, 3), (2, 1), (), (2, 2, 3), (1, 2, 4, 4), (4, 4), (1, 1, 2, 3))
_UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Sqrt", "Log", "Erf", "Identity"),
    *("Softplus", "LeakyRelu", "Elu", "Reciprocal", "HardSigmoid", "Sign", "Floor"),
)
_BINARY = ("Add", "Mul", "Sub", "Div", "Add", "Mul", "Max", "Min", "Pow")
_REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")


@dataclass(frozen=True, slots=True, eq=False)
class RandomGraph:
    """A graph with its inputs. Its expected outputs come from onnx's corrected reference.

    The class has the interface of :class:`~onnxopt_cli.fuzz.drawn_examples.GraphExample`.

    Attributes:
        nodes: the nodes in topological order.
        inputs: inputs by name.
        constants: initializers by name.
        outputs: names of the outputs.
        breach: always empty, because the model is valid.
    """

    nodes: tuple[onnx.NodeProto, ...]
    inputs: Mapping[str, Array]
    constants: Mapping[str, Array]
    outputs: tuple[str, ...]
    breach: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the operators in the order of the nodes."""
        return tuple(node.op_type for node in self.nodes)

    @property
    def subject(self) -> str:
        """The name under which failures of random graphs are reported."""
        return "random graph"

    @property
    def subgraph(self) -> str:
        """The operators as one line of text."""
        return ", ".join(self.operators)

    def problem(self) -> Problem:
        """Return the problem that ``onnxopt run`` reads from the test directory."""
        untyped = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        outputs = reference_outputs(self._model(untyped), self.inputs)
        stored = dict(zip(self.outputs, outputs, strict=True))
        arrays = {name: np.asarray(value) for name, value in stored.items()}
        typed = [tensor_info(name, value.dtype, value.shape) for name, value in arrays.items()]
        return Problem(self._model(typed), self.inputs, stored)

    def _model(self, outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            NAME,
            [tensor_info(name, value.dtype, value.shape) for name, value in self.inputs.items()],
            outputs,
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return whole_model(graph, [("", _OPSET)])

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the files of an ONNX test directory. Its name begins with ``test_``."""
        problem = self.problem()
        problem.model.doc_string = "\n".join(filter(None, (about, source)))
        return {f"test_{stem}/{path}": data for path, data in directory_files(problem).items()}

    @property
    def traits(self) -> frozenset[Hashable]:
        """Return the features that distinguish the graph's failures from failures of other graphs.

        The features are the operators, the edges, and the kinds of special values in each
        operator's inputs.
        """
        values = {**self.inputs, **self.constants, **self._values()}
        producers = {output: node.op_type for node in self.nodes for output in node.output}
        edges = {
            (producers[name], node.op_type, place)
            for node in self.nodes
            for place, name in enumerate(node.input)
            if name in producers
        }
        special = {
            (node.op_type, kind)
            for node in self.nodes
            for name in node.input
            for kind in _special_kinds(values[name])
        }
        return frozenset({*self.operators, *edges, *special})

    def smaller(self) -> Iterator[RandomGraph]:
        """Yield graphs with fewer outputs, fewer nodes, and simpler inputs."""
        if len(self.outputs) > 1:
            for name in self.outputs:
                yield self._pruned((name,), self.inputs)
        if len(self.nodes) > 1:
            yield from self._with_fewer_nodes()
        for name, value in self.inputs.items():
            simple = np.ones_like(value)
            if value.dtype.kind == "f" and value.tobytes() != simple.tobytes():
                yield replace(self, inputs={**self.inputs, name: simple})

    def _with_fewer_nodes(self) -> Iterator[RandomGraph]:
        values = self._values()
        for node in reversed(self.nodes):
            # An intermediate node is removed by making its results inputs of the graph.
            if {*node.output}.isdisjoint(self.outputs):
                results = {name: values[name] for name in node.output}
                yield self._pruned(self.outputs, {**self.inputs, **results})
        for node in reversed(self.nodes):
            # The last node is removed by making one of its operands the output of the graph.
            if not {*node.output}.isdisjoint(self.outputs):
                for name in node.input:
                    if name in values:
                        yield self._pruned((name,), self.inputs)

    def _values(self) -> dict[str, Array]:
        names = [name for node in self.nodes for name in node.output if name]
        model = self._model([onnx.ValueInfoProto(name=name) for name in names])
        outputs = native_outputs(model, self.inputs)
        return {name: np.asarray(value) for name, value in zip(names, outputs, strict=True)}

    def _pruned(self, outputs: tuple[str, ...], inputs: Mapping[str, Array]) -> RandomGraph:
        """Return the part of the graph that computes some outputs from some inputs."""
        needed = {*outputs}
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output) and inputs.keys().isdisjoint(node.output):
                nodes.append(node)
                needed.update(filter(None, node.input))
        return replace(
            self,
            nodes=tuple(reversed(nodes)),
            inputs={name: value for name, value in inputs.items() if name in needed},
            constants={name: value for name, value in self.constants.items() if name in needed},
            outputs=outputs,
        )


def _special_kinds(value: Array) -> Iterator[str]:
    if value.dtype.kind != "f":
        return
    if np.isnan(value).any():
        yield "NaN"
    if np.isinf(value).any():
        yield "infinity"
    if ((value != 0) & (np.abs(value) < np.finfo(value.dtype).smallest_normal)).any():
        yield "subnormal"
    if ((value == 0) & np.signbit(value)).any():
        yield "negative zero"


def draw_random_graph(source: Source) -> RandomGraph:
    """Draw a valid graph. Hypothesis makes only one choice: the seed of the graph.

    If hypothesis made all choices, it would prefer simple ones. Simple choices rarely result in the
    chains of nodes that optimizers change.
    """
    try:
        return seeded_graph(source.integer(0, _SEEDS))
    except Unsuitable:
        source.reject()
        raise


def seeded_graph(seed: int) -> RandomGraph:
    """Return the graph of a seed. It has 2 to 12 nodes, or more if the last step appends a chain.

    Raises:
        Unsuitable: if the seed does not lead to a valid graph.
    """
    choices = SeededChoices(f"graph-{seed}")
    drawing = _Drawing(choices)
    count = choices.integer(_MIN_NODES, _MAX_NODES)
    with np.errstate(all="ignore"):
        step = drawing.choice(_STEPS)
        while len(drawing.nodes) < count:
            # In one of four steps, a node of the same kind as before is appended, because
            # optimizers often merge two consecutive nodes of the same operator.
            if not drawing.rarely(4):
                step = drawing.choice(_STEPS)
            step(drawing)
    example = drawing.example()
    try:
        fault = model_fault(example.problem().model)
    except OSError:
        # The system allows no more processes or open files.
        raise
    except Exception as error:
        raise Unsuitable from error
    if fault:
        raise Unsuitable
    return example


class _Drawing:
    """A graph to which nodes are appended one by one.

    Attributes:
        nodes: the nodes.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, Array] = {}
        self._constants: dict[str, Array] = {}
        self._values: dict[str, Array] = {}
        self._feed(self.choice(_SHAPES), special=True)

    def example(self) -> RandomGraph:
        read = {name for node in self.nodes for name in node.input}
        outputs = [name for node in self.nodes for name in node.output if name not in read]
        computed = [name for node in self.nodes for name in node.output if name in read]
        if computed and self.rarely(4):
            outputs.append(self.choice(computed))
        inputs = {name: value for name, value in self._inputs.items() if name in read}
        return RandomGraph(tuple(self.nodes), inputs, self._constants, tuple(outputs))

    def integer(self, least: int, most: int) -> int:
        return self._choices.integer(least, most)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def rarely(self, times: int) -> bool:
        """Return True with a probability of 1 / ``times``."""
        return self.integer(0, times - 1) == 0

    def shape(self, name: str) -> tuple[int, ...]:
        return self._values[name].shape

    def _feed(self, shape: Sequence[int], *, special: bool) -> str:
        name = f"x{len(self._inputs)}"
        self._inputs[name] = self._values[name] = self._elements(tuple(shape), special=special)
        return name

    def _elements(self, shape: tuple[int, ...], *, special: bool) -> Array:
        random = random_state(self.integer(0, _VALUE_SEEDS - 1))
        values = np.asarray(random.randint(-400, 401, shape) / 128)
        if special and self.rarely(3):
            limits = np.finfo(_DTYPE)
            small = float(limits.smallest_subnormal), float(limits.smallest_normal)
            kinds = (0.0, -0.0, np.inf, -np.inf, np.nan, *small, -small[0])
            values = np.where(random.randint(0, 4, shape) == 0, random.choice(kinds, shape), values)
        return values.astype(_DTYPE)

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Add an initializer."""
        name = f"c{len(self._constants)}"
        self._constants[name] = self._values[name] = np.asarray(value, dtype or _DTYPE)
        return name

    def weights(self, *shape: int) -> str:
        """Add an initializer of ordinary numbers, or sometimes an input.

        The numbers are finite. Runtimes may fold scales and shifts in any order, and with an
        infinite scale, the result would depend on the order.
        """
        if self.rarely(4):
            return self._feed(shape, special=False)
        return self.constant(self._elements(shape, special=False))

    def tensor(self, least: int = 0, most: int = _MAX_RANK) -> str | None:
        """Choose an earlier value whose rank is between ``least`` and ``most``.

        Recent values are preferred. The result is None if no value has such a rank.
        """
        names = [
            name
            for name, value in self._values.items()
            if name not in self._constants and value.dtype == _DTYPE and least <= value.ndim <= most
        ]
        if not names:
            return None
        if self.rarely(3):
            return str(self.choice(names[::-1]))
        return names[-1]

    def node(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Append a node, and return the names of its outputs.

        Raises:
            Unsuitable: if a result has too many elements.
        """
        number = len(self._values)
        names = [f"v{number}_{place}" if place else f"v{number}" for place in range(outputs)]
        node = helper.make_node(op_type, inputs, names, **attributes)
        operands = {name: self._values[name] for name in inputs}
        outputs_of_node = native_outputs(untyped_model(node, _OPSET), operands)
        results = [np.asarray(value) for value in outputs_of_node]
        if any(result.size > _MAX_ELEMENTS for result in results):
            raise Unsuitable
        self.nodes.append(node)
        self._values |= dict(zip(names, results, strict=True))
        return names


def _unary(drawing: _Drawing) -> None:
    if x := drawing.tensor():
        drawing.node(drawing.choice(_UNARY), x)


def _binary(drawing: _Drawing) -> None:
    x = drawing.tensor()
    if x is None:
        return
    shape = drawing.shape(x)
    kind = drawing.integer(0, 3)
    if kind == 0:
        second_operand = drawing.constant(drawing.choice(_CONSTANTS))
    elif kind == 1:
        second_operand = drawing.weights(*shape[drawing.integer(0, len(shape)) :])
    elif kind == 2:  # noqa: PLR2004 - the third kind: a broadcast operand of full rank
        second_operand = drawing.weights(*(1 if drawing.integer(0, 1) else size for size in shape))
    else:
        second_operand = drawing.tensor() or x
    try:
        np.broadcast_shapes(shape, drawing.shape(second_operand))
    except ValueError:
        second_operand = x
    operands = (x, second_operand) if drawing.integer(0, 2) else (second_operand, x)
    drawing.node(drawing.choice(_BINARY), *operands)


def _matmul(drawing: _Drawing) -> None:
    x = drawing.tensor(2)
    if x is None:
        return
    columns = drawing.shape(x)[-1]
    if drawing.integer(0, 3) == 0:
        (turned,) = drawing.node("Transpose", x, perm=_exchanged_last(len(drawing.shape(x))))
        operands = (turned, x)
    else:
        operands = (x, drawing.weights(columns, drawing.integer(1, 4)))
    (product,) = drawing.node("MatMul", *operands)
    if drawing.integer(0, 1):
        drawing.node("Add", product, drawing.weights(drawing.shape(product)[-1]))


def _exchanged_last(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _gemm(drawing: _Drawing) -> None:
    x = drawing.tensor(2, 2)
    if x is None:
        return
    turn_x, turn_w = drawing.integer(0, 1), drawing.integer(0, 1)
    rows, columns = drawing.shape(x)[:: -1 if turn_x else 1]
    width = drawing.integer(1, 4)
    w = drawing.weights(*((width, columns) if turn_w else (columns, width)))
    bias = drawing.choice([(width,), (1, width), (rows, 1), (rows, width)])
    attributes = {"alpha": drawing.choice([1.0, 0.5]), "beta": drawing.choice([1.0, 2.0])}
    drawing.node("Gemm", x, w, drawing.weights(*bias), transA=turn_x, transB=turn_w, **attributes)


def _convolution(drawing: _Drawing) -> None:
    x = drawing.tensor(4, 4)
    if x is None:
        return
    _, channels, *spatial = drawing.shape(x)
    maps = drawing.integer(1, 3)
    kernel = [drawing.integer(1, min(2, size)) for size in spatial]
    operands = [x, drawing.weights(maps, channels, *kernel)]
    if drawing.integer(0, 1):
        operands.append(drawing.weights(maps))
    pads = drawing.choice([[0, 0, 0, 0], [1, 0, 0, 1]])
    (y,) = drawing.node("Conv", *operands, pads=pads)
    follower = drawing.integer(0, 3)
    if follower == 1:
        _normalize_batch(drawing, y)
    elif follower > 1:
        drawing.node(
            "Add" if follower == 2 else "Mul",  # noqa: PLR2004 - both kinds are fused
            y,
            drawing.weights(*drawing.choice([(maps, 1, 1), (1, maps, 1, 1), (1,)])),
        )


def _batch_normalization(drawing: _Drawing) -> None:
    if x := drawing.tensor(2):
        _normalize_batch(drawing, x)


def _normalize_batch(drawing: _Drawing, x: str) -> None:
    channels = drawing.shape(x)[1]
    scale, bias, mean = (drawing.weights(channels) for _ in range(3))
    variance = drawing.constant(np.linspace(0.25, 2.0, channels))
    drawing.node("BatchNormalization", x, scale, bias, mean, variance)


def _layer_normalization(drawing: _Drawing) -> None:
    if (x := drawing.tensor(1)) and drawing.shape(x)[-1] > 1:
        width = drawing.shape(x)[-1]
        operands = (x, drawing.weights(width), drawing.weights(width))
        drawing.node("LayerNormalization", *operands, axis=-1)


def _softmax(drawing: _Drawing) -> None:
    if x := drawing.tensor(1):
        rank = len(drawing.shape(x))
        drawing.node(
            drawing.choice(["Softmax", "LogSoftmax"]), x, axis=drawing.integer(-rank, rank - 1)
        )


def _reduction(drawing: _Drawing) -> None:
    if x := drawing.tensor(1):
        axis = drawing.integer(-1, len(drawing.shape(x)) - 1)
        keeps = drawing.integer(0, 1)
        if drawing.integer(0, 1):
            axes = drawing.constant([axis], "int64")
            drawing.node("ReduceSum", x, axes, keepdims=keeps)
        else:
            drawing.node(drawing.choice(_REDUCTIONS), x, axes=[axis], keepdims=keeps)


def _transpose(drawing: _Drawing) -> None:
    if x := drawing.tensor(2):
        rank = len(drawing.shape(x))
        order = random_state(drawing.integer(0, 23)).permutation(rank).tolist()
        drawing.node("Transpose", x, perm=order)


def _reshape(drawing: _Drawing) -> None:
    x = drawing.tensor()
    if x is None:
        return
    shape, size = drawing.shape(x), prod(drawing.shape(x))
    halves = [-1, 2] if size % 2 == 0 else [-1, 1]
    target = drawing.choice([[-1], halves, [1, *shape], [*shape, 1], [1, -1]])
    if len(target) <= _MAX_RANK:
        drawing.node("Reshape", x, drawing.constant(target, "int64"))


def _squeeze(drawing: _Drawing) -> None:
    x = drawing.tensor()
    if x is None:
        return
    shape = drawing.shape(x)
    if 1 in shape and drawing.integer(0, 1):
        drawing.node("Squeeze", x, drawing.constant([shape.index(1)], "int64"))
    elif len(shape) < _MAX_RANK:
        axis = drawing.integer(-1, len(shape))
        drawing.node("Unsqueeze", x, drawing.constant([axis], "int64"))


def _concat(drawing: _Drawing) -> None:
    if x := drawing.tensor(1):
        shape = drawing.shape(x)
        axis = drawing.integer(-1, len(shape) - 1)
        second = drawing.tensor(len(shape), len(shape)) or x
        matching_shape = [*drawing.shape(second)]
        matching_shape[axis] = shape[axis]
        drawing.node("Concat", x, second if tuple(matching_shape) == shape else x, axis=axis)


def _slice(drawing: _Drawing) -> None:
    x = drawing.tensor(1)
    if x is None:
        return
    axis = drawing.integer(0, len(drawing.shape(x)) - 1)
    length = drawing.shape(x)[axis]
    starts, ends, steps = drawing.choice(
        [(0, length, 1), (0, max(1, length - 1), 1), (-1, -length - 1, -1), (0, 1 << 40, 2)]
    )
    bounds = [drawing.constant([bound], "int64") for bound in (starts, ends, axis, steps)]
    drawing.node("Slice", x, *bounds)


def _split(drawing: _Drawing) -> None:
    x = drawing.tensor(1)
    if x is None:
        return
    axis = drawing.integer(0, len(drawing.shape(x)) - 1)
    length = drawing.shape(x)[axis]
    if length > 1:
        first = drawing.integer(1, length - 1)
        parts = drawing.constant([first, length - first], "int64")
        drawing.node("Split", x, parts, outputs=2, axis=axis)


def _gather(drawing: _Drawing) -> None:
    if x := drawing.tensor(1):
        axis = drawing.integer(0, len(drawing.shape(x)) - 1)
        length = drawing.shape(x)[axis]
        indices = drawing.choice([[0], [length - 1, 0], 0, [-1, -1]])
        drawing.node("Gather", x, drawing.constant(indices, "int64"), axis=axis)


def _pad(drawing: _Drawing) -> None:
    if x := drawing.tensor(1):
        rank = len(drawing.shape(x))
        pads = [drawing.integer(0, 1) for _ in range(2 * rank)]
        drawing.node("Pad", x, drawing.constant(pads, "int64"))


def _expand(drawing: _Drawing) -> None:
    if x := drawing.tensor():
        shape = drawing.shape(x)
        wider = [2 if size == 1 else size for size in shape]
        drawing.node("Expand", x, drawing.constant(drawing.choice([shape, wider]), "int64"))


def _pool(drawing: _Drawing) -> None:
    x = drawing.tensor(4, 4)
    if x is None:
        return
    op_type = drawing.choice(["MaxPool", "AveragePool", "GlobalAveragePool"])
    if op_type == "GlobalAveragePool":
        drawing.node(op_type, x)
    else:
        kernel = [min(2, size) for size in drawing.shape(x)[2:]]
        drawing.node(op_type, x, kernel_shape=kernel)


def _clip(drawing: _Drawing) -> None:
    if x := drawing.tensor():
        least, most = drawing.choice([(0.0, 6.0), (-1.0, 1.0), (0.0, 1.0), (0.5, 2.0)])
        drawing.node("Clip", x, drawing.constant(least), drawing.constant(most))


def _where(drawing: _Drawing) -> None:
    if x := drawing.tensor():
        zero = drawing.constant(drawing.choice(_CONSTANTS))
        (condition,) = drawing.node(drawing.choice(["Greater", "Less", "Equal"]), x, zero)
        if drawing.integer(0, 1):
            (condition,) = drawing.node("Not", condition)
        alternative = drawing.constant(drawing.choice(_CONSTANTS))
        drawing.node("Where", condition, x, alternative)


def _cast(drawing: _Drawing) -> None:
    if x := drawing.tensor():
        (wide,) = drawing.node("Cast", x, to=onnx.TensorProto.DOUBLE)
        drawing.node("Cast", wide, to=onnx.TensorProto.FLOAT)


def _gelu(drawing: _Drawing) -> None:
    """Append the nodes that exporters write for Gelu."""
    if x := drawing.tensor():
        (scaled,) = drawing.node("Div", x, drawing.constant(np.sqrt(2.0)))
        (bend,) = drawing.node("Erf", scaled)
        (shifted,) = drawing.node("Add", bend, drawing.constant(1.0))
        (product,) = drawing.node("Mul", x, shifted)
        drawing.node("Mul", product, drawing.constant(0.5))


def _normalized_by_hand(drawing: _Drawing) -> None:
    """Append the nodes that exporters write for a layer normalization."""
    if (x := drawing.tensor(1)) and drawing.shape(x)[-1] > 1:
        (mean,) = drawing.node("ReduceMean", x, axes=[-1])
        (centered,) = drawing.node("Sub", x, mean)
        (square,) = drawing.node("Pow", centered, drawing.constant(2.0))
        (variance,) = drawing.node("ReduceMean", square, axes=[-1])
        (shifted,) = drawing.node("Add", variance, drawing.constant(1e-5))
        (deviation,) = drawing.node("Sqrt", shifted)
        drawing.node("Div", centered, deviation)


#: Functions that append nodes to a graph, the simplest first. Common functions occur twice.
_STEPS: tuple[Callable[[_Drawing], None], ...] = (
    *(_unary, _binary, _unary, _binary, _transpose, _reshape, _matmul, _reduction, _concat),
    *(_slice, _softmax, _gemm, _clip, _where, _convolution, _squeeze, _split, _gather, _pad),
    *(_expand, _pool, _batch_normalization, _layer_normalization, _cast, _gelu),
    _normalized_by_hand,
)
