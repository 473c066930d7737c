"""A Dask scheduler and workers on this machine, started as docs/cluster.md describes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from itertools import count
from pathlib import Path

from commands import start_command
from places import REPOSITORY


def until(happened, seconds=60):
    """Wait until a condition is true; fail after ``seconds`` seconds."""
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.02)
    assert happened()


class DaskProcesses:
    """A scheduler with workers that can be started and stopped."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self._numbers = count()
        self.file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0")
        # The scheduler creates the file before it writes the content.
        until(lambda: self.file.exists() and self.file.stat().st_size)
        self.address = json.loads(self.file.read_text())["address"]
        self.workers: list[subprocess.Popen[bytes]] = []

    def add(self, *options: str, begins_with: str = "") -> subprocess.Popen[bytes]:
        """Start a worker.

        Args:
            options: options of the worker; by default, it has no nanny.
            begins_with: Python code that the worker and its child processes execute first.
        """
        first = self.folder / f"first-{next(self._numbers)}"
        first.mkdir()
        (first / "sitecustomize.py").write_text(begins_with)
        options = options or ("--no-nanny",)
        common = ("--nthreads", "1", "--memory-limit", "0", "--local-directory", str(self.folder))
        self.workers.append(self._start("worker", *common, *options, first=first))
        return self.workers[-1]

    def end(self, worker: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
        worker.send_signal(number)
        worker.wait(60)

    def end_all(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()

    def sidecars(self) -> list[str]:
        """Return the folders of sidecars that still exist on workers."""
        return [str(path) for path in self.folder.glob("dask-scratch-space/*/onnxopt/run-*")]

    def _start(self, program: str, *options: str, first: Path | None = None):
        environment = dict(os.environ)
        if first is not None:
            environment["PYTHONPATH"] = f"{first}{os.pathsep}{REPOSITORY}"
        common = ("--no-dashboard", "--host", "127.0.0.1", "--scheduler-file", str(self.file))
        with (self.folder / "errors").open("ab") as errors:
            return start_command(
                *common, *self.options, *options, module=f"distributed.cli.dask_{program}",
                cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
