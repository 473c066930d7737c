"""The first screen of ``onnxopt run``: causes of failures, examples and counts."""

from __future__ import annotations

import re
import shlex
from io import StringIO

import pytest
from places import REPOSITORY
from report_records import result
from rich.console import Console
from rich.style import Style
from two_cases import BACKEND, CASE

import onnxopt_cli as onnxopt
from onnxopt_cli.cli.console import stdout
from onnxopt_cli.core.result import Outcome
from onnxopt_cli.report.terminal import failure_panel, outcome_style, plain_table
from onnxopt_cli.report.view.result_view import ResultView

HEAD, PLAIN_CASE = CASE.split("  - name: nesterov", maxsplit=1)[0].split("  - name: plain")

# The faults of the backends depend on T, which is the number of the case.
WRONG_BACKENDS = """

class ThreeFaults(Right):
    def run(self, model, inputs):
        first, *rest = super().run(model, inputs)
        T = int(inputs["T"])
        if T % 3 == 0:
            raise MemoryError(f"no room for {T * 7} tensors at {id(inputs):#x} in /tmp/x{T}/y.bin")
        if T % 3 == 1:
            return [first.astype(np.float64), *rest]
        # The error is small in most cases and large in one.
        return [first + np.float32(2.0 if T == 50 else 1e-3), *rest]


class DifferentMessages(Right):
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


class ErrorsAndTwoFaults(Right):
    def run(self, model, inputs):
        first, *rest = super().run(model, inputs)
        T = int(inputs["T"])
        if T > 5:
            raise ValueError("no kernel")
        return [first.astype(np.float64) if T == 1 else first + np.float32(1), *rest]


class Primitives(Right):
    def run(self, model, inputs):
        if model.graph.node[0].domain:
            raise NotImplementedError("no Momentum here")
        raise ValueError("no kernel")


class RaisesAlternately(Right):
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
    """Return a function that runs a number of cases, whose T are 1, 2, 3 and so on."""
    (workplace / "vendor.py").write_text(BACKEND + WRONG_BACKENDS)

    def call(count, backend, *options):
        cases = "".join(
            f"  - name: plain{number}{PLAIN_CASE.replace('T: 1', f'T: {number}')}"
            for number in range(1, count + 1)
        )
        (workplace / "demo.yaml").write_text(HEAD + cases)
        options = ("--isolation", "none", "--no-explain", *options)
        return onnxopt("run", "demo.yaml", "-b", f"python:vendor.py:{backend}", *options)

    return call


def test_failures_of_three_causes_fit_60_lines_with_the_causes_first(screen):
    answer = screen(118, "ThreeFaults")
    lines = answer.out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [
        "118 cases from demo.yaml on python:vendor.py:ThreeFaults",
        "118 failures on python:vendor.py:ThreeFaults, by cause:",
    ]
    causes = re.findall(r"^  \d+\.  +(\d+)  (.*?) *$", answer.out, re.MULTILINE)
    assert [int(count) for count, _ in causes] == [40, 39, 39]
    titles = [title for _, title in causes]
    assert titles[0] == "Momentum: an output is float64 where float32 is expected"
    assert "Momentum: X_new off" in titles
    assert any("MemoryError: no room for" in title for title in titles)
    assert answer.out.count("again: onnxopt run demo.yaml -k demo/demo/plain") == 3
    assert re.findall(r"cause \d, the simplest of (\d+)", answer.out) == ["40", "39", "39"]
    # The first example may show three elements, and each further example only the worst element.
    assert len(re.findall(r"^│   \[\d", answer.out, re.MULTILINE)) <= 3 + 1
    # The example of wrong values is the case with the largest error.
    assert "FAIL demo/demo/plain50 on" in answer.out
    assert "does not conform: 79 fail, 39 oom" in answer.out or "39 error" in answer.out


def test_counts_by_operator_and_by_capability_are_side_by_side(workplace, onnxopt):
    backend = f"python:{REPOSITORY}/tests/plugins/mistaken.py:InsideTheRoot"
    cases = ("-k", "conformance/adam/double", "-k", "conformance/adam/T_0")
    answer = onnxopt("run", *cases, "-b", backend, "--isolation", "none", "--no-explain")
    rows = [line.split() for line in answer.out.splitlines()]
    (heading,) = [index for index, row in enumerate(rows) if row[:1] == ["operator"]]
    assert rows[heading] == ["operator", "fail", "cases", "that", "need", "fail"]
    assert rows[heading + 1] == ["Adam", "2", "double", "1"]
    assert rows[heading + 2] == ["none", "of", "these", "1"]


def test_passing_cases_are_counted_and_not_named(screen):
    answer = screen(100, "Right", "-b", "numpy")
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "demo/demo/" not in answer.out
    assert "numpy conforms: 100 pass" in answer.out
    assert re.search(r"^Momentum +numpy +100 *$", answer.out, re.MULTILINE)


def test_outputs_of_several_backends_are_labelled(screen):
    lines = screen(1, "ThreeFaults", "-b", "numpy", "-v").out.splitlines()
    heading = lines.index("  on python:vendor.py:ThreeFaults")
    assert lines[heading + 1].startswith("  X_new  float32[2]  expected, but is float64[2]")
    assert lines[lines.index("  on numpy") + 1].startswith("  X_new  float32[2]  as expected")
    assert "  on numpy" not in screen(1, "Right", "-v").out


def test_first_causes_have_an_example_and_further_causes_are_counted(screen):
    answer = screen(60, "DifferentMessages")
    assert len(answer.out.splitlines()) <= 60
    assert answer.out.count("─ ERROR ") == 3
    example = "cannot eeeee with eeeeeee for eeeeeeeee, as demo/demo/plain4"
    assert example in " ".join(answer.out.split())
    assert "14 more causes, in 28 cases with outcome error; -q names all failures" in answer.out


def test_messages_that_differ_in_names_are_one_cause(screen):
    answer = screen(9, "RaisesWithNames")
    text = " ".join(answer.out.split())
    assert "1. 9 Momentum: error: ValueError: input …: no kernel for …" in text


def test_wrong_values_come_before_more_frequent_errors(screen):
    text = " ".join(screen(10, "MostlyRaises").out.split())
    assert "1. 1 Momentum: X_new off" in text
    assert "2. 9 Momentum: error: ValueError: no kernel" in text


def test_causes_have_the_same_order_in_all_formats(screen, workplace):
    formats = ("markdown", "html")
    reports = [word for name in formats for word in ("--report", f"{name}=run.{name}")]
    answer = screen(12, "ErrorsAndTwoFaults", *reports)
    causes = ("X_new off", "is float64 where float32 is expected", "ValueError: no kernel")
    for text in (answer.out, *((workplace / f"run.{name}").read_text() for name in formats)):
        titles = re.findall("|".join(causes), text)
        assert [*dict.fromkeys(titles)] == [*causes]


def test_invalid_case_is_listed_once_for_all_backends(workplace, onnxopt):
    wrong = f"{PLAIN_CASE}    outputs: {{X_new: [7.0, 7.0], V_new: [7.0, 7.0]}}\n"
    (workplace / "demo.yaml").write_text(f"{HEAD}  - name: plain{wrong}")
    backends = ("-b", "numpy", "-b", "onnx-reference")
    answer = onnxopt("run", "demo.yaml", *backends, "--report", "markdown=out.md")
    assert answer.code == 2
    assert answer.out.count("INVALID demo/demo/plain") == 1
    assert "1 failure, by cause" in answer.out
    quiet = onnxopt("run", "demo.yaml", *backends, "-q")
    assert quiet.out.count("INVALID demo/demo/plain") == 1
    assert (workplace / "out.md").read_text().count("<details><summary>invalid") == 1


@pytest.mark.slow
def test_failures_of_an_operator_without_a_formula_split_by_attributes(workplace, onnxopt):
    (workplace / "vendor.py").write_text(IGNORES_ANTIALIAS)
    run = ("run", "onnx-node", "--operator", "Resize", "-b", "python:vendor.py:IgnoresAntialias")
    text = " ".join(onnxopt(*run).out.split())
    # The backend is derived from onnx's reference. On some generated nodes, the reference itself is
    # wrong. Some searches therefore find only the condition.
    cause = "consistent with 'antialias ignored'|wrong wherever antialias is 1"
    assert re.search(rf"1\. 4 Resize: ({cause})", text)
    assert "Resize; antialias=1" in text
    assert "of X float32[1,1,4,4]" in text


def test_hint_explains_how_a_backend_reports_an_unknown_operator(screen):
    hint = "Momentum: only errors. If the backend lacks the operator"
    assert hint in " ".join(screen(2, "DifferentMessages").out.split())
    assert hint not in " ".join(screen(4, "ThreeFaults").out.split())


def test_no_hint_if_the_backend_reports_unknown_operators(screen):
    lowered = screen(2, "Primitives").out
    assert "2 error, 2 of the cases lowered" in " ".join(lowered.split())
    assert "only errors." not in lowered
    mixed = screen(4, "RaisesAlternately", "--lower", "never").out
    assert "2 unsupported" in " ".join(mixed.split())
    assert "only errors." not in mixed


def test_example_has_finite_values(screen):
    answer = screen(3, "Infinite")
    assert "FAIL demo/demo/plain2 on" in answer.out
    assert "inf" not in answer.out.partition("again:")[0].replace("Infinite", "")


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_screen_in_a_pipe_has_no_colour_and_fits(screen, monkeypatch, columns):
    monkeypatch.setattr(stdout(), "width", columns)
    answer = screen(5, "ThreeFaults")
    assert max(map(len, answer.out.splitlines())) <= columns
    assert "\x1b" not in answer.out
    assert "by cause:" in answer.out
    assert "╰─ cause 1, the simplest of 2 ─" in answer.out


@pytest.fixture(scope="module")
def double():
    """Return a wrong result in float64, whose elements have up to 17 digits."""
    cases = onnxopt.load_cases("conformance/adam/double")
    backend = f"python:{REPOSITORY}/tests/plugins/mistaken.py:InsideTheRoot"
    (result,) = onnxopt.run(
        cases, backend, execution=onnxopt.Execution(isolation=onnxopt.Isolation.NONE)
    )
    return result


@pytest.mark.parametrize("columns", [40, 60, 72, 80, 120])
def test_no_number_is_broken_over_two_lines(double, columns):
    console = Console(width=columns, file=StringIO())
    console.print(failure_panel(ResultView(double, {})))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    words = {word.strip(",") for line in lines for word in line.split()}
    elements = double.diffs[0].worst[:3]
    numbers = [(repr(element.expected), repr(element.actual)) for element in elements]
    assert {number for pair in numbers for number in pair} <= words
    side_by_side = any(all(number in line for number in numbers[0]) for line in lines)
    assert side_by_side == (columns > 60)


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 120])
def test_title_of_a_failure_is_shown_completely(double, columns):
    console = Console(width=columns, file=StringIO())
    console.print(failure_panel(ResultView(double, {})))
    panel = re.sub(r"[\s│╭╮─]", "", console.file.getvalue())
    assert f"FAIL{double.case}on{double.backend}".replace(" ", "") in panel


def test_run_without_targets_and_folder_of_cases_names_the_suites(workplace, onnxopt):
    selected = ("-k", "spec/momentum/momentum", "--isolation", "none")
    assert "from spec, conformance" in onnxopt("run", *selected).out


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


def test_known_mistake_is_named_once_as_the_cause(workplace, onnxopt):
    (workplace / "steps.yaml").write_text(STEPS + "".join(map(STEP.format, (1, 2, 3))))
    backend = f"python:{REPOSITORY}/tests/plugins/mistaken.py:InsideTheRoot"
    run = ("run", "steps.yaml", "-b", backend, "--isolation", "none", "--explain-time", "3600")
    text = " ".join(onnxopt(*run).out.split())
    assert "1. 3 Adam: consistent with 'epsilon inside the square root'" in text
    assert text.count("consistent with") == 1
    assert "cause 1, the simplest of 3" in text


def test_command_to_run_again_has_all_options_that_affect_the_verdict(workplace, onnxopt):
    (workplace / "vendor.py").write_text(BACKEND + WRONG_BACKENDS)
    file = REPOSITORY / "tests" / "plugins" / "operators" / "rmsprop.py"
    options = shlex.split("--timeout 7 --memory 1536MiB --error-bound 2 --isolation none")
    more_options = ["--operators", str(file), "--report", "github=-", "-x", "--no-explain"]
    vendor = "python:vendor.py:DifferentMessages"
    answer = onnxopt("run", "optimizers", "-b", vendor, *options, *more_options)
    *_, command = re.findall("again: onnxopt (run .*)", answer.out)
    words = shlex.split(command)
    assert {*options, "--operators"} <= set(words)
    again = onnxopt(*words)
    assert (again.code, "does not conform: 1 error" in again.out) == (1, True)


@pytest.mark.parametrize(
    ("printed", "shown_lines"),
    [
        ("", []),
        ("raised at vendor.py:4", ["raised at vendor.py:4"]),
        ("loading\nready", ["printed by the backend:", "loading", "ready"]),
        ("a\nb\nc\nd", ["printed by the backend, last 3 lines:", "b", "c", "d"]),
    ],
)
def test_output_of_the_backend_is_distinguished_from_the_message(printed, shown_lines):
    fields = {"message": "ValueError: wrong", "printed": printed}
    failing = result(backend="acme", outcome=Outcome.ERROR, **fields)
    console = Console(width=80, file=StringIO())
    console.print(failure_panel(ResultView(failing, {})))
    lines = [line.strip("│ ") for line in console.file.getvalue().splitlines()[1:-1]]
    after_message = lines[lines.index("ValueError: wrong") + 1 :]
    assert after_message[: len(shown_lines)] == shown_lines
    assert after_message[len(shown_lines)].startswith("again: ")


@pytest.mark.parametrize("columns", [30, 40, 80])
def test_no_word_of_a_table_is_broken(columns):
    names = ["a/case-with-a-long-name/plain", "b/short"]
    rows = [(name, "Momentum", "0.0625", "12345678") for name in names]
    console = Console(width=columns, file=StringIO())
    console.print(plain_table(rows, ("case", "operator"), ("error / tolerance", "99% ulp")))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    words = {word.strip(",") for line in lines for word in line.split()}
    assert {*names, "Momentum", "0.0625", "12345678"} <= words


def test_long_words_of_a_table_are_complete():
    console = Console(width=80, file=StringIO())
    console.print(plain_table([("a" * 101, "b" * 90)], ("", "")))
    text = console.file.getvalue()
    assert (text.count("a"), text.count("b")) == (101, 90)
    assert "b" * 20 in text


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_style(outcome):
    assert Style.parse(outcome_style(outcome))
