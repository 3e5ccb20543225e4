"""The weights that a run starts from: read from where `model.weights` says, and fitted to the run's network.

Nothing of a file is executed. What is found goes into the run's folder before a rank starts; the ranks read that alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from launcher import atomic
from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.keys import nearest
from launcher.config.models import TimmModel, TorchvisionModel, VisionTransformerModel
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.models.build import build_model, model_surgeries
from launcher.models.parameters import parameters_of_head
from launcher.plan.plan import plan_for
from launcher.records.folder import RunFolder
from launcher.training import checkpoint
from launcher.weights.evaluate_run import saved
from launcher.weights.export import WEIGHTS
from launcher.weights.exported import differences, listed
from launcher.weights.sources import FoundWeights, of_file, of_timm, of_torchvision, problem


@dataclass(frozen=True)
class Initial:
    """All weights of a run's network, the config that goes with them, and lines that the user should read."""

    config: RunConfig
    weights: dict[str, Tensor]
    notes: list[str]

    def write(self, path: Path) -> None:
        """Write the weights as safetensors, whole or not at all."""
        with atomic.writing(path) as temporary:
            temporary.write_bytes(save(self.weights))


def initial_weights(config: RunConfig, classes: list[str] | None, *, keep_normalization: bool) -> Initial:
    """What `model.weights` says, for the classes of those names; a head of other classes is drawn anew.

    The config takes over the mean and deviation that the weights were trained with, unless told to keep its own.

    Raises:
        UserError: there are no such weights, they cannot be read, or they are of another network.
    """
    source = find(config)
    digest = _digest(source.tensors)
    if config.model.weights_sha256 not in (None, digest):
        message = f"{source.told} has the digest {digest}: other weights than asked for"
        raise problem(config.model.weights_sha256, message, "model.weights_sha256")
    network, surgery = _network(config)
    weights, said = _fitted(network, surgery, source, classes, config)
    notes = [f"starts from {source.told}: {said}"]
    config = replace(config, model=replace(config.model, weights_sha256=digest))
    dataset = config.dataset
    if source.mean and source.std and (source.mean, source.std) != (list(dataset.mean), list(dataset.std)):
        if keep_normalization:
            notes.append(f"the weights were trained with dataset.mean={source.mean} dataset.std={source.std}")
        else:
            notes.append(f"dataset.mean={source.mean} and dataset.std={source.std} are those of the weights")
            config = replace(config, dataset=replace(dataset, mean=source.mean, std=source.std))
    return Initial(config, weights, notes)


def find(config: RunConfig) -> FoundWeights:
    """The weights that `model.weights` names.

    Raises:
        UserError: there are none, or they cannot be read.
    """
    asked = config.model.weights
    assert asked is not None
    if asked in ("torchvision", "timm"):
        model = config.model
        if isinstance(model, VisionTransformerModel):
            raise problem(asked, "has none for this model; name a file, a run folder or an export")
        own = "torchvision" if isinstance(model, TorchvisionModel) else "timm"
        if asked != own:
            raise problem(asked, f"has none for this model, which is {own}'s: model.weights={own}")
        return of_torchvision(model.architecture) if isinstance(model, TorchvisionModel) else of_timm(model)
    path = Path(asked)
    if RunFolder(path).exists():
        return _of_run(RunFolder(path), saved(RunFolder(path), best=False))
    if path.is_file() and RunFolder(path.parent.parent).checkpoints == path.parent:
        return _of_run(RunFolder(path.parent.parent), checkpoint.load(path))
    if (path / WEIGHTS).is_file():
        path /= WEIGHTS
    if not path.is_file():
        beside = nearest(path.name, (other.name for other in path.parent.glob("*"))) if path.parent.is_dir() else None
        hint = f"; did you mean {path.parent / beside}?" if beside else ""
        raise problem(asked, f"is no file, run folder or export{hint}")
    return of_file(path)


def _of_run(folder: RunFolder, state: dict[str, Any]) -> FoundWeights:
    config = read(folder.config)
    return FoundWeights(
        f"{folder.path} at step {state['step']:,}",
        state["weights"],
        config.model.architecture,
        _surgery(config),
        state.get("classes"),
        list(config.dataset.mean),
        list(config.dataset.std),
    )


def _network(config: RunConfig) -> tuple[nn.Module, dict[str, Any]]:
    """The run's network as it is drawn from its seed, on the CPU, and what changed it."""
    assert config.dataset.classes is not None
    engine = Engine(Context(plan_for(config, 1), config.dataset.classes))
    network = build_model(config.model, config.dataset.classes, config.loss, config.seed)
    engine.change_model(network)
    return network, _values(model_surgeries(config.model) | engine.surgeries())


def _surgery(config: RunConfig) -> dict[str, Any]:
    assert config.dataset.classes is not None
    engine = Engine(Context(plan_for(config, 1), config.dataset.classes))
    return _values(model_surgeries(config.model) | engine.surgeries())


def _values(surgeries: Mapping[str, Any]) -> dict[str, Any]:
    return {name: surgery.values for name, surgery in surgeries.items()}


def _fitted(
    network: nn.Module, surgery: dict[str, Any], source: FoundWeights, classes: list[str] | None, config: RunConfig
) -> tuple[dict[str, Tensor], str]:
    """All weights of the network, and what is said of its head."""
    own, given = network.state_dict(), dict(source.tensors)
    _check_surgery(surgery, source, config)
    in_head = parameters_of_head(network)
    head = [name for name in own if name in in_head]
    rows, said = _rows(own, head, given, source.classes, classes)
    if isinstance(config.model, TimmModel) and (fitting := _fitted_by_timm(network, given, in_head)):
        given, said = fitting, f"{said}; timm fitted the others to this network"
    for name in head:
        if rows is None:
            given[name] = own[name]
        elif name in given:
            given[name] = given[name][rows]
    # note: weights of old have no such counters, and no forward pass reads them
    given = {name: tensor for name, tensor in own.items() if name.endswith("num_batches_tracked")} | given
    _check_names(own, given, source, config)
    return {name: given[name].detach().to(tensor.dtype).contiguous() for name, tensor in own.items()}, said


def _fitted_by_timm(network: nn.Module, given: Mapping[str, Tensor], in_head: set[str]) -> dict[str, Tensor] | None:
    """Weights of another image side or of the authors' names, as timm reads its own; None where it changes nothing."""
    # note: a second's import, which a network of timm's has cost already
    from launcher.models.timm_network import fitted

    def backbone(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in weights.items() if name not in in_head}

    wanted = backbone(network.state_dict())
    if not differences(wanted, backbone(given)):
        return None
    found = fitted(network, given)
    return None if differences(wanted, backbone(found)) else found


def _rows(
    own: Mapping[str, Tensor],
    head: Sequence[str],
    given: Mapping[str, Tensor],
    theirs: list[str] | None,
    ours: list[str] | None,
) -> tuple[Tensor | slice | None, str]:
    """Which rows of the source's head are the run's classes, by name where both are known; None for a new head."""
    shapes = {tuple(given[name].shape[:1]) for name in head if name in given}
    if len(shapes) != 1:
        return None, "a new head, since they have none"
    (known,), wanted = shapes.pop(), len(own[head[0]])
    if theirs and ours:
        if len(theirs) == known and set(ours) <= set(theirs):
            place = {name: number for number, name in enumerate(theirs)}
            same = "the head too" if theirs == ours else f"of the head the {wanted} rows of the same classes"
            return torch.tensor([place[name] for name in ours]), same
        return None, f"a new head for {wanted} classes, since theirs are others"
    if known == wanted:
        return slice(None), f"the head too, whose {known} classes have no names there and count as the same"
    return None, f"a new head for {wanted} classes instead of {known}"


def _check_surgery(surgery: dict[str, Any], source: FoundWeights, config: RunConfig) -> None:
    if source.surgery is None or source.surgery == surgery:
        return
    different = [name for name in {**surgery, **source.surgery} if surgery.get(name) != source.surgery.get(name)]
    said = "; ".join(f"{name}: {_on(source.surgery, name)} there, {_on(surgery, name)} here" for name in different)
    raise problem(config.model.weights, f"{source.told} is of a network that computes something else: {said}")


def _on(surgery: Mapping[str, Any], name: str) -> str:
    return json.dumps(surgery[name]) if name in surgery else "off"


def _check_names(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], source: FoundWeights, config: RunConfig
) -> None:
    wrong = differences(own, given)
    wrong += [f"{name} is not finite" for name, tensor in given.items() if not tensor.isfinite().all()]
    if not wrong:
        return
    known = source.architecture not in (None, config.model.architecture)
    whose = f"of {source.architecture}" if known else "of another network"
    message = f"weights {whose}, not of {config.model.architecture}: {listed(wrong)}; set model to theirs"
    raise problem(config.model.weights, message)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes and values, whatever file they lie in."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return str(digest.hexdigest())
