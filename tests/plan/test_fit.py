"""Durations with schedule.fit=on: at any length, those in epochs and batches are within the run."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.config import recipes
from launcher.config.compose import compose
from launcher.config.fields import parse_duration
from launcher.config.keys import longest_fraction
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping, read
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan, fitted, plan_for
from tests.configs import composed, with_values
from tests.runs import SMALL, Here

WORDS = ("batch_size=10", "schedule.fit=on")
FREEZING = ("algorithms.backbone_freezing=on", "model.weights=torchvision")
ALGORITHMS = ("algorithms.ema=on", *FREEZING, "schedule.warmup=0ba")
DURATIONS = st.one_of(st.integers(0, 400).map("{}ep".format), st.integers(0, 10_000).map("{}ba".format))


def plan(*words: str, samples: int = 100, **values: object) -> Plan:
    """Return the fitted plan of ten steps per epoch; sets values by dotted key in a config that is composed once."""
    return fitted(Plan(with_values(composed(*WORDS, *words), values), 1, samples))


def is_duration(value: object) -> bool:
    try:
        return bool(parse_duration(str(value)))
    except ValueError:
        return False


@settings(max_examples=60, deadline=None)
@example(epochs=1, samples=20, warmup="8ep", half_life="100ba", until="1ep", dilate=1.0)
@given(
    epochs=st.integers(1, 300),
    samples=st.integers(20, 5000),
    warmup=DURATIONS,
    half_life=DURATIONS,
    until=DURATIONS,
    dilate=st.sampled_from([0.25, 1.0, 3.0]),
)
def test_at_any_length_every_duration_is_within_the_run(
    epochs: int, samples: int, warmup: str, half_life: str, until: str, dilate: float
) -> None:
    values = {"epochs": epochs, "schedule.warmup": warmup, "schedule.dilate": dilate}
    values |= {"algorithms.ema.half_life": half_life, "algorithms.backbone_freezing.until": until}
    run = plan(*ALGORITHMS, samples=samples, **values)
    total, ema, freezing = run.total_steps, run.config.algorithms["ema"], run.config.algorithms["backbone_freezing"]
    assert run.warmup_steps < total
    assert run.every(ema.half_life) < total
    assert run.every(ema.update_interval) <= max(1, total // 50)
    assert run.every(freezing.until) < total
    check(run, {})
    assert fitted(run) is run


@settings(max_examples=60, deadline=None)
@given(epochs=st.integers(1, 200), last=st.integers(1, 400), parts=st.lists(st.floats(0.01, 0.99), max_size=4))
def test_milestones_keep_their_ratios(epochs: int, last: int, parts: list[float]) -> None:
    steps = [*sorted(round(part * last * 10) for part in parts), last * 10]
    milestones = [f"{g}ba" for g in steps]
    run = plan("schedule=multi_step", **{"epochs": epochs, "schedule.milestones": milestones})
    fitted_steps = [run.schedule_steps(text) for text in run.config.schedule.milestones]  # type: ignore[union-attr]
    assert fitted_steps[-1] <= 0.9 * run.total_steps
    factor = fitted_steps[-1] / steps[-1]
    assert fitted_steps == pytest.approx([factor * g for g in steps], abs=1)
    check(run, {})


def test_short_durations_and_fractions_of_the_run_stay() -> None:
    durations = ["algorithms.ema.half_life=0.4dur", "algorithms.ema.update_interval=2ba"]
    words = ["epochs=100", "schedule.warmup=9ep", *durations]
    run = plan(*words)
    assert run.config == composed(*WORDS, *words)
    assert run.shortened == {}


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["finetune", "small"]),
    epochs=st.integers(1, 300),
    samples=st.integers(128, 20_000),
    warmup=st.sampled_from(["", "8ep", "500ba"]),
)
def test_recipes_for_ones_own_images_fit_any_run(name: str, epochs: int, samples: int, warmup: str) -> None:
    values = {"epochs": epochs, **({"schedule.warmup": warmup} if warmup else {})}
    config = with_values(composed(f"recipe={name}", "model.weights=torchvision"), values)
    run = fitted(Plan(config, 1, samples))
    ema = run.config.algorithms["ema"]
    check(run, {})
    assert run.warmup_steps < run.total_steps
    assert run.every(ema.half_life) < run.total_steps


@pytest.mark.parametrize("name", [recipe.name for recipe in recipes.listing() if recipe.about.published])
def test_published_recipes_are_not_fitted(name: str) -> None:
    config = compose([f"recipe={name}", "epochs=9"]).config
    config = replace(config, dataset=replace(config.dataset, train_samples=10_000))
    assert config.schedule.fit == "off"
    assert plan_for(config, 1).config == config


def test_a_run_keeps_its_fitted_durations_and_no_resume_changes_them(here: Here) -> None:
    words = [*SMALL, "schedule.warmup=8ep", "schedule.fit=on", "run_name=short"]
    assert (
        "schedule.fit=on shortens the schedule for 18 steps: schedule.warmup=8ep to 0.1dur"
        in here(*words, stop_after=2, code=143).stdout
    )
    run = here.folder / "runs" / "short"
    assert read(run / "config.yaml").schedule.warmup == "0.1dur"
    with (run / "config.yaml").open() as file:
        text = file.read()
    (run / "config.yaml").write_text(text.replace("warmup: 0.1dur", "warmup: 1ba"))
    refused = here("resume", str(run), "epochs=1", code=2).stderr
    assert "epochs=1" in refused
    assert "is too short: schedule.fit=on would change schedule.warmup" in refused
    (run / "config.yaml").write_text(text)
    here("resume", str(run), "epochs=2")
    assert here.state(run)["step"] == 12


def test_the_plan_notes_the_shortened_durations() -> None:
    run = plan("recipe=mild", "epochs=9", "algorithms.swa=off", "batch_size=10")
    assert [line for line in notes(run) if "fit" in line] == [
        "schedule.fit=on shortens the schedule for 90 steps: schedule.warmup=8ep to 0.1dur, algorithms.ema.half_life="
        "100ba to 0.05dur, algorithms.ema.update_interval=20ba to 0.01dur"
    ]
    assert (run.warmup_steps, run.shortened["schedule.warmup"]) == (9, "8ep")


@pytest.mark.parametrize("words", [["schedule=multi_step", "algorithms=[ema,backbone_freezing]"], ["algorithms=[swa]"]])
def test_all_durations_but_those_of_evaluation_checkpoints_and_records_are_fitted(words: list[str]) -> None:
    values = as_mapping(compose(words).config)
    durations = [
        key for key, value in leaves(values) if is_duration(value[0] if isinstance(value, list) and value else value)
    ]
    apart = ["eval_every", "checkpoint.every", "logger.interval"]
    assert [key for key in durations if not 0 < (longest_fraction(key) or 0) <= 1] == apart
    words_apart = [f"{key}={value}" for key, value in zip(apart, ("7ep", "800ba", "90ba"), strict=True)]
    config = plan("epochs=2", *words_apart).config
    assert (config.eval_every, config.checkpoint.every, config.logger.interval) == ("7ep", "800ba", "90ba")
