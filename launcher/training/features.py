"""Features of a linear probe: computed once for each image, kept in the user's cache, and read by all steps."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from launcher.config.resolved import as_mapping
from launcher.counts import count_of
from launcher.data.batch import START, Loaded, Overlap
from launcher.data.images import Reader, evaluation_input
from launcher.data.index import Piece
from launcher.data.loaders.features import FeatureLoader
from launcher.data.sampling import Request
from launcher.errors import UserError
from launcher.files import atomic
from launcher.files.cache import path_of
from launcher.files.disk import line
from launcher.models.features import accept_features, features
from launcher.models.parameters import digest, parameters_of_head
from launcher.rank.group import wait_for_ranks
from launcher.rank.signs import HEARTBEAT
from launcher.training.evaluation import outside_steps
from launcher.training.trainer import Trainer

# Images of a pass: always as many, so that the bits depend on nothing else.
_AT_ONCE = 32


class FeatureReader(Reader):
    """Has the features float32 [N, D] of the images of another reader, which is closed."""

    def __init__(self, images: Reader, rows: np.ndarray):
        self._images, self._rows = images, rows
        self.labels, self.facts, self.classes, self.place = images.labels, images.facts, images.classes, images.place

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        """Yield features [B, D], labels and sample indices [B]."""
        for request in requests:
            images = request.indices % self.samples
            yield torch.from_numpy(self._rows[images]), torch.from_numpy(self.labels[images]), request.indices

    def piece(self, index: int) -> Piece | None:
        return self._images.piece(index % self.samples)


def use_features(trainer: Trainer) -> None:
    """Replace the images of a run with `dataloader=features` by their features; the network has its weights already.

    The first rank of each node computes those that are not in the cache, and the others wait.

    Raises UserError if an image cannot be read, the features cannot be written, or the network has none.
    """
    if not isinstance(trainer.config.dataloader, FeatureLoader):
        return
    start, computed, count = time.perf_counter(), False, 0
    for loader in (trainer.loaders.train, trainer.loaders.evaluate):
        reader = loader.reader
        path = path_of("features", _facts(trainer, reader), ".npy")
        if trainer.ranks.local_rank == 0 and _read(path, reader) is None:
            computed = True
            _write(path, _computed(trainer, reader))
        wait_for_ranks(HEARTBEAT.beat)
        if (rows := _read(path, reader)) is None:
            raise UserError(
                f"{path} cannot be read; set XDG_CACHE_HOME to a folder of this machine, and resume the run"
            )
        reader.close()
        loader.reader, count = FeatureReader(reader, rows), count + reader.samples
    for network in (trainer.train_step.model, trainer.evaluation_model):
        accept_features(network)
    if trainer.ranks.is_first:
        how = f"computed in {time.perf_counter() - start:.1f} s, in" if computed else "read from"
        print(f"features of {count_of(count, 'image')}: {how} {path.parent}; images/s are of these", flush=True)


def _facts(trainer: Trainer, reader: Reader) -> dict[str, object]:
    """Return all that the features of a reader's images depend on."""
    config, network = trainer.config, trainer.train_step.model
    head = parameters_of_head(network)
    layers = {name: tensor for name, tensor in network.state_dict().items() if name not in head}
    values = as_mapping(config)
    return {
        "weights": digest(layers),
        "network": {name: one for name, one in values["model"].items() if not name.startswith("weights")},
        "changes": {name: values["algorithms"][name] for name in config.algorithms.acting("change_model")},
        "images": _fingerprint(reader),
        "preparation": [evaluation_input(config), config.dataloader.decoder],  # type: ignore[attr-defined]
        "computed": [str(trainer.train_step.precision.dtype), trainer.ranks.device.type],
        "libraries": [version(name) for name in ("torch", "torchvision", "timm")],
    }


def _fingerprint(reader: Reader) -> str:
    """Return a hash of where the images are, and of size and time of each file."""

    @cache
    def stamp(file: str) -> list[int]:
        # note: that of a URL has none
        return [(facts := os.stat(file)).st_size, facts.st_mtime_ns] if os.path.exists(file) else []  # noqa: PTH110, PTH116

    hashed = hashlib.sha256()
    for index in range(reader.samples):
        piece = reader.piece(index)
        assert piece is not None
        hashed.update(json.dumps([piece.name, piece.start, piece.size, piece.version, *stamp(piece.file)]).encode())
    return hashed.hexdigest()


@torch.inference_mode()
def _computed(trainer: Trainer, reader: Reader) -> np.ndarray:
    """Return the features float32 [N, D] of all images as evaluated, in passes of equal size in the order of images."""
    network, step, count = trainer.train_step.model, trainer.train_step, reader.samples
    # note: the last pass is filled up with the first images
    passes = (np.arange(-(-count // _AT_ONCE) * _AT_ONCE) % count).reshape(-1, _AT_ONCE)
    requests = (Request(START, indices, min(trainer.plan.loaded_evaluation_size)) for indices in passes)
    rows = []
    network.eval()
    for images, _, _ in Overlap(reader.batches(requests), trainer.ranks.device):
        HEARTBEAT.beat()
        with step.precision.autocast():
            rows.append(features(network, step.task.prepare(outside_steps(images)).inputs).float().cpu())
    return torch.cat(rows)[:count].numpy()


def _write(path: Path, rows: np.ndarray) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.writing(path) as temporary, temporary.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
    except OSError as error:
        raise UserError(f"{line(error, path)}; XDG_CACHE_HOME sets another folder for features") from None


def _read(path: Path, reader: Reader) -> np.ndarray | None:
    """Map the features of a reader's images; None if they are missing or damaged."""
    try:
        rows = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None
    return rows if rows.ndim == 2 and len(rows) == reader.samples else None
