"""Cases that a right backend must refuse: built as written, whatever the signature says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import onnx
from onnx import AttributeProto

from onnxopt_cli.cases.onnx.node_model import node_model, tensor_info, value_info
from onnxopt_cli.cases.values.declared import Declared
from onnxopt_cli.cases.values.tensor_text import ChooseDtype, natural_dtype
from onnxopt_cli.cases.yaml.attribute_text import MakeAttribute, declare_attribute, natural_kind
from onnxopt_cli.cases.yaml.subject import CaseFields, Subject
from onnxopt_cli.cases.yaml.syntax import FormatError

_FLOATS: dict[int, int] = {
    AttributeProto.INT: AttributeProto.FLOAT,
    AttributeProto.INTS: AttributeProto.FLOATS,
}


def rejected_subject(
    op_type: str,
    domain: str,
    version: int,
    fields: CaseFields,
    *,
    choice_of: Callable[[str], ChooseDtype],
    float_attributes: Collection[str],
    output_names: Sequence[str],
) -> Subject:
    """Read a case whose node or inputs break the operator's signature.

    The node has the inputs in the order in which the case lists them.

    Args:
        op_type: the node's operator.
        domain: its domain.
        version: the domain's version.
        fields: the case.
        choice_of: how an input that does not say its element type gets it.
        float_attributes: attributes that are floats even where an integer is written.
        output_names: of the node; their types are those of its last input, for want of others.

    Raises:
        Incomplete: if something is wrong; it is collected in the fields.
    """
    fields.refuse_outputs()
    inputs: dict[str, Declared] = {}
    for name, node in fields.mapping("inputs").items():
        value = fields.declare(node, choice_of(name))
        if value is not None:
            inputs[name] = value
    attributes: list[MakeAttribute] = []
    for name, node in fields.mapping("attributes").items():
        if id(node) in fields.broken:
            continue
        kind = natural_kind(node)
        if name in float_attributes:
            kind = _FLOATS.get(kind, kind)
        try:
            attributes.append(declare_attribute(node, kind, fields.declare_value))
        except FormatError as error:
            fields.errors.append(error)
    fields.finish()
    dtype = next(reversed(inputs.values())).dtype if inputs else natural_dtype(frozenset())

    def model() -> onnx.ModelProto:
        return node_model(
            op_type,
            domain=domain,
            version=version,
            inputs=[value_info(name, value) for name, value in inputs.items()],
            outputs=[tensor_info(name, dtype, None) for name in output_names],
            attributes=[make() for make in attributes],
            graph_name=fields.name,
        )

    return Subject((op_type,), model, inputs, None, tuple(output_names))
