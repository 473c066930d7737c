"""Texts that represent floats are judged by their numbers, not by their characters."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.core.tolerance import NumberText
from onnxopt_cli.core.values import dtype_name
from onnxopt_cli.oracle.number_texts import number_texts

X = np.array([0.4001572, -1.5, 1e-5, 1e20, 0.0, np.inf, -np.inf, np.nan], np.float32)
RIGHT = ["0.40015721", "-1.5", "1e-05", "1E20", "0", "INF", "-inf", "NaN"]


def agrees(values, texts):
    tolerance = NumberText(dtype_name(values.dtype), values)
    expected = np.array([str(value) for value in values], object)
    (diff,) = compare_outputs({"y": expected}, [np.array(texts, object)], lambda _: tolerance)
    return diff.agrees


def random_floats():
    random = np.random.RandomState(0)
    magnitudes = 10.0 ** random.uniform(-44, 38, 1000)
    # Some of these numbers, such as 1234567.25, are ties if they are rounded to eight digits.
    ties = random.randint(1, 2**24, 1000) / random.choice([2, 4, 8, 16], 1000)
    powers = [*2.0 ** np.arange(-140, 127), *10.0 ** np.arange(-40, 38)]
    return np.array([*magnitudes, *ties, *powers], np.float32)


@pytest.mark.parametrize("form", ["%.8g", "%.9g", "%.17g", "%.7e", "%s"])
def test_sufficient_digits_identify_a_float32(form):
    values = random_floats()
    assert agrees(values, [form % (v if form == "%s" else float(v)) for v in values])


def test_neighbour_of_a_float32_is_wrong():
    values = random_floats()
    tolerance = NumberText("float32", values)
    texts = [f"{float(v):.9g}" for v in np.nextafter(values, np.float32(np.inf))]
    distance, limit = tolerance.judged(values.astype(np.float64), np.array(texts, object))
    assert (distance > limit).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_types_need_enough_digits_to_be_identified(dtype):
    third = np.array([1 / 3], np.float64).astype(dtype)
    neighbour = np.array([third.item() * (1 + float(ml_dtypes.finfo(dtype).eps))]).astype(dtype)
    assert agrees(third, [repr(float(third.item()))])
    assert agrees(third, [str(third[0])])
    assert not agrees(third, [str(neighbour[0])])
    assert not agrees(third, ["0.33"])


@pytest.mark.parametrize(
    "name",
    [
        "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn",
    ],
)  # fmt: skip
def test_text_of_a_narrow_float_must_be_its_value_rounded_to_the_shown_digits(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    bits = np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}")
    with np.errstate(invalid="ignore"):
        values = bits.view(dtype)[:: dtype.itemsize**3]
        numbers = values.astype(np.float64)
    values, numbers = values[np.isfinite(numbers)], numbers[np.isfinite(numbers)]
    for texts in (map(str, values), map(repr, numbers.tolist()), map("%.8g".__mod__, numbers)):
        assert agrees(values, [*texts])
    tolerance = NumberText(name, values)
    # All of these texts are wrong, even if the narrow type would round their number to the value.
    for factor in (1.0123456789, 1.000123456789, 23.456789123):
        wrong = [f"{number:.9g}" for number in np.where(numbers == 0, 1e-9, numbers * factor)]
        distance, limit = tolerance.judged(numbers, np.array(wrong, object))
        assert (distance > limit).all()


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("0.3333333333333333", True),
        ("0.3333333432674408", False),
        ("0.33333333", True),
        ("0.33333334", False),
        ("0.3333333", False),
        ("0.3333334", False),
    ],
)
def test_double_needs_eight_digits(text, is_right):
    assert agrees(np.array([1 / 3]), [text]) == is_right


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, ""), (1.0, "one"), (1.0, "0x1"), (1.0, " 1"), (1.0, "1_0"), (1.0, "\u0661"),
        (1.0, "1.0f"), (1.0, "-1"), (1.0, "1.0000002"), (1.0, "nan"), (0.0, "1e-40"), (0.0, ""),
        (np.inf, "-INF"), (np.inf, "1e999"), (np.inf, "3.5e38"), (np.inf, "Infinity"),
        (np.nan, "hello"), (np.nan, ""), (np.nan, "INF"), (3.4028235e38, "INF"),
    ],
)  # fmt: skip
def test_wrong_number_and_other_text_are_wrong(value, text):
    assert not agrees(np.array([value], np.float32), [text])


def cast_model(*nodes, outputs="y"):
    declared = [helper.make_tensor_value_info(name, TensorProto.STRING, [8]) for name in outputs]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])
    graph = helper.make_graph(nodes, "g", [x], declared)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def cast(source="x", to="y"):
    return helper.make_node("Cast", [source], [to], to=TensorProto.STRING)


def test_only_texts_of_casts_are_judged_by_their_values():
    concatenated = helper.make_node("StringConcat", ["y", "y"], ["z"])
    texts = number_texts(cast_model(cast(), concatenated, outputs="yz"), {"x": X})
    assert [*texts] == ["y"]
    assert texts["y"].values is X


def test_only_a_value_that_the_model_computes_is_judged_by_the_expected_text():
    model = cast_model(helper.make_node("Sqrt", ["x"], ["r"]), cast("r"))
    assert number_texts(model, {"x": X})["y"].values is None
    constant = numpy_helper.from_array(X)
    model = cast_model(helper.make_node("Constant", [], ["c"], value=constant), cast("c"))
    assert np.array_equal(number_texts(model, {"x": X})["y"].values, X, equal_nan=True)
    integers = cast_model(helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64), cast("i"))
    assert not number_texts(integers, {"x": X})


@pytest.mark.parametrize(
    ("returned", "stored", "outcome"),
    [
        (RIGHT, None, "1 pass"),
        (RIGHT, [str(value) for value in X], "1 pass"),
        (["0.4001573", *RIGHT[1:]], None, "1 fail"),
        ([*RIGHT[:-1], ""], [str(value) for value in X], "1 fail"),
        (RIGHT, ["0.5", *RIGHT[1:]], "1 invalid"),
    ],
)
def test_run_judges_texts_by_their_values(returned, stored, outcome, onnxopt, tmp_path):
    data = tmp_path / "cast" / "test_data_set_0"
    data.mkdir(parents=True)
    save(cast_model(cast()), data.parent / "model.onnx")
    (data / "input_0.pb").write_bytes(numpy_helper.from_array(X, "x").SerializeToString())
    if stored:
        tensor = helper.make_tensor("y", TensorProto.STRING, [8], stored)
        (data / "output_0.pb").write_bytes(tensor.SerializeToString())
    backend = tmp_path / "texts.py"
    backend.write_text(
        "import numpy as np\n\n\nclass Texts:\n    def run(self, model, inputs):\n"
        f"        return [np.array({returned!r}, object)]\n"
    )
    log = tmp_path / "log.jsonl"
    # Without stored outputs, onnx's reference computes the expected texts.
    paths = [data.parent] if stored else [data.parent / "model.onnx", "--inputs", data]
    result = onnxopt(
        "run", *paths, "-b", f"python:{backend}:Texts", "--rtol", "0", "--no-explain",
        "--log", log,
    )  # fmt: skip
    assert outcome in result.out
    assert outcome in onnxopt("report", "render", log, "--report", "markdown=-").out
