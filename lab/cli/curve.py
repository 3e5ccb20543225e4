"""`train curve recipe=A,B epochs=... seed=...`: runs the grid of a tradeoff curve, here in turn or as Slurm jobs."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from lab.study.sweep import Cell, check_existing, expand
from launcher.cli.plan import make_plan
from launcher.console import console, verbatim
from launcher.data.inspect import inspect_data
from launcher.errors import INTERRUPTED, TERMINATED, Problems
from launcher.rank.main import die_with
from launcher.submit import slurm
from launcher.submit.job import Job, make_job
from launcher.submit.queue import JobNotes, queued, submit
from launcher.submit.values import PREFIX, Slurm, read_values

EXAMPLES = [
    "train curve recipe=baseline,mild,medium epochs=18,36,72 seed=0,1,2 dataset.path=/data/imagenet",
    "train curve recipe=mild model=resnet18 dataset=shapes launch=cpu batch_size=64 epochs=3,6,9 seed=0,1 runs=study",
    "train curve recipe=hot algorithms.sam.interval=5,10 epochs=180,450 dataset.path=/data/imagenet",
    "train curve --slurm recipe=mild,hot epochs=36,72 seed=0,1 dataset.path=/data/imagenet submit.time=08:00:00",
]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slurm", action="store_true", help="a Slurm job for each run; submit.KEY=VALUE is for them")
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="key=a,b",
        help="values of a run, several where a comma parts them; epochs dilate the recipe's schedule, "
        "unless schedule.dilate is given; what is done is skipped, what was interrupted goes on",
    )


def main(arguments: argparse.Namespace) -> int:
    of_the_jobs = [word for word in arguments.overrides if arguments.slurm and word.startswith(PREFIX)]
    cells = expand([word for word in arguments.overrides if word not in of_the_jobs])
    check_all(cells, here=not arguments.slurm)
    outcomes: Counter[str] = Counter()
    if arguments.slurm:
        _submit_all(cells, of_the_jobs, outcomes)
    elif (code := train_all(cells, outcomes)) is not None:
        return code
    out = console()
    out.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    out.print(verbatim(f"see them by: train compare {cells[0].composed.config.runs}"))
    return 1 if outcomes["failed"] else 0


def train_all(cells: list[Cell], outcomes: Counter[str]) -> int | None:
    """Run or continue one after another; the exit code if asked to stop."""
    out = console()
    for number, cell in enumerate(cells, 1):
        out.print(f"[bold]{number}/{len(cells)}[/] {verbatim(cell.folder)}")
        state = cell.state
        if state in ("finished", "running"):
            outcomes["done before" if state == "finished" else "running elsewhere"] += 1
            out.print(f"  {state}: left alone")
            continue
        code = _train(["run", *cell.words] if state is None else ["resume", str(cell.folder)])
        if code in (INTERRUPTED, TERMINATED):
            out.print("stopped; the same command goes on where this one ended")
            return code
        outcomes["finished" if code == 0 else "failed"] += 1
    return None


def _submit_all(cells: list[Cell], words: list[str], outcomes: Counter[str]) -> None:
    """A job for each run that is neither finished nor in the queue; an interrupted one goes on in its job.

    Raises:
        UserError: the number of GPUs of a machine is not known, or Slurm does not take a job.
    """
    values, program = read_values(Slurm, words), str(Path(sys.argv[0]).resolve())
    jobs = [_job(cell) for cell in cells]
    in_queue = queued()
    out = console()
    for number, (cell, job) in enumerate(zip(cells, jobs, strict=True), 1):
        notes = JobNotes(cell.folder.parent)
        before = notes.job(cell.folder.name)
        if cell.state in ("finished", "running"):
            outcomes["done before" if cell.state == "finished" else "running"] += 1
            told = f"{cell.state}: left alone"
        elif before in in_queue:
            outcomes["in the queue"] += 1
            told = f"in the queue as job {before}: left alone"
        else:
            submitted = submit(slurm.render(job, values, program))
            notes.keep(cell.folder.name, submitted)
            outcomes["submitted"] += 1
            told = f"submitted as job {submitted}"
        out.print(f"[bold]{number}/{len(cells)}[/] {verbatim(cell.folder)}  {verbatim(told)}")


def _job(cell: Cell) -> Job:
    return make_job(replace(cell.composed.config, run_name=cell.folder.name), cell.words)


def check_all(cells: list[Cell], *, here: bool) -> None:
    """See that every run can work before the first one starts; the data must be there only if it starts `here`.

    Raises:
        UserError: with every mistake, each once.
    """
    problems = Problems()
    for cell in cells:
        with problems.collected():
            config = inspect_data(cell.composed.config, must_exist=here).config
            make_plan(config, cell.composed.origins)
            check_existing(cell.folder, config)
            if here:
                config.logger.check()
    problems.settle()


def _train(words: list[str]) -> int:
    """One run in a process of its own, to which a request to stop is passed on; returns its exit code."""
    # note: where this process is killed outright, the run is asked to save and stop
    ends_too = partial(die_with, os.getpid(), signal.SIGTERM)
    process = subprocess.Popen([sys.executable, "-m", "launcher.cli.main", *words], preexec_fn=ends_too)

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    # note: a terminal sends Ctrl-C to the run as well, which saves and then ends; this process only waits for it
    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    before |= {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
