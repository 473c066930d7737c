"""Cases of an operator with a formula: checked against its signature, outputs optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxopt_cli.cases.onnx.node_model import formula_model
from onnxopt_cli.cases.values.declared import Declared, DeclaredTensor
from onnxopt_cli.cases.yaml.case_fields import CaseFields, Subject, rejected_subject
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, number, unexpected
from onnxopt_cli.cases.yaml.value import always, element_array
from onnxopt_cli.core.values import DTYPES, dtype_name
from onnxopt_cli.errors import NodeError
from onnxopt_cli.formula.attributes import Attributes, attribute_value
from onnxopt_cli.formula.call import bind
from onnxopt_cli.formula.operator import Attribute, AttributeValue, Operator


def formula_subject(operator: Operator, fields: CaseFields) -> Subject:
    """Read a case of an operator with a formula.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    if fields.rejects:
        return _rejected(operator, fields)
    attributes = read_attributes(operator, fields)
    groups = group_count(operator, fields.mapping("inputs"))
    names, output_names = operator.input_names(groups), operator.output_names(groups)
    fields.check_names("inputs", names, names)
    given = fields.mapping("inputs")
    inputs = [
        tensor
        for name in names
        if name in given
        and (tensor := declare_tensor(fields, name, given[name], default_dtype(operator, name)))
    ]
    outputs = None
    if len(inputs) == len(names):
        # A wrong attribute has been noticed already, and has no part in the check of the inputs.
        check_signature(operator, fields, inputs, attributes)
        outputs = _outputs(operator, fields, inputs, output_names)
    fields.finish()
    return Subject(
        operators=(operator.name,),
        model=lambda: formula_model(operator, attributes, inputs, graph_name=fields.name),
        inputs=dict(zip(names, inputs, strict=True)),
        outputs=outputs,
        output_names=tuple(output_names),
    )


def group_count(operator: Operator, names: Sequence[str] | Mapping[str, object]) -> int:
    """Return how many tensors are optimized, as far as the inputs' names tell: X, or X1, X2, ..."""
    first = operator.tensors[0]
    numbered = [name for name in names if name.startswith(first) and name[len(first) :].isdecimal()]
    return 1 if first in names else max(1, len(numbered))


def default_dtype(operator: Operator, name: str) -> np.dtype[Any]:
    """Return the element type of an input whose case does not say it."""
    for scalar in operator.scalars:
        if scalar.name == name:
            return DTYPES[scalar.dtypes[0]]
    return DTYPES[operator.dtypes[0]]


def declare_tensor(
    fields: CaseFields, name: str, node: Node, dtype: np.dtype[Any]
) -> DeclaredTensor | None:
    """Read an input or output, which must be a tensor; collects what is wrong with it."""
    value = fields.declare(node, always(dtype))
    if value is not None and not isinstance(value, DeclaredTensor):
        fields.errors.append(FormatError(node, f"found no tensor, expected one for {name}"))
        return None
    return value


def read_attributes(operator: Operator, fields: CaseFields) -> Attributes:
    """Read the attributes that the node has; collects what is wrong with them."""
    known = {attribute.name: attribute for attribute in operator.attributes}
    fields.check_names(
        "attributes",
        list(known),
        [attribute.name for attribute in operator.attributes if attribute.required],
    )
    attributes: dict[str, AttributeValue] = {}
    for name, node in fields.mapping("attributes").items():
        if name not in known or id(node) in fields.broken:
            continue
        try:
            attributes[name] = _attribute(operator, known[name], node)
        except FormatError as error:
            fields.errors.append(error)
    return attributes


def _attribute(operator: Operator, attribute: Attribute, node: Node) -> AttributeValue:
    if attribute.choices:
        if node.scalar not in attribute.choices:
            raise unexpected(node, " or ".join(attribute.choices))
        return str(node.scalar)
    nodes = node.items if attribute.each and node.items is not None else [node]
    element_array(nodes, np.dtype(np.float32))
    value = [number(item) for item in nodes]
    try:
        return attribute_value(operator, attribute, value if attribute.each else value[0])
    except NodeError as error:
        raise FormatError(node, error.message) from error


def check_signature(
    operator: Operator,
    fields: CaseFields,
    inputs: list[DeclaredTensor],
    attributes: Attributes,
) -> None:
    """Let the operator's own check judge the inputs; point at the one that it names."""
    try:
        bind(operator, inputs, attributes)
    except NodeError as error:
        subject = error.message.removeprefix(f"{operator.name}: ").partition(" ")[0]
        nodes = {**fields.mapping("inputs"), **fields.mapping("attributes")}
        node = nodes.get(subject, fields.place("inputs"))
        fields.errors.append(FormatError(node, error.message))


def _outputs(
    operator: Operator, fields: CaseFields, inputs: list[DeclaredTensor], names: list[str]
) -> dict[str, Declared] | None:
    """Read the expected outputs, which must have the types and shapes that the formula yields."""
    if fields.node.field("outputs") is None:
        return None
    fields.check_names("outputs", names, names)
    groups = (len(inputs) - len(operator.scalars)) // len(operator.tensors)
    outputs: dict[str, Declared] = {}
    for name, (like, base) in zip(names, operator.places(groups), strict=True):
        node = fields.mapping("outputs").get(name)
        if node is None:
            continue
        dtype, shape = inputs[like].dtype, inputs[base].shape
        value = declare_tensor(fields, name, node, dtype)
        if value is None:
            continue
        outputs[name] = value
        if (value.dtype, value.shape) != (dtype, shape):
            fields.errors.append(
                FormatError(
                    node,
                    f"found {dtype_name(value.dtype)}{list(value.shape)}, expected "
                    f"{dtype_name(dtype)}{list(shape)}",
                )
            )
    return outputs


def _rejected(operator: Operator, fields: CaseFields) -> Subject:
    groups = group_count(operator, fields.mapping("inputs"))
    return rejected_subject(
        operator.name,
        operator.domain,
        operator.version,
        fields,
        choice_of=lambda name: always(default_dtype(operator, name)),
        float_attributes=[item.name for item in operator.attributes if not item.choices],
        output_names=operator.output_names(groups),
    )
