"""Records of runs for tests of reports: ordinary records, and a record with hostile texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from onnxopt_cli.core.compare import compare_outputs
from onnxopt_cli.core.record import (
    BackendIdentity,
    Cause,
    Explanation,
    RunRecord,
)
from onnxopt_cli.core.result import (
    Location,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.tolerance import Branch, ErrorBound
from onnxopt_cli.errors import Fault
from onnxopt_cli.report.report_files import render
from onnxopt_cli.report.view.run_view import RunView

#: Hostile texts for names, messages and values.
HOSTILE = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "a|b`c``d|e\\|f",
    "[/x] [red]no[/red] [link](https://evil.example) ![i](https://evil.example/i.png)",
    "https://evil.example www.evil.example @everyone #1",
    "\x1b[31m\x00\x07 \u202egnp.exe \u2066x",
    "\ufffe \uffff \udc80 ]]> <!-- -->",
    "::error::owned\n::add-mask::x\r\n::set-output name=a::b",
    "=cmd|' /C calc'!A0",
    "../../etc/passwd",
    "$\\frac{1}{0}$ 50%,x:y",
    "</details></table><h1>owned",
    "```\n# owned\n~~~",
)


def diff(name="X_new", actual=(1.0, 2.5), limit=1e-6):
    """Return the diff of an output whose right elements are 1 and 2."""
    expected = np.array([1.0, 2.0], dtype=np.float32)
    error_bound = ErrorBound(Branch(expected, np.full(2, limit)).at, factor=4.0)
    returned = np.array(actual, dtype=np.float32)
    return compare_outputs({name: expected}, [returned], lambda _: error_bound)[0]


def result(case="demo/adam/first", backend="numpy", outcome=Outcome.PASS, **fields):
    """Return a result of Adam; if the outcome is FAIL, X_new is wrong."""
    right = [diff(name, actual=(1.0, 2.0)) for name in ("V_new", "H_new")]
    diffs = ()
    if outcome in (Outcome.PASS, Outcome.FAIL):
        diffs = (diff(actual=(1.0, 2.0) if outcome is Outcome.PASS else (1.0, 2.5)), *right)
    usual = {
        "location": Location(Path("cases/demo.yaml"), 7),
        "operators": ("Adam",),
        "diffs": diffs,
        "seconds": 0.25,
    }
    return Result(case=case, backend=backend, outcome=outcome, **(usual | fields))


def record(*results, **fields):
    """Return the record of a run with the given results."""
    names = dict.fromkeys(result.backend for result in results)
    usual = {
        "versions": {"onnxopt": "1.2.3", "python": "3.11"},
        "backends": tuple(BackendIdentity(name, "9.9") for name in names),
        "options": {"targets": ["cases"]},
        "exit_code": int(not all(result.conforms for result in results)),
    }
    return RunRecord(results=results, **(usual | fields))


def rendered(form, run):
    """Return the report of a run as text in the format ``form``."""
    return "".join(render(form, RunView(run)))


def every_outcome():
    """Return the record of a run that contains every outcome and every standing."""
    results = [
        result(
            f"demo/adam/{outcome.value}",
            outcome=outcome,
            message="" if outcome in (Outcome.PASS, Outcome.FAIL) else f"says {outcome.value}",
        )
        for outcome in Outcome
    ]
    failing = result("demo/adam/known", outcome=Outcome.FAIL)
    results.append(replace(failing, standing=Standing.EXPECTED, expectation="known: see 12"))
    passing = result("demo/adam/surprise")
    results.append(replace(passing, standing=Standing.UNEXPECTED_PASS, expectation="known: gone"))
    return record(*results)


def hostile():
    """Return the record of a run in which every text from files or backends is hostile."""
    results = []
    for number, text in enumerate(HOSTILE):
        for backend in ("numpy", HOSTILE[0], HOSTILE[4]):
            outcome = (Outcome.FAIL, Outcome.ERROR, Outcome.PASS)[number % 3]
            plain = result(f"demo/{text}", backend, outcome, message=text if number % 3 else "")
            diffs = tuple(replace(output, name=f"{output.name} {text}") for output in plain.diffs)
            place = Location(Path(text.replace("\0", "")), number)
            results.append(replace(plain, diffs=diffs, location=place, printed=text))
    strings = np.array(HOSTILE, dtype=object)
    blank = np.full(len(HOSTILE), "", dtype=object)
    diffs = compare_outputs({"texts": strings}, [blank], lambda _: None, worst=len(HOSTILE))
    results.append(result("demo/texts", "numpy", Outcome.FAIL, diffs=diffs, operators=HOSTILE))
    return record(
        *results,
        options={"targets": list(HOSTILE), "expect": HOSTILE[0]},
        versions={"onnxopt": "1.2.3", "machine": HOSTILE[0]},
        problems=tuple(Fault(f"{text}:3", text) for text in HOSTILE),
        findings=tuple(Fault(text, text) for text in HOSTILE),
        explanations=tuple(
            Explanation(text, text, (Cause(text, (text,), (text,)),), {text: {text: 2}}, text)
            for text in HOSTILE
        ),
        exit_code=1,
    )
