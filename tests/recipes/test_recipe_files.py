"""Every recipe file has a complete header, valid keys, all values, correct arithmetic, and can run."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from launcher.config import recipes
from launcher.config.algorithms import ALGORITHMS
from launcher.config.compose import compose
from launcher.config.schema import GROUPS
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from tests.covering import sweep

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
ABLATIONS = sorted(path.stem for path in FOLDER.glob("ablations/*.yaml"))
ALL = [*RECIPES, *ABLATIONS]
# For one's own images and any model, without published results.
OWN = ("finetune", "probe", "small", "small_muon")
# Recipes whose publications have only a speed or values.
WITHOUT_ACCURACY = (
    *("baseline_", "resnet101_", "algoperf_nadamw", "algoperf_vit", "small_gpt", "small_segmentation", "unet_brats"),
    *("hotter", *OWN),
)
# Recipes of other tasks than classes of images.
LANGUAGE = ("gpt2_125m", "gpt2_125m_mosaic", "small_gpt")
SEGMENTATIONS = ("small_segmentation", "unet_brats")
# Samples of the data set of the arithmetic in a header.
SAMPLES = {"openwebtext": 7_168_000}


def comments(name: str) -> str:
    lines = recipes.load(name).path.read_text().splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def test_names_are_unique_and_all_are_listed() -> None:
    assert len(set(ALL)) == len(ALL)
    assert sorted(recipe.name for recipe in recipes.listing()) == RECIPES
    assert [recipe.name for recipe in recipes.ablations()] == ABLATIONS


@pytest.mark.parametrize("name", [name for name in ALL if name not in (*LANGUAGE, *SEGMENTATIONS)])
def test_a_recipe_composes_without_a_note(name: str) -> None:
    assert compose([f"recipe={name}"]).notes == []


@pytest.mark.parametrize("fidelity", ["ours", "published"])
@pytest.mark.parametrize("name", sweep(ALL))
def test_a_recipe_can_run_at_each_of_its_lengths_on_eight_gpus(name: str, fidelity: str) -> None:
    recipe = recipes.load(name)
    for epochs in {recipe.get("epochs"), *recipe.lengths, *filter(None, recipe.about.epochs)} - {1}:
        words = [f"recipe={name}", f"epochs={epochs}", f"fidelity={fidelity}"]
        config = compose([*words, *["model.weights=torchvision"] * (name in OWN)]).config
        check(Plan(config, world_size=8, train_samples=1_281_167), {})


@pytest.mark.parametrize("name", RECIPES)
def test_every_group_is_chosen_and_every_algorithm_stated_in_full(name: str) -> None:
    recipe = recipes.load(name)
    sizes = {"epochs", "batch_size", "eval_batch_size"} | ({"image"} if name not in LANGUAGE else set())
    assert sizes <= recipe.values.keys()
    optional = {"model"} if name in OWN else set()
    assert set(GROUPS) - recipe.chosen.keys() - {"launch", "logger", "task"} == optional
    stated = recipe.values.get("algorithms", {})
    for algorithm in recipe.chosen.get("algorithms", []):
        # note: null where a recipe does not use them
        names = {field.name for field in fields(ALGORITHMS.declarations()[algorithm])} - {"stages"}
        assert names == set(stated.pop(algorithm, {})) - {"stages"}, algorithm
    assert not stated


@pytest.mark.parametrize("name", ALL)
def test_the_header_has_results_source_command_and_correct_arithmetic(name: str) -> None:
    text, config = comments(name), compose([f"recipe={name}"]).config
    assert f"train recipe={name} " in text
    samples = SAMPLES.get(config.dataset.name, 1_281_167)
    assert "Published" in text
    assert "Source: " in text
    steps = samples // config.batch_size
    stated = re.findall(r"(\d+) epochs? -> ([\d,]+) steps", text)
    assert stated or name in ("ffcv_rn18", "ffcv_rn50", "nvidia_v1_5", "small_gpt", *SEGMENTATIONS, *OWN)
    for epochs, total in stated:
        assert int(total.replace(",", "")) == int(epochs) * steps
        assert int(epochs) == config.epochs
    for batch, per_epoch in re.findall(r"(?:images|sequences) / (\d+) -> ([\d,]+) steps", text):
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
        assert 66 < (result.top1 or 70) < 82
        assert (result.perplexity or 24.11) == 24.11
        assert result.source
        assert result.hardware
