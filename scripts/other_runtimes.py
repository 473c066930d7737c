"""Run suites on runtimes that others wrote, each in an environment of its own, and explain them.

    python scripts/other_runtimes.py FOLDER [--only NAME]... [SUITE]...

Installs tinygrad, OpenVINO, tract and OpenCV below FOLDER, unless they are there; runs `spec` and
`conformance` if no suite is named. tinygrad has the training operators; the others are given
primitive ones. What `onnxopt run` says is shown, and then every failing case that no cause is named
for; a node that had to be refused and was not is cause enough. Exits with 1 if there is one, or if
a runtime passes nothing. tinygrad compiles with clang, which has to be installed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

#: What is installed, by the name of the class below that runs it.
RUNTIMES = {
    "Tinygrad": "tinygrad",
    "OpenVINO": "openvino",
    "Tract": "tract",
    "OpenCV": "opencv-python-headless",
}
SUITES = ("spec", "conformance")


class Tinygrad:
    """tinygrad's own runner, which takes a file."""

    unsupported = "op_type .* not supported|NotImplementedError"

    def run(self, model: Any, inputs: Any) -> Any:
        """Return the outputs of a model."""
        from tempfile import TemporaryDirectory

        import numpy as np
        from tinygrad.nn.onnx import OnnxRunner

        with TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            path.write_bytes(model.SerializeToString())
            # It writes into what it is given.
            given = {name: np.array(value) for name, value in inputs.items()}
            outputs = OnnxRunner(path)(given)
            return [outputs[it.name].numpy() for it in model.graph.output]


class OpenVINO:
    """OpenVINO on the processor, in float32 where a model says so."""

    unsupported = "No conversion|not supported|not implemented"

    def run(self, model: Any, inputs: Any) -> Any:
        """Return the outputs of a model."""
        import numpy as np
        import openvino

        core = openvino.Core()
        read = core.read_model(model.SerializeToString())
        precise = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}
        compiled = core.compile_model(read, "CPU", precise)
        found = compiled.create_infer_request().infer(dict(inputs))
        return [np.array(found[it]) for it in compiled.outputs]


class Tract:
    """tract, as its documentation loads a model."""

    unsupported = "ranslat|nimplemented|No parser"

    def run(self, model: Any, inputs: Any) -> Any:
        """Return the outputs of a model."""
        from tempfile import TemporaryDirectory

        import numpy as np
        import tract

        with TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            path.write_bytes(model.SerializeToString())
            loaded = tract.onnx().load(path)
            runnable = loaded.into_model().into_runnable()
            given = [np.asarray(inputs[it.name]) for it in model.graph.input]
            return [it.to_numpy() for it in runnable.run(given)]


class OpenCV:
    """OpenCV's networks."""

    unsupported = "in function .getLayerInstance."

    def run(self, model: Any, inputs: Any) -> Any:
        """Return the outputs of a model."""
        import cv2
        import numpy as np

        read = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
        for name, value in inputs.items():
            read.setInput(value, name)
        # Of what is empty there is none, which is not a tensor.
        return list(map(np.asarray, read.forward([it.name for it in model.graph.output])))


def main() -> int:
    """Set up, run, and tell what is not explained; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("suites", nargs="*")
    parser.add_argument("--only", action="append", choices=[*RUNTIMES])
    options = parser.parse_args()
    left = 0
    for name, package in RUNTIMES.items():
        if options.only and name not in options.only:
            continue
        home = options.folder / package
        python = home / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "onnx", package], check=True)
        report = home / "report.json"
        backend = f"python:{Path(__file__).resolve()}:{name},python={python.absolute()}"
        subprocess.run(
            [sys.executable, "-m", "onnxopt_cli", "run", *(options.suites or SUITES), "-q",
             "-b", backend, "--explain-time", "600", "--report", f"json={report}"],
            check=False,
        )  # fmt: skip
        left += _unexplained(json.loads(report.read_text()))
    return int(left > 0)


def _unexplained(run: dict[str, Any]) -> int:
    """Print the failing cases that no cause is named for; return how many."""
    failing = {it["case"]: it for it in run["results"] if it["outcome"] == "fail"}
    named: set[str] = set()
    for found in run["explanations"]:
        print(found["text"])
        named |= {case for cause in found["causes"] for case in cause["cases"]}
    accepted = {name for name, it in failing.items() if it["message"].startswith("accepted")}
    left = failing.keys() - named - accepted
    for case in sorted(left):
        print(f"  not explained: {case}: {failing[case]['message']}")
    counts = Counter(it["outcome"] for it in run["results"])
    print(dict(counts), f"{len(left)} of {len(failing)} failing unexplained")
    return len(left) or int(not counts["pass"])


if __name__ == "__main__":
    sys.exit(main())
