"""Contested questions: results by either reading of the specification pass."""

import inspect
import json

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.case.node import maxunpool
from onnx.reference import ReferenceEvaluator, op_run
from places import REPOSITORY

from onnxopt_cli.cases.case import Problem
from onnxopt_cli.cases.onnx.data_set import write_directory
from onnxopt_cli.oracle.corrections.contested import CONTESTED, contested_table
from onnxopt_cli.oracle.patching import reference_modules

BACKEND = """
import numpy as np
from pathlib import Path

def stored(name):
    return [np.load(Path(__file__).parent / f"{name}.npy")]

def first(model, inputs): return stored("first")
def second(model, inputs): return stored("second")
def inaccurate(model, inputs): return [stored("second")[0] * np.float32(1 + 1e-4)]
def mixed(model, inputs):
    (first,), (second,) = stored("first"), stored("second")
    mixed = first.copy()
    mixed.reshape(-1)[1::2] = second.reshape(-1)[1::2]
    return [mixed]
"""


def single_words(text):
    return " ".join(text.split())


def published(link):
    """Return the text to which a link refers, from the installed onnx."""
    place = link.rsplit("/", 1)[-1]
    if place.startswith("onnx_"):
        domain = "ai.onnx.ml" if "aionnxml" in place else ""
        schema = onnx.defs.get_schema(place.split("_")[-1].removesuffix(".html"), domain=domain)
        parts = (*schema.inputs, *schema.outputs, *schema.attributes.values())
        return "\n".join([schema.doc, *(part.description for part in parts)])
    if place == "maxunpool.py":
        return inspect.getsource(maxunpool)
    if place == "Operators.md":
        # As onnx.defs.gen_doc prints attributes. Its import computes all published cases of onnx.
        epsilon = onnx.defs.get_schema("InstanceNormalization").attributes["epsilon"]
        default = np.round(epsilon.default_value.f, 5)
        return f"<tt>{epsilon.name}</tt> : {epsilon.type.name.lower()} (default is {default})"
    if link.endswith("/nn/defs.cc"):
        return onnx.printer.to_text(onnx.defs.get_schema("HardSwish").function_body)
    if place == "defs.cc":
        node = helper.make_node("Clip", ["x", "min", "max"], ["y"])
        scalar = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []).SerializeToString()
        schema = onnx.defs.get_schema("Clip", 13, "")
        body = onnx.FunctionProto()
        text = schema.get_context_dependent_function(node.SerializeToString(), [scalar] * 3)
        body.ParseFromString(text)
        bodies = body, onnx.defs.get_schema("Celu").function_body
        return "\n".join(map(onnx.printer.to_text, bodies))
    modules = reference_modules()
    if place == "op_run.py":
        return inspect.getsource(op_run)
    within = modules.aionnxml if "/aionnxml/" in link else modules
    return inspect.getsource(getattr(within, place.removesuffix(".py")))


@pytest.mark.parametrize("entry", CONTESTED, ids=lambda entry: entry.name)
def test_quotations_occur_in_the_published_sources(entry):
    first, second = entry.readings
    assert first.link != second.link
    for source in entry.readings:
        assert source.says in single_words(published(source.link))


def test_document_lists_the_contested_questions():
    assert contested_table() in (REPOSITORY / "docs" / "conditioned.md").read_text()


def resized_by_specification(x, scale):
    """Resize linearly with aligned corners, as the specification describes."""
    for axis in (2, 3):
        length = x.shape[axis]
        resized = int(np.floor(length * np.float64(np.float32(scale))))
        at = np.arange(resized) * (length - 1) / max(resized - 1, 1)
        low = np.minimum(at.astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        share = (at - low).reshape([-1 if other_axis == axis else 1 for other_axis in range(4)])
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


def roi_maximum_by_specification(x, roi, ratio, height, width):
    """Return the largest interpolated value of each bin, as the specification describes."""
    channels, rows, columns = x.shape
    (left, top, right, bottom) = roi.astype(np.float64)
    tall, wide = max(bottom - top, 1) / height, max(right - left, 1) / width
    maxima = np.full((channels, height, width), -np.inf)
    for row, column, i, j in np.ndindex(height, width, ratio, ratio):
        y = min(max(top + (row + (i + 0.5) / ratio) * tall, 0), rows - 1)
        z = min(max(left + (column + (j + 0.5) / ratio) * wide, 0), columns - 1)
        weights = [
            np.maximum(0, 1 - abs(at - np.arange(length)))
            for at, length in ((y, rows), (z, columns))
        ]
        value = np.einsum("crs,r,s->c", x.astype(np.float64), *weights)
        maxima[:, row, column] = np.maximum(maxima[:, row, column], value)
    return maxima[np.newaxis]


def resize_case():
    x = np.arange(1, 31, dtype=np.float32).reshape(1, 1, 5, 6) ** 1.5
    inputs = {"X": x, "scales": np.array([1, 1, 0.7, 0.7], np.float32)}
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    node = helper.make_node("Resize", ["X", "", "scales"], ["Y"], **attributes)
    return node, inputs, resized_by_specification(x.astype(np.float64), 0.7)


def roi_case():
    x = np.cos(np.arange(2 * 6 * 7, dtype=np.float32)).reshape(1, 2, 6, 7)
    inputs = {
        "X": x,
        "rois": np.array([[0.7, 0.4, 5.2, 4.9]], np.float32),
        "batches": np.array([0], np.int64),
    }
    attributes = {"mode": "max", "output_height": 3, "output_width": 2, "sampling_ratio": 2}
    node = helper.make_node(
        "RoiAlign",
        list(inputs),
        ["Y"],
        coordinate_transformation_mode="output_half_pixel",
        **attributes,
    )
    return node, inputs, roi_maximum_by_specification(x[0], inputs["rois"][0], 2, 3, 2)


def grid_case():
    pixels = np.array([1.0, 4, -2], np.float32)
    inputs = {
        "X": pixels.reshape(1, 1, 1, 3),
        "grid": np.array([[[[-1.5, 0], [1.25, 0], [0.5, 0]]]], np.float32),
    }
    values = []
    for x in (-0.5, 2.25, 1.5):
        distances = np.abs(x - (np.floor(x) + np.arange(-1, 3)))
        weights = np.where(
            distances <= 1,
            1.25 * distances**3 - 2.25 * distances**2 + 1,
            -0.75 * distances**3 + 3.75 * distances**2 - 6 * distances + 3,
        )
        places = np.clip(np.floor(x) + np.arange(-1, 3), 0, 2).astype(int)
        values.append(weights @ pixels[places])
    attributes = {"mode": "cubic", "padding_mode": "border", "align_corners": 1}
    node = helper.make_node("GridSample", list(inputs), ["Y"], **attributes)
    return node, inputs, np.array(values).reshape(1, 1, 1, 3)


def clip_case():
    x = np.array([0.5, -3, 11, 2], np.float32)
    inputs = {"x": x, "min": np.array(0, np.float32), "max": np.array(np.nan, np.float32)}
    return helper.make_node("Clip", list(inputs), ["Y"]), inputs, np.array([0.5, 0, 11, 2])


def unpool_case():
    inputs = {
        "X": np.array([[[[5, 6], [7, 8]]]], np.float32),
        "I": np.array([[[[5, 7], [13, 15]]]], np.int64),
        "shape": np.array([1, 1, 5, 5], np.int64),
    }
    flat = np.zeros(25)
    flat[[5, 7, 13, 15]] = [5, 6, 7, 8]
    node = helper.make_node("MaxUnpool", list(inputs), ["Y"], kernel_shape=[2, 2], strides=[2, 2])
    return node, inputs, flat.reshape(1, 1, 5, 5)


def normalizer_case():
    x = np.array([[1, -4, 2], [-2, 3, -9]], np.float32)
    node = helper.make_node("Normalizer", ["x"], ["Y"], domain="ai.onnx.ml", norm="MAX")
    return node, {"x": x}, x / np.array([[2], [3]])


def dequantize_case():
    float4 = ml_dtypes.float4_e2m1fn
    x, scale = np.array([3, -1, 0.5], float4), np.array(0.25, np.float32)
    inputs = {"x": x, "scale": scale, "zero_point": np.array(2, float4)}
    second = (x.astype(np.float64) - 2) * 0.25
    return helper.make_node("DequantizeLinear", list(inputs), ["Y"]), inputs, second


def gemm_without_bias_case():
    inputs = {
        "A": np.array([[1, 2], [3, 4]], np.float32),
        "B": np.array([[1, 2], [3, -4]], np.float32),
        "C": np.array([[np.inf, np.nan], [0, 1]], np.float32),
    }
    node = helper.make_node("Gemm", list(inputs), ["Y"], beta=0.0)
    return node, inputs, np.array([[np.nan, np.nan], [15, -10]])


def gemm_without_product_case():
    inputs = {
        "A": np.array([[1, np.nan], [3, 4]], np.float32),
        "B": np.array([[1, 2], [3, -4]], np.float32),
        "C": np.array([[np.inf, 2], [0, 1]], np.float32),
    }
    return helper.make_node("Gemm", list(inputs), ["Y"], alpha=0.0), inputs, inputs["C"]


def normalization_case():
    x = np.array([[[0.002, -0.001, 0.004]]])
    inputs = {"x": x, "scale": np.ones(1), "bias": np.zeros(1)}
    node = helper.make_node("InstanceNormalization", list(inputs), ["Y"])
    return node, inputs, (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def leaky_case():
    x = np.array([-3.0, -2, 0.125])
    return helper.make_node("LeakyRelu", ["x"], ["Y"]), {"x": x}, np.where(x < 0, 0.01 * x, x)


def hard_swish_case():
    x = np.array([-2.0, 1, 0.5])
    slope = float(np.float32(1 / 6))
    second, first = (x * (alpha * x + 0.5) for alpha in (slope, 1 / 6))
    return helper.make_node("HardSwish", ["x"], ["Y"]), {"x": x}, second, first


def recurrent_case():
    inputs = {
        "x": np.array([[[-2.0]], [[-1.5]]]),
        "w": np.ones((1, 1, 1)),
        "r": np.array([[[0.5]]]),
    }
    node = helper.make_node("RNN", list(inputs), ["Y"], hidden_size=1, activations=["LeakyRelu"])
    second, first = (
        np.array([-2 * alpha, (-1.5 + 0.5 * -2 * alpha) * alpha]).reshape(2, 1, 1, 1)
        for alpha in (float(np.float32(0.01)), 0.01)
    )
    return node, inputs, second, first


def mel_case():
    inputs = {
        name: np.array(value, dtype)
        for name, value, dtype in (
            ("bands", 3, np.int64),
            ("length", 32, np.int64),
            ("rate", 8000, np.int64),
            ("low", 200, np.float32),
            ("high", 3700, np.float32),
        )
    }
    mels = np.linspace(*(2595 * np.log10(1 + edge / 700) for edge in (200, 3700)), 5)
    edges = np.floor(33 * 700 * (10 ** (mels / 2595) - 1) / 8000)
    places = np.arange(17)[:, np.newaxis]
    left, center, right = (edges[start : start + 3] for start in range(3))
    rising, falling = (places - left) / (center - left), (right - places) / (right - center)
    second = np.clip(np.minimum(rising, falling), 0, None)
    return helper.make_node("MelWeightMatrix", list(inputs), ["Y"]), inputs, second


def celu_case():
    x = np.array([-3, 2, -0.5, 0.25], np.float32)
    second = np.where(x < 0, x, -1.5 * np.expm1(x / -1.5))
    return helper.make_node("Celu", ["x"], ["Y"], alpha=-1.5), {"x": x}, second


CASES = {
    "Celu": celu_case,
    "MelWeightMatrix": mel_case,
    "RNN": recurrent_case,
    "Gemm, beta": gemm_without_bias_case,
    "Gemm, alpha": gemm_without_product_case,
    "InstanceNormalization": normalization_case,
    "LeakyRelu": leaky_case,
    "HardSwish": hard_swish_case,
    "Resize": resize_case,
    "RoiAlign": roi_case,
    "GridSample": grid_case,
    "Clip": clip_case,
    "MaxUnpool": unpool_case,
    "Normalizer": normalizer_case,
    "DequantizeLinear": dequantize_case,
}


@pytest.fixture(params=CASES, ids=str)
def stored_cases(request, tmp_path):
    """Write cases whose stored output follows the first reading, the second, or neither.

    Write backends that return the first reading, the second reading, or wrong results.
    """
    node, inputs, second, *explicit_first = CASES[request.param]()
    operands_are_doubles = next(iter(inputs.values())).dtype == np.float64
    result_type = np.dtype(np.float64 if operands_are_doubles else np.float32)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in inputs.items()
        ],
        [
            helper.make_tensor_value_info(
                "Y", helper.np_dtype_to_tensor_dtype(result_type), second.shape
            )
        ],
    )
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=11)
    # The reference computes HardSwish by its published body, which is the second reading, and
    # lacks the activations of RNN.
    (first,) = explicit_first or ReferenceEvaluator(model).run(None, inputs)
    second = second.astype(result_type)
    assert not np.array_equal(first, second, equal_nan=True)
    for name, expected in {"first": first, "second": second, "neither": second + 0.37}.items():
        folder = tmp_path / "cases" / name / "node" / "test_case"
        write_directory(folder, Problem(model, inputs, {"Y": expected}))
        np.save(tmp_path / f"{name}.npy", expected)
    (tmp_path / "backend.py").write_text(BACKEND)
    return tmp_path


def outcomes(onnxopt, folder, stored, *names):
    """Return the outcome and note of each backend from the log, and the command's result."""
    log = folder / "run.log"
    log.unlink(missing_ok=True)
    backends = [part for name in names for part in ("-b", f"python:{folder / 'backend.py'}:{name}")]
    options = ("--log", log, "--isolation", "none", "--no-explain", "-v")
    command = onnxopt("run", str(folder / "cases" / stored), *backends, *options)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    results = [record["result"] for record in records if "result" in record]
    return {
        result["backend"].rsplit(":", 1)[-1]: (result["outcome"], result["note"].partition(" (")[0])
        for result in results
    }, command


@pytest.mark.slow
def test_either_reading_passes_and_mixed_readings_fail(onnxopt, stored_cases):
    for stored in ("first", "second"):
        results, command = outcomes(
            onnxopt, stored_cases, stored, "first", "second", "inaccurate", "mixed"
        )
        assert results == {
            "first": ("pass", ""),
            "second": ("pass", "contested: reading 2 of 2"),
            "inaccurate": ("fail", "contested: matches neither reading"),
            "mixed": ("fail", "contested: matches neither reading"),
        }
        assert "pass (contested: reading 2 of 2)" in command.out


def test_stored_output_of_neither_reading_is_invalid(onnxopt, stored_cases):
    results, _ = outcomes(onnxopt, stored_cases, "neither", "first")
    assert results["first"][0] == "invalid"


@pytest.mark.parametrize(("zero_point", "outcome"), [(0, "pass"), (2, "pass"), (1, "fail")])
def test_zero_point_of_a_float8_type_is_ignored_or_added(onnxopt, tmp_path, zero_point, outcome):
    float8 = ml_dtypes.float8_e4m3fn
    inputs = {
        "x": np.array([[3, -1, 0.5], [8, -4, 1]], np.float32),
        "scale": np.array([0.5, 2], np.float32),
        "zero_point": np.array([2, 2], float8),
    }
    quotients = inputs["x"] / inputs["scale"][:, np.newaxis]
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", list(inputs), ["y"], axis=0)],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in inputs.items()
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT8E4M3FN, [2, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    first = Problem(model, inputs, {"y": quotients.astype(float8)})
    write_directory(tmp_path / "node" / "test_case", first)
    (tmp_path / "backend.py").write_text(
        "import ml_dtypes, numpy as np\n"
        f"def run(model, inputs): return [np.array({(quotients + zero_point).tolist()}, "
        "ml_dtypes.float8_e4m3fn)]\n"
    )
    backend = f"python:{tmp_path / 'backend.py'}:run"
    answer = onnxopt("run", str(tmp_path / "node"), "-b", backend, "--no-explain", "-v")
    assert answer.code == (1 if outcome == "fail" else 0), answer.out
    assert ("contested: reading 2 of 2" in answer.out) == (zero_point == 2)
