"""Cases of an operator with a formula: checked against its signature, outputs optional."""

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
    content_of_one_step,
    rejected_case,
)
from onnxopt_cli.cases.yaml.case_value import element_array
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
    abbreviated,
    unexpected,
)
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

# What inputs of one name in the graph must be.
_ONE_VALUE = "expected one value, as graph gives them one name"


def formula_case(operator: Operator, fields: CaseFields) -> DeclaredCase:
    """Read a case of an operator with a formula.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    groups = group_count(operator, fields.mapping("inputs"))
    names, output_names = operator.input_names(groups), operator.output_names(groups)
    if fields.rejects:
        fields.refuse(["graph"], ", expected none beside rejects: true")
        kinds = {attribute.name: attribute.kind for attribute in operator.attributes}
        choice_of = partial(default_dtype, operator)
        version = operator.version
        return rejected_case(operator, version, fields, output_names, kinds, choice_of, names)
    attributes = read_attributes(operator, fields)
    fields.check_names("inputs", names, names)
    found = read_tensors(fields, "inputs", {name: default_dtype(operator, name) for name in names})
    inputs = list(found.values())
    outputs: Mapping[str, DeclaredTensor] | None = None
    call: Call[DeclaredTensor] | None = None
    if len(inputs) == len(names):
        # A wrong attribute has been noticed already, and has no part in the check of the inputs.
        call = check_signature(operator, fields, inputs, attributes)
        if fields.node.field("outputs") is not None:
            fields.check_names("outputs", output_names, output_names)
            places = dict(zip(output_names, operator.places(groups), strict=True))
            dtypes = {name: inputs[like].dtype for name, (like, _) in places.items()}
            outputs = read_tensors(fields, "outputs", dtypes)
            for name, value in outputs.items():
                dtype, shape = dtypes[name], inputs[places[name][1]].shape
                if (value.dtype, value.shape) != (dtype, shape):
                    fields.complain(
                        fields.mapping("outputs")[name],
                        f"found {dtype_name(value.dtype)}{list(value.shape)}, expected "
                        f"{dtype_name(dtype)}{list(shape)}",
                    )
    wiring = _wiring(
        fields, found, output_names, [attribute.name for attribute in operator.attributes]
    )
    fields.finish()
    model = partial(formula_model, operator, attributes, inputs, fields.text("name"))
    if wiring is PLAIN_WIRING:
        make = partial(content_of_one_step, model, found, outputs, call=call)
        return DeclaredCase((operator.name,), tuple(output_names), {"": make})

    def make_wired() -> Problem:
        values = {name: made(value) for name, value in found.items()}
        expected = None if outputs is None else wiring.yielded(outputs)
        # What random data and files hold is known only now.
        for name, value in values.items():
            first = next(value for value in values if wiring.name(value) == wiring.name(name))
            if value.tobytes() != values[first].tobytes():
                node = fields.mapping("inputs")[name]
                raise FormatError(node, f"found {name} unlike {first}, {_ONE_VALUE}")
        wired = partial(wiring.apply, model(), values)
        return content_of_one_step(wired, wiring.fed(values), expected)

    graph_outputs = tuple(wiring.yielded(dict.fromkeys(output_names)))
    return DeclaredCase((operator.name,), graph_outputs, {"": make_wired})


def _wiring(
    fields: CaseFields,
    inputs: Mapping[str, DeclaredTensor],
    outputs: Sequence[str],
    attributes: Sequence[str],
) -> Wiring:
    """Read how the graph is wired; collects what is wrong with that."""
    graph = fields.node.field("graph")
    if graph is None or id(graph) in fields.broken:
        return PLAIN_WIRING
    known = {
        "names": (*inputs, *outputs),
        "inputs": tuple(inputs),
        "outputs": tuple(outputs),
        "initializers": tuple(inputs),
        "attributes": tuple(attributes),
    }
    found: dict[str, Any] = {}
    for key, node in (graph.fields or {}).items():
        listed = {str(item.scalar): item for item in node.items or ()}
        given = listed if node.fields is None else node.fields
        for name in given:
            if name not in known[key]:
                expected = f"expected one of {', '.join(known[key])}"
                fields.complain(given[name], f"found {abbreviated(name)}, {expected}")
        scalars = {name: str(it.scalar) for name, it in given.items()}
        found[key] = scalars if key == "names" else tuple(scalars)
    wiring = Wiring(**found)
    first: dict[str, str] = {}
    for name in (*inputs, *outputs):
        other = first.setdefault(wiring.name(name), name)
        if other == name:
            continue
        if name in outputs:
            what = f"found {other} and {name} of one name, expected another for the output"
            fields.complain(graph, what)
        elif (inputs[name].dtype, inputs[name].shape) != (inputs[other].dtype, inputs[other].shape):
            fields.complain(
                fields.mapping("inputs")[name],
                f"found {dtype_name(inputs[name].dtype)}{list(inputs[name].shape)}, "
                f"{_ONE_VALUE} with {other}",
            )
    return wiring


def group_count(operator: Operator, names: Sequence[str] | Mapping[str, object]) -> int:
    """Return how many tensors are optimized, as far as the inputs' names tell: X, or X1, X2, ..."""
    first = operator.tensors[0]
    numbered = [name for name in names if name.startswith(first) and name[len(first) :].isdecimal()]
    return 1 if first in names else max(1, len(numbered))


@cache
def default_dtype(operator: Operator, name: str) -> np.dtype[Any]:
    """Return the element type of an input whose case does not say it."""
    own = {scalar.name: scalar.dtypes for scalar in operator.scalars}
    return DTYPES[own.get(name, operator.dtypes)[0]]


def read_tensors(
    fields: CaseFields, what: str, dtypes: Mapping[str, np.dtype[Any]]
) -> dict[str, DeclaredTensor]:
    """Read inputs or outputs, which must be tensors; collects what is wrong with them.

    Args:
        fields: the case.
        what: ``inputs`` or ``outputs``.
        dtypes: by the names that may stand there, the element type of one that does not say it.
    """
    given = fields.mapping(what)
    return fields.read(
        {name: given[name] for name in dtypes if name in given},
        lambda name, node: fields.declare_tensor(node, dtypes[name], f" for {name}"),
    )


def read_attributes(operator: Operator, fields: CaseFields) -> Attributes:
    """Read the attributes that the node has; collects what is wrong with them."""
    known = {attribute.name: attribute for attribute in operator.attributes}
    required = [attribute.name for attribute in operator.attributes if attribute.required]
    fields.check_names("attributes", list(known), required)
    given = fields.mapping("attributes").items()
    return fields.read(
        # The names of ours, as many cases would keep as many copies of them.
        {known[name].name: node for name, node in given if name in known},
        lambda name, node: _attribute(operator, known[name], node),
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
    """Return the operator's call, or report what breaks its signature at the input that does."""
    omitted = frozenset(attribute.name for attribute in operator.attributes) - {*attributes}
    required = {attribute.name for attribute in operator.attributes if attribute.required}
    try:
        # A missing or wrong attribute has been reported already.
        given = attributes if required & omitted else complete_attributes(operator, attributes)
        return bind(operator, inputs, given, omitted=omitted)
    except NodeError as error:
        name = error.message.removeprefix(f"{operator.name}: ").partition(" ")[0]
        nodes = {**fields.mapping("inputs"), **fields.mapping("attributes")}
        node = nodes.get(name, fields.node.field("inputs") or fields.node)
        fields.complain(node, error.message)
        return None
