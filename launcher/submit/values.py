"""A cluster's own values: conf/submit/KIND.yaml, changed by `submit.KEY=VALUE` words."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from launcher import paths
from launcher.config import overrides
from launcher.config.fields import STRICT, AnyPath, Count
from launcher.config.keys import did_you_mean, is_text
from launcher.config.layers import COMMAND_LINE
from launcher.config.validate import message
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, Problems, UserError

PREFIX = "submit."


def _time(text: str) -> str:
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        raise ValueError("must be minutes, hours:minutes:seconds or days-hours: write eight hours as 08:00:00")
    return text


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+(Mi|Gi|Ti|M|G|T)", text):
        raise ValueError("must be a whole number and Mi, Gi, Ti, M, G or T: write 64 GiB as 64Gi")
    return text


@dataclass(frozen=True, config=STRICT)
class Slurm:
    """`time` as sbatch takes it, a bare number being minutes; `save_before_end` in seconds."""

    time: Annotated[str, AfterValidator(_time)]
    save_before_end: Count
    partition: str | None
    account: str | None
    program: AnyPath | None


@dataclass(frozen=True, config=STRICT)
class Sky:
    """`disk` in GB; `gpus` maps the names of conf/hardware to SkyPilot's."""

    spot: bool
    restarts: Annotated[int, Field(ge=0)]
    cloud: str | None
    disk: Count
    data: str | None
    runs: str | None
    image: str | None
    gpus: dict[str, str]


@dataclass(frozen=True, config=STRICT)
class Kubernetes:
    """`data` and `runs` are persistent volume claims, `grace` is in seconds."""

    image: str
    data: str
    runs: str
    shared_memory: Annotated[str, AfterValidator(_memory)]
    retries: Annotated[int, Field(ge=0)]
    grace: Count


Values = TypeVar("Values", Slurm, Sky, Kubernetes)


def read_values(kind: type[Values], words: list[str]) -> Values:
    """The values of a kind of cluster with the `submit.KEY=VALUE` words over them.

    Raises:
        UserError: with every word that does not fit.
    """
    values = read_mapping(paths.CONF / "submit" / f"{kind.__name__.lower()}.yaml")
    problems = Problems()
    known = [PREFIX + field.name for field in fields(kind)]
    for given in overrides.parse(words, problems, lambda key: is_text(kind, key.removeprefix(PREFIX))):
        if given.key not in known:
            no_key = f"no such key; {did_you_mean(given.key, known)}"
            problems.append(Problem(no_key, given.key, given.value, COMMAND_LINE))
        values[given.key.removeprefix(PREFIX)] = given.value
    problems.settle()
    try:
        # note: strict types accept a mapping as a dataclass only in JSON
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(*(_problem(dict(details), values) for details in error.errors())) from None


def _problem(details: dict[str, Any], values: dict[str, object]) -> Problem:
    name = str(details["loc"][0])
    return Problem(message(PREFIX + name, details), PREFIX + name, values.get(name), COMMAND_LINE)
