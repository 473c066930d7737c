"""Measure the speed of onnxopt relative to other programs, and check the documented limits.

Run this script in an environment with onnxopt[dev]:

    python scripts/benchmark.py [PATTERN]

The script prints a table. If PATTERN is given, only rows whose names match this regular expression
are measured. For each row, two commands run alternately, and their whole processes are timed. The
row states the median of the ratios of consecutive runs, which is robust on a noisy machine. The
script exits with 1 if a ratio exceeds its limit.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable
ONNXOPT = [PYTHON, "-m", "onnxopt_cli"]
# With these options, onnxopt works like onnx's runner: it uses ONNX's tolerance and does not
# explain failures.
WITHOUT_EXPLANATIONS = ["-q", "--no-explain", "-b", "onnxruntime"]
LIKE_ONNX_RUNNER = [*WITHOUT_EXPLANATIONS, "--tolerance", "onnx"]
# If no other program does the same as a command, the command is compared with additions of small
# NumPy arrays.
ADD = "import numpy\nx = numpy.ones(4)\nfor _ in range(1_000_000):\n    x = x + 1"
ADDITIONS = [PYTHON, "-c", ADD]

RUNNER = """
import onnxruntime
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import Runner

class OnnxRuntime(Backend):
    @classmethod
    def prepare(cls, model, device="CPU", **_):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        prepared = BackendRep()
        prepared.run = lambda inputs, **_: session.run(None, dict(zip(names, inputs)))
        return prepared

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"

globals().update(Runner(OnnxRuntime, __name__).test_cases)
"""

# Commands on large tensors are compared with this plain script. The script defines AdmmUpdate,
# because onnx's reference lacks this operator.
LARGE_ELEMENTS = 20_000_000
LARGE_LIMITS = {"Adam": 2.0, "Adagrad": 3.0, "Momentum": 3.0, "AdmmUpdate": 3.0}
ADMM_UPDATE = """
import sys, numpy as np, onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
class AdmmUpdate(OpRun):
    op_domain = "onnxopt.pruning"
    def _run(self, W, Z, U, percent=None):
        V = W + U
        threshold = np.percentile(np.abs(V), percent[0])
        Z_new = np.where(np.abs(V) < threshold, np.float32(0), V)
        return Z_new, U + W - Z_new
def compute(model, inputs):
    return ReferenceEvaluator(model, new_ops=[AdmmUpdate]).run(None, inputs)
"""
MAKE_LARGE = """
folder, operator, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
tensors, returned, attributes = {
    "Adam": ("XGVH", "XVH", dict(alpha=0.9, beta=0.99, epsilon=1e-2)),
    "Adagrad": ("XGH", "XH", dict(epsilon=1e-2)),
    "Momentum": ("XGV", "XV",
                 dict(alpha=0.9, beta=0.1, norm_coefficient=1e-2, mode="nesterov")),
    "AdmmUpdate": ("WZU", "ZU", dict(percent=[80.0])),
}[operator]
random = np.random.default_rng(1)
training = operator != "AdmmUpdate"
domain = "ai.onnx.preview.training" if training else AdmmUpdate.op_domain
values = {"R": np.float32([0.1]), "T": np.int64([3])} if training else {}
values |= {name: random.standard_normal(count, dtype=np.float32) for name in tensors}
if "H" in values:
    np.abs(values["H"], out=values["H"])
node = helper.make_node(operator, list(values), [f"{name}_new" for name in returned],
                        domain=domain, **attributes)
def info(name, array):
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
graph = helper.make_graph([node], "large", [info(*item) for item in values.items()],
                          [info(name, values[tensors[0]]) for name in node.output])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, 1)], ir_version=8)
onnx.save(model, f"{folder}/model.onnx")
# onnx's reference returns a double for X_new.
outputs = {name: np.float32(array) for name, array in zip(node.output, compute(model, values))}
for kind, arrays in (("input", values), ("output", outputs)):
    for index, (name, array) in enumerate(arrays.items()):
        onnx.save_tensor(numpy_helper.from_array(array, name),
                         f"{folder}/test_data_set_0/{kind}_{index}.pb")
"""
COMPARE_LARGE = """
folder, runner, path = sys.argv[1:]
model = onnx.load(path)
def load(kind, index):
    return numpy_helper.to_array(
        onnx.load_tensor(f"{folder}/test_data_set_0/{kind}_{index}.pb"))
inputs = {value.name: load("input", index) for index, value in enumerate(model.graph.input)}
expected = [load("output", index) for index in range(len(model.graph.output))]
if runner == "reference":
    outputs = compute(model, inputs)
else:
    import onnxruntime
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, inputs)
for output, expected_output in zip(outputs, expected):
    np.testing.assert_allclose(output, expected_output, rtol=1e-3, atol=1e-7)
"""

# Many small cases, each with three tensors of at most 16 elements.
MANY_CASES, CASES_A_FILE = 100_000, 500
MAKE_MANY = """
import random, sys
from pathlib import Path
folder, count, each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
folder.mkdir(parents=True, exist_ok=True)
draw = random.Random(1)
def tensor(size, low=-3):
    return "[" + ", ".join(f"{draw.uniform(low, 3):.4g}" for _ in range(size)) + "]"
def adagrad():
    return f"norm_coefficient: {draw.uniform(0, 0.01):.3g}, epsilon: 0.01, decay_factor: 0.1"
def momentum():
    return (f"alpha: {draw.uniform(0.5, 1):.3g}, beta: {draw.uniform(0.5, 1):.3g}, "
            f"norm_coefficient: 0.001, mode: {draw.choice(['standard', 'nesterov'])}")
for number in range(count // each):
    kinds = ("Adagrad", adagrad, "H"), ("Momentum", momentum, "V")
    operator, attributes, state = kinds[number % 2]
    lines = ["onnxopt: 1", "suite: many", f"operator: {operator}", "cases:"]
    for case in range(each):
        size = draw.randint(1, 16)
        lines += [f"  - name: case_{case}", f"    attributes: {{{attributes()}}}",
                  f"    inputs: {{R: {draw.uniform(0.01, 0.2):.3g}, T: {draw.randint(0, 50)}, "
                  f"X: {tensor(size)}, G: {tensor(size)}, {state}: {tensor(size, 0)}}}"]
    (folder / f"file_{number:04}.yaml").write_text("\\n".join(lines) + "\\n")
"""


@dataclass(frozen=True)
class Comparison:
    """Two commands, and the largest allowed ratio of their times."""

    name: str
    command: list[str]
    baseline: list[str]
    limit: float
    runs: int = 5
    prepare: Callable[[], None] = lambda: None


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the wall time of a process, which must exit with 0 or 1."""
    began = time.perf_counter()
    completed = subprocess.run(
        command, check=False, cwd=ROOT, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if completed.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)[:200]} exits with {completed.returncode}")
    return time.perf_counter() - began


def measure(comparison: Comparison, environment: dict[str, str]) -> float:
    """Print a row and return the median ratio."""
    pairs = []
    for run in range(-1, comparison.runs):
        comparison.prepare()
        pair = seconds(comparison.command, environment), seconds(comparison.baseline, environment)
        if run >= 0:  # the first pair fills the file system's cache
            pairs.append(pair)
    ratio = statistics.median(ours / baseline for ours, baseline in pairs)
    ours, baseline = (statistics.median(times) for times in zip(*pairs, strict=True))
    verdict = "ok" if ratio <= comparison.limit else "OVER"
    print(
        f"{comparison.name:<50} {ours:7.2f} s {baseline:7.2f} s {ratio:6.2f} "
        f"(at most {comparison.limit:g}) {verdict}",
        flush=True,
    )
    return ratio


def run_commands(commands: Iterable[list[str]], environment: dict[str, str]) -> None:
    """Run the commands that write the files of a comparison."""
    for command in commands:
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def command_comparisons(folder: Path) -> list[Comparison]:
    """Return the comparisons of commands that need no prepared files."""
    fuzz = [*ONNXOPT, "fuzz", "-o", str(folder / "fuzz")]
    return [
        Comparison("onnxopt --help | import click",
                   [*ONNXOPT, "--help"], [PYTHON, "-c", "import click"], 2.5, 15),
        Comparison("onnxopt run cases/spec | import onnx.reference",
                   [*ONNXOPT, "run", "cases/spec"],
                   [PYTHON, "-c", "import onnx.reference"], 2.0, 15),
        Comparison("run conformance on numpy | 10^6 additions",
                   [*ONNXOPT, "run", "cases/conformance", "-q"], ADDITIONS, 2.5, 5),
        Comparison("audit of all operators | 10^6 additions",
                   [*ONNXOPT, "audit", "cases/", "-j", "2"], ADDITIONS, 120.0, 1),
        # The times of the following commands include the start of worker processes.
        Comparison("fuzz numpy with 2000 examples | 10^6 additions",
                   [*fuzz, "-b", "numpy", "--examples", "2000"], ADDITIONS, 25.0, 1),
        Comparison("fuzz ONNX Runtime with 1000 examples | 10^6 additions",
                   [*fuzz, "-b", "onnxruntime", "--examples", "1000", "--seed", "5"],
                   ADDITIONS, 25.0, 1),
    ]  # fmt: skip


def node_comparisons(folder: Path, environment: dict[str, str]) -> list[Comparison]:
    """Return the comparisons on onnx's node cases."""
    tests = folder / "test_onnx.py"
    tests.write_text(RUNNER)
    runner = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull,
              f"--rootdir={folder}", "-k", "Node", str(tests)]  # fmt: skip
    nodes = str(folder / "nodes")
    run_commands([[*ONNXOPT, "generate", "onnx-node", "-o", nodes]], environment)
    cache = Path(environment["ONNXOPT_CACHE_DIR"])

    def clear_cache() -> None:
        shutil.rmtree(cache, ignore_errors=True)

    def clear_expected_results() -> None:
        for path in cache.iterdir():
            if path.is_dir() and not path.name.startswith("onnx-node-"):
                shutil.rmtree(path)

    return [
        Comparison("node cases from directories | onnx's runner",
                   [*ONNXOPT, "run", nodes, *LIKE_ONNX_RUNNER], runner, 0.5, 3),
        Comparison("onnx-node, first time | onnx's runner",
                   [*ONNXOPT, "run", "onnx-node", *LIKE_ONNX_RUNNER], runner, 1.0, 3, clear_cache),
        Comparison("onnx-node, second time | from directories",
                   [*ONNXOPT, "run", "onnx-node", *LIKE_ONNX_RUNNER],
                   [*ONNXOPT, "run", nodes, *LIKE_ONNX_RUNNER], 1.1, 3),
        Comparison("onnx-node, conditioned, first time | ONNX's tolerance",
                   [*ONNXOPT, "run", "onnx-node", *WITHOUT_EXPLANATIONS, "-j", "2"],
                   [*ONNXOPT, "run", "onnx-node", *LIKE_ONNX_RUNNER, "-j", "2"],
                   4.0, 3, clear_expected_results),
    ]  # fmt: skip


def large_comparisons(folder: Path, environment: dict[str, str]) -> list[Comparison]:
    """Return the comparisons on cases with large tensors."""
    cases = {name: str(folder / "large" / f"test_{name}") for name in LARGE_LIMITS}
    models = {name: f"{case}/model.onnx" for name, case in cases.items()}
    lowered = str(folder / "lowered.onnx")
    for operator, case in cases.items():
        Path(case, "test_data_set_0").mkdir(parents=True)
        arguments = [case, operator, str(LARGE_ELEMENTS)]
        run_commands([[PYTHON, "-c", ADMM_UPDATE + MAKE_LARGE, *arguments]], environment)
    run_commands([[*ONNXOPT, "lower", models["Adam"], "-o", lowered]], environment)
    plain = [PYTHON, "-c", ADMM_UPDATE + COMPARE_LARGE]
    return [
        *(Comparison(f"{name} of 2e7 floats, numpy | reference, assert_allclose",
                     [*ONNXOPT, "run", cases[name], "-q"],
                     [*plain, cases[name], "reference", models[name]], limit, 3)
          for name, limit in LARGE_LIMITS.items()),
        Comparison("Adam of 2e7 floats, ONNX Runtime | session, assert_allclose",
                   [*ONNXOPT, "run", cases["Adam"], *LIKE_ONNX_RUNNER],
                   [*plain, cases["Adam"], "session", lowered], 2.0, 3),
    ]  # fmt: skip


def many_comparisons(folder: Path, environment: dict[str, str]) -> list[Comparison]:
    """Return the comparisons on many small cases."""
    many = str(folder / "many")
    shards = [str(folder / f"shard_{index}.jsonl") for index in range(1, 5)]
    merged = str(folder / "merged.jsonl")
    merge = [*ONNXOPT, "report", "merge", *shards, "-o", merged]
    reports = [f"--report=junit={folder / 'many.xml'}", f"--report=html={folder / 'many.html'}"]
    run_commands([[PYTHON, "-c", MAKE_MANY, many, str(MANY_CASES), str(CASES_A_FILE)]], environment)
    for index, shard in enumerate(shards, 1):
        run_shard = [*ONNXOPT, "run", many, "-q", "--shard", f"{index}/4", "--log", shard]
        run_commands([run_shard], environment)
    run_commands([merge], environment)
    return [
        Comparison("run of 100,000 small cases on numpy | 10^6 additions",
                   [*ONNXOPT, "run", many, "-q"], ADDITIONS, 105.0, 1),
        Comparison("merge of four shards of 100,000 small cases | 10^6 additions",
                   merge, ADDITIONS, 25.0, 1),
        Comparison("JUnit and HTML of 100,000 small cases | 10^6 additions",
                   [*ONNXOPT, "report", "render", merged, *reports], ADDITIONS, 30.0, 1),
    ]  # fmt: skip


def main() -> int:
    """Measure the selected rows; return the exit code."""
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
          f"Python {platform.python_version()}")  # fmt: skip
    print(f"{'':<50} {'onnxopt':>9} {'baseline':>9} {'ratio':>6}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "ONNXOPT_CACHE_DIR": str(folder / "cache")}
        # The measured commands may store compiled modules, as in an ordinary installation.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        comparisons = [
            *command_comparisons(folder),
            *node_comparisons(folder, environment),
            *large_comparisons(folder, environment),
            *many_comparisons(folder, environment),
        ]
        pattern = "".join(sys.argv[1:])
        selected = [comparison for comparison in comparisons if re.search(pattern, comparison.name)]
        ratios = [measure(comparison, environment) for comparison in selected]
    return int(any(
        ratio > comparison.limit for ratio, comparison in zip(ratios, selected, strict=True)
    ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
