"""The published points as curves, and beside those of own runs."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from launcher import paths
from launcher.config import recipes
from launcher.config.groups import machines
from launcher.config.yaml_file import read_mapping
from launcher.records.run import find_runs, read_run
from launcher.records.scales import TOP1, QualityScale, scale_named
from launcher.results.curves import Cost, Curve, CurvePoint, StudySetting, build_curves, named_by_metric

_FILE = Path(__file__).with_name("published.yaml")
_DATASET, _MODEL = "imagenet", "resnet50"


def known_curves(paths: Iterable[str]) -> list[Curve]:
    """Return the curves of the finished runs at or below the paths, and the published ones of their metrics.

    Raises UserError if a path contains no run folder.
    """
    curves = build_curves(map(read_run, find_runs(paths)))
    return [*curves, *published_curves({curve.metric for curve in curves} or {TOP1})]


def published_curves(metrics: Collection[QualityScale] = (TOP1,)) -> list[Curve]:
    """Return the points of the packaged recipes and of published.yaml, one curve per recipe and machine."""
    points: dict[tuple[str, StudySetting, QualityScale], list[dict[str, Any]]] = defaultdict(list)
    for entry in _entries():
        metric = scale_named("perplexity" if entry.get("perplexity") else "top1")
        dataset = named_by_metric(entry.get("dataset", _DATASET), metric)
        setting = StudySetting(dataset, entry.get("model", _MODEL), entry["hardware"])
        if metric in metrics:
            points[entry["recipe"], setting, metric].append(entry)
    curves = []
    for (recipe, setting, metric), entries in points.items():
        source = "; ".join(dict.fromkeys(str(entry["source"]) for entry in entries))
        curves.append(Curve(recipe, recipe, setting, _curve_points(entries, metric), source, metric))
    return sorted(curves, key=lambda curve: (curve.name, curve.setting.model, curve.setting.hardware))


def _entries() -> Iterable[dict[str, Any]]:
    for recipe in recipes.listing():
        if recipe.path.parent == paths.PACKAGED_RECIPES:
            for result in recipe.about.published:
                if result.minutes is not None:
                    options = {key: recipe.options[key] for key in ("dataset", "model")}
                    yield {"recipe": recipe.name, **options, **vars(result)}
    yield from published()["points"]


@cache
def published() -> dict[str, Any]:
    """Read published.yaml."""
    return read_mapping(_FILE)


def _curve_points(entries: Iterable[Mapping[str, Any]], metric: QualityScale) -> tuple[CurvePoint, ...]:
    points = []
    for entry in sorted(entries, key=lambda entry: float(entry["minutes"])):
        minutes, epochs = float(entry["minutes"]), entry.get("epochs")
        costs: dict[Cost, tuple[float, ...]] = {"time": (minutes,)}
        machine = machines().get(re.sub(r"\W", "_", str(entry["hardware"]).lower()))
        if machine and machine.price_per_hour is not None:
            costs["money"] = (machine.price_per_hour * minutes / 60,)
        if epochs is not None:
            costs["epochs"] = (float(epochs),)
        quality = metric.sign * float(entry.get("perplexity") or entry["top1"])
        points.append(CurvePoint(epochs, (quality,), costs, note=str(entry.get("derived") or "")))
    return tuple(points)
