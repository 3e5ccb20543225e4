"""Waits for data are found and reported, by a real run too."""

import re

import pytest
import torch

from launcher.compute.accelerator import use
from launcher.records.metrics import read_metrics
from launcher.training.data_waits import LEAST_SECONDS, DataWaits
from tests.images import write_images
from tests.runs import SHORT, Train, draw_nothing, use_tiny
from tests.slow_data import shorter_intervals, slow_folder, use_known_of_rank_1


def test_waits_for_data_count_after_two_intervals_and_again_after_they_end() -> None:
    waits = DataWaits()
    shares = [waits.add(6.0, waited) for waited in (0.8, 1.0, 1.2, 1.2, 0.5, 1.2, 1.5)]
    assert shares == [None, None, pytest.approx(0.2), None, None, None, 0.25]
    each = DataWaits()
    assert [each.add(LEAST_SECONDS / 2, LEAST_SECONDS / 4) for _ in range(4)] == [None, None, None, 0.5]


def test_the_use_of_a_device_is_what_its_driver_says_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 10 + device.index)
    assert use(torch.device("cuda", 3)) == 13.0

    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed or it can't be imported.")

    monkeypatch.setattr(torch.cuda, "utilization", missing)
    assert use(torch.device("cuda", 0)) is None


@pytest.mark.system
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_a_slow_disk_waits_for_its_data(train: Train, ranks: int) -> None:
    write_images(train.folder / "images", {"train": 128, "val": 4}, size=(32, 32))
    train.before = (use_tiny, draw_nothing, shorter_intervals, slow_folder, use_known_of_rank_1)
    words = [word for word in SHORT if not word.startswith("dataset")]
    data = ["dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader=torchvision"]
    output = train(*words, *data, f"launch.nproc={ranks}", "epochs=4", "logger.interval=1ba", "run_name=a").stdout
    start, *rest = read_metrics(train.folder / "runs/a/metrics.jsonl")
    rows = [row for row in rest if row["kind"] == "warning"]
    assert rows[0]["title"] == "slow data"
    assert rows[0]["step"] > start["total_steps"] / start["epochs"], "the first epoch does not count"
    assert re.match(r"training waits for its data \d\d% of the time; ", rows[0]["text"])
    assert f"warning: {rows[0]['text']}" in output
    assert "slow data" in output.split("warning:")[-1], "the summary has it too"
    steps = [row for row in rest if row["kind"] == "train"]
    assert {len(row["rank_wait_seconds"] or ()) for row in steps} == {0 if ranks == 1 else 2}
    assert {row["rank_gpu_memory_bytes"] for row in steps} == {None}
    if ranks == 2:
        assert {(row["gpu_use"], *row["rank_gpu_use"]) for row in steps} == {(None, -1.0, 40.0)}
