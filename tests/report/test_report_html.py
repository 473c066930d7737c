"""The HTML report is complete without its script, and no text of a result becomes active."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
from report_records import HOSTILE, diff, every_outcome, hostile, record, rendered, result

from onnxopt_cli.core.record import Cause, Explanation
from onnxopt_cli.core.result import CaseContent, Outcome, Standing
from onnxopt_cli.core.tolerance import Provenance, Relative

OUR_TAGS = {
    "head",
    "main",
    "figure",
    "h2",
    "label",
    "meta",
    "ul",
    "dd",
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
    "span",
    "p",
    "td",
    "nav",
    "input",
    "output",
    "h4",
    "button",
}
CHART = {"svg", "text", "line", "rect", "polygon", "polyline", "circle"}
VOID_TAGS = {"meta", "link", "br", "input"}


class Page(HTMLParser):
    """A parser that collects tags, attributes and text, and fails if tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def values(self, tag, attribute):
        return [value for name, key, value in self.attributes if (name, key) == (tag, attribute)]


def test_page_contains_every_result_and_number_without_its_script():
    run = every_outcome()
    page = Page(rendered("html", run))
    text = " ".join(page.text.split())
    for one_result in run.results:
        assert one_result.case in text
        assert one_result.message in text
    assert "unexpected-pass" in text
    assert "max abs 0.5, rel 0.25" in text
    assert "allowed: 4 times the error bound of the formula (derived)" in text
    assert "onnxopt run cases/demo.yaml -k demo/adam/fail -b numpy" in text
    assert "onnxopt 1.2.3" in text
    assert "exit code 1" in text
    assert page.values("details", "open") == []


def test_failing_cell_links_to_its_failure():
    page = Page(rendered("html", record(result(), result("demo/x", outcome=Outcome.FAIL))))
    assert "#demo/x@numpy" in page.values("a", "href")
    assert "demo/x@numpy" in page.values("details", "id")


def words(source):
    """Return the text of an HTML source, with spaces in place of tags."""
    return " ".join(unescape(re.sub("<[^>]+>", " ", source)).split())


def section(source, name):
    tail = source[source.index(f'<section id="{name}">') :]
    return words(re.split(r"<section id=|</main>", tail)[1].partition(">")[2])


def test_failures_are_grouped_by_cause_with_the_change_of_the_formula():
    mistake = Cause(
        "'epsilon inside the square root'", ("a", "b"), ("epsilon inside the square root",)
    )
    run = record(
        result("a", outcome=Outcome.FAIL),
        result("b", outcome=Outcome.FAIL),
        result("c", outcome=Outcome.ERROR, message="no kernel"),
        explanations=(Explanation("numpy", "Adam", (mistake,)),),
    )
    text = section(rendered("html", run), "failures")
    assert "2 Adam: consistent with 'epsilon inside the square root' G_regularized" in text
    assert "- H_sqrt = sqrt(H_new) + epsilon + H_sqrt = sqrt(H_new + epsilon)" in text
    assert "onnxopt show Adam --mistake 'epsilon inside the square root'" in text
    assert text.index("fail a") < text.index("fail b") < text.index("1 Adam: error: no kernel")


def test_failure_condition_is_a_cause_with_its_cases():
    condition = Cause("wrong wherever X has at least 33 elements", ("a", "b", "c", "d"))
    run = record(
        *(result(case, outcome=Outcome.FAIL) for case in "abcd"),
        explanations=(Explanation("numpy", "Adam", (condition,)),),
    )
    source = rendered("html", run)
    text = section(source, "failures")
    assert "4 Adam: wrong wherever X has at least 33 elements fail a" in text
    assert "1 more of this cause fail d" in text
    assert 'class="change"' not in source


def test_failure_shows_what_the_case_tests_its_attributes_and_inputs():
    content = CaseContent("T = 0.", (("Adam", "alpha=0.9"),), (("X", "float32[2]", "[1.5, 2]"),))
    text = section(
        rendered("html", record(result(outcome=Outcome.FAIL, content=content))), "failures"
    )
    assert "T = 0. Adam alpha=0.9 X float32[2] [1.5, 2]" in text


def test_command_that_runs_a_failing_case_again_has_a_copy_button():
    page = rendered("html", record(result("demo/adam/plain", outcome=Outcome.FAIL)))
    commands = re.findall(r'<pre>([^<]*)</pre><button type="button" class="copy">', page)
    assert any("-k demo/adam/plain" in command for command in commands)


def test_unsupported_cases_are_separate_from_failures_and_grouped_by_reason():
    run = record(
        *(result(f"demo/{n}", outcome=Outcome.UNSUPPORTED, message=f"no T{n}") for n in range(4)),
        result(outcome=Outcome.FAIL),
    )
    source = rendered("html", run)
    assert "unsupported" not in section(source, "failures")
    assert section(source, "without").count("4 unsupported on numpy : no …") == 1


def test_expected_failures_are_counted_separately_from_failures():
    failing = [
        result(f"demo/{n}", outcome=Outcome.FAIL, standing=Standing.EXPECTED) for n in range(145)
    ]
    source = rendered("html", record(result(), *failing))
    text = words(source)
    # The counts occur twice: for the run and for the operator.
    assert text.count("1 pass, 145 expected failures") == 2
    assert section(source, "failures").endswith("None.")
    assert "145 Adam: X_new off" in section(source, "known")


def test_operators_have_a_row_with_the_counts_of_each_backend():
    run = record(
        result("a", "one"),
        result("b", "one", operators=("Sqrt",), outcome=Outcome.FAIL),
        result("a", "two", outcome=Outcome.ERROR),
        result("b", "two", operators=("Sqrt",)),
    )
    text = section(rendered("html", run), "operators")
    assert text == "Operators operator one two Adam 1 pass 1 error Sqrt 1 fail 1 pass"


def test_operator_with_only_unsupported_cases_is_not_marked_as_failing():
    unsupported = result("a", outcome=Outcome.UNSUPPORTED, message="no Adam")
    failing = result("b", operators=("Sqrt",), outcome=Outcome.FAIL)
    source = rendered("html", record(unsupported, failing))
    assert '<td data-title="numpy" class="unsupported">1 unsupported</td>' in source
    assert '<td data-title="numpy" class="bad">1 fail</td>' in source


def test_passes_have_details():
    text = section(rendered("html", record(result(note="contested: reading 2 of 2"))), "passes")
    assert "demo/adam/first on numpy contested: reading 2 of 2 X_new float32[2] max abs 0" in text
    assert "(derived) V_new" in text


def test_origin_date_and_duration_are_stated():
    run = record(
        result(),
        started="2026-01-31T23:59:00Z",
        ended="2026-02-01T00:00:30Z",
        origin={"commit": "abc"},
        options={"label": "nightly"},
    )
    text = words(rendered("html", run))
    assert "label nightly commit abc 2026-01-31 23:59 UTC 90.0 s, 0.2 s of it in backends" in text
    clock_set_back = replace(run, ended="2026-01-31T23:58:00Z")
    assert "of it in backends" not in words(rendered("html", clock_set_back))


def test_outputs_with_any_tolerance_have_an_accuracy():
    loose = Relative(1e-3, 1e-7, Provenance.ONNX)
    run = record(
        result(operators=("Sqrt",), diffs=(replace(diff(actual=(1.0, 2.0)), tolerance=loose),))
    )
    assert "Sqrt output ONNX default 2" in section(rendered("html", run), "accuracy")


def test_cell_of_a_case_that_was_not_reached_states_that_it_did_not_run():
    assert "not reached" in Page(rendered("html", record(result(), result("demo/x", "other")))).text


def test_page_loads_nothing_and_contains_only_its_own_script():
    page = Page(rendered("html", hostile()))
    assert set(page.tags) <= OUR_TAGS | CHART
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
    for name in ("src", "srcset", "action", "formaction", "data"):
        assert [value for _, key, value in page.attributes if key == name] == []
    assert all(value == "data:," or value.startswith("#") for value in page.values("a", "href"))
    (policy,) = (content for content in page.values("meta", "content") if "default-src" in content)
    assert policy.startswith("default-src 'none'; ")
    sources = {source for rule in policy.split("; ") for source in rule.split()[1:]}
    assert {source for source in sources if not source.startswith("'sha256-")} == {
        "'none'",
        "data:",
    }


def test_hostile_text_is_text_and_invisible_characters_are_escaped():
    source = rendered("html", hostile())
    page = Page(source)
    for text in HOSTILE[:4]:
        assert text in page.text
    assert r"\u202egnp.exe" in page.text
    assert r"\x1b[31m" in page.text
    hidden = {character for character in source if not character.isprintable()} - {"\n"}
    assert hidden == set()


def charts_of(run):
    return re.findall(r"<svg.*?</svg>", rendered("html", run), re.DOTALL)


def test_charts_are_reproducible_and_contain_no_script_or_reference():
    run = record(result(), result(backend="other", outcome=Outcome.FAIL))
    charts = charts_of(run)
    assert len(charts) == 4
    for chart in charts:
        assert "Adam X_new" in chart or "elements" in chart
        assert set(re.findall(r"<(\w+)", chart)) <= CHART
        assert not re.search(r"href|url\(|style=|\son\w+=", chart)
    assert charts_of(run) == charts


def test_charts_have_a_description():
    page = Page(rendered("html", record(result(outcome=Outcome.FAIL, curve={1: 0.5, 9: 3.0}))))
    error_bound, spread, curve = page.values("svg", "aria-label")
    assert error_bound == "Error / tolerance: at most 5e+05, by Adam X_new."
    assert spread == "Spread of errors: 5 of 6 elements equal the expected result."
    assert curve == "Error / tolerance over steps: at most 3, by demo/adam/first."
    assert page.values("svg", "role") == ["img"] * 3


def numbers_of(chart, pattern):
    return [float(number) for number in re.findall(pattern, chart)]


def test_length_of_a_bar_is_proportional_to_error_over_tolerance():
    half, over = result(diffs=(share(0.5),)), result("demo/x", "b", diffs=(share(7.0),))
    bars = [charts_of(record(run_result))[0] for run_result in (half, over)]
    for chart, part in zip(bars, (0.5, 1.15), strict=True):
        (limit,) = numbers_of(chart, r'class="limit" x1="([\d.]+)" y1="24')
        start, width = numbers_of(chart, r'class="mark" x="([\d.]+)"')[0], numbers_of(
            chart, r'class="mark" [^>]*width="([\d.]+)"')[0]  # fmt: skip
        assert width == pytest.approx(part * (limit - start), abs=0.5)
    assert "over: 7<" in bars[1]
    assert "over" not in bars[0]


def share(used):
    return replace(diff(actual=(1.0, 2.0)), tolerance_used=used)


def test_histogram_has_a_bar_for_each_size_of_error_and_for_nonfinite_values():
    not_finite = result(diffs=(diff(actual=(1.0, float("nan"))),), outcome=Outcome.FAIL)
    _, spread = charts_of(record(result(outcome=Outcome.FAIL)))
    assert spread.count('class="mark"') == 2
    assert "2^21<" in spread
    _, spread = charts_of(record(not_finite))
    assert (spread.count('class="mark"'), spread.count('class="apart"')) == (1, 1)
    assert "inf or NaN<" in spread


def test_curve_shows_the_largest_error_of_steps_at_one_position():
    steps = dict.fromkeys(range(1, 20_001), 0.01) | {10_000: 5.0}
    run = record(result(curve=steps), result("demo/y", curve={7: 0.3}))
    chart = charts_of(run)[2]
    over, point = chart.count('class="curve over"'), chart.count("<circle")
    assert (over, point) == (1, 1)
    heights = numbers_of(re.search(r'points="([^"]*)"', chart)[1], r",([\d.]+)")
    (limit,) = numbers_of(chart, r'class="limit" x1="62" y1="([\d.]+)"')
    assert min(heights) < limit
    assert len(heights) < 500


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -1.0, 0.0, 1e300])
def test_saved_run_with_implausible_numbers_has_charts(strange):
    odd = replace(
        diff(),
        tolerance_used=strange,
        tolerance_used_median=strange,
        ulp_counts=(-3, 0, 1),
        max_ulp=-1,
    )
    run = record(result(diffs=(odd,), curve={-(10**400): strange, 10**400: 1.0}))
    for chart in charts_of(run):
        for number in re.findall(r'(?:x|y|x1|y2|cx|width|height|points)="([^"]*)"', chart):
            for word in re.split("[ ,]", number):
                assert 0 <= float(word) < 1000


def test_run_without_a_tolerance_has_no_section_on_accuracy():
    page = Page(rendered("html", record(result(outcome=Outcome.ERROR, message="no"))))
    assert "accuracy" not in page.values("section", "id")
    assert "svg" not in page.tags


@pytest.mark.slow
def test_hundreds_of_cases_on_three_backends_fit_in_a_few_megabytes():
    results = [
        result(f"demo/case_{number}", backend, Outcome.FAIL if number % 3 else Outcome.PASS)
        for number in range(628)
        for backend in ("a", "b", "c")
    ]
    assert len(rendered("html", record(*results))) < 4_000_000


def test_rows_beyond_the_first_1000_name_the_opset_that_ran():
    first_results = [result(f"demo/{place}") for place in range(1000)]
    opsets = [9, 11]
    later_results = [result(f"demo/{opset}-older", diffs=(), opset=opset) for opset in opsets]
    text = rendered("html", record(*first_results, *later_results))
    cells = text.partition('<template id="cells">')[2].partition("</template>")[0]
    assert [int(number) for number in re.findall(r"opset (\d+)", cells)] == opsets


def test_passes_without_details_share_a_cell():
    text = rendered("html", record(*(result(f"demo/{place}") for place in range(1100))))
    cells = text.partition('<template id="cells">')[2].partition("</template>")[0]
    assert cells.count("<td") == 1
    assert "The first 1000 of 1100 passes have details" in text
