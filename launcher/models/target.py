"""A network by `_target_`: conf/model/mine.yaml with `_target_: nets.TinyNet` and its keywords."""

from __future__ import annotations

from typing import Any

from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig
from launcher.config.fields import STRICT
from launcher.config.targets import KEY, Called
from launcher.errors import Problem, UserError
from launcher.later import nn
from launcher.models.timm import FORBIDDEN


@dataclass(frozen=True, config=STRICT)
class ModelTarget(Called, ModelConfig):
    """Calls the target with the number of outputs as `num_classes`, and its keywords; timm's also with the channels."""

    draws = True
    any_channels = True
    takes = None
    libraries = ("torch.nn", "torchvision.models", "timm.models")
    filled = ("num_classes",)

    @classmethod
    def unset(cls, name: str) -> dict[str, Any]:
        return {"architecture": name, "weights": None, "weights_sha256": None, "checkpointing": "off"}

    def keywords(self, channels: int = 3) -> dict[str, Any]:
        return {**self._channels(channels), **super().keywords()}

    def _channels(self, channels: int) -> dict[str, int]:
        return {"in_chans": channels} if channels != 3 and self.target.startswith("timm.") else {}

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        for name in FORBIDDEN.keys() & self.passed if self.target.startswith("timm.") else ():
            if getattr(self, name):
                message = f"{FORBIDDEN[name]}; type model=timm model.architecture=NAME, and model.weights=timm"
                raise UserError(Problem(message, f"model.{name}", getattr(self, name)))
        network = self.built(num_classes=classes, **self._channels(channels))
        if not isinstance(network, nn.Module):
            message = f"returns {type(network).__name__}; it must return an nn.Module"
            raise UserError(Problem(message, f"model.{KEY}", self.target))
        return network
