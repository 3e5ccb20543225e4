"""Measure the loading time of hot relative to mild, both on FFCV files with the loaders of training, one thread."""

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
from launcher.data.loading import Loaders, build_loaders
from launcher.plan.plan import Plan
from launcher.rank.group import single_rank

_FEW_PASSES = 20
_IN_LOADER = "algorithms.progressive_resizing.where=loader"


@dataclass(frozen=True)
class Ratio:
    """Processor time per image in hot relative to mild: median, minimum and maximum over the rounds.

    The ratio is over the image sizes that both load, with equal weights; the throughput over each recipe's schedule.
    """

    words: str
    sizes: list[int]
    median: float
    minimum: float
    maximum: float
    mild_throughput: float
    hot_throughput: float


class RecipeLoader:
    """A recipe's training loader of a data set, with two batches per epoch."""

    def __init__(self, recipe: str, folder: Path, words: Sequence[str]):
        count = len(originals(folder))
        dataset = ["dataset=image_folder", f"dataset.path={folder}", f"batch_size={count // 2}", *words]
        composed = compose([f"recipe={recipe}", "dataloader=ffcv", "dataloader.workers=1", *dataset])
        config = inspect_data(composed.config, must_exist=True).config
        self.plan = Plan(config, 1, count)
        engine = Engine(Context(self.plan, 2))
        self.loaders: Loaders = build_loaders(
            self.plan,
            single_rank(torch.device("cpu")),
            change_order=engine.change_order,
            change_image=engine.change_image,
        )
        steps = self.plan.steps_per_epoch
        sizes = [self.plan.loaded_view(step) for step in range(self.plan.total_steps)]
        self.steps = Counter(sizes)
        # note: sizes change within an epoch too
        self.epochs: dict[int, list[int]] = {}
        for step in range(0, len(sizes), steps):
            if sizes[step] == sizes[step + 1]:
                self.epochs.setdefault(sizes[step], []).append(step // steps)

    def seconds(self, size: int, turn: int) -> float:
        """Return the processor seconds per image of an epoch at a size; rounds use different epochs if possible."""
        epochs = self.epochs[size]
        start = time.process_time()
        loaded = sum(len(images) for images, _, _ in self.loaders.train.epoch(epochs[turn % len(epochs)]))
        return (time.process_time() - start) / loaded


def compare(folder: Path, repeats: int) -> list[Ratio]:
    """Compare the recipes as they are, and with crops at the step's image size."""
    return [_compare(folder, words, repeats) for words in ((), (_IN_LOADER,))]


def _compare(folder: Path, words: Sequence[str], repeats: int) -> Ratio:
    mild, hot = (RecipeLoader(recipe, folder, words) for recipe in ("mild", "hot"))
    spent: dict[tuple[RecipeLoader, int], list[float]] = {(r, size): [] for r in (mild, hot) for size in r.epochs}
    # note: with few sizes, each is measured more often
    turns = repeats * max(1, _FEW_PASSES // len(spent))
    for turn in range(turns + 1):
        # note: alternates which recipe is first
        for (recipe, size), seconds in sorted(
            spent.items(), key=lambda item: (item[0][1], item[0][0] is (mild, hot)[turn % 2])
        ):
            seconds += [recipe.seconds(size, turn)] * (turn > 0)
    sizes = sorted(mild.epochs.keys() & hot.epochs.keys())
    ratios = [
        sum(spent[hot, s][turn] for s in sizes) / sum(spent[mild, s][turn] for s in sizes) for turn in range(turns)
    ]
    throughput = []
    for recipe in (mild, hot):
        known = {size: statistics.median(spent[recipe, size]) for size in recipe.epochs}
        weights = {size: recipe.steps[size] for size in known}
        throughput.append(sum(weights.values()) / sum(known[size] * weights[size] for size in known))
        recipe.loaders.close()
    return Ratio(" ".join(words), sizes, statistics.median(ratios), min(ratios), max(ratios), *throughput)


def table(ratios: list[Ratio]) -> Table:
    shown = Table("values", "px", "hot's time / mild's", "min-max", "mild, images/s", "hot", box=None)
    for r in ratios:
        shown.add_row(
            r.words or "as the recipes are", f"{r.sizes[0]}-{r.sizes[-1]}", f"{r.median:.3f}",
            f"{r.minimum:.3f}-{r.maximum:.3f}", f"{r.mild_throughput:,.0f}", f"{r.hot_throughput:,.0f}",
        )  # fmt: skip
    return shown
