"""A run leaves nothing outside its folder, however it ends."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest

from tests.forked import Command
from tests.runs import SHORT, Train, ended, processes_of, ranks_of, steps_done, wait_for

pytestmark = pytest.mark.system

WITH_WORKERS = [*SHORT, "dataloader.workers=1", "run_name=run"]
LONG = [*WITH_WORKERS, "epochs=100", "eval_every=100ep"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Create a folder with a short path, as sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="left-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def tidy(train: Train, temporary: Path) -> Train:
    return replace(train, environment={**train.environment, "TMPDIR": str(temporary)})


def files_in(temporary: Path) -> list[Path]:
    """Return all files except torch's cache, which later runs use."""
    return [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]


def semaphores_of(scratch: Path) -> list[Path]:
    return list(Path("/dev/shm").glob(f"*{scratch.name}*"))


def scratch_in(temporary: Path) -> Path:
    """Return the only folder: it has a socket of each rank's loader, and semaphores have its name."""
    (scratch,) = files_in(temporary)
    assert list(scratch.glob("listener-*"))
    assert semaphores_of(scratch)
    return scratch


def started(tidy: Train) -> tuple[Command | Popen[str], Path]:
    process, run = tidy.start(*LONG), tidy.folder / "runs" / "run"
    wait_for(lambda: steps_done(run) >= 3)
    return process, run


def test_a_finished_run_leaves_no_temporary_files(tidy: Train, temporary: Path) -> None:
    tidy(*WITH_WORKERS, "epochs=1", "schedule.warmup=0ba")
    assert not files_in(temporary)


def test_a_killed_rank_and_a_stopped_launcher_leave_no_temporary_files(tidy: Train, temporary: Path) -> None:
    process, run = started(tidy)
    first = scratch_in(temporary)
    ranks_of(run)[1].kill()
    wait_for(lambda: not first.exists() and bool(files_in(temporary)))
    assert not semaphores_of(first)
    before = steps_done(run)
    wait_for(lambda: steps_done(run) > before)
    second = scratch_in(temporary)
    process.terminate()
    ended(process, 143)
    assert not files_in(temporary)
    assert not semaphores_of(second)


def test_a_killed_launcher_leaves_no_temporary_files(tidy: Train, temporary: Path) -> None:
    process, run = started(tidy)
    scratch = scratch_in(temporary)
    process.kill()
    process.communicate()
    wait_for(lambda: not processes_of(run))
    wait_for(lambda: not files_in(temporary))
    assert not semaphores_of(scratch)
