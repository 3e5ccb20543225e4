"""`batch_size=auto`: the search, what it is refused for, and a run that takes its result."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from launcher.config.resolved import read
from launcher.errors import UserError
from launcher.launch.devices import Devices
from launcher.launch.prepare_run import Prepared
from launcher.measure import launch
from launcher.measure.launch import measure_batch
from tests.configs import composed, with_values
from tests.measurements import pretend_a_gpu
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
        measure_batch(with_values(AUTO, values), devices)


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
    import torch

    from launcher.measure import batch_size
    from launcher.rank.group import single_rank

    memory = {"reset_peak_memory_stats": None, "mem_get_info": (1000, 1000), "max_memory_reserved": 900}
    for name, value in memory.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(batch_size, "_take_steps", lambda *_: None)
    fits = partial(batch_size.fits, replace(AUTO, batch_size=2), 8, single_rank(torch.device("cpu")))
    assert fits()
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 901)
    assert not fits()
