"""Handle steps with a non-finite loss or gradients: skip, or stop."""

from dataclasses import dataclass, replace

from launcher.accelerator import has_streams
from launcher.counts import count_of
from launcher.data.batch import Loaded, Moment
from launcher.errors import UserError
from launcher.rank.group import gather
from launcher.rank.signs import Requests
from launcher.records.metrics import NonFiniteRecord, now
from launcher.training.meters import StepOutcome, StepReport
from launcher.training.metric_logger import MetricLogger
from launcher.training.trainer import Trainer

# Steps that a device with streams has in its queue behind the one for which the host waits.
_AHEAD = 2


@dataclass(frozen=True)
class _Queued:
    """A step in the device's queue, with what repeats it; waited: seconds of waiting for its batch."""

    batch: Loaded
    moment: Moment
    requests: Requests
    waited: float
    outcome: StepOutcome


class NonFiniteGuard:
    """Takes the run's steps under the policy `nonfinite`; all ranks call it together.

    A step is finite on all ranks or on none. `_previous` is the first step in the device's queue. The device drops
    those that are `_following`, and they are repeated, if it is not finite.
    """

    def __init__(self, trainer: Trainer, logger: MetricLogger):
        self._trainer, self._logger = trainer, logger
        self._settings = trainer.config.nonfinite
        self._previous: StepOutcome | None = None
        self._following: list[_Queued] = []
        # note: a callback after a step reads the weights of this step
        self._ahead = _AHEAD if has_streams(trainer.ranks.device) and not trainer.callbacks.follow_steps else 1

    def step(self, batch: Loaded, requests: Requests, waited: float) -> Requests:
        """Queue the next step, and finish the one `_AHEAD` steps before; `waited`: seconds of waiting for the batch.

        All steps before it are finished if a record is due after it, and the step itself too if an evaluation, a
        checkpoint or the end is. Returns the requests of any rank at the start of the finished steps.

        Raises UserError if the policy ends the run.
        """
        trainer = self._trainer
        moment = trainer.moment(trainer.next_step)
        outcome = trainer.train_step(*batch, moment, requests)
        trainer.next_step += 1
        self._append(_Queued(batch, moment, requests, waited, outcome))
        # note: a record reads only steps that are not repeated
        ahead, stop, save = 1 if self._logger.is_due else self._ahead, False, False
        # note: the host waits only now that the device has more steps
        while len(self._following) >= ahead:
            finished = self._finish_previous().requests
            stop, save = stop or finished.stop, save or finished.save
        self._logger.log_step()
        if stop or save or trainer.save_is_due or trainer.evaluation_is_due or trainer.is_done:
            while self._previous is not None:
                self._finish_previous()
        return Requests(stop, save)

    def _append(self, step: _Queued) -> None:
        """Add a step to the queue; the first one is not repeated, so it counts."""
        if self._previous is None:
            self._previous = step.outcome
            self._trainer.count(step.outcome, step.waited)
        else:
            self._following.append(step)

    def _finish_previous(self) -> StepReport:
        """Read the first step's result, handle it if it is not finite, and write its records."""
        outcome, following = self._previous, self._following
        assert outcome is not None
        self._previous, self._following = None, []
        report = outcome.report()
        if report.finite:
            self._trainer.skipped_in_a_row = 0
        else:
            self._handle(outcome, report.loss)
        self._logger.write_pending()
        for step in following:
            self._append(step if report.finite else self._repeated(step))
        return report

    def _repeated(self, step: _Queued) -> _Queued:
        return replace(step, outcome=self._trainer.train_step(*step.batch, step.moment, step.requests))

    def _handle(self, outcome: StepOutcome, loss: float) -> None:
        """Apply the policy to a step that was not finite."""
        settings, trainer, step = self._settings, self._trainer, outcome.moment.step
        trainer.skipped_in_a_row += 1
        skipped = trainer.skipped_in_a_row
        samples = gather(outcome.indices.tolist())
        self._logger.record(NonFiniteRecord(step, now(), loss, settings.policy, samples))
        event = f"step {step}: non-finite loss or gradients (loss {loss:.4g})"
        remedy = "try a lower optimizer.lr or a longer schedule.warmup; metrics.jsonl has the samples of the step"
        if settings.policy == "stop":
            raise UserError(f"{event} (nonfinite.policy=stop); {remedy}")
        if skipped > settings.limit:
            raise UserError(
                f"{event} for {count_of(skipped, 'step')} in a row (nonfinite.limit={settings.limit}); {remedy}"
            )
        self._warn(f"{event}; skipped ({skipped} in a row, at most {settings.limit})")

    def _warn(self, message: str) -> None:
        if self._trainer.ranks.is_first:
            print(f"warning: {message}", flush=True)
