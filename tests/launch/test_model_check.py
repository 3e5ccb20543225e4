"""A model that does not fit is refused before the start, with one line and a remedy for each problem."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from launcher.config.compose import compose
from launcher.config.resolved import read
from launcher.errors import UserError
from launcher.launch import model_check, network
from launcher.launch.model_check import check_model
from launcher.plan.plan import plan_for
from tests.commands import execute
from tests.runs import SHAPES as SHAPES_OF_A_RUN
from tests.runs import Here
from tests.trainers import VIT as SMALL_VIT

SHAPES = [
    *("dataset=shapes", "dataset.native_size=64", "dataset.train_samples=64", "batch_size=8", "epochs=4"),
    *("image.reference=1", "image.train_size=1", "image.eval_size=1", "image.eval_resize=1"),
    *("launch=cpu", "schedule.warmup=0ba", "model=timm"),
]


def refused(*words: str) -> list[str]:
    config = compose([*SHAPES, *words]).config
    try:
        check_model(plan_for(config, 1), {"image.train_size": "recipe x"})
    except UserError as error:
        return [str(problem) for problem in error.problems]
    return []


GHOSTS = "algorithms.ghost_batchnorm.ghost_batch_size=4"
VIT, FIXED = "model.architecture=test_vit", "model.architecture=vit_tiny_patch16_224"
CONVNEXT, NFNET = "model.architecture=test_convnext", "model.architecture=test_nfnet"
RESNET = "model.architecture=test_resnet"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([VIT, "model.img_size=64", "algorithms=[blurpool]"], "blurpool"),
        ([VIT, "model.img_size=64", "algorithms=[ghost_batchnorm]"], "ghost_batchnorm"),
        ([VIT, "model.img_size=64", "algorithms=[squeeze_excite]"], "squeeze_excite"),
        ([CONVNEXT, "algorithms=[stochastic_depth]"], "stochastic_depth"),
        ([NFNET, "algorithms=[ghost_batchnorm]"], "ghost_batchnorm"),
        ([RESNET, "algorithms=[squeeze_excite]", "algorithms.squeeze_excite.min_channels=100000"], "squeeze_excite"),
    ],
)
def test_an_algorithm_without_a_layer_to_change_is_refused(words: list[str], key: str) -> None:
    (line,) = refused(*words)
    assert line.startswith(f"algorithms.{key}=on: {words[0].partition('=')[2]} has no ")
    assert line.endswith(f"; set algorithms.{key}=off")


@pytest.mark.parametrize(
    "words",
    [
        [RESNET, "algorithms=[blurpool,ghost_batchnorm,ema,channels_last,layer_freezing]", GHOSTS],
        ["model.architecture=resnet18d", "algorithms=[squeeze_excite,blurpool]"],
        [CONVNEXT, "algorithms=[blurpool,channels_last,swa]"],
        ["model=resnet18", "algorithms=[stochastic_depth,squeeze_excite,ghost_batchnorm]", GHOSTS],
        [VIT, "algorithms=[progressive_resizing]", "algorithms.progressive_resizing.size_multiple=16"],
    ],
)
def test_an_algorithm_that_applies_to_the_model_is_accepted(words: list[str]) -> None:
    assert refused(*words) == []


def test_the_error_of_a_rectangle_has_both_edges() -> None:
    rectangle = ["image.train_size=[1,2]", "image.eval_size=[1,2]", "image.fit=stretch"]
    train, evaluation = refused(FIXED, *rectangle)
    assert "step 0 trains at 64 x 128 px, which vit_tiny_patch16_224 does not accept" in train
    assert train.endswith("the nearest size that fits is 224 px; model.img_size=[64,128] builds the model for it")
    assert "evaluation runs at 64 x 128 px" in evaluation
    assert refused(FIXED, *rectangle, "model.img_size=[64,128]") == []


def test_the_error_has_the_size_the_step_and_the_nearest_size_that_fits() -> None:
    train, evaluation = refused(FIXED)
    assert train == (
        "image.train_size=1 (recipe x): step 0 trains at 64 px, which vit_tiny_patch16_224 does not accept "
        "(Input height (64) doesn't match model (224)); the nearest size that fits is "
        "224 px; model.img_size=64 builds the model for it"
    )
    assert evaluation.startswith(
        "image.eval_size=1: evaluation runs at 64 px, which vit_tiny_patch16_224 does not accept"
    )
    assert refused(FIXED, "model.img_size=64") == []


def test_the_error_for_changing_sizes_has_the_first_step_that_does_not_fit() -> None:
    resizing = ["algorithms=[progressive_resizing]", "algorithms.progressive_resizing.initial_scale=0.5"]
    (line,) = refused(FIXED, "model.img_size=64", *resizing)
    assert "step 0 trains at 32 px" in line
    assert line.endswith(
        "the nearest size that fits is 64 px; model.arguments.dynamic_img_size=true accepts several sizes; "
        "algorithms.progressive_resizing=off keeps one size"
    )
    (line,) = refused(FIXED, "model.arguments.dynamic_img_size=true", *resizing)
    assert "should be divisible by patch size (16)); the nearest size that fits is 32 px" in line
    assert "accepts several" not in line


def test_sizes_that_stems_or_patches_do_not_divide_are_refused() -> None:
    (line, _) = refused("model.architecture=convnext_atto", "dataset.native_size=28")
    assert "the nearest size that fits is 32 px" in line
    resizing = [*SMALL_VIT, "algorithms=[progressive_resizing]"]
    (line,) = refused(*resizing)
    assert "which vit does not accept (36 x 36 is not a multiple of the patch size 8)" in line
    assert refused(*resizing, "algorithms.progressive_resizing.size_multiple=8") == []


def test_a_size_at_which_selective_backprop_cannot_select_samples_is_refused() -> None:
    words = [*SMALL_VIT, "dataset.native_size=56", "algorithms=[selective_backprop]"]
    (line,) = refused(*words)
    assert line.startswith("algorithms.selective_backprop.scale=0.5: step 17 selects samples at 28 px, which vit does")
    for accepted in ("keep=1", "scale=1", "interval=100"):
        assert refused(*words, f"algorithms.selective_backprop.{accepted}") == []


def test_a_batch_norm_that_gets_a_single_value_is_refused() -> None:
    small = ["model=resnet18", "dataset.native_size=32"]
    (line,) = refused(*small, "batch_size=1")
    assert line == "batch_size=1: batch norm needs more than one sample per pass at 32 px; set 2 or more"
    for words in ([], ["algorithms=[stochastic_depth]"]):
        (line,) = refused(*small, "device_batch_size=1", *words)
        assert line.startswith("device_batch_size=1: batch norm needs more than one sample")
    assert refused(*small, "device_batch_size=2") == []
    assert refused("model=resnet18", "batch_size=1") == []
    assert refused(VIT, "model.img_size=64", "batch_size=1") == []


def test_a_model_is_checked_once_for_its_values_sizes_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("FORCE_COLOR", "1")  # note: as a terminal, which shows progress
    checked = Mock(wraps=check_model)
    monkeypatch.setattr(model_check, "check_model", checked)
    plan = ("plan", *SHAPES, VIT, "model.img_size=64")

    def checks(*words: str, code: int = 0) -> int:
        checked.reset_mock()
        done, _, errors = execute(*plan, *words)
        assert done == code
        assert ("for the first time" in errors) == bool(checked.call_count)
        return checked.call_count

    assert (checks(), checks(), checks("epochs=5", "seed=7", "batch_size=16")) == (1, 0, 0)
    for words in (["algorithms=[blurpool]"], ["dataset.native_size=72"]):
        assert [checks(*words, code=2) for _ in range(2)] == [1, 1], words
    for word in ("batch_size=1", "model.drop_rate=0.1", "loss=bce"):
        assert [checks(word) for _ in range(2)] == [1, 0], word
    for file in tmp_path.rglob("*.json"):
        file.write_text("{")
    assert [checks() for _ in range(2)] == [1, 0]
    monkeypatch.setattr(network, "source_digest", lambda root, patterns: "another version")
    assert checks() == 1
    monkeypatch.setattr(network, "version", lambda name: "0" if name == "timm" else "1")
    assert checks() == 1


@pytest.mark.parametrize(
    "word", ["", "algorithms.blurpool=on", "algorithms=[blurpool]", "algorithms.blurpool.min_channels=8"]
)
def test_an_algorithm_of_the_recipe_without_a_layer_to_change_is_off_and_a_typed_one_is_refused(
    word: str, here: Here
) -> None:
    lacks = "vit has no strided convolution of at least algorithms.blurpool.min_channels inputs or max pooling"
    words = ["recipe=small", *(one for one in SHAPES_OF_A_RUN if not one.startswith("model")), *SMALL_VIT]
    if word:
        error = here("run", *words, word, code=2).stderr
        assert error.startswith("error: algorithms.blurpool=on")
        assert error.endswith(f": {lacks}; set algorithms.blurpool=off\n")
        return
    # note: the second time the check is cached
    for name in ("first", "second"):
        output = here("run", *words, f"run_name={name}").stdout
        assert f"note: algorithms.blurpool of the recipe is off: {lacks}" in " ".join(output.split())
        assert [*read(here.folder / "runs" / name / "config.yaml").algorithms] == [
            *("channels_last", "ema", "label_smoothing", "whitening")
        ]
