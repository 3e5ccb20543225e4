"""The format of run folders and exports, and what configs of earlier formats lack."""

from collections.abc import Mapping
from typing import Any

from launcher.config.layers import get, put, without

# The format that this version writes. A version that adds or removes keys or files raises it, and states below what
# earlier formats lack, or have besides.
FORMAT = 3
# By format: the keys that the next one added, with the values that have the old behaviour. Version 0.1 wrote format 1.
_ADDED: Mapping[int, Mapping[str, Any]] = {
    1: {
        **{"code": [], "code_sha256": [], "callbacks": {}, "metrics": {}, "dataset.links": "refuse"},
        **{"dataset.tokenizer": None, "dataset.columns.text": None, "stop.minutes": None},
        **{"metric": None, "heartbeat": None, "dataset.folds": None, "dataset.fold": None, "dataset.groups": None},
        **{"dataset.channels": 3, "dataset.dtype": "uint8", "hardware.network": None, "launch.numa": "off"},
        **{"image.eval_views": "centre", "dataset.class_level": "first", "algorithms.backbone_freezing.stages": 1},
        **{"algorithms.ema.snapshots": None},
        **{"loss.pos_weight": "none", "loss.logit_adjustment": 0.0},
        **{"dataloader.write_missing": False},
    },
    2: {"logger.prometheus": False, "image.fit": "crop"},
}
# Keys that format 3 removed, with the value that had no effect, and algorithms that it removed. A folder that used one
# is read without it, but resumes only with the version that wrote it.
_REMOVED: Mapping[str, Any] = {
    "algorithms.ema.snapshots": None,
    "heartbeat": None,
    "logger.trackio": None,
    "dataloader.write_missing": False,
    "dataloader.files.restart_interval": 0,
    "dataloader.files.small_side": None,
    "dataloader.files.small_jpeg_share": 0.0,
    "nonfinite.lr_factor": 0.5,
}
# The same of keys whose value differs by the option of their group.
_REMOVED_BY_OPTION: Mapping[str, Mapping[str, Any]] = {"dataloader.decode": {"ffcv": "whole", "torchvision": "cpu"}}
_REMOVED_ALGORITHMS: frozenset[str] = frozenset(
    {"bias_scaling", "lookahead", "sample_dropping", "stored_labels", "translation"}
)
# Values that format 3 removed, by key, with the value that a folder is read with.
_REMOVED_VALUES: Mapping[str, Mapping[Any, Any]] = {
    "nonfinite.policy": {"rollback": "skip"},
    "dataloader.decoder": {"opencv": "simplejpeg", "torchvision": "simplejpeg"},
}
# The key that could have a number of each class; a folder is read with their mean.
_OF_CLASSES = "algorithms.label_smoothing.smoothing"
# Options that format 3 removed, by group, with the one that a folder is read with, which takes over equal keys. The
# groups may change on resume.
_REMOVED_OPTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "logger": {"trackio": {"name": "jsonl", "interval": "10ba", "tensorboard": False}}
}
# Data sets whose images format 3 trains on in another order.
REORDERED = ("cifar",)
# Options that became examples, by group: they need code that is named.
_EXAMPLES: Mapping[str, str] = {"model": "airbench"}
# The option of its group that a key belongs to, where others lack it.
_OPTION = {
    "loss.pos_weight": "bce",
    "loss.logit_adjustment": "cross_entropy",
    "logger.prometheus": "several",
    "dataloader.write_missing": "ffcv",
}
# Fields of records in metrics.jsonl that an earlier format named otherwise.
RENAMED_FIELDS = {"image_size": "view", "images_per_second": "samples_per_second"}
# What format 2 fitted to predictions, beside a threshold for each class instead of one.
_FITTED = frozenset({"temperature", "confidence"})
# The environment variable of a job of `train submit` with the job's identity, which the run folder records.
JOB = "TRAIN_JOB"
_ABSENT = object()


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config with the keys that an earlier format lacks, without those that had no effect."""
    complete = _with(values, dict(_added()))
    for key, value in removed_values(complete).items():
        put(complete, key, _mean(value) if key == _OF_CLASSES else _REMOVED_VALUES[key][value])
    for group, gone in _REMOVED_OPTIONS.items():
        if (instead := gone.get(get(complete, f"{group}.name"))) is not None:
            own = complete[group]
            complete[group] = {**instead, **{key: own[key] for key in instead.keys() & own.keys() - {"name"}}}
    return without(
        complete, [key for key, value in _without_effect(complete).items() if get(complete, key, _ABSENT) == value]
    )


def _without_effect(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the removed keys that a config could have, with the values that had no effect."""
    names = {key: get(values, f"{key.partition('.')[0]}.name") for key in _REMOVED_BY_OPTION}
    return {**_REMOVED, **{key: of[names[key]] for key, of in _REMOVED_BY_OPTION.items() if names[key] in of}}


def removed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys of a config that have a removed value, and that value."""
    present = {key: get(values, key) for key in _REMOVED_VALUES}
    removed = {key: value for key, value in present.items() if value in [*_REMOVED_VALUES[key]]}
    of_classes = get(values, _OF_CLASSES)
    return removed if _mean(of_classes) is None else {**removed, _OF_CLASSES: of_classes}


def with_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config with the removed keys as they had no effect, to compare it with an earlier one."""
    return _with(values, {key: value for key, value in _without_effect(values).items() if (key, value) not in _added()})


def needs_code(values: Mapping[str, Any]) -> bool:
    """Return whether a config has code of the user's, or an option that became an example."""
    return bool(values["code"]) or any(get(values, f"{group}.name") == name for group, name in _EXAMPLES.items())


def is_removed(key: str) -> bool:
    """Return whether a dotted key is of what a format removed, which only the training of a run needed."""
    removed = {*_REMOVED, *_REMOVED_BY_OPTION}
    return key in removed or key.removeprefix("algorithms.").partition(".")[0] in _REMOVED_ALGORITHMS


def is_old_behaviour(key: str, value: Any) -> bool:
    """Return whether a later format added a key, and its value has the behaviour before."""
    return (key, value) in _added()


def facts_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the task of an export has computed, without what an earlier format fitted to predictions."""
    kept = {name: value for name, value in facts.items() if name not in _FITTED}
    return kept if (mean := _mean(kept.get("threshold"))) is None else {**kept, "threshold": mean}


def _mean(of_classes: Any) -> float | None:
    """Return the mean of a list of numbers; None of anything else."""
    is_list = isinstance(of_classes, list) and of_classes and all(isinstance(one, int | float) for one in of_classes)
    return sum(of_classes) / len(of_classes) if is_list else None


def _with(values: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with those keys that their sections and options have, where they are absent."""
    complete = {**values}
    for key, value in keys.items():
        section = key.rpartition(".")[0]
        if key in _OPTION and get(complete, f"{key.partition('.')[0]}.name") != _OPTION[key]:
            continue
        if get(complete, key, _ABSENT) is _ABSENT and (not section or isinstance(get(complete, section), Mapping)):
            put(complete, key, value)
    return complete


def _added() -> list[tuple[str, Any]]:
    return [one for keys in _ADDED.values() for one in keys.items()]
