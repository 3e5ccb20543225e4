import numpy as np
import pytest

from launcher.config.recipes import load
from launcher_lab.study.tracks import p_value, rules, track, tracks_file
from tests.commands import refused

SHAPES = ("dataset=shapes", "model=resnet18", "dataset.native_size=32")


@pytest.mark.parametrize(("runs", "spread"), [(5, 0.1), (3, 3.0)])
def test_a_record_is_false_in_one_of_a_hundred_experiments(runs: int, spread: float) -> None:
    rng, experiments = np.random.default_rng(runs), 20_000
    drawn = rng.normal(78.1, spread, (experiments, runs))
    false = sum(p_value(one, 78.1) < rules().p for one in drawn.tolist())
    # note: three standard errors of a hundredth
    assert false / experiments == pytest.approx(0.01, abs=0.0022)


def test_the_p_value_is_that_of_students_table() -> None:
    # note: t = 3.747 with four degrees of freedom, and 6.965 with two, for 0.01 on one side
    for runs, t in ((5, 3.747), (3, 6.965)):
        noise = np.resize([-1.0, 1.0, 0.0], runs)
        noise = (noise - noise.mean()) / noise.std(ddof=1)
        assert p_value([*(76.0 + t / runs**0.5 + noise)], 76.0) == pytest.approx(0.01, rel=1e-3)
    assert p_value([80.0] * 5, 78.0) == 1.0
    assert p_value([70.0, 71.0, 72.0], 78.0) > 0.99


def test_the_targets_of_imagenet_are_published_accuracies() -> None:
    published = {one.top1 for name in ("mild", "hot") for one in load(name).about.published}
    names = [name for name in tracks_file()["tracks"] if name != "shapes"]
    assert names == ["75.9", "78.1", "80.0", "81.0"]
    assert {75.9, 78.1, 80.0} <= published
    assert [track(name).target for name in names] == [float(name) for name in names]
    assert track("own:62.5").target == 62.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["recipe=mild"], "set one track, such as track=78.1"),
        (["track=78.0"], "did you mean 78.1? one of: 75.9, 78.1, 80.0, 81.0, shapes"),
        (["track=own:x"], "no such track"),
        (["track=own:1", *SHAPES, "seed=3"], "the runs of a record have the seeds of its rules"),
        (["track=own:1", *SHAPES, "run_name=a"], "cannot be set for several runs"),
        (["track=own:1", *SHAPES, "epochs=1,2"], "takes one value"),
        (["track=own:1", *SHAPES, "target=top1:0.5"], "target=top1:0.5: must be null for track=own:1"),
        (["track=own:1", *SHAPES, "stop.patience=2"], "stop.patience=2: must be null"),
        (["track=own:1", *SHAPES, "model.weights=library"], "model.weights=library: must be null"),
        (["track=shapes", *SHAPES, "dataset.val_samples=50"], "dataset.val_samples=50: must be 1000 for track=shapes"),
        (["track=75.9", "recipe=mild", "image.eval_views=5crop"], "image.eval_views=5crop: must be centre"),
        (
            ["track=own:1", *SHAPES, "algorithms.distillation.teacher=resnet50"],
            "algorithms.distillation.teacher=resnet50: the training of other networks is not timed; "
            "set algorithms.distillation=off",
        ),
    ],
)
def test_what_is_no_record_is_refused_before_a_run(words: list[str], message: str) -> None:
    assert message in refused("speedrun", *words)
