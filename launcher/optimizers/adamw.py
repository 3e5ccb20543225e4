"""AdamW: Adam with decoupled weight decay."""

from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.optimizers.adam import Adam, AdamConfig


@dataclass(frozen=True, config=STRICT)
class AdamWConfig(AdamConfig):
    name: Literal["adamw"]


class AdamW(Adam[AdamWConfig]):
    """AdamW (Loshchilov & Hutter 2019), as torch.optim computes it."""
