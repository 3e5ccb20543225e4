"""The built-in data sets: ten kinds of figures, drawn with a seed; imports no torch.

The figure is the class; colour, position, size, angle, strokes and background are random, so only shape identifies it.
Scenes have one to three figures, and a table with their names and with colour, place and size of the largest one.
Masks have the number of the figure, from 1 on, at its pixels.
"""

import csv
import hashlib
import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from launcher import paths, randomness
from launcher.config.schema import Dataset, RunConfig
from launcher.data.classes import check_labels
from launcher.disk import reason
from launcher.errors import Problem, UserError

_VERSION = 2
_SEED = 2022
_QUALITY = 90
_OVERSAMPLING = 2
# Background channels are below, figure and stroke channels above these.
_DARK, _LIGHT = 130, 120

Points = list[tuple[float, float]]
Colour = tuple[int, int, int]
# Columns of the table of scenes, after image and label.
NUMBERS = ("red", "green", "blue", "x", "y", "radius")


def _corners(radii: list[float]) -> Points:
    """Return points at these distances from the centre, at equal angles from the top on."""
    angles = [2 * math.pi * k / len(radii) for k in range(len(radii))]
    return [(r * math.sin(angle), -r * math.cos(angle)) for r, angle in zip(radii, angles, strict=True)]


def _arc(start: float, end: float, radius: float) -> Points:
    return [(radius * math.cos(t), radius * math.sin(t)) for t in np.linspace(start, end, 24)]


_CROSS: Points = [
    (-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33),
    (0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33),
]  # fmt: skip

# Outlines within the unit circle; a figure's hole is filled with the background's colour.
FIGURES: dict[str, Points] = {
    "arrow": [(0, -1), (0.8, -0.1), (0.3, -0.1), (0.3, 1), (-0.3, 1), (-0.3, -0.1), (-0.8, -0.1)],
    "bow_tie": [(-1, -0.75), (0, -0.12), (1, -0.75), (1, 0.75), (0, 0.12), (-1, 0.75)],
    "circle": _arc(0, 2 * math.pi, 0.9),
    "crescent": _arc(-2.2, 2.2, 1.0) + [(x + 0.45, y) for x, y in reversed(_arc(-1.9, 1.9, 0.85))],
    "cross": _CROSS,
    "l_shape": [(-0.7, -1), (-0.1, -1), (-0.1, 0.4), (0.8, 0.4), (0.8, 1), (-0.7, 1)],
    "ring": _arc(0, 2 * math.pi, 0.95),
    "square": [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)],
    "star": _corners([1.0, 0.45] * 5),
    "triangle": _corners([1.0] * 3),
}
# Names of the values of masks.
OF_MASKS = ["background", *FIGURES]
_HOLES: dict[str, Points] = {"ring": _arc(0, 2 * math.pi, 0.5)}


def ensure_folder(dataset: Dataset) -> Path:
    """Return a local data set's folder; draw the built-in images on first use, by one process."""
    folder = shapes_folder(dataset)
    if dataset.kind != "folder" and not (folder / "val").is_dir():
        _draw_all(dataset, folder)
    return folder


def shapes_folder(dataset: Dataset) -> Path:
    """Return the images' folder, drawn or not."""
    return Path(dataset.path).expanduser() if dataset.path else paths.cache() / drawn_as(dataset)


def drawn_as(dataset: Dataset) -> str:
    """Return a name that identifies the images by the data set's values."""
    facts = (_VERSION, dataset.train_samples, dataset.val_samples, dataset.native_size)
    return f"{dataset.kind}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"


def _draw_all(dataset: Dataset, folder: Path) -> None:
    """Draw into a temporary folder and rename it, so that no process reads a partial data set.

    Raises UserError if the folder cannot be written, or contains other files.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            drawn = Path(temporary) / "shapes"
            for split, samples in (("train", dataset.train_samples), ("val", dataset.val_samples)):
                if dataset.kind in _DRAWS:
                    _DRAWS[dataset.kind](drawn, split, samples or 0, dataset.native_size)
                    continue
                for name in FIGURES:
                    (drawn / split / name).mkdir(parents=True)
                for index, name in zip(range(samples or 0), itertools.cycle(FIGURES), strict=False):
                    image = draw_figure(name, dataset.native_size, split, index)
                    image.save(drawn / split / name / f"{index:06d}.jpg", quality=_QUALITY)
            drawn.rename(folder)
    except OSError as error:
        # note: another process may have drawn the same images meanwhile
        if not (folder / "val").is_dir():
            message = f"cannot write the built-in images to {folder} ({reason(error)}); set an empty folder"
            raise UserError(Problem(message, "dataset.path", dataset.path)) from None


def _draw_scenes(folder: Path, split: str, samples: int, size: int) -> None:
    """Draw the scenes of a split, and write their table."""
    (folder / split).mkdir(parents=True)
    with (folder / f"{split}.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["image", "label", *NUMBERS])
        for index in range(samples):
            image, names, numbers = draw_scene(size, split, index)
            path = f"{split}/{index:06d}.jpg"
            image.save(folder / path, quality=_QUALITY)
            table.writerow([path, "|".join(sorted({*names})), *(f"{number:.4g}" for number in numbers)])


def _draw_masks(folder: Path, split: str, samples: int, size: int) -> None:
    """Draw the figures of a split with their masks."""
    (folder / split / "images").mkdir(parents=True)
    (folder / split / "masks").mkdir()
    for index, (number, name) in zip(range(samples), itertools.cycle(enumerate(FIGURES, 1)), strict=False):
        mask = Image.new("L", (size * _OVERSAMPLING,) * 2)
        image = draw_figure(name, size, split, index, ImageDraw.Draw(mask), number)
        image.save(folder / split / "images" / f"{index:06d}.jpg", quality=_QUALITY)
        mask.resize((size, size), Image.Resampling.NEAREST).save(folder / split / "masks" / f"{index:06d}.png")


_DRAWS = {"scenes": _draw_scenes, "shape_masks": _draw_masks}


def draw_scene(size: int, split: str, index: int) -> tuple[Image.Image, list[str], list[float]]:
    """Draw one RGB image [size, size] of one to three figures, the largest last and thus in front.

    Returns their names, and `NUMBERS` of the largest: its colour of 0 to 255, its centre and radius as fractions of the
    size.
    """
    random = randomness.generator(_SEED, f"scenes-{split}", index)
    image, ground = _painted(random, size * _OVERSAMPLING)
    pen, large = ImageDraw.Draw(image), image.width
    names = [sorted(FIGURES)[number] for number in random.integers(0, len(FIGURES), random.integers(1, 4))]
    for name in names[:-1]:
        _place(random, pen, name, ground, large, (0.12, 0.2))
    colour, *place = _place(random, pen, names[-1], ground, large, (0.24, 0.36))
    return _noisy(random, image, size), names, [*colour, *(number / large for number in place)]


def draw_figure(
    name: str, size: int, split: str, index: int, mask: ImageDraw.ImageDraw | None = None, number: int = 0
) -> Image.Image:
    """Draw one RGB image [size, size]; equal arguments give equal pixels.

    mask: draws the figure with its number into a larger mask.
    """
    random = randomness.generator(_SEED, f"shapes-{split}", index)
    image, ground = _painted(random, size * _OVERSAMPLING)
    pen, large = ImageDraw.Draw(image), image.width
    for _ in range(random.integers(0, 5)):
        _distract(random, pen, large)
    _place(random, pen, name, ground, large, mask=mask, number=number)
    return _noisy(random, image, size)


def _painted(random: np.random.Generator, size: int) -> tuple[Image.Image, np.ndarray]:
    """Draw a background: coarse random patches around one colour, smoothed; return also that colour, int64 [3]."""
    ground, cells = random.integers(0, _DARK, 3), int(random.integers(2, 5))
    patches = np.clip(ground + random.normal(0, 25, (cells, cells, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(patches).resize((size, size), Image.Resampling.BICUBIC), ground


def _noisy(random: np.random.Generator, image: Image.Image, size: int) -> Image.Image:
    """Scale an image down and add noise."""
    noise = random.normal(0, random.uniform(2, 14), (size, size, 3))
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BOX)) + noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _colour(random: np.random.Generator) -> Colour:
    """Return a random colour lighter than any background, so that a small model learns within minutes."""
    red, green, blue = (int(c) for c in random.integers(_LIGHT, 256, 3))
    return red, green, blue


def _place(
    random: np.random.Generator,
    pen: ImageDraw.ImageDraw,
    name: str,
    ground: np.ndarray,
    size: int,
    radii: tuple[float, float] = (0.24, 0.44),
    *,
    mask: ImageDraw.ImageDraw | None = None,
    number: int = 0,
) -> tuple[Colour, float, float, float]:
    """Draw the filled figure at a random position, rotated and stretched; return its colour, centre and radius."""
    radius = size * random.uniform(*radii)
    centre = random.uniform(radius * 0.9, size - radius * 0.9, 2)
    angle = random.uniform(-0.5, 0.5)
    stretch = random.uniform(0.8, 1.25)
    cos, sin = math.cos(angle), math.sin(angle)
    colour = _colour(random)
    fills = ((FIGURES[name], colour, number), (_HOLES.get(name), tuple(int(c) for c in ground), 0))
    for outline, fill, index in fills:
        if outline is not None:
            turned = [(x * stretch * cos - y * sin, x * stretch * sin + y * cos) for x, y in outline]
            points = [(centre[0] + radius * x, centre[1] + radius * y) for x, y in turned]
            pen.polygon(points, fill=fill)
            if mask is not None:
                mask.polygon(points, fill=index)
    return colour, float(centre[0]), float(centre[1]), radius


def _distract(random: np.random.Generator, pen: ImageDraw.ImageDraw, size: int) -> None:
    """Draw a random stroke as a distraction."""
    start = random.uniform(0, size, 2)
    end = start + random.normal(0, size * 0.25, 2)
    pen.line([tuple(start), tuple(end)], fill=_colour(random), width=int(size * random.uniform(0.01, 0.04)) + 1)


def check_built_in(config: RunConfig) -> tuple[list[str], list[str]]:
    """Check the values of built-in images, drawn or not; return the names of their labels, and notes.

    Image k of dataset=shapes has class k modulo ten.
    """
    dataset, columns = config.dataset, config.dataset.columns.label
    names, labelled = sorted(FIGURES), {"shapes": "class", "shape_masks": "pixels"}.get(dataset.kind, "classes")
    if dataset.kind == "scenes" and isinstance(columns, list) and {*columns} <= {*NUMBERS}:
        names, labelled = columns, "numbers"
    if dataset.kind == "shape_masks":
        names = OF_MASKS
    if config.task.labelled != labelled:
        message = "has other labels; set dataset=shapes for task=classification, dataset=scenes for task=multilabel, "
        message += "dataset=scene_colours for task=regression, dataset=shape_masks for task=segmentation"
        raise UserError(Problem(message, "dataset", dataset.name))
    for key, value, usual in (("classes", dataset.classes, len(names)), ("val_split", dataset.val_split, None)):
        if value != usual:
            message = f"the built-in images have {config.task.counted(len(names))} and their own validation split; "
            raise UserError(Problem(f"{message}remove the key", f"dataset.{key}", value))
    if labelled != "class":
        return names, []
    train, val = (np.arange(count or 0) % len(FIGURES) for count in (dataset.train_samples, dataset.val_samples))
    return names, check_labels(config, [*FIGURES], train, val, "dataset.train_samples", dataset.train_samples)
