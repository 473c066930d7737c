"""The HTML report in Chromium works, makes no requests, and shows hostile names as text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from report_records import hostile, record, rendered, result

from onnxopt_cli.core.result import Outcome

MOMENTUM = {"operators": ("Momentum",), "capabilities": ("double",)}
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


class Browser:
    """A browser that opens a report, and collects its DOM, console output and requests."""

    def __init__(self, folder, profile, run):
        self.folder, self.profile = folder, profile
        self.page = folder / "report.html"
        self.page.write_text(rendered("html", run), encoding="utf-8")

    def open(self, fragment="", *flags):
        log = self.folder / "network.json"
        done = subprocess.run(
            [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--no-first-run",
                "--enable-logging=stderr",
                "--virtual-time-budget=2000",
                "--in-process-gpu",
                f"--user-data-dir={self.profile}",
                f"--log-net-log={log}",
                "--dump-dom",
                *flags,
                f"{self.page.as_uri()}{fragment}",
            ],
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=True,
        )
        self.dom = done.stdout
        self.console = re.findall(r"CONSOLE.*", done.stderr)
        self.requested_urls = requests_in(log.read_text(encoding="utf-8"))
        assert "</html>" in self.dom
        return self

    def add_script(self, script):
        """Add a script that runs after the page has loaded, and remove the policy against it."""
        text = self.page.read_text(encoding="utf-8")
        policy = re.search(r"<meta http-equiv=[^>]*>", text)[0]
        added = f"<script>addEventListener('load', () => {{ {script} }});</script></body>"
        self.page.write_text(text.replace(policy, "").replace("</body>", added), encoding="utf-8")

    def matrix(self):
        matrix = self.dom[self.dom.index('<table id="matrix">') :]
        return re.search(r"<tbody>(.*?)</tbody>", matrix, re.DOTALL)[1]

    def shown_results(self):
        results = re.findall(r"<(?:details|tr)[^>]*data-case=[^>]*>", self.dom)
        return {re.search('id="([^"]*)"', tag)[1] for tag in results if "hidden" not in tag}

    def shown_cases(self):
        body = self.matrix()
        rows = re.findall(r'<tr([^>]*)><th scope="row"><bdi>(.*?)</bdi>', body)
        return [case for attributes, case in rows if "hidden" not in attributes]


def requests_in(log):
    """Return the hostile URLs that were requested, according to Chromium's log of the network."""
    if not log.rstrip().endswith("}"):
        log = f"{log.rstrip().rstrip(',')}]}}"
    events = json.loads(log)["events"]
    urls = {event.get("params", {}).get("url", "") for event in events}
    initiators = {event.get("params", {}).get("initiator", "") for event in events}
    assert initiators <= {"", "not an origin"}, initiators
    return {url for url in urls if "evil.example" in url}


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return tmp_path_factory.mktemp("profile")


@pytest.fixture
def browser(tmp_path, profile):
    return lambda run: Browser(tmp_path, profile, run)


@pytest.fixture
def several():
    return record(
        result("demo/adam/b", "numpy"),
        result("demo/adam/b", "other", Outcome.FAIL),
        result("demo/adam/a", "numpy"),
        result("demo/adam/a", "other"),
        # This backend did not start, so its result is not a difference between backends.
        result("demo/adam/a", "gone", Outcome.NOT_RUN),
        result("demo/momentum/c", "numpy", Outcome.ERROR, message="no", **MOMENTUM),
        result("demo/momentum/c", "other", **MOMENTUM),
    )


def test_page_opens_without_errors_and_requests(browser, several):
    page = browser(several).open()
    assert page.console == []
    assert page.requested_urls == set()
    assert page.shown_cases() == ["demo/adam/b", "demo/adam/a", "demo/momentum/c"]
    assert "3 of 3 cases" in page.dom


@pytest.mark.parametrize(
    ("fragment", "cases"),
    [
        ("#text=ADAM&sort=0", ["demo/adam/a", "demo/adam/b"]),
        ("#outcome=fail", ["demo/adam/b"]),
        ("#text=momentum&outcome=fail", []),
        ("#sort=-0", ["demo/momentum/c", "demo/adam/b", "demo/adam/a"]),
        ("#sort=1", ["demo/momentum/c", "demo/adam/b", "demo/adam/a"]),
        ("#sort=99&text=%ZZ", []),
        ("#operator=Momentum", ["demo/momentum/c"]),
        ("#needs=double", ["demo/momentum/c"]),
        ("#backend=other&outcome=pass", ["demo/adam/a", "demo/momentum/c"]),
        ("#differs=1", ["demo/adam/b", "demo/momentum/c"]),
    ],
)
def test_fragment_of_the_url_filters_and_sorts_cases(browser, several, fragment, cases):
    page = browser(several).open(fragment)
    assert page.shown_cases() == cases
    assert page.console == []


def test_first_1000_cases_are_shown_and_the_filter_finds_the_others(browser):
    many = browser(record(*(result(f"demo/adam/c{place}", "numpy") for place in range(1200))))
    assert many.open().shown_cases() == [f"demo/adam/c{place}" for place in range(1000)]
    assert "1200 of 1200 cases, the first 1000 are shown" in many.dom
    assert many.open("#text=c119").shown_cases() == [
        f"demo/adam/c{place}" for place in (119, *range(1190, 1200))
    ]
    assert "11 of 1200 cases<" in many.dom
    assert many.open("#sort=-0").shown_cases()[:2] == ["demo/adam/c999", "demo/adam/c998"]
    assert many.console == []


def test_row_that_the_script_creates_equals_a_row_of_the_page(browser):
    name = "<b>demo</b>\u202e/c{}"

    def rows(place):
        yield result(name.format(place), "numpy", Outcome.ERROR, message="<i>no</i>")
        yield result(name.format(place), "other", Outcome.SKIP, lowered=True, message="<i>so</i>")

    between = (result(f"demo/c{place}") for place in range(1200))
    many = browser(record(*rows(1), *between, *rows(2))).open("#text=%3Cb%3E")
    body = many.matrix()
    first_row, second_row = re.findall(r"<tr.*?</tr>", body)
    assert second_row == first_row.replace("/c1<", "/c2<").replace("/c1@", "/c2@")
    assert first_row.count("&lt;") == 4
    assert many.console == []


def test_filter_applies_to_failures_and_passes(browser, several):
    page = browser(several).open("#backend=other&outcome=fail")
    assert page.shown_results() == {"demo/adam/b@other"}
    page = browser(several).open("#operator=Momentum")
    assert page.shown_results() == {"demo/momentum/c@numpy", "demo/momentum/c@other"}


@pytest.mark.parametrize(
    "fragment", ["#demo/momentum/c@numpy", "#outcome=error&show=demo/momentum/c@numpy"]
)
def test_link_to_a_case_unfolds_it(browser, several, fragment):
    page = browser(several).open(fragment)
    opened = re.findall(r"<details[^>]*\bopen\b[^>]*>", page.dom)
    assert len(opened) == 1
    assert 'id="demo/momentum/c@numpy"' in opened[0]


def test_link_to_a_case_in_a_folded_list_unfolds_the_list_and_the_case(browser):
    run = record(*(result(f"demo/{place}", outcome=Outcome.FAIL) for place in range(9)))
    page = browser(run).open("#demo/8@numpy")
    opened = re.findall(r"<details class=\"(\w+)\"[^>]*\bopen\b", page.dom)
    assert opened == ["others", "result"]


def test_elements_fit_on_a_narrow_screen(browser):
    narrow = browser(record(result(outcome=Outcome.FAIL)))
    narrow.add_script(
        "document.querySelectorAll('details').forEach((details) => { details.open = true; });"
        "document.title = document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'wide';"
    )
    # 500 pixels is the minimum width of a window in Chromium.
    assert "<title>fits</title>" in narrow.open("", "--window-size=500,900").dom


def test_filter_changes_the_address_and_button_copies_the_command(browser, several):
    page = browser(several)
    page.add_script(
        """
        const form = document.getElementById("filter"), button = document.querySelector(".copy");
        let copied = "";
        const writeText = async (text) => { copied = text; };
        Object.defineProperty(navigator, "clipboard", { value: { writeText } });
        form.text.value = "b";
        form.differs.checked = true;
        form.dispatchEvent(new Event("input", { bubbles: true }));
        button.click();
        setTimeout(() => {
          document.title = [location.hash, button.textContent, copied].join(" ");
        });
        """
    )
    assert page.open().shown_cases() == ["demo/adam/b"]
    command = "onnxopt run cases/demo.yaml -k demo/adam/b -b other"
    assert (
        re.search("<title>(.*)</title>", page.dom)[1] == f"#text=b&amp;differs=1 Copied {command}"
    )
    assert page.console == []


def test_hostile_names_are_inert(browser):
    page = browser(hostile()).open("#text=<script>document.title='owned'</script>")
    assert "<title>onnxopt report: does not conform</title>" in page.dom
    assert page.console == []
    assert page.requested_urls == set()
    assert len(re.findall("<script", page.dom)) == 1


def test_injected_script_does_not_run(browser, several):
    page = browser(several)
    text = page.page.read_text(encoding="utf-8")
    injected = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
    page.page.write_text(text.replace("<main>", f"<main>{injected}"), encoding="utf-8")
    opened = page.open()
    assert "<title>owned" not in opened.dom
    assert any("Content Security Policy" in line for line in opened.console)


def test_page_without_its_script_has_the_table(browser, several):
    page = browser(several)
    text = page.page.read_text(encoding="utf-8")
    page.page.write_text(re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL), "utf-8")
    opened = page.open()
    assert len(opened.shown_cases()) == 3
    assert '<form id="filter" role="search" hidden' in opened.dom
