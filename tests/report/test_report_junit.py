"""JUnit XML is valid, readable by junitparser, and consistent with the run."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import every_outcome, hostile, record, rendered, result

from onnxopt_cli.core.result import Location, Outcome
from onnxopt_cli.errors import Fault

xmlschema = pytest.importorskip("xmlschema")
junitparser = pytest.importorskip("junitparser")


@cache
def schema():
    return xmlschema.XMLSchema(Path(__file__).parent / "junit.xsd")


def read(text):
    schema().validate(text)
    return {
        case.name: case
        for suite in junitparser.JUnitXml.fromstring(text.encode())
        for case in suite
    }


def tree(text):
    return ET.fromstring(text.encode())  # noqa: S314 - our own report


def kinds(text):
    return {
        name: [type(element).__name__.lower() for element in case.result]
        for name, case in read(text).items()
    }


def test_only_nonconforming_results_are_failures_or_errors():
    failing = {"fail", "unsupported", "surprise"}
    kinds_by_name = kinds(rendered("junit", every_outcome()))
    assert {name for name, elements in kinds_by_name.items() if elements == ["failure"]} == failing
    assert {name for name, elements in kinds_by_name.items() if elements == ["skipped"]} == {
        "skip",
        "not-run",
        "known",
    }
    assert {name for name, elements in kinds_by_name.items() if not elements} == {"pass"}
    errors = {outcome.value for outcome in Outcome} - failing - {"skip", "not-run", "pass"}
    assert {name for name, elements in kinds_by_name.items() if elements == ["error"]} == errors


def test_counts_read_by_junitparser_are_those_of_the_run():
    report = junitparser.JUnitXml.fromstring(rendered("junit", every_outcome()).encode())
    count = len(Outcome) + 2
    assert (report.tests, report.failures, report.errors) == (count, 3, count - 7)
    (suite,) = report
    assert (suite.name, suite.tests, suite.skipped) == ("numpy", count, 3)
    assert suite.time == pytest.approx(count * 0.25)


def test_each_backend_is_a_suite_and_ids_are_split_into_class_and_name():
    report = junitparser.JUnitXml.fromstring(
        rendered("junit", record(result(), result(backend="other"))).encode()
    )
    assert [suite.name for suite in report] == ["numpy", "other"]
    case = next(iter(next(iter(report))))
    assert (case.classname, case.name, case.time) == ("numpy.demo.adam", "first", 0.25)


def test_failure_contains_location_differences_and_command():
    case = read(rendered("junit", record(result(outcome=Outcome.FAIL))))["first"]
    (failure,) = case.result
    assert failure.message == "X_new: 1 of 2 elements is off at [1]: 2.5 instead of 2.0"
    assert failure.text.startswith("cases/demo.yaml:7\n")
    assert "[1]" in failure.text
    assert "again: onnxopt run cases/demo.yaml -k demo/adam/first -b numpy" in failure.text


NAMES = st.text(st.sampled_from("aA./ \n\x1b()2"), max_size=5)


@given(st.lists(st.tuples(NAMES, NAMES.map(lambda text: f"b{text}")), max_size=12, unique=True))
def test_pairs_of_classname_and_name_are_unique(pairs):
    # GitLab drops a result if another one, even in another suite, has the same classname and name.
    results = [result(case, backend, Outcome.ERROR) for case, backend in pairs]
    problems = tuple(Fault(case, case) for case, _ in pairs)
    text = rendered("junit", record(*results, problems=problems, started="2026-01-31T23:59:59Z"))
    root = tree(text)
    keys = [(element.get("classname"), element.get("name")) for element in root.iter("testcase")]
    assert len(keys) == len(results) + len(problems)
    assert len({tuple(part.strip().lower() for part in key) for key in keys}) == len(keys)
    # Jenkins drops a suite if another suite has the same name and time.
    suites = [element.get("name") for element in root.iter("testsuite")]
    assert len(set(suites)) == len(suites)


def test_failures_outside_of_cases_are_reported_for_each_backend():
    places = [("teardown", "a"), ("teardown", "b"), ("Teardown", "a")]
    outside = [result(f"worker/{place}", name, Outcome.CRASH) for place, name in places]
    text = rendered("junit", record(*outside))
    root = tree(text)
    keys = [(element.get("classname"), element.get("name")) for element in root.iter("testcase")]
    assert keys == [
        ("a.worker", "teardown"),
        ("a.worker", "Teardown (2)"),
        ("b.worker", "teardown"),
    ]


def test_cases_have_locations_and_suites_have_time_and_host(workplace):
    place = Location(workplace / "cases" / "demo.yaml", 7)
    run = record(
        result(location=place),
        result("demo/other", location=Location(Path("/elsewhere/test_adam"))),
        started="2026-01-31T23:59:59.000001Z",
        hostname="ci <1>",
    )
    text = rendered("junit", run)
    schema().validate(text)
    (suite,) = tree(text)
    assert suite.get("timestamp") == "2026-01-31T23:59:59.000001"
    assert suite.get("hostname") == "ci <1>"
    first, other = suite.iter("testcase")
    assert (first.get("file"), first.get("line")) == ("cases/demo.yaml", "7")
    assert (other.get("file"), other.get("line")) == ("/elsewhere/test_adam", None)


def test_xunit_omits_only_locations():
    run = every_outcome()
    junit, xunit = (tree(rendered(form, run)) for form in ("junit", "xunit"))
    assert not any(set(element.attrib) & {"file", "line"} for element in xunit.iter("testcase"))
    for case in junit.iter("testcase"):
        del case.attrib["file"], case.attrib["line"]
    assert ET.tostring(junit) == ET.tostring(xunit)


def test_message_shortens_a_stack_trace_and_the_text_is_complete():
    trace = "\n".join(
        ["Error: cannot", *(f"  at frame {number}" for number in range(300)), "Last: cause"]
    )
    (failure,) = read(rendered("junit", record(result(outcome=Outcome.ERROR, message=trace))))[
        "first"
    ].result
    assert failure.message == "Error: cannot ... Last: cause"
    assert trace in failure.text
    assert "again: onnxopt run" in failure.text


def test_problems_of_case_and_expectation_files_are_errors():
    problems = (Fault("a.yaml:3", "no such field"),)
    kinds_by_name = kinds(rendered("junit", record(result(), problems=problems, findings=problems)))
    assert kinds_by_name["a.yaml:3"] == ["error"]


def test_hostile_text_does_not_break_the_document():
    text = rendered("junit", hostile())
    read(text)
    assert not set(text) & set(map(chr, (0, 7, 13, 27, 0x202E, 0xFFFE, 0xDC80)))


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_gives_a_valid_document(text):
    hostile_result = result(text, text, Outcome.ERROR, message=text, printed=text)
    schema().validate(rendered("junit", record(hostile_result)).encode())
