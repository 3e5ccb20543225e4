"""Images of one to three figures, with a table of their names and of colour, place and size of the largest one."""

import csv
from pathlib import Path

from launcher.config.builtin import BuiltInImages, Labelled
from launcher.config.schema import Dataset
from launcher.data.builtin._figures import FIGURES, NUMBERS, QUALITY, draw_scene


class Scenes(BuiltInImages):
    def labels(self, dataset: Dataset) -> Labelled:
        columns = dataset.columns.label
        if isinstance(columns, list) and {*columns} <= {*NUMBERS}:
            return Labelled("numbers", columns)
        return Labelled("classes", sorted(FIGURES))

    def draw(self, folder: Path, split: str, samples: int, size: int) -> None:
        (folder / split).mkdir(parents=True)
        with (folder / f"{split}.csv").open("w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["image", "label", *NUMBERS])
            for index in range(samples):
                image, names, numbers = draw_scene(size, split, index)
                path = f"{split}/{index:06d}.jpg"
                image.save(folder / path, quality=QUALITY)
                table.writerow([path, "|".join(sorted({*names})), *(f"{number:.4g}" for number in numbers)])
