"""Runs on a simulated GPU: the same bits in every order of execution, and no more launches and waits than before.

The last order stops each run between steps and resumes it; runs with graphs end with the bits of those without.
"""

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml

from launcher.config.compose import compose
from launcher.config.groups import options
from tests.images import write_images
from tests.simulated_gpu import cases, job
from tests.simulated_gpu.cases import Case
from tests.trainers import ALGORITHMS, OPTIMIZERS

pytestmark = [job.needs_compiler, pytest.mark.sim, pytest.mark.timeout(6 * 3600 if job.EVERYTHING else 1800)]
COUNTS = Path(__file__).with_name("counts.yaml")
CASES = cases.ONE_RANK + cases.TWO_RANKS + (cases.everything() if job.EVERYTHING else [])
ORDERS = cases.MORE_ORDERS if job.EVERYTHING else cases.ORDERS

Outcomes = Callable[[int], job.Outcomes]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return class folders of 24 training and 6 validation images, FFCV's files of them, and a text."""
    from tests.data.conftest import write_files

    folder = write_images(tmp_path_factory.mktemp("images"), {"train": 24, "val": 6})
    write_files(folder)
    job.write_text(folder / "text")
    return folder


@pytest.fixture(scope="module")
def outcomes(images: Path) -> Outcomes:
    """Return the outcomes of all cases of as many ranks, by name; one job trains them."""

    @cache
    def trained(ranks: int) -> job.Outcomes | AssertionError:
        try:
            return job.train([case for case in CASES if case.ranks == ranks], ORDERS, images)
        except AssertionError as error:
            return error

    def of(ranks: int) -> job.Outcomes:
        outcomes = trained(ranks)
        assert not isinstance(outcomes, AssertionError), outcomes
        return outcomes

    return of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_order_of_execution_ends_with_the_same_bits(outcomes: Outcomes, case: Case) -> None:
    assert outcomes(case.ranks)[case.name]["problems"] == []


@pytest.mark.parametrize("case", cases.ONE_RANK + cases.TWO_RANKS, ids=lambda case: case.name)
def test_a_step_launches_and_waits_no_more_than_the_table_says(outcomes: Outcomes, case: Case) -> None:
    counts = yaml.safe_load(COUNTS.read_text())
    ours = outcomes(case.ranks)[case.name]
    if "TRAIN_TEST_WRITE" in os.environ:
        counts[case.name] = {"launches": ours["launches"], "waits": ours["waits"]}
        COUNTS.write_text(COUNTS.read_text().partition("\n\n")[0] + "\n\n" + yaml.safe_dump(counts, width=200))
    assert ours["launches"] <= counts[case.name]["launches"]
    assert ours["waits"] == counts[case.name]["waits"]


def test_the_random_numbers_of_a_step_are_drawn_while_the_device_has_two_others(outcomes: Outcomes) -> None:
    """In the order in which the device computes as late as possible; a capture waits for it."""
    rarely = [case for case in CASES if {*cases.RARELY} <= {*case.words} and not case.captured]
    ahead = {case.name: outcomes(case.ranks)[case.name]["ahead"] for case in rarely}
    assert {*ahead.values()} == {2}, ahead


def test_steps_that_can_be_captured_are_captured(outcomes: Outcomes) -> None:
    never = [case for case in CASES if case.captured and not outcomes(case.ranks)[case.name]["captures"]]
    configs = {case.name: compose(case.words).config for case in never}
    names = {name: " ".join([*config.algorithms, config.optimizer.name]) for name, config in configs.items()}
    wrong = [name for name, of in names.items() if not re.search("freezing|whitening|soap|shampoo|schedule_free", of)]
    assert wrong == []


def test_ci_covers_every_algorithm_optimizer_and_task() -> None:
    configs = [compose(case.words).config for case in cases.ONE_RANK]
    assert {name for config in configs for name in config.algorithms} >= set(ALGORITHMS)
    assert {config.optimizer.name for config in configs} == set(OPTIMIZERS)
    tasks = {config.task.name for config in configs}
    tasks |= {task for task, loader in cases.LOADERS.items() if loader in {case.loader for case in cases.ONE_RANK}}
    assert tasks == set(options("task"))
