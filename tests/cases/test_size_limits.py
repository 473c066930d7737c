"""Logs that are too large are reported, and audits run without shared memory."""

from __future__ import annotations

import errno
import os

import pytest
from demo import records, run_arguments, write_demo

from onnxopt_cli.report import saved_run
from onnxopt_cli.run.log import log_reader, log_writer

LARGE_BYTES = 1 << 30
PRUNE = """\
onnxopt: 1
suite: m
operator: MagnitudePrune
cases:
- name: c
  attributes: {percent: 50.0}
  inputs: {W: [1.0, 2.0]}
"""


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


@pytest.mark.parametrize("name", ["run.jsonl", "run.json"])
@pytest.mark.parametrize(
    "command",
    [
        ["report", "render", "{}", "--report", "badge=-"],
        ["report", "diff", "{}", "{}"],
        ["explain", "{}"],
    ],
)
def test_log_or_report_of_a_gibibyte_is_rejected_with_its_size(demo, onnxopt, name, command):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl", "--report", "json=run.json"))
    os.truncate(name, LARGE_BYTES)
    answer = onnxopt(*[word.format(name) for word in command])
    assert answer.code == 2
    assert f"has {LARGE_BYTES} bytes; at most {log_writer.MAX_BYTES} were" in " ".join(
        answer.err.split()
    )


def test_log_of_a_gibibyte_is_not_resumed_or_merged(demo, onnxopt):
    onnxopt(*run_arguments("OffAtC", "--log", "run.jsonl"))
    os.truncate("run.jsonl", LARGE_BYTES)
    for answer in (
        onnxopt(*run_arguments("OffAtC", "--resume", "run.jsonl")),
        onnxopt("report", "merge", "run.jsonl", "-o", "all.jsonl"),
    ):
        assert answer.code == 2
        assert f"has {LARGE_BYTES} bytes" in answer.err


def test_run_that_exceeds_the_log_limit_leaves_a_readable_log(demo, onnxopt, monkeypatch):
    onnxopt(*run_arguments("OffAtC", "--log", "whole.jsonl"))
    limit = (demo / "whole.jsonl").stat().st_size - 10
    for module in (log_writer, log_reader, saved_run):
        monkeypatch.setattr(module, "MAX_BYTES", limit)
    answer = onnxopt(*run_arguments("OffAtC", "--log", "off.jsonl"))
    assert answer.code == 2
    assert f"would exceed {limit} bytes" in " ".join(answer.err.split())
    assert records(demo / "off.jsonl")[-1]["record"] == "end"
    again = onnxopt("report", "render", "off.jsonl", "--report", "badge=-")
    assert "did not finish" in again.out


@pytest.mark.slow
def test_audit_without_shared_memory_uses_one_process(workplace, onnxopt, monkeypatch):
    def no_semaphores(*_, **__):
        raise OSError(errno.ENOSPC, "No space")

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", no_semaphores)
    (workplace / "c.yaml").write_text(PRUNE)
    answer = onnxopt("audit", "c.yaml", "-j", "2")
    assert answer.code == 1, answer.text
    assert "MagnitudePrune" in answer.out
