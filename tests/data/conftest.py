import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

from launcher.config.compose import compose
from launcher.data.batch import Loaded
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.prepare import prepare
from launcher.data.images import ChangeImage
from launcher.data.inspection import Inspection, inspect_data
from launcher.data.loading import Loaders, build_loaders
from launcher.data.sampling import Shard
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from tests.images import write_images

needs_ffcv = pytest.mark.skipif(find_spec("ffcv") is None, reason="FFCV is not installed here: make setup-originals")
ONE_THREAD = Shard(0, 1, workers=1, prefetch=1, device=torch.device("cpu"))


def words_for(folder: Path | str, *words: str) -> list[str]:
    return [
        "dataset=image_folder",
        f"dataset.path={folder}",
        "recipe=none",
        "dataset.native_size=32",
        "batch_size=8",
        *words,
    ]


def add(folder: Path, split: str, name: str, count: int) -> None:
    """Write images of different colours for a class."""
    (folder / split / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (40, 32), (9 * number, len(split), ord(name[0]))).save(folder / split / name / f"{number}.png")


def write_files(folder: Path, *words: str) -> list[Path]:
    """Run `train prepare` for a folder of images, without its terminal."""
    config = compose(words_for(folder, "dataloader=ffcv", "dataloader.workers=1", *words)).config
    return [path for path, _ in prepare(FFCVDataset.of(config), lambda *_: None)]


def inspected(folder: Path | str, *words: str) -> Inspection:
    """Inspect the images at a path, with a config of these words."""
    return inspect_data(compose(words_for(folder, *words)).config, must_exist=True)


def notes(folder: Path, *words: str) -> list[str]:
    return inspected(folder, *words).notes


def make_loaders(
    folder: Path, *words: str, rank: int = 0, world: int = 1, change_image: ChangeImage | None = None
) -> Loaders:
    config = inspected(folder, *words).config
    plan = Plan(config, world, config.dataset.train_samples)
    return build_loaders(plan, Ranks(rank, world, 0, 1, torch.device("cpu")), change_image=change_image)


def stream(loaders: Loaders, epochs: tuple[int, ...] = (0, 1), first: int = 0) -> list[Loaded]:
    batches = [batch for epoch in epochs for batch in loaders.train.epoch(epoch, first)]
    loaders.close()
    return batches


def same(first: list[Loaded], second: list[Loaded]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and np.array_equal(a[2], b[2])
        for a, b in zip(first, second, strict=True)
    )


def in_turn(work: Callable[..., Any], items: Iterable[Any], at_once: int, workers: int) -> Generator[Any]:
    """Replace worker processes by work in this process."""
    left = iter(items)
    for part in iter(lambda: list(itertools.islice(left, at_once)), []):
        yield from zip(part, work(part), strict=True)


@pytest.fixture(scope="package", autouse=True)
def _without_processes() -> Iterator[None]:
    """Use no worker processes; tests/faults/test_preparing.py has real ones."""
    with patch("launcher.data.ffcv.prepare.in_workers", in_turn), patch("launcher.data.unreadable.in_workers", in_turn):
        yield


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 21 training and 7 validation images of different sizes, and their FFCV files."""
    root = write_images(tmp_path_factory.mktemp("images"), {"train": 21, "val": 7})
    write_files(root)
    return root


def photographs(root: Path, squares: tuple[int, int] | None = None) -> Path:
    """Write two classes of six photograph-like PNGs per split; the first four have the size `squares`, if set."""
    random = np.random.default_rng(1)
    for split in ("train", "val"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
        for number in range(12):
            coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
            size = squares if squares and number < 4 else tuple(random.integers(70, 200, 2).tolist())
            coarse.resize(size, Image.Resampling.BICUBIC).save(root / split / "ab"[number // 6] / f"{number:02d}.png")
    return root


@pytest.fixture(params=["torchvision", "ffcv"])
def loader(request: pytest.FixtureRequest) -> list[str]:
    """The words that choose a loader, with its fewest workers."""
    return [f"dataloader={request.param}", f"dataloader.workers={int(request.param == 'ffcv')}"]
