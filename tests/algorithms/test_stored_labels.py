"""Stored labels compared with the formulas of FKD, and what a run takes from their file."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from launcher.algorithms.stored_labels import marginal_smoothing
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.data.stored_crops import PARTS, LabelsFile, box_of, parts_of
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from tests.trainers import EARLY, SMALL, assert_resumes, build, outcomes

ON = ["algorithms=[stored_labels]", *EARLY["stored_labels"]]
FILE = EARLY["stored_labels"][0].partition("=")[2]


@pytest.mark.parametrize("top", [1, 5, 10])
def test_probabilities_are_recovered_by_marginal_smoothing(top: int) -> None:
    """Shen and Xing 2022, equation 6: p of the top k classes, and (1 - their sum) / (N - k) of the others."""
    probabilities = torch.rand(6, 10, dtype=torch.float64).mul(4).softmax(1)
    values, classes = probabilities.topk(top)
    expected = np.zeros((6, 10))
    for row, (numbers, shares) in enumerate(zip(classes.tolist(), values.tolist(), strict=True)):
        for number in range(10):
            left = (1 - sum(shares)) / max(1, 10 - top)
            expected[row, number] = shares[numbers.index(number)] if number in numbers else left
    ours = marginal_smoothing(classes, values.float(), 10)
    np.testing.assert_allclose(ours, expected, atol=1e-7)
    torch.testing.assert_close(ours.sum(1), torch.ones(6))


def test_rounded_probabilities_above_one_leave_nothing() -> None:
    ours = marginal_smoothing(torch.tensor([[2, 0]]), torch.tensor([[0.75, 0.2505]]), 4)
    assert ours.tolist() == [[pytest.approx(0.2505), 0, 0.75, 0]]


@given(data=st.data(), height=st.integers(1, PARTS - 1), width=st.integers(1, PARTS - 1))
def test_boxes_are_stored_exactly(data: st.DataObject, height: int, width: int) -> None:
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    size = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    box = top, left, *size, 1
    assert box_of(np.array(parts_of(box, height, width), np.uint16), 1, height, width) == box
    other = box_of(np.array(parts_of(box, height, width), np.uint16), 0, 7, 3)
    assert 0 <= other[0] < other[0] + other[2] <= 7
    assert 0 <= other[1] < other[1] + other[3] <= 3


def test_the_loss_is_the_cross_entropy_of_what_the_file_has(
    bound: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    algorithm, loaded, stored = bound("stored_labels", path=FILE), batch(step=25), LabelsFile(FILE)
    transform = algorithm.change_batch(loaded, (16, 16))
    changed = transform.apply(loaded, *map(torch.from_numpy, transform.arrays))
    rows = np.frombuffer(Path(FILE).read_bytes()[-128 * stored.described.row.itemsize :], stored.described.row)
    logits, losses = torch.randn(8, 10), []
    for place, (index, label) in enumerate(zip(loaded.indices, changed.targets, strict=True)):
        full = torch.zeros(3, 10)
        for crop in range(3):
            shares = torch.from_numpy(rows["probabilities"][index, crop].astype(np.float32))
            full[crop] = (1 - shares.sum()) / 6
            full[crop, rows["classes"][index, crop].astype(int)] = shares
        (crop,) = (one for one in range(3) if torch.allclose(full[one], label))
        losses.append(-(full[crop] * logits[place].log_softmax(0)).sum())
    torch.testing.assert_close(F.cross_entropy(logits, changed.targets), torch.stack(losses).mean())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_crops_of_an_unsure_teacher_have_the_softened_true_class(
    bound: Callable[..., Any], batch: Callable[..., Any], smoothing: float
) -> None:
    """Shen 2023 (FerKD): the soft label, or where its maximum is low (1 - s) of the true class and s / C of each."""
    loaded, count = batch(64, step=25), 10
    classes, shares = LabelsFile(FILE).labels(loaded.moment.seed, loaded.moment.epoch, loaded.indices)
    below = float(np.median(shares.max(1)))
    algorithm = bound("stored_labels", path=FILE, true_class_below=below, smoothing=smoothing)
    transform = algorithm.change_batch(loaded, (16, 16))
    targets = transform.apply(loaded, *map(torch.from_numpy, transform.arrays)).targets.numpy()
    replaced = 0
    for place, label in enumerate(loaded.targets.tolist()):
        expected = np.full(count, (1 - shares[place].sum()) / (count - shares.shape[1]))
        expected[classes[place]] = shares[place]
        if max(shares[place]) < below:
            replaced += 1
            expected = np.full(count, smoothing / count)
            expected[label] += 1 - smoothing
        np.testing.assert_allclose(targets[place], expected, atol=1e-6)
    assert 0 < replaced < 64


def test_a_resumed_run_with_true_classes_has_the_same_bits(tmp_path: Path) -> None:
    words = [*ON, "algorithms.stored_labels.true_class_below=0.3", "algorithms.stored_labels.smoothing=0.2"]
    assert_resumes(lambda: build(*words), tmp_path / "step-00000003.pt")


def test_crops_are_drawn_by_seed_epoch_and_image_and_repeats_have_others() -> None:
    stored, indices = LabelsFile(FILE), np.arange(128)
    _, chosen = stored._places(1, 2, indices)
    assert (chosen == stored._places(1, 2, indices[::-1])[1][::-1]).all()
    assert (np.bincount(chosen) > 25).all()
    assert any((chosen != stored._places(*other, indices)[1]).any() for other in ((1, 3), (2, 2)))
    repeats = [stored._places(1, 2, indices + 128 * repeat)[1] for repeat in range(3)]
    assert (np.sort(repeats, axis=0) == np.arange(3)[:, None]).all()


def test_a_batch_has_the_crops_and_the_labels_of_the_same_places() -> None:
    run, stored = build(*ON, "image.train_size=24"), LabelsFile(FILE)
    seen: list[torch.Tensor] = []
    run.train_step.objective.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1].detach()))
    (outcome,) = outcomes(run, 1)
    classes, probabilities = stored.labels(run.config.seed, 0, outcome.indices)
    torch.testing.assert_close(
        seen[0], marginal_smoothing(torch.from_numpy(classes), torch.from_numpy(probabilities), 10)
    )
    decoder = run.loaders.train.reader._images.decoder  # type: ignore[attr-defined]
    for number, draws in enumerate(decoder.draws(Moment(run.config.seed, 0, 0, 1), outcome.indices)):
        assert draws.box_of(16, 16) == stored.crops(run.config.seed, 0, outcome.indices).box(number, 16, 16)


def test_mixing_follows(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    words = ["algorithms=[stored_labels,mixup]", *EARLY["stored_labels"], "algorithms.mixup.probability=1.0"]
    run = build(*words)
    mixed: list[torch.Tensor] = []
    run.train_step.objective.register_forward_pre_hook(lambda module, inputs: mixed.append(inputs[1].detach()))
    (outcome,) = outcomes(run, 1)
    own = marginal_smoothing(*map(torch.from_numpy, LabelsFile(FILE).labels(run.config.seed, 0, outcome.indices)), 10)
    assert not torch.allclose(mixed[0], own)
    torch.testing.assert_close(mixed[0].sum(0), own.sum(0))


def check_words(*words: str) -> None:
    check(plan_for(compose([*SMALL, "dataset.train_samples=128", *ON, *words]).config, 1), {})


def test_other_values_than_those_of_the_file_are_refused() -> None:
    check_words()
    for word, message in {
        "algorithms.stored_labels.path=null": "path=null: write the file by train relabel TEACHER",
        "algorithms.stored_labels.path=none": "none cannot be read (No such file or directory); set a file",
        "image.scale=[0.5,1.0]": "has crops of image.scale=[0.08,1.0], the run of [0.5, 1.0]; set image.scale",
        "image.flip=0.0": "set image.flip=0.5",
        "image.interpolation=bicubic": "set image.interpolation=bilinear",
        "dataset.exif_orientation=false": "set dataset.exif_orientation=true",
        "dataset.train_samples=96": "has dataset.train_samples=128, the run 96; write a file of these images",
        "algorithms.augmix=on": "the teacher saw images without augmix; set algorithms.augmix=off",
        "algorithms.label_smoothing=on": "combined with label_smoothing: the probabilities are smooth already",
        "algorithms.distillation=on": "cannot be combined with distillation: both replace the targets",
    }.items():
        with pytest.raises(UserError) as caught:
            check_words(word)
        assert message in str(caught.value), word
    synthetic = [word for word in SMALL if word != "dataloader.workers=0"]
    with pytest.raises(UserError, match=r"dataloader=synthetic reads no images; set dataloader=torchvision"):
        check(plan_for(compose([*synthetic, *ON, "dataloader=synthetic"]).config, 1), {})
    with pytest.raises(UserError, match=r"set algorithms.cutmix.smoothed=both"):
        check_words("algorithms.cutmix=on", "algorithms.cutmix.smoothed=first")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    content, path = Path(FILE).read_bytes(), tmp_path / "labels"
    for damaged in (b"", b"no", content[:-1], content + b"x", content.replace(b"crops", b"clips", 1)):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"train relabel"):
            LabelsFile(str(path))
    path.write_bytes(content)
    first = json.loads(path.open("rb").readline())
    assert LabelsFile(str(path)).described == replace(LabelsFile(FILE).described, **first)
