"""`recipe=auto`: choose a recipe, its batch and its length for a data set and a machine; imports no torch."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from launcher import paths, randomness
from launcher.cli.recipe_choice import FINETUNE, SMALL, Facts, alternatives, choose, values_of_task
from launcher.cli.within import best_within
from launcher.config import recipes
from launcher.config.budget import BUDGET
from launcher.config.compose import DATA_FOLDER, Composed, Composition, compose, dataset_at
from launcher.config.overrides import parse
from launcher.config.resolved import with_absolute_paths
from launcher.config.schema import RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.console import console, progress_bars
from launcher.counts import count_of
from launcher.data.decode import UnreadableImage
from launcher.data.inspection import Inspection, inspect_data
from launcher.data.pixel_types import PixelType
from launcher.data.sources.layout import is_remote
from launcher.data.sources.reading import read
from launcher.data.split import Split
from launcher.errors import Problem, Problems, UserError, one_line
from launcher.launch.devices import Devices, planned
from launcher.launch.prepare_run import planned_here
from launcher.models.resnet import TorchvisionModel
from launcher.submit.job import PREFIX, gpus_of_node

# The verbs of one run that `recipe=auto` works with. The first ones prepare the run, so what they see of its images is
# not seen again; for these and `show`, images without a recipe mean it too.
_PREPARED = ("run", "plan", "estimate", "diagnose", "submit", "look", "lr-find")
_BARE = (*_PREPARED, "show")
_ONE_RUN = (*_BARE, "doctor", "prepare", "relabel")
_SEVERAL = ("curve", "ablate", "tune")
# What the number and size of the images set besides the recipe, and why.
_OF_IMAGES = {
    "epochs": "",
    "batch_size": "so that an epoch has enough steps, in equal parts per process; the learning rate follows",
    "device_batch_size": "a GPU's images at once, as published on eight",
    "dataset.native_size": "the size of the images",
}
# Keys with a value that fixes the image size, or was chosen for one.
_WITH_A_SIZE = ("epochs", "dataset.native_size", "image", "model")
# Values that a recipe fixes: with one of these and no recipe, the defaults of conf/train.yaml apply. So does `loss`,
# unless `task` is set too, because recipes fix only the loss of classification.
_OF_A_RECIPE = ("optimizer", "schedule", "algorithms", "image", "batch_size", "fidelity")


def with_recipe(verb: str, words: Sequence[str], *options: str) -> tuple[list[str], Composed | None]:
    """Return a verb's words with the recipe and values that `recipe=auto` chooses, and their config; typed values stay.

    Without a choice, the words are as typed, and the config is None. Prints what is chosen and why, and the command
    that sets the same, to standard error, with the options that the verb needs. `budget=5min` chooses the best of the
    runs here that ends in time, if any.

    Raises UserError if the verb has several runs, the images are missing, or it does not know the task.
    """
    of_the_job = [word for word in words if word.startswith(PREFIX)]
    assignments = parse([word for word in words if word not in of_the_job], problems := Problems())
    typed = {one.key: one.value for one in assignments}
    if typed.get("recipe") != recipes.AUTO and (problems or verb not in _BARE or not _is_bare(typed)):
        if verb in _SEVERAL and _is_bare(typed):
            images = shlex.quote(f"dataset.path={typed['dataset.path']}")
            note = f"no recipe, so the defaults of every key; `train plan {images}` prints one for these images to add"
            print(one_line(f"note: {note}"), file=sys.stderr)
        return [*words], None
    if verb not in _ONE_RUN:
        raise _problem("is for one run; use the recipe that `train plan recipe=auto` prints for your images")
    problems.settle()
    if BUDGET in typed:
        within, ends = best_within(verb, words, typed, str(typed.get("dataset") or _dataset(typed)))
        explicit, composed = with_recipe(verb, within, *options)
        # note: a known run has its own size and length
        keys = [word.lstrip("+").partition("=")[0] for word in within]
        may_shrink = not any(key.startswith(_WITH_A_SIZE) for key in keys)
        composed = replace(composed or compose(explicit), may_shrink=may_shrink)
        return explicit, replace(composed, ends=ends if verb == "run" else None)
    rest = [word for word in words if word.lstrip("+") != f"recipe={recipes.AUTO}"]
    dataset = [] if "dataset" in typed else [f"dataset={_dataset(typed)}"]
    choice = _choice(verb, typed, [*dataset, *(word for word in rest if word not in of_the_job)])
    explicit = [f"recipe={choice.recipe}", *dataset, *_words(choice.values), *rest]
    because = "; ".join(_reasons(choice)) or "its own values and those of the command line"
    command = shlex.join([*(["train"] if verb == "run" else ["train", verb]), *options, *explicit])
    hint = _weights_hint(choice.composed.config, choice.facts)
    for line in (f"recipe={choice.recipe}: {choice.facts}{hint}", because, f"the same: {command}"):
        print(one_line(f"auto: {line}"), file=sys.stderr)
    return explicit, choice.composed


@dataclass(frozen=True)
class _Choice:
    """A recipe, the values to set besides, what they depend on, and the config that they make."""

    recipe: str
    values: dict[str, Any]
    facts: Facts
    composed: Composed


def _choice(verb: str, typed: Mapping[str, Any], words: Sequence[str]) -> _Choice:
    """Choose for the words of a verb, besides those `typed`.

    Composes the recipe of few images, and adds to its config; only for many on GPUs, it composes another recipe.
    """
    guess = recipes.load(FINETUNE if typed.get("model.weights") else SMALL)
    of_task = _untyped(values_of_task(guess.name, str(typed.get("task", guess.options["task"]))), typed)
    composition = Composition([f"recipe={guess.name}", *_words(of_task), *words])
    first = composition.composed()
    inspection, facts = _look(verb, first, typed)
    name, values = choose(facts)
    values = _untyped(values, typed)
    if (name, values.keys() - _OF_IMAGES) == (guess.name, of_task.keys()) and not guess.lengths:
        composition.set({key: values[key] for key in values.keys() - of_task.keys()})
        composed = composition.composed()
    else:
        composed = compose([f"recipe={name}", *_words(values), *words])
    # note: nothing is listed if images are missing or built in
    is_listed = inspection.splits and _images_of(composed.config) == _images_of(first.config)
    return _Choice(name, values, facts, replace(composed, inspected=inspection if is_listed else None))


def _images_of(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides which images a run has."""
    dataset = replace(config.dataset, native_size=1)
    return dataset, config.task, config.dataloader, config.seed if dataset.is_divided else None


def choices_on_gpus(words: Sequence[str], gpus: int) -> tuple[list[tuple[str, list[str]]], Composed]:
    """Return up to three recipes for some images on so many GPUs, each with its words besides the typed, and the data.

    words: without a recipe. The config that is returned is of the first, with what was seen of its images.

    Raises UserError if the images are missing, or their task is not known.
    """
    assignments = parse(words, problems := Problems())
    problems.settle()
    typed = {one.key: one.value for one in assignments}
    dataset = [] if "dataset" in typed else [f"dataset={_dataset(typed)}"]
    first = compose([f"recipe={FINETUNE if typed.get('model.weights') else SMALL}", *dataset, *words])
    inspection, facts = _look("plan", first, typed, Devices("cuda", gpus))
    several = alternatives(facts, typed, first.config.dataset.native_size)
    choices = [(name, [*dataset, *_words(_untyped(values, typed))]) for name, values in several]
    return choices, replace(first, inspected=inspection if inspection.splits else None)


def _untyped(values: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that typed ones do not replace."""
    # note: parts of a typed batch are its own
    own = {*typed, *(["device_batch_size"] if "batch_size" in typed else [])}
    return {
        key: value
        for key, value in values.items()
        if key not in own and not ("optimizer" in typed and key.startswith("optimizer."))
    }


def _words(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _problem(message: str) -> UserError:
    return UserError(Problem(message, "recipe", recipes.AUTO))


def _is_bare(typed: Mapping[str, Any]) -> bool:
    """Return whether the words set images and nothing that a recipe fixes; a model counts only without weights."""
    of_task = () if "task" in typed else ("loss",)
    fixed = (*_OF_A_RECIPE, *of_task, *(() if typed.get("model.weights") else ("model",)))
    heads = {key.partition(".")[0] for key in typed}
    return "dataset.path" in typed and not {"recipe", "dataset"} & typed.keys() and not heads.intersection(fixed)


def _dataset(typed: Mapping[str, Any]) -> str:
    """Return the option of `dataset` for the typed path, or that of the environment."""
    if path := typed.get("dataset.path") or os.environ.get(DATA_FOLDER):
        return dataset_at(str(path))
    raise _problem("needs images; set dataset.path=FOLDER, or dataset=shapes for built-in ones")


def _look(
    verb: str, composed: Composed, typed: Mapping[str, Any], devices: Devices | None = None
) -> tuple[Inspection, Facts]:
    """Return what a config's images are, and its facts; devices: those to choose for, by default the config's."""
    task, launch = composed.config.task, composed.config.launch
    known = read_mapping(paths.CONF / "auto.yaml")["tasks"]
    if task.name not in known:
        raise _problem(f"chooses for task={', '.join(known)} only; set another recipe for task={task.name}")
    with progress_bars(console(sys.stderr)) as (_, report):
        skipped = None if verb in _PREPARED else ()
        data = inspect_data(with_absolute_paths(composed.config), must_exist=False, skipped=skipped, report=report)
    config = data.config
    if devices is None:
        devices = planned(launch, gpus_of_node(config)) if verb == "submit" else planned_here(composed)
    pixels = _median_size(data.splits[0], config) if data.splits and "dataset.native_size" not in typed else None
    processes, on_gpus = devices.processes * launch.nnodes, devices.kind == "cuda"
    images, labels = config.dataset.train_samples or 1, task.counted(config.dataset.classes or 1)
    epochs, weights = config.epochs if "epochs" in typed else None, bool(typed.get("model.weights"))
    is_timed = config.stop.minutes is not None
    return data, Facts(task.name, images, labels, pixels, processes, on_gpus, weights, epochs, is_timed)


def _median_size(images: Split, config: RunConfig) -> int | None:
    """Return the median shorter edge of some images in pixels, drawn by the seed; None for images of a bucket."""
    if is_remote(str(config.dataset.path)):
        return None
    count = read_mapping(paths.CONF / "auto.yaml")["sampled"]
    edges = []
    for number in randomness.generator(config.seed, recipes.AUTO).permutation(len(images.files))[:count].tolist():
        with suppress(UnreadableImage):
            edges.append(min(PixelType.of(config.dataset).edges(read(images.piece(number)))))
    return int(np.median(edges)) if edges else None


def _reasons(choice: _Choice) -> list[str]:
    """Return the chosen values, each with its reason."""
    name, chosen, facts = choice.recipe, choice.values, choice.facts
    length = chosen.get("epochs", facts.epochs or recipes.load(name).get("epochs"))
    why = {**_OF_IMAGES, "epochs": f"{count_of(facts.images * length, 'image')} in all"}
    own = [f"{count_of(length, 'epoch')}, the length that {name} is for"] if name in recipes.BANDED else []
    if of_task := [f"{key}={value}" for key, value in chosen.items() if key not in why]:
        own.append(f"{' '.join(of_task)} (for task={facts.task})")
    return [*own, *(f"{key}={value} ({why[key]})" for key, value in chosen.items() if key in why)]


def _weights_hint(config: RunConfig, facts: Facts) -> str:
    """Return the words that use pretrained weights of the model that are on this machine; empty without any."""
    folder = Path(os.environ.get("TORCH_HOME") or paths.user_cache() / "torch", "hub", "checkpoints")
    if facts.weights or not isinstance(config.model, TorchvisionModel):
        return ""
    files = sorted(folder.glob(f"{config.model.architecture}-*.pth"))
    return f"; {files[0]} is here: model.weights=torchvision fine-tunes it" if files else ""
