"""The bases of the values of models, optimizers, schedules, losses, data loaders and loggers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import Declaration
from launcher.config.fields import STRICT, AnyPath, Count, Duration, NotNegative, Positive, Probability, Within
from launcher.plugins import Complete

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from launcher.config.schema import RunConfig
    from launcher.config.tasks import TaskConfig

Beta = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class OptimizerConfig(Declaration):
    """Values of all optimizers: `lr` is for `reference_batch_size`; `scale_lr` scales it to the run's batch.

    `backbone_lr` multiplies it for all but the last layer (None: chosen by the pretrained network), and `layer_decay`
    from each layer to the one before it, as timm's option does (BEiT, Bao et al. 2021).
    `no_decay` are the parameters without weight decay: `vectors` (biases, norm weights), those of normalisation layers
    (`norms`), those with `bn` in their name (`bn_names`), or `none` of them; `all_but_kernels` decays only weights of
    convolutions and linear layers, not positions, tokens or layer scale.
    """

    lr: NotNegative
    reference_batch_size: Count
    scale_lr: Literal["linear", "off"]
    backbone_lr: NotNegative | None
    layer_decay: Annotated[float, Field(gt=0, le=1)]
    weight_decay: NotNegative
    no_decay: Literal["none", "vectors", "norms", "bn_names", "all_but_kernels"]
    name: str


class Clock(NamedTuple):
    """A place in a schedule, in steps: `at` of `total`, of which the first `warmup` warm up.

    stair: how many steps have the same value. steps: the number of steps of a duration.
    """

    at: float
    total: float
    warmup: float
    stair: int
    steps: Callable[[str], int]

    @property
    def done(self) -> float:
        """The completed fraction of what follows the warmup."""
        return (self.at - self.warmup) / max(1, self.total - self.warmup)


@dataclass(frozen=True, config=STRICT)
class ScheduleConfig(Complete, Declaration, ABC):
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
    name: str

    @property
    def counts_compute(self) -> bool:
        """Whether its time is the pixels that the run has processed, not its steps."""
        return False

    def multiplier(self, clock: Clock) -> float:
        """Return the multiplier of the peak learning rate, in [0, 1].

        A warmup that includes its peak goes (e + 1) / warmup through the epochs.
        """
        if clock.at >= clock.warmup:
            return self.after_warmup(clock)
        # note: EfficientTrain's warmup goes from 0 to the peak, both included
        length = max(1, clock.warmup - self.counts_compute)
        reached = min(1.0, (clock.at + clock.stair * self.warmup_includes_peak) / length)
        return self.warmup_start + (1 - self.warmup_start) * reached

    @abstractmethod
    def after_warmup(self, clock: Clock) -> float:
        """Return the multiplier after the warmup, as a pure function of the place."""


# The libraries with pretrained weights for their own models: values of `model.weights`.
LIBRARIES = ("torchvision", "timm", "smp")
# The start of a value of `model.weights` that is a repository of the Hugging Face Hub.
HUB = "hub:"
Setting = bool | int | float | str | list[int] | None


@dataclass(frozen=True, config=STRICT)
class ModelConfig(Complete, Declaration, ABC):
    """Values of all models; `checkpointing` recomputes activations in the backward pass to save memory.

    library: that of the network, if any. pretrained: the library of its encoder's weights, if it is another.
    has_batch_norm: false if it has none. draws: its layers draw random numbers from torch's generators. takes: the part
    of a record that it is for (`TaskConfig.needs`); None for any. any_channels: its network has the channels of the
    data set; others are for those with three.
    """

    library: ClassVar[str | None] = None
    pretrained: ClassVar[str | None] = None
    takes: ClassVar[str | None] = "label"
    has_batch_norm: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    any_channels: ClassVar[bool] = False

    name: str
    architecture: str
    weights: AnyPath | None
    weights_sha256: str | None
    checkpointing: Literal["on", "off"]

    @property
    def downloads(self) -> bool:
        """Whether `weights` are downloaded, unless a cache has them."""
        return self.weights is not None and (self.weights in LIBRARIES or self.weights.startswith(HUB))

    @property
    def registered_by(self) -> str | None:
        """The module that adds the architecture to its library; None for the library's own."""
        return None

    def keywords(self, channels: int = 3) -> dict[str, Setting]:
        """Return the keywords of the network's constructor besides the number of classes, for images of channels."""
        return {}

    @abstractmethod
    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        """Build the network of `classes` outputs with initial weights; torch's generators are those of the seed.

        channels: of an image; with `any_channels`.

        Raises UserError if it cannot be built from these values.
        """

    def network_changes(self, channels: int = 3) -> dict[str, dict[str, Any]]:
        """Return the values of each change by name that `network` makes to the library's, besides its weights."""
        return {}

    @classmethod
    def instead_of(cls, word: str) -> str | None:
        """Return what to type for a word that is no option; None if it means nothing here."""
        return None


# From outputs to the probabilities of classes, or `numbers`; None if an export has none.
Scores = Literal["softmax", "sigmoid", "numbers"] | None
# The mean loss [], float32, of outputs [B, ...] and targets [B, ...]; in training also with the keywords `of_classes`.
LossFunction = Callable[..., "Tensor"]


@dataclass(frozen=True, config=STRICT)
class LossConfig(Complete, Declaration, ABC):
    """Base of the values of all losses.

    labels: the kinds of labels that it is for (`TaskConfig.labelled`). scores: what the outputs are trained for.
    """

    labels: ClassVar[tuple[str, ...]]
    scores: ClassVar[Scores]

    name: str

    @abstractmethod
    def function(self, task: TaskConfig) -> LossFunction:
        """Return the loss of a task's targets."""

    def initialize(self, layers: Sequence[nn.Module], outputs: int) -> None:
        """Change the last layers of a new network with so many outputs.

        Raises UserError if they lack what the values change.
        """

    def of_classes(self, counts: np.ndarray, images: int) -> dict[str, np.ndarray]:
        """Return keywords of the loss in training with values of the classes, float64 [C].

        counts: the training images of each class, int64 [C], of so many images, which may have several classes.
        """
        return {}


@dataclass(frozen=True, config=STRICT)
class LoaderConfig(Complete, Declaration, ABC):
    """Base of the values of all data loaders.

    reads: whether it reads the data set. gives: the part of a record that it has (`TaskConfig.needs`).
    """

    reads: ClassVar[bool] = True
    gives: ClassVar[str] = "label"

    name: str

    def instead(self, typed: Collection[str], config_with: Callable[[str], RunConfig]) -> tuple[str, str] | None:
        """Return the option that takes the place of this one, and a note or ""; None if this one is used.

        typed: its keys that are not defaults. config_with: returns the run config with another option.
        """
        return None


@dataclass(frozen=True, config=STRICT)
class LoggerConfig(Complete, Declaration, ABC):
    """Base of the values of all loggers: the interval of records, and whether to write TensorBoard's files too.

    combines: whether its values are those of several other loggers by name, each null if it is off. has_threads:
    whether its sinks write in threads of their own; otherwise the program gives them one.
    """

    combines: ClassVar[bool] = False
    has_threads: ClassVar[bool] = False

    interval: Duration
    tensorboard: bool
    name: str

    def check(self) -> None:
        """Check that the logger works here, before a run starts.

        Raises UserError if its package is not installed, or it has no server.
        """

    def sink(self, folder: Any, config: RunConfig) -> Any:
        """Return a `records.sinks.Sink` besides metrics.jsonl and TensorBoard's files; None without one.

        folder: the `records.run_folder.RunFolder`.
        """
        return None
