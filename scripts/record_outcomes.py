"""Record the outcomes of all cases on built-in backends and test plugins, and compare two records.

    python scripts/record_outcomes.py record > before.tsv
    python scripts/record_outcomes.py record > after.tsv
    python scripts/record_outcomes.py compare before.tsv after.tsv

A record has one line for each case and backend: the case id, the backend and the outcome, separated
by tabs. The built-in backends run every suite. Those test plugins that implement optimizers run the
suites of ``cases/``. Plugins that crash, hang or respond at random are left out, because their
outcomes depend on timing. ``--onnxopt PATH`` records the outcomes of another installation of the
command.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxopt_cli.backends.resolve import BUILT_IN
from onnxopt_cli.suites.catalogue import NAMED_ONLY, suites

# The suites in the folder cases/.
OWN_SUITES = tuple(name for name in suites() if name not in NAMED_ONLY)
SUITES = (
    *suites(),
    "onnx-node",
    "onnx-simple",
    "onnx-light",
    "onnx-pytorch-operator",
    "onnx-pytorch-converted",
)
PLUGINS = {
    "reformulated": (
        "PyTorch",
        "PyTorchWithTensorRates",
        "TensorFlow",
        "TensorFlowBesideInfinity",
        "Keras",
        "Fused",
        "ForgetsSmall",
        "AlwaysNan",
        "NanForInfinity",
        "NanForInfiniteGradient",
        "ZeroForInfinity",
    ),
    "libraries": (
        "PyTorchAdam",
        "ApexAdam",
        "DeepSpeedAdam",
        "TinygradAdam",
        "OptaxAdam",
        "KerasAdam",
        "TensorFlowAdam",
        "PyTorchAdamW",
        "PyTorchAdagrad",
        "OptaxAdagrad",
        "KerasAdagrad",
        "TensorFlowAdagrad",
        "ApexAdagrad",
        "PyTorchSGD",
        "KerasSGD",
        "OptaxSGD",
        "TensorFlowSGD",
    ),
    "vacuous": ("Echo", "Zeros", "NaNs", "Ones", "Nothing", "RaisesAtEverything", "SaysSkip"),
    "mistaken": ("Right", "Refusing", "InsideTheRoot", "InManyWays", "OnlyAtTwo", "Strange"),
    "elsewhere": ("Copies", "WritesIntoItsInput", "ReturnsLists", "LacksAKernel"),
}
# Largest number of changed outcomes that are listed.
MAX_CHANGED_LINES = 400


def main(arguments: Sequence[str] | None = None) -> int:
    """Record outcomes or compare two records; return 1 if the records differ, otherwise 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(required=True, dest="command")
    record = commands.add_parser("record", help="run everything and print the outcomes")
    record.add_argument("--onnxopt", default=shutil.which("onnxopt"), help="the command to run")
    record.add_argument(
        "--suite", action="append", help="run only this suite; may be given several times"
    )
    record.add_argument("--no-plugins", action="store_true", help="run only built-in backends")
    compare = commands.add_parser("compare", help="list the outcomes that changed")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "compare":
        return _compare(options.before, options.after)
    for suite in options.suite or SUITES:
        for backend in BUILT_IN:
            _print_outcomes(options.onnxopt, [suite], backend)
    for module, names in {} if options.no_plugins else PLUGINS.items():
        path = Path(__file__).parent.parent / "tests" / "plugins" / f"{module}.py"
        for name in names:
            label = f"plugin {module}.{name}"
            _print_outcomes(options.onnxopt, OWN_SUITES, f"python:{path}:{name}", label)
    return 0


def _print_outcomes(onnxopt: str, suites: Sequence[str], backend: str, label: str = "") -> None:
    print(f"{' '.join(suites)} on {label or backend}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        command = [onnxopt, "run", *suites, "-b", backend, "-q", "--no-explain", "--log", str(log)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if not log.exists():
            sys.exit(f"{' '.join(command)} exited with {ran.returncode}:\n{ran.stderr}")
        for case, outcome in _outcomes(log):
            print(case, label or backend, outcome, sep="\t", flush=True)


def _outcomes(log: Path) -> Iterator[tuple[str, str]]:
    """Yield the id and the outcome of each valid case in a log, sorted by id."""
    pairs = []
    for line in log.read_text().splitlines():
        record = json.loads(line)
        if record["record"] == "end":
            pairs.append((record["result"]["case"], record["result"]["outcome"]))
    yield from sorted(pairs)


def _compare(before: Path, after: Path) -> int:
    old, new = _read(before), _read(after)
    changed = [
        (key, old.get(key, "-"), new.get(key, "-")) for key in sorted(old.keys() | new.keys())
    ]
    changed = [(key, was, now) for key, was, now in changed if was != now]
    kinds = Counter((was, now) for _, was, now in changed)
    print(f"{len(changed)} of {len(old.keys() | new.keys())} outcomes changed")
    for (was, now), count in kinds.most_common():
        print(f"{count:6} {was} -> {now}")
    for (case, backend), was, now in changed[:MAX_CHANGED_LINES]:
        print(case, backend, f"{was} -> {now}", sep="\t")
    if len(changed) > MAX_CHANGED_LINES:
        print(f"... and {len(changed) - MAX_CHANGED_LINES} more")
    return int(bool(changed))


def _read(path: Path) -> dict[tuple[str, str], str]:
    rows = (line.split("\t") for line in path.read_text().splitlines())
    return {(case, backend): outcome for case, backend, outcome in rows}


if __name__ == "__main__":
    sys.exit(main())
