"""Measure the time and memory that the oracle takes for whole models.

    python scripts/measure_oracle.py [--locate] [--only TEXT] [FOLDER]

The models are a chain of 2,000 nodes, and the public models of ``locate_public_models.py``. The
public models are downloaded into FOLDER, which is a temporary folder by default. For each model, a
separate process prints these figures:

- the processor time of a condition estimate. The unit is the time of one run of the unmodified
  ``onnx.reference.ReferenceEvaluator``, including its construction;
- in the same unit, the processor time of the reference's part of ``onnxopt locate`` if nothing is
  wrong. The reference computes the values of all nodes, an estimate of each node, an estimate of
  the model, and the contributions of the nodes;
- for the chain, also in this unit, the processor time that NumPy alone takes for the matrix
  products of the eight perturbed runs;
- the memory that the estimate takes in addition to the loaded model (Linux only);
- for comparison, the size of the model, plus twice the inputs and outputs of its largest node, plus
  300 MB.

With ``--locate``, the command ``onnxopt locate`` also runs on each public model. Its wall time, its
processor time and the memory of its largest process are printed. One BLAS thread is used.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import onnx
from locate_public_models import models, options
from onnx import helper, numpy_helper

from onnxopt_cli.config.run_config import ModelInputs
from onnxopt_cli.oracle.rounding.perturbations import RUNS

CHAIN_NODES, CHAIN_ROWS, CHAIN_WIDTH = 2000, 64, 256
REFERENCE_RUNS = 3
FIXED_BYTES = 300 << 20


def main() -> None:
    """Measure all models, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--locate", action="store_true", help="also run onnxopt locate")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="run only models with TEXT in the name"
    )
    arguments = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
          f"Python {platform.python_version()}, onnx {onnx.__version__}")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        public_models = models(folder)
        chain = Path(temporary, "chain.onnx")
        onnx.save(chain_model(), chain)
        for path in [*public_models, chain]:
            if arguments.only not in path.stem:
                continue
            words = options(path, folder)
            # Each model is measured in its own process, because the peak memory of a process never
            # decreases.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, context) as pool:
                print(f"{path.stem}: {pool.submit(measured, path, words).result()}", flush=True)
            if path is chain:
                print(f"{path.stem}: {products_alone(onnx.load(path))}", flush=True)
            elif arguments.locate:
                print(f"{path.stem}: {located(path, words, folder)}", flush=True)


def chain_model() -> onnx.ModelProto:
    """Return a model of residual layers: MatMul, Add, Relu and Add."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(CHAIN_NODES // 4):
        scale = 0.1 / math.sqrt(CHAIN_WIDTH)
        for name, sizes in (("w", [CHAIN_WIDTH, CHAIN_WIDTH]), ("b", [CHAIN_WIDTH])):
            array = (scale * random.standard_normal(sizes)).astype(np.float32)
            weights.append(numpy_helper.from_array(array, f"{name}{layer}"))
        names = [f"x{layer}", f"product{layer}", f"sum{layer}", f"relu{layer}", f"x{layer + 1}"]
        nodes += [
            helper.make_node("MatMul", [names[0], f"w{layer}"], [names[1]]),
            helper.make_node("Add", [names[1], f"b{layer}"], [names[2]]),
            helper.make_node("Relu", [names[2]], [names[3]]),
            helper.make_node("Add", [names[3], names[0]], [names[4]]),
        ]
    shape = [CHAIN_ROWS, CHAIN_WIDTH]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name in ("x0", f"x{CHAIN_NODES // 4}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measured(path: Path, words: Sequence[str]) -> str:
    """Return a text with the figures of a model."""
    # Only the measuring process imports these modules. Its parent process does not need them.
    from onnx.reference import ReferenceEvaluator

    from onnxopt_cli.oracle.estimate.condition_estimate import all_readings
    from onnxopt_cli.suites.collect import collect

    pairs = list(zip(words[::2], words[1::2], strict=True))
    chosen = ModelInputs(
        dims=tuple(value for name, value in pairs if name == "--dim"),
        inputs=next((Path(value) for name, value in pairs if name == "--inputs"), None),
    )
    (case,) = collect([str(path)], model_inputs=chosen).cases
    problem = case.load()
    model, inputs = problem.model, problem.inputs
    # Reset the peak memory of this process, because loading the model has raised it (Linux only).
    Path("/proc/self/clear_refs").write_text("5")
    before = own_bytes("VmRSS")
    # The first estimate also loads the operators of the reference.
    first = seconds(lambda: all_readings(model, inputs))
    memory = own_bytes("VmHWM") - before
    estimate = min(first, seconds(lambda: all_readings(model, inputs)))
    compared = model.ByteSize() + 2 * largest_node_bytes(model, inputs) + FIXED_BYTES
    try:
        reference = min(
            seconds(lambda: ReferenceEvaluator(model).run(None, dict(inputs)))
            for _ in range(REFERENCE_RUNS)
        )
    except Exception as error:  # noqa: BLE001 - any operator of the reference may fail
        return f"estimate {estimate:.2f} s; onnx's reference does not run the model: {error!r:.80}"
    part = seconds(lambda: examine(model, inputs)) + estimate
    return (
        f"reference {reference:.2f} s, estimate {estimate:.2f} s = {estimate / reference:.1f} runs,"
        f" locate's part {part:.2f} s = {part / reference:.1f} runs,"
        f" memory {memory >> 20} MB (compare {compared >> 20} MB)"
    )


def products_alone(model: onnx.ModelProto) -> str:
    """Return a text with the processor time of the matrix products of the perturbed runs.

    NumPy multiplies by the weights of :func:`chain_model`, as an estimate does. The first run
    multiplies in double. For each other run, its difference from the first run is multiplied in
    single precision.
    """
    from onnx.reference import ReferenceEvaluator

    random = np.random.default_rng(0)
    x = random.standard_normal([CHAIN_ROWS, CHAIN_WIDTH]).astype(np.float32)
    inputs = {model.graph.input[0].name: x}
    arrays = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    weights = [array for array in arrays if array.ndim > 1]
    wide_weights = [array.astype(np.float64) for array in weights]
    first, differences = x.astype(np.float64), np.tile(x, (RUNS - 1, 1))

    def products() -> None:
        for weight, wide_weight in zip(weights, wide_weights, strict=True):
            np.matmul(first, wide_weight)
            np.matmul(differences, weight)

    reference, perturbed = (
        min(seconds(action) for _ in range(REFERENCE_RUNS))
        for action in (lambda: ReferenceEvaluator(model).run(None, inputs), products)
    )
    return (
        f"NumPy alone takes {perturbed / reference:.1f} runs for the products of {RUNS} perturbed "
        "runs"
    )


def seconds(action: Callable[[], object]) -> float:
    """Return the processor time that a function takes."""
    began = process_time()
    action()
    return process_time() - began


def own_bytes(name: str) -> int:
    """Return the memory of this process (``VmRSS``) or its peak (``VmHWM``) in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


def peak_bytes(usage: resource.struct_rusage) -> int:
    """Return the peak memory of a process in bytes."""
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return usage.ru_maxrss * unit


def largest_node_bytes(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> int:
    """Return the bytes of the inputs and outputs of the largest node."""
    from onnxopt_cli.oracle.evaluator import ReferenceModel
    from onnxopt_cli.oracle.patching import corrected

    largest = 0

    def visit(_node: Any, compute: Any, operands: Sequence[Any], _index: int) -> Any:
        nonlocal largest
        outputs = compute(*operands)
        arrays = [value for value in (*operands, *outputs) if isinstance(value, np.ndarray)]
        largest = max(largest, sum(array.nbytes for array in arrays))
        return outputs

    with corrected():
        ReferenceModel(model).run(inputs, visit)
    return largest


def examine(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> None:
    """Compute the reference's part of ``onnxopt locate``, except the estimate of the model."""
    from onnxopt_cli.analysis.model_walk import ModelWalk, ValueStore
    from onnxopt_cli.oracle.estimate.condition_estimate import all_readings
    from onnxopt_cli.oracle.estimate.contributions import node_contributions
    from onnxopt_cli.oracle.estimate.reference_values import reference_values, values_of_nodes

    with ValueStore(FIXED_BYTES) as store:
        walk = ModelWalk(
            model, store, reference_values, values_of_nodes, lambda *_: "no backend", {}
        )
        for _ in walk.walk(inputs):
            pass
        # A search that finds nothing wrong does not judge an If whose branch has been searched.
        searched = walk.searched
        for run in walk.runs:
            if not run.missing and run not in searched:
                all_readings(*walk.model_of([run]))
    node_contributions(model, inputs)


def located(path: Path, words: Sequence[str], folder: Path) -> str:
    """Return a text with the time and memory of ``onnxopt locate`` on a model."""
    command = [sys.executable, "-m", "onnxopt_cli", "locate", str(path), *words]
    command += ["-b", "onnxruntime", "-o", str(folder / "located")]
    environment = {**os.environ, "ONNXOPT_CACHE_DIR": str(folder / "cache")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    code = subprocess.run(command, env=environment, capture_output=True, check=False).returncode
    after, elapsed = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter() - began
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (
        f"locate exits with {code} after {elapsed:.0f} s, processor time {processor:.0f} s,"
        f" largest process of this and earlier models {peak_bytes(after) >> 20} MB"
    )


if __name__ == "__main__":
    main()
