"""Examples of several nodes with formulas, and primitive nodes between them.

The primitive nodes compute exactly. So the bound on the error of one node's outputs is what the
next one starts from, and what comes back from the whole model is judged by the bound that has been
carried through it. A file can only give one rtol and atol for an output: the smallest that cover
the bounds of all its elements. An output that rounding may turn into anything, whose elements lie
on either side of a choice, or that right forms make NaN of, is not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxopt_cli.cases.onnx.node_model import tensor_info, whole_model
from onnxopt_cli.cases.yaml.writer import model_yaml_text
from onnxopt_cli.core.case import Content
from onnxopt_cli.core.tolerance import Provenance, Relative
from onnxopt_cli.core.values import Array
from onnxopt_cli.formula.call import bind, complete_attributes
from onnxopt_cli.formula.operator import Operator
from onnxopt_cli.fuzz.choices import SHAPES, Source
from onnxopt_cli.fuzz.node_example import NAME, SUITE, NodeExample, draw_right_node
from onnxopt_cli.readings.bound.bound import DerivedOutput, also_right
from onnxopt_cli.readings.bound.chained import InexactTensor, inexact_outputs
from onnxopt_cli.readings.evaluate import nonnegative_tensors

_OPSET = 13
_COUNTS = (2, 2, 3)
#: What may stand between two nodes: operators and their second inputs, in order. All of it together
#: leaves the shape as it was.
_LINKS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (),
    (("Neg",),),
    (("Abs",),),
    (("Identity",),),
    (("Transpose",), ("Transpose",)),
    (("Reshape", "flat"), ("Reshape", "whole")),
)
#: What those do that change elements.
_FUNCTIONS = {"Neg": np.negative, "Abs": np.abs}
#: What is off by no more than this share of itself is covered by rtol, all else by atol.
_LARGEST_RTOL = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class GraphExample:
    """A model of several nodes.

    Attributes:
        operators: names of the operators under test, one a node.
        model: the model.
        inputs: by name.
        expected: by name, the outputs.
        tolerances: for each of them.
        breach: empty: a right backend accepts it.
    """

    operators: tuple[str, ...]
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]
    tolerances: Mapping[str, Relative]
    breach: str = ""
    subject: str = "several nodes"

    def content(self) -> Content:
        """Return what ``onnxopt run`` would read from the files."""
        return Content(self.model, self.inputs, self.expected, output_tolerances=self.tolerances)

    def files(self, stem: str, about: str, source: str) -> dict[str, bytes]:
        """Return the case file, and the model beside it."""
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


#: A model and its inputs.
Example: TypeAlias = NodeExample | GraphExample


def draw_graph(source: Source, operators: Sequence[Operator]) -> GraphExample:
    """Draw a model in which nodes take what others return."""
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
        expected = {name: judgement.expected for name, judgement in self._outputs.items()}
        tolerances = {name: _tolerance(judgement) for name, judgement in self._outputs.items()}
        names = tuple(operator.name for operator in self._used)
        return GraphExample(names, self._model(expected), self._inputs, expected, tolerances)

    def _add(self, number: int) -> None:
        source = self._source
        operator = source.choice(self._operators)
        drawn = draw_right_node(source, operator, 1, self._shape)
        taken = []
        nonnegative = nonnegative_tensors(operator)
        # Of the outputs so far those of the common shape.
        known = {it: self._known[it].dtype.name for it in self._outputs if it in self._known}
        candidates = [it for it, dtype in known.items() if dtype in operator.dtypes]
        for name, value in drawn.inputs.items():
            takes = candidates if name in operator.tensors else []
            # Each node but the first takes something from one before it.
            if takes and (name == operator.tensors[0] or source.integer(0, 1)):
                taken.append(self._link(source.choice(takes), name in nonnegative))
            else:
                taken.append(self._feed(f"{name}_{number}", value))
        names = [f"{name}_{number}" for name in operator.outputs]
        node = helper.make_node(operator.name, taken, names, domain=operator.domain)
        node.attribute.extend(helper.make_attribute(*given) for given in drawn.attributes.items())
        self._nodes.append(node)
        self._used.append(operator)
        operands = [self._known[name] for name in taken]
        complete = complete_attributes(operator, drawn.attributes)
        call = bind(operator, operands, complete)
        others = also_right(bind(operator, [operand.array for operand in operands], complete))
        with np.errstate(all="ignore"):
            for place, (name, result) in enumerate(zip(names, inexact_outputs(call), strict=True)):
                judgement = result.judgement()
                sure = np.all(np.isfinite(judgement.limit)) and not judgement.divides
                if sure and not (others and others[place]):
                    self._outputs[name] = judgement
                    if result.shape == self._shape:
                        self._known[name] = result

    def _feed(self, name: str, value: Array) -> str:
        self._inputs[name] = value
        self._known[name] = InexactTensor(value.dtype, value.shape, value)
        return name

    def _link(self, name: str, nonnegative: bool) -> str:
        """Put primitive nodes after a value; return the name of what comes out of them."""
        # A shape with a zero means another one to Reshape.
        links = _LINKS if 0 not in self._shape else _LINKS[:-1]
        steps = self._source.choice(links)
        for step in (*steps, ("Abs",)) if nonnegative else steps:
            before, name = name, f"between_{len(self._nodes)}"
            operator, *others = step
            self._nodes.append(helper.make_node(operator, [before, *others], [name]))
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


def _tolerance(judgement: DerivedOutput) -> Relative:
    limit = judgement.limit
    size = np.abs(judgement.expected.astype(np.float64))
    with np.errstate(all="ignore"):
        share = np.where(limit > 0, limit / size, 0.0)
    by_share = np.isfinite(share) & (share <= _LARGEST_RTOL)
    return Relative(
        float(np.max(share[by_share], initial=0.0)),
        float(np.max(limit[~by_share], initial=0.0)),
        Provenance.OUTPUT,
    )
