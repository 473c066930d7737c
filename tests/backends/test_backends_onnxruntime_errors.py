"""ONNX Runtime's errors: some report unsupported features, and all others are failures."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from backend_models import (
    ADAM_INPUTS,
    TRAINING,
    adam,
    adam_in_branch,
    adam_in_function,
    adam_in_function_in_branch,
    model,
    one_node,
    value,
)
from onnx import TensorProto, helper

from onnxopt_cli.backends.onnxruntime_backend import PATTERNS, unsupported_by_onnxruntime
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.errors import Unsupported

onnxruntime = pytest.importorskip("onnxruntime")

ONES = {"x": np.array([1, 2, 3], np.float32)}


def node(*arguments, **options):
    """Return a model of one node that ONNX Runtime 1.22, the oldest supported version, accepts."""
    return one_node(*arguments, **{"opset": 21, "ir_version": 10} | options)


def run(proto, inputs):
    return resolve_backend("onnxruntime").prepare(proto).run(inputs)


def raised(proto, inputs=ONES, provider="CPUExecutionProvider", **config):
    """Return the error that ONNX Runtime itself raises for a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for key, entry in config.items():
        options.add_session_config_entry(f"session.{key}", entry)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the types of the errors share no base
        onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=[provider], enable_fallback=0
        ).run(None, inputs)
    return caught.value


def bfloat16_sequence():
    proto = node("Relu")
    proto.graph.input.append(
        helper.make_tensor_sequence_value_info("s", TensorProto.BFLOAT16, None)
    )
    return proto


def gru(element_type=TensorProto.FLOAT, **attributes):
    return model(
        [helper.make_node("GRU", ["x", "w", "w"], ["y"], hidden_size=1, **attributes)],
        [value("x", element_type, [1, 1, 1]), value("w", element_type, [1, 3, 1])],
        [value("y", element_type, [1, 1, 1, 1])],
    )


def dilated_convolution():
    return model(
        [helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", dilations=[2])],
        [value("x", shape=[1, 1, 5]), value("w", shape=[1, 1, 3])],
        [value("y", shape=[1, 1, 5])],
    )


def cubic_resize():
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")
    return model(
        [node],
        [value("x", shape=[1, 1, 4]), value("scales", shape=[3])],
        [value("y", shape=[1, 1, 8])],
    )


def pooled_six_axes():
    shape = [1, 1, 1, 1, 1, 1]
    nodes = [helper.make_node("GlobalMaxPool", ["x"], ["y"])]
    return model(nodes, [value("x", shape=shape)], [value("y", shape=shape)])


def cell_inputs(dtype=np.float32):
    return {"x": np.ones((1, 1, 1), dtype), "w": np.ones((1, 3, 1), dtype)}


#: For each known message: examples that raise the message. Each example is a model, its inputs, and
#: the operator that the message names, if any.
MESSAGES = {
    "an operator, or a domain": [
        (adam(), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (adam_in_branch(), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (adam_in_function({"rate": 0.9}, attributes=["rate"]), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (adam_in_function_in_branch(), ADAM_INPUTS, f"{TRAINING}:Adam"),
        (node("Nonsense", domain="my.own"), ONES, "my.own:Nonsense"),
        (node("Nonsense", domain="my:own"), ONES, "my:own:Nonsense"),
    ],
    "an operator in one version of a known domain": [
        (node("Nonsense"), ONES, "ai.onnx:Nonsense"),
        (node("Nonsense", domain="ai.onnx.ml"), ONES, "ai.onnx.ml:Nonsense"),
    ],
    "an IR version": [(node("Relu", ir_version=99), ONES, "")],
    "an opset": [(node("Relu", opset=99), ONES, "")],
    "a kernel for a version, the element types or a mode of an operator": [
        (node("Max", TensorProto.INT16), {"x": np.ones(3, np.int16)}, ""),
        (node("Relu", opset=1), ONES, ""),
    ],
    "a mode, rank or element type that a kernel refuses when it is created or run": [
        (gru(layout=1), cell_inputs(), ""),
        (gru(TensorProto.DOUBLE), cell_inputs(np.float64), ""),
        (
            dilated_convolution(),
            {"x": np.ones((1, 1, 5), np.float32), "w": np.ones((1, 1, 3), np.float32)},
            "",
        ),
        (pooled_six_axes(), {"x": np.ones((1, 1, 1, 1, 1, 1), np.float32)}, ""),
        (
            cubic_resize(),
            {"x": np.ones((1, 1, 4), np.float32), "scales": np.array([1, 1, 2], np.float32)},
            "",
        ),
    ],
    "an element type in a model": [(node("Identity", TensorProto.COMPLEX64), ONES, "")],
    "an element type of a session's input": [
        (bfloat16_sequence(), {**ONES, "s": [np.ones(2, ml_dtypes.bfloat16)]}, "")
    ],
    "an element type of a session's output": [
        (
            node("Cast", TensorProto.STRING, outputs_as=TensorProto.BFLOAT16, to=16),
            {"x": np.array(["1", "2", "3"], object)},
            "",
        )
    ],
}


def about(error):
    return [feature for feature, pattern in PATTERNS.items() if pattern.fullmatch(str(error))]


NO_FALLBACK = "a node on the chosen provider, where session.disable_cpu_ep_fallback is 1"


def test_every_known_message_is_tested():
    assert {*PATTERNS} == {*MESSAGES, NO_FALLBACK}


@pytest.mark.skipif(
    "AzureExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="this build has no second provider",
)
def test_cpu_fallback_is_unsupported_if_disabled():
    error = raised(node("Relu"), ONES, "AzureExecutionProvider", disable_cpu_ep_fallback="1")
    assert about(error) == [NO_FALLBACK]
    disabled = (
        "onnxruntime,provider=AzureExecutionProvider,config.session.disable_cpu_ep_fallback=1"
    )
    with pytest.raises(Unsupported, match="assigned to the default CPU EP"):
        resolve_backend(disabled).prepare(node("Relu"))


@pytest.mark.parametrize("row", MESSAGES)
def test_onnxruntime_raises_each_known_message(row):
    for proto, inputs, operator in MESSAGES[row]:
        error = raised(proto, inputs)
        assert about(error) == [row], str(error)
        unsupported = unsupported_by_onnxruntime(error)
        assert unsupported.operator == operator
        assert "/onnxruntime_src/" not in unsupported.message
        with pytest.raises(Unsupported) as caught:
            run(proto, inputs)
        assert caught.value.message == unsupported.message
        assert caught.value.operator == operator


def with_constant(op_type, tensor, **attributes):
    proto = node(op_type, **attributes)
    proto.graph.node[0].input.append("c")
    proto.graph.initializer.append(tensor)
    return proto


def invalid_graph():
    proto = node("Relu")
    proto.graph.node[0].input[0] = "nowhere"
    return proto


def mixed_types():
    return with_constant("Add", helper.make_tensor("c", TensorProto.DOUBLE, [1], [1.0]))


def constant(number):
    return helper.make_tensor("c", TensorProto.INT64, [1], [number])


FAILURES = {
    "a Reshape to another size": with_constant("Reshape", constant(2)),
    "a Gather out of range": with_constant("Gather", constant(9)),
    "an unconnected node": invalid_graph(),
    "types that do not agree": mixed_types(),
    "an element type that the operator does not have": node("Relu", TensorProto.STRING),
    "an unknown attribute": node("Relu", nonsense=1),
    "a deprecated operator": node("Upsample"),
    "a domain that is not imported": model(
        [helper.make_node("Nonsense", ["x"], ["y"], domain="my.own")],
        [value("x")],
        [value("y")],
    ),
}


@pytest.mark.parametrize("proto", FAILURES.values(), ids=FAILURES)
def test_failure_is_never_unsupported(proto):
    inputs = {"x": np.ones(3, np.float32)}
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the types of the errors share no base
        run(proto, inputs)
    assert not isinstance(caught.value, Unsupported)
    assert "[ONNXRuntimeError]" in str(caught.value)


@pytest.mark.parametrize(
    "inputs",
    [{}, {"x": np.ones(3)}, {"x": np.ones((3, 1), np.float32)}, {**ONES, "z": ONES["x"]}],
    ids=["missing", "of another type", "of another rank", "unknown"],
)
def test_inputs_of_wrong_type_are_a_failure(inputs):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the types of the errors share no base
        run(node("Relu"), inputs)
    assert not isinstance(caught.value, Unsupported)


def test_message_that_quotes_a_known_message_is_a_failure():
    message = "[ONNXRuntimeError] : 1 : FAIL : Fatal error: a:B(-1) is not a registered function/op"
    assert unsupported_by_onnxruntime(RuntimeError(message))
    assert unsupported_by_onnxruntime(RuntimeError(f"while falling back: {message}")) is None
    assert unsupported_by_onnxruntime(RuntimeError(f"{message}, but kernel X crashed")) is None


def test_nothing_is_printed_when_a_model_fails():
    script = (
        "from test_backends_onnxruntime_errors import FAILURES, run, ONES\n"
        "for proto in FAILURES.values():\n"
        "    try: run(proto, ONES)\n"
        "    except Exception: pass\n"
    )
    path = [entry for entry in sys.path if entry]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout + ended.stderr == ""
