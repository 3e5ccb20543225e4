"""When a run's state goes to disk and comes back."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from launcher import atomic
from launcher.config.schema import Checkpoint
from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.rank.signs import HEARTBEAT
from launcher.records.folder import RunFolder, checkpoint_name
from launcher.training import checkpoint


class Saver:
    """Rank 0's saves: a copy of the state is taken, and a thread writes it while training goes on.

    A context that waits for the last write. A save that fails is a warning until the next one, or the end if
    `on_failure` says so; the save that ends a run must not fail.
    """

    def __init__(
        self, folder: RunFolder, settings: Checkpoint, ranks: Ranks, now: Callable[[], float] = time.monotonic
    ):
        self._folder, self._settings, self._ranks, self._now = folder, settings, ranks, now
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._pending: Future[None] | None = None
        self._last = now()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=True)

    def is_due(self) -> bool:
        """Whether it is time for a save by the clock; rank 0's is the one that counts."""
        minutes = self._settings.every_minutes
        return self._ranks.is_first and minutes is not None and self._now() - self._last >= 60 * minutes

    def save(self, state: dict[str, Any], *, best: bool, last: bool) -> None:
        """Write the state on rank 0, as the best too if it is; `last` waits until it is on disk.

        Raises:
            UserError: it cannot be written, and must be.
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
        """Wait for the write that is under way, if one is.

        Raises:
            UserError: it failed, and must not.
        """
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.result()
        except UserError as error:
            if must_succeed or self._settings.on_failure == "stop":
                raise
            print(f"warning: {error}; training continues and retries at the next checkpoint", flush=True)

    def _write(self, state: dict[str, Any], best: bool) -> None:
        folder = self._folder
        path = folder.checkpoints / checkpoint_name(state["step"])
        checkpoint.save(state, path)
        try:
            if best:
                _second_name(path, folder.best)
            checkpoint.prune(folder.checkpoints, keep=self._settings.keep)
        except OSError as error:
            raise UserError(f"{folder.checkpoints} cannot be written: {error.strerror}") from error
        HEARTBEAT.beat()


def newest_for_all(folder: RunFolder, ranks: Ranks) -> dict[str, Any] | None:
    """Rank 0's newest state on all ranks, which need not see its folder; all call this together."""
    state = [checkpoint.newest_valid(folder.checkpoints) if ranks.is_first else None]
    if ranks.world_size > 1:
        dist.broadcast_object_list(state, src=0, device=torch.device("cpu"))
    return state[0]


def copy_to_host(state: Any) -> Any:
    """A copy on the CPU that training no longer changes; tensors that are one stay one."""
    copies: dict[tuple[Any, ...], Tensor] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, Tensor):
            storage = value.untyped_storage().data_ptr()
            same = (storage, value.storage_offset(), value.shape, value.stride(), value.dtype)
            if same not in copies:
                host = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
                copies[same] = host.copy_(value.detach(), non_blocking=True)
            return copies[same]
        if isinstance(value, dict):
            return {key: copy(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(copy(inner) for inner in value)
        return value

    copied = copy(state)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return copied


def _second_name(path: Path, name: Path) -> None:
    """Give a file a second name, in the place of whatever had it; a copy where there are no links."""
    with atomic.writing(name) as temporary:
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
