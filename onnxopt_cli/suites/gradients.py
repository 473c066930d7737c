"""The suite ``gradient``: models with a node of Gradient, version 1.

Each model computes y and the derivatives of y. In most models, y is the product of a result and a
weight, which is one of ``zs``. Therefore, the elements of the gradient that enters the
differentiated operators differ from each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper

from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.data_set import directory_files
from onnxopt_cli.cases.onnx.node_model import tensor_info, whole_model
from onnxopt_cli.core.result import Location
from onnxopt_cli.core.values import Array
from onnxopt_cli.interpret.gradient.reverse_mode import DOMAIN, NAME, expand_gradients

#: The name of the suite.
GRADIENTS = "gradient"
#: The version of the suite. Increment the version when a case is added, removed or changed.
VERSION = "1"
_OPSET = 17
# Number of decimals of the elements, which is large enough for all elements of a tensor to differ.
_DECIMALS = 3
_Step: TypeAlias = tuple[str, str, str] | tuple[str, str, str, Mapping[str, Any]]


@dataclass(frozen=True)
class _Range:
    """A tensor of random numbers that differ from each other.

    Attributes:
        shape: the shape.
        low, high: the range.
    """

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0

    def draw(self, random: Random, dtype: str) -> Array:
        drawn: dict[float, None] = {}
        while len(drawn) < prod(self.shape):
            drawn[round(random.uniform(self.low, self.high), _DECIMALS)] = None
        return np.array([*drawn], dtype).reshape(self.shape)


def any_of(*shape: int) -> _Range:
    """Describe a tensor of positive and negative numbers."""
    return _Range(shape)


def positive(*shape: int) -> _Range:
    """Describe a tensor of positive numbers."""
    return _Range(shape, 0.3, 1.9)


@dataclass(frozen=True)
class GradientCase:
    """A model with one or more Gradient nodes.

    Attributes:
        name: the name of the case.
        about: what the case tests, in one sentence.
        inputs: the inputs of the model.
        steps: its nodes: operator, inputs, outputs, attributes. An input that begins with ``=`` is
            a constant: a vector such as ``=1,2``, or a scalar such as ``=0.5!`` if it ends in
            ``!``. Numbers with a decimal point have the type ``dtype``, others are int64.
        xs: tensors by which y is differentiated.
        zs: the other variables of the Gradient node.
        feeds: the inputs of the Gradient node if they differ from the tensors ``xs`` and ``zs``.
        omitted: outputs of the Gradient node that are omitted.
        dtype: element type of the inputs.
        opset: version of ai.onnx.
    """

    name: str
    about: str
    inputs: Mapping[str, _Range | Array]
    steps: Sequence[_Step]
    xs: Sequence[str] = ("X",)
    zs: Sequence[str] = ()
    feeds: Sequence[str] = ()
    omitted: Sequence[str] = ()
    dtype: str = "float32"
    opset: int = _OPSET

    def problem(self) -> Problem:
        """Return the model with its inputs and outputs."""
        # Most commands need the names of suites, but not the oracle, which is therefore imported
        # late.
        from onnxopt_cli.oracle.evaluator import native_outputs
        from onnxopt_cli.oracle.reference_outputs import reference_outputs

        random = Random(self.name)  # noqa: S311 - reproducible numbers
        inputs = {
            name: value.draw(random, self.dtype)
            if isinstance(value, _Range)
            else value.astype(self.dtype)
            for name, value in self.inputs.items()
        }
        model = self._model(inputs)
        outputs = reference_outputs(expand_gradients(model, inputs, native_outputs), inputs)
        names = [output.name for output in model.graph.output]
        stored = dict(zip(names, outputs, strict=True))
        del model.graph.output[:]
        model.graph.output.extend(
            tensor_info(name, value.dtype, value.shape) for name, value in stored.items()
        )
        return Problem(model, inputs, stored)

    def _model(self, inputs: Mapping[str, Array]) -> onnx.ModelProto:
        constants: list[onnx.TensorProto] = []
        nodes: list[onnx.NodeProto] = []
        for number, (op_type, sources, results, *rest) in enumerate(self.steps):
            names = []
            for place, source in enumerate(sources.split()):
                name = source
                if source.startswith("="):
                    name = f"constant_{number}_{place}"
                    constants.append(_constant(name, source[1:], self.dtype))
                names.append(name)
            attributes: Mapping[str, Any] = rest[0] if rest else {}
            nodes.append(
                helper.make_node(
                    op_type,
                    names,
                    results.split(),
                    domain=DOMAIN if op_type == NAME else "",
                    **attributes,
                )
            )
        outputs = ["" if x in self.omitted else f"d_{x}" for x in self.xs]
        variables: dict[str, Any] = {"xs": [*self.xs], "y": "y"}
        if self.zs:
            variables["zs"] = [*self.zs]
        feeds = [*(self.feeds or (*self.xs, *self.zs))]
        nodes.append(helper.make_node(NAME, feeds, outputs, domain=DOMAIN, **variables))
        graph = helper.make_graph(
            nodes,
            self.name,
            [tensor_info(name, value.dtype, value.shape) for name, value in inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in filter(None, outputs)],
            constants,
        )
        return whole_model(graph, [("", self.opset), (DOMAIN, 1)])


def _constant(name: str, text: str, dtype: str) -> onnx.TensorProto:
    """Return the initializer that a constant in a step describes."""
    scalar = text.endswith("!")
    numbers = [float(number) for number in text.rstrip("!").split(",")]
    array = np.array(numbers, dtype if "." in text else "int64")
    return onnx.numpy_helper.from_array(array.reshape(()) if scalar else array, name)


def _weighted(
    name: str,
    about: str,
    op_type: str,
    inputs: Mapping[str, _Range | Array],
    weight: tuple[int, ...],
    attributes: Mapping[str, Any] | None = None,
    sources: str = "",
) -> GradientCase:
    """Return the case of one operator whose output is multiplied by a weight.

    Args:
        name: the name of the case.
        about: what the case tests, in one sentence.
        op_type: the operator.
        inputs: its inputs, by which y is differentiated.
        weight: the shape of the weight.
        attributes: its attributes.
        sources: the inputs of the operator's node, by name or as constants; by default the names of
            ``inputs``.
    """
    steps: list[_Step] = [
        (op_type, sources or " ".join(inputs), "h", attributes or {}),
        ("Mul", "h w", "y"),
    ]
    everything = {**inputs, "w": any_of(*weight)}
    return GradientCase(name, about, everything, steps, tuple(inputs), ("w",))


def _elementwise() -> Iterator[GradientCase]:
    shape = (2, 3)
    for op_type in (
        *("Abs", "Cos", "Elu", "Erf", "Exp", "LeakyRelu", "Neg", "Relu", "Sigmoid", "Sin"),
        *("Softplus", "Softsign", "Tanh"),
    ):
        about = f"The derivative of {op_type} at positive and negative numbers."
        yield _weighted(op_type.lower(), about, op_type, {"X": any_of(*shape)}, shape)
    for op_type in ("Log", "Reciprocal", "Sqrt"):
        about = f"The derivative of {op_type}."
        yield _weighted(op_type.lower(), about, op_type, {"X": positive(*shape)}, shape)
    about = "alpha is not the default."
    yield _weighted(
        "leakyrelu_alpha", about, "LeakyRelu", {"X": any_of(*shape)}, shape, {"alpha": 0.25}
    )
    yield _weighted("elu_alpha", about, "Elu", {"X": any_of(*shape)}, shape, {"alpha": 0.5})
    about = "Only elements between the limits have a derivative."
    yield _weighted("clip", about, "Clip", {"X": any_of(2, 4)}, (2, 4), sources="X =-1.0! =0.75!")


def _binary() -> Iterator[GradientCase]:
    operands = {"X": positive(2, 3), "W": positive(2, 3)}
    for op_type in ("Add", "Sub", "Mul", "Div", "Pow"):
        about = f"The derivatives of {op_type} by both operands."
        yield _weighted(op_type.lower(), about, op_type, operands, (2, 3))
        about = f"The derivatives of {op_type} are summed over broadcast axes."
        broadcast = {"X": positive(3, 1), "W": positive(2, 1, 4)}
        yield _weighted(f"{op_type.lower()}_broadcast", about, op_type, broadcast, (2, 3, 4))
    for op_type in ("Max", "Min"):
        about = f"The gradient of {op_type} goes to the chosen operand alone."
        inputs = {"X": any_of(2, 3), "W": any_of(3)}
        yield _weighted(op_type.lower(), about, op_type, inputs, (2, 3))
    about = "A scalar is broadcast to all elements."
    yield _weighted("mul_scalar", about, "Mul", {"X": any_of(), "W": any_of(2, 3)}, (2, 3))
    about = "The gradient of Where goes to the chosen operand, which is broadcast."
    yield GradientCase(
        "where",
        about,
        {"X": any_of(2, 3), "V": any_of(3), "w": any_of(2, 3)},
        [("Greater", "w =0.0!", "c"), ("Where", "c X V", "h"), ("Mul", "h w", "y")],
        ("X", "V"),
        ("w",),
    )
    about = "PRelu has a slope for each channel."
    yield _weighted("prelu", about, "PRelu", {"X": any_of(2, 3, 2), "W": any_of(3, 1)}, (2, 3, 2))


def _products() -> Iterator[GradientCase]:
    about = "Square matrices, whose transposes have the same shape."
    yield _weighted(
        "matmul_square", about, "MatMul", {"X": any_of(3, 3), "W": any_of(3, 3)}, (3, 3)
    )
    about = "Matrices of different shapes."
    yield _weighted("matmul", about, "MatMul", {"X": any_of(2, 4), "W": any_of(4, 3)}, (2, 3))
    about = "Batches are broadcast, so their gradients are summed."
    inputs = {"X": any_of(2, 1, 2, 3), "W": any_of(4, 3, 2)}
    yield _weighted("matmul_batches", about, "MatMul", inputs, (2, 4, 2, 2))
    about = "A vector times a matrix."
    yield _weighted("matmul_vector", about, "MatMul", {"X": any_of(3), "W": any_of(3, 2)}, (2,))
    about = "A batch of matrices times a vector."
    inputs = {"X": any_of(2, 2, 3), "W": any_of(3)}
    yield _weighted("matmul_by_vector", about, "MatMul", inputs, (2, 2))
    for turn_a in (0, 1):
        for turn_b in (0, 1):
            shapes = {
                "X": any_of(3, 3),
                "W": any_of(3, 3),
                "C": any_of(3) if turn_a else any_of(3, 1),
            }
            attributes = {"transA": turn_a, "transB": turn_b, "alpha": 0.5, "beta": 1.5}
            about = "Square operands with and without transposition; C is broadcast."
            yield _weighted(f"gemm_{turn_a}{turn_b}", about, "Gemm", shapes, (3, 3), attributes)
    about = "Strides, dilations, asymmetric pads, groups and a bias."
    yield _weighted(
        "conv",
        about,
        "Conv",
        {"X": any_of(1, 4, 4, 5), "W": any_of(2, 2, 2, 2), "B": any_of(2)},
        (1, 2, 2, 4),
        {"strides": [2, 1], "dilations": [2, 1], "pads": [1, 0, 0, 0], "group": 2},
    )
    about = "A kernel that is not symmetric, and several batches."
    inputs = {"X": any_of(2, 1, 4), "W": any_of(2, 1, 3)}
    yield _weighted("conv_1d", about, "Conv", inputs, (2, 2, 2))


def _reductions() -> Iterator[GradientCase]:
    for op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
        name = op_type.lower()
        about = f"{op_type} over one axis, which is dropped."
        attributes: dict[str, Any] = {"keepdims": 0}
        sources = "X =1" if op_type == "ReduceSum" else "X"
        if op_type != "ReduceSum":
            attributes["axes"] = [1]
        yield _weighted(name, about, op_type, {"X": any_of(2, 3, 2)}, (2, 2), attributes, sources)
    about = "ReduceSum over all axes."
    yield GradientCase(
        "reducesum_all",
        about,
        {"X": any_of(2, 3)},
        [("Mul", "X X", "h"), ("ReduceSum", "h", "y", {"keepdims": 0})],
    )
    for op_type in ("Softmax", "LogSoftmax"):
        about = f"{op_type} over an axis that is not the last."
        yield _weighted(
            op_type.lower(), about, op_type, {"X": any_of(2, 3, 2)}, (2, 3, 2), {"axis": 1}
        )
    about = "Windows overlap, and the padding is not counted."
    window = {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [1, 1, 0, 0]}
    yield _weighted(
        "averagepool", about, "AveragePool", {"X": any_of(1, 2, 2, 4)}, (1, 2, 2, 2), window
    )
    about = "Windows overlap, so an element may be the largest of several."
    yield _weighted("maxpool", about, "MaxPool", {"X": any_of(1, 2, 2, 4)}, (1, 2, 2, 2), window)
    about = "The scale, the bias and the statistics of LayerNormalization."
    inputs = {"X": any_of(2, 4), "W": any_of(4), "B": any_of(4)}
    yield _weighted("layernormalization", about, "LayerNormalization", inputs, (2, 4))


def _moves() -> Iterator[GradientCase]:
    about = "A permutation that is not its own inverse."
    yield _weighted(
        "transpose", about, "Transpose", {"X": any_of(2, 3, 4)}, (3, 4, 2), {"perm": [1, 2, 0]}
    )
    yield _weighted(
        "reshape",
        "The gradient has the shape of the input.",
        "Reshape",
        {"X": any_of(2, 3)},
        (3, 2),
        sources="X =3,-1",
    )
    about = "The gradient of Concat is split in the order of its inputs; one input occurs twice."
    yield _weighted(
        "concat",
        about,
        "Concat",
        {"X": any_of(2, 2), "W": any_of(2, 1)},
        (2, 5),
        {"axis": 1},
        "X W X",
    )
    about = "Elements that Slice skips have a zero gradient; the step is negative."
    yield _weighted("slice", about, "Slice", {"X": any_of(2, 5)}, (2, 2), sources="X =3 =-6 =1 =-2")
    about = "An element that Gather takes twice adds both gradients."
    yield _weighted("gather", about, "Gather", {"X": any_of(2, 4)}, (2, 3), {"axis": 1}, "X =2,0,2")
    about = "Only one of two outputs of Split is used."
    yield GradientCase(
        "split",
        about,
        {"X": any_of(2, 4), "w": any_of(2, 3)},
        [("Split", "X =1,3", "h t", {"axis": 1}), ("Mul", "t w", "y")],
        zs=("w",),
    )
    about = "Repeated elements of Tile and Expand add their gradients."
    yield GradientCase(
        "tile_expand",
        about,
        {"X": any_of(1, 3), "w": any_of(2, 6)},
        [("Expand", "X =2,3", "h"), ("Tile", "h =1,2", "t"), ("Mul", "t w", "y")],
        zs=("w",),
    )
    about = "Reflected elements add their gradients."
    yield _weighted(
        "pad_reflect", about, "Pad", {"X": any_of(2, 3)}, (2, 6), {"mode": "reflect"}, "X =0,1,0,2"
    )


def _graphs() -> Iterator[GradientCase]:
    about = "A variable that is used three times adds three gradients."
    steps: list[_Step] = [("Mul", "X X", "a"), ("Add", "a X", "y")]
    yield GradientCase("used_thrice", about, {"X": any_of(2, 3)}, steps)
    about = "A value is used by two nodes, and one path is longer."
    yield GradientCase(
        "two_paths",
        about,
        {"X": any_of(2, 3), "W": any_of(3, 2)},
        [
            ("MatMul", "X W", "a"),
            ("Tanh", "a", "b"),
            ("Sigmoid", "b", "c"),
            ("Mul", "b c", "d"),
            ("Add", "d a", "y"),
        ],
        ("X", "W"),
    )
    about = "y does not depend on V, whose gradient is zero."
    yield GradientCase(
        "no_influence",
        about,
        {"X": any_of(2, 3), "V": any_of(2, 2)},
        [("Mul", "X X", "y")],
        ("V", "X"),
    )
    about = "The order of xs is not that of the operands."
    yield GradientCase(
        "order_of_xs",
        about,
        {"X": positive(2, 3), "W": positive(2, 3), "V": positive(2, 3)},
        [("Div", "X W", "a"), ("Pow", "a V", "y")],
        ("V", "X", "W"),
    )
    about = "The Gradient node is given other values than those of the tensors that it names."
    yield GradientCase(
        "other_values",
        about,
        {"X": any_of(2, 3), "W": any_of(2, 3), "P": any_of(2, 3), "Q": any_of(2, 3)},
        [("Mul", "X W", "a"), ("Mul", "a X", "y")],
        zs=("W",),
        feeds=("P", "Q"),
    )
    about = "The values of X and W are exchanged."
    yield GradientCase(
        "exchanged_values",
        about,
        {"X": any_of(2, 3), "W": any_of(2, 3)},
        [("Mul", "X W", "a"), ("Mul", "a X", "y")],
        ("X", "W"),
        feeds=("W", "X"),
    )
    about = "y is differentiated by an intermediate tensor, at its value."
    yield GradientCase(
        "intermediate",
        about,
        {"X": any_of(2, 3), "W": any_of(3, 2), "V": any_of(2, 2)},
        [("MatMul", "X W", "H"), ("Tanh", "H", "a"), ("Mul", "a V", "y")],
        ("H", "V"),
    )
    about = "The first output is omitted."
    yield GradientCase(
        "omitted_output",
        about,
        {"X": any_of(2, 3), "W": any_of(2, 3)},
        [("Mul", "X W", "a"), ("Mul", "a X", "y")],
        ("X", "W"),
        omitted=("X",),
    )
    about = "zs have no gradient, and one of xs is used beside them."
    yield GradientCase(
        "three_zs",
        about,
        {"A": any_of(2), "X": any_of(2), "B": any_of(2), "C": any_of(2)},
        [("Mul", "A X", "p"), ("Add", "p B", "q"), ("Mul", "q C", "r"), ("Mul", "r X", "y")],
        zs=("C", "A", "B"),
    )
    about = "The derivative of a derivative."
    yield GradientCase(
        "second_order",
        about,
        {"X": any_of(2, 3), "w": any_of(2, 3)},
        [
            ("Tanh", "X", "a"),
            ("Mul", "a X", "b"),
            (NAME, "X", "g", {"xs": ["X"], "y": "b"}),
            ("Mul", "g w", "y"),
        ],
        zs=("w",),
    )
    about = "A classifier of two layers, from the loss to all of its weights."
    yield GradientCase(
        "two_layers",
        about,
        {
            "X": any_of(4, 3),
            "W1": any_of(3, 5),
            "B1": any_of(5),
            "W2": any_of(5, 3),
            "B2": any_of(3),
            "T": np.eye(3)[[0, 2, 1, 2]],
        },
        [
            ("Gemm", "X W1 B1", "a"),
            ("Relu", "a", "b"),
            ("Gemm", "b W2 B2", "c"),
            ("LogSoftmax", "c", "d", {"axis": -1}),
            ("Mul", "d T", "e"),
            ("ReduceSum", "e =1", "f", {"keepdims": 0}),
            ("Neg", "f", "g"),
            ("ReduceMean", "g", "y", {"keepdims": 0}),
        ],
        ("W1", "B1", "W2", "B2"),
        ("X", "T"),
    )


def _types() -> Iterator[GradientCase]:
    for dtype in ("float64", "float16"):
        about = f"Derivatives in {dtype}."
        yield GradientCase(
            f"chain_{dtype}",
            about,
            {"X": any_of(2, 3), "W": any_of(3, 2)},
            [("MatMul", "X W", "a"), ("Sigmoid", "a", "b"), ("Mul", "b a", "y")],
            ("X", "W"),
            dtype=dtype,
        )
    about = "A long sum of gradients, which must not be accumulated in float16."
    yield GradientCase(
        "long_sum_float16",
        about,
        {"X": any_of(1), "w": positive(1500)},
        [("Mul", "X w", "y")],
        zs=("w",),
        dtype="float16",
    )
    about = "A float16 cast to float32: each gradient has the type of its tensor."
    yield GradientCase(
        "cast",
        about,
        {"X": any_of(2, 3)},
        [
            ("Cast", "X", "a", {"to": onnx.TensorProto.FLOAT}),
            ("Tanh", "a", "b"),
            ("Mul", "b a", "y"),
        ],
        dtype="float16",
    )


def gradient_templates() -> list[GradientCase]:
    """Return the cases of the suite before their values are computed."""
    families = (_elementwise, _binary, _products, _reductions, _moves, _graphs, _types)
    return [case for family in families for case in family()]


def gradient_cases() -> list[Case]:
    """Return the cases of the suite."""
    return [
        Case(
            id=f"{GRADIENTS}/{template.name}",
            location=Location(Path(GRADIENTS, template.name)),
            load=template.problem,
            operators=(*dict.fromkeys([*(step[0] for step in template.steps), NAME]),),
            about=template.about,
            tags=(template.dtype,),
            suite_version=VERSION,
        )
        for template in gradient_templates()
    ]


def gradient_directories() -> tuple[list[tuple[str, bytes]], int]:
    """Return the suite as ONNX test directories: files by path, and the number of cases."""
    templates = gradient_templates()
    files = [
        (f"{GRADIENTS}/test_{template.name}/{path}", data)
        for template in templates
        for path, data in directory_files(template.problem()).items()
    ]
    return files, len(templates)
