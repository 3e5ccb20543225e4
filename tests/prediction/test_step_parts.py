"""The parts of a step: their sum, and their owners."""

from dataclasses import replace

import pytest

from launcher.config.compose import compose
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import step_kinds, step_samples
from launcher.prediction.step_parts import Splitter, split, waiting, weights
from launcher.training.trainer import Trainer
from tests.measurements import measured
from tests.trainers import alone

pytestmark = pytest.mark.usefixtures("tiny_networks")

SMALL = [
    *("dataset=shapes", "dataset.train_samples=32", "dataset.val_samples=10", "dataset.native_size=32"),
    *("model=resnet18", "launch=cpu", "batch_size=8", "dataloader=synthetic", "schedule.warmup=0ba", "epochs=5"),
]


def build(*words: str) -> Trainer:
    config = compose([*words, *SMALL]).config
    return alone(replace(config, optimizer=replace(config.optimizer, lr=0.0)))


class Time:
    """A clock set by hand."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_second_gradient_counts_for_the_algorithm_that_computes_it() -> None:
    clock = Time()
    splitter = Splitter(lambda: None, clock)
    for _ in range(3):
        with splitter.part("sam"):
            clock.seconds += 1
            for _ in range(2):
                with splitter.part("backward"):
                    clock.seconds += 20
                    with splitter.part("forward"):
                        clock.seconds += 10
    assert splitter.seconds == {"sam": 3 * 31, "backward": 3 * 20, "forward": 3 * 10}


def test_the_parts_of_hot_add_up_to_its_steps() -> None:
    run = build("recipe=hot")
    parts = split(run, 0.01)
    acting = {"colout", "randaugment", "label_smoothing", "mixup", "progressive_resizing", "sam", "channels_last"}
    own = {"prepare", "forward", "loss", "backward", "optimizer", "rest"}
    assert parts.keys() >= acting | own
    assert min(parts.values()) >= 0


def test_the_second_gradient_of_sam_counts_for_sam() -> None:
    every = split(build("recipe=hot", "algorithms.sam.interval=1"), 0.01)
    assert every["sam"] > 0.3 * (every["forward"] + every["backward"])
    assert "sam" not in split(build("recipe=mild"), 0.01)


def test_the_weights_of_the_points_are_the_whole_run() -> None:
    plan = Plan(compose(["recipe=hot", *SMALL]).config, 1, 800)
    kinds = step_kinds(plan)
    fractions = weights(kinds, step_samples(kinds))
    assert sum(fractions.values()) == pytest.approx(1.0)
    sam = sum(weight for point, weight in fractions.items() if "sam" in point.kind.acting)
    assert sam == pytest.approx(1 / 5)


def test_a_step_waits_only_for_loading_that_is_not_hidden() -> None:
    run = Plan(compose(["recipe=mild", "dataset=shapes", "batch_size=64", "epochs=10"]).config, 1, 4000)
    times = replace(measured(run, lambda kind: kind.view**2 * 1e-4, 5.0), transfer_seconds=[0.5, 1.5])
    alone = sum(run.view(step) ** 2 * 1e-4 for step in range(run.total_steps)) / run.total_steps
    assert waiting(run, times) == {"data": pytest.approx(4.0 - alone, rel=1e-3), "transfer": 1.0}
    assert waiting(run, replace(times, transfer_seconds=[0.0, 20.0]))["data"] == 0.0
