"""``--report``: the formats and the output files."""

from __future__ import annotations

import io
import json
import os
import platform
import re
from datetime import UTC, datetime, timedelta

import pytest
from onnx_directories import make_plain
from two_cases import BACKEND, CASE

from onnxopt_cli.config.run_config import REPORT_FORMATS

OFF = ["-b", "python:vendor.py:Off", "--no-explain"]
TLS_FILES = ["ca.pem", "certificate.pem", "key.pem"]


@pytest.fixture
def demo(workplace, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "vendor.py").write_text(BACKEND)
    return workplace


def test_one_run_writes_any_number_of_reports(demo, onnxopt):
    requests = [part for name in REPORT_FORMATS for part in ("--report", f"{name}=out.{name}")]
    assert onnxopt("run", "demo.yaml", *OFF, *requests, "--log", "run.jsonl").code == 1
    for name in REPORT_FORMATS:
        report = (demo / f"out.{name}").read_text(encoding="utf-8")
        rendered = onnxopt("report", "render", "run.jsonl", "--report", f"{name}=-")
        assert rendered.out == report


def test_report_on_standard_output_needs_no_writable_folder(demo, onnxopt):
    assert onnxopt("run", "demo.yaml", "-q", "--log", "run.jsonl").code == 0
    # A folder named "-" prevents the creation of a file of this name.
    (demo / "-").mkdir()
    answer = onnxopt("report", "render", "run.jsonl", "--report", "json=-")
    assert answer.code == 0
    assert json.loads(answer.out)["results"]


def test_folders_of_reports_and_logs_are_created(demo, onnxopt):
    options = ["--report", "junit=reports/junit.xml", "--log", "logs/run.jsonl"]
    assert onnxopt("run", "demo.yaml", *OFF, *options).code == 1
    assert (demo / "reports/junit.xml").is_file()
    assert (demo / "logs/run.jsonl").is_file()


def test_new_folder_can_contain_the_log_and_the_artifacts(demo, onnxopt):
    assert onnxopt("run", "demo.yaml", *OFF, "--log=out/run.jsonl", "--artifacts=out/bad").code == 1
    assert (demo / "out/run.jsonl").is_file()
    assert (demo / "out/bad").is_dir()


@pytest.mark.parametrize(
    "command",
    [
        "run demo.yaml --report html=missing/new/run.html",
        "run demo.yaml --log missing/new/run.jsonl",
        "run demo.yaml --artifacts missing/new",
        "run demo.yaml --update-expect missing/new/expected.yaml",
        "audit demo.yaml --json missing/new/audit.json",
        "fuzz -b numpy -o missing/new",
        "generate spec -o missing/new",
        "locate demo.yaml -k demo/demo/plain -b numpy -o missing/new",
        "locate demo.yaml -k demo/demo/plain -b numpy --json missing/new/located.json",
        "report merge run.jsonl -o missing/new/run.jsonl",
        "lower model.onnx -o missing/new/lowered.onnx",
        "backends new missing/new",
    ],
)
def test_output_path_in_several_missing_folders_is_refused(demo, onnxopt, command):
    answer = onnxopt(*command.split())
    assert answer.code == 2
    folder = demo / "missing"
    assert f"the folder {folder} does not exist" in answer.err
    assert not folder.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--report", "json=./demo.yaml"],
        ["--report", "json=vendor.py"],
        ["--report", "json=run.jsonl", "--log", "run.jsonl"],
        ["--report", "html=link", "--expect", "expected.yaml"],
        ["--report", "json=data.npz", "--inputs", "data.npz"],
        ["--report", "json=ship.py", "--cluster", "local", "--ship", "ship.py"],
        ["--report", "json=key.pem", "--cluster", "tls://host:1", "--tls", *TLS_FILES],
        ["--report", "json=out", "--report", "badge=out"],
        ["--report", "json=Out", "--report", "badge=out"],
    ],
)
def test_report_does_not_replace_other_files(demo, onnxopt, options):
    (demo / "expected.yaml").write_text("onnxopt-expect: 1\nexpect: []\n")
    (demo / "link").symlink_to("expected.yaml")
    (demo / "run.jsonl").write_text("of an earlier run")
    for name in ("data.npz", "ship.py", *TLS_FILES):
        (demo / name).write_text("another file")
    before = {path.name: path.read_bytes() for path in demo.glob("*.*")}
    answer = onnxopt("run", "demo.yaml", *OFF, *options)
    assert answer.code == 2
    assert "would replace another file" in answer.err
    assert {name: (demo / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    "command",
    [
        "audit demo.yaml --json demo.yaml",
        "audit demo.yaml --json link",
        "locate demo.yaml -k plain -b numpy --json demo.yaml",
        "locate demo.yaml -k plain -b numpy --html ./link",
        "locate demo.yaml -k plain -b numpy --html out --json out",
    ],
)
def test_result_of_another_command_does_not_replace_its_input(demo, onnxopt, command):
    (demo / "link").symlink_to("demo.yaml")
    before = (demo / "demo.yaml").read_bytes()
    answer = onnxopt(*command.split())
    assert (answer.code, "would replace another file" in answer.err) == (2, True)
    assert (demo / "demo.yaml").read_bytes() == before


def test_report_does_not_replace_a_case_file_of_a_folder(demo, onnxopt):
    answer = onnxopt("run", ".", "-q", "--report", "json=demo.yaml")
    assert answer.code == 2
    assert (demo / "demo.yaml").read_text() == CASE


def test_result_does_not_replace_a_data_file_of_a_case(demo, onnxopt):
    folder = make_plain(demo / "plain")
    files = [folder / "model.onnx", *sorted(folder.glob("test_data_set_0/*"))]
    for file in files:
        before = file.read_bytes()
        for command in (["run", "--report", f"json={file}"], ["audit", "--json", str(file)]):
            answer = onnxopt(*command, str(folder))
            assert (answer.code, "would replace another file" in answer.err) == (2, True)
        assert file.read_bytes() == before


def test_report_of_a_saved_run_does_not_replace_it(demo, onnxopt):
    assert onnxopt("run", "demo.yaml", "-q", "--log", "run.jsonl").code == 0
    before = (demo / "run.jsonl").read_bytes()
    answer = onnxopt("report", "render", "run.jsonl", "--report", "junit=./run.jsonl")
    assert answer.code == 2
    assert (demo / "run.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["markdown", "html"])
def test_backend_without_a_result_does_not_conform_in_reports(demo, onnxopt, name):
    onnxopt("run", "demo.yaml", *OFF, "--log", "run.jsonl")
    log = demo / "run.jsonl"
    log.write_text(log.read_text().partition("\n")[0] + "\n")
    assert onnxopt("report", "render", "run.jsonl", f"--report={name}=out").code == 0
    text = (demo / "out").read_text(encoding="utf-8")
    assert "was not tested" in text
    assert "did not finish" in text
    assert not re.search("[> ]conforms", text)


def test_html_report_is_the_same_from_the_run_its_log_and_its_json_report(
    demo, onnxopt, monkeypatch
):
    monkeypatch.setenv("GITHUB_SHA", "abc123")
    saved = ["--log", "run.jsonl", "--report", "json=run.json", "--report", "html=run.html"]
    onnxopt("run", "demo.yaml", *OFF, "--label", "nightly", *saved)
    text = (demo / "run.html").read_text(encoding="utf-8")
    for source in ("run.jsonl", "run.json"):
        assert onnxopt("report", "render", source, "--report", "html=again.html").code == 0
        assert (demo / "again.html").read_text(encoding="utf-8") == text
    assert re.search(r"label <bdi>nightly</bdi>.*commit <bdi>abc123</bdi>", text)
    # The page shows the nodes and the inputs of the failing case.
    assert re.search(r'class="node"><bdi>[^<]*Momentum</bdi>', text)
    assert re.search(r'<th scope="row"><bdi>X</bdi></th><td class="quiet"><bdi>float32\[2', text)


def test_report_compares_a_run_with_an_earlier_run(demo, onnxopt):
    onnxopt("run", "demo.yaml", "-b", "python:vendor.py:Right", "--log", "before.jsonl")
    onnxopt("run", "demo.yaml", *OFF, "--log", "now.jsonl")
    requests = ["--report", "html=out.html", "--report", "markdown=out.md"]
    onnxopt("report", "render", "now.jsonl", "--baseline", "before.jsonl", *requests)
    for name in ("out.html", "out.md"):
        text = re.sub("<[^>]*>", " ", (demo / name).read_text(encoding="utf-8"))
        assert re.search(r"worse\W+demo/\w+/\w+\W", text)


def test_standard_output_contains_the_report_alone(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-q", "--report", "badge=-")
    assert json.loads(answer.out)["message"] == "2 pass"
    assert "numpy conforms" in answer.err
    assert not (demo / "-").exists()


def test_loop_of_links_is_rejected_or_replaced(demo, onnxopt):
    loop = demo / "loop"
    loop.symlink_to("loop")
    onnxopt("run", "demo.yaml", "--log", "run.jsonl")
    for words in (
        "run demo.yaml --resume loop",
        "run demo.yaml --operators loop",
        "run demo.yaml -b python:loop:Backend",
        "report render loop --report json=out.json",
        "report merge loop -o out.jsonl",
    ):
        answer = onnxopt(*words.split())
        assert answer.code in {2, 4}, (words, answer.text)
        assert "loop" in answer.err, words
    for words in (
        "run demo.yaml --report json=loop",
        "run demo.yaml --update-expect loop",
        "report render run.jsonl --report json=loop",
        "report merge run.jsonl -o loop",
    ):
        assert onnxopt(*words.split()).code in {0, 2}, words
        loop.unlink()
        loop.symlink_to("loop")


def test_numbers_beyond_double_are_rejected(demo, onnxopt):
    onnxopt("run", "demo.yaml", "--log", "run.jsonl")
    text = (demo / "run.jsonl").read_text()
    changed = text.replace('"options":{', '"options":{"rtol":1e999,', 1)
    assert changed != text
    (demo / "run.jsonl").write_text(changed)
    answer = onnxopt("report", "render", "run.jsonl", "--report", "json=out.json")
    assert (answer.code, "run.jsonl:1" in answer.err) == (2, True), answer.text


def test_error_names_standard_input(demo, onnxopt, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
    answer = onnxopt("report", "render", "-", "--report", "json=out.json")
    assert (answer.code, "standard input:1: " in answer.err) == (2, True), answer.text


def test_unreadable_standard_input_is_named(demo, onnxopt, monkeypatch):
    with os.fdopen(os.open(os.devnull, os.O_WRONLY)) as write_only:
        monkeypatch.setattr("sys.stdin", write_only)
        answer = onnxopt("report", "render", "-", "--report", "json=out.json")
    assert (answer.code, "standard input cannot be read" in answer.err) == (2, True), answer.text


def test_annotations_point_to_the_lines_of_the_cases(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-q", *OFF, "--report", "github=-")
    commands = [line for line in answer.out.splitlines() if line.startswith("::error ")]
    assert [line.split(",")[1] for line in commands] == ["line=5", "line=10"]


def test_summary_of_a_step_grows_with_each_run(demo, onnxopt, monkeypatch):
    summary = demo / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    onnxopt("run", "demo.yaml", "-q")
    onnxopt("run", "demo.yaml", "-q", *OFF)
    lines = summary.read_text(encoding="utf-8").splitlines()
    titles = [line for line in lines if line.startswith("# ")]
    assert lines[0] == "before"
    assert titles == ["# `numpy` conforms", "# `python:vendor.py:Off` does not conform"]


def test_report_states_time_and_host_of_the_run(demo, onnxopt):
    onnxopt("run", "demo.yaml", "-q", "--log", "run.jsonl", "--report", "junit=live.xml")
    onnxopt("report", "render", "run.jsonl", "--report", "json=log.json")
    onnxopt("report", "render", "log.json", "--report", "junit=saved.xml")
    live = (demo / "live.xml").read_text()
    assert (demo / "saved.xml").read_text() == live
    assert f'hostname="{platform.node()}"' in live
    started = json.loads((demo / "log.json").read_text())["started"]
    assert f'timestamp="{started.removesuffix("Z")}"' in live
    assert abs(datetime.now(UTC) - datetime.fromisoformat(started)) < timedelta(hours=1)


def test_summary_of_a_step_stays_below_the_limit_of_github(demo, onnxopt, monkeypatch):
    summary = demo / "summary.md"
    summary.write_text("x" * ((1 << 20) - 200) + "\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    onnxopt("run", "demo.yaml", "-q", *OFF)
    assert summary.stat().st_size <= 1 << 20
    assert (
        "# `python:vendor.py:Off` does not conform\n\nThis summary is full" in summary.read_text()
    )


def test_error_for_an_unwritable_summary_follows_the_verdict(demo, onnxopt, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(demo / "no" / "such" / "file"))
    answer = onnxopt("run", "demo.yaml", "-q")
    assert answer.code == 2
    assert "conforms" in answer.out
    assert "No such file" in answer.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")
@pytest.mark.parametrize("options", [["--report", "json=pipe"], []], ids=["report", "summary"])
def test_pipe_without_a_reader_is_an_error(demo, onnxopt, monkeypatch, options):
    monkeypatch.setattr("onnxopt_cli.core.files._READER_SECONDS", 0.1)
    os.mkfifo(demo / "pipe")
    if not options:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", "pipe")
    answer = onnxopt("run", "demo.yaml", "-q", *options)
    assert answer.code == 2
    assert "has no reader" in answer.err


def test_report_that_cannot_be_written_loses_no_other_report(demo, onnxopt):
    (demo / "gone").mkdir()
    (demo / "vendor.py").write_text(
        BACKEND + "\n    import pathlib\n    pathlib.Path('gone').rmdir()\n"
    )
    requests = ["--report", "json=gone/out.json", "--report", "badge=badge.json"]
    answer = onnxopt("run", "demo.yaml", "-q", "-b", "python:vendor.py:Right", *requests)
    assert answer.code == 2
    assert "cannot write gone/out.json" in answer.err
    assert json.loads((demo / "badge.json").read_text())["message"] == "2 pass"


def test_verbose_shows_the_accuracy_of_each_output(demo, onnxopt):
    answer = onnxopt("run", "demo.yaml", "-v")
    assert re.search(r"^numpy *\noutput .* bits lost ", answer.out, re.MULTILINE)
    assert "Momentum X_new" in answer.out
    assert "bits lost" not in onnxopt("run", "demo.yaml").out
