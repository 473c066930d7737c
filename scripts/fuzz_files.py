"""Damage case files and ONNX directories by the thousand, and hold ``onnxopt`` to its promises.

Each mutant is listed and run on the reference in a child of its own, forked from a parent that has
imported everything. No traceback, no defect reported as ours, no more than 1 GiB and 10 s, those of
workers included, and exit code 2 only with the file (of YAML the line too) that is to blame. What
the limits of a worker end is no violation: the command has said so. Linux only.

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
_MEMORY = 1 << 30
_SECONDS = 10
_CLEAN = {0, 1, 5}
_INVALID = 2
# Workers need limits below those of the whole.
_RUN = ["run", "-b", "numpy", "-j", "1", "--timeout", "3", "--memory", "700MiB", "fuzz"]
# A case of a longer file, up to the next.
_CASE = re.compile(rb"(?m)^  - name: .*\n(?:(?!  - name: |#|  #).*\n)*")


@dataclass
class Tally:
    """What came out of all mutants, and whether to keep them in the current folder."""

    keep: bool = False
    codes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    longest: tuple[float, int] = (0.0, 0)
    busiest: tuple[float, int] = (0.0, 0)
    largest: tuple[int, int] = (0, 0)


@dataclass
class Child:
    """A child at work on one mutant."""

    number: int
    folder: Path
    is_yaml: bool
    started: float


def main() -> int:
    """Fuzz, print what came out, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="what makes another set of mutants")
    parser.add_argument("--only", type=int, help="run this one alone, show its output, keep it")
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
            mutant = _mutant(number, options.seed, yaml_seeds, directory_seeds, hostile)
            folder = Path(work, str(number))
            write_seed(folder / "fuzz", mutant)
            child = Child(number, folder, "case.yaml" in mutant, time.monotonic())
            children[_start(child)] = child
        while children:
            _wait(children, tally)
    _print(tally, options, time.monotonic() - began)
    return 1 if tally.violations else 0


def _mutant(
    number: int, seed: int, yaml: list[Seed], directories: list[Seed], hostile: list[Seed]
) -> Seed:
    """Return the mutant of a number; the first ones are those written by hand."""
    if number < len(hostile):
        return hostile[number]
    generator = random.Random(f"{seed}/{number}")  # noqa: S311 - must repeat
    kind = generator.random()
    if kind < 0.1:  # noqa: PLR2004 - one in ten
        pool = hostile
    else:
        pool = yaml if kind < 0.55 else directories  # noqa: PLR2004 - even odds
    one = generator.choice(pool)
    while sum(map(len, one.values())) > 1 << 19:
        one = generator.choice(pool)
    return mutate(one, generator.choice(pool), generator)


def _yaml_seeds() -> list[Seed]:
    """Return each committed case in a file of its own."""
    seeds: list[Seed] = []
    for path in sorted((_REPOSITORY / "cases").rglob("*.yaml")):
        data = path.read_bytes()
        head = data[: data.index(b"cases:\n") + len(b"cases:\n")]
        seeds += [{"case.yaml": head + case[0]} for case in _CASE.finditer(data)]
    return seeds


def _directory_seeds() -> list[Seed]:
    """Return the committed test directories, and as many of onnx's own small ones."""
    ours = sorted((_REPOSITORY / "cases" / "onnx").rglob("model.onnx"))
    theirs = [
        it for kind in ("simple", "pytorch-operator") for it in (_CORPORA / kind).rglob("*.onnx")
    ]
    seeds = [_read(path.parent) for path in [*ours * 30, *sorted(theirs)]]
    return [seed for seed in seeds if sum(map(len, seed.values())) < 1 << 16]


def _read(folder: Path) -> Seed:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _warm_up(work: Path) -> None:
    """Import what the commands import, in this process."""
    text = (_REPOSITORY / "cases/spec/adam.yaml").read_text().replace("X_new: [1.", "X_new: [7.")
    write_seed(work / "warm", {"case.yaml": text.encode()})
    pid = os.fork()
    if pid == 0:
        os._exit(_call(work / "warm" / "out", ["run", str(work / "warm")]))
    os.waitpid(pid, 0)
    # Not the command itself: it may start threads, which a fork loses.
    import onnx.reference  # noqa: F401 - for the children

    import onnxopt_cli.cases.collect
    import onnxopt_cli.cli.list
    import onnxopt_cli.cli.run
    import onnxopt_cli.cli.run_session
    import onnxopt_cli.grade.explain
    import onnxopt_cli.report.listing
    import onnxopt_cli.run.session  # noqa: F401 - for the children


def _start(child: Child) -> int:
    """Fork a child that lists and runs a mutant."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_SECONDS + 5)
        # A violation must be seen, yet not take the machine along.
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (3 * _MEMORY, hard))
        os.chdir(child.folder)
        codes = [_call(Path("list"), ["list", "fuzz"]), _call(Path("run"), _RUN)]
        Path("codes").write_text(" ".join(map(str, codes)))
    finally:
        # Whatever happens, this is not the parent, and must not do its work.
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
    except BaseException:  # noqa: BLE001 - exactly what must not come
        import traceback

        traceback.print_exc()
        code = -1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _wait(children: dict[int, Child], tally: Tally) -> None:
    """Wait for any child, and judge it."""
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
    if memory > _MEMORY:
        wrong.append(f"took {memory >> 20} MiB")
    tally.violations += [f"{child.number}: {what}" for what in wrong]
    for name in ("list", "run") if wrong or tally.keep else ():
        if (child.folder / name).exists():
            print((child.folder / name).read_text(errors="replace")[-1500:], flush=True)
    if tally.keep:
        shutil.copytree(child.folder, f"mutant-{child.number}", symlinks=True)
    shutil.rmtree(child.folder)


def _judge(child: Child, status: int, codes: Counter[str]) -> list[str]:
    """Return the promises that a child's outputs break."""
    if status or not (child.folder / "codes").exists():
        codes["died"] += 1
        return [f"the process died with status {status}"]
    wrong = []
    ended = (child.folder / "codes").read_text().split()
    for name, code in zip(("list", "run"), map(int, ended), strict=True):
        codes[f"{name} {code}"] += 1
        text = (child.folder / name).read_bytes().decode(errors="replace")
        if "Traceback" in text or "internal error" in text:
            wrong.append(f"{name} fell over")
        place = r"fuzz/\S*\.yaml:\d+\b" if child.is_yaml else r"fuzz"
        if code == _INVALID and not re.search(place, text.replace("\n", "")):
            wrong.append(f"{name} names no {'file and line' if child.is_yaml else 'file'}")
        elif code not in {*_CLEAN, _INVALID}:
            wrong.append(f"{name} ended with {code}")
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", text):
            wrong.append(f"{name} printed a control character")
    return wrong


def _print(tally: Tally, options: argparse.Namespace, seconds: float) -> None:
    for violation in tally.violations:
        number = violation.partition(":")[0]
        print(f"violation: mutant {violation}")
        print(f"  python scripts/fuzz_files.py --seed {options.seed} --only {number}")
    codes = ", ".join(f"{name}: {count}" for name, count in sorted(tally.codes.items()))
    print(
        f"{options.count} mutants of seed {options.seed} in {seconds:.0f} s; "
        f"command and exit code: {codes}; "
        f"longest {tally.longest[0]:.1f} s (mutant {tally.longest[1]}), "
        f"most computing {tally.busiest[0]:.1f} s (mutant {tally.busiest[1]}), "
        f"largest {tally.largest[0] >> 20} MiB (mutant {tally.largest[1]}); "
        f"{len(tally.violations)} violations"
    )


if __name__ == "__main__":
    sys.exit(main())
