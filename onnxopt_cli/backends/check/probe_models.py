"""Models of one node, to see what a backend does with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.node_model import formula_model, value_info
from onnxopt_cli.core.values import Array, Value
from onnxopt_cli.operators.native_onnx import OnnxRefusal, infer_shapes
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry
from onnxopt_cli.suites.case_template import Author

#: Operators of which most backends know one.
LIKELY = ("Identity", "Relu", "Abs", "Neg", "Add", "Mul")

#: Versions of ai.onnx, the likeliest first.
OPSETS = (17, 13, 21, 11)

#: Of inputs; operators on matrices and on pictures take no others than the second and the third.
SHAPES = ((3,), (3, 3), (1, 1, 3, 3))

TRAINING = "ai.onnx.preview.training"

_IR_VERSION = 8
# Values of attributes that a node must have; an operator with others is not asked for.
_REQUIRED: Mapping[str, int | list[int]] = {
    "axis": 0,
    "blocksize": 1,
    "kernel_shape": [1, 1],
    "size": 1,
    "to": TensorProto.FLOAT,
}
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")
# What an input is fed that does not take the element type in question.
_OTHER_TYPES = (TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT)


def formulas(domain: str = "") -> tuple[str, ...]:
    """Return the qualified names of all operators with a formula, or of those of a domain."""
    operators = registry().operators
    return tuple(one.qualified_name for one in operators if domain in {"", one.domain})


def all_operators() -> Iterator[str]:
    """Yield the names of all operators that may be asked for, the likeliest first."""
    yield from LIKELY
    yield from formulas()
    others = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    yield from sorted(others.difference(LIKELY, _RANDOM))


@dataclass(frozen=True, slots=True)
class Runs:
    """Something that a backend runs, or may run.

    Attributes:
        operator: a name of ai.onnx, or the qualified name of an operator with a formula.
        opset: version of ai.onnx.
        dtype: element type of the tensors.
        shape: their shape.
    """

    operator: str
    opset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def tensor(self) -> Array:
        """A small tensor of the kind, the same each time."""
        return np.arange(1, 1 + np.prod(self.shape)).reshape(self.shape).astype(self.dtype)

    def question(self, array: Array | None = None, names: tuple[str, str] = ("x", "y")) -> Problem:
        """Return a model of the operator, fed with one tensor wherever it takes it.

        Its outputs are declared with element type and shape.

        Args:
            array: the tensor; the small one if left out.
            names: of the first tensor among the inputs, and of the first output.

        Raises:
            ValueError: if the operator takes no such tensor, or needs more than tensors.
        """
        asked = self.tensor if array is None else array
        known = {one.qualified_name: one for one in registry().operators}
        if self.operator in known:
            return _formula_question(known[self.operator], asked, self.opset, names)
        return _question(self.operator, asked, self.opset, names)


def _question(operator: str, array: Array, opset: int, names: tuple[str, str]) -> Problem:
    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError as error:
        raise ValueError(f"opset {opset} has no {operator}") from error
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    if schema.deprecated or not required <= _REQUIRED.keys():
        raise ValueError(f"{operator} cannot be asked in this way")
    fed = _fed(schema, array, names[0])
    inputs = dict(fed)
    outputs = [names[1], *(f"{names[1]}{index}" for index in range(1, schema.min_output))]
    node = helper.make_node(operator, [name for name, _ in fed], outputs)
    node.attribute.extend(helper.make_attribute(name, _REQUIRED[name]) for name in required)
    model = _model(node, inputs, opset, [onnx.ValueInfoProto(name=name) for name in outputs])
    try:
        model = infer_shapes(model, strict_mode=True, data_prop=True)
    except OnnxRefusal as error:
        raise ValueError(f"{operator} takes no such tensor") from error
    for output in model.graph.output:
        tensor = output.type.tensor_type
        known = all(dimension.HasField("dim_value") for dimension in tensor.shape.dim)
        if not tensor.HasField("shape") or not known:
            raise ValueError(f"{operator} does not say what it returns")
    return Problem(model, inputs, None)


def unknown(operator: str, domain: str, array: Array, opset: int) -> Problem:
    """Return a model of an operator that nobody knows, from one tensor to one like it."""
    # What is said of the tensors must not be taken for what is said of all such operators.
    given, result = operator[::-1].lower(), operator[::-2].lower()
    node = helper.make_node(operator, [given], [result], domain=domain)
    model = _model(node, {given: array}, opset, [value_info(result, array)])
    return Problem(model, {given: array}, None)


def _fed(schema: onnx.defs.OpSchema, array: Array, name: str) -> list[tuple[str, Value]]:
    """Return names and values of the inputs that an operator must have, in order."""
    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    fed: list[tuple[str, Value]] = []
    for position in range(max(schema.min_input, 1) if schema.inputs else 0):
        taken = schema.inputs[min(position, len(schema.inputs) - 1)].types
        if _type_name(element_type) in taken:
            fed.append((name, array))
            continue
        other = next(
            (type_name for type_name in _OTHER_TYPES if _type_name(type_name) in taken), None
        )
        if other is not None:
            dtype = helper.tensor_dtype_to_np_dtype(other)
            fed.append((f"{name}{position}", np.zeros(array.shape, dtype)))
    if len(fed) < schema.min_input or name not in dict(fed):
        raise ValueError(f"{schema.name} takes no such tensor")
    return fed


def _formula_question(
    operator: Operator, array: Array, opset: int, names: tuple[str, str]
) -> Problem:
    if array.dtype.name not in operator.dtypes:
        raise ValueError(f"{operator.name} takes no such tensor")
    values = [np.ones((), scalar.dtypes[0]) for scalar in operator.scalars]
    values += [array] * len(operator.tensors)
    input_names = operator.input_names(1)
    input_names[len(operator.scalars)] = names[0]
    author = Author(operator)
    attributes = {**author.required, **author.settings[0]}
    model = formula_model(
        operator, attributes, values, graph_name="question", input_names=input_names
    )
    model.graph.output[0].name = model.graph.node[0].output[0] = names[1]
    model.opset_import.append(helper.make_opsetid("", opset))
    model.ir_version = _IR_VERSION
    return Problem(model, dict(zip(input_names, values, strict=True)), None)


def _model(
    node: onnx.NodeProto,
    inputs: Mapping[str, Value],
    opset: int,
    outputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    given = [value_info(name, np.asarray(value)) for name, value in inputs.items()]
    graph = helper.make_graph([node], "question", given, outputs)
    imports = [helper.make_opsetid("", opset)]
    if node.domain:
        imports.append(helper.make_opsetid(node.domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def _type_name(element_type: int) -> str:
    return f"tensor({TensorProto.DataType.Name(element_type).lower()})"
