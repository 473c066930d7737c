"""Cases whose values, model and reference disagree about types, shapes and counts."""

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.data_set import write_directory
from onnxopt_cli.cases.onnx.model_check import contradicts, inferred_output, symbol_fault

BACKEND = """
import numpy as np

def stored(model, inputs):
    return [np.load({path!r})]
"""
HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


@pytest.fixture
def run(tmp_path, onnxopt):
    """Return a function that runs a case; the backend returns the stored output of the case."""

    def run_text(text, inputs, **outputs):
        model = onnx.parser.parse_model(HEAD + text)
        return run_model(model, inputs, **outputs)

    def run_model(model, inputs, **outputs):
        write_directory(tmp_path / "node" / "test_it", Problem(model, inputs, outputs))
        values = next(iter(outputs.values()))
        np.save(tmp_path / "stored.npy", np.asarray(values))
        backend = tmp_path / "be.py"
        backend.write_text(BACKEND.format(path=str(tmp_path / "stored.npy")))
        folder = str(tmp_path / "node")
        return onnxopt("run", folder, "-b", f"python:{backend}:stored", "--no-explain")

    run_text.model = run_model
    return run_text


def f32(*shape):
    return np.ones(shape, np.float32)


def test_case_whose_stored_output_has_another_shape_is_invalid(run):
    scalars = {
        name: np.array(value, np.float32) for name, value in zip("abc", (0, 3, 1), strict=True)
    }
    result = run(
        "g (float a, float b, float c) => (float[n] y) { y = Range(a, b, c) }",
        scalars,
        y=np.arange(4, dtype=np.float32),
    )
    assert result.code == 2
    assert "y  float32[3]  expected, but is float32[4]" in result.out


def test_case_whose_stored_output_has_another_rank_is_invalid(run):
    # Shape inference cannot determine the number of axes of y.
    text = """g (float[2,2] x, bool[m] k) => (float[p] y) {
        i = NonZero(k) j = Squeeze(i) y = ReduceSum(x, j) }"""
    inputs = {"x": f32(2, 2), "k": np.array([False, True])}
    result = run(text, inputs, y=2 * f32(2))
    assert result.code == 2
    assert "float32[2,1]" in result.out


@pytest.mark.parametrize("count", [1, 3])
def test_case_whose_stored_sequence_has_another_length_is_invalid(run, count):
    text = "g (float[4] x) => (seq(float[n]) y) { y = SplitToSequence <keepdims = 1> (x, s) }"
    model = onnx.parser.parse_model(HEAD + text.replace("(x, s)", "(x)"))
    node = model.graph.node[0]
    node.input.append("s")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2, dtype=np.int64), "s"))
    result = run.model(model, {"x": f32(4)}, y=[f32(2)] * count)
    assert result.code == 2
    assert "consists of" in result.out


def test_shapes_are_inferred_from_the_values_of_inputs():
    model = onnx.parser.parse_model(
        HEAD + "g (float a, float b, float c) => (float[n] y) { y = Range(a, b, c) }"
    )
    scalars = {
        name: np.array(value, np.float32) for name, value in zip("abc", (0, 3, 1), strict=True)
    }
    inferred = inferred_output(model, scalars, "y")
    assert contradicts(f32(4), inferred)
    assert contradicts(f32(3, 1), inferred)
    assert contradicts(f32(3).astype("d"), inferred)
    assert not contradicts(f32(3), inferred)


@pytest.mark.parametrize(
    ("declared", "contradictory"),
    [
        ("float[N] x) => (float[N] y", True),
        ("float[N] x) => (float[M] y", False),
        ("float[N] x) => (float[None] y", False),
    ],
)
def test_symbolic_dimension_has_one_size(run, declared, contradictory):
    result = run(f"g ({declared}) {{ y = Concat <axis = 0> (x, x) }}", {"x": f32(3)}, y=f32(6))
    assert (result.code == 2) == contradictory, result.out
    assert ("dimension 'N' is 3 in" in " ".join(result.out.split())) == contradictory


def test_elements_of_sequences_may_differ_in_size():
    """The published cases of SequenceMap require this, e.g. test_sequence_map_add_2_sequences."""
    model = onnx.parser.parse_model(
        HEAD + "g (seq(float[N]) x) => (seq(float[N]) y) { y = Identity(x) }"
    )
    values = [f32(6), f32(1)]
    assert not symbol_fault(model.graph, {"x": values}, {"y": values})


@pytest.mark.parametrize(("size", "contradictory"), [(3, False), (2, True)])
def test_symbolic_dimension_has_one_size_in_case_files(onnxopt, tmp_path, size, contradictory):
    text = "g (float[N] x, float[N] z) => (float y) { y = Max(x) }"
    model = onnx.parser.parse_model(HEAD + text)
    # The sizes of the two inputs contradict each other even if the output has no shape.
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    inputs = f"{{x: [1, 2, 3], z: {[1.5] * size}}}"
    (tmp_path / "c.yaml").write_text(
        "onnxopt: 1\nsuite: s\ncases:\n"
        f"- {{name: a, model: m.onnx, inputs: {inputs}, outputs: {{y: [1.0, 2.0, 3.0]}}}}\n"
    )
    result = onnxopt("run", str(tmp_path / "c.yaml"), "-b", "onnx-reference")
    assert (result.code == 2) == contradictory, result.out


def test_model_of_a_case_file_passes_the_full_check(onnxopt, tmp_path):
    model = onnx.parser.parse_model(HEAD + REJECTED["an intermediate type"])
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "c.yaml").write_text(
        "onnxopt: 1\nsuite: s\ncases:\n"
        "- {name: a, model: m.onnx, inputs: {x: [1, 2, 3]}, outputs: {y: [1.0, 2.0, 3.0]}}\n"
    )
    result = onnxopt("run", str(tmp_path / "c.yaml"), "-b", "onnx-reference")
    assert result.code == 2


@pytest.mark.parametrize("name", ["?", "-1", "*", "unk", ""])
def test_unknown_dimension_may_have_several_sizes(run, name):
    node = helper.make_node("Concat", ["x", "z"], ["y"], axis=0)
    x, z, y = (
        helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [name]) for value in "xzy"
    )
    graph = helper.make_graph([node], "g", [x, z], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    result = run.model(model, {"x": f32(3), "z": f32(2)}, y=f32(5))
    assert result.code == 0, result.out


def test_dimension_of_minus_one_is_unknown(run):
    node = helper.make_node("Neg", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, [-1, 2]) for value in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    assert run.model(model, {"x": f32(3, 2)}, y=-f32(3, 2)).code == 0


REJECTED = {
    "a declared type": "g (float[3] x) => (double[3] y) { y = Neg (x) }",
    "a declared shape": "g (float[3] x) => (float[3] y) { y = Concat <axis = 0> (x, x) }",
    "an intermediate type": """g (float[3] x) => (float[3] y) <float[3] t> {
        t = Cast <to = 11> (x) y = Cast <to = 1> (t) }""",
    "branches": """g (float[3] x) => (float[3] y) {
        c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = a () => (float[3] u) { u = Neg (x) },
                    else_branch = b () => (int64[1] v) { v = Shape (x) }> }""",
}


@pytest.mark.parametrize("name", REJECTED)
def test_model_that_fails_the_full_check_is_invalid(run, name):
    model = onnx.parser.parse_model(HEAD + REJECTED[name])
    kind = helper.tensor_dtype_to_np_dtype(model.graph.output[0].type.tensor_type.elem_type)
    result = run.model(model, {"x": f32(3)}, y=-f32(3).astype(kind))
    assert result.code == 2
    assert "does not pass onnx's check" in result.out


def test_check_knows_the_defaults_of_function_bodies(run):
    # To infer the shape of MeanVarianceNormalization, onnx uses its function body, but ignores the
    # default of axes.
    text = "g (float[1,1,1,2] x) => (float[1,1,1,2] y) { y = MeanVarianceNormalization (x) }"
    x = np.array([[[[1, 3]]]], np.float32)
    model = onnx.parser.parse_model(HEAD + text)
    assert run.model(model, {"x": x}, y=(x - 2)).code == 0


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_type_that_only_the_function_body_does_not_support_is_valid(run, kind):
    x = np.array([[[[1.0, 3.0]]]], kind)
    name = {np.float16: "float16", np.float64: "double"}[kind]
    text = f"g ({name}[1,1,1,2] x) => ({name}[1,1,1,2] y) {{ y = MeanVarianceNormalization(x) }}"
    y = ((x.astype(np.float64) - 2) / (1 + 1e-9)).astype(kind)
    assert run(text, {"x": x}, y=y).code == 0
