"""Handing a job to the cluster's own program."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launcher import atomic
from launcher.errors import UserError

# What stands for the job's file in a command.
FILE = "{file}"
_FOLDER = ".jobs"


class JobNotes:
    """The job that each run of a folder was last submitted as, one small file a run."""

    def __init__(self, runs: Path):
        self._folder = runs / _FOLDER

    def job(self, run_name: str) -> str | None:
        """The number of the run's job; None if it was never submitted."""
        path = self._folder / run_name
        return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else None

    def keep(self, run_name: str, job: str) -> None:
        """Note a run's job; written atomically."""
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(self._folder / run_name, f"{job}\n")


def submit(script: str) -> str:
    """Hand a batch script in; returns the job's number.

    Raises:
        UserError: Slurm is not installed here, or does not take it.
    """
    # note: with a cluster's name after the number where there are several
    return _ask(["sbatch", "--parsable"], script).strip().partition(";")[0]


def queued() -> set[str]:
    """The numbers of the user's jobs that wait or run.

    Raises:
        UserError: Slurm is not installed here, or does not answer.
    """
    return set(_ask(["squeue", "--me", "--noheader", "--format=%A"], None).split())


def _ask(command: Sequence[str], text: str | None) -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed here; give the command where jobs are submitted") from None
    if done.returncode:
        said = done.stderr.strip() or f"it ended with {done.returncode}"
        raise UserError(f"{command[0]}: {said}")
    return done.stdout


def send(text: str, command: Sequence[str], suffix: str) -> int:
    """Give a job's text to a command, in a file in the place of `{file}`; returns the command's exit code.

    Raises:
        UserError: the program is not installed.
    """
    program = command[0]
    if shutil.which(program) is None:
        raise UserError(f"{program} is not installed here; without --run the job is printed, for a machine that has it")
    with tempfile.TemporaryDirectory(prefix="train-submit-") as folder:
        file = Path(folder) / f"job{suffix}"
        file.write_text(text)
        return subprocess.run([word.replace(FILE, str(file)) for word in command], check=False).returncode
