"""Runs that differ only in length and seed, as one tradeoff curve of quality against cost."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from launcher.config.groups import values as group_values
from launcher.config.layers import leaves
from launcher.config.recipes import find, load
from launcher.config.resolved import is_free
from launcher.config.yaml_file import read_mapping
from launcher.counts import count_of
from launcher.errors import UserError, shown
from launcher.records.run import RunSummary, data_path
from launcher.records.scales import TOP1, QualityScale

Cost = Literal["time", "wall", "money", "epochs"]
COSTS: tuple[Cost, ...] = ("time", "wall", "money", "epochs")
UNITS: dict[Cost, str] = {"time": "min", "wall": "min", "money": "USD", "epochs": "ep"}
# What a comparison can span, and the field of a setting that then may differ.
ACROSS = {"machines": "hardware", "models": "model", "datasets": "dataset"}

# Keys of seed, fold, length and metric; `launcher.config.resolved.is_free` has those of where and how a run computes.
_LENGTH_AND_SEED = ("seed", "dataset.fold", "schedule.dilate", "metric")
# Keys of the data set, which the setting holds.
_DATASET_KEYS = tuple(f"dataset.{key}" for key in ("name", "kind", "classes", "train_samples", "val_samples"))
# Keys that may end a run before its length, where they are set.
_EARLY = ("target", "stop.patience", "stop.min_delta", "stop.metric")
_SHOWN_DIFFERENCES = 3
# The data sets of the published points; other images or text must not match them.
_PUBLISHED = ("imagenet", "openwebtext")
_COUNTS = ("classes", "train_samples", "val_samples")
_DIGITS = 8


@dataclass(frozen=True)
class CurvePoint:
    """One length of a curve: one value per seed and fold, in the same order; of published points one, and no path."""

    epochs: int | None
    top1: tuple[float, ...]  # percent
    costs: Mapping[Cost, tuple[float, ...]]  # minutes, USD or epochs; without unknown costs
    paths: tuple[Path, ...] = ()
    note: str = ""

    @property
    def quality(self) -> float:
        """Return the mean top-1 over seeds, in percent."""
        return statistics.fmean(self.top1)

    def cost(self, axis: Cost) -> float | None:
        """Return the mean cost over seeds; None if unknown."""
        values = self.costs.get(axis)
        return statistics.fmean(values) if values else None


@dataclass(frozen=True)
class StudySetting:
    """The values that must be equal to compare two curves: data set, model and machine."""

    dataset: str
    model: str
    hardware: str

    def across(self, across: Collection[str]) -> StudySetting:
        """Return the setting of a comparison across some of `ACROSS`."""
        return replace(self, **{ACROSS[what]: f"all {what}" for what in across})


@dataclass(frozen=True)
class Curve:
    """Points of one configuration in one setting, from the shortest to the longest."""

    name: str
    recipe: str
    setting: StudySetting
    points: tuple[CurvePoint, ...]
    source: str | None = None  # of published points
    metric: QualityScale = TOP1

    def on(self, axis: Cost) -> list[CurvePoint]:
        """Return the points with a known cost, cheapest first."""
        return sorted((p for p in self.points if p.cost(axis) is not None), key=lambda p: p.cost(axis) or 0.0)

    def label(self, across: Collection[str]) -> str:
        """Return the name, with the fields that differ in a comparison across settings."""
        return ", ".join([self.name, *(getattr(self.setting, name) for what, name in ACROSS.items() if what in across)])


def metric_of(curves: Iterable[Curve | RunSummary]) -> QualityScale:
    """Return the scale of the metric of curves or runs; `quality` if they have several."""
    scales = {curve.metric for curve in curves} or {TOP1}
    return scales.pop() if len(scales) == 1 else QualityScale("quality")


def named_by_metric(dataset: str, metric: QualityScale) -> str:
    """Return the name of a data set in the setting of curves: other metrics are not compared with top-1."""
    return dataset if metric == TOP1 else f"{dataset}, {metric.heading}"


def deviation(values: Iterable[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values."""
    values = list(values)
    return statistics.stdev(values) if len(values) > 1 else None


def build_curves(runs: Iterable[RunSummary]) -> list[Curve]:
    """Build curves of the finished runs, sorted by name: the recipe and its changes.

    If several runs have the same seed, fold and length, only the last by folder name counts.
    """
    runs = list(runs)
    datasets = dataset_names(runs)
    groups: dict[tuple[StudySetting, str], list[RunSummary]] = defaultdict(list)
    for run, key in _curve_keys([run for run in runs if run.state == "finished" and not run.unusable]):
        dataset = named_by_metric(datasets[run.identity], run.metric)
        groups[StudySetting(dataset, run.model, run.hardware), key].append(run)
    names = _names(groups)
    curves = [
        Curve(names[key], group[0].recipe, key[0], _points(group), metric=group[0].metric)
        for key, group in groups.items()
    ]
    return sorted(curves, key=lambda curve: (curve.name, curve.setting.hardware, curve.setting.dataset))


def _trained_values(run: RunSummary) -> dict[str, Any]:
    """Return the values that determine the result of training, what ends it early included, without the length."""
    by_length = changed_with_length(run.recipe)
    return {
        key: value
        for key, value in run.values.items()
        # note: an empty mapping means no algorithms
        if value != {} and key not in (*_LENGTH_AND_SEED, *_DATASET_KEYS) and key not in by_length
        if not is_free(key) or (key in _EARLY and value)
    }


@cache
def changed_with_length(recipe: str) -> frozenset[str]:
    """Return the keys that the recipe sets by the length of the run."""
    try:
        # note: `find` first, since `load` would search for the nearest name
        lengths = load(recipe).lengths if find(recipe) else {}
    except UserError:
        return frozenset()
    return frozenset(key for path in lengths.values() for key, _ in leaves(read_mapping(path)))


def _curve_keys(runs: list[RunSummary]) -> list[tuple[RunSummary, str]]:
    """Return each run with the key of its curve.

    Lengths by dilation are one curve; lengths by `epochs`, which keep the warmup, are another. A run at the recipe's
    own length belongs to the dilated ones, if there are any.
    """
    trained = [json.dumps(_trained_values(run), sort_keys=True, default=str) for run in runs]
    bases = [
        (values, str(run.values.get("epochs")), run.hardware, run.identity)
        for values, run in zip(trained, runs, strict=True)
    ]
    dilated = {base for base, run in zip(bases, runs, strict=True) if run.values.get("schedule.dilate", 1) != 1}
    return [
        (run, json.dumps([base[0], base[1] if base in dilated else None]))
        for base, run in zip(bases, runs, strict=True)
    ]


def _points(runs: list[RunSummary]) -> tuple[CurvePoint, ...]:
    lengths: dict[int, dict[tuple[int | None, int | None], RunSummary]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: str(run.path)):
        assert run.epochs is not None
        lengths[run.epochs][run.seed, run.values.get("dataset.fold")] = run
    return tuple(_point(epochs, list(lengths[epochs].values())) for epochs in sorted(lengths))


def _point(epochs: int, runs: list[RunSummary]) -> CurvePoint:
    money = [run.money("training") for run in runs]
    costs: dict[Cost, tuple[float, ...]] = {
        "time": tuple(run.times.training / 60 for run in runs if run.times),
        "wall": tuple(run.times.wall / 60 for run in runs if run.times),
        "epochs": tuple(run.evaluations[-1].epoch if run.ended_by else float(epochs) for run in runs),
    }
    if None not in money:
        costs["money"] = tuple(m for m in money if m is not None)
    top1 = tuple(run.top1 for run in runs if run.top1 is not None)
    return CurvePoint(epochs, top1, costs, tuple(run.path for run in runs))


def _names(groups: Mapping[tuple[StudySetting, str], list[RunSummary]]) -> dict[tuple[StudySetting, str], str]:
    """Name each curve by its recipe, and several curves of a recipe by their changes to the most common values."""
    siblings: dict[tuple[StudySetting, str], list[tuple[StudySetting, str]]] = defaultdict(list)
    for key, runs in groups.items():
        siblings[key[0], runs[0].recipe].append(key)
    names = {}
    for (_, recipe), keys in siblings.items():
        named = {key: _named_values(groups[key][0], key[1]) for key in keys}
        reference = {
            name: Counter(json.dumps(values.get(name), default=str) for values in named.values()).most_common(1)[0][0]
            for name in dict.fromkeys(name for values in named.values() for name in values)
        } | dict.fromkeys(_EARLY, "null")
        used: Counter[str] = Counter()
        for key, values in named.items():
            name = " ".join([recipe, *_differences(values, reference)])
            used[name] += 1
            names[key] = name if used[name] == 1 else f"{name} #{used[name]}"
    return names


def _named_values(run: RunSummary, curve_key: str) -> dict[str, Any]:
    """Return the values for a curve's name, with the active algorithms and the length before dilation."""
    base = json.loads(curve_key)[1]
    return _readable_values(run) | ({"dilated from ep": base} if base is not None else {})


def _readable_values(run: RunSummary) -> dict[str, Any]:
    """Return the values that determine the result of training, and +NAME for each active algorithm."""
    values = _trained_values(run)
    on = dict.fromkeys(key.split(".")[1] for key in values if key.startswith("algorithms."))
    # note: distinguishes files of the same name, but is not readable
    values.pop("model.weights_sha256", None)
    return {**{f"+{name}": True for name in on}, **values}


def differing(runs: Sequence[RunSummary]) -> list[list[str]]:
    """Return the values of each run in which the configs of the runs differ: data, training, length, seed, machine."""
    keys = ("dataset.path", "dataset.name", "epochs", *_LENGTH_AND_SEED)
    every = [
        {**_readable_values(run), **{key: run.values.get(key) for key in keys}, "hardware": run.hardware}
        for run in runs
    ]
    names = dict.fromkeys(name for values in every for name in values)
    texts = {name: [json.dumps(values.get(name), default=str) for values in every] for name in names}
    differ = [name for name in names if len(set(texts[name])) > 1]
    # note: the values of an algorithm that only some runs have print no more than its name
    switched = {name[1:] for name in differ if name.startswith("+")}
    differ = [name for name in differ if not (name.startswith("algorithms.") and name.split(".")[1] in switched)]
    return [[_shown_value(name, values.get(name)) for name in differ] for values in every]


def _shown_value(name: str, value: Any) -> str:
    if name.startswith("+"):
        return f"{name[1:]}={'on' if value else 'off'}"
    return f"{name.removeprefix('algorithms.')}={shown(value)}"


def _differences(values: Mapping[str, Any], reference: Mapping[str, str]) -> list[str]:
    differences: list[str] = []
    switched = set()
    for key, usual in reference.items():
        if json.dumps(values.get(key), default=str) == usual:
            continue
        if key.startswith("+"):
            switched.add(key[1:])
            differences.append(key if values.get(key) else f"-{key[1:]}")
        elif not (key.startswith("algorithms.") and key.split(".")[1] in switched):
            differences.append(f"{key.removeprefix('algorithms.')}={shown(values.get(key))}")
    extra = len(differences) - _SHOWN_DIFFERENCES
    return differences if extra <= 0 else [*differences[:_SHOWN_DIFFERENCES], f"and {extra} more"]


def dataset_names(runs: Iterable[RunSummary]) -> dict[str, str]:
    """Return data set names by identity; repeated names get the path, repeated paths digits of the identity."""
    first: dict[str, RunSummary] = {}
    for run in runs:
        first.setdefault(run.identity, run)
    whole = {identity: run for identity, run in first.items() if not _is_subset(run)}
    names = Counter(run.dataset for run in whole.values())
    plain = {
        identity: run.dataset if identity in whole and names[run.dataset] == 1 else f"{run.dataset} ({_place(run)})"
        for identity, run in first.items()
    }
    same = Counter(plain.values())
    return {
        identity: name if same[name] == 1 else f"{name.removesuffix(')')}, {identity[:_DIGITS]})"
        for identity, name in plain.items()
    }


def _place(run: RunSummary) -> str:
    return data_path(run.values) or count_of(run.values["dataset.train_samples"], "training image")


def _is_subset(run: RunSummary) -> bool:
    """Return whether a data set has a published one's name but another number of samples."""
    if run.dataset not in _PUBLISHED:
        return False
    published = group_values("dataset", run.dataset)
    return any(run.values.get(f"dataset.{key}", published[key]) != published[key] for key in _COUNTS)
