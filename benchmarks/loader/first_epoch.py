"""Measure the first epoch of images that no loader has seen, and a later one, beside the loaders of others.

    python -m benchmarks.loader.first_epoch --images imagenet_sample_100.tar --copies 20 --json first_epoch.json

Each contender is a process that loads training batches, cropped at random, resized and mirrored, without a step: wall
seconds from its start without imports to its last batch, of the first epoch and of the second. Files of rows that name
none are written before, in seconds of their own. Contenders take turns; peers that are not installed are named first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.loader.files import copied, unpacked

SIZE, BATCH, SERVE = 176, 64, "--serve"
# The batches of an epoch, by its number.
Epoch = Callable[[int], Iterable[object]]


@dataclass(frozen=True)
class FirstEpoch:
    """Median wall seconds of a contender: of writing its files, of its first epoch and of its second."""

    contender: str
    written: float
    first: float
    second: float


def _ours(*loader: str) -> Callable[[Path, int], Epoch]:
    def opened(folder: Path, workers: int) -> Epoch:
        import torch

        from launcher.config.compose import compose
        from launcher.data.inspection import inspect_data
        from launcher.data.loading import build_loaders
        from launcher.plan.plan import Plan
        from launcher.rank.group import single_rank

        images = ["dataset=image_folder", f"dataset.path={folder}", f"dataloader.workers={workers}"]
        words = [*loader, *images, f"batch_size={BATCH}", f"image.train_size={SIZE}", "algorithms={}", "epochs=2"]
        config = inspect_data(compose(["recipe=baseline", *words]).config, must_exist=True).config
        assert config.dataset.train_samples is not None
        plan = Plan(config, 1, config.dataset.train_samples)
        return build_loaders(plan, single_rank(torch.device("cpu"))).train.epoch

    return opened


def _pytorch(folder: Path, workers: int) -> Epoch:
    """Return torchvision's ImageFolder in PyTorch's DataLoader, as its examples load ImageNet."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    images = ImageFolder(str(folder / "train"), transforms.Compose(steps))
    loader = DataLoader(images, BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True)
    return lambda _: loader


def _timm(folder: Path, workers: int) -> Epoch:
    """Return timm's loader as its training script makes it, without a GPU's prefetcher."""
    from timm.data import create_dataset, create_loader

    loader = create_loader(
        create_dataset("", str(folder), split="train"), (3, SIZE, SIZE), BATCH, is_training=True, num_workers=workers,
        use_prefetcher=False, persistent_workers=True,
    )  # fmt: skip
    return lambda _: loader


def _ffcv(folder: Path, workers: int) -> Epoch:
    """Return FFCV's own loader on the file that `train prepare` wrote."""
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    crop = RandomResizedCropRGBImageDecoder((SIZE, SIZE), (0.08, 1.0), (3 / 4, 4 / 3))
    pipelines = {"image": [crop, RandomHorizontalFlip(), ToTensor()], "label": None}
    (file,) = (folder / "ffcv").glob("train-*.beton")
    loader = Loader(str(file), BATCH, workers, os_cache=True, order=OrderOption.RANDOM, pipelines=pipelines)
    return lambda _: loader


@dataclass(frozen=True)
class Loader:
    """How a contender is opened, the package that it needs, and whether its FFCV files are written before."""

    opened: Callable[[Path, int], Epoch]
    package: str = "torchvision"
    files: bool = False


# Ratios are to the first.
LOADERS = {
    "PyTorch's DataLoader, torchvision's ImageFolder": Loader(_pytorch),
    "timm's loader": Loader(_timm, "timm"),
    "FFCV's loader": Loader(_ffcv, "ffcv", files=True),
    "dataloader=torchvision": Loader(_ours("dataloader=torchvision")),
    "dataloader=ffcv": Loader(_ours("dataloader=ffcv"), files=True),
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, metavar="TAR", help="a tar file of JPEGs")
    parser.add_argument("--copies", type=int, default=20, metavar="N", help="of each image")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(words)
    out = Console(width=160)
    missing = [name for name, loader in LOADERS.items() if find_spec(loader.package) is None]
    if missing:
        out.print(f"not installed here, so not measured: {', '.join(missing)}")
    times: dict[str, list[list[float]]] = {name: [] for name in LOADERS if name not in missing}
    with unpacked(Path(arguments.images)) as folder:
        for _ in range(arguments.repeats):
            for name, turns in times.items():
                turns.append(_turn(name, folder, arguments.copies, arguments.workers))
    results = [FirstEpoch(name, *map(statistics.median, zip(*turns, strict=True))) for name, turns in times.items()]
    out.print(_table(results))
    if arguments.json:
        facts = {"copies": arguments.copies, "workers": arguments.workers, "results": [asdict(one) for one in results]}
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n")
    return 0


def _turn(name: str, folder: Path, copies: int, workers: int) -> list[float]:
    """Return the wall seconds of a contender: writing files of new copies, the first epoch and the second."""
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        images = str(copied(folder, copies, Path(fresh)))
        start = time.perf_counter()
        if LOADERS[name].files:
            words = ["dataset=image_folder", f"dataset.path={images}", "dataloader=ffcv"]
            subprocess.run([sys.executable, "-m", "launcher", "prepare", *words], check=True, stdout=subprocess.DEVNULL)
        written = time.perf_counter() - start if LOADERS[name].files else 0.0
        command = [sys.executable, "-m", "benchmarks.loader.first_epoch", SERVE, name, images, str(workers)]
        epochs = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    return [written, *json.loads(epochs)]


def _serve(name: str, folder: str, workers: str) -> int:
    """Print the wall seconds of two epochs of a contender."""
    import torch

    torch.set_num_threads(1)
    seconds, start = [], time.perf_counter()
    epoch = LOADERS[name].opened(Path(folder), int(workers))
    for number in range(2):
        for _ in epoch(number):
            pass
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
    print(json.dumps(seconds), flush=True)
    return 0


def _table(results: Sequence[FirstEpoch]) -> Table:
    shown = Table("loader", "files, s", "first epoch, s", "second, s", "files and first epoch, ratio", box=None)
    reference = results[0].written + results[0].first
    for one in results:
        ratio = (one.written + one.first) / reference
        shown.add_row(one.contender, f"{one.written:.1f}", f"{one.first:.1f}", f"{one.second:.1f}", f"{ratio:.2f}")
    return shown


if __name__ == "__main__":
    sys.exit(_serve(*sys.argv[2:]) if sys.argv[1:2] == [SERVE] else main())
