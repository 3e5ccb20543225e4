"""Grids on Slurm are one job array of the runs that are neither finished nor queued; Slurm's programs are replaced."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launcher.cli import main as cli
from launcher.config.resolved import as_mapping
from launcher.records.metrics import EndRecord, EvalRecord, StartRecord
from launcher.records.sinks import MetricsWriter
from launcher_lab.cli.grid import expand
from tests.commands import refused

from .conftest import options, program

# sbatch writes the script of job N to job-N.sh; `queue` has the waiting and running jobs, and the tasks of arrays
SBATCH = """[ "$1" = --parsable ] || exit 9
[ -e full ] && { printf "sbatch: error: QOSMaxSubmitJobPerUserLimit\\nsbatch: too many\\n" >&2; exit 1; }
n=$(($(ls job-*.sh 2>/dev/null | wc -l) + 1))
cat > "job-$n.sh"
tasks=$(sed -n 's/#SBATCH --array=//p' "job-$n.sh")
if [ "$tasks" ]; then tr , '\\n' <<< "$tasks" | sed "s/^/${n}_/" >> queue; else echo "$n" >> queue; fi
echo "$n;cluster"
"""
SQUEUE = '[ "$*" = "--me --noheader --array --format=%i" ] && cat queue 2>/dev/null; exit 0'
GRID = ["recipe=mild", "epochs=9,18", "seed=0,1", "dataset=shapes", "model=resnet18", "batch_size=64", "launch=cpu"]
PAIR = [*GRID[:1], *GRID[2:]]

Curve = Callable[..., str]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        program(tmp_path / "bin" / name, text, "bash")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
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


def test_the_runs_are_one_array_without_those_that_are_queued_or_finished(slurm: Path, curve: Curve) -> None:
    output = curve(*GRID)
    assert "4 submitted" in output
    assert "the result, after all runs: tail -F curve-2.log" in output
    assert "4 in the queue" in curve(*GRID)
    names = [cell.folder.name for cell in expand(GRID)]
    write_run(slurm / "runs" / names[0], finished=True)
    write_run(slurm / "runs" / names[1], finished=False)
    (slurm / "queue").write_text("1_3\n")
    output = curve(*GRID)
    assert "1 already finished, 1 in the queue, 2 submitted" in output
    assert f"runs/{names[1]}  submitted as job 3_2" in output
    assert f"runs/{names[2]}  in the queue as job 1_3" in output
    assert options((slurm / "job-3.sh").read_text())["array"] == "2,4"
    assert options((slurm / "job-4.sh").read_text())["dependency"] == "afterok:3:1"
    assert "3 in the queue" in curve(*GRID)
    assert len([*slurm.glob("job-*.sh")]) == 4


ABLATE = ["ablate", "--run", "--grid", "--with=ema", "recipe=mild", "algorithms=off", *GRID[3:]]
TRIALS = ["curve", "recipe=mild", *GRID[4:], "optimizer.lr=interval(0.1,1)", "trials=2"]


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["curve", *GRID], [["curve", *GRID], ["compare", "runs"]]),
        (ABLATE, [[*ABLATE[:4], "--seconds=1.0", *ABLATE[4:]]]),
        (TRIALS, [TRIALS, ["compare", "runs"]]),
    ],
)
def test_each_task_has_its_run_and_a_job_after_them_repeats_the_command(
    slurm: Path, capsys: pytest.CaptureFixture[str], words: list[str], after: list[list[str]]
) -> None:
    assert cli.main([*words, "--slurm", "submit.program=/opt/train", "submit.partition=gpu"]) == 0, capsys.readouterr()
    array, collection = ((slurm / f"job-{number}.sh").read_text() for number in (1, 2))
    assert options(array)["job-name"] == options(collection)["job-name"] == words[0]
    assert options(array)["output"] == "%x-%A_%a.log"
    tasks = options(array)["array"].split(",")
    program(slurm / "bin" / "srun", 'echo "${@: -1}" >> started', "bash")
    for task in tasks:
        environment = {**os.environ, "SLURM_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": task, "SLURM_CPUS_ON_NODE": "2"}
        subprocess.run(["bash", "job-1.sh"], env=environment, check=True)
    started = (slurm / "started").read_text().split()
    assert len(set(started)) == len(tasks) > 1
    lines = collection.replace(" &&", "").splitlines()
    assert [shlex.split(line)[1:] for line in lines if line.startswith("/opt/train")] == after
    after_all = {"dependency": "afterok:1", "kill-on-invalid-dep": "yes", "partition": "gpu"}
    assert after_all.items() <= options(collection).items()
    assert "signal" not in options(collection)


def test_the_sum_of_the_runs_is_priced(slurm: Path, curve: Curve) -> None:
    words = ["recipe=mild", "epochs=18", "hardware=p4d_24xlarge", "dataset=imagenet"]
    printed = [curve(*words, f"seed={seeds}", f"runs=of{len(seeds)}") for seeds in ("0", "0,1")]
    one, two = (float(re.search(r"^in all .*? and ([0-9.]+) USD", text, re.M)[1]) for text in printed)  # type: ignore[index]
    assert two == pytest.approx(2 * one, abs=0.02)
    assert f" and {two:.2f} USD" in (slurm / "job-3.sh").read_text()


def test_what_an_array_cannot_do_is_one_line(curve: Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error: launch.nnodes=1,2: differs" in curve(*GRID[:1], *GRID[3:], "launch.nnodes=1,2", code=2)
    assert "error: --parallel=2: is for runs on this machine" in curve(*PAIR, "--parallel=2", code=2)
    assert "error: --slurm submits the missing runs; add --run" in refused("ablate", "--slurm", *PAIR, "algorithms=off")
    monkeypatch.delenv("TRAIN_DATA")
    missing = "error: dataset.path=null: missing; set dataset.path=/data/imagenet"
    without_data = [*GRID[:1], "dataset=imagenet", *GRID[4:]]
    assert curve(*without_data, code=2).startswith(missing)
    assert refused("ablate", "--run", "--slurm", "--with=ema", *without_data, "algorithms=off").startswith(missing)


def test_a_refused_job_is_reported_and_submitted_next_time(slurm: Path, curve: Curve) -> None:
    (slurm / "full").touch()
    assert "error: sbatch: sbatch: error: QOSMaxSubmitJobPerUserLimit; sbatch: too many\n" in curve(*PAIR, code=2)
    (slurm / "full").unlink()
    assert "2 submitted" in curve(*PAIR)


def test_errors_are_reported_before_the_first_job(slurm: Path, curve: Curve, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "error: epoch=3" in curve("epoch=3", "seed=0,1", code=2)
    assert "submit.tim" in curve(*PAIR, "submit.tim=10", code=2)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "squeue is not installed" in curve(*PAIR, code=2)
    assert not list(slurm.glob("job-*"))
