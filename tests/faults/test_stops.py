"""Stop signals while a command or its ranks wait for a server that sends no data, or cuts what it sends."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from launcher.errors import TERMINATED
from tests.data.sources import web
from tests.data.sources.downloads import webdataset
from tests.images import write_images
from tests.runs import Train, ended

pytestmark = pytest.mark.system

# A command ends within ten seconds; the rest is for a busy machine.
SECONDS = 50


class Server(web.Server):
    """Serve a folder with a fault: `silent` sends nothing of an archive, `cut` only its first bytes."""

    def __init__(self, folder: Path, fault: str):
        super().__init__(("127.0.0.1", 0), partial(_Faulty, directory=str(folder)))
        self.url, self.fault = f"http://127.0.0.1:{self.server_port}", fault
        self.reached, self.closed = threading.Event(), threading.Event()


class _Faulty(web.Handler):
    server: Server
    failures: ClassVar[dict[str, int]] = {}

    def send_head(self) -> Any:
        fault = self.server.fault
        if not self.path.endswith(".tar") or (fault == "cut" and self.command == "HEAD"):
            return super().send_head()
        self.server.reached.set()
        if fault == "silent":
            self.server.closed.wait(600)
        self.send_response(206)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(bytes(1000))
        return None


@contextmanager
def serving(folder: Path, fault: str) -> Iterator[Server]:
    with Server(folder, fault) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.closed.set()
            server.shutdown()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_images(tmp_path_factory.mktemp("images"), {"train": 24, "val": 6}, size=(40, 48))
    return webdataset(folder, tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize(("verb", "fault"), [("doctor", "silent"), ("run", "silent"), ("run", "cut")])
def test_a_stop_signal_ends_a_command_that_waits_for_a_server(
    verb: str, fault: str, images: Path, train: Train
) -> None:
    with serving(images, fault) as server:
        process = train.start(verb, "dataset=image_folder", f"dataset.path={server.url}")
        assert server.reached.wait(240)
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, errors = ended(process, TERMINATED)
    assert time.monotonic() - start < SECONDS, errors
    assert errors.splitlines()[-1] == "stopped by SIGTERM"
