"""The format of run folders and exports, and what configs of earlier formats lack."""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.config.layers import get, put

# The format that this version writes. A version that adds keys or files raises it, and states below what earlier
# formats lack.
FORMAT = 2
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
        **{"algorithms.stored_labels.true_class_below": 0.0, "algorithms.stored_labels.smoothing": 0.1},
        **{"dataloader.write_missing": False},
    }
}
# The option of its group that a key belongs to, where others lack it.
_OPTION = {"loss.pos_weight": "bce", "loss.logit_adjustment": "cross_entropy", "dataloader.write_missing": "ffcv"}
# Fields of records in metrics.jsonl that an earlier format named otherwise.
RENAMED_FIELDS = {"image_size": "view", "images_per_second": "samples_per_second"}
# The environment variable of a job of `train submit` with the job's identity, which the run folder records.
JOB = "TRAIN_JOB"
_ABSENT = object()


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config with the keys that an earlier format lacks."""
    complete = {**values}
    for key, value in _added():
        section = key.rpartition(".")[0]
        if key in _OPTION and get(complete, f"{section}.name") != _OPTION[key]:
            continue
        if get(complete, key, _ABSENT) is _ABSENT and (not section or isinstance(get(complete, section), Mapping)):
            put(complete, key, value)
    return complete


def is_old_behaviour(key: str, value: Any) -> bool:
    """Return whether a later format added a key, and its value has the behaviour before."""
    return (key, value) in _added()


def _added() -> Iterator[tuple[str, Any]]:
    for keys in _ADDED.values():
        yield from keys.items()
