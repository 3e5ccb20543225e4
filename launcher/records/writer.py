"""What wrote a run folder: the format of its files, the version of train, and the job of `train submit`."""

import json
import os
from dataclasses import asdict, dataclass, replace

from launcher.config.formats import FORMAT, JOB, REORDERED
from launcher.errors import Problem, UserError
from launcher.files import atomic
from launcher.files.disk import is_there, patiently
from launcher.records.run_folder import RunFolder
from launcher.version import __version__


@dataclass(frozen=True)
class Writer:
    """The first writer of a run folder. `job` is None for a run that no job has started.

    place: the path from which the run may be mirrored; None in an earlier version.
    """

    format: int
    version: str
    job: str | None
    place: str | None = None


def write_writer(folder: RunFolder) -> None:
    """Record this version, and the job of this command."""
    _write(folder, Writer(FORMAT, __version__, os.environ.get(JOB), _place(folder)))


def is_moved(folder: RunFolder) -> bool:
    """Return whether a folder is not where its writer has recorded; raises as `read_writer`."""
    return read_writer(folder).place != _place(folder)


def write_place(folder: RunFolder) -> None:
    """Record where a folder is now; raises as `read_writer`."""
    _write(folder, replace(read_writer(folder), place=_place(folder)))


def _write(folder: RunFolder, writer: Writer) -> None:
    atomic.write_text(folder.writer, json.dumps(asdict(writer), indent=1) + "\n")


def _place(folder: RunFolder) -> str:
    return str(folder.path.resolve())


def read_writer(folder: RunFolder) -> Writer:
    """Return what wrote a folder; without a record it was version 0.1, in format 1.

    Raises UserError if the record is damaged, and DiskError if it cannot be read.
    """
    if not is_there(folder.writer):
        return Writer(1, "0.1", None)
    try:
        values = json.loads(patiently(folder.writer.read_bytes, folder.writer))
        return Writer(int(values["format"]), str(values["version"]), values["job"], values.get("place"))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{folder.writer} is damaged; restore it, or remove it if version 0.1 wrote the run") from None


def check_writer(folder: RunFolder) -> None:
    """Check that this version can resume a run, and that it is of the job that this command is part of, if any.

    Raises UserError if it cannot, or the run is another.
    """
    writer, job = read_writer(folder), os.environ.get(JOB)
    if writer.format > FORMAT:
        message = f"{folder.path} has format {writer.format}, but this version resumes runs up to format {FORMAT}"
        raise UserError(f"{message}; use train {writer.version}, which wrote it")
    if job and writer.job != job:
        message = f"{folder.path} is a run of another job, which this job neither resumes nor changes"
        raise UserError(f"{message}; set another run_name")


def check_order(folder: RunFolder, dataset: str) -> None:
    """Check that a run's remaining epochs have the order of images in which it began.

    Raises UserError if not.
    """
    writer = read_writer(folder)
    if writer.format < 3 and dataset in REORDERED:
        message = f"trains on images in another order since version 0.3; resume it with train {writer.version}"
        raise UserError(Problem(message, "dataset", dataset))
