"""A disk that becomes full, and a folder that is deleted or moved, during a run."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.training import checkpoint
from tests.runs import SHORT, Here, Train, ended, processes_of, steps_done, wait_for

pytestmark = pytest.mark.system


@pytest.fixture(params=["400k"])
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Mount a small file system; a checkpoint of a tiny network does not fit into 0.4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skeleton
def test_training_continues_on_a_full_disk_but_the_last_checkpoint_must_succeed(here: Here, small_disk: Path) -> None:
    ended = here(*SHORT, "launch.nproc=1", f"runs={small_disk}", "run_name=full", code=1)
    joined = "".join(ended.stdout.split())  # the terminal's lines are shorter than the path
    assert "step-00000004.pt:Nospaceleftondevice;freesomespace,orchooseanotherdisk;trainingcontinues" in joined
    assert "step-00000018.pt: No space left on device; free some space" in ended.stderr
    run = small_disk / "full"
    assert max(row["step"] for row in read_metrics(run / "metrics.jsonl")) == 18
    assert list((run / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("small_disk", ["20m"], indirect=True)
def test_records_wait_with_a_warning_until_a_full_disk_has_space(train: Train, small_disk: Path) -> None:
    output, filler = train.folder / "output", small_disk / "filler"
    words = [*SHORT, f"runs={small_disk}", "run_name=full", "epochs=9", "eval_every=9ep", "checkpoint.every=9ep"]
    # note: the files that ranks leave for the launcher are on the same disk
    train.environment["TMPDIR"] = str(small_disk)
    with output.open("w") as log:
        process = train.start(*words, stdout=log, stderr=log)
    run = small_disk / "full"
    wait_for(lambda: steps_done(run) >= 2)
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    wait_for(lambda: "warning: records cannot be written (No space left on device)" in output.read_text())
    filler.unlink()
    assert process.wait(240) == 0, output.read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 55))
    assert "records lost" not in output.read_text()


@pytest.mark.parametrize("loss", ["deleted", "moved"])
def test_a_run_ends_at_once_when_its_folder_is_deleted_or_moved(train: Train, here: Here, loss: str) -> None:
    process = train.start(*SHORT, "epochs=1000", "eval_every=1000ep", "run_name=lost", "launch.nproc=1")
    run, moved = train.folder / "runs" / "lost", train.folder / "moved"
    wait_for(lambda: RunFolder(run).newest_step() is not None)
    run.rename(moved)
    if loss == "deleted":
        shutil.rmtree(moved)
    _, errors = ended(process, 1)
    assert "was deleted or moved, so all ranks were stopped" in errors
    assert "Traceback" not in errors
    wait_for(lambda: not processes_of(run), 10)
    assert not run.exists()
    if loss == "moved":
        saved = checkpoint.newest_valid(moved / "checkpoints")
        here("resume", str(moved), f"epochs={saved['step'] // 6 + 2}")
