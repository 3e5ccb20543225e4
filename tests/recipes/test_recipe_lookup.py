"""Finding, reading and merging recipe files, and the hint about a recipe's lengths."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from launcher.config import recipes
from launcher.config.compose import compose
from launcher.errors import UserError
from tests.commands import output_of

HEADER = "defaults: [train, _self_]\nabout: {summary: mine, epochs: [1, null]}\n"
NAMES = [recipe.name for recipe in [*recipes.listing(), *recipes.ablations()]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `recipes/` folder in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes" / "ablations").mkdir(parents=True)
    return tmp_path / "recipes"


def error_of(name: str) -> str:
    with pytest.raises(UserError) as caught:
        compose([f"recipe={name}"])
    return str(caught.value)


def test_the_working_directory_comes_before_the_package(folder: Path) -> None:
    (folder / "hot.yaml").write_text(HEADER + "epochs: 7\n")
    (folder / "mine.yaml").write_text("defaults: [hot, _self_]\nseed: 5\n")
    assert compose(["recipe=hot"]).config.epochs == 7
    assert (compose(["recipe=mine"]).config.epochs, compose(["recipe=mild"]).config.epochs) == (7, 36)
    assert "mine" in [recipe.name for recipe in recipes.listing()]


def test_an_ablation_of_ones_own_extends_a_packaged_recipe(folder: Path) -> None:
    (folder / "ablations" / "mine.yaml").write_text("defaults: [hot_cutmix, _self_]\nepochs: 7\n")
    assert compose(["recipe=mine"]).config.epochs == 7
    assert "mine" in [recipe.name for recipe in recipes.ablations()]


@pytest.mark.parametrize("wrong", ["zzzz", "../pyproject", "ablations/hot", "hott.yaml", "recipes/hot", "gpus"])
def test_a_wrong_name_lists_the_recipes(wrong: str) -> None:
    message = error_of(wrong)
    assert message.startswith(f"recipe={wrong} ")
    assert "mild" in message
    assert "timm_a3" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs: 3\n\tseed: 1\n", "mine.yaml:2: "),
        ("base: hot\nepochs: 3\n", "a recipe needs a defaults list"),
        (HEADER.replace("[1, null]", "[1]"), "about.epochs=[1] "),
        (HEADER.replace("[1, null]", "[0, 9]"), "about.epochs=[0, 9] "),
        (HEADER.replace("[1, null]", "[1, 9], top1: 3"), "about.top1=3 "),
        (HEADER + "epochs: many\n", "epochs=many"),
        (HEADER + "hydra: {job: {env_copy: [HOME]}}\n", "hydra is not part of a run's config"),
        (HEADER + "run_name: ${oc.env:HOME}\n", "a reference must be ${key}"),
        ("defaults: [hto, _self_]\n", "did you mean hot?"),
        ("defaults: [mine, _self_]\n", "has a loop or more than"),
        ("defaults: [other, _self_]\n", "has a loop or more than"),
        ("defaults: [train, override model: resnet51, _self_]\n", "no existing model: resnet51"),
        ("defaults: [train, ../../etc/passwd, _self_]\n", "no existing"),
    ],
)
def test_the_error_of_an_invalid_recipe_shows_file_and_fault(folder: Path, text: str, expected: str) -> None:
    (folder / "mine.yaml").write_text(text)
    (folder / "other.yaml").write_text("defaults: [mine, _self_]\n")
    message = error_of("mine")
    assert expected in message
    assert "mine" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("epochs", "delay"), [(1, 11 / 16), (19, 11 / 16), (21, 17 / 24), (37, 29 / 40), (73, 65 / 88), (999, 65 / 88)]
)
def test_another_length_takes_the_values_of_the_nearest(epochs: int, delay: float) -> None:
    resizing = compose(["recipe=ffcv_rn50", f"epochs={epochs}"]).config.algorithms["progressive_resizing"]
    assert resizing.delay == pytest.approx(delay, abs=1e-6)


def test_a_length_is_in_the_band_or_one_of_three_recipes_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (recipes.load, recipes.listing):
        monkeypatch.setattr(recipes, function.__name__, cache(function))
    bands = {name: recipes.load(name).about.epochs for name in NAMES}
    for name, epochs in product(NAMES, (1, 59, 60, 239, 240, 1000)):
        first, last = bands[name]
        hint = recipes.band_hint(epochs, recipes.load(name))
        assert (hint is None) == ((first or 1) <= epochs <= (last or 1000))
        meant = "mild" if epochs < 60 else "medium" if epochs < 240 else "hot"
        assert hint is None or (meant != name and f"use recipe={meant} for {epochs}" in hint and "\n" not in hint)
    for name, band in bands.items():
        for edge, outside in zip(band, (-1, 1), strict=True):
            if edge and edge + outside:
                hints = [recipes.band_hint(epochs, recipes.load(name)) for epochs in (edge, edge + outside)]
                assert [hint is None for hint in hints] == [True, False], name


def test_a_length_outside_the_band_is_a_note_not_an_error() -> None:
    notes = compose(["recipe=timm_a3", "epochs=20"]).notes
    assert notes == ["timm_a3 is meant for 100 epochs; use recipe=mild for 20"]


def test_the_example_of_the_page_works(folder: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
    (example,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)
    (folder / "mine.yaml").write_text(example)
    config = compose(["recipe=mine"]).config
    assert (config.batch_size, config.loss.name) == (1024, "cross_entropy")
    assert ("mixup" in config.algorithms, "cutmix" in config.algorithms) == (False, True)
    assert (config.algorithms["sam"].interval, config.algorithms["sam"].rho) == (10, 0.5)


@pytest.mark.parametrize("first", ["defaults: [train, _self_]", "defaults: [hot]", "defaults: [mild, _self_]"])
@pytest.mark.filterwarnings("error")
def test_two_lines_make_a_recipe(folder: Path, first: str) -> None:
    (folder / "mine.yaml").write_text(f"{first}\nepochs: 40\n")
    assert compose(["recipe=mine"]).config.epochs == 40
    assert output_of("plan", "recipe=mine", "launch.nproc=1").startswith("recipe         mine\n")
