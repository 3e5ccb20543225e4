"""The stream of batches: the same for any number of workers and ranks, and from any step on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from launcher.config.compose import compose
from launcher.data.available import with_counts
from launcher.data.device import Loaded, normalize
from launcher.data.folder import counts, scan
from launcher.data.loaders import Loaders, build_loaders
from launcher.errors import UserError
from launcher.plan.plan import Plan


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 21 training and 7 validation pictures of different sizes."""
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for split, count in (("train", 21), ("val", 7)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (*random.integers(20, 60, 2), 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.jpg")
    return root


def loaders(pictures: Path, *words: str, rank: int = 0, world: int = 1) -> Loaders:
    base = ["dataset=image_folder", f"dataset.path={pictures}", "dataset.native_size=32", "batch_size=8"]
    config = with_counts(compose([*base, *words]).config, must_exist=True)
    assert config.dataset.train_samples == 42
    plan = Plan(config, world, config.dataset.train_samples)
    device = torch.device("cpu")
    return build_loaders(
        plan, rank=rank, world_size=world, local_world_size=1, device=device, change_order=None, change_image=None
    )


def stream(found: Loaders, epochs: tuple[int, ...] = (0, 1), first: int = 0) -> list[Loaded]:
    batches = [batch for epoch in epochs for batch in found.train.epoch(epoch, first)]
    found.close()
    return batches


def same(first: list[Loaded], second: list[Loaded]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) and np.array_equal(a[2], b[2])
        for a, b in zip(first, second, strict=True)
    )


def test_workers_do_not_change_the_stream(pictures: Path) -> None:
    alone = stream(loaders(pictures, "dataloader.workers=0"))
    assert len(alone) == 10
    assert same(alone, stream(loaders(pictures, "dataloader.workers=1")))
    assert same(alone, stream(loaders(pictures, "dataloader.workers=4")))
    assert not same(alone, stream(loaders(pictures, "dataloader.workers=0", "seed=1")))


def test_ranks_join_to_the_same_global_batches(pictures: Path) -> None:
    whole = stream(loaders(pictures, "dataloader.workers=0"))
    parts = [stream(loaders(pictures, "dataloader.workers=0", rank=rank, world=2)) for rank in range(2)]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert torch.equal(batch[0], torch.cat([first[0], second[0]]))
        assert batch[2].tolist() == [*first[2], *second[2]]


def test_a_stream_from_a_step_on_is_the_tail_of_the_whole(pictures: Path) -> None:
    whole = stream(loaders(pictures, "dataloader.workers=2"), epochs=(3,))
    assert same(whole[3:], stream(loaders(pictures, "dataloader.workers=2"), epochs=(3,), first=3))


def test_skipping_decodes_nothing(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaders(pictures, "dataloader.workers=0")
    opened = []
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or real(path))
    next(iter(found.train.epoch(0, 4)))
    assert len(opened) == 8


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_reads_each_picture_once(pictures: Path, world: int) -> None:
    seen = []
    for rank in range(world):
        found = loaders(pictures, "eval_batch_size=6", "batch_size=6", rank=rank, world=world)
        for images, labels, indices in found.evaluate:
            assert images.shape[1:] == (3, 32, 32)
            assert (labels.numpy() == indices // 7).all()
            seen += indices.tolist()
        found.close()
    assert sorted(seen) == list(range(14))


def test_batches_are_uint8_in_channels_last_order(pictures: Path) -> None:
    images, labels, _ = stream(loaders(pictures, "dataloader.workers=0"))[0]
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64


def workers() -> list[psutil.Process]:
    """Processes that the server of clean processes has started."""
    servers = [p for p in psutil.Process().children() if "forkserver" in " ".join(p.cmdline())]
    return [worker for server in servers for worker in server.children() if worker.status() != psutil.STATUS_ZOMBIE]


def test_leaving_early_and_closing_leave_no_worker(pictures: Path) -> None:
    found = loaders(pictures, "dataloader.workers=3")
    next(iter(found.train.epoch(0)))
    assert len(workers()) == 3
    found.close()
    assert workers() == []


def test_a_broken_picture_is_named(pictures: Path, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(pictures, broken)
    for number in range(21):
        (broken / "train" / "cat" / f"{number}.jpg").write_bytes(b"\xff\xd8 cut off")
    for workers in (0, 2):
        with pytest.raises(UserError, match=r"cat/\d+\.jpg cannot be read as a picture"):
            stream(loaders(broken, f"dataloader.workers={workers}"))


def test_folders_that_are_no_data_set_are_refused(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no train/ folder"):
        scan(tmp_path, "train")
    (tmp_path / "train" / "empty").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no pictures"):
        scan(tmp_path, "train")
    (tmp_path / "train" / "empty" / "a.jpg").touch()
    (tmp_path / "val" / "other").mkdir(parents=True)
    (tmp_path / "val" / "other" / "a.jpg").touch()
    with pytest.raises(UserError, match="differ in their classes: empty, other"):
        counts(tmp_path)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    secret.touch()
    folder = tmp_path / "data" / "train" / "a"
    folder.mkdir(parents=True)
    (folder / "1.jpg").touch()
    (folder / "2.jpg").symlink_to(folder / "1.jpg")
    (folder / "3.jpg").symlink_to(secret)
    (folder / "4.jpg").symlink_to(tmp_path / "nothing")
    found = scan(tmp_path / "data", "train")
    assert found.files == ["a/1.jpg", "a/2.jpg"]
    assert found.skipped == 2


def test_normalised_pixels_by_the_formula() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    got = normalize(images, mean, std, torch.float32)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.allclose(got.double(), expected.double(), atol=1e-5)
    assert got.is_contiguous(memory_format=torch.channels_last)
