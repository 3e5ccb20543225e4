"""Networks of segmentation-models-pytorch, a decoder on an encoder; the package is optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import ModelConfig, Setting
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.config.similar import nearest
from launcher.errors import Problem, UserError, one_line
from launcher.installation import how_to_add
from launcher.later import nn, torch

_PACKAGE = "segmentation_models_pytorch"
# The start of the names of an encoder's weights.
ENCODER = "encoder."
# Arguments of the constructor that the run sets.
_OWN = {
    "encoder_weights": "downloads weights",
    "encoder_name": "is model.encoder",
    "in_channels": "comes from the data set",
    "classes": "comes from the data set",
    "activation": "changes the logits",
    "aux_params": "adds outputs that are no mask",
}


@dataclass(frozen=True, config=STRICT)
class SmpModel(ModelConfig):
    """A decoder such as Unet or FPN on one of the library's encoders, with the library's initialization.

    An encoder `tu-NAME` is timm's NAME. `arguments` are additional keywords of the decoder's constructor.
    """

    pretrained = "smp"
    takes = "mask"
    draws = True
    any_channels = True

    name: Literal["smp"]
    architecture: str
    encoder: str
    arguments: dict[str, Setting]

    def keywords(self, channels: int = 3) -> dict[str, Setting]:
        own: dict[str, Setting] = {"encoder_name": self.encoder, "encoder_weights": None, "in_channels": channels}
        return {"arch": self.architecture, **own, **self.arguments}

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if importlib.util.find_spec(_PACKAGE) is None:
            name = "segmentation-models-pytorch"
            message = f"needs the package {name}, which is not installed; run {how_to_add(name)}"
            yield Problem(message, "model", self.name)
        if self.checkpointing == "on":
            yield Problem("is not offered by its networks; set model.checkpointing=off", "model.checkpointing", "on")
        for name, value in self.arguments.items():
            if name in _OWN:
                yield Problem(f"{_OWN[name]}; remove the key", f"model.arguments.{name}", value)

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        """Build a network with the initial weights of its constructor; downloads nothing.

        Raises UserError if the library rejects a value.
        """
        import segmentation_models_pytorch as smp  # note: takes seconds, so only after `problems`

        known = smp.MODEL_ARCHITECTURES_MAPPING
        if self.architecture.lower() not in known:
            raise _unknown("architecture", self.architecture, [one.__name__ for one in known.values()])
        if not self.encoder.startswith("tu-") and self.encoder not in smp.encoders.encoders:
            raise _unknown("encoder", self.encoder, list(smp.encoders.encoders))
        try:
            # note: some encoders read the values of tensors, which meta tensors lack
            with torch.device("cpu"):
                network: nn.Module = smp.create_model(classes=classes, **self.keywords(channels))
        except Exception as error:
            reason = one_line(str(error)) or type(error).__name__
            message = (
                f"cannot be built on model.encoder={self.encoder} with its arguments: {reason}; change one of them"
            )
            raise UserError(Problem(message, "model.architecture", self.architecture)) from error
        return network.to(torch.get_default_device())

    def encoder_weights(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Return the source of the library's weights of the encoder, and these by the network's names.

        They are downloaded once into the cache of the Hugging Face Hub, those of ImageNet if the encoder has them.
        """
        import segmentation_models_pytorch as smp

        settings = smp.encoders.encoders.get(self.encoder, {}).get("pretrained_settings", {})
        of_library = "imagenet" if "imagenet" in settings else next(iter(settings), None)
        weights = True if self.encoder.startswith("tu-") else of_library
        network = smp.create_model(classes=1, **{**self.keywords(), "encoder_weights": weights})
        tensors = {name: one for name, one in network.state_dict().items() if name.startswith(ENCODER)}
        return settings[of_library]["repo_id"] if of_library else self.encoder, tensors


def _unknown(key: str, value: str, names: Sequence[str]) -> UserError:
    like = nearest(value, names)
    hint = f"did you mean {like}?" if like else f"set one of {', '.join(names)}"
    return UserError(Problem(f"is not in segmentation-models-pytorch; {hint}", f"model.{key}", value))
