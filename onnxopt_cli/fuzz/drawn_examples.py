"""Examples: single nodes of operators with and without a formula, and models of several nodes.

The classes have a common interface, which :class:`GraphExample` describes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.model_check import model_fault
from onnxopt_cli.cases.onnx.node_model import formula_model, tensor_info, whole_model
from onnxopt_cli.cases.yaml.case_file import read_yaml_text
from onnxopt_cli.cases.yaml.case_writer import (
    CaseTemplate,
    model_yaml_text,
    node_yaml_text,
    yaml_text,
)
from onnxopt_cli.core.tolerance import Provenance, Relative
from onnxopt_cli.core.values import DTYPES, Array, dtype_name
from onnxopt_cli.fuzz.choices import (
    NAME,
    SHAPES,
    SUITE,
    Shape,
    Source,
    draw_attributes,
    draw_narrow_shape,
    draw_scalar,
    draw_tensor,
    has_result,
)
from onnxopt_cli.fuzz.random_graph import RandomGraph
from onnxopt_cli.interpret.bound.chained_nodes import InexactTensor, inexact_outputs
from onnxopt_cli.interpret.bound.error_bound import DerivedOutput, also_right
from onnxopt_cli.interpret.evaluate import nonnegative_tensors
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import AttributeValue, Operator
from onnxopt_cli.suites.operators.generated_node import GeneratedNode
from onnxopt_cli.suites.operators.generators import draw, schemas
from onnxopt_cli.suites.operators.node_draft import Unsuitable
from onnxopt_cli.suites.operators.operator_suite import node_case

Inputs: TypeAlias = dict[str, Array]
Attributes: TypeAlias = dict[str, AttributeValue]

_OPSET = 13
# If a model has several nodes, their number is drawn from these numbers.
_NODE_COUNTS = (2, 2, 3)
#: Chains of primitive nodes that may connect two nodes. A node of a chain is an operator and the
#: name of its second input, if any. Every chain preserves the shape.
_LINKS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (),
    (("Neg",),),
    (("Abs",),),
    (("Identity",),),
    (("Transpose",), ("Transpose",)),
    (("Reshape", "flat"), ("Reshape", "whole")),
)
#: NumPy functions for the primitive operators that change values.
_FUNCTIONS = {"Neg": np.negative, "Abs": np.abs}
#: If the relative error bound of an element is at most this limit, it determines rtol. Otherwise,
#: the absolute error bound of the element determines atol.
_LARGEST_RTOL = 1e-3
# Types of ordinary inputs. Any other type of an input counts as a trait of the node.
_SIMPLEST_TYPES = ("float32", "int64")
# Integer attributes that select an element type.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "stash_type"})
_SWITCH_VALUES = (0, 1)
# A node's number of tensor groups is drawn from these numbers.
_GROUP_COUNTS = (1, 1, 1, 2, 3)
# One in _EXAMPLES_PER_BREACH examples violates the signature of its operator.
_EXAMPLES_PER_BREACH = 8


@dataclass(frozen=True, slots=True, eq=False)
class NodeExample:
    """A node with its inputs. Its expected outputs follow from the formula.

    The node is valid, or it violates the operator's signature in one way.

    Attributes:
        operator: the node's operator.
        attributes: attributes of the node.
        inputs: inputs by the operator's names.
        breach: a key of the result of :func:`breaches`, which describes how the node violates the
            signature; empty for a valid node.
    """

    operator: Operator
    attributes: Attributes
    inputs: Inputs
    breach: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """The name of the operator under test."""
        return (self.operator.name,)

    @property
    def subject(self) -> str:
        """The operator's name."""
        return self.operator.name

    def problem(self) -> Problem:
        """Return the case's content, as ``onnxopt run`` loads it from the case file."""
        if self.breach:
            # The example is written as text and read again. This ensures that a case file can
            # represent the example.
            cases, problems = read_yaml_text(self._text("", ""), Path(f"{NAME}.yaml"))
            assert not problems, problems  # noqa: S101 - the writer's text is valid
            return cases[0].load()
        model = formula_model(
            self.operator, self.attributes, list(self.inputs.values()), graph_name=NAME
        )
        return Problem(model, self.inputs, None)

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the files of the case by name; the only file is the case file.

        Args:
            stem: stem of the file names.
            about: description of the failure in one sentence.
            source: the command that found the failure.
        """
        return {f"{stem}.yaml": self._text(about, source).encode()}

    def _text(self, about: str, source: str) -> str:
        attributes, inputs = self.attributes, self.inputs
        if self.breach:
            attributes, inputs = breaches(self)[self.breach]
        written = CaseTemplate(
            name=NAME,
            operator=self.operator,
            about=about,
            source=source,
            inputs=inputs,
            attributes=attributes,
            rejects=bool(self.breach),
        )
        return yaml_text([written], suite=SUITE)


def draw_node(source: Source, operator: Operator) -> NodeExample:
    """Draw a node.

    About one node in eight is invalid: a correct backend must reject it.
    """
    node = _draw_right_node(source, operator, source.choice(_GROUP_COUNTS))
    if source.rarely(_EXAMPLES_PER_BREACH):
        return replace(node, breach=source.choice([*breaches(node)]))
    return node


def breaches(node: NodeExample) -> dict[str, tuple[Attributes, Inputs]]:
    """Return invalid attributes and inputs of a node, by a description of the violation."""
    operator, attributes, inputs = node.operator, node.attributes, node.inputs
    wrong_attributes: dict[str, Attributes] = {}
    for item in operator.attributes:
        if item.choices:
            changed = attributes | {item.name: "bogus"}
            wrong_attributes[f"{item.name} has an unknown value"] = changed
    for item in operator.attributes:
        if item.limits:
            changed = attributes | {item.name: 1 + item.limits[1] + abs(item.limits[1])}
            wrong_attributes[f"{item.name} is beyond its limits"] = changed
    # Only one missing attribute is tried: a backend that detects one missing attribute probably
    # detects every other one.
    for name in [item.name for item in operator.attributes if item.required][:1]:
        changed = {key: value for key, value in attributes.items() if key != name}
        wrong_attributes[f"{name} is left out"] = changed
    wrong_attributes["an attribute is unknown"] = attributes | {"bogus": 0.5}
    broken = {breach: (changed, inputs) for breach, changed in wrong_attributes.items()}
    if len(operator.tensors) > 1:
        last, (name, tensor) = operator.tensors[-1], list(inputs.items())[-1]
        fewer = {key: value for key, value in inputs.items() if key != name}
        broken[f"a {last} is missing"] = (attributes, fewer)
        # A shape that has more dimensions than any input.
        shape = (2,) * (1 + max(array.ndim for array in inputs.values()))
        larger = inputs | {name: np.zeros(shape, tensor.dtype)}
        broken[f"a {last} would enlarge {operator.tensors[0]}"] = (attributes, larger)
    name, tensor = list(inputs.items())[len(operator.scalars)]
    integer = inputs | {name: np.zeros(tensor.shape, np.int32)}
    broken[f"{operator.tensors[0]} is an integer"] = (attributes, integer)
    return broken


def _draw_right_node(
    source: Source, operator: Operator, groups: int, shape: Shape | None = None
) -> NodeExample:
    """Draw a node with a finite result.

    Args:
        source: source of the choices.
        operator: the node's operator.
        groups: number of groups of tensors.
        shape: shape of the first tensor of each group; None to draw it.
    """
    attributes = draw_attributes(source, operator, groups)
    inputs = [draw_scalar(source, scalar) for scalar in operator.scalars]
    if not has_result(operator, attributes, inputs):
        source.reject()
    shapes = [source.choice(SHAPES) if shape is None else shape for _ in range(groups)]
    dtypes = [DTYPES[name] for name in operator.dtypes]
    common = source.choice([*dtypes, None]) if len(dtypes) > 1 else dtypes[0]
    nonnegative = nonnegative_tensors(operator)
    narrow = source.rarely()
    for name in operator.tensors:
        for first in shapes:
            wide = not narrow or name == operator.tensors[0]
            tensor_shape = first if wide else draw_narrow_shape(source, first)
            dtype = source.choice(dtypes) if common is None else common
            tensor = draw_tensor(source, tensor_shape, dtype, nonnegative=name in nonnegative)
            inputs.append(tensor)
    names = operator.input_names(groups)
    return NodeExample(operator, attributes, dict(zip(names, inputs, strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedExample:
    """A node with its inputs. Its expected outputs come from onnx's corrected reference.

    Attributes:
        node: the node.
        breach: always empty, because the node is valid.
    """

    node: GeneratedNode
    breach: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        """The name of the operator under test."""
        return (self.node.operator,)

    @property
    def subject(self) -> str:
        """The operator's name."""
        return self.node.operator

    def problem(self) -> Problem:
        """Return the case's content, as ``onnxopt run`` loads it from the case's files."""
        return self.node.problem

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the case file and, for a node with subgraphs, the model file, by name."""
        node = self.node
        has_subgraph = any(isinstance(value, onnx.GraphProto) for value in node.attributes.values())
        model = f"{stem}.onnx" if has_subgraph else ""
        text = node_yaml_text(
            [node_case(NAME, node, about, model, source)],
            suite=SUITE,
            operator=node.operator,
            domain=node.domain,
        )
        files = {f"{stem}.yaml": text.encode()}
        if model:
            files[model] = node.problem.model.SerializeToString(deterministic=True)
        return files

    @property
    def traits(self) -> frozenset[Hashable]:
        """Return the types, attributes and inputs that a simple node does not have."""
        return frozenset(self._traits())

    def _traits(self) -> Iterator[Hashable]:
        for name, value in self.node.attributes.items():
            yield (name, value) if self._selects(name, value) else name
        for place, value in enumerate(self.node.values):
            if value is not None:
                yield place
            if isinstance(value, np.ndarray) and dtype_name(value.dtype) not in _SIMPLEST_TYPES:
                yield place, dtype_name(value.dtype)

    def _selects(self, name: str, value: object) -> bool:
        """Return whether the value of an attribute selects a computation, such as a mode.

        An axis or a count is only a parameter of a computation.
        """
        attribute_type = self.node.schema.attributes[name].type
        if attribute_type != defs.OpSchema.AttrType.INT:
            return bool(attribute_type == defs.OpSchema.AttrType.STRING)
        is_switch = value in _SWITCH_VALUES and not name.endswith("axis")
        return name in _TYPE_ATTRIBUTES or is_switch

    def smaller(self) -> Iterator[GeneratedExample]:
        """Yield valid examples in which one optional attribute of this example is omitted."""
        for name in self.node.attributes:
            if not self.node.schema.attributes[name].required:
                fewer = {key: value for key, value in self.node.attributes.items() if key != name}
                node = replace(self.node, attributes=fewer)
                if _is_valid(node):
                    yield GeneratedExample(node)


def _is_valid(node: GeneratedNode) -> bool:
    """Return whether onnx's reference computes a node and onnx's check accepts the node's model."""
    try:
        return not model_fault(node.problem.model)
    except OSError:
        # The system allows no more processes or open files.
        raise
    except Exception:  # noqa: BLE001 - onnx's reference raises any error for nodes that it does not compute
        return False


def draw_generated(source: Source, operator: str) -> GeneratedExample:
    """Draw a node of any version of an operator.

    The newest version is the simplest choice.
    """
    try:
        node = draw(source.choice(schemas(operator)), source)
        valid = _is_valid(node)
    except OSError:
        # The system allows no more processes or open files.
        raise
    except Unsuitable:
        valid = False
    except Exception:  # noqa: BLE001 - a generator may compute a value with onnx's reference
        valid = False
    if not valid:
        source.reject()
    return GeneratedExample(node)


@dataclass(frozen=True, slots=True, eq=False)
class GraphExample:
    """A model of several nodes of operators with a formula, with primitive nodes between them.

    The primitive nodes do not round. Therefore, the error bound of one node's outputs is also the
    error bound of the next node's inputs. The error bounds of the model's outputs follow in this
    way. For each output, the case file states the smallest rtol and atol that cover the error
    bounds of all elements.

    Some values are not outputs of the model, because they cannot be judged:

    - values with an infinite error bound;
    - values with an element so near to a threshold that rounding may move the element across it;
    - values for which a correct reformulation returns NaN.

    Attributes:
        operators: names of the operators under test, one per node.
        model: the model.
        inputs: inputs by name.
        expected: expected outputs by name.
        tolerances: tolerances of the outputs by name.
        breach: always empty, because the model is valid.
        subject: the name under which failures of such models are reported.
    """

    operators: tuple[str, ...]
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    tolerances: Mapping[str, Relative]
    breach: str = ""
    subject: str = "several nodes"

    def problem(self) -> Problem:
        """Return the case's content, as ``onnxopt run`` loads it from the case's files."""
        return Problem(self.model, self.inputs, self.expected, output_tolerances=self.tolerances)

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the case file and the model file, by name."""
        text = model_yaml_text(
            NAME,
            suite=SUITE,
            model=f"{stem}.onnx",
            inputs=self.inputs,
            outputs=self.expected,
            tolerances=self.tolerances,
            about=about,
            source=source,
        )
        return {
            f"{stem}.yaml": text.encode(),
            f"{stem}.onnx": self.model.SerializeToString(deterministic=True),
        }


#: An example of any kind.
Example: TypeAlias = NodeExample | GeneratedExample | GraphExample | RandomGraph


def draw_graph(source: Source, operators: Sequence[Operator]) -> GraphExample:
    """Draw a model in which nodes consume outputs of other nodes."""
    return _Drawing(source, operators).example()


class _Drawing:
    """A model to which nodes are added one by one."""

    def __init__(self, source: Source, operators: Sequence[Operator]) -> None:
        self._source = source
        self._operators = operators
        self._shape = source.choice(SHAPES)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, Array] = {}
        self._outputs: dict[str, DerivedOutput] = {}
        self._known: dict[str, InexactTensor] = {}
        self._used: list[Operator] = []

    def example(self) -> GraphExample:
        for number in range(1, self._source.choice(_NODE_COUNTS) + 1):
            self._add(number)
        if not self._outputs:
            self._source.reject()
        expected = {name: derived_output.expected for name, derived_output in self._outputs.items()}
        tolerances = {
            name: _tolerance(derived_output) for name, derived_output in self._outputs.items()
        }
        names = tuple(operator.name for operator in self._used)
        return GraphExample(names, self._model(expected), self._inputs, expected, tolerances)

    def _add(self, number: int) -> None:
        source = self._source
        operator = source.choice(self._operators)
        drawn = _draw_right_node(source, operator, 1, self._shape)
        node_inputs = []
        nonnegative = nonnegative_tensors(operator)
        # A candidate is an earlier output that has the shape of the first tensors and a type that
        # the operator accepts.
        candidates = [
            name
            for name in self._outputs
            if name in self._known and self._known[name].dtype.name in operator.dtypes
        ]
        for name, value in drawn.inputs.items():
            choices = candidates if name in operator.tensors else []
            # If there are candidates, at least the first tensor is a candidate.
            if choices and (name == operator.tensors[0] or source.integer(0, 1)):
                node_inputs.append(self._link(source.choice(choices), name in nonnegative))
            else:
                node_inputs.append(self._feed(f"{name}_{number}", value))
        names = [f"{name}_{number}" for name in operator.outputs]
        node = helper.make_node(operator.name, node_inputs, names, domain=operator.domain)
        node.attribute.extend(helper.make_attribute(*item) for item in drawn.attributes.items())
        self._nodes.append(node)
        self._used.append(operator)
        operands = [self._known[name] for name in node_inputs]
        complete = complete_attributes(operator, drawn.attributes)
        call = bind(operator, operands, complete)
        alternatives = also_right(bind(operator, [operand.array for operand in operands], complete))
        with np.errstate(all="ignore"):
            for place, (name, result) in enumerate(zip(names, inexact_outputs(call), strict=True)):
                derived_output = result.derived_output()
                conclusive = (
                    np.all(np.isfinite(derived_output.limit)) and not derived_output.divides
                )
                if conclusive and not (alternatives and alternatives[place]):
                    self._outputs[name] = derived_output
                    if result.shape == self._shape:
                        self._known[name] = result

    def _feed(self, name: str, value: Array) -> str:
        self._inputs[name] = value
        self._known[name] = InexactTensor(value.dtype, value.shape, value)
        return name

    def _link(self, name: str, nonnegative: bool) -> str:
        """Append a chain of primitive nodes to a value; return the name of the chain's output."""
        # The last chain contains Reshape. It is left out if a dimension is zero, because Reshape
        # reads a zero in the target shape as "copy the dimension of the input".
        links = _LINKS if 0 not in self._shape else _LINKS[:-1]
        steps = self._source.choice(links)
        for step in (*steps, ("Abs",)) if nonnegative else steps:
            before, name = name, f"between_{len(self._nodes)}"
            operator, *constants = step
            self._nodes.append(helper.make_node(operator, [before, *constants], [name]))
            value, function = self._known[before], _FUNCTIONS.get(operator)
            content = function(value.tensor) if function else value.content
            self._known[name] = replace(value, content=content)
        return name

    def _model(self, expected: Mapping[str, Array]) -> onnx.ModelProto:
        shapes = {"flat": [-1], "whole": list(self._shape)}
        graph = helper.make_graph(
            self._nodes,
            NAME,
            [tensor_info(name, value.dtype, value.shape) for name, value in self._inputs.items()],
            [tensor_info(name, value.dtype, value.shape) for name, value in expected.items()],
            [
                numpy_helper.from_array(np.array(shape, np.int64), name)
                for name, shape in shapes.items()
                if any(name in node.input for node in self._nodes)
            ],
        )
        domains = sorted({(operator.domain, operator.version) for operator in self._used})
        return whole_model(graph, [("", _OPSET), *domains])


def _tolerance(derived_output: DerivedOutput) -> Relative:
    limit = derived_output.limit
    size = np.abs(derived_output.expected.astype(np.float64))
    with np.errstate(all="ignore"):
        share = np.where(limit > 0, limit / size, 0.0)
    by_share = np.isfinite(share) & (share <= _LARGEST_RTOL)
    return Relative(
        float(np.max(share[by_share], initial=0.0)),
        float(np.max(limit[~by_share], initial=0.0)),
        Provenance.OUTPUT,
    )
