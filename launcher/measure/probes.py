"""One rank of a measurement: the real step, loader and evaluation of a config, for seconds each; nothing is trained.

What is measured takes turns, round by round, so that a slow spell of the machine meets everything alike.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.config.resolved import read
from launcher.config.schema import RunConfig, SyntheticLoader
from launcher.data.batch import Loaded
from launcher.data.loaders import worker_count
from launcher.data.unreadable import read_left_out
from launcher.launch.stopping import Stopped
from launcher.measure.measurement import ANSWER, REQUEST, EvaluationTimes, Measurement, StepTimes
from launcher.plan.step_kinds import StepSample, common_acting, step_kinds, step_samples
from launcher.probe import rank_cores
from launcher.rank.group import join_ranks
from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.stop import STOP
from launcher.records.folder import RunFolder
from launcher.training.run import Run, build_run
from launcher.training.saving import Saver

ROUNDS = 4
_WARMUP_STEPS = 2
_SAVES = 3


@dataclass(frozen=True)
class MeasureRequest:
    """Seconds for each thing to measure; `asked_at` is when the command was given, in seconds since 1970."""

    seconds: float
    asked_at: float


def work(scratch: Path) -> None:
    """Measure what the scratch folder's request asks for; rank 0 leaves the answer there."""
    config = read(RunFolder(scratch).config)
    request = MeasureRequest(**json.loads((scratch / REQUEST).read_text()))
    with join_ranks(config) as ranks:
        run = build_run(standing_still(config), ranks, read_left_out(RunFolder(scratch).left_out, config.dataset))
        try:
            measured = StepProfiler(run, request).measure(scratch)
        except Stopped:
            return
        finally:
            run.loaders.close()
        if ranks.is_first:
            measured.write(scratch / ANSWER)


def standing_still(config: RunConfig) -> RunConfig:
    """The config with a learning rate of 0: steps cost the same, and weights that jump about cannot overflow."""
    return replace(config, optimizer=replace(config.optimizer, lr=0.0))


class StepProfiler:
    """Times one run's parts; all ranks do the same number of steps."""

    def __init__(self, run: Run, request: MeasureRequest):
        self.run, self.request = run, request
        self._started = time.time()
        self._round_seconds = request.seconds / ROUNDS
        kinds = step_kinds(run.plan)
        chosen, common = step_samples(kinds), common_acting(kinds)
        self._common = [point for point in chosen if point.kind.acting == common]
        self._ends = [self._common[0], self._common[-1]][: len(self._common)]
        self._points = chosen
        self._steps: dict[StepSample, list[float]] = {point: [] for point in self._points}
        self._loads: dict[StepSample, list[float]] = {point: [] for point in self._ends}
        self._both: dict[StepSample, list[float]] = {point: [] for point in self._common}

    def measure(self, scratch: Path) -> Measurement:
        """Everything, in rounds."""
        first_batch, self._batch = self._first_batch()
        new_sizes = self._warm_up()
        transfers, epoch_starts = [], []
        for number in range(1, ROUNDS + 1):
            if self.run.ranks.is_first:
                print(f"measuring, round {number} of {ROUNDS}", flush=True)
            for point, seconds in self._steps.items():
                seconds.append(self._step_alone(point))
            for point, seconds in self._both.items():
                seconds.append(self._both_together(point))
            for point, seconds in self._loads.items():
                seconds.append(self._load_alone(point))
            transfers.append(self._transfer())
            epoch_starts.append(self._epoch_start())
        evaluation = self._evaluation()
        saves, last_save = self._saves(scratch)
        return Measurement(
            device=device_name(self.run.ranks.device),
            world_size=self.run.ranks.world_size,
            workers=self._workers,
            cores=rank_cores(self.run.ranks.local_world_size) * self.run.ranks.local_world_size,
            start_seconds=self._started - self.request.asked_at,
            points=[self._of(point) for point in self._points],
            transfer_seconds=transfers,
            first_batch_seconds=first_batch,
            epoch_start_seconds=epoch_starts,
            new_size_seconds=new_sizes,
            evaluation=evaluation,
            save_seconds=saves,
            last_save_seconds=last_save,
        )

    def _of(self, point: StepSample) -> StepTimes:
        kind = point.kind
        steps, loads, both = self._steps[point], self._loads.get(point), self._both.get(point)
        return StepTimes(kind.image_size, list(kind.acting), steps, loads, both)

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

    def _first_batch(self) -> tuple[float, Loaded]:
        start = time.perf_counter()
        batch = next(self._batches(0, 0))
        return time.perf_counter() - start, batch

    def _warm_up(self) -> list[float]:
        """A few steps of every point; returns what the first step at each new side took above the next ones."""
        sides: dict[int, float] = {}
        for point in self._points:
            first = self._timed(1, lambda point=point: self._step(self._batch, point, 0))  # type: ignore[misc]
            later = self._step_alone(point, _WARMUP_STEPS)
            sides.setdefault(point.kind.image_size, max(0.0, first - later))
        return list(sides.values())

    def _step_alone(self, point: StepSample, count: int | None = None) -> float:
        """Seconds of a step on a batch that is there already."""
        count = count or self._count(self._steps[point])
        numbers = iter(range(count))
        return self._timed(count, lambda: self._step(self._batch, point, next(numbers)))

    def _both_together(self, point: StepSample) -> float:
        """Seconds of a step with its loading, as the training loop does it."""
        count = self._within_epoch(self._count(self._both[point] or self._steps[point]))
        batches = self._batches(*self._start_of(point, count))
        for number in range(self._ahead):
            self._step(next(batches), point, number)
        numbers = iter(range(count))
        return self._timed(count, lambda: self._step(next(batches), point, next(numbers)))

    def _load_alone(self, point: StepSample) -> float:
        """Seconds a batch when nothing but loading happens."""
        known = self._loads[point] or self._both.get(point) or self._steps[point]
        count = self._within_epoch(self._count(known))
        batches = self._batches(*self._start_of(point, count))
        for _ in range(self._ahead):
            next(batches)
        return self._timed(count, lambda: next(batches))

    def _transfer(self) -> float:
        """Seconds to copy a batch to the GPU; 0 where training is on the CPU."""
        images = self._batch[0]
        if images.device.type == "cpu":
            return 0.0
        pinned = torch.empty_like(images, device="cpu", pin_memory=True)
        return self._timed(8, lambda: pinned.to(images.device, non_blocking=True))

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
        batch_size = max(1, self.run.config.eval_batch_size // ranks)
        batches = math.ceil(math.ceil(samples / ranks) / batch_size)
        return EvaluationTimes(first_start, [start], [batch, again], batches)

    def _evaluate(self) -> tuple[float, float]:
        """Seconds until the first batch, and of a batch."""
        arrivals: list[float] = []

        def enough() -> bool:
            HEARTBEAT.beat()
            arrivals.append(time.perf_counter())
            return arrivals[-1] - arrivals[0] > self.request.seconds

        begin = time.perf_counter()
        complete = self.run.evaluate(should_stop=enough) is not None
        end = time.perf_counter()
        batches = len(arrivals) - (not complete)
        return arrivals[0] - begin, (end - arrivals[0]) / max(1, batches)

    def _saves(self, scratch: Path) -> tuple[list[float], float]:
        """Seconds that a save takes from the middle of a run, and the last one, on the disk of the scratch folder."""
        between = []
        with Saver(RunFolder(scratch), self.run.config.checkpoint, self.run.ranks) as saver:
            for _ in range(_SAVES):
                between.append(self._timed(1, lambda: saver.save(self.run.state_dict(), best=False, last=False)))
                saver.wait(must_succeed=True)
            return between, self._timed(1, lambda: saver.save(self.run.state_dict(), best=False, last=True))

    def _batches(self, epoch: int, first_step: int) -> Iterator[Loaded]:
        return iter(self.run.loaders.train.epoch(epoch, first_step))

    def _start_of(self, point: StepSample, count: int) -> tuple[int, int]:
        """Epoch and step in it from which a point's batches are read, so many that they last."""
        epoch, step = divmod(point.steps[len(point.steps) // 2], self.run.plan.steps_per_epoch)
        return epoch, max(0, min(step, self.run.plan.steps_per_epoch - self._ahead - count))

    def _step(self, batch: Loaded, point: StepSample, number: int) -> Tensor:
        images, labels, indices = batch
        loss = self.run.step(images, labels, indices, self.run.moment(point.steps[number % len(point.steps)]))
        HEARTBEAT.beat()
        if STOP.agreed().stop:
            raise Stopped
        return loss

    def _count(self, known: list[float]) -> int:
        """Steps that fill a round's seconds, the same on all ranks."""
        return agreed_count(self._round_seconds, known[-1]) if known else 1

    def _within_epoch(self, count: int) -> int:
        """Whole turns of the loader's workers, and no more than an epoch has."""
        turns = max(1, self._workers)
        return max(1, min(math.ceil(count / turns) * turns, self.run.plan.steps_per_epoch - self._ahead))

    def _timed(self, count: int, work: Callable[[], object]) -> float:
        """Mean seconds of so many calls, until the device is done with them."""
        self._synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        self._synchronize()
        return (time.perf_counter() - start) / count

    def _synchronize(self) -> None:
        if self.run.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.run.ranks.device)


def agreed_count(seconds: float, each: float) -> int:
    """How many calls of `each` seconds fill a time: at least one, and on all ranks as many as on the fastest."""
    count = torch.tensor(max(1, round(seconds / max(each, 1e-9))))
    if dist.is_initialized():
        dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
