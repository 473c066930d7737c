"""Fuzz the readers of case files and ONNX test directories with damaged files.

Each damaged input is listed and run on the reference backend. This happens in a child process,
which is forked from a parent that has imported the package. The following are violations:

- a traceback or an internal error;
- the use of more than 1 GiB or 10 s, including workers;
- a message about an invalid case that does not name the file and, for YAML, the line.

A case that exceeds the limits of a worker is not a violation. The script runs only on Linux.

    python scripts/fuzz_files.py --count 500 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import onnx.backend.test
from hostile_files import Seed, hostile_directories, hostile_yaml, write_seed
from mutate_files import mutate

from onnxopt_cli.cli import main as onnxopt

_REPOSITORY = Path(__file__).parent.parent
_CORPORA = Path(onnx.backend.test.__file__).parent / "data"
_MEMORY_BYTES = 1 << 30
_SECONDS = 10
_SUCCESS_CODES = {0, 1, 5}
_INVALID_CODE = 2
# The limits of the worker are lower than the limits of the whole command.
_RUN_ARGUMENTS = ["run", "-b", "numpy", "-j", "1", "--timeout", "3", "--memory", "700MiB", "fuzz"]
# A regular expression that matches one case of a file, up to the next case.
_CASE_PATTERN = re.compile(rb"(?m)^  - name: .*\n(?:(?!  - name: |#|  #).*\n)*")


@dataclass
class Tally:
    """The counts of one run of the script, and the inputs that took the most time or memory.

    Attributes:
        keep: whether inputs are copied to the current folder.
    """

    keep: bool = False
    codes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    longest: tuple[float, int] = (0.0, 0)
    busiest: tuple[float, int] = (0.0, 0)
    largest: tuple[int, int] = (0, 0)


@dataclass
class Child:
    """A child process that lists and runs one input."""

    number: int
    folder: Path
    is_yaml: bool
    started: float


def main() -> int:
    """Fuzz, print the results, and return 1 if there is a violation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="number of inputs")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random damage")
    parser.add_argument(
        "--only", type=int, help="run only the input with this number, and keep the input"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    yaml_seeds, directory_seeds = _yaml_seeds(), _directory_seeds()
    hostile = [*hostile_yaml(), *hostile_directories()]
    numbers = range(options.count) if options.only is None else [options.only]
    tally = Tally(keep=options.only is not None)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz") as work:
        _warm_up(Path(work))
        children: dict[int, Child] = {}
        for number in numbers:
            while len(children) >= options.jobs:
                _wait(children, tally)
            damaged = _damaged_input(number, options.seed, yaml_seeds, directory_seeds, hostile)
            folder = Path(work, str(number))
            write_seed(folder / "fuzz", damaged)
            child = Child(number, folder, "case.yaml" in damaged, time.monotonic())
            children[_start(child)] = child
        while children:
            _wait(children, tally)
    _print(tally, options, time.monotonic() - began)
    return 1 if tally.violations else 0


def _damaged_input(
    number: int, seed: int, yaml: list[Seed], directories: list[Seed], hostile: list[Seed]
) -> Seed:
    """Return the input with a given index. The first inputs are the handwritten hostile files."""
    if number < len(hostile):
        return hostile[number]
    generator = random.Random(f"{seed}/{number}")  # noqa: S311 - must be reproducible
    kind = generator.random()
    if kind < 0.1:  # noqa: PLR2004 - one in ten
        pool = hostile
    else:
        pool = yaml if kind < 0.55 else directories  # noqa: PLR2004 - equal probabilities
    original = generator.choice(pool)
    while sum(map(len, original.values())) > 1 << 19:
        original = generator.choice(pool)
    return mutate(original, generator.choice(pool), generator)


def _yaml_seeds() -> list[Seed]:
    """Return each committed case as a separate file."""
    seeds: list[Seed] = []
    for path in sorted((_REPOSITORY / "cases").rglob("*.yaml")):
        data = path.read_bytes()
        head = data[: data.index(b"cases:\n") + len(b"cases:\n")]
        seeds += [{"case.yaml": head + case[0]} for case in _CASE_PATTERN.finditer(data)]
    return seeds


def _directory_seeds() -> list[Seed]:
    """Return the committed test directories, and about as many small test directories of onnx."""
    committed = sorted((_REPOSITORY / "cases" / "onnx").rglob("model.onnx"))
    published = [
        path
        for kind in ("simple", "pytorch-operator")
        for path in (_CORPORA / kind).rglob("*.onnx")
    ]
    seeds = [_read(path.parent) for path in [*committed * 30, *sorted(published)]]
    return [seed for seed in seeds if sum(map(len, seed.values())) < 1 << 16]


def _read(folder: Path) -> Seed:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _warm_up(work: Path) -> None:
    """Run the command once to compile its modules, and import most modules in this process."""
    text = (_REPOSITORY / "cases/spec/adam.yaml").read_text().replace("X_new: [1.", "X_new: [7.")
    write_seed(work / "warm", {"case.yaml": text.encode()})
    pid = os.fork()
    if pid == 0:
        os._exit(_call(work / "warm" / "out", ["run", str(work / "warm")]))
    os.waitpid(pid, 0)
    # The command may start threads, and a fork does not copy threads. Therefore, the command runs
    # in a child process.
    import onnx.reference  # noqa: F401 - forked children need not import it

    import onnxopt_cli.analysis.explanation.explain
    import onnxopt_cli.cli.run_command
    import onnxopt_cli.cli.run_session
    import onnxopt_cli.cli.show_command
    import onnxopt_cli.report.listing
    import onnxopt_cli.run.session  # noqa: F401 - forked children need not import it


def _start(child: Child) -> int:
    """Fork a child that lists and runs an input."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS + 5)
        # The memory limit protects the machine. It is high enough to let a violation happen.
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (3 * _MEMORY_BYTES, hard))
        os.chdir(child.folder)
        codes = [_call(Path("list"), ["list", "fuzz"]), _call(Path("run"), _RUN_ARGUMENTS)]
        Path("codes").write_text(" ".join(map(str, codes)))
    finally:
        # The child must never return to the parent's loop, even after an exception.
        os._exit(0)


def _call(output: Path, arguments: list[str]) -> int:
    """Call the command with its output in a file, and return its exit code."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        onnxopt(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:  # noqa: BLE001 - any exception is a violation
        import traceback

        traceback.print_exc()
        code = -1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _wait(children: dict[int, Child], tally: Tally) -> None:
    """Wait for the next child to end, and check its result."""
    pid, status, usage = os.wait4(-1, 0)
    child = children.pop(pid)
    seconds = time.monotonic() - child.started
    computing = usage.ru_utime + usage.ru_stime
    memory = usage.ru_maxrss * 1024
    tally.longest = max(tally.longest, (seconds, child.number))
    tally.busiest = max(tally.busiest, (computing, child.number))
    tally.largest = max(tally.largest, (memory, child.number))
    wrong = _judge(child, status, tally.codes)
    if seconds > _SECONDS:
        wrong.append(f"took {seconds:.1f} s, {computing:.1f} s of them computing")
    if memory > _MEMORY_BYTES:
        wrong.append(f"took {memory >> 20} MiB")
    tally.violations += [f"{child.number}: {violation}" for violation in wrong]
    for name in ("list", "run") if wrong or tally.keep else ():
        if (child.folder / name).exists():
            print((child.folder / name).read_text(errors="replace")[-1500:], flush=True)
    if tally.keep:
        shutil.copytree(child.folder, f"input-{child.number}", symlinks=True)
    shutil.rmtree(child.folder)


def _judge(child: Child, status: int, codes: Counter[str]) -> list[str]:
    """Return the violations in the output of a child."""
    if status or not (child.folder / "codes").exists():
        codes["died"] += 1
        return [f"the process died with status {status}"]
    wrong = []
    exit_codes = (child.folder / "codes").read_text().split()
    for name, code in zip(("list", "run"), map(int, exit_codes), strict=True):
        codes[f"{name} {code}"] += 1
        text = (child.folder / name).read_bytes().decode(errors="replace")
        if "Traceback" in text or "internal error" in text:
            wrong.append(f"{name} reported an internal error")
        place = r"fuzz/\S*\.yaml:\d+\b" if child.is_yaml else r"fuzz"
        if code == _INVALID_CODE and not re.search(place, text.replace("\n", "")):
            wrong.append(f"{name} names no {'file and line' if child.is_yaml else 'file'}")
        elif code not in {*_SUCCESS_CODES, _INVALID_CODE}:
            wrong.append(f"{name} exited with {code}")
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", text):
            wrong.append(f"{name} printed a control character")
    return wrong


def _print(tally: Tally, options: argparse.Namespace, seconds: float) -> None:
    for violation in tally.violations:
        number = violation.partition(":")[0]
        print(f"violation: input {violation}")
        print(f"  python scripts/fuzz_files.py --seed {options.seed} --only {number}")
    codes = ", ".join(f"{name}: {count}" for name, count in sorted(tally.codes.items()))
    print(
        f"{options.count} inputs of seed {options.seed} in {seconds:.0f} s; "
        f"command and exit code: {codes}; "
        f"longest {tally.longest[0]:.1f} s (input {tally.longest[1]}), "
        f"most processor time {tally.busiest[0]:.1f} s (input {tally.busiest[1]}), "
        f"largest {tally.largest[0] >> 20} MiB (input {tally.largest[1]}); "
        f"{len(tally.violations)} violations"
    )


if __name__ == "__main__":
    sys.exit(main())
