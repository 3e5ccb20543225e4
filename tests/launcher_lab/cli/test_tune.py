"""Search spaces, and their trials against scipy's sequence and the published ranges."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import paths
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.records.metrics import EvalRecord
from launcher.records.run_folder import RunFolder
from launcher_lab.cli.tune import Space, Trial, read_space, results, trials, values_at, words
from tests.commands import refused
from tests.made_runs import append, end

PACKAGED = sorted(path.stem for path in (paths.CONF / "tuning").glob("*.yaml"))


def space(tmp_path: Path, text: str) -> Space:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return read_space(str(path))


@given(number=st.floats(0, 1, exclude_max=True))
def test_values_are_within_their_ranges(tmp_path_factory: pytest.TempPathFactory, number: float) -> None:
    searched = space(
        tmp_path_factory.mktemp("space"),
        "optimizer.lr: {low: 0.001, high: 1.0, scale: log}\n"
        "optimizer.momentum: {low: 0.0, high: 0.99, scale: log_from_one}\n"
        "epochs: {low: 2, high: 4}\n"
        "batch_size: {low: 16, high: 256, scale: log}\n"
        "algorithms.mixup.alpha: [0.1, 0.2, 0.4]\n"
        "seed: 7\n",
    )
    values = values_at(searched, [number] * len(searched.axes))
    assert 0.001 <= values["optimizer.lr"] <= 1.0
    assert 0.0 <= values["optimizer.momentum"] <= 0.99
    assert values["epochs"] in (2, 3, 4)
    assert isinstance(values["batch_size"], int)
    assert values["algorithms.mixup.alpha"] in (0.1, 0.2, 0.4)
    assert values["seed"] == 7


def test_scales_by_hand(tmp_path: Path) -> None:
    lr, momentum = "{low: 0.01, high: 1.0, scale: log}", "{low: 0.0, high: 0.99, scale: log_from_one}"
    values = values_at(space(tmp_path, f"optimizer.lr: {lr}\noptimizer.momentum: {momentum}"), [0.5, 0.5])
    assert values["optimizer.lr"] == pytest.approx(0.1)
    assert values["optimizer.momentum"] == pytest.approx(0.9)


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_spaces_give_valid_runs_within_the_published_ranges(name: str) -> None:
    drawn = trials(read_space(name), studies=3, each=5, seed=42)
    assert [(t.study, t.number) for t in drawn] == [(s, n) for s in (1, 2, 3) for n in range(1, 6)]
    for trial in drawn:
        config = compose([*words(trial, 42), "recipe=mild"]).config
        assert config.optimizer.name == "adamw"
        assert config.seed == 42 + trial.study - 1
        low, high = {"adamw_narrow": (2e-4, 5e-3), "adamw_broad": (5e-6, 2e-2)}[name]
        assert low <= config.optimizer.lr <= high


def test_trials_are_consecutive_halton_points_of_scipy(tmp_path: Path) -> None:
    import numpy as np
    from scipy.stats.qmc import Halton, discrepancy

    searched = space(tmp_path, "image.flip: {low: 0.0, high: 1.0}\noptimizer.momentum: {low: 0.0, high: 1.0}")
    drawn = trials(searched, studies=2, each=32, seed=3)
    expected = Halton(2, scramble=True, rng=np.random.default_rng(3)).random(64)
    points = np.array([list(trial.values.values()) for trial in drawn])
    assert points == pytest.approx(expected)
    assert drawn[:10] == trials(searched, studies=1, each=10, seed=3)[:10]
    assert discrepancy(points) < discrepancy(np.random.default_rng(0).random((64, 2)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.lrr: [0.1, 0.2]", "did you mean optimizer.lr?"),
        ("optimizer.lr: {low: 1.0, high: 0.1}", "with low < high"),
        ("optimizer.lr: {low: 0.0, high: 0.1, scale: log}", "with low < high"),
        ("optimizer.lr: {low: 0.1}", "must be a value"),
        ("optimizer.lr: []", "must be a value"),
        ("optimizer.lr: 0.1", "varies nothing"),
        ("- 1", "mapping"),
    ],
)
def test_a_wrong_space_is_a_one_line_error(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        space(tmp_path, text)


def test_the_error_of_an_unknown_space_lists_the_packaged_ones() -> None:
    with pytest.raises(UserError, match="adamw_narrow"):
        read_space("adam_narow")


@pytest.mark.parametrize("words", [["--trials", "99999999"], ["--trials", "200", "--studies", "900"]])
def test_too_many_trials_are_refused_at_once(words: list[str]) -> None:
    assert f"{words[-2]}={words[-1]}: makes more than 1,000 runs" in refused("tune", "adamw_narrow", *words)


def test_results_are_ordered_by_accuracy_or_by_time_to_target(tmp_path: Path) -> None:
    drawn = [Trial(1, number, {"optimizer.lr": 0.1 * number}) for number in (1, 2, 3)]
    for trial, evaluations in zip(drawn[:2], ([(10.0, 0.5), (20.0, 0.9)], [(10.0, 0.6), (20.0, 0.7)]), strict=True):
        folder = RunFolder(tmp_path / trial.name)
        folder.path.mkdir()
        rows = [
            EvalRecord(step, 0.0, step, {"top1": top1, "top5": 1.0}, 1.0, 10, 1.0, seconds)
            for step, (seconds, top1) in enumerate(evaluations, 1)
        ]
        append(folder.metrics, *rows, end(2))
    plain, aimed = (
        results(drawn, tmp_path, goal, compose([]).config.task.primary)
        for goal in (None, compose([]).config.task.goal("top1:0.6"))
    )
    assert [(r.trial.number, r.top1, r.seconds) for r in plain] == [(1, 0.9, 20.0), (2, 0.7, 20.0), (3, None, None)]
    assert [(r.trial.number, r.seconds) for r in aimed] == [(2, 10.0), (1, 20.0), (3, None)]
    assert [r.finished for r in plain] == [True, True, False]
