"""Images a second and a core: decode, random resized crop and flip of real photographs, beside other loaders.

    python -m benchmarks.loader --pictures imagenet_sample_100.tar --sizes 88 132 176 --json loader.json

One thread decodes; contenders take turns, and the processor time that a pass takes counts, so that other work on the
machine weighs little. All cut the same keyed boxes but FFCV's own loader, which draws its own of the same kind. FFCV
files lie in the page cache. Of Pillow and Pillow-SIMD the one that is installed is measured.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from rich.console import Console
from rich.table import Table

from launcher.config.compose import compose
from launcher.config.schema import FFCVFiles, FFCVLoader
from launcher.config.schema import Image as ImageValues
from launcher.data.beton import Beton, open_beton
from launcher.data.beton_writer import BetonWriter
from launcher.data.crops import Crop, cut, random_crops
from launcher.data.decoding_pool import DecodingPool, Request
from launcher.data.encode import Encoded, encode_all

# One pass over all pictures: (boxes int64 [N, 5] for the pictures as stored, side in pixels) to processor seconds.
Pass = Callable[[np.ndarray, int], float]
PLAIN = "plain FFCV, file as published"


@dataclass(frozen=True)
class Contender:
    """`sizes` are the heights and widths [N, 2] of its stored pictures, `stored` their bytes."""

    name: str
    sizes: np.ndarray
    stored: int
    run: Pass


@dataclass(frozen=True)
class Result:
    """Images a second of one core at one side in pixels: median, least and most over the repeats."""

    contender: str
    size: int
    median: float
    least: float
    most: float
    bytes_a_picture: float


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    composed = compose(["dataloader=ffcv", "recipe=mild", "dataset.path=/none"]).config
    assert isinstance(composed.dataloader, FFCVLoader)
    with pictures(Path(arguments.pictures)) as folder:
        found = contenders(folder, composed.dataloader.files)
        results = measure(found, composed.image, arguments.sizes, arguments.repeats)
    Console(width=140).print(table(results))
    if arguments.json:
        facts = {"pillow": PIL.__version__, "opencv": cv2.__version__, "torchvision": torchvision.__version__}
        Path(arguments.json).write_text(json.dumps({**facts, "results": list(map(asdict, results))}, indent=2) + "\n")
    return 0


@contextmanager
def pictures(tar: Path) -> Iterator[Path]:
    """The pictures of a tar file, in a folder for as long as they are needed."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(tar) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def contenders(folder: Path, files: FFCVFiles) -> list[Contender]:
    """Loaders of original files first, then those of FFCV files."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jp*g"))
    originals = [(folder / name).read_bytes() for name in names]
    sizes = np.array([Image.open(io.BytesIO(data)).size[::-1] for data in originals])
    stored = sum(map(len, originals))
    pillow = "Pillow-SIMD" if ".post" in PIL.__version__ else "Pillow"
    found = [
        Contender(f"torchvision on {pillow}", sizes, stored, _timed(partial(_pillow, originals))),
        Contender("torchvision decode_jpeg", sizes, stored, _timed(partial(_torchvision, originals))),
        Contender("OpenCV", sizes, stored, _timed(partial(_opencv, originals))),
    ]
    jpegs = replace(files, jpeg_share=1.0)
    stretches = replace(jpegs, restart_interval=4)
    small = replace(files, jpeg_share=0.0, max_side=320)
    published, only_jpegs = write(folder, names, files), write(folder, names, jpegs)
    return [
        *found,
        _plain_ffcv(PLAIN, published),
        _plain_ffcv("plain FFCV, JPEG only", only_jpegs),
        _ffcv("dataloader=ffcv, file as published", published, only_crop=False),
        _ffcv("dataloader=ffcv, JPEG only", only_jpegs, only_crop=False),
        _ffcv("dataloader=ffcv, JPEG only, decode=crop", write(folder, names, stretches), only_crop=True),
        _ffcv("dataloader=ffcv, pixels only, max_side 320", write(folder, names, small), only_crop=False),
    ]


def write(folder: Path, names: list[str], values: FFCVFiles) -> Beton:
    """An FFCV file of the pictures."""
    target = folder / f"{len(list(folder.glob('*.beton')))}.beton"
    writer = BetonWriter(target, np.zeros(len(names), np.int64), max_side=values.max_side, identity="")
    for number, picture in enumerate(encode_all(folder, names, range(len(names)), values)):
        assert isinstance(picture, Encoded)
        writer.add(number, picture)
    writer.finish()
    writer.publish()
    writer.close()
    return open_beton(target)


def _plain_ffcv(name: str, file: Beton) -> Contender:
    """FFCV's own loader, decoder and flip, in a process of its own: it changes numba's types for all of one."""
    process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    path, samples = str(file.path), file.samples
    return Contender(
        name, _sizes(file), _stored(file), lambda _, side: process.submit(_plain_seconds, path, samples, side).result()
    )


def _plain_seconds(path: str, samples: int, side: int) -> float:
    loader = _plain_loader(path, samples, side)
    start = time.process_time()
    assert sum(len(images) for (images,) in loader) == samples
    return time.process_time() - start


@cache
def _plain_loader(path: str, samples: int, side: int) -> Any:
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    decoder = RandomResizedCropRGBImageDecoder((side, side), (0.08, 1.0), (3 / 4, 4 / 3))
    pipelines = {"image": [decoder, RandomHorizontalFlip(), ToTensor()], "label": None}
    return Loader(path, samples, 1, os_cache=True, drop_last=False, pipelines=pipelines)


def _ffcv(name: str, file: Beton, *, only_crop: bool) -> Contender:
    pools: dict[int, DecodingPool] = {}

    def run(boxes: np.ndarray, side: int) -> object:
        if side not in pools:
            pools[side] = DecodingPool(
                file, side=side, workers=1, prefetch=1, preload=True, only_crop=only_crop, pinned=False
            )
        return list(pools[side].batches([Request(0, np.arange(file.samples), boxes)]))

    return Contender(name, _sizes(file), _stored(file), _timed(run))


def _timed(run: Callable[[np.ndarray, int], object]) -> Pass:
    def seconds(boxes: np.ndarray, side: int) -> float:
        start = time.process_time()
        run(boxes, side)
        return time.process_time() - start

    return seconds


def _sizes(file: Beton) -> np.ndarray:
    rows = file.rows["f0"]
    return np.column_stack([rows["height"], rows["width"]])


def _stored(file: Beton) -> int:
    """Bytes of all stored pictures, without the padding of pages."""
    table = int(np.fromfile(file.path, "<u8", 1, offset=16)[0])
    return int(np.fromfile(file.path, "<u8", offset=table)[2::3].sum())


def _pillow(originals: list[bytes], boxes: np.ndarray, side: int) -> list[np.ndarray]:
    return [
        cut(Image.open(io.BytesIO(data)).convert("RGB"), Crop(top, left, height, width, bool(flip)), side, "bilinear")
        for data, (top, left, height, width, flip) in zip(originals, boxes.tolist(), strict=True)
    ]


def _torchvision(originals: list[bytes], boxes: np.ndarray, side: int) -> list[torch.Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional as F

    found = []
    for data, (top, left, height, width, flip) in zip(originals, boxes.tolist(), strict=True):
        picture = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
        picture = F.resized_crop(picture, top, left, height, width, [side, side], antialias=True)
        found.append(F.horizontal_flip(picture) if flip else picture)
    return found


def _opencv(originals: list[bytes], boxes: np.ndarray, side: int) -> list[np.ndarray]:
    found = []
    for data, (top, left, height, width, flip) in zip(originals, boxes.tolist(), strict=True):
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert picture is not None
        picture = cv2.resize(
            picture[top : top + height, left : left + width], (side, side), interpolation=cv2.INTER_AREA
        )
        found.append(picture[:, ::-1] if flip else picture)
    return found


def measure(found: list[Contender], image: ImageValues, sizes: list[int], repeats: int) -> list[Result]:
    """Time each contender in turn, `repeats` times over, after one pass; each repeat has crops of its own."""
    rates: dict[tuple[str, int], list[float]] = {(c.name, size): [] for size in sizes for c in found}
    for repeat in range(repeats + 1):
        for size in sizes:
            for contender in found:
                heights, widths = contender.sizes.T
                indices = np.arange(len(heights))
                boxes = random_crops(image, heights, widths, seed=0, epoch=repeat, indices=indices)
                seconds = contender.run(boxes, size)
                if repeat:
                    rates[contender.name, size].append(len(heights) / seconds)
    return [
        Result(c.name, size, statistics.median(r), min(r), max(r), c.stored / len(c.sizes))
        for size in sizes
        for c in found
        for r in [rates[c.name, size]]
    ]


def table(results: list[Result]) -> Table:
    """Images a second, the ratio to FFCV as published at the same side, and what is stored."""
    shown = Table("px", "contender", "images/s", "least-most", "ratio to plain FFCV", "kB stored", box=None)
    base = {r.size: r.median for r in results if r.contender == PLAIN}
    for r in results:
        shown.add_row(
            str(r.size), r.contender, f"{r.median:,.0f}", f"{r.least:,.0f}-{r.most:,.0f}",
            f"{r.median / base[r.size]:.2f}", f"{r.bytes_a_picture / 1e3:,.0f}",
        )  # fmt: skip
    return shown


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Images a second and a core of loaders, on real photographs.")
    parser.add_argument("--pictures", required=True, metavar="TAR", help="a tar file of JPEGs")
    parser.add_argument("--sizes", type=int, nargs="+", default=[88, 132, 176], metavar="PX")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
