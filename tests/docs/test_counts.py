"""One function writes counts with their nouns: `1 image` and `2 images`."""

import ast
import re
from pathlib import Path

import pytest

from launcher.counts import count_of, plural
from tests.commands import output_of

from .pages import ROOT

NOUNS = (
    *("batch card cell checkpoint class copy core epoch evaluation file folder GPU graph image interruption job kind",),
    *("machine matrix micro-batch name node number output point prediction price process recipe rollback row",),
    *("run sample seed step study thread trial worker",),
)
PLURALS = "|".join(plural(noun) for noun in " ".join(NOUNS).split())
AFTER_A_COUNT = re.compile(rf" (?:(?!or )[a-z-]+ )?(?:{PLURALS})\b(?!/)")
# Counts that are never 1: bounds, lists that are longer, and numbers of nodes of a run on several.
NEVER_ONE = {
    *("'MOST_RUNS'", "'FEWEST_IMAGES'", "'FEWEST_RUNS'", "MOST_PIXELS // 10 ** 6", "_MOST_BASES", "_LONGEST"),
    *("MOST_RUNS", "FEWEST_IMAGES", "FEWEST_RUNS", "self._launch.nnodes"),
}
# Texts before a noun that is no count of it.
NO_COUNT = re.compile(
    r"^count_of|band|_number|wanted|held_out|split|path|trials|spot|1000 \*|value|step$|explained|seen|root|name"
)


def written_plurals() -> list[str]:
    """Return the places of the source where a value is followed by a noun in the plural."""
    places = []
    for package in ("launcher", "launcher_lab"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    places += [f"{path.relative_to(ROOT)}:{node.lineno}: {text}" for text in plurals_of(node)]
    return places


def plurals_of(text: ast.JoinedStr) -> list[str]:
    """Return each value of a text that a plural follows, unless it is never 1."""
    found = []
    for value, after in zip(text.values, text.values[1:], strict=False):
        if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
            name = ast.unparse(value.value)
            if AFTER_A_COUNT.match(str(after.value)) and name not in NEVER_ONE and not NO_COUNT.search(name):
                found.append(f"{{{name}}}{after.value}")
    return found


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "image", "1 image"),
        (0, "image", "0 images"),
        (1200, "training image", "1,200 training images"),
        (2, "class", "2 classes"),
        (2, "process", "2 processes"),
        (2, "micro-batch", "2 micro-batches"),
        (2, "study", "2 studies"),
        (2, "matrix", "2 matrices"),
        (1.0, "epoch", "1 epoch"),
        (1.5, "epoch", "1.5 epochs"),
    ],
)
def test_a_count_of_one_has_the_singular(count: float, noun: str, text: str) -> None:
    assert count_of(count, noun) == text


def test_no_count_is_followed_by_a_written_plural() -> None:
    assert written_plurals() == []


def test_a_written_plural_is_found() -> None:
    (text,) = [node for node in ast.walk(ast.parse('f"{count} validation images"')) if isinstance(node, ast.JoinedStr)]
    assert plurals_of(text) == ["{count} validation images"]


def test_the_plan_of_a_single_step_is_in_the_singular(tmp_path: Path) -> None:
    sizes = ["dataset.train_samples=64", "dataset.val_samples=1", "batch_size=64", "schedule.warmup=0ba"]
    text = output_of(
        "plan", "dataset=imagenet", "dataloader=synthetic", "model=resnet18", "launch=cpu", "epochs=1", *sizes
    )
    assert "64 training images and 1 validation image\n" in text
    assert "1 epoch x 1 step = 1 step\n" in text
    assert not re.search(rf"(?<![\d.,])1 (?:[a-z-]+ )?(?:{PLURALS})\b", text)
