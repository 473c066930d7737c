"""The site of a scoreboard in Chromium: the filter, links, and narrow screens."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from two_cases import BACKEND, CASE

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture
def opened(onnxopt, workplace):
    """Return a function that opens a page of a site, and returns its DOM and console output."""
    (workplace / "demo.yaml").write_text(CASE)
    (workplace / "demo.py").write_text(BACKEND)
    text = 'suites = ["demo.yaml", "spec/adam"]\n[backends]\nright = "numpy"\n'
    long_name = "long" * 15
    source = (
        f"class Long:\n    def run(self, model, inputs):\n        raise ValueError({long_name!r})\n"
    )
    (workplace / "long.py").write_text(source)
    text += f'off = "python:demo.py:Off"\n{long_name} = "python:long.py:Long"\n'
    (workplace / "board.toml").write_text(text)
    assert onnxopt("scoreboard", "board.toml", "--explain-time", "0").code == 0

    def open_page(address):
        file, _, fragment = address.partition("#")
        uri = (workplace / "site" / file).as_uri() + (f"#{fragment}" if fragment else "")
        done = subprocess.run(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", "--disable-component-update",
                "--in-process-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000",
                "--allow-file-access-from-files",
                f"--user-data-dir={workplace / 'profile'}", "--dump-dom", uri,
            ],
            capture_output=True, encoding="utf-8", timeout=120, check=True,
        )  # fmt: skip
        return done.stdout, re.findall(r"CONSOLE.*", done.stderr)

    return open_page


def test_filter_is_part_of_the_address(opened):
    dom, console = opened("index.html#text=adam&rows=failing")
    rows = re.findall(r"<tr([^>]*)><th scope=\"row\"><a href=\"operators/(\w+).html", dom)
    shown_rows = [name for attributes, name in rows if "hidden" not in attributes]
    assert len(rows) == 2
    assert shown_rows == ["adam"]
    assert "1 of 2 rows" in dom
    assert console == []


def test_headings_of_cases_link_to_the_cases(opened):
    dom, console = opened("cases/momentum.html#demo/demo/plain")
    assert '<h2><a href="#demo/demo/plain">demo/demo/plain</a></h2>' in dom
    assert console == []


def test_pages_fit_on_a_narrow_screen(opened, workplace):
    pages = ["index", "accuracy", "backends/off", "operators/momentum", "cases/momentum"]
    frames = "".join(f'<iframe width="400" src="{page}.html"></iframe>' for page in pages)
    measure = "frame.contentDocument.documentElement.scrollWidth <= 400"
    (workplace / "site" / "frames.html").write_text(
        f"{frames}<script>addEventListener('load', () => {{"
        "document.title = [...document.querySelectorAll('iframe')]"
        f".map((frame) => {measure}).join(' '); }});</script>"
    )
    dom, _ = opened("frames.html")
    assert f"<title>{' '.join(['true'] * len(pages))}</title>" in dom
