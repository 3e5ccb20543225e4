"""The training loop, from top to bottom.

for each epoch:
    for each step:
        step         augment, prepare, mix; forward and backward; optimizer (training/step.py)
            finish it, or on a device with streams the one two before, while the device has the others: update averages,
            or skip it or stop if it was not finite (training/nonfinite.py)
            finish all before this one to log, every logger.interval and at the end of an epoch, and this one too before
            an average, an evaluation, a checkpoint or the end
        evaluate     every eval_every and at the end
        save         every checkpoint.every and checkpoint.every_minutes, the best, and the last
        last         after a stop request of a rank, at the target, by stop.patience or minutes, and at the end
"""

from contextlib import closing

from launcher.data.inspection import held_out
from launcher.data.loading import EvaluationLoader, build_evaluation
from launcher.data.sources.find import with_classes
from launcher.rank.group import any_rank
from launcher.rank.signs import HEARTBEAT, Requests, StopFlag
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer


def train(trainer: Trainer, logger: MetricLogger, saver: Saver, guard: NonFiniteGuard, stop: StopFlag) -> bool:
    """Train from `trainer.next_step` to the end; return False after a stop request, with a checkpoint saved."""
    stopping = False
    if trainer.evaluation_is_due:
        # note: the run was stopped during this evaluation, so its checkpoint may be missing too
        stopping = not evaluate(trainer, logger, stop)
        if not stopping:
            save(trainer, saver, last=trainer.is_done)
    while not (stopping or trainer.is_done):
        trainer.clock.switch("training")
        batches = trainer.rest_of_epoch()
        for batch in batches:
            stops = stop.requested or trainer.callbacks.has_failed
            requests = guard.step(batch, Requests(stops or trainer.time_is_up, saver.is_due()), batches.waited)
            stopping = requests.stop and any_rank(stops)
            trainer.out_of_time = requests.stop and not stopping and trainer.next_step < trainer.plan.total_steps
            if trainer.evaluation_is_due and not stopping:
                stopping = not evaluate(trainer, logger, stop)
            last = stopping or trainer.is_done
            if last or requests.save or trainer.save_is_due:
                save(trainer, saver, last=last)
            if last:
                break
    trainer.clock.switch(None)
    return not stopping


def evaluate(trainer: Trainer, logger: MetricLogger, stop: StopFlag, held_out: EvaluationLoader | None = None) -> bool:
    """Evaluate, on the validation or `held_out` images, and log the result; return False if a rank requested a stop."""
    with trainer.clock.counting("evaluation") as spent:
        result = trainer.evaluate(should_stop=lambda: stop.requested, loader=held_out)
    if result is None:
        return False
    if held_out is None:
        trainer.note_evaluation(result)
    logger.log_evaluation(result, spent(), held_out=held_out is not None)
    return True


def save(trainer: Trainer, saver: Saver, *, last: bool) -> None:
    """Save a checkpoint, also as the best if it is; `last` waits until it is on disk."""
    with trainer.clock.counting("saving"):
        saver.save(trainer.state_dict(), best=trainer.is_best, last=last)


def evaluate_held_out(trainer: Trainer, logger: MetricLogger, stop: StopFlag) -> bool:
    """Evaluate the finished run on the images of `dataset.test_path`, if set, and log the result.

    Returns False if a rank requested a stop.

    Raises UserError if the images are missing.
    """
    if trainer.config.dataset.test_path is None:
        return True
    config, loaders = trainer.config, trainer.loaders
    if loaders.test is None:
        images, _ = held_out(config, **loaders.facts(), report=lambda *_: HEARTBEAT.beat())
    else:
        images = with_classes(loaders.test, loaders.facts()["classes"], config)
    with closing(build_evaluation(trainer.plan, images, trainer.ranks)) as loader:
        return evaluate(trainer, logger, stop, loader)
