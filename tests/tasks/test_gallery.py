"""The order of an evaluation's errors and hits, and the names on their page."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from launcher.config.compose import compose
from launcher.files import page
from launcher.tasks import build_task
from launcher.tasks.confusion import Confusion
from tests.html import Page

CLASSES = ["<b>ant", "bee"]
TASK = build_task(compose([]).config)


class Files:
    """A reader of images whose pixels are their numbers."""

    def batches(self, requests):
        for request in requests:
            pixels = np.stack([np.full((3, 8, 8), index, np.uint8) for index in request.indices])
            yield torch.from_numpy(pixels), None, request.indices

    def name(self, index):
        return f"<i>/{index}.jpg"


def test_the_most_confident_error_and_the_least_confident_hit_are_first(tmp_path: Path) -> None:
    gallery = Confusion(TASK, CLASSES, with_images=True)
    probabilities = torch.tensor([0.9, 0.6, 0.8, 0.7, 0.55])  # of the ant
    outputs = torch.stack([probabilities.log(), (1 - probabilities).log()], 1)
    gallery.add(outputs[:3], torch.tensor([0, 0, 1]))
    gallery.add(outputs[3:], torch.tensor([1, 0]))
    page.write(tmp_path / "a.html", "a run", gallery.sections(SimpleNamespace(reader=Files(), view=8)))
    shown = Page(tmp_path / "a.html")
    files = [text for text in shown.texts if text.endswith(".jpg")]
    assert files == [f"<i>/{index}.jpg" for index in (2, 3, 4, 1, 0)]
    assert "predicted <b>ant, 80.0%" in shown.texts
    assert shown.tags.count("b") == 5
    assert "i" not in shown.tags


def test_an_evaluation_without_errors_has_an_empty_list(tmp_path: Path) -> None:
    gallery = Confusion(TASK, CLASSES, with_images=True)
    gallery.add(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert "<p>none</p>" in gallery.sections(SimpleNamespace(reader=Files(), view=8))
