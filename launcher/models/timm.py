"""timm's models."""

from __future__ import annotations

import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from launcher.config import code
from launcher.config.choices import ModelConfig, Setting
from launcher.config.fields import STRICT, Edges, Probability
from launcher.config.similar import ALMOST_EQUAL, nearest
from launcher.errors import Problem, UserError, one_line
from launcher.later import nn

_TAGGED = re.compile(r"""["'](\w+\.\w+)["']\s*:""")
_REGISTERED = re.compile(r"^@register_model\s*\ndef (\w+)\(", re.MULTILINE)
# Keywords that a run's config must not set: they load weights or build another kind of network.
FORBIDDEN = {
    **dict.fromkeys(("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"), "loads weights"),
    **dict.fromkeys(("cache_dir", "pretrained_strict", "pretrained_filter_fn"), "loads weights"),
    **dict.fromkeys(("features_only", "out_indices", "feature_cfg"), "builds no classifier"),
    **dict.fromkeys(("num_classes", "in_chans"), "comes from the data set"),
}
_KEYS = ("drop_rate", "drop_path_rate", "img_size", "global_pool")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


@cache
def _tagged() -> frozenset[str]:
    """Return the names of timm's pretrained weights, such as resnet18.a1_in1k, read from its source."""
    return frozenset(name for text in _sources() for name in _TAGGED.findall(text))


@cache
def _sources() -> tuple[str, ...]:
    """Return the source of timm's models, since importing it takes torch and seconds."""
    spec = importlib.util.find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    files = sorted((Path(spec.origin).parent / "models").glob("*.py"))
    return tuple(path.read_text(encoding="utf-8") for path in files)


@cache
def timm_architectures() -> tuple[str, ...]:
    """Return timm's models, read from its source."""
    return tuple(sorted(name for text in _sources() for name in _REGISTERED.findall(text)))


def _is_registered(architecture: str) -> bool:
    """Return whether the user's code has registered an architecture."""
    if not code.available():
        return False
    from timm.models import is_model  # note: takes a second

    return bool(is_model(architecture))


def _known(architecture: str) -> str:
    names, (plain, _, tag) = timm_architectures(), architecture.partition(".")
    is_timms = plain in names and (not tag or architecture in _tagged())
    if not is_timms and not code.is_read_only() and not _is_registered(plain):
        like = nearest(architecture, names, ALMOST_EQUAL)
        hint = f"; did you mean {like}?" if like else "; timm.list_models() lists them"
        raise ValueError(f"is not a timm model{hint}")
    return architecture


@dataclass(frozen=True, config=STRICT)
class TimmModel(ModelConfig):
    """Any image classifier of timm, with timm's initialization; null uses the library's default.

    `arguments` are additional keywords of the model's constructor.
    """

    library = "timm"
    draws = True
    any_channels = True

    name: Literal["timm"]
    architecture: Annotated[str, AfterValidator(_known)]
    drop_rate: Probability | None
    drop_path_rate: Probability | None
    img_size: Edges | None
    global_pool: str | None
    arguments: dict[str, Setting]

    def keywords(self, channels: int = 3) -> dict[str, Setting]:
        named = {key: getattr(self, key) for key in ("drop_rate", "drop_path_rate", "img_size", "global_pool")}
        own = {"in_chans": channels} if channels != 3 else {}
        return {**own, **{key: value for key, value in named.items() if value is not None}, **self.arguments}

    @property
    def registered_by(self) -> str | None:
        if self.architecture.partition(".")[0] in timm_architectures():
            return None
        from timm.models import model_entrypoint  # note: takes a second

        return str(model_entrypoint(self.architecture).__module__)

    @classmethod
    def instead_of(cls, word: str) -> str | None:
        return f"type model=timm model.architecture={word}" if word in timm_architectures() else None

    def network(self, classes: int, seed: int, channels: int = 3) -> nn.Module:
        """Build a timm model with the initial weights of its constructor; downloads nothing.

        Raises UserError if the model rejects a keyword or its value.
        """
        for name, value in self.arguments.items():
            if name in (*FORBIDDEN, *_KEYS):
                reason = f"{FORBIDDEN[name]}; remove the key" if name in FORBIDDEN else f"set model.{name} instead"
                raise UserError(Problem(reason, f"model.arguments.{name}", value))
        # note: takes a second, and imports W&B's client if installed
        import timm

        values: dict[str, Any] = self.keywords(channels)
        try:
            network: nn.Module = timm.create_model(self.architecture, pretrained=False, num_classes=classes, **values)
        except Exception as error:
            raise UserError(_refused(self, classes, channels, error)) from error
        return network


def _refused(model: TimmModel, classes: int, channels: int, error: Exception) -> Problem:
    """Return what is wrong with a value, by its key, from timm's own error."""
    match = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    values = model.keywords()
    if channels != 3 and match is not None and match[1] == "in_chans":
        message = f"is for three channels alone; set another model.architecture than {model.architecture}"
        return Problem(message, "dataset.channels", channels)
    if match is None or match[1] not in values:
        listed = ", ".join(f"{name}={value}" for name, value in values.items()) or "no further values"
        reason = one_line(str(error)) or type(error).__name__
        return Problem(
            f"timm cannot build it with {listed}: {reason}; correct one of these values",
            "model.architecture",
            model.architecture,
        )
    import timm

    name = match[1]
    network = type(timm.create_model(model.architecture, num_classes=classes))
    kinds: Any = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    others = ("self", *FORBIDDEN, *_KEYS)
    parameters = inspect.signature(network.__init__).parameters.values()
    names = [one.name for one in parameters if one.kind in kinds and one.name not in others]
    like = nearest(name, names)
    hint = f"; did you mean {like}?" if like else f"; set one of {', '.join(names)}"
    group = "model." if name not in model.arguments else "model.arguments."
    return Problem(f"is not a value of {model.architecture}{hint}", f"{group}{name}", values[name])
