"""`budget=` of a run: known runs of the images, smaller images, the start of a job."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import within
from launcher.cli.auto import with_recipe
from launcher.config.resolved import read
from tests.commands import execute, output_of, refused
from tests.images import write_images


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", {"train": 60, "val": 5}, size=(48, 50))


def test_a_budget_is_the_time_of_the_longest_run_that_the_images_are_worth(images: Path, here: Any) -> None:
    code, shown, errors = execute("show", f"dataset.path={images}", "launch=cpu", "budget=90s", f"runs={here.folder}")
    assert (code, "budget=90s: no finished run of these images in so short a time" in errors) == (0, True)
    assert re.search(r"minutes: 1\.5\b", shown)


def test_money_is_the_time_that_it_pays_for_on_a_machine_with_a_price() -> None:
    words = ["show", "auto", "dataset=shapes", "launch=cpu", "hardware.price_per_hour=2.5"]
    code, shown, errors = execute(*words, "budget=1usd")
    assert code == 0, errors
    assert re.search(r"minutes: 24\b", shown)
    assert "budget=1eur: its price is in USD" in refused(*words, "budget=1eur")


@pytest.mark.system
def test_a_budget_of_a_job_pays_its_start_too(images: Path) -> None:
    words = ["submit", "--slurm", f"dataset.path={images}", "launch=cpu", "hardware.price_per_hour=2.5"]
    code, job, errors = execute(*words, "budget=1usd")
    assert (code, "stop.minutes=22.5 " in job) == (0, True), errors
    assert "budget=1usd: 24 min, 1.5 of them assumed for the job's start" in errors
    assert "budget=5s: a job takes 1.5 min to start; set more, such as 3min" in refused(*words, "budget=5s")


@pytest.mark.system
def test_a_budget_shows_the_finished_runs_that_ended_in_it(images: Path, here: Any) -> None:
    words = ["auto", f"dataset.path={images}", "model=resnet18", "dataset.native_size=32", "launch=cpu"]
    words += ["launch.nproc=1", "dataloader.workers=0", "budget=10min"]
    first = here(*words, "epochs=1", "run_name=first", "batch_size=20")
    assert "1 of 1 epoch fit by the time of measured steps" in first.stdout
    config = read(here.folder / "runs" / "first" / "config.yaml")
    assert 5 < (config.stop.minutes or 0) < 10
    known = here(*words, "epochs=1", "run_name=second", "seed=1")
    assert re.search(
        r"auto: budget=10min: top-1 [\d.]+ % \(one run\) in \d+ s: train recipe=small .*epochs=1", known.stderr
    )
    second = read(here.folder / "runs" / "second" / "config.yaml")
    assert (second.epochs, second.batch_size, second.seed) == (1, 8, 1)


@pytest.mark.parametrize(("seconds", "words"), [(61.0, ["recipe=hot", "epochs=3"]), (59.0, [])])
def test_a_known_run_is_repeated_if_it_took_half_of_the_time(
    seconds: float, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SimpleNamespace(words=("recipe=hot", "epochs=3", "seed=1"), line="", seconds=seconds)
    monkeypatch.setattr(within, "_known", lambda *_: [known])
    typed = {"recipe": "auto", "seed": 2, "budget": "2min"}
    chosen, _ = within.best_within("run", ["recipe=auto", "seed=2", "budget=2min"], typed, "shapes")
    assert chosen == [*(words or ["recipe=auto"]), "seed=2", "stop.minutes=2"]


@pytest.mark.parametrize(
    ("words", "may_shrink"),
    [
        ([], True),
        (["dataset.native_size=64"], False),
        (["epochs=3"], False),
        (["model=resnet18", "recipe=auto"], False),
    ],
)
def test_images_become_smaller_for_a_budget_unless_their_size_or_length_is_typed(
    words: list[str], may_shrink: bool, images: Path, here: Any
) -> None:
    plan = ["plan", f"dataset.path={images}", "launch=cpu", "budget=5min", f"runs={here.folder}", *words]
    assert ("stop.minutes=5 and their image size" in output_of(*plan)) == may_shrink
    submit, run = (with_recipe(verb, plan[1:])[1] for verb in ("submit", "run"))
    assert submit is not None
    assert run is not None
    # note: a job has less time, after its start
    assert replace(submit.config, stop=run.config.stop) == run.config
    assert (submit.may_shrink, run.may_shrink, submit.ends) == (may_shrink, may_shrink, None)
