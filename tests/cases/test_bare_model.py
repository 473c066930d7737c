"""Model files without test data: the choice of their inputs, and the results of runs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxopt_cli.config.run_config import ModelInputs
from onnxopt_cli.errors import InvalidCase, UsageError
from onnxopt_cli.suites.collect import collect


def save(path, nodes, inputs, outputs, initializers=(), opset=17):
    declared_inputs, declared_outputs = (
        [helper.make_tensor_value_info(name, element, shape) for name, element, shape in values]
        for values in (inputs, outputs)
    )
    constants = [numpy_helper.from_array(v, k) for k, v in dict(initializers).items()]
    graph = helper.make_graph(nodes, "g", declared_inputs, declared_outputs, constants)
    imports = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def save_sum(path, *shapes):
    """Save a model that adds its inputs; the output has no shape, as in exported models."""
    inputs = [(f"x{index}", TensorProto.FLOAT, shape) for index, shape in enumerate(shapes)]
    node = helper.make_node("Sum", [name for name, _, _ in inputs], ["y"])
    return save(path, [node], inputs, [("y", TensorProto.FLOAT, [None] * len(shapes[0]))])


def load(path, **settings):
    ((case,), problems) = collect([str(path)], model_inputs=ModelInputs(**settings))
    assert not problems
    return case.load()


def shapes(problem):
    return [value.shape for value in problem.inputs.values()]


def test_one_symbol_has_one_size_in_all_inputs(tmp_path):
    model = save_sum(tmp_path / "m.onnx", ["batch", "n"], ["batch", "n"])
    assert shapes(load(model, dims=("batch=3", "n=5"))) == [(3, 5), (3, 5)]
    first, second = shapes(load(model))
    assert first == second


def test_inputs_that_do_not_fit_together_are_invalid(tmp_path):
    inputs = [(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["n"]), ("scale", None))]
    nodes = [helper.make_node("BatchNormalization", ["x", *["scale"] * 4], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, inputs, [("y", TensorProto.FLOAT, None)])
    values = tmp_path / "inputs.npz"
    np.savez(values, x=np.ones(3, np.float32), scale=np.ones(1, np.float32))
    assert shapes(load(path, inputs=values)) == [(3,), (1,)]
    np.savez(values, x=np.ones(3, np.float32), scale=np.ones((1, 1), np.float32))
    with pytest.raises(InvalidCase, match=r"BatchNormalization.*rank 1"):
        load(path, inputs=values)


def test_branch_that_never_runs_need_not_fit_the_inputs(tmp_path):
    product, copy = (
        helper.make_graph([node], "g", [], [helper.make_tensor_value_info("z", 1, None)])
        for node in (
            helper.make_node("MatMul", ["x", "w"], ["z"]),
            helper.make_node("Identity", ["x"], ["z"]),
        )
    )
    node = helper.make_node("If", ["fits"], ["y"], then_branch=product, else_branch=copy)
    inputs = [("fits", TensorProto.BOOL, []), ("x", TensorProto.FLOAT, ["n", "m"])]
    weights = {"w": np.ones((2, 3), np.float32)}
    outputs = [("y", TensorProto.FLOAT, None)]
    path = save(tmp_path / "m.onnx", [node], inputs, outputs, weights)
    values = tmp_path / "inputs.npz"
    np.savez(values, x=np.ones((3, 3), np.float32), fits=False)
    assert shapes(load(path, inputs=values)) == [(), (3, 3)]


@pytest.mark.parametrize("size", [-1, None])
def test_negative_and_missing_dimensions_are_symbolic(tmp_path, size):
    model = save_sum(tmp_path / "m.onnx", [size, 4])
    assert shapes(load(model, dims=("x0:0=7",))) == [(7, 4)]


@pytest.mark.parametrize(
    ("operator", "operands", "inputs"),
    [
        (
            "Resize",
            ["x", "", "", "sizes"],
            [("x", TensorProto.FLOAT, [2]), ("sizes", TensorProto.INT64, ["n"])],
        ),
        ("StringNormalizer", ["x"], [("x", TensorProto.STRING, ["n", "m"])]),
    ],
)
def test_model_with_unknown_sizes_is_valid(tmp_path, operator, operands, inputs):
    _, element, shape = inputs[0]
    node = helper.make_node(operator, operands, ["y"])
    load(save(tmp_path / "m.onnx", [node], inputs, [("y", element, [None] * len(shape))]))


def test_sizes_fit_the_model(tmp_path):
    nodes = [helper.make_node("Add", ["x", "bias"], ["y"])]
    inputs, outputs = [("x", TensorProto.FLOAT, [2, "n"])], [("y", TensorProto.FLOAT, [2, 48])]
    bias = {"bias": np.zeros(48, np.float32)}
    model = save(tmp_path / "m.onnx", nodes, inputs, outputs, bias)
    assert shapes(load(model)) == [(2, 48)]


def test_indices_lie_in_the_table_that_they_index(tmp_path):
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    table = {"table": np.zeros((50, 2), np.float32)}
    inputs = [("x", TensorProto.INT64, [400])]
    model = save(tmp_path / "m.onnx", nodes, inputs, [("y", TensorProto.FLOAT, None)], table)
    (indices,) = load(model).inputs.values()
    assert 0 <= indices.min() < indices.max() < 50 <= 2 * indices.max()


def test_seed_determines_the_inputs(tmp_path):
    model = save_sum(tmp_path / "m.onnx", [4], [4])
    first, second = load(model).inputs.values()
    assert not np.array_equal(first, second)
    again, _ = load(model).inputs.values()
    other, _ = load(model, seed=1).inputs.values()
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_inputs_come_from_files(tmp_path):
    model = save_sum(tmp_path / "m.onnx", ["n"], ["n"])
    values = {name: np.arange(3, dtype=np.float32) for name in ("x0", "x1")}
    np.savez(tmp_path / "inputs.npz", **values)
    folder = tmp_path / "data"
    folder.mkdir()
    for index, (name, value) in enumerate(values.items()):
        message = numpy_helper.from_array(value, name)
        (folder / f"input_{index}.pb").write_bytes(message.SerializeToString())
    for path in (tmp_path / "inputs.npz", folder):
        loaded = load(model, inputs=path).inputs
        assert {name: value.tolist() for name, value in loaded.items()} == {
            name: value.tolist() for name, value in values.items()
        }


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x0": np.zeros(3, np.float32)}, "x1 was expected"),
        ({"x0": np.zeros(3, np.float32), "z": np.zeros(1)}, "holds z; the model's inputs are x0"),
        (
            {name: np.zeros(1) for name in ("x0", *map("z{}".format, range(99)))},
            "z41, ...; the model's inputs are x0",
        ),
        ({"x0": np.zeros(3), "x1": np.zeros(3)}, "declared as float32"),
        (
            {"x0": np.zeros(3, np.float32), "x1": np.zeros(4, np.float32)},
            "dimension 'n' is 3 in the input 'x0' and 4",
        ),
    ],
)
def test_wrong_input_files_are_rejected(tmp_path, arrays, message):
    model = save_sum(tmp_path / "m.onnx", ["n"], ["n"])
    np.savez(tmp_path / "inputs.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        load(model, inputs=tmp_path / "inputs.npz")


@pytest.mark.parametrize("dims", [("n",), ("n=0",), ("n=-1",), ("=3",), ("n=1", "n=2")])
def test_wrong_sizes_are_rejected(dims):
    with pytest.raises(UsageError, match="--dim"):
        ModelInputs(dims=dims)


@pytest.mark.parametrize("shapes_of_inputs", [[[1 << 27]], [[1 << 20]] * 65, [[1 << 31, 0]]])
def test_inputs_beyond_the_limit_are_not_drawn(tmp_path, shapes_of_inputs):
    model = save_sum(tmp_path / "m.onnx", *shapes_of_inputs)
    with pytest.raises(InvalidCase, match="at most 67108864 elements are drawn"):
        load(model)


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (
            "run",
            ("--dim", "bach=3"),
            (
                "error: --dim: no symbolic dimension is called bach; the inputs have batch, n\n"
                "  did you mean batch?\n"
            ),
        ),
        (
            "locate",
            ("--inputs", "wrong.npz"),
            "error: --inputs does not fit m.onnx: wrong.npz: holds y; the model's inputs are x0\n",
        ),
    ],
)
def test_names_that_no_input_has_are_usage_errors(
    tmp_path, monkeypatch, onnxopt, command, options, message
):
    monkeypatch.chdir(tmp_path)
    save_sum(tmp_path / "m.onnx", ["batch", "n"])
    np.savez("wrong.npz", y=np.zeros(3, np.float32))
    answer = onnxopt(command, "m.onnx", "-b", "numpy", *options)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.split() == message.split()


def test_each_dimension_needs_to_exist_in_one_model(tmp_path, onnxopt):
    models = [save_sum(tmp_path / f"{name}.onnx", [name]) for name in ("m", "n")]
    options = ("-b", "onnx-reference", "--isolation", "none")
    assert onnxopt("run", *models, "--dim", "m=2", "--dim", "n=3", *options).code == 0


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("run", "spec", "-b", "numpy"), ("--dim", "n=3")),
        (("generate", "spec"), ("--inputs", "inputs.npy")),
    ],
)
def test_settings_of_inputs_require_a_model(tmp_path, monkeypatch, onnxopt, command, option):
    monkeypatch.chdir(tmp_path)
    np.save("inputs.npy", np.zeros(3, np.float32))
    answer = onnxopt(*command, *option)
    message = f"error: {option[0]} requires a model file as a target\n"
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.split() == message.split()


def test_bare_model_is_judged_by_the_oracle(tmp_path, monkeypatch, onnxopt):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zeros.py").write_text(
        "class Zeros:\n    def run(self, model, inputs):\n"
        "        return [0 * value for value in list(inputs.values())[:1]]\n"
    )
    save_sum(tmp_path / "m.onnx", ["n", 3], ["n", 3])
    case = "onnxopt: 1\nsuite: s\ncases: [{name: c, model: m.onnx, inputs: {x0: %s, x1: %s}}]\n"
    row = "{dtype: float, data: [[1, 2, 3]]}"
    (tmp_path / "c.yaml").write_text(case % (row, row))
    for target in ("m.onnx", "c.yaml"):
        options = ("--seed", "3", "--isolation", "none", "--no-explain")
        right = onnxopt("run", target, "-b", "onnx-reference", *options)
        assert right.code == 0, right.text
        wrong = onnxopt("run", target, "-b", "python:zeros.py:Zeros", *options)
        assert wrong.code == 1, wrong.text


def test_model_without_a_reference_is_skipped(tmp_path, monkeypatch, onnxopt):
    monkeypatch.chdir(tmp_path)
    value = [("x", TensorProto.FLOAT, [2])]
    save("m.onnx", [helper.make_node("RandomNormalLike", ["x"], ["y"])], value, [("y", 1, [2])])
    ran = onnxopt("run", "m.onnx", "-b", "onnx-reference", "--isolation", "none")
    assert ran.code == 5
    assert "its values are random" in " ".join(ran.text.split())


def test_model_with_an_operator_without_a_reference_is_skipped(onnxopt, tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    nodes = [helper.make_node("Fancy", ["x"], ["y"], domain="com.example")]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "fancy.onnx"
    )
    log = tmp_path / "log.jsonl"
    result = onnxopt("run", tmp_path / "fancy.onnx", "-b", "onnx-reference", "-v", "--log", log)
    text = " ".join(result.text.replace("│", " ").split())
    assert result.code == 5
    assert "limit of onnxopt: " in text
    assert "does not implement com.example:Fancy" in text
    assert "--operators" in text
    assert "was not tested" in onnxopt("report", "render", log, "--report", "markdown=-").out


def test_operator_without_a_reference_in_a_branch_that_never_runs_is_ignored(onnxopt, tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    branches = {
        name: helper.make_graph(
            [helper.make_node(operator, ["x"], [name], domain=domain)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])],
        )
        for name, operator, domain in (
            ("then_branch", "Exp", ""),
            ("else_branch", "Fancy", "com.example"),
        )
    }
    graph = helper.make_graph(
        [helper.make_node("If", ["true"], ["y"], **branches)],
        "g",
        [x],
        [y],
        [numpy_helper.from_array(np.array(True), "true")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "m.onnx")
    for factor, code in ((1, 0), (1.001, 1)):
        backend = tmp_path / f"exit_{code}.py"
        backend.write_text(
            "import numpy\n\nclass Exp:\n    def run(self, model, inputs):\n"
            f"        return [numpy.exp(x) * numpy.float32({factor}) for x in inputs.values()]\n"
        )
        options = ("--isolation", "none", "--no-explain")
        ran = onnxopt("run", tmp_path / "m.onnx", "-b", f"python:{backend}:Exp", *options)
        assert ran.code == code, ran.text


def test_model_whose_inputs_contradict_it_is_invalid(onnxopt, tmp_path):
    declared = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size])
        for name, size in zip("aby", "nmk", strict=True)
    ]
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    graph = helper.make_graph(nodes, "g", declared[:2], declared[2:])
    imports = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "add.onnx")
    sizes = ["--dim", "n=3", "--dim", "m=2"]
    result = onnxopt("run", tmp_path / "add.onnx", "-b", "onnx-reference", *sizes)
    assert result.code == 2
    assert "1 invalid" in result.out


WRONG_SUM = """
class Backend:
    def run(self, model, inputs):
        return [sum(inputs.values()) + 1]
"""


def stored_values(folder):
    """Return the first input and the first output of a test directory, read by onnx."""
    paths = (folder / "test_data_set_0" / f"{kind}_0.pb" for kind in ("input", "output"))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


def test_show_says_where_inputs_and_outputs_of_a_model_file_come_from(workplace, onnxopt):
    save_sum(workplace / "m.onnx", ["batch", 4])
    page = onnxopt("show", "m.onnx").out
    assert "inputs from seed 0" in page
    assert "not stored: each run computes them" in page


def test_generate_writes_a_model_as_a_test_directory(workplace, onnxopt):
    save_sum(workplace / "m.onnx", ["batch", 4])
    options = ("m.onnx", "--dim", "batch=3", "--seed", "5", "-o", "out")
    assert "wrote 3 files" in onnxopt("generate", *options).out
    value, output = stored_values(workplace / "out" / "test_m")
    assert value.shape == (3, 4)
    assert np.array_equal(value, output)
    assert onnxopt("generate", *options, "--check").code == 0
    answer = onnxopt("run", "out", "-b", "onnx-reference", "--isolation", "none")
    assert (answer.code, "1 pass" in answer.out) == (0, True), answer.text


def test_generate_says_why_a_model_has_no_expected_outputs(workplace, onnxopt):
    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    save(workplace / "m.onnx", [node], [("x", 1, [2])], [("y", 1, [2])])
    answer = onnxopt("generate", "m.onnx", "-o", "out")
    assert (answer.code, "its values are random" in answer.err) == (2, True), answer.err
    assert onnxopt("generate", "m.onnx", "--format", "yaml").code == 2
    assert not (workplace / "out").exists()


def test_artifacts_of_a_model_are_a_test_directory(workplace, onnxopt):
    save_sum(workplace / "m.onnx", [2, 4])
    (workplace / "wrong.py").write_text(WRONG_SUM)
    run = ("-b", "python:wrong.py:Backend", "--isolation", "none", "--no-explain")
    assert onnxopt("run", "m.onnx", *run, "--artifacts", "failing").code == 1
    (folder,) = (path.parent for path in (workplace / "failing").rglob("model.onnx"))
    value, output = stored_values(folder)
    assert np.array_equal(value, output)
    assert onnxopt("run", "failing", *run).code == 1
    assert onnxopt("run", "failing", "-b", "onnx-reference", "--isolation", "none").code == 0
