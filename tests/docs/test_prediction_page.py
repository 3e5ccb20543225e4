"""docs/prediction.md shows what benchmarks/prediction.py finds, and what conf/efficiencies.yaml holds."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from benchmarks.prediction import Figure, figures, row
from lab.predict.prediction import efficiencies

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "prediction.md").read_text()


def test_every_figure_has_its_line_and_the_summary_is_of_those_held_out() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| figure")]
    assert len(lines) == len(figures())
    fitted, held = (
        [f for f in figures() if f.fits],
        [f for f in figures() if not f.fits],
    )
    for figure, line in zip([*fitted, *held], lines, strict=True):
        assert line.startswith(f"| {figure.name} | {figure.machine} |")
        published = f"{figure.published:,g} {figure.unit}"
        assert published in line
        assert line.endswith(f"| {figure.source} |")
    errors = [abs(int(error)) for error in re.findall(r"\| ([+-]\d+)% \|", "\n".join(lines[len(fitted) :]))]
    assert len(errors) == len(held) >= 12
    (told,) = re.findall(r"(\d+) held-out figures: median error (\d+)% .*?, worst (\d+)%", TEXT)
    assert tuple(map(int, told)) == (len(held), round(statistics.median(errors)), max(errors))


# note: one traced network serves these; the other lines want minutes of tracing
@pytest.mark.parametrize(
    "figure",
    [f for f in figures() if f.loader or f.step == "plain"],
    ids=lambda figure: f"{figure.name}, {figure.machine}",
)
def test_the_lines_are_what_the_model_says(figure: Figure) -> None:
    named = f"| {figure.name} | {figure.machine} |"
    (line,) = (line for line in TEXT.splitlines() if line.startswith(named))
    told, found = (float(text.split(" | ")[4].replace(",", "")) for text in (line, row(figure, efficiencies())))
    # note: a kernel more or less in our own step moves them by tenths of a percent
    assert told == pytest.approx(found, rel=0.01)


def test_the_page_tells_the_values_that_are_used() -> None:
    values = efficiencies()
    assert f"images/s of one thread × {values['loaders']['share']}" in TEXT
    assert f"{values['ranks']} of one GPU's throughput" in TEXT
    assert f"a factor of {1 + values['spread']:g} in each direction" in TEXT
    assert f"{1000 * values['loaders']['operation']:.2f} ms per image" in TEXT
