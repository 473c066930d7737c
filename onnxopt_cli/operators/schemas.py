"""Schemas of operators with a formula, for onnx's checker and type inference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module

import onnx
from onnx import defs
from onnx.defs import OpSchema
from onnx.shape_inference import InferenceContext

from onnxopt_cli.operators.native_onnx import renew
from onnxopt_cli.operators.operator import Attribute, Operator

# The domains of onnx's own operators.
_ONNX = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def register(operators: Iterable[Operator]) -> None:
    """Register the schema of every operator that onnx does not know.

    The schemas infer the types of outputs, and their shapes if the shapes of the inputs are known.
    A schema cannot express that the number of tensors is a multiple of the size of a group, nor
    that operands broadcast; this is checked when a node is computed or lowered.
    """
    for operator in operators:
        if not defs.has(operator.name, operator.domain):
            if any(defs.has(operator.name, domain) for domain in _ONNX):
                # onnx.reference reads all schemas at import and identifies them by name, without
                # the domain. Import it before registering a name that one of onnx's schemas has.
                import_module("onnx.reference")
            defs.register_schema(_schema(operator))
            renew()


def _schema(operator: Operator) -> OpSchema:
    inputs = [
        OpSchema.FormalParameter(scalar.name, f"T{scalar.name}", "one element")
        for scalar in operator.scalars
    ]
    inputs.append(_variadic("inputs", operator.tensors))
    carried = [name for name in operator.outputs if operator.carries(name)]
    outputs = [OpSchema.FormalParameter(name, f"T{operator.outputs[name]}") for name in carried]
    per_group = [name for name in operator.outputs if name not in carried]
    if per_group:
        outputs.append(_variadic("outputs", per_group))
    schema = OpSchema(
        operator.name,
        operator.domain,
        operator.version,
        operator.formula.__doc__ or operator.about,
        inputs=inputs,
        outputs=outputs,
        type_constraints=[
            *(
                (f"T{scalar.name}", _types(scalar.dtypes), f"Type of {scalar.name}.")
                for scalar in operator.scalars
            ),
            ("T_tensors", _types(operator.dtypes), "Type of each tensor."),
        ],
        attributes=list(map(_attribute, operator.attributes)),
    )
    schema.set_type_and_shape_inference_function(partial(_infer, operator))
    return schema


def _infer(operator: Operator, context: InferenceContext) -> None:
    """Set the element type and the shape of each output."""
    groups, rest = divmod(context.get_num_inputs() - len(operator.scalars), len(operator.tensors))
    if rest or context.get_num_outputs() > len(operator.output_names(groups)):
        return
    places = operator.places(groups)
    for output, (like, base) in zip(range(context.get_num_outputs()), places, strict=False):
        typed, shaped = context.get_input_type(like), context.get_input_type(base)
        if typed is None or not typed.tensor_type.elem_type:
            continue
        result = onnx.TypeProto()
        result.tensor_type.elem_type = typed.tensor_type.elem_type
        if shaped is not None and shaped.tensor_type.HasField("shape"):
            result.tensor_type.shape.CopyFrom(shaped.tensor_type.shape)
        context.set_output_type(output, result)


def _variadic(name: str, parts: Sequence[str]) -> OpSchema.FormalParameter:
    every = ", ".join(f"all {part}" for part in parts)
    return OpSchema.FormalParameter(
        name,
        "T_tensors",
        f"{every}: one of each for every tensor",
        param_option=OpSchema.FormalParameterOption.Variadic,
        is_homogeneous=False,
        min_arity=len(parts),
    )


def _attribute(attribute: Attribute) -> OpSchema.Attribute:
    kind = getattr(OpSchema.AttrType, onnx.AttributeProto.AttributeType.Name(attribute.kind))
    if attribute.default is None:
        return OpSchema.Attribute(attribute.name, kind, required=True)
    value = [attribute.default] if attribute.each else attribute.default
    return OpSchema.Attribute(attribute.name, onnx.helper.make_attribute(attribute.name, value))


def _types(dtypes: Iterable[str]) -> list[str]:
    return [f"tensor({_ONNX_NAMES.get(dtype, dtype)})" for dtype in dtypes]


_ONNX_NAMES = {"float32": "float", "float64": "double"}
