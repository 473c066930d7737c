"""Report a run as JUnit XML, which every CI server reads.

The following requirements of readers determine the form of the document:

- GitLab identifies a case by ``classname`` and ``name``, not by its suite, and keeps only one of
  several cases with the same pair. Each pair is therefore unique; ``classname`` contains the
  backend.
- Jenkins drops a suite with the ``name`` and ``timestamp`` of another suite. Names of suites are
  therefore unique.
- GitLab and actions that annotate pull requests link to the ``file`` and ``line`` of a test case.
- Jenkins' xUnit plugin rejects a document with the attributes ``file`` and ``line``; the format
  ``xunit`` omits them. Jenkins' ``junit`` step accepts both formats.

Sources: https://docs.gitlab.com/ci/testing/unit_test_reports,
https://github.com/jenkinsci/junit-plugin, https://github.com/jenkinsci/xunit-plugin (junit-10.xsd)
"""

from __future__ import annotations

from functools import partial
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from onnxopt_cli.core.files import shown_path
from onnxopt_cli.core.record import RunRecord
from onnxopt_cli.core.result import (
    HARMLESS,
    Location,
    Outcome,
    Result,
)
from onnxopt_cli.core.text import FreeNames, printable
from onnxopt_cli.report.view.result_view import ResultView
from onnxopt_cli.report.view.run_view import RunView

#: Results with these outcomes that do not conform are reported as failures. All other results that
#: do not conform are reported as errors.
_WRONG = frozenset({Outcome.PASS, Outcome.FAIL, Outcome.UNSUPPORTED})


def junit_report(view: RunView, *, places: bool = True) -> str:
    """Return a run as XML text: one test suite per backend, and one for problems of files.

    Results that do not conform are reported as failures or errors. Expected failures and cases that
    did not run are reported as skipped.

    Args:
        view: the run.
        places: whether test cases have a file and a line.
    """
    record = view.record
    root = Element("testsuites", name="onnxopt")
    names, suites = (FreeNames("{} ({})", alike=_read_as) for _ in range(2))
    for backend in view.backends:
        suite = _add_suite(root, suites(printable(backend.name)), record)
        properties = SubElement(suite, "properties")
        facts = {
            "backend": backend.version,
            "counts": backend.text,
            "scope": view.scope,
            "fallback": view.fallback,
        }
        for name, value in {**record.versions, **facts}.items():
            SubElement(properties, "property", name=printable(name), value=printable(value))
        for result in backend.results:
            _add_result(suite, view.result(result), names)
        _count(suite, sum(result.seconds for result in backend.results))
    if problems := [*record.problems, *record.findings]:
        suite = _add_suite(root, suites("case and expectation files"), record)
        for problem in problems:
            place = Location.parse(problem.where)
            case = _add_case(suite, "files", printable(problem.where), 0, place, names)
            error = SubElement(case, "error", type="invalid", message=printable(problem.what))
            error.text = printable(str(problem), lines=True)
        _count(suite, 0)
    _count(root, sum(result.seconds for result in record.results))
    # In the schemas, the root element cannot have an attribute ``skipped``.
    del root.attrib["skipped"]
    for case in () if places else root.iter("testcase"):
        for name in ("file", "line"):
            case.attrib.pop(name, None)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


#: The variant of the format for Jenkins' xUnit plugin.
xunit_report = partial(junit_report, places=False)


def _read_as(name: str) -> str:
    """Return a name as some readers compare it: in lower case, without surrounding spaces."""
    return name.strip().casefold()


def _add_suite(root: Element, name: str, record: RunRecord) -> Element:
    suite = SubElement(root, "testsuite", name=name)
    if record.started:
        # The older schemas do not allow a time zone. The time is in UTC.
        suite.set("timestamp", printable(record.started.removesuffix("Z")))
    if record.hostname:
        suite.set("hostname", printable(record.hostname))
    return suite


def _add_case(
    suite: Element, classname: str, name: str, seconds: float, place: Location, names: FreeNames
) -> Element:
    case = SubElement(
        suite,
        "testcase",
        name=names(name, classname),
        classname=classname,
        time=f"{seconds:.6f}",
        file=printable(shown_path(place.path)),
    )
    if place.line:
        case.set("line", str(place.line))
    return case


def _add_result(suite: Element, view: ResultView, names: FreeNames) -> None:
    result = view.result
    group, _, name = result.case.rpartition("/")
    within = ".".join(filter(None, (result.backend, group.replace("/", "."))))
    case = _add_case(
        suite, printable(within), printable(name), result.seconds, result.location, names
    )
    if kind := _kind(result):
        message = view.headline or result.expectation or view.word
        child = SubElement(case, kind, type=view.word, message=printable(message))
        text = [printable(str(result.location)), view.text()]
        if not result.conforms:
            text.append(f"again: {printable(view.again)}")
        child.text = "\n".join(filter(None, text))
    elif result.note:
        SubElement(case, "system-out").text = printable(result.note)


def _kind(result: Result) -> str | None:
    """Return the name of the element that reports a result; None for a plain pass."""
    if result.outcome in (Outcome.SKIP, Outcome.NOT_RUN):
        return "skipped"
    if result.conforms:
        return None if result.outcome in HARMLESS else "skipped"
    return "failure" if result.outcome in _WRONG else "error"


def _count(suites: Element, seconds: float) -> None:
    """Set the time and the counts of cases by kind in a suite or in the root element."""
    kinds = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    for name, tag in kinds.items():
        suites.set(name, str(sum(1 for _ in suites.iter(tag))))
    # The schema allows only three decimals in the time of a suite. In the time of a case, it allows
    # any number of decimals.
    suites.set("time", f"{seconds:.3f}")
