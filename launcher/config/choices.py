"""The values of each optimizer and each logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count, Duration, NotNegative, Positive, Probability

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig

Beta = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class LearningRate:
    """What every optimizer has: `lr` is meant for `reference_batch_size`; `scale_lr` scales it to the batch in use.

    `backbone_lr` multiplies it for all but the last layer.
    `no_decay` are the parameters that weight decay leaves out: `vectors` (biases, norm weights), those of
    normalisation layers (`norms`), those with `bn` in their name (`bn_names`), or `none` of them;
    `all_but_kernels` decays weights of convolutions and linear layers alone: no positions, tokens, layer scale either.
    excludes: methods of training with which an optimizer has no defined meaning, and why.
    """

    excludes: ClassVar[Mapping[str, str]] = {}

    lr: NotNegative
    reference_batch_size: Count
    scale_lr: Literal["linear", "off"]
    backbone_lr: NotNegative
    weight_decay: NotNegative
    no_decay: Literal["none", "vectors", "norms", "bn_names", "all_but_kernels"]

    def acts_at(self, plan: RunPlan, step: int) -> int | None:
        """As `AlgorithmConfig.acts_at`: for an optimizer that does more at some steps."""
        return None


@dataclass(frozen=True, config=STRICT)
class DecoupledSGDConfig(LearningRate):
    name: Literal["decoupled_sgd"]
    momentum: Probability
    dampening: Probability
    nesterov: bool


@dataclass(frozen=True, config=STRICT)
class SGDConfig(LearningRate):
    name: Literal["sgd"]
    momentum: Probability
    dampening: Probability
    nesterov: bool


@dataclass(frozen=True, config=STRICT)
class LAMBConfig(LearningRate):
    name: Literal["lamb"]
    beta1: Beta
    beta2: Beta
    epsilon: Positive
    max_grad_norm: Positive | None


@dataclass(frozen=True, config=STRICT)
class AdamWConfig(LearningRate):
    name: Literal["adamw"]
    beta1: Beta
    beta2: Beta
    epsilon: Positive


@dataclass(frozen=True, config=STRICT)
class NAdamWConfig(LearningRate):
    name: Literal["nadamw"]
    beta1: Beta
    beta2: Beta
    epsilon: Positive


@dataclass(frozen=True, config=STRICT)
class LARSConfig(LearningRate):
    name: Literal["lars"]
    momentum: Probability
    trust_coefficient: Positive
    epsilon: NotNegative


@dataclass(frozen=True, config=STRICT)
class LionConfig(LearningRate):
    name: Literal["lion"]
    beta1: Beta
    beta2: Beta


@dataclass(frozen=True, config=STRICT)
class MuonConfig(LearningRate):
    """Muon's momentum and iterations for matrices and convolutions; the betas are of AdamW, for all else."""

    name: Literal["muon"]
    momentum: Beta
    nesterov: bool
    iterations: Count
    beta1: Beta
    beta2: Beta
    epsilon: Positive


@dataclass(frozen=True, config=STRICT)
class SOAPConfig(LearningRate):
    """`beta2` averages the Kronecker factors too, whose bases follow them every `interval` steps up to `max_side`."""

    name: Literal["soap"]
    beta1: Beta
    beta2: Beta
    epsilon: Positive
    interval: Count
    max_side: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return int(step % self.interval == 0)


@dataclass(frozen=True, config=STRICT)
class ScheduleFreeAdamWConfig(LearningRate):
    """Step k (from 1) weighs k^`step_power` * lr^`lr_power` in the average, which is what is evaluated and saved.

    Every `statistics_interval` steps a forward pass with the averaged weights moves the statistics of batch norm.
    """

    excludes = dict.fromkeys(["ema", "swa"], "both give the weights to evaluate and save; keep one")

    name: Literal["schedule_free_adamw"]
    beta1: Annotated[float, Field(gt=0, lt=1)]
    beta2: Beta
    epsilon: Positive
    step_power: NotNegative
    lr_power: NotNegative
    statistics_interval: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return int(step % self.statistics_interval == 0)


Optimizer = Annotated[
    DecoupledSGDConfig
    | SGDConfig
    | LARSConfig
    | LAMBConfig
    | AdamWConfig
    | NAdamWConfig
    | LionConfig
    | MuonConfig
    | SOAPConfig
    | ScheduleFreeAdamWConfig,
    Field(discriminator="name"),
]


@dataclass(frozen=True, config=STRICT)
class Records:
    """What every logger has: how often a line is written, and whether TensorBoard's files are written too."""

    interval: Duration
    tensorboard: bool

    def check(self) -> None:
        """See that the logger can work here, before a run starts.

        Raises:
            UserError: its package is not installed, or its server is not named.
        """

    def sink(self, folder: Any, config: RunConfig) -> Any:
        """What takes the records besides metrics.jsonl and TensorBoard's files, a `Sink`; None for nothing."""
        return None


@dataclass(frozen=True, config=STRICT)
class Jsonl(Records):
    name: Literal["jsonl"]


@dataclass(frozen=True, config=STRICT)
class TensorBoard(Records):
    name: Literal["tensorboard"]
