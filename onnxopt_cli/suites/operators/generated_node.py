"""A generated node, and the content of its case: model, inputs and expected outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper
from onnx.defs import OpSchema

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.node_model import node_model, value_info
from onnxopt_cli.cases.tensors.declared import Declared, DeclaredGroup
from onnxopt_cli.core.values import Value, dtype_name
from onnxopt_cli.oracle.reference_outputs import reference_outputs

#: The least version of ai.onnx that generated models import. Versions before 7 broadcast in a
#: different way, and few runtimes implement them.
OLDEST_OPSET = 7
_MAX_SHOWN_CHARS = 120
# Operators whose input must be an optional in versions before _OPEN_OPTIONAL_VERSION. In later
# versions, the input may also be a tensor or a sequence.
_TAKES_OPTIONAL = ("OptionalHasElement", "OptionalGetElement")
_OPEN_OPTIONAL_VERSION = 18


@dataclass(frozen=True, eq=False)
class GeneratedNode:
    """A node with its inputs, as a generator draws it.

    Attributes:
        schema: the operator in one version.
        attributes: the attributes that the node has.
        values: the value of each input of the node, by position; None for an omitted input.
        requested: whether each output is requested, by position; a variadic output has one entry
            for each of its values.
    """

    schema: OpSchema
    attributes: Mapping[str, Any]
    values: Sequence[Value]
    requested: Sequence[bool]

    @property
    def operator(self) -> str:
        """The operator's name."""
        return str(self.schema.name)

    @property
    def domain(self) -> str:
        """The operator's domain; empty for ai.onnx."""
        return str(self.schema.domain)

    @property
    def version(self) -> int:
        """The version of the domain that the model imports."""
        since_version = int(self.schema.since_version)
        return since_version if self.domain else max(since_version, OLDEST_OPSET)

    @cached_property
    def inputs(self) -> dict[str, Value]:
        """The inputs by name, without omitted inputs."""
        names = place_names(self.schema.inputs, len(self.values))
        pairs = zip(names, self.values, strict=True)
        return {name: value for name, value in pairs if value is not None}

    @cached_property
    def declared_inputs(self) -> dict[str, Declared]:
        """The inputs by name, with their types."""
        takes_optional = self.operator in _TAKES_OPTIONAL and self.version < _OPEN_OPTIONAL_VERSION
        return {
            name: _in_optional(declared(value)) if takes_optional else declared(value)
            for name, value in self.inputs.items()
        }

    def declared_output(self, value: Value) -> Declared:
        """Return an output together with its type."""
        return _in_optional(declared(value)) if self.operator == "Optional" else declared(value)

    @cached_property
    def problem(self) -> Problem:
        """The content of the case; the stored outputs are those of onnx's corrected reference.

        Raises:
            Exception: any exception that the reference raises.
        """
        output_names = place_names(self.schema.outputs, len(self.requested))
        model = node_model(
            self.schema,
            self.version,
            inputs=[
                value_info(name, self.declared_inputs[name]) if name in self.inputs else None
                for name in place_names(self.schema.inputs, len(self.values))
            ],
            outputs=[
                onnx.ValueInfoProto(name=name) if is_requested else None
                for name, is_requested in zip(output_names, self.requested, strict=True)
            ],
            attributes=[
                attribute_message(self.schema, name, value)
                for name, value in self.attributes.items()
            ],
            graph_name=self.operator,
        )
        outputs = model.graph.output
        values = reference_outputs(model, self.inputs)
        stored = {info.name: value for info, value in zip(outputs, values, strict=True)}
        for info in outputs:
            info.CopyFrom(value_info(info.name, self.declared_output(stored[info.name])))
        return Problem(model, self.inputs, stored)

    @property
    def about(self) -> str:
        """The node in one line: its version, attributes and the types of its inputs."""
        attributes = ", ".join(
            f"{name}={_shown(value)}" for name, value in sorted(self.attributes.items())
        )
        inputs = ", ".join(f"{name} {_type_text(value)}" for name, value in self.inputs.items())
        parts = [f"{self.operator}-{self.version}", attributes, inputs and f"of {inputs}"]
        return "; ".join(filter(None, parts))

    @property
    def tags(self) -> tuple[str, ...]:
        """The version, element types and optional features that a backend must support."""
        domain = self.domain or "ai.onnx"
        tags = [f"{domain}-{self.version}", *sorted({*_dtypes(self.inputs.values())})]
        if any(isinstance(value, onnx.GraphProto) for value in self.attributes.values()):
            tags.append("subgraph")
        if any(not isinstance(value, np.ndarray) for value in self.inputs.values()):
            tags.append("sequence")
        return tuple(tags)


def place_names(formals: Sequence[OpSchema.FormalParameter], count: int) -> list[str]:
    """Return the names of the first inputs or outputs of a node, as case files write them."""
    names: list[str] = []
    for formal in formals:
        if len(names) == count:
            break
        if formal.option != OpSchema.FormalParameterOption.Variadic:
            names.append(formal.name)
            continue
        stem, first = (formal.name[:-2], 0) if formal.name.endswith("_0") else (formal.name, 1)
        separator = "_" if not first else ""
        names += [
            f"{stem}{separator}{number}" for number in range(first, first + count - len(names))
        ]
    return names


def declared(value: Value) -> Declared:
    """Return a value together with its type, as models declare it."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list):
        items = tuple(map(declared, value))
        dtype = items[0].dtype if items else np.dtype(np.float32)
        return DeclaredGroup("seq", dtype, items)
    raise TypeError(f"a case cannot contain a {type(value).__name__}")


def _in_optional(value: Declared) -> Declared:
    return DeclaredGroup("optional", value.dtype, (value,))


def attribute_message(schema: OpSchema, name: str, value: Any) -> AttributeProto:
    """Return an attribute that has the type declared by the schema."""
    kind = int(schema.attributes[name].type.value)  # type: ignore[attr-defined]
    return helper.make_attribute(name, value, attr_type=kind)


def _shown(value: Any) -> str:
    if isinstance(value, onnx.GraphProto):
        return f"{{{', '.join(node.op_type for node in value.node)}}}"
    if isinstance(value, onnx.TensorProto):
        array = numpy_helper.to_array(value)
        return f"{array.dtype}{list(array.shape)}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _type_text(value: Value) -> str:
    if isinstance(value, np.ndarray):
        return f"{dtype_name(value.dtype)}{list(value.shape)}".replace(" ", "")
    if isinstance(value, list):
        return f"seq({', '.join(map(_type_text, value))})"
    return "empty"


def _dtypes(values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield dtype_name(value.dtype)
        elif isinstance(value, list):
            yield from _dtypes(value)
