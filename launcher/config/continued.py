"""A run's config with the changes that `train resume RUN key=value ...` asks for."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.config.changes import FREE, changed, is_free
from launcher.config.compose import compose
from launcher.config.layers import COMMAND_LINE, Layers
from launcher.config.overrides import parse
from launcher.config.resolved import as_mapping
from launcher.config.schema import GROUPS, RunConfig
from launcher.config.validate import validate
from launcher.errors import Problem, UserError


def continued(config: RunConfig, words: Sequence[str]) -> RunConfig:
    """The config to go on with; a group's option such as `launch=cpu` replaces the whole group.

    Raises:
        UserError: with every word that is wrong, or that would change what training has done so far.
    """
    assignments, problems = parse(words)
    layers = Layers()
    layers.values = as_mapping(config)
    for assignment in assignments:
        key, value = assignment.key, assignment.value
        if key in GROUPS and f"{key}." in FREE:
            value = as_mapping(compose([f"{key}={value}"]).config)[key]
        try:
            layers.set(key, value, COMMAND_LINE)
        except KeyError as error:
            problems.append(Problem(f"{error.args[0]} has no keys below it", key, value, COMMAND_LINE))
    after, invalid = validate(layers)
    if problems or invalid or after is None:
        raise UserError(*problems, *invalid)
    message = "would change what the run has done; start a new run, or change only " + ", ".join(FREE)
    past = [key for key in changed(config, after) if not is_free(key)]
    if past:
        raise UserError(*(Problem(message, key, layers.get(key), COMMAND_LINE) for key in past))
    return after
