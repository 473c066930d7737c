"""What a run ran with, for its record."""

from __future__ import annotations

import platform

import ml_dtypes
import numpy as np
import onnx

from onnxopt_cli import __version__
from onnxopt_cli.isolation.processes import weakness


def versions() -> dict[str, str]:
    """Return the versions of onnxopt, Python, the packages that matter, and the machine.

    Where worker processes are less isolated than elsewhere, ``isolation`` says so.
    """
    found = {
        "onnxopt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "numpy": np.__version__,
        "onnx": onnx.__version__,
        "ml_dtypes": ml_dtypes.__version__,
    }
    weak = weakness()
    return {**found, "isolation": weak} if weak else found
