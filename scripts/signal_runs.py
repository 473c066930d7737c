"""Interrupt ``onnxopt run``, ``audit`` and ``fuzz`` at random moments and check the clean-up.

After each signal, no process, temporary file, truncated report or lock may remain. Resuming from
the log of an interrupted run must lead to the same result as an uninterrupted run. The script runs
only on Linux.

    python scripts/signal_runs.py --count 100 --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from isolated import HOSTILE, Run, write_cases  # noqa: E402 - in tests/helpers

SURVIVORS = HOSTILE.with_name("survivors.py")
LITTER = HOSTILE.with_name("litter.py")
BACKENDS = (
    ["onnxruntime"],
    ["onnxruntime", f"python:{HOSTILE}:Well"],
    [f"python:{HOSTILE}:segfaults", f"python:{HOSTILE}:leaves_daemon"],
    [f"python:{HOSTILE}:stops_all"],
    [f"python:{SURVIVORS}:sleeps"],
    [f"python:{SURVIVORS}:revives", f"python:{LITTER}:Backend"],
    [f"python:{SURVIVORS}:multiplies"],
)
FUZZED_BACKENDS = ("onnxruntime", "onnx-reference", f"python:{HOSTILE}:segfaults")
# The signals that are sent. Commands do not handle SIGKILL and SIGQUIT; SIGINT is also sent twice.
SIGNALS = (
    (signal.SIGINT,),
    (signal.SIGKILL,),
    (signal.SIGTERM,),
    (signal.SIGHUP,),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGQUIT,),
)
# Signals that the runner handles. If a backend kills its own supervisor, only these signals are
# sent: if the runner were also killed, no process could clean up.
HANDLED_SIGNALS = tuple(
    numbers for numbers in SIGNALS if numbers[0] not in {signal.SIGKILL, signal.SIGQUIT}
)
# Exit codes of runs that ended before the signal, and of interrupted runs.
EXIT_CODES = {0, 1, 4, 129, 130, 143, *(-number for numbers in SIGNALS for number in numbers)}
# Files that may remain: the example database of fuzz, and a file that ONNX Runtime writes at
# import.
EXPECTED_FILES = frozenset({".examples", ".ses"})
PACKAGE_FRAME = re.compile(r"onnxopt_cli/(?!__main__)")
# Seconds that the clean-up may take on a busy machine.
CLEANUP_SECONDS = 60.0


@dataclass(frozen=True)
class Command:
    """A command, and the duration and the outcomes of its uninterrupted run."""

    arguments: list[str]
    seconds: float
    outcomes: Counter[tuple[str, str, str]] | None


def start(arguments: list[str], folder: Path) -> Run:
    """Start onnxopt in a folder, with its temporary files in a subfolder."""
    (folder / "temporary").mkdir(exist_ok=True)
    mark = f"ONNXOPT_TEST_{os.urandom(16).hex()}"
    environment = {
        **os.environ, mark: "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "temporary"),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt_cli", *arguments],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    return Run(process, mark, folder / "report.json")


def outcomes(report: Path) -> Counter[tuple[str, str, str]]:
    """Count the combinations of case, backend and outcome in a report."""
    results = json.loads(report.read_text())["results"]
    return Counter((result["case"], result["backend"], result["outcome"]) for result in results)


def commands() -> list[list[str]]:
    """Return the arguments of the commands to interrupt."""
    runs = [["run", "demo.yaml", "-j", "2", "--timeout", "2", "--no-explain",
             *(part for backend in backends for part in ("-b", backend)),
             "--log", "log.jsonl", "--report", "json=report.json"]
            for backends in BACKENDS]  # fmt: skip
    fuzz = [
        ["fuzz", "-b", backend, "--examples", "60", "--operator", "Momentum", "-o", "found"]
        for backend in FUZZED_BACKENDS
    ]
    audit = ["audit", "pruning", "--operator", "AdmmGradient", "-j", "2", "--json", "report.json"]
    return [*runs, audit, *fuzz]


def run_uninterrupted(arguments: list[str], folder: Path) -> Command:
    """Run a command without a signal, and record its duration and outcomes."""
    make_folder(folder)
    began = time.monotonic()
    start(arguments, folder).process.communicate()
    seconds = time.monotonic() - began
    counts = outcomes(folder / "report.json") if arguments[0] == "run" else None
    return Command(arguments, seconds, counts)


def make_folder(folder: Path) -> Path:
    """Make a folder that contains the cases."""
    folder.mkdir(parents=True)
    rates = {f"case{i}": 0.5 if i == 3 else 0.0625 + i / 64 for i in range(6)}  # noqa: PLR2004
    write_cases(folder, rates)
    return folder


def interrupt(command: Command, numbers: tuple[int, ...], moment: float, folder: Path) -> list[str]:
    """Run a command, send signals to it, and return the errors."""
    run = start(command.arguments, folder)
    for number in numbers:
        time.sleep(moment)
        run.process.send_signal(number)
        moment = min(moment, 0.05)
    try:
        errors = run.process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        run.process.kill()
        return ["does not end"]
    wrong = []
    if run.code not in EXIT_CODES:
        wrong.append(f"exit code {run.code}: {errors.strip()[-300:]}")
    # A traceback without frames of onnxopt is allowed: Python prints one if the signal arrives
    # while the interpreter starts.
    if "internal error" in errors or PACKAGE_FRAME.search(errors):
        wrong.append(errors)
    survivors = run.survivors(CLEANUP_SECONDS)
    wrong += [f"leaves {process.command}" for process in survivors]
    for process in survivors:
        os.kill(process.number, signal.SIGKILL)
    limit = time.monotonic() + CLEANUP_SECONDS
    while (files := remaining_files(folder)) and time.monotonic() < limit:
        time.sleep(0.02)
    wrong += [f"leaves {path.relative_to(folder)}" for path in files]
    for report in (folder / "report.json", *(folder / "found").glob("*.json")):
        if report.exists():
            try:
                json.loads(report.read_text())
            except ValueError:
                wrong.append(f"leaves a truncated {report.name}")
    return wrong + errors_after_resuming(command, folder)


def remaining_files(folder: Path) -> list[Path]:
    """Return temporary and hidden files and folders that a run must remove."""
    paths = {*(folder / "temporary").iterdir(), *folder.rglob(".*")}
    return [
        path for path in sorted(paths) if EXPECTED_FILES.isdisjoint(path.relative_to(folder).parts)
    ]


def errors_after_resuming(command: Command, folder: Path) -> list[str]:
    """Resume an interrupted run, or run the cases that fuzz saved; return the errors."""
    if command.outcomes is not None:
        arguments = list(command.arguments)
        if (folder / "log.jsonl").exists():
            arguments[arguments.index("--log")] = "--resume"
        run = start(arguments, folder)
        errors = run.process.communicate()[1]
        if run.code not in {0, 1} or outcomes(run.report) != command.outcomes:
            return [f"resumed with another result, exit code {run.code}: {errors.strip()[-300:]}"]
    elif any((folder / "found").glob("*.yaml")):
        run = start(["run", "found", "--timeout", "2"], folder)
        errors = run.process.communicate()[1]
        if run.code not in {0, 1}:
            return [f"saves a case that cannot run, exit code {run.code}: {errors.strip()[-300:]}"]
    return []


def main() -> int:
    """Interrupt commands; return 1 if any clean-up is incomplete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)  # noqa: S311 - not for secrets
    counts: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measured: dict[int, Command] = {}
        argument_lists = commands()
        for number in range(options.count):
            chosen = generator.randrange(len(argument_lists))
            if chosen not in measured:
                measured[chosen] = run_uninterrupted(
                    argument_lists[chosen], folder / f"uninterrupted{chosen}"
                )
            command = measured[chosen]
            kills_supervisor = any(str(SURVIVORS) in argument for argument in command.arguments)
            signals = HANDLED_SIGNALS if kills_supervisor else SIGNALS
            numbers = signals[number % len(signals)]
            moment = generator.uniform(0, command.seconds)
            errors = interrupt(command, numbers, moment, make_folder(folder / f"run{number}"))
            counts[command.arguments[0]] += 1
            failed += bool(errors)
            for error in errors:
                names = " ".join(signal.Signals(sent).name for sent in numbers)
                print(f"{number}: {names} after {moment:.3f} s of {' '.join(command.arguments)}")
                print(f"  {error}", flush=True)
    print(f"{options.count} signals ({dict(counts)}), {failed} failures, seed {options.seed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
