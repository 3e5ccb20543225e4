"""The runs of a grid as one Slurm job array, and a job after them that prints what the same command prints here."""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher.cli.submit import check_path
from launcher.console import console, verbatim
from launcher.errors import Problem, Problems, UserError
from launcher.files import atomic
from launcher.launch.prepare import Prepared
from launcher.prediction.total import total
from launcher.submit import slurm
from launcher.submit.job import PREFIX, Job, make_job, read_values
from launcher_lab.cli.grid import Cell

SLURM = "submit the runs as one Slurm job array, and a job after it for the result, with the values submit.KEY=VALUE"
_QUEUED = "in the queue"


def take_job_words(arguments: argparse.Namespace) -> list[str]:
    """Remove the words `submit.KEY=VALUE` from the overrides and return them; none without `--slurm`.

    Raises UserError if the runs would also start here.
    """
    if not arguments.slurm:
        return []
    if arguments.parallel != 1:
        message = "is for runs on this machine; omit it, since Slurm starts as many tasks as fit"
        raise UserError(Problem(message, "--parallel", arguments.parallel))
    words: list[str] = arguments.overrides
    arguments.overrides = [word for word in words if not word.startswith(PREFIX)]
    return [word for word in words if word.startswith(PREFIX)]


def submit_array(
    cells: Sequence[Cell],
    prepared: Sequence[Prepared],
    commands: Sequence[Sequence[str]],
    words: Sequence[str],
    outcomes: dict[Path, str],
) -> int:
    """Submit the runs that are neither finished nor queued, then the commands; return the exit code.

    Interrupted runs resume. The commands run in a job of their own once all runs have finished; the first names the
    array. The outcomes are those of the runs' folders.

    Raises UserError if a run has no images, the runs need different numbers of nodes or GPUs, or Slurm refuses a job.
    """
    values = read_values(slurm.Slurm, [*words])
    problems = Problems()
    for cell in cells:
        with problems.collected():
            check_path(cell.composed, values)
    problems.settle()
    jobs = _jobs(cells)
    missing, arrays = _missing(cells, jobs, outcomes)
    name, follow = commands[0][0], list[str]()
    if missing:
        in_all = total([prepared[number - 1].plan for number in missing])
        first = replace(next(iter(missing.values())), total=in_all)
        array = _sbatch(slurm.render_array(name, {**missing, min(missing): first}, values))
        for number in missing:
            file = _file(cells[number - 1])
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_text(file, f"{array}_{number}\n")
            outcomes[cells[number - 1].folder] = "submitted"
        after = _sbatch(slurm.render_after(replace(first, name=name), [array, *arrays], commands, values))
        follow = [*([in_all] if in_all else []), f"the result, after all runs: tail -F {name}-{after}.log"]
    out = console()
    for number, cell in enumerate(cells, 1):
        task = f" as job {_task(cell)}" if outcomes[cell.folder] in ("submitted", _QUEUED) else ": skipped"
        out.print(f"[bold]{number}/{len(cells)}[/] {verbatim(cell.folder)}  {outcomes[cell.folder]}{task}")
    out.print(", ".join(f"{count} {outcome}" for outcome, count in Counter(outcomes.values()).items()))
    for line in follow:
        out.print(verbatim(line))
    return 0


def _jobs(cells: Sequence[Cell]) -> list[Job]:
    """Return the job of each run.

    Raises UserError if they need different numbers of nodes or GPUs.
    """
    jobs = [make_job(replace(cell.composed.config, run_name=cell.folder.name), cell.words) for cell in cells]
    for key, sizes in (("launch.nnodes", {job.nodes for job in jobs}), ("launch.nproc", {job.gpus for job in jobs})):
        if len(sizes) > 1:
            message = "differs, but the tasks of an array have equal nodes; submit one value at a time"
            raise UserError(Problem(message, key, ",".join(map(str, sorted(sizes)))))
    return jobs


def _missing(
    cells: Sequence[Cell], jobs: Sequence[Job], outcomes: dict[Path, str]
) -> tuple[dict[int, Job], Sequence[str]]:
    """Return the jobs to submit by their number from 1, and the arrays with the others that are not finished."""
    queue = _output(["squeue", "--me", "--noheader", "--array", "--format=%i"]).split()
    missing, arrays = dict[int, Job](), dict[str, None]()
    for number, (cell, job) in enumerate(zip(cells, jobs, strict=True), 1):
        if (state := cell.state) in ("finished", "running"):
            outcomes[cell.folder] = "already finished" if state == "finished" else "running"
        elif (task := _task(cell)) in queue:
            outcomes[cell.folder] = _QUEUED
            arrays[str(task).partition("_")[0]] = None
        else:
            missing[number] = job
    return missing, [*arrays]


def _task(cell: Cell) -> str | None:
    """Return the number of the run's last task; None before the first."""
    file = _file(cell)
    return file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else None


def _file(cell: Cell) -> Path:
    return cell.folder.parent / ".jobs" / cell.folder.name


def _sbatch(script: str) -> str:
    # note: sites with several clusters append the cluster's name
    return _output(["sbatch", "--parsable"], script).strip().partition(";")[0]


def _output(command: list[str], script: str | None = None) -> str:
    """Run a Slurm command and return its output.

    Raises UserError if the command is not installed, or fails.
    """
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed; run this command on a login node of the cluster") from None
    if done.returncode:
        reason = "; ".join(done.stderr.strip().splitlines()) or f"exited with code {done.returncode}"
        raise UserError(f"{command[0]}: {reason}")
    return done.stdout
