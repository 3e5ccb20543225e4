"""Run `python -m launcher...` as a fork of a process that has imported it, which saves seconds.

`python -c` is a fork of a process that has imported torch, and nothing of this project.
"""

import hashlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from tests.fork_server import MOST_BYTES, address

_SECONDS = 0.01
_CHOOSING_GPUS = ("CUDA_", "NVIDIA_", "HIP_", "ROCR_")
# note: forks inherit it, so that they use the same server
_RUN = os.environ.setdefault("TESTS_RUN", os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid())))

# Run the lines of an ONNX export's card, without this project and torch; words: of a text in place of that of the card.
CARD_LINES = """
import json, sys
for name in ("launcher", "torch", "torchvision", "timm", "onnx"):
    sys.modules[name] = None
exec("\\n".join(json.load(open("model_card.json"))["load"]).replace("some text", " ".join(sys.argv[1:])))
"""


class Command:
    """Like `subprocess.Popen`, for `python -m MODULE WORDS` or `-c CODE WORDS` in a forked process."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        stdout: int | IO[str] = subprocess.PIPE,
        stderr: int | IO[str] = subprocess.PIPE,
        before: Sequence[Callable[[], object]] = (),
        stdin: int = subprocess.DEVNULL,
        preload: str = "",
        site: Path | None = None,
    ):
        """Start the command in a folder, and call the functions `before` in it first.

        preload: a library; site: a folder with an installed wheel, whose project is used instead of the checkout's.
        """
        self._server = _server(preload, site)
        self.returncode: int | None = None
        files, ends, self._readers = [], [], []
        for file in (stdin, stdout, stderr):
            if file == subprocess.DEVNULL:
                file = os.open(os.devnull, os.O_RDWR)
                ends.append(file)
            if file == subprocess.PIPE:
                end, file = os.pipe()
                ends.append(file)
                self._readers.append(_Reader(end))
            files.append(file if isinstance(file, int) else file.fileno())
        self.pid = self._send((tuple(words), str(folder), dict(environment), tuple(before)), files)
        for file in ends:
            os.close(file)
        for reader in self._readers:
            reader.start()

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._send(self.pid)
        return self.returncode

    def wait(self, timeout: float = 900) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("train", timeout)
            time.sleep(_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 900) -> tuple[str, str]:
        """Wait until it and its children have closed their output, and return the text of the pipes."""
        end = time.monotonic() + timeout
        for reader in self._readers:
            reader.join(max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("train", timeout)
        self.wait(max(0.0, end - time.monotonic()))
        texts = [reader.text for reader in self._readers]
        return texts[0] if len(texts) > 1 else "", texts[-1] if texts else ""

    def _send(self, request: Any, files: Sequence[int] = ()) -> Any:
        socket.send_fds(self._server, [pickle.dumps(request)], files)
        return pickle.loads(self._server.recv(MOST_BYTES))


def fork_probes() -> None:
    """Run probes of torch in forks of a process that has imported it, each once per process and choice of GPUs."""
    from launcher.compute import probe

    # note: the doctor probes in threads, and two would start the fork server twice
    lock, results = threading.Lock(), dict[str, subprocess.CompletedProcess[str]]()

    def run(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        if command[2] != probe.TORCH:
            return subprocess.run(command, **how)
        key = repr([command[3:], [item for item in os.environ.items() if item[0].startswith(_CHOOSING_GPUS)]])
        with lock:
            if key not in results:
                process = Command(command[1:], Path.cwd(), os.environ)
                output, errors = process.communicate()
                results[key] = subprocess.CompletedProcess(command, process.wait(), output, errors)
            return results[key]

    probe.subprocess = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)  # type: ignore[assignment]


def python(code: str, *words: str, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the output of `python -c CODE WORDS` in a process without this project.

    Raises:
        subprocess.CalledProcessError: The process fails; `stderr` has its errors.
    """
    command = Command(["-c", code, *words], folder, environment)
    output, errors = command.communicate()
    if command.returncode:
        raise subprocess.CalledProcessError(command.returncode, "python", output, errors)
    return output


class _Reader(threading.Thread):
    """Read a pipe to its end."""

    def __init__(self, end: int):
        super().__init__(daemon=True)
        self.text = ""
        self._end = end

    def run(self) -> None:
        with os.fdopen(self._end, encoding="utf-8") as pipe:
            self.text = pipe.read()


# note: that of the checkout and one other, because each occupies hundreds of MB until its connections close
@lru_cache(maxsize=2)
def _server(preload: str, site: Path | None) -> socket.socket:
    root = Path(__file__).parents[1]
    name = hashlib.sha256(f"{root} {_RUN} {preload} {site}".encode()).hexdigest()
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    # note: commands set these before they import torch
    environment = {**os.environ, "PYTHONPATH": path, "OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
    if preload:
        environment["LD_PRELOAD"] = preload
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if connection.connect_ex(address(name)):
        server = subprocess.Popen([sys.executable, "-m", "tests.fork_server", name], env=environment, cwd=site or root)
        while connection.connect_ex(address(name)):
            # note: it exits with 0 if another one has the socket
            assert not server.poll()
            time.sleep(_SECONDS)
    return connection
