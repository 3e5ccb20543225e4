"""Read images as FFCV files will have them, and store them for these while a run trains (`write_missing`)."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from launcher.data.classes import in_classes_of
from launcher.data.crops import boxes_of, centre_boxes
from launcher.data.decode import UnreadableImage
from launcher.data.ffcv.beton import ROW
from launcher.data.ffcv.dataset import FFCVDataset, full_values
from launcher.data.ffcv.encoder import encode_all
from launcher.data.ffcv.loader import DecodingPool
from launcher.data.ffcv.prepare import identity_of, is_written, prepare
from launcher.data.ffcv.threads import Decoding, ThreadedReader
from launcher.data.ffcv.unfinished import Encoded, UnfinishedFile, not_stored
from launcher.data.ffcv.values import FFCVValues
from launcher.data.images import Reader
from launcher.data.inspection import check_counts
from launcher.data.loaders.base import Opening
from launcher.data.records import unreadable
from launcher.data.sampling import Request, Shard
from launcher.data.sources.find import images_path
from launcher.data.sources.source import Files
from launcher.data.split import Split
from launcher.data.stored_crops import crops_of
from launcher.data.workers import quiet
from launcher.errors import MachineError, UserError

# (request, heights [B], widths [B] of its stored images) -> int64 [B, 5]
Boxes = Callable[[Request, np.ndarray, np.ndarray], np.ndarray]


def open_growing(values: FFCVValues, opening: Opening) -> tuple[Reader, Reader]:
    """Open readers of training and validation images of which a file is missing; rank 0 writes it once all are stored.

    Raises UserError if the images do not match the plan.
    """
    plan, config = opening.plan, opening.plan.config
    train, val = opening.images
    check_counts(plan, len(train.classes), len(train.files), train.root)
    short = config.scaled_size(config.image.eval_resize)

    def crops(request: Request, heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
        return boxes_of(crops_of(config)(request.moment.epoch, request.indices), heights, widths)

    def centres(request: Request, heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
        return centre_boxes(heights, widths, short, request.view)

    how = Decoding(values.decoder, values.decode == "crop", values.dct_scaling, opening.change_image)
    opened = partial(_opened, FFCVDataset.of(config), opening)
    readers = opened(train, crops, how), opened(val, centres, Decoding(values.decoder, False, False, None))
    growing = [reader for reader in readers if isinstance(reader, GrowingPool)]
    if opening.shard.rank == 0:
        publish = _Publication(FFCVDataset.of(config), opening.images, growing)
        # note: not before an evaluation, whose command may end first
        readers[0].at_start = publish.start_if_complete
    return readers


def _opened(
    files: FFCVDataset, opening: Opening, split: Split, boxes: Boxes, how: Decoding
) -> "DecodingPool | GrowingPool":
    """Open a split's file if it is written, else what will become it."""
    path, shard = files.path(split.split), opening.shard
    numbers = np.arange(len(split.classes))
    named = in_classes_of(opening.classes, split.classes, numbers, files.dataset.path)
    if not is_written(path):
        return GrowingPool(files, split, boxes, named, shard, how)
    file = files.open(split.split)
    return DecodingPool(
        file, lambda request: boxes(request, *file.sizes(request.indices)), shard=shard, preload=False,
        decoder=how.decoder, only_crop=how.only_crop, scaled=how.scaled, change_image=how.change_image, named=named,
    )  # fmt: skip


class GrowingPool(ThreadedReader):
    """Read images as the file of a split will have them: those that are stored, and others encoded now and stored.

    So their pixels do not depend on what is stored. `named` as of `DecodingPool`.
    """

    def __init__(
        self,
        files: FFCVDataset,
        images: Split,
        boxes: Boxes,
        named: tuple[list[str], np.ndarray],
        shard: Shard,
        how: Decoding,
    ):
        path, values, upright = (
            files.path(images.split),
            full_values(files.loader.files),
            files.dataset.exif_orientation,
        )
        super().__init__(path, shard, how)
        self.classes, self.labels = named[0], named[1][images.labels]
        self._images, self._boxes = images, boxes
        self._encode = partial(encode_all, Files(images_path(files.dataset)), values=values, upright=upright)
        identity = identity_of(images, values, upright=upright)
        self._store: UnfinishedFile | None = None
        try:
            self._store = UnfinishedFile(path, self.samples, values.max_side, identity, shared=True)
        except (OSError, UserError) as error:
            if shard.rank == 0:
                print(not_stored(error, path), flush=True)

    @property
    def is_complete(self) -> bool:
        """Whether all images are stored."""
        return self._store is not None and self._store.is_complete

    def measure(self, index: int) -> tuple[int, int, int]:
        (image,) = self._encoded([index % self.samples])
        if isinstance(image, UnreadableImage):
            raise image
        return image.form.width, image.form.height, image.form.size

    def stalled(self, seconds: float) -> Path | str | None:
        number = self._reading.stalled(seconds)
        return None if number is None else self._images.piece(number).file

    def close(self) -> None:
        super().close()
        if self._store is not None:
            self._store.close()

    def filling(self, request: Request, images: np.ndarray) -> Callable[[slice], None]:
        return partial(self._fill, request, images)

    def _fill(self, request: Request, images: np.ndarray, part: slice) -> None:
        indices = request.indices[part]
        numbers = (indices % self.samples).tolist()
        with self.reading(numbers[0]):
            stored = [self._intact(*one) for one in zip(numbers, self._encoded(numbers), strict=True)]
        rows = np.array([(*image.form[:3], 0) for image in stored], ROW["f0"])
        boxes = self._boxes(replace(request, indices=indices), rows["height"], rows["width"])
        for place, (image, row, box) in enumerate(zip(stored, rows, boxes, strict=True), part.start):
            self.decode(image.data, row, box, images[place])
            self.change(images, place, request)

    def _intact(self, number: int, image: Encoded | UnreadableImage) -> Encoded:
        if isinstance(image, UnreadableImage):
            raise unreadable(self._images.piece(number), image)
        return image

    def _encoded(self, numbers: Sequence[int]) -> list[Encoded | UnreadableImage]:
        """Return images as they are, or will be, in the file."""
        store = self._store
        images = {number: image for number in numbers if store and (image := store.read(number))}
        missing = [number for number in dict.fromkeys(numbers) if number not in images]
        encoded = self._encode([(number, self._images.piece(number)) for number in missing]) if missing else []
        for number, new in zip(missing, encoded, strict=True):
            if store and isinstance(new, Encoded):
                store.add(number, new)
        made: dict[int, Encoded | UnreadableImage] = {**images, **dict(zip(missing, encoded, strict=True))}
        return [made[number] for number in numbers]


class _Publication:
    """Write the files of a data set in a thread, once all their images are stored; the run reads on what it has."""

    def __init__(self, files: FFCVDataset, images: Sequence[Split], growing: Sequence[GrowingPool]):
        self._files, self._images, self._growing, self._is_started = files, images, growing, False

    def start_if_complete(self) -> None:
        if not self._is_started and all(reader.is_complete for reader in self._growing):
            self._is_started = True
            threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        try:
            for path, _ in prepare(self._files, quiet, self._images):
                print(f"wrote {path}", flush=True)
        except (UserError, MachineError) as error:
            print(f"the FFCV files are not complete: {error}", flush=True)
