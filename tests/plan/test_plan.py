"""The plan's pure functions against literal formulas and hand-computed cases."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    PolynomialLR,
)  # fmt: skip

from launcher.config.algorithms import ALGORITHMS
from launcher.config.compose import compose
from launcher.counts import count_of
from launcher.errors import UserError
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan
from tests.commands import output_of
from tests.configs import composed, with_values

IMAGENET = 1_281_167


def plan(*words: str, world: int = 8, samples: int = IMAGENET) -> Plan:
    return Plan(composed(*words), world, samples)


def refused(*words: str, world: int = 8, samples: int = IMAGENET) -> str:
    with pytest.raises(UserError) as caught:
        check(plan(*words, world=world, samples=samples), {})
    return str(caught.value)


def test_mild_on_imagenet_by_hand() -> None:
    mild = plan("recipe=mild", "epochs=36")
    assert (mild.steps_per_epoch, mild.total_steps, mild.rank_batch) == (625, 22_500, 256)
    assert mild.warmup_steps == 5000
    assert mild.lr(0) == 0
    assert mild.lr(2500) == pytest.approx(2.048 / 2)
    assert mild.lr(5000) == pytest.approx(2.048)
    middle = 5000 + (22_500 - 5000) / 2
    assert mild.lr(int(middle)) == pytest.approx(2.048 / 2)
    assert mild.lr(22_499) == pytest.approx(2.048 * (1 + math.cos(math.pi * 17_499 / 17_500)) / 2)


@pytest.mark.parametrize("batch", [256, 512, 1024, 4096])
def test_the_learning_rate_follows_the_batch_linearly(batch: int) -> None:
    assert plan("recipe=mild", f"batch_size={batch}").peak_lr == pytest.approx(2.048 * batch / 2048)
    assert plan("recipe=mild", f"batch_size={batch}", "optimizer.scale_lr=off").peak_lr == 2.048


@given(ratio=st.sampled_from([0.25, 0.5, 2.0, 3.0]), part=st.floats(0, 0.999))
def test_a_dilated_schedule_is_the_schedule_at_the_undilated_time(ratio: float, part: float) -> None:
    plain, dilated = plan("recipe=mild", "epochs=40"), plan("recipe=mild", "epochs=40", f"schedule.dilate={ratio}")
    assert dilated.total_steps == ratio * plain.total_steps
    step = int(part * plain.total_steps)
    assert dilated.lr(int(step * ratio)) == pytest.approx(plain.lr(int(step * ratio) / ratio), abs=1e-3)  # type: ignore[arg-type]


@given(step=st.integers(0, 22_499), name=st.sampled_from(["cosine", "linear", "constant", "multi_step"]))
def test_every_multiplier_stays_within_zero_and_one(step: int, name: str) -> None:
    words = ["recipe=mild", "epochs=36", f"schedule={name}"]
    milestones = ["schedule.milestones=[10ep,20ep]"] if name == "multi_step" else []
    assert 0 <= plan(*words, *milestones).lr_multiplier(step) <= 1


def test_multi_step_and_linear_by_hand() -> None:
    steps = plan("epochs=90", "schedule=multi_step", "schedule.warmup=5ep", "batch_size=256", samples=2560)
    assert [steps.lr_multiplier(e * 10) for e in (5, 29, 30, 60, 80)] == pytest.approx([1, 1, 0.1, 0.01, 0.001])
    line = plan("epochs=10", "schedule=linear", "schedule.warmup=2ep", "batch_size=256", samples=2560)
    assert [line.lr_multiplier(s) for s in (0, 10, 20, 60)] == pytest.approx([0, 0.5, 1, 0.5])


@pytest.mark.parametrize(
    ("words", "theirs"),
    [
        (["cosine", "final=0.1"], lambda sgd: CosineAnnealingLR(sgd, 100, eta_min=0.1)),
        (["cosine", "warmup=20ba", "counts_warmup=true"], lambda sgd: CosineAnnealingLR(sgd, 100)),
        (["linear", "final=0.2"], lambda sgd: LinearLR(sgd, 1.0, 0.2, 100)),
        (["polynomial", "power=3.5"], lambda sgd: PolynomialLR(sgd, 100, 3.5)),
        (["polynomial", "final=0.25"], lambda sgd: LambdaLR(sgd, lambda step: 0.25 + 0.75 * (1 - step / 100) ** 2)),
        # as in NVIDIA's entries to MLPerf: the peak is the last step of the warmup
        (
            ["polynomial", "warmup=20ba", "warmup_includes_peak=true"],
            lambda sgd: LambdaLR(sgd, lambda step: (1 - (step - 19) / 80) ** 2),
        ),
        (["multi_step", "gamma=0.3", "milestones=[30ba,6ep]"], lambda sgd: MultiStepLR(sgd, [30, 60], 0.3)),
        (["multi_step", "milestones=[2.5ep,0.65dur]"], lambda sgd: MultiStepLR(sgd, [25, 65], 0.1)),
    ],
)
def test_schedules_are_pytorchs_at_other_values(words: list[str], theirs: Callable[[SGD], LRScheduler]) -> None:
    name, *values = words
    more = [f"schedule.{value}" for value in ("warmup=0ba", *values)]
    ours = plan("epochs=10", "batch_size=8", f"schedule={name}", *more, world=1, samples=80)
    sgd = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = theirs(sgd)
    for step in range(100):
        if step >= ours.warmup_steps:
            assert ours.lr_multiplier(step) == pytest.approx(sgd.param_groups[0]["lr"], abs=1e-6)
        sgd.step()
        schedule.step()


@given(
    kind=st.sampled_from(["constant", "linear", "cosine"]),
    warmup=st.integers(1, 9),
    start=st.sampled_from([0.0, 0.25]),
    granularity=st.sampled_from(["step", "epoch"]),
    step=st.integers(0, 99),
)
def test_a_warmup_that_includes_its_peak_is_one_unit_ahead(
    kind: str, warmup: int, start: float, granularity: str, step: int
) -> None:
    values = {"schedule.warmup": f"{warmup}ep", "schedule.warmup_start": start, "schedule.granularity": granularity}
    behind, ahead = (
        Plan(with_values(composed(f"schedule={kind}", "batch_size=8", "epochs=10"), values | more), 1, 80)
        for more in ({}, {"schedule.warmup_includes_peak": True})
    )
    units, unit = (10 * warmup, step) if granularity == "step" else (warmup, step // 10)
    if unit < units:
        assert ahead.lr_multiplier(step) == pytest.approx(start + (1 - start) * (unit + 1) / units)
    else:
        assert ahead.lr_multiplier(step) == behind.lr_multiplier(step)


@pytest.mark.parametrize(("scale_lr", "peak"), [("linear", 0.3 * 64 / 96), ("off", 0.3)])
def test_the_peak_is_for_the_reference_batch(scale_lr: str, peak: float) -> None:
    words = ["optimizer.lr=0.3", "optimizer.reference_batch_size=96", f"optimizer.scale_lr={scale_lr}"]
    assert plan("optimizer=sgd", *words, "batch_size=64").peak_lr == pytest.approx(peak)


@given(count=st.integers(1, 4096), most=st.integers(1, 4096))
def test_accumulation_uses_the_fewest_equal_micro_batches_that_fit(count: int, most: int) -> None:
    config = with_values(composed(), {"batch_size": count, "device_batch_size": most})
    parts = Plan(config, 1, IMAGENET).accumulation
    assert count % parts == 0
    assert count // parts <= most
    assert not [n for n in range(1, parts) if count % n == 0 and count // n <= most]


def test_sizes_follow_the_native_size() -> None:
    for size, native, expected in ((176, 224, 176), (176, 64, 52), (232, 112, 116)):
        assert plan("image.reference=224", f"dataset.native_size={native}").config.scaled_size(size) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["model=resnet50", "model.architecture=resnet18"],
            "model=resnet50 has no other architecture; type model=resnet18",
        ),
        (["batch_size=100"], "set 96 or 104"),
        (["batch_size=4"], "set 8"),
        (["batch_size=2000000"], "larger than the data set"),
        (["image.eval_size=512"], "larger than the images that it crops, whose shorter edge is resized to"),
        (["recipe=mild", "epochs=8"], "the warmup takes the whole run (8 epochs"),
        (["schedule=multi_step", "schedule.milestones=[30ep]", "batch_size=512"], "past the end"),
        (["algorithms=[mixup,cutmix]"], "share the batches"),
        (["algorithms.progressive_resizing.delay=0.9"], "must be at most 1 - delay"),
        (["algorithms.ghost_batchnorm.ghost_batch_size=64"], "images of one forward pass"),
        (["algorithms.selective_backprop.start=0.95"], "greater than start"),
        (["model.checkpointing=on", "compile=on"], "untested with model.checkpointing=on; set compile=off"),
        (["optimizer.nesterov=true", "optimizer.momentum=0"], "needs momentum above 0"),
    ],
)
def test_values_that_cannot_work_are_refused(words: list[str], expected: str) -> None:
    assert expected in refused(*words)


def test_a_batch_larger_than_the_data_set_is_the_only_error_of_a_run_without_steps() -> None:
    (line,) = refused("recipe=finetune", "model.weights=torchvision", "batch_size=2000000").splitlines()
    assert "larger than the data set" in line
    words = ["recipe=finetune", "model.weights=torchvision", "schedule.fit=off"]
    long = refused(*words, "algorithms.backbone_freezing.until=300ep")
    assert "steps; set 0.1dur, or 1dur to train only the last layer" in long


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("sam", "selective_backprop", "SAM needs the same batch in both passes"),
        ("ema", "swa", "both replace the weights to evaluate and save"),
        ("randaugment", "trivialaugment", "both are complete augmentation policies"),
        ("randaugment", "augmix", "both are complete augmentation policies"),
        ("trivialaugment", "augmix", "both are complete augmentation policies"),
        ("cutout", "random_erasing", "both erase a rectangle of each image"),
    ],
)
def test_incompatible_algorithms_are_refused_with_the_reason(first: str, second: str, reason: str) -> None:
    assert f"algorithms.{second}=on: cannot be combined with {first}: {reason}" in refused(
        f"algorithms=[{first},{second}]"
    )


def test_every_excluded_name_is_an_algorithm() -> None:
    algorithms = ALGORITHMS.declarations()
    assert {name for one in algorithms.values() for name in one.excludes} <= algorithms.keys()


def test_the_order_of_algorithms_never_changes_the_config() -> None:
    names = ["mixup", "label_smoothing", "ema", "blurpool"]
    assert (
        compose([f"algorithms=[{','.join(names)}]"]).config == compose([f"algorithms=[{','.join(names[::-1])}]"]).config
    )


def noted(*words: str, world: int = 8, samples: int = 1_281_167) -> list[str]:
    return notes(Plan(compose(words).config, world, samples))


@pytest.mark.parametrize("recipe", ["mild", "medium", "hot", "baseline"])
def test_a_published_recipe_has_no_notes(recipe: str) -> None:
    assert noted(f"recipe={recipe}") == []


def test_a_scaled_learning_rate_is_noted() -> None:
    (line,) = noted("recipe=mild", "batch_size=1024")
    assert line.startswith("learning rate 2.048 is for a batch of 2048; at 1024 it is scaled to 1.024")
    assert noted("recipe=mild", "batch_size=1024", "optimizer.scale_lr=off") == []


def test_images_that_each_epoch_drops_are_counted() -> None:
    assert noted("recipe=baseline", samples=3500) == ["each epoch drops 1,452 of 3,500 images, its last partial batch"]


def test_a_batch_norm_of_few_images_is_noted() -> None:
    assert noted("recipe=baseline", world=256) == ["batch norm uses only 8 images per forward pass"]
    assert noted("recipe=baseline", "device_batch_size=8") == ["batch norm uses only 8 images per forward pass"]
    assert noted("recipe=baseline", "model=vit", world=256) == []


def test_an_ema_too_slow_for_a_short_run_is_noted() -> None:
    words = ("recipe=mild", "epochs=1", "schedule.warmup=0.1dur")
    (line,) = noted(*words, samples=200 * 2048)
    # note: the first update is at step 20, and a quarter remains after two half-lives
    assert "the EMA half-life (100 steps) is too long for 200 steps; set algorithms.ema.half_life=20ba" in line
    assert noted(*words, "algorithms.ema.half_life=20ba", samples=200 * 2048) == []
    assert noted(*words, "algorithms.ema=off", samples=200 * 2048) == []
    *_, line = noted("recipe=small", "epochs=1", samples=3 * 64)
    assert "is too long for 3 steps; set algorithms.ema=off" in line


def test_compiling_for_a_cpu_is_advised_against() -> None:
    (line,) = noted("recipe=mild", "compile=on", "launch=cpu")
    assert "compile=on was slower than compile=off on every CPU measured" in line
    assert noted("recipe=mild", "compile=on", "launch.device=cuda") == []


def test_cudnn_tunes_at_views_of_many_passes_unless_the_run_is_deterministic() -> None:
    assert plan("recipe=hot", "epochs=240").tuned_views == {104, 176}
    assert plan("recipe=hot", "epochs=240", "deterministic=true").tuned_views == set()
    # note: 9,205 steps at 88 px; passes of micro-batches count
    assert plan("recipe=mild").tuned_views == set()
    assert plan("recipe=mild", "device_batch_size=128").tuned_views == {88}


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "image", "1 image"),
        (0, "image", "0 images"),
        (1200, "training image", "1,200 training images"),
        (2, "class", "2 classes"),
        (2, "process", "2 processes"),
        (2, "micro-batch", "2 micro-batches"),
        (2, "study", "2 studies"),
        (2, "matrix", "2 matrices"),
        (1.0, "epoch", "1 epoch"),
        (1.5, "epoch", "1.5 epochs"),
    ],
)
def test_a_count_of_one_has_the_singular(count: float, noun: str, text: str) -> None:
    assert count_of(count, noun) == text


def test_the_plan_of_a_single_step_is_in_the_singular() -> None:
    sizes = ["dataset.train_samples=64", "dataset.val_samples=1", "batch_size=64", "schedule.warmup=0ba"]
    words = ["dataset=imagenet", "dataloader=synthetic", "model=resnet18", "launch=cpu", "epochs=1", *sizes]
    text = output_of("plan", *words)
    assert "64 training images and 1 validation image\n" in text
    assert "1 epoch x 1 step = 1 step\n" in text
    assert not re.search(r"(?<![\d.,])1 (?:images|steps|epochs|classes|GPUs|processes|kinds|runs)\b", text)
