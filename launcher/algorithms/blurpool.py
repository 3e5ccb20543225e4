"""BlurPool (Zhang 2019): a low-pass filter before every downsampling, against aliasing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.config.fields import STRICT, Count
from launcher.later import nn


@dataclass(config=STRICT)
class BlurPool(Algorithm, change_model=20):
    needs = "strided convolution of at least algorithms.blurpool.min_channels inputs or max pooling"

    replace_convs: bool
    replace_maxpool: bool
    min_channels: Count
    blur_first: bool

    def network_values(self) -> dict[str, Any]:
        return asdict(self)

    def change_model(self, model: nn.Module) -> None:
        from launcher.algorithms.blurpool_layers import blur_pool

        blur_pool(model, **asdict(self))
