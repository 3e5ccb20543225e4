"""What an evaluation of a segmentation shows: a table by class, the confusion matrix, and a gallery of overlays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from launcher.counts import count_of
from launcher.data.batch import START
from launcher.data.loading import EvaluationLoader
from launcher.data.masks.values import IGNORED
from launcher.data.sampling import Request
from launcher.files import page
from launcher.tasks import Row, Task
from launcher.tasks.confusion import Confusion
from launcher.tasks.images import displayed

_MOST_SHOWN = 24
_STEPS = (0, 255, 128, 192, 64)


def confusion(outputs: Tensor, targets: Tensor) -> Tensor:
    """Count the pixels of scores [B, C, H, W] by true class [B, H, W] and predicted class, int64 [C, C]."""
    classes = outputs.shape[1]
    places = torch.where(targets == IGNORED, classes**2, targets * classes + outputs.argmax(1)).flatten()
    # note: bincount would synchronize host and device
    counts = torch.zeros(classes**2 + 1, dtype=torch.int64, device=outputs.device)
    return counts.index_add_(0, places, torch.ones_like(places))[:-1].view(classes, classes)


class PixelConfusion(Confusion):
    """Counts the pixels by true and predicted class; `with_images` keeps the predicted mask of each image."""

    heading = ("class", "pixels", "IoU", "Dice", "recall", "precision", "most confused with")

    def __init__(self, task: Task, classes: Sequence[str], *, with_images: bool):
        super().__init__(task, classes, with_images=with_images)
        self._masks: list[np.ndarray] = []
        self._wrong: list[float] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self._counts = self._counts.to(outputs.device) + confusion(outputs, targets)
        if self._task is None:
            return
        predicted, counts = outputs.argmax(1), targets != IGNORED
        wrong = ((predicted != targets) & counts).sum((1, 2)) / counts.sum((1, 2)).clamp(min=1)
        self._wrong += wrong.tolist()
        self._masks += [*predicted.cpu().numpy().astype(np.uint8)]

    def rows(self) -> list[Row]:
        """Return the values of each class, lowest IoU first, without pixels last; None where they are undefined."""
        pixels = self.counts
        hits, true, predicted = pixels.diagonal(), pixels.sum(1), pixels.sum(0)
        wrong = pixels - np.diag(hits)
        rows: list[Row] = [
            {
                "name": name,
                "pixels": int(true[n]),
                "iou": _share(hits[n], true[n] + predicted[n] - hits[n]),
                "dice": _share(2 * hits[n], true[n] + predicted[n]),
                "recall": _share(hits[n], true[n]),
                "precision": _share(hits[n], predicted[n]),
                "confused_with": self.classes[int(wrong[n].argmax())] if wrong[n].any() else None,
            }
            for n, name in enumerate(self.classes)
        ]
        return sorted(rows, key=lambda row: (row["iou"] is None, row["iou"]))

    def texts(self, row: Row) -> list[str]:
        shares = ("-" if row[key] is None else f"{row[key]:.1%}" for key in ("iou", "dice", "recall", "precision"))
        return [str(row["name"]), f"{row['pixels']:,}", *shares, str(row["confused_with"] or "-")]

    def sections(self, loader: EvaluationLoader) -> str:
        order = sorted(range(len(self._wrong)), key=lambda number: -self._wrong[number])[:_MOST_SHOWN]
        request = Request(START, np.array(order), loader.view)
        images, masks, _ = next(iter(loader.reader.batches([request])))
        assert self._task is not None
        dataset = self._task.config.dataset
        pairs = zip(order, displayed(images / dataset.largest, dataset), masks.numpy(), strict=True)
        shown = []
        for number, pixels, mask in pairs:
            both = side_by_side(pixels, mask, self._masks[number])
            name = f'<span class="hint">{page.text(loader.reader.name(number))}</span>'
            caption = f"{self._wrong[number]:.1%} of the pixels are wrong<br>{name}"
            shown.append((both, "image, mask, prediction", caption))
        hint = f"image, mask and prediction of the {len(shown)} of {count_of(len(self._wrong), 'image')}"
        return page.section("Most wrong pixels", f"{hint} with the most wrong pixels", page.figures(shown))


def _share(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def palette() -> np.ndarray:
    """Return a colour of each index, uint8 [256, 3]: black for 0, white for IGNORED, and distinct ones between."""
    # note: those of few steps first, which differ most
    colours = sorted(itertools.product(_STEPS, repeat=3), key=lambda colour: max(map(_STEPS.index, colour)))
    colours.remove((255, 255, 255))
    table = np.resize(np.array(colours, np.uint8), (256, 3))
    table[IGNORED] = 255
    return table


def side_by_side(pixels: np.ndarray, mask: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return an image, and the same under its mask and under the predicted one, in a row: uint8 [H, 3 W, 3]."""
    return np.concatenate([pixels, overlaid(pixels, mask), overlaid(pixels, predicted)], 1)


def overlaid(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return an image uint8 [H, W, 3] under the half transparent colours of a mask uint8 [H, W], but for class 0."""
    mixed = (pixels.astype(np.uint16) + palette()[mask]) // 2
    return np.where((mask > 0)[..., None], mixed, pixels).astype(np.uint8)
