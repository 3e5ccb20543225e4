"""Build networks of torchvision (ResNets, He et al. 2016), timm and this project, with the run's initial weights."""

import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models.resnet import BasicBlock, Bottleneck

from launcher.config import schema
from launcher.config.keys import nearest
from launcher.errors import Problem, UserError, is_of_the_machine, one_line
from launcher.models.checkpointing import checkpoint_activations
from launcher.models.parameters import classifiers
from launcher.models.surgery import Surgery
from launcher.models.vision_transformer import VisionTransformer
from launcher.randomness import key

_CUT_DEVIATION = 0.87962566103423978  # of a standard normal distribution truncated at two
# Keywords that a run's config must not set: they load weights or build another kind of network.
FORBIDDEN = {
    **dict.fromkeys(("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"), "loads weights"),
    **dict.fromkeys(("cache_dir", "pretrained_strict", "pretrained_filter_fn"), "loads weights"),
    **dict.fromkeys(("features_only", "out_indices", "feature_cfg"), "builds no classifier"),
    **dict.fromkeys(("num_classes", "in_chans"), "comes from the data set"),
}
_KEYS = ("drop_rate", "drop_path_rate", "img_size", "global_pool")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def build_model(model: schema.Model, classes: int, loss: schema.Loss, seed: int) -> nn.Module:
    """Build a network of `classes` logits in float32 on the CPU, with the library's parameter names.

    Leaves the global generators unchanged. Initial weights depend only on the seed, the parameter's name and its own
    settings, so changing one setting redraws no other layer. Only timm's constructors draw all layers in order from one
    generator, so changing a layer's shape redraws those after it.

    Raises UserError if the network cannot be built from these values.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(seed, "initialization"))
        if isinstance(model, schema.TorchvisionModel):
            network = _torchvision(model, classes, seed)
        elif isinstance(model, schema.VisionTransformerModel):
            network = _vision_transformer(model, classes, seed)
        else:
            network = _timm(model, classes)
    if isinstance(loss, schema.BCE) and loss.log_classes_bias:
        for layer in classifiers(network):
            if not isinstance(layer.bias, nn.Parameter):
                raise UserError(
                    Problem("the model's last layer has no bias; set this key to false", "loss.log_classes_bias", True)
                )
            nn.init.constant_(layer.bias, -math.log(classes))
    if model.checkpointing == "on":
        checkpoint_activations(network)
    return network


def _torchvision(model: schema.TorchvisionModel, classes: int, seed: int) -> nn.Module:
    if model.initialization == "torchvision":
        network: nn.Module = get_model(model.architecture, weights=None, num_classes=classes)
    else:
        # note: skips torchvision's initialization, which would draw all weights twice
        with torch.device("meta"):
            network = get_model(model.architecture, weights=None, num_classes=classes)
        _draw_kaiming_normal(network.to_empty(device=torch.get_default_device()), seed)
    _set_batchnorm(network, model, seed)
    if model.activation != "relu":
        replace_relu(network, activation=model.activation)
    return network


def _vision_transformer(model: schema.VisionTransformerModel, classes: int, seed: int) -> nn.Module:
    if model.width % model.heads:
        raise UserError(Problem(f"must divide model.width={model.width}", "model.heads", model.heads))
    sizes: dict[str, Any] = model.keywords()
    network = VisionTransformer(classes, **sizes)
    for name, parameter in network.named_parameters():
        draw_weight(name, parameter.detach(), _generator(seed, name))
    return network


def draw_weight(name: str, values: Tensor, generator: torch.Generator) -> None:
    """Draw a parameter of the vision transformer in place, as big_vision's flax modules do.

    Normal with variance 1 / fan-in, truncated at two deviations, for patches and the layer before the head; uniform
    (Glorot & Bengio 2010) for attention and perceptrons, query, key and value each; the head is zero.
    """
    *_, layer, kind = name.split(".")[-2:]
    if "norm" in layer:
        return
    if layer in ("embedding", "pre_logits") and kind == "weight":
        deviation = values[0].numel() ** -0.5 / _CUT_DEVIATION
        nn.init.trunc_normal_(values, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
    elif kind == "probe":
        values.uniform_(-1, 1, generator=generator).mul_(math.sqrt(6 / (1 + values.numel())))
    elif kind == "weight" and layer != "head":
        for part in values.chunk(3 if layer == "qkv" else 1):
            nn.init.xavier_uniform_(part, generator=generator)
    elif layer in ("fc1", "gate", "fc2"):
        values.normal_(std=1e-6, generator=generator)
    else:
        values.zero_()


def model_surgeries(model: schema.Model) -> dict[str, Surgery]:
    """Return the changes by name that `build_model` makes to the library's network, besides its weights."""
    if not isinstance(model, schema.TorchvisionModel) or model.activation == "relu":
        return {}
    return {model.activation: Surgery(replace_relu, {"activation": model.activation})}


def _generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, f"initialization of {name}"))


def _draw_kaiming_normal(network: nn.Module, seed: int) -> None:
    """Draw normal weights of variance 2 / fan-in for convolutions and the last layer; biases are 0 (He et al. 2015)."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=_generator(seed, name))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@torch.no_grad()
def _set_batchnorm(network: nn.Module, model: schema.TorchvisionModel, seed: int) -> None:
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
            if model.batchnorm_weight == "uniform":
                module.weight.uniform_(0, 1, generator=_generator(seed, name))
            module.weight.mul_(model.batchnorm_scale)
    if model.residual_batchnorm_weight is not None:
        for module in network.modules():
            if isinstance(module, BasicBlock | Bottleneck):
                last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                last.weight.fill_(model.residual_batchnorm_weight)


def replace_relu(network: nn.Module, *, activation: str) -> None:
    """Replace each ReLU by SiLU, or by GELU exactly or in its tanh form, in place."""
    replacements: dict[str, Callable[[], nn.Module]] = {
        "silu": lambda: nn.SiLU(inplace=True),
        "gelu": nn.GELU,
        "gelu_tanh": lambda: nn.GELU("tanh"),
    }
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, replacements[activation]())


def _timm(model: schema.TimmModel, classes: int) -> nn.Module:
    """Build a timm model with the initial weights of its constructor; downloads nothing.

    Raises UserError if the model rejects a keyword or its value.
    """
    for name, value in model.arguments.items():
        if name in (*FORBIDDEN, *_KEYS):
            reason = f"{FORBIDDEN[name]}; remove the key" if name in FORBIDDEN else f"set model.{name} instead"
            raise UserError(Problem(reason, f"model.arguments.{name}", value))
    # note: takes a second, and imports W&B's client if installed
    import timm

    values: dict[str, Any] = model.keywords()
    try:
        network: nn.Module = timm.create_model(model.architecture, pretrained=False, num_classes=classes, **values)
    except Exception as error:
        raise UserError(_refused(model, classes, error)) from error
    return network


def fitted(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights as timm does to load them into this network: positions resampled, authors' names replaced.

    Returns them unchanged if the architecture has no such rule, or if its rule fails.
    """
    fit = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    try:
        return dict(fit(dict(weights), network)) if fit else dict(weights)
    # note: the weights may be of any other network
    except Exception as error:
        if is_of_the_machine(error):
            raise
        return dict(weights)


def _refused(model: schema.TimmModel, classes: int, error: Exception) -> Problem:
    """Return what is wrong with a value, by its key, from timm's own error."""
    match = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    values = model.keywords()
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
