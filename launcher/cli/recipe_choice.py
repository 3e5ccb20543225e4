"""Which recipe, batch, length and image size `recipe=auto` chooses for some images; imports no torch."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher import paths
from launcher.config import recipes
from launcher.config.recipes import Recipe
from launcher.config.yaml_file import read_mapping
from launcher.counts import count_of


@dataclass(frozen=True)
class Facts:
    """What a choice depends on: the training images, their labels and median shorter edge in pixels (None: unknown).

    `processes` are those of all nodes, one per GPU if `on_gpus`; `epochs` and `weights` are those of the command line.
    is_timed: whether minutes limit the run, so that its epochs need not. architecture: of the model, by its name.
    """

    task: str
    images: int = 0
    labels: str = ""
    size: int | None = None
    processes: int = 1
    on_gpus: bool = False
    weights: bool = False
    epochs: int | None = None
    is_timed: bool = False
    architecture: str = ""

    @property
    def is_transformer(self) -> bool:
        """Return whether the model trains as a vision transformer does, by its name."""
        return any(part in self.architecture for part in read_mapping(paths.CONF / "auto.yaml")["transformers"])

    def __str__(self) -> str:
        if not self.images:
            return f"task={self.task}"
        pixels = f" with a median of {self.size} px" if self.size else ""
        devices = count_of(self.processes, "GPU") if self.on_gpus else "the CPU"
        weights = "" if self.weights else "no "
        return f"{count_of(self.images, 'training image')} of {self.labels}{pixels}, {devices}, {weights}model.weights"


def choose(facts: Facts) -> tuple[str, dict[str, Any]]:
    """Return the recipe for some facts, and the values to set by key, by the table of conf/auto.yaml."""
    limits = read_mapping(paths.CONF / "auto.yaml")
    row = next(row for row in limits["recipes"] if _holds(row, facts))
    names = row["recipe"] if isinstance(row["recipe"], list) else [row["recipe"]]
    several = [recipes.load(name) for name in names]
    length = facts.epochs or several[0].get("epochs")
    recipe = next((one for one in several if one.about.covers(length)), several[0])
    values = {**_of_task(recipe, facts.task, limits), **row.get("set", {})}
    if facts.images and (of := row.get("images_are")):
        values |= _of_images(facts, recipe, limits, of_few=of == "few")
    return recipe.name, {key: value for key, value in values.items() if value != recipe.get(key)}


def _holds(row: Mapping[str, Any], facts: Facts) -> bool:
    """Return whether the conditions of a row hold."""
    own = {"task": facts.task, "weights": facts.weights, "gpus": facts.on_gpus, "transformer": facts.is_transformer}
    return facts.images >= row.get("images", 0) and all(own[key] == row[key] for key in own if key in row)


def _of_images(facts: Facts, recipe: Recipe, limits: Mapping[str, Any], *, of_few: bool) -> dict[str, Any]:
    """Return the length, batch and image size that some images set."""
    values: dict[str, Any] = {}
    if of_few:
        low, high = limits["epochs"]
        images = limits["images"]["gpu" if facts.on_gpus or facts.is_timed else "cpu"]
        values["epochs"] = min(max(round(images / facts.images), low), high)
    most = facts.images // limits["steps_per_epoch"]["few" if of_few else "many"]
    most = max(most, min(limits["least_batch"], facts.images))
    batch = min(recipe.get("batch_size"), 1 << (most.bit_length() - 1))
    micro_batches = math.ceil(batch / facts.processes / limits["rank_batch"])
    micro_batch = max(1, batch // (facts.processes * micro_batches))
    values["batch_size"] = micro_batch * micro_batches * facts.processes
    if micro_batches > 1:
        values["device_batch_size"] = micro_batch
    if facts.size is not None and facts.size < limits["small_images"]:
        values["dataset.native_size"] = max(1, facts.size // limits["size_multiple"]) * limits["size_multiple"]
    return values


def alternatives(facts: Facts, typed: Collection[str], size: int) -> list[tuple[str, dict[str, Any]]]:
    """Return up to three recipes with their values: the choice, pretrained weights, and images of half the size.

    typed: keys that have values already. size: of the images, if no value sets it. Nothing is known of their quality.
    """
    name, values = choose(facts)
    several = [(name, values)]
    if not facts.weights and facts.task == "classification" and not {"model", "dataset.channels"} & {*typed}:
        finetune, of_weights = choose(replace(facts, weights=True))
        several.append((finetune, {"model.weights": "torchvision", **of_weights}))
    limits, size = read_mapping(paths.CONF / "auto.yaml"), int(values.get("dataset.native_size", size))
    half = max(size // 2 // limits["size_multiple"] * limits["size_multiple"], limits["least_size"])
    if "dataset.native_size" not in typed and half < size:
        several.append((name, {**values, "dataset.native_size": half}))
    return several


def _of_task(recipe: Recipe, task: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe needs for another task than its own; off are only algorithms that it has."""
    has = [f"algorithms.{name}" for name in recipe.options["algorithms"]]
    of_task: dict[str, Any] = limits["tasks"].get(task, {})
    values = {key: value for key, value in of_task.items() if value != "off" or key in has}
    return {**values, **(limits["from_scratch"] if values and recipe.name == "small" else {})}
