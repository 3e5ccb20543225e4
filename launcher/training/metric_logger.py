"""Write the records of a run while it trains; only rank 0 writes."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from launcher.compute.accelerator import max_memory, use
from launcher.counts import count_of
from launcher.loggers import build_sinks
from launcher.records import metrics
from launcher.records.metrics import Record
from launcher.records.run_folder import RunFolder
from launcher.records.sinks import Recorder
from launcher.training.data_waits import DataWaits
from launcher.training.evaluation import Evaluation
from launcher.training.meters import AsyncRead, StepMeans
from launcher.training.trainer import Trainer


class MetricLogger:
    """Turns the events of the loop into records; a context manager that closes them.

    The records of a step or an epoch are prepared when it is queued, and written once the device has completed it.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder, *, resumed: bool):
        self._trainer = trainer
        self._interval = trainer.plan.every(trainer.config.logger.interval)
        self._pending: list[Callable[[], Record]] = []
        self._failures = 0.0
        self._data_waits = DataWaits()
        self._recorder = Recorder(build_sinks(folder, trainer.config) if trainer.ranks.is_first else [])
        self.record = self._recorder.record
        ranks, plan = trainer.ranks, trainer.plan
        if resumed:
            self.record(metrics.ResumeRecord(trainer.next_step, metrics.now(), ranks.world_size))
        else:
            dtype = str(trainer.train_step.precision.dtype).removeprefix("torch.")
            start = (ranks.world_size, plan.total_steps, plan.epochs, ranks.device_name, dtype)
            primary = trainer.config.task.primary
            self.record(
                metrics.StartRecord(0, metrics.now(), *start, primary.name, primary.better, trainer.class_weights)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.close()

    @property
    def is_due(self) -> bool:
        """Return whether a record is due after the last step."""
        return self._ends_interval or self._ends_epoch

    @property
    def _ends_interval(self) -> bool:
        return self._trainer.next_step % self._interval == 0

    @property
    def _ends_epoch(self) -> bool:
        return self._trainer.plan.epoch_start(self._trainer.next_step) == self._trainer.next_step

    def log_step(self) -> None:
        """Prepare the record of the last steps at the log interval, and the record of a finished epoch."""
        trainer = self._trainer
        if self._ends_interval:
            self._pending.append(partial(self._train_record, trainer.next_step, trainer.line_meter.take()))
        if self._ends_epoch:
            self._pending.append(partial(self._epoch_record, trainer.next_step, trainer.epoch_meter.take()))

    def write_pending(self) -> None:
        """Write the prepared records; waits until the device has completed their steps."""
        for record in self._pending:
            self.record(record())
        self._pending.clear()

    def _train_record(self, done: int, read: Callable[[], StepMeans]) -> metrics.TrainRecord:
        trainer, device, means = self._trainer, self._trainer.ranks.device, read()
        self._warn_of_data_waits(done, means)
        return metrics.TrainRecord(
            **self._means(done, means),
            epoch=done / trainer.plan.steps_per_epoch,
            lr=trainer.plan.lr(done - 1),
            view=trainer.plan.view(done - 1),
            step_seconds=means.seconds / means.steps,
            gpu_memory_bytes=max_memory(device),
            rank_wait_seconds=means.waits or None,
            rank_gpu_memory_bytes=means.memory if any(means.memory) else None,
            # note: of several ranks the next field has it
            gpu_use=None if means.waits else use(device),
            rank_gpu_use=means.use if any(one >= 0 for one in means.use) else None,
        )

    def _warn_of_data_waits(self, done: int, means: StepMeans) -> None:
        """Print and record that all ranks have started to wait for their data, after the first epoch."""
        # note: in the first epoch every disk is read, also one whose files the memory then holds
        if done <= self._trainer.plan.steps_per_epoch:
            return
        waited = statistics.median_low(means.waits) * means.steps if means.waits else means.waited
        share = self._data_waits.add(means.seconds, waited)
        if share is not None:
            text = f"training waits for its data {share:.0%} of the time; find what to change by train estimate"
            self.record(metrics.WarningRecord(done, metrics.now(), "slow data", text))
            if self._trainer.ranks.is_first:
                print(f"warning: {text}", flush=True)

    def _epoch_record(self, done: int, read: Callable[[], StepMeans]) -> metrics.EpochRecord:
        means = read()
        epoch = done // self._trainer.plan.steps_per_epoch
        return metrics.EpochRecord(**self._means(done, means), epoch=epoch, seconds=means.seconds)

    def _means(self, done: int, means: StepMeans) -> dict[str, Any]:
        """Return the values that both records have."""
        return {
            "step": done,
            "time": metrics.now(),
            "loss": means.loss,
            "samples_per_second": means.steps * self._trainer.plan.batch_size / means.seconds,
            "data_wait_seconds": means.waited / means.steps,
            "train_seconds": means.train_seconds,
        }

    def log_evaluation(self, result: Evaluation, seconds: float, *, held_out: bool = False) -> None:
        """Record the result of an evaluation and its seconds; `held_out`: on the images of `dataset.test_path`."""
        trainer, kind = self._trainer, metrics.HeldOutRecord if held_out else metrics.EvalRecord
        step, clock = trainer.next_step, trainer.clock.seconds("training")
        epoch = step / trainer.plan.steps_per_epoch
        self.record(kind(step, metrics.now(), epoch, **vars(result), seconds=seconds, train_seconds=clock))
        self._warn_of_failures()

    def _warn_of_failures(self) -> None:
        """Print how many matrices the optimizer could not compute, if there are more than before."""
        optimizer = self._trainer.train_step.optimizer
        if not self._trainer.ranks.is_first or optimizer.failures is None:
            return
        # note: after an evaluation the host has waited for the steps anyway
        before, (self._failures,) = self._failures, AsyncRead(optimizer.failures[None]).read()
        if self._failures > before:
            name = f"optimizer={self._trainer.config.optimizer.name}"
            happened = f"could not compute {count_of(int(self._failures), 'matrix')} so far and kept the last values"
            print(f"warning: {name} {happened}; if the number grows, set a lower optimizer.lr", flush=True)

    def log_end(self, *, finished: bool) -> None:
        """Record the end of the run."""
        trainer, clock = self._trainer, self._trainer.clock
        seconds = clock.seconds("training"), clock.seconds("evaluation"), clock.seconds("saving")
        early = trainer.ended_by if trainer.next_step < trainer.plan.total_steps else None
        self.record(metrics.EndRecord(trainer.next_step, metrics.now(), finished, *seconds, early))
