"""One rank of a measurement: the real step, loader and evaluation of a config, each for a few seconds.

The parts take turns, round by round, so that a temporary slowdown of the machine affects all of them.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch

from launcher.compute.probe import rank_cores
from launcher.data.batch import Loaded
from launcher.data.loaders.base import loader_of
from launcher.measure.estimate import REQUEST, RESULT, EvaluationTimes, Measurement, StepTimes
from launcher.measure.step_timer import StepTimer, agreed_count, capture
from launcher.plan.step_kinds import StepSample, common_acting, step_kinds, step_samples
from launcher.rank.group import any_rank
from launcher.records.run_folder import RunFolder
from launcher.stopping import StopRequested
from launcher.training.compiled import compile_run
from launcher.training.features import use_features
from launcher.training.opened import opened
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer

ROUNDS = 4
WARMUP_STEPS = 2
_SAVES = 3
_COPIES = 8


def profile(scratch: Path) -> None:
    """Measure every kind of step, loading, evaluation and saving of the scratch folder's config."""
    write_result(scratch, lambda *request: asdict(StepProfiler(*request).measure(scratch)))


class StepProfiler:
    """Time the parts of a run; all ranks take the same number of steps."""

    def __init__(self, run: Trainer, seconds: float, requested_at: float):
        self.run, self._seconds, self._timer = run, seconds, StepTimer(run)
        compile_run(run)
        self._first_steps = 1 + capture(run)
        # note: the monotonic clock is the same in all processes
        self._start_seconds = time.monotonic() - requested_at
        # note: rounds may take a third of the minutes of a run
        self._until = requested_at + 60 * (run.config.stop.minutes or math.inf) / 3
        kinds = step_kinds(run.plan)
        chosen = step_samples(kinds)
        common = [sample for sample in chosen if sample.kind.acting == common_acting(kinds)]
        self._steps: dict[StepSample, list[float]] = {sample: [] for sample in chosen}
        self._both: dict[StepSample, list[float]] = {sample: [] for sample in common}
        self._loads: dict[StepSample, list[float]] = {sample: [] for sample in (common[0], common[-1])}

    def measure(self, scratch: Path) -> Measurement:
        """Measure all parts in rounds."""
        start = time.perf_counter()
        self._batch = next(self._batches(0, 0))
        first_batch = time.perf_counter() - start
        new_sizes = self._warm_up()
        transfers, epoch_starts = [], []
        for number in range(1, ROUNDS + 1):
            if self.run.ranks.is_first:
                print(f"measuring, round {number} of {ROUNDS}", flush=True)
            for sample, seconds in self._steps.items():
                if self._first_steps > 1:
                    # note: only graphs of the last view exist
                    self._step_alone(sample, self._first_steps)
                seconds.append(self._step_alone(sample))
                if (both := self._both.get(sample)) is not None:
                    both.append(self._with_loading(sample, both or seconds, self._timer.step))
            for sample, seconds in self._loads.items():
                seconds.append(self._with_loading(sample, seconds or self._both[sample], lambda *_: None))
            transfers.append(self._transfer())
            epoch_starts.append(self._epoch_start())
            if any_rank(time.monotonic() > self._until):
                break
        evaluation = self._evaluation()
        saves, last_save = self._saves(scratch)
        return Measurement(
            device=self.run.ranks.device_name,
            world_size=self.run.ranks.world_size,
            workers=self._workers,
            cores=rank_cores(self.run.ranks.local_world_size) * self.run.ranks.local_world_size,
            start_seconds=self._start_seconds,
            steps=[
                StepTimes(s.kind.view, list(s.kind.acting), seconds, self._loads.get(s), self._both.get(s))
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
        return loader_of(self.run.config).workers_here(self.run.plan, self.run.ranks.local_world_size)

    @property
    def _ahead(self) -> int:
        """Batches that the loader prefetches: after as many it is in the state of the middle of a run."""
        ahead = self._workers * loader_of(self.run.config).batches_ahead
        return min(ahead, self.run.plan.steps_per_epoch // 2)

    def _warm_up(self) -> list[float]:
        """Take a few steps of every kind; return the extra seconds of the first steps at each new size."""
        sizes: dict[int, float] = {}
        for sample in self._steps:
            first, later = self._step_alone(sample, self._first_steps), self._step_alone(sample, WARMUP_STEPS)
            sizes.setdefault(sample.kind.view, max(0.0, self._first_steps * (first - later)))
        return list(sizes.values())

    def _step_alone(self, sample: StepSample, count: int | None = None) -> float:
        """Return the seconds of a step on a loaded batch."""
        count = count or self._count(self._steps[sample])
        return self._timer.mean(count, lambda number: self._timer.step(self._batch, sample, number))

    def _with_loading(
        self, sample: StepSample, earlier: list[float], use: Callable[[Loaded, StepSample, int], object]
    ) -> float:
        """Return the seconds per batch of loading and of its use, as in the training loop."""
        count = self._within_epoch(self._count(earlier))
        batches = self._batches(*self._start_of(sample, count))
        for number in range(self._ahead):
            use(next(batches), sample, number)

        return self._timer.mean(count, lambda number: use(next(batches), sample, number))

    def _transfer(self) -> float:
        """Return the seconds to copy a batch to the GPU; 0 on the CPU."""
        images = self._batch[0]
        if images.device.type == "cpu":
            return 0.0
        pinned = torch.empty_like(images, device="cpu", pin_memory=True)
        return self._timer.mean(_COPIES, lambda _: pinned.to(images.device, non_blocking=True))

    def _epoch_start(self) -> float:
        """Return the seconds to the first batch of an epoch after a complete epoch."""
        length = self.run.plan.steps_per_epoch
        for _ in self._batches(0, length - 1):
            pass
        start = time.perf_counter()
        batches = self._batches(1, max(0, length - 1 - self._ahead))
        next(batches)
        seconds = time.perf_counter() - start
        for _ in batches:
            pass
        return seconds

    def _evaluation(self) -> EvaluationTimes:
        """Evaluate twice for the seconds of the request; the first evaluation starts the loader's workers."""
        (first_start, batch), (start, again) = self._evaluate(), self._evaluate()
        samples, ranks = self.run.config.dataset.val_samples or 0, self.run.ranks.world_size
        batches = math.ceil(math.ceil(samples / ranks) / self.run.plan.rank_eval_batch)
        return EvaluationTimes(first_start, [start], [batch, again], batches)

    def _evaluate(self) -> tuple[float, float]:
        """Return the seconds to the first batch, and per batch."""
        arrivals: list[float] = []

        def enough() -> bool:
            arrivals.append(time.perf_counter())
            return arrivals[-1] - arrivals[0] > self._seconds

        start = time.perf_counter()
        complete = self.run.evaluate(should_stop=enough) is not None
        end = time.perf_counter()
        batches = len(arrivals) - (not complete)
        return arrivals[0] - start, (end - arrivals[0]) / max(1, batches)

    def _saves(self, scratch: Path) -> tuple[list[float], float]:
        """Return the seconds by which checkpoints in a run, and the last one, interrupt it on this disk."""
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
        """Return the epoch, and the first step in it, from which to read the batches of a sample."""
        length = self.run.plan.steps_per_epoch
        epoch, step = divmod(sample.steps[len(sample.steps) // 2], length)
        return epoch, max(0, min(step, length - self._ahead - count))

    def _count(self, earlier: list[float]) -> int:
        """Return the steps that fill a round, the same on all ranks, from earlier step times."""
        return agreed_count(self._seconds / ROUNDS, earlier[-1]) if earlier else 1

    def _within_epoch(self, count: int) -> int:
        """Round up to a multiple of the workers, at most an epoch."""
        workers = max(1, self._workers)
        return max(1, min(math.ceil(count / workers) * workers, self.run.plan.steps_per_epoch - self._ahead))


def write_result(scratch: Path, measure: Callable[[Trainer, float, float], object], lr: float = 0.0) -> None:
    """Measure by the request in the folder; rank 0 writes the result there, unless the measurement is stopped.

    lr: the learning rate; with 0 all steps cost the same, and the weights cannot overflow.
    """
    seconds, requested_at = json.loads((scratch / REQUEST).read_text())
    with opened(scratch) as folder:
        config = replace(folder.config, optimizer=replace(folder.config.optimizer, lr=lr))
        with folder.trainer(config) as run:
            use_features(run)
            try:
                result = measure(run, seconds, requested_at)
            except StopRequested:
                return
            if run.ranks.is_first:
                (scratch / RESULT).write_text(json.dumps(result))
