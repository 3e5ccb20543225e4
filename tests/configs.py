"""Configs with changed values, without composing each one."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.schema import RunConfig


@cache
def composed(*words: str) -> RunConfig:
    return compose(words).config


def with_values(config: Any, values: Mapping[str, object]) -> Any:
    """Return the config with other values of dotted keys, checked as when composed."""
    for key, value in values.items():
        first, _, rest = key.partition(".")
        is_mapping = isinstance(config, Algorithms)
        own = config[first] if is_mapping else getattr(config, first)
        changed = {first: with_values(own, {rest: value}) if rest else value}
        config = Algorithms.of(config | changed) if is_mapping else replace(config, **changed)
    return config
