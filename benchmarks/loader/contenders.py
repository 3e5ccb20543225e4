"""The contenders: each opens the images once and then makes passes over all of them."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loader.files import Files, originals

# One pass: (boxes int64 [N, 5] in the stored images, image size in pixels) to images, which are discarded.
Run = Callable[[np.ndarray, int], object]
# Decode one image: (bytes, (top, left, height, width, mirrored), image size in pixels) to uint8 pixels.
Decode = Callable[[bytes, list[int], int], object]

PLAIN = "plain FFCV, file as published"


@dataclass(frozen=True)
class Opened:
    """An opened contender: the heights and widths [N, 2] of its stored images, and their bytes."""

    name: str
    sizes: np.ndarray
    stored: int
    run: Run


def from_originals(name: str, decode: Decode, folder: Path, files: Files) -> Opened:
    """Return a contender that decodes one image after another, from bytes in memory."""
    from PIL import Image

    contents = [path.read_bytes() for path in originals(folder)]

    def run(boxes: np.ndarray, size: int) -> object:
        return [decode(data, box, size) for data, box in zip(contents, boxes.tolist(), strict=True)]

    sizes = np.array([Image.open(io.BytesIO(data)).size[::-1] for data in contents])
    return Opened(name, sizes, sum(map(len, contents)), run)


def _torchvision_on_pillow(folder: Path, files: Files) -> Opened:
    import PIL

    return from_originals(
        f"torchvision on Pillow{'-SIMD' * ('.post' in PIL.__version__)} {PIL.__version__}", _pillow, folder, files
    )


def _pillow(data: bytes, box: list[int], size: int) -> object:
    from PIL import Image

    top, left, height, width, mirrored = box
    part = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
    part = part.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else part)


def _class_folders(decoder: str, scaled: bool, data: bytes, box: list[int], size: int) -> object:
    """Decode and crop as dataloader=torchvision does."""
    from launcher.data.crops import cut
    from launcher.data.jpeg import decode_part, decoder_of, fewest_eighths, plain_frame

    frame = plain_frame(data, upright=False)
    assert frame is not None
    top, left, height, width, mirrored = box
    eighths = fewest_eighths(height, width, size) if scaled else 8
    pixels, part = decode_part(data, frame, (top, left, height, width, mirrored), eighths, decoder_of(decoder))
    return cut(pixels, part, size, "bilinear")


def _torchvision(data: bytes, box: list[int], size: int) -> object:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional as F

    top, left, height, width, flip = box
    image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    image = F.resized_crop(image, top, left, height, width, [size, size], antialias=True)
    return F.horizontal_flip(image) if flip else image


def _opencv(data: bytes, box: list[int], size: int) -> object:
    import cv2

    cv2.setNumThreads(1)
    top, left, height, width, flip = box
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert image is not None
    crop = cv2.resize(image[top : top + height, left : left + width], (size, size), interpolation=cv2.INTER_AREA)
    return crop[:, ::-1] if flip else crop


def _dali(folder: Path, files: Files) -> Opened:
    """Return DALI's CPU pipeline with one thread."""
    from nvidia.dali import fn, pipeline_def  # type: ignore[import-not-found, import-untyped, unused-ignore]

    contents = [np.frombuffer(path.read_bytes(), np.uint8) for path in originals(folder)]

    @cache
    def pipeline(size: int) -> Any:
        @pipeline_def(
            batch_size=len(contents), num_threads=1, device_id=None, exec_async=False, exec_pipelined=False, seed=0
        )
        def load() -> Any:
            data = fn.external_source(source=lambda: contents)
            crop = fn.decoders.image_random_crop(
                data, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            return fn.flip(fn.resize(crop, size=[size, size]), horizontal=fn.random.coin_flip())

        built = load()
        built.build()
        return built

    opened = from_originals("DALI, CPU", _pillow, folder, files)
    return Opened(opened.name, opened.sizes, opened.stored, lambda _, size: pipeline(size).run())


def _plain_ffcv(name: str, kind: str, folder: Path, files: Files) -> Opened:
    """Return FFCV's own loader, decoder and flip."""
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    opened = _keyed_ffcv(name, kind, False, folder, files)

    @cache
    def loader(size: int) -> Any:
        decoder = RandomResizedCropRGBImageDecoder((size, size), (0.08, 1.0), (3 / 4, 4 / 3))
        pipelines = {"image": [decoder, RandomHorizontalFlip(), ToTensor()], "label": None}
        return Loader(
            str(getattr(files, kind)), len(opened.sizes), 1, os_cache=True, drop_last=False, pipelines=pipelines
        )

    return Opened(name, opened.sizes, opened.stored, lambda _, size: list(loader(size)))


def _keyed_ffcv(name: str, kind: str, scaled: bool, folder: Path, files: Files) -> Opened:
    """Return this project's decoding of an FFCV file."""
    import torch

    from launcher.data.batch import START
    from launcher.data.ffcv.beton import open_beton
    from launcher.data.ffcv.reader import DecodingPool
    from launcher.data.sampling import Request, Shard

    file = open_beton(getattr(files, kind))

    @cache
    def pool() -> DecodingPool:
        shard = Shard(0, 1, workers=1, prefetch=1, device=torch.device("cpu"))
        return DecodingPool(file, lambda _: crops[-1], shard=shard, preload=True, scaled=scaled)

    crops: list[np.ndarray] = []

    def run(boxes: np.ndarray, size: int) -> object:
        crops.append(boxes)
        return list(pool().batches([Request(START, np.arange(file.samples), size)]))

    images = file.rows["f0"]
    table = int(np.fromfile(file.path, "<u8", 1, offset=16)[0])
    # note: without the padding of pages
    stored = int(np.fromfile(file.path, "<u8", offset=table)[2::3].sum())
    return Opened(name, np.column_stack([images["height"], images["width"]]), stored, run)


Open = Callable[[Path, Files], Opened]
# Contenders of the folder of peers, which may be missing.
PEERS: dict[str, Open] = {"another Pillow": _torchvision_on_pillow, "DALI": _dali}
OPENERS: dict[str, Open] = {
    "Pillow": _torchvision_on_pillow,
    "decode_jpeg": partial(from_originals, "torchvision's decode_jpeg", _torchvision),
    "OpenCV": partial(from_originals, "OpenCV", _opencv),
    **{
        name: partial(from_originals, name, partial(_class_folders, decoder, scaled))
        for decoder in ("simplejpeg", "pillow")
        for scaled in (False, True)
        for name in [f"dataloader=torchvision, {decoder}{', dct_scaling' * scaled}"]
        if decoder == "simplejpeg" or not scaled
    },
    PLAIN: partial(_plain_ffcv, PLAIN, "published"),
    "plain FFCV, JPEG only": partial(_plain_ffcv, "plain FFCV, JPEG only", "jpegs"),
    **{
        name: partial(_keyed_ffcv, name, kind, scaled)
        for name, kind, scaled in (
            ("dataloader=ffcv, file as published", "published", False),
            ("the same, dct_scaling=true", "published", True),
            ("dataloader=ffcv, JPEG only", "jpegs", False),
            ("dataloader=ffcv, pixels only, max_side=320", "small", False),
        )
    },
}
