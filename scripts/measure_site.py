"""Measure a scoreboard's site: its size, and how long Chromium takes to open its largest pages.

    python scripts/measure_site.py SITE

The script opens the index and the largest page of each kind from the file system, in windows that
are 1280 and 400 pixels wide. The script prints three figures:

- the seconds from the start of the navigation until the page is drawn;
- the processor time of the page's main thread, because other programs hardly affect it;
- the width of the content, which must not exceed the width of the window.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measure_page import WAIT_FOR_FRAME, Browser

WIDTHS = (1280, 400)
KINDS = ("backends", "operators", "cases")
SCRIPT = """(async () => {
  if (document.readyState !== "complete") await new Promise(done => addEventListener("load", done));
  await %s;
  return [performance.now() / 1000, document.documentElement.scrollWidth];
})()"""


def largest_pages(site: Path) -> list[Path]:
    """Return the index, the page about accuracy, and the largest page in each folder."""
    pages = [site / "index.html", site / "accuracy.html"]
    for kind in KINDS:
        sizes = {path: path.stat().st_size for path in (site / kind).glob("*.html")}
        pages.append(max(sizes, key=sizes.__getitem__))
    return pages


def measured(browser: Browser, session: str, page: Path) -> tuple[float, float, int]:
    """Open a page; return the seconds until it was drawn, the processor time, and the width."""
    browser.call("Page.navigate", session, url=page.as_uri())
    evaluated = browser.call(
        "Runtime.evaluate", session, expression=SCRIPT % WAIT_FOR_FRAME,
        awaitPromise=True, returnByValue=True,
    )  # fmt: skip
    seconds, width = evaluated["result"]["value"]
    metrics = browser.call("Performance.getMetrics", session)["metrics"]
    times = {metric["name"]: metric["value"] for metric in metrics}
    return seconds, times["TaskDuration"], width


def main() -> None:
    """Measure the site named on the command line."""
    site = Path(sys.argv[1]).resolve()
    sizes = [path.stat().st_size for path in site.rglob("*") if path.is_file()]
    print(f"{sum(sizes) / 1e6:.1f} MB in {len(sizes)} files")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
            session = attached["sessionId"]
            browser.call("Performance.enable", session, timeDomain="threadTicks")
            for width in WIDTHS:
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                browser.call("Emulation.setDeviceMetricsOverride", session, **size)
                for page in largest_pages(site):
                    seconds, processor, content = measured(browser, session, page)
                    times = f"{seconds:.2f} s, processor {processor:.2f} s"
                    print(f"{width:4} px: {times}, content {content} px  {page.relative_to(site)}")
        finally:
            browser.process.kill()


if __name__ == "__main__":
    main()
