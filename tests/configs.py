"""Configs with changed values, without composing each one."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from launcher.config.compose import compose
from launcher.config.schema import RunConfig


@cache
def composed(*words: str) -> RunConfig:
    return compose(words).config


def with_values(config: Any, values: Mapping[str, object]) -> Any:
    """Return the config with other values of dotted keys, checked as when composed."""
    for key, value in values.items():
        first, _, rest = key.partition(".")
        config = replace(config, **{first: with_values(getattr(config, first), {rest: value}) if rest else value})
    return config
