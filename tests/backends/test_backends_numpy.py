"""The backends numpy and onnx-reference."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from backend_models import (
    ADAM_INPUTS,
    ADAM_X_NEW,
    TRAINING,
    adam,
    adam_in_branch,
    adam_in_function,
    adam_in_function_in_branch,
    adam_node,
    doubled_adam,
    model,
    one_node,
    value,
)
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper

from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.errors import NodeError, Unsupported


def run(backend, proto, inputs):
    return resolve_backend(backend).prepare(proto).run(inputs)


def ones(**others):
    return {"x": np.array([1, 2, 3], np.float32), **others}


@pytest.mark.parametrize("backend", ["numpy", "onnx-reference"])
def test_adam_node_is_computed(backend):
    assert_allclose(run(backend, adam(), ADAM_INPUTS)[0], ADAM_X_NEW, rtol=1e-6)


def test_numpy_keeps_float32_where_onnx_reference_returns_double():
    assert run("numpy", adam(), ADAM_INPUTS)[0].dtype == np.float32
    assert run("onnx-reference", adam(), ADAM_INPUTS)[0].dtype == np.float64


def test_one_formula_node_runs_without_loading_the_reference_evaluator():
    script = (
        "import sys; from backend_models import adam, ADAM_INPUTS;"
        "from onnxopt_cli.backends.resolve import resolve_backend;"
        "print(resolve_backend('numpy').prepare(adam()).run(ADAM_INPUTS)[0].dtype);"
        "print([m for m in sys.modules if m in ('onnx.reference', 'onnxruntime', 'unittest')])"
    )
    path = [entry for entry in sys.path if entry]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {script}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[:2] == ["float32", "[]"]


def test_numpy_runs_formula_between_other_operators():
    X = ADAM_INPUTS["X"]
    expected = run("numpy", adam(), {**ADAM_INPUTS, "X": X + X})[0]
    (actual,) = run("numpy", doubled_adam(), ADAM_INPUTS)
    assert actual.dtype == np.float32
    assert_array_equal(actual, -expected)


def test_numpy_corrects_errors_of_the_reference_and_adds_missing_operators():
    """The corrected indices of MaxPool count all elements; the reference lacks GlobalLpPool."""
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    pool = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    norm = helper.make_node("GlobalLpPool", ["x"], ["n"])
    results = [value("y"), value("i", TensorProto.INT64), value("n")]
    y, indices, norms = run("numpy", model([pool, norm], [value("x")], results), {"x": x})
    assert_array_equal(indices, np.arange(8).reshape(1, 2, 2, 2))
    assert_array_equal(y, x)
    assert_allclose(norms.ravel(), [14**0.5, 126**0.5], rtol=1e-6)


@pytest.mark.parametrize("make", [adam_in_branch, adam_in_function_in_branch])
def test_numpy_runs_formula_in_subgraphs_and_functions(make):
    (actual,) = run("numpy", make(), ADAM_INPUTS)
    assert_array_equal(actual, run("numpy", adam(), ADAM_INPUTS)[0], strict=True)


@pytest.mark.parametrize(
    ("call", "function"),
    [
        ({"rate": 0.9}, {"attributes": ["rate"]}),
        ({"rate": 0.9}, {"defaults": {"rate": 0.5}}),
        ({}, {"defaults": {"rate": 0.9}}),
    ],
    ids=["given", "given over a default", "by default"],
)
def test_numpy_resolves_references_to_function_attributes(call, function):
    (actual,) = run("numpy", adam_in_function(call, **function), ADAM_INPUTS)
    assert_array_equal(actual, run("numpy", adam(), ADAM_INPUTS)[0], strict=True)


@pytest.mark.parametrize("indices", [[0, 3], [[0, 0], [1, 1]]], ids=["linear", "coordinates"])
def test_numpy_supports_sparse_initializers(indices):
    tensor = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [2], [3, 4]),
        helper.make_tensor("at", TensorProto.INT64, np.shape(indices), np.ravel(indices)),
        [2, 2],
    )
    shape = [2, 2]
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
    )
    proto.graph.sparse_initializer.append(tensor)
    before = proto.SerializeToString()
    (returned,) = run("numpy", proto, {"x": np.ones((2, 2), np.float32)})
    assert_array_equal(returned, [[4, 1], [1, 5]])
    assert proto.SerializeToString() == before


def test_numpy_does_not_change_a_model_whose_function_has_defaults():
    proto = adam_in_function({}, defaults={"rate": 0.9})
    before = proto.SerializeToString(deterministic=True)
    run("numpy", proto, ADAM_INPUTS)
    assert proto.SerializeToString(deterministic=True) == before


def test_attributes_in_a_function_are_float32_values():
    in_function = adam_in_function({"rate": 0.9}, attributes=["rate"])
    double = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in ADAM_INPUTS.items()
    }
    for info in in_function.graph.input:
        if info.name in "RXGVH":
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    (actual,) = run("numpy", in_function, double)
    assert_array_equal(actual, run("numpy", adam(), double)[0], strict=True)


def test_unnamed_output_is_not_passed_to_optional_inputs():
    node = adam_node(("X_new", "", ""))
    # Clip omits its lower limit. If H_new became the lower limit, the result would change, because
    # H_new exceeds -X_new.
    negative = helper.make_node("Neg", ["X_new"], ["negative"])
    clip = helper.make_node("Clip", ["negative", "", "top"], ["y"])
    proto = model(
        [node, negative, clip],
        [*adam().graph.input],
        [value("y", shape=[2])],
        domains=(TRAINING,),
        constants=[helper.make_tensor("top", TensorProto.FLOAT, [], [-1.0])],
    )
    (actual,) = run("numpy", proto, ADAM_INPUTS)
    X_new = run("numpy", adam(), ADAM_INPUTS)[0]
    assert_array_equal(actual, np.minimum(-X_new, np.float32(-1)), strict=True)


def test_single_node_may_have_an_unnamed_output():
    node = adam_node(("X_new", "", "H_new"))
    outputs = [value("X_new", shape=[2]), value("H_new", shape=[2])]
    proto = model([node], [*adam().graph.input], outputs, domains=(TRAINING,))
    actual = run("numpy", proto, ADAM_INPUTS)
    complete = run("numpy", adam(), ADAM_INPUTS)
    assert len(actual) == 2
    assert_array_equal(actual[1], complete[2], strict=True)


@pytest.mark.parametrize("make", [adam, doubled_adam])
def test_node_that_breaks_its_signature_is_rejected_not_unsupported(make):
    wide = {**ADAM_INPUTS, "G": np.ones((3, 2), np.float32)}
    with pytest.raises(NodeError, match="does not broadcast"):
        run("numpy", make(), wide)


@pytest.mark.parametrize("make", [adam, doubled_adam])
def test_numpy_does_not_write_into_its_inputs(make):
    inputs = {name: array.copy() for name, array in ADAM_INPUTS.items()}
    run("numpy", make(), inputs)
    for name, array in inputs.items():
        assert_array_equal(array, ADAM_INPUTS[name], strict=True)


def test_other_version_of_the_domain_is_not_supported():
    proto = adam()
    proto.opset_import[1].version = 2
    with pytest.raises(Unsupported) as caught:
        run("numpy", proto, ADAM_INPUTS)
    assert caught.value.operator == f"{TRAINING}:Adam"


@pytest.mark.parametrize("backend", ["numpy", "onnx-reference"])
@pytest.mark.parametrize(
    ("proto", "operator"),
    [
        (one_node("Nonsense"), "ai.onnx:Nonsense"),
        (one_node("MaxRoiPool", opset=10), "ai.onnx:MaxRoiPool"),
        (one_node("Nonsense", domain="ai.onnx.ml"), "ai.onnx.ml:Nonsense"),
        (one_node("Nonsense", domain="my.own"), "my.own:Nonsense"),
        (one_node("Nonsense", domain=TRAINING), f"{TRAINING}:Nonsense"),
        (one_node("Pad", opset=0), "ai.onnx:Pad"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unimplemented_operator_is_named(backend, proto, operator):
    with pytest.raises(Unsupported) as caught:
        run(backend, proto, ones())
    assert caught.value.operator == operator
    assert len(caught.value.message) < 400


def test_unimplemented_mode_is_unsupported_without_operator_name():
    proto = one_node("LayerNormalization", opset=17, stash_type=5)
    proto.graph.node[0].input.append("x")
    with pytest.raises(Unsupported) as caught:
        run("onnx-reference", proto, ones())
    assert caught.value.operator == ""


def test_failure_inside_an_operator_is_an_error():
    proto = one_node("Reshape")
    proto.graph.node[0].input.append("shape")
    proto.graph.initializer.append(helper.make_tensor("shape", TensorProto.INT64, [1], [2]))
    with pytest.raises(ValueError, match="reshape"):
        run("onnx-reference", proto, ones())


def test_missing_domain_import_is_a_failure():
    proto = one_node("Nonsense", domain="my.own")
    del proto.opset_import[1]
    with pytest.raises(RuntimeError, match="is not specified"):
        run("onnx-reference", proto, ones())


def optional_model(of_type, nodes):
    output = helper.make_value_info("y", helper.make_optional_type_proto(of_type))
    return model(nodes, [value("x", shape=[3])], [output])


TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, [3])
SEQUENCE = helper.make_sequence_type_proto(TENSOR)


def test_optional_tensor_is_unwrapped_from_the_evaluators_list():
    (y,) = run(
        "onnx-reference",
        optional_model(TENSOR, [helper.make_node("Optional", ["x"], ["y"])]),
        ones(),
    )
    assert_array_equal(y, ones()["x"], strict=True)


def test_empty_optional_is_none():
    node = helper.make_node("Optional", [], ["y"], type=TENSOR)
    assert run("onnx-reference", optional_model(TENSOR, [node]), ones()) == [None]


def test_optional_sequence_of_one_tensor_stays_a_sequence():
    nodes = [
        helper.make_node("SequenceConstruct", ["x"], ["s"]),
        helper.make_node("Optional", ["s"], ["y"]),
    ]
    (y,) = run("onnx-reference", optional_model(SEQUENCE, nodes), ones())
    assert len(y) == 1
    assert_array_equal(y[0], ones()["x"], strict=True)


def test_forwarded_optional_sequence_of_one_tensor_stays_a_sequence():
    proto = optional_model(SEQUENCE, [helper.make_node("Identity", ["x"], ["y"])])
    proto.graph.input[0].type.CopyFrom(proto.graph.output[0].type)
    (y,) = run("onnx-reference", proto, {"x": [ones()["x"]]})
    assert len(y) == 1
    assert_array_equal(y[0], ones()["x"], strict=True)


def test_version_names_the_package():
    assert resolve_backend("numpy").version == f"numpy {np.__version__}"
    assert resolve_backend("onnx-reference").version.startswith("onnx 1.")
