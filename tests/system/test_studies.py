"""The verbs that measure or tune, as real commands on a few small images."""

import json
import re

import pytest

from launcher.records.metrics import read_metrics
from tests.runs import SMALL, Here, Train, same

pytestmark = pytest.mark.system


def test_a_run_stops_at_its_target_and_leaves_an_mlperf_log(here: Here) -> None:
    run = here.small("aimed", "target=top1:0.01")
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [6]
    assert rows[-1]["kind"] == "end"
    assert rows[-1]["finished"]
    assert here.state(run)["step"] == 6
    here("report", str(run), "-o", "mlperf.log")
    assert '"status": "success"' in (here.folder / "mlperf.log").read_text()
    assert "target top1:0.01" in here("resume", str(run)).stdout
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "eval"] == [6]


def test_a_run_stops_early_at_the_same_step_after_an_interruption(here: Here) -> None:
    early = ["eval_every=2ba", "stop.patience=3", "stop.min_delta=1.0", "checkpoint.every=1ba"]
    run = here.small("early", *early)
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "eval"] == [2, 4, 6, 8]
    assert (rows[-1]["finished"], rows[-1]["ended_by"]) == (True, "stop.patience")
    shown = here("resume", str(run)).stdout
    assert "stopped early" in shown
    assert "at epoch 1.33333 of 3: 3 evaluations in a row without a gain of more than 1 in top-1" in shown
    here(*SMALL, "run_name=cut", *early, code=143, stop_after=5)
    cut = here.folder / "runs" / "cut"
    here("resume", str(cut))
    assert same(here.decided(cut), here.decided(run))
    here.small("whole", "eval_every=2ba")
    shown = here("compare", "runs").stdout
    assert "1.333 of 3" in shown
    assert "mild stop.patience=3 stop.min_delta=1.0 " in shown
    here("resume", str(run), "stop.patience=null")
    assert same(here.state(run)["weights"], here.state(here.folder / "runs" / "whole")["weights"])
    assert "ended_by" not in {key for key, value in read_metrics(run / "metrics.jsonl")[-1].items() if value}


def test_an_estimate_is_saved_for_the_run_of_its_config(here: Here) -> None:
    shown = json.loads(here("estimate", *SMALL, "--seconds", "0.1", "--json").stdout)
    assert (shown["evaluations"], shown["processes"]) == (3, 1)
    assert 0 < shown["training"]["seconds"] < shown["wall"]["seconds"]
    assert sum(size["steps"] for size in shown["sizes"]) == 18
    assert {"p4d_24xlarge", "bm_gpu4_8"} <= {price["hardware"]["name"] for price in shown["prices"]}
    done = here(*SMALL, "run_name=estimated")
    assert "estimated" in done.stdout
    (path,) = (here.folder / "runs" / ".estimates").glob("*.json")
    saved = json.loads(path.read_text())
    assert saved["training"] == shown["training"]
    assert saved["config"]["batch_size"] == 16
    assert all(len(step["step_seconds"]) > 1 for step in saved["steps"])
    assert not list((here.folder / "runs").glob(".measuring-*"))


def test_two_ranks_are_measured_together(train: Train) -> None:
    words = [*SMALL, "epochs=1", "algorithms=[]", "schedule.warmup=0ba", "launch.nproc=2"]
    shown = json.loads(train("estimate", *words, "--seconds", "0.1", "--json").stdout)
    assert (shown["evaluations"], shown["processes"]) == (1, 2)
    assert 0 < shown["training"]["seconds"] < shown["wall"]["seconds"]


def test_an_estimate_has_the_bottleneck_and_what_to_change(here: Here) -> None:
    lines = here("estimate", *SMALL, "--seconds", "0.1").stdout.splitlines()
    (number,) = [number for number, line in enumerate(lines) if line.startswith("bottleneck: ")]
    assert re.fullmatch(r"bottleneck: (data|step); \d+% of the time saved if loading were free", lines[number])
    assert lines[number + 1].startswith("- ")


def test_ablate_reports_the_parts(here: Here) -> None:
    short = [*SMALL, "--seconds", "0.1", "--json"]
    split = {row["part"]: row for row in json.loads(here("ablate", *short).stdout)["split"]}
    assert split.keys() >= {"data", "transfer", "forward", "backward", "optimizer", "ema"}
    assert sum(row["share"] for row in split.values()) == pytest.approx(1.0)
