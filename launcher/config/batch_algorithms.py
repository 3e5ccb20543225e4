"""Declarations of the algorithms that change the samples of a batch; `launcher.config.algorithms` has the others."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Literal, Self

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import AlgorithmConfig, RunPlan, Size
from launcher.config.fields import STRICT, Count, FractionRange, NotNegative, Positive, PositiveRange, Probability
from launcher.errors import Problem

Severity = Annotated[float, Field(ge=0, le=10)]
# Image size in pixels, as those of `image`, and fraction of the run's pixels.
Stage = Annotated[list[Positive], Field(min_length=2, max_length=2)]
_POLICIES = "both are complete augmentation policies; use one"


def length_after_colout(length: int, dropped: float) -> int:
    """Return the rows or columns that ColOut keeps: floor((1 - dropped) * length)."""
    return int((1 - dropped) * length)


@dataclass(frozen=True, config=STRICT)
class RepeatedAugmentationConfig(AlgorithmConfig, change_order=10):
    repeats: Annotated[int, Field(ge=2)]


@dataclass(frozen=True, config=STRICT)
class RandAugmentConfig(AlgorithmConfig, change_image=10, change_batch=-40):
    """A list of severities has one for each of equal parts of the run."""

    severity: Severity | Annotated[list[Severity], Field(min_length=2)]
    depth: Annotated[int, Field(ge=0)]
    operations: Literal["all", "original", "safe", "timm_increasing", "autoaugment"]
    probability: Annotated[float, Field(gt=0, le=1)]
    severity_distribution: Literal["uniform", "normal", "fixed"]
    severity_deviation: NotNegative
    where: Literal["device", "loader"]

    def place(self, point: str) -> int | None:
        acts = (point == "change_image") == (self.where == "loader")
        return super().place(point) if acts else None

    def at_step(self, plan: RunPlan, step: int) -> Self:
        """Return the values of a step, with one severity."""
        return (
            replace(self, severity=self.following(plan, step)["severity"]) if isinstance(self.severity, list) else self
        )

    def following(self, plan: RunPlan, step: int) -> Mapping[str, float]:
        if not isinstance(self.severity, list):
            return {}
        return {"severity": self.severity[plan.part(step, len(self.severity))]}

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if isinstance(self.severity, list) and self.where == "loader":
            message = "needs where=device, since loader workers do not know the step"
            yield Problem(message, "severity", self.severity)

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "data" and values is not None and values.where == "loader":
            return "algorithms.randaugment.where=device: augments whole batches on the device"
        return None


@dataclass(frozen=True, config=STRICT)
class TrivialAugmentConfig(AlgorithmConfig, change_batch=-30, excludes={"randaugment": _POLICIES}):
    bins: Annotated[int, Field(ge=2)]


@dataclass(frozen=True, config=STRICT)
class AugMixConfig(AlgorithmConfig, change_batch=-20, excludes={"randaugment": _POLICIES, "trivialaugment": _POLICIES}):
    severity: Annotated[float, Field(gt=0, le=10)]
    width: Count
    depth: Literal[-1] | Count
    alpha: Positive


@dataclass(frozen=True, config=STRICT)
class ColOutConfig(AlgorithmConfig, change_batch=-10):
    rows: Annotated[float, Field(ge=0, lt=1)]
    columns: Annotated[float, Field(ge=0, lt=1)]
    order: Literal["before_resizing", "after_resizing"]

    def place(self, point: str) -> int | None:
        """Return a place after progressive resizing with `order: after_resizing`."""
        after = point == "change_batch" and self.order == "after_resizing"
        return ProgressiveResizingConfig.places[point] + 5 if after else super().place(point)

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        return length_after_colout(size[0], self.rows), length_after_colout(size[1], self.columns)


@dataclass(frozen=True, config=STRICT)
class ProgressiveResizingConfig(AlgorithmConfig, change_batch=10):
    """A ramp from `initial_scale`, or `stages`: image sizes, each with its fraction of the run's compute."""

    stages: Annotated[list[Stage], Field(min_length=1)] | None
    initial_scale: Annotated[float, Field(gt=0, le=1)]
    delay: Probability
    finetune: Probability
    size_multiple: Count
    interpolation: Literal["bilinear", "lanczos", "nearest"]
    granularity: Literal["step", "epoch"]
    where: Literal["device", "loader"]

    def size(self, plan: RunPlan, step: int) -> int:
        """Return the size in pixels at a step, rounded to `size_multiple`; fixed per epoch with `granularity: epoch`.

        `interpolation: nearest` gives the sizes of the published code, a pixel smaller at two of the multiples.
        """
        step = step // plan.steps_per_epoch * plan.steps_per_epoch if self.granularity == "epoch" else step
        if self.stages:
            return self._stage_size(plan, self.stages, step / plan.total_steps)
        full, scale = plan.train_size, self.scale(step / plan.total_steps)
        if scale == 1.0:
            return full
        size = max(self.size_multiple, round(scale * full / self.size_multiple) * self.size_multiple)
        # note: Composer passes PyTorch the scale, not the size: 176 * (120 / 176) is less than 120, and floored to 119
        return math.floor(full * (size / full)) if self.interpolation == "nearest" else size

    def _stage_size(self, plan: RunPlan, stages: list[Stage], progress: float) -> int:
        """Return the size of the stage at a fraction of the run's steps, of which small images need more."""
        sizes = [plan.scaled_size(int(size)) for size, _ in stages]
        steps = [share / size**2 for size, (_, share) in zip(sizes, stages, strict=True)]
        ends = [end / sum(steps) for end in accumulate(steps)]
        return next((size for size, end in zip(sizes, ends, strict=True) if progress < end), sizes[-1])

    def scale(self, progress: float) -> float:
        """Return the scale at a fraction of the run: initial for `delay`, 1 for the last `finetune`, linear between."""
        # note: computed in this order, as in Composer, since rounding to a multiple can depend on the last bit
        ramp = 1 - self.finetune - self.delay
        if progress < self.delay:
            return self.initial_scale
        if progress >= 1 - self.finetune or ramp <= 0:
            return 1.0
        return self.initial_scale + (1 - self.initial_scale) * ((progress - self.delay) / ramp)

    def loaded_size(self, plan: RunPlan, step: int) -> int | None:
        return self.size(plan, step) if self.where == "loader" else None

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        return (self.size(plan, step),) * 2

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "data" and values is not None and values.where == "device":
            return "algorithms.progressive_resizing.where=loader: crops images directly to the size of the step"
        if bound == "step" and values is None:
            return "algorithms.progressive_resizing=on: trains on smaller images first; changes the result"
        return None

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        sizes = [size for size, _ in self.stages or ()]
        if sizes and (sizes != sorted(sizes) or sizes[-1] != plan.config.image.train_size):
            message = f"sizes must rise to image.train_size={plan.config.image.train_size}"
            yield Problem(message, "stages", self.stages)
        if sizes and not math.isclose(total := sum(share for _, share in self.stages or ()), 1, abs_tol=1e-3):
            yield Problem(f"fractions of the compute must sum to 1, not {total:g}", "stages", self.stages)
        if self.delay + self.finetune > 1:
            message = f"must be at most 1 - delay = {1 - self.delay:g}"
            yield Problem(message, "finetune", self.finetune)


@dataclass(frozen=True, config=STRICT)
class CutOutConfig(AlgorithmConfig, change_batch=20):
    size: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class RandomErasingConfig(
    AlgorithmConfig, change_batch=30, excludes={"cutout": "both erase a rectangle of each image; use one"}
):
    probability: Probability
    area: FractionRange
    ratio: PositiveRange
    fill: Literal["zero", "noise"]


@dataclass(frozen=True, config=STRICT)
class SelectiveBackpropConfig(
    AlgorithmConfig,
    change_batch=40,
    excludes={"sam": "SAM needs the same batch in both passes, but selective backprop selects samples in each"},
):
    start: Probability
    end: Probability
    keep: Annotated[float, Field(gt=0, le=1)]
    interval: Count
    scale: Annotated[float, Field(gt=0, le=1)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        progress = step / plan.total_steps
        return (self.start <= progress) & (progress < self.end) & ((step + 1) % self.interval == 0)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.start >= self.end:
            yield Problem(f"must be greater than start ({self.start:g})", "end", self.end)


@dataclass(frozen=True, config=STRICT)
class LabelSmoothingConfig(AlgorithmConfig, change_batch=50):
    smoothing: Probability

    needs_classes = "numbers have no uniform distribution to mix them with"


@dataclass(frozen=True, config=STRICT)
class MixingConfig(AlgorithmConfig):
    alpha: Positive
    probability: Probability
    smoothed: Literal["both", "first"]

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.smoothed == "first" and plan.config.task.labelled != "class":
            message = f"needs one class an image, unlike task={plan.config.task.name}; set both"
            yield Problem(message, "smoothed", "first")


@dataclass(frozen=True, config=STRICT)
class MixUpConfig(MixingConfig, change_batch=60):
    """No further values."""


@dataclass(frozen=True, config=STRICT)
class CutMixConfig(MixingConfig, change_batch=70):
    needs_classes = "a part of an image does not have that part of its numbers"

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        yield from super().problems(plan)
        mixup = plan.config.algorithms.mixup
        if mixup and mixup.probability + self.probability > 1:
            message = (
                f"MixUp (probability {mixup.probability:g}) and CutMix share the batches: their probabilities "
                f"must sum to at most 1, such as algorithms.mixup.probability=0.5 algorithms.cutmix.probability=0.5"
            )
            yield Problem(message, "probability", self.probability)
