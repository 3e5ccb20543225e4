"""A run's folder: everything that is known of the run, and the lock that keeps a second writer out."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher import atomic
from launcher.config.keys import nearest
from launcher.errors import Problem, UserError, one_line

_LONGEST_REASON = 500
_CHECKPOINT = re.compile(r"(step|replay)-(\d{8,})\.pt")


class RunFolder:
    """The files of one run's folder.

    Several machines may share it. Each launcher writes, before its ranks start, config, skipped, initial and dataset,
    all of them the same. Rank 0 alone writes what is of the run: environment, metrics, tensorboard, checkpoints, curve.
    A rank has a log of its own, a machine a lock; failure is written by the machine on which the error occurred.

    skipped: the images that the run leaves out. initial: the weights that it started from, where `model.weights` gave
    some; a resume needs them no more. best: the checkpoint of the best evaluation. failure: why the run ended, where
    the cause is an error of a value or an image; gone once it resumes.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.dataset = path / "dataset.json"
        self.skipped = path / "skipped.json"
        self.initial = path / "initial.safetensors"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.curve = path / "curve.png"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best.pt"
        self.failure = path / "failure.txt"

    def exists(self) -> bool:
        """Is there a run's config? Not where a name is too long for a file, or what leads to it may not be read."""
        try:
            return self.config.is_file()
        except OSError:
            return False

    def newest_step(self) -> int | None:
        """Optimizer steps done at the newest save, whole or not; None without one."""
        return max((step for step, _ in checkpoint_files(self.checkpoints)), default=None)

    def failure_reason(self) -> str | None:
        """Why the run ended, in one line, where that was written down."""
        try:
            return one_line(self.failure.read_text(errors="replace").strip()[:_LONGEST_REASON]) or None
        except OSError:
            return None

    def is_locked(self) -> bool:
        """Does a process of this machine hold the lock; asked without taking it, which could turn a run away."""
        try:
            inodes = [f":{lock.stat().st_ino} " for lock in self.path.glob("lock*")]
            held = [line for line in Path("/proc/locks").read_text().splitlines() if " FLOCK " in line]
        except OSError:
            return False
        return any(inode in line for line in held for inode in inodes)

    @contextmanager
    def locked(self, *, each_host: bool = False) -> Iterator[None]:
        """Hold the folder while writing to it; the lock goes with the process, however it ends.

        With `each_host` every machine of a run holds it once.

        Raises:
            UserError: another process holds it.
        """
        path = self.path / (f"lock-{socket.gethostname()}" if each_host else "lock")
        with path.open("a+", encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise UserError(f"run folder {self.path} is in use by {holder}; wait for it, or stop it") from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield


def checkpoint_name(step: int, kind: str = "step") -> str:
    """File name of a checkpoint whose next optimizer step is `step`; kind: `replay` if that was not finite."""
    return f"{kind}-{step:08d}.pt"


def checkpoint_files(checkpoints: Path, *kinds: str) -> list[tuple[int, Path]]:
    """Steps and files of the checkpoints of these kinds, `step` unless said, whole or not; the oldest first."""
    files = [path for path in checkpoints.glob("*-*.pt") if path.is_file()]
    named = [(match, path) for path in files if (match := _CHECKPOINT.fullmatch(path.name))]
    return sorted((int(match[2]), path) for match, path in named if match[1] in (kinds or ("step",)))


def create(runs: Path, name: str, *, unique: bool = False, join: bool = False) -> RunFolder:
    """Make a run folder; with `unique` a number is added to a name that is taken, with `join` it may be there.

    Raises:
        UserError: the folder is there already, or cannot be made.
    """
    for number in itertools.count(1):
        path = runs / (f"{name}-{number}" if unique else name)
        try:
            for folder in (path, path / "logs", path / "checkpoints"):
                folder.mkdir(parents=True, exist_ok=join)
            break
        except FileExistsError:
            if not unique or not path.is_dir():
                message = f"{path} exists; go on with it by `train resume {path}`, or choose another run_name"
                raise UserError(Problem(message, "run_name", name)) from None
        except OSError as error:
            raise UserError(Problem(f"cannot be written: {error.strerror}", "runs", runs)) from None
    return RunFolder(path)


def existing(path: str, *, saved: bool = False) -> RunFolder:
    """The run folder at a path; one that has `saved`, where that is asked for.

    Raises:
        UserError: it is none, has saved nothing, or a file of it is a link: what is written there would go elsewhere.
    """
    folder = RunFolder(Path(path))
    if not folder.exists():
        raise UserError(f"{path} is no run folder: it has no config.yaml{_like(folder.path)}")
    for file in folder.path.rglob("*"):
        if file.is_symlink() and not file.is_dir():
            raise UserError(f"{file} is a link; put the file itself there, or remove it")
    if saved and folder.newest_step() is None:
        raise UserError(f"{path} has saved no checkpoint yet; go on with it by: train resume {path}")
    return folder


def _like(path: Path) -> str:
    """The run folder beside a path whose name is most like it, as a question; empty where there is none."""
    # note: a path may be one that no file can have
    with suppress(OSError, ValueError):
        if close := nearest(path.name, [config.parent.name for config in path.parent.glob("*/config.yaml")]):
            return f"; did you mean {path.parent / close}?"
    return ""


def note_dataset(folder: RunFolder, identity: str) -> bool:
    """Write down what the run trains on from now on; returns whether it is other than before."""
    before = noted_datasets(folder)
    if before[-1:] == (identity,):
        return False
    atomic.write_text(folder.dataset, json.dumps({"identities": [*before, identity]}, indent=1) + "\n")
    return bool(before)


def noted_datasets(folder: RunFolder) -> tuple[str, ...]:
    """What was written down, in order; nothing where the file is not there or not whole."""
    try:
        return tuple(map(str, json.loads(folder.dataset.read_bytes())["identities"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
