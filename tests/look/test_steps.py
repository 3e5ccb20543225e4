"""The images of a step that `train look` shows, against the batch of a training step."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.config.compose import compose
from launcher.data.batch import Batch
from launcher.launch.prepare import prepare
from launcher.look.census import images_section
from launcher.look.steps import ALL, LOADED, Example, examples, loaders_here
from launcher.plan.plan import Plan, plan_for
from launcher.training.trainer import Trainer
from tests.trainers import SMALL, TASKS, build

MANY = "algorithms=[colout, progressive_resizing, cutout, mixup, cutmix, label_smoothing, channels_last]"


def shown_at(plan: Plan, classes: Sequence[int], each: int, step: int) -> list[Example]:
    with closing(loaders_here(plan)) as loaders:
        (listed,) = examples(plan, loaders.train.reader, classes, each, [step])
    return listed


def seen(run: Trainer, step: int) -> list[Example]:
    return [one for one in shown_at(run.plan, range(10), 9, step) if one.step == step]


@pytest.mark.parametrize(
    "words",
    [
        ["algorithms=[mixup]", "algorithms.mixup.probability=1.0"],
        ["algorithms=[cutmix]", "algorithms.cutmix.probability=1.0"],
        [MANY, "algorithms.mixup.probability=0.5", "algorithms.cutmix.probability=0.5"],
        ["algorithms=[randaugment, random_erasing, mixup]", "algorithms.random_erasing.fill=zero"],
        ["algorithms=[randaugment, repeated_augmentation]", "algorithms.randaugment.where=loader"],
        ["algorithms=[augmix, progressive_resizing]", "algorithms.progressive_resizing.where=loader"],
        ["algorithms=[trivialaugment, stochastic_depth]", "dataset.sampling=balanced"],
    ],
)
def test_all_together_is_the_batch_of_the_training_step(words: list[str]) -> None:
    run = build("dataset.native_size=32", "loss=cross_entropy", *words)
    with closing(run.loaders):
        for step in (0, run.plan.total_steps // 2, run.plan.total_steps - 1):
            epoch, number = divmod(step, run.plan.steps_per_epoch)
            images, labels, indices = next(iter(run.loaders.train.epoch(epoch, number)))
            batch = run.train_step.prepare(Batch(images, labels, indices, run.moment(step)))
            mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (run.config.dataset.mean, run.config.dataset.std))
            pixels = (255 * (batch.inputs * std + mean)).clamp(0, 255).permute(0, 2, 3, 1).numpy()
            shown = seen(run, step)
            assert len(shown) == len(indices)
            for one in shown:
                row = indices.tolist().index(one.index)
                assert np.abs(one.versions[ALL] - pixels[row]).max() <= 0.51
                assert one.label == {int(labels[row]): 1.0}
                if batch.targets.ndim == 2:
                    assert max(one.target.values()) == pytest.approx(float(batch.targets[row].max()))


def test_some_images_of_a_batch_are_those_of_the_whole_batch() -> None:
    run = build("dataset.native_size=32", "algorithms=[mixup]", "algorithms.mixup.probability=1.0", "batch_size=32")
    whole, some = (shown_at(run.plan, chosen, 1, 1) for chosen in (range(10), [4, 7]))
    assert [*map(list, (one.label for one in some))] == [[4], [7]]
    for one in some:
        same = next(other for other in whole if other.index == one.index)
        assert np.array_equal(one.versions[ALL], same.versions[ALL])
        assert not np.array_equal(one.versions[ALL], one.versions[LOADED])


def test_each_algorithm_alone_is_a_run_with_it_alone() -> None:
    words = ["dataset.native_size=32", "algorithms=[randaugment, cutout]"]
    both, alone = build(*words), build(words[0], "algorithms=[cutout]")
    for one, other in zip(seen(both, 2), seen(alone, 2), strict=True):
        assert np.array_equal(one.versions["cutout"], other.versions[ALL])
        assert np.array_equal(one.versions[LOADED], other.versions[LOADED])


def test_the_batches_of_all_ranks_are_shown() -> None:
    """With two ranks, each mixes its own half of the batch."""
    config = compose([*SMALL, "dataset.native_size=32", "schedule.warmup=0ba", "algorithms=[mixup]",
                      "algorithms.mixup.probability=1.0"]).config  # fmt: skip
    plans = plan_for(config, 1), plan_for(config, 2)
    one, two = (shown_at(plan, range(10), 9, 0) for plan in plans)
    assert [example.index for example in one] == [example.index for example in two]
    assert any(not np.array_equal(a.versions[ALL], b.versions[ALL]) for a, b in zip(one, two, strict=True))


def test_a_damaged_image_is_not_shown_and_does_not_end_the_command(tmp_path: Path) -> None:
    from tests.images import write_images

    root = write_images(tmp_path / "pets", {"train": 6, "val": 2}, size=(32, 32))
    for number in (0, 3):
        (root / "train" / "cat" / f"{number}.jpg").write_bytes(b"\xff\xd8 no image")
    words = ["recipe=small", f"dataset.path={root}", "launch=cpu", "batch_size=4", "algorithms=[mixup]"]
    plan = prepare(compose(words)).plan
    with closing(loaders_here(plan)) as loaders:
        reader = loaders.train.reader
        assert "2 of these cannot be decoded" in images_section(reader, reader, [], 0)
        (shown,) = examples(plan, reader, [0, 1], 6, [0])
    files = {reader.name(one.index) for one in shown if 0 in one.label}
    assert files <= {f"cat/{number}.jpg" for number in (1, 2, 4, 5)}


@pytest.mark.parametrize("name", TASKS)
def test_labels_and_numbers_are_shown_with_their_targets_in_the_step(name: str) -> None:
    run = build(*TASKS[name])
    with closing(run.loaders):
        images, labels, indices = next(iter(run.loaders.train.epoch(0, 1)))
        targets = run.train_step.prepare(Batch(images, labels, indices, run.moment(1))).targets
        shown = seen(run, 1)
    assert len({one.index for one in shown}) == len(shown) > 3
    for one in shown:
        row = indices.tolist().index(one.index)
        if name == "regression":
            assert [*one.label.values()] == pytest.approx(labels[row].tolist())
            predicted = run.train_step.task.predictions(targets[row : row + 1], "abc", 1)
            assert [*one.target.values()] == pytest.approx([value for _, value in predicted[0]])
        else:
            assert {*one.label} == {*labels[row].nonzero()[:, 0].tolist()}
            assert one.target == pytest.approx({n: targets[row, n].item() for n in one.target})
            assert {n for n, value in enumerate(targets[row]) if value > 0.2} <= {*one.target}
