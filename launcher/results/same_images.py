"""The runs of the same images on this machine, and the words that repeat them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.config.layers import COMMAND_LINE
from launcher.config.overrides import word_of
from launcher.config.resolved import is_free
from launcher.config.schema import RunConfig
from launcher.data.identity import identity
from launcher.records.origins import read_origins
from launcher.records.run import RunSummary, read_run
from launcher.records.run_folder import RunFolder, run_folders
from launcher.records.scales import TOP1

# Keys of a command that another length of the run does not repeat.
_OF_ONE_RUN = ("epochs", "seed", "run_name", "runs", "stop.minutes", "schedule.dilate")


def runs_of(config: RunConfig, typed: Mapping[str, Any]) -> list[RunSummary]:
    """Return the runs with a top-1 in the folder of runs that have the images of a config and the `typed` values."""
    runs = [read_run(folder.path) for folder in run_folders(Path(config.runs))]
    images = identity(config, ()) if runs else None
    return [run for run in runs if run.identity == images and run.metric == TOP1 and _has(run, typed)]


def _has(run: RunSummary, typed: Mapping[str, Any]) -> bool:
    """Return whether a run has the typed values that decide its result."""
    values = run.values
    return all(
        value in (values.get(key), values.get(f"{key}.name")) or (key, value) == ("recipe", "auto")
        for key, value in typed.items()
        if not is_free(key) and key not in _OF_ONE_RUN and not key.startswith("dataset")
    )


def words_of(run: RunSummary) -> list[str]:
    """Return the words that set what a run's command line set, `recipe=auto` included, but the values of one run."""
    typed = [key for key, origin in read_origins(RunFolder(run.path)).items() if origin == COMMAND_LINE]
    words = [] if run.values.get("recipe") is None else [f"recipe={run.values['recipe']}"]
    for key in typed:
        word, inner = key.removesuffix(".name"), any(one.startswith(f"{key}.") for one in run.values)
        if key in _OF_ONE_RUN or key == "recipe":
            continue
        # note: the key of a switch has no value of its own
        value = run.values.get(key, "on" if inner else "off")
        plain = json.dumps(value, separators=(",", ":"))
        words.append(word_of(word, value) if isinstance(value, str) else f"{word}={plain}")
    return words
