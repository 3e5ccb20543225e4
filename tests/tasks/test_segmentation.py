"""Segmentation of images with masks: read, cut, trained, evaluated, resumed, alone and on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.segmentation as published
from PIL import Image
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_jaccard_index

from launcher.config.compose import compose
from launcher.config.groups import options
from launcher.config.schema import RunConfig
from launcher.data.batch import Batch, Moment
from launcher.data.inspection import inspect_data
from launcher.data.masks.decoder import RandomPairs
from launcher.errors import UserError
from launcher.launch.model_check import check_model
from launcher.losses.dice_cross_entropy import dice_loss, pixel_cross_entropy
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from launcher.rank.group import Ranks
from launcher.records.run_folder import RunFolder
from launcher.tasks import build_task
from launcher.training import compiled
from launcher.training.captured import CapturedSteps
from launcher.training.rehearsal import rehearse, unchanged_statistics
from launcher.training.trainer import build_trainer
from tests.graphs import StandIn
from tests.trainers import EARLY, alone, assert_resumes, assert_same_state, steps, train_all
from tests.two_ranks import on_ranks

RUN = [
    *("task=segmentation", "dataloader=masks", "dataloader.workers=0", "model=unet", "model.filters=8"),
    *("model.levels=3", "loss=dice_cross_entropy", "dataset=image_folder", "dataset.native_size=32", "launch=cpu"),
    *("epochs=2", "batch_size=6", "eval_batch_size=4", "optimizer=adamw", "optimizer.scale_lr=off"),
    *("optimizer.lr=0.01", "schedule.warmup=0ba", "logger.tensorboard=false", "logger.interval=1ba"),
]
SIDE, TRAIN, VAL = 40, 36, 11
# Those that mean something for masks; each other one is refused for a reason.
MEANT = {
    *("channels_last", "blurpool", "cutout", "ema", "swa", "gradient_clipping", "layer_freezing", "sam"),
    *("progressive_resizing", "cutmix", "random_erasing", "repeated_augmentation", "squeeze_excite"),
    *("ghost_batchnorm", "whitening"),
}


def draw(folder: Path) -> Path:
    """Write images with a bright and a red rectangle, and their masks."""
    for split, count in {"train": TRAIN, "val": VAL}.items():
        (folder / split / "images").mkdir(parents=True)
        (folder / split / "masks").mkdir()
        for number in range(count):
            random = np.random.default_rng([number, count])
            mask = np.zeros((SIDE, SIDE + 8), np.uint8)
            for index in (1, 2):
                top, left = random.integers(0, SIDE // 2, 2)
                mask[top : top + SIDE // 3, left : left + SIDE // 3] = index
            colours = np.array([[20, 20, 20], [200, 200, 200], [220, 40, 40]])
            image = colours[mask] + random.integers(0, 20, (*mask.shape, 3))
            mask[20:22] = 255
            Image.fromarray(image.astype(np.uint8)).save(folder / split / "images" / f"{number:02d}.png")
            Image.fromarray(mask).save(folder / split / "masks" / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("masks"))


def config_of(folder: Path, *words: str) -> RunConfig:
    return inspect_data(compose([*RUN, f"dataset.path={folder}", *words]).config, must_exist=True).config


def test_a_segmentation_learns_and_is_evaluated_as_by_torchmetrics(images: Path, tmp_path: Path) -> None:
    run = alone(config_of(images, "epochs=6"))
    train_all(run, RunFolder(tmp_path))
    result = run.evaluate(lambda: False)
    assert result
    assert result.samples == VAL
    assert result.metrics["miou"] > 0.6
    model = run.train_step.model.eval()
    outputs, truth = [], []
    with torch.no_grad():
        for inputs, labels, _ in run.loaders.evaluate:
            outputs.append(model(run.train_step.task.prepare(batch_of(inputs)).inputs).argmax(1))
            truth.append(labels.long())
    predicted, masks = torch.cat(outputs), torch.cat(truth)
    assert (masks == 255).any()
    values = {"num_classes": 3, "ignore_index": 255}
    miou = multiclass_jaccard_index(predicted, masks, average="macro", **values)
    assert result.metrics["miou"] == pytest.approx(miou.item(), rel=1e-6)
    accuracy = multiclass_accuracy(predicted, masks, average="micro", **values)
    assert result.metrics["pixel_accuracy"] == pytest.approx(accuracy.item(), rel=1e-6)
    valid = masks != 255
    one = (predicted[valid][None, None], masks[valid][None, None])
    for key, background in (("dice", False), ("dice_with_background", True)):
        dice = published.dice_score(*one, 3, include_background=background, average="none", input_format="index").mean()
        assert result.metrics[key] == pytest.approx(dice.item(), rel=1e-6)


def batch_of(inputs: torch.Tensor) -> Batch:
    return Batch(inputs, inputs, np.zeros(0), Moment(0, 0, 0, 1))


def reference_dice(logits: np.ndarray, targets: np.ndarray, background: bool) -> float:
    """MONAI's DiceLoss(softmax=True, to_onehot_y=True, batch=True), in float64 and loops."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    scores, losses = raised / raised.sum(1, keepdims=True), []
    for number in range(0 if background else 1, logits.shape[1]):
        ours, theirs = scores[:, number], targets == number
        losses.append(1 - (2 * (ours * theirs).sum() + 1e-5) / (ours.sum() + theirs.sum() + 1e-5))
    return float(np.mean(losses))


@pytest.mark.parametrize("background", [False, True])
def test_the_dice_loss_is_monais(background: bool) -> None:
    logits, targets = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(192) % 4
    targets = targets.view(3, 8, 8) * (torch.arange(8) > 3)
    ours = dice_loss(logits, targets, background=background).item()
    assert ours == pytest.approx(reference_dice(logits.double().numpy(), targets.numpy(), background), rel=1e-5)
    losses = pytest.importorskip("monai.losses")
    theirs = losses.DiceLoss(include_background=background, softmax=True, to_onehot_y=True, batch=True)
    assert ours == pytest.approx(theirs(logits, targets[:, None]).item(), rel=1e-6)


def test_both_losses_have_their_weights() -> None:
    words = ["loss.dice=0.25", "loss.cross_entropy=1.75", "loss.background=true"]
    loss = build_task(compose(["task=segmentation", "loss=dice_cross_entropy", "model=unet", *words]).config).loss
    logits, targets = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(192) % 4
    targets = targets.view(3, 8, 8)
    dice = reference_dice(logits.double().numpy(), targets.numpy(), background=True)
    expected = 0.25 * dice + 1.75 * torch.nn.functional.cross_entropy(logits, targets).item()
    assert loss(logits, targets).item() == pytest.approx(expected, rel=1e-5)


def test_ignored_pixels_are_no_part_of_the_loss() -> None:
    logits, targets = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), torch.ones(2, 4, 4).long()
    targets[:, :2] = 255
    cut, rest = logits[:, :, 2:], targets[:, 2:]
    torch.testing.assert_close(dice_loss(logits, targets, background=True), dice_loss(cut, rest, background=True))
    torch.testing.assert_close(pixel_cross_entropy(logits, targets), torch.nn.functional.cross_entropy(cut, rest))
    assert pixel_cross_entropy(logits, torch.full_like(targets, 255)).item() == 0


def test_image_and_mask_are_cut_by_one_box(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 2, (SIDE, SIDE + 4), np.uint8).repeat(2, 0).repeat(2, 1)
        Image.fromarray(pixels * 255).save(tmp_path / "images" / f"{number}.png")
        Image.fromarray(pixels).save(tmp_path / "masks" / f"{number}.png")
    config = config_of(tmp_path, "dataset.val_split=0.2", "image.scale=[0.3,1.0]", "image.flip=0.5")
    decoder, random = RandomPairs(config), np.arange(9)
    draws, mirrored = decoder.draws(Moment(42, 1, 0, 10), random), set()
    for own, number in zip(draws, random, strict=True):
        record = {part: (tmp_path / f"{part}s" / f"{number}.png").read_bytes() for part in ("image", "mask")}
        *_, height, width, flip = own.box_of(2 * SIDE, 2 * SIDE + 8)
        mirrored.add(flip)
        pixels, mask = decoder.decode(record, 2 * height if height == width else 64, own)
        assert pixels.shape[:2] == mask.shape
        # note: a resize of the image blurs edges, where the two differ
        sharp = (pixels[..., 0] < 16) | (pixels[..., 0] > 239)
        assert ((pixels[..., 0] > 127) == mask.astype(bool))[sharp].mean() > 0.999
        assert {*np.unique(mask)} <= {0, 1}
    assert mirrored == {0, 1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_of_half_precision_outputs_is_summed_in_float32(dtype: torch.dtype) -> None:
    """The pixels of a batch are more than the largest number of fp16."""
    loss = build_task(compose(["task=segmentation", "loss=dice_cross_entropy", "model=unet"]).config).loss
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 3, 300, 300, generator=generator).to(dtype)
    targets = torch.randint(3, (2, 300, 300), generator=generator)
    value = loss(outputs, targets)
    assert value.dtype == torch.float32
    assert value.item() == loss(outputs.float(), targets).item()


@pytest.mark.parametrize("name", sorted(MEANT))
def test_each_algorithm_that_is_meant_resumes_to_the_same_bits(name: str, images: Path, tmp_path: Path) -> None:
    words = ["algorithms.progressive_resizing.initial_scale=0.5"] * (name == "progressive_resizing")
    config = config_of(images, f"algorithms=[{name}]", *EARLY.get(name, []), *words)
    check(plan_for(config, 1), {})
    check_model(plan_for(config, 1), {})
    assert_resumes(lambda: alone(config), tmp_path / "step-00000003.pt")


@pytest.mark.parametrize("name", sorted({*options("algorithms")} - MEANT))
def test_the_other_algorithms_are_refused_with_a_reason(name: str, images: Path) -> None:
    plan = plan_for(config_of(images, f"algorithms=[{name}]", *EARLY.get(name, [])), 1)

    def checked() -> None:
        check(plan, {})
        check_model(plan, {})

    with pytest.raises(UserError, match=r"has no meaning with task=segmentation|unet has no|need.* pretrained weights"):
        checked()


def test_steps_are_rehearsed_and_captured(images: Path) -> None:
    words = ["algorithms=[progressive_resizing]", "algorithms.progressive_resizing.initial_scale=0.5"]
    plain, run = (alone(config_of(images, *words)) for _ in range(2))
    sizes = {run.plan.view(step) for step in range(12)}
    with unchanged_statistics(run):
        assert rehearse(run) == len(sizes)
    device = StandIn()
    run.train_step.captured = CapturedSteps(device, "on")  # type: ignore[arg-type]
    assert steps(run, 12) == steps(plain, 12)
    assert_same_state(run, plain)


@pytest.mark.slow
def test_steps_of_all_sizes_are_compiled_before_the_first(images: Path, traced: None) -> None:
    words = ["algorithms=[progressive_resizing,cutmix,ema]", "algorithms.progressive_resizing.initial_scale=0.5"]
    words += ["precision=fp32", "model.levels=2", "model.filters=4"]
    plain, run = (alone(config_of(images, *words, f"compile={switch}")) for switch in ("off", "on"))
    start = compiled.graphs()
    compiled.compile_run(run)
    count = compiled.graphs()
    assert count > start
    assert len({run.plan.view(step) for step in range(12)}) > 2
    assert_same_state(run, plain)
    assert steps(run, 12) == pytest.approx(steps(plain, 12), rel=1e-3)
    assert compiled.graphs() == count


def compare_ranks(rank: int, images: Path, folder: Path) -> None:
    run = build_trainer(config_of(images), Ranks(rank, 3, rank, 3, torch.device("cpu")))
    first = run.evaluate(lambda: False)
    steps(run, 2)
    torch.save([first, run.weights(), run.evaluate(lambda: False)], folder / f"{rank}.pt")


def test_three_ranks_evaluate_the_same_as_one(images: Path, tmp_path: Path) -> None:
    expected = alone(config_of(images)).evaluate(lambda: False)
    assert expected
    on_ranks(3, compare_ranks, images, tmp_path)
    saved = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(3)]
    assert saved[0][0].metrics == expected.metrics
    assert saved[0][0].samples == VAL
    learned = {name: weight for name, weight in saved[0][1].items() if "running" not in name}
    assert all(torch.equal(weight, other[1][name]) for other in saved[1:] for name, weight in learned.items())


def test_cutmix_cuts_masks_as_images(images: Path) -> None:
    run = alone(config_of(images, "algorithms=[cutmix]", "algorithms.cutmix.probability=1.0"))
    _, labels, indices = next(iter(run.rest_of_epoch()))
    both = torch.stack([labels.clamp(max=250)] * 3, 1)
    cut = run.train_step.prepare(Batch(both, labels, indices, run.moment(0)))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (run.config.dataset.mean, run.config.dataset.std))
    masks = ((cut.inputs * std + mean) * 255).round()[:, 0].long()
    assert torch.equal(masks, cut.targets.clamp(max=250))
    assert not torch.equal(cut.targets, labels.long())


def test_blank_samples_have_the_shapes_of_loaded_ones(images: Path) -> None:
    run: Any = alone(config_of(images))
    inputs, labels, _ = next(iter(run.rest_of_epoch()))
    blank = build_task(run.config).blank(6, (32, 32), torch.device("cpu"))
    assert [(part.shape, part.dtype) for part in blank] == [(part.shape, part.dtype) for part in (inputs, labels)]
