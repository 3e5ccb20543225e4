"""What tables call the data sets of a study: by name, and where that is not enough by what tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from lab.study.runs import RunSummary
from launcher import paths
from launcher.config.yaml_file import read_mapping

# The data set of the published points: other pictures must not pass for it.
PUBLISHED = "imagenet"
_COUNTS = ("classes", "train_samples", "val_samples")
_DIGITS = 8


def dataset_names(runs: Iterable[RunSummary]) -> dict[str, str]:
    """Identity to name; with the path where several data sets bear one name, and more where those are one too."""
    first: dict[str, RunSummary] = {}
    for run in runs:
        first.setdefault(run.identity, run)
    whole = {identity: run for identity, run in first.items() if not _is_part(run)}
    bearers = Counter(run.dataset for run in whole.values())
    plain = {
        identity: run.dataset if identity in whole and bearers[run.dataset] == 1 else f"{run.dataset} ({_place(run)})"
        for identity, run in first.items()
    }
    same = Counter(plain.values())
    return {
        identity: name if same[name] == 1 else f"{name.removesuffix(')')}, {_told(identity, first[identity])})"
        for identity, name in plain.items()
    }


def _place(run: RunSummary) -> str:
    return run.data_path or f"{run.values.get('dataset.train_samples', '?')} training pictures"


def _told(identity: str, run: RunSummary) -> str:
    return identity[:_DIGITS] if run.pictures else f"no fingerprint, {run.values.get('dataset.train_samples')} pictures"


def _is_part(run: RunSummary) -> bool:
    """Does it bear the published data set's name and hold another number of pictures?"""
    if run.dataset != PUBLISHED:
        return False
    return any(run.values.get(f"dataset.{key}", count) != count for key, count in _published_counts().items())


@cache
def _published_counts() -> dict[str, Any]:
    values = read_mapping(paths.CONF / "dataset" / f"{PUBLISHED}.yaml")
    return {key: values[key] for key in _COUNTS}
