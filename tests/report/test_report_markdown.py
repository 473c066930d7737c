"""Markdown reports, rendered as HTML: untrusted text never becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_records import HOSTILE, every_outcome, hostile, record, rendered, result

from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import Outcome, Standing
from onnxopt_cli.errors import Fault


def markdown(run):
    return rendered("markdown", run)


OUR_TAGS = {
    "h1",
    "h2",
    "p",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "strong",
    "code",
    "pre",
    "ul",
}
OUR_TAGS |= {"li", "details", "summary", "sub"}


class RenderedMarkdown(HTMLParser):
    """A renderer of Markdown that collects the tags and the text in each tag."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.cells, self.text = set(), [], [], []
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
        assert all(name in ("class", "style") for name, _ in attrs), attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data

    def handle_comment(self, data):
        raise AssertionError(data)


def test_summary_has_a_row_of_counts_for_each_backend():
    run = record(result(), result("b", outcome=Outcome.FAIL), result(backend="other"))
    cells = RenderedMarkdown(markdown(run)).cells
    assert cells[:6] == ["backend", "version", "pass", "fail", "lowered", ""]
    assert cells[6:12] == ["numpy", "9.9", "1", "1", "", "does not conform"]
    assert cells[12:18] == ["other", "9.9", "1", "", "", "conforms"]


def test_each_failure_is_folded_and_shows_its_diff_and_command():
    text = markdown(every_outcome())
    failing = [result for result in every_outcome().results if not result.conforms]
    # All failures except not-run are folded. The table of accuracies is folded, too.
    assert text.count("<details><summary>") == len(failing) - 1 + 1
    assert "max abs 0.5" in text
    assert "onnxopt run cases/demo.yaml -k demo/adam/fail -b numpy" in text
    assert "<code>demo/adam/known</code>" not in text


def test_expected_failures_are_counted_and_grouped_separately():
    expected = [
        result(f"demo/{number}", outcome=Outcome.FAIL, standing=Standing.EXPECTED)
        for number in range(145)
    ]
    text = markdown(record(result(), *expected))
    assert text.startswith("# `numpy` fails only as expected\n\n1 pass, 145 expected failures\n")
    assert "## 145 expected failures, by cause\n\n- **145** `Adam: X_new off`, as `demo/0`" in text
    assert "<details><summary>fail" not in text


def test_unsupported_cases_are_grouped_by_reason_separately():
    results = [
        result(f"demo/{number}", outcome=Outcome.UNSUPPORTED, message=f"no kernel for T{number}")
        for number in range(9)
    ]
    text = markdown(record(*results, result(outcome=Outcome.FAIL)))
    assert "**1 failure, by cause:**" in text
    assert "- 9 unsupported on `numpy`: `no kernel for …`" in text
    assert text.index("<summary>fail") < text.index("<summary>unsupported")


def test_hostile_text_is_shown_and_does_not_become_markup():
    rendered = RenderedMarkdown(markdown(hostile()))
    assert rendered.tags <= OUR_TAGS
    assert not rendered.open
    rendered_text = "".join(data for _, data in rendered.text)
    for text in ("<script>document.title='owned'</script>", "a|b`c``d|e\\|f", "{{ 7 * 7 }}"):
        assert text in rendered_text


@pytest.mark.parametrize("text", [*HOSTILE, "````\n# owned"])
def test_hostile_message_stays_in_its_code_block(text):
    run = record(result(outcome=Outcome.ERROR, message=f"first\n{text}"))
    rendered = RenderedMarkdown(markdown(run))
    headings = [data for tag, data in rendered.text if tag in ("h1", "h2")]
    assert headings == [" does not conform", "1 not as expected"]
    assert rendered.tags <= OUR_TAGS


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_name_of_a_backend_does_not_break_its_row(text):
    cells = RenderedMarkdown(markdown(record(result(backend=text)))).cells
    assert len(cells[:5]) == 5
    assert cells[5:10][1:] == ["9.9", "1", "", "conforms"]


@given(st.text(st.sampled_from("a|`\\<>&_*[]()!~ \n#@:.")))
@example("##[")
def test_any_name_is_shown_in_its_cell_without_commands(text):
    cells = RenderedMarkdown(markdown(record(result(backend=f"x{text}x")))).cells
    assert len(cells) == 10 + 8 * 4
    # Azure Pipelines would execute "##[...]" as a command.
    assert cells[5] == f"x{text}x".replace("\n", r"\n").replace("##[", r"\x23#[")


def test_causes_come_first_then_counts_then_failures():
    cause = Explanation("numpy", "Adam", (Cause("'epsilon'", ("b",), ("epsilon",)),))
    run = record(result(), result("b", outcome=Outcome.FAIL), explanations=(cause,))
    text = markdown(run)
    places = [text.index(name) for name in ("consistent with", "| backend |", "1 not as expected")]
    assert places == sorted(places)


HUGE = [
    [("\u20ac|`" * 2000, "y" * 9000, 1)],
    [("x" * 3000, "`" * 9000, 3000)],
    [("demo", "\n".join(f"line {number} of a trace" for number in range(5000)), 100_000)],
    [(f"{'b' * 50}{number}", "z", 1) for number in range(600)],
]


@pytest.mark.slow
@pytest.mark.parametrize("parts", HUGE, ids=["one", "names", "many", "backends"])
def test_report_fits_in_a_comment_and_counts_omitted_failures(parts):
    failure = result(outcome=Outcome.ERROR)
    results = [
        replace(failure, case=f"demo/{name}/{number}", backend=name, message=message)
        for name, message, count in parts
        for number in range(count)
    ]
    causes = [Explanation(name, "Adam", note="|" * 5000) for name, *_ in parts * 50]
    problems = tuple(Fault(f"{name}.yaml:3", message) for name, message, _ in parts * 50)
    run = record(*results, explanations=tuple(causes[:600]), problems=problems[:600])
    text = markdown(run)
    assert len(text) <= 60_000
    assert len(text.encode()) < 1 << 20
    assert RenderedMarkdown(text).open == []
    shown_count = text.count("<details><summary>error")
    hidden = re.search(r"(\d+) more are not shown here \((\d+) error\)", text)
    assert shown_count >= 1
    assert shown_count + (int(hidden[1]) if hidden else 0) == len(results)


def test_first_failures_are_of_different_kinds():
    results = [result(f"demo/a/{number}", outcome=Outcome.FAIL) for number in range(500)]
    results += [result("demo/b", operators=("Adagrad",), outcome=Outcome.FAIL)]
    results += [result("demo/c", "other", Outcome.TIMEOUT)]
    text = markdown(record(*results))
    places = [text.index(f"<code>demo/{name}</code>") for name in ("a/0", "b", "c", "a/1")]
    assert places == sorted(places)


def test_omitted_table_of_accuracy_is_mentioned():
    results = [
        result(f"demo/{number}", f"b{number}{'x' * 250}", Outcome.PASS) for number in range(200)
    ]
    text = markdown(record(*results))
    assert len(text) <= 60_000
    assert "accuracy is too long" in text


def test_stack_trace_is_shortened_to_its_first_and_last_line():
    trace = "\n".join(
        ["Error: cannot", *(f"  at frame {number}" for number in range(50)), "Last: cause"]
    )
    text = markdown(record(result(outcome=Outcome.ERROR, message=trace)))
    assert "Error: cannot\n... 50 lines left out; " in text
    assert "\nLast: cause\n" in text
    assert "frame 7" not in text


def test_problems_of_a_file_are_not_shortened():
    wrong = "\n".join(f"a.yaml:{number}: no such field" for number in range(9))
    text = markdown(record(result(outcome=Outcome.INVALID, message=wrong)))
    assert wrong in text
