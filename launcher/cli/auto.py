"""`recipe=auto`: choose a recipe, its batch and its length for a data set and a machine; imports no torch."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from launcher import paths
from launcher.cli.recipe_choice import Facts, alternatives, choose
from launcher.compute import randomness
from launcher.config import recipes
from launcher.config.compose import Composed, compose, dataset_at, path_of
from launcher.config.overrides import parse
from launcher.config.resolved import with_absolute_paths
from launcher.config.schema import RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.console import console, progress_bars
from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.index import Images
from launcher.data.inspection import Inspection, inspect_data
from launcher.data.pixel_types import PixelType
from launcher.data.sources.layout import is_remote
from launcher.data.sources.reading import read
from launcher.errors import Problem, Problems, UserError, one_line
from launcher.launch.devices import Devices, planned
from launcher.launch.prepare import planned_here
from launcher.models.resnet import TorchvisionModel
from launcher.submit.job import PREFIX, gpus_of_node

# The verbs that prepare one run, so what they see of its images is not seen again.
_PREPARED = ("run", "plan", "estimate", "submit", "look")
# What the number and size of the images set besides the recipe, and why.
_OF_IMAGES = {
    "epochs": "",
    "batch_size": "so that an epoch has enough steps, in equal parts per process; the learning rate follows",
    "device_batch_size": "a GPU's images at once, as published on eight",
    "dataset.native_size": "the size of the images",
}


class Chosen(NamedTuple):
    """The words of a run with a recipe; if it was chosen for them, their config, and the images if they were listed."""

    words: list[str]
    composed: Composed | None = None
    seen: Inspection | None = None


def with_recipe(verb: str, words: Sequence[str], *options: str) -> Chosen:
    """Return a verb's words with the recipe and values that are chosen for them; typed values stay.

    With a recipe, also `recipe=none`, the words are as typed. Prints the choice to standard
    error, and for `plan` why, and the command that sets the same. options: those that the verb needs.

    Raises UserError if the images are missing, or a word is wrong.
    """
    of_the_job = [word for word in words if word.startswith(PREFIX)]
    # note: composing reports the problems, after it has read the code of the words
    assignments = parse([word for word in words if word not in of_the_job], Problems())
    typed = {one.key: one.value for one in assignments}
    if typed.get("recipe", recipes.AUTO) != recipes.AUTO:
        return Chosen([*words])
    rest = [word for word in words if word.lstrip("+") != f"recipe={recipes.AUTO}"]
    choice = _choice(verb, typed, [word for word in rest if word not in of_the_job])
    own = [f"recipe={choice.recipe}", *_words(choice.values)]
    _show(f"{' '.join(own)}: {choice.facts}{_weights_hint(choice.composed.config, choice.facts)}")
    explicit = [*own, *rest]
    if verb == "plan":
        _show("; ".join(_reasons(choice)) or "its own values and those of the command line")
        _show(f"the same: {shlex.join(['train', verb, *options, *explicit])}")
    return Chosen(explicit, choice.composed, choice.seen)


def _show(text: str) -> None:
    print(one_line(f"auto: {text}"), file=sys.stderr)


@dataclass(frozen=True)
class _Choice:
    """A recipe, the values to set besides, what they depend on, the config that they make, and its listed images."""

    recipe: str
    values: dict[str, Any]
    facts: Facts
    composed: Composed
    seen: Inspection | None


def _choice(verb: str, typed: Mapping[str, Any], words: Sequence[str]) -> _Choice:
    """Choose for the words of a verb, besides those `typed`, by the images of the recipe that suits few."""
    guess, known = _guess(typed)
    first = compose([f"recipe={guess}", *_words(known), *words])
    inspection, facts = _look(verb, first, typed)
    name, values = choose(facts)
    values = {**known, **_untyped(values, typed)}
    is_first = (name, values) == (guess, known)
    composed = first if is_first else compose([f"recipe={name}", *_words(values), *words])
    # note: nothing is listed if images are missing or built in
    is_listed = inspection and inspection.splits and _images_of(composed.config) == _images_of(first.config)
    return _Choice(name, values, facts, composed, inspection if is_listed else None)


def _guess(typed: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the recipe for few images of the typed words, and the values that do not depend on the images."""
    model = str(typed.get("model.architecture") or typed.get("model") or "")
    name, values = choose(Facts(_task(typed), weights=bool(typed.get("model.weights")), architecture=model))
    dataset = None if "dataset" in typed else _dataset(typed, recipes.load(name).options["dataset"])
    return name, {**({"dataset": dataset} if dataset else {}), **_untyped(values, typed)}


def _task(typed: Mapping[str, Any]) -> str:
    """Return the task that is typed, or that the typed data loader is for."""
    loaders = read_mapping(paths.CONF / "auto.yaml")["tasks_of_loaders"]
    return str(typed.get("task") or loaders.get(typed.get("dataloader"), "classification"))


def _images_of(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides which images a run has."""
    dataset = replace(config.dataset, native_size=1)
    return dataset, config.task, config.dataloader, config.seed if dataset.is_divided else None


def choices_on_gpus(words: Sequence[str], gpus: int) -> tuple[list[tuple[str, list[str]]], Inspection | None]:
    """Return up to three recipes for images on so many GPUs, each with its words besides the typed, and the images.

    words: without a recipe. The images are None if they are built in or missing.

    Raises UserError if the images are missing, or their task is not known.
    """
    assignments = parse(words, problems := Problems())
    problems.settle()
    typed = {one.key: one.value for one in assignments}
    guess, known = _guess(typed)
    first = compose([f"recipe={guess}", *_words(known), *words])
    inspection, facts = _look("plan", first, typed, Devices("cuda", gpus))
    several = alternatives(facts, typed, first.config.dataset.native_size)
    choices = [(name, _words({**known, **_untyped(values, typed)})) for name, values in several]
    return choices, inspection if inspection and inspection.splits else None


def _untyped(values: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that typed ones do not replace."""
    # note: parts of a typed batch are its own, and typed image sizes are those of the images as they are
    own = {*typed, *(["device_batch_size"] if "batch_size" in typed else [])}
    own |= {"dataset.native_size"} if any(key.startswith("image.") and "size" in key for key in typed) else set()
    groups = {"optimizer", "schedule", "algorithms"} & typed.keys()
    return {key: value for key, value in values.items() if key not in own and key.partition(".")[0] not in groups}


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _problem(message: str) -> UserError:
    return UserError(Problem(message, "recipe", recipes.AUTO))


def _dataset(typed: Mapping[str, Any], usual: str | None) -> str | None:
    """Return the option of `dataset` for a path, or built in without one; None keeps another usual one of the recipe.

    Raises UserError if `recipe=auto` is typed, and no images are.
    """
    if usual not in (None, "image_folder", "imagenet"):
        return None
    if path := path_of(typed):
        return dataset_at(str(path))
    if "recipe" in typed:
        raise _problem("needs images; set dataset.path=FOLDER, or dataset=shapes for built-in ones")
    return "shapes"


def _look(
    verb: str, composed: Composed, typed: Mapping[str, Any], devices: Devices | None = None
) -> tuple[Inspection | None, Facts]:
    """Return what a config's images are, and its facts; devices: those to choose for, by default the config's.

    Text is not read, because its recipe does not depend on it.
    """
    task, launch = composed.config.task, composed.config.launch
    architecture, weights = composed.config.model.architecture, bool(typed.get("model.weights"))
    if task.axes == 1:
        return None, Facts(task.name, weights=weights, architecture=architecture)
    with progress_bars(console(sys.stderr)) as (_, report):
        skipped = None if verb in _PREPARED else ()
        data = inspect_data(with_absolute_paths(composed.config), must_exist=False, skipped=skipped, report=report)
    config = data.config
    if devices is None:
        devices = planned(launch, gpus_of_node(config)) if verb == "submit" else planned_here(composed)
    facts = Facts(
        task.name,
        images=config.dataset.train_samples or 1,
        labels=task.counted(config.dataset.classes or 1),
        processes=devices.processes * launch.nnodes,
        on_gpus=devices.kind == "cuda",
        weights=weights,
        epochs=config.epochs if "epochs" in typed else None,
        is_timed=config.stop.minutes is not None,
        architecture=architecture,
    )
    scales = not facts.is_transformer and task.labelled != "pixels" and "dataset.native_size" not in typed
    return data, replace(facts, size=_median_size(data.splits[0], config) if data.splits and scales else None)


def _median_size(images: Images, config: RunConfig) -> int | None:
    """Return the median shorter edge of some images in pixels, drawn by the seed; None for images of a bucket."""
    if is_remote(str(config.dataset.path)):
        return None
    count = read_mapping(paths.CONF / "auto.yaml")["sampled"]
    edges = []
    for number in randomness.generator(config.seed, recipes.AUTO).permutation(len(images))[:count].tolist():
        with suppress(UnreadableImage):
            edges.append(min(PixelType.of(config.dataset).edges(read(images.piece(number)))))
    return int(np.median(edges)) if edges else None


def _reasons(choice: _Choice) -> list[str]:
    """Return the chosen values, each with its reason."""
    name, chosen, facts = choice.recipe, choice.values, choice.facts
    length = chosen.get("epochs", facts.epochs or recipes.load(name).get("epochs"))
    why = {**_OF_IMAGES, "epochs": f"{count_of(facts.images * length, 'image')} in all"}
    own = [f"{count_of(length, 'epoch')}, the length that {name} is for"] if name in recipes.BANDED else []
    if of_task := [f"{key}={value}" for key, value in chosen.items() if key not in (*why, "dataset")]:
        own.append(f"{' '.join(of_task)} (for task={facts.task} and {choice.composed.config.model.architecture})")
    return [*own, *(f"{key}={value} ({why[key]})" for key, value in chosen.items() if key in why)]


def _weights_hint(config: RunConfig, facts: Facts) -> str:
    """Return what pretrained weights on this machine, or those that are typed, offer besides; empty without any."""
    if facts.weights and config.recipe == "finetune":
        return "; first recipe=probe, in seconds an epoch, then recipe=finetune model.weights=RUN goes on from its head"
    folder = Path(os.environ.get("TORCH_HOME") or paths.user_cache() / "torch", "hub", "checkpoints")
    if facts.weights or not isinstance(config.model, TorchvisionModel):
        return ""
    files = sorted(folder.glob(f"{config.model.architecture}-*.pth"))
    return f"; {files[0]} is here: model.weights=torchvision fine-tunes it" if files else ""
