"""Send signals at random moments to ``onnxopt run``, ``audit`` and ``fuzz``, and look for remains.

After each: no process, no temporary file, no half report, no lock; and the log of a run resumes to
the result that the run has when nobody disturbs it. Linux only.

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

from isolated import HOSTILE, Run, write_cases  # noqa: E402 - from the tests' folder

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
FUZZED = ("onnxruntime", "onnx-reference", f"python:{HOSTILE}:segfaults")
# Also twice Ctrl-C, and two that nobody handles.
SIGNALS = (
    (signal.SIGINT,),
    (signal.SIGKILL,),
    (signal.SIGTERM,),
    (signal.SIGHUP,),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGQUIT,),
)
# With both gone that would clean up after them, nobody does: a backend that kills its keeper meets
# only signals that the runner lives to see.
HANDLED = tuple(it for it in SIGNALS if it[0] not in {signal.SIGKILL, signal.SIGQUIT})
# What is said of a run that no signal reached in time, and of those that one did.
CODES = {0, 1, 4, 129, 130, 143, *(-number for numbers in SIGNALS for number in numbers)}
# What fuzz remembers of failures, and what ONNX Runtime writes wherever it is imported.
MEANT = frozenset({".examples", ".ses"})
OURS = re.compile(r"onnxopt_cli/(?!__main__)")
# How long what a killed runner leaves may take to see it, and to end processes that revive each
# other, on a machine that is busy; where it takes less nobody waits.
PATIENCE = 60.0


@dataclass(frozen=True)
class Command:
    """A command, what it writes and how long it takes when nobody disturbs it."""

    arguments: list[str]
    seconds: float
    outcomes: Counter | None


def start(arguments: list[str], folder: Path) -> Run:
    """Start onnxopt in a folder with temporary files of its own."""
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


def outcomes(report: Path) -> Counter:
    """Return how often each case has which outcome on which backend."""
    results = json.loads(report.read_text())["results"]
    return Counter((it["case"], it["backend"], it["outcome"]) for it in results)


def commands() -> list[list[str]]:
    """Return the arguments of what can be disturbed."""
    runs = [["run", "demo.yaml", "-j", "2", "--timeout", "2", "--no-explain",
             *(part for backend in backends for part in ("-b", backend)),
             "--log", "log.jsonl", "--report", "json=report.json"]
            for backends in BACKENDS]  # fmt: skip
    fuzz = [
        ["fuzz", "-b", it, "--examples", "60", "--operator", "Momentum", "-o", "found"]
        for it in FUZZED
    ]
    audit = ["audit", "pruning", "--operator", "AdmmGradient", "-j", "2", "--json", "report.json"]
    return [*runs, audit, *fuzz]


def undisturbed(arguments: list[str], place: Path) -> Command:
    """Run a command as it is, to know how long it takes and what comes out."""
    prepared(place)
    began = time.monotonic()
    start(arguments, place).process.communicate()
    seconds = time.monotonic() - began
    counts = outcomes(place / "report.json") if arguments[0] == "run" else None
    return Command(arguments, seconds, counts)


def prepared(folder: Path) -> Path:
    """Make a folder with the cases in it."""
    folder.mkdir(parents=True)
    rates = {f"case{i}": 0.5 if i == 3 else 0.0625 + i / 64 for i in range(6)}  # noqa: PLR2004
    write_cases(folder, rates)
    return folder


def disturb(command: Command, numbers: tuple[int, ...], moment: float, folder: Path) -> list[str]:
    """Run a command, send signals to it, and return what is wrong afterwards."""
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
    wrong = [] if run.code in CODES else [f"ends with {run.code}: {errors.strip()[-300:]}"]
    # Until the first lines of ours have run Python itself says what it was about to do.
    if "internal error" in errors or OURS.search(errors):
        wrong.append(errors)
    left = run.survivors(PATIENCE)
    wrong += [f"leaves {process.command}" for process in left]
    for process in left:
        os.kill(process.number, signal.SIGKILL)
    limit = time.monotonic() + PATIENCE
    while (files := remains(folder)) and time.monotonic() < limit:
        time.sleep(0.02)
    wrong += [f"leaves {path.relative_to(folder)}" for path in files]
    for report in (folder / "report.json", *(folder / "found").glob("*.json")):
        if report.exists():
            try:
                json.loads(report.read_text())
            except ValueError:
                wrong.append(f"leaves half of {report.name}")
    return wrong + gone_on(command, folder)


def remains(folder: Path) -> list[Path]:
    """Return the files and folders that nobody is meant to find after a run."""
    found = {*(folder / "temporary").iterdir(), *folder.rglob(".*")}
    return [path for path in sorted(found) if MEANT.isdisjoint(path.relative_to(folder).parts)]


def gone_on(command: Command, folder: Path) -> list[str]:
    """Return what is wrong with going on where a command was disturbed."""
    if command.outcomes is not None:
        arguments = list(command.arguments)
        if (folder / "log.jsonl").exists():
            arguments[arguments.index("--log")] = "--resume"
        run = start(arguments, folder)
        errors = run.process.communicate()[1]
        if run.code not in {0, 1} or outcomes(run.report) != command.outcomes:
            return [f"resumes to another result, exit code {run.code}: {errors.strip()[-300:]}"]
    elif any((folder / "found").glob("*.yaml")):
        run = start(["run", "found", "--timeout", "2"], folder)
        errors = run.process.communicate()[1]
        if run.code not in {0, 1}:
            return [f"keeps what cannot be run, exit code {run.code}: {errors.strip()[-300:]}"]
    return []


def main() -> int:
    """Disturb commands; return 1 if that leaves anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)  # noqa: S311 - not for secrets
    said: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        known: dict[int, Command] = {}
        found = commands()
        for number in range(options.count):
            chosen = chance.randrange(len(found))
            if chosen not in known:
                known[chosen] = undisturbed(found[chosen], folder / f"undisturbed{chosen}")
            command = known[chosen]
            kills_keeper = any(str(SURVIVORS) in argument for argument in command.arguments)
            signals = HANDLED if kills_keeper else SIGNALS
            numbers = signals[number % len(signals)]
            moment = chance.uniform(0, command.seconds)
            wrong = disturb(command, numbers, moment, prepared(folder / f"run{number}"))
            said[command.arguments[0]] += 1
            failed += bool(wrong)
            for what in wrong:
                names = " ".join(signal.Signals(it).name for it in numbers)
                print(f"{number}: {names} after {moment:.3f} s of {' '.join(command.arguments)}")
                print(f"  {what}", flush=True)
    print(f"{options.count} signals ({dict(said)}), {failed} with remains, seed {options.seed}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
