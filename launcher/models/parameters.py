"""Classify the parameters of a network by their layer and shape, independent of the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from launcher.compute.randomness import key
from launcher.later import nn, torch

if TYPE_CHECKING:
    from torch import Tensor

# matrix, convolution: weights of linear layers and of convolutions, except the head's
# head: weights of the last layer
# norm: weights and biases of normalisation layers
# bias: biases of linear layers, convolutions and attention
# scale: layer scale, gains, temperatures
# embedding: positions, tokens, tables of relative positions
Kind = Literal["matrix", "convolution", "head", "norm", "bias", "scale", "embedding"]
# the name up to the number of a block
_BLOCK = re.compile(r"(?:.*?\.)?\d+(?=\.)")
# the names of timm and torch
_QUERY_KEY_VALUE = re.compile(r"(^|\.)(qkv\.|in_proj_)")
KERNELS = ("matrix", "convolution", "head")


def parameter_kinds(network: nn.Module) -> dict[str, Kind]:
    """Return the kind of each parameter by name, in the network's order."""
    heads = {id(layer) for layer in classifiers(network)}
    kinds = {
        name: _kind(module, name.rpartition(".")[2], parameter, id(module) in heads)
        for name, parameter, module in owned_parameters(network)
    }
    # note: names, or prefixes of names; timm's small networks that replace a table of relative positions are among them
    no_decay: Any = getattr(network, "no_weight_decay", None)
    positions = tuple(pattern.removesuffix("*") for pattern in (no_decay() if no_decay else ()))
    return {
        name: "embedding" if kind in KERNELS[:2] and name.startswith(positions) else kind
        for name, kind in kinds.items()
    }


def owned_parameters(network: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Yield the name of each parameter, the parameter, and the layer that has it, in the network's order."""
    for prefix, module in network.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            yield name, parameter, module


def classifiers(network: nn.Module) -> list[nn.Module]:
    """Return the layers that compute the logits: timm's `get_classifier` (some have two), or the last linear layer.

    Networks of segmentation-models-pytorch have them in `segmentation_head`.

    Each is an nn.Linear or a convolution.
    """
    get: Any = getattr(network, "get_classifier", None)
    own = get() if get else getattr(network, "segmentation_head", None)
    parts = list(own) if isinstance(own, list | tuple | nn.ModuleList) else [own or network]
    kernels = nn.Linear | nn.modules.conv._ConvNd
    layers = [[x for x in one.modules() if isinstance(x, kernels)] for one in parts if isinstance(one, nn.Module)]
    return [inside[-1] for inside in layers if inside and (own is not None or isinstance(inside[-1], nn.Linear))]


def fused_projections(network: nn.Module) -> list[str]:
    """Return the names of the weights and biases that map to queries, keys and values."""
    return [name for name, _ in network.named_parameters() if _QUERY_KEY_VALUE.search(name)]


def parameters_of_head(network: nn.Module) -> set[str]:
    """Return the names of the parameters of the layers that compute the logits."""
    heads = {id(layer) for layer in classifiers(network)}
    return {name for name, _, module in owned_parameters(network) if id(module) in heads}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, shapes and values, independent of the file."""
    sha256 = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha256.update(tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return sha256.hexdigest()


def layer_depths(network: nn.Module) -> dict[str, int]:
    """Return the number of each parameter's layer by name, from 0 for the stem to the head's.

    The layers are timm's groups for its networks, as in its `param_groups_layer_decay`; else the numbered blocks, in
    order.
    """
    depths: dict[str, int]
    matcher: Any = getattr(network, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        depths = group_parameters(network, matcher(coarse=False), reverse=True)
        return depths
    if getattr(network, "pretrained_cfg", {}).get("classifier"):
        from timm.optim import auto_group_layers

        depths = auto_group_layers(network)
        return depths
    head, blocks, depths = parameters_of_head(network), [""], {}
    for name, _ in network.named_parameters():
        block = _BLOCK.match(name)
        if block and block[0] not in blocks and name not in head:
            blocks.append(block[0])
        depths[name] = len(blocks) - 1
    return {name: len(blocks) if name in head else depth for name, depth in depths.items()}


def _kind(module: nn.Module, name: str, parameter: Tensor, is_head: bool) -> Kind:
    """Return the kind of a layer's parameter."""
    if name == "weight" and parameter.ndim > 1 and not isinstance(module, nn.Embedding):
        if is_head:
            return "head"
        return "convolution" if hasattr(module, "kernel_size") else "matrix"
    # note: those of nn.MultiheadAttention and recurrent layers
    if parameter.ndim == 2 and (name.endswith("_weight") or name.startswith("weight_")):
        return "matrix"
    if _is_norm(module):
        return "norm"
    if parameter.ndim == 1 and (name.endswith("bias") or name.startswith("bias_")):
        return "bias"
    # note: scales of channels or heads end in dimensions of one
    is_table = parameter.ndim == 2 or (parameter.ndim > 2 and parameter.shape[-1] > 1)
    return "embedding" if is_table else "scale"


def _is_norm(module: nn.Module) -> bool:
    """Return whether a layer has a weight per channel; that of layer scale is called gamma, and PReLU is no norm."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 1 and not isinstance(module, nn.PReLU)


def generator_of(seed: int, name: str) -> torch.Generator:
    """Return the generator of a parameter's initial weights."""
    return torch.Generator().manual_seed(key(seed, f"initialization of {name}"))
