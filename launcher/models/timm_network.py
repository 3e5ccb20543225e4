"""A classifier of timm's from a run's config, and what of the config timm cannot make one of."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

import timm
from torch import Tensor, nn

from launcher.config.keys import nearest
from launcher.config.models import TimmModel
from launcher.errors import Problem, UserError, is_of_the_machine, one_line

# What would load weights or a network of another kind: not for a run's config to say.
FORBIDDEN = {
    **dict.fromkeys(("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"), "loads weights"),
    **dict.fromkeys(("cache_dir", "pretrained_strict", "pretrained_filter_fn"), "loads weights"),
    **dict.fromkeys(("features_only", "out_indices", "feature_cfg"), "makes no classifier"),
    **dict.fromkeys(("num_classes", "in_chans"), "comes from the data set"),
}
_KEYS = ("drop_rate", "drop_path_rate", "img_size", "global_pool")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def timm_network(model: TimmModel, classes: int) -> nn.Module:
    """The network with the initial weights that its constructor draws; nothing is downloaded.

    Raises:
        UserError: it takes no such keyword, or not that value.
    """
    for name, value in model.arguments.items():
        if name in (*FORBIDDEN, *_KEYS):
            reason = f"{FORBIDDEN[name]}; remove the key" if name in FORBIDDEN else f"is a key of its own: model.{name}"
            raise UserError(Problem(reason, f"model.arguments.{name}", value))
    values: dict[str, Any] = model.keywords()
    try:
        network: nn.Module = timm.create_model(model.architecture, pretrained=False, num_classes=classes, **values)
    except Exception as error:
        raise UserError(_refused(model, classes, error)) from error
    return network


def fitted(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as timm would load them into this network: positions resampled to its image side, authors' names timm's.

    They stay as they are where the architecture has no such rule, or where it cannot be followed.
    """
    fit = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    try:
        return dict(fit(dict(weights), network)) if fit else dict(weights)
    # note: the rules meet weights that are of any other network
    except Exception as error:
        if is_of_the_machine(error):
            raise
        return dict(weights)


def _refused(model: TimmModel, classes: int, error: Exception) -> Problem:
    """Return what is wrong with a value, by its key, from timm's own error."""
    match = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    values = model.keywords()
    if match is None or match[1] not in values:
        listed = ", ".join(f"{name}={value}" for name, value in values.items()) or "no further values"
        reason = one_line(str(error)) or type(error).__name__
        return Problem(f"timm cannot build it with {listed}: {reason}", "model.architecture", model.architecture)
    name = match[1]
    known = keywords(type(timm.create_model(model.architecture, num_classes=classes)))
    like = nearest(name, known)
    hint = f"; did you mean {like}?" if like else f"; it takes {', '.join(known)}"
    group = "model." if name not in model.arguments else "model.arguments."
    return Problem(f"is no value of {model.architecture}{hint}", f"{group}{name}", values[name])


def keywords(network: type[nn.Module]) -> list[str]:
    """What a constructor takes besides what the run's data decide."""
    taken = inspect.signature(network.__init__).parameters
    kinds: Any = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, one in taken.items() if one.kind in kinds and name not in ("self", *FORBIDDEN, *_KEYS)]
