"""The values of each optimizer and each logger."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count, Duration, NotNegative, Positive, Probability

Beta = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class LearningRate:
    """What every optimizer has: `lr` is meant for `reference_batch_size`; `scale_lr` scales it to the batch in use.

    `no_decay` are the parameters that weight decay leaves out: `vectors` (biases, norm weights), those of
    normalisation layers (`norms`), those with `bn` in their name (`bn_names`), or `none` of them;
    `all_but_kernels` decays weights of convolutions and linear layers alone: no positions, tokens, layer scale either.
    """

    lr: NotNegative
    reference_batch_size: Count
    scale_lr: Literal["linear", "off"]
    weight_decay: NotNegative
    no_decay: Literal["none", "vectors", "norms", "bn_names", "all_but_kernels"]


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
class Records:
    """What every logger has: how often a line is written, and whether TensorBoard's files are written too."""

    interval: Duration
    tensorboard: bool


@dataclass(frozen=True, config=STRICT)
class Jsonl(Records):
    name: Literal["jsonl"]


@dataclass(frozen=True, config=STRICT)
class TensorBoard(Records):
    name: Literal["tensorboard"]


@dataclass(frozen=True, config=STRICT)
class Wandb(Records):
    """Weights & Biases, through its own library; `mode` null leaves it to that library's WANDB_MODE."""

    name: Literal["wandb"]
    project: str
    entity: str | None
    mode: Literal["online", "offline"] | None


@dataclass(frozen=True, config=STRICT)
class Mlflow(Records):
    """An MLflow server, through its own library; `uri` null leaves it to that library's MLFLOW_TRACKING_URI."""

    name: Literal["mlflow"]
    uri: str | None
    experiment: str


Logger = Annotated[Jsonl | TensorBoard | Wandb | Mlflow, Field(discriminator="name")]
