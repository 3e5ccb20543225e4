"""What a run writes down while it trains: rank 0 records, the other ranks keep quiet."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.data.batch import Moment
from launcher.rank.group import Ranks
from launcher.records.folder import RunFolder
from launcher.records.metrics import EndRecord, EpochRecord, EvalRecord, Record, ResumeRecord, StartRecord, TrainRecord
from launcher.records.sinks import Recorder, build_sinks
from launcher.training.evaluation import Evaluation
from launcher.training.run import Run


class _Window:
    """Sums over the steps since `train_seconds` on the training clock."""

    def __init__(self, device: torch.device, train_seconds: float):
        self.loss = torch.zeros((), device=device)
        self.losses = 0  # of the steps, those with a finite one
        self.steps = 0
        self.waited = 0.0
        self.train_seconds = train_seconds

    def add(self, loss: Tensor, waited: float, *, finite: bool) -> None:
        # note: the loss stays on the device; reading it each step would stop the GPU
        if finite:
            self.loss += loss
            self.losses += 1
        self.steps += 1
        self.waited += waited

    def mean_loss(self, ranks: Ranks) -> float:
        """Over the steps and over all ranks, which all call this together."""
        total = self.loss.clone()
        if ranks.world_size > 1:
            dist.all_reduce(total)
        return float(total.item()) / (self.losses * ranks.world_size) if self.losses else float("nan")

    def state_dict(self, ranks: Ranks) -> dict[str, Any]:
        losses = [torch.zeros_like(self.loss) for _ in range(ranks.world_size)]
        if ranks.world_size > 1:
            dist.all_gather(losses, self.loss)
        else:
            losses = [self.loss]
        return {**vars(self), "loss": torch.stack(losses)}

    def load_state_dict(self, state: dict[str, Any], ranks: Ranks) -> None:
        """Take back this rank's part; on another number of ranks the first takes all."""
        losses = state["loss"].to(self.loss.device)
        same_ranks = len(losses) == ranks.world_size
        mine = losses[ranks.rank] if same_ranks else losses.sum() * ranks.is_first
        vars(self).update({**state, "loss": mine})


class Journal:
    """Turns what happens in the loop into records; a context that closes them."""

    def __init__(self, run: Run, folder: RunFolder, *, resumed: bool):
        self._run = run
        self._interval = run.plan.every(run.config.logger.interval)
        self._recorder = Recorder(build_sinks(folder, run.config) if run.ranks.is_first else [])
        self._line, self._epoch = self._window(), self._window()
        ranks, plan, now = run.ranks, run.plan, time.time()
        if resumed:
            self.record(ResumeRecord(run.next_step, now, ranks.world_size))
        else:
            dtype = str(run.step.precision.dtype).removeprefix("torch.")
            device = _device_name(ranks.device)
            self.record(StartRecord(0, now, ranks.world_size, plan.total_steps, plan.epochs, device, dtype))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.close()

    def step(self, moment: Moment, loss: Tensor, waited: float) -> None:
        """Count a finished step; at the log interval read the mean loss from the device and write a line."""
        self._line.add(loss, waited, finite=self._run.step.finite)
        self._epoch.add(loss, waited, finite=self._run.step.finite)
        done = moment.step + 1
        if done % self._interval:
            return
        run, window = self._run, self._line
        mean_loss = window.mean_loss(run.ranks)
        self._line = self._window()
        seconds = max(self._line.train_seconds - window.train_seconds, 1e-9)
        self.record(
            TrainRecord(
                step=done,
                time=time.time(),
                epoch=done / run.plan.steps_per_epoch,
                loss=mean_loss,
                lr=run.plan.lr(moment.step) * run.step.lr_factor,
                image_size=run.plan.image_size(moment.step),
                images_per_second=window.steps * run.config.batch_size / seconds,
                step_seconds=seconds / window.steps,
                data_wait_seconds=window.waited / window.steps,
                gpu_memory_bytes=_peak_memory(run.ranks.device),
                train_seconds=self._line.train_seconds,
            )
        )

    def record(self, record: Record) -> None:
        """Write any record."""
        self._recorder.record(record)

    def went_back(self, state: dict[str, Any]) -> None:
        """The run stands at an earlier save: what was written of later steps is void."""
        self.record(ResumeRecord(self._run.next_step, time.time(), self._run.ranks.world_size))
        self.load_state_dict(state)

    def evaluation(self, result: Evaluation, seconds: float) -> None:
        """Write the result of an evaluation that took so many seconds."""
        run = self._run
        self.record(
            EvalRecord(
                step=run.next_step,
                time=time.time(),
                epoch=run.next_step / run.plan.steps_per_epoch,
                top1=result.top1,
                top5=result.top5,
                loss=result.loss,
                samples=result.samples,
                seconds=seconds,
                train_seconds=run.clock.seconds("training"),
            )
        )

    def epoch(self, number: int) -> None:
        """Write the line of a finished epoch, of the steps done since it began or was resumed."""
        run, window = self._run, self._epoch
        mean_loss = window.mean_loss(run.ranks)
        self._epoch = self._window()
        seconds = max(self._epoch.train_seconds - window.train_seconds, 1e-9)
        self.record(
            EpochRecord(
                step=run.next_step,
                time=time.time(),
                epoch=number + 1,
                loss=mean_loss,
                seconds=seconds,
                images_per_second=window.steps * run.config.batch_size / seconds,
                data_wait_seconds=window.waited / window.steps,
                train_seconds=self._epoch.train_seconds,
            )
        )

    def end(self, *, finished: bool) -> None:
        """Write that the run ended."""
        clock = self._run.clock
        seconds = (clock.seconds(name) for name in ("training", "evaluation", "saving"))
        self.record(EndRecord(self._run.next_step, time.time(), finished, *seconds))

    def state_dict(self) -> dict[str, Any]:
        """The sums that are not written yet, each rank's loss apart; all ranks call this together."""
        ranks = self._run.ranks
        return {name: window.state_dict(ranks) for name, window in (("line", self._line), ("epoch", self._epoch))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on summing where a saved run stood."""
        self._line.load_state_dict(state["line"], self._run.ranks)
        self._epoch.load_state_dict(state["epoch"], self._run.ranks)

    def _window(self) -> _Window:
        return _Window(self._run.ranks.device, self._run.clock.seconds("training"))


def _peak_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
