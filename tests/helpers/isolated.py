"""Run ``onnxopt`` as a process with misbehaving backends, and find processes that survive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commands import Output, run_command
from places import PLUGINS, REPOSITORY

HOSTILE = PLUGINS / "hostile.py"

CASE = "    inputs: {R: %s, T: 1, X: [1.0, 2.0], G: [0.5, -0.5], V: [0.25, 0.0]}\n"
ATTRIBUTES = "    attributes: {alpha: 0.9, beta: 1.0, mode: standard, norm_coefficient: 0.0}\n"


def write_cases(folder: Path, rates: dict[str, float]) -> None:
    """Write a case for each name, with its rate as R. Backends misbehave if R is 0.5 or more."""
    text = "onnxopt: 1\nsuite: demo\noperator: Momentum\ncases:\n"
    for name, rate in rates.items():
        text += f"  - name: {name}\n{ATTRIBUTES}{CASE % rate}"
    (folder / "demo.yaml").write_text(text)


@dataclass(frozen=True)
class Process:
    """A running process: its id and its command line."""

    number: int
    command: str


@dataclass
class Run:
    """A command that is running or has ended, and its results."""

    process: subprocess.Popen[str] | subprocess.CompletedProcess[str]
    mark: str
    report: Path
    out: str = ""
    err: str = ""
    outcomes: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict] = field(default_factory=dict)

    @property
    def code(self) -> int:
        return self.process.returncode

    def wait(self, seconds: float = 60) -> Run:
        self.out, self.err = map(Output, self.process.communicate(timeout=seconds))
        return self.read()

    def read(self) -> Run:
        """Read outcomes and results from the report of the command."""
        if self.report.exists():
            for result in json.loads(self.report.read_text())["results"]:
                name = result["case"].removeprefix("demo/demo/")
                self.results[name] = result
                self.outcomes[name] = result["outcome"]
        assert "Traceback" not in self.err
        assert "internal error" not in self.err
        return self

    def survivors(self, seconds: float = 30) -> list[Process]:
        """Return the processes of the run that are still running after ``seconds`` seconds."""
        end = time.monotonic() + seconds
        while (processes := self._alive()) and time.monotonic() < end:
            time.sleep(0.05)
        return processes

    def sleepers(self) -> int:
        """Return the number of running processes that a backend has started."""
        return sum(process.command.endswith("300 ") for process in self._alive())

    def _alive(self) -> list[Process]:
        processes = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                # Arguments of other programs on the machine may not be UTF-8.
                command = arguments.decode(errors="replace")
                marked = (entry / "environ").read_bytes() + (entry / "comm").read_bytes()
                if self.mark[-15:].encode() in marked or self.mark in command:
                    processes.append(Process(int(entry.name), command))
            except OSError:
                continue
        return processes


def start(
    folder: Path, backend: str, *options: str, prefix: Sequence[str] = (), ways: Sequence[str] = ()
) -> Run:
    """Start ``onnxopt run`` on the cases of a folder.

    By default, there is one worker, because starting another one would take most of the time.
    Failures are not explained.

    Args:
        backend: a specification, or the name of a class in ``plugins/hostile.py``.
        prefix: the words of a command that runs ``onnxopt``.
        ways: the ways in which a backend ``InTurn`` misbehaves.
    """
    mark, report, words, env = _asked(folder, backend, options, ways)
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "onnxopt_cli", *words], cwd=folder, env=env, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return Run(process, mark, report)


def run_to_end(folder: Path, backend: str, *options: str, ways: Sequence[str] = ()) -> Run:
    """Run ``onnxopt run`` as :func:`start` does, and wait for its end."""
    mark, report, words, env = _asked(folder, backend, options, ways)
    done = run_command(*words, cwd=folder, env=env)
    return Run(done, mark, report, done.stdout, done.stderr).read()


def _asked(
    folder: Path, backend: str, options: Sequence[str], ways: Sequence[str]
) -> tuple[str, Path, list[str], dict[str, str]]:
    """Return a unique mark, the path of the report, the arguments and the environment of a run.

    The environment of all processes of the run contains the mark, by which they can be found.
    """
    mark = f"ONNXOPT_TEST_{uuid.uuid4().hex}"
    report = folder / f"{mark}.json"
    specification = backend if ":" in backend else f"python:{HOSTILE}:{backend}"
    defaults = ["--no-explain", *(() if "-j" in options else ("-j", "1"))]
    words = ["run", "demo.yaml", "-b", specification, f"--report=json={report}"]
    words += [*defaults, *options]
    env = {**os.environ, mark: "1", "PYTHONPATH": str(REPOSITORY), "WAYS": " ".join(ways)}
    return mark, report, words, env


def run_in_turn(
    folder: Path,
    ways: Sequence[str],
    *options: str,
    plugin: Path = HOSTILE,
    prefix: Sequence[str] = (),
) -> Run:
    """Run a backend that misbehaves in several ways; one run takes less time than many.

    The backend handles the case ``first`` correctly. It then misbehaves in a case named after each
    way, and handles a case with the prefix ``after_`` correctly.
    """
    rates = {"first": 0.25}
    for number, way in enumerate(ways, start=1):
        rates |= {way: number, f"after_{way}": 0.25}
    write_cases(folder, rates)
    backend = f"python:{plugin}:InTurn"
    if prefix:
        run = start(folder, backend, *options, ways=ways, prefix=prefix).wait(300)
    else:
        run = run_to_end(folder, backend, *options, ways=ways)
    assert list(run.outcomes) == list(rates), run.out + run.err
    return run


def require(run: Run, way: str, outcome: str, message: str = "") -> None:
    """Check that a way of misbehaving has an outcome, and that it affects no other case."""
    assert run.outcomes["first"] == run.outcomes[f"after_{way}"] == "pass"
    assert run.outcomes[way] == outcome, run.results[way]
    result = run.results[way]
    recorded = result["message"] + json.dumps(result["outputs"])
    assert message in recorded, recorded
