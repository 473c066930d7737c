"""Models of one node are valid, and equal to the models that ONNX publishes."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest
from training_calls import TRAINING

from onnxopt_cli.cases.onnx.node_model import (
    formula_model,
    node_model,
    tensor_info,
    value_info,
)
from onnxopt_cli.cases.tensors.declared import DeclaredGroup, PromisedTensor
from onnxopt_cli.operators.registry import registry

F32 = np.dtype(np.float32)


def tensor(shape, dtype=F32):
    return PromisedTensor(dtype, shape, lambda: np.zeros(shape, dtype))


@pytest.fixture(scope="module")
def published():
    # Only these modules are imported, which registers their cases. Collecting the cases of all
    # modules would take seconds.
    from onnx.backend.test.case import node

    for operator in TRAINING:
        importlib.import_module(f"{node.__name__}.{operator.name.lower()}")
    return {case.name: case for case in node._NodeTestCases}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "adam",
        "adam_multiple",
        "adagrad",
        "adagrad_multiple",
        "momentum",
        "nesterov_momentum",
        "momentum_multiple",
    ],
)
def test_published_models_are_rebuilt_as_equal_messages(published, name):
    case = published[f"test_{name}"]
    node = case.model.graph.node[0]
    attributes = {
        attribute.name: attribute.s.decode() if attribute.s else attribute.f
        for attribute in node.attribute
    }

    model = formula_model(
        registry().named(node.op_type),
        attributes,
        case.data_sets[0][0],
        graph_name=f"test_{name}",
        # The published model momentum_multiple calls its momenta H1 and H2.
        input_names=list(node.input) if name == "momentum_multiple" else None,
    )
    model.producer_name = "backend-test"

    assert model == case.model


@pytest.mark.parametrize(
    ("v_shape", "declared"), [((2, 3), [2, 3]), ((1, 3), [None, 3]), ((2, 1), [2, None])]
)
def test_dimensions_inferred_from_a_broadcast_operand_are_unknown(v_shape, declared):
    momentum = registry().named("Momentum")
    attributes = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"}
    inputs = [
        tensor(()),
        tensor((), np.dtype(np.int64)),
        tensor((2, 3)),
        tensor((2, 3)),
        tensor(v_shape),
    ]

    model = formula_model(momentum, attributes, inputs, graph_name="g")

    onnx.checker.check_model(model, full_check=True)
    shape = model.graph.output[1].type.tensor_type.shape
    assert [d.dim_value if d.HasField("dim_value") else None for d in shape.dim] == declared


def test_each_output_has_the_element_type_of_its_input():
    inputs = [tensor(()), tensor((), np.dtype(np.int64))]
    inputs += [tensor((2,), np.dtype(d)) for d in ("f4", "f4", "f8", "f4", "f4", "f8", "f8", "f8")]

    model = formula_model(registry().named("Adam"), {}, inputs, graph_name="g")

    onnx.checker.check_model(model, full_check=True)
    assert {o.name: o.type.tensor_type.elem_type for o in model.graph.output} == {
        "X1_new": 1,
        "X2_new": 1,
        "V1_new": 1,
        "V2_new": 11,
        "H1_new": 11,
        "H2_new": 11,
    }


def test_omitted_input_keeps_the_positions_of_later_ones():
    model = node_model(
        onnx.defs.get_schema("Clip"),
        13,
        inputs=[tensor_info("input", F32, (2,)), None, tensor_info("max", F32, ())],
        outputs=[tensor_info("output", F32, (2,))],
        graph_name="g",
    )

    assert list(model.graph.node[0].input) == ["input", "", "max"]
    assert [value.name for value in model.graph.input] == ["input", "max"]
    onnx.checker.check_model(model, full_check=True)


def test_sequences_and_optionals_are_declared_with_their_types():
    sequence = DeclaredGroup("seq", F32, (tensor((2,)), tensor((3,))))
    optional = DeclaredGroup("optional", np.dtype(np.int64))

    assert value_info("s", sequence).type == onnx.helper.make_sequence_type_proto(
        onnx.helper.make_tensor_type_proto(1, None)
    )
    assert value_info("o", optional).type == onnx.helper.make_optional_type_proto(
        onnx.helper.make_tensor_type_proto(7, None)
    )
    inner = value_info(
        "o", DeclaredGroup("optional", F32, (sequence,))
    ).type.optional_type.elem_type
    assert inner.HasField("sequence_type")
