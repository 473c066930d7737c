"""JUnit XML: valid, read by a real consumer, and true to the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_records import every_outcome, hostile, record, result

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.errors import Problem
from onnxopt_cli.report.junit import junit_report

xmlschema = pytest.importorskip("xmlschema")
junitparser = pytest.importorskip("junitparser")

SCHEMA = xmlschema.XMLSchema(Path(__file__).parent / "junit.xsd")


def read(text):
    SCHEMA.validate(text)
    return {
        case.name: case
        for suite in junitparser.JUnitXml.fromstring(text.encode())
        for case in suite
    }


def kinds(text):
    return {
        name: [type(it).__name__.lower() for it in case.result] for name, case in read(text).items()
    }


def test_what_makes_the_run_fail_is_a_failure_or_an_error_and_nothing_else_is():
    failing = {"fail", "unsupported", "surprise"}
    found = kinds(junit_report(every_outcome()))
    assert {name for name, it in found.items() if it == ["failure"]} == failing
    assert {name for name, it in found.items() if it == ["skipped"]} == {"skip", "not-run", "known"}
    assert {name for name, it in found.items() if not it} == {"pass"}
    errors = {it.value for it in Outcome} - failing - {"skip", "not-run", "pass"}
    assert {name for name, it in found.items() if it == ["error"]} == errors


def test_a_real_consumer_counts_what_the_run_counted():
    report = junitparser.JUnitXml.fromstring(junit_report(every_outcome()).encode())
    assert (report.tests, report.failures, report.errors) == (14, 3, 7)
    (suite,) = report
    assert (suite.name, suite.tests, suite.skipped) == ("numpy", 14, 3)
    assert suite.time == pytest.approx(14 * 0.25)


def test_each_backend_is_a_suite_and_the_id_is_split_into_class_and_name():
    report = junitparser.JUnitXml.fromstring(
        junit_report(record(result(), result(backend="other"))).encode()
    )
    assert [suite.name for suite in report] == ["numpy", "other"]
    case = next(iter(next(iter(report))))
    assert (case.classname, case.name, case.time) == ("demo.adam", "first", 0.25)


def test_a_failure_says_where_the_case_is_what_differs_and_how_to_repeat_it():
    case = read(junit_report(record(result(outcome=Outcome.FAIL))))["first"]
    (failure,) = case.result
    assert failure.message == "X_new: 1 of 2 off"
    assert failure.text.startswith("cases/demo.yaml:7\n")
    assert "[1]" in failure.text
    assert "again: onnxopt run cases/demo.yaml -k demo/adam/first -b numpy" in failure.text


def test_problems_of_case_and_expectation_files_are_errors():
    problems = (Problem("a.yaml:3", "no such field"),)
    found = kinds(junit_report(record(result(), problems=problems, findings=problems)))
    assert found["a.yaml:3"] == ["error"]


def test_no_hostile_text_breaks_the_document():
    text = junit_report(hostile())
    read(text)
    assert not set(text) & set(map(chr, (0, 7, 13, 27, 0x202E, 0xFFFE, 0xDC80)))


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_gives_a_valid_document(text):
    it = result(text, text, Outcome.ERROR, message=text, printed=text)
    SCHEMA.validate(junit_report(record(it)).encode())
