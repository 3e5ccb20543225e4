"""Pretrained weights: loaded from `model.weights` and adapted to the run's network.

The launcher writes them to the run folder before a rank starts; the ranks only read that file.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from launcher.config.algorithms import Algorithms
from launcher.config.overrides import OFF, ON
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.errors import Problem, UserError, first_few
from launcher.files import atomic
from launcher.models.build import adapted
from launcher.models.parameters import digest, parameters_of_head
from launcher.models.resnet import TorchvisionModel
from launcher.models.smp import ENCODER
from launcher.plan.plan import plan_for
from launcher.training.networks import run_network
from launcher.weights.card import network_changes, problem
from launcher.weights.export_files import differences
from launcher.weights.load import SourceWeights, load_weights

# `optimizer.backbone_lr` of networks such as ViT and ConvNeXt, which are fine-tuned at lower learning rates.
_WITHOUT_BATCH_NORM = 0.1


@dataclass(frozen=True)
class Pretrained:
    """All weights of a run's network, the config with their normalization and digest, and notes for the user."""

    config: RunConfig
    weights: dict[str, Tensor]
    notes: list[str]

    def write(self, path: Path) -> None:
        """Write the weights as safetensors, atomically."""
        with atomic.writing(path) as temporary:
            temporary.write_bytes(save(self.weights))


def pretrained_weights(config: RunConfig, classes: list[str] | None, *, typed: Collection[str] = ()) -> Pretrained:
    """Load the weights of `model.weights` for classes of these names; the weights of a new head are zero.

    Source of the zeros: Dosovitskiy et al. 2021 and Kolesnikov et al. 2020.

    The config gets the changes of the network that the weights belong to, and the mean and standard deviation that they
    were trained with, unless `typed`, the keys of the command line, has these.

    Raises UserError if the weights do not exist, cannot be read, or belong to another network.
    """
    source = load_weights(config.model)
    sha256 = digest(source.tensors)
    if config.model.weights_sha256 not in (None, sha256):
        message = f"{source.origin} has the digest {sha256}; set that one, or model.weights to the file of this digest"
        raise problem(config.model.weights_sha256, message, "model.weights_sha256")
    config, changes = _with_network_of(source, config, typed)
    network = run_network(plan_for(config, 1))
    _check_changes(source, config)
    weights, head = _matched(network, source, classes, config)
    notes = [f"initial weights from {source.origin}: {head}"]
    if config.optimizer.backbone_lr is None:
        config, chosen = _with_backbone_lr(config, network)
        notes.append(chosen)
    if changes:
        notes.append(f"using {' '.join(changes)} of the network of these weights")
    config = replace(config, model=replace(config.model, weights_sha256=sha256))
    dataset, trained = config.dataset, source.config.dataset if source.config else source
    mean, std = trained.mean, trained.std
    if mean and std and len(mean) == dataset.channels and (mean, std) != (dataset.mean, dataset.std):
        normalization = f"dataset.mean={mean} dataset.std={std}"
        if not {"dataset.mean", "dataset.std"}.isdisjoint(typed):
            notes.append(f"the weights were trained with {normalization}")
        else:
            notes.append(f"using {normalization} of the weights")
            config = replace(config, dataset=replace(dataset, mean=mean, std=std))
    return Pretrained(config, weights, notes)


def _with_network_of(source: SourceWeights, config: RunConfig, typed: Collection[str]) -> tuple[RunConfig, list[str]]:
    """Return the config with the changes of the network that the weights belong to, and the words that changed.

    Raises UserError if the command line has others.
    """
    trained = source.config
    if trained is None:
        return config, []
    ours, theirs = network_changes(config), network_changes(trained)
    names = [n for n in sorted({*config.algorithms, *trained.algorithms}) if ours.get(n) != theirs.get(n)]
    changes: dict[str, tuple[Any, Any]] = {}
    for name in names:
        changes |= _changes(f"algorithms.{name}", config.algorithms.get(name), trained.algorithms.get(name))
    model, taken = config.model, {name: trained.algorithms.get(name) for name in names}
    if isinstance(model, TorchvisionModel) and isinstance(trained.model, TorchvisionModel):
        changes |= _changes("model", replace(trained.model, activation=model.activation), trained.model)
        model = replace(model, activation=trained.model.activation)
    listed = {"algorithms"} & {*typed}
    if problems := [
        Problem(f"{source.origin} has a network with {key}={after}; set that value, or omit the key", key, before)
        for key, (before, after) in changes.items()
        if key in typed or (before in (ON, OFF) and (listed or any(one.startswith(f"{key}.") for one in typed)))
    ]:
        raise UserError(*problems)
    config = replace(config, model=model, algorithms=Algorithms.of({**config.algorithms, **taken}))
    return config, [f"{key}={after}" for key, (_, after) in changes.items()]


def _changes(key: str, before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two declarations differ, with both values; None is an algorithm that is off."""
    if before is None or after is None:
        return {key: (ON if before else OFF, ON if after else OFF)}
    values = {name: (value, getattr(after, name)) for name, value in vars(before).items()}
    return {f"{key}.{name}": both for name, both in values.items() if both[0] != both[1]}


def _with_backbone_lr(config: RunConfig, network: nn.Module) -> tuple[RunConfig, str]:
    """Return the config with the learning rate of the layers before the head, and a note; docs/fine_tuning.md."""
    norms = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    factor, kind = (1.0, "with") if norms else (_WITHOUT_BATCH_NORM, "without")
    optimizer = replace(config.optimizer, backbone_lr=factor)
    return replace(config, optimizer=optimizer), f"using optimizer.backbone_lr={factor} of networks {kind} batch norm"


def _matched(
    network: nn.Module, source: SourceWeights, classes: list[str] | None, config: RunConfig
) -> tuple[dict[str, Tensor], str]:
    """Return all weights of the run's network, and a note about its head."""
    drawn, weights = network.state_dict(), dict(source.tensors)
    in_head = parameters_of_head(network)
    head = {name: tensor for name, tensor in drawn.items() if name in in_head}
    rows, note = _rows(head, source, classes)
    if config.model.library == "timm" and (by_timm := _adapted_by_timm(network, weights, in_head)):
        weights, note = by_timm, f"{note}; timm adapted the others to this network"
    if config.model.pretrained and not any(name in weights for name in drawn if not name.startswith(ENCODER)):
        # note: an encoder's own file has no prefix; the decoder stays as drawn
        weights = {name.removeprefix(ENCODER): tensor for name, tensor in weights.items()}
        weights = drawn | {f"{ENCODER}{name}": tensor for name, tensor in weights.items()}
    for name, tensor in head.items():
        if rows is None:
            # note: as of ViT and BiT; a drawn one may be large (timm, EfficientNet) and disturbs the other layers
            weights[name] = torch.zeros_like(tensor) if tensor.dim() > 1 else tensor
        elif name in weights:
            weights[name] = weights[name][rows]
    # note: weights of old PyTorch versions lack these counters, which no forward pass reads
    weights = {name: tensor for name, tensor in drawn.items() if name.endswith("num_batches_tracked")} | weights
    _check_names(drawn, weights, source, config)
    return {name: weights[name].detach().to(tensor.dtype).contiguous() for name, tensor in drawn.items()}, note


def _adapted_by_timm(network: nn.Module, weights: Mapping[str, Tensor], in_head: set[str]) -> dict[str, Tensor] | None:
    """Return weights of another image size or with the authors' names, adapted by timm; None if they still differ."""

    def backbone(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in named.items() if name not in in_head}

    expected = backbone(network.state_dict())
    if not differences(expected, backbone(weights)):
        return None
    by_timm = adapted(network, weights)
    return None if differences(expected, backbone(by_timm)) else by_timm


def _rows(
    head: Mapping[str, Tensor], source: SourceWeights, classes: list[str] | None
) -> tuple[Tensor | slice | None, str]:
    """Return the rows of the source's head for the run's classes, by name if possible, and a note; None: a new head."""
    shapes = {tuple(source.tensors[name].shape[:1]) for name in head if name in source.tensors}
    if len(shapes) != 1:
        return None, "a new head, since the source has none"
    (rows,), count = shapes.pop(), len(next(iter(head.values())))
    if source.classes and classes:
        if len(source.classes) == rows and set(classes) <= set(source.classes):
            row = {name: number for number, name in enumerate(source.classes)}
            note = (
                "the whole head"
                if source.classes == classes
                else f"the head's rows of the same {count_of(count, 'class')}"
            )
            return torch.tensor([row[name] for name in classes]), note
        return None, f"a new head for {count_of(count, 'class')}, since the source has others"
    if rows == count:
        return slice(None), f"the whole head, assuming the same {count_of(rows, 'unnamed class')}"
    return None, f"a new head for {count_of(count, 'class')} instead of {rows}"


def _check_changes(source: SourceWeights, config: RunConfig) -> None:
    theirs, ours = source.changes, network_changes(config)
    if theirs is None or theirs == ours:
        return

    def value(of: Mapping[str, Any], name: str) -> str:
        return json.dumps(of[name]) if name in of else "off"

    different = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    listed = "; ".join(f"{name}: {value(theirs, name)} there, {value(ours, name)} here" for name in different)
    message = f"{source.origin} belongs to another network; set the same values: {listed}"
    raise problem(config.model.weights, message)


def _check_names(
    drawn: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: SourceWeights, config: RunConfig
) -> None:
    wrong = differences(drawn, weights)
    wrong += [f"{name} is not finite" for name, tensor in weights.items() if not tensor.isfinite().all()]
    if not wrong:
        return
    known = source.architecture not in (None, config.model.architecture)
    network = source.architecture if known else "another network"
    message = (
        f"weights of {network}, not {config.model.architecture}: {first_few(wrong, 10)}; set the model of the weights"
    )
    raise problem(config.model.weights, message)
