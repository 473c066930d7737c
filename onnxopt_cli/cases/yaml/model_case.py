"""Reads cases with a model file; their inputs and outputs have the names in the model's graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import onnx

from onnxopt_cli.cases.onnx.data_set import fed_inputs
from onnxopt_cli.cases.onnx.model_check import model_fault, symbol_fault
from onnxopt_cli.cases.onnx.model_file import read_model
from onnxopt_cli.cases.tensors.declared import Declared, outline
from onnxopt_cli.cases.tensors.proto_values import check_type, type_name
from onnxopt_cli.cases.yaml.case_fields import (
    CaseFields,
    ChooseDtype,
    DeclaredCase,
    Incomplete,
    natural_dtype,
    one_step_problem,
)
from onnxopt_cli.cases.yaml.yaml_syntax import (
    FormatError,
    Node,
)
from onnxopt_cli.core.text import abbreviated
from onnxopt_cli.core.untrusted_files import Malformed, contained_path
from onnxopt_cli.core.values import DTYPES
from onnxopt_cli.errors import BeyondLimit, InvalidCase
from onnxopt_cli.operators.nodes import operator_names


def model_case(fields: CaseFields) -> DeclaredCase:
    """Read a case with a model file.

    Raises:
        Incomplete: if the case is invalid; the errors are collected in `fields`.
    """
    file = fields.node.fields["model"] if fields.node.fields else fields.node
    if id(file) in fields.broken:
        raise Incomplete
    redundant = ["operator", "domain", "version", "opset", "attributes"]
    fields.forbid(redundant, " and model, expected only one of them")
    try:
        path = contained_path(fields.folder, str(file.scalar))
        load_model = partial(read_model, path, links=False)
        model = load_model()
    except BeyondLimit:
        # When the case is loaded, the same error is raised again.
        return DeclaredCase((), (), {"": partial(one_step_problem, load_model, {}, None)})
    except (Malformed, InvalidCase) as error:
        reasons = (
            [problem.what for problem in error.problems]
            if isinstance(error, InvalidCase)
            else [error]
        )
        for reason in reasons:
            fields.add_error(file, f"the file {abbreviated(str(file.scalar))} {reason}")
        raise Incomplete from None
    inputs, outputs = _values("inputs", fed_inputs(model.graph), fields), None
    if fields.rejects:
        fields.forbid(["outputs"], ", expected none in a case with rejects: true")
    elif fields.node.field("outputs") is not None:
        outputs = _values("outputs", model.graph.output, fields)
    if not fields.rejects:
        _check(file, model, inputs, outputs or {}, fields)
    fields.finish()
    make = partial(one_step_problem, load_model, inputs, outputs, must_reject=fields.rejects)
    output_names = tuple(output.name for output in model.graph.output)
    return DeclaredCase(operator_names(model), output_names, {"": make})


def _check(
    file: Node,
    model: onnx.ModelProto,
    inputs: Mapping[str, Declared],
    outputs: Mapping[str, Declared],
    fields: CaseFields,
) -> None:
    """Validate the model with onnx, and the shapes of values against the shapes of the graph."""
    input_outlines, output_outlines = (
        {name: outline(value) for name, value in values.items()} for values in (inputs, outputs)
    )
    if fault := symbol_fault(model.graph, input_outlines, output_outlines):
        fields.add_error(fields.node, fault)
    elif fault := model_fault(model, input_outlines):
        name = abbreviated(str(file.scalar))
        fields.add_error(file, f"the file {name} does not pass onnx's check: {fault}")


def _values(
    kind: str, infos: Iterable[onnx.ValueInfoProto], fields: CaseFields
) -> dict[str, Declared]:
    """Read the values of graph inputs or outputs in the graph's order, and check their types.

    Args:
        kind: ``inputs`` or ``outputs``.
        infos: the declarations of the graph.
        fields: the case.
    """
    types = {info.name: info.type for info in infos}
    if not fields.rejects:
        fields.check_names(kind, list(types), list(types))
    nodes = fields.mapping(kind)

    def declare(name: str, node: Node) -> Declared:
        value = fields.declare_value(node, _chooser(types[name]))
        if not fields.rejects:
            try:
                check_type(outline(value), types[name])
            except Malformed as error:
                raise FormatError(node, f"the value {error}") from None
        return value

    return fields.read({name: nodes[name] for name in types if name in nodes}, declare)


def _chooser(declared: onnx.TypeProto) -> ChooseDtype:
    """Return the element type that the graph declares, or the natural type if none is declared."""
    while declared.WhichOneof("value") in ("sequence_type", "optional_type"):
        declared = getattr(declared, str(declared.WhichOneof("value"))).elem_type
    try:
        return DTYPES[type_name(declared.tensor_type.elem_type)]
    except Malformed:
        return natural_dtype
