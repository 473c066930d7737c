"""Wrong usage is reported with a correction, and the command exits with the documented code."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("arguments", "code", "message", "next_step"),
    [
        ("rnu", 2, "No such command 'rnu'", "Did you mean run?"),
        ("run --bakend numpy", 2, "No such option '--bakend'", "Did you mean '--backend'?"),
        ("backends chek", 2, "No such command 'chek'", "Did you mean 'check'?"),
        ("run Adam", 2, "no such path", "Adam is an operator; --operator Adam selects its cases"),
        ("list leakyrelu", 2, "no such path", "--operator LeakyRelu selects its cases"),
        ("run specs", 2, "no such path, suite or case: specs", "did you mean spec?"),
        ("run empty", 5, "no case in empty", "cases are .yaml or .json files"),
        ("run spec empty", 5, "no case in empty", "cases are .yaml or .json files"),
        ("run notes.txt", 2, "notes.txt is not a case file", "cases are .yaml or .json files"),
        ("run damaged.yaml", 2, "damaged.yaml:1: found bytes that are not UTF-8", "expected UTF-8"),
        ("run spec -k zzz", 5, "no case is selected, of 7 found", "onnxopt list"),
        ("run emty/file.yaml", 2, "no such path, suite or case", "did you mean empty?"),
        ("run emty/spec", 2, "no such path, suite or case", "did you mean empty?"),
        ("run empty/../damage.yaml", 2, "no such path", "did you mean damaged.yaml in empty/..?"),
        ("run spec --operator Adm", 2, "has the operator 'Adm'", "did you mean Adam?"),
        ("run spec -b onnxrutime", 2, "unknown backend 'onnxrutime'", "did you mean onnxruntime?"),
        # A misspelt backend is reported before the damaged case file is read.
        ("run damaged.yaml -b onnxrutime", 2, "unknown backend 'onnxrutime'", "did you mean"),
        ("run damaged.yaml -b python:no.py:B", 4, "no.py does not exist", ""),
        ("run damaged.yaml -b python:no.py:B --log=new", 4, "no.py does not exist", ""),
        ("run spec -b python:nope", 2, "names no attribute", "write python:module:attribute"),
        ("run spec --report foo=bar", 2, "FORMAT=PATH, not 'foo=bar'", "--report json=run.json"),
        ("run spec --report html", 2, "FORMAT=PATH, not 'html'", "--report html=run.html"),
        (
            "run spec --report json=notes.txt/x",
            2,
            "cannot write notes.txt/x",
            "notes.txt is not a fold",
        ),
        ("run spec --update-expect empty", 2, "cannot write empty: it is a folder", ""),
        ("run spec --log=", 2, "the value of --log= is empty", "is a variable not set?"),
        (
            "audit spec --json notes.txt/x",
            2,
            "cannot write notes.txt/x",
            "notes.txt is not a fold",
        ),
        ("fuzz -b numpy -o notes.txt/x", 2, "-o notes.txt/x: cannot write in", "notes"),
        ("fuzz -b numpy --time 1e-9", 5, "no example was tried", "--time is too short"),
        ("config --profile x", 2, "no profile 'x': no configuration", "onnxopt.toml"),
        ("run spec --expect missing.yaml", 2, "the file is missing", "onnxopt schema expect"),
        ("run spec --shard 3/2", 2, "invalid --shard 3/2", "1 <= I <= N"),
        ("run spec --timeout -1", 2, "'--timeout'", "is not in the range"),
        ("run spec --timeout nan", 2, "'--timeout'", "'nan' is not finite"),
        ("run spec --tag x", 2, "has the tag 'x'", "the tags are: published"),
        ("run spec --resume notes.txt", 2, "notes.txt:1: found invalid JSON", "onnxopt run --log"),
        ("run spec --resume missing", 2, "the log missing is missing", "onnxopt run --log"),
        ("report render notes.txt --report json=x", 2, "notes.txt:1:", "onnxopt run --log"),
        ("show spec/adam/adam_", 2, "has no case spec/adam/adam_", "did you mean spec/adam/adam"),
        ("explain spec/adam/adam", 2, "spec/adam/adam is missing", "a saved run is a log"),
        ("show Adma", 2, "no such path, suite or case: Adma", "did you mean Adam?"),
        ("generate spek", 2, "cannot generate 'spek'", "did you mean spec?"),
    ],
)
def test_wrong_usage_is_reported_with_the_next_step(
    workplace, onnxopt, arguments, code, message, next_step
):
    (workplace / "empty").mkdir()
    (workplace / "notes.txt").write_text("no case\n")
    (workplace / "damaged.yaml").write_bytes(b"\xff\xfe")
    answer = onnxopt(*arguments.split())
    assert answer.code == code
    text = " ".join(answer.err.split())
    assert message in text
    assert next_step in text


def test_empty_value_of_an_option_is_rejected(workplace, onnxopt):
    for option in ("--log", "--cluster", "--report", "--profile", "-b"):
        answer = onnxopt("run", "spec", option, "")
        assert (answer.code, f"the value of {option} is empty" in answer.err) == (2, True)
    assert onnxopt("generate", "spec", "-o", "").code == 2
    assert not any(workplace.iterdir())
    # A file name may end with "=". As in pytest, an empty -k selects all cases.
    assert onnxopt("run", "spec", "--log=a=").code == 0
    assert onnxopt("run", "spec", "-k", "").code == 0


def test_empty_target_is_rejected(workplace, onnxopt):
    (workplace / "demo.yaml").write_text("onnxopt: 1\n")
    answer = onnxopt("run", "")
    assert answer.code == 2
    assert "a target is empty" in answer.err


def test_folder_with_the_name_of_a_suite_does_not_replace_the_suite(workplace, onnxopt):
    (workplace / "spec").mkdir()
    suite = onnxopt("list", "spec")
    assert (suite.code, suite.out.count("spec/")) == (0, 7)
    assert onnxopt("list", "./spec").code == 5


def test_error_states_that_a_corpus_is_not_generated(workplace, onnxopt):
    answer = onnxopt("generate", "onnx-light", "-o", "out")
    assert (answer.code, "onnxopt run onnx-light runs its cases" in answer.err) == (2, True)
    assert not any(workplace.iterdir())


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("run nothing-like-it", "the suites are"),
        ("generate nothing-like-it -o out", "the suites are"),
        ("run spec --without nothing-like-it", "the capabilities are"),
        ("run spec -b onnx-reference,nothing=1", "its options: "),
    ],
)
def test_hint_fits_80_columns(workplace, onnxopt, command, hint):
    answer = onnxopt(*command.split())
    assert answer.code == 2
    assert hint in answer.err
    assert max(map(len, answer.err.splitlines())) <= 80


def test_id_of_a_case_in_a_file_is_a_target(workplace, onnxopt):
    (workplace / "folder").mkdir()
    (workplace / "folder" / "demo.yaml").write_text(
        "onnxopt: 1\nsuite: mine\ncases:\n- name: c\n  operator: Identity\n"
        "  inputs: {input: [1.0]}\n- name: d\n  operator: Identity\n  inputs: {input: [2.0]}\n"
    )
    assert onnxopt("list", "mine/demo/c").out == "mine/demo/c\n"
    assert onnxopt("list", "mine/demo").out == "mine/demo/c\nmine/demo/d\n"
    assert onnxopt("show", "mine/demo/c").out.startswith("mine/demo/c\n")
    options = ("-b", "onnx-reference", "--isolation", "none")
    for command in ("run", "locate"):
        assert onnxopt(command, "mine/demo/c", *options).code == 0
    misspelt = onnxopt("show", "mine/demo/e")
    assert (misspelt.code, "did you mean mine/demo/" in misspelt.err) == (2, True)
    # A folder may have the name of a case in a suite.
    (workplace / "test_abs").mkdir()
    (workplace / "test_abs" / "model.yaml").write_text(
        "onnxopt: 1\nsuite: onnx-nodes\ncases:\n- name: test_abs\n  operator: Identity\n"
        "  inputs: {input: [1.0]}\n"
    )
    assert onnxopt("list", "onnx-node/test_abs/0").out == "onnx-node/test_abs/0\n"
