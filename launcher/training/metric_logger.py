"""What a run writes down while it trains: rank 0 records, the other ranks keep quiet."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from launcher.records.folder import RunFolder
from launcher.records.metrics import (
    EndRecord,
    EpochRecord,
    EvalRecord,
    HeldOutRecord,
    Record,
    ResumeRecord,
    StartRecord,
    TrainRecord,
)
from launcher.records.sinks import Recorder, build_sinks
from launcher.training.evaluation import Evaluation
from launcher.training.meters import LateMeans
from launcher.training.trainer import Trainer


class MetricLogger:
    """Turns what happens in the loop into records; a context that closes them.

    The lines of a step and of an epoch are sent for when it is queued, and written once the device has done it.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder, *, resumed: bool):
        self._trainer = trainer
        self._interval = trainer.plan.every(trainer.config.logger.interval)
        self._late: list[Callable[[], None]] = []
        self._recorder = Recorder(build_sinks(folder, trainer.config) if trainer.ranks.is_first else [])
        if resumed:
            self.log_resume()
        else:
            ranks, plan = trainer.ranks, trainer.plan
            dtype = str(trainer.train_step.precision.dtype).removeprefix("torch.")
            start = (ranks.world_size, plan.total_steps, plan.epochs, ranks.device_name, dtype)
            primary = trainer.config.task.primary
            self.record(StartRecord(0, time.time(), *start, primary.name, primary.better))

    def __enter__(self) -> MetricLogger:
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.close()

    def record(self, record: Record) -> None:
        """Write any record."""
        self._recorder.record(record)

    def log_resume(self) -> None:
        """Write that the run stands at an earlier save: what was written of later steps is void."""
        trainer = self._trainer
        self.record(ResumeRecord(trainer.next_step, time.time(), trainer.ranks.world_size))

    def log_step(self) -> None:
        """At the log interval send for the mean loss of the steps since the last line."""
        if self._trainer.next_step % self._interval == 0:
            self._late.append(partial(self._write_step, self._trainer.next_step, self._trainer.meters.line.take()))

    def log_epoch(self) -> None:
        """Send for the mean loss of an epoch that is finished, of the steps done since it began."""
        self._late.append(partial(self._write_epoch, self._trainer.next_step, self._trainer.meters.epoch.take()))

    def write_late(self) -> None:
        """Write the lines that were sent for; waits for the device to have done their steps."""
        for write in self._late:
            write()
        self._late.clear()

    def drop_late(self) -> None:
        """Forget the lines of steps that are void."""
        self._late.clear()

    def _write_step(self, done: int, taken: LateMeans) -> None:
        trainer = self._trainer
        means, device = trainer.meters.line.read(taken), trainer.ranks.device
        self.record(
            TrainRecord(
                step=done,
                time=time.time(),
                epoch=done / trainer.plan.steps_per_epoch,
                loss=means.loss,
                lr=trainer.plan.lr(done - 1) * trainer.train_step.lr_factor,
                image_size=trainer.plan.image_size(done - 1),
                images_per_second=means.steps * trainer.config.batch_size / means.seconds,
                step_seconds=means.seconds / means.steps,
                data_wait_seconds=means.waited / means.steps,
                gpu_memory_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
                train_seconds=means.train_seconds,
            )
        )

    def _write_epoch(self, done: int, taken: LateMeans) -> None:
        trainer = self._trainer
        means = trainer.meters.epoch.read(taken)
        self.record(
            EpochRecord(
                step=done,
                time=time.time(),
                epoch=done // trainer.plan.steps_per_epoch,
                loss=means.loss,
                seconds=means.seconds,
                images_per_second=means.steps * trainer.config.batch_size / means.seconds,
                data_wait_seconds=means.waited / means.steps,
                train_seconds=means.train_seconds,
            )
        )

    def log_evaluation(self, result: Evaluation, seconds: float, *, held_out: bool = False) -> None:
        """Write the result of an evaluation that took so many seconds, on the images `held_out` to the end or not."""
        trainer, kind = self._trainer, HeldOutRecord if held_out else EvalRecord
        self.record(
            kind(
                step=trainer.next_step,
                time=time.time(),
                epoch=trainer.next_step / trainer.plan.steps_per_epoch,
                seconds=seconds,
                train_seconds=trainer.clock.seconds("training"),
                **vars(result),
            )
        )

    def log_end(self, *, finished: bool) -> None:
        """Write that the run ended."""
        clock = self._trainer.clock
        seconds = (clock.seconds(name) for name in ("training", "evaluation", "saving"))
        self.record(EndRecord(self._trainer.next_step, time.time(), finished, *seconds))
