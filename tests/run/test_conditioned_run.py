"""``onnxopt run`` on models without a formula."""

import json
import os
import shutil
import signal
from hashlib import sha256
from math import erfc, sqrt
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt_cli.backends.host import Response
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.cases.case import Case, Problem
from onnxopt_cli.cases.onnx.data_set import write_directory
from onnxopt_cli.config.run_config import Judging
from onnxopt_cli.core.codec import (
    ValueReader,
    ValueWriter,
    read_json,
)
from onnxopt_cli.core.result import Location, Outcome
from onnxopt_cli.core.tolerance import ONNX_DEFAULT
from onnxopt_cli.oracle.expected import Expected
from onnxopt_cli.oracle.reference_oracle import ReferenceOracle
from onnxopt_cli.run.runner import Plan, run, run_case
from onnxopt_cli.workers.interruption import Interruption

CONDITIONED = ("--tolerance", "conditioned")
BACKEND = """
import time
import numpy as np
from onnx.reference import ReferenceEvaluator

class Right:
    def run(self, model, inputs):
        return ReferenceEvaluator(model).run(None, inputs)

class Off(Right):
    def run(self, model, inputs):
        return [output * np.float32(1 + 1e-5) for output in super().run(model, inputs)]

class FarOff(Right):
    def run(self, model, inputs):
        return [output * output.dtype.type(1.5) for output in super().run(model, inputs)]

class NaNs(Right):
    def run(self, model, inputs):
        return [output * np.float32("nan") for output in super().run(model, inputs)]

class Slow(Right):
    def run(self, model, inputs):
        time.sleep(3)
        return super().run(model, inputs)

class Tensor(Right):
    def run(self, model, inputs):
        bits = {"tf32": 13, "bf16": 16}[self.math]
        cut = {n: (v.view("u4") >> bits << bits).view("f4") for n, v in inputs.items()}
        return super().run(model, cut)

class Tf32(Tensor):
    math = "tf32"

class Bf16(Tensor):
    math = "bf16"

class HalfSums:
    def run(self, model, inputs):
        (x,) = inputs.values()
        return [x.astype("f2").cumsum(axis=1, dtype="f2")[:, -1:].astype("f4")]

class Coin:
    def run(self, model, inputs):
        (p,) = inputs.values()
        return [(np.random.default_rng(1).uniform(size=p.shape) < p).astype(p.dtype)]

class Dropped:
    limit = np.inf

    def run(self, model, inputs):
        x = inputs["x"]
        kept = np.random.default_rng(1).uniform(size=x.shape) < 0.5
        with np.errstate(all="ignore"):
            scaled = np.clip(2 * x.astype("f8"), -self.limit, self.limit)
            return [np.where(kept, scaled, 0).astype(x.dtype)]

class Saturated(Dropped):
    limit = 60000

class Loaded(Coin):
    def run(self, model, inputs):
        return [np.ones_like(*inputs.values())]

class Zeros(Right):
    def run(self, model, inputs):
        return [np.where(inputs["x"] < -1, 0, v) for v in super().run(model, inputs)]

class Single(Right):
    def run(self, model, inputs):
        (x, scale) = (value.astype("f4") for value in inputs.values())
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return [(centred / np.sqrt(variance + np.float32(1e-5))).astype("f8") * scale]

class DeviceExp:
    def run(self, model, inputs):
        (x,) = inputs.values()
        ulps = (3 + 2 * np.abs(x.astype("f8"))) * 0.95 * self.times
        return [(np.exp(x.astype("f8")) * (1 + ulps * 2.0 ** -24)).astype("f4")]

class VulkanExp(DeviceExp):
    times = 1

class PoorExp(DeviceExp):
    times = 3

class Truncating:
    def run(self, model, inputs):
        a, b = (value.astype("f8") for value in inputs.values())
        total = np.zeros((a.shape[0], b.shape[1]))
        for k in range(a.shape[1]):
            total = self.short(total + a[:, k, None] * b[None, k])
        return [total.astype("f4")]

    def short(self, values):
        nearest = values.astype("f4")
        too_large = np.abs(nearest) > np.abs(values)
        return np.where(too_large, np.nextafter(nearest, np.float32(0)), nearest).astype("f8")

class Backward:
    def run(self, model, inputs):
        values, places = ReferenceEvaluator(model).run(None, inputs)
        return [values[::-1].copy(), places[::-1].copy()]

class WrongIndices(Backward):
    def run(self, model, inputs):
        values, places = super().run(model, inputs)
        return [values, places[::-1].copy()]
"""


@pytest.fixture
def in_workers(onnxopt):
    return onnxopt


@pytest.fixture
def onnxopt(onnxopt):
    """Return a function that runs backends in this process; only the oracle uses workers."""
    return lambda *arguments: onnxopt(*arguments, "--isolation", "none")


@pytest.fixture
def backend(tmp_path):
    (tmp_path / "backend.py").write_text(BACKEND)
    return lambda name: f"python:{tmp_path / 'backend.py'}:{name}"


def write(folder, model, inputs, **expected):
    write_directory(folder / "node" / "test_it", Problem(model, inputs, expected))
    return str(folder / "node")


def value_info(name, array):
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
    )


def single(folder, operator, inputs, expected, opset=22, **attributes):
    graph = helper.make_graph(
        [helper.make_node(operator, list(inputs), ["y"], **attributes)],
        "g",
        [value_info(name, array) for name, array in inputs.items()],
        [value_info("y", expected)],
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return write(folder, model, inputs, y=expected)


def softmax(folder, change=0.0, digits=9):
    x = np.array([[0.5, 1.5, -2.0]], np.float32)
    right = (np.exp(x) / np.exp(x).sum()).astype(np.float32)
    return single(folder, "Softmax", {"x": x}, np.round(right, digits) + np.float32(change))


def test_truncating_sums_fail_although_each_element_is_within_its_tolerance(
    onnxopt, tmp_path, backend
):
    random = np.random.default_rng(0)
    a, b = (np.abs(random.standard_normal(shape)).astype("f4") for shape in ((32, 48), (48, 32)))
    right = (a.astype("f8") @ b.astype("f8")).astype("f4")
    folder = single(tmp_path, "MatMul", {"a": a, "b": b}, right)
    assert onnxopt("run", folder, "-b", backend("Right")).code == 0
    result = onnxopt("run", folder, "-b", backend("Truncating"), "--no-explain")
    assert result.code == 1
    assert "rounds toward zero" in " ".join(result.out.split())
    assert onnxopt("run", folder, "-b", backend("Truncating"), "--tolerance", "onnx").code == 0


def test_documented_accuracy_of_a_device_applies_only_if_declared(onnxopt, tmp_path, backend):
    x = np.linspace(-40, 80, 60).astype("f4")
    folder = single(tmp_path, "Exp", {"x": x}, np.exp(x.astype("f8")).astype("f4"))
    codes = [
        onnxopt("run", folder, "--no-explain", "-b", backend(name) + math).code
        for name in ("VulkanExp", "PoorExp")
        for math in ("", ",math=vulkan")
    ]
    assert codes == [1, 0, 1, 1]


def gelu(folder, *numbers):
    x = np.array(numbers, np.float32)
    right = [value / 2 * erfc(-value / sqrt(2)) for value in x.astype(np.float64)]
    return single(folder, "Gelu", {"x": x}, np.float32(right))


def test_inconclusive_elements_are_counted(onnxopt, tmp_path, backend):
    folder = gelu(tmp_path, -7.0, 1.0)
    result = onnxopt("run", folder, "-b", backend("Zeros"), "-v")
    assert result.code == 0
    note = "inconclusive: the tolerance reaches half of the value in 1 of 2 elements"
    assert note in result.out
    assert "passes 1 case with inconclusive elements" in result.out


def test_case_without_a_conclusive_element_does_not_count_as_passed(onnxopt, tmp_path, backend):
    folder = gelu(tmp_path, -7.0)
    assert "1 skip" in onnxopt("run", folder, "-b", backend("Zeros")).out


def test_stash_type_allows_statistics_of_doubles_in_float32(onnxopt, tmp_path, backend):
    x = np.random.default_rng(0).standard_normal((3, 32))
    inputs = {"x": x, "scale": np.linspace(0.5, 2, 32)}
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-5))
    folder = single(tmp_path, "LayerNormalization", inputs, centred / deviation * inputs["scale"])
    assert onnxopt("run", folder, "-b", backend("Single")).code == 0
    assert onnxopt("run", folder, "-b", backend("Off"), "--no-explain").code == 1


def test_outputs_of_topk_must_correspond_in_any_order(onnxopt, tmp_path, backend):
    inputs = {"x": np.float32([3, 1, 4, 2, 5]), "k": np.array([3])}
    outputs = {"values": np.float32([5, 4, 3]), "places": np.array([4, 2, 0])}
    node = helper.make_node("TopK", list(inputs), list(outputs), sorted=0)
    infos = [[value_info(*item) for item in arrays.items()] for arrays in (inputs, outputs)]
    graph = helper.make_graph([node], "g", *infos)
    imports = [helper.make_opsetid("", 22)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    folder = write(tmp_path, model, inputs, **outputs)
    assert onnxopt("run", folder, "-b", backend("Backward")).code == 0
    result = onnxopt("run", folder, "-b", backend("WrongIndices"), "--no-explain")
    assert result.code == 1
    assert "is not where the elements of values are" in result.out


def test_error_of_1e_5_passes_only_with_the_tolerance_of_onnx(onnxopt, tmp_path, backend):
    folder = softmax(tmp_path)
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Right")).code == 0
    result = onnxopt("run", folder, *CONDITIONED, "-b", backend("Off"), "--no-explain")
    assert result.code == 1
    assert "16 times the condition estimate (conditioned)" in result.out
    assert onnxopt("run", folder, "-b", backend("Off"), "--no-explain").code == 1
    for rule in (("--tolerance", "onnx"), ("--tolerance", "derived"), ("--rtol", "1e-3")):
        assert onnxopt("run", folder, "-b", backend("Off"), *rule).code == 0


def test_stated_tolerance_overrides_the_conditioned_default(onnxopt, tmp_path, backend):
    folder = softmax(tmp_path)
    stated = json.dumps({"rtol": 1e-3, "atol": 1e-6})
    (tmp_path / "node" / "test_it" / "data.json").write_text(stated)
    assert onnxopt("run", folder, "-b", backend("Off")).code == 0
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Off"), "--no-explain").code == 1


def products(folder):
    random = np.random.default_rng(4)
    a, b = (random.standard_normal(shape).astype("f4") for shape in ((5, 40), (40, 6)))
    return single(folder, "MatMul", {"a": a, "b": b}, a @ b)


@pytest.mark.parametrize(("name", "math"), [("Tf32", "tf32"), ("Bf16", "bf16")])
def test_declared_math_widens_tolerances_of_products_and_is_reported(
    onnxopt, tmp_path, backend, name, math
):
    folder, badge = products(tmp_path), tmp_path / "badge.json"
    run = ("run", folder, "--no-explain", "--report", f"badge={badge}", "-b")
    assert onnxopt(*run, backend(name)).code == 1
    result = onnxopt(*run, f"{backend(name)},math={math}")
    assert result.code == 0, result.out
    assert f"judged as math={math}" in result.out.replace("\n", " ")
    assert json.loads(badge.read_text())["message"] == f"1 pass, math={math}"
    # Each backend is judged by its own option ``math``.
    result = onnxopt(*run, f"{backend(name)},math={math}", "-b", backend(name))
    assert result.code == 1
    assert "1 pass" in result.out


def test_declared_math_does_not_widen_tolerances_of_other_operators(onnxopt, tmp_path, backend):
    folder = softmax(tmp_path)
    for math in ("tf32", "bf16"):
        off = f"{backend('Off')},math={math}"
        assert onnxopt("run", folder, "--no-explain", "-b", off).code == 1


def test_sums_in_float16_pass_only_if_declared(onnxopt, tmp_path, backend):
    x = np.random.default_rng(1).uniform(0, 0.1, (3, 300)).astype("f4")
    inputs = {"x": x}
    total = x.astype("f8").sum(axis=1, keepdims=True).astype("f4")
    folder = single(tmp_path, "ReduceL1", inputs, total, axes=[1], opset=13)
    run = ("run", folder, "--no-explain", "-b")
    assert onnxopt(*run, backend("HalfSums")).code == 1
    assert onnxopt(*run, f"{backend('HalfSums')},math=tf32").code == 1
    assert onnxopt(*run, f"{backend('HalfSums')},math=float16-sums").code == 0


def test_model_cannot_declare_math_for_a_backend(onnxopt, tmp_path, backend):
    folder = products(tmp_path)
    path = tmp_path / "node" / "test_it" / "model.onnx"
    model = onnx.load(path)
    model.metadata_props.add(key="onnxopt.math", value="bf16")
    onnx.save(model, path)
    assert onnxopt("run", folder, "--no-explain", "-b", backend("Bf16")).code == 1


def test_unknown_math_option_is_rejected(onnxopt, tmp_path, backend):
    result = onnxopt("run", products(tmp_path), "-b", f"{backend('Right')},math=fp8")
    assert result.code == 2
    assert "it is one of tf32, bf16, float16-sums" in result.err


def test_wrong_stored_output_makes_the_case_invalid(onnxopt, tmp_path, backend):
    result = onnxopt(
        "run", softmax(tmp_path, 0.01), *CONDITIONED, "-b", backend("Right"), "--no-explain"
    )
    assert result.code == 2
    text = " ".join(result.out.replace("│", " ").split())
    assert (
        "the stored outputs differ from onnx's corrected reference in double precision by more "
        "than rounding: one of the two is wrong"
    ) in text
    (header,) = (line for line in result.out.splitlines() if "stored" in line and "abs" in line)
    assert header.split()[1:4] == ["at", "computed", "stored"]
    # The element with the largest error is exp(-2) / (exp(0.5) + exp(1.5) + exp(-2)) = 0.0215993.
    assert "0.021599231 0.03159923" in result.out


@pytest.mark.slow
def test_invalid_case_waits_for_a_slow_backend(in_workers, tmp_path, backend):
    folder = softmax(tmp_path, 0.01)
    assert in_workers("run", folder, *CONDITIONED, "-b", backend("Slow"), "--no-explain").code == 2


def test_computed_output_replaces_a_rounded_stored_output(onnxopt, tmp_path, backend):
    folder = softmax(tmp_path, digits=4)
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Right")).code == 0
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Off"), "--no-explain").code == 1


def test_slightly_wrong_stored_output_is_judged_by_the_tolerance_of_onnx(
    onnxopt, tmp_path, backend
):
    folder = softmax(tmp_path, 1e-5)
    for name in ("Right", "Off"):
        result = onnxopt("run", folder, *CONDITIONED, "-v", "-b", backend(name))
        assert result.code == 0
        assert "differs from onnx's reference by more than rounding" in result.out.replace(
            "\n", " "
        )


def test_random_output_is_judged_by_its_distribution(onnxopt, tmp_path, backend):
    x = np.full(2000, 0.5, np.float32)
    folder = single(tmp_path, "Bernoulli", {"x": x}, np.zeros_like(x))
    assert onnxopt("run", folder, *CONDITIONED, "-b", backend("Coin")).code == 0
    result = onnxopt("run", folder, *CONDITIONED, "-b", backend("Loaded"), "--no-explain")
    assert result.code == 1
    assert "has 2000 ones where 1000 are expected" in result.out


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_elements_of_dropout_may_overflow(onnxopt, tmp_path, backend, dtype):
    largest = np.finfo(dtype).max
    x = np.array([largest, -largest, np.inf, -np.inf, np.nan, 1] * 50, dtype)
    inputs = {"x": x, "ratio": np.array(0.5, np.float32), "training": np.array(True)}
    folder = single(tmp_path, "Dropout", inputs, x)
    options = (*CONDITIONED, "--no-explain", "-b")
    assert onnxopt("run", folder, *options, backend("Dropped")).code == 0
    assert onnxopt("run", folder, *options, backend("Saturated")).code == 1


def test_model_without_a_condition_estimate_is_reported_with_the_reason(onnxopt, tmp_path, backend):
    x = np.array([1, 0], np.float32)
    log = tmp_path / "log.jsonl"
    folder = single(tmp_path, "Scatter", {"x": x}, x)
    result = onnxopt("run", folder, *CONDITIONED, "-b", backend("Right"), "-v", "--log", str(log))
    assert "Scatter" in result.out
    assert json.loads(log.read_text().splitlines()[0])["versions"].keys() >= {"onnx", "numpy"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Use an empty cache, and return a function that returns the path of its only entry."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ONNXOPT_CACHE_DIR", str(folder))

    def only_entry():
        (path,) = [path for path in folder.glob("estimates-*/*") if path.name != "index.json"]
        return path

    return only_entry


def widen(path):
    """Enlarge the tolerance in a cache entry without changing its size and modification time."""
    times, data = path.stat(), path.read_bytes()
    line, _, payload = data.partition(b"\n")
    reader = ValueReader(payload)
    *head, expected, limit = map(reader.value, read_json(line)["outputs"])
    values = ValueWriter()
    outputs = [values.put(value) for value in (*head, expected, limit + 1e-3)]
    path.write_bytes(b"".join(values.message({"outputs": outputs})))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == len(data)


def sign(path):
    """Write the current size, times and hash of a cache entry into the index."""
    index = path.parent / "index.json"
    status = path.stat()
    signature = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    digest = sha256(path.read_bytes()).hexdigest()
    index.write_text(json.dumps({path.name: [*signature, digest]}))


def test_condition_estimate_is_read_from_the_cache(onnxopt, tmp_path, backend, cache):
    folder = softmax(tmp_path)
    run = ("run", folder, *CONDITIONED, "-b", backend("Off"), "--no-explain")
    assert onnxopt(*run).code == 1
    written = cache().stat().st_ctime_ns
    assert onnxopt(*run).code == 1
    assert cache().stat().st_ctime_ns == written
    (cache().parent / "index.json").write_text('{"a": [1e999, 1, 1, "x"]}')
    assert onnxopt(*run).code == 1
    # Only the user can change the index. After the test has changed the index, the changed entry is
    # used.
    widen(cache())
    sign(cache())
    assert onnxopt(*run).code == 0


def damaged(path):
    widen(path)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1])
    sign(path)


def malformed(path):
    path.write_bytes(b'{"outputs": 3}\n')
    sign(path)


def copied(path):
    widen(path)
    sign(path)
    folder = path.parent
    shutil.copytree(folder, folder.with_name("other"))
    shutil.rmtree(folder)
    folder.with_name("other").rename(folder)


def writable_by_the_group(path):
    widen(path)
    sign(path)
    path.parent.chmod(0o770)


def symbolic_link(path):
    widen(path)
    sign(path)
    path.parent.rename(path.parent.with_name("other"))
    path.parent.symlink_to("other")


def hard_link(path):
    widen(path)
    os.link(path, path.parent.parent / "second")
    sign(path)


@pytest.mark.parametrize(
    "forge",
    [damaged, truncated, malformed, copied, writable_by_the_group, symbolic_link, hard_link],
)
def test_changed_cache_entry_is_not_used(onnxopt, tmp_path, backend, cache, forge):
    folder = softmax(tmp_path)
    run = ("run", folder, *CONDITIONED, "--no-explain", "-b")
    assert onnxopt(*run, backend("Right")).code == 0
    forge(cache())
    assert onnxopt(*run, backend("Off")).code == 1


FORGING = """\
import hashlib, json, os
from pathlib import Path

cached, forged = Path({cached!r}), Path({forged!r})
if forged.exists():
    forged.replace(cached)
    status, digest = cached.stat(), hashlib.sha256(cached.read_bytes()).hexdigest()
    entry = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, digest]
    cached.with_name("index.json").write_text(json.dumps({{cached.name: entry}}))

class Off:
    def run(self, model, inputs):
        (x,) = inputs.values()
        return [x * 0 + 0.5]
"""


def test_backend_that_forges_the_cache_while_it_starts_fails(in_workers, tmp_path, backend, cache):
    run = ("run", softmax(tmp_path), *CONDITIONED, "--no-explain", "-b")
    assert in_workers(*run, backend("Right")).code == 0
    right, forged = cache().read_bytes(), tmp_path / "forged"
    widen(cache())
    shutil.copy2(cache(), forged)
    cache().write_bytes(right)
    plugin = tmp_path / "forging.py"
    plugin.write_text(FORGING.format(cached=str(cache()), forged=str(forged)))
    assert in_workers(*run, f"python:{plugin}:Off").code == 1
    assert not forged.exists()


@pytest.mark.parametrize("max_entries", [1, 2])
def test_cache_discards_the_oldest_entries(
    onnxopt, tmp_path, backend, cache, monkeypatch, max_entries
):
    monkeypatch.setattr("onnxopt_cli.core.cache._MAX_ENTRIES", max_entries)
    run = ("run", softmax(tmp_path), *CONDITIONED, "-b", backend("Right"))
    assert onnxopt(*run).code == 0
    first = cache()
    x = np.array([[0.5, 1.5, -2.5]], np.float32)
    right = (np.exp(x) / np.exp(x).sum()).astype(np.float32)
    shutil.rmtree(tmp_path / "node")
    single(tmp_path, "Softmax", {"x": x}, right)
    assert onnxopt(*run).code == 0
    entries = [path for path in first.parent.iterdir() if path.name != "index.json"]
    assert len(entries) == max_entries
    assert first.exists() == (max_entries > 1)


CORRECT_ON_ONNX_RUNTIME = (
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
    "test_attention_4d_causal_fp16",
    "test_attention_4d_fp16",
    "test_dft_irfft",
    "test_dft_irfft_opset19",
    "test_stft",
    "test_training_dropout",
    "test_gelu_default_1",
    "test_gru_seq_length",
    "test_gru_bidirectional",
    "test_dynamicquantizelinear",
    "test_affine_grid_3d",
    "test_resize_upsample_sizes_cubic",
)


def select(*names):
    return [part for name in names for part in ("-k", f"onnx-node/{name}/0")]


def test_correct_outputs_pass_although_onnx_tolerance_rejects_them(onnxopt):
    cases = select(*CORRECT_ON_ONNX_RUNTIME)
    run = ("run", "onnx-node", *cases, "-b", "onnxruntime", "--no-explain", "-q")
    result = onnxopt(*run, *CONDITIONED)
    assert (result.code, result.out.count("fail ")) == (0, 0), result.out
    result = onnxopt(*run, "--tolerance", "onnx")
    assert result.code == 1
    names = (*CORRECT_ON_ONNX_RUNTIME[:2], "test_dft_irfft", "test_training")
    assert all(name in result.out for name in names)


def test_attention_in_bfloat16_and_bernoulli_pass_on_the_reference_of_onnx(onnxopt):
    attention = select("test_attention_4d_causal_bf16", "test_attention_3d_causal_bf16_expanded")
    bernoulli = select("test_bernoulli", "test_bernoulli_double_expanded")
    cases = (*attention, *bernoulli)
    result = onnxopt("run", "onnx-node", *cases, "-b", "onnx-reference", *CONDITIONED)
    assert result.code == 0, result.out


def endless():
    """Return a model whose loop never ends."""
    boolean = TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["v", "v"], ["w"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", boolean, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("on", boolean, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
    )
    always = helper.make_tensor("always", boolean, [], [True])
    nodes = [
        helper.make_node("Constant", [], ["always"], value=always),
        helper.make_node("Loop", ["", "always", "x"], ["y"], body=body),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [1])], [info("y", TensorProto.FLOAT, [1])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.slow
def test_condition_estimate_of_an_endless_model_is_abandoned(onnxopt, tmp_path):
    x = np.ones(1, np.float32)
    (tmp_path / "quick.py").write_text(
        "class Quick:\n    def run(self, model, inputs):\n        return list(inputs.values())\n"
    )
    folder = write(tmp_path, endless(), {"x": x}, y=x)
    quick = f"python:{tmp_path / 'quick.py'}:Quick"
    result = onnxopt("run", folder, *CONDITIONED, "-b", quick, "-v", "--timeout", "2")
    assert (
        "runs more than 20000 nodes" in result.out
        or "condition estimate ends in timeout" in result.out
    )


@pytest.mark.usefixtures("cache")
def test_model_whose_estimate_takes_too_long_is_skipped_with_advice():
    x = np.ones(1, np.float32)
    response = Response(failure=Outcome.TIMEOUT, message="the worker did not respond within 60 s")
    oracle = ReferenceOracle(Judging(), workers=lambda: lambda _model, _inputs: lambda: response)
    expected = oracle.expected(Problem(endless(), {"x": x}, stored=None))()
    assert expected.unknown.endswith(
        "60 s; allow more time with --timeout, or store the outputs in a test directory"
    )


def test_cases_judged_by_the_tolerance_of_onnx_are_counted_with_reasons(onnxopt, tmp_path, backend):
    folder = softmax(tmp_path, change=1e-5)
    reports = {name: tmp_path / f"report.{name}" for name in ("markdown", "junit", "html")}
    options = [word for name, path in reports.items() for word in ("--report", f"{name}={path}")]
    result = onnxopt("run", folder, "-b", backend("Right"), *options)
    assert result.code == 0
    for text in (result.out, *(path.read_text() for path in reports.values())):
        words = " ".join(text.replace("&#39;", "'").split())
        assert "1 case judged by ONNX's tolerance: the stored output differs from onnx's" in words
    plain = softmax(tmp_path / "plain")
    assert "judged by ONNX's" not in onnxopt("run", plain, "-b", backend("Right")).out


def cast_to_half(folder):
    """Write a case whose output is a product in float16, and return its folder."""
    values = {"a": np.array([1.5, 2.25], np.float16), "b": np.array([3.0, 1.125], np.float16)}
    return single(folder, "Mul", values, values["a"] * values["b"])


def rounded_down(folder):
    return single(folder, "Floor", {"x": np.float32([1.5, -0.5])}, np.float32([1, -1]))


@pytest.mark.parametrize(
    ("write_case", "rule"),
    [
        (softmax, "16 times the condition estimate (conditioned)"),
        (cast_to_half, "4 times the condition estimate for computation in float32 (conditioned)"),
        (rounded_down, "allowed: exact (conditioned)"),
    ],
)
def test_tolerance_of_an_output_is_printed(onnxopt, tmp_path, backend, write_case, rule):
    folder = write_case(tmp_path)
    result = onnxopt("run", folder, *CONDITIONED, "-b", backend("FarOff"), "--no-explain")
    assert result.code == 1
    text = " ".join(result.out.replace("│", "").split())
    assert rule in text
    assert ("error / tolerance" in text) == ("times" in rule)


def test_no_distance_in_ulp_is_printed_for_nan(onnxopt, tmp_path, backend):
    result = onnxopt("run", softmax(tmp_path), "-b", backend("NaNs"), "--no-explain")
    assert result.code == 1
    assert "max abs inf, rel inf" in result.out
    assert "0 ulp" not in result.out


NEGATION = helper.make_model(
    helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        *([helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])] for name in "xy"),
    )
)
NEGATED = np.float32([-2.0, -3.5])


def negation(name):
    problem = Problem(NEGATION, {"x": -NEGATED}, {"y": NEGATED})
    return Case(name, Location(Path(name)), lambda: problem)


class PreparedBackend:
    """A backend whose responses to the cases are given as functions, in order."""

    name, specification, ahead = "neg", parse_specification("onnx-reference"), 4

    def __init__(self, *responses):
        self._responses = iter(responses)

    def submit(self, _request):
        return next(self._responses)


def test_case_is_not_run_if_its_estimate_was_interrupted():
    interruption = Interruption()

    class Estimates:
        def expected(self, *_):
            return self.interrupted

        def interrupted(self):
            interruption.signal = signal.SIGINT
            return Expected({"y": NEGATED}, {"y": ONNX_DEFAULT})

    backend = PreparedBackend(lambda: Response([NEGATED]))
    plan = Plan((), [backend], interruption=interruption, oracle=Estimates())
    (result,) = run_case(plan, negation("first"))
    assert (result.outcome, result.message) == (Outcome.NOT_RUN, "interrupted")


def test_finished_cases_are_judged_after_an_interruption():
    interruption = Interruption()

    def interrupted():
        interruption.signal = signal.SIGINT
        return "interrupted"

    responses = interrupted, lambda: Response([NEGATED]), lambda: "interrupted"
    backend = PreparedBackend(*responses)
    cases = [negation(name) for name in ("running", "finished", "queued")]
    rows = run(Plan(cases, [backend], interruption=interruption))
    assert [(result.case, result.outcome.value) for (result,) in rows] == [
        ("running", "not-run"),
        ("finished", "pass"),
        ("queued", "not-run"),
    ]
