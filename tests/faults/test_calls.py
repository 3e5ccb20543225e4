"""The n-th system call of a command fails: it ends with one line, and a plain resume computes the same bits.

As SQLite tests it. `CALLS=1` tries every call with every errno, which takes hours; otherwise some of them.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.records.run_folder import RunFolder
from tests.faults.failing_calls import Ended, FailingTrain, Plan, library, plans
from tests.runs import SMALL, same

__all__ = ["library"]
pytestmark = pytest.mark.system

# The stride over the plans of a command; a prime, so that all calls and errnos take part.
STRIDE = int(os.environ.get("CALLS", "211"))
RUN = [
    *(*SMALL, "epochs=2", "schedule.warmup=0ba", "dataset.train_samples=16", "dataset.val_samples=8", "batch_size=8"),
    *("checkpoint.every=1ba", "run_name=run"),
]
EXPORTED = {"model.safetensors", "model_card.json"}


@pytest.fixture(scope="module")
def template(library: str, tmp_path_factory: pytest.TempPathFactory) -> FailingTrain:
    """A folder with the run `whole`, and the same in runs/ with the checkpoint after three of four steps."""
    train = FailingTrain(tmp_path_factory.mktemp("template"), preload=library)
    train(*RUN)
    run = train.folder / "runs" / "run"
    shutil.copytree(run, train.folder / "whole")
    (run / "checkpoints" / "step-00000004.pt").unlink()
    return train


def assert_one_line(ended: Ended, plan: Plan) -> None:
    shown = f"{plan} ({ended.failed}):\n{ended.output}\n{ended.errors}"
    assert ended.code in (0, 1, 2), shown
    assert "Traceback" not in ended.output + ended.errors, shown
    # note: warnings of a rank go to the terminal if its log cannot be written
    lines = [line for line in ended.errors.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == (ended.code > 0), shown
    assert all(line.startswith("error: ") for line in lines), shown


def prepared(template: FailingTrain, folder: Path, *, resumed: bool) -> FailingTrain:
    folder.mkdir()
    if resumed:
        shutil.copytree(template.folder / "runs", folder / "runs")
    return replace(template, folder=folder)


def assert_succeeds(train: FailingTrain, *words: str, after: object) -> None:
    process = train.start(*words)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, f"after {after}:\n{output}\n{errors}"


def tried(
    ended: Callable[[Plan, Path], Ended], tmp_path: Path, stride: int = STRIDE
) -> Iterator[tuple[Plan, Path, Ended]]:
    """Run a command, which `ended` runs under a plan in a new folder, without a plan and under some of all plans."""
    folder = tmp_path / "0"
    whole = ended(Plan(), folder)
    assert whole.code == 0, whole
    for number, plan in enumerate(plans(whole.calls, stride), 1):
        folder = tmp_path / str(number)
        result = ended(plan, folder)
        yield plan, folder, result
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("resumed", "stride"),
    [(False, STRIDE), (True, STRIDE), pytest.param(True, 997, marks=pytest.mark.skeleton)],
    ids=["run", "resume", "resume-few"],
)
def test_a_failed_call_of_a_run_is_one_line_and_a_plain_resume_computes_the_same_bits(
    template: FailingTrain, tmp_path: Path, resumed: bool, stride: int
) -> None:
    words, run = ["resume", "runs/run"] if resumed else RUN, Path("runs", "run")
    expected = template.decided(template.folder / "whole")

    def ended(plan: Plan, folder: Path) -> Ended:
        return prepared(template, folder, resumed=resumed).ended(plan, folder / run, *words)

    for plan, folder, result in tried(ended, tmp_path, stride):
        assert_one_line(result, plan)
        train = replace(template, folder=folder)
        assert_succeeds(
            train, *(["resume", "runs/run"] if RunFolder(folder / run).exists() else RUN), after=(plan, result)
        )
        assert same(train.decided(folder / run), expected), (plan, result)


def test_a_failed_call_of_a_mirror_is_a_warning_and_its_copy_resumes_to_the_same_bits_or_is_refused(
    template: FailingTrain, tmp_path: Path
) -> None:
    expected = template.decided(template.folder / "whole")

    def ended(plan: Plan, folder: Path) -> Ended:
        url = f"file://{folder}/bucket"
        return prepared(template, folder, resumed=False).ended(
            plan, folder / "bucket", *RUN, f"checkpoint.mirror={url}"
        )

    for plan, folder, result in tried(ended, tmp_path):
        assert (result.code, result.errors) == (0, ""), (plan, result)
        assert "Traceback" not in result.output, (plan, result)
        shutil.rmtree(folder / "runs")
        train = replace(template, folder=folder)
        if (folder / "bucket" / "run" / "config.yaml").exists():
            assert_succeeds(train, "resume", f"file://{folder}/bucket/run", after=(plan, result))
            assert same(train.decided(folder / "runs" / "run"), expected), (plan, result)
        else:
            assert result.failed


def test_a_failed_call_of_an_export_is_one_line_and_the_next_export_is_whole(
    template: FailingTrain, tmp_path: Path
) -> None:
    def ended(plan: Plan, folder: Path) -> Ended:
        train = prepared(template, folder, resumed=True)
        return train.ended(plan, folder / "out", "export", "runs/run", "-o", "out")

    for plan, folder, result in tried(ended, tmp_path):
        assert_one_line(replace(result, errors=result.errors if result.code else ""), plan)
        assert_succeeds(replace(template, folder=folder), "export", "runs/run", "-o", "out", after=(plan, result))
        assert {path.name for path in (folder / "out").iterdir()} == EXPORTED


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failed_disk_of_real_ranks_is_one_line(template: FailingTrain, tmp_path: Path, error: int) -> None:
    train, run = replace(prepared(template, tmp_path / "0", resumed=False), around=()), tmp_path / "0" / "runs" / "run"
    counted = train.ended(Plan(), run, *RUN)
    shutil.rmtree(run)
    # note: from half of the calls on, all fail, in the launcher and in its rank
    ended = train.ended(Plan(counted.calls // 2, error, lasting=True), run, *RUN)
    assert ended.code == 1
    assert_one_line(ended, Plan(counted.calls // 2, error))
    assert_succeeds(train, "resume", "runs/run", after=(error, ended))
    assert same(train.decided(run), template.decided(template.folder / "whole"))
