"""`dataloader.decode=gpu`: workers read JPEGs and draw crops, the device decodes, crops, resizes and mirrors them.

nvJPEG decodes, through torchcodec. It gets the baseline JPEGs of three components in YCbCr; workers decode all others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from launcher.accelerator import has_streams, interface
from launcher.data.batch import Loaded, side_stream, to_device
from launcher.data.crops import Box
from launcher.data.jpeg import Frame, is_baseline, is_turned
from launcher.errors import MachineError

# Bytes of the images, and of the crops in float32, that a GPU holds at once: 256 photos of 12 megapixels have 9 GB.
_MOST_BYTES = 2**28
# The run ends if the device has decoded none of so many groups of JPEGs.
_FAILURES = 8
# (sample index, crop, size) to pixels decoded by the CPU, uint8 [size, size, 3]; raises UserError for a damaged image
OnCpu = Callable[[int, Box, int], np.ndarray]


class Jpeg(NamedTuple):
    """A JPEG that the device decodes to so many bytes, its crop, and the size of that once resized."""

    data: bytes
    box: Box
    size: int
    decoded: int


class Compressed(NamedTuple):
    """A batch before its decoding: the bytes of its JPEGs, their crops and positions in the batch, and other images.

    data: uint8, one JPEG after another, of `sizes` bytes, and of `decoded` bytes as pixels.
    boxes: int64 [JPEGs, 5]. images: uint8 [others, S, S, 3].
    """

    data: Tensor
    sizes: list[int]
    decoded: list[int]
    boxes: list[Box]
    places: list[int]
    images: Tensor
    size: int


def is_for_device(data: bytes, frame: Frame) -> bool:
    """Return whether the device decodes a JPEG; torchcodec would apply its EXIF rotation."""
    # note: Adobe's marker states the colour transform in its last byte; 0 is RGB
    adobe = data.find(b"Adobe", 0, frame.scan)
    return (
        is_baseline(frame)
        and len(frame.samplings) == 3
        and (adobe < 0 or data[adobe + 11] != 0)
        and not is_turned(data, frame)
    )


def pack(images: Sequence[np.ndarray | Jpeg]) -> Compressed:
    """Join the images of a batch with at least one JPEG."""
    places = [place for place, image in enumerate(images) if isinstance(image, Jpeg)]
    jpegs = [image for image in images if isinstance(image, Jpeg)]
    others = [image for image in images if not isinstance(image, Jpeg)]
    size = jpegs[0].size
    pixels = np.stack(others) if others else np.empty((0, size, size, 3), np.uint8)
    data = torch.frombuffer(bytearray().join(jpeg.data for jpeg in jpegs), dtype=torch.uint8)
    sizes, decoded = [len(jpeg.data) for jpeg in jpegs], [jpeg.decoded for jpeg in jpegs]
    return Compressed(data, sizes, decoded, [jpeg.box for jpeg in jpegs], places, torch.from_numpy(pixels), size)


class DeviceDecoder:
    """Decodes batches on a device, one group of JPEGs after another, whose pixels fit into a fixed part of memory."""

    def __init__(self, device: torch.device, interpolation: str, on_cpu: OnCpu):
        self._device, self._interpolation, self._on_cpu = device, interpolation, on_cpu
        self._decoded = self._failed = 0

    def ahead(self, batches: Iterable[tuple[Compressed | Tensor, Tensor, np.ndarray]]) -> Iterator[Loaded]:
        """Yield batches with their images on the device, decoded by a thread during the previous step.

        Raises UserError if an image is damaged, and MachineError if the device decodes none.
        """
        waiting: Future[Loaded] | None = None
        with ThreadPoolExecutor(1, "decode", self._start_thread) as thread:
            for batch in batches:
                following = thread.submit(self._batch, *batch)
                if waiting is not None:
                    yield waiting.result()
                waiting = following
            if waiting is not None:
                yield waiting.result()

    def _start_thread(self) -> None:
        if has_streams(self._device):
            # note: else leaving a stream would select GPU 0 and create a context there
            interface(self._device).set_device(self._device)

    def _stream(self) -> AbstractContextManager[object]:
        if has_streams(self._device):
            return interface(self._device).stream(side_stream(self._device))  # type: ignore[no-any-return]
        return nullcontext()

    def _batch(self, batch: Compressed | Tensor, labels: Tensor, indices: np.ndarray) -> Loaded:
        if isinstance(batch, Tensor):
            return batch, labels, indices
        # note: the loop waits for this stream before each step
        with self._stream():
            places = np.array(batch.places)
            others = np.delete(np.arange(len(places) + len(batch.images)), places)
            images = torch.empty(
                (len(places) + len(others), *2 * [batch.size], 3), dtype=torch.uint8, device=self._device
            )
            jpegs = batch.data.split(batch.sizes)
            for group in groups(batch.decoded, _MOST_BYTES):
                crops = self._group([*jpegs[group]], batch.boxes[group], indices[places[group]], batch.size)
                images[to_device(places[group], device=self._device)[0]] = crops
            if len(others):
                pixels, targets = to_device(batch.images.numpy(), others, device=self._device)
                images[targets] = pixels
        return images.permute(0, 3, 1, 2), labels, indices

    def _group(self, jpegs: list[Tensor], boxes: Sequence[Box], numbers: np.ndarray, size: int) -> Tensor:
        """Return the crops of JPEGs, uint8 [JPEGs, size, size, 3] on the device."""
        try:
            if has_streams(self._device):
                # note: the GPU's decoder does not wait for the stream that may still read the memory it writes to
                interface(self._device).current_stream(self._device).synchronize()
            wholes = decode_jpegs(jpegs, self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # note: it does not report which image failed; the CPU decodes them all, or refuses the damaged one
            crops = [self._on_cpu(int(number), box, size) for number, box in zip(numbers, boxes, strict=True)]
            self._count_failure(str(error).partition("\n")[0])
            return to_device(np.stack(crops), device=self._device)[0]
        self._decoded += 1
        return cut_on_device(wholes, boxes, size, self._interpolation)

    def _count_failure(self, reason: str) -> None:
        self._failed += 1
        if self._failed == 1:
            print(f"dataloader.decode=gpu: the CPU decodes JPEGs that the GPU does not ({reason})", flush=True)
        if self._failed == _FAILURES and not self._decoded:
            message = f"dataloader.decode=gpu: the GPU has decoded none of {_FAILURES} groups of JPEGs ({reason})"
            raise MachineError(f"{message}; set dataloader.decode=cpu")


def groups(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Yield slices of consecutive items of at most `most` in all, or of one item."""
    start, total = 0, 0
    for number, size in enumerate(sizes):
        if number > start and total + size > most:
            yield slice(start, number)
            start, total = number, 0
        total += size
    yield slice(start, len(sizes))


def decode_jpegs(jpegs: list[Tensor], device: torch.device) -> list[Tensor]:
    """Decode JPEGs, uint8 [bytes] on the CPU, to RGB uint8 [3, H, W] on a GPU.

    Raises RuntimeError if one cannot be decoded.
    """
    from torchcodec.decoders import decode_jpeg  # note: optional

    return list(decode_jpeg(jpegs, mode="RGB", device=device))


def cut_on_device(wholes: Sequence[Tensor], boxes: Sequence[Box], size: int, interpolation: str) -> Tensor:
    """Cut boxes of images uint8 [3, H, W], resize them, antialiased, and mirror them: uint8 [N, size, size, 3].

    One launch copies each crop; few resize many, as products with two matrices of weights.
    Computes in float32 and rounds once; the CPU's integers round after each direction, at most one level apart.
    """
    (numbers,) = to_device(np.array(boxes, np.int32), device=wholes[0].device)
    height, width = (max(box[axis] for box in boxes) for axis in (2, 3))
    results = []
    for group in groups([12 * height * width] * len(boxes), _MOST_BYTES):
        count = group.stop - group.start
        padded = torch.empty((count, height, 3, width), dtype=torch.uint8, device=numbers.device)
        for one, whole, (top, left, rows, columns, _) in zip(padded, wholes[group], boxes[group], strict=True):
            one[:rows, :, :columns] = whole[:, top : top + rows, left : left + columns].permute(1, 0, 2)
        _, _, heights, widths, mirrored = numbers[group].unbind(1)
        down = _weights(heights, height, size, interpolation)
        across = _weights(widths, width, size, interpolation)
        across = torch.where(mirrored[:, None, None] > 0, across.flip(1), across)
        resized = torch.bmm(down, padded.view(count, height, 3 * width).float())
        resized = torch.bmm(resized.view(count, size * 3, width), across.mT)
        pixels = resized.round_().clamp_(0, 255).to(torch.uint8)
        results.append(pixels.view(count, size, 3, size).permute(0, 1, 3, 2))
    return torch.cat(results)


def _weights(lengths: Tensor, longest: int, size: int, interpolation: str) -> Tensor:
    """Return the weights of an antialiased resize of `lengths` [N] pixels to `size`: float32 [N, size, longest]."""
    scale = (lengths / size)[:, None, None]
    wide = scale.clamp(min=1)
    reach = wide * (2 if interpolation == "bicubic" else 1)
    centre = (torch.arange(size, device=lengths.device)[:, None] + 0.5) * scale
    pixel = torch.arange(longest, device=lengths.device)
    first, end = (centre - reach + 0.5).floor(), (centre + reach + 0.5).floor()
    distance = ((pixel + 0.5 - centre) / wide).abs()
    weights = _cubic(distance) if interpolation == "bicubic" else (1 - distance).clamp(min=0)
    weights = weights * ((pixel >= first) & (pixel < end) & (pixel < lengths[:, None, None]))
    return weights / weights.sum(2, keepdim=True)


def _cubic(distance: Tensor) -> Tensor:
    """Return Keys' cubic kernel (1981) with a = -0.5, as torch and Pillow resize."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
