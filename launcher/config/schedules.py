"""The config of each schedule of the learning rate."""

from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Duration, Positive, Probability, Within


@dataclass(frozen=True, config=STRICT)
class Warmup:
    """Values of all schedules: linear warmup from `warmup_start` (a fraction of the learning rate), and dilation.

    With `warmup_includes_peak` the last step of the warmup (its last epoch with `granularity: epoch`) has the peak
    learning rate, otherwise the first one after the warmup.
    `dilate` multiplies the run's length and every time in the schedule (MosaicML methodology). With `fit` durations in
    epochs or batches that are long for the run, also those of algorithms, become fractions of it.
    """

    warmup: Annotated[Duration, Within(0.1)]
    warmup_start: Probability
    warmup_includes_peak: bool
    dilate: Positive
    fit: Literal["on", "off"]
    granularity: Literal["step", "epoch"]


@dataclass(frozen=True, config=STRICT)
class Cosine(Warmup):
    """The cosine starts at the end of the warmup, or with `counts_warmup` at the start of the run.

    With `progress: compute` a step has the learning rate of a run whose images all have its size, at the same fraction
    of the pixels that the run processes (EfficientTrain++, Wang et al. 2024).
    """

    name: Literal["cosine"]
    final: Probability
    counts_warmup: bool
    progress: Literal["steps", "compute"]


@dataclass(frozen=True, config=STRICT)
class Linear(Warmup):
    name: Literal["linear"]
    final: Probability


@dataclass(frozen=True, config=STRICT)
class Polynomial(Warmup):
    name: Literal["polynomial"]
    final: Probability
    power: Positive


@dataclass(frozen=True, config=STRICT)
class MultiStep(Warmup):
    name: Literal["multi_step"]
    milestones: list[Annotated[Duration, Within(0.9)]]
    gamma: Probability


@dataclass(frozen=True, config=STRICT)
class Constant(Warmup):
    name: Literal["constant"]
