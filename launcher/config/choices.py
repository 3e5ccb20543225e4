"""The config of each optimizer, each loss and each logger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import Declaration, RunPlan
from launcher.config.fields import STRICT, Count, Duration, Fraction, NotNegative, OnePerClass, Positive, Probability
from launcher.errors import Problem

if TYPE_CHECKING:
    from launcher.config.schema import RunConfig

Beta = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class OptimizerConfig(Declaration):
    """Values of all optimizers: `lr` is for `reference_batch_size`; `scale_lr` scales it to the run's batch.

    `backbone_lr` multiplies it for all but the last layer, and `layer_decay` from each layer to the one before it, as
    timm's option does (BEiT, Bao et al. 2021).
    `no_decay` are the parameters without weight decay: `vectors` (biases, norm weights), those of normalisation layers
    (`norms`), those with `bn` in their name (`bn_names`), or `none` of them; `all_but_kernels` decays only weights of
    convolutions and linear layers, not positions, tokens or layer scale.
    """

    lr: NotNegative
    reference_batch_size: Count
    scale_lr: Literal["linear", "off"]
    backbone_lr: NotNegative
    layer_decay: Annotated[float, Field(gt=0, le=1)]
    weight_decay: NotNegative
    no_decay: Literal["none", "vectors", "norms", "bn_names", "all_but_kernels"]
    name: str


@dataclass(frozen=True, config=STRICT)
class MomentumConfig(OptimizerConfig):
    momentum: Probability


@dataclass(frozen=True, config=STRICT)
class NesterovConfig(MomentumConfig):
    nesterov: bool

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.nesterov and not self.momentum:
            message = "needs momentum above 0; set optimizer.nesterov=false for plain SGD"
            yield Problem(message, "optimizer.nesterov", self.nesterov)


@dataclass(frozen=True, config=STRICT)
class SGDConfig(NesterovConfig):
    name: Literal["sgd"]


@dataclass(frozen=True, config=STRICT)
class DecoupledSGDConfig(NesterovConfig):
    name: Literal["decoupled_sgd"]


@dataclass(frozen=True, config=STRICT)
class LARSConfig(MomentumConfig):
    name: Literal["lars"]
    trust_coefficient: Positive
    epsilon: NotNegative


@dataclass(frozen=True, config=STRICT)
class LionConfig(OptimizerConfig):
    name: Literal["lion"]
    beta1: Beta
    beta2: Beta


@dataclass(frozen=True, config=STRICT)
class AdamConfig(OptimizerConfig):
    beta1: Beta
    beta2: Beta
    epsilon: Positive


@dataclass(frozen=True, config=STRICT)
class AdamWConfig(AdamConfig):
    name: Literal["adamw"]


@dataclass(frozen=True, config=STRICT)
class NAdamWConfig(AdamConfig):
    name: Literal["nadamw"]


@dataclass(frozen=True, config=STRICT)
class LAMBConfig(AdamConfig):
    name: Literal["lamb"]
    max_grad_norm: Positive | None


@dataclass(frozen=True, config=STRICT)
class MuonConfig(AdamConfig):
    """Muon's momentum and iterations for matrices and convolutions; the betas are AdamW's, for the others."""

    name: Literal["muon"]
    momentum: Beta
    nesterov: bool
    iterations: Count


@dataclass(frozen=True, config=STRICT)
class SOAPConfig(AdamConfig):
    """`beta2` also averages the Kronecker factors; each `interval` steps update their bases, up to size `max_side`."""

    name: Literal["soap"]
    interval: Count
    max_side: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return step % self.interval == 0


@dataclass(frozen=True, config=STRICT)
class ShampooConfig(AdamConfig):
    """`beta2` also averages the factors of blocks up to `max_side`, whose roots change every `interval` steps.

    `epsilon` is added to the factors and in Adam's step.
    """

    name: Literal["shampoo"]
    interval: Count
    max_side: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return (step + 1) % self.interval == 0


@dataclass(frozen=True, config=STRICT)
class ScheduleFreeAdamWConfig(AdamConfig):
    """Step k (from 1) has weight k^`step_power` * lr^`lr_power` in the average, which is evaluated and saved.

    `bias_correction` divides the second moment by 1 - beta2^k, as the authors' library does, or multiplies the learning
    rate, also for weight decay, by its root, as their submission to AlgoPerf does.
    Every `statistics_interval` steps a forward pass with the averaged weights updates the statistics of batch norm.
    """

    excludes: ClassVar[Mapping[str, str]] = {
        "evaluation_weights": "both replace the weights to evaluate and save; use one"
    }

    name: Literal["schedule_free_adamw"]
    beta1: Annotated[float, Field(gt=0, lt=1)]
    step_power: NotNegative
    lr_power: NotNegative
    bias_correction: Literal["second_moment", "learning_rate"]
    statistics_interval: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return step % self.statistics_interval == 0

    def notes(self, plan: RunPlan) -> Iterator[str]:
        if (schedule := plan.config.schedule.name) != "constant":
            yield (
                f"optimizer={self.name} averages weights instead of a schedule; with schedule={schedule} the learning "
                "rate also decays; with schedule=constant it does not"
            )


def by_name(*declarations: type[Any]) -> Any:
    """Return the type of a group of options, discriminated by `name`."""
    if len(declarations) == 1:
        return declarations[0]
    return Annotated[Union[(*declarations,)], Field(discriminator="name")]


def declared(base: type[Any]) -> Iterator[type[Any]]:
    """Yield the declarations of a group of options: all leaf subclasses of its base."""
    for declaration in base.__subclasses__():
        yield from declared(declaration) if declaration.__subclasses__() else [declaration]


if TYPE_CHECKING:
    Optimizer = OptimizerConfig
else:
    Optimizer = by_name(*declared(OptimizerConfig))


@dataclass(frozen=True, config=STRICT)
class ClassWeights:
    """Values of all losses: weights of classes with n training images, or a list of numbers in the order of the names.

    `auto` is n ^ -power, `effective` is (1 - beta) / (1 - beta^n) (Cui et al. 2019); their mean over training images is
    1. The loss remains the sum over samples divided by their number, in an evaluation without weights.
    """

    class_weights: Literal["none", "auto", "effective"] | OnePerClass
    class_weights_power: NotNegative
    class_weights_beta: Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class CrossEntropy(ClassWeights):
    name: Literal["cross_entropy"]


@dataclass(frozen=True, config=STRICT)
class BCE(ClassWeights):
    """Targets above `target_threshold` count as 1 and others as 0, as in timm; null keeps mixed and smoothed ones."""

    name: Literal["bce"]
    log_classes_bias: bool
    target_threshold: Fraction | None


@dataclass(frozen=True, config=STRICT)
class Errors:
    """The mean squared or absolute error."""

    name: Literal["mse", "l1"]


@dataclass(frozen=True, config=STRICT)
class Huber:
    """Squares errors up to `delta` standard deviations of the training targets; above it, the loss is linear."""

    name: Literal["huber"]
    delta: Positive


@dataclass(frozen=True, config=STRICT)
class Records:
    """Values of all loggers: the interval of records, and whether to write TensorBoard's files too."""

    interval: Duration
    tensorboard: bool

    def check(self) -> None:
        """Check that the logger works here, before a run starts.

        Raises UserError if its package is not installed, or it has no server.
        """

    def sink(self, folder: Any, config: RunConfig) -> Any:
        """Return a `Sink` for records besides metrics.jsonl and TensorBoard's files; None without one."""
        return None


@dataclass(frozen=True, config=STRICT)
class Jsonl(Records):
    """Only metrics.jsonl in the run folder."""

    name: Literal["jsonl"]


@dataclass(frozen=True, config=STRICT)
class TensorBoard(Records):
    """metrics.jsonl and TensorBoard's files."""

    name: Literal["tensorboard"]
