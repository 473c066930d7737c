"""In every report format, untrusted strings remain plain text and never become markup."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_records import HOSTILE, record, rendered, result
from rich.console import Console

from onnxopt_cli.cli.environment import _Lines
from onnxopt_cli.config.run_config import REPORT_FORMATS
from onnxopt_cli.core.record import (
    BackendIdentity,
    Cause,
    Explanation,
)
from onnxopt_cli.core.result import Location, Outcome, Standing
from onnxopt_cli.core.text import command_line
from onnxopt_cli.errors import Fault
from onnxopt_cli.report.terminal import (
    cause_table,
    failing_lines,
    failure_panel,
    summary_table,
)
from onnxopt_cli.report.view.result_view import repeat_command
from onnxopt_cli.report.view.run_view import RunView

# A pattern of commands to GitHub, Azure and TeamCity, and of attachments of Jenkins and GitLab.
# White space may precede a command. CI runners use .NET's definition of white space.
COMMAND = re.compile(r"^[\s\u2500-\u259f]*::|##\w*\[|\[\[ATTACHMENT\|", re.MULTILINE)
TAGS = {"h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "strong", "code", "pre", "ul"}
TAGS |= {"li", "details", "summary", "sub"}
INVISIBLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u034f\u115f\u200b-\u200f\u2028-\u202e\u2066-\u2069\u3164\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff]"
)

BASH = shutil.which("bash")

PIECES = (
    *HOSTILE,
    "::error::x", " ::stop-commands::x", "\u2502 ::warning::x", "##[error]x",
    "##vso[task.setvariable]x",
    "##teamcity[x]", "[[ATTACHMENT|/x]]",
    "\n", "\r", " ", "|", "`", "```", "'", '"', "$(id)", "`id`", ";", "&", "<b>",
    "</code>",
    "</details>", "![x](//x)", "<https://x>", "word " * 9,
    "x\u3164\ufe0f\U000e0041",
)  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)


@st.composite
def runs(draw):
    """Draw a run in which all strings from files, backends and logs are hostile."""
    text = lambda: draw(texts)  # noqa: E731
    backends = list(dict.fromkeys([text(), text()]))
    results = [
        replace(
            result(f"{number}{text()}", backend, outcome, message=text()),
            location=Location(Path(text().replace("\0", "")), number),
            operators=(text(),),
            capabilities=(text(),),
            printed=text(),
            flaky=draw(st.sampled_from(["", text()])),
            expectation=text(),
            standing=draw(st.sampled_from([None, *Standing])),
        )
        for backend in backends
        for number, outcome in enumerate((Outcome.FAIL, Outcome.ERROR, Outcome.PASS), 1)
    ]
    results = [
        replace(result, diffs=tuple(replace(diff, name=text()) for diff in result.diffs))
        for result in results
    ]
    explained = Explanation(
        backends[0], text(), (Cause(text(), (results[0].case,), (text(),)),), {text(): {text(): 2}}
    )
    return record(
        *results,
        backends=tuple(BackendIdentity(name, text()) for name in backends),
        options={"targets": [text()], "expect": text()},
        left_out={text(): text()},
        versions={"onnxopt": text(), text(): text(), f"suite {text()}": text()},
        problems=(Fault(f"{text()}:3", text()),),
        findings=(Fault(text(), text()),),
        explanations=(explained,),
        started="2026-01-31T00:00:00Z",
        hostname=text(),
        exit_code=1,
    )


class Tags(HTMLParser):
    """A parser that collects the elements and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}


@cache
def plain_page():
    """Return the parsed HTML report of a run without hostile strings."""
    results = [
        replace(result(f"c{number}", "b", outcome, message="m"), printed="p", capabilities=("x",))
        for number, outcome in enumerate((Outcome.FAIL, Outcome.ERROR, Outcome.PASS))
    ]
    explained = Explanation("b", "o", (Cause("f", ("c0",), ("d",)),), {})
    page = record(
        *results,
        problems=(Fault("a:3", "b"),),
        findings=(Fault("c", "d"),),
        explanations=(explained,),
        left_out={"x": "y"},
    )
    return Tags(rendered("html", page))


def markdown_is_text(text):
    tags = Tags(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    assert tags.tags <= TAGS, tags.tags
    assert {name for _, name in tags.attributes} <= {"class", "style"}


def html_is_text(text):
    tags, plain = Tags(text), plain_page()
    assert tags.tags <= plain.tags, tags.tags - plain.tags
    assert {name for _, name in tags.attributes} <= {name for _, name in plain.attributes}


def junit_is_text(text):
    allowed_tags = {"testsuites", "testsuite", "properties", "property", "testcase"}
    tags = {element.tag for element in fromstring(text).iter()}  # noqa: S314 - our own report
    assert tags <= {*allowed_tags, "failure", "error", "skipped"}


def github_is_commands(text):
    for line in text.splitlines():
        assert re.match(r"::(error|notice) (file=[^,:]*,(line=\d+,)?)?title=[^,:]*::", line), line


def json_is_text(text):
    assert isinstance(json.loads(text), dict)


CHECKS = {
    "json": json_is_text, "badge": json_is_text, "junit": junit_is_text, "xunit": junit_is_text,
    "markdown": markdown_is_text, "html": html_is_text, "github": github_is_commands,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", REPORT_FORMATS)
@settings(max_examples=10)
@given(run=runs())
def test_every_string_is_text_in_every_format(form, run):
    text = rendered(form, run)
    CHECKS[form](text)
    lines = text
    if form == "github":
        # Each line begins with "::", which starts a command. The rest of the line must not contain
        # another command.
        lines = "\n".join(line[2:] for line in text.splitlines())
    assert not COMMAND.search(lines), COMMAND.search(lines)
    assert not INVISIBLE.search(lines)


def test_carriage_return_within_an_open_line_begins_no_command():
    written = io.BytesIO()
    stream = _Lines(written, encoding="utf-8")
    for part in ("error: ", "text\r::warning::x\n", "open\r", "::error::x\n"):
        stream.write(part)
    stream.flush()
    assert not COMMAND.search(written.getvalue().decode().replace("\r", "\n"))


@pytest.mark.slow
@settings(max_examples=10)
@given(run=runs(), width=st.integers(20, 120))
def test_screen_of_any_width_contains_no_command_to_a_ci_server(run, width):
    written = io.BytesIO()
    stream = _Lines(written, encoding="utf-8", errors="backslashreplace")
    console = Console(file=stream, width=width, color_system=None, markup=False, emoji=False)
    view = RunView(run)
    failing = [result for result in run.results if not result.conforms]
    for part in cause_table(view.causes, 1):
        console.print(part)
    for failing_result in failing:
        console.print(
            failure_panel(view.result(failing_result), failing_result.message, complete=True)
        )
        # The stream must make text printable even if the text is written in parts.
        console.print(failing_result.message, soft_wrap=True)
        stream.write("error: ")
        stream.write(f"{failing_result.message}\n")
    for line in failing_lines(view):
        console.print(line)
    console.print(summary_table(view) or "")
    stream.flush()
    text = written.getvalue().decode().replace("\r", "\n")
    assert not COMMAND.search(text), COMMAND.search(text)


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="needs bash")
@given(words=st.lists(st.lists(st.text(st.characters(exclude_characters="\0"), max_size=9)
                               | texts.map(lambda item: item.replace("\0", "")), max_size=3),
                      min_size=1, max_size=20))  # fmt: skip
def test_shell_reads_the_words_of_a_command_unchanged(words):
    words = [[word for word in line if "\0" not in word] for line in words]
    lines = [command_line(line) for line in words]
    assert not any(INVISIBLE.search(line) or COMMAND.search(line) for line in lines)
    script = "".join(
        f"for word in {line}; do printf '%s\\0' \"$word\"; done; echo\n" for line in lines
    )
    done = subprocess.run(
        [BASH, "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    expected = b"".join(
        b"".join(_as_argument(word) + b"\0" for word in line) + b"\n" for line in words
    )
    assert done.stdout == expected


def _as_argument(word):
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return word.encode("utf-8", "surrogatepass")


def test_too_long_command_is_shown_as_a_comment():
    case = "demo/" + "'; touch owned; '" * 1000
    assert repeat_command(result(case), {}).startswith("# ")


OWNED = "x " * 37 + "::error::owned ##[error]x ##vso[task.complete]x [[ATTACHMENT|/x]]"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "demo.yaml", "-k", OWNED],
        pytest.param(["list", OWNED], marks=pytest.mark.slow),
        pytest.param(["show", f"\n::{OWNED}"], marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_streams_of_the_command_contain_no_command_to_a_ci_server(workplace, words):
    (workplace / "demo.yaml").write_text("onnxopt: 1\nsuite: demo\noperator: Momentum\ncases:\n")
    done = subprocess.run(
        [sys.executable, "-m", "onnxopt_cli", *words], capture_output=True, text=True,
        cwd=workplace, check=False,
    )  # fmt: skip
    assert not COMMAND.search(done.stdout + done.stderr), done.stdout + done.stderr
