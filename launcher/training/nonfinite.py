"""Handle steps with a non-finite loss or gradients: skip, or stop."""

from collections import deque
from dataclasses import dataclass, replace

from launcher.compute.accelerator import has_streams
from launcher.counts import count_of
from launcher.data.batch import Loaded, Moment
from launcher.errors import UserError
from launcher.rank.group import gather
from launcher.rank.signs import NO_REQUESTS, Requests
from launcher.records.metrics import NonFiniteRecord, now
from launcher.training.meters import StepOutcome
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

    A step is finite on all ranks or on none. The device drops the steps in its queue behind one that is not finite, and
    they are repeated.
    """

    def __init__(self, trainer: Trainer, logger: MetricLogger):
        self._trainer, self._logger = trainer, logger
        self._settings = trainer.config.nonfinite
        self._queue: deque[_Queued] = deque()
        # note: a callback after a step reads the weights of this step
        self._ahead = _AHEAD if has_streams(trainer.ranks.device) and not trainer.callbacks.follow_steps else 0

    def step(self, batch: Loaded, requests: Requests, waited: float) -> Requests:
        """Queue the next step, and finish the one `_AHEAD` steps before; `waited`: seconds of waiting for the batch.

        All steps before it are finished if a record is due after it, and the step itself too if an average, an
        evaluation, a checkpoint or the end is. Returns the requests of any rank at the start of the finished steps.

        Raises UserError if the policy ends the run.
        """
        trainer = self._trainer
        moment = trainer.moment(trainer.next_step)
        self._queue.append(_Queued(batch, moment, requests, waited, trainer.train_step(*batch, moment, requests)))
        trainer.next_step += 1
        if len(self._queue) == 1:
            self._count()
        # note: a record reads only steps that are not repeated
        requests = self._finish_all_but(min(1, self._ahead) if self._logger.is_due else self._ahead)
        self._logger.log_step()
        is_due = trainer.save_is_due or trainer.evaluation_is_due or trainer.is_done
        if requests.stop or requests.save or is_due or trainer.train_step.engine.acting_after(moment.step):
            requests = self._finish_all_but(0, requests)
        if not self._queue:
            self._logger.write_pending()
        return requests

    def _finish_all_but(self, ahead: int, requests: Requests = NO_REQUESTS) -> Requests:
        """Finish the first steps of the queue, for which the host waits; add their requests to others."""
        while len(self._queue) > ahead:
            of_step = self._finish_first()
            requests = Requests(requests.stop or of_step.stop, requests.save or of_step.save)
        return requests

    def _count(self) -> None:
        """Count the first step of the queue, which is not repeated."""
        self._trainer.count(self._queue[0].outcome, self._queue[0].waited)

    def _finish_first(self) -> Requests:
        """Read the first step's result, handle it if it is not finite, and write its records."""
        trainer, first = self._trainer, self._queue.popleft()
        report = first.outcome.report()
        if not report.dropped:
            trainer.train_step.engine.after_step(trainer.train_step.model, first.moment)
        trainer.callbacks.after_step(trainer, first.outcome.loss_and_count)
        if report.finite:
            trainer.skipped_in_a_row = 0
        else:
            self._handle(first.outcome, report.loss)
        self._logger.write_pending()
        if not report.finite:
            self._queue = deque(
                replace(one, outcome=trainer.train_step(*one.batch, one.moment, one.requests)) for one in self._queue
            )
        if self._queue:
            self._count()
        return report.requests

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
