"""Write a file of stored labels: a teacher's probabilities of random crops of each training image."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from launcher.algorithms.base import Teacher
from launcher.config.schema import RunConfig
from launcher.data.batch import START, Moment, normalize
from launcher.data.crops import Boxes, Crops, cut
from launcher.data.images import Pixels
from launcher.data.loaders.base import DecodingLoader, loader_of
from launcher.data.records import Record
from launcher.data.sampling import Request, Shard
from launcher.data.split import Split
from launcher.data.stored_crops import Described, box_of, crop_values, open_labels, parts_of
from launcher.data.worker_processes import WorkerProcesses
from launcher.errors import Problem, UserError
from launcher.locks import Held, lock
from launcher.plan.plan import Plan
from launcher.probe import rank_cores
from launcher.rank.group import use_device
from launcher.training.networks import teacher_file, teacher_of
from launcher.training.precision import Precision, choose_precision
from launcher.training.trainer import set_backend
from launcher.weights.teacher import check_classes, find_named

# Crops that the teacher has at once.
_BATCH = 256
TEACHER, OUTPUT = "TEACHER", "--output"


class ManyCrops(Pixels):
    """Decodes an image once, and makes `count` crops of it; the label is where they are, int32 [count, 5]."""

    def __init__(self, config: RunConfig, count: int):
        loader = config.dataloader
        assert isinstance(loader, DecodingLoader)
        super().__init__(upright=config.dataset.exif_orientation, decoder=loader.decoder)
        self.image, self.seed, self.count = config.image, config.seed, count
        self.resize = self.resize_of_type()

    def draws(self, moment: Moment, indices: np.ndarray) -> list[list[Callable[[int, int], Any]]]:
        drawn: list[Boxes] = [Crops(self.image, self.seed, number, indices) for number in range(self.count)]
        return [[partial(crops.box, place) for crops in drawn] for place in range(len(indices))]

    def decode(self, record: Record, view: int, draws: Any) -> tuple[np.ndarray, np.ndarray]:
        pixels = self.whole(record["image"])
        height, width = pixels.shape[:2]
        boxes = [box_of_image(height, width) for box_of_image in draws]
        stored = np.array([(*parts_of(box, height, width), box[4]) for box in boxes], np.int32)
        # note: the crops as they are read later, should rounding have moved an edge
        boxes = [box_of(row[:4], row[4], height, width) for row in stored]
        return np.stack([cut(pixels, box, view, self.image.interpolation, self.resize) for box in boxes]), stored


def describe(
    config: RunConfig, images: Split, classes: list[str], teacher: str, crops: int, top: int
) -> tuple[Described, Teacher]:
    """Return what a file of these training images has, and the teacher, on the CPU.

    Raises UserError if the teacher does not exist, cannot be read, or has other classes.
    """
    source = find_named(teacher, TEACHER, config)
    check_classes(source, teacher, TEACHER, config, classes)
    own = source.config
    assert own
    network = teacher_of(own, source.tensors)
    fingerprint = loader_of(config).training_fingerprint(config, [images])
    assert fingerprint
    digest = hashlib.sha256(teacher_file(own, source.tensors)).hexdigest()
    return Described(
        fingerprint, len(images.files), classes, crops, min(top, len(classes)), config.seed, network.size, teacher,
        digest, crop_values(config),
    ), network  # fmt: skip


@dataclass(frozen=True)
class Relabelling:
    """What writes the file of `described`, to `path` once it is whole; until then it has another name."""

    plan: Plan
    images: Split
    described: Described
    teacher: Teacher
    path: Path

    def run(self, kind: str, count: int, report: Callable[[int, int], None]) -> None:
        """Write the rows that are missing, on the CPU or `count` GPUs; calls `report` with images done and all.

        Raises UserError if the file has other labels, cannot be written, or another process writes it.
        """
        if self.path.exists():
            return self._check_existing()
        partial_path = self.path.with_name(f".{self.path.name}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with partial_path.open("a+b") as file:
                unlock = lock(file.fileno(), partial_path)
                devices = [use_device(kind, number) for number in range(count)]
                for done, rows in self._rows(devices, self._done(file)):
                    file.write(rows.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                    report(done, self.described.samples)
                partial_path.replace(self.path)
                unlock()
        except Held:
            raise UserError(Problem("another process writes it; wait for it", OUTPUT, self.path)) from None
        except OSError as error:
            message = f"cannot be written ({error.strerror}); rows are kept, so run the same command to resume"
            raise UserError(Problem(message, OUTPUT, self.path)) from None

    def _check_existing(self) -> None:
        try:
            differs = open_labels(str(self.path)).described != self.described
        except UserError:
            raise UserError(Problem("is no whole file of stored labels; set another", OUTPUT, self.path)) from None
        if differs:
            message = "has labels of other images, crops or another teacher; remove it, or write another file"
            raise UserError(Problem(message, OUTPUT, self.path))

    @property
    def _at_once(self) -> int:
        """The images of a batch: the same after a stop, so that rows have the same bits."""
        return max(1, _BATCH // self.described.crops)

    def _done(self, file: Any) -> int:
        """Cut an unfinished file after its last whole batch, and return how many images it has; starts another one."""
        line, row = self.described.line(), self.described.row.itemsize
        file.seek(0)
        if file.read(len(line)) != line:
            file.truncate(0)
            file.write(line)
            return 0
        done = (file.seek(0, os.SEEK_END) - len(line)) // row
        done = done if done >= self.described.samples else done // self._at_once * self._at_once
        file.truncate(len(line) + done * row)
        return int(done)

    @torch.inference_mode()
    def _rows(self, devices: Sequence[torch.device], first: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield how many images are done, and the rows of the last ones, from the image `first` on.

        The devices compute whole batches in turn, so that their number changes no bit.
        """
        config = self.plan.config
        set_backend(config)
        precision = choose_precision(config, devices[0])
        networks = [deepcopy(self.teacher.network).to(device) for device in devices]
        shard = Shard(0, 1, loader_of(config).worker_count(rank_cores(1)), 2, devices[0])
        records = config.task.records(self.images, ManyCrops(config, self.described.crops))
        indices = np.arange(first, self.described.samples)
        requests = (
            Request(START, indices[start : start + self._at_once], self.described.view)
            for start in range(0, len(indices), self._at_once)
        )
        # note: GPUs compute while the host launches the next one's batch; reading the oldest result waits for it
        pending = deque[tuple[int, Tensor, Tensor]]()
        with closing(WorkerProcesses(records, shard)) as reader:
            for pixels, boxes, numbers in reader.batches(requests) if len(indices) else ():
                device, network = devices[0], networks[0]
                crops = pixels.flatten(0, 1).permute(0, 3, 1, 2).to(device)
                outputs = torch.cat([self._outputs(network, part, precision) for part in crops.split(_BATCH)])
                pending.append((int(numbers[-1]) + 1, boxes, outputs.softmax(1)))
                devices, networks = [*devices[1:], device], [*networks[1:], network]
                if len(pending) == len(devices):
                    done, *result = pending.popleft()
                    yield done, self._filled(*result)
        for done, *result in pending:
            yield done, self._filled(*result)

    def _outputs(self, network: torch.nn.Module, crops: Tensor, precision: Precision) -> Tensor:
        images = normalize(crops, self.teacher.mean, self.teacher.std, precision.dtype)
        with precision.autocast():
            outputs: Tensor = network(images)
        return outputs.float()

    def _filled(self, boxes: Tensor, probabilities: Tensor) -> np.ndarray:
        """Return rows of images, of boxes [B, crops, 5] and probabilities [B * crops, classes]."""
        best = probabilities.topk(self.described.top, 1)
        rows = np.zeros(len(boxes), self.described.row)
        rows["box"], rows["mirrored"] = boxes[..., :4].numpy(), boxes[..., 4].numpy()
        rows["classes"] = best.indices.cpu().numpy().reshape(rows["classes"].shape)
        rows["probabilities"] = best.values.cpu().numpy().reshape(rows["probabilities"].shape)
        return rows
