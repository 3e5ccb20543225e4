"""The real command on a GPU: images read by workers, copied beside the step, trained, killed and resumed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.prepare import prepare
from launcher.data.inspection import inspect_data
from launcher.data.loading import Loaders, build_loaders
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from launcher.training.trainer import build_trainer
from tests.gpu.conftest import DRY
from tests.runs import Cold
from tests.trainers import tensors

pytestmark = pytest.mark.gpu

SIDE, TRAIN = (32, 16) if DRY else (96, 192)
WORDS = [
    *("dataset=image_folder", "model=resnet18", f"batch_size={TRAIN // 4}", f"eval_batch_size={TRAIN // 4}"),
    *("optimizer.scale_lr=off", "optimizer.lr=0.01", "schedule.warmup=1ba", f"dataset.native_size={SIDE}"),
    *("logger.interval=1ba", "logger.tensorboard=false", "launch.max_restarts=0", "launch.nproc=1"),
    *("dataloader.workers=2", f"epochs={2 if DRY else 4}"),
]
# note: the first step of each size takes seconds
FEW = "algorithms.progressive_resizing.size_multiple=32"
# How a run that is killed and resumed is trained: the defaults, and what is off by default.
WAYS = {
    "default": ["recipe=hot", FEW],
    "captured": ["recipe=hot", FEW, "cuda_graphs=require"],
    "fp16": ["recipe=medium", FEW, "precision=fp16"],
    "captured fp16": ["recipe=mild", FEW, "precision=fp16", "cuda_graphs=require"],
    "compiled": ["recipe=mild", "compile=require", "algorithms.progressive_resizing=off"],
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write photographs of noise in two classes of different brightness."""
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(2 * TRAIN):
        label, split = number % 2, ("train", "val")[number // TRAIN]
        folder = root / split / "ab"[label]
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(60 * label, 196 + 60 * label, (9, 12, 3), dtype=np.uint8))
        side = random.integers(SIDE, 2 * SIDE, 2).tolist()
        coarse.resize(side, Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=92)
    return root


@pytest.fixture(params=["torchvision", "ffcv"])
def config(request: pytest.FixtureRequest, images: Path) -> RunConfig:
    """Return a run on these images; those of FFCV are written first."""
    words = [*WORDS, f"dataset.path={images}", f"batch_size={TRAIN // 8}", f"dataloader={request.param}"]
    if request.param == "ffcv":
        words += [f"dataloader.folder={images.parent / 'ffcv'}"]
        list(prepare(FFCVDataset.of(compose(words).config), lambda *_: None))
    return inspect_data(compose(words).config, must_exist=True).config


def loaders(config: RunConfig, device: torch.device) -> Loaders:
    return build_loaders(Plan(config, 1, TRAIN), Ranks(0, 1, 0, 1, device))


def test_no_step_on_loaded_batches_synchronizes_with_the_device(config: RunConfig, device: torch.device) -> None:
    run = build_trainer(config, Ranks(0, 1, 0, 1, device))
    try:
        for epoch in range(2):
            for images, labels, indices in run.loaders.train.epoch(epoch):
                assert images.device.type == device.type
                run.train_step(images, labels, indices, run.moment(run.next_step))
                run.next_step += 1
            # note: the first epoch creates what is created lazily
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error")
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        run.loaders.close()


def test_batches_copied_beside_a_slow_step_have_the_pixels_of_the_cpu(config: RunConfig, device: torch.device) -> None:
    here, there = loaders(config, torch.device("cpu")), loaders(config, device)
    try:
        for epoch in range(2):
            for expected, batch in zip(here.train.epoch(epoch), there.train.epoch(epoch), strict=True):
                if device.type == "cuda":
                    torch.cuda._sleep(20_000_000)
                assert all(torch.equal(one, other.cpu()) for one, other in zip(expected[:2], batch[:2], strict=True))
                assert np.array_equal(expected[2], batch[2])
    finally:
        here.close()
        there.close()


@pytest.mark.skipif(DRY, reason="tests/faults kills and resumes runs on the CPU")
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_run_ends_in_the_same_bits(way: str, images: Path, device: torch.device, train: Cold) -> None:
    words = [*WAYS[way], *WORDS, f"dataset.path={images}", f"launch.device={device.type}", "deterministic=true"]
    whole = train.start(*words, "run_name=whole", stderr=subprocess.STDOUT)
    killed = train.start(*words, "run_name=killed", stderr=subprocess.STDOUT, start_new_session=True)
    metrics = train.folder / "runs" / "killed" / "metrics.jsonl"
    while killed.poll() is None and not (metrics.exists() and '"step": 5,' in metrics.read_text()):
        time.sleep(0.02)
    if killed.poll() is None:
        os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output[-3000:]
    print(output[-600:])
    resumed = train("resume", "runs/killed").stdout
    ends = [tensors(train.decided(train.folder / "runs" / name)) for name in ("whole", "killed")]
    differ = sum(not torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert not differ, f"{differ} of {len(ends[0])} tensors differ\n{resumed[-2000:]}"


@pytest.mark.parametrize("way", ["default"] if DRY else ["default", "captured"])
def test_the_command_finds_the_largest_batch(way: str, images: Path, device: torch.device, train: Cold) -> None:
    words = [*WAYS[way], *WORDS, f"dataset.path={images}", f"launch.device={device.type}", "batch_size=auto"]
    if DRY:
        assert "GPU" in train(*words, code=2).stderr
    else:
        print(train(*words, "run_name=auto").stdout[-1500:])


@pytest.mark.skipif(DRY, reason="tests/cli runs the verbs on the CPU")
def test_verbs_use_a_trained_run(images: Path, device: torch.device, train: Cold) -> None:
    where = f"launch.device={device.type}"
    words = ["recipe=mild", FEW, *WORDS, f"dataset.path={images}", where, "run_name=run", "epochs=1"]
    train(*words)
    for verb in (
        ["eval", "runs/run"],
        ["predict", "runs/run", str(images / "val" / "a")],
        ["export", "runs/run", "-o", "exported"],
        ["doctor"],
        ["estimate", *words[:-2]],
    ):
        output = train(*verb).stdout
        assert output
        print(" ".join(verb[:2]), output[-1200:])
    assert (train.folder / "exported" / "model.safetensors").exists()
