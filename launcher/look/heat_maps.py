"""Heat maps of predictions: where in an image the class that a network predicts gets its score.

Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization" (2017).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config.resolved import with_views
from launcher.config.schema import RunConfig
from launcher.errors import UserError
from launcher.records.run_folder import RunFolder
from launcher.tasks.classification import Classification
from launcher.tasks.confusion import Confusion, Judged
from launcher.training.evaluation import outside_steps
from launcher.weights.trained_model import TrainedModel, evaluate_run

# Of the colours in an image below them.
_OPACITY = 0.5
# Least fraction of the places of a layer that change the score, so that its map shows more than a pooled token.
_MOST_PLACES = 0.5

# Turn the output of a layer into channels at places, [B, C, h, w].
Places = Callable[[Tensor], Tensor]


def errors_page(folder: RunFolder, config: RunConfig, device: str, *, best: bool) -> str:
    """Return the gallery of a run's most confident errors and least confident hits with heat maps, as markup.

    Raises UserError if the run has no checkpoint, its images are missing, or its network has no such layer. Raises
    MachineError if the GPU cannot be used.
    """
    # note: a map is of one view
    config = with_views(config, "centre")
    return evaluate_run(folder, config, device, best=best, with_gallery=True, details_of=Explained).gallery


class Explained(Confusion):
    """The details of a classification, whose gallery has the heat map of the predicted class beside each image."""

    def __init__(self, model: TrainedModel):
        task = model.task
        assert isinstance(task, Classification)
        super().__init__(task, model.card["classes"], with_images=True, probabilities=task.probabilities)
        self._model = model

    def pixels(self, images: Tensor, chosen: Sequence[Judged]) -> np.ndarray:
        shown, model = super().pixels(images, chosen), self._model
        inputs = model.task.prepare(outside_steps(images.to(model.device))).inputs.float()
        classes = torch.tensor([self.classes.index(one.prediction) for one in chosen], device=model.device)
        maps = grad_cam(model.network.float(), inputs, classes).cpu().numpy()
        return np.concatenate([shown, _overlaid(shown, maps)], axis=2)


def grad_cam(network: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Return the heat maps of classes, int64 [B], for images [B, C, H, W]: float32 [B, H, W] in [0, 1].

    The layer is the last one whose output has places that change the score: the last convolutional stage, or the last
    normalization of a transformer's tokens before they mix.

    Raises UserError if no layer has such places.
    """
    outputs: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            outputs.append((module, output))

    leaves = [module for module in network.modules() if not [*module.children()]]
    handles = [module.register_forward_hook(keep) for module in leaves]
    try:
        with torch.enable_grad():
            scores = network(images.detach().requires_grad_())
    finally:
        for handle in handles:
            handle.remove()
    total = scores.float().gather(1, classes[:, None]).sum()
    for module, output in reversed(outputs):
        if (places := _places(module, output)) is None:
            continue
        (gradient,) = torch.autograd.grad(total, output, retain_graph=True, allow_unused=True)
        if gradient is None:
            continue
        activation, gradient = places(output.detach()), places(gradient)
        changing = gradient.abs().amax(1) > 0
        if changing.float().mean() >= _MOST_PLACES:
            weighted = (gradient.mean((2, 3), keepdim=True) * activation).sum(1, keepdim=True).relu()
            large: Tensor = F.interpolate(weighted, images.shape[2:], mode="bilinear")
            return _scaled(large[:, 0])
    raise UserError("no layer of this network has places that change its scores, so it has no heat maps; omit --cam")


def _places(module: nn.Module, output: Tensor) -> Places | None:
    """Return what turns an output into channels at places; None if it has no places, or these are not comparable."""
    is_norm = isinstance(module, nn.LayerNorm)
    if output.ndim == 3 and is_norm and (edge := math.isqrt(output.shape[1])) > 1:
        return partial(_of_tokens, edge=edge)
    if output.ndim != 4:
        return None
    if is_norm and not type(module).__name__.endswith("2d"):
        return _of_last_channels if min(output.shape[1:3]) > 1 else None
    return _same if min(output.shape[2:]) > 1 else None


def _of_tokens(tokens: Tensor, edge: int) -> Tensor:
    # note: tokens of the class and registers come first
    of_places = tokens[:, tokens.shape[1] - edge * edge :].transpose(1, 2)
    return of_places.reshape(*of_places.shape[:2], edge, edge)


def _of_last_channels(output: Tensor) -> Tensor:
    return output.permute(0, 3, 1, 2)


def _same(output: Tensor) -> Tensor:
    return output


def _scaled(maps: Tensor) -> Tensor:
    """Return maps [B, H, W] from 0 to 1 each; one that is equal everywhere is 0."""
    least, most = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return torch.where(most > least, (maps - least) / (most - least), 0).float()


def _overlaid(pixels: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Return images, uint8 [B, H, W, 3], below the colours of maps [B, H, W]."""
    from matplotlib import colormaps

    colours = colormaps["jet"](maps)[..., :3] * 255
    return np.asarray((1 - _OPACITY) * pixels + _OPACITY * colours).round().astype(np.uint8)
