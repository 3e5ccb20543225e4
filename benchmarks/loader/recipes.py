"""What loading costs in hot and in mild, both on FFCV files: the loaders as training builds them, one thread."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table

from benchmarks.loader.files import originals
from launcher.algorithms.base import Context
from launcher.algorithms.engine import Engine
from launcher.config.compose import compose
from launcher.data.inspection import inspect_data
from launcher.data.loaders import Loaders, build_loaders
from launcher.plan.plan import Plan
from launcher.rank.group import alone

_FEW_PASSES = 20
_IN_LOADER = "algorithms.progressive_resizing.where=loader"


@dataclass(frozen=True)
class Ratio:
    """Processor time a picture in hot, as a ratio to mild: the median of the turns, the least and the most.

    At the sides that both load, each weighing the same, and over all steps of each one's schedule, in images a second.
    """

    words: str
    sides: list[int]
    median: float
    least: float
    most: float
    mild_rate: float
    hot_rate: float


class RecipeLoader:
    """A recipe's training loader of a data set, two batches an epoch."""

    def __init__(self, recipe: str, folder: Path, words: Sequence[str]):
        count = len(originals(folder))
        given = ["dataset=image_folder", f"dataset.path={folder}", f"batch_size={count // 2}", *words]
        composed = compose([f"recipe={recipe}", "dataloader=ffcv", "dataloader.workers=1", *given])
        config = inspect_data(composed.config, must_exist=True).config
        self.plan = Plan(config, 1, count)
        engine = Engine(Context(self.plan, 2))
        self.loaders: Loaders = build_loaders(
            self.plan,
            alone(torch.device("cpu")),
            change_order=engine.change_order,
            change_image=engine.change_image,
        )
        steps = self.plan.steps_per_epoch
        sides = [self.plan.loaded_size(step) for step in range(self.plan.total_steps)]
        self.steps = Counter(sides)
        # note: sides change within an epoch too
        self.epochs: dict[int, list[int]] = {}
        for step in range(0, len(sides), steps):
            if sides[step] == sides[step + 1]:
                self.epochs.setdefault(sides[step], []).append(step // steps)

    def seconds(self, side: int, turn: int) -> float:
        """Processor seconds a picture of one epoch at a side, each turn with crops of its own as far as they last."""
        epochs = self.epochs[side]
        start = time.process_time()
        loaded = sum(len(images) for images, _, _ in self.loaders.train.epoch(epochs[turn % len(epochs)]))
        return (time.process_time() - start) / loaded


def compare(folder: Path, repeats: int) -> list[Ratio]:
    """Both recipes as they are, and with crops that the loader makes at the step's side."""
    return [_compare(folder, words, repeats) for words in ((), (_IN_LOADER,))]


def _compare(folder: Path, words: Sequence[str], repeats: int) -> Ratio:
    mild, hot = (RecipeLoader(recipe, folder, words) for recipe in ("mild", "hot"))
    spent: dict[tuple[RecipeLoader, int], list[float]] = {(r, side): [] for r in (mild, hot) for side in r.epochs}
    # note: where there are few sides, each is measured more often
    turns = repeats * max(1, _FEW_PASSES // len(spent))
    for turn in range(turns + 1):
        # note: neither recipe always comes first
        for (recipe, side), seconds in sorted(
            spent.items(), key=lambda item: (item[0][1], item[0][0] is (mild, hot)[turn % 2])
        ):
            seconds += [recipe.seconds(side, turn)] * (turn > 0)
    sides = sorted(mild.epochs.keys() & hot.epochs.keys())
    ratios = [
        sum(spent[hot, s][turn] for s in sides) / sum(spent[mild, s][turn] for s in sides) for turn in range(turns)
    ]
    rates = []
    for recipe in (mild, hot):
        known = {side: statistics.median(spent[recipe, side]) for side in recipe.epochs}
        weights = {side: recipe.steps[side] for side in known}
        rates.append(sum(weights.values()) / sum(known[side] * weights[side] for side in known))
        recipe.loaders.close()
    return Ratio(" ".join(words), sides, statistics.median(ratios), min(ratios), max(ratios), *rates)


def table(ratios: list[Ratio]) -> Table:
    shown = Table("values", "px", "hot's time / mild's", "least-most", "mild, images/s", "hot", box=None)
    for r in ratios:
        shown.add_row(
            r.words or "as the recipes are", f"{r.sides[0]}-{r.sides[-1]}", f"{r.median:.3f}",
            f"{r.least:.3f}-{r.most:.3f}", f"{r.mild_rate:,.0f}", f"{r.hot_rate:,.0f}",
        )  # fmt: skip
    return shown
