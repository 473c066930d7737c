"""Print the path of one Adam case through the modules of the package.

    python scripts/trace_case.py

The script imports all modules and then runs one case on ``numpy`` in this process. It prints each
call from one module into another, in call order, as "caller's module -> callee's module, function".
The last line is the number of such calls.
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
from types import FrameType

import onnxopt_cli
from onnxopt_cli.cli import main as command

CASE = """\
onnxopt: 1
suite: one
operator: Adam
cases:
  - name: third_step
    attributes: {alpha: 0.9, beta: 0.99, epsilon: 0.1}
    inputs: {R: 0.1, T: 3, X: [1.2, 2.8], G: [-0.94, -2.5], V: [1.7, 3.6], H: [0.1, 0.1]}
"""


def module_changes() -> list[tuple[str, str, str]]:
    """Return each call between two modules: caller's module, callee's module, function."""
    package = Path(onnxopt_cli.__file__).parent
    changes: list[tuple[str, str, str]] = []

    def module_of(frame: FrameType) -> str:
        """Return the module of a frame, or an empty string for code outside the package."""
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(package):
            return ""
        return ".".join(path.relative_to(package).with_suffix("").parts)

    def record_call(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (callee := module_of(frame)):
            return
        caller_frame = frame.f_back
        # If a library such as click calls the function, the caller is the last module of the
        # package on the stack.
        while caller_frame is not None and not module_of(caller_frame):
            caller_frame = caller_frame.f_back
        caller = module_of(caller_frame) if caller_frame else ""
        if caller != callee:
            changes.append((caller, callee, frame.f_code.co_qualname))

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        # The cache is empty. Therefore, the run does not compare its failures with those of an
        # earlier run.
        os.environ["ONNXOPT_CACHE_DIR"] = folder
        file = Path(folder, "one.yaml")
        file.write_text(CASE)
        sys.setprofile(record_call)
        try:
            command(["run", str(file), "-b", "numpy", "--isolation", "none"])
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            sys.setprofile(None)
    return changes


def main() -> None:
    """Import all modules, run the case, and print the path."""
    for module in pkgutil.walk_packages(onnxopt_cli.__path__, "onnxopt_cli."):
        if "__main__" not in module.name and ".skeletons" not in module.name:
            importlib.import_module(module.name)
    changes = module_changes()
    for caller, callee, function in changes:
        print(f"{caller or '(start)'} -> {callee}, {function}")
    print(f"{len(changes)} module changes")


if __name__ == "__main__":
    main()
