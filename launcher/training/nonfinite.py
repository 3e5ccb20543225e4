"""Handle steps with a non-finite loss or gradients: skip, roll back to the last checkpoint, or stop."""

from launcher.counts import count_of
from launcher.data.batch import Loaded
from launcher.errors import UserError
from launcher.rank.group import gather
from launcher.rank.signs import NO_REQUESTS, Requests
from launcher.records.metrics import NonFiniteRecord, now
from launcher.records.run_folder import RunFolder, checkpoint_files, checkpoint_name
from launcher.training import checkpoint
from launcher.training.meters import StepOutcome, StepReport
from launcher.training.metric_logger import MetricLogger
from launcher.training.saving import Saver, newest_on_all_ranks
from launcher.training.trainer import Trainer

# At the start of a run there is no previous step to finish.
_NO_STEP = StepReport(0.0, 0.0, True, NO_REQUESTS)


class NonFiniteGuard:
    """Takes the run's steps under the policy `nonfinite`; all ranks call it together.

    A step is finite on all ranks or on none.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder, logger: MetricLogger, saver: Saver):
        self._trainer, self._folder, self._logger, self._saver = trainer, folder, logger, saver
        self._settings = trainer.config.nonfinite
        self._rollbacks = 0
        self._previous: StepOutcome | None = None

    def step(self, batch: Loaded, requests: Requests, waited: float) -> Requests | None:
        """Take and log the next step, and finish the previous one; `waited` is the seconds of waiting for the batch.

        The step itself is also finished if an evaluation, a checkpoint or the end is due after it. Returns the requests
        of any rank at the start of the previous step; None after a rollback to a checkpoint.

        Raises UserError if the policy ends the run.
        """
        trainer = self._trainer
        moment = trainer.moment(trainer.next_step)
        outcome = trainer.train_step(*batch, moment, requests)
        # note: the host waits for the previous step only now that the device has the next one
        previous = self._finish_previous()
        if previous is None:
            return None
        if not previous.finite:
            outcome = trainer.train_step(*batch, moment, requests)
        self._previous = outcome
        trainer.advance(outcome, waited)
        self._logger.log_step()
        stop, save = previous.requests.stop, previous.requests.save or trainer.save_is_due
        due = stop or save or trainer.evaluation_is_due or trainer.is_done
        return None if due and self._finish_previous() is None else previous.requests

    def _finish_previous(self) -> StepReport | None:
        """Read the result of the last step, handle it if it is not finite, and write its records; None: rolled back."""
        outcome, self._previous = self._previous, None
        if outcome is None:
            return _NO_STEP
        report = outcome.report()
        if report.finite:
            self._trainer.skipped_in_a_row = 0
        elif self._handle(outcome, report.loss):
            return None
        self._logger.write_pending()
        return report

    def _handle(self, outcome: StepOutcome, loss: float) -> bool:
        """Apply the policy; return whether the run was rolled back."""
        settings, trainer, step = self._settings, self._trainer, outcome.moment.step
        trainer.skipped_in_a_row += 1
        skipped = trainer.skipped_in_a_row
        if skipped == 1:
            self._save_for_replay(step)
        samples = gather(outcome.indices.tolist())
        self._logger.record(NonFiniteRecord(step, now(), loss, settings.policy, samples))
        event = f"step {step}: non-finite loss or gradients (loss {loss:.4g})"
        replay = f"inspect it with: train replay {self._folder.path} step={step - skipped + 1}"
        if settings.policy == "stop":
            raise UserError(f"{event} (nonfinite.policy=stop); {replay}")
        if settings.policy == "skip":
            if skipped > settings.limit:
                raise UserError(
                    f"{event} for {count_of(skipped, 'step')} in a row (nonfinite.limit={settings.limit}); "
                    f"try a lower optimizer.lr or a longer schedule.warmup; {replay}"
                )
            self._warn(f"{event}; skipped ({skipped} in a row, at most {settings.limit}); {replay}")
            return False
        self._rollbacks += 1
        if self._rollbacks > settings.limit:
            raise UserError(f"{event} after {count_of(settings.limit, 'rollback')} (nonfinite.limit); {replay}")
        self._roll_back()
        factor = trainer.train_step.lr_factor
        self._warn(f"{event}; rolled back to step {trainer.next_step}, learning rate x {factor:g}; {replay}")
        return True

    def _roll_back(self) -> None:
        self._saver.wait(must_succeed=True)
        state = newest_on_all_ranks(self._folder, self._trainer.ranks)
        if state is None:
            raise UserError("no valid checkpoint to roll back to (nonfinite.policy=rollback); start a new run")
        self._trainer.roll_back(state, self._settings.lr_factor)
        self._logger.log_resume()

    def _save_for_replay(self, step: int) -> None:
        """Save the state before this step, which dropped steps have not changed."""
        checkpoints, state = self._folder.checkpoints, {**self._trainer.state_dict(), "step": step}
        if self._trainer.ranks.is_first:
            for _, earlier in checkpoint_files(checkpoints, "replay"):
                earlier.unlink()
            checkpoint.save(state, checkpoints / checkpoint_name(step, "replay"))

    def _warn(self, message: str) -> None:
        if self._trainer.ranks.is_first:
            print(f"warning: {message}", flush=True)
