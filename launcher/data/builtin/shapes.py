"""Images of one figure each, which is the class; image k has class k modulo ten."""

import itertools
from pathlib import Path

from launcher.config.builtin import BuiltInImages, Labelled
from launcher.config.schema import Dataset
from launcher.data.builtin._figures import FIGURES, QUALITY, draw_figure


class Shapes(BuiltInImages):
    def labels(self, dataset: Dataset) -> Labelled:
        return Labelled("class", sorted(FIGURES))

    def draw(self, folder: Path, split: str, samples: int, size: int) -> None:
        for name in FIGURES:
            (folder / split / name).mkdir(parents=True)
        for index, name in zip(range(samples), itertools.cycle(FIGURES), strict=False):
            draw_figure(name, size, split, index).save(folder / split / name / f"{index:06d}.jpg", quality=QUALITY)
