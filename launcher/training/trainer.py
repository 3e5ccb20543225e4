"""The trainer: all parts of a run, its progress, and the content of its checkpoints."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from launcher.algorithms.base import Context, Loss, Teacher
from launcher.algorithms.engine import Engine
from launcher.compute.accelerator import synchronize
from launcher.config.resolved import fingerprint
from launcher.config.schema import RunConfig
from launcher.data.batch import Moment, Overlap
from launcher.data.classes import class_counts
from launcher.data.loading import EvaluationLoader, Loaders, build_loaders
from launcher.errors import UserError
from launcher.models.build import build_model
from launcher.optimizers.base import build_optimizer
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import Ranks, broadcast_first
from launcher.rank.signs import HEARTBEAT
from launcher.tasks import build_task
from launcher.training.buckets import GradientBuckets
from launcher.training.callbacks import Callbacks
from launcher.training.checkpoint import matching_run
from launcher.training.evaluation import Evaluation, evaluate
from launcher.training.meters import StepMeter, StepOutcome, Stopwatch
from launcher.training.own_metrics import check_metrics
from launcher.training.precision import choose_precision
from launcher.training.step import TrainStep

# The fields of a trainer that a checkpoint has by the same names.
_PROGRESS = ("evaluated_step", "best", "best_step", "history", "skipped_in_a_row", "out_of_time")


@dataclass
class Trainer:
    """A run that is ready to train; `next_step` is the first optimizer step that is not yet queued on the device.

    `history` has the metrics of all evaluations, in order; `class_weights` are those of the loss [C], if any; `facts`
    are what the task computed from the training labels; `out_of_time`: `stop.minutes` have ended the run.
    """

    plan: Plan
    ranks: Ranks
    loaders: Loaders
    train_step: TrainStep
    evaluation_model: nn.Module
    clock: Stopwatch
    line_meter: StepMeter
    epoch_meter: StepMeter
    next_step: int = 0
    evaluated_step: int = 0
    best: dict[str, float] = field(default_factory=dict)
    best_step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    skipped_in_a_row: int = 0
    out_of_time: bool = False
    class_weights: list[float] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    callbacks: Callbacks = field(default_factory=Callbacks)

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    @property
    def is_done(self) -> bool:
        """Return whether all steps are done, or an evaluation or the time has ended the run."""
        return self.next_step >= self.plan.total_steps or self.ended_by is not None

    @property
    def ended_by(self) -> str | None:
        """Return the key that has ended the run before its length; None if none has."""
        return "stop.minutes" if self.out_of_time else self.config.task.ended_by(self.config, self.history)

    @property
    def time_is_up(self) -> bool:
        """Return whether `stop.minutes` are over on this rank after another evaluation, as long as the mean one."""
        minutes, evaluations = self.config.stop.minutes, max(1, len(self.history))
        next_evaluation = self.clock.seconds("evaluation") / evaluations
        return minutes is not None and self.clock.total + next_evaluation > 60 * minutes

    @property
    def task_facts(self) -> dict[str, Any]:
        """Return what the task computed from the training labels and in the last evaluation."""
        return self.facts | (self.config.task.of_evaluation(self.history[-1]) if self.history else {})

    @property
    def is_best(self) -> bool:
        """Return whether the weights are those of the best evaluation so far."""
        return 0 < self.best_step == self.next_step

    @property
    def evaluation_is_due(self) -> bool:
        """Return whether an evaluation is due: once at every interval and at the end."""
        at_interval = self.plan.is_due(self.next_step, self.config.eval_every)
        at_end = self.next_step == self.plan.total_steps or self.out_of_time
        return self.next_step != self.evaluated_step and (at_interval or at_end)

    @property
    def save_is_due(self) -> bool:
        """Return whether a checkpoint is due: at every interval, and for the best weights."""
        return self.is_best or self.plan.is_due(self.next_step, self.config.checkpoint.every)

    def moment(self, step: int) -> Moment:
        """Return the position of an optimizer step in the run."""
        return Moment(self.config.seed, step // self.plan.steps_per_epoch, step, self.plan.total_steps, self.ranks.rank)

    def rest_of_epoch(self) -> Overlap:
        """Return the remaining batches of the epoch, from the next step on."""
        return self.loaders.train.epoch(*divmod(self.next_step, self.plan.steps_per_epoch))

    def count(self, outcome: StepOutcome, waited: float) -> None:
        """Count a step that is not repeated; `waited` is the seconds of waiting for its batch."""
        self.line_meter.add(outcome, waited)
        self.epoch_meter.add(outcome, waited)

    def evaluate(self, should_stop: Callable[[], bool], loader: EvaluationLoader | None = None) -> Evaluation | None:
        """Evaluate the averaged weights if there are any, else the model's, on all ranks together.

        On the validation set, or on another loader's samples, which choose no facts. None if any rank requested a stop.
        """
        self.evaluation_model.load_state_dict(self.weights())
        broadcast_first(self.evaluation_model.buffers())
        precision, task = self.train_step.precision, self.train_step.task
        if loader:
            task = build_task(self.config, precision.dtype, self.task_facts)
        loader, device = loader or self.loaders.evaluate, self.ranks.device
        return evaluate(self.evaluation_model, task, loader, precision.autocast, device, should_stop)

    def note_evaluation(self, result: Evaluation) -> None:
        """Store the result of the current weights, and whether it is the best."""
        self.evaluated_step = self.next_step
        self.history.append(result.metrics)
        for metric in self.config.task.metrics:
            value, best = result.metrics[metric.name], self.best.get(metric.name)
            if best is None or metric.is_better(value, best):
                self.best[metric.name] = value
                if metric is self.config.task.primary:
                    self.best_step = self.next_step
        self.callbacks.after_evaluation(self)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to evaluate and export: averages of an algorithm or the optimizer, or the model's."""
        engine, optimizer, model = self.train_step.engine, self.train_step.optimizer, self.train_step.model
        return engine.evaluation_weights() or optimizer.evaluation_weights(model) or model.state_dict()

    def _parts(self) -> dict[str, Any]:
        """Return the parts that have their own state, by their name in a checkpoint."""
        step = self.train_step
        return {
            "model": step.model,
            "optimizer": step.optimizer,
            "scaler": step.scaler,
            "algorithms": step.engine,
            "callbacks": self.callbacks,
            "clock": self.clock,
            "line_meter": self.line_meter,
            "epoch_meter": self.epoch_meter,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the content of a checkpoint, from which the run resumes and exports; all ranks call this together."""
        return {
            "step": self.next_step,
            "config": fingerprint(self.config),
            "weights": self.weights(),
            **self.loaders.facts(),
            "class_weights": self.class_weights,
            "task": self.task_facts,
            **{name: copy.copy(getattr(self, name)) for name in _PROGRESS},
            **{name: part.state_dict() for name, part in self._parts().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state.

        Raises UserError if the state belongs to another run or is incomplete, or an earlier version rolled it back.
        """
        if state.get("lr_factor", 1.0) != 1:
            raise UserError("the run was rolled back; resume the run with the version of train that wrote it")
        # note: a checkpoint of an older version may have neither
        state = {"callbacks": {}, "out_of_time": False, **state}
        with matching_run(state, self.config):
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            for name in _PROGRESS:
                setattr(self, name, copy.copy(state[name]))
            self.next_step = state["step"]
            # note: a resume may have more minutes; all ranks read one clock
            self.out_of_time = self.out_of_time and self.time_is_up


def build_trainer(
    config: RunConfig,
    ranks: Ranks,
    skipped: Collection[str] = (),
    initial: Mapping[str, Tensor] | None = None,
    teacher: Teacher | None = None,
    classes: Sequence[str] | None = None,
    index: Path | None = None,
) -> Trainer:
    """Build model, algorithms, optimizer and loaders of a run on this rank, without the images `skipped`.

    index: that of the images, which are listed without one.

    initial: all initial weights of the network, instead of those from the seed. classes: those of the run's checkpoint.
    """
    plan = plan_for(config, ranks.world_size)
    set_backend(config)
    autocast = choose_precision(config, ranks.device).autocast

    def images(count: int) -> Iterator[Tensor]:
        return loaders.train.spread(count)  # note: the loaders need the engine first

    engine = Engine(Context(plan, config.task.outputs(config.dataset), autocast, teacher, images))
    loaders = build_loaders(
        plan,
        ranks,
        change_order=engine.change_order,
        change_image=engine.change_image,
        skipped=skipped,
        classes=classes,
        index=index,
    )
    labels, of_classes = loaders.train.reader.labels, {}
    if config.task.weighs_classes:
        of_classes = config.loss.of_classes(class_counts(labels, config.dataset.classes or 0), len(labels))
    facts = {**loaders.train.reader.facts, **config.task.of_training(labels)}
    step = build_step(plan, ranks, engine, initial, of_classes, facts)
    check_metrics(step.task, plan.evaluation_size, ranks.device)
    HEARTBEAT.watch_reading(loaders.stalled)
    clock = Stopwatch(partial(synchronize, ranks.device))
    meters = StepMeter(ranks, clock), StepMeter(ranks, clock)
    weights = of_classes["weights"].tolist() if "weights" in of_classes else None
    return Trainer(
        plan, ranks, loaders, step, copy.deepcopy(step.model), clock, *meters, class_weights=weights, facts=facts
    )


def build_step(
    plan: Plan,
    ranks: Ranks,
    engine: Engine,
    initial: Mapping[str, Tensor] | None = None,
    of_classes: Mapping[str, np.ndarray] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> TrainStep:
    """Build the training step with weights from the seed, or with `initial` ones, equal on all ranks.

    of_classes: `LossConfig.of_classes`. facts: what the task computed from the training labels.
    """
    config = plan.config
    precision = choose_precision(config, ranks.device)
    task = build_task(config, precision.dtype, facts)
    device = ranks.device
    values = {k: torch.tensor(v, dtype=torch.float32, device=device) for k, v in (of_classes or {}).items()}
    loss: Loss = partial(task.loss, **values) if values else task.loss
    outputs, channels = config.task.outputs(config.dataset), config.dataset.channels
    model = build_model(config.model, outputs, config.loss, config.seed, channels).to(ranks.device)
    engine.change_model(model, initial)
    model.train()
    optimizer = build_optimizer(config.optimizer, model, plan.peak_lr)
    buckets = GradientBuckets(model, ranks, config.launch.gradient_dtype) if ranks.world_size > 1 else None
    return TrainStep(plan, model, task, optimizer, engine, precision, loss, buckets)


def set_backend(config: RunConfig) -> None:
    """Set torch's determinism and its matrix multiplication precision on GPUs in this process."""
    # note: the call imports Inductor, which takes seconds
    if config.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(config.deterministic)
    torch.set_float32_matmul_precision("high")
