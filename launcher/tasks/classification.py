"""Classification: each image has one class; losses are float32 for any precision of the logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.config.goals import Metric
from launcher.data.batch import one_hot
from launcher.errors import Problem
from launcher.later import torch
from launcher.tasks import Details
from launcher.tasks.images import ImageTask

if TYPE_CHECKING:
    from torch import Tensor


TOP = 5
# The output of a class that is not predicted: its probability is 0, and its loss finite, in any precision.
_NEVER = -1e4


@dataclass(config=STRICT)
class Classification(ImageTask):
    """Has targets that are class indices, int64 [B], or class weights, floating-point [B, classes].

    absent: classes that are not predicted.

    Classification of each image into one class.

    Balanced accuracy is the mean recall of classes with images, macro F1 the mean over classes with images or
    predictions, as scikit-learn's.
    """

    metrics = (
        Metric("top1", "top-1", about="images whose likeliest class is right"),
        Metric("top5", "top-5", about="images whose class is among the five likeliest"),
        Metric("balanced_accuracy", "balanced accuracy", in_line="if_other", about="mean recall of the classes"),
        Metric("macro_f1", "macro F1", in_line="never", about="mean F1 of the classes"),
    )
    weighs_classes = True
    flags = (*ImageTask.flags, "only_present")

    name: Literal["classification"]

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if plan.config.dataset.classes == 1:
            message = "needs at least two classes"
            yield Problem(message, "dataset.classes", 1)

    def set_up(self, absent: Sequence[int] = ()) -> None:
        self._absent = [*absent]

    def average(self, outputs: list[Tensor]) -> Tensor:
        mean = super().average(outputs)
        if not self._absent:
            return mean
        return mean.index_fill(1, torch.tensor(self._absent, device=mean.device), _NEVER)

    def targets(self, labels: Tensor) -> Tensor:
        return labels

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Count hits of class indices, int64 [B]: top-1 and top-5, which all are with fewer than five classes.

        Also by class, float32 [C]: top-1 hits, images and predictions.
        """
        classes = outputs.shape[1]
        likeliest = ranked(outputs).indices[:, :TOP]
        hits = likeliest == targets[:, None]
        truth, predicted = one_hot(targets, classes), one_hot(likeliest[:, 0], classes)
        return {
            "top1": hits[:, 0].sum(),
            "top5": hits.sum(),
            "hits": (truth * predicted).sum(0),
            "images": truth.sum(0),
            "predicted": predicted.sum(0),
        }

    def evaluated(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        hits, images, predicted = (states[name].tolist() for name in ("hits", "images", "predicted"))
        recalls = [hit / n for hit, n in zip(hits, images, strict=True) if n]
        f1 = [2 * hit / (n + m) for hit, n, m in zip(hits, images, predicted, strict=True) if n + m]
        return {
            **{name: states[name].item() / samples for name in ("top1", "top5")},
            "balanced_accuracy": sum(recalls) / len(recalls),
            "macro_f1": sum(f1) / len(f1),
        }

    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        from launcher.tasks.confusion import Confusion  # note: it has the loaders, which a step does not need

        return Confusion(self, names, with_images=with_images, probabilities=self.probabilities)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities of the classes [B, C]; with BCE those of each class are independent."""
        return outputs.sigmoid() if self.config.loss.scores == "sigmoid" else outputs.softmax(1)

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        """Return the likeliest classes with their probabilities."""
        best = ranked(self.probabilities(outputs))
        pairs = zip(best.indices[:, :top].tolist(), best.values[:, :top].tolist(), strict=True)
        return [[(names[number], score) for number, score in zip(*pair, strict=True)] for pair in pairs]


def ranked(scores: Tensor) -> torch.return_types.sort:
    """Return the classes of each row [B, C], highest score first; of equal ones the first, as argmax does."""
    return scores.sort(stable=True, dim=1, descending=True)
