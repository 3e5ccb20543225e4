"""Time the training steps of a measurement, captured in CUDA graphs if those of the run are."""

import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from launcher.compute.accelerator import synchronize
from launcher.config.fields import is_on
from launcher.data.batch import Loaded
from launcher.plan.step_kinds import StepSample
from launcher.rank.signs import STOP, Requests
from launcher.stopping import StopRequested
from launcher.training import captured
from launcher.training.captured import CapturedSteps, Capturer, why_not_captured
from launcher.training.meters import StepOutcome
from launcher.training.trainer import Trainer


def capture(run: Trainer, capturer: type[Capturer] = Capturer) -> int:
    """Capture steps as the run does, without its messages; return how many steps of a kind precede a graph."""
    step, value = run.train_step, run.config.cuda_graphs
    if not is_on(value) or why_not_captured(run.ranks, step.engine, step.optimizer) is not None:
        return 0
    step.captured = CapturedSteps(capturer(run.ranks.device), value)
    return captured.WARMUP_STEPS


class StepTimer:
    """Time the steps of a run, including the work on the device; all ranks take the same number."""

    def __init__(self, run: Trainer):
        self.run = run
        self._last: StepOutcome | None = None

    def step(self, batch: Loaded, sample: StepSample, number: int) -> StepOutcome:
        """Take a step on a batch, at step `number` of a sample; raise StopRequested after a stop request."""
        step = self.run.train_step
        # note: a change of the trainable parameters rebuilds the buckets of gradients, which is not part of a step
        chosen = 0 if step.engine.changing_parameters else number % len(sample.steps)
        moment = self.run.moment(sample.steps[chosen])
        before, self._last = self._last, step(*batch, moment, Requests(STOP.requested))
        step.engine.after_step(step.model, moment)
        if before is not None and before.report().requests.stop:
            raise StopRequested(signal.SIGTERM)
        return self._last

    def mean(self, count: int, run: Callable[[int], object]) -> float:
        """Return the mean seconds of `count` calls with the numbers from 0."""
        self.synchronize()
        start = time.perf_counter()
        for number in range(count):
            run(number)
        self.synchronize()
        return (time.perf_counter() - start) / count

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        synchronize(self.run.ranks.device)


def agreed_count(seconds: float, each: float) -> int:
    """Return how many calls of `each` seconds fill a time: at least one, and the maximum over all ranks."""
    count = torch.tensor(max(1, round(seconds / max(each, 1e-9))))
    if dist.is_initialized():
        dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)
