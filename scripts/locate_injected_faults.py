"""Inject faults into single nodes of models, and count how often ``onnxopt locate`` names them.

    python scripts/locate_injected_faults.py MODEL.onnx... [--seed N] [--combined N] [--inputs PATH]

Each fault changes one node inside the backend, which runs onnx's reference: another attribute,
rounding, operand order, and so on. The node is chosen at random among those that the fault applies
to and whose outputs it changes by more than rounding at the inputs of the model; if it changes
none, it is counted as invisible. ``--combined`` injects faults that exist only in a chain of nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

BACKEND = """
import json
import os

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

FAULT = json.loads(os.environ["INJECTED_FAULT"])


def with_attribute(name, change, default):
    def inject(node):
        for item in node.attribute:
            if item.name == name:
                value = change(helper.get_attribute_value(item))
                item.CopyFrom(helper.make_attribute(name, value))
                return
        node.attribute.append(helper.make_attribute(name, change(default)))
    return inject


def as_operator(name):
    def inject(node):
        node.op_type = name
    return inject


def swapped(node):
    node.input[0], node.input[1] = node.input[1], node.input[0]


def without_bias(node):
    del node.input[2:]


NODE_FAULTS = {
    "epsilon": with_attribute("epsilon", lambda e: e * 100, 1e-5),
    "hard_sigmoid_alpha": with_attribute("alpha", lambda a: a * 1.01, 0.2),
    "leaky_alpha": with_attribute("alpha", lambda a: a * 1.1, 0.01),
    "softmax_axis": with_attribute("axis", lambda a: 0 if a else -1, -1),
    "average_counts_padding": with_attribute("count_include_pad", lambda c: 1 - c, 0),
    "relu_is_abs": as_operator("Abs"),
    "sub_swapped": swapped,
    "div_swapped": swapped,
    "add_is_sub": as_operator("Sub"),
    "mul_is_add": as_operator("Add"),
    "sigmoid_is_tanh": as_operator("Tanh"),
    "missing_bias": without_bias,
    "max_is_min": as_operator("Min"),
    "reduce_mean_is_sum": as_operator("ReduceSum"),
}


def half(y):
    return y.astype(np.float16).astype(y.dtype)


def last_wrong(y):
    y = np.array(y)
    y.reshape(-1)[-1:] *= 1.001
    return y


OUTPUT_FAULTS = {
    "float16_result": half,
    "last_element": last_wrong,
    "scaled": lambda y: y * y.dtype.type(1 + 1e-4),
    "negative_zeroed": lambda y: np.where(y < 0, 0, y).astype(y.dtype),
    "transposed": lambda y: np.ascontiguousarray(y[..., ::-1]),
    "stale_first_row": lambda y: np.concatenate([np.zeros_like(y[:1]), y[1:]]),
}


class Faulty:
    def run(self, model, inputs):
        nodes = [n for n in model.graph.node if n.output[0] in FAULT["outputs"]]
        names = [n.output[0] for n in nodes]
        if names != FAULT["outputs"]:
            return ReferenceEvaluator(model).run(None, inputs)
        kind = FAULT["kind"]
        if kind in NODE_FAULTS:
            NODE_FAULTS[kind](nodes[-1])
            return ReferenceEvaluator(model).run(None, inputs)
        # Replace the output by one that is changed.
        name = nodes[-1].output[0]
        nodes[-1].output[0] = name + "_right"
        original = ReferenceEvaluator

        class Changed(original):
            pass

        from onnx.reference.op_run import OpRun

        class Fault(OpRun):
            op_domain = "fault"

            def _run(self, y):
                return (OUTPUT_FAULTS[kind](y),)

        place = list(model.graph.node).index(nodes[-1]) + 1
        after = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
        after.insert(place, helper.make_node("Fault", [name + "_right"], [name], domain="fault"))
        del model.graph.node[:]
        model.graph.node.extend(after)
        model.opset_import.append(helper.make_opsetid("fault", 1))
        return Changed(model, new_ops=[Fault]).run(None, inputs)
"""

OPERATORS = {
    "epsilon": {"BatchNormalization", "LayerNormalization", "InstanceNormalization"},
    "hard_sigmoid_alpha": {"HardSigmoid"},
    "leaky_alpha": {"LeakyRelu"},
    "softmax_axis": {"Softmax"},
    "average_counts_padding": {"AveragePool"},
    "relu_is_abs": {"Relu"},
    "sub_swapped": {"Sub"},
    "div_swapped": {"Div"},
    "add_is_sub": {"Add"},
    "mul_is_add": {"Mul"},
    "sigmoid_is_tanh": {"Sigmoid"},
    "missing_bias": {"Conv", "Gemm", "ConvTranspose"},
    "max_is_min": {"Max"},
    "reduce_mean_is_sum": {"ReduceMean"},
}
# Of outputs: of any node that computes floats.
OUTPUT_KINDS = (
    "float16_result", "last_element", "scaled", "negative_zeroed", "transposed", "stale_first_row"
)  # fmt: skip
COMPUTING = {
    "Add", "Sub", "Mul", "Div", "Conv", "ConvTranspose", "MatMul", "Gemm", "Relu", "Sigmoid",
    "HardSigmoid", "Tanh", "Softmax", "GlobalAveragePool", "AveragePool", "BatchNormalization",
    "LayerNormalization", "ReduceMean", "Sqrt", "Exp", "Pow", "Erf", "LeakyRelu", "Clip",
}  # fmt: skip


def candidates(model: onnx.ModelProto, kind: str) -> list[onnx.NodeProto]:
    """Return the nodes of a graph to which a fault applies."""
    constants = {tensor.name for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if all(name in constants for name in node.input) or not node.input:
            continue
        if kind in OUTPUT_KINDS:
            nodes += [node] * (node.op_type in COMPUTING)
        elif node.op_type in OPERATORS[kind]:
            has_bias = kind != "missing_bias" or len(node.input) > 2  # noqa: PLR2004
            nodes += [node] * has_bias
    return nodes


def chains(model: onnx.ModelProto, length: int) -> list[list[onnx.NodeProto]]:
    """Return the chains of computing nodes of a length, each read by the next alone."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    chains_found = []
    for first in model.graph.node:
        chain = [first]
        while len(chain) < length:
            after = readers.get(chain[-1].output[0], [])
            if len(after) != 1 or chain[-1].op_type not in COMPUTING:
                break
            chain.append(after[0])
        if len(chain) == length and chain[-1].op_type in COMPUTING:
            chains_found.append(chain)
    return chains_found


def located(
    path: Path, arguments: list[str], fault: Mapping[str, object], folder: Path
) -> dict[str, Any]:
    """Run ``onnxopt locate`` on a backend with a fault, and return its result."""
    (folder / "faulty.py").write_text(BACKEND)
    environment = os.environ | {"INJECTED_FAULT": json.dumps(fault)}
    command = [sys.executable, "-m", "onnxopt_cli", "locate", str(path.resolve()), *arguments]
    command += ["-b", "python:faulty.py:Faulty", "--json", "found.json"]
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    file = folder / "found.json"
    if not file.exists():
        raise RuntimeError(ran.stderr)
    found: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return found


def main() -> None:
    """Inject the faults and print a line for each, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--combined", type=int, default=0, metavar="N")
    parser.add_argument("--kinds", nargs="*", default=[*OPERATORS, *OUTPUT_KINDS])
    parser.add_argument("--locate", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    choose = random.Random(options.seed).choice  # noqa: S311 - not for cryptography
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for path in options.models:
            model = onnx.load(path)
            faults = []
            if options.combined:
                for number in range(options.combined):
                    choice = chains(model, 2 + number % 4)
                    if choice:
                        faults.append(("scaled", choose(choice)))
            else:
                for kind in options.kinds:
                    nodes = candidates(model, kind)
                    if nodes:
                        faults.append((kind, [choose(nodes)]))
            for kind, nodes in faults:
                fault = {"kind": kind, "outputs": [node.output[0] for node in nodes]}
                report = located(path, options.locate, fault, Path(name))
                names = [node.name or node.output[0] for node in nodes]
                wrong = [item["node"] for item in report["wrong"]]
                right = (
                    report["subgraph"] == names and not wrong
                    if options.combined
                    else (wrong == names and not report["subgraph"])
                )
                blamed = wrong or report["subgraph"]
                outcome = "right" if right else "other" if blamed else "invisible"
                counts[outcome] += 1
                print(outcome, path.stem, kind, names, blamed, report["not_judged"][:2], flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
