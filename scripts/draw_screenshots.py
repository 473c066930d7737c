"""Draw the pictures of docs/images: a run in the terminal, its HTML report, and a scoreboard.

    python scripts/draw_screenshots.py [FOLDER]

The script runs a few cases on a backend with two mistakes, and the quick tier of a suite on three
backends. rich draws the terminal as SVG. Headless Chromium draws the report and the scoreboard.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
#: The size of the pictures of pages, in pixels.
PAGE = (1100, 900)
#: A backend with two mistakes: it adds Adam's epsilon in the wrong place, as in README.md, and
#: returns the outputs of Momentum in the wrong type.
BACKEND = """
import numpy as np

from onnxopt_cli.backends.reference import NumpyBackend


class Backend:
    def run(self, model, inputs):
        outputs = NumpyBackend().prepare(model).run(inputs)
        (node,) = model.graph.node
        if node.op_type == "Momentum":
            return [output.astype("float64") for output in outputs]
        R, T, X = (inputs[name] for name in node.input[:3])
        if T <= 0:
            return outputs
        values = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient_post": 0.0}
        values |= {attribute.name: attribute.f for attribute in node.attribute}
        _, V, H = map(np.float64, outputs)
        root = np.sqrt(H / (1 - values["beta"] ** T)) + values["epsilon"]
        X_new = X - R * V / (1 - values["alpha"] ** T) / root
        X_new = (1 - values["norm_coefficient_post"]) * X_new
        return [X_new.astype(X.dtype), *outputs[1:]]
"""
COMMAND = (
    "onnxopt", "run", "conformance", "-k", "conformance/adam/T_* and not (double or many)",
    "-k", "conformance/momentum/T_1*", "-b", "acme=python:acme.py:Backend",
)  # fmt: skip
SCOREBOARD = """
title = "ONNX operators"
suites = ["operators"]
tier = "quick"

[backends]
onnxruntime = "onnxruntime"
onnx-reference = "onnx-reference"
vendor = "vendor-runtime"
"""


def main() -> None:
    """Run the cases, and draw the pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "acme.py").write_text(BACKEND)
        command = [sys.executable, "-m", "onnxopt_cli", *COMMAND[1:], "--report", "html=run.html"]
        environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        (folder / "terminal.svg").write_text(terminal_picture(done.stdout))
        draw_page(f"{place}/run.html", folder / "report.png")
        (Path(place) / "SCOREBOARD.toml").write_text(SCOREBOARD)
        command = [sys.executable, "-m", "onnxopt_cli", "scoreboard", "SCOREBOARD.toml"]
        subprocess.run(command, cwd=place, capture_output=True, check=False)
        draw_page(f"{place}/site/index.html", folder / "scoreboard.png")


def draw_page(page: str, picture: Path) -> None:
    """Draw the upper part of a page."""
    width, height = PAGE
    subprocess.run(
        [shutil.which("chromium") or "chromium", "--headless", "--no-sandbox",
         "--disable-gpu", "--hide-scrollbars",
         f"--window-size={width},{height}", f"--screenshot={picture}", page],
        stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip


def terminal_picture(output: str) -> str:
    """Return an SVG picture of a command and its output, given with its escape sequences."""
    prompt = "$ " + " ".join(f"'{word}'" if " " in word else word for word in COMMAND) + "\n"
    # Progress is drawn while the cursor is hidden, and erased afterwards.
    lines = re.sub(r"\x1b\[\?25l.*?\x1b\[\?25h(\r?\x1b\[1A\x1b\[2K)?", "", output, flags=re.DOTALL)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(prompt), Text.from_ansi(lines), sep="")
    # The CSS rules for fonts are removed, because a browser would download the fonts.
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="onnxopt"), flags=re.DOTALL)


if __name__ == "__main__":
    main()
