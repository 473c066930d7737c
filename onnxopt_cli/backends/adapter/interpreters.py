"""The Python interpreter of an adapter's environment."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import SpecifierSet

from onnxopt_cli.backends.protocol import unavailable

# Names of interpreters that are looked up on PATH: python3.9 to python3.29.
_MINORS = range(29, 8, -1)
_PROBE_SECONDS = 20.0
_PROBE = (
    "import json, platform, sys; print(json.dumps([sys.executable, "
    "platform.python_implementation(), platform.python_version(), platform.machine()]))"
)


@dataclass(frozen=True)
class Interpreter:
    """An installed Python interpreter.

    Attributes:
        path: the program.
        implementation: such as CPython.
        version: such as 3.12.1.
        machine: the type of processor.
    """

    path: str
    implementation: str
    version: str
    machine: str


def find_uv() -> str:
    """Return the program uv, of the package uv or on PATH; empty if it is not installed."""
    if importlib.util.find_spec("uv") is not None:
        import uv

        try:
            return uv.find_uv_bin()
        except FileNotFoundError:
            pass
    return shutil.which("uv") or ""


def find_interpreter(backend: str, admitted: SpecifierSet) -> Interpreter:
    """Return this interpreter if its version is admitted, otherwise another installed one.

    Args:
        backend: the specification of the backend, for the message.
        admitted: the versions that the adapter admits.

    Raises:
        BackendUnavailable: if no installed interpreter is admitted.
    """
    present = platform.python_version()
    if admitted.contains(present, prereleases=True):
        implementation = platform.python_implementation()
        return Interpreter(sys.executable, implementation, present, platform.machine())
    interpreter = _other_interpreter(str(admitted), os.environ.get("PATH", ""))
    if interpreter is None:
        raise unavailable(
            backend,
            f" needs Python {admitted}; this is Python {present}, and no other Python is installed",
            "install one as python3.N on PATH, or with: uv python install 3.N",
        )
    return interpreter


@cache
def _other_interpreter(admitted: str, _path: str) -> Interpreter | None:
    """Return the first admitted interpreter that uv or PATH finds.

    Args:
        admitted: the admitted versions.
        _path: the value of PATH, on which the result depends.
    """
    for program in _candidates(admitted):
        try:
            interpreter = Interpreter(*json.loads(_output([program, "-I", "-c", _PROBE])))
        except (ValueError, TypeError):
            continue
        if SpecifierSet(admitted).contains(interpreter.version, prereleases=True):
            return interpreter
    return None


def _candidates(admitted: str) -> Iterator[str]:
    if uv := find_uv():
        # Without --system, uv would run the interpreter of a .venv in the current folder.
        options = ["--system", "--no-project", "--no-python-downloads"]
        command = [uv, "python", "find", *options, admitted]
        if found_by_uv := _output(command):
            yield found_by_uv
    for minor in _MINORS:
        if program := shutil.which(f"python3.{minor}"):
            yield program


def _output(command: list[str]) -> str:
    """Return the output of uv or of an interpreter; empty if it fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 - an installed program
            command,
            # uv reads a configuration of its current folder and those above.
            cwd=Path(sys.executable).anchor,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()
