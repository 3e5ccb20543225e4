"""A web server of a folder, whose first responses may be errors."""

import contextlib
import http.server
import re
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve a folder, including ranges of files; the first `failures` requests of a name get an error.

    `failures` may have the `status` of the error, and the number of bytes that ranges are `shorter` than stated.
    """

    failures: dict[str, int]
    ranges = True
    is_dated = True

    def send_head(self):  # type: ignore[no-untyped-def]
        name = Path(self.path).name
        if self.failures.get(name, 0) > 0 and self.command == "GET":
            self.failures[name] -= 1
            return self.send_error(self.failures.get("status", 503))
        requested = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not self.ranges or not requested or not path.is_file():
            return super().send_head()
        first, last = int(requested[1]), min(int(requested[2]), path.stat().st_size - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{path.stat().st_size}")
        end = last + 1 - self.failures.get("shorter", 0)
        self.send_header("Content-Length", str(end - first))
        self.end_headers()
        self.wfile.write(path.read_bytes()[first:end] if self.command == "GET" else b"")
        return None

    def send_header(self, keyword: str, value: str) -> None:
        if self.is_dated or keyword != "Last-Modified":
            super().send_header(keyword, value)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    # note: with room for five, Python's choice, the kernel drops connections
    request_queue_size = 128

    def handle_error(self, *address: Any) -> None:
        """Print no traceback, which would be among the errors of a later test, if a client is gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*address)


@contextlib.contextmanager
def serve(
    folder: Path, failures: dict[str, int] | None = None, *, ranges: bool = True, is_dated: bool = True
) -> Iterator[str]:
    handler = type("Serving", (Handler,), {"failures": failures or {}, "ranges": ranges, "is_dated": is_dated})
    with Server(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
