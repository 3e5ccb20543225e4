"""The user's callbacks: objects whose methods the run calls after steps, epochs and evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from launcher.config.targets import Called, reason
from launcher.errors import Problem, UserError
from launcher.rank.group import gather

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig
    from launcher.training.trainer import Trainer

POINTS = ("after_step", "after_epoch", "after_evaluation")


@dataclass(frozen=True)
class State:
    """What a callback reads; it must not change any of it.

    step, epoch: how many are complete. total_steps, steps_per_epoch: of the run. lr: of the last step.
    rank, world_size: of this process, and the number of them. folder: of the run, where a callback may write files.
    model: the network that learns. metrics: of the last evaluation, over all ranks, by name; empty before the first.
    """

    config: RunConfig
    folder: Path
    step: int
    epoch: int
    total_steps: int
    steps_per_epoch: int
    rank: int
    world_size: int
    model: nn.Module
    lr: float
    metrics: Mapping[str, float]
    loss_and_count: Tensor | None

    @property
    def loss(self) -> float:
        """The mean loss of this rank's samples in the last step, NaN if it was dropped; to read it waits for a GPU."""
        loss, count = (0.0, 0.0) if self.loss_and_count is None else self.loss_and_count.tolist()
        return loss / count if count else math.nan


class Callbacks:
    """Calls the run's callbacks on all ranks, in the order of their names.

    After an error none is called, and the run is to stop with a checkpoint. The checkpoint has rank 0's state of those
    with `state_dict` and `load_state_dict`.
    """

    def __init__(self, values: Mapping[str, Called] | None = None, folder: Path = Path()):
        """Build them.

        Raises UserError if one cannot be built, or has none of the methods.
        """
        self._values, self._folder = values or {}, folder
        self._loss: Tensor | None = None
        self._error: UserError | None = None
        self._active = {name: _built(name, own) for name, own in self._values.items()}

    @property
    def follow_steps(self) -> bool:
        """Return whether one is called after a step."""
        return any(hasattr(one, point) for one in self._active.values() for point in ("after_step", "after_epoch"))

    @property
    def has_failed(self) -> bool:
        """Return whether one has raised an error on this rank."""
        return self._error is not None

    def raise_error(self) -> None:
        """Raise the first error of any rank; all ranks call this together."""
        errors = [text for text in gather(str(self._error or "")) if text]
        if errors:
            raise self._error or UserError(errors[0])

    def after_step(self, trainer: Trainer, loss_and_count: Tensor) -> None:
        """Call them after a step, which the device may not have completed, and the last one of an epoch.

        loss_and_count: of the step's outcome.
        """
        self._loss = loss_and_count
        self._call("after_step", trainer)
        if trainer.plan.epoch_start(trainer.next_step) == trainer.next_step:
            self._call("after_epoch", trainer)

    def after_evaluation(self, trainer: Trainer) -> None:
        """Call them after an evaluation of the validation images."""
        self._call("after_evaluation", trainer)

    def _call(self, point: str, trainer: Trainer) -> None:
        methods = {name: method for name, one in self._active.items() if (method := getattr(one, point, None))}
        state = self._state(trainer) if methods else None
        for name, method in methods.items():
            self._guarded(name, f"{point} at step {trainer.next_step}", partial(method, state))

    def _guarded(self, name: str, what: str, called: Callable[[], Any]) -> Any:
        """Return what a callback's method returns; None after an error of any."""
        if self._error is not None:
            return None
        try:
            return called()
        # note: the user's code may raise anything
        except Exception as error:
            remedy = f"train resume {quote(str(self._folder))} callbacks.{name}=off continues without it"
            message = f"{what} fails: {reason(error)}; {remedy}"
            self._error = UserError(Problem(message, f"callbacks.{name}", self._values[name].target))

    def _state(self, trainer: Trainer) -> State:
        plan, step = trainer.plan, trainer.next_step
        return State(
            config=plan.config,
            folder=self._folder,
            step=step,
            epoch=step // plan.steps_per_epoch,
            total_steps=plan.total_steps,
            steps_per_epoch=plan.steps_per_epoch,
            rank=trainer.ranks.rank,
            world_size=trainer.ranks.world_size,
            model=trainer.train_step.model,
            lr=plan.lr(step - 1),
            metrics=dict(trainer.history[-1]) if trainer.history else {},
            loss_and_count=self._loss,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the states by name."""
        own = {name: one.state_dict for name, one in self._active.items() if hasattr(one, "state_dict")}
        return {name: self._guarded(name, "state_dict", partial(_plain_state, read)) for name, read in own.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state_dict`; a callback without a state there has its first one."""
        for name, own in state.items():
            if own is not None and name in self._active:
                with self._values[name].naming("load_state_dict fails"):
                    self._active[name].load_state_dict(own)


def _plain_state(read: Callable[[], Any]) -> Any:
    check_plain(state := read())
    return state


def check_plain(state: Any) -> None:
    """Check that a checkpoint can hold a state; raises TypeError if it cannot."""
    if isinstance(state, dict | list | tuple):
        for part in [*state, *state.values()] if isinstance(state, dict) else state:
            check_plain(part)
    elif not (state is None or isinstance(state, str | int | float | Tensor)):
        raise TypeError(f"it has {type(state).__name__}, but may have tensors, numbers, texts, lists and mappings")


def _built(name: str, values: Called) -> Any:
    built = values.built()
    if not any(hasattr(built, point) for point in POINTS):
        message = f"has none of the methods {', '.join(POINTS)}; write one"
        raise UserError(Problem(message, f"callbacks.{name}", values.target))
    return built
