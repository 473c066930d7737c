"""Measure how long Chromium takes to open an HTML report, and to filter its rows.

    python scripts/measure_page.py REPORT.html [TEXT]

The script opens the page in a headless browser, and prints three durations in seconds:

- from the start of the navigation until the page's script has run;
- from the start of the navigation until the page is drawn;
- from the input of a filter until its result is drawn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# The script waits for two frames: when the second frame begins, the first frame has been drawn.
WAIT_FOR_FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
OPEN_SCRIPT = """(async () => {
  if (document.readyState !== "complete") await new Promise(done => addEventListener("load", done));
  const ready = performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd;
  await %s;
  return [ready / 1000, performance.now() / 1000, document.querySelector("output").textContent];
})()"""
FILTER_SCRIPT = """(async () => {
  const field = document.querySelector("input"), begun = performance.now();
  field.value = %s;
  field.dispatchEvent(new Event("input", {bubbles: true}));
  await %s;
  return [(performance.now() - begun) / 1000, document.querySelector("output").textContent];
})()"""


class Browser:
    """Headless Chromium, controlled through its DevTools protocol on pipes."""

    def __init__(self, folder: str) -> None:
        browser_input, self._requests = os.pipe()
        self._responses, browser_output = os.pipe()
        # Chromium reads from descriptor 3 and writes to descriptor 4.
        command = (f"exec 3<&{browser_input} 4>&{browser_output}; "
                   "exec chromium --headless --no-sandbox --disable-gpu "
                   f"--remote-debugging-pipe --user-data-dir={folder}")  # fmt: skip
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            pass_fds=(browser_input, browser_output),
            stderr=subprocess.DEVNULL,
        )
        self._last_id, self._unread = 0, b""

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._last_id += 1
        request = {"id": self._last_id, "method": method, "params": parameters}
        request |= {"sessionId": session} if session else {}
        os.write(self._requests, json.dumps(request).encode() + b"\0")
        while True:
            while b"\0" not in self._unread:
                self._unread += os.read(self._responses, 1 << 16)
            text, _, self._unread = self._unread.partition(b"\0")
            response = json.loads(text)
            if response.get("id") == self._last_id:
                return response["result"] if "result" in response else sys.exit(str(response))


def main() -> None:
    """Measure the page named on the command line."""
    page, text = Path(sys.argv[1]).resolve(), (*sys.argv[2:], "case_123")[0]
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(folder)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
            session = attached["sessionId"]
            browser.call("Page.navigate", session, url=page.as_uri())
            scripts = (
                OPEN_SCRIPT % WAIT_FOR_FRAME,
                FILTER_SCRIPT % (json.dumps(text), WAIT_FOR_FRAME),
            )
            for script in scripts:
                evaluation = browser.call(
                    "Runtime.evaluate", session, expression=script,
                    awaitPromise=True, returnByValue=True,
                )  # fmt: skip
                print(evaluation["result"]["value"])
        finally:
            browser.call("Browser.close")
            browser.process.wait()


if __name__ == "__main__":
    main()
