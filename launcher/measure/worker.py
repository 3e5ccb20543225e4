"""A rank of a measurement: what was asked for, measured on the run of the folder's config; nothing is trained."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.data.batch import Loaded
from launcher.data.unreadable import read_skipped
from launcher.launch.stopping import Stopped
from launcher.measure.measurement import ANSWER, REQUEST, MeasureRequest
from launcher.plan.step_kinds import StepSample
from launcher.rank.group import join_ranks
from launcher.rank.stop import STOP, Requests
from launcher.records.folder import RunFolder
from launcher.training.meters import StepOutcome
from launcher.training.trainer import Trainer, build_trainer

WARMUP_STEPS = 2


def answer(scratch: Path, measure: Callable[[Trainer, MeasureRequest], object]) -> None:
    """Measure as the folder's request asks; rank 0 leaves the answer there, unless the measurement is asked to stop."""
    folder = RunFolder(scratch)
    config = standing_still(read(folder.config))
    request = MeasureRequest(**json.loads((scratch / REQUEST).read_text()))
    with join_ranks(config) as ranks:
        run = build_trainer(config, ranks, read_skipped(folder.skipped, config.dataset))
        try:
            found = measure(run, request)
        except Stopped:
            return
        finally:
            run.loaders.close()
        if ranks.is_first:
            (scratch / ANSWER).write_text(json.dumps(found))


def standing_still(config: RunConfig) -> RunConfig:
    """The config with a learning rate of 0: steps cost the same, and weights that jump about cannot overflow."""
    return replace(config, optimizer=replace(config.optimizer, lr=0.0))


class StepTimer:
    """The time of a run's steps, until the device is done with them; all ranks do the same number of them."""

    def __init__(self, run: Trainer):
        self.run = run
        self._last: StepOutcome | None = None

    def step(self, batch: Loaded, sample: StepSample, number: int) -> None:
        """A step on a batch, the `number`th of a sample's; raises Stopped once the ranks were asked to stop."""
        images, targets, indices = batch
        # note: where other parameters learn, DDP is made anew, which is no part of a step
        chosen = 0 if self.run.train_step.engine.changing_parameters else number % len(sample.steps)
        moment = self.run.moment(sample.steps[chosen])
        before, self._last = self._last, self.run.train_step(images, targets, indices, moment, Requests(STOP.asked))
        if before is not None and before.report().requests.stop:
            raise Stopped

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
