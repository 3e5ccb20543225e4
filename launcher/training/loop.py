"""The training loop, from top to bottom.

for each epoch:
    for each step:
        step         augment, normalise, mix; forward and backward; optimizer; averages (training/step.py)
            finish the one before, which the device has done by now: skip it, roll back or stop where it was not
            finite (training/nonfinite.py); count the step; a line every logger.interval and at the end of an epoch
        evaluate     every eval_every and at the end
        save         every checkpoint.every and so many minutes, the best, and the last
        last         when a rank requested a stop, at the target, and at the end
"""

from __future__ import annotations

from contextlib import closing

from launcher.data.inspection import held_out
from launcher.data.loaders import build_evaluation
from launcher.rank.signs import HEARTBEAT, Requests, StopFlag
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer


def train(trainer: Trainer, logger: MetricLogger, saver: Saver, guard: NonFiniteGuard, stop: StopFlag) -> bool:
    """Train from `trainer.next_step` to the end; returns False if a rank requested a stop before, with all saved."""
    stopping = False
    if trainer.evaluation_is_due:
        # note: a run that was stopped in the middle of an evaluation owes it, and the checkpoint of its result
        stopping = not evaluate(trainer, logger, stop)
        if not stopping:
            save(trainer, saver, last=trainer.is_done)
    while not (stopping or trainer.is_done):
        trainer.clock.switch("training")
        batches = trainer.rest_of_epoch()
        for batch in batches:
            requests = guard.step(batch, Requests(stop.requested, saver.is_due()), batches.waited)
            if requests is None:
                break
            stopping = requests.stop
            if trainer.evaluation_is_due and not stopping:
                stopping = not evaluate(trainer, logger, stop)
            last = stopping or trainer.is_done
            if last or requests.save or trainer.save_is_due:
                save(trainer, saver, last=last)
            if last:
                break
    trainer.clock.switch(None)
    return not stopping


def evaluate(trainer: Trainer, logger: MetricLogger, stop: StopFlag) -> bool:
    """Evaluate, and note and log the result; returns False if a rank requested a stop meanwhile."""
    with trainer.clock.counting("evaluation") as spent:
        result = trainer.evaluate(should_stop=lambda: stop.requested)
    if result is None:
        return False
    trainer.note_evaluation(result)
    logger.log_evaluation(result, spent())
    return True


def save(trainer: Trainer, saver: Saver, *, last: bool) -> None:
    """Save a checkpoint, as the best too where it is; `last` waits until it is on disk."""
    with trainer.clock.counting("saving"):
        saver.save(trainer.state_dict(), best=trainer.is_best, last=last)


def evaluate_held_out(trainer: Trainer, logger: MetricLogger, stop: StopFlag) -> bool:
    """Evaluate the finished run on the images of `dataset.test_path`, if any, and log the result.

    Returns False if a rank requested a stop meanwhile.

    Raises:
        UserError: they are gone.
    """
    dataset, ranks = trainer.config.dataset, trainer.ranks
    if dataset.test_path is None:
        return True
    images, _ = held_out(dataset, **trainer.loaders.facts(), report=lambda *_: HEARTBEAT.beat())
    with closing(build_evaluation(trainer.plan, images, ranks)) as loader:
        with trainer.clock.counting("evaluation") as spent:
            result = trainer.evaluate(should_stop=lambda: stop.requested, loader=loader)
        if result is not None:
            logger.log_evaluation(result, spent(), held_out=True)
    return result is not None
