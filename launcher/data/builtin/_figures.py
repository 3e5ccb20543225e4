"""Ten kinds of figures, drawn with a seed, of which built-in images are made.

Colour, position, size, angle, strokes and background are random, so only shape identifies a figure.
"""

import math

import numpy as np
from PIL import Image, ImageDraw

from launcher.compute import randomness

# Quality of the JPEGs, and how much larger than the images figures are drawn.
QUALITY = 90
OVERSAMPLING = 2
_SEED = 2022
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
_HOLES: dict[str, Points] = {"ring": _arc(0, 2 * math.pi, 0.5)}


def draw_scene(size: int, split: str, index: int) -> tuple[Image.Image, list[str], list[float]]:
    """Draw one RGB image [size, size] of one to three figures, the largest last and thus in front.

    Returns their names, and `NUMBERS` of the largest: its colour of 0 to 255, its centre and radius as fractions of the
    size.
    """
    random = randomness.generator(_SEED, f"scenes-{split}", index)
    image, ground = _painted(random, size * OVERSAMPLING)
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
    image, ground = _painted(random, size * OVERSAMPLING)
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
