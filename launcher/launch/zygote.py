"""The launcher's side of the process that forks its ranks. Imports no torch: it is started before anything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe

from launcher.probe import has_driver

MODULE = "launcher.training.worker"
_SECONDS = 0.05


class Zygote:
    """Imports what a rank needs, from now on and in a process of its own, and forks ranks; it ends with this process.

    `ended` is its exit code once it has gone, with which its ranks go too.
    """

    def __init__(self) -> None:
        self._connection, there = Pipe()
        with there:
            words = ["-u", "-m", "launcher.rank.zygote", str(there.fileno()), str(os.getpid()), MODULE]
            self._process = subprocess.Popen(
                [sys.executable, *words],
                pass_fds=[there.fileno()],
                start_new_session=True,
                # note: numpy's library would start threads when it is loaded
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        self.pid = self._process.pid
        self.ended: int | None = None

    def fork(self, words: tuple[str, ...], environment: dict[str, str]) -> Fork:
        """Start a rank that runs launcher.rank.main with these words; waits for what is still imported.

        Raises:
            ZygoteLost: it has gone.
        """
        answer = self.ask((words, environment))
        if answer is None:
            raise ZygoteLost(self.pid, self.ended)
        return Fork(self, answer)

    def ask(self, question: object) -> int | None:
        """Its answer; None where it has gone."""
        try:
            self._connection.send(question)
            answer: int | None = self._connection.recv()
        except (EOFError, OSError):
            self.ended = self._process.wait()
            return None
        return answer

    def kill(self) -> None:
        self._process.kill()


class ZygoteLost(Exception):
    """It has ended before it has forked a rank."""

    def __init__(self, pid: int, exit_code: int | None):
        super().__init__(pid, exit_code)
        self.pid, self.exit_code = pid, exit_code or 0


class Fork:
    """A rank, to elastic what its handler of a sub-process and the sub-process are."""

    def __init__(self, zygote: Zygote, pid: int):
        self.proc, self.pid = self, pid
        self.returncode: int | None = None
        self._zygote = zygote

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.ask(self.pid)
            if self.returncode is None and self._zygote.ended is not None:
                # note: its death is theirs
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float) -> None:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not come within so many seconds.
        """
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(_SECONDS)

    def close(self, death_sig: signal.Signals) -> None:
        """Send a signal to all of its process group."""
        os.killpg(self.pid, death_sig)


_running: Zygote | None = None


def start_early() -> None:
    """Start it where ranks will surely be on the CPU, before that is known for certain."""
    if sys.platform == "linux" and not has_driver():
        zygote()


def zygote() -> Zygote | None:
    """The one of this process, a new one where that has gone; None where a system would let it outlive the launcher."""
    global _running
    if sys.platform == "linux" and (_running is None or _running.ended is not None):
        _running = Zygote()
    return _running
