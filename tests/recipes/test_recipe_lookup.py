"""Finding, reading and merging recipe files, and the hint about a recipe's lengths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config import recipes
from launcher.config.compose import compose
from launcher.errors import UserError

HEADER = "about: {summary: mine, epochs: [1, null], published: []}\n"
NAMES = [recipe.name for recipe in [*recipes.listing(), *recipes.ablations()]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `recipes/` folder in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes" / "ablations").mkdir(parents=True)
    return tmp_path / "recipes"


def mistake(name: str) -> str:
    with pytest.raises(UserError) as caught:
        recipes.load(name)
    return str(caught.value)


def test_the_working_directory_comes_before_the_package(folder: Path) -> None:
    (folder / "hot.yaml").write_text(HEADER + "epochs: 7\n")
    (folder / "mine.yaml").write_text(HEADER + "epochs: 5\n")
    assert recipes.find("hot") == folder / "hot.yaml"
    assert recipes.load("hot").values == {"epochs": 7}
    assert recipes.load("mild").values["epochs"] == 36
    assert "mine" in [recipe.name for recipe in recipes.listing()]
    assert compose(["recipe=mine"]).config.epochs == 5


def test_an_ablation_goes_by_either_name() -> None:
    assert recipes.find("hot_cutmix") == recipes.find("ablations/hot_cutmix")
    assert recipes.load("ablations/hot_cutmix").name == "hot_cutmix"
    assert compose(["recipe=ablations/hot_cutmix"]).config == compose(["recipe=hot_cutmix"]).config


def test_an_ablation_with_a_recipes_name_goes_by_its_folder(folder: Path) -> None:
    (folder / "ablations" / "hot.yaml").write_text(HEADER + "epochs: 7\n")
    assert recipes.load("hot").values["epochs"] == 270
    assert recipes.load("ablations/hot").name == "ablations/hot"
    assert recipes.load("ablations/hot").values["epochs"] == 7


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("hto", "hot"), ("Mild", "mild"), ("ffcv", "ffcv_rn50"), ("hot_cutmx", "hot_cutmix"), ("timm-a2", "timm_a2")],
)
def test_a_wrong_name_gets_the_nearest(wrong: str, right: str) -> None:
    assert f"did you mean {right}?" in mistake(wrong)


@pytest.mark.parametrize("wrong", ["", "zzzz", "../pyproject", "ablations/hot", "hott.yaml", "recipes/hot"])
def test_a_wrong_name_lists_what_there_is(wrong: str) -> None:
    with pytest.raises(UserError) as caught:
        recipes.find(wrong)
    (problem,) = caught.value.problems
    assert (problem.key, problem.value) == ("recipe", wrong)
    assert "mild" in problem.message
    assert "timm_a3" in problem.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs: 3\nseed: [1\n", "mine.yaml:3: "),
        ("epochs: 3\n\tseed: 1\n", "mine.yaml:2: "),
        ("[1, 2]\n", "mine.yaml:1: a mapping of keys to values"),
        ("", "mine.yaml:1: a mapping of keys to values"),
        ("3: 4\n", "mine.yaml:1: a mapping of keys to values"),
        ("epochs: 3\n", "about: "),
        ("about: {summary: a, epochs: [1], published: []}\n", "about.epochs: "),
        ("about: {summary: a, epochs: [0, 9], published: []}\n", "about.epochs.0"),
        ("about: {summary: a, epochs: [1, 9]}\n", "about.published: "),
        ("about: {summary: a, epochs: [1, 9], published: [], top1: 3}\n", "about.top1: "),
        (HEADER + "epochs: many\n", "epochs=many"),
        (HEADER + "by_epochs: [1]\n", "by_epochs maps"),
        (HEADER + "by_epochs: {1ep: {}}\n", "by_epochs maps"),
        (HEADER + "by_fidelity: {published: 3}\n", "by_fidelity maps published"),
        (HEADER + "by_fidelity: {publishd: {}}\n", "by_fidelity maps published"),
        (HEADER + "by_fidelity: {published: {algorithms: [mixup]}}\n", "by_fidelity maps published"),
        (HEADER + "base: hto\n", "did you mean hot?"),
        (HEADER + "base: mine\n", "leads back to itself"),
        (HEADER + "base: other\n", "leads back to itself"),
    ],
)
def test_a_file_that_is_no_recipe_is_named_with_what_is_wrong(folder: Path, text: str, expected: str) -> None:
    (folder / "mine.yaml").write_text(text)
    (folder / "other.yaml").write_text(HEADER + "base: mine\n")
    message = mistake("mine")
    assert expected in message
    assert str(folder) in message


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "gone.yaml").symlink_to(folder / "nowhere")
    (folder / "bytes.yaml").write_bytes(b"epochs: \xff\xfe")
    assert "gone.yaml" in mistake("gone")
    assert "bytes.yaml" in mistake("bytes")


def test_a_changed_file_is_read_anew(folder: Path) -> None:
    path = folder / "mine.yaml"
    path.write_text(HEADER + "epochs: 5\n")
    assert recipes.load("mine").values == {"epochs": 5}
    path.write_text(HEADER + "epochs: 60\n")
    assert recipes.load("mine").values == {"epochs": 60}


def test_a_base_is_merged_under_the_recipe(folder: Path) -> None:
    (folder / "low.yaml").write_text(
        HEADER
        + "epochs: 5\noptimizer: {name: sgd, lr: 1.0, momentum: 0.5}\nloss: {name: bce, log_classes_bias: true}\n"
        + "algorithms: {ema: {half_life: 10ba}, blurpool: on}\nby_epochs: {5: {seed: 1}, 9: {seed: 2}}\n"
        + "by_fidelity: {published: {seed: 4, algorithms: {ema: {half_life: 5ba}}}}\n"
    )
    (folder / "middle.yaml").write_text(
        HEADER
        + "base: low\noptimizer: {lr: 2.0}\nby_epochs: {9: {seed: 3}}\nby_fidelity: {published: {loss: {name: bce}}}\n"
    )
    (folder / "top.yaml").write_text(
        HEADER + "base: middle\nepochs: 9\nloss: {name: cross_entropy}\nalgorithms: {ema: off, sam: {interval: 2}}\n"
    )
    top = recipes.load("top")
    assert top.values == {
        "epochs": 9,
        "optimizer": {"name": "sgd", "lr": 2.0, "momentum": 0.5},
        "loss": {"name": "cross_entropy"},
        "algorithms": {"ema": False, "blurpool": True, "sam": {"interval": 2}},
    }
    assert top.by_epochs == {5: {"seed": 1}, 9: {"seed": 3}}
    assert top.published == {"seed": 4, "algorithms": {"ema": {"half_life": "5ba"}}, "loss": {"name": "bce"}}


@settings(deadline=None)
@given(epochs=st.integers(1, 1000))
def test_another_length_takes_the_values_of_the_nearest(epochs: int) -> None:
    delays = {16: 11 / 16, 24: 17 / 24, 32: 23 / 32, 40: 29 / 40, 56: 41 / 56, 88: 65 / 88}
    found = recipes.values_for(recipes.load("ffcv_rn50"), epochs)["algorithms"]["progressive_resizing"]["delay"]
    distance = min(abs(epochs - length) for length in delays)
    assert any(
        found == pytest.approx(delay, abs=1e-6) for length, delay in delays.items() if abs(epochs - length) == distance
    )


def test_values_are_the_callers_own() -> None:
    for name in ("mild", "ffcv_rn50"):
        values = recipes.values_for(recipes.load(name), 16)
        values["algorithms"].clear()
        assert recipes.values_for(recipes.load(name), 16)["algorithms"]


@settings(deadline=None)
@given(epochs=st.integers(1, 1000))
def test_every_length_belongs_to_exactly_one_of_the_three(epochs: int) -> None:
    expected = "mild" if epochs < 60 else "medium" if epochs < 240 else "hot"
    for name in ("mild", "medium", "hot"):
        hint = recipes.band_hint(epochs, recipes.load(name))
        if name == expected:
            assert hint is None
        else:
            assert hint is not None
            assert f"recipe={expected} is meant for {epochs}" in hint
            assert "\n" not in hint


@settings(deadline=None)
@given(epochs=st.integers(1, 1000), name=st.sampled_from(NAMES))
def test_a_length_is_in_the_band_or_gets_a_hint(epochs: int, name: str) -> None:
    recipe = recipes.load(name)
    first, last = recipe.about.epochs
    inside = (first or 1) <= epochs <= (last or 1000)
    assert (recipes.band_hint(epochs, recipe) is None) == inside


def test_a_length_outside_the_band_is_a_note_not_an_error() -> None:
    notes = compose(["recipe=timm_a3", "epochs=20"]).notes
    assert notes == ["timm_a3 is meant for 100 epochs; recipe=mild is meant for 20"]
