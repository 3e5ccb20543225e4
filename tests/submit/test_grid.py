"""`train curve --slurm` submits a job per run, none for finished or queued runs; Slurm's programs are replaced."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launcher.cli import main as cli
from launcher.config.resolved import as_mapping
from launcher.records.metrics import EndRecord, EvalRecord, StartRecord
from launcher.records.sinks import MetricsWriter
from launcher_lab.cli.curve import expand

# sbatch writes the script of job N to job-N.sh; `queue` has the numbers of waiting and running jobs
SBATCH = """#!/bin/bash
[ "$1" = --parsable ] || exit 9
[ -e full ] && { printf "sbatch: error: QOSMaxSubmitJobPerUserLimit\\nsbatch: too many\\n" >&2; exit 1; }
n=$(($(ls job-*.sh 2>/dev/null | wc -l) + 1))
cat > "job-$n.sh"
echo "$n" >> queue
echo "$n;cluster"
"""
SQUEUE = '#!/bin/bash\n[ "$*" = "--me --noheader --format=%A" ] && cat queue 2>/dev/null; exit 0\n'
GRID = ["recipe=mild", "epochs=9,18", "seed=0,1", "dataset=shapes", "model=resnet18", "batch_size=64", "launch=cpu"]

Curve = Callable[..., str]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def curve(slurm: Path, capsys: pytest.CaptureFixture[str]) -> Curve:
    def call(*words: str, code: int = 0) -> str:
        assert cli.main(["curve", "--slurm", *words]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    return call


def write_run(folder: Path, *, finished: bool) -> None:
    """Write the run folder of a job that has ended."""
    (cell,) = (cell for cell in expand(GRID) if cell.folder.name == folder.name)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(as_mapping(cell.composed.config)))
    writer = MetricsWriter(folder / "metrics.jsonl")
    for record in (
        StartRecord(0, 1.0, 1, 10, 9, "cpu", "float32", "top1", "higher"),
        EvalRecord(9, 2.0, 9, {"top1": 0.5, "top5": 1}, 1, 9, 1, 9.0),
    ):
        writer.write(record)
    if finished:
        writer.write(EndRecord(10, 3.0, True, 9.0, 1.0, 1.0))
    writer.close()


def test_each_run_is_one_job_unless_it_is_queued_or_finished(slurm: Path, curve: Curve) -> None:
    assert "4 submitted" in curve(*GRID)
    assert "4 in the queue" in curve(*GRID)
    names = [cell.folder.name for cell in expand(GRID)]
    write_run(slurm / "runs" / names[0], finished=True)
    write_run(slurm / "runs" / names[1], finished=False)
    (slurm / "queue").write_text("3\n")
    output = curve(*GRID)
    assert "1 already finished, 2 submitted, 1 in the queue" in output
    assert f"runs/{names[1]}  submitted as job 5" in output
    assert f"runs/{names[2]}  in the queue as job 3: skipped" in output
    assert "3 in the queue" in curve(*GRID)


def test_a_refused_job_is_reported_and_submitted_next_time(slurm: Path, curve: Curve) -> None:
    (slurm / "full").touch()
    assert "error: sbatch: sbatch: error: QOSMaxSubmitJobPerUserLimit; sbatch: too many\n" in curve(*GRID, code=2)
    (slurm / "full").unlink()
    assert "4 submitted" in curve(*GRID)


def test_errors_are_reported_before_the_first_job(slurm: Path, curve: Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error: epoch=3" in curve("epoch=3", "seed=0,1", code=2)
    assert "submit.tim" in curve(*GRID, "submit.tim=10", code=2)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "squeue is not installed" in curve(*GRID, code=2)
    assert not list(slurm.glob("job-*"))
