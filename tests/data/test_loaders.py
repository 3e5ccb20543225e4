"""The stream of batches: the same for any number of workers and ranks, and from any step on."""

import contextlib
import itertools
import resource
import time
from multiprocessing import reduction
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from launcher.data.batch import Moment, normalize
from launcher.data.images import ChangeImage
from launcher.data.jpeg import decode_part
from launcher.data.workers import Reading
from launcher.errors import MachineError, UserError

from .conftest import make_loaders, same, stream

_CHANGED = itertools.count(1)  # images that this process has changed


def test_workers_do_not_change_the_stream(image_folder: Path, loader: list[str]) -> None:
    alone = stream(make_loaders(image_folder, *loader))
    assert len(alone) == 10
    # note: more threads than cores
    assert same(alone, stream(make_loaders(image_folder, *loader, "dataloader.workers=3", "dataloader.prefetch=1")))
    assert not same(alone, stream(make_loaders(image_folder, *loader, "seed=1")))


def test_ranks_join_to_the_same_global_batches(image_folder: Path, loader: list[str]) -> None:
    whole = stream(make_loaders(image_folder, *loader))
    parts = [stream(make_loaders(image_folder, *loader, rank=rank, world=2)) for rank in range(2)]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert torch.equal(batch[0], torch.cat([first[0], second[0]]))
        assert batch[2].tolist() == [*first[2], *second[2]]


def test_a_stream_from_a_step_on_is_the_tail_of_the_whole(image_folder: Path, loader: list[str]) -> None:
    whole = stream(make_loaders(image_folder, *loader), epochs=(3,))
    assert same(whole[3:], stream(make_loaders(image_folder, *loader), epochs=(3,), first=3))


def test_all_loaders_read_the_same_samples_in_the_same_order(image_folder: Path) -> None:
    words = ("dataloader.workers=1",)
    pairs = zip(
        *(stream(make_loaders(image_folder, f"dataloader={n}", *words)) for n in ("torchvision", "ffcv")), strict=True
    )
    for first, second in pairs:
        assert torch.equal(first[1], second[1])
        assert np.array_equal(first[2], second[2])


def marked(image: np.ndarray, index: int, moment: Moment) -> np.ndarray:
    return np.full_like(image, 100 * moment.rank + 10 * moment.epoch + moment.step)


def test_a_change_of_single_images_has_the_moment_of_their_step(image_folder: Path, loader: list[str]) -> None:
    loaders = make_loaders(image_folder, *loader, rank=1, world=2, change_image=marked)
    values = [{*images.flatten().tolist()} for images, _, _ in stream(loaders, epochs=(1,), first=2)]
    assert values == [{100 + 10 + 5 + number} for number in (2, 3, 4)]


def test_skipping_decodes_nothing(image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = make_loaders(image_folder, "dataloader.workers=0")
    opened = []
    real = decode_part
    monkeypatch.setattr(
        "launcher.data.images.decode_part", lambda data, *more: opened.append(data) or real(data, *more)
    )
    next(iter(loaders.train.epoch(0, 4)))
    assert len(opened) == 8


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_reads_each_image_once(image_folder: Path, world: int, loader: list[str]) -> None:
    seen = []
    for rank in range(world):
        loaders = make_loaders(image_folder, *loader, "eval_batch_size=6", "batch_size=6", rank=rank, world=world)
        for images, labels, indices in loaders.evaluate:
            assert images.shape[1:] == (3, 32, 32)
            assert (labels.numpy() == indices // 7).all()
            seen += indices.tolist()
        loaders.close()
    assert sorted(seen) == list(range(14))


def test_batches_are_uint8_in_channels_last_order(image_folder: Path, loader: list[str]) -> None:
    images, labels, _ = stream(make_loaders(image_folder, *loader))[0]
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64


def workers() -> list[psutil.Process]:
    """Processes that the server of clean processes has started."""
    servers = [p for p in psutil.Process().children() if "forkserver" in " ".join(p.cmdline())]
    return [worker for server in servers for worker in server.children() if worker.status() != psutil.STATUS_ZOMBIE]


def test_closing_after_a_partial_epoch_ends_all_workers(image_folder: Path) -> None:
    loaders = make_loaders(image_folder, "dataloader.workers=3")
    next(iter(loaders.train.epoch(0)))
    assert len(workers()) == 3
    loaders.close()
    assert workers() == []


def open_no_more_files(image: np.ndarray, index: int, moment: Moment) -> np.ndarray:
    """Let a worker open no file after the last image of its first batch."""
    if next(_CHANGED) == 4:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return image


def start_no_threads(image: np.ndarray, index: int, moment: Moment) -> np.ndarray:
    """Let the thread of a worker that sends batches fail, as where no further thread can start."""
    reduction.DupFd = no_thread  # type: ignore[assignment]
    return image


def no_thread(_: int) -> object:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (open_no_more_files, UserError, r"dataloader\.workers=1: no more files can be opened; raise .*ulimit -n"),
        (start_no_threads, MachineError, "ended with exit code 75, because it cannot send a batch; use fewer"),
    ],
)
def test_a_batch_that_a_worker_cannot_send_is_an_error(
    image_folder: Path, change: ChangeImage, kind: type[Exception], message: str
) -> None:
    words = ["dataloader.workers=1", "batch_size=4", "eval_batch_size=4"]
    loaders = make_loaders(image_folder, *words, change_image=change)
    with pytest.raises(kind, match=message):
        next(iter(loaders.train.epoch(0)))
    loaders.close()


def test_normalised_pixels_by_the_formula() -> None:
    images = torch.randint(0, 256, (2, 3, 5, 4), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    got = normalize(images, mean, std, torch.float32)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.allclose(got.double(), expected.double(), atol=1e-5)
    assert got.is_contiguous(memory_format=torch.channels_last)
    for dtype in (torch.bfloat16, torch.float16):
        short = normalize(images, mean, std, dtype)
        assert short.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(short, got.to(dtype))


def test_only_a_read_beyond_the_limit_has_stalled() -> None:
    reading = Reading(2)
    assert reading.stalled(0) is None
    with reading.image(0, reader=1):
        time.sleep(0.02)
        assert reading.stalled(0.01) == 0
        assert reading.stalled(60) is None
        with reading.image(7):
            assert reading.stalled(0.01) == 0
    assert reading.stalled(0) is None
    with contextlib.suppress(OSError), reading.image(5):
        raise OSError
    assert reading.stalled(-1) is None
