"""The training loop, from top to bottom.

for each epoch:
    for each step:
        batch          loaded by a worker, copied to the device
        step           augment, normalise, mix; forward and backward; optimizer; averages (training/step.py)
        log            every logger.interval
        evaluate       every eval_every and at the end
        save           every save_every, at the end, and when asked to stop
    report the epoch
"""

from __future__ import annotations

from launcher.launch.heartbeat import HEARTBEAT
from launcher.launch.signals import StopFlag
from launcher.records.folder import RunFolder
from launcher.training.journal import Journal
from launcher.training.run import Run
from launcher.training.saving import save


def train(run: Run, folder: RunFolder, journal: Journal, stop: StopFlag) -> bool:
    """Train from `run.next_step` to the end; returns False if asked to stop before it, with everything saved."""
    plan, clock = run.plan, run.clock
    save_every = plan.every(run.config.save_every)

    # note: a run that was stopped in the middle of an evaluation owes it
    stopping = not evaluate_if_due(run, journal, stop)
    while run.next_step < plan.total_steps and not stopping:
        epoch, first_step = divmod(run.next_step, plan.steps_per_epoch)
        clock.start_training()
        batches = run.loaders.train.epoch(epoch, first_step)
        for images, labels, indices in batches:
            moment = run.moment(run.next_step)
            loss = run.step(images, labels, indices, moment)
            run.next_step += 1
            HEARTBEAT.beat()
            journal.step(moment, loss, batches.waited)
            if run.next_step % plan.steps_per_epoch == 0:
                journal.epoch(epoch)

            stopping = stop.agreed() or not evaluate_if_due(run, journal, stop)
            if stopping or run.next_step % save_every == 0 or run.next_step == plan.total_steps:
                with clock.saving():
                    save(run, journal, folder)
            if stopping:
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
    run.best_top1 = max(run.best_top1, result.top1)
    journal.evaluation(result, spent())
    return True
