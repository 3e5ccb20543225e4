"""The training loop, from top to bottom.

for each epoch:
    for each step:
        batch          loaded by a worker, copied to the device
        step           augment, normalise, mix; forward and backward; optimizer; averages (training/step.py)
        trouble        a loss or gradients that are not finite: skip, go back, or stop (training/trouble.py)
        log            every logger.interval
        evaluate       every eval_every and at the end; stop at the target
        save           every checkpoint.every and so many minutes, the best, at the end, and when asked to stop
    report the epoch
"""

from __future__ import annotations

from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.stop import StopFlag
from launcher.training.journal import Journal
from launcher.training.nonfinite import Trouble
from launcher.training.run import Run
from launcher.training.saving import Saver


def train(run: Run, journal: Journal, saver: Saver, trouble: Trouble, stop: StopFlag) -> bool:
    """Train from `run.next_step` to the end; returns False if asked to stop before it, with everything saved."""
    plan, clock = run.plan, run.clock
    save_every = plan.every(run.config.checkpoint.every)

    # note: a run that was stopped in the middle of an evaluation owes it
    stopping = not evaluate_if_due(run, journal, stop)
    while run.next_step < plan.total_steps and not (stopping or run.reached_target):
        epoch, first_step = divmod(run.next_step, plan.steps_per_epoch)
        clock.start_training()
        batches = run.loaders.train.epoch(epoch, first_step)
        for images, labels, indices in batches:
            moment = run.moment(run.next_step)
            loss = run.step(images, labels, indices, moment)
            if run.step.finite:
                run.skipped_in_a_row = 0
            elif trouble.goes_back(moment, loss, indices):
                break
            run.next_step += 1
            HEARTBEAT.beat()
            journal.step(moment, loss, batches.waited)
            if run.next_step % plan.steps_per_epoch == 0:
                journal.epoch(epoch)

            asked = stop.agreed(save=saver.is_due())
            stopping = asked.stop or not evaluate_if_due(run, journal, stop)
            ended = stopping or run.reached_target or run.next_step == plan.total_steps
            if ended or asked.save or run.next_step % save_every == 0 or run.is_best:
                with clock.saving():
                    saver.save({**run.state_dict(), "journal": journal.state_dict()}, best=run.is_best, last=ended)
            if ended:
                break
    clock.stop()
    return not stopping


def evaluate_if_due(run: Run, journal: Journal, stop: StopFlag) -> bool:
    """Evaluate at every interval and at the end, once; returns False if asked to stop meanwhile."""
    at_interval = run.next_step % run.plan.every(run.config.eval_every) == 0
    if run.next_step == run.evaluated_step or not (at_interval or run.next_step == run.plan.total_steps):
        return True

    def asked_to_stop() -> bool:
        HEARTBEAT.beat()
        return stop.asked

    with run.clock.evaluation() as spent:
        result = run.evaluate(should_stop=asked_to_stop)
    if result is None:
        return False
    run.evaluated_step = run.next_step
    if result.top1 > run.best_top1:
        run.best_top1, run.best_step = result.top1, run.next_step
    journal.evaluation(result, spent())
    return True
