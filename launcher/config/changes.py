"""What differs between two configs, and what may differ when a run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache

from launcher.config.compose import ON, command_line_algorithms, compose, merge
from launcher.config.defaults import options
from launcher.config.keys import ADDED, REPLACED, did_you_mean
from launcher.config.layers import COMMAND_LINE, Layers, leaves
from launcher.config.overrides import OFF, Assignment, parse
from launcher.config.references import resolve
from launcher.config.resolved import as_mapping
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.validate import validate
from launcher.errors import Problem, Problems

# Keys, and groups of keys (ending in a dot), that training so far did not depend on.
FREE = (
    "epochs",
    "target",
    "runs",
    "run_name",
    "eval_every",
    "eval_batch_size",
    "device_batch_size",
    "deterministic",
    "cuda_graphs",
    "dataset.path",
    "dataset.test_path",
    "model.checkpointing",
    "dataloader.workers",
    "dataloader.prefetch",
    "checkpoint.",
    "nonfinite.",
    "launch.",
    "hardware.",
    "logger.",
)


def changed(before: RunConfig, after: RunConfig) -> list[str]:
    """Dotted keys whose values differ, in the schema's order."""
    first, second = dict(leaves(as_mapping(before))), dict(leaves(as_mapping(after)))
    return [key for key in dict.fromkeys([*first, *second]) if first.get(key) != second.get(key)]


def fingerprint(config: RunConfig) -> str:
    """SHA-256 of the values that training so far depends on: equal for all parts of one run.

    Keys that an older part of the run did not have count only where they say something else than what it did.
    """
    values = {key: value for key, value in leaves(as_mapping(config)) if not is_free(key)}
    values = {key: value for key, value in values.items() if key not in ADDED or ADDED[key][0] != value}
    for old, (new, words) in REPLACED.items():
        before = {today: word for word, today in words.items()}
        if new in values and values[new] in before:
            values[old] = before[values.pop(new)]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@cache
def is_free(key: str) -> bool:
    """Whether a run may go on with another value of that key."""
    return any(key == free or (free.endswith(".") and key.startswith(free)) for free in FREE)


_PAST = "would change what the run has done; start a new run, or change only " + ", ".join(FREE)


def continued(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """The config to go on with; a group's option such as `launch=cpu` replaces the whole group.

    Raises:
        UserError: with every word that is wrong, or that would change what training has done so far.
    """
    problems = Problems()
    given = parse(words, problems)
    layers, before = Layers(), as_mapping(config)
    layers.values = as_mapping(config)
    active, values = command_line_algorithms(given, before["algorithms"], problems)
    for name in sorted(active ^ set(before["algorithms"])):
        problems.append(Problem(_PAST, f"algorithms.{name}", ON if name in active else OFF, COMMAND_LINE))
    for name in sorted(active & set(before["algorithms"])):
        merge(layers, values[name], problems, f"algorithms.{name}.")
    for assignment in given:
        if assignment.key.partition(".")[0] != "algorithms":
            _lay(layers, assignment, problems)
    resolve(layers, problems)
    after = None
    with problems.collected():
        after = validate(layers)
    told = {problem.key for problem in problems}
    first, now = dict(leaves(before)), dict(leaves(as_mapping(after) if after else layers.values))
    past = [key for key in first if key in now and first[key] != now[key] and not is_free(key)]
    problems += [Problem(_PAST, key, now[key], COMMAND_LINE) for key in past if key not in told]
    problems.settle()
    assert after is not None
    return after


def _lay(layers: Layers, assignment: Assignment, problems: Problems) -> None:
    """Lay one word over the run's config; a problem where it has no place there, or chooses another option of a group.

    An option such as `launch=cpu` replaces the whole group where training did not depend on it.
    """
    key, value = assignment.key, assignment.value
    group = key.removesuffix(".name")
    if group not in GROUPS or not isinstance(value, str):
        merge(layers, {key: value}, problems)
    elif value not in (known := options(group)):
        problems.append(Problem(f"no such {group}; {did_you_mean(value, known)}", key, value, COMMAND_LINE))
    elif f"{group}." in FREE:
        layers.set(group, as_mapping(compose([f"{group}={value}"]).config)[group], COMMAND_LINE)
    elif value != layers.get(f"{group}.name"):
        problems.append(Problem(_PAST, key, value, COMMAND_LINE))
