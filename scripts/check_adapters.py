"""Install the shipped adapters, run node cases of onnx on each, and print a table.

    python scripts/check_adapters.py                        # all adapters
    python scripts/check_adapters.py openvino tract@0.22.0  # two adapters, one in a given version
    python scripts/check_adapters.py openvino --lock        # also write locks/openvino.txt

Each adapter runs the node cases of a few common operators. The columns are the runtime, the seconds
that the installation and the start take, and the number of cases by outcome. The script exits with
1 if an adapter cannot be installed, does not start, or does not pass any case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from onnxopt_cli.backends.adapter.adapter_environment import AdapterEnvironment
from onnxopt_cli.backends.adapter.adapter_file import (
    NPM_PREFIX,
    lock_path,
    npm_lock_path,
    shipped_adapters,
)
from onnxopt_cli.backends.resolve import resolve_backend
from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.errors import OnnxoptError

#: Operators that most runtimes have.
OPERATORS = ("Abs", "Add", "Conv", "Gemm", "MatMul", "MaxPool", "Relu", "Softmax", "Transpose")
OUTCOMES = ("pass", "fail", "error", "unsupported")
_MAX_PROBLEM_CHARS = 300


@dataclass
class Row:
    """A row of the table: the result of checking one adapter."""

    name: str
    version: str = ""
    install_seconds: float = 0.0
    start_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    def text(self) -> str:
        """Return the row of the table."""
        seconds = f"{self.install_seconds:7.1f} {self.start_seconds:6.1f}"
        other_count = self.outcomes.total() - sum(self.outcomes[outcome] for outcome in OUTCOMES)
        counts = " ".join(f"{self.outcomes[outcome]:11}" for outcome in OUTCOMES)
        return (
            f"{self.name:20} {self.version:44} {seconds} {counts} {other_count:7}  {self.problem}"
        )


def check(name: str, operators: list[str], *, lock: bool) -> Row:
    """Install an adapter and run cases on it.

    Args:
        name: the adapter, possibly with a version.
        operators: the operators of the cases.
        lock: whether to write the lock of the adapter.
    """
    row, text = Row(name), f"adapter:{name}"
    try:
        environment = AdapterEnvironment.of(parse_specification(text))
        began = perf_counter()
        environment.create()
        row.install_seconds = perf_counter() - began
        if lock:
            write_lock(environment)
            # Each lock has an environment of its own, so the new lock requires a new environment.
            AdapterEnvironment.of(parse_specification(text)).create()
        began = perf_counter()
        backend = resolve_backend(text)
        row.start_seconds, row.version = perf_counter() - began, backend.version
        # The cases run in other processes. Therefore, an error while this backend ends is ignored.
        with suppress(OnnxoptError):
            backend.close()
    except OnnxoptError as error:
        row.problem = " ".join(error.message.split())[:_MAX_PROBLEM_CHARS]
        return row
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        options = [word for operator in operators for word in ("--operator", operator)]
        run = ["run", "onnx-node", *options, "-b", text, "-q", "--no-explain", "--log", str(log)]
        done = subprocess.run(
            [sys.executable, "-m", "onnxopt_cli", *run], capture_output=True, text=True, check=False
        )
        if done.returncode not in {0, 1}:
            row.problem = f"exit {done.returncode}: {done.stderr.strip()}"[:_MAX_PROBLEM_CHARS]
        records = map(json.loads, log.read_text().splitlines() if log.exists() else ())
        row.outcomes.update(
            record["result"]["outcome"] for record in records if record["record"] == "end"
        )
    return row


def write_lock(environment: AdapterEnvironment) -> None:
    """Write the versions of an environment's packages to the locks of its adapter."""
    path = lock_path(environment.adapter.path)
    packages = environment.locked_packages()
    path.parent.mkdir(exist_ok=True)
    names = [name for name in sorted(packages) if not name.startswith(NPM_PREFIX)]
    path.write_text("".join(f"{name}=={packages[name]}\n" for name in names))
    if npm_lock := environment.npm_lock():
        npm_lock_path(environment.adapter.path).write_text(npm_lock)


def main() -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("adapters", nargs="*", metavar="NAME[@VERSION]")
    parser.add_argument(
        "--operator",
        action="append",
        help="run cases of this operator instead of the common operators",
    )
    parser.add_argument("--lock", action="store_true", help="write the locks of the adapters")
    options = parser.parse_args()
    counts = " ".join(f"{outcome:>11}" for outcome in OUTCOMES)
    print(f"{'adapter':20} {'version':44} install  start {counts} {'others':>7}")
    good = True
    for name in options.adapters or shipped_adapters():
        row = check(name, options.operator or [*OPERATORS], lock=options.lock)
        print(row.text(), flush=True)
        good = good and row.outcomes["pass"] > 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
