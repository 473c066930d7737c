"""The text of a YAML file, which may be any file."""

from __future__ import annotations

from pathlib import Path

from onnxopt_cli.cases.values.malformed import Malformed
from onnxopt_cli.cases.values.regular_file import read_regular_file
from onnxopt_cli.errors import InvalidCase, Problem

#: Larger files are not read.
MAX_BYTES = 16 * 2**20


def yaml_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        InvalidCase: if it cannot be read, is larger than MAX_BYTES, or is not in UTF-8.
    """
    try:
        return read_regular_file(path, MAX_BYTES).decode("utf-8-sig")
    except Malformed as error:
        raise InvalidCase([Problem(str(path), f"the file {error}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        what = "found bytes that are no UTF-8, expected UTF-8 text"
        raise InvalidCase([Problem(f"{path}:{line}", what)]) from error
