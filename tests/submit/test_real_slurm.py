"""The jobs of `train submit --slurm` and of grids with `--slurm`, unchanged, on a real Slurm of three nodes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.records.run_folder import RunFolder
from tests.runs import SMALL, Train, draw_nothing, same, steps_done, use_tiny, wait_for
from tests.submit.slurm_cluster import EVALUATING, Cluster, missing

pytestmark = pytest.mark.system

RUN = [*SMALL, "epochs=16", "checkpoint.every=20ba", "launch.hang_timeout=60"]
TWO_NODES = ["launch.nnodes=2"]
SECONDS = 0.5  # between two questions to Slurm, which start processes
LAUNCHER = r"^\S*python\S* \S*/train "  # the command line of a launcher


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


class SubmittedRun:
    """A run, and its job."""

    def __init__(self, cluster: Cluster, name: str, *words: str) -> None:
        output = cluster.train("submit", "--slurm", "--run", *RUN, f"run_name={name}", *words)
        match = re.search(r"Submitted batch job (\d+)", output)
        assert match, output
        self.cluster, self.number, self.folder = cluster, match[1], cluster.folder / "runs" / name

    @property
    def state(self) -> str:
        return self.cluster.job(self.number)["JobState"]

    @property
    def log(self) -> str:
        return (self.cluster.folder / f"{self.folder.name}-{self.number}.log").read_text()

    @property
    def minutes(self) -> int:
        hours, minutes, _ = self.cluster.job(self.number)["RunTime"].split(":")
        return 60 * int(hours) + int(minutes)

    def set_time_limit(self, minutes: int) -> None:
        self.cluster.on("node1", "scontrol", "update", f"JobId={self.number}", f"TimeLimit={minutes}")

    def wait_for_end(self) -> None:
        wait_for(lambda: self.state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), 400, SECONDS)
        assert self.state == "COMPLETED", self.log


@pytest.fixture(scope="module", autouse=True)
def half_killed(cluster: Cluster) -> SubmittedRun:
    """A run on two nodes, on one of which the launcher has been killed: srun ends the other a minute later."""
    run = SubmittedRun(cluster, "pair", *TWO_NODES)
    wait_for(lambda: steps_done(run.folder) > 25)
    cluster.on("node2", "pkill", "-KILL", "-f", LAUNCHER)
    return run


def test_a_cancelled_job_saves_and_stays_cancelled(cluster: Cluster) -> None:
    run = SubmittedRun(cluster, "cancelled")
    wait_for(lambda: steps_done(run.folder) > 5)
    cluster.on("node1", "scancel", run.number)
    wait_for(lambda: run.state == "CANCELLED", interval=SECONDS)
    wait_for(lambda: "stopped; to resume" in run.log, 30)
    assert RunFolder(run.folder).newest_step() is not None


def test_a_job_that_is_stopped_at_its_time_limit_or_while_it_evaluates_ends_with_the_same_bits(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = SubmittedRun(cluster, "limit")
    wait_for(lambda: steps_done(run.folder) > 25)
    # note: Slurm sends the signal three minutes before the limit
    run.set_time_limit(1 + run.minutes)
    wait_for(lambda: "stopped; to resume from the newest checkpoint" in run.log)
    wait_for(lambda: cluster.job(run.number)["Restarts"] == "1", interval=SECONDS)
    run.set_time_limit(60)
    saved = RunFolder(run.folder).newest_step()
    whole = Train(tmp_path, before=(use_tiny, draw_nothing))
    whole(*RUN, "run_name=whole")
    wait_for((cluster.folder / EVALUATING).exists)
    cluster.on("node1", "scancel", "--batch", "--signal=USR1", run.number)
    run.wait_for_end()
    steps = re.findall(r"code 143: job \d+ is requeued and continues from runs/limit/checkpoints/step-0+(\d+)", run.log)
    assert steps == [str(saved), "96"]
    assert same(whole.decided(run.folder), whole.decided(tmp_path / "runs" / "whole"))


def test_a_job_continues_after_a_killed_launcher_and_after_a_lost_node(
    cluster: Cluster, half_killed: SubmittedRun, tmp_path: Path
) -> None:
    run = half_killed
    wait_for(lambda: (RunFolder(run.folder).newest_step() or 0) >= 80)
    assert "srun: error: node2: task 1: Killed" in run.log
    assert "error: rank 0: another rank has ended, or its node is lost (Connection" in run.log
    assert "exit code 137: job 1 is requeued and continues from runs/pair/checkpoints/step-000000" in run.log
    cluster.lose("node2")
    # note: srun may be killed before it prints the failure of the node
    wait_for(lambda: cluster.job(run.number)["Restarts"] == "2", interval=SECONDS)
    cluster.start_node("node2")
    run.wait_for_end()
    whole = Train(tmp_path, before=(use_tiny, draw_nothing))
    whole(*RUN, "run_name=whole", "launch.nproc=2")
    assert same(whole.decided(run.folder), whole.decided(tmp_path / "runs" / "whole"))


def result_of(cluster: Cluster, submitted: str) -> str:
    """Return the log of the job after an array, once it has ended."""
    match = re.search(r"the result, after all runs: tail -F ((\w+)-(\d+)\.log)", submitted)
    assert match, submitted
    wait_for(lambda: cluster.job(match[3])["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"), 400, SECONDS)
    logs = "".join(path.read_text() for path in sorted(cluster.folder.glob(f"{match[2]}-*.log")))
    assert cluster.job(match[3])["JobState"] == "COMPLETED", logs
    return (cluster.folder / match[1]).read_text()


def test_a_preempted_task_of_an_array_resumes_and_the_table_is_that_of_one_run_after_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = [*(word for word in RUN if not word.startswith(("algorithms.", "epochs="))), "epochs=8"]
    grid = ["ablate", "--run", "--grid", "--with=ema", *own, "algorithms=off", "runs=ablation"]
    submitted = cluster.train(*grid, "--slurm")
    task = re.search(r"ablation/(\S*-all-\S*)  submitted as job (\d+)_(\d+)", submitted)
    assert task, submitted
    wait_for(lambda: steps_done(cluster.folder / "ablation" / task[1]) > 5)
    cluster.on("node1", "scancel", "--batch", "--signal=USR1", f"{task[2]}_{task[3]}")
    table = result_of(cluster, submitted)
    logs = {path.stem.partition("_")[2]: path.read_text() for path in cluster.folder.glob(f"ablate-{task[2]}_*.log")}
    assert f"exit code 143: job {task[2]}_{task[3]} is requeued and continues from" in logs[task[3]]
    assert [number for number, log in logs.items() if "requeued" in log] == [task[3]]
    whole = Train(tmp_path, before=(use_tiny, draw_nothing))
    one_after_another = whole(*grid).stdout
    for folder in (cluster.folder / "ablation").glob("mild-*"):
        assert same(whole.decided(folder), whole.decided(tmp_path / "ablation" / folder.name))
    quality = re.compile(r"^(all|none|with ema) +8 +1 +([0-9.]+) ", re.MULTILINE)
    assert quality.findall(table) == quality.findall(one_after_another)
    assert len(quality.findall(table)) == 3


def test_a_curve_is_one_array_and_skips_what_is_finished(cluster: Cluster) -> None:
    grid = [*SMALL[:1], "epochs=1,2", *SMALL[2:], "runs=curve"]
    submitted = cluster.train("curve", "--slurm", *grid)
    assert "2 submitted" in submitted
    result = result_of(cluster, submitted)
    assert "2 already finished" in result
    assert re.search(r"^mild .* 2 +1 +[0-9.]+ ", result, re.MULTILINE), result
    assert "2 already finished" in cluster.train("curve", "--slurm", *grid)
