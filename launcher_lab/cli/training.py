"""Train the runs of a grid, one after another, or several at once on parts of the machine; or submit them to Slurm."""

from __future__ import annotations

import argparse
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
from typing import IO

from launcher.compute.probe import usable_cores, visible_gpus
from launcher.config.layers import leaves
from launcher.config.recipes import AUTO
from launcher.config.resolved import as_mapping, changed, is_free, read
from launcher.config.schema import RunConfig
from launcher.console import console, for_programs, verbatim
from launcher.data.identity import COUNTS, identity_if_present
from launcher.data.unreadable import read_skipped
from launcher.errors import INTERRUPTED, TERMINATED, Problem, Problems, UserError, first_few
from launcher.launch.devices import planned
from launcher.launch.prepare import Prepared, prepare
from launcher.rank.main import die_with
from launcher.records.run import data_path, read_run
from launcher.records.run_folder import RunFolder
from launcher.stopping import StopRequest, stop_signals
from launcher.submit.job import gpus_of_node
from launcher_lab.cli.grid import Cell
from launcher_lab.cli.grid_job import SLURM, submit_array

_INTERVAL = 0.05  # seconds
_LAST_LINES = 20
_PARALLEL = "runs to train at once, each on an equal part of the GPUs, or of the cores without GPUs (default: 1)"
# Keys that a start finds out, unless they are set.
_FOUND = (*COUNTS, "model.weights_sha256")


def add_options(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Add the options --parallel, --slurm and --json."""
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help=condition + _PARALLEL)
    parser.add_argument("--slurm", action="store_true", help=condition + SLURM)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def train(
    cells: Sequence[Cell],
    arguments: argparse.Namespace,
    commands: Sequence[Sequence[str]],
    job_words: Sequence[str],
    outcomes: dict[Path, str],
) -> int | None:
    """Check all runs, then train or submit those that have not finished; return the exit code of what stopped that.

    commands: for the job after them. outcomes: of the folders of the runs.
    """
    machine = parts(arguments.parallel, cells[0].composed.config.launch.device)
    prepared = check_all(cells, here=not arguments.slurm, gpus=len(machine[0].gpus or ()) or None)
    if arguments.slurm:
        return submit_array(cells, prepared, commands, job_words, outcomes)
    return Training(cells, machine, outcomes).run()


def check_all(cells: Sequence[Cell], *, here: bool, gpus: int | None = None) -> list[Prepared]:
    """Prepare every run before the first one starts; the data must exist only if it starts `here`, on so many GPUs.

    Raises UserError with each distinct error of the runs, once.
    """
    prepared, problems = [], Problems()
    for cell in cells:
        with problems.collected():
            run = as_started(cell, here=here, must_exist=here, gpus=gpus)
            check_existing(cell.folder, run.plan.config, here=here)
            prepared.append(run)
    problems.settle()
    return prepared


def as_started(cell: Cell, *, here: bool, must_exist: bool, gpus: int | None = None) -> Prepared:
    """Prepare a run as its start does, so that its config equals the one in its folder.

    It has `gpus` of this machine, or all if None. Not `here`, on a node of a cluster, `auto` stays. Without
    `must_exist` images, and weights of libraries, may be missing.

    Raises UserError if a value cannot work.
    """
    config = cell.composed.config
    devices = planned(config.launch, gpus if here else gpus_of_node(config))
    return prepare(cell.composed, devices=devices, must_exist=must_exist, packages=here, is_new=False)


def check_existing(folder: Path, config: RunConfig, *, here: bool) -> None:
    """Check that an existing folder is a run of this config, on the current images.

    `config` is that of a start `here`, or else elsewhere, where `auto` may have become any value, as that of compile
    always may.

    Raises UserError if the folder has another run, or no run.
    """
    if not folder.exists():
        return
    own, run = dict(leaves(as_mapping(config))), read_run(folder)
    open_keys = ("compile",) if here else own
    unknown = [key for key in own if (own[key] is None and key in _FOUND) or (own[key] == AUTO and key in open_keys)]
    differ = [key for key in changed(read(RunFolder(folder).config), config) if not is_free(key) and key not in unknown]
    if differ:
        raise UserError(
            f"{folder} is a run with other values of {', '.join(differ)}; set another folder with runs=FOLDER"
        )
    identity = None
    if run.identities:
        identity = identity_if_present(config, read_skipped(RunFolder(folder).skipped, config.dataset))
    if identity not in (None, run.identity) or not (run.identities or data_path(run.values) == data_path(own)):
        where = data_path(run.values) or "built-in images"
        raise UserError(f"{folder} is a run on other images ({where}); set another folder with runs=FOLDER")


@dataclass(frozen=True)
class MachinePart:
    """A part of this machine: the names of its GPUs in CUDA_VISIBLE_DEVICES, and its cores; None: the whole machine."""

    gpus: tuple[str, ...] | None = None
    cores: frozenset[int] | None = None

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
    machine = []
    for number in range(count):
        # note: neighbours share links and memory
        gpus, own = (slice(len(of) * number // count, len(of) * (number + 1) // count) for of in (names, cores))
        machine.append(MachinePart(tuple(names[gpus]) or None, frozenset(cores[own]) or None))
    return machine


def _gpus() -> list[str]:
    """Return the names of the visible GPUs in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = visible_gpus()
    return [str(one) for one in range(count)] if chosen is None else chosen.split(",")[:count]


@dataclass
class _Started:
    """A run that trains, and where; its errors, unless they are on the terminal."""

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
        state, is_alone = cell.state, len(self.machine) == 1
        title = f"[bold]{number}/{len(self.cells)}[/] {verbatim(cell.folder)}"
        if state in ("finished", "running"):
            self.outcomes[cell.folder] = "already finished" if state == "finished" else "running elsewhere"
            console().print(f"{title}\n  {state}: skipped")
            return
        part = self._free.popleft()
        console().print(title if is_alone else f"{title} on {part}")
        words = ["run", *cell.words] if state is None else ["resume", str(cell.folder)]
        self._active.append(_started(cell, part, words, is_alone=is_alone))

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

    def enter() -> None:
        # note: if this process is killed, the run also gets SIGTERM, saves a checkpoint and stops
        die_with(parent, signal.SIGTERM)
        part.enter()

    command = [sys.executable, "-m", "launcher", *words]
    visible = {} if part.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(part.gpus)}
    output, errors = (for_programs(), None) if is_alone else (subprocess.DEVNULL, tempfile.TemporaryFile())  # noqa: SIM115
    environment = {**os.environ, **visible}
    process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, preexec_fn=enter)
    return _Started(cell, part, process, errors)
