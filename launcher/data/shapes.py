"""The built-in data set: ten kinds of figures, drawn with a seed; imports no torch.

Kind of figure is the class; colour, place, size, angle, line width and ground are chance, so that only shape tells.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from launcher import randomness
from launcher.config.schema import Dataset

_VERSION = 1
_SEED = 2022
_QUALITY = 90
_OVERSAMPLING = 2

Points = list[tuple[float, float]]


def _polygon(corners: int) -> Points:
    return [(math.sin(2 * math.pi * k / corners), -math.cos(2 * math.pi * k / corners)) for k in range(corners)]


def _star(spikes: int, inner: float) -> Points:
    radii = [1.0, inner] * spikes
    return [(r * math.sin(math.pi * k / spikes), -r * math.cos(math.pi * k / spikes)) for k, r in enumerate(radii)]


def _arc(start: float, end: float, radius: float) -> Points:
    return [(radius * math.cos(t), radius * math.sin(t)) for t in np.linspace(start, end, 24)]


_CROSS: Points = [
    (-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33),
    (0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33),
]  # fmt: skip
_ARROW: Points = [(0, -1), (0.8, -0.1), (0.3, -0.1), (0.3, 1), (-0.3, 1), (-0.3, -0.1), (-0.8, -0.1)]
_L_SHAPE: Points = [(-0.7, -1), (-0.1, -1), (-0.1, 0.4), (0.8, 0.4), (0.8, 1), (-0.7, 1)]

# Outlines within the unit circle; similar kinds on purpose (pentagon and hexagon, star and cross).
FIGURES: dict[str, Points] = {
    "arrow": _ARROW,
    "circle": _arc(0, 2 * math.pi, 0.9),
    "crescent": _arc(-2.2, 2.2, 1.0) + [(x + 0.35, y) for x, y in reversed(_arc(-1.9, 1.9, 0.8))],
    "cross": _CROSS,
    "hexagon": _polygon(6),
    "l_shape": _L_SHAPE,
    "pentagon": _polygon(5),
    "square": [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)],
    "star": _star(5, 0.45),
    "triangle": _polygon(3),
}


def ensure_shapes(dataset: Dataset) -> Path:
    """The data set's folder, drawn on first use; safe when several processes ask at once."""
    folder = Path(dataset.path).expanduser() if dataset.path else _cache() / f"shapes-{_key(dataset)}"
    if not (folder / "val").is_dir():
        _draw_all(dataset, folder)
    return folder


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "train-launcher"


def _key(dataset: Dataset) -> str:
    facts = (_VERSION, dataset.train_samples, dataset.val_samples, dataset.native_size)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _draw_all(dataset: Dataset, folder: Path) -> None:
    """Draw into a temporary folder and rename it, so that a half-drawn data set is never seen."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
    try:
        for split, samples in (("train", dataset.train_samples), ("val", dataset.val_samples)):
            for name in FIGURES:
                (temporary / split / name).mkdir(parents=True)
            for index in range(samples or 0):
                _write(temporary, split, dataset.native_size, index)
        try:
            temporary.rename(folder)
        except OSError:
            # note: another process has drawn the same pictures meanwhile
            if not (folder / "val").is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(root: Path, split: str, side: int, index: int) -> None:
    name = list(FIGURES)[index % len(FIGURES)]
    draw_figure(name, side, split, index).save(root / split / name / f"{index:06d}.jpg", quality=_QUALITY)


def draw_figure(name: str, side: int, split: str, index: int) -> Image.Image:
    """One RGB picture of `side` pixels, the same for the same arguments."""
    random = randomness.generator(_SEED, f"shapes-{split}", index)
    large = side * _OVERSAMPLING
    picture = _ground(random, large)
    pen = ImageDraw.Draw(picture)
    for _ in range(random.integers(3, 7)):
        _distract(random, pen, large)
    _place(random, pen, FIGURES[name], large)
    for _ in range(random.integers(0, 3)):
        _distract(random, pen, large)
    picture = picture.resize((side, side), Image.Resampling.BOX)
    if random.random() < 0.3:
        picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 0.9)))
    noise = random.normal(0, random.uniform(3, 22), (side, side, 3))
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


def _colour(random: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(c) for c in random.integers(0, 256, 3))
    return red, green, blue


def _ground(random: np.random.Generator, side: int) -> Image.Image:
    """Coarse random patches, smoothed: a ground with gradients and edges of its own."""
    cells = int(random.integers(2, 7))
    base = np.array(_colour(random))
    patches = np.clip(base + random.normal(0, 45, (cells, cells, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(patches).resize((side, side), Image.Resampling.BICUBIC)


def _place(random: np.random.Generator, pen: ImageDraw.ImageDraw, outline: Points, side: int) -> None:
    radius = side * random.uniform(0.18, 0.36)
    centre = random.uniform(radius * 0.8, side - radius * 0.8, 2)
    angle = random.uniform(-0.6, 0.6)
    stretch = random.uniform(0.75, 1.3)
    cos, sin = math.cos(angle), math.sin(angle)
    turned = [(x * stretch * cos - y * sin, x * stretch * sin + y * cos) for x, y in outline]
    corners = [(centre[0] + radius * x, centre[1] + radius * y) for x, y in turned]
    width = int(side * random.uniform(0.02, 0.06)) + 1
    if random.random() < 0.5:
        pen.polygon(corners, fill=_colour(random), outline=_colour(random), width=max(1, width // 2))
    else:
        pen.line([*corners, corners[0], corners[1]], fill=_colour(random), width=width, joint="curve")


def _distract(random: np.random.Generator, pen: ImageDraw.ImageDraw, side: int) -> None:
    """A stroke or a speck that belongs to no class."""
    start = random.uniform(0, side, 2)
    if random.random() < 0.7:
        end = start + random.normal(0, side * 0.25, 2)
        pen.line([tuple(start), tuple(end)], fill=_colour(random), width=int(side * random.uniform(0.01, 0.05)) + 1)
    else:
        size = side * random.uniform(0.02, 0.08)
        pen.ellipse([*(start - size), *(start + size * random.uniform(0.5, 1.5))], fill=_colour(random))
