"""Values that recipes express differently from their publications, against the published formulas."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from timm.optim import Lamb
from timm.scheduler import CosineLRScheduler
from torch import nn
from torch.nn import functional as F

from launcher.config.compose import compose
from launcher.data.crops import centre_boxes, centre_cut, cut
from launcher.optimizers.lamb import LAMB
from launcher.plan.plan import Plan
from tests.commands import output_of

IMAGES = 1_281_167


def test_decoupled_decay_of_the_baseline_is_nvidias_coupled_one() -> None:
    ours = compose(["recipe=baseline"]).config.optimizer
    assert ours.weight_decay * (1 - 0.875) / ours.lr == pytest.approx(2**-15, rel=1e-12)


@pytest.mark.parametrize(("name", "steps"), [("ffcv_rn50", 312), ("ffcv_rn18", 1251)])
@pytest.mark.parametrize(
    ("epochs", "start", "end"), [(16, 11, 13), (24, 17, 20), (32, 23, 27), (40, 29, 34), (56, 41, 48), (88, 65, 76)]
)
def test_ffcv_sizes_and_learning_rates_are_those_of_each_published_length(
    epochs: int, start: int, end: int, name: str, steps: int
) -> None:
    config = compose([f"recipe={name}", f"epochs={epochs}"]).config
    plan = Plan(config, 8, IMAGES)
    assert (plan.full_view, plan.steps_per_epoch) == (192, steps)
    for epoch in range(epochs):
        size = np.interp(epoch, [start, end], [160, 192])
        for step in (epoch * steps, epoch * steps + steps - 1):
            assert plan.view(step) == int(np.round(size / 32)) * 32
            assert plan.lr_multiplier(step) == pytest.approx(
                np.interp(step / steps, [0, 2, epochs], [1e-4, 1, 0]), abs=1e-12
            )


@pytest.mark.parametrize(
    ("name", "equivalent", "sizes", "warmup"),
    [
        ("efficienttrain_rn50", 200, [96] * 2 + [160] * 4 + [224] * 4, lambda epochs: 20),
        ("efficienttrain_deit_s", 100, [96] * 2 + [160] * 4 + [192] * 2 + [224] * 2, lambda epochs: 0.2 * epochs),
    ],
)
def test_efficienttrain_has_ten_stages_with_parts_of_longer_runs(
    name: str, equivalent: int, sizes: list[int], warmup: Callable[[float], float]
) -> None:
    """Stage i has epochs R i / 10 to R (i + 1) / 10 of a cosine of R = int(E (224 / size)^2) epochs, and severity i."""
    config = compose([f"recipe={name}"]).config
    plan, randaugment, trained = Plan(config, 8, IMAGES), config.algorithms["randaugment"], 0.0
    assert randaugment is not None
    for stage, size in enumerate(sizes):
        epochs = int(equivalent * (224 / size) ** 2)
        warm = warmup(epochs)
        for part in (0.05, 0.5, 0.95):
            at, step = (stage + part) / 10 * epochs, plan.step_at((stage + part) / 10)
            cosine = 1e-6 + (4e-3 - 1e-6) * (1 + math.cos(math.pi * (at - warm) / (epochs - warm))) / 2
            assert plan.lr(step) == pytest.approx(4e-3 * at / warm if at < warm else cosine, abs=1e-6)
            assert plan.view(step) == size
            assert randaugment.following(plan, step) == {"severity": stage}
        trained += epochs / 10
        assert plan.step_at((stage + 1) / 10) == pytest.approx(trained * plan.steps_per_epoch, rel=0.02)
    assert trained == pytest.approx(plan.epochs, abs=1.5)
    shown = json.loads(output_of("plan", f"recipe={name}", "--json"))["stages"]
    assert [(row["view"], row["randaugment.severity"]) for row in shown] == list(zip(sizes, range(10), strict=True))
    for row, size in zip(shown, sizes, strict=True):
        assert row["compute"] == pytest.approx(0.1, abs=2e-4)
        assert row["epochs"] == pytest.approx(equivalent / 10 * (224 / size) ** 2, rel=0.02)


def test_the_warmup_of_efficienttrain_ends_at_the_peak() -> None:
    """numpy.linspace(0, 4e-3, 20 epochs): its last step has the peak, as the first of the cosine has."""
    plan = Plan(compose(["recipe=efficienttrain_rn50"]).config, 8, IMAGES)
    expected = np.linspace(0, 4e-3, 20 * plan.steps_per_epoch)
    assert [plan.lr(step) for step in range(len(expected) + 1)] == pytest.approx([*expected, 4e-3], rel=1e-9, abs=1e-12)


def test_hotter_has_the_stages_of_efficienttrain_at_176_pixels() -> None:
    """The same fractions of the compute, at 176 / 224 of the sizes to the nearest multiple of 4."""
    hotter, theirs = (compose([f"recipe={name}"]).config for name in ("hotter", "efficienttrain_rn50"))
    assert (hotter.schedule.progress, hotter.image.train_size) == ("compute", 176)
    stages, published = (config.algorithms["progressive_resizing"].stages for config in (hotter, theirs))
    assert stages == [[round(size * 176 / 224 / 4) * 4, share] for size, share in published]


@pytest.mark.parametrize("epochs", [50, 90, 250])
def test_nvidias_learning_rate_is_its_staircase_by_whole_epochs(epochs: int) -> None:
    """lr * (e + 1) / 8 for e < 8, then lr / 2 * (1 + cos(pi * (e - 8) / (epochs - 8)))."""
    plan = Plan(compose(["recipe=nvidia_v1_5", f"epochs={epochs}"]).config, 8, IMAGES)
    assert (plan.peak_lr, plan.steps_per_epoch, plan.total_steps) == (2.048, 625, 625 * epochs)
    for epoch in range(epochs):
        cosine = (1 + math.cos(math.pi * (epoch - 8) / (epochs - 8))) / 2
        expected = 2.048 * ((epoch + 1) / 8 if epoch < 8 else cosine)
        for step in (625 * epoch, 625 * epoch + 1, 625 * epoch + 624):
            assert plan.lr(step) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("epochs", [90, 300])
def test_vits_learning_rate_and_decay_are_big_visions(epochs: int) -> None:
    """Each step takes m(t) * (1e-3 * adam + 1e-4 * w), m(t) = min(1, t / 10,000) (1 + cos(pi p)) / 2 from 10,000 on."""
    plan = Plan(compose(["recipe=vit_s16", f"epochs={epochs}"]).config, 8, IMAGES)
    assert (plan.steps_per_epoch, plan.total_steps) == (1251, 1251 * epochs)
    for step in (0, 1, 4999, 10_000, 10_001, plan.total_steps // 2, plan.total_steps - 1):
        part = max(0.0, step - 10_000) / (plan.total_steps - 10_000)
        multiplier = min(1, step / 10_000) * (1 + math.cos(math.pi * part)) / 2
        assert plan.lr(step) == pytest.approx(1e-3 * multiplier, rel=1e-9)
        # note: AdamW takes lr * weight_decay * w
        assert plan.lr(step) * plan.config.optimizer.weight_decay == pytest.approx(1e-4 * multiplier, rel=1e-9)


def composers_size(full: int, epoch: int, epochs: int, *, initial: float, delay: float, finetune: float) -> int:
    """Return the size after Composer's progressive resizing, in multiples of 4, by its formula and PyTorch."""
    elapsed = epoch / epochs
    done = min((elapsed - delay) / (1 - finetune - delay), 1) if elapsed >= delay else 0.0
    pinned = round(full * (initial + (1 - initial) * done) / 4) * 4 / full
    if pinned >= 1:
        return full
    return F.interpolate(torch.zeros(1, 1, full, full), scale_factor=pinned, mode="nearest").shape[-1]


@pytest.mark.parametrize(
    ("name", "epochs", "initial", "delay", "finetune"),
    [
        *[("mild", epochs, 0.5, 0.4, 0.2) for epochs in (16, 22, 36, 44)],
        ("mild", 36, 0.5, 0.4, 0.35),
        ("medium", 135, 0.5, 0.4, 0.2),
        *[("hot", 180, 0.6, 0.2, 0.2), ("hot", 270, 0.6, 0.2, 0.2), ("hot", 450, 0.6, 0.2, 0.2)],
    ],
)
def test_published_sizes_of_every_epoch_are_composers(
    name: str, epochs: int, initial: float, delay: float, finetune: float
) -> None:
    words = [f"recipe={name}", f"epochs={epochs}", "fidelity=published"]
    words.append(f"algorithms.progressive_resizing.finetune={finetune}")
    plan = Plan(compose(words).config, 8, IMAGES)
    resizing = plan.config.algorithms["progressive_resizing"]
    sizes = [composers_size(176, e, epochs, initial=initial, delay=delay, finetune=finetune) for e in range(epochs)]
    seen = [int((1 - 0.05) * size) for size in sizes] if name == "hot" else sizes
    for last in (0, 624):
        assert [resizing.size(plan, 625 * epoch + last) for epoch in range(epochs)] == sizes
        assert [plan.view(625 * epoch + last) for epoch in range(epochs)] == seen
    assert (seen[0], seen[-1]) == ((98, 167) if name == "hot" else (88, 176))


@pytest.mark.parametrize("name", ["ffcv_rn50", "ffcv_rn18"])
def test_ffcv_evaluates_the_central_224_of_256(name: str) -> None:
    """FFCV cuts a square of int(224 / 256 * s) pixels out of an image of shorter edge s, then resizes it."""
    image, short = compose([f"recipe={name}"]).config.image, np.arange(1, 6000)
    boxes = centre_boxes(short, short + 37, image.eval_resize, image.eval_size)
    assert boxes[1:, 2].tolist() == [int(224 / 256 * edge) for edge in short[1:].tolist()]
    assert boxes[:, :2].tolist() == [[(s - c) // 2, (s + 37 - c) // 2] for s, c in zip(short, boxes[:, 2], strict=True)]
    pixels = np.random.default_rng(0).integers(0, 256, (90, 133, 3), np.uint8)
    square = cut(pixels, (6, 27, 78, 78, 0), image.eval_size, "bilinear")
    assert (centre_cut(pixels, image.eval_resize, image.eval_size, "bilinear") == square).all()


def test_torchvisions_averaged_weights_have_the_half_life_of_its_decay() -> None:
    ema = compose(["recipe=pytorch_blog"]).config.algorithms["ema"]
    decay = 1 - (1 - 0.99998) * (8 * 128 * 32 / 600)
    assert 2 ** (-32 / float(ema.half_life.removesuffix("ba"))) == pytest.approx(decay, abs=1e-7)


@pytest.mark.parametrize(("name", "peak"), [("timm_a1", 5e-3), ("timm_a2", 5e-3), ("timm_a3", 8e-3)])
def test_timms_scheduler_gives_the_learning_rates_of_its_recipes(name: str, peak: float) -> None:
    plan = Plan(compose([f"recipe={name}"]).config, 8, IMAGES)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    timm = CosineLRScheduler(optimizer, plan.epochs, lr_min=1e-6, warmup_t=5, warmup_lr_init=1e-4)
    for epoch in range(plan.epochs):
        for step in (625 * epoch, 625 * epoch + 624):
            assert plan.lr(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        timm.step(epoch + 1)


def test_pytorchs_schedulers_give_the_learning_rates_of_pytorch_blog() -> None:
    """torchvision's training script: LinearLR from 1 % over 5 epochs, then CosineAnnealingLR over the other 595."""
    plan = Plan(compose(["recipe=pytorch_blog"]).config, 8, IMAGES)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=600 - 5, eta_min=0.0)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[5])
    for epoch in range(600):
        assert plan.lr(1251 * epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6, abs=1e-9)
        optimizer.step()
        schedule.step()


def test_mlperfs_learning_rate_decays_quadratically() -> None:
    """11 * k / 800 to k = 800, then 1e-4 + (11 - 1e-4) * (1 - (k - 800) / 14000)^2; their steps k count from 1."""
    plan = Plan(compose(["recipe=mlperf_lars"]).config, 8, IMAGES)
    assert (plan.steps_per_epoch, plan.total_steps, plan.warmup_steps) == (400, 14_800, 800)
    for step in (0, 1, 399, 799):
        assert plan.lr(step) == pytest.approx(11.0 * (step + 1) / 800, rel=1e-12)
    for step in (800, 801, 7_800, 14_799):
        expected = 1e-4 + (11.0 - 1e-4) * (1 - (step + 1 - 800) / 14_000) ** 2
        assert plan.lr(step) == pytest.approx(expected, rel=1e-9)


def test_a_polynomial_schedule_is_pytorchs() -> None:
    words = ["schedule=polynomial", "schedule.power=3", "schedule.warmup=0ba", "batch_size=8", "epochs=5"]
    plan = Plan(compose(words).config, 1, 80)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=plan.peak_lr)
    theirs = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=50, power=3)
    for step in range(50):
        assert plan.lr(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        theirs.step()


def test_algoperfs_steps_and_warmups() -> None:
    """The hint of 195,999 steps to whole epochs; warmups of 5 % of them, and of 2 % of three quarters."""
    nadamw = Plan(compose(["recipe=algoperf_nadamw"]).config, 8, IMAGES)
    assert nadamw.total_steps == math.ceil(195_999 / 1_251) * 1_251
    assert nadamw.warmup_steps == pytest.approx(0.05 * 195_999, rel=0.003)
    assert (nadamw.lr(0), nadamw.lr(nadamw.warmup_steps)) == (0.0, nadamw.peak_lr)
    free = Plan(compose(["recipe=algoperf_schedule_free"]).config, 8, IMAGES)
    assert free.total_steps == math.ceil(209_877 / 1_251) * 1_251
    assert free.lr(0) == pytest.approx(0.0025 / 2939)
    assert [free.lr(step) for step in (2938, 2939, 200_000)] == [0.0025] * 3
    shampoo = Plan(compose(["recipe=algoperf_vit_shampoo"]).config, 8, IMAGES)
    assert shampoo.total_steps == math.ceil(0.6 * 167_999 / 1_251) * 1_251
    assert shampoo.warmup_steps == pytest.approx(0.05 * 0.6 * 167_999, rel=0.006)


@pytest.mark.parametrize("name", ["resnet101_mosaic", "resnet101_baseline"])
def test_the_whitepapers_lengths_dilate_the_whole_schedule(name: str) -> None:
    whole = Plan(compose([f"recipe={name}"]).config, 8, IMAGES)
    assert whole.warmup_steps == 8 * 625
    for epochs in (22, 30, 54, 60, 72):
        plan = Plan(compose([f"recipe={name}", f"epochs={epochs}"]).config, 8, IMAGES)
        for part in (0.0, 0.05, 0.2, 0.5, 0.9):
            steps = [round(part * p.total_steps) for p in (plan, whole)]
            assert plan.lr(steps[0]) == pytest.approx(whole.lr(steps[1]), abs=2e-3)


def test_timm_steps_with_a_summed_loss_are_those_of_timms_mean() -> None:
    """timm averages BCE over classes with eps 1e-6 and norm limit 1; ours sums, with both 1000 times as large."""
    values = compose(["recipe=timm_a1"]).config.optimizer
    assert isinstance(values, LAMB)
    images = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.eye(1000, dtype=torch.float64)[:8]
    weights = []
    for reduction, epsilon, limit in [("mean", 1e-6, 1.0), ("sum", values.epsilon, values.max_grad_norm)]:
        layer = nn.Linear(5, 1000, dtype=torch.float64)
        nn.init.constant_(layer.weight, 0.01)
        nn.init.zeros_(layer.bias)
        optimizer = Lamb(layer.parameters(), lr=values.lr, weight_decay=0.01, eps=epsilon, max_grad_norm=limit)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(layer(images), targets, reduction=reduction)
            (loss if reduction == "mean" else loss / 8).backward()
            optimizer.step()
        weights.append(layer.weight.detach())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-9, atol=0)
