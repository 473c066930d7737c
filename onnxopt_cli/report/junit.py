"""A run as JUnit XML, which every CI server reads.

Valid against the schema of Jenkins' xUnit plugin, the strictest reader: it knows no ``file`` and
``line`` of a test case, so that these stand in the text of the failure.

Source: https://github.com/jenkinsci/xunit-plugin, junit-10.xsd
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from onnxopt_cli.core.outcome import HARMLESS, Outcome
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import Result
from onnxopt_cli.core.text import printable
from onnxopt_cli.errors import Problem
from onnxopt_cli.report.diff_text import failure_text, headline
from onnxopt_cli.report.repeat import repeat_command

#: Wrong answers; every other outcome that counts against the backend is an error.
_WRONG = frozenset({Outcome.PASS, Outcome.FAIL, Outcome.UNSUPPORTED})


def junit_report(record: RunRecord) -> str:
    """Return a run as XML text: a test suite a backend, and one for what is wrong with files.

    What makes the run fail is a failure or an error here, what was expected or not run is skipped.
    """
    root = Element("testsuites", name="onnxopt")
    for backend in record.backends:
        mine = [result for result in record.results if result.backend == backend.name]
        suite = SubElement(root, "testsuite", name=printable(backend.name))
        _add_properties(suite, {**record.versions, "backend": backend.version})
        for result in mine:
            _add_result(suite, result, record)
        _count(suite, sum(result.seconds for result in mine))
    problems = [*record.problems, *record.findings]
    if problems:
        _add_problems(root, problems)
    suites = root.findall("testsuite")
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in suites)))
    root.set("time", _total(sum(result.seconds for result in record.results)))
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_result(suite: Element, result: Result, record: RunRecord) -> None:
    group, _, name = result.case.rpartition("/")
    case = SubElement(
        suite,
        "testcase",
        name=printable(name),
        classname=printable(group.replace("/", ".")),
        time=_seconds(result.seconds),
    )
    kind = _kind(result)
    if kind is not None:
        word = (result.standing or result.outcome).value
        told = headline(result) or result.expectation or word
        child = SubElement(case, kind, type=word, message=printable(told))
        text = [str(result.location), failure_text(result)]
        if not result.conforms:
            text.append(f"again: {repeat_command(result, record.options)}")
        child.text = printable("\n".join(filter(None, text)), lines=True)


def _kind(result: Result) -> str | None:
    """Return the element that tells of a result; None if there is nothing to tell."""
    if result.outcome in (Outcome.SKIP, Outcome.NOT_RUN):
        return "skipped"
    if result.conforms:
        return None if result.outcome in HARMLESS else "skipped"
    return "failure" if result.outcome in _WRONG else "error"


def _add_problems(root: Element, problems: Sequence[Problem]) -> None:
    suite = SubElement(root, "testsuite", name="case and expectation files")
    for problem in problems:
        case = SubElement(
            suite, "testcase", name=printable(problem.where), classname="files", time=_seconds(0)
        )
        error = SubElement(case, "error", type="invalid", message=printable(problem.what))
        error.text = printable(str(problem), lines=True)
    _count(suite, 0)


def _add_properties(suite: Element, values: dict[str, str]) -> None:
    properties = SubElement(suite, "properties")
    for name, value in values.items():
        SubElement(properties, "property", name=printable(name), value=printable(value))


def _count(suite: Element, seconds: float) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", _total(seconds))


def _seconds(seconds: float) -> str:
    return f"{seconds:.6f}"


def _total(seconds: float) -> str:
    # The schema allows three digits, but of a single case any number.
    return f"{seconds:.3f}"
