"""Shards, merging their logs, and comparing runs."""

from __future__ import annotations

import json
from operator import itemgetter

import pytest
from demo import NAMES, records, run_arguments, write_demo
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxopt_cli.config.run_config import Shard
from onnxopt_cli.core.record import result_to_json
from onnxopt_cli.run.log.log_reader import read_log

# The shard of each id in a run with 4 shards. The shard of an id must never change, because shards
# of different versions may be merged.
SHARDS = {"a": 2, "b": 3, "c": 2, "d": 3, "e": 1, "f": 4}
OTHER_THAN_A = "1/2"
IDS = st.lists(st.text(), unique=True, max_size=20)


@pytest.fixture
def demo(workplace):
    return write_demo(workplace)


@pytest.fixture
def shards(demo, onnxopt):
    """Return a function that runs all shards of a run, and returns the paths of their logs."""

    def call(name, count, *options):
        paths = [f"{index}.jsonl" for index in range(1, count + 1)]
        for index, path in enumerate(paths, start=1):
            (demo / path).unlink(missing_ok=True)
            shard = ["--shard", f"{index}/{count}"]
            onnxopt(*run_arguments(name, *shard, "--log", path, *options))
        return paths

    return call


def write_log(path, log_records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in log_records))


@given(ids=IDS, count=st.integers(1, 9))
def test_every_id_belongs_to_one_shard(ids, count):
    all_shards = [Shard(index, count) for index in range(1, count + 1)]
    assert all(sum(shard.holds(case) for shard in all_shards) == 1 for case in ids)


def test_shard_of_an_id_never_changes():
    places = [
        next(index for index in range(1, 5) if Shard(index, 4).holds(f"demo/demo/{name}"))
        for name in NAMES
    ]
    assert places == [SHARDS[name] for name in NAMES]


@pytest.mark.parametrize(
    "text", ["0/2", "3/2", "1", "1/", "/2", "a/b", "1/2/3", "-1/2", "1/9999999"]
)
def test_invalid_shard_is_rejected(demo, onnxopt, text):
    answer = onnxopt(*run_arguments("numpy", f"--shard={text}"))
    assert (answer.code, "--shard" in answer.err) == (2, True)


def test_shard_without_cases_succeeds(demo, onnxopt):
    answer = onnxopt(*run_arguments("Off", "-k", "demo/demo/a", "--shard", OTHER_THAN_A))
    assert (answer.code, "no selected case belongs to shard" in answer.out) == (0, True)


def comparable(record):
    results = [{**result_to_json(result), "seconds": 0} for result in record.results]
    return (
        sorted(results, key=itemgetter("case")),
        set(record.problems),
        record.findings,
        record.backends,
        record.exit_code,
        {**record.options, "log": None},
    )


@pytest.mark.slow
@settings(max_examples=8)
@given(
    count=st.integers(1, 5),
    name=st.sampled_from(["numpy", "RaisesAtB", "Off"]),
    expect=st.sampled_from(["", "{case: demo/demo/c, outcome: fail}", "{case: x, outcome: fail}"]),
    order=st.randoms(use_true_random=False),
)
def test_merged_shards_equal_the_log_of_an_undivided_run(
    demo, onnxopt, shards, count, name, expect, order
):
    (demo / "e.yaml").write_text(f"onnxopt-expect: 1\nexpect:\n  {f'- {expect}' if expect else ''}")
    (demo / "undivided.jsonl").unlink(missing_ok=True)
    undivided = onnxopt(*run_arguments(name, "--expect", "e.yaml", "--log", "undivided.jsonl"))
    paths = shards(name, count, "--expect", "e.yaml")
    order.shuffle(paths)
    merged = onnxopt("report", "merge", *paths, "-o", "merged.jsonl")
    assert merged.code == undivided.code, merged.text
    logs = [read_log(demo / log) for log in ("undivided.jsonl", "merged.jsonl")]
    assert comparable(logs[0].record) == comparable(logs[1].record)
    assert logs[0].header.cases == logs[1].header.cases
    assert logs[1].finished
    assert logs[1].header.shard is None


def test_merge_names_missing_shards(shards, onnxopt, demo):
    shards("numpy", 4)
    answer = onnxopt("report", "merge", "1.jsonl", "3.jsonl", "-o", "out.jsonl")
    assert (answer.code, "missing: 2/4, 4/4" in answer.err) == (2, True)
    assert not (demo / "out.jsonl").exists()


def test_merge_names_a_duplicate_shard(shards, onnxopt, demo):
    shards("numpy", 2)
    (demo / "copy.jsonl").write_bytes((demo / "1.jsonl").read_bytes())
    answer = onnxopt("report", "merge", "1.jsonl", "2.jsonl", "copy.jsonl", "-o", "out.jsonl")
    assert answer.code == 2
    assert "copy.jsonl is shard 1/2, and so is 1.jsonl" in answer.err


@pytest.mark.parametrize("lines", [0, 1, -1])
def test_merge_names_an_unfinished_shard(shards, onnxopt, demo, lines):
    shards("numpy", 2)
    log = (demo / "2.jsonl").read_text().splitlines(keepends=True)
    (demo / "2.jsonl").write_text("".join(log[:lines]))
    answer = onnxopt("report", "merge", "1.jsonl", "2.jsonl", "-o", "out.jsonl")
    assert (answer.code, "2.jsonl is not finished" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rtol", "1"], "the option --rtol"),
        (["-k", "demo/demo/[abc]"], "the cases"),
        (["-b", "onnx-reference"], "the backends"),
        (["--expect", "e.yaml"], "the content of the expectation files"),
    ],
)
def test_merge_names_a_shard_of_another_run_with_the_difference(
    shards, onnxopt, demo, options, message
):
    (demo / "e.yaml").write_text("onnxopt-expect: 1\n")
    shards("numpy", 2)
    onnxopt(*run_arguments("numpy", "--shard", "2/2", "--log", "other.jsonl", *options))
    answer = onnxopt("report", "merge", "1.jsonl", "other.jsonl", "-o", "out.jsonl")
    assert answer.code == 2
    assert "other.jsonl belongs to another run than 1.jsonl" in answer.err
    assert message in answer.err


@pytest.mark.parametrize("package", ["onnxopt", "python", "machine", "numpy", "onnx", "ml_dtypes"])
def test_merge_names_a_shard_of_other_versions_or_another_machine(shards, onnxopt, demo, package):
    shards("numpy", 2)
    header, *body = records(demo / "2.jsonl")
    header["versions"][package] = "0.0.1"
    write_log(demo / "2.jsonl", [header, *body])
    answer = onnxopt("report", "merge", "1.jsonl", "2.jsonl", "-o", "out.jsonl")
    assert answer.code == 2
    assert "2.jsonl belongs to another run than 1.jsonl" in answer.err
    assert f"{package} (" in answer.err
    assert "now 0.0.1)" in answer.err
    assert not (demo / "out.jsonl").exists()


def test_merge_names_a_shard_that_excludes_other_capabilities(shards, onnxopt, demo):
    shards("numpy", 2)
    header, *body = records(demo / "2.jsonl")
    header["left_out"] = {"double": "3 cases"}
    write_log(demo / "2.jsonl", [header, *body])
    answer = onnxopt("report", "merge", "1.jsonl", "2.jsonl", "-o", "out.jsonl")
    assert answer.code == 2
    assert "the excluded capabilities (none, now double)" in answer.err


def test_merged_log_names_all_hosts(shards, onnxopt, demo):
    shards("numpy", 2)
    header, *body = records(demo / "2.jsonl")
    header["hostname"] = "elsewhere"
    write_log(demo / "2.jsonl", [header, *body])
    assert onnxopt("report", "merge", "1.jsonl", "2.jsonl", "-o", "out.jsonl").code == 0
    assert records(demo / "out.jsonl")[0]["hostname"].endswith(", elsewhere")


def test_merge_rejects_the_log_of_an_undivided_run(shards, onnxopt, demo):
    paths = shards("numpy", 2)
    onnxopt(*run_arguments("numpy", "--log", "undivided.jsonl"))
    answer = onnxopt("report", "merge", *paths, "undivided.jsonl", "-o", "out.jsonl")
    assert (answer.code, "undivided.jsonl is the log of a whole run" in answer.err) == (2, True)


def test_merge_detects_removed_results(shards, onnxopt, demo):
    paths = shards("numpy", 2)
    remaining = [
        record for record in records(demo / "1.jsonl") if record["record"] not in {"start", "end"}
    ]
    write_log(demo / "1.jsonl", remaining)
    answer = onnxopt("report", "merge", *paths, "-o", "out.jsonl")
    assert (answer.code, "whose counts are not those" in answer.err) == (2, True)
    remaining[-1]["counts"] = {}
    write_log(demo / "1.jsonl", remaining)
    answer = onnxopt("report", "merge", *paths, "-o", "out.jsonl")
    assert (answer.code, "cases, but the run has 6" in answer.err) == (2, True)


def test_merge_does_not_overwrite_its_input(shards, onnxopt, demo):
    paths = shards("numpy", 2)
    before = (demo / "1.jsonl").read_bytes()
    answer = onnxopt("report", "merge", *paths, "-o", "1.jsonl")
    assert (answer.code, "is one of the logs to be merged" in answer.err) == (2, True)
    assert (demo / "1.jsonl").read_bytes() == before


@pytest.fixture
def diff(demo, onnxopt):
    """Return a function that compares the runs of two backends."""

    def call(old, new, *options):
        for name in dict.fromkeys((old, new)):
            (demo / f"{name}.jsonl").unlink(missing_ok=True)
            onnxopt(*run_arguments(name, "--log", f"{name}.jsonl", *options))
        return onnxopt("report", "diff", f"{old}.jsonl", f"{new}.jsonl")

    return call


def test_diff_shows_worse_outcomes_first_and_exits_with_1(diff):
    answer = diff("RaisesAtB", "OffAtC")
    assert answer.code == 0
    assert "0 worse, 1 better, 0 other" in answer.out
    answer = diff("OffAtC", "RaisesAtB")
    assert answer.code == 1
    assert answer.out.splitlines()[0].rstrip().endswith(":RaisesAtB")
    row = next(line.split() for line in answer.out.splitlines() if line.startswith("worse"))
    assert row[1] == "demo/demo/b"
    assert row[-2:] == ["pass", "error"]


def test_diff_fails_for_larger_errors_within_the_tolerance_on_request(diff, onnxopt):
    answer = diff("numpy", "Off", "--atol", "1")
    assert answer.code == 0
    assert "6 worse, 0 better, 0 other" in answer.out
    assert "error / tolerance" in answer.out
    assert onnxopt("report", "diff", "numpy.jsonl", "Off.jsonl", "--accuracy").code == 1
    assert diff("Off", "numpy", "--atol", "1").code == 0


def test_diff_of_equal_runs_is_empty(diff):
    answer = diff("OffAtC", "OffAtC")
    assert (answer.code, answer.out) == (0, "nothing changed\n")


def test_diff_in_a_pipe_shows_changed_outcomes_first_and_complete_ids(diff, demo):
    text, name = (demo / "demo.yaml").read_text(), "c" * 70
    # Exchange the inputs of cases b and c, so that b is wrong and c raises an exception.
    for before, now in (("X: [2", "X: [_"), ("X: [3", "X: [2"), ("X: [_", "X: [3")):
        text = text.replace(before, now)
    (demo / "demo.yaml").write_text(text.replace("name: c\n", f"name: {name}\n"))
    lines = diff("numpy", "RaisesAtB", "--atol", "1").out.splitlines()
    rows = [line for line in lines if line.startswith("worse")]
    assert rows == [f"worse  demo/demo/{name}", "worse  demo/demo/b"]
    assert lines[lines.index(rows[0]) + 1].rstrip() == "  outcome, before pass, now error"
    assert lines[lines.index(rows[1]) + 1].startswith("  X_new")
    assert max(map(len, lines)) <= len(rows[0])


def test_diff_names_differing_options(demo, onnxopt):
    for name, rules in (("old", ()), ("new", ("--tolerance", "onnx"))):
        onnxopt(*run_arguments("numpy", "--log", f"{name}.jsonl", *rules))
    message = "the options differ: none before, --tolerance onnx now"
    assert onnxopt("report", "diff", "old.jsonl", "new.jsonl").out.splitlines()[0] == message
    assert "differ" not in onnxopt("report", "diff", "new.jsonl", "new.jsonl").out


def test_added_and_removed_cases_are_neither_better_nor_worse(demo, onnxopt):
    onnxopt(*run_arguments("numpy", "--log", "all.jsonl"))
    onnxopt(*run_arguments("numpy", "-k", "demo/demo/[ab]", "--log", "two.jsonl"))
    for old, new in (("all.jsonl", "two.jsonl"), ("two.jsonl", "all.jsonl")):
        answer = onnxopt("report", "diff", old, new)
        assert (answer.code, "0 worse, 0 better, 4 other" in answer.out) == (0, True)


def test_diff_of_runs_without_a_common_case_says_so_in_one_line(demo, onnxopt):
    for name in "ab":
        onnxopt(*run_arguments("numpy", "-k", f"demo/demo/{name}", "--log", f"{name}.jsonl"))
    answer = onnxopt("report", "diff", "a.jsonl", "b.jsonl")
    assert (answer.code, answer.out) == (5, "")
    assert "a.jsonl and b.jsonl have no case in common" in answer.err


@pytest.fixture
def timed(demo, onnxopt):
    """Return a function that copies a log, and replaces the times of its cases by ``seconds``."""
    onnxopt(*run_arguments("numpy", "--log", "run.jsonl"))

    def call(name, seconds):
        lines = [json.loads(line) for line in (demo / "run.jsonl").read_text().splitlines()]
        for line in lines:
            if line["record"] == "end":
                line["result"]["seconds"] = seconds[line["result"]["case"][-1]]
        (demo / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return name

    return call


def test_slower_cases_are_shown_without_affecting_the_exit_code(timed, onnxopt):
    # The times of repeated runs differ by 5 %. Twice the time is therefore slower, and a tenth more
    # is noise.
    usual = dict.fromkeys(NAMES, 0.010)
    old, again = timed("old", usual), timed("old2", dict.fromkeys(NAMES, 0.0105))
    new = timed("new", {**usual, "b": 0.030, "c": 0.0111, "d": 0.020})
    repeat = timed("new2", {**dict.fromkeys(NAMES, 0.0105), "b": 0.025, "c": 0.0116, "d": 0.0101})
    answer = onnxopt("report", "diff", old, new, "--old-again", again, "--new-again", repeat)
    rows = [line.split() for line in answer.out.splitlines() if line.startswith("slower")]
    assert rows == [["slower", "demo/demo/b", "time", "10", "ms", "25", "ms"]]
    assert (answer.code, "0 worse, 0 better, 0 other, 1 slower" in answer.out) == (0, True)


def test_times_are_compared_only_with_repeated_runs(timed, onnxopt):
    old, new = (timed(str(seconds), dict.fromkeys(NAMES, seconds)) for seconds in (0.01, 5.0))
    for options in ([], ["--old-again", old]):
        answer = onnxopt("report", "diff", old, new, *options)
        assert (answer.code, answer.out) == (0, "nothing changed\n")


@pytest.mark.parametrize("command", ["render", "merge", "diff"])
def test_every_report_command_shows_an_example(onnxopt, command):
    answer = onnxopt("report", command, "--help")
    assert (answer.code, f"onnxopt report {command} " in answer.out) == (0, True)


def test_merge_overwrites_logs_only(shards, demo, onnxopt):
    paths = shards("numpy", 2)
    (demo / "notes.txt").write_text("mine")
    answer = onnxopt("report", "merge", *paths, "-o", "notes.txt")
    assert (answer.code, "notes.txt exists" in answer.err) == (2, True)
    assert (demo / "notes.txt").read_text() == "mine"
    for _ in range(2):
        assert onnxopt("report", "merge", *paths, "-o", "merged.jsonl").code == 0


def test_unfinished_new_run_is_worse(demo, onnxopt):
    onnxopt(*run_arguments("numpy", "--log", "old.jsonl"))
    lines = (demo / "old.jsonl").read_text().splitlines(keepends=True)
    (demo / "new.jsonl").write_text("".join(lines[:-2]))
    answer = onnxopt("report", "diff", "old.jsonl", "new.jsonl")
    assert (answer.code, "new.jsonl did not finish" in answer.out) == (1, True)
    assert onnxopt("report", "diff", "new.jsonl", "old.jsonl").code == 0
