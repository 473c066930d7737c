"""Examples of several nodes of operators with a formula, with primitive nodes between them.

The primitive nodes round nothing, so the error bound of a node's outputs is also the error bound of
the next node's inputs, and the error bounds of the model's outputs follow from those of all nodes.
For each output, a case file states the smallest rtol and atol that allow the error bounds of all
elements. A value is not an output of the model if its error bound is infinite, if an element is
close to the threshold of a choice, or if the result of a correct reformulation is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.node_model import tensor_info, whole_model
from onnxopt_cli.cases.yaml.case_writer import model_yaml_text
from onnxopt_cli.core.tolerance import Provenance, Relative
from onnxopt_cli.core.values import Array
from onnxopt_cli.fuzz.choices import SHAPES, Source
from onnxopt_cli.fuzz.generated_example import GeneratedExample
from onnxopt_cli.fuzz.node_example import (
    NAME,
    SUITE,
    NodeExample,
    draw_right_node,
)
from onnxopt_cli.fuzz.random_graph import RandomGraph
from onnxopt_cli.interpret.bound.chained_bound import InexactTensor, inexact_outputs
from onnxopt_cli.interpret.bound.error_bound import DerivedOutput, also_right
from onnxopt_cli.interpret.evaluate import nonnegative_tensors
from onnxopt_cli.operators.call import bind, complete_attributes
from onnxopt_cli.operators.operator import Operator

_OPSET = 13
_COUNTS = (2, 2, 3)
#: Chains of primitive nodes that may connect two nodes: for each node of the chain, the operator
#: and the name of its second input, if any. Every chain preserves the shape.
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
#: rtol allows the error bounds of elements whose relative error bound is at most this, atol those
#: of all other elements.
_LARGEST_RTOL = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class GraphExample:
    """A model of several nodes.

    Attributes:
        operators: names of the operators under test, one per node.
        model: the model.
        inputs: inputs by name.
        expected: expected outputs by name.
        tolerances: tolerances of the outputs by name.
        breach: always empty, since the model is valid.
        subject: the subject of the failures of such models.
    """

    operators: tuple[str, ...]
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    tolerances: Mapping[str, Relative]
    breach: str = ""
    subject: str = "several nodes"

    def problem(self) -> Problem:
        """Return the problem that ``onnxopt run`` reads from the case's files."""
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


#: A model with inputs.
Example: TypeAlias = NodeExample | GeneratedExample | GraphExample | RandomGraph


def draw_graph(source: Source, operators: Sequence[Operator]) -> GraphExample:
    """Draw a model in which nodes consume outputs of other nodes."""
    return _Drawing(source, operators).example()


class _Drawing:
    """A model that grows node by node."""

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
        for number in range(1, self._source.choice(_COUNTS) + 1):
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
        drawn = draw_right_node(source, operator, 1, self._shape)
        node_inputs = []
        nonnegative = nonnegative_tensors(operator)
        # Earlier outputs that have the shape of all first tensors, and a type of this operator.
        candidates = [
            name
            for name in self._outputs
            if name in self._known and self._known[name].dtype.name in operator.dtypes
        ]
        for name, value in drawn.inputs.items():
            choices = candidates if name in operator.tensors else []
            # If there are such outputs, at least the first tensor is one of them.
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
        # The last chain contains Reshape, which would interpret a zero in the shape as a copy of
        # the input's dimension.
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
