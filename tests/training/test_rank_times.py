"""Slow ranks are found by their own seconds, and named by a real run of two ranks."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch

from launcher.accelerator import use
from launcher.records.metrics import SLOW_RANK, read_metrics
from launcher.training.rank_times import (
    LEAST_SECONDS,
    UNKNOWN,
    DataWaits,
    RankSeconds,
    Straggler,
    Stragglers,
    advice,
    waits_line,
)
from tests.images import write_images
from tests.runs import SHORT, Train, draw_nothing, ended, ranks_of, steps_done, use_tiny, wait_for
from tests.slow_ranks import busy_disk, shorter_intervals, slow_folder, slow_folder_of_rank_1, use_known_of_rank_1

FAST, SLOW = RankSeconds(0.1, 0.0), RankSeconds(0.2, 0.0)


def test_a_rank_is_slow_after_two_intervals_and_again_after_it_recovers() -> None:
    stragglers = Stragglers()
    results = [stragglers.add([FAST, SLOW, FAST], 30, 6.0) for _ in range(4)]
    assert [[one.rank for one in result] for result in results] == [[], [1], [], []]
    assert results[1] == [Straggler(1, SLOW, FAST, pytest.approx(1.0))]
    assert stragglers.add([FAST] * 3, 30, 6.0) == []
    assert [len(stragglers.add([FAST, FAST, SLOW], 30, 6.0)) for _ in range(2)] == [0, 1]


@pytest.mark.parametrize(("compute", "found"), [(0.114, False), (0.117, True)])
def test_fifteen_percent_over_the_median_is_the_limit(compute: float, found: bool) -> None:
    stragglers = Stragglers()
    ranks = [FAST, RankSeconds(compute, 0.0)]
    results = [stragglers.add(ranks, 60, 60 * compute) for _ in range(2)]
    assert bool(results[1]) == found


def test_short_intervals_are_joined_and_a_single_rank_is_never_slow() -> None:
    stragglers = Stragglers()
    each = LEAST_SECONDS / 4.5
    results = [stragglers.add([SLOW, FAST], 5, each) for _ in range(10)]
    assert [number for number, result in enumerate(results) if result] == [9]
    assert Stragglers().add([], 30, 60.0) == []


def test_the_line_has_rank_host_evidence_and_what_to_do() -> None:
    line = advice(Straggler(3, RankSeconds(0.1, 0.9), RankSeconds(0.1, 0.0), 0.9), "node-2")
    assert line.startswith("rank 3 on node-2 slows all ranks by 90%: its steps take 100 ms (median 100 ms)")
    assert "its data 900 ms (median 0 ms); check the disk of node-2" in line
    both = advice(Straggler(1, RankSeconds(0.2, 0.2), RankSeconds(0.1, 0.0), 1.0), "node-2")
    assert "its data 200 ms (median 0 ms); check node-2 for other programs" in both


def test_waits_for_data_count_after_two_intervals_and_again_after_they_end() -> None:
    waits = DataWaits()
    shares = [waits.add(6.0, waited) for waited in (0.8, 1.0, 1.2, 1.2, 0.5, 1.2, 1.5)]
    assert shares == [None, None, pytest.approx(0.2), None, None, None, 0.25]
    each = DataWaits()
    assert [each.add(LEAST_SECONDS / 2, LEAST_SECONDS / 4) for _ in range(4)] == [None, None, None, 0.5]


def test_the_line_on_waits_has_what_the_disks_read() -> None:
    line = waits_line(0.432, "node-2", 2.1e8)
    assert line.startswith(
        "training waits for its data 43% of the time; the disks of node-2 read 210 MB/s, so its memory"
    )
    assert "the disks of node-2 read nothing, so workers" in waits_line(0.432, "node-2", 0.0)
    assert "disk" not in waits_line(0.432, "node-2", UNKNOWN)
    slow = Straggler(3, RankSeconds(0.1, 0.9), RankSeconds(0.1, 0.0), 0.9)
    assert "check the disk of node-2, which reads 35 MB/s (iostat -x)" in advice(slow, "node-2", 3.5e7)


def test_the_use_of_a_device_is_what_its_driver_says_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 10 + device.index)
    assert use(torch.device("cuda", 3)) == 13.0

    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed or it can't be imported.")

    monkeypatch.setattr(torch.cuda, "utilization", missing)
    assert use(torch.device("cuda", 0)) is None


def _straggler(run: Path) -> dict[str, object]:
    rows = [
        row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "warning" and row["title"] == SLOW_RANK
    ]
    of_rank = [row for row in rows if row["rank"] == 1]
    # note: on a busy machine the other rank may be slow for a time
    assert len(of_rank) > len(rows) / 2, rows
    return of_rank[0]


@pytest.mark.system
def test_a_rank_that_is_stopped_again_and_again_is_named(train: Train) -> None:
    # note: short intervals, so that the run ends soon
    train.before = (use_tiny, draw_nothing, shorter_intervals)
    process = train.start(*SHORT, "epochs=60", "checkpoint.every=1dur", "eval_every=1dur", "run_name=a")
    run = train.folder / "runs" / "a"
    wait_for(lambda: steps_done(run) >= 3)
    (slow,) = [rank for number, rank in ranks_of(run).items() if number == 1]
    with suppress(psutil.Error, ProcessLookupError):
        while steps_done(run) < 300:
            os.kill(slow.pid, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(slow.pid, signal.SIGCONT)
            time.sleep(0.02)
    output, _ = ended(process)
    row = _straggler(run)
    # note: where in a step the stops fall, and so what the line blames, is chance
    assert re.match(r"rank 1 on \S+ slows all ranks by \d+%: its steps take", str(row["text"]))
    assert f"warning: {row['text']}" in output
    assert "slow rank" in output.split("warning:")[-1], "the summary has it too"


@pytest.mark.system
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_a_slow_disk_states_what_it_reads(train: Train, ranks: int) -> None:
    write_images(train.folder / "images", {"train": 128, "val": 4}, size=(32, 32))
    train.before = (use_tiny, draw_nothing, shorter_intervals, slow_folder, busy_disk)
    words = [word for word in SHORT if not word.startswith("dataset")]
    data = ["dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader=torchvision"]
    output = train(*words, *data, f"launch.nproc={ranks}", "epochs=4", "logger.interval=1ba", "run_name=a").stdout
    start, *rest = read_metrics(train.folder / "runs/a/metrics.jsonl")
    rows = [row for row in rest if row["kind"] == "warning"]
    assert rows[0]["title"] == "slow data"
    assert rows[0]["step"] > start["total_steps"] / start["epochs"], "the first epoch does not count"
    assert re.match(r"training waits for its data \d\d% of the time; the disks of \S+ read \d+ MB/s", rows[0]["text"])
    assert f"warning: {rows[0]['text']}" in output
    assert "slow data" in output.split("warning:")[-1], "the summary has it too"


@pytest.mark.system
def test_a_rank_with_a_slow_folder_is_named(train: Train) -> None:
    write_images(train.folder / "images", {"train": 24, "val": 4}, size=(32, 32))
    train.before = (use_tiny, draw_nothing, shorter_intervals, slow_folder_of_rank_1, use_known_of_rank_1)
    words = [word for word in SHORT if not word.startswith("dataset")]
    data = ["dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader=torchvision"]
    train(*words, *data, "epochs=40", "checkpoint.every=1dur", "eval_every=1dur", "run_name=a")
    run = train.folder / "runs" / "a"
    assert "check the disk of" in str(_straggler(run)["text"])
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "train"]
    waits = [sum(row["rank_wait_seconds"][rank] for row in rows) for rank in range(2)]
    assert waits[1] > 2 * waits[0]
    assert {len(row["rank_own_seconds"]) for row in rows} == {2}
    assert all(min(row["rank_own_seconds"]) > 0 for row in rows)
    assert {row["rank_gpu_memory_bytes"] for row in rows} == {None}
    assert {(row["gpu_use"], *row["rank_gpu_use"]) for row in rows} == {(None, -1.0, 40.0)}
