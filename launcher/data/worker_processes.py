"""Decode the images of a folder in worker processes, through torch's DataLoader, and explain failures."""

import errno
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import queues
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from launcher.compute.accelerator import has_streams
from launcher.data.batch import Loaded
from launcher.data.images import ImageReader, Pixels, Reader
from launcher.data.index import Images, Piece
from launcher.data.loaders.base import Opening
from launcher.data.records import Records, Sample
from launcher.data.sampling import Request, Shard
from launcher.data.sources.reading import read
from launcher.data.workers import Reading, clean_processes, follow_parent
from launcher.errors import MORE_PROCESSES, MachineError, Problem, UserError
from launcher.files.disk import DiskError

_SHARED_MEMORY = "/dev/shm"
# Exit code of a worker that cannot send a batch: EX_TEMPFAIL.
_CANNOT_SEND = 75
_SECONDS_TO_DIE = 1.0
_SECONDS_TO_END = 1.5  # of the workers of a loader; a rank has two


def open_processes(opening: Opening, train: Images, val: Images, shuffled: int = 1) -> tuple[Reader, Reader]:
    """Open readers of both splits; `shuffled` is the buffer of those for training."""
    config, task = opening.plan.config, opening.plan.config.task
    decoder = task.decoder(config, opening.change_image)
    reader = WorkerProcesses(task.records(train, decoder), opening.shard, shuffled)
    return reader, WorkerProcesses(task.records(val, task.evaluation_decoder(config)), opening.shard)


class WorkerProcesses(ImageReader):
    """Read requested batches through torch's DataLoader, in persistent workers or in this process."""

    def __init__(self, images: Records, shard: Shard, buffer: int = 1):
        """buffer: the images that are shuffled of archives which are read through copies."""
        self.labels, self.classes, self.place = images.labels, images.folder.classes, images.folder.place
        self._images = images
        if images.folder.are_copied:
            assert images.folder.places is not None
            self.archives = images.folder.places[:, 0], buffer
        images.reading = Reading(max(1, shard.workers))
        self._requests = _Requests()
        self._loader: DataLoader[Any] = DataLoader(
            images,
            batch_sampler=self._requests,  # type: ignore[arg-type]
            num_workers=shard.workers,
            collate_fn=_collate,
            pin_memory=has_streams(shard.device),
            persistent_workers=shard.workers > 0,
            prefetch_factor=shard.prefetch if shard.workers else None,
            worker_init_fn=_start_worker if shard.workers else None,
            generator=torch.Generator(),
            multiprocessing_context=clean_processes() if shard.workers else None,
        )
        # note: otherwise the process would wait for its workers at exit
        self._end = weakref.finalize(self, _shut_down, self._loader)

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        """Yield the requested batches in order.

        Raises UserError if an image cannot be read, or shared memory is full, or MachineError if a worker has died or
        the disk fails.
        """
        self._requests.batches = ([request] for request in requests)
        try:
            for batch in self._loader:
                if isinstance(batch, UserError | DiskError):
                    raise batch
                yield batch
        except (RuntimeError, OSError, EOFError) as error:
            raise _cause(self._loader, error) from error

    def piece(self, index: int) -> Piece:
        return self._images.piece(index)

    def measure(self, index: int) -> tuple[int, int, int]:
        data, decoder = read(self.piece(index)), self._images.decoder
        assert isinstance(decoder, Pixels)
        height, width = decoder.pixel_type.read(data, upright=decoder.upright).shape[:2]
        return width, height, len(data)

    def stalled(self, seconds: float) -> Path | str | None:
        index = self._images.reading.stalled(seconds)
        return None if index is None else self.piece(index).file

    def close(self) -> None:
        self._end()


def _shut_down(loader: DataLoader[Any]) -> None:
    """End the worker processes, also those that wait for a server."""
    iterator = loader._iterator
    if iterator is None:
        return
    workers = iterator._workers  # type: ignore[attr-defined]
    # note: torch waits five seconds for each worker, one after another
    timer = threading.Timer(_SECONDS_TO_END, lambda: [worker.kill() for worker in workers])
    timer.start()
    iterator._shutdown_workers()  # type: ignore[attr-defined]
    timer.cancel()
    for worker in workers:
        worker.kill()
        worker.join()
    # note: free the semaphores now; a process that exits at once leaks them, as threads that send would
    for queue in iterator._index_queues:  # type: ignore[attr-defined]
        if queue._thread is not None:
            queue._thread.join(_SECONDS_TO_DIE)
    loader._iterator = None


class _Requests:
    """A batch sampler whose batches, of one request each, are set before each epoch, so that workers need no state."""

    batches: Iterable[Sequence[Request]] = ()

    def __iter__(self) -> Iterator[Sequence[Request]]:
        return iter(self.batches)


def _collate(
    samples: list[Sample] | UserError | DiskError,
) -> Loaded | UserError | DiskError:
    """Stack inputs, images as [B, 3, H, W] in channels-last memory order."""
    if isinstance(samples, UserError | DiskError):
        return samples
    parts, labels, indices = zip(*samples, strict=True)
    images, classes = torch.from_numpy(np.stack(parts)), torch.from_numpy(np.stack(labels))
    if images.ndim == 4:
        images = images.permute(0, 3, 1, 2)
    if (worker := get_worker_info()) is not None:
        try:
            # note: otherwise the queue's thread would do so later, and drop the batch on failure
            images.share_memory_()
            classes.share_memory_()
        except (RuntimeError, OSError) as error:
            # note: torch has no type for it
            if os.strerror(errno.EMFILE) in str(error):
                message = "no more files can be opened; raise their limit (ulimit -n 65536), or use fewer workers"
                return UserError(Problem(message, "dataloader.workers", worker.num_workers))
            return _full(worker.num_workers)
    return images, classes, np.array(indices, dtype=np.int64)


def _start_worker(_: int) -> None:
    torch.set_num_threads(1)
    follow_parent()
    # note: a batch that its thread cannot send would be lost, and the rank would wait for it
    queues.Queue._on_queue_feeder_error = staticmethod(_end)  # type: ignore[attr-defined]


def _end(error: Exception, _: object) -> None:
    os._exit(_CANNOT_SEND)


def _cause(loader: DataLoader[Any], error: Exception) -> Exception:
    """Return the cause of a loader's failure, or the error itself if the cause is unclear."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _full(loader.num_workers)
    workers = getattr(getattr(loader, "_iterator", None), "_workers", [])
    # note: fetching from a killed worker can fail a moment before its exit is visible
    wait([worker.sentinel for worker in workers], _SECONDS_TO_DIE)
    for number, worker in enumerate(workers):
        if worker.exitcode is not None:
            code = worker.exitcode
            ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return MachineError(f"loader worker {number} (process {worker.pid}) {ending}{_ADVICE.get(-code, '')}")
    if isinstance(error, EOFError | ConnectionError):
        # note: the process that forks the workers has ended
        return MachineError(f"no loader worker can start ({type(error).__name__}: {error}); {MORE_PROCESSES}")
    return error


_REMEDY = (
    f"enlarge it (mount -o remount,size=8G {_SHARED_MEMORY}, docker run --shm-size=8g), "
    "use fewer workers, or dataloader=ffcv, which needs none"
)


_ADVICE = {
    signal.SIGKILL: "; usually out of memory: reduce dataloader.workers or "
    "dataloader.prefetch, or use dataloader=ffcv, which has no worker processes",
    -_CANNOT_SEND: f", because it cannot send a batch; {MORE_PROCESSES}",
    signal.SIGBUS: f", usually because {_SHARED_MEMORY} is full: {_REMEDY}",
}


def _full(workers: int) -> UserError:
    room = shutil.disk_usage(_SHARED_MEMORY)
    message = f"shared memory is full: {_SHARED_MEMORY} has {room.free / 1e6:,.1f} of {room.total / 1e6:,.1f} MB free"
    return UserError(Problem(f"{message}; {_REMEDY}", "dataloader.workers", workers))
