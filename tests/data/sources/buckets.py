"""S3 as moto's server in a process, a proxy with faults, and folders as buckets of other clouds."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

SERVER = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""
_SECONDS_A_BYTE = 0.001
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


class Bucket:
    """A server with one bucket, which holds the files of a folder in mine/pets; a new server has lost them."""

    def __init__(self) -> None:
        self._folder, self.port = Path("nothing"), 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVER, str(self.port)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        self._fill()

    def _fill(self) -> None:
        import s3fs

        system = s3fs.S3FileSystem(endpoint_url=self.url, key="a", secret="b", skip_instance_cache=True)
        system.mkdir("mine")
        for file in filter(Path.is_file, self._folder.rglob("*")):
            system.pipe_file(f"mine/pets/{file.relative_to(self._folder)}", file.read_bytes())

    def hold(self, folder: Path) -> Bucket:
        """Hold the files of this folder alone, if it is another one than before."""
        if folder != self._folder:
            self._folder = folder
            self.call("reset")
            self._fill()
        return self

    def call(self, what: str, data: bytes = b"") -> None:
        request = urllib.request.Request(f"{self.url}/moto-api/{what}", data, {"Content-Type": "text/plain"})
        urllib.request.urlopen(request).close()

    def stop(self) -> None:
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()

    def is_lost(self) -> bool:
        return self._server.poll() is not None

    def restart(self) -> None:
        self.stop()
        self.start()


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[Bucket]:
    pytest.importorskip("moto.server", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = Bucket()
    yield server
    server.stop()


@pytest.fixture
def s3(_s3_server: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The S3 server of the session, whose address and keys are in the environment."""
    import s3fs

    for key, value in {**KEYS, "AWS_ENDPOINT_URL": _s3_server.url}.items():
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()
    # note: a test may have ended without it, or with keys that are checked
    if _s3_server.is_lost():
        _s3_server.start()
    _s3_server.call("reset-auth", b"inf")
    yield _s3_server
    s3fs.S3FileSystem.clear_instance_cache()


class _Passing(BaseHTTPRequestHandler):
    """Pass a request on to a server; the GET of an image or archive may get a fault."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def handle_one_request(self) -> None:
        # note: the other end may be gone
        with contextlib.suppress(OSError, HTTPException):
            super().handle_one_request()
            return
        self.close_connection = True

    def do_GET(self) -> None:
        is_read = self.command == "GET" and re.search(r"\.(jpg|tar)$", self.path)
        fault = self.server.fault(next(self.server.gets)) if is_read else ""
        if fault:
            self.server.reached.set()
        if fault == "silent":
            time.sleep(600)
        if fault.isdigit():
            self.send_response(int(fault))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        # note: while a server restarts its port is 0
        there = HTTPConnection("127.0.0.1", self.server.target)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        there.request(self.command, self.path, body, dict(self.headers))
        self._answer(there.getresponse(), fault)
        there.close()

    do_HEAD = do_PUT = do_POST = do_GET

    def _answer(self, response: HTTPResponse, fault: str) -> None:
        content = response.read()
        sent = content[: len(content) // 2] if fault in ("cut", "short") else content
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name != "Transfer-Encoding" and (name != "Content-Length" or self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(sent if fault == "short" else content)))
        self.end_headers()
        size = 1 if fault == "slow" else len(sent) or 1
        for start in range(0, len(sent), size):
            self.wfile.write(sent[start : start + size])
            time.sleep(_SECONDS_A_BYTE * (fault == "slow"))
        if fault == "cut":
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            # note: a new server is empty at first
            target, self.server.target = self.server.target, 0
            self.server.then()
            self.server.target = target
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class Proxy(ThreadingHTTPServer):
    """Pass requests on to a port; `fault` returns that of a GET by its number, and `then` is called after a cut.

    Faults: `cut` and `short` send half of the content, of which `short` states the length; `slow` sends single bytes,
    `silent` nothing; a number is a status.
    """

    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, target: int, fault: Callable[[int], str], then: Callable[[], None]):
        super().__init__(("127.0.0.1", 0), _Passing)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.target, self.fault, self.then = target, fault, then
        self.gets, self.reached = itertools.count(), threading.Event()


@contextlib.contextmanager
def proxy(target: int, fault: Callable[[int], str], then: Callable[[], None] = lambda: None) -> Iterator[Proxy]:
    """Run a proxy in front of a port."""
    with Proxy(target, fault, then) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def once(number: int, fault: str = "cut") -> Callable[[int], str]:
    """Return a fault of the GET of this number alone."""
    return lambda get: fault if get == number else ""


class Folders(LocalFileSystem):
    """Buckets of other clouds as folders in buckets/ of the working directory."""

    protocol = ("gs", "hf")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(Path("buckets", path.partition("://")[2]).absolute()) if "://" in path else path


def use_folders() -> None:
    for protocol in Folders.protocol:
        fsspec.register_implementation(protocol, Folders, clobber=True)


class StalledSystem(LocalFileSystem):
    """A file system whose writes block."""

    protocol = "stalled"

    def put_file(self, *_: object, **__: object) -> None:
        time.sleep(1000)

    pipe_file = put_file


def stall_quickly() -> None:
    """Make `stalled://` such a file system, whose failure is noticed within seconds."""
    from launcher.records import mirror

    fsspec.register_implementation("stalled", StalledSystem)
    mirror._SECONDS, mirror._SECONDS_AFTER_A_STALL = 2.0, 1.0
