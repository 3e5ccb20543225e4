"""Classes with different numbers of images: notes, weights in the loss, and epochs that draw each class equally."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.algorithms.repeated_augmentation import repeat
from launcher.config.compose import compose
from launcher.data.batch import Loaded
from launcher.data.sampling import balanced_order
from launcher.doctor.examine import examine_data
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from launcher.tasks.classification import Classification
from tests.commands import execute, refused

from .conftest import add, make_loaders, notes, same, stream, words_for, write_files

WEIGHTS = "loss.class_weights"
COUNTS = np.array([60, 6, 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 20, 5 and 2 training images."""
    root = tmp_path_factory.mktemp("imbalance")
    for name, count in (("cat", 20), ("dog", 5), ("emu", 2)):
        add(root, "train", name, count)
        add(root, "val", name, 2)
    return root


def test_ten_times_the_images_are_noted_with_what_to_type(folder: Path) -> None:
    (note,) = notes(folder)
    assert note.startswith("the largest class, cat, has 20 training images and the smallest, emu, 2: ")
    assert "loss.class_weights=auto" in note
    assert "dataset.sampling=balanced" in note
    _, out, _ = execute("plan", *words_for(folder))
    assert note in " ".join(out.split())
    assert note in [finding.observation for finding in examine_data(compose(words_for(folder)).config)]
    write_files(folder)
    assert notes(folder, "dataloader=ffcv") == [note]


def test_less_than_ten_times_is_not_noted(tmp_path: Path) -> None:
    for name, count in (("cat", 19), ("dog", 2)):
        add(tmp_path, "train", name, count)
        add(tmp_path, "val", name, 1)
    assert notes(tmp_path) == []


def test_the_note_has_the_weights_in_use(folder: Path) -> None:
    (note,) = notes(folder, f"{WEIGHTS}=auto")
    assert note.endswith("2: loss.class_weights=auto weighs cat by 0.45 and emu by 4.5")
    (note,) = notes(folder, "dataset.sampling=balanced")
    assert note.endswith("2: dataset.sampling=balanced draws an image of emu 4.5 times an epoch")
    (note,) = notes(folder, "dataset.sampling=balanced", f"{WEIGHTS}=[1,2,3]")
    assert note.endswith("and loss.class_weights weighs cat by 1 and emu by 3; one of them is enough")


def test_the_note_has_what_else_the_loss_takes_from_the_counts(folder: Path) -> None:
    (note,) = notes(folder, "loss.logit_adjustment=1")
    assert note.endswith("2: loss.logit_adjustment=1.0 shifts the logit of cat by -0.3 and emu by -2.6")
    (note,) = notes(folder, "loss=bce", "loss.pos_weight=balanced", f"{WEIGHTS}=auto")
    assert "and loss.pos_weight=balanced weighs the presence of cat by 0.35 and emu by 12" in note


def weights(*words: str) -> np.ndarray:
    result = compose(list(words)).config.loss.weights(COUNTS)
    assert result is not None
    return result


def test_weights_follow_scikit_learns_balanced_and_the_effective_number() -> None:
    """`compute_class_weight("balanced")` is samples / (classes * counts)."""
    assert compose([]).config.loss.weights(COUNTS) is None
    np.testing.assert_allclose(weights(f"{WEIGHTS}=auto"), 67 / (3 * COUNTS))
    roots = weights(f"{WEIGHTS}=auto", "loss.class_weights_power=0.5")
    np.testing.assert_allclose(roots / roots[0], np.sqrt(60 / COUNTS))
    effective = weights(f"{WEIGHTS}=effective", "loss.class_weights_beta=0.9", "loss=bce")
    numbers = [sum(0.9**k for k in range(count)) for count in COUNTS]
    np.testing.assert_allclose(effective / effective[0], numbers[0] / np.array(numbers))
    for made in (roots, effective):
        assert (made * COUNTS).sum() / COUNTS.sum() == pytest.approx(1)
    assert weights(f"{WEIGHTS}=[3,1,2.5]").tolist() == [3, 1, 2.5]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[1,2]", "has 2 numbers for 3 classes; set one per class, in the order of their names"),
        ("[1,2,-1]", "effective, or a list of numbers above 0, one per class"),
        ("[1,2,0]", "must be one of none, auto, effective, or a list of numbers above 0"),
        ("balanced", "must be one of none, auto, effective, or a list"),
    ],
)
def test_other_weights_are_refused(folder: Path, value: str, message: str) -> None:
    line = refused("plan", *words_for(folder), f"{WEIGHTS}={value}")
    assert message in line
    assert WEIGHTS in line


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ([f"{WEIGHTS}=auto"], f"{WEIGHTS}=none"),
        (["loss.logit_adjustment=1"], "loss.logit_adjustment=0"),
        (["loss=bce", "loss.pos_weight=2"], "loss.pos_weight=none"),
    ],
)
def test_a_task_without_weights_of_classes_refuses_them(
    words: list[str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Classification, "weighs_classes", False)
    config = compose(["launch=cpu", *words]).config
    with pytest.raises(UserError, match=f"task=classification has no weights of classes; set {remedy}"):
        check(Plan(config, 1, 320), {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loss=bce", "loss.logit_adjustment=1"], "no such key here; it is for loss=cross_entropy"),
        (["loss.pos_weight=3"], "no such key here; it is for loss=bce"),
        (["loss=mse", "loss.pos_weight=balanced"], "no such key here; it is for loss=bce"),
        (["loss=bce", "loss.pos_weight=[1,2]"], "has 2 numbers for 3 classes; set one per class, in the order of"),
        (["loss=bce", "loss.pos_weight=auto"], "must be one of none, balanced"),
        (["loss=bce", "loss.pos_weight=0"], "above 0"),
        (["loss.logit_adjustment=-1"], "must be at least 0"),
        (["long_tail=1"], "no such key; did you mean loss.logit_adjustment?"),
        (["logit_adjustment=1"], "no such key; did you mean loss.logit_adjustment?"),
        (["pos_weight=1"], "no such key; did you mean loss.pos_weight?"),
    ],
)
def test_values_of_another_loss_are_refused_with_the_loss_that_has_them(
    folder: Path, words: list[str], message: str
) -> None:
    assert message in refused("plan", *words_for(folder), *words)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=7).filter(any), st.integers(0, 2**63 - 1), st.integers(0, 99))
def test_a_balanced_epoch_draws_each_class_equally_and_its_images_alike(
    counts: list[int], seed: int, epoch: int
) -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    order = balanced_order(seed, epoch, labels)
    assert len(order) == len(labels) == len({*order.tolist()}), "each draw has its own crop"
    times = np.bincount(order % len(labels), minlength=len(labels))
    of_classes = [times[labels == label] for label, count in enumerate(counts) if count]
    drawn = [of_class.sum() for of_class in of_classes]
    assert max(drawn) - min(drawn) <= 1
    assert all(of_class.max() - of_class.min() <= 1 for of_class in of_classes)


def test_balanced_epochs_differ_and_are_shuffled() -> None:
    labels = np.repeat([0, 1], [90, 10])
    orders = {tuple(balanced_order(seed, epoch, labels)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert all(0 < labels[np.array(order[:20]) % 100].sum() < 20 for order in orders)


def test_repeated_augmentation_of_a_balanced_epoch_has_crops_of_its_own() -> None:
    labels = np.repeat([0, 1], [90, 10])
    order = repeat(balanced_order(3, 0, labels), 3, 12)
    assert len(order) == len({*order.tolist()}) == 100
    assert 40 < labels[order % 100].sum() < 60


def batches(folder: Path, *words: str, first: int = 0, rank: int = 0, world: int = 1) -> list[Loaded]:
    loaders = make_loaders(folder, "dataset.sampling=balanced", "batch_size=6", *words, rank=rank, world=world)
    return stream(loaders, first=first)


@pytest.mark.parametrize("loader", ["torchvision", "ffcv"])
def test_both_loaders_read_the_same_balanced_epochs_for_any_ranks_workers_and_start(folder: Path, loader: str) -> None:
    if loader == "ffcv":
        write_files(folder)
    kind = f"dataloader={loader}"
    whole = batches(folder, kind, "dataloader.workers=1")
    labels = np.concatenate([labels for _, labels, _ in whole])
    assert all(np.bincount(part).min() >= 6 for part in (labels[:24], labels[24:])), "of 9 in 27 draws, less 3 at most"
    assert same(whole[2:4] + whole[6:8], batches(folder, kind, "dataloader.workers=1", first=2))
    split = [batches(folder, kind, "dataloader.workers=2", rank=rank, world=3) for rank in range(3)]
    joined = [np.concatenate([part[step][2] for part in split]) for step in range(len(whole))]
    assert [indices.tolist() for _, _, indices in whole] == [indices.tolist() for indices in joined]
    assert {*whole[0][2].tolist()} - {*range(27)}, "repeated images have other crops"
