"""The HTML page: complete without a script, and nothing in it can act or ask for anything."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest
from report_records import HOSTILE, every_outcome, hostile, record, result

from onnxopt_cli.core.outcome import Outcome

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from onnxopt_cli.report.html import html_report

OURS = {
    "head",
    "main",
    "figure",
    "h2",
    "label",
    "meta",
    "ul",
    "dd",
    "picture",
    "select",
    "title",
    "details",
    "form",
    "th",
    "div",
    "body",
    "b",
    "thead",
    "br",
    "pre",
    "li",
    "tr",
    "dt",
    "a",
    "link",
    "source",
    "dl",
    "tbody",
    "h3",
    "figcaption",
    "bdi",
    "table",
    "header",
    "html",
    "option",
    "section",
    "summary",
    "h1",
    "script",
    "style",
    "img",
    "span",
    "p",
    "td",
    "nav",
    "input",
    "output",
}
EMPTY = {"meta", "link", "br", "input", "source", "img"}


class Page(HTMLParser):
    """Collects tags, attributes and text; fails where tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def values(self, tag, attribute):
        return [value for name, key, value in self.attributes if (name, key) == (tag, attribute)]


def test_without_a_script_the_page_holds_every_result_and_number():
    run = every_outcome()
    page = Page(html_report(run))
    shown = " ".join(page.text.split())
    for it in run.results:
        assert it.case in shown
        assert it.message in shown
    assert "unexpected-pass" in shown
    assert "max abs 0.5, rel 0.25" in shown
    assert "allowed: 4 times the rounding bound of the formula (derived)" in shown
    assert "onnxopt run cases/demo.yaml -k demo/adam/fail -b numpy" in shown
    assert "onnxopt 1.2.3" in shown
    assert "exit code 1" in shown
    assert page.values("details", "open") == []


def test_a_failing_cell_leads_to_its_failure():
    page = Page(html_report(record(result(), result("demo/x", outcome=Outcome.FAIL))))
    assert "#failure-1" in page.values("a", "href")
    assert "failure-1" in page.values("details", "id")


def test_a_backend_that_did_not_get_to_a_case_leaves_a_cell_that_says_so():
    assert "not reached" in Page(html_report(record(result(), result("demo/x", "other")))).text


def test_the_page_asks_for_nothing_and_runs_no_script_but_its_own():
    page = Page(html_report(hostile()))
    assert set(page.tags) <= set(OURS)
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
    for name in ("src", "srcset", "action", "formaction", "data"):
        links = [value for _, key, value in page.attributes if key == name]
        assert all(value.startswith("data:image/svg+xml;base64,") for value in links)
    assert all(value == "data:," or value.startswith("#") for value in page.values("a", "href"))
    (policy,) = (it for it in page.values("meta", "content") if "default-src" in it)
    assert policy.startswith("default-src 'none'; ")
    sources = {source for rule in policy.split("; ") for source in rule.split()[1:]}
    assert {it for it in sources if not it.startswith("'sha256-")} == {"'none'", "data:"}


def test_hostile_text_is_shown_as_text_with_what_is_invisible_made_visible():
    source = html_report(hostile())
    page = Page(source)
    for text in HOSTILE[:4]:
        assert text in page.text
    assert r"\u202egnp.exe" in page.text
    assert r"\x1b[31m" in page.text
    hidden = {character for character in source if not character.isprintable()} - {"\n"}
    assert hidden == set()


def test_charts_hold_no_script_and_no_reference_and_are_the_same_every_time():
    page = Page(html_report(record(result(), result(backend="other", outcome=Outcome.FAIL))))
    charts = page.values("img", "src") + page.values("source", "srcset")
    assert len(charts) == 4 * 3
    for chart in charts:
        svg = base64.b64decode(chart.partition(",")[2]).decode()
        assert "Adam X_new" in svg or "elements" in svg
        assert not re.search(r"<script|<foreignObject|<image|javascript:|\son\w+=", svg)
        assert not re.search(r'href="(?!#)', svg)
    again = Page(html_report(record(result(), result(backend="other", outcome=Outcome.FAIL))))
    assert again.values("img", "src") == page.values("img", "src")


def test_each_chart_says_in_words_what_it_shows():
    page = Page(html_report(record(result(outcome=Outcome.FAIL))))
    budget, spread = page.values("img", "alt")
    assert budget == "Budget used: at most 5e+05, by Adam X_new."
    assert spread == "Spread of errors: 5 of 6 elements are correctly rounded."


def test_a_run_without_a_budget_has_no_section_on_accuracy():
    page = Page(html_report(record(result(outcome=Outcome.ERROR, message="no"))))
    assert "accuracy" not in page.values("section", "id")
    assert page.values("img", "src") == []


def test_two_thousand_cases_on_three_backends_fit_in_a_few_megabytes():
    results = [
        result(f"demo/case_{number}", backend, Outcome.FAIL if number % 3 else Outcome.PASS)
        for number in range(1884)
        for backend in ("a", "b", "c")
    ]
    assert len(html_report(record(*results))) < 12_000_000
