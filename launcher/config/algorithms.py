"""Declarations of algorithms: the types of their values, which conf/algorithms/ sets, and their places in a step."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, Self, get_args, get_type_hints

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config import batch_algorithms as batch
from launcher.config.declaration import NORMALIZE, AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT, AnyPath, Count, Duration, Positive, Within
from launcher.config.models import timm_architectures
from launcher.errors import Problem

_FREEZING_LEVELS = 4
_MUCH_OF_THE_START = 0.05


@dataclass(frozen=True, config=STRICT)
class ChannelsLastConfig(AlgorithmConfig, change_model=50, change_batch=80):
    """Keep images and weights in channels-last memory order; no values."""

    in_channels_last = True

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "step" and values is None:
            return "algorithms.channels_last=on: faster memory order for convolutions"
        return None


@dataclass(frozen=True, config=STRICT)
class BackboneFreezingConfig(
    AlgorithmConfig, before_step=20, excludes={"layer_freezing": "both choose the layers to freeze; use one"}
):
    until: Annotated[Duration, Within(0.1)]

    needs_pretrained = True

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return step < plan.every(self.until)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if 0 < plan.total_steps <= plan.every(self.until):
            message = f"must be less than the run's {plan.total_steps} steps, such as 0.1dur, or train longer"
            yield Problem(message, "until", self.until)


@dataclass(frozen=True, config=STRICT)
class BlurPoolConfig(AlgorithmConfig, change_model=20):
    replace_convs: bool
    replace_maxpool: bool
    min_channels: Count
    blur_first: bool


@dataclass(frozen=True, config=STRICT)
class SqueezeExciteConfig(AlgorithmConfig, change_model=10):
    latent_channels: Count
    min_channels: Count


@dataclass(frozen=True, config=STRICT)
class GhostBatchNormConfig(AlgorithmConfig, change_model=40):
    ghost_batch_size: Count

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if plan.rank_batch and self.ghost_batch_size > plan.rank_batch // plan.accumulation:
            message = f"must be at most the {plan.rank_batch // plan.accumulation} images of one forward pass"
            yield Problem(message, "ghost_batch_size", self.ghost_batch_size)


@dataclass(frozen=True, config=STRICT)
class StochasticDepthConfig(AlgorithmConfig, change_model=30, change_batch=90):
    drop_rate: Annotated[float, Field(ge=0, lt=1)]
    distribution: Literal["linear", "linear_from_zero", "uniform"]
    keep_scaling: Literal["evaluation", "training"]


@dataclass(frozen=True, config=STRICT)
class EMAConfig(AlgorithmConfig, change_model=60, after_step=10, evaluation_weights=10):
    half_life: Annotated[Duration, Within(0.05)]
    update_interval: Annotated[Duration, Within(0.01)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % plan.every(self.update_interval) == 0

    def notes(self, plan: RunPlan) -> Iterator[str]:
        first = plan.every(self.update_interval)
        half_life, tenth = max(1, plan.steps(self.half_life)), max(1, plan.total_steps // 10)
        remaining = 2 ** ((first - plan.total_steps) / half_life)
        if plan.total_steps >= first and remaining > _MUCH_OF_THE_START:
            shorter = f"algorithms.ema.half_life={tenth}ba, a tenth of the steps"
            yield (
                f"with algorithms.ema.half_life={self.half_life} the EMA weights, which are evaluated, keep "
                f"{remaining:.0%} of the weights of step {first} after {plan.total_steps} steps; set "
                f"{shorter if tenth < half_life else 'algorithms.ema=off'}"
            )


@dataclass(frozen=True, config=STRICT)
class SWAConfig(
    AlgorithmConfig,
    change_model=70,
    after_step=20,
    evaluation_weights=20,
    excludes={"ema": "both replace the weights to evaluate and save; use one"},
):
    start: Annotated[Duration, Within(0.7)]
    update_interval: Annotated[Duration, Within(0.05)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        start, interval = plan.every(self.start), plan.every(self.update_interval)
        if interval % plan.steps_per_epoch == 0:
            start = -(-start // plan.steps_per_epoch) * plan.steps_per_epoch
        return (step + 1 >= start) & ((step + 1 - start) % interval == 0)


@dataclass(frozen=True, config=STRICT)
class SAMConfig(AlgorithmConfig, compute_gradients=10):
    rho: Positive
    interval: Count
    epsilon: Positive
    batchnorm: Literal["once", "both_passes"]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % self.interval == 0

    @classmethod
    def advice(cls, values: Self | None, bound: Literal["data", "step"]) -> str | None:
        if bound == "step" and values is not None and values.interval < 10:
            return f"algorithms.sam.interval=10: a second gradient every 10 steps instead of every {values.interval}"
        return None


# The key of the teacher, for errors.
TEACHER = "algorithms.distillation.teacher"


@dataclass(frozen=True, config=STRICT)
class DistillationConfig(AlgorithmConfig, change_batch=95, change_loss=10):
    teacher: AnyPath | None
    teacher_sha256: str | None
    form: Literal["soft", "hard"]
    temperature: Positive
    weight: Annotated[float, Field(gt=0, le=1)]

    @property
    def of_timm(self) -> bool:
        """Return whether the teacher is a model of timm; a path of the same name is written as ./NAME."""
        return self.teacher in timm_architectures()

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        task = plan.config.task
        if self.teacher is None:
            yield Problem("set a run folder, an export, or a model of timm such as resnet50", "teacher", None)
        if task.labelled != "class":
            message = f"needs one class per image, which task={task.name} has not; set algorithms.distillation=off"
            yield Problem(message, "form", self.form)


@dataclass(frozen=True, config=STRICT)
class GradientClippingConfig(AlgorithmConfig, change_gradients=10):
    kind: Literal["norm", "value", "adaptive"]
    threshold: Positive


@dataclass(frozen=True, config=STRICT)
class LayerFreezingConfig(AlgorithmConfig, before_step=10):
    start: Annotated[float, Field(ge=0, lt=1)]
    final_fraction: Annotated[float, Field(ge=0, le=1)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        """Return a level that rises by one per quarter of the freezing, from 1 on; 0 before its start."""
        done = (step / plan.total_steps - self.start) / (1 - self.start)
        return (done > 0) + sum(_FREEZING_LEVELS * done > level + 0.5 for level in range(_FREEZING_LEVELS))


@dataclass(frozen=True, config=STRICT)
class Algorithms:
    """The active algorithms; inactive ones are None, and the run's config file omits them."""

    augmix: batch.AugMixConfig | None = None
    backbone_freezing: BackboneFreezingConfig | None = None
    blurpool: BlurPoolConfig | None = None
    channels_last: ChannelsLastConfig | None = None
    colout: batch.ColOutConfig | None = None
    cutmix: batch.CutMixConfig | None = None
    cutout: batch.CutOutConfig | None = None
    distillation: DistillationConfig | None = None
    ema: EMAConfig | None = None
    ghost_batchnorm: GhostBatchNormConfig | None = None
    gradient_clipping: GradientClippingConfig | None = None
    label_smoothing: batch.LabelSmoothingConfig | None = None
    layer_freezing: LayerFreezingConfig | None = None
    mixup: batch.MixUpConfig | None = None
    progressive_resizing: batch.ProgressiveResizingConfig | None = None
    randaugment: batch.RandAugmentConfig | None = None
    random_erasing: batch.RandomErasingConfig | None = None
    repeated_augmentation: batch.RepeatedAugmentationConfig | None = None
    sam: SAMConfig | None = None
    selective_backprop: batch.SelectiveBackpropConfig | None = None
    squeeze_excite: SqueezeExciteConfig | None = None
    stochastic_depth: StochasticDepthConfig | None = None
    swa: SWAConfig | None = None
    trivialaugment: batch.TrivialAugmentConfig | None = None

    @property
    def teaching(self) -> DistillationConfig | None:
        """Return the values of the algorithm that has a teacher, if it is on."""
        return self.distillation

    def taught_by(self, teacher: str, sha256: str | None) -> Self:
        """Return the algorithms with this teacher."""
        assert self.distillation is not None
        return replace(self, distillation=replace(self.distillation, teacher=teacher, teacher_sha256=sha256))

    def active(self) -> dict[str, AlgorithmConfig]:
        """Return the declaration of each active algorithm by name."""
        return {name: values for name, values in vars(self).items() if isinstance(values, AlgorithmConfig)}

    def acting(self, point: str) -> list[str]:
        """Return the algorithms that act at a point, sorted by place; NORMALIZE is the loop's own change of a batch."""
        places = {name: values.place(point) for name, values in self.active().items()}
        acting = {name: place for name, place in places.items() if place is not None}
        if point == "change_batch":
            acting[NORMALIZE] = 0
        return sorted(acting, key=acting.__getitem__)

    @classmethod
    def declarations(cls) -> dict[str, type[AlgorithmConfig]]:
        """Return the declaration of every algorithm by name."""
        return {name: get_args(hint)[0] for name, hint in get_type_hints(cls).items()}
