"""A backend that is being checked, and the single-node models that probe the backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from time import monotonic
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxopt_cli.backends.check.protocol_rule import RuleBroken
from onnxopt_cli.backends.exec.exec_backend import (
    CommandSession,
    require_supported,
    response_limits,
)
from onnxopt_cli.backends.protocol import (
    BREAKDOWNS,
    Backend,
    compile_pattern,
    error_text,
    recognising,
)
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import Specification
from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.case_template import Author
from onnxopt_cli.cases.onnx.node_model import formula_model, value_info
from onnxopt_cli.config.run_config import Limits
from onnxopt_cli.core.values import (
    DTYPES,
    Array,
    Value,
)
from onnxopt_cli.errors import BackendFailure, Unsupported
from onnxopt_cli.operators.native_onnx import OnnxRefusal, infer_shapes
from onnxopt_cli.operators.operator import Operator
from onnxopt_cli.operators.registry import registry

#: Common operators, of which most backends support at least one.
LIKELY = ("Identity", "Relu", "Abs", "Neg", "Add", "Mul")

#: Versions of ai.onnx to probe, the most widely supported first.
OPSETS = (17, 13, 21, 11)

#: Shapes of inputs. Operators on matrices require the second shape, and operators on images require
#: the third.
SHAPES = ((3,), (3, 3), (1, 1, 3, 3))

TRAINING = "ai.onnx.preview.training"

_IR_VERSION = 8
# Values of required attributes of probed operators; operators that require other attributes are not
# probed.
_REQUIRED: Mapping[str, int | list[int]] = {
    "axis": 0,
    "blocksize": 1,
    "kernel_shape": [1, 1],
    "size": 1,
    "to": TensorProto.FLOAT,
}
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")
# Types for inputs that do not accept the element type of the probe, in order of preference.
_OTHER_TYPES = (TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT)


def formulas(domain: str = "") -> tuple[str, ...]:
    """Return the qualified names of the operators with a formula, of one or all domains."""
    return tuple(
        operator.qualified_name
        for operator in registry().operators
        if domain in {"", operator.domain}
    )


def _all_operators() -> Iterator[str]:
    """Yield the names of all operators that may be probed, the most common first."""
    yield from LIKELY
    yield from formulas()
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    yield from sorted(names.difference(LIKELY, _RANDOM))


@dataclass(frozen=True, slots=True)
class ProbeModel:
    """The parameters of a single-node model that a backend supports, or may support.

    Attributes:
        operator: a name of ai.onnx, or the qualified name of an operator with a formula.
        opset: version of ai.onnx.
        dtype: element type of the tensors.
        shape: shape of the tensors.
    """

    operator: str
    opset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def tensor(self) -> Array:
        """A small tensor of the probe's element type and shape, with the elements 1, 2, 3, ..."""
        return np.arange(1, 1 + np.prod(self.shape)).reshape(self.shape).astype(self.dtype)

    def problem(self, array: Array | None = None, names: tuple[str, str] = ("x", "y")) -> Problem:
        """Return a model of the operator.

        The tensor is the value of every input that accepts the tensor. The model declares the
        element types and shapes of its outputs.

        Args:
            array: the tensor; by default :attr:`tensor`.
            names: the name of the inputs whose value is the tensor, and the name of the first
                output.

        Raises:
            ValueError: if the operator does not accept the tensor, or requires an attribute that
                probes do not set.
        """
        tensor = self.tensor if array is None else array
        by_name = {operator.qualified_name: operator for operator in registry().operators}
        if self.operator in by_name:
            return _formula_problem(by_name[self.operator], tensor, self.opset, names)
        return _operator_problem(self.operator, tensor, self.opset, names)


def _operator_problem(operator: str, array: Array, opset: int, names: tuple[str, str]) -> Problem:
    try:
        schema = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError as error:
        raise ValueError(f"opset {opset} has no {operator}") from error
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    if schema.deprecated or not required <= _REQUIRED.keys():
        raise ValueError(f"{operator} cannot be probed")
    named_inputs = _named_inputs(schema, array, names[0])
    inputs = dict(named_inputs)
    outputs = [names[1], *(f"{names[1]}{index}" for index in range(1, schema.min_output))]
    node = helper.make_node(operator, [name for name, _ in named_inputs], outputs)
    node.attribute.extend(helper.make_attribute(name, _REQUIRED[name]) for name in required)
    model = _model(node, inputs, opset, [onnx.ValueInfoProto(name=name) for name in outputs])
    try:
        model = infer_shapes(model, strict_mode=True, data_prop=True)
    except OnnxRefusal as error:
        raise ValueError(f"{operator} does not accept the tensor") from error
    for output in model.graph.output:
        tensor = output.type.tensor_type
        is_static = all(dimension.HasField("dim_value") for dimension in tensor.shape.dim)
        if not tensor.HasField("shape") or not is_static:
            raise ValueError(f"the output shape of {operator} cannot be inferred")
    return Problem(model, inputs, None)


def unknown_operator(operator: str, domain: str, array: Array, opset: int) -> Problem:
    """Return a model of an operator that does not exist; the output is declared like the input."""
    # The names of the tensors depend on the operator. If all models had the same names, a pattern
    # with these names would match every message of the check, but no other message.
    operand, result = operator[::-1].lower(), operator[::-2].lower()
    node = helper.make_node(operator, [operand], [result], domain=domain)
    model = _model(node, {operand: array}, opset, [value_info(result, array)])
    return Problem(model, {operand: array}, None)


def _named_inputs(schema: onnx.defs.OpSchema, array: Array, name: str) -> list[tuple[str, Value]]:
    """Return the names and values of an operator's required inputs, in order."""
    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    inputs: list[tuple[str, Value]] = []
    for position in range(max(schema.min_input, 1) if schema.inputs else 0):
        accepted = schema.inputs[min(position, len(schema.inputs) - 1)].types
        if _type_name(element_type) in accepted:
            inputs.append((name, array))
            continue
        other_type = next(
            (number for number in _OTHER_TYPES if _type_name(number) in accepted), None
        )
        if other_type is not None:
            dtype = helper.tensor_dtype_to_np_dtype(other_type)
            inputs.append((f"{name}{position}", np.zeros(array.shape, dtype)))
    if len(inputs) < schema.min_input or name not in dict(inputs):
        raise ValueError(f"{schema.name} does not accept the tensor")
    return inputs


def _formula_problem(
    operator: Operator, array: Array, opset: int, names: tuple[str, str]
) -> Problem:
    if array.dtype.name not in operator.dtypes:
        raise ValueError(f"{operator.name} does not accept the tensor")
    values = [np.ones((), scalar.dtypes[0]) for scalar in operator.scalars]
    values += [array] * len(operator.tensors)
    input_names = operator.input_names(1)
    input_names[len(operator.scalars)] = names[0]
    author = Author(operator)
    attributes = {**author.required, **author.settings[0]}
    model = formula_model(operator, attributes, values, graph_name="probe", input_names=input_names)
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
    infos = [value_info(name, np.asarray(value)) for name, value in inputs.items()]
    graph = helper.make_graph([node], "probe", infos, outputs)
    imports = [helper.make_opsetid("", opset)]
    if node.domain:
        imports.append(helper.make_opsetid(node.domain, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)


def _type_name(element_type: int) -> str:
    return f"tensor({TensorProto.DataType.Name(element_type).lower()})"


# Element types, the most common first.
_DTYPES = tuple(
    map(np.dtype, ("float32", "float64", "int64", "int32", "float16", "bool", "uint8", "int8"))
)
# The time limit of all probes together, in seconds. Some backends compile each model, which takes
# long.
_SEARCH_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A backend's response that contains no outputs.

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
    """Run a model; return the backend's refusal, or None if the backend returns outputs."""
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
    """A backend that is being checked.

    Args:
        text: the backend as the user specified it.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def raw_outputs(self, problem: Problem) -> object:
        """Run a model, and return the backend's outputs unconverted."""
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
        """The supported probe, or the most common probe if the backend supports none."""
        return self.supported or next(self._candidates())

    def problem_with(self, array: Array, names: tuple[str, str] = ("x", "y")) -> Problem | None:
        """Return the model of the supported probe, with ``array`` as the input.

        The result is None if the backend supports no probe, or the operator of the probe does not
        accept the tensor.
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
            (dtypes, SHAPES, _all_operators(), opsets[:1]),
            *((dtypes[:1], SHAPES, _all_operators(), (opset,)) for opset in opsets[1:]),
        ]
        for search in searches:
            for dtype, shape, name, opset in product(*search):
                yield ProbeModel(name, opset, dtype, shape)


class CheckedPlugin(CheckedBackend):
    """A backend in Python.

    Args:
        text: the backend as the user specified it.
    """

    @cached_property
    def backend(self) -> Backend:
        """The backend; loading it may raise any exception."""
        return resolve_backend(self.text)

    def raw_outputs(self, problem: Problem) -> object:
        """Run a model, and return the backend's outputs unconverted."""
        return self.backend.prepare(problem.model).run(problem.inputs)


class CheckedCommand(CheckedBackend):
    """A backend that is a command.

    Args:
        specification: the command as the user specified it.
    """

    def __init__(self, specification: Specification) -> None:
        super().__init__(specification.text)
        self._specification = specification
        self.session = CommandSession(
            specification.command, response_limits(specification, Limits())
        )

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
        """Run a model if the command lists the model's domains, versions and element types."""
        require_supported(problem.model, self.session.hello)
        return self.run(problem)

    def run(self, problem: Problem, content: bytes | None = None, **fields: str) -> list[Value]:
        """Submit a model with its inputs to the command.

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
