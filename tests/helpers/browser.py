"""Pages in headless Chromium, without a driver: a test's own script runs in the page and hands back what it saw."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

# Errors are collected from before the page's own scripts run, until what the test asked is done.
_BEFORE = "window.problems = []; addEventListener('error', (event) => problems.push(event.message));"
_AFTER = """
(async () => {
  const frame = () => new Promise((done) => setTimeout(done, 60));
  const all = (selector) => [...document.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  let outcome = null;
  try { outcome = await (async () => { %s })(); } catch (error) { problems.push(String(error)); }
  parent.postMessage(JSON.stringify({ outcome, problems }), "*");
})();
"""
# The page is looked at in a frame, for a window of Chromium's cannot be as narrow as a phone.
_FRAME = """<!DOCTYPE html>
<body style="margin:0"><iframe src="%s" style="border:0;width:%dpx;height:%dpx"></iframe><pre></pre>
<script>
addEventListener("message", (event) => { document.querySelector("pre").textContent = event.data; });
</script>"""


@dataclass(frozen=True)
class Visit:
    """What the script returned, and every error: thrown, refused by the content security policy, or written to the console."""

    outcome: Any
    problems: list[str]


def visit(page: str, script: str, folder: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> Visit:
    """Opens `page` (HTML) and runs `script`, the body of an async function, in it; what it returns comes back through JSON.

    The script has `one(selector)`, `all(selector)` and `await frame()`, which lets the page go on for a moment.
    """
    assert CHROMIUM is not None
    path = folder / "page.html"
    path.write_text(_with_scripts(page, _BEFORE, _AFTER % script), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(_FRAME % (path.as_uri(), width, height), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={max(width, 600)},{height}"]
    command += ["--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom"]
    command += ["--blink-settings=preferredColorScheme=0"] * dark
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    said = re.search(r"<pre>(.*?)</pre>", done.stdout, flags=re.DOTALL)
    assert said is not None, done.stderr
    assert said[1], f"the script did not finish: {done.stderr[-2000:]}"
    answer = json.loads(html.unescape(said[1]))
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Visit(answer["outcome"], answer["problems"] + console)


def _with_scripts(page: str, before: str, after: str) -> str:
    """The page with two more scripts, which its content security policy is told to allow."""
    for code in (before, after):
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    page = page.replace("<style>", f"<script>{before}</script><style>", 1)
    return page.replace("</body>", f"<script>{after}</script></body>", 1)


def data_of(page: str) -> dict[str, Any]:
    """What the scripts of a page read."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    content: dict[str, Any] = json.loads(found[1])
    return content
