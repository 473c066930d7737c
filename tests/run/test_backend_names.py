"""``-b NAME=BACKEND`` gives a backend a name in results, logs and reports."""

from __future__ import annotations

import json
import re

import pytest
from demo import backend, records, write_demo

UNCHANGED = """
class Backend:
    def run(self, model, inputs):
        return list(inputs.values())
"""

ACME = f"acme={backend('OffAtC')}"
OFF = ("--isolation", "none", "--no-explain")


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


def test_name_stands_for_the_backend_in_every_output(demo, onnxopt):
    formats = ("json", "junit", "markdown", "github", "html")
    reports = [word for form in formats for word in ("--report", f"{form}=out.{form}")]
    files = ("--log", "run.jsonl", "--artifacts", "failing", "--durations", "1")
    answer = onnxopt("run", "demo.yaml", "-b", ACME, "-b", "numpy", *OFF, *files, *reports)
    assert "acme does not conform: 5 pass, 1 fail" in answer.out
    assert re.search(r"slowest cases +backend[^\n]*\n\S+ +(acme|numpy) ", answer.out)
    header, *later_records = records(demo / "run.jsonl")
    assert header["backends"][0]["name"] == "acme"
    assert header["backends"][0]["specification"] == backend("OffAtC")
    assert {entry["backend"] for entry in later_records if entry["record"] == "start"} == {
        "acme",
        "numpy",
    }
    assert (demo / "failing" / "acme").is_dir()
    # Only commands and the list of options contain the specification of the backend.
    again = f"onnxopt run demo.yaml -k demo/demo/c -b {ACME}"
    for form in formats:
        text = (demo / f"out.{form}").read_text(encoding="utf-8")
        assert "acme" in text
        if form != "json":
            assert again in text
        if form in ("markdown", "github", "junit"):
            assert backend("OffAtC") not in text.replace(again, "")


@pytest.mark.slow
def test_command_that_repeats_a_case_works(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-b", ACME, *OFF)
    command = re.search(r"again: onnxopt (.*?)\n", answer.out.replace(" │\n│", ""))[1]
    again = onnxopt(*command.replace("│", "").split())
    assert "acme does not conform: 1 fail" in again.out


def test_expectations_apply_to_the_name(demo, onnxopt):
    entry = "onnxopt-expect: 1\nexpect:\n  - {case: demo/demo/c, outcome: fail, backend: acme}\n"
    (demo / "known.yaml").write_text(entry)
    expect = ("--expect", "known.yaml")
    answer = onnxopt("run", "demo.yaml", "-b", ACME, *OFF, *expect)
    assert "acme fails only as expected: 5 pass, 1 expected failure" in answer.out
    assert onnxopt("run", "demo.yaml", "-b", backend("OffAtC"), *OFF, *expect).code == 1
    onnxopt("run", "demo.yaml", "-b", ACME, *OFF, "--update-expect", "new.yaml")
    assert "backend: acme" in (demo / "new.yaml").read_text()


def test_run_resumes_and_reruns_by_name(demo, onnxopt):
    run = ("run", "demo.yaml", "-b", ACME, *OFF, "--rerun", "1")
    onnxopt(*run, "--log", "run.jsonl")
    log = demo / "run.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:5]))
    assert "acme does not conform: 5 pass, 1 fail" in onnxopt(*run, "--resume", "run.jsonl").out
    answer = onnxopt(
        "run", "demo.yaml", "-b", f"other={backend('OffAtC')}", *OFF, "--resume", "run.jsonl"
    )
    assert answer.code == 2
    assert "the backends (acme" in answer.err


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        (("acme=numpy", ACME), "two backends have the name acme"),
        (("numpy", "numpy=onnx-reference"), "two backends have the name numpy"),
        (("trt", "trt,math=tf32"), "two backends have the name trt"),
        (("acme=numpy", "acme=numpy"), "the same backend is given twice"),
    ],
)
def test_repeated_name_is_a_usage_error(demo, onnxopt, backends, message):
    (demo / "onnxopt.toml").write_text(f'[backends.trt]\nbackend = "{backend("Right")}"\n')
    answer = onnxopt(
        "run", "demo.yaml", *(word for name in backends for word in ("-b", name)), *OFF
    )
    assert answer.code == 2
    assert message in answer.err


def test_command_line_can_rename_a_configured_backend(demo, onnxopt):
    (demo / "onnxopt.toml").write_text(f'[backends.trt]\nbackend = "{backend("Right")}"\n')
    answer = onnxopt("run", "demo.yaml", "-b", "trt", "-b", "fast=trt,math=tf32", *OFF)
    assert "trt conforms: 6 pass" in answer.out
    assert "fast conforms: 6 pass" in answer.out
    assert "fast judged as math=tf32" in answer.out


def test_hostile_name_of_a_saved_run_is_escaped(demo, onnxopt):
    onnxopt("run", "demo.yaml", "-b", ACME, *OFF, "--report", "json=run.json")
    saved = (demo / "run.json").read_text().replace('"acme"', json.dumps("<b>::error::x\u202e"))
    (demo / "run.json").write_text(saved)
    assert onnxopt("report", "render", "run.json", "--report", "html=out.html").code == 0
    text = (demo / "out.html").read_text(encoding="utf-8")
    assert "<b>::error" not in text
    assert "\u202e" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["acme", "numpy"])
def test_failures_of_a_named_backend_are_explained_with_that_backend(workplace, onnxopt, name):
    (workplace / "plugin.py").write_text(UNCHANGED)
    options = ("-b", f"{name}=python:plugin.py:Backend", "--explain-time", "3600")
    answer = onnxopt("run", "onnx-node/test_relu/0", *options)
    assert answer.code == 1
    assert "outputs equal to the first input" in " ".join(answer.out.split())
