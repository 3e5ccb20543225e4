"""The values of each algorithm: types and bounds; the values themselves stand in conf/algorithms/."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import (
    STRICT,
    Count,
    Duration,
    FractionRange,
    NotNegative,
    Positive,
    PositiveRange,
    Probability,
)


@dataclass(frozen=True, config=STRICT)
class ChannelsLast:
    """Keep images and weights in channels-last memory order; no values."""


@dataclass(frozen=True, config=STRICT)
class BlurPool:
    replace_convs: bool
    replace_maxpool: bool
    min_channels: Count
    blur_first: bool


@dataclass(frozen=True, config=STRICT)
class SqueezeExcite:
    latent_channels: Count
    min_channels: Count


@dataclass(frozen=True, config=STRICT)
class GhostBatchNorm:
    ghost_batch_size: Count


@dataclass(frozen=True, config=STRICT)
class StochasticDepth:
    drop_rate: Annotated[float, Field(ge=0, lt=1)]
    distribution: Literal["linear", "uniform"]
    keep_scaling: Literal["evaluation", "training"]


@dataclass(frozen=True, config=STRICT)
class EMA:
    half_life: Duration
    update_interval: Duration


@dataclass(frozen=True, config=STRICT)
class SWA:
    start: Duration
    update_interval: Duration


@dataclass(frozen=True, config=STRICT)
class LabelSmoothing:
    smoothing: Probability


@dataclass(frozen=True, config=STRICT)
class ProgressiveResizing:
    initial_scale: Annotated[float, Field(gt=0, le=1)]
    delay: Probability
    finetune: Probability
    size_multiple: Count
    interpolation: Literal["bilinear", "nearest"]
    granularity: Literal["step", "epoch"]
    where: Literal["device", "loader"]


@dataclass(frozen=True, config=STRICT)
class MixUp:
    alpha: Positive
    probability: Probability
    smoothed: Literal["both", "first"]


@dataclass(frozen=True, config=STRICT)
class CutMix:
    alpha: Positive
    probability: Probability
    smoothed: Literal["both", "first"]


@dataclass(frozen=True, config=STRICT)
class SAM:
    rho: Positive
    interval: Count
    epsilon: Positive
    batchnorm: Literal["once", "both_passes"]


@dataclass(frozen=True, config=STRICT)
class RandAugment:
    severity: Annotated[float, Field(gt=0, le=10)]
    depth: Annotated[int, Field(ge=0)]
    operations: Literal["all", "original", "safe", "timm_increasing"]
    probability: Annotated[float, Field(gt=0, le=1)]
    severity_distribution: Literal["uniform", "normal", "fixed"]
    severity_deviation: NotNegative
    where: Literal["device", "loader"]


@dataclass(frozen=True, config=STRICT)
class TrivialAugment:
    bins: Annotated[int, Field(ge=2)]


@dataclass(frozen=True, config=STRICT)
class AugMix:
    severity: Annotated[float, Field(gt=0, le=10)]
    width: Count
    depth: Literal[-1] | Count
    alpha: Positive


@dataclass(frozen=True, config=STRICT)
class ColOut:
    rows: Annotated[float, Field(ge=0, lt=1)]
    columns: Annotated[float, Field(ge=0, lt=1)]
    order: Literal["before_resizing", "after_resizing"]


@dataclass(frozen=True, config=STRICT)
class CutOut:
    size: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class RandomErasing:
    probability: Probability
    area: FractionRange
    ratio: PositiveRange
    fill: Literal["zero", "noise"]


@dataclass(frozen=True, config=STRICT)
class GradientClipping:
    kind: Literal["norm", "value", "adaptive"]
    threshold: Positive


@dataclass(frozen=True, config=STRICT)
class LayerFreezing:
    start: Annotated[float, Field(ge=0, lt=1)]
    final_fraction: Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class SelectiveBackprop:
    start: Probability
    end: Probability
    keep: Annotated[float, Field(gt=0, le=1)]
    interval: Count
    scale: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, config=STRICT)
class RepeatedAugmentation:
    repeats: Annotated[int, Field(ge=2)]


@dataclass(frozen=True, config=STRICT)
class Algorithms:
    """The active algorithms: a name that is not active is None and is left out of the run's config file."""

    augmix: AugMix | None = None
    blurpool: BlurPool | None = None
    channels_last: ChannelsLast | None = None
    colout: ColOut | None = None
    cutmix: CutMix | None = None
    cutout: CutOut | None = None
    ema: EMA | None = None
    ghost_batchnorm: GhostBatchNorm | None = None
    gradient_clipping: GradientClipping | None = None
    label_smoothing: LabelSmoothing | None = None
    layer_freezing: LayerFreezing | None = None
    mixup: MixUp | None = None
    progressive_resizing: ProgressiveResizing | None = None
    randaugment: RandAugment | None = None
    random_erasing: RandomErasing | None = None
    repeated_augmentation: RepeatedAugmentation | None = None
    sam: SAM | None = None
    selective_backprop: SelectiveBackprop | None = None
    squeeze_excite: SqueezeExcite | None = None
    stochastic_depth: StochasticDepth | None = None
    swa: SWA | None = None
    trivialaugment: TrivialAugment | None = None

    def active(self) -> dict[str, object]:
        """Name to values of each active algorithm."""
        return {name: values for name, values in vars(self).items() if values is not None and name[0] != "_"}
