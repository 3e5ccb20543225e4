"""The config of each library's models."""

import difflib
import importlib.util
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, AnyPath, Count, NotNegative, Positive, Probability

# The libraries with pretrained weights for their own models: values of `model.weights`.
LIBRARIES = ("torchvision", "timm")
_REGISTERED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)


@cache
def timm_architectures() -> tuple[str, ...]:
    """Return timm's models, read from its source, since importing it takes torch and seconds."""
    spec = importlib.util.find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    sources = sorted((Path(spec.origin).parent / "models").glob("*.py"))
    return tuple(sorted(name for path in sources for name in _REGISTERED.findall(path.read_text(encoding="utf-8"))))


def _known(architecture: str) -> str:
    names = timm_architectures()
    if architecture not in names:
        like = difflib.get_close_matches(architecture.lower(), names, n=4, cutoff=0.5)
        hint = f"; did you mean {', '.join(like)}?" if like else "; timm.list_models() lists them"
        raise ValueError(f"is not a timm model{hint}")
    return architecture


Setting = bool | int | float | str | list[int] | None


@dataclass(frozen=True, config=STRICT)
class BaseModel:
    """Values of all models; `checkpointing` recomputes activations in the backward pass to save memory."""

    library: ClassVar[str]

    name: str
    architecture: str
    weights: AnyPath | None
    weights_sha256: str | None
    checkpointing: Literal["on", "off"]

    def keywords(self) -> dict[str, Setting]:
        """Return the keywords of the network's constructor besides the number of classes."""
        return {}


@dataclass(frozen=True, config=STRICT)
class TorchvisionModel(BaseModel):
    """A ResNet; `gelu` is exact, `gelu_tanh` its approximation by tanh, as in JAX (Hendrycks & Gimpel 2016)."""

    library = "torchvision"

    name: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
    architecture: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
    activation: Literal["relu", "silu", "gelu", "gelu_tanh"]
    initialization: Literal["kaiming_normal", "torchvision"]
    batchnorm_weight: Literal["ones", "uniform"]
    batchnorm_scale: Positive
    residual_batchnorm_weight: NotNegative | None


@dataclass(frozen=True, config=STRICT)
class TimmModel(BaseModel):
    """Any image classifier of timm, with timm's initialization; null uses the library's default.

    `arguments` are additional keywords of the model's constructor.
    """

    library = "timm"

    name: Literal["timm"]
    architecture: Annotated[str, AfterValidator(_known)]
    drop_rate: Probability | None
    drop_path_rate: Probability | None
    img_size: Count | None
    global_pool: str | None
    arguments: dict[str, Setting]

    def keywords(self) -> dict[str, Setting]:
        named = {key: getattr(self, key) for key in ("drop_rate", "drop_path_rate", "img_size", "global_pool")}
        return {**{key: value for key, value in named.items() if value is not None}, **self.arguments}


@dataclass(frozen=True, config=STRICT)
class VisionTransformerModel(BaseModel):
    """big_vision's ViT with sinusoidal position embeddings and a tanh layer before the head; AlgoPerf's variants."""

    library = "model.py"

    name: Literal["vit"]
    architecture: Literal["vit"]
    patch_size: Count
    width: Annotated[int, Field(ge=8, multiple_of=4)]
    depth: Count
    heads: Count
    mlp_width: Count
    pooling: Literal["mean", "attention"]
    layer_norm: Literal["pre", "post"]
    glu: bool

    def keywords(self) -> dict[str, Setting]:
        common = {field.name for field in fields(BaseModel)}
        return {key: value for key, value in vars(self).items() if key not in common}
