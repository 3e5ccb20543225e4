"""S3 as moto's server in a process, a proxy that cuts a connection, and folders as buckets of other clouds."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

from launcher.training import mirror

SERVER = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[1]), verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
threading.Event().wait()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


class Bucket:
    """A server with one bucket, which holds the files of a folder in mine/pets; a new server has lost them."""

    def __init__(self, folder: Path):
        self._folder, self.port = folder, 0
        self.start()

    def start(self) -> None:
        import s3fs

        command = [sys.executable, "-c", SERVER, str(self.port)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        system = s3fs.S3FileSystem(endpoint_url=self.url, key="a", secret="b", skip_instance_cache=True)
        system.mkdir("mine")
        for file in filter(Path.is_file, self._folder.rglob("*")):
            system.pipe_file(f"mine/pets/{file.relative_to(self._folder)}", file.read_bytes())

    def stop(self) -> None:
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()


class _CutOnce(socketserver.StreamRequestHandler):
    """Pass a connection on to a server, but cut the response to one GET of an image or archive in its middle."""

    server: _Proxy

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server.target)) as there:
            is_cut = threading.Event()
            threading.Thread(target=self._ask, args=(there, is_cut), daemon=True).start()
            while data := there.recv(1 << 12):
                self.connection.sendall(data[: len(data) // 2] if is_cut.is_set() else data)
                if is_cut.is_set():
                    self.connection.shutdown(socket.SHUT_RDWR)
                    # note: a new server is empty at first
                    target, self.server.target = self.server.target, 0
                    self.server.then()
                    self.server.target = target
                    break

    def _ask(self, there: socket.socket, is_cut: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := self.connection.recv(1 << 16):
                if re.match(rb"GET \S+\.(jpg|tar)", data) and next(self.server.gets) == self.server.cut:
                    is_cut.set()
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads, block_on_close, request_queue_size = True, False, 128
    target: int
    cut: int
    then: Callable[[], None]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CutOnce)
        self.gets = itertools.count()


@contextlib.contextmanager
def cutting(target: int, cut: int, then: Callable[[], None] = lambda: None) -> Iterator[_Proxy]:
    """Pass connections on to a port, but cut the response to the GET of this number, and call a function then."""
    with _Proxy() as proxy:
        proxy.target, proxy.cut, proxy.then = target, cut, then
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()


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
    fsspec.register_implementation("stalled", StalledSystem)
    mirror._SECONDS, mirror._SECONDS_AFTER_A_STALL = 2.0, 1.0
