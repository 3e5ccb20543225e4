"""Tradeoff curves with chosen points, and many runs of them."""

from pathlib import Path
from typing import Any

from launcher.records.run import Evaluated, RunSummary, Times
from launcher.results.curves import Curve, CurvePoint, StudySetting, build_curves
from launcher.results.published import published_curves
from launcher_lab.study.results import Results

SETTING = StudySetting("shapes", "resnet18", "1x cpu")
_LENGTHS = (18, 36, 72, 144)
Values = float | tuple[float, ...]


def curve(name: str, *points: tuple[Values, Values], setting: StudySetting = SETTING) -> Curve:
    """Return a curve of (minutes, top-1) points, one per epoch; tuples have a value per seed."""

    def many(values: Values) -> tuple[float, ...]:
        return values if isinstance(values, tuple) else (values,)

    measured = (
        CurvePoint(n, many(top1), {"time": many(time), "epochs": (n,)}) for n, (time, top1) in enumerate(points, 1)
    )
    return Curve(name, name, setting, tuple(measured))


def made_results(runs: int, curves: int) -> Results:
    """Make runs of `curves` recipes, of several lengths and seeds, each with one evaluation per epoch."""
    summaries = [_run(number, curves) for number in range(runs)]
    return Results(summaries, build_curves(summaries), published_curves())


def _run(number: int, curves: int) -> RunSummary:
    recipe, length = number % curves, _LENGTHS[number // curves % len(_LENGTHS)]
    seed = number // (curves * len(_LENGTHS))
    end = 60 + 10 * (1 - 18 / length) + recipe % 37 / 10 + seed % 7 / 20
    evaluations = tuple(Evaluated(float(epoch), epoch * 0.5, end * (1 - 0.5 / epoch)) for epoch in range(1, length + 1))
    seconds = 30.0 * length * (1 + recipe % 11 / 10)
    config: dict[str, Any] = {
        "recipe": f"recipe {recipe}",
        "epochs": length,
        "seed": seed,
        "model": {"name": "resnet50"},
        "dataset": {"name": "imagenet", "classes": 1000},
        "optimizer": {f"value_{key}": key / 7 for key in range(60)},
        "schedule": {"name": "cosine", "dilate": 1.0},
    }
    command = ("train", f"recipe={recipe}", f"seed={seed}", f"epochs={length}")
    times = Times(seconds, seconds + 60)
    path = Path(f"runs/recipe {recipe}-{length}-{seed}")
    facts: dict[str, Any] = {"world_sizes": (8,), "identities": ("x" * 64,), "environment": {"command": command}}
    return RunSummary(path, "finished", None, config, length, "A100", evaluations, times, **facts)
