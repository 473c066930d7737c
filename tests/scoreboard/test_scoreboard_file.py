"""Scoreboard files: their fields, and messages about errors in them."""

from __future__ import annotations

import pytest
from two_cases import CASE

from onnxopt_cli.backends.specification import parse_specification
from onnxopt_cli.scoreboard.scoreboard_file import read_scoreboard_file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = \n", "board.toml:1: not valid TOML: "),
        ('[backends]\nnumpy = "numpy"\n\n[x\n', "board.toml:4: "),
        ('titel = "x"\n[backends]\na = "numpy"\n', "board.toml:1: unknown field 'titel'; did"),
        ('suites = ["cases.yaml"]\n[backends]\na = "numpy"\n', None),
        ("", "names no backend"),
        ("backends = 3\n", "names no backend"),
        ('tier = "fast"\n[backends]\na = "numpy"\n', "board.toml:1: tier is 'fast', expected full"),
        ('suites = "spec"\n[backends]\na = "numpy"\n', "board.toml:1: suites is not a list"),
        ('suites = [""]\n[backends]\na = "numpy"\n', "board.toml:1: suites has ''"),
        ('suites = ["spek"]\n[backends]\na = "numpy"\n', "board.toml:1: no such path, suite or"),
        ('suites = ["spec", "spec"]\n[backends]\na = "numpy"\n', "board.toml:1: suites has an"),
        ('site = 4\n[backends]\na = "numpy"\n', "board.toml:1: site is 4"),
        ('older-opsets = 1\n[backends]\na = "numpy"\n', "board.toml:1: older-opsets is 1"),
        ("[backends]\na = 3\n", "board.toml:2: backends.a is neither"),
        ('[backends.a]\nbakend = "numpy"\n', "board.toml:2: unknown field backends.a.bakend"),
        ('[backends]\n"" = "numpy"\n', "a label has 1 to 60 characters"),
        ('[backends]\na = "python:x"\n', "board.toml:2: backends.a: "),
        ('[backends.a]\nbackend = "numpy"\nversions = ["1"]\n', "board.toml:3: versions need"),
        ('[backends.a]\nbackend = "adapter:x"\nversions = []\n', "board.toml:3: versions is not"),
    ],
)
def test_errors_name_file_and_line(onnxopt, workplace, text, message):
    (workplace / "board.toml").write_text(text)
    (workplace / "cases.yaml").write_text(CASE)
    answer = onnxopt("scoreboard", "board.toml", "--no-run")
    assert answer.code == (0 if message is None else 2), answer.text
    if message:
        assert message in answer.err.replace("\n", " ")


def test_missing_file_is_reported(onnxopt, workplace):
    answer = onnxopt("scoreboard", "none.toml")
    assert answer.code == 2
    assert "none.toml" in answer.err


def test_paths_are_relative_to_the_file(onnxopt, workplace):
    folder = workplace / "inner"
    folder.mkdir()
    (folder / "demo.yaml").write_text(CASE)
    (folder / "mine.py").write_text("from onnxopt_cli.backends.reference import NumpyBackend\n")
    (folder / "board.toml").write_text(
        'suites = ["demo.yaml"]\nsite = "out/site"\n[backends.mine]\n'
        'backend = "python:mine.py:NumpyBackend"\n'
    )
    answer = onnxopt("scoreboard", "inner/board.toml")
    assert answer.code == 0, answer.text
    assert (folder / "out" / "site" / "index.html").is_file()
    assert (folder / "results" / "mine").is_dir()


def test_folder_with_other_files_is_refused_as_site(onnxopt, workplace):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "site").mkdir()
    (workplace / "site" / "thesis.tex").write_text("")
    (workplace / "board.toml").write_text('suites = ["demo.yaml"]\n[backends]\na = "numpy"\n')
    answer = onnxopt("scoreboard", "board.toml")
    assert answer.code == 2
    assert "is not empty" in answer.err
    assert not (workplace / "results").exists()


def test_site_is_not_written_through_links(onnxopt, workplace):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "board.toml").write_text('suites = ["demo.yaml"]\n[backends]\na = "numpy"\n')
    (workplace / "elsewhere").mkdir()
    (workplace / "site").mkdir()
    (workplace / "site" / "cases").symlink_to("../elsewhere")
    # An oversized list of files does not disturb the command.
    with (workplace / "site" / "scoreboard-files.json").open("wb") as file:
        file.truncate(40 << 30)
    answer = onnxopt("scoreboard", "board.toml")
    assert (answer.code, "is a link" in answer.err) == (2, True)
    (workplace / "site" / "cases").unlink()
    assert onnxopt("scoreboard", "board.toml").code == 0
    assert not [*(workplace / "elsewhere").iterdir()]


@pytest.mark.parametrize("key", ["site", "results"])
@pytest.mark.parametrize("path", ["demo.yaml", "demo.yaml/x", "loop/x"])
def test_path_that_cannot_be_a_folder_is_reported_before_the_run(onnxopt, workplace, key, path):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "loop").symlink_to("loop")
    text = f'suites = ["demo.yaml"]\n{key} = "{path}"\n[backends]\na = "numpy"\n'
    (workplace / "board.toml").write_text(text)
    answer = onnxopt("scoreboard", "board.toml")
    assert (answer.code, "cannot create" in answer.err) == (2, True)
    assert not answer.out


def test_versions_of_an_adapter_are_separate_backends(onnxopt, workplace):
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "board.toml").write_text(
        'suites = ["demo.yaml"]\n[backends.a]\nbackend = "adapter:nothing,x=1"\n'
        'versions = ["1.9", "1.10"]\n'
    )
    assert onnxopt("scoreboard", "board.toml").code == 4
    page = (workplace / "site" / "backends" / "a.html").read_text()
    assert "Backend <code>adapter:nothing@1.10,x=1,opset=auto</code>" in page
    assert "<h2>adapter:nothing@1.9,x=1,opset=auto</h2>" in page


@pytest.mark.parametrize("older", [True, False])
def test_older_opsets_are_on_by_default(workplace, older):
    text = "" if older else "older-opsets = false\n"
    (workplace / "board.toml").write_text(
        f'{text}[backends]\na = "onnxruntime"\nb = "numpy"\n'
        'c = "python:x.py:B,unsupported=no, .*"\nd = "exec:./a b"\n'
    )
    specifications = [
        specification
        for backend in read_scoreboard_file(workplace / "board.toml").backends
        for specification in backend.specifications
    ]
    parsed = [parse_specification(specification) for specification in specifications]
    assert ["opset" in backend.options for backend in parsed] == [older, False, older, older]
    assert parsed[2].options["unsupported"] == "no, .*"
