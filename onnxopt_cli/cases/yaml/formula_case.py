"""Reads cases of operators with a formula, and validates each case against its signature.

The case need not state outputs, because the formula computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.node_model import (
    PLAIN_WIRING,
    Wiring,
    formula_model,
)
from onnxopt_cli.cases.tensors.declared import DeclaredTensor, made
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    DeclaredCase,
    element_array,
    one_step_problem,
    rejected_case,
)
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    unexpected,
)
from onnxopt_cli.core.text import abbreviated
from onnxopt_cli.core.values import DTYPES, dtype_name
from onnxopt_cli.errors import NodeError
from onnxopt_cli.operators.call import (
    Attributes,
    Call,
    attribute_value,
    bind,
    complete_attributes,
)
from onnxopt_cli.operators.operator import (
    Attribute,
    AttributeValue,
    Operator,
)

# The text with which messages end if different inputs have the same name in the graph.
_EXPECTED_EQUAL = "expected equal inputs, because they share a name in the graph"


def formula_case(operator: Operator, fields: CaseFields) -> DeclaredCase:
    """Read a case of an operator with a formula.

    Raises:
        Incomplete: if the case is invalid; the errors are collected in `fields`.
    """
    groups = group_count(operator, fields.mapping("inputs"))
    names, output_names = operator.input_names(groups), operator.output_names(groups)
    if fields.rejects:
        fields.forbid(["graph"], ", expected none in a case with rejects: true")
        kinds = {attribute.name: attribute.kind for attribute in operator.attributes}
        choice_of = partial(default_dtype, operator)
        version = operator.version
        return rejected_case(operator, version, fields, output_names, kinds, choice_of, names)
    attributes = read_attributes(operator, fields)
    fields.check_names("inputs", names, names)
    dtypes = {name: default_dtype(operator, name) for name in names}
    inputs_by_name = read_tensors(fields, "inputs", dtypes)
    inputs = list(inputs_by_name.values())
    outputs: Mapping[str, DeclaredTensor] | None = None
    call: Call[DeclaredTensor] | None = None
    if len(inputs) == len(names):
        # Errors of attributes have been collected before; they do not affect the check of the
        # inputs.
        call = check_signature(operator, fields, inputs, attributes)
        if fields.node.field("outputs") is not None:
            fields.check_names("outputs", output_names, output_names)
            places = dict(zip(output_names, operator.places(groups), strict=True))
            output_dtypes = {name: inputs[like].dtype for name, (like, _) in places.items()}
            outputs = read_tensors(fields, "outputs", output_dtypes)
            for name, value in outputs.items():
                dtype, shape = output_dtypes[name], inputs[places[name][1]].shape
                if (value.dtype, value.shape) != (dtype, shape):
                    fields.add_error(
                        fields.mapping("outputs")[name],
                        f"found {dtype_name(value.dtype)}{list(value.shape)}, expected "
                        f"{dtype_name(dtype)}{list(shape)}",
                    )
    attribute_names = [attribute.name for attribute in operator.attributes]
    wiring = _wiring(fields, inputs_by_name, output_names, attribute_names)
    fields.finish()
    model = partial(formula_model, operator, attributes, inputs, fields.text("name"))
    if wiring is PLAIN_WIRING:
        make = partial(one_step_problem, model, inputs_by_name, outputs, call=call)
        return DeclaredCase((operator.name,), tuple(output_names), {"": make})

    def make_wired() -> Problem:
        values = {name: made(value) for name, value in inputs_by_name.items()}
        stored = None if outputs is None else wiring.yielded(outputs)
        # The content of random data and files is not known before this point.
        for name, value in values.items():
            first = next(peer for peer in values if wiring.name(peer) == wiring.name(name))
            if value.tobytes() != values[first].tobytes():
                node = fields.mapping("inputs")[name]
                raise FormatError(node, f"found {name} unlike {first}, {_EXPECTED_EQUAL}")
        wired = partial(wiring.apply, model(), values)
        return one_step_problem(wired, wiring.fed(values), stored)

    graph_outputs = tuple(wiring.yielded(dict.fromkeys(output_names)))
    return DeclaredCase((operator.name,), graph_outputs, {"": make_wired})


def _wiring(
    fields: CaseFields,
    inputs: Mapping[str, DeclaredTensor],
    outputs: Sequence[str],
    attributes: Sequence[str],
) -> Wiring:
    """Read the wiring of the graph; collect its errors in `fields`."""
    graph = fields.node.field("graph")
    if graph is None or id(graph) in fields.broken:
        return PLAIN_WIRING
    valid_names = {
        "names": (*inputs, *outputs),
        "inputs": tuple(inputs),
        "outputs": tuple(outputs),
        "initializers": tuple(inputs),
        "attributes": tuple(attributes),
    }
    arguments: dict[str, Any] = {}
    for key, node in (graph.fields or {}).items():
        items = {str(item.scalar): item for item in node.items or ()}
        nodes = items if node.fields is None else node.fields
        for name in nodes:
            if name not in valid_names[key]:
                expected = f"expected one of {', '.join(valid_names[key])}"
                fields.add_error(nodes[name], f"found {abbreviated(name)}, {expected}")
        scalars = {name: str(item.scalar) for name, item in nodes.items()}
        arguments[key] = scalars if key == "names" else tuple(scalars)
    wiring = Wiring(**arguments)
    first_by_name: dict[str, str] = {}
    for name in (*inputs, *outputs):
        first = first_by_name.setdefault(wiring.name(name), name)
        if first == name:
            continue
        if name in outputs:
            message = f"found the same name for {first} and {name}, expected another for the output"
            fields.add_error(graph, message)
        elif (inputs[name].dtype, inputs[name].shape) != (inputs[first].dtype, inputs[first].shape):
            fields.add_error(
                fields.mapping("inputs")[name],
                f"found {dtype_name(inputs[name].dtype)}{list(inputs[name].shape)} unlike {first}, "
                f"{_EXPECTED_EQUAL}",
            )
    return wiring


def group_count(operator: Operator, names: Sequence[str] | Mapping[str, object]) -> int:
    """Return the number of optimized tensors according to the inputs' names: X, or X1, X2, ..."""
    first = operator.tensors[0]
    numbered = [name for name in names if name.startswith(first) and name[len(first) :].isdecimal()]
    return 1 if first in names else max(1, len(numbered))


@cache
def default_dtype(operator: Operator, name: str) -> np.dtype[Any]:
    """Return the element type of an input for which the case states no type."""
    scalar_dtypes = {scalar.name: scalar.dtypes for scalar in operator.scalars}
    return DTYPES[scalar_dtypes.get(name, operator.dtypes)[0]]


def read_tensors(
    fields: CaseFields, kind: str, dtypes: Mapping[str, np.dtype[Any]]
) -> dict[str, DeclaredTensor]:
    """Read inputs or outputs, which must be tensors; errors of invalid values are collected.

    Args:
        fields: the case.
        kind: ``inputs`` or ``outputs``.
        dtypes: the default element types, by valid name.
    """
    nodes = fields.mapping(kind)
    return fields.read(
        {name: nodes[name] for name in dtypes if name in nodes},
        lambda name, node: fields.declare_tensor(node, dtypes[name], f" for {name}"),
    )


def read_attributes(operator: Operator, fields: CaseFields) -> Attributes:
    """Read the attributes of the node; errors of invalid attributes are collected."""
    declared = {attribute.name: attribute for attribute in operator.attributes}
    required = [attribute.name for attribute in operator.attributes if attribute.required]
    fields.check_names("attributes", list(declared), required)
    nodes = fields.mapping("attributes").items()
    return fields.read(
        # To save memory, the strings of the file are replaced with equal strings of the operator,
        # which all cases share.
        {declared[name].name: node for name, node in nodes if name in declared},
        lambda name, node: _attribute(operator, declared[name], node),
    )


def _attribute(operator: Operator, attribute: Attribute, node: Node) -> AttributeValue:
    if attribute.choices:
        if node.scalar not in attribute.choices:
            raise unexpected(node, " or ".join(attribute.choices))
        return str(node.scalar)
    nodes = node.items if attribute.each and node.items is not None else [node]
    element_array(nodes, np.dtype(np.float32))
    value: list[Any] = [item.scalar for item in nodes]
    try:
        return attribute_value(operator, attribute, value if attribute.each else value[0])
    except NodeError as error:
        raise FormatError(node, error.message) from error


def check_signature(
    operator: Operator,
    fields: CaseFields,
    inputs: Sequence[DeclaredTensor],
    attributes: Attributes,
) -> Call[DeclaredTensor] | None:
    """Return the operator's call.

    If the call breaks the signature, an error is collected and None is returned.
    """
    omitted = frozenset(attribute.name for attribute in operator.attributes) - {*attributes}
    required = {attribute.name for attribute in operator.attributes if attribute.required}
    try:
        # Errors about missing and invalid attributes were collected before.
        complete = attributes if required & omitted else complete_attributes(operator, attributes)
        return bind(operator, inputs, complete, omitted=omitted)
    except NodeError as error:
        name = error.message.removeprefix(f"{operator.name}: ").partition(" ")[0]
        nodes = {**fields.mapping("inputs"), **fields.mapping("attributes")}
        node = nodes.get(name, fields.node.field("inputs") or fields.node)
        fields.add_error(node, error.message)
        return None
