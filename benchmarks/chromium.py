"""A headless chromium for one page: what a script returns there, and its image."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
# note: the virtual time of a page, in milliseconds, passes as soon as nothing happens
_TIME = "--virtual-time-budget=10000"
# Inserted first: collects the errors of the page. Inserted last: replaces the page by what the script returns.
_WATCH = """<script>
window.problems = [];
window.addEventListener("error", (event) => problems.push(event.message));
document.addEventListener("securitypolicyviolation", (event) => problems.push("blocked: " + event.blockedURI));
console.error = (...words) => problems.push(words.join(" "));
</script>"""
_RETURN = """<script>
document.currentScript.remove();
window.addEventListener("load", () => setTimeout(async () => {
    let value = null;
    try { value = await (async () => { %s })(); } catch (error) { problems.push(String(error)); }
    document.documentElement.textContent = JSON.stringify({value, problems});
}));
</script>"""


def installed() -> str | None:
    """Return the path of the browser; None if none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def evaluated(page: str, script: str, *, width: int = 1000, height: int = 900, dark: bool = False, at: str = "") -> Any:
    """Return what an async function's body returns in a page of HTML, as JSON has it; at: the end of its address.

    Raises:
        RuntimeError: the page or the body throws an error that it does not catch.
    """
    text = page.replace("<head>", "<head>" + _WATCH, 1) + _RETURN % script
    look = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, "page.html")).write_text(text)
        dumped = _run(folder, f"--window-size={width},{height}", _TIME, *look, "--dump-dom", file.as_uri() + at)
    result: dict[str, Any] = json.loads(
        html.unescape(re.sub(r"^.*?<html[^>]*>|</html>\s*$", "", dumped, flags=re.DOTALL))
    )
    if result["problems"]:
        raise RuntimeError("; ".join(result["problems"]))
    return result["value"]


def screenshot(page: Path, image: Path, *, width: int, height: int) -> None:
    """Save the start of a page as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        _run(folder, f"--window-size={width},{height}", _TIME, f"--screenshot={image.absolute()}", page.as_uri())


def _run(profile: str, *words: str) -> str:
    command = [installed() or NAMES[0], *_FLAGS, f"--user-data-dir={profile}/profile", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
