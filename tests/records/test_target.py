"""Time to target on the training clock, and valid targets."""

from pathlib import Path
from typing import Literal

import pytest

from launcher.config.compose import compose
from launcher.config.tasks import Goal, Metric, Patience
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from launcher.records.metrics import reached
from launcher.tasks.classification import Classification
from tests.made_runs import evaluation

ROWS = [evaluation(step, top1).row() for step, top1 in ((10, 0.7), (20, 0.76), (30, 0.75))]


def test_the_first_evaluation_that_reaches_the_target_counts() -> None:
    task = Classification(name="classification")
    first = reached(ROWS, task.goal("top1:0.759"))
    assert (first["step"], first["train_seconds"]) == (20, 2.0)
    assert reached(ROWS, task.goal("top1:0.76")) == first
    assert reached(ROWS, task.goal("top1:0.77")) is None
    assert reached(ROWS, task.goal("top5:0.9")) == ROWS[0]


@pytest.mark.parametrize(("words", "metric"), [((), "top1:0.5"), (("task=regression",), "mae:0.5")])
def test_a_number_alone_is_of_the_primary_metric(words: tuple[str, ...], metric: str) -> None:
    for text in ("0.5", ".5"):
        config = compose([*words, f"target={text}"]).config
        assert config.task.goal(str(config.target)) == config.task.goal(metric)


@pytest.mark.parametrize("value", ["0.5", "5e-1", "'0.5'", "top1:0.5"])
def test_a_recipe_has_a_target_as_a_number(value: str, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"defaults: [train, _self_]\ntarget: {value}\n")
    config = compose([f"recipe={recipe}"]).config
    assert config.task.goal(str(config.target)).value == 0.5
    assert compose(["target=1"]).config.target == "1"


def test_a_target_that_is_no_number_is_refused_in_a_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    for value in ("true", "[0.5]", ".nan"):
        recipe.write_text(f"defaults: [train, _self_]\ntarget: {value}\n")
        with pytest.raises(UserError, match="target="):
            compose([f"recipe={recipe}"])


def test_lower_values_are_better_for_a_metric_such_as_an_error() -> None:
    goal = Goal(Metric("error", "error", "lower", is_share=False), 2.5)
    assert [goal.is_reached({"error": value}) for value in (3.0, 2.5, 2.0, None, float("nan"))] == [0, 1, 1, 0, 0]
    assert goal.metric.best([3.0, None, 2.0]) == 2.0
    assert (goal.metric.text(2.0), goal.metric.text(None)) == ("2", "nan")


@pytest.mark.parametrize(
    ("values", "min_delta", "better", "over"),
    [
        ([0.1, 0.2, 0.2], 0.0, "higher", 0),
        ([0.1, 0.2, 0.2, 0.2], 0.0, "higher", 1),
        ([0.1, 0.2, 0.1, 0.3, 0.3], 0.0, "higher", 0),
        ([0.1, 0.3, 0.35, 0.39], 0.1, "higher", 1),
        ([0.1, 0.3, 0.35, 0.41], 0.1, "higher", 0),
        ([3.0, 2.0, 2.0, 2.0], 0.0, "lower", 1),
        ([3.0, 2.0, 1.0, 2.0], 0.0, "lower", 0),
        ([None, float("nan"), 0.1], 0.0, "higher", 0),
        ([0.1, None, float("nan")], 0.0, "higher", 1),
        ([], 0.0, "higher", 0),
    ],
)
def test_patience_ends_after_evaluations_in_a_row_without_a_gain(
    values: list[float | None], min_delta: float, better: Literal["higher", "lower"], over: bool
) -> None:
    metric = Metric("measured", "measured", better)
    assert Patience(metric, 2, min_delta).is_over({"measured": value} for value in values) == over


@pytest.mark.parametrize(("accuracies", "over"), [([0.1, 0.3, 0.3], False), ([0.1, 0.2, 0.24], True)])
def test_early_stopping_follows_its_keys(accuracies: list[float], over: bool) -> None:
    words = ["stop.patience=2", "stop.min_delta=0.15", "stop.metric=balanced_accuracy"]
    config = compose(words).config
    patience = config.task.patience(config.stop)
    assert patience is not None
    # note: by top1 the first would end, and the second not
    evaluations = [
        {"balanced_accuracy": accuracy, "top1": 0.9 * index * over} for index, accuracy in enumerate(accuracies)
    ]
    assert patience.is_over(evaluations) == over


def test_the_metric_of_a_run_is_that_of_stop_and_target() -> None:
    config = compose(["metric=balanced_accuracy", "stop.patience=2", "target=0.7"]).config
    patience = config.task.patience(config.stop)
    assert patience is not None
    metrics = {config.task.primary, patience.metric, config.task.goal(str(config.target)).metric}
    assert {one.name for one in metrics} == {"balanced_accuracy"}
    assert config.task.text({"top1": 0.9, "top5": 1.0, "balanced_accuracy": 0.4}).startswith("balanced accuracy 40.00%")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["metric=balanced_acuracy"], r"metric=balanced_acuracy.* did you mean balanced_accuracy\?"),
        (["metric=top1", "task=regression"], r"metric=top1.* task=regression has no metric top1, only mae, r2;"),
        (
            ["metric=threshold", "task=multilabel", "loss=bce"],
            r"metric=threshold.* has no metric threshold, only map, f1;",
        ),
        (["metrics=balanced_accuracy"], r"task=classification has it without; set metric=balanced_accuracy to"),
        (["metrics=f2"], r"no such metric; set metrics.f2._target_ to a class or function"),
        (["callbacks=norms"], r"no such callback; set callbacks.norms._target_ to"),
    ],
)
def test_a_metric_that_is_not_there_is_refused_with_what_to_type(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(words)


def test_early_stopping_has_a_metric_of_the_task() -> None:
    with pytest.raises(UserError, match=r"stop.metric=tpo5: .* has no metric tpo5, .* did you mean top5\?"):
        check(Plan(compose(["stop.patience=3", "stop.metric=tpo5"]).config, 1, 320), {})


WRONG = {
    "75.9": "top1 must be above 0 and at most 1",
    "75.9%": "such as top1:0.759",
    "top1": "such as top1:0.759",
    "top1:75.9": "must be above 0 and at most 1",
    "top1:0": "must be above 0 and at most 1",
    "tpo1:0.7": "has no metric tpo1, only top1, top5, balanced_accuracy, macro_f1; did you mean top1:0.7?",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_target_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=WRONG[text]):
        check(Plan(compose(["launch=cpu", "dataset=shapes", f"target={text}"]).config, 1, 320), {})
