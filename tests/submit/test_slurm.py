"""The Slurm script: its options, its shell, and its reaction to stop signals and faults."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Submit

SRUN = """#!/bin/bash
# runs the command after srun's own options, as one task that saves and exits with 143 on USR1
trap 'echo saved >> tasks; exit 143' USR1
while [[ $1 == --* ]]; do shift; done
shift
echo "$*" >> tasks
echo $$ > srun.pid
for _ in $(seq 200); do sleep 0.05; done
"""
SCANCEL = '#!/bin/bash\necho "scancel $*" >> calls\nkill -USR1 "$(cat srun.pid)"\n'
SCONTROL = '#!/bin/bash\nif [ "$1" = show ]; then echo node7; echo node8; else echo "scontrol $*" >> calls; fi\n'


def options(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_options_follow_the_config(submit: Submit) -> None:
    words = ["recipe=mild", "launch.nnodes=2", "launch.nproc=4", "submit.partition=gpu", "submit.time=1-02:00:00"]
    sbatch = options(submit("slurm", *words))
    assert (sbatch["nodes"], sbatch["ntasks-per-node"], sbatch["gpus-per-node"]) == ("2", "1", "4")
    assert (sbatch["partition"], sbatch["time"], sbatch["signal"]) == ("gpu", "1-02:00:00", "B:USR1@180")
    assert "requeue" in sbatch
    assert "account" not in sbatch
    assert "gpus-per-node" not in options(submit("slurm", "launch=cpu"))


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


class Node:
    """A folder in which a script runs with replacements of Slurm's programs."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir()
        for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        (folder / "job.sh").write_text(script)

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        slurm = {**more, "SLURM_JOB_ID": "41", "SLURM_CPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "node[7-8]"}
        environment = {**os.environ, **slurm, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        return subprocess.Popen(["bash", "job.sh"], cwd=self.folder, env=environment)

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_tasks(self, count: int) -> None:
        end = time.monotonic() + 30
        while len(self.lines("tasks")) < count or not (self.folder / "srun.pid").exists():
            assert time.monotonic() < end, "no task started"
            time.sleep(0.02)


@pytest.mark.system
def test_a_job_saves_before_its_time_limit_and_is_requeued_and_resumes(submit: Submit, tmp_path: Path) -> None:
    node = Node(tmp_path, submit("slurm", "recipe=hot", "epochs=240"))
    job = node.start()
    node.wait_for_tasks(1)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(240) == 143
    assert node.lines("calls") == ["scancel --signal=USR1 41", "scontrol requeue 41"]
    assert node.lines("tasks") == ["recipe=hot epochs=240 runs=runs run_name=hot-imagenet-41", "saved"]
    (tmp_path / "runs" / "hot-imagenet-41").mkdir(parents=True)
    (tmp_path / "runs" / "hot-imagenet-41" / "config.yaml").touch()
    again = node.start()
    node.wait_for_tasks(3)
    assert node.lines("tasks")[2] == "resume runs/hot-imagenet-41"
    again.send_signal(signal.SIGUSR1)
    again.wait(240)


@pytest.mark.system
@pytest.mark.parametrize(
    ("code", "saves", "turn", "again"),
    [
        (137, True, 1, True),  # a launcher killed on one node
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
    node = Node(tmp_path, submit("slurm", "recipe=mild", "launch.nnodes=2"))
    checkpoints = tmp_path / "runs" / "mild-imagenet-41" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-00000010.pt").touch()
    save = f"sleep 0.5; touch {checkpoints}/step-00000020.pt" if saves else "true"
    (node.programs / "srun").write_text(f'#!/bin/bash\necho "$*" >> tasks\n{save}\nexit {code}\n')
    assert node.start(**({"SLURM_RESTART_COUNT": str(turn - 1)} if turn > 1 else {})).wait(240) == code
    assert node.lines("calls") == (["scontrol requeue 41"] if again else [])
    (line,) = node.lines("tasks")
    assert line.endswith("run_name=mild-imagenet-41 launch.nnodes=2 launch.rdzv=node7:20041")


@pytest.mark.system
def test_slurm_accepts_the_script(submit: Submit, tmp_path: Path) -> None:
    if shutil.which("sbatch") is None or subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("no Slurm controller is reachable")
    (tmp_path / "job.sh").write_text(submit("slurm", "launch=cpu", "submit.time=10"))
    command = ["sbatch", "--test-only", str(tmp_path / "job.sh")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
