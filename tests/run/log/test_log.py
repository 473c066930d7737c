"""The log of a run: its records, invalid and truncated logs, and failures to write."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
from demo import NAMES, backend, records, run_arguments, write_demo
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxopt_cli.core.record import BackendIdentity, result_to_json
from onnxopt_cli.core.result import (
    Diff,
    Element,
    Location,
    Outcome,
    Result,
    Standing,
)
from onnxopt_cli.core.tolerance import (
    Provenance,
    Relative,
    Ulps,
)
from onnxopt_cli.run.log.log_header import CaseList, Contents, Header
from onnxopt_cli.run.log.log_reader import read_log
from onnxopt_cli.run.log.log_writer import LogWriter


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


def test_log_has_header_footer_and_two_records_for_each_case(demo, onnxopt):
    answer = onnxopt(*run_arguments("OffAtC", "-b", "numpy", "--log", "run.jsonl"))
    header, *middle, footer = records(demo / "run.jsonl")
    assert answer.code == footer["exit_code"] == 1
    assert header["schema"] == "onnxopt.log/1"
    identity = {"name": backend("OffAtC"), "version": "vendor 1.5.0", "specification": ""}
    assert header["backends"][0] == identity
    assert header["cases"]["count"] == len(NAMES)
    assert header["options"]["lowering"] == "auto"
    pairs = {
        (f"demo/demo/{name}", tested["name"]) for name in NAMES for tested in header["backends"]
    }
    starts = [
        (record["case"], record["backend"]) for record in middle if record["record"] == "start"
    ]
    results = [record["result"] for record in middle if record["record"] == "end"]
    assert sorted(starts) == sorted(pairs)
    assert sorted((result["case"], result["backend"]) for result in results) == sorted(pairs)
    assert footer["counts"] == {"fail": 1, "pass": 11}
    failing = [result["case"] for result in results if result["outcome"] == "fail"]
    assert failing == ["demo/demo/c"]


def test_every_record_matches_the_published_schema(demo, onnxopt):
    schema = json.loads(onnxopt("schema", "log").out)
    validator = jsonschema_rs.validator_for(schema)
    (demo / "e.yaml").write_text(
        "onnxopt-expect: 1\nexpect: [{case: demo/demo/gone, outcome: fail}]\n"
    )
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl", "--rerun", "1", "--expect", "e.yaml"))
    onnxopt(*run_arguments("RaisesAtB", "--log", "b.jsonl", "-b", "onnx-reference"))
    for record in records(demo / "run.jsonl") + records(demo / "b.jsonl"):
        assert validator.is_valid(record), record
        assert not validator.is_valid({**record, "record": "beginning"})


def test_log_is_never_overwritten(demo, onnxopt):
    (demo / "run.jsonl").write_text("precious")
    answer = onnxopt(*run_arguments("numpy", "--log", "run.jsonl"))
    assert answer.code == 2
    assert "never overwritten" in answer.err
    assert (demo / "run.jsonl").read_text() == "precious"


@pytest.mark.parametrize("path", ["vendor.py/run.jsonl", "."])
def test_run_does_not_start_if_the_log_cannot_be_written(demo, onnxopt, path):
    answer = onnxopt(*run_arguments("numpy", "--log", path))
    assert answer.code == 2
    assert f"--log cannot write {path}" in answer.err
    assert answer.out == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_error_names_a_read_only_folder(demo, onnxopt):
    (demo / "fixed").mkdir(mode=0o500)
    answer = onnxopt(*run_arguments("numpy", "--log", "fixed/run.jsonl"))
    assert (answer.code, "Permission denied" in answer.err) == (2, True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_full_disk_loses_no_verdict(demo, onnxopt):
    answer = onnxopt(*run_arguments("OffAtC", "--log", "/dev/full"))
    assert answer.code == 2
    assert "does not conform: 5 pass, 1 fail" in answer.out
    assert "is not complete: No space left on device" in answer.err


def test_partly_written_record_is_removed_if_the_disk_is_full(demo, monkeypatch):
    writer = LogWriter.create(demo / "run.jsonl")
    writer.write({"record": "start", "case": "a", "backend": "b"})
    original_write = os.write

    def fill_disk(descriptor, data):
        monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        return original_write(descriptor, data[:5])

    monkeypatch.setattr(os, "write", fill_disk)
    writer.write({"record": "start", "case": "a", "backend": "c"})
    assert writer.failure == "full"
    monkeypatch.undo()
    writer.write({"record": "start", "case": "a", "backend": "d"})
    writer.close()
    assert [record["backend"] for record in records(demo / "run.jsonl")] == ["b"]


def test_two_runs_cannot_write_the_same_log(demo, onnxopt):
    writer = LogWriter.create(demo / "run.jsonl")
    try:
        answer = onnxopt(*run_arguments("numpy", "--log", "run.jsonl"))
    finally:
        writer.close()
    assert (answer.code, "another run is writing run.jsonl" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, "{}", "found no record of a log"),
        (1, '{"record":"start","case":"x","backend":"y"}', "found start, expected the header"),
        (2, "nonsense", "found invalid JSON"),
        (2, "[" * 100_000, "nesting"),
        (2, '{"record":"start","case":3,"backend":"x"}', "case: 3 is not of type"),
        (2, '{"record":"start","case":"x"}', "backend"),
        (2, '{"record":"end","result":{}}', "result: "),
        (2, '{"record":"start","case":NaN}', "NaN"),
        (2, '{"record":["start"]}', "found no record of a log"),
        (3, None, "found a second header"),
        (99, '{"record":"start","case":"x","backend":"y"}', "found start after the footer"),
    ],
)
def test_error_names_the_invalid_line(demo, onnxopt, line, text, message):
    path = demo / "run.jsonl"
    onnxopt(*run_arguments("numpy", "--log", path))
    lines = path.read_text().splitlines()
    number = min(line, len(lines) + 1)
    lines[number - 1 : number] = [lines[0] if text is None else text]
    path.write_text("\n".join(lines) + "\n")
    answer = onnxopt("report", "render", path, "--report", "json=-")
    assert answer.code == 2
    assert f"run.jsonl:{number}: " in answer.err
    assert message in answer.err


def test_invalid_utf_8_is_rejected(demo, onnxopt):
    (demo / "run.jsonl").write_bytes(b"\xff\xfe\n")
    answer = onnxopt("report", "render", "run.jsonl", "--report", "json=-")
    assert (answer.code, "run.jsonl:1: found bytes" in answer.err) == (2, True)


@pytest.mark.parametrize("text", ["hello", "{}", '{"record":"header","schema":"onnxopt.log/2"'])
def test_file_that_is_not_a_log_is_not_resumed(demo, onnxopt, text):
    (demo / "notes").write_text(text)
    answer = onnxopt(*run_arguments("numpy", "--resume", "notes"))
    assert (answer.code, "found no log" in answer.err) == (2, True)
    assert (demo / "notes").read_text() == text


def test_report_from_a_log_equals_the_report_of_the_run(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl", "--report", "json=live.json"))
    assert onnxopt("report", "render", "run.jsonl", "--report", "json=log.json").code == 0
    assert json.loads((demo / "log.json").read_text()) == json.loads(
        (demo / "live.json").read_text()
    )


NUMBERS = st.floats(width=64) | st.sampled_from([math.inf, math.nan, 0.0])
MAGNITUDES = st.floats(min_value=0, width=64) | st.just(math.nan)
TEXTS = st.text(max_size=8)
TOLERANCES = st.one_of(
    st.none(),
    st.builds(Relative, st.floats(0, 1), st.floats(0, 1), st.sampled_from(Provenance)),
    st.builds(Ulps, st.integers(0, 9), st.sampled_from(Provenance)),
)
ELEMENTS = st.builds(
    Element,
    st.tuples(st.integers(0, 8)),
    NUMBERS,
    NUMBERS,
    MAGNITUDES,
    MAGNITUDES,
    st.none() | st.integers(0, 2**70),
    st.none() | MAGNITUDES,
    st.booleans(),
)
DIFFS = st.builds(
    Diff,
    TEXTS,
    st.just("float32[9]"),
    structure=st.none() | TEXTS,
    tolerance=TOLERANCES,
    elements=st.just(9),
    max_absolute=MAGNITUDES,
    max_ulp=st.none() | st.integers(0, 2**70),
    needed_rtol=st.none() | MAGNITUDES,
    worst=st.lists(ELEMENTS, max_size=2).map(tuple),
)
VALUES = st.sampled_from(
    [
        None,
        np.float32([1, math.nan]),
        np.array(["a", "nan"], dtype=object),
        [np.int8(3).reshape(1, 1), None],
        {"k": np.zeros((0, 2))},
    ]
)
RESULTS = st.builds(
    Result,
    TEXTS,
    st.builds(Location, TEXTS.map(Path), st.none() | st.integers(1, 99)),
    st.lists(TEXTS, max_size=2).map(tuple),
    st.just("numpy"),
    st.sampled_from(Outcome),
    lowered=st.booleans(),
    message=TEXTS,
    diffs=st.lists(DIFFS, max_size=2).map(tuple),
    seconds=st.floats(0, 99).map(lambda seconds: round(seconds, 6)),
    returned=st.lists(VALUES, max_size=3).map(tuple),
    flaky=TEXTS,
    standing=st.none() | st.sampled_from(Standing),
    expectation=TEXTS,
)


@given(results=st.lists(RESULTS, max_size=3, unique_by=lambda result: result.case))
def test_log_returns_the_results_that_were_written(tmp_path_factory, results):
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    identity = BackendIdentity("numpy", "numpy 2")
    contents = Contents("0" * 32, {"a.yaml": "1" * 16})
    cases = CaseList(3, "0" * 32)
    versions = {"onnxopt": "1"}
    header = Header(
        "2026-01-31T00:00:00Z", versions, (identity,), cases, None, "", {}, "", contents
    )
    # All outcomes are fail, because other outcomes would contradict some of the random fields.
    results = [replace(result, outcome=Outcome.FAIL, standing=None, flaky="") for result in results]
    writer = LogWriter.create(path)
    writer.write(header.to_json())
    for result in results:
        writer.write({"record": "start", "case": result.case, "backend": result.backend})
        writer.write({"record": "end", "result": result_to_json(result)})
    writer.close()
    log = read_log(path)
    assert log.header == header
    assert list(map(result_to_json, log.record.results)) == list(map(result_to_json, results))


@pytest.mark.slow
@settings(max_examples=12)
@given(data=st.data())
def test_log_truncated_at_any_byte_resumes_to_the_same_verdict(demo, onnxopt, data):
    complete = demo / "complete.jsonl"
    if not complete.exists():
        onnxopt(*run_arguments("OffAtC", "--log", complete))
    size = data.draw(st.integers(0, complete.stat().st_size))
    truncated = demo / "truncated.jsonl"
    truncated.write_bytes(complete.read_bytes()[:size])
    answer = onnxopt(*run_arguments("OffAtC", "--resume", truncated))
    assert answer.code == 1, answer.err
    assert "does not conform: 5 pass, 1 fail" in answer.out
    before, after = (
        {(result.case, result.outcome) for result in read_log(path).record.results}
        for path in (complete, truncated)
    )
    assert before == after
    assert read_log(truncated).finished
