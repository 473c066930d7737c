"""Operators with the formulas of tests, and models of the lowered nodes of these operators."""

from __future__ import annotations

import onnx
from onnx import helper

from onnxopt_cli.interpret.lower.lower_call import GraphTensor, lower_call
from onnxopt_cli.interpret.lower.lower_model import UniqueNames
from onnxopt_cli.operators.call import bind
from onnxopt_cli.operators.operator import Operator, Scalar


def operator_of(formula, outputs):
    """Return an operator with the formula, the inputs T, X and Y, and a number of outputs."""
    return Operator(
        name="Made",
        domain="made.here",
        version=1,
        formula=formula,
        scalars=(Scalar("T", ("int64",)),),
        tensors=("X", "Y"),
        outputs={f"X_{number}": "X" for number in range(outputs)},
        attributes=(),
        about="",
        source="",
    )


def lowered(operator, inputs, *, known=True):
    """Lower a call of an operator, and return a model of the resulting nodes."""
    operands = [
        GraphTensor(name, value.dtype, value.shape if known else None)
        for name, value in zip(operator.input_names(1), inputs, strict=True)
    ]
    nodes = lower_call(
        bind(operator, operands, {}), list(operator.outputs), UniqueNames(onnx.ModelProto())
    )

    def declare(name, value):
        shape = value.shape if known else [None] * value.ndim
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), shape
        )

    graph = helper.make_graph(
        nodes,
        "made",
        [declare(operand.name, value) for operand, value in zip(operands, inputs, strict=True)],
        [declare(name, inputs[1]) for name in operator.outputs],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    onnx.checker.check_model(model, full_check=True)
    return model
