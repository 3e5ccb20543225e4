"""Workers by the memory of the host, and what `plan` and the notes of a start report of it."""

import json
from pathlib import Path

import pytest

from launcher.cli import plan
from launcher.compute import probe
from launcher.compute.host_memory import HostMemory
from launcher.config.compose import compose
from launcher.data.loaders import base
from launcher.data.loaders.base import loader_of
from launcher.launch import memory
from launcher.launch.devices import Devices
from launcher.plan.plan import plan_for
from tests.commands import output_of

GB = 10**9
WORDS = ("recipe=mild", "batch_size=1024", "dataset.train_samples=100000", "dataset.val_samples=1000", "launch=cpu")


def notes(monkeypatch: pytest.MonkeyPatch, usable: HostMemory, *words: str, ranks: int = 2) -> tuple[int, list[str]]:
    """Return the workers of each rank on 64 cores, and the notes."""
    monkeypatch.setattr(probe, "usable_cores", lambda: 64)
    monkeypatch.setattr(base, "free_shared_memory", lambda: None)
    for module in (base, memory):
        monkeypatch.setattr(module, "usable_memory", lambda: usable)
    of_run = plan_for(compose([*WORDS, *words]).config, ranks)
    workers = loader_of(of_run.config).workers_here(of_run, ranks)
    return workers, [*memory.memory_notes(of_run, Devices("cpu", ranks))]


@pytest.mark.parametrize(
    ("total", "available", "words", "workers", "starts", "ends"),
    [
        (512 * GB, 500 * GB, (), 24, None, None),
        (24 * GB, 20 * GB, (), 19, "dataloader.workers=auto is 19, not 24 as by cores: half of the 24.0 GB of /x", ""),
        (2 * GB, GB, (), 1, "dataloader.workers=auto is 1,", "not even one worker fits; end other programs, or use a"
         " machine with more"),
        (32 * GB, 9 * GB, ("dataloader.workers=24",), 24, "with dataloader.workers=24 the run takes about 14.3 GB of"
         " host memory, and 9.0 GB are available (/x)", "; dataloader.workers=12 fits"),
        (32 * GB, 30 * GB, ("dataloader.workers=24",), 24, None, None),
        (512 * GB, GB, ("dataloader=ffcv",), 32, "the run takes about 2.4 GB", "use a machine with more"),
        (512 * GB, GB, ("dataloader=synthetic",), 0, "the run takes about 2.0 GB", "use a machine with more"),
    ],
)  # fmt: skip
def test_workers_follow_memory_and_a_run_that_does_not_fit_is_a_note(
    total: int, available: int, words: tuple[str, ...], workers: int, starts: str | None, ends: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    of_rank, messages = notes(monkeypatch, HostMemory(total, available, "/x"), *words)
    assert of_rank == workers
    assert bool(messages) == bool(starts)
    if starts:
        assert messages[0].startswith(starts)
    if ends:
        assert messages[-1].endswith(ends)


def test_few_validation_images_bound_the_batches_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("eval_batch_size=65536", "dataloader.workers=24")
    usable = HostMemory(32 * GB, 30 * GB, "/x")
    assert not notes(monkeypatch, usable, *words)[1]
    assert notes(monkeypatch, usable, *words, "dataset.val_samples=1000000")[1]


def test_a_plan_has_the_memory_of_host_and_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "usable_memory", lambda: HostMemory(16 * GB, 12 * GB, "/x"))
    tiny = ("recipe=none", "dataset=shapes", "model=resnet18", "batch_size=8", "schedule.warmup=1ba")
    here = json.loads(output_of("plan", *tiny, "launch=cpu", "--json"))["memory"]
    assert here["host"] > GB
    assert (here["host_available"], here["device"], here["device_total"]) == (12 * GB, None, None)
    there = json.loads(output_of("plan", *tiny, "hardware=p4d_24xlarge", "--json"))["memory"]
    assert (there["host"], there["device_total"]) == (None, 40 * GB)
    # note: weights, gradients and momentum of 11.2 million parameters in float32
    assert there["device"] > 3 * 4 * 11.2e6
    large = ("batch_size=8192", "dataset.train_samples=16384", "dataset.native_size=512", "hardware=g5_xlarge")
    assert "of a GPU's 24.0 GB; device_batch_size=" in output_of("plan", *tiny, *large)
    assert f"device about {there['device'] / 1e6:.1f} MB of 40.0 GB" in output_of(
        "plan", *tiny, "hardware=p4d_24xlarge"
    )
