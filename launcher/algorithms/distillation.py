"""Distillation (Hinton et al. 2015; Touvron et al. 2021, DeiT): train also towards a teacher's outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Loss, Transform
from launcher.algorithms.progressive_resizing import interpolate
from launcher.config.declaration import RunPlan, Size, TeachingConfig
from launcher.config.fields import STRICT, Positive
from launcher.data.batch import Batch, constant, one_hot
from launcher.errors import Problem
from launcher.later import F, no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor


def divergence(outputs: Tensor, probabilities: Tensor, temperature: float) -> Tensor:
    """Return T^2 times the mean KL divergence [] of softmax(outputs / T) from probabilities, both [B, classes]."""
    logs = F.log_softmax(outputs.float() / temperature, dim=1)
    return F.kl_div(logs, probabilities, reduction="batchmean") * temperature**2


@dataclass(config=STRICT)
class Distillation(Algorithm, TeachingConfig, change_batch=95, change_loss=10, acts_on=("image", "label")):
    """Appends the teacher's class weights to those of the labels: float32 targets [B, 2 * classes].

    The teacher has the images of the step, after mixing (Beyer et al. 2022), at its own size and normalization; one
    pass serves all passes of a step.
    """

    needs_rgb = "teachers were trained on such images"
    repeats_changes, runs_others = False, True

    form: Literal["soft", "hard"]
    temperature: Positive
    weight: Annotated[float, Field(gt=0, le=1)]

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        task = plan.config.task
        if self.teacher is None:
            yield Problem("set a run folder, an export, or a model of timm such as resnet50", "teacher", None)
        if task.labelled != "class":
            message = f"needs one class per image, which task={task.name} has not; set algorithms.distillation=off"
            yield Problem(message, "form", self.form)

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        return Transform((), self._teach)

    @no_grad
    def _teach(self, batch: Batch) -> Batch:
        # note: micro-batches, to need no more memory than the step
        parts = [self._outputs(images) for images in batch.inputs.chunk(self.context.plan.accumulation)]
        outputs = torch.cat(parts).float()
        if self.form == "soft":
            taught = (outputs / self.temperature).softmax(1)
        else:
            taught = one_hot(outputs.argmax(1), self.context.classes)
        return replace(batch, targets=torch.cat([one_hot(batch.targets, self.context.classes), taught], 1))

    def _outputs(self, images: Tensor) -> Tensor:
        """Return the teacher's outputs for normalized images [B, 3, H, W]."""
        teacher, dataset = self.context.teacher, self.context.plan.config.dataset
        assert teacher is not None
        if images.shape[2:] != teacher.size:
            images = interpolate(images, teacher.size)
        if (list(teacher.mean), list(teacher.std)) != dataset.normalization:
            own = zip(*dataset.normalization, teacher.mean, teacher.std, strict=True)
            shift, scale = zip(*(((m - mean) / std, s / std) for m, s, mean, std in own), strict=True)
            images = images * constant(scale, images.dtype, images.device) + constant(
                shift, images.dtype, images.device
            )
        with self.context.autocast():
            outputs: Tensor = teacher.network(images)
        return outputs

    def change_loss(self, loss: Loss) -> Loss:
        classes, weight = self.context.classes, self.weight

        def distilled(outputs: Tensor, targets: Tensor) -> Tensor:
            labels, taught = targets[:, :classes], targets[:, classes:]
            hard = self.form == "hard"
            towards = loss(outputs, taught) if hard else divergence(outputs, taught, self.temperature)
            return (1 - weight) * loss(outputs, labels) + weight * towards

        return distilled
