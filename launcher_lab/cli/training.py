"""Train the runs of a grid, one after another, or several at once on parts of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

from launcher.compute.probe import usable_cores, visible_gpus
from launcher.config.compose import Composed
from launcher.console import console, for_programs, verbatim
from launcher.errors import INTERRUPTED, TERMINATED, Problem, UserError, first_few
from launcher.plan.epochs import dilated_epochs
from launcher.rank.main import die_with
from launcher.records.run import State, read_run
from launcher.stopping import StopRequest, stop_signals

_INTERVAL = 0.05  # seconds
_LAST_LINES = 20

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One run of a grid: the words of its command line, their composition, and its folder, which may not exist yet."""

    words: tuple[str, ...]
    composed: Composed
    folder: Path

    @property
    def state(self) -> State | None:
        """Return the run's state; None before it starts."""
        return read_run(self.folder).state if self.folder.exists() else None

    @property
    def epochs(self) -> int:
        """Return the length after dilation."""
        return dilated_epochs(self.composed.config.epochs, self.composed.config.schedule.dilate)


@dataclass(frozen=True)
class MachinePart:
    """A part of this machine: the names of its GPUs in CUDA_VISIBLE_DEVICES, and its cores; None: the whole machine."""

    gpus: tuple[str, ...] | None = None
    cores: frozenset[int] | None = None

    @property
    def count(self) -> int | None:
        """The number of its GPUs; None for the whole machine, and without GPUs."""
        return len(self.gpus) if self.gpus else None

    def __str__(self) -> str:
        if self.gpus:
            return f"GPU {', '.join(self.gpus)}"
        return f"core {', '.join(map(str, sorted(self.cores or ())))}"

    def enter(self) -> None:
        """Restrict this process, and those that it starts, to the part."""
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)


def parts(count: int, device: str) -> list[MachinePart]:
    """Divide this machine into equal parts, by its GPUs unless the device is the CPU, else by its cores.

    Raises UserError if that is not possible.
    """
    if count == 1:
        return [MachinePart()]
    names = [] if device == "cpu" else _gpus()
    most = len(names) or usable_cores()
    fit = [str(one) for one in range(1, most + 1) if not len(names) % one]
    if str(count) not in fit:
        message = f"this machine has {most} {'GPUs in equal parts' if names else 'cores'}; set {first_few(fit, 8)}"
        raise UserError(Problem(message, "--parallel", count))
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def nth(number: int, of: list[T]) -> list[T]:
        # note: neighbours share links and memory
        return of[len(of) * number // count : len(of) * (number + 1) // count]

    return [MachinePart(tuple(nth(one, names)) or None, frozenset(nth(one, cores)) or None) for one in range(count)]


def _gpus() -> list[str]:
    """Return the names of the visible GPUs in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = visible_gpus()
    return [str(one) for one in range(count)] if chosen is None else chosen.split(",")[:count]


@dataclass
class _Started:
    """A run that trains, and where."""

    cell: Cell
    part: MachinePart
    process: subprocess.Popen[bytes]
    errors: IO[bytes] | None


@dataclass
class Training:
    """Train runs, in order, on parts of the machine; `outcomes` are those of their folders."""

    cells: Sequence[Cell]
    machine: Sequence[MachinePart] = (MachinePart(),)
    outcomes: dict[Path, str] = field(default_factory=dict)

    def run(self) -> int | None:
        """Start or resume the runs that have not finished; return the exit code if a signal stopped that."""
        self._waiting, self._free = deque(enumerate(self.cells, 1)), deque(self.machine)
        self._active, self._stop = list[_Started](), StopRequest()
        stopped: int | None = None
        with stop_signals(self._forward):
            while self._active or (self._waiting and stopped is None):
                while self._free and self._waiting and stopped is None:
                    self._next()
                for one in [one for one in self._active if one.process.poll() is not None]:
                    code = self._ended(one)
                    stopped = code if code in (INTERRUPTED, TERMINATED) else stopped
                if self._stop.requested:
                    stopped = stopped or self._stop.exit_code
                time.sleep(_INTERVAL)
        if stopped is not None:
            console().print("stopped; run the same command to continue")
        return stopped

    def _forward(self, number: int) -> None:
        self._stop.note(number)
        # note: the terminal also sends Ctrl-C to the runs, which save a checkpoint and exit
        if number != signal.SIGINT:
            for one in self._active:
                one.process.send_signal(number)

    def _next(self) -> None:
        """Start the next run, unless it has finished or runs elsewhere."""
        number, cell = self._waiting.popleft()
        out, state = console(), cell.state
        at = "" if len(self.machine) == 1 else f" on {self._free[0]}"
        title = f"[bold]{number}/{len(self.cells)}[/] {verbatim(cell.folder)}"
        if state in ("finished", "running"):
            self.outcomes[cell.folder] = "already finished" if state == "finished" else "running elsewhere"
            out.print(f"{title}\n  {state}: skipped")
            return
        out.print(f"{title}{at}")
        part = self._free.popleft()
        words = ["run", *cell.words] if state is None else ["resume", str(cell.folder)]
        self._active.append(_started(cell, part, words, is_alone=len(self.machine) == 1))

    def _ended(self, one: _Started) -> int:
        """Note the outcome of a run that has ended, with its errors if these are not on the terminal yet."""
        self._active.remove(one)
        self._free.append(one.part)
        code = int(one.process.returncode)
        if code not in (INTERRUPTED, TERMINATED):
            self.outcomes[one.cell.folder] = outcome = "finished" if code == 0 else "failed"
            if one.errors is not None:
                console().print(f"  {verbatim(one.cell.folder)} {outcome}")
        if one.errors is not None:
            one.errors.seek(0)
            for line in one.errors.read().decode(errors="replace").splitlines()[-_LAST_LINES:] if code else ():
                console().print(f"    {verbatim(line)}")
            one.errors.close()
        return code


def _started(cell: Cell, part: MachinePart, words: Sequence[str], *, is_alone: bool) -> _Started:
    """Start a run in a process of its own; one that is not alone prints nothing, as its logs have it."""
    parent = os.getpid()

    def prepare() -> None:
        # note: if this process is killed, the run also gets SIGTERM, saves a checkpoint and stops
        die_with(parent, signal.SIGTERM)
        part.enter()

    command = [sys.executable, "-m", "launcher", *words]
    visible = {} if part.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(part.gpus)}
    output, errors = (for_programs(), None) if is_alone else (subprocess.DEVNULL, tempfile.TemporaryFile())  # noqa: SIM115
    environment = {**os.environ, **visible}
    process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, preexec_fn=prepare)
    return _Started(cell, part, process, errors)
