"""Read images as FFCV files will have them, and store them for these while a run trains (`write_missing`)."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from launcher.data.ffcv.prepare import check_source, identity_of, is_written, known_as, prepare
from launcher.data.ffcv.threads import Decoding, ThreadedReader
from launcher.data.ffcv.unfinished import Encoded, UnfinishedFile, not_stored, partial_files
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
    # note: not before an evaluation, whose command may end first
    readers[0].at_start = _Writing(FFCVDataset.of(config), opening, growing).start
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
    check_source(file, split, files.dataset, known_as(files.dataset, *opening.images[:2]))
    return DecodingPool(
        file, lambda request: boxes(request, *file.sizes(request.indices)), shard=shard, preload=False,
        decoder=how.decoder, only_crop=how.only_crop, scaled=how.scaled, change_image=how.change_image, named=named,
    )  # fmt: skip


class GrowingPool(ThreadedReader):
    """Read images as the file of a split will have them: those that are stored, and others encoded now.

    So their pixels do not depend on what is stored. From `store_from_now` on, images are stored, and read if they are.
    `named` as of `DecodingPool`.
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
        values, upright = full_values(files.loader.files), files.dataset.exif_orientation
        super().__init__(files.path(images.split), shard, how)
        self.classes, self.labels = named[0], named[1][images.labels]
        self._images, self._boxes = images, boxes
        self._encode = partial(encode_all, Files(images_path(files.dataset)), values=values, upright=upright)
        self._values, self._upright = values, upright
        self._store: UnfinishedFile | None = None

    @property
    def is_started(self) -> bool:
        """Whether some images are stored."""
        return partial_files(self._path)[1].is_file()

    def store_from_now(self) -> None:
        """Read stored images, and store others; one line if that cannot be."""
        identity = identity_of(self._images, self._values, upright=self._upright)
        try:
            self._store = UnfinishedFile(self._path, self.samples, self._values.max_side, identity, shared=True)
        except (OSError, UserError) as error:
            if self._shard.rank == 0:
                print(not_stored(error, self._path), flush=True)

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

    def _size(self, number: int) -> int | None:
        """Return the bytes of an original, None if it is gone."""
        with suppress(OSError):
            return self._images.size(number)
        return None

    def _encoded(self, numbers: Sequence[int]) -> list[Encoded | UnreadableImage]:
        """Return images as they are, or will be, in the file."""
        store = self._store
        images = {number: image for number in numbers if store and (image := store.read(number, self._size))}
        missing = [number for number in dict.fromkeys(numbers) if number not in images]
        encoded = self._encode([(number, self._images.piece(number)) for number in missing]) if missing else []
        for number, new in zip(missing, encoded, strict=True):
            if store and isinstance(new, Encoded):
                store.add(number, new, self._size(number))
        made: dict[int, Encoded | UnreadableImage] = {**images, **dict(zip(missing, encoded, strict=True))}
        return [made[number] for number in numbers]


class _Writing:
    """Store images while a run trains; rank 0 writes the files once all are stored. The run reads on what it has."""

    def __init__(self, files: FFCVDataset, opening: Opening, growing: Sequence[GrowingPool]):
        self._files, self._opening, self._growing = files, opening, growing
        self._stores = self._writes = False

    def start(self, request: Request) -> None:
        """Store images from a request on, unless the run ends before it has read all, and none are stored."""
        if not self._stores:
            plan = self._opening.plan
            reads_all = plan.total_steps - request.moment.step >= plan.epoch_steps.full
            self._stores = reads_all or any(reader.is_started for reader in self._growing)
            for reader in self._growing if self._stores else ():
                reader.store_from_now()
        if self._opening.shard.rank == 0 and not self._writes and all(one.is_complete for one in self._growing):
            self._writes = True
            threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        try:
            for path, _ in prepare(self._files, quiet, self._opening.images):
                print(f"wrote {path}", flush=True)
        except (UserError, MachineError) as error:
            print(f"the FFCV files are not complete: {error}", flush=True)
