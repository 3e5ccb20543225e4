"""Write checkpoint files atomically, and read them without executing code, after checking their checksum.

A file has the bytes of `torch.save` followed by their SHA-256 digest; `torch.load` reads it too.
"""

import hashlib
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from launcher.config.resolved import fingerprint
from launcher.config.schema import RunConfig
from launcher.errors import Problem, UserError, is_of_the_machine
from launcher.files import atomic
from launcher.files.disk import DiskError, is_there, patiently
from launcher.records.run_folder import RunFolder, checkpoint_files

FORMAT = 1
_DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedCheckpoint(UserError):
    """A checkpoint file that was read to its end, and is truncated or changed."""


def save(state: dict[str, Any], path: Path) -> None:
    """Write a state of tensors, numbers, strings and containers of them, atomically.

    Raises TypeError if the state contains an object that `load` would refuse, and DiskError if it cannot be written.
    """
    try:
        # note: does not create a run folder that was removed
        path.parent.mkdir(exist_ok=True)
        with atomic.writing(path) as temporary:
            _write(state, temporary)
            unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(temporary)
            if unsafe:
                raise TypeError(f"a checkpoint contains tensors, numbers, strings and containers of them, not {unsafe}")
        _sync_folder(path.parent)
    except OSError as error:
        raise DiskError.of(error, path) from error


def load(path: Path) -> dict[str, Any]:
    """Load a state, with its tensors on the CPU.

    Raises DamagedCheckpoint if its checksum does not match, and DiskError if it cannot be read. Raises UserError if it
    is missing, has another format version, contains code, or was not written by torch.
    """
    try:
        return patiently(lambda: _load(path), path)
    except OSError as error:
        raise _problem(UserError, path, f"cannot be read: {error.strerror}") from error


def _load(path: Path) -> dict[str, Any]:
    _check_digest(path)
    try:
        check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _problem(UserError, path, "contains more than tensors and numbers; use an earlier one") from error
    # note: torch raises any kind of error on a file that it has not written
    except Exception as error:
        if is_of_the_machine(error):
            raise
        raise _problem(UserError, path, "not a checkpoint (its checksum matches); use an earlier one") from error
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise _problem(UserError, path, f"has format {version}, not {FORMAT}; use the version of train that wrote it")
    state = content.get("state")
    if not isinstance(state, dict):
        raise _problem(UserError, path, "contains no run state; use an earlier one")
    return state


def newest_valid(folder: Path, *, accept_loss: bool = True) -> dict[str, Any] | None:
    """Load the newest checkpoint that is not damaged, or return None; print an error for each newer damaged one.

    If all are damaged or missing, the best one replaces them.

    Raises UserError if a newer file has another format version or contains code, or without `accept_loss` if the steps
    since more than one checkpoint would be lost. Raises DiskError if a file cannot be read: it may be intact.
    """
    run = RunFolder(folder.parent)
    files = [path for _, path in reversed(checkpoint_files(folder))]
    state, path, damaged = None, None, list[Path]()
    for path in [*files, run.best] if is_there(run.best) else files:
        try:
            state = load(path)
            break
        except DamagedCheckpoint as error:
            damaged.append(path)
            print(error, flush=True)
    if not accept_loss and (len(damaged) > 1 or (damaged and path not in files)):
        message = f"{len(damaged)} of the newest checkpoints in {folder} are damaged, and"
        if state is None:
            raise UserError(f"{message} none is intact; restore one, or start a new run")
        names = " ".join(quote(str(one)) for one in damaged)
        raise UserError(f"{message} the newest intact one is {path}; to accept the loss, type rm {names}")
    if state and path == run.best:
        print(f"{path} is used: it is intact, at step {state.get('step')}, and no newer checkpoint is", flush=True)
    return state


def prune(folder: Path, keep: int, step: int) -> None:
    """Delete all but the newest `keep` checkpoints up to a step, and unfinished files; no save may be in progress.

    The run has written the one of this step. Later ones are damaged: it resumed from one before them.
    """
    files = checkpoint_files(folder)
    for path in [
        *[path for number, path in files if number <= step][:-keep],
        *(path for number, path in files if number > step),
        *folder.glob(".step-*.tmp"),
        *folder.glob(".best.pt.*.tmp"),
    ]:
        path.unlink(missing_ok=True)


def _write(state: dict[str, Any], path: Path) -> None:
    with path.open("xb+") as file:
        try:
            torch.save({"format": FORMAT, "state": state}, file)
        except RuntimeError as error:
            # note: torch raises an error about positions, which hides the file's own error
            raise error.__context__ or error from error
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").digest())
        file.flush()
        os.fsync(file.fileno())


def _check_digest(path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
        while size > 0 and (block := file.read(min(size, 2**20))):
            digest.update(block)
            size -= len(block)
        written = file.read()
    if digest.digest() != written:
        raise _problem(DamagedCheckpoint, path, "damaged (its checksum does not match); use an earlier one")


def check_archive(path: Path) -> None:
    """Check that the records of an archive are uncompressed and fit into the file: others could fill the memory.

    Raises ValueError if a record is compressed or records overlap, and BadZipFile if the file is not an archive.
    """
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise ValueError("compressed records")
    if sum(record.file_size for record in records) > path.stat().st_size:
        raise ValueError("overlapping records")


def _problem(kind: type[UserError], path: Path, message: str) -> UserError:
    return kind(Problem(message, "checkpoint", path))


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def matching_run(state: dict[str, Any], config: RunConfig) -> Iterator[None]:
    """Check that a saved state belongs to the run, and turn errors of loading it in the context into one line.

    Raises UserError if the state belongs to another run or is incomplete.
    """
    if state.get("config") != fingerprint(config):
        raise UserError("the checkpoint and this folder's config.yaml belong to different runs; start a new run")
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_of_the_machine(error):
            raise
        raise UserError(f"the checkpoint does not match this run ({error}); start a new run") from error
