"""Run the rows of the gallery on their runtimes, and report whether each defect is reproduced.

``python scripts/check_gallery.py openvino tract`` checks the rows of two runtimes, each through its
adapter. Without names, all runtimes are checked. The script prints a state for each row:

- ``reproduced``: the runtime returns the wrong value of the row.
- ``fixed``: the case of the row passes. The version of the runtime is printed.
- ``different``: the case fails in another way, or the runtime does not compute it.

A table of the counts by runtime follows. The script exits with 1 if a row is not reproduced, or if
a runtime does not start.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from onnxopt_cli import OnnxoptError, Outcome, Result, load_cases
from onnxopt_cli._api import Collection, Interruption, RunConfig, open_session
from onnxopt_cli.backends.resolve import BUILT_IN
from onnxopt_cli.core.result import place
from onnxopt_cli.suites.gallery.gallery_suite import (
    Defect,
    Observation,
    TestedRuntime,
    runtimes,
)

# A returned value may differ slightly from the wrong value of a row, because other processors round
# differently. The two values count as equal if they differ by at most _MAX_DISTANCE times the
# distance between the wrong and the right value.
_MAX_DISTANCE = 0.1
_MAX_MESSAGE_CHARS = 100


class DefectState(StrEnum):
    """The state of a defect in the version that was run."""

    REPRODUCED = "reproduced"
    FIXED = "fixed"
    DIFFERENT = "different"


NOT_CHECKED = "not checked"
COUNTED = (*DefectState, NOT_CHECKED)


class CheckedRow(NamedTuple):
    """The result of running the case of a gallery row.

    Attributes:
        row: the row.
        state: whether its defect was reproduced.
        seen: what the runtime returned, or why it returned nothing.
    """

    row: Defect
    state: DefectState
    seen: str


def check_row(row: Defect, result: Result) -> CheckedRow:
    """Compare the result of a row's case with the row."""
    message = result.message.partition("\n")[0][:_MAX_MESSAGE_CHARS]
    if result.outcome is Outcome.PASS:
        return CheckedRow(row, DefectState.FIXED, "passes")
    is_text = isinstance(row.right, Mapping) and "text" in row.right
    if is_text or (row.varies and result.outcome is Outcome.FAIL):
        failed = result.outcome in {Outcome.FAIL, Outcome.ERROR}
        state = DefectState.REPRODUCED if failed else DefectState.DIFFERENT
        return CheckedRow(row, state, f"{result.outcome}: {message}")
    observed = _observed(row, result)
    if observed is None:
        return CheckedRow(row, DefectState.DIFFERENT, f"{result.outcome}: {message}")
    state = DefectState.REPRODUCED if is_near(row, observed) else DefectState.DIFFERENT
    return CheckedRow(row, state, described(row, observed))


def _observed(row: Defect, result: Result) -> Observation | None:
    """Return the observation of a row (element, shape or type) in a result, if there is one."""
    for diff, output in zip_longest(result.diffs, result.returned):
        if diff is None or diff.name != row.output:
            continue
        if isinstance(output, np.ndarray):
            return row.observe(output)
        # If one output is an empty optional, the result does not keep the outputs.
        worst = {tuple(element.index): element.actual for element in diff.worst}
        actual = worst.get(row.element)
        return actual if isinstance(actual, int | float) else None
    return None


def is_near(row: Defect, observed: Observation) -> bool:
    """Return whether an observation is the wrong value of a row."""
    wrong, right = row.wrong, row.right
    if isinstance(wrong, Mapping) or isinstance(right, Mapping) or isinstance(observed, Mapping):
        return observed == wrong
    if not (math.isfinite(wrong) and math.isfinite(observed)):
        return observed == wrong or (math.isnan(observed) and math.isnan(wrong))
    distance = abs(wrong - right) if math.isfinite(right) else abs(wrong)
    return abs(observed - wrong) <= _MAX_DISTANCE * distance


def described(row: Defect, observation: Observation) -> str:
    """Describe an observation: ``Y[0, 1] = 2.5``, ``shape of Y: [2, 1]``."""
    if isinstance(observation, Mapping):
        ((kind, value),) = observation.items()
        return str(value) if kind == "text" else f"{kind} of {row.output}: {value}"
    return f"{row.output}{place(row.element)} = {observation:.9g}"


def check_runtime(runtime: TestedRuntime, backend: str) -> tuple[str, list[CheckedRow]]:
    """Run the rows of a runtime.

    Args:
        runtime: the runtime.
        backend: the specification of the backend.

    Returns:
        The version of the backend, and its rows.

    Raises:
        OnnxoptError: if the backend does not start.
    """
    cases = load_cases(f"gallery/{runtime.adapter}")
    config = RunConfig(backends=(backend,))
    with open_session(config, lambda: Collection(tuple(cases), ()), Interruption()) as session:
        results = {result.case: result for row in session.rows() for result in row}
        version = session.plan.backends[0].version
    rows = {f"gallery/{runtime.adapter}/{row.name}": row for row in runtime.defects}
    return version, [check_row(row, results[name]) for name, row in rows.items()]


def lines(runtime: TestedRuntime, version: str, checked: Sequence[CheckedRow]) -> Iterator[str]:
    """Yield a line of text for each checked row of a runtime."""
    for row, state, seen in checked:
        where = f" in {version}" if state is DefectState.FIXED else ""
        expected = described(row, row.wrong)
        mismatch = f"; expected {expected}" if state is DefectState.DIFFERENT else ""
        yield f"{state}{where}  {runtime.adapter}/{row.name}: {seen}{mismatch}"


def table_row(adapter: str, version: str, counts: Counter[str]) -> str:
    """Return a row of the table of counts."""
    cells = " ".join(f"{counts[state]:11}" for state in COUNTED)
    return f"{adapter:18} {counts.total():5} {cells}  {version}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the given runtimes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    adapters = [runtime.adapter for runtime in runtimes()]
    parser.add_argument("adapters", nargs="*", metavar="ADAPTER")
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="ADAPTER=BACKEND",
        help="check the rows of ADAPTER with BACKEND, a specification as for `onnxopt run -b`",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.adapters).difference(adapters):
        parser.error(f"no rows of {', '.join(sorted(unknown))}: expected {', '.join(adapters)}")
    backends: dict[str, str] = {}
    for text in options.backend:
        adapter, _, backend = text.partition("=")
        if adapter not in adapters or not backend:
            parser.error(f"argument --backend: expected ADAPTER=BACKEND, got {text!r}")
        backends[adapter] = backend
    titles = " ".join(f"{state:>11}" for state in COUNTED)
    table = [f"{'adapter':18} {'rows':>5} {titles}  version"]
    totals: Counter[str] = Counter()
    for runtime in runtimes():
        if options.adapters and runtime.adapter not in options.adapters:
            continue
        built_in = runtime.adapter in BUILT_IN
        named = runtime.adapter if built_in else f"adapter:{runtime.adapter}"
        counts: Counter[str] = Counter()
        try:
            version, checked = check_runtime(runtime, backends.get(runtime.adapter, named))
        except OnnxoptError as error:
            version = " ".join(error.message.split())
            counts[NOT_CHECKED] = len(runtime.defects)
        else:
            for line in lines(runtime, version, checked):
                print(line, flush=True)
            counts.update(str(row.state) for row in checked)
        table.append(table_row(runtime.adapter, version, counts))
        totals += counts
    print("", *table, table_row("all", "", totals), sep="\n")
    return int(set(totals) != {str(DefectState.REPRODUCED)})


if __name__ == "__main__":
    sys.exit(main())
