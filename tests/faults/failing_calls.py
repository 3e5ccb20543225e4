"""Commands of which one system call below a folder fails: forks of a process with the library of `calls.c`."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from launcher.files import disk
from tests.forked import Command
from tests.runs import Train, be_the_only_rank, draw_nothing, in_ranks, use_tiny

SOURCE = Path(__file__).with_name("calls.c")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE)


@dataclass(frozen=True)
class Plan:
    """The call `number` below a folder fails with an errno, and all later ones if it is `lasting`; 0: none."""

    number: int = 0
    error: int = 0
    lasting: bool = False

    def __str__(self) -> str:
        return f"call {self.number} {errno.errorcode.get(self.error)}{' and all later ones' * self.lasting}"


@dataclass(frozen=True)
class Ended:
    """The end of a command; `calls` are those below the folder, `failed` the first that failed, None if none did."""

    code: int
    output: str
    errors: str
    calls: int
    failed: str | None


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the library."""
    compiler = shutil.which("cc")
    if compiler is None or os.uname().sysname != "Linux":
        pytest.skip("no C compiler (cc) on Linux, which builds the library of failing system calls")
    path = tmp_path_factory.mktemp("calls") / "calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(path), str(SOURCE)], check=True)
    return str(path)


def retry_at_once() -> None:
    disk.PAUSES = (0.01, 0.01)


@dataclass
class FailingTrain(Train):
    """Run `train` under a plan, with the only rank in the process of the command unless `ranks` are processes."""

    preload: str = ""
    plan: tuple[Plan, Path] | None = None
    before: tuple[Callable[[], object], ...] = (use_tiny, draw_nothing, retry_at_once)
    around: tuple[Callable[[], object], ...] = (be_the_only_rank,)

    def start(self, *words: str, **streams: object) -> Command:
        around = self.around if self.plan is None else (*self.around, partial(_follow, *self.plan, self.report))
        environment = {**self.environment, **in_ranks(*self.before)}
        before = (*around, *self.before)
        return Command(["launcher", *words], self.folder, environment, before=before, preload=self.preload)

    @property
    def report(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.calls")

    def ended(self, plan: Plan, below: Path, *words: str) -> Ended:
        """Run a command under a plan for the calls below a folder."""
        process = replace(self, plan=(plan, below)).start(*words)
        output, errors = process.communicate(timeout=300)
        content = self.report.read_bytes()
        failed = content[8:].partition(b"\0")[0].decode()
        assert process.returncode is not None
        return Ended(process.returncode, output, errors, int.from_bytes(content[:8], sys.byteorder), failed or None)


def _follow(plan: Plan, below: Path, report: Path) -> None:
    """Follow a plan in this process and its forks."""
    folder, file = os.fsencode(below), os.fsencode(report)
    ctypes.CDLL(None).calls_plan(folder, ctypes.c_long(plan.number), plan.error, int(plan.lasting), file)


def plans(calls: int, stride: int) -> Iterator[Plan]:
    """Yield every `stride`-th plan of a command with so many calls: each call, each errno, once and lasting.

    It starts at a constant one: the number of calls is another one with each file system and version of a library.
    """
    every = [
        Plan(number, error, lasting) for number in range(1, calls + 1) for error in ERRORS for lasting in (False, True)
    ]
    yield from every[stride // 2 :: stride]
