"""`batch_size=auto`: the search, what it is refused for, and a run that takes its result."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from launcher.config.resolved import read
from launcher.errors import UserError
from launcher.launch.auto_batch import with_batch
from launcher.launch.devices import Devices
from launcher.launch.prepare import Prepared
from launcher.measure import launch
from launcher.measure.launch import measure_batch
from launcher.training.captured import WARMUP_STEPS
from tests.configs import composed, with_values
from tests.graphs import StandIn
from tests.measurements import gpu_with_memory, pretend_a_gpu
from tests.networks import tiny
from tests.runs import SMALL, Train, draw_nothing, use_tiny

GPUS = Devices("cuda", 3)
AUTO = with_values(composed("dataset=shapes"), {"batch_size": "auto", "dataset.train_samples": 3000})


@pytest.mark.parametrize(("held", "most", "images"), [(100, 1000, 64), (64, 1000, 64), (100, 30, 16), (1, 9, 0)])
def test_the_search_doubles_while_a_step_fits(held: int, most: int, images: int) -> None:
    from launcher.measure.batch_size import largest

    assert largest(lambda images: images <= held, most) == images


def test_one_gpu_is_measured_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[tuple[Prepared, str]] = []
    monkeypatch.setattr(launch, "measure", lambda prepared, target, *_: measured.append((prepared, target)) or 32)
    assert measure_batch(AUTO, GPUS) == 96
    ((prepared, _),) = measured
    assert (prepared.devices.processes, prepared.plan.config.launch.nproc) == (1, 1)
    assert prepared.plan.train_samples == 1000
    monkeypatch.setattr(launch, "measure", lambda *_: 0)
    with pytest.raises(UserError, match="batch_size=auto: 2 images of 64 px do not fit in GPU memory"):
        measure_batch(AUTO, GPUS)


@pytest.mark.parametrize(
    ("values", "devices", "reason"),
    [
        ({}, Devices("cpu", 3), "this run trains on the CPU; set a number"),
        ({"launch.nnodes": 2}, GPUS, "is measured on one node"),
        ({"device_batch_size": 8}, GPUS, "device_batch_size=8 limits the memory of a step already"),
        ({"dataset.train_samples": 59}, GPUS, "too few images"),
    ],
)
def test_what_cannot_be_measured_is_refused(values: dict[str, object], devices: Devices, reason: str) -> None:
    with pytest.raises(UserError, match=f"batch_size=auto: .*{reason}"):
        with_batch(with_values(AUTO, values), devices, lambda *_: pytest.fail("it is measured"))


def test_a_run_of_three_ranks_takes_what_one_has_measured(tmp_path: Path) -> None:
    train = Train(tmp_path, before=(use_tiny, draw_nothing, pretend_a_gpu))
    words = ["batch_size=auto", "dataset.train_samples=192", "launch.nproc=3", "epochs=1", "schedule.warmup=0ba"]
    done = train(*SMALL, *words, "run_name=measured")
    run = tmp_path / "runs" / "measured"
    assert "batch_size=auto is 12: 4 images a GPU, " in done.stdout
    assert "ten steps; the learning rate is scaled with it" in done.stdout
    assert read(run / "config.yaml").batch_size == 12
    assert train.state(run)["step"] == 192 // 12
    train("resume", str(run))
    refused = train("plan", *SMALL, "batch_size=auto", code=2).stderr
    assert "batch_size=auto: is measured only when `train` starts a run" in refused


def test_a_step_fits_that_leaves_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.measure import batch_size
    from launcher.rank.group import single_rank

    monkeypatch.setattr(batch_size, "interface", lambda device: gpu_with_memory(900))
    monkeypatch.setattr(batch_size, "_take_steps", lambda *_: None)
    fits = partial(batch_size.fits, replace(AUTO, batch_size=2), 8, single_rank(torch.device("cpu")))
    assert fits()
    monkeypatch.setattr(batch_size, "interface", lambda device: gpu_with_memory(901))
    assert not fits()


def captured_on_a_stand_in(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> StandIn:
    """Take the steps of the search, each of which captures on one stand-in for CUDA graphs."""
    from launcher.measure import batch_size, step_timer
    from launcher.rank.group import single_rank
    from launcher.training import trainer

    device = StandIn()
    monkeypatch.setattr(trainer, "build_model", tiny)
    monkeypatch.setattr(step_timer, "why_not_captured", lambda *_: None)
    monkeypatch.setattr(batch_size, "_Capturer", lambda _: device)
    small = ["dataset=shapes", "dataset.train_samples=64", "dataset.native_size=16", "dataloader=synthetic"]
    config = composed(*small, "batch_size=8", "epochs=2", "precision=fp32", *words)
    batch_size._take_steps(config, single_rank(torch.device("cpu")), None)
    return device


def test_steps_are_measured_with_the_graphs_of_all_kinds_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["algorithms=[sam]", "algorithms.sam.interval=2"]
    device = captured_on_a_stand_in(monkeypatch, [*words, "cuda_graphs=on"])
    # note: batch preparation has a graph too
    assert (device.captures, device.warmup_steps, device.dropped) == (3, 3 * WARMUP_STEPS, [])
    assert captured_on_a_stand_in(monkeypatch, words).captures == 0


def test_a_batch_whose_capture_runs_out_of_memory_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.measure import batch_size

    def fail(*_: object) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            raise RuntimeError("capture ended")

    monkeypatch.setattr(batch_size.Capturer, "__init__", lambda *_: None)
    monkeypatch.setattr(batch_size.Capturer, "capture", fail)
    with pytest.raises(batch_size._OutOfMemory):
        batch_size._Capturer(torch.device("cpu")).capture(list)
