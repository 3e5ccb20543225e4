"""The Slurm script: its options, its shell, and its reaction to stop signals and faults."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import launcher.__main__
from tests.runs import SMALL, in_ranks, use_tiny

from .conftest import Submit, options, program

SCONTROL = 'if [ "$1" = show ]; then echo node7; echo node8; else echo "scontrol $*" >> calls; fi'


def test_options_follow_the_config(submit: Submit) -> None:
    words = ["recipe=mild", "launch.nnodes=2", "launch.nproc=4", "submit.partition=gpu", "submit.time=1-02:00:00"]
    sbatch = options(submit("slurm", *words))
    assert (sbatch["nodes"], sbatch["ntasks-per-node"], sbatch["gpus-per-node"]) == ("2", "1", "4")
    assert (sbatch["partition"], sbatch["time"], sbatch["signal"]) == ("gpu", "1-02:00:00", "B:USR1@180")
    assert "requeue" in sbatch
    assert sbatch["mem"] == "0", "all of the node's"
    assert "account" not in sbatch
    more = ["submit.mem=256G", "submit.constraint=a100", "submit.env={A: 'b c'}", "submit.account=lab"]
    more += ["submit.lines=['module load cuda','#SBATCH --qos=high']"]
    more += ["submit.save_before_end=240", "submit.program=/opt/bin/train"]
    script = submit("slurm", *words, *more)
    assert (options(script)["mem"], options(script)["constraint"]) == ("256G", "a100")
    assert options(script)["qos"] == "high"
    assert script.index("--qos=high") < script.index("export A=")
    assert (options(script)["account"], options(script)["signal"]) == ("lab", "B:USR1@240")
    assert ' /opt/bin/train "${words[@]}"' in script
    assert "\nexport A='b c'\nmodule load cuda\nset -uo pipefail\n" in script
    assert "gpus-per-node" not in options(submit("slurm", "dataset=imagenet", "launch=cpu"))


def test_a_job_of_python_m_launcher_runs_the_same_program(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [launcher.__main__.__file__])
    assert f' {sys.executable} -m launcher "${{words[@]}}"' in submit("slurm", "recipe=mild")


@pytest.mark.parametrize("words", [[], ["launch.nnodes=2", "run_name=a b", "runs=my runs"]])
def test_shellcheck_accepts_the_script(submit: Submit, tmp_path: Path, words: list[str]) -> None:
    checker = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("shellcheck is not installed")
    (tmp_path / "job.sh").write_text(submit("slurm", "recipe=hot", *map(quoted, words)))
    done = subprocess.run([checker, str(tmp_path / "job.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def quoted(word: str) -> str:
    key, _, value = word.partition("=")
    return f"{key}='{value}'" if " " in value else word


@pytest.mark.system
@pytest.mark.parametrize(
    ("code", "saves", "turn", "again"),
    [
        # a launcher killed on one node
        pytest.param(137, True, 1, True, marks=pytest.mark.skeleton),
        (137, True, 5, True),
        (137, False, 1, True),
        (137, False, 2, False),
        (1, True, 1, True),
        (1, False, 1, False),
        (2, True, 1, False),
        (130, True, 1, False),
        (143, True, 1, False),  # cancelled
        (0, True, 1, False),
    ],
)
def test_a_fault_requeues_the_job_if_a_retry_may_succeed(
    submit: Submit, tmp_path: Path, code: int, saves: bool, turn: int, again: bool
) -> None:
    (tmp_path / "job.sh").write_text(submit("slurm", "recipe=mild", "launch.nnodes=2"))
    checkpoints = tmp_path / "runs" / "mild-imagenet-41" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-00000010.pt").touch()
    save = f"sleep 0.5; touch {checkpoints}/step-00000020.pt" if saves else "true"
    program(tmp_path / "bin" / "srun", f'echo "$*" >> tasks\n{save}\nexit {code}', "bash")
    program(tmp_path / "bin" / "scontrol", SCONTROL, "bash")
    slurm = {"SLURM_JOB_ID": "41", "SLURM_CPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "node[7-8]"}
    slurm |= {"SLURM_RESTART_COUNT": str(turn - 1)} if turn > 1 else {}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    assert subprocess.run(["bash", "job.sh"], cwd=tmp_path, env=environment, check=False).returncode == code
    calls = tmp_path / "calls"
    assert (calls.read_text() if calls.exists() else "") == ("scontrol requeue 41\n" if again else "")
    (line,) = (tmp_path / "tasks").read_text().splitlines()
    assert line.endswith("run_name=mild-imagenet-41 launch.nnodes=2 launch.rdzv=node7:20041")


@pytest.mark.system
def test_a_job_resumes_its_own_run_and_no_other(submit: Submit, tmp_path: Path) -> None:
    train = tmp_path / "bin" / "train"
    program(train, f'exec {sys.executable} -m launcher "$@"', "bash")
    program(tmp_path / "bin" / "srun", 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"', "bash")
    program(tmp_path / "bin" / "scontrol", SCONTROL, "bash")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    environment = {**os.environ, **in_ranks(use_tiny), "PATH": path, "SLURM_JOB_ID": "41", "SLURM_CPUS_ON_NODE": "2"}
    run = tmp_path / "runs" / "mine"

    def turn(*words: str) -> subprocess.CompletedProcess[str]:
        text = submit("slurm", *SMALL, "run_name=mine", f"submit.program={train}", *words)
        (tmp_path / "job.sh").write_text(text)
        return subprocess.run(
            ["bash", "job.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    first = turn()
    assert first.returncode == 0, first.stderr
    before = (run / "metrics.jsonl").read_bytes()
    again = turn()
    assert (again.returncode, "is finished after 3 epochs" in again.stdout) == (0, True)
    other = turn("seed=7")
    assert other.returncode == 2
    assert "error: runs/mine is a run of another job, which this job neither resumes nor changes" in other.stderr
    assert (run / "metrics.jsonl").read_bytes() == before
