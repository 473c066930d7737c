"""Print the oldest version of each dependency that the project says it works with.

    python scripts/oldest_versions.py [EXTRA ...] > oldest.txt
    pip install -r oldest.txt && pip install --no-deps .

Without an extra only what every user has.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def oldest(extras: list[str]) -> list[str]:
    """Return a pin for each dependency, and for those of some extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    optional = project["optional-dependencies"]
    written = [*project["dependencies"], *(text for extra in extras for text in optional[extra])]
    return [text.replace(">=", "==") for text in written if Requirement(text).name != "onnxopt"]


if __name__ == "__main__":
    print("\n".join(oldest(sys.argv[1:])))
