from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.errors import UserError
from tests import kept_compositions


def problems(*words: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        compose(words)
    return [str(problem) for problem in caught.value.problems]


def test_precedence_defaults_recipe_command_line() -> None:
    composed = compose(["recipe=mild", "optimizer.weight_decay=0.25"])
    assert composed.config.optimizer.weight_decay == 0.25
    assert composed.config.epochs == 36
    assert composed.origins["optimizer.weight_decay"] == "command line"
    assert composed.origins["epochs"] == "recipe mild"
    assert composed.origins["deterministic"] == "defaults"


def test_tests_compose_once_for_all_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    compose(["recipe=mild"])
    monkeypatch.setattr(kept_compositions, "_composed", lambda primary: pytest.fail("composed again"))
    compose(["recipe=mild", "epochs=7", "image.scale=[0.1,0.9]", "algorithms.ema.update_interval=3ba"])


def test_the_order_of_words_does_not_matter_for_recipe_and_groups() -> None:
    assert compose(["epochs=3", "recipe=mild"]).config == compose(["recipe=mild", "epochs=3"]).config


def test_switching_a_group_drops_the_recipes_values_with_a_note() -> None:
    composed = compose(["recipe=mild", "optimizer=lamb"])
    assert composed.config.optimizer.name == "lamb"
    assert composed.config.optimizer.lr == 5e-3
    assert any("optimizer=lamb replaces" in note for note in composed.notes)
    masks = compose(["recipe=small_segmentation", "dataset=image_folder", "dataset.path=d", "optimizer=lamb"])
    assert [note.partition("=")[0] for note in masks.notes if "replaces the recipe's" in note] == ["optimizer"]


@pytest.mark.parametrize(
    "off", ["algorithms.ema=off", "algorithms.ema=false", "~algorithms.ema", "algorithms.ema=null"]
)
def test_algorithms_turn_off(off: str) -> None:
    active = compose(["recipe=mild", off]).config.algorithms
    assert "ema" not in active
    assert "blurpool" in active


def test_a_value_of_an_algorithm_turns_it_on() -> None:
    sam = compose(["algorithms.sam.interval=5"]).config.algorithms["sam"]
    assert (sam.interval, sam.rho) == (5, 0.5)


def test_a_list_turns_on_exactly_its_algorithms_and_keeps_the_recipes_values() -> None:
    algorithms = compose(["recipe=mild", "algorithms=[label_smoothing,cutmix]"]).config.algorithms
    assert set(algorithms) == {"label_smoothing", "cutmix"}
    assert algorithms["label_smoothing"].smoothing == 0.08


def test_off_then_a_value_is_on() -> None:
    words = ["algorithms.sam=off", "algorithms.sam.rho=0.1"]
    sam = compose(words).config.algorithms["sam"]
    assert sam.rho == 0.1
    assert compose(words[::-1]).config.algorithms.get("sam") is None


def test_every_error_is_reported_at_once() -> None:
    messages = problems("epoch=240", "optimizer.lr=fast", "schedule.warmup=8epochs", "+stray=1", "model=resnet51")
    text = "\n".join(messages)
    assert "epoch=240 (command line): no such key; did you mean epochs?" in text
    assert "optimizer.lr=fast (command line): must be a number" in text
    assert "schedule.warmup=8epochs (command line)" in text
    assert "stray=1 (command line): no such key" in text
    assert "model=resnet51 (command line): no such model; did you mean resnet50?" in text
    assert len(messages) == 5


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lr=1", "did you mean optimizer.lr?"),
        ("optimizer.momentun=0.9", "did you mean optimizer.momentum?"),
        ("recipe=milt", "did you mean mild?"),
        ("model=convnext_tiny", "no such model; type model=timm model.architecture=convnext_tiny"),
        ("model.name=convnext_tiny", "cannot be set; no such model; type model=timm model.architecture=convnext_tiny"),
        ("model.name=resnet18", "cannot be set; type model=resnet18"),
        ("hardware=p5_48xlarg", "did you mean p5_48xlarge?"),
        ("algorithms.mixupp=on", "did you mean mixup?"),
        ("algorithms=[emma]", "did you mean ema?"),
        ("precision=bf61", "did you mean bf16?"),
        ("epochs=0", "must be at least 1"),
        ("epochs=1.5", "a whole number"),
        ("batch_size=0", "must be at least 1, or auto"),
        ("image.scale=[0.9,0.1]", "first: [0.1,0.9]"),
        ("algorithms.augmix.depth=0", "must be -1, or at least 1"),
        ("dataloader.workers=many", "must be a whole number, or auto"),
        ("algorithms=3", "must be a list such as"),
        ("epochs.x=3", "must be a whole number"),
        ("optimizer.name=lamb", "type optimizer=lamb"),
        ("hydra.job.name=x", "no such key"),
        ("about.summary=x", "no such key"),
        ("recipe.x=1", "must be text"),
        ("optimizer.lr=nan", "finite"),
        ("seed=1,2", "takes one value;"),
        ("run_name=${nope}", "cannot be resolved"),
        ("frobnicate", "is neither a verb nor key=value"),
        ("image.scale=[0.1]", "at least 2"),
        ("logger.experiment=a", "logger.experiment=a (command line): no such key"),
        ("logger.tensorboard=3", "logger.tensorboard=3 (command line): must be true or false"),
    ],
)
def test_an_error_has_its_key_and_remedy(word: str, expected: str) -> None:
    messages = problems(word)
    assert len(messages) == 1
    assert expected in messages[0]


def test_interpolation_refers_to_other_keys() -> None:
    assert compose(["epochs=7", "run_name='e${epochs}'"]).config.run_name == "e7"


def test_fidelity_sets_every_published_variant_but_not_over_the_command_line() -> None:
    algorithms = compose(["recipe=hot", "fidelity=published", "algorithms.sam.batchnorm=once"]).config.algorithms
    assert algorithms["mixup"].smoothed == "first"
    assert algorithms["progressive_resizing"].interpolation == "nearest"
    assert algorithms["progressive_resizing"].granularity == "epoch"
    assert algorithms["sam"].batchnorm == "once"


def test_fidelity_changes_neither_inactive_algorithms_nor_replaced_options() -> None:
    composed = compose(["recipe=hot", "fidelity=published", "algorithms.colout=off"])
    assert composed.config.algorithms.get("colout") is None
    assert composed.origins["algorithms.mixup.smoothed"] == "fidelity=published"
    assert compose(["recipe=nvidia_v1_5", "fidelity=published"]).config.optimizer.no_decay == "bn_names"
    other = compose(["recipe=nvidia_v1_5", "fidelity=published", "optimizer=adamw"])
    assert other.config.optimizer.no_decay == "vectors"


def test_fidelity_without_effect_is_noted() -> None:
    note = "fidelity=published has no effect: {} published variant"
    assert compose(["fidelity=published"]).notes == [note.format("without a recipe there is no")]
    assert compose(["recipe=baseline", "fidelity=published"]).notes == [note.format("recipe=baseline has no")]
    assert compose(["recipe=hot", "fidelity=published"]).notes == []


def test_the_environment_sets_the_folder_unless_a_word_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_DATA", "/data")
    composed = compose(["recipe=hot"])
    assert composed.config.dataset.path == "/data"
    assert composed.origins["dataset.path"] == "environment TRAIN_DATA"
    assert compose(["recipe=hot", "dataset.path=/mine"]).config.dataset.path == "/mine"
    assert compose(["dataset=shapes"]).config.dataset.path is None
    monkeypatch.delenv("TRAIN_DATA")
    assert compose(["recipe=hot"]).config.dataset.path is None


@pytest.mark.parametrize(
    ("words", "folders", "option"),
    [
        ([], ["train/a", "val/a"], "image_folder"),
        (["recipe=hot"], ["train/a", "val/a"], "image_folder"),
        (["recipe=hot"], [f"train/n{number:08}" for number in range(1000)], "imagenet"),
        ([], [f"train/n{number:08}" for number in range(1000)], "imagenet"),
        (["recipe=hot"], [f"train/n{number:08}" for number in range(1001)], "image_folder"),
        ([], ["ILSVRC2012_img_val.tar"], "imagenet"),
        (["recipe=hot"], [], "imagenet"),
        ([], [], "image_folder"),
        (["dataset=shapes"], ["train/a"], "shapes"),
        (["recipe=small"], ["train/a"], "image_folder"),
        (["recipe=small_segmentation"], ["train/images", "train/masks"], "image_folder"),
        (["recipe=small_segmentation"], [], "image_folder"),
    ],
)
def test_a_path_selects_the_data_set_that_it_contains(
    words: list[str], folders: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "images"
    for folder in folders:
        (path / folder).mkdir(parents=True)
    composed = compose([*words, f"dataset.path={path}"])
    assert (composed.config.dataset.name, composed.config.dataset.path) == (option, str(path))
    is_usual = option == {"recipe=hot": "imagenet", "recipe=small": "image_folder"}.get("".join(words[:1]), "shapes")
    assert any(f"{path} is read as dataset={option}" in note for note in composed.notes) != is_usual
    monkeypatch.setenv("TRAIN_DATA", str(path))
    by_environment = compose(words).config.dataset
    assert (by_environment.name, by_environment.path) == (option, None if option == "shapes" else str(path))
    assert not any("dataset=shapes" in note for note in composed.notes)  # no folder of the user's is read as these


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["dataset.path=/data/roads/"], "roads"),
        (["dataset.path=/data/my photos.tar"], "my_photos"),
        (["dataset.path=s3://bucket/flowers-{000..012}.tar"], "flowers-_000"),
        (["dataset.path=/データ"], "image_folder"),
        ([f"dataset.path=/data/{'long' * 60}"], "long" * 16),
        (["dataset.path=."], "image_folder"),
        (["dataset=imagenet", "dataset.path=/data/ilsvrc"], "imagenet"),
        (["dataset=shapes"], "shapes"),
    ],
)
def test_data_of_ones_own_are_named_by_their_folder(words: list[str], title: str) -> None:
    assert compose(words).config.dataset.title == title
