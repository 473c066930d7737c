"""Cases of a model file: fed and judged by the names of its graph."""

from __future__ import annotations

import onnx

from onnxopt_cli.cases.onnx.model_file import read_model
from onnxopt_cli.cases.values.declared import Declared, outline
from onnxopt_cli.cases.values.proto_values import check_type
from onnxopt_cli.cases.values.regular_file import Malformed, contained_path
from onnxopt_cli.cases.values.tensor_data import type_name
from onnxopt_cli.cases.yaml.case_fields import CaseFields, Incomplete, Subject
from onnxopt_cli.cases.yaml.syntax import FormatError, Node, abbreviated
from onnxopt_cli.cases.yaml.value import ChooseDtype, always, natural_dtype
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.errors import InvalidCase
from onnxopt_cli.formula.nodes import operator_names
from onnxopt_cli.readings.single_node import sole_operator


def model_subject(file: Node, fields: CaseFields) -> Subject:
    """Read a case of a model file.

    Args:
        file: the path of the model, inside the folder of the case file.
        fields: the case.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    for name in ("operator", "domain", "version", "opset", "attributes"):
        node = fields.node.field(name)
        if node is not None:
            fields.errors.append(FormatError(node, f"found {name} beside model, expected only one"))
    name = str(file.scalar)
    try:
        path = contained_path(fields.folder, name)
        model = read_model(path, links=False)
    except (Malformed, InvalidCase) as error:
        reasons = (
            [problem.what for problem in error.problems]
            if isinstance(error, InvalidCase)
            else [str(error)]
        )
        fields.errors += [
            FormatError(file, f"the file {abbreviated(name)} {reason}") for reason in reasons
        ]
        raise Incomplete from None
    outputs_node = fields.node.field("outputs")
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = _values("inputs", [i for i in model.graph.input if i.name not in constants], fields)
    outputs = None
    if fields.rejects:
        fields.refuse_outputs()
    elif outputs_node is not None or sole_operator(model) is None:
        outputs = _values("outputs", list(model.graph.output), fields)
    fields.finish()
    return Subject(
        operators=operator_names(model),
        model=lambda: read_model(path, links=False),
        inputs=inputs,
        outputs=outputs,
        output_names=tuple(output.name for output in model.graph.output),
    )


def _values(what: str, infos: list[onnx.ValueInfoProto], fields: CaseFields) -> dict[str, Declared]:
    """Read the values of graph inputs or outputs, in the graph's order, and check their types."""
    names = [info.name for info in infos]
    if not fields.rejects:
        fields.check_names(what, names, names)
    values = {}
    nodes = fields.mapping(what)
    for info in infos:
        node = nodes.get(info.name)
        value = None if node is None else fields.declare(node, _chooser(info.type))
        if node is None or value is None:
            continue
        values[info.name] = value
        if not fields.rejects:
            try:
                check_type(outline(value), info.type)
            except Malformed as error:
                fields.errors.append(FormatError(node, f"the value {error}"))
    return values


def _chooser(declared: onnx.TypeProto) -> ChooseDtype:
    """Return the choice of the element type that the graph declares, the values' own if none."""
    while declared.WhichOneof("value") in ("sequence_type", "optional_type"):
        declared = getattr(declared, str(declared.WhichOneof("value"))).elem_type
    number = declared.tensor_type.elem_type
    if not number:
        return natural_dtype
    try:
        return always(DTYPES[type_name(number)])
    except Malformed:
        return natural_dtype
