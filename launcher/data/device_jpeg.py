"""`dataloader.decode=gpu`: workers read JPEGs and draw crops, the device decodes, crops, resizes and mirrors them.

nvJPEG decodes, through torchvision. It gets the baseline JPEGs of three components in YCbCr; workers decode all others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from launcher.data.batch import Loaded, side_stream
from launcher.data.crops import Box
from launcher.data.jpeg import Frame, is_baseline

# (sample index, crop, size) to pixels decoded by the CPU, uint8 [size, size, 3]; raises UserError for a damaged image
OnCpu = Callable[[int, Box, int], np.ndarray]


class Jpeg(NamedTuple):
    """A JPEG that the device decodes, its crop, and the size of that once resized."""

    data: bytes
    box: Box
    size: int


class Compressed(NamedTuple):
    """A batch before its decoding: the bytes of its JPEGs, their crops and positions in the batch, and other images.

    data: uint8, one JPEG after another, of `sizes` bytes. boxes: int64 [JPEGs, 5]. images: uint8 [others, S, S, 3].
    """

    data: Tensor
    sizes: list[int]
    boxes: list[list[int]]
    places: list[int]
    images: Tensor
    size: int


def is_for_device(data: bytes, frame: Frame) -> bool:
    """Return whether the device decodes a JPEG."""
    # note: Adobe's marker states the colour transform in its last byte; 0 is RGB
    adobe = data.find(b"Adobe", 0, frame.scan)
    return is_baseline(frame) and len(frame.samplings) == 3 and (adobe < 0 or data[adobe + 11] != 0)


def pack(images: Sequence[np.ndarray | Jpeg]) -> Compressed:
    """Join the images of a batch with at least one JPEG."""
    places = [place for place, image in enumerate(images) if isinstance(image, Jpeg)]
    jpegs = [image for image in images if isinstance(image, Jpeg)]
    others = [image for image in images if not isinstance(image, Jpeg)]
    size = jpegs[0].size
    pixels = np.stack(others) if others else np.empty((0, size, size, 3), np.uint8)
    data = torch.frombuffer(bytearray().join(jpeg.data for jpeg in jpegs), dtype=torch.uint8)
    sizes, boxes = [len(jpeg.data) for jpeg in jpegs], [list(jpeg.box) for jpeg in jpegs]
    return Compressed(data, sizes, boxes, places, torch.from_numpy(pixels), size)


def decoded_ahead(
    batches: Iterable[tuple[Compressed | Tensor, Tensor, np.ndarray]],
    device: torch.device,
    interpolation: str,
    on_cpu: OnCpu,
) -> Iterator[Loaded]:
    """Yield batches with their images on the device, decoded by a thread on a side stream during the previous step.

    Raises UserError if an image is damaged.
    """
    waiting: Future[Loaded] | None = None
    with ThreadPoolExecutor(1, "decode") as thread:
        for batch in batches:
            following = thread.submit(_decoded, *batch, device, interpolation, on_cpu)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


def _decoded(
    batch: Compressed | Tensor,
    labels: Tensor,
    indices: np.ndarray,
    device: torch.device,
    interpolation: str,
    on_cpu: OnCpu,
) -> Loaded:
    if isinstance(batch, Tensor):
        return batch, labels, indices
    # note: the loop waits for this stream before each step
    with torch.cuda.stream(side_stream(device)) if device.type == "cuda" else nullcontext():
        count, size = len(batch.places) + len(batch.images), batch.size
        images = torch.empty((count, size, size, 3), dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        numbers = [int(indices[place]) for place in batch.places]
        for place, pixels in zip(batch.places, _crops(batch, numbers, device, interpolation, on_cpu), strict=True):
            images[place] = pixels
        others = sorted({*range(count)}.difference(batch.places))
        for place, image in zip(others, batch.images, strict=True):
            images[place] = image.permute(2, 0, 1).to(device, non_blocking=True)
    return images, labels, indices


def _crops(
    batch: Compressed, numbers: Sequence[int], device: torch.device, interpolation: str, on_cpu: OnCpu
) -> Iterator[Tensor]:
    """Yield the crops of a batch's JPEGs, uint8 [3, size, size] on the device."""
    try:
        wholes = decode_jpegs([*batch.data.split(batch.sizes)], device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        # note: it does not report which image failed; the CPU decodes them all, or refuses the damaged one
        for number, box in zip(numbers, batch.boxes, strict=True):
            yield torch.from_numpy(on_cpu(number, tuple(box), batch.size)).permute(2, 0, 1).to(device)  # type: ignore[arg-type]
        return
    for whole, box in zip(wholes, batch.boxes, strict=True):
        yield cut_on_device(whole, box, batch.size, interpolation)


def decode_jpegs(jpegs: list[Tensor], device: torch.device) -> list[Tensor]:
    """Decode JPEGs, uint8 [bytes] on the CPU, to RGB uint8 [3, H, W] on a GPU.

    Raises RuntimeError if one cannot be decoded.
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    return list(decode_jpeg(jpegs, mode=ImageReadMode.RGB, device=device))


def cut_on_device(pixels: Tensor, box: Sequence[int], size: int, interpolation: str) -> Tensor:
    """Cut a box of uint8 [3, H, W], resize it to [3, size, size], antialiased, and mirror it if the box is mirrored.

    Computes in float32 and rounds once; the CPU's integers round after each direction, at most one level apart.
    """
    top, left, height, width, mirrored = box
    crop = pixels[None, :, top : top + height, left : left + width].float()
    resized = torch.nn.functional.interpolate(crop, (size, size), mode=interpolation, antialias=True)[0]
    resized = resized.round().clamp(0, 255).to(torch.uint8)
    return resized.flip(2) if mirrored else resized
