"""What ``onnxopt run`` shows a reader who sees it for the first time."""

from __future__ import annotations

import re
import shlex
from io import StringIO

import pytest
from places import REPOSITORY
from rich.console import Console
from two_cases import BACKEND, CASE

import onnxopt_cli as onnxopt
from onnxopt_cli.report.terminal import failure_panel

HEAD, PLAIN_CASE = CASE.split("  - name: nesterov", maxsplit=1)[0].split("  - name: plain")

# What goes wrong depends on T, which the cases count up.
MISTAKES = """

class ThreeMistakes(Right):
    def run(self, model, inputs):
        first, *rest = super().run(model, inputs)
        T = int(inputs["T"])
        if T % 3 == 0:
            raise MemoryError(f"no room for {T * 7} tensors at {id(inputs):#x} in /tmp/x{T}/y.bin")
        if T % 3 == 1:
            return [first.astype(np.float64), *rest]
        # Nearly right in most cases, and plainly wrong in one.
        return [first + np.float32(2.0 if T == 50 else 1e-3), *rest]


class EachItsOwn(Right):
    def run(self, model, inputs):
        letter = chr(97 + int(inputs["T"]) % 26)
        raise ValueError(f"cannot {letter * 5} with {letter * 7} for {letter * 9}")


class RaisesWithNames(Right):
    def run(self, model, inputs):
        T = int(inputs["T"])
        raise ValueError(f"input {'abcdefghi'[T - 1] * 3}: no kernel for 'x{T}' of [{T}, {T}]")


class MostlyRaises(Right):
    def run(self, model, inputs):
        if int(inputs["T"]) > 1:
            raise ValueError("no kernel")
        first, *rest = super().run(model, inputs)
        return [first + np.float32(1), *rest]


class Primitives(Right):
    def run(self, model, inputs):
        if model.graph.node[0].domain:
            raise NotImplementedError("no Momentum here")
        raise ValueError("no kernel")


class Hardly(Right):
    def run(self, model, inputs):
        raise (NotImplementedError if int(inputs["T"]) % 2 else ValueError)("cannot do it")


class Infinite(Right):
    def run(self, model, inputs):
        first, *rest = super().run(model, inputs)
        T = int(inputs["T"])
        return [first + np.float32(np.inf if T == 1 else 0.5 if T == 2 else 0.01), *rest]
"""


IGNORES_ANTIALIAS = """
from onnx.reference import ReferenceEvaluator


class IgnoresAntialias:
    def run(self, model, inputs):
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "antialias":
                    attribute.i = 0
        return ReferenceEvaluator(model).run(None, dict(inputs))
"""


@pytest.fixture
def screen(workplace, onnxopt):
    """Return what a run of so many cases prints, T being 1 and up."""
    (workplace / "vendor.py").write_text(BACKEND + MISTAKES)

    def call(count, backend, *options):
        cases = "".join(
            f"  - name: plain{number}{PLAIN_CASE.replace('T: 1', f'T: {number}')}"
            for number in range(1, count + 1)
        )
        (workplace / "demo.yaml").write_text(HEAD + cases)
        here = ("--isolation", "none", "--no-explain")
        return onnxopt("run", "demo.yaml", "-b", f"python:vendor.py:{backend}", *here, *options)

    return call


def test_many_failures_of_three_causes_fit_60_lines_with_the_causes_first(screen):
    answer = screen(118, "ThreeMistakes")
    lines = answer.out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [
        "118 cases from demo.yaml on python:vendor.py:ThreeMistakes",
        "118 failures on python:vendor.py:ThreeMistakes, by cause:",
    ]
    causes = re.findall(r"^  \d+\.  +(\d+)  (.*?) *$", answer.out, re.MULTILINE)
    assert [int(count) for count, _ in causes] == [40, 39, 39]
    said = [words for _, words in causes]
    assert said[0] == "Momentum: is float64 where float32 is expected"
    assert "Momentum: X_new off" in said
    assert any("MemoryError: no room for" in words for words in said)
    assert answer.out.count("again: onnxopt run demo.yaml -k demo/demo/plain") == 3
    assert re.findall(r"cause \d, the simplest of (\d+)", answer.out) == ["40", "39", "39"]
    # Examples after the first have their worst element alone.
    assert len(re.findall(r"^│   \[\d", answer.out, re.MULTILINE)) <= 3 + 1
    # The one that is plainly wrong stands for those that are nearly right.
    assert "FAIL demo/demo/plain50 on" in answer.out
    assert "does not conform: 79 fail, 39 oom" in answer.out or "39 error" in answer.out


def test_counts_by_operator_and_by_what_cases_need_stand_side_by_side(workplace, onnxopt):
    backend = f"python:{REPOSITORY}/tests/plugins/mistaken.py:InsideTheRoot"
    cases = ("-k", "conformance/adam/double", "-k", "conformance/adam/T_0")
    answer = onnxopt("run", *cases, "-b", backend, "--isolation", "none", "--no-explain")
    rows = [line.split() for line in answer.out.splitlines()]
    (place,) = [at for at, row in enumerate(rows) if row[:1] == ["operator"]]
    assert rows[place] == ["operator", "fail", "cases", "that", "need", "fail"]
    assert rows[place + 1] == ["Adam", "2", "double", "1"]
    assert rows[place + 2] == ["none", "of", "these", "1"]


def test_what_passes_is_counted_and_not_named(screen):
    answer = screen(100, "Right", "-b", "numpy")
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "demo/demo/" not in answer.out
    assert "numpy conforms: 100 pass" in answer.out
    assert re.search(r"^Momentum +numpy +100 *$", answer.out, re.MULTILINE)


def test_outputs_say_on_which_of_several_backends_they_are(screen):
    lines = screen(1, "ThreeMistakes", "-b", "numpy", "-v").out.splitlines()
    at = lines.index("  on python:vendor.py:ThreeMistakes")
    assert lines[at + 1].startswith("  X_new  float32[2]  is float64[2]")
    assert lines[lines.index("  on numpy") + 1].startswith("  X_new  float32[2]  as expected")
    assert "  on numpy" not in screen(1, "Right", "-v").out


def test_many_causes_are_named_with_a_case_each_and_the_rest_is_counted(screen):
    answer = screen(60, "EachItsOwn")
    assert len(answer.out.splitlines()) <= 60
    assert answer.out.count("─ ERROR ") == 3
    example = "cannot eeeee with eeeeeee for eeeeeeeee, as demo/demo/plain4"
    assert example in " ".join(answer.out.split())
    assert "14 more causes of 28 error; -q names all failures" in answer.out


def test_one_cause_is_one_line_whatever_names_its_messages_carry(screen):
    answer = screen(9, "RaisesWithNames")
    text = " ".join(answer.out.split())
    assert "1. 9 Momentum: error: ValueError: input …: no kernel for …" in text


def test_wrong_values_come_before_more_frequent_errors(screen):
    text = " ".join(screen(10, "MostlyRaises").out.split())
    assert "1. 1 Momentum: X_new off" in text
    assert "2. 9 Momentum: error: ValueError: no kernel" in text


def test_an_invalid_case_is_listed_once_for_all_backends(workplace, onnxopt):
    wrong = f"{PLAIN_CASE}    outputs: {{X_new: [7.0, 7.0], V_new: [7.0, 7.0]}}\n"
    (workplace / "demo.yaml").write_text(f"{HEAD}  - name: plain{wrong}")
    backends = ("-b", "numpy", "-b", "onnx-reference")
    shown = onnxopt("run", "demo.yaml", *backends, "--report", "markdown=out.md")
    assert shown.code == 2
    assert shown.out.count("INVALID demo/demo/plain") == 1
    assert "1 failure, by cause" in shown.out
    quiet = onnxopt("run", "demo.yaml", *backends, "-q")
    assert quiet.out.count("INVALID demo/demo/plain") == 1
    assert (workplace / "out.md").read_text().count("<details><summary>invalid") == 1


def test_failures_of_an_operator_without_a_formula_split_by_attributes(workplace, onnxopt):
    (workplace / "vendor.py").write_text(IGNORES_ANTIALIAS)
    run = ("run", "onnx-node", "--operator", "Resize", "-b", "python:vendor.py:IgnoresAntialias")
    text = " ".join(onnxopt(*run).out.split())
    assert "1. 4 Resize: wrong in each judged case with antialias=1" in text


def test_who_only_raises_is_told_how_to_say_that_an_operator_is_not_known(screen):
    told = "Momentum: only errors. If the backend does not know the operator"
    assert told in " ".join(screen(2, "EachItsOwn").out.split())
    assert told not in " ".join(screen(4, "ThreeMistakes").out.split())


def test_who_said_that_an_operator_is_not_known_is_not_told_how(screen):
    lowered = screen(2, "Primitives").out
    assert "2 error, 2 of them lowered" in " ".join(lowered.split())
    assert "only errors." not in lowered
    some = screen(4, "Hardly", "--lower", "never").out
    assert "2 unsupported" in " ".join(some.split())
    assert "only errors." not in some


def test_the_example_can_be_computed_by_hand(screen):
    answer = screen(3, "Infinite")
    assert "FAIL demo/demo/plain2 on" in answer.out
    assert "inf" not in answer.out.partition("again:")[0].replace("Infinite", "")


@pytest.mark.parametrize("columns", ["40", "60", "80"])
def test_the_screen_is_the_same_in_a_pipe_without_colour(screen, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    answer = screen(5, "ThreeMistakes")
    assert "\x1b" not in answer.out
    assert "by cause:" in answer.out
    assert "╰─ cause 1, the simplest of 2 ─" in answer.out


@pytest.fixture(scope="module")
def double():
    """A wrong result of float64, of which some elements are as long as they may be."""
    cases = onnxopt.load_cases("conformance/adam/double")
    backend = f"python:{REPOSITORY}/tests/plugins/mistaken.py:InsideTheRoot"
    (result,) = onnxopt.run(
        cases, backend, execution=onnxopt.Execution(isolation=onnxopt.Isolation.NONE)
    )
    return result


@pytest.mark.parametrize("columns", [40, 60, 72, 80, 120])
def test_no_number_is_broken_over_two_lines(double, columns):
    console = Console(width=columns, file=StringIO())
    console.print(failure_panel(double, {}))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    words = {word.strip(",") for line in lines for word in line.split()}
    shown = double.diffs[0].worst[:3]
    assert {repr(number) for it in shown for number in (it.expected, it.actual)} <= words
    side_by_side = any(
        repr(shown[0].expected) in it and repr(shown[0].actual) in it for it in lines
    )
    assert side_by_side == (columns > 60)


def test_a_run_without_a_target_says_which_cases_it_took(workplace, onnxopt, monkeypatch):
    selected = ("-k", "spec/momentum/momentum", "--isolation", "none")
    assert "from spec, conformance" in onnxopt("run", *selected).out
    monkeypatch.chdir(REPOSITORY)
    assert "from cases/ on numpy" in onnxopt("run", *selected).out


STEPS = """\
onnxopt: 1
suite: demo
operator: Adam
cases:
"""
STEP = """\
  - name: step{0}
    attributes: {{alpha: 0.9, beta: 0.99, epsilon: 0.1}}
    inputs: {{R: 0.1, T: {0}, X: [1.0, 0.5], G: [1.0, -0.3], V: [0.1, 0.2], H: [0.3, 0.1]}}
"""


def test_a_known_mistake_is_named_once_as_the_cause(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(STEPS + "".join(map(STEP.format, (1, 2, 3))))
    backend = f"python:{REPOSITORY}/tests/plugins/mistaken.py:InsideTheRoot"
    run = ("run", "steps.yaml", "-b", backend, "--isolation", "none", "--explain-time", "3600")
    text = " ".join(onnxopt(*run).out.split())
    assert "1. 3 Adam: consistent with 'epsilon inside the square root'" in text
    assert text.count("consistent with") == 1
    assert "cause 1, the simplest of 3" in text


def test_the_command_for_more_has_all_that_the_verdict_depends_on(workplace, onnxopt):
    (workplace / "vendor.py").write_text(BACKEND + MISTAKES)
    file = REPOSITORY / "tests" / "plugins" / "operators" / "rmsprop.py"
    options = shlex.split("--timeout 7 --memory 1536MiB --error-bound 2 --isolation none")
    said = ["--operators", str(file), "--report", "github=-", "-x", "--no-explain"]
    vendor = "python:vendor.py:EachItsOwn"
    answer = onnxopt("run", "optimizers", "-b", vendor, *options, *said)
    *_, command = re.findall("again: onnxopt (run .*)", answer.out)
    words = shlex.split(command)
    assert {*options, "--operators"} <= set(words)
    again = onnxopt(*words)
    assert (again.code, "does not conform: 1 error" in again.out) == (1, True)
