"""One rank of a measurement: the real step, loader and evaluation of a config, for seconds each; nothing is trained.

What is measured takes turns, round by round, so that a slow spell of the machine meets everything alike.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.config.resolved import read
from launcher.config.schema import SyntheticLoader
from launcher.data.batch import Loaded
from launcher.data.unreadable import read_skipped
from launcher.data.workers import worker_count
from launcher.launch.stopping import StopRequested
from launcher.measure.estimate import REQUEST, RESULT, EvaluationTimes, Measurement, StepTimes
from launcher.plan.step_kinds import StepSample, common_acting, step_kinds, step_samples
from launcher.probe import rank_cores
from launcher.rank.group import join_ranks
from launcher.rank.signs import STOP, Requests
from launcher.records.folder import RunFolder
from launcher.training.compiled import compile_run
from launcher.training.meters import StepOutcome
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer, build_trainer

ROUNDS = 4
WARMUP_STEPS = 2
_SAVES = 3
_COPIES = 8


def work(scratch: Path) -> None:
    """Measure every kind of step, loading, evaluation and saving of the scratch folder's config."""
    write_result(scratch, lambda *request: asdict(StepProfiler(*request).measure(scratch)))


class StepProfiler:
    """Times one run's parts; all ranks do the same number of steps."""

    def __init__(self, run: Trainer, seconds: float, asked_at: float):
        self.run, self._seconds, self._timer = run, seconds, StepTimer(run)
        compile_run(run)
        self._start_seconds = time.time() - asked_at
        kinds = step_kinds(run.plan)
        chosen = step_samples(kinds)
        common = [sample for sample in chosen if sample.kind.acting == common_acting(kinds)]
        self._steps: dict[StepSample, list[float]] = {sample: [] for sample in chosen}
        self._both: dict[StepSample, list[float]] = {sample: [] for sample in common}
        self._loads: dict[StepSample, list[float]] = {sample: [] for sample in (common[0], common[-1])}

    def measure(self, scratch: Path) -> Measurement:
        """Everything, in rounds."""
        start = time.perf_counter()
        self._batch = next(self._batches(0, 0))
        first_batch = time.perf_counter() - start
        new_sizes = self._warm_up()
        transfers, epoch_starts = [], []
        for number in range(1, ROUNDS + 1):
            if self.run.ranks.is_first:
                print(f"measuring, round {number} of {ROUNDS}", flush=True)
            for sample, seconds in self._steps.items():
                seconds.append(self._step_alone(sample))
            for sample, seconds in self._both.items():
                seconds.append(self._both_together(sample))
            for sample, seconds in self._loads.items():
                seconds.append(self._load_alone(sample))
            transfers.append(self._transfer())
            epoch_starts.append(self._epoch_start())
        evaluation = self._evaluation()
        saves, last_save = self._saves(scratch)
        return Measurement(
            device=self.run.ranks.device_name,
            world_size=self.run.ranks.world_size,
            workers=self._workers,
            cores=rank_cores(self.run.ranks.local_world_size) * self.run.ranks.local_world_size,
            start_seconds=self._start_seconds,
            steps=[
                StepTimes(s.kind.image_size, list(s.kind.acting), seconds, self._loads.get(s), self._both.get(s))
                for s, seconds in self._steps.items()
            ],
            transfer_seconds=transfers,
            first_batch_seconds=first_batch,
            epoch_start_seconds=epoch_starts,
            new_size_seconds=new_sizes,
            evaluation=evaluation,
            save_seconds=saves,
            last_save_seconds=last_save,
        )

    @property
    def _workers(self) -> int:
        dataloader = self.run.config.dataloader
        if isinstance(dataloader, SyntheticLoader):
            return 0
        return worker_count(dataloader, self.run.ranks.local_world_size)

    @property
    def _ahead(self) -> int:
        """Batches that the loader keeps ready: as many must pass until it stands as it does in the middle of a run."""
        dataloader, steps = self.run.config.dataloader, self.run.plan.steps_per_epoch
        prefetch = 0 if isinstance(dataloader, SyntheticLoader) else dataloader.prefetch
        return min(self._workers * prefetch, steps // 2)

    def _warm_up(self) -> list[float]:
        """A few steps of every kind; returns what the first step at each new size took above the next ones."""
        sizes: dict[int, float] = {}
        for sample in self._steps:
            first, later = self._step_alone(sample, 1), self._step_alone(sample, WARMUP_STEPS)
            sizes.setdefault(sample.kind.image_size, max(0.0, first - later))
        return list(sizes.values())

    def _step_alone(self, sample: StepSample, count: int | None = None) -> float:
        """Seconds of a step on a batch that is there already."""
        count = count or self._count(self._steps[sample])
        return self._timer.mean(count, lambda number: self._timer.step(self._batch, sample, number))

    def _both_together(self, sample: StepSample) -> float:
        """Seconds of a step with its loading, as the training loop does it."""
        count = self._within_epoch(self._count(self._both[sample] or self._steps[sample]))
        batches = self._batches(*self._start_of(sample, count))
        for number in range(self._ahead):
            self._timer.step(next(batches), sample, number)
        return self._timer.mean(count, lambda number: self._timer.step(next(batches), sample, number))

    def _load_alone(self, sample: StepSample) -> float:
        """Seconds a batch when nothing but loading happens."""
        count = self._within_epoch(self._count(self._loads[sample] or self._both[sample]))
        batches = self._batches(*self._start_of(sample, count))
        for _ in range(self._ahead):
            next(batches)
        return self._timer.mean(count, lambda _: next(batches))

    def _transfer(self) -> float:
        """Seconds to copy a batch to the GPU; 0 where training is on the CPU."""
        images = self._batch[0]
        if images.device.type == "cpu":
            return 0.0
        pinned = torch.empty_like(images, device="cpu", pin_memory=True)
        return self._timer.mean(_COPIES, lambda _: pinned.to(images.device, non_blocking=True))

    def _epoch_start(self) -> float:
        """Seconds until an epoch's first batch, after an epoch that was read to its end."""
        last = self.run.plan.steps_per_epoch - 1
        for _ in self._batches(0, last):
            pass
        start = time.perf_counter()
        batches = self._batches(1, max(0, last - self._ahead))
        next(batches)
        seconds = time.perf_counter() - start
        for _ in batches:
            pass
        return seconds

    def _evaluation(self) -> EvaluationTimes:
        """Evaluate for the seconds of the request, twice; the first time starts the loader's workers."""
        (first_start, batch), (start, again) = self._evaluate(), self._evaluate()
        samples, ranks = self.run.config.dataset.val_samples or 0, self.run.ranks.world_size
        batches = math.ceil(math.ceil(samples / ranks) / self.run.plan.rank_eval_batch)
        return EvaluationTimes(first_start, [start], [batch, again], batches)

    def _evaluate(self) -> tuple[float, float]:
        """Seconds until the first batch, and of a batch."""
        arrivals: list[float] = []

        def enough() -> bool:
            arrivals.append(time.perf_counter())
            return arrivals[-1] - arrivals[0] > self._seconds

        begin = time.perf_counter()
        complete = self.run.evaluate(should_stop=enough) is not None
        end = time.perf_counter()
        batches = len(arrivals) - (not complete)
        return arrivals[0] - begin, (end - arrivals[0]) / max(1, batches)

    def _saves(self, scratch: Path) -> tuple[list[float], float]:
        """Seconds that a save takes from the middle of a run, and the last one, on the disk of the scratch folder."""
        between = []
        with Saver(RunFolder(scratch), self.run.config.checkpoint, self.run.ranks) as saver:

            def save(*, last: bool) -> float:
                return self._timer.mean(1, lambda _: saver.save(self.run.state_dict(), best=False, last=last))

            for _ in range(_SAVES):
                between.append(save(last=False))
                saver.wait(must_succeed=True)
            return between, save(last=True)

    def _batches(self, epoch: int, first_step: int) -> Iterator[Loaded]:
        return iter(self.run.loaders.train.epoch(epoch, first_step))

    def _start_of(self, sample: StepSample, count: int) -> tuple[int, int]:
        """Epoch and step in it from which a sample's batches are read, so many that they last."""
        epoch, step = divmod(sample.steps[len(sample.steps) // 2], self.run.plan.steps_per_epoch)
        return epoch, max(0, min(step, self.run.plan.steps_per_epoch - self._ahead - count))

    def _count(self, known: list[float]) -> int:
        """Steps that fill a round's seconds, the same on all ranks."""
        return agreed_count(self._seconds / ROUNDS, known[-1]) if known else 1

    def _within_epoch(self, count: int) -> int:
        """Whole turns of the loader's workers, and no more than an epoch has."""
        turns = max(1, self._workers)
        return max(1, min(math.ceil(count / turns) * turns, self.run.plan.steps_per_epoch - self._ahead))


def write_result(scratch: Path, measure: Callable[[Trainer, float, float], object]) -> None:
    """Measure as the folder's request asks; rank 0 leaves the answer there, unless the measurement is asked to stop."""
    folder = RunFolder(scratch)
    config = read(folder.config)
    # note: without a learning rate steps cost the same, and weights that jump about cannot overflow
    config = replace(config, optimizer=replace(config.optimizer, lr=0.0))
    seconds, asked_at = json.loads((scratch / REQUEST).read_text())
    with join_ranks(config) as ranks:
        run = build_trainer(config, ranks, read_skipped(folder.skipped, config.dataset))
        try:
            found = measure(run, seconds, asked_at)
        except StopRequested:
            return
        finally:
            run.loaders.close()
        if ranks.is_first:
            (scratch / RESULT).write_text(json.dumps(found))


class StepTimer:
    """The time of a run's steps, until the device is done with them; all ranks do the same number of them."""

    def __init__(self, run: Trainer):
        self.run = run
        self._last: StepOutcome | None = None

    def step(self, batch: Loaded, sample: StepSample, number: int) -> None:
        """A step on a batch, the `number`th of a sample's; raises StopRequested once the ranks were asked to stop."""
        images, targets, indices = batch
        # note: where other parameters learn, DDP is made anew, which is no part of a step
        chosen = 0 if self.run.train_step.engine.changing_parameters else number % len(sample.steps)
        moment = self.run.moment(sample.steps[chosen])
        before, self._last = self._last, self.run.train_step(images, targets, indices, moment, Requests(STOP.requested))
        if before is not None and before.report().requests.stop:
            raise StopRequested(signal.SIGTERM)

    def mean(self, count: int, work: Callable[[int], object]) -> float:
        """Mean seconds of so many calls, which are given their number."""
        self.wait()
        start = time.perf_counter()
        for number in range(count):
            work(number)
        self.wait()
        return (time.perf_counter() - start) / count

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.run.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.run.ranks.device)


def agreed_count(seconds: float, each: float) -> int:
    """How many calls of `each` seconds fill a time: at least one, and on all ranks as many as on the fastest."""
    count = torch.tensor(max(1, round(seconds / max(each, 1e-9))))
    if dist.is_initialized():
        dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)
