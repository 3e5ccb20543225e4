"""The job of `train submit --slurm`, unchanged, on a real Slurm of two nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.records.run_folder import RunFolder
from tests.runs import SMALL, Train, draw_nothing, same, steps_done, use_tiny, wait_for
from tests.submit.slurm_cluster import Cluster, missing

pytestmark = pytest.mark.system

RUN = [*SMALL, "epochs=40", "checkpoint.every=20ba", "launch.hang_timeout=60"]


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


def submitted(cluster: Cluster, name: str, *words: str) -> tuple[str, Path]:
    """Submit a run; return the number of its job and its folder."""
    output = cluster.train("submit", "--slurm", "--run", *RUN, f"run_name={name}", *words)
    match = re.search(r"Submitted batch job (\d+)", output)
    assert match, output
    return match[1], cluster.folder / "runs" / name


def test_a_cancelled_job_saves_and_stays_cancelled(cluster: Cluster) -> None:
    number, run = submitted(cluster, "cancelled")
    wait_for(lambda: steps_done(run) > 5)
    cluster.on("one", "scancel", number)
    wait_for(lambda: cluster.job(number)["JobState"] == "CANCELLED")
    wait_for(lambda: "stopped; to resume" in (cluster.folder / f"cancelled-{number}.log").read_text(), 30)
    assert RunFolder(run).newest_step() is not None


def test_a_job_saves_before_its_time_limit_is_requeued_and_resumes_to_the_same_bits(
    cluster: Cluster, tmp_path: Path
) -> None:
    number, run = submitted(cluster, "limit", "submit.time=3", "submit.save_before_end=170")
    whole = Train(tmp_path, before=(use_tiny, draw_nothing))
    whole(*RUN, "run_name=whole")
    wait_for(lambda: cluster.job(number)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), 400)
    assert cluster.job(number)["JobState"] == "COMPLETED"
    log = (cluster.folder / f"limit-{number}.log").read_text()
    assert "stopped; to resume from the newest checkpoint" in log
    assert int(cluster.job(number)["Restarts"]) >= 1
    assert same(whole.decided(run), whole.decided(tmp_path / "runs" / "whole"))
