"""What follows a step whose loss or gradients were not finite: skip it, go back to the last save, or stop."""

from __future__ import annotations

import time

import numpy as np
import torch.distributed as dist
from torch import Tensor

from launcher.data.batch import Moment
from launcher.errors import UserError
from launcher.records.folder import RunFolder
from launcher.records.metrics import NonFiniteRecord
from launcher.training import checkpoint
from launcher.training.journal import Journal
from launcher.training.run import Run
from launcher.training.saving import Saver, newest_for_all


class Trouble:
    """Applies the policy `nonfinite`; every rank calls it together, since a step is finite on all or none."""

    def __init__(self, run: Run, folder: RunFolder, journal: Journal, saver: Saver):
        self._run, self._folder, self._journal, self._saver = run, folder, journal, saver
        self._settings = run.config.nonfinite
        self._rollbacks = 0

    def goes_back(self, moment: Moment, loss: Tensor, indices: np.ndarray) -> bool:
        """Deal with a step that was not finite; True if the run now stands at an earlier save.

        Raises:
            UserError: the run must end.
        """
        settings, run = self._settings, self._run
        run.skipped_in_a_row += 1
        if run.skipped_in_a_row == 1:
            self._keep_for_replay()
        happened = f"step {moment.step}: loss {loss.item():.4g}, loss or gradients are not finite"
        self._journal.record(
            NonFiniteRecord(moment.step, time.time(), loss.item(), settings.policy, self._all_indices(indices))
        )
        first = moment.step - run.skipped_in_a_row + 1
        replay = f"look into it: train replay {self._folder.path} step={first}"
        if settings.policy == "stop":
            raise UserError(f"{happened} (nonfinite.policy=stop); {replay}")
        if settings.policy == "skip":
            if run.skipped_in_a_row > settings.limit:
                raise UserError(
                    f"{happened}, for {run.skipped_in_a_row} steps in a row (nonfinite.limit={settings.limit}): "
                    f"try a lower optimizer.lr or a longer schedule.warmup; {replay}"
                )
            self._say(f"{happened}; skipped ({run.skipped_in_a_row} in a row, at most {settings.limit}); {replay}")
            return False
        self._rollbacks += 1
        if self._rollbacks > settings.limit:
            raise UserError(f"{happened}, after {settings.limit} rollbacks (nonfinite.limit); {replay}")
        self._roll_back()
        self._say(f"{happened}; back to step {run.next_step}, learning rate times {run.step.lr_factor:g}; {replay}")
        return True

    def _roll_back(self) -> None:
        run = self._run
        self._saver.wait(must_succeed=True)
        state = newest_for_all(self._folder, run.ranks)
        if state is None:
            raise UserError("there is no valid save to go back to (nonfinite.policy=rollback)")
        # note: the time of the steps that are lost was spent all the same
        state["clock"] = run.clock.state_dict()
        lr_factor = run.step.lr_factor * self._settings.lr_factor
        run.load_state_dict(state)
        run.step.lr_factor = lr_factor
        self._journal.went_back(state["journal"])

    def _keep_for_replay(self) -> None:
        """The state before this step, which the step has not changed."""
        if self._run.ranks.is_first:
            for earlier in self._folder.checkpoints.glob("replay-*.pt"):
                earlier.unlink()
            path = self._folder.checkpoints / checkpoint.replay_name(self._run.next_step)
            checkpoint.save(self._run.state_dict(), path)

    def _all_indices(self, indices: np.ndarray) -> list[list[int]]:
        """The samples of the step, rank by rank."""
        mine: list[int] = indices.tolist()
        if self._run.ranks.world_size == 1:
            return [mine]
        everyone: list[list[int]] = [[] for _ in range(self._run.ranks.world_size)]
        dist.all_gather_object(everyone, mine)
        return everyone

    def _say(self, line: str) -> None:
        if self._run.ranks.is_first:
            print(f"warning: {line}", flush=True)
