"""Run ``onnxopt`` in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def run_command(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    text: bool = True,
    timeout: float = 600,
) -> subprocess.CompletedProcess:
    """Run ``onnxopt`` with empty standard input; return its exit code and output."""
    return subprocess.run(
        _arguments("onnxopt_cli", words), cwd=cwd, env=env, text=text, timeout=timeout,
        stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, check=False,
    )  # fmt: skip


def start_command(
    *words: str | Path,
    module: str = "onnxopt_cli",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    **streams: Any,
) -> subprocess.Popen:
    """Start ``onnxopt``, or another module, with empty standard input."""
    return subprocess.Popen(
        _arguments(module, words), cwd=cwd, env=env, stdin=subprocess.DEVNULL,
        start_new_session=True, **streams,
    )  # fmt: skip


def unbroken(output: str) -> str:
    """Return output in which each shell command of several lines is joined to one line."""
    return re.sub(r" \\\n *", " ", output)


def _arguments(module: str, words: Iterable[str | Path]) -> list[str]:
    return [sys.executable, "-m", module, *map(os.fspath, words)]
