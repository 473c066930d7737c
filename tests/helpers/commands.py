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
    done = subprocess.run(
        _arguments("onnxopt_cli", words), cwd=cwd, env=env, text=text, timeout=timeout,
        stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True, check=False,
    )  # fmt: skip
    if text:
        done.stdout, done.stderr = Output(done.stdout), Output(done.stderr)
    return done


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


class Output(str):
    """Output in which ``in`` also finds phrases that are wrapped over several lines."""

    __slots__ = ()

    def __contains__(self, phrase: object) -> bool:
        text = str(phrase)
        return super().__contains__(text) or text in " ".join(unbroken(self).split())


def _arguments(module: str, words: Iterable[str | Path]) -> list[str]:
    return [sys.executable, "-m", module, *map(os.fspath, words)]
