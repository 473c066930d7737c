"""``data.json`` of an ONNX test directory: its tolerance, and where a missing model is."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxopt_cli.cases.values.malformed import Malformed
from onnxopt_cli.cases.values.regular_file import read_regular_file
from onnxopt_cli.core.tolerance import ONNX_DEFAULT, Provenance, Relative

_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class DirectoryData:
    """What ``data.json`` says.

    Attributes:
        tolerance: its rtol and atol, the missing one of the two being ONNX's default; None if it
            has neither.
        url: where the model is if it is not in the directory; empty if it does not say.
    """

    tolerance: Relative | None = None
    url: str = ""


def read_directory_data(path: Path) -> DirectoryData:
    """Read a ``data.json``.

    Raises:
        Malformed: if it is missing, no JSON object, or has a tolerance that is no finite number of
            at least zero.
    """
    data = read_regular_file(path, _LIMIT)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Malformed("is not a JSON object")
    url = content.get("url", "")
    return DirectoryData(_tolerance(content), url if isinstance(url, str) else "")


def tolerance_bytes(tolerance: Relative) -> bytes:
    """Return the content of a ``data.json`` with this tolerance."""
    content = {"atol": tolerance.atol, "rtol": tolerance.rtol}
    return (json.dumps(content, indent=2) + "\n").encode()


def _tolerance(content: dict[str, Any]) -> Relative | None:
    if "rtol" not in content and "atol" not in content:
        return None
    return Relative(
        rtol=_limit(content, "rtol", ONNX_DEFAULT.rtol),
        atol=_limit(content, "atol", ONNX_DEFAULT.atol),
        provenance=Provenance.DIRECTORY,
    )


def _limit(content: dict[str, Any], key: str, default: float) -> float:
    value = content.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Malformed(f"has the {key} {value!r:.40}; a number was expected")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise Malformed(f"has the {key} {number}; a finite number of at least 0 was expected")
    return number
