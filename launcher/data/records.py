"""Data sets of records, as loader workers read them; a decoder of the task makes a sample of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import Dataset, get_worker_info

from launcher.data.batch import Moment
from launcher.data.decode import UnreadableImage
from launcher.data.index import Images, Piece
from launcher.data.sampling import Request
from launcher.data.sources.reading import read, read_all
from launcher.data.sources.source import RETRY, Files
from launcher.data.workers import Reading
from launcher.errors import UserError
from launcher.files.disk import DiskError
from launcher.plugins import Complete

# The parts of a record by name, such as the bytes of an image and its label (`TaskConfig.needs`).
Record = dict[str, Any]
# input, label, sample index
Sample = tuple[Any, Any, int]

MadeT = TypeVar("MadeT")


class Decoder(Complete, ABC):
    """Makes samples of records in a loader worker, to which it is sent."""

    def draws(self, moment: Moment, indices: np.ndarray) -> Sequence[Any]:
        """Return what each sample draws in an epoch, for all of a batch at once; None here."""
        return [None] * len(indices)

    @abstractmethod
    def decode(self, record: Record, view: int, draws: Any) -> tuple[Any, Any]:
        """Return input and label of a sample: arrays of the same shape for all records at a view.

        draws: one of `draws`, for all parts of the record alike.

        Raises UnreadableImage if a part is damaged.
        """


def unreadable(piece: Piece, reason: UnreadableImage) -> UserError:
    """Return the error of a run about an image that cannot be decoded."""
    message = f"{piece} cannot be read as an image ({reason}); repair or remove it"
    more = "train doctor lists all such files; dataset.skip_bad=true skips them in a new run"
    return UserError(f"{message} ({more})")


class Records(Dataset[Sample]):
    """Samples of a split of a `Request`; a sample index modulo the number of files is its file."""

    def __init__(self, folder: Images, decoder: Decoder):
        self.folder, self.decoder = folder, decoder
        self.reading = Reading(1)
        self._fetched: dict[int, bytes | UnreadableImage] = {}

    @property
    def labels(self) -> np.ndarray:
        """The label of each record."""
        return self.folder.labels

    def __getitems__(self, requests: Sequence[Request]) -> list[Sample] | UserError | DiskError:
        """Return the samples of the only request, or the error, to which DataLoader adds a traceback."""
        (request,) = requests
        indices = request.indices.tolist()
        try:
            if self.folder.are_in_bucket:
                self._fetch([index % len(self.labels) for index in indices])
            draws = self.decoder.draws(request.moment, request.indices)
            return [self.sample(index, request.view, own) for index, own in zip(indices, draws, strict=True)]
        except (UserError, DiskError) as error:
            return error

    def sample(self, index: int, view: int, draws: Any) -> Sample:
        """Return one sample; raises as `made`."""
        number = index % len(self.labels)
        return *self.made(number, lambda record: self.decoder.decode(record, view, draws)), index

    def made(self, number: int, make: Callable[[Record], MadeT]) -> MadeT:
        """Return what a function makes of a record.

        Raises UserError if a file of the record is missing or damaged.
        """
        worker = get_worker_info()
        try:
            with self.reading.image(number, worker.id if worker else 0):
                return make(self.record(number))
        except UnreadableImage as reason:
            raise unreadable(self.piece(number), reason) from None

    def record(self, number: int) -> Record:
        """Read a record: the bytes of an image and its label."""
        content = self._fetched.get(number)
        if isinstance(content, UnreadableImage):
            raise content
        data = read(self.piece(number)) if content is None else content
        return {"image": data, "label": self.labels[number]}

    def _fetch(self, numbers: Sequence[int]) -> None:
        """Read the files of a batch from a bucket, all at once."""
        worker, pieces = get_worker_info(), [self.piece(number) for number in numbers]
        with self.reading.image(numbers[0], worker.id if worker else 0):
            contents = read_all(Files(pieces[0].file), pieces, RETRY)
        self._fetched = dict(zip(numbers, contents, strict=True))

    def piece(self, index: int) -> Piece:
        """Return where the image of a sample is."""
        return self.folder.piece(index % len(self.labels))
