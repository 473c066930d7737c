"""Mutants of operators without a formula; they are derived from the schema of the operator."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxopt_cli.mutation.node_mutants import MutantKind, node_mutants
from onnxopt_cli.oracle.evaluator import native_outputs

RANDOM = np.random.RandomState(0)
X = RANDOM.standard_normal((2, 2, 7, 8)).astype(np.float32)
W = RANDOM.standard_normal((3, 2, 2, 3)).astype(np.float32)
B = RANDOM.standard_normal(3).astype(np.float32)


def node_model(op_type, inputs, outputs=1, opset=22, **attributes):
    names = [f"i{index}" for index in range(len(inputs))]
    node = helper.make_node(op_type, names, [f"o{i}" for i in range(outputs)], **attributes)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in zip(names, inputs, strict=True)
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    graph = helper.make_graph([node], "node", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model, dict(zip(names, inputs, strict=True))


def outputs_of(name, model, inputs):
    node = model.graph.node[0]
    mutants = node_mutants(node.domain, node.op_type, model.opset_import[0].version)
    (mutant,) = [mutant for mutant in mutants if mutant.name == name]
    return mutant.outputs(model, inputs, native_outputs)


def conv(**attributes):
    inputs = attributes.pop("inputs", (X, W, B))
    return node_model("Conv", inputs, **attributes)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("dilations ignored", {"strides": [2, 1]}),
        ("dilations reversed", {"strides": [2, 1], "dilations": [2, 3]}),
        ("dilations first value for all", {"strides": [2, 1], "dilations": [3, 3]}),
        ("B ignored", {"strides": [2, 1], "dilations": [3, 2], "inputs": (X, W)}),
        (
            "X first batch for all",
            {
                "strides": [2, 1],
                "dilations": [3, 2],
                "inputs": (np.repeat(X[:1], 2, axis=0), W, B),
            },
        ),
    ],
)
def test_mutant_computes_another_node(name, attributes):
    model, inputs = conv(strides=[2, 1], dilations=[3, 2])
    (output,) = outputs_of(name, model, inputs)
    (expected,) = native_outputs(*conv(**attributes))
    np.testing.assert_array_equal(output, expected)
    (correct,) = native_outputs(model, inputs)
    assert not np.array_equal(output, correct)


@pytest.mark.parametrize(
    "name",
    ["auto_pad ignored", "pads reversed", "dilations sorted", "X without NaN", "group ignored"],
)
def test_mutant_without_an_effect_on_a_node_returns_no_outputs(name):
    assert outputs_of(name, *conv(dilations=[2, 3])) is None


def test_mutants_leave_model_and_inputs_unchanged():
    model, inputs = conv(dilations=[2, 3], pads=[1, 2, 3, 4])
    before = deepcopy((model, inputs))
    for mutant in node_mutants("", "Conv", 22):
        try:
            mutant.outputs(model, inputs, native_outputs)
        except Exception:  # noqa: BLE001, S112 - a mutant may raise any exception
            continue
    assert model == before[0]
    for name, value in inputs.items():
        np.testing.assert_array_equal(value, before[1][name])


def test_axes_that_became_an_input_are_an_attribute_in_an_earlier_version():
    x, axes = X[..., :2, :2], np.array([1, -1])
    model, inputs = node_model("ReduceSum", (x, axes), keepdims=0)
    (output,) = outputs_of("as in version 11", model, inputs)
    np.testing.assert_allclose(output, x.sum(axis=(1, 3)), rtol=1e-6)


def test_softmax_of_an_earlier_version_normalizes_over_all_later_axes():
    model, inputs = node_model("Softmax", (X,), axis=1)
    (output,) = outputs_of("as in version 11", model, inputs)
    np.testing.assert_allclose(output.sum(axis=(1, 2, 3)), 1, rtol=1e-6)


def test_parameters_in_an_input_are_misread():
    model, inputs = node_model("Transpose", (X[0, 0],), perm=[1, 0])
    np.testing.assert_array_equal(outputs_of("perm sorted", model, inputs)[0], X[0, 0])
    starts, ends = np.array([1, 2]), np.array([5, 6])
    model, inputs = node_model("Slice", (X[0, 0], starts, ends))
    np.testing.assert_array_equal(
        outputs_of("starts reversed", model, inputs)[0], X[0, 0, 2:5, 1:6]
    )


@pytest.mark.parametrize("op_type", ["Conv", "LSTM", "Resize", "QuantizeLinear", "Where", "Concat"])
def test_mutants_have_unique_names_and_describe_themselves(op_type):
    mutants = node_mutants("", op_type, 22)
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert len({mutant.kind for mutant in mutants}) > 2
    for mutant in mutants:
        assert mutant.about[0].isupper() or mutant.about[0].islower()
        assert mutant.about.endswith(".")
        assert isinstance(mutant.kind, MutantKind)


def test_outputs_without_axes_remain_arrays():
    mutants = {mutant.name: mutant for mutant in node_mutants("", "Sum", 13)}
    mutants |= {mutant.name: mutant for mutant in node_mutants("", "Mul", 14)}
    for name in ("outputs in float32", "integer outputs in float32", "integer outputs in 8 bits"):
        for output in (np.array(3), np.array(2.5)):
            (changed,) = mutants[name].finish([output])
            assert isinstance(changed, np.ndarray)
            assert changed.shape == ()


def test_only_the_negation_of_a_flag_is_called_negated():
    """The negation of a number might be read as a change of its sign."""
    names = {mutant.name for mutant in node_mutants("", "ReduceSum", 13)}
    assert "keepdims negated" in names
    names = {mutant.name for mutant in node_mutants("", "TfIdfVectorizer", 9)}
    assert "max_skip_count read as 0, or as 1 if it is 0" in names
    assert "max_skip_count negated" not in names
