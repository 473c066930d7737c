"""Measure how long Chromium takes to open an HTML report, and to filter its rows.

    python scripts/measure_page.py REPORT.html [TEXT]

Opens the page in a browser of its own, without a window, and prints seconds since the navigation
began: when the script had run, when the page was drawn, and how long a filter took to be drawn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# The frame after the next one begins when the next one has been drawn.
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
OPENED = """(async () => {
  if (document.readyState !== "complete") await new Promise(done => addEventListener("load", done));
  const ready = performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd;
  await %s;
  return [ready / 1000, performance.now() / 1000, document.querySelector("output").textContent];
})()"""
FILTERED = """(async () => {
  const field = document.querySelector("input"), begun = performance.now();
  field.value = %s;
  field.dispatchEvent(new Event("input", {bubbles: true}));
  await %s;
  return [(performance.now() - begun) / 1000, document.querySelector("output").textContent];
})()"""


class Browser:
    """Chromium, spoken to through the pipes of its protocol for developers."""

    def __init__(self, folder: str) -> None:
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        # It reads from descriptor 3 and writes to 4.
        command = (f"exec 3<&{theirs} 4>&{answers}; exec chromium --headless --no-sandbox "
                   f"--disable-gpu --remote-debugging-pipe --user-data-dir={folder}")  # fmt: skip
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", command], pass_fds=(theirs, answers), stderr=subprocess.DEVNULL
        )
        self._sent, self._left = 0, b""

    def ask(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._sent += 1
        asked = {"id": self._sent, "method": method, "params": parameters}
        asked |= {"sessionId": session} if session else {}
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while True:
            while b"\0" not in self._left:
                self._left += os.read(self._from, 1 << 16)
            text, _, self._left = self._left.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._sent:
                return answer["result"] if "result" in answer else sys.exit(str(answer))


def main() -> None:
    """Measure the page that the command line names."""
    page, text = Path(sys.argv[1]).resolve(), (*sys.argv[2:], "case_123")[0]
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(folder)
        try:
            target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
            attached = browser.ask("Target.attachToTarget", targetId=target, flatten=True)
            browser.ask("Page.navigate", attached["sessionId"], url=page.as_uri())
            for script in (OPENED % DRAWN, FILTERED % (json.dumps(text), DRAWN)):
                done = browser.ask("Runtime.evaluate", attached["sessionId"], expression=script,
                                   awaitPromise=True, returnByValue=True)  # fmt: skip
                print(done["result"]["value"])
        finally:
            browser.ask("Browser.close")
            browser.process.wait()


if __name__ == "__main__":
    main()
