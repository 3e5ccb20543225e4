"""What differs from the start of a run when it resumes or repeats a step."""

from rich.console import Console

from launcher.counts import count_of
from launcher.errors import UserError, one_line
from launcher.files.disk import is_there
from launcher.launch.prepare import Prepared
from launcher.records.metrics import read_attempts, read_last
from launcher.records.run_folder import RunFolder, checkpoint_files, note_dataset


def check_checkpoints(folder: RunFolder) -> None:
    """Raise a UserError if a run has lost its checkpoints, since it would restart from step 0 in silence.

    A record of a resume or an end follows a saved checkpoint.
    """
    if checkpoint_files(folder.checkpoints) or is_there(folder.best):
        return
    rows = [*read_attempts(folder.attempts, folder.metrics), *read_last(folder.metrics)]
    if saved := [row["step"] for row in rows if row["kind"] in ("resume", "end")]:
        path = one_line(str(folder.path))
        lost = f"{path} has no checkpoint, but its records have one of step {max(saved)}"
        raise UserError(f"{lost}; restore {path}/{folder.checkpoints.name}, or start a new run")


def print_changes(folder: RunFolder, prepared: Prepared, out: Console, *, images: str) -> None:
    """Print notes if a run resumes on other images, on the CPU, or with another number of processes."""
    devices, world_size = prepared.devices, prepared.plan.world_size
    notes = list(devices.notes)
    if note_dataset(folder, images, prepared.splits):
        notes.append(
            "the names or sizes of the images have changed; the run resumes, but train compare "
            "counts it for neither data set"
        )
    rows = read_attempts(folder.attempts, folder.metrics)
    start = next((row for row in rows if row["kind"] == "start"), None)
    if start and start["epochs"] != (epochs := prepared.plan.epochs):
        notes.append(
            f"the run started with {count_of(start['epochs'], 'epoch')} and continues to {epochs}, which changes "
            "its schedule; train compare does not count it"
        )
    if devices.kind == "cpu" and start and start["device"] != "cpu":
        notes.append(
            f"the run started on {start['device']} and resumes on the CPU; set launch.device=cuda to require a GPU"
        )
    ranks = next((row["world_size"] for row in reversed(rows) if row["kind"] in ("start", "resume")), None)
    if ranks not in (None, world_size):
        notes.append(
            f"the run had {count_of(ranks, 'process')} and resumes with {world_size}: global batch, data and schedule "
            f"stay the same; the weights differ by rounding and batch-norm statistics"
        )
    for note in notes:
        out.print(f"note: {note}", style="yellow", markup=False)
