"""The folder of a run: its files, and the lock that excludes a second writer."""

import itertools
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any

from launcher.config.similar import nearest
from launcher.errors import Problem, UserError, one_line, shown
from launcher.files import atomic
from launcher.files.disk import is_there, line, patiently
from launcher.files.locks import Held, is_leased, lock, note_holder

_LONGEST_REASON = 500
_CHECKPOINT = re.compile(r"step-(\d{8,})\.pt")
# What a start leaves that could not write its config.
_OF_A_START = {
    *("logs", "checkpoints", "lock", ".lock.lease", "run.json", "dataset.json", "skipped.json"),
    *("initial.safetensors", "index", "origins.json", "code"),
}


class RunFolder:
    """The files of a run folder.

    Several nodes may share it. Before the ranks start, each launcher writes config, origins, writer, index, skipped,
    initial, teacher and dataset, all with the same content. Rank 0 alone writes environment, metrics, attempts,
    tensorboard, prometheus, checkpoints and curve, its launcher the page at the end. Each rank writes its own
    log, each node its own lock, the node of an error failure.

    index: the names, places and labels of the images, which all ranks read; every start writes it. writer: the version
    that made the folder, and its job. attempts: the starts and resumes among metrics. code: copies of the user's code,
    which nothing runs. skipped: the unreadable images. initial: the weights of `model.weights`, if it is set; its first
    step needs them. teacher: the network of distillation, and the config of its run; every start reads it. best: the
    checkpoint of the best evaluation. failure: why the run ended, if a value or an image is wrong; a resume deletes it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.yaml"
        self.origins = path / "origins.json"
        self.writer = path / "run.json"
        self.code = path / "code"
        self.environment = path / "environment.json"
        self.dataset = path / "dataset.json"
        self.index = path / "index"
        self.skipped = path / "skipped.json"
        self.initial = path / "initial.safetensors"
        self.teacher = path / "teacher.safetensors"
        self.metrics = path / "metrics.jsonl"
        self.attempts = path / "attempts.jsonl"
        self.tensorboard = path / "tensorboard"
        self.prometheus = path / "metrics.prom"
        self.curve = path / "curve.png"
        self.page = path / "index.html"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best.pt"
        self.failure = path / "failure.txt"

    def of_resume(self) -> list[Path]:
        """Return what a resume may read besides a checkpoint, as far as it exists; to be copied in this order."""
        ids = sorted(self.path.glob("*.id"))  # of the run on the servers of loggers
        first = [self.writer, self.environment, self.dataset, self.skipped, self.initial, self.teacher, self.origins]
        files = [*first, *ids, self.metrics, self.attempts, self.config]
        return [*filter(is_there, files)]

    def exists(self) -> bool:
        """Return whether the run's config exists; raises DiskError if that cannot be read."""
        return is_there(self.config)

    def written(self) -> float:
        """Return when the run last wrote, in seconds since 1970."""
        for file in (self.metrics, self.config, self.path):
            with suppress(OSError):
                return file.lstat().st_mtime
        return 0.0

    def newest_step(self) -> int | None:
        """Return the optimizer steps of the newest checkpoint, which may be damaged; None without one."""
        return max((step for step, _ in checkpoint_files(self.checkpoints)), default=None)

    def failure_reason(self) -> str | None:
        """Return why the run ended, in one line, if `failure` exists."""
        try:
            text = self.failure.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return one_line(text.strip()[:_LONGEST_REASON]) or None

    def is_locked(self) -> bool:
        """Return whether a process of this machine holds the lock, or of any machine a lease, without acquiring it."""
        if is_leased(self.path):
            return True
        try:
            inodes = [f":{file.stat().st_ino} " for file in self.path.glob("lock*")]
            held = [line for line in Path("/proc/locks").read_text().splitlines() if " FLOCK " in line]
        except OSError:
            return False
        return any(inode in line for line in held for inode in inodes)

    def hosts(self) -> set[str]:
        """Return the hosts of the processes that locked the folder last."""
        with suppress(OSError):
            locks = [file.read_text(encoding="utf-8", errors="replace") for file in self.path.glob("lock*")]
            return {text.rpartition(" on ")[2].strip() for text in locks}
        return set()

    @contextmanager
    def locked(self, *, nodes: int = 1, nodes_here: int = 1) -> Iterator[None]:
        """Lock the folder while writing to it, for several `nodes` on each host by `nodes_here`; ends with the process.

        Raises UserError if another process holds the lock, and DiskError if it cannot be locked.
        """
        first = "lock" if nodes == 1 else f"lock-{socket.gethostname()}"
        with ExitStack() as stack:
            for name in (first, *(f"{first}-{number}" for number in range(2, nodes_here + 1))):
                file = stack.enter_context((path := self.path / name).open("a+", encoding="utf-8", errors="replace"))
                try:
                    stack.callback(lock(file.fileno(), path))
                    break
                except Held as one:
                    holder = one
            else:
                raise UserError(f"run folder {self.path} is in use by {holder}; wait for it, or stop it")
            note_holder(file.fileno())
            if nodes == 1:
                atomic.remove_left_over(self.path)
            yield


def checkpoint_name(step: int) -> str:
    """Return the file name of a checkpoint after `step` steps."""
    return f"step-{step:08d}.pt"


def checkpoint_files(checkpoints: Path) -> list[tuple[int, Path]]:
    """List the steps and files of the checkpoints, oldest first; they may be damaged.

    Raises DiskError if the folder cannot be read; a missing one is empty.
    """

    def names() -> list[str]:
        # note: Path.glob would be empty if the folder cannot be read
        with os.scandir(checkpoints) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    try:
        matches = filter(None, map(_CHECKPOINT.fullmatch, patiently(names, checkpoints)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(match[1]), checkpoints / match[0]) for match in matches)


def check_new(runs: Path, name: str) -> None:
    """Raise a UserError if there is a run folder of this name, or none of this name would be listed.

    A folder without config, records and checkpoints is what a start leaves that could not write: it is used again.
    """
    folder = RunFolder(path := runs / name)
    if name.startswith("."):
        raise UserError(Problem("would be a hidden folder, which lists of runs skip; remove the dot", "run_name", name))
    if folder.exists():
        message = f"{path} exists; type train resume {quote(str(path))}, or set another run_name"
        raise UserError(Problem(message, "run_name", name))
    if is_there(path) and not _is_left_over(folder):
        message = f"{path} exists and has no config.yaml; restore it, or set another run_name"
        raise UserError(Problem(message, "run_name", name))


def _is_left_over(folder: RunFolder) -> bool:
    """Return whether a folder has nothing but files of a start that could not write."""
    try:
        names = {path.name for path in folder.path.iterdir() if not path.name.endswith(".tmp")}
    except NotADirectoryError:
        return False
    return names <= _OF_A_START and not any(folder.checkpoints.glob("*.pt"))


def clear(folder: RunFolder) -> None:
    """Delete what an earlier start of another config may have left in a folder without a run."""
    for path in (folder.dataset, folder.skipped, folder.initial, folder.origins):
        path.unlink(missing_ok=True)
    for of_start in (folder.index, folder.code):
        shutil.rmtree(of_start, ignore_errors=True)


def create(runs: Path, name: str, *, unique: bool = False, join: bool = False) -> RunFolder:
    """Create a run folder; `unique` appends a number to the name, `join` accepts an existing folder.

    Raises UserError if the folder exists already, or cannot be created.
    """
    for number in itertools.count(1):
        folder = RunFolder(runs / (f"{name}-{number}" if unique else name))
        try:
            if not join and not unique:
                check_new(runs, name)
            folder.path.mkdir(parents=True, exist_ok=not unique)
            for inner in (folder.logs, folder.checkpoints):
                inner.mkdir(exist_ok=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(Problem(f"{line(error, folder.path)}, or set runs=FOLDER", "runs", runs)) from None
        return folder
    raise AssertionError


def existing(path: str, *, saved: bool = False) -> RunFolder:
    """Return the run folder at a path; with `saved` it must have a checkpoint.

    Raises UserError if the path is no run folder, has no checkpoint, or has a symbolic link, which would redirect
    writes.
    """
    folder = RunFolder(Path(path))
    if not folder.exists():
        missing = f"{shown(path)} is not a run folder: it has no config.yaml"
        raise UserError(f"{missing}; pass one such as {_similar(folder.path)}")
    for file in folder.path.rglob("*"):
        if file.is_symlink() and not file.is_dir():
            raise UserError(f"{file} is a symbolic link; replace it by the file, or remove it")
    if saved and folder.newest_step() is None:
        raise UserError(f"{path} has no checkpoint yet; type train resume {quote(str(path))}")
    return folder


def _similar(path: Path) -> str:
    """Return the run folder beside a path with the most similar name, or else an example."""
    # note: the path may be invalid as a file name
    with suppress(OSError, ValueError):
        if close := nearest(path.name, [config.parent.name for config in path.parent.glob("*/config.yaml")]):
            return str(path.parent / close)
    return "runs/mild-imagenet-1"


def run_folders(path: Path) -> list[RunFolder]:
    """Return the run folders at or below a path, damaged and unreadable ones too, the last written one last."""
    folders = []

    def denied(error: OSError) -> None:
        if isinstance(error, PermissionError) and error.filename != os.fspath(path):
            folders.append(RunFolder(Path(error.filename)))

    for folder, below, files in os.walk(path, onerror=denied):
        below[:] = [name for name in below if not name.startswith(".")]
        if "config.yaml" in files or "metrics.jsonl" in files or {"logs", "checkpoints"} <= set(below):
            below.clear()
            folders.append(RunFolder(Path(folder)))
    return sorted(folders, key=lambda one: (one.written(), one.path))


def note_dataset(folder: RunFolder, identity: str, splits: Mapping[str, Any] | None = None) -> bool:
    """Record the data set that the run trains on; return whether its identity has changed.

    splits: for each split how many files or rows were seen and taken, and how many dropped for which reason.
    """
    before = noted_datasets(folder)
    is_new = before[-1:] != (identity,)
    if is_new:
        values = {"identities": [*before, identity], "splits": splits or {}}
        atomic.write_text(folder.dataset, json.dumps(values, indent=1) + "\n")
    return is_new and bool(before)


def noted_datasets(folder: RunFolder) -> tuple[str, ...]:
    """Return the recorded identities in order; empty if the file is missing or damaged.

    Raises DiskError if it cannot be read.
    """
    try:
        content = patiently(folder.dataset.read_bytes, folder.dataset)
        return tuple(map(str, json.loads(content)["identities"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()
