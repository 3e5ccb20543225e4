"""The images of `shapes` with masks, which have the number of the figure, from 1 on, at its pixels."""

import itertools
from pathlib import Path

from PIL import Image, ImageDraw

from launcher.config.builtin import BuiltInImages, Labelled
from launcher.config.schema import Dataset
from launcher.data.builtin._figures import FIGURES, OVERSAMPLING, QUALITY, draw_figure


class ShapeMasks(BuiltInImages):
    def labels(self, dataset: Dataset) -> Labelled:
        return Labelled("pixels", ["background", *FIGURES])

    def draw(self, folder: Path, split: str, samples: int, size: int) -> None:
        (folder / split / "images").mkdir(parents=True)
        (folder / split / "masks").mkdir()
        for index, (number, name) in zip(range(samples), itertools.cycle(enumerate(FIGURES, 1)), strict=False):
            mask = Image.new("L", (size * OVERSAMPLING,) * 2)
            image = draw_figure(name, size, split, index, ImageDraw.Draw(mask), number)
            image.save(folder / split / "images" / f"{index:06d}.jpg", quality=QUALITY)
            mask.resize((size, size), Image.Resampling.NEAREST).save(folder / split / "masks" / f"{index:06d}.png")
