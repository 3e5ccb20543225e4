"""What every recipe file must be: a complete header, known keys, values in full, true arithmetic, a valid run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from launcher.config import recipes
from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.schema import GROUPS, RunConfig
from launcher.plan.checks import check
from launcher.plan.plan import Plan

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
ABLATIONS = sorted(path.stem for path in FOLDER.glob("ablations/*.yaml"))
ALL = [*RECIPES, *ABLATIONS]
# For pictures of one's own, and any model: nothing was published of them.
OWN = ("finetune", "small")
# What was published of these is a speed, or the values alone.
WITHOUT_ACCURACY = ("baseline_", "resnet101_", "algoperf_nadamw", "algoperf_vit", *OWN)
# Parts of a recipe file that are not values of a run.
NOT_VALUES = {"about", "base", "by_epochs", "by_fidelity"}


def schemas(hint: Any) -> list[type]:
    """The dataclasses in a type hint."""
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [found for part in get_args(hint) for found in schemas(part)]


def unknown(values: Any, hint: Any, key: str) -> Iterator[str]:
    """Dotted keys of a mapping that the schema does not have; an option is chosen by its name."""
    options = schemas(hint)
    if not isinstance(values, dict) or not options:
        return
    name = values.get("name")
    option = next((o for o in options if get_args(get_type_hints(o).get("name")) == (name,)), options[0])
    hints = get_type_hints(option)
    for child, value in values.items():
        if child not in hints:
            yield f"{key}{child}"
        else:
            yield from unknown(value, hints[child], f"{key}{child}.")


def content(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.yaml"
    loaded: dict[str, Any] = yaml.safe_load((path if path.exists() else FOLDER / f"ablations/{name}.yaml").read_text())
    return loaded


def comments(name: str) -> str:
    lines = recipes.find(name).read_text().splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def test_names_are_unique_and_all_are_listed() -> None:
    assert len(set(ALL)) == len(ALL)
    assert sorted(recipe.name for recipe in recipes.listing()) == RECIPES
    assert [recipe.name for recipe in recipes.ablations()] == ABLATIONS


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_composes_without_a_problem_or_a_note(name: str) -> None:
    composed = compose([f"recipe={name}"])
    assert composed.config.recipe == name
    network = next((m for m in ("resnet101", "vit") if m in name), "resnet50")
    found = (composed.config.dataset.name, composed.config.model.name)
    assert found == (("image_folder", "resnet18") if name in OWN else ("imagenet", network))
    assert composed.notes == []


@pytest.mark.parametrize("fidelity", ["ours", "published"])
@pytest.mark.parametrize("name", ALL)
def test_a_recipe_can_run_at_each_of_its_lengths_on_eight_gpus(name: str, fidelity: str) -> None:
    recipe = recipes.load(name)
    for epochs in {recipe.values["epochs"], *recipe.by_epochs, *filter(None, recipe.about.epochs)} - {1}:
        words = [f"recipe={name}", f"epochs={epochs}", f"fidelity={fidelity}", "model.weights=torchvision"]
        config = compose(words).config
        check(Plan(config, world_size=8, train_samples=1_281_167), {})


@pytest.mark.parametrize("name", ALL)
def test_every_key_is_in_the_schema(name: str) -> None:
    values = {key: value for key, value in content(name).items() if key not in NOT_VALUES}
    assert list(unknown(values, RunConfig, "")) == []
    for changed in [*content(name).get("by_epochs", {}).values(), *content(name).get("by_fidelity", {}).values()]:
        assert list(unknown(changed, RunConfig, "")) == []


def test_a_mistyped_key_is_seen() -> None:
    values = {"epoch": 3, "optimizer": {"name": "sgd", "beta1": 0.9}, "algorithms": {"sam": {"rhoo": 1}, "samm": "on"}}
    assert list(unknown(values, RunConfig, "")) == [
        "epoch",
        "optimizer.beta1",
        "algorithms.sam.rhoo",
        "algorithms.samm",
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_every_group_is_chosen_and_every_algorithm_stated_in_full(name: str) -> None:
    values = content(name)
    assert {"epochs", "batch_size", "eval_batch_size", "image", "algorithms"} <= set(values)
    assert set(GROUPS) - set(values) - {"launch", "logger", "task"} == ({"model"} if name in OWN else set())
    for algorithm, stated in values["algorithms"].items():
        (schema,) = schemas(get_type_hints(Algorithms)[algorithm])
        assert stated is True or set(stated) == {field.name for field in fields(schema)}, algorithm


@pytest.mark.parametrize("name", ALL)
def test_the_header_gives_results_source_command_and_true_arithmetic(name: str) -> None:
    text, config = comments(name), compose([f"recipe={name}"]).config
    assert f"train recipe={name} " in text
    assert "Published" in text
    assert "Source: " in text
    steps = 1_281_167 // config.batch_size
    stated = re.findall(r"(\d+) epochs -> ([\d,]+) steps", text)
    assert stated or name in ("ffcv_rn50", "nvidia_v1_5", *OWN)
    for epochs, total in stated:
        assert int(total.replace(",", "")) == int(epochs) * steps
        assert int(epochs) == config.epochs
    for batch, per_epoch in re.findall(r"pictures / (\d+) -> ([\d,]+) steps", text):
        assert (int(batch), int(per_epoch.replace(",", ""))) == (config.batch_size, steps)


@pytest.mark.parametrize("name", ALL)
def test_the_typed_header_is_complete(name: str) -> None:
    about = recipes.load(name).about
    first, last = about.epochs
    assert about.summary
    assert first is not None
    assert last is None or first <= last
    assert about.published or name.startswith(WITHOUT_ACCURACY)
    for result in about.published:
        assert 70 < result.top1 < 82
        assert result.source
        assert result.hardware
