"""Classification: each image has one class; losses are float32 for any precision of the logits."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from launcher.config.schema import BCE, RunConfig
from launcher.data.batch import one_hot
from launcher.tasks import Details
from launcher.tasks.images import ImageTask

TOP = 5


class Classification(ImageTask):
    """Has targets that are class indices, int64 [B], or class weights, floating-point [B, classes]."""

    def __init__(self, config: RunConfig, dtype: torch.dtype | None = None):
        super().__init__(config, dtype)
        loss = config.loss
        self.is_sigmoid = loss.name == "bce"
        self._loss = partial(bce, threshold=loss.target_threshold) if isinstance(loss, BCE) else cross_entropy

    def targets(self, labels: Tensor) -> Tensor:
        return labels

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        return self._loss(outputs, targets, weights)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
        """Count hits of class indices, int64 [B]: top-1 and top-5, which all are with fewer than five classes.

        Then by class, float32 [3 C]: top-1 hits, images and predictions.
        """
        classes = outputs.shape[1]
        likeliest = ranked(outputs).indices[:, :TOP]
        hits = likeliest == targets[:, None]
        truth, predicted = one_hot(targets, classes), one_hot(likeliest[:, 0], classes)
        counts = torch.cat([(truth * predicted).sum(0), truth.sum(0), predicted.sum(0)])
        return hits[:, 0].sum(), hits.sum(), counts

    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        from launcher.tasks.confusion import Confusion  # note: it has the loaders, which a step does not need

        return Confusion(self, names, with_images=with_images)

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest classes with their probabilities; with BCE those of each class are independent."""
        best = ranked(outputs.sigmoid() if self.is_sigmoid else outputs.softmax(1))
        pairs = zip(best.indices[:, :top].tolist(), best.values[:, :top].tolist(), strict=True)
        return [[(names[number], score) for number, score in zip(*pair, strict=True)] for pair in pairs]


def ranked(scores: Tensor) -> torch.return_types.sort:
    """Return the classes of each row [B, C], highest score first; of equal ones the first, as argmax does."""
    return scores.sort(stable=True, dim=1, descending=True)


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean over samples of -sum(weight * target * log softmax(logits)).

    weights: of classes, float32 [C]. For class indices torch's mean is divided by their sum over the batch, which would
    depend on the number of ranks; this one is not.
    """
    logits, targets = logits.float(), targets.float() if targets.is_floating_point() else targets
    if weights is None:
        return F.cross_entropy(logits, targets)
    return F.cross_entropy(logits, targets, weights, reduction="sum") / len(logits)


def bce(logits: Tensor, targets: Tensor, weights: Tensor | None = None, *, threshold: float | None = None) -> Tensor:
    """Return the binary cross-entropy of logits, summed over classes and averaged over samples.

    weights: of classes, float32 [C]; that of a sample is the mean by its target. threshold: targets above it count as
    1, and others as 0.
    """
    soft = one_hot(targets, logits.shape[1]).float()
    soft = soft if threshold is None else (soft > threshold).float()
    of_samples = None if weights is None else (soft * weights).sum(1, keepdim=True)
    total = F.binary_cross_entropy_with_logits(logits.float(), soft, of_samples, reduction="sum")
    return total / len(logits)
