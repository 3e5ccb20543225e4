"""Save a run's state in the background, and load the newest on all ranks."""

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from launcher.compute.accelerator import has_streams, synchronize
from launcher.config.schema import Checkpoint
from launcher.files import atomic
from launcher.files.disk import DiskError
from launcher.rank.group import Ranks, from_first
from launcher.rank.signs import HEARTBEAT
from launcher.records.mirror import Mirror, Pusher
from launcher.records.run_folder import RunFolder, checkpoint_name
from launcher.training import checkpoint


class Saver:
    """Saves checkpoints on rank 0: a thread writes a copy of the state while training continues.

    A context manager that waits for the last write. A failed write is a warning and the next checkpoint retries, or an
    error with `on_failure: stop`; the failure of a run's last checkpoint is always an error.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: Checkpoint,
        ranks: Ranks,
        mirror: Mirror | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._settings, self._ranks, self._now = folder, settings, ranks, now
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._pending: Future[None] | None = None
        self._last = now()
        self._pusher = Pusher(mirror, folder, HEARTBEAT.beat) if mirror else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=True)
        if self._pusher:
            self._pusher.close()

    def is_due(self) -> bool:
        """Return whether a checkpoint is due by the clock, on rank 0."""
        minutes = self._settings.every_minutes
        return self._ranks.is_first and minutes is not None and self._now() - self._last >= 60 * minutes

    def save(self, state: dict[str, Any], *, best: bool, last: bool) -> None:
        """Write the state on rank 0, also as the best if it is; `last` waits until it is on disk.

        Raises DiskError if the write failed, and it was the last or `on_failure` is stop.
        """
        if not self._ranks.is_first:
            return
        self.wait(must_succeed=False)
        best = best and self._settings.best
        self._pending = self._thread.submit(self._write, copy_to_host(state), best)
        self._last = self._now()
        if last or not self._settings.asynchronous:
            self.wait(must_succeed=last)

    def wait(self, *, must_succeed: bool) -> None:
        """Wait for the write in progress, if any.

        Raises DiskError if the write failed, and it `must_succeed` or `on_failure` is stop.
        """
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.result()
        except DiskError as error:
            if must_succeed or self._settings.on_failure == "stop":
                raise
            print(f"warning: {error}; training continues and retries at the next checkpoint", flush=True)

    def _write(self, state: dict[str, Any], best: bool) -> None:
        folder = self._folder
        path = folder.checkpoints / checkpoint_name(state["step"])
        checkpoint.save(state, path)
        try:
            if best:
                _link(path, folder.best)
            checkpoint.prune(folder.checkpoints, keep=self._settings.keep, step=state["step"])
        except OSError as error:
            raise DiskError.of(error, folder.checkpoints) from error
        HEARTBEAT.beat()
        if self._pusher:
            self._pusher.push()


def newest_on_all_ranks(folder: RunFolder, ranks: Ranks) -> dict[str, Any] | None:
    """Return rank 0's newest state on all ranks, which need no access to its folder; all ranks call this together.

    Raises as `checkpoint.newest_valid`.
    """
    return from_first(checkpoint.newest_valid(folder.checkpoints, accept_loss=False) if ranks.is_first else None)


def copy_to_host(state: Any) -> Any:
    """Copy a state to the CPU; entries that share a tensor also share its copy."""
    copies: dict[tuple[Any, ...], Tensor] = {}
    devices = set[torch.device]()

    def copy(value: Any) -> Any:
        if isinstance(value, Tensor):
            storage = value.untyped_storage().data_ptr()
            key = (storage, value.storage_offset(), value.shape, value.stride(), value.dtype)
            if key not in copies:
                devices.add(value.device)
                host = torch.empty_like(value, device="cpu", pin_memory=has_streams(value.device))
                copies[key] = host.copy_(value.detach(), non_blocking=True)
            return copies[key]
        if isinstance(value, dict):
            return {key: copy(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(copy(inner) for inner in value)
        return value

    copied = copy(state)
    for device in devices:
        synchronize(device)
    return copied


def _link(path: Path, link: Path) -> None:
    """Replace `link` by a hard link to a file, or by a copy on a file system without links."""
    with atomic.writing(link) as temporary:
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
