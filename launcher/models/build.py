"""Build the network of a run with its initial weights."""

import io
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout

import torch
from torch import Tensor, nn

from launcher.compute.randomness import key
from launcher.config.choices import LossConfig, ModelConfig
from launcher.errors import is_of_the_machine
from launcher.models.checkpointing import checkpoint_activations
from launcher.models.parameters import classifiers


def build_model(model: ModelConfig, classes: int, loss: LossConfig, seed: int, channels: int = 3) -> nn.Module:
    """Build a network of `classes` logits in float32 on the CPU, with the library's parameter names.

    channels: of an image; other than 3 only of models with `any_channels`.

    Leaves the global generators unchanged. Initial weights depend only on the seed, the parameter's name and its own
    settings, so changing one setting redraws no other layer. Only timm's constructors draw all layers in order from one
    generator, so changing a layer's shape redraws those after it.

    Raises UserError if the network cannot be built from these values.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key(seed, "initialization"))
        network: nn.Module = model.network(classes, seed, *([channels] if model.any_channels else []))
    loss.initialize(classifiers(network), classes)
    if model.checkpointing == "on":
        checkpoint_activations(network)
    return network


def adapted(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert weights as timm does to load them into this network: positions resampled, authors' names replaced.

    Returns them unchanged if the architecture has no such rule, or if its rule fails or drops a bias that is not zero.
    """
    fit = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    try:
        # note: timm prints the biases of DINOv3 that it drops
        with redirect_stdout(io.StringIO()):
            fitting = dict(fit(dict(weights), network)) if fit else dict(weights)
    # note: the weights may be of any other network
    except Exception as error:
        if is_of_the_machine(error):
            raise
        return dict(weights)
    return fitting if _keeps_biases(weights, fitting) else dict(weights)


def _keeps_biases(weights: Mapping[str, Tensor], fitting: Mapping[str, Tensor]) -> bool:
    """Return whether the biases of attention of DINOv3 that are not zero have a place in an adapted network."""
    names = [name for name, one in weights.items() if name.endswith("qkv.bias") and one.any()]
    return "storage_tokens" not in weights or all(name.replace("qkv.bias", "q_bias") in fitting for name in names)
