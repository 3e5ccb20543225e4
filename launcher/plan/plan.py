"""What a run will do, derived from its config before anything starts; needs neither torch, GPU nor data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from launcher.config.declaration import AlgorithmConfig
from launcher.config.fields import in_steps
from launcher.config.keys import longest_share
from launcher.config.layers import leaves, put
from launcher.config.resolved import as_mapping
from launcher.config.schema import Constant, Cosine, FFCVLoader, Launch, Linear, MultiStep, Polynomial, RunConfig
from launcher.config.validate import validate


def plan_for(config: RunConfig, processes: int) -> Plan:
    """The plan of a config whose images are counted, on so many processes in all, its times fitted if it says so."""
    assert config.dataset.train_samples is not None
    return fitted(Plan(config, processes, config.dataset.train_samples))


def processes_of_node(launch: Launch, gpus: int) -> int:
    """Count the processes of a node with so many GPUs: `launch.nproc`, else one a GPU, else one on the CPU."""
    if launch.nproc != "auto":
        return launch.nproc
    return 1 if launch.device == "cpu" else max(1, gpus)


def dilated_epochs(epochs: int, dilate: float) -> int:
    """Epochs that a run has, from those of its config: whole ones, and at least one."""
    return max(1, round(epochs * dilate))


@dataclass(frozen=True)
class Plan:
    """Derived quantities of a run on `world_size` processes; `train_samples` as counted.

    `shortened` are the times that `schedule.fit` has shortened, by dotted key, as they were given.
    """

    config: RunConfig
    world_size: int
    train_samples: int
    shortened: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def epochs(self) -> int:
        """Epochs after dilation."""
        return dilated_epochs(self.config.epochs, self.config.schedule.dilate)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps an epoch; a last partial batch is dropped."""
        return self.train_samples // self.config.batch_size

    @cached_property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @cached_property
    def rank_batch(self) -> int:
        """Images a process an optimizer step."""
        return self.config.batch_size // self.world_size

    @cached_property
    def rank_eval_batch(self) -> int:
        """Images a process evaluates at once."""
        return max(1, self.config.eval_batch_size // self.world_size)

    @cached_property
    def accumulation(self) -> int:
        """Forward passes an optimizer step: the fewest equal parts that fit `device_batch_size`."""
        most = self.config.device_batch_size or self.rank_batch
        return next(
            n for n in range(1, self.rank_batch + 1) if self.rank_batch % n == 0 and self.rank_batch // n <= most
        )

    @cached_property
    def peak_lr(self) -> float:
        """The recipe's learning rate, scaled linearly from its reference batch if asked (Goyal et al. 2017)."""
        optimizer = self.config.optimizer
        scale = self.config.batch_size / optimizer.reference_batch_size if optimizer.scale_lr == "linear" else 1.0
        return optimizer.lr * scale

    def lr_multiplier(self, step: int) -> float:
        """Multiplier of the peak learning rate for the zero-based optimizer step, in [0, 1].

        With `granularity: epoch` all steps of an epoch have the value of its first; a warmup that includes its peak
        goes (e + 1) / warmup through the epochs. Cosine: Loshchilov & Hutter 2017, to the end of the run; the last step
        is one short of the final value. Polynomial: its time runs from the peak, which a warmup that includes it
        reaches a step earlier, as in NVIDIA's MLPerf entries.
        """
        schedule, total, warmup = self.config.schedule, self.total_steps, self.warmup_steps
        stair = self.steps_per_epoch if schedule.granularity == "epoch" else 1
        step = step // stair * stair
        if step < warmup:
            reached = min(1.0, (step + stair * schedule.warmup_includes_peak) / warmup)
            return schedule.warmup_start + (1 - schedule.warmup_start) * reached
        done = (step - warmup) / max(1, total - warmup)
        match schedule:
            case Cosine():
                done = step / total if schedule.counts_warmup else done
                return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * done)) / 2
            case Linear():
                return 1 + (schedule.final - 1) * done
            case Polynomial():
                # note: a warmup that includes its peak ends there, and the next step falls already
                done += schedule.warmup_includes_peak * stair / max(1, total - warmup)
                return float(schedule.final + (1 - schedule.final) * (1 - done) ** schedule.power)
            case MultiStep():
                passed = sum(step >= self.schedule_steps(milestone) for milestone in schedule.milestones)
                return float(schedule.gamma**passed)
            case Constant():
                return 1.0

    def lr(self, step: int) -> float:
        return self.peak_lr * self.lr_multiplier(step)

    def image_side(self, size: int) -> int:
        """A size from the config's `image`, scaled to the data set's native size in steps of four pixels.

        A size meant for the data set's own size is left exactly as it is.
        """
        reference, native = self.config.image.reference, self.config.dataset.native_size
        return size if reference == native else max(4, round(size * native / reference / 4) * 4)

    @cached_property
    def train_size(self) -> int:
        return self.image_side(self.config.image.train_size)

    def image_size(self, step: int) -> int:
        """Size that the model trains on at a step; of a square of as many pixels where height and width differ."""
        size = (self.loaded_size(step),) * 2
        for values in self._resizing:
            size = values.size_after(self, step, size)
        return round(math.sqrt(size[0] * size[1]))

    @cached_property
    def _resizing(self) -> list[AlgorithmConfig]:
        """The algorithms that change the size of images, in their order."""
        algorithms = self.config.algorithms
        active = [algorithms.active().get(name) for name in algorithms.acting("change_batch")]
        return [one for one in active if one and type(one).size_after is not AlgorithmConfig.size_after]

    def loaded_size(self, step: int) -> int:
        """Size of the crops that the loader makes for a step: that step's, or the largest, to be resized later."""
        sizes = [values.loaded_size(self, step) for values in self._resizing]
        return min((size for size in sizes if size), default=self.train_size)

    def reads_small(self, step: int) -> bool:
        """Whether a step's crops come from the small images beside the full ones (dataloader.files.small_side).

        They do where none is enlarged more than the same crop of the full image is at the largest side.
        """
        loader = self.config.dataloader
        if not isinstance(loader, FFCVLoader) or loader.files.small_side is None:
            return False
        return self.loaded_size(step) * loader.files.max_side <= self.train_size * loader.files.small_side

    def schedule_steps(self, duration: str) -> int:
        """A time of the schedule in steps: epochs and batches are dilated, parts of the run are so already."""
        length = self.steps(duration)
        return length if duration.endswith("dur") else round(length * self.config.schedule.dilate)

    @cached_property
    def warmup_steps(self) -> int:
        return self.schedule_steps(self.config.schedule.warmup)

    def every(self, duration: str) -> int:
        """An interval in steps, at least one."""
        return max(1, self.steps(duration))

    def steps(self, duration: str) -> int:
        return in_steps(duration, steps_per_epoch=self.steps_per_epoch, total_steps=self.total_steps)


def fitted(plan: Plan) -> Plan:
    """With `schedule.fit` the plan in which each time that is long for the run is the part of it that its type states.

    Times that are parts of the run stay. Several times of one key keep their ratios.
    """
    if plan.config.schedule.fit == "off" or not plan.total_steps:
        return plan
    values, shortened = as_mapping(plan.config), {}
    for key, given in list(leaves(values)):
        share = longest_share(key)
        if share is None or not given or (short := _shortened(plan, key, given, share)) == given:
            continue
        put(values, key, short)
        shortened[key] = given
    return replace(plan, config=validate(values), shortened=shortened) if shortened else plan


def _shortened(plan: Plan, key: str, given: str | list[str], share: float) -> str | list[str]:
    """A key's times, of which the longest is at most the share of the run, unless they are parts of it already."""
    texts = [given] if isinstance(given, str) else given
    in_steps = plan.schedule_steps if key.startswith("schedule.") else plan.steps
    longest = max(in_steps(text) for text in texts)
    if longest <= share * plan.total_steps or all(text.endswith("dur") for text in texts):
        return given
    parts = [f"{share * in_steps(text) / longest:.6g}dur" for text in texts]
    return parts[0] if isinstance(given, str) else parts
