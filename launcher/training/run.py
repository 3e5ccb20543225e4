"""Everything a training run is made of, built from its config by small factories."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.changes import fingerprint
from launcher.config.fields import target_accuracy
from launcher.config.schema import RunConfig
from launcher.data.batch import Moment
from launcher.data.loaders import Loaders, build_loaders
from launcher.errors import UserError, is_of_the_machine
from launcher.models.build import build_model
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks, distribute
from launcher.rank.heartbeat import HEARTBEAT
from launcher.rank.peers import broadcast_first
from launcher.training.clock import Clock
from launcher.training.evaluation import Evaluation, evaluate
from launcher.training.losses import build_loss
from launcher.training.optimizers import build_optimizer
from launcher.training.precision import choose_precision
from launcher.training.step import TrainStep


@dataclass
class Run:
    """A run ready to train: `next_step` is the first optimizer step that is not done yet."""

    plan: Plan
    ranks: Ranks
    loaders: Loaders
    step: TrainStep
    evaluation_model: nn.Module
    clock: Clock
    next_step: int = 0
    evaluated_step: int = 0
    best_top1: float = 0.0
    best_step: int = 0
    skipped_in_a_row: int = 0

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    @property
    def is_best(self) -> bool:
        """Whether the weights are those of the best evaluation so far."""
        return 0 < self.best_step == self.next_step

    @property
    def reached_target(self) -> bool:
        """Whether an evaluation has reached the accuracy that the run is to stop at."""
        target = self.config.target
        return target is not None and self.best_top1 >= target_accuracy(target)

    def moment(self, step: int) -> Moment:
        """Where training stands at an optimizer step."""
        epoch = step // self.plan.steps_per_epoch
        return Moment(self.config.seed, epoch, step, self.plan.total_steps, self.ranks.rank)

    def evaluate(self, should_stop: Callable[[], bool]) -> Evaluation | None:
        """Evaluate the averaged weights if an algorithm keeps some, else the model's own, on all ranks together.

        None if any rank was asked to stop meanwhile.
        """
        self.evaluation_model.load_state_dict(self.weights())
        broadcast_first(self.evaluation_model.buffers())
        return evaluate(
            self.evaluation_model,
            self.loaders.evaluate,
            self.step.normalize,
            self.step.loss,
            self.ranks.device,
            self.step.precision.autocast,
            flip_average=self.config.image.eval_flip_average,
            should_stop=should_stop,
        )

    def weights(self) -> dict[str, Tensor]:
        """The weights that evaluation and export use."""
        return self.step.engine.evaluation_weights() or self.step.model.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Everything that training from the next step on depends on, and what an export tells of the classes."""
        return {
            "step": self.next_step,
            "config": fingerprint(self.config),
            "model": self.step.model.state_dict(),
            "weights": self.weights(),
            "classes": self.loaders.evaluate.classes,
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "algorithms": self.step.engine.state_dict(),
            "clock": self.clock.state_dict(),
            "evaluated_step": self.evaluated_step,
            "best_top1": self.best_top1,
            "best_step": self.best_step,
            "skipped_in_a_row": self.skipped_in_a_row,
            "lr_factor": self.step.lr_factor,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            UserError: it is that of another run, or something is missing from it.
        """
        with of_this_run(state, self.config):
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        self.next_step = state["step"]
        self.step.model.load_state_dict(state["model"])
        self.step.optimizer.load_state_dict(state["optimizer"])
        self.step.scaler.load_state_dict(state["scaler"])
        self.step.engine.load_state_dict(state["algorithms"])
        self.clock.load_state_dict(state["clock"])
        self.evaluated_step = state["evaluated_step"]
        self.best_top1, self.best_step = state["best_top1"], state["best_step"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self.step.lr_factor = state["lr_factor"]


@contextmanager
def of_this_run(state: dict[str, Any], config: RunConfig) -> Iterator[None]:
    """Around the reading of a saved state.

    Raises:
        UserError: it is that of another run, or something is missing from it.
    """
    if state.get("config") != fingerprint(config):
        raise UserError("the checkpoint is of a run with other values than this folder's config.yaml")
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_of_the_machine(error):
            raise
        raise UserError(f"the checkpoint does not hold what this run needs: {error}") from error


def build_run(config: RunConfig, ranks: Ranks, left_out: Collection[str] = ()) -> Run:
    """Model, algorithms, optimizer and loaders of a run on this rank; its pictures are without those `left_out`."""
    classes, samples = config.dataset.classes, config.dataset.train_samples
    assert classes is not None
    assert samples is not None
    plan = Plan(config, ranks.world_size, samples)
    _set_backend(config)
    autocast = choose_precision(config, ranks.device, plan.image_size(0)).autocast
    engine = Engine(Context(plan, classes, autocast))
    step = build_step(plan, ranks, engine)
    loaders = build_loaders(
        plan,
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_world_size=ranks.local_world_size,
        device=ranks.device,
        change_order=engine.change_order,
        change_image=engine.change_image,
        left_out=left_out,
    )
    HEARTBEAT.watch_reading(loaders.stalled, config.launch.hang_timeout)
    synchronize = partial(torch.cuda.synchronize, ranks.device) if ranks.device.type == "cuda" else None
    return Run(plan, ranks, loaders, step, copy.deepcopy(step.model), Clock(synchronize))


def build_step(plan: Plan, ranks: Ranks, engine: Engine) -> TrainStep:
    """The training step on freshly initialised weights, equal on all ranks."""
    config = plan.config
    assert config.dataset.classes is not None
    model = build_model(config.model, config.dataset.classes, config.loss, config.seed).to(ranks.device)
    engine.change_model(model)
    model.train()
    return TrainStep(
        plan=plan,
        model=model,
        network=distribute(model, ranks, find_unused=engine.leaves_parameters_unused),
        optimizer=build_optimizer(config.optimizer, model, plan.peak_lr),
        engine=engine,
        loss=build_loss(config.loss),
        precision=choose_precision(config, ranks.device, plan.image_size(0)),
    )


def _set_backend(config: RunConfig) -> None:
    torch.backends.cudnn.benchmark = not config.deterministic
    torch.use_deterministic_algorithms(config.deterministic)
    torch.set_float32_matmul_precision("high")
