"""Count the files and functions of ours that one Adam case passes through, on ``numpy`` in process.

    python scripts/trace_case.py [--list]

Counts the functions that are called (``sys.setprofile``) once everything is imported: reading the
case file, running, judging, the log and the table.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType

import onnxopt_cli
from onnxopt_cli.cli import main as command

_CASE = """\
onnxopt: 1
suite: one
operator: Adam
cases:
  - name: third_step
    attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.1}
    inputs: {R: 0.1, T: 3, X: [1.2, 2.8], G: [-0.94, -2.5], V: [1.7, 3.6], H: [0.1, 0.1]}
"""


def called() -> set[CodeType]:
    """Return the code of every function of ours that the command calls."""
    ours = str(Path(onnxopt_cli.__file__).parent)
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            found.add(frame.f_code)

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        # What failed here before, which a run compares with, is nothing that the case asks for.
        os.environ["ONNXOPT_CACHE_DIR"] = folder
        file = Path(folder) / "one.yaml"
        file.write_text(_CASE)
        sys.setprofile(note)
        try:
            command(["run", str(file), "--isolation", "none"])
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            sys.setprofile(None)
    return {code for code in found if not code.co_name.startswith("<")}


def main() -> None:
    """Print the counts, and with ``--list`` each function."""
    for module in pkgutil.walk_packages(onnxopt_cli.__path__, "onnxopt_cli."):
        if "__main__" not in module.name and ".skeletons" not in module.name:
            importlib.import_module(module.name)
    found = called()
    files = {code.co_filename for code in found}
    if "--list" in sys.argv:
        for code in sorted(found, key=lambda it: (it.co_filename, it.co_firstlineno)):
            print(f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}")
    print(f"{len(files)} files, {len(found)} functions")


if __name__ == "__main__":
    main()
