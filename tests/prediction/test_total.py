"""The time and cost of a run at the top of its job: those that `train plan` predicts."""

import json
import re
from pathlib import Path

import pytest

from tests.commands import output_of
from tests.counted_steps import made_up

RUN = ("recipe=mild", "epochs=36", "dataset=imagenet", "dataset.path=/data/imagenet", "hardware=p4d_24xlarge")
JOBS = {
    "slurm": (),
    "kubernetes": ("submit.image=me/train:1",),
    "sky": ("submit.image=me/train:1", "submit.runs=s3://mine/runs"),
}
TOTAL = re.compile(r"^# in all .*? and ([0-9.]+) USD \(([0-9.]+) to ([0-9.]+)\)", re.MULTILINE)


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", made_up)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("cluster", JOBS)
@pytest.mark.parametrize("is_spot", [False, True])
@pytest.mark.parametrize("nodes", [(), ("launch.nnodes=2",)])
def test_a_job_starts_with_the_cost_that_plan_predicts(cluster: str, is_spot: bool, nodes: tuple[str, ...]) -> None:
    spot = (f"submit.spot={is_spot}".lower(),) if cluster == "sky" else ()
    several = ("submit.kind=JobSet",) if nodes and cluster == "kubernetes" else ()
    text = output_of("submit", f"--{cluster}", *RUN, *nodes, *JOBS[cluster], *spot, *several)
    offers = json.loads(output_of("plan", *RUN, *nodes, "--on", "p4d_24xlarge", "--json"))["offers"]
    (offer,) = (one for one in offers if one["spot"] == (is_spot and cluster == "sky"))
    found = TOTAL.search(text)
    assert found is not None, text[:400]
    assert [float(part) for part in found.groups()] == [
        pytest.approx(offer["cost"][key], abs=0.01) for key in ("value", "low", "high")
    ]
    assert (" on spot machines" in text) == offer["spot"]
    assert offer["made_from"] in text


def test_stop_minutes_end_the_predicted_time_and_cost_of_a_job_and_of_a_plan() -> None:
    def cost(*words: str) -> list[float]:
        found = TOTAL.search(output_of("submit", "--slurm", *RUN, *words))
        assert found is not None
        return [float(part) for part in found.groups()]

    offers = json.loads(output_of("plan", *RUN, "stop.minutes=3", "--on", "p4d_24xlarge", "--json"))["offers"]
    limited = next(one for one in offers if not one["spot"])
    # note: the start is not counted
    assert 3 < limited["minutes"]["value"] == limited["minutes"]["high"] < 5
    assert cost("stop.minutes=3")[0] == pytest.approx(limited["cost"]["value"], abs=0.01)
    assert cost("stop.minutes=9999") == cost()


@pytest.mark.parametrize(
    "words",
    [
        ["launch.nnodes=2", "hardware.network=null"],
        ["launch=cpu", "launch.nproc=2"],
        ["launch.nproc=4"],
        ["hardware=this_machine", "launch.nproc=8"],
    ],
)
def test_what_cannot_be_predicted_has_no_total(words: list[str]) -> None:
    assert "in all" not in output_of("submit", "--slurm", *RUN, *words)


def test_a_step_that_cannot_be_counted_stops_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.prediction.prediction.counted_steps", lambda plan: 1 / 0)
    text = output_of("submit", "--slurm", *RUN)
    assert "in all" not in text
    assert "an hour for 1 x p4d_24xlarge" in text


@pytest.mark.parametrize("cluster", JOBS)
def test_a_job_with_images_in_a_bucket_needs_no_package_of_it(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str, **_: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    text = output_of("submit", f"--{cluster}", *RUN, *JOBS[cluster], "dataset.path=s3://mine/imagenet")
    assert "dataset.path=s3://mine/imagenet" in text
