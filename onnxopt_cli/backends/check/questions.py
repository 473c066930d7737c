"""Models of one node, to see what a backend does with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxopt_cli.core.values import Array, Value

#: Operators of which most backends know one; the output is of the shape and dtype of the input.
CANDIDATES = ("Identity", "Relu", "Abs", "Neg", "Add", "Mul", "Momentum")

#: Versions of ai.onnx, the likeliest first.
OPSETS = (17, 13, 21)

_TRAINING = "ai.onnx.preview.training"
_IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class Question:
    """A model and its inputs.

    Attributes:
        model: the model.
        inputs: values by name.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Value]


def question(
    operator: str, array: Array, opset: int, *, names: tuple[str, str] = ("x", "y")
) -> Question:
    """Return a model of one operator, from one tensor to another.

    Args:
        operator: one of the candidates, or a name that no backend can know.
        array: the input.
        opset: version of ai.onnx.
        names: of input and output.
    """
    source, target = names
    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    inputs: dict[str, Value] = {source: array}
    declared = [helper.make_tensor_value_info(source, element_type, array.shape)]
    outputs = [helper.make_tensor_value_info(target, element_type, array.shape)]
    imports = [helper.make_opsetid("", opset)]
    if operator == "Momentum":
        imports.append(helper.make_opsetid(_TRAINING, 1))
        inputs = {"R": np.array(0.5, np.float32), "T": np.array(1, np.int64), **inputs}
        declared = [
            helper.make_tensor_value_info("R", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("T", TensorProto.INT64, []),
            *declared,
        ]
        outputs.append(helper.make_tensor_value_info("V_new", element_type, array.shape))
        node = helper.make_node(
            operator,
            ["R", "T", source, source, source],
            [target, "V_new"],
            domain=_TRAINING,
            alpha=0.5,
            beta=0.5,
            norm_coefficient=0.0,
            mode="standard",
        )
    else:
        arguments = [source] * (2 if operator in {"Add", "Mul"} else 1)
        node = helper.make_node(operator, arguments, [target])
    graph = helper.make_graph([node], "question", declared, outputs)
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    return Question(model, inputs)
