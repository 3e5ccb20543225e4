"""The colours of the curves in light and dark mode, also for colour-blind readers."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from launcher_lab.study import report

PAGE = Path(report.__file__).with_name("page")
CSS, STATE = ((PAGE / name).read_text() for name in ("page.html", "state.js"))
LIGHT, DARK = CSS[: CSS.index("scheme: dark)")], CSS[CSS.index("scheme: dark)") :]

# Machado, Oliveira & Fernandes 2009, severity 1.0: linear RGB to perceived linear RGB.
SEEN = {
    "all": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# sRGB to CIE XYZ, and its white (IEC 61966-2-1).
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def listed(name: str) -> list[str]:
    return re.findall(r'"([^"]+)"', re.findall(rf"const {name} = .*", STATE)[0])


def value(name: str, css: str) -> str:
    return re.findall(rf"--{name}: (#[0-9a-f]+)", css)[0]


def colours(css: str) -> list[str]:
    return [value(re.findall(r"--(\w+)", name)[0], css) for name in listed("COLOURS")]


def linear(colour: str) -> NDArray[np.float64]:
    whole = colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])
    parts = np.array([int(whole[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour: str, seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the CIE L*a*b* of a colour as perceived."""
    parts = XYZ @ np.clip(seen @ linear(colour), 0, 1) / WHITE
    x, y, z = np.where(parts > (6 / 29) ** 3, np.cbrt(parts), parts / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.2."""
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("css", [LIGHT, DARK], ids=["light", "dark"])
def test_any_two_colours_can_be_distinguished(css: str, sight: str) -> None:
    """2.3 is a just noticeable difference (CIE 1976), 10 is obvious."""
    distances = [
        float(np.linalg.norm(lab(one, SEEN[sight]) - lab(other, SEEN[sight])))
        for one, other in combinations(colours(css), 2)
    ]
    assert min(distances) >= 20


def test_curves_of_one_colour_differ_in_dashes_and_marker() -> None:
    """In the order of state.js, twenty-eight curves have twenty-eight looks."""
    count, dashes, shapes = len(listed("COLOURS")), listed("DASHES"), listed("SHAPES")
    looks = []
    for index in range(count * len(dashes)):
        turn = index // count
        looks.append((index % count, dashes[turn], shapes[(index + turn) % len(shapes)]))
    assert len({look[:2] for look in looks}) == len(looks)
    ten = looks[:10]
    assert all(one[1] != other[1] and one[2] != other[2] for one, other in combinations(ten, 2) if one[0] == other[0])


@pytest.mark.parametrize("css", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_have_contrast_with_the_background(css: str) -> None:
    """WCAG 2.2, 1.4.11 requires 3 for graphics; thin lines on dark have that of text."""
    least = 4.5 if css is DARK else 3
    assert min(contrast(colour, value("paper", css)) for colour in colours(css)) >= least


def test_the_images_have_the_colours_of_the_page() -> None:
    assert [colour.lower() for colour in report.COLOURS[:-1]] == colours(LIGHT)[:-1]


@pytest.mark.parametrize("css", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast_with_the_background(css: str) -> None:
    """WCAG 2.2, 1.4.3 requires 4.5 for text."""
    assert min(contrast(value(name, css), value("paper", css)) for name in ("ink", "faint", "link")) > 4.5
