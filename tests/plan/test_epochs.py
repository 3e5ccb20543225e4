"""Epochs of unequal lengths: their steps, and what is counted in epochs."""

import pytest

from launcher.plan.epochs import EpochSteps
from launcher.plan.plan import Plan
from tests.configs import composed

DROPPING = ["algorithms=[sample_dropping]", "batch_size=10", "epochs=8", "schedule.warmup=0ba", "schedule.fit=off"]


def plan(*words: str) -> Plan:
    return Plan(composed(*DROPPING, *words), 1, 105)


def test_places_in_epochs_of_unequal_lengths_by_hand() -> None:
    epochs = EpochSteps.of(3, 10, [lambda epoch: (1.0, 0.55, 0.9)[epoch], lambda epoch: 0.95])
    assert epochs.starts == (0, 10, 16, 25)
    assert (epochs.total, epochs.shortest, str(epochs)) == (25, 6, "6 to 10 steps")
    assert [epochs.place(step) for step in (0, 9, 10, 15, 16, 24)] == [(0, 0), (0, 9), (1, 0), (1, 5), (2, 0), (2, 8)]
    assert [epochs.before(step) for step in (0, 5, 10, 13, 25)] == [0, 0.5, 1, 1.5, 3]
    assert [epochs.of_epochs(number) for number in (0, 0.5, 1, 1.5, 2, 3)] == [0, 5, 10, 13, 16, 25]
    assert [step for step in range(26) if epochs.is_due(step, 1)] == [10, 16, 25]
    assert [step for step in range(26) if epochs.is_due(step, 0.5)] == [5, 10, 13, 16, 21, 25]


def test_steps_after_the_run_are_in_further_epochs() -> None:
    """As after a resume with fewer epochs, whose error states how many are complete."""
    for epochs in (EpochSteps(3, 10), EpochSteps.of(3, 10, [lambda epoch: 0.5])):
        assert epochs.place(epochs.total) == (3, 0)
        assert epochs.before(epochs.total + 10) == 4


def test_the_plan_reads_the_share_of_infobatch_until_its_end() -> None:
    run = plan("algorithms.sample_dropping.share=0.3", "algorithms.sample_dropping.end=0.75")
    assert [run.epoch_steps.length(epoch) for epoch in range(8)] == [10, 7, 7, 7, 7, 7, 10, 10]
    assert run.total_steps == 65
    short = plan("epochs=4")
    assert [short.epoch_steps.length(epoch) for epoch in range(4)] == [10, 7, 7, 10]


def test_the_plan_decays_the_samples_of_progressive_dropping() -> None:
    run = plan("algorithms.sample_dropping.policy=progressive", "algorithms.sample_dropping.decay=0.8")
    assert [run.epoch_steps.length(epoch) for epoch in range(8)] == [10, 8, 7, 6, 5, 4, 3, 10]


def test_the_schedule_follows_the_epochs_and_ends_with_the_run() -> None:
    run = plan("schedule=multi_step", "schedule.milestones=[2ep,6ep]", "schedule.gamma=0.1")
    factors = [run.lr_multiplier(run.epoch_steps.first(epoch)) for epoch in range(8)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01])
    assert run.lr_multiplier(run.epoch_steps.first(2) - 1) == 1
    half = plan("schedule=multi_step", "schedule.milestones=[4ep,12ep]", "schedule.dilate=0.5", "epochs=16")
    assert half.epoch_steps == run.epoch_steps
    assert [half.lr_multiplier(step) for step in range(half.total_steps)] == pytest.approx(
        [run.lr_multiplier(step) for step in range(run.total_steps)]
    )
    stairs = plan("schedule=cosine", "schedule.granularity=epoch")
    first = [stairs.epoch_steps.first(epoch) for epoch in range(8)]
    assert [stairs.lr_multiplier(step) for step in range(stairs.total_steps)] == [
        stairs.lr_multiplier(first[stairs.epoch_steps.place(step)[0]]) for step in range(stairs.total_steps)
    ]
    assert plan("schedule=linear").lr_multiplier(run.total_steps - 1) == pytest.approx(1 / run.total_steps)


def test_events_of_epochs_are_at_their_ends() -> None:
    run = plan()
    ends = [run.epoch_steps.first(epoch) for epoch in range(1, 9)]
    assert [step for step in range(1, run.total_steps + 1) if run.is_due(step, "1ep")] == ends
    assert [step for step in range(1, run.total_steps + 1) if run.is_due(step, "3ep")] == [ends[2], ends[5]]
    assert [step for step in range(1, 20) if run.is_due(step, "4ba")] == [4, 8, 12, 16]
    assert run.steps_between("2ep") == pytest.approx(run.total_steps / 4)
    assert run.steps_between("4ba") == 4
