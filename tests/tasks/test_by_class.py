"""Results by class: their values, their order, and the files."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchmetrics.functional.classification import multiclass_confusion_matrix

from launcher.config.compose import compose
from launcher.tasks import build_task
from launcher.tasks.confusion import Confusion, by_class, most_confused
from launcher.tasks.pixels import PixelConfusion

CLASSES = ["ant", "bee", "cat", "dog"]
# three of five ants are correct; there are no cats, and three of the predicted cats are bees; no dog is correct
COUNTS = np.array([[3, 1, 1, 0], [0, 5, 3, 0], [0, 0, 0, 0], [2, 0, 0, 0]])


def write(classes: list[str], counts: np.ndarray, folder: Path) -> list[Path]:
    details = Confusion(None, classes, with_images=False)
    details._counts = torch.from_numpy(counts)
    return details.write(folder, "a run")


def test_the_worst_class_is_first_and_a_class_without_images_last() -> None:
    assert [tuple(row.values()) for row in by_class(CLASSES, COUNTS)] == [
        ("dog", 2, 0.0, 0, None, "ant", 2),
        ("ant", 5, 0.6, 5, 0.6, "bee", 1),
        ("bee", 8, 0.625, 6, pytest.approx(5 / 6), "cat", 3),
        ("cat", 0, None, 4, 0.0, None, 0),
    ]
    of_equal_top1 = by_class(CLASSES[:3], np.array([[1, 1, 0], [0, 2, 2], [0, 1, 1]]))
    assert [row["name"] for row in of_equal_top1] == ["bee", "ant", "cat"]


def test_the_files_contain_the_values_of_the_table(tmp_path: Path) -> None:
    write(CLASSES, COUNTS, tmp_path)
    rows = list(csv.DictReader((tmp_path / "by_class.csv").open()))
    expected = [("dog", "0.0", "2"), ("ant", "0.6", "1"), ("bee", "0.625", "3"), ("cat", "", "0")]
    assert [(row["name"], row["top1"], row["confused"]) for row in rows] == expected
    assert {path.name for path in tmp_path.iterdir()} == {"by_class.csv", "confusion.png"}


def test_the_image_shows_the_most_confused_classes(tmp_path: Path) -> None:
    counts = np.diag(np.full(200, 9))
    counts[150, 7], counts[3, 150], counts[60, 61] = 5, 2, 1
    assert most_confused(counts, 3).tolist() == [3, 7, 150]
    many = Image.open(write([f"$c{n}_" for n in range(200)], counts, tmp_path)[1]).width
    few = Image.open(write(CLASSES, COUNTS, tmp_path)[1])
    assert few.width < many < 3000
    # a cell with all images of its row is the darkest: dogs are only predicted as ants
    assert (np.abs(np.asarray(few.convert("RGB")).astype(int) - (8, 48, 107)).sum(2) < 12).sum() > 500


def test_the_confusion_matrix_agrees_with_torchmetrics() -> None:
    outputs, targets = torch.randn(100, 4), torch.randint(0, 4, (100,))
    details = Confusion(None, CLASSES, with_images=False)
    for batch in (slice(0, 60), slice(60, 100)):
        details.add(outputs[batch], targets[batch])
    assert torch.equal(details._counts, multiclass_confusion_matrix(outputs, targets, num_classes=4))


def test_the_class_with_the_worst_pixels_is_first_and_one_without_pixels_last() -> None:
    task = build_task(compose(["dataset=shape_masks", "task=segmentation", "loss=dice_cross_entropy"]).config)
    counted = PixelConfusion(task, ["sky", "none", "road"], with_images=False)
    scores = torch.eye(3)[torch.tensor([[0, 0], [0, 2]])].movedim(-1, 0)[None]
    counted.add(scores, torch.tensor([[[0, 2], [0, 2]]]))
    assert [(row["name"], row["iou"]) for row in counted.rows()] == [("road", 0.5), ("sky", 2 / 3), ("none", None)]
