"""A headless chromium, controlled through its pipe (https://chromedevtools.github.io/devtools-protocol)."""

import base64
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")


def installed() -> str | None:
    """Return the path of the browser; None if none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page; it ends with the object.

    Raises:
        RuntimeError: the page throws an error that it does not catch, or the browser refuses a command.
    """

    def __init__(self, program: str):
        profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (reads, self._to), (self._from, writes) = os.pipe(), os.pipe()
        # note: the browser reads descriptor 3 and writes 4, so these ends get higher numbers
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (reads, writes)]
        command = shlex.join([program, *_FLAGS, f"--user-data-dir={profile.name}", "about:blank"])
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command} 3<&{ends[0]} 4>&{ends[1]} {ends[0]}<&- {ends[1]}>&-"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (reads, writes, *ends):
            os.close(end)
        self.close = weakref.finalize(self, _end, self._process, profile, (self._to, self._from))
        self._number, self._rest, self._session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": values, **session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return dict(reply["result"])

    def open(self, url: str) -> None:
        """Load a page, and wait until it is drawn."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        while self.run("document.readyState + location.protocol") not in ("completefile:", "completehttp:"):
            pass

    def run(self, script: str) -> Any:
        """Return the awaited value of an expression, as JSON has it."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(str(done["exceptionDetails"].get("exception", done["exceptionDetails"])))
        return done["result"].get("value")

    def look(self, *, width: int = 1000, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window in pixels, and the system's light or dark mode."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])

    def press(self, keys: Sequence[str]) -> None:
        """Press real keys, given by name: Tab, ArrowRight, Enter."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=codes[key], **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=codes[key])

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def pdf(self, path: Path) -> None:
        """Save the printed page as PDF."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._from, 1 << 20)
            if not read:
                raise RuntimeError("the browser has ended")
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))


def _end(process: subprocess.Popen[bytes], profile: tempfile.TemporaryDirectory[str], pipes: Sequence[int]) -> None:
    for pipe in pipes:
        os.close(pipe)
    process.terminate()
    process.wait(timeout=20)
    profile.cleanup()
