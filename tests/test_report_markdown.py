"""Markdown: what a renderer makes of it, and that nothing foreign becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_records import HOSTILE, every_outcome, hostile, record, result

from onnxopt_cli.core.outcome import Outcome
from onnxopt_cli.report.markdown import markdown_report

OURS = {"h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "strong", "code", "pre", "ul"}
OURS |= {"li", "details", "summary", "sub"}


class Seen(HTMLParser):
    """Collects tags, and the text by the tag that it stands in."""

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


def test_the_summary_has_a_row_a_backend_with_its_counts():
    run = record(result(), result("b", outcome=Outcome.FAIL), result(backend="other"))
    cells = Seen(markdown_report(run)).cells
    assert cells[:6] == ["backend", "version", "pass", "fail", "lowered", ""]
    assert cells[6:12] == ["numpy", "9.9", "1", "1", "", "does not conform"]
    assert cells[12:18] == ["other", "9.9", "1", "", "", "conforms"]


def test_each_failure_is_folded_and_shows_its_diff_and_its_command():
    text = markdown_report(every_outcome())
    assert text.count("<details><summary>") == 11  # ten failures, and the accuracy
    assert "max abs 0.5" in text
    assert "onnxopt run cases/demo.yaml -k demo/adam/fail -b numpy" in text
    assert "demo/adam/known" not in text


def test_nothing_foreign_becomes_markup_and_all_of_it_is_shown():
    seen = Seen(markdown_report(hostile()))
    assert seen.tags <= OURS
    assert not seen.open
    shown = "".join(data for _, data in seen.text)
    for text in ("<script>document.title='owned'</script>", "a|b`c``d|e\\|f", "{{ 7 * 7 }}"):
        assert text in shown


@pytest.mark.parametrize("text", [*HOSTILE, "````\n# owned"])
def test_a_hostile_message_stays_in_its_fence(text):
    run = record(result(outcome=Outcome.ERROR, message=f"first\n{text}"))
    seen = Seen(markdown_report(run))
    headings = [data for tag, data in seen.text if tag in ("h1", "h2")]
    assert headings == ["onnxopt does not conform", "1 not as expected"]
    assert seen.tags <= OURS


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_backend_s_name_keeps_its_row_whole(text):
    cells = Seen(markdown_report(record(result(backend=text)))).cells
    assert len(cells[:5]) == 5
    assert cells[5:10][1:] == ["9.9", "1", "", "conforms"]


@given(st.text(st.sampled_from("a|`\\<>&_*[]()!~ \n#@:.")))
def test_any_name_is_shown_as_it_is_in_a_cell_of_its_own(text):
    cells = Seen(markdown_report(record(result(backend=f"x{text}x")))).cells
    assert len(cells) == 10 + 7 * 4
    assert cells[5] == f"x{text}x".replace("\n", r"\n")


def test_long_runs_stay_under_what_a_step_summary_may_hold():
    results = [
        result(f"demo/{number}/{'x' * 3000}", outcome=Outcome.ERROR, message="y" * 9000)
        for number in range(2000)
    ]
    text = markdown_report(record(*results))
    assert 500_000 < len(text.encode()) < 1_000_000
    assert "more do not fit in here" in text
    assert Seen(text).open == []
