"""The training loop, from top to bottom.

for each epoch:
    for each step:
        step           augment, normalise, mix; forward and backward; optimizer; averages (training/step.py)
        settle         what became of the step before, which the device has done by now: its line is written
        not finite     a loss or gradients that are not: skip, roll back, or stop (training/nonfinite.py)
        advance        count the step
        log            a line every logger.interval
        end of epoch   the line of the epoch
        asked          with the step before, of any rank: to save by the clock, or to stop
        evaluate       every eval_every and at the end
        save           every checkpoint.every and so many minutes, the best, and the last
        stop           when asked to, at the target, and at the end
"""

from __future__ import annotations

from contextlib import closing

from launcher.data.inspect import held_out
from launcher.data.loaders import build_evaluation
from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.stop import Asked, StopFlag
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer


def train(trainer: Trainer, logger: MetricLogger, saver: Saver, guard: NonFiniteGuard, stop: StopFlag) -> bool:
    """Train from `trainer.next_step` to the end; returns False if asked to stop before it, with everything saved."""
    stopping = False
    if trainer.evaluation_is_due:
        # note: a run that was stopped in the middle of an evaluation owes it
        stopping = not evaluate(trainer, logger, stop)
    while not (stopping or trainer.is_done):
        trainer.clock.start_training()
        batches = trainer.rest_of_epoch()
        for images, labels, indices in batches:
            moment, requests = trainer.moment(trainer.next_step), Asked(stop.asked, saver.is_due())
            outcome = trainer.train_step(images, labels, indices, moment, requests)
            # note: only now, as the device has a step to do, the host waits to learn of the one before
            before = guard.settle()
            if before.rolled_back:
                break
            if before.left_out:
                outcome = trainer.train_step(images, labels, indices, moment, requests)
            guard.watch(outcome)
            trainer.advance(outcome, batches.waited)
            logger.log_step()
            if trainer.is_at_epoch_end:
                logger.log_epoch()

            asked = before.asked
            due = asked.stop or asked.save or trainer.is_done or trainer.evaluation_is_due or trainer.save_is_due
            if due and guard.settle().rolled_back:
                break
            stopping = asked.stop
            if trainer.evaluation_is_due and not stopping:
                stopping = not evaluate(trainer, logger, stop)
            last = stopping or trainer.is_done
            if last or asked.save or trainer.save_is_due:
                with trainer.clock.saving():
                    saver.save(trainer.state_dict(), best=trainer.is_best, last=last)
            if last:
                break
    trainer.clock.stop()
    return not stopping


def evaluate(trainer: Trainer, logger: MetricLogger, stop: StopFlag) -> bool:
    """Evaluate, and note and log the result; returns False if a rank was asked to stop meanwhile."""
    with trainer.clock.evaluation() as spent:
        result = trainer.evaluate(should_stop=lambda: stop.asked)
    if result is None:
        return False
    trainer.note_evaluation(result)
    logger.log_evaluation(result, spent())
    return True


def evaluate_held_out(trainer: Trainer, logger: MetricLogger, stop: StopFlag) -> bool:
    """Evaluate the finished run on the pictures of `dataset.test_path`, if any, and log the result.

    Returns False if a rank was asked to stop meanwhile.

    Raises:
        UserError: they are gone.
    """
    dataset, ranks = trainer.config.dataset, trainer.ranks
    if dataset.test_path is None:
        return True
    pictures, _ = held_out(dataset, trainer.loaders.evaluate.classes, lambda *_: HEARTBEAT.beat())
    share = {"rank": ranks.rank, "world_size": ranks.world_size, "local_world_size": ranks.local_world_size}
    with closing(build_evaluation(trainer.plan, pictures, ranks.device, **share)) as loader:
        with trainer.clock.evaluation() as spent:
            result = trainer.evaluate(should_stop=lambda: stop.asked, loader=loader)
        if result is not None:
            logger.log_evaluation(result, spent(), held_out=True)
    return result is not None
