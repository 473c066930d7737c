"""What a run ran with, for its record."""

from __future__ import annotations

import platform
from importlib.metadata import version

from onnxopt_cli import __version__


def versions() -> dict[str, str]:
    """Return the versions of onnxopt, Python, the packages that matter, and the machine."""
    return {
        "onnxopt": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        **{package: version(package) for package in ("numpy", "onnx", "ml_dtypes")},
    }
