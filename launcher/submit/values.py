"""A cluster's own values: conf/submit/KIND.yaml, changed by `submit.KEY=VALUE` words."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, TypeVar

import yaml
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from launcher import paths
from launcher.config import overrides
from launcher.config.algorithms import STRICT, Count
from launcher.config.keys import did_you_mean
from launcher.config.layers import COMMAND_LINE
from launcher.errors import Problem, UserError

PREFIX = "submit."


@dataclass(frozen=True, config=STRICT)
class Slurm:
    """`time` as sbatch takes it, a bare number being minutes; `save_before_end` in seconds."""

    time: Annotated[str, BeforeValidator(str), Field(pattern=r"^(\d+-)?\d+(:\d+){0,2}$")]
    save_before_end: Count
    partition: str | None
    account: str | None
    program: str | None


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
    shared_memory: Annotated[str, Field(pattern=r"^\d+(Mi|Gi|Ti|M|G|T)$")]
    retries: Annotated[int, Field(ge=0)]
    grace: Count


Values = TypeVar("Values", Slurm, Sky, Kubernetes)


def read_values(kind: type[Values], words: list[str]) -> Values:
    """The values of a kind of cluster with the `submit.KEY=VALUE` words over them.

    Raises:
        UserError: with every word that does not fit.
    """
    values = yaml.safe_load((paths.CONF / "submit" / f"{kind.__name__.lower()}.yaml").read_text())
    assignments, problems = overrides.parse(words)
    known = [PREFIX + field.name for field in fields(kind)]
    for given in assignments:
        if given.key not in known:
            message = f"no such key; {did_you_mean(given.key, known)}"
            problems.append(Problem(message, given.key, given.value, COMMAND_LINE))
        values[given.key.removeprefix(PREFIX)] = given.value
    if problems:
        raise UserError(*problems)
    try:
        # note: strict types accept a mapping as a dataclass only in JSON
        return TypeAdapter(kind).validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError(*(_problem(details["loc"], details["msg"], values) for details in error.errors())) from None


def _problem(location: tuple[int | str, ...], message: str, values: dict[str, object]) -> Problem:
    name = str(location[0])
    return Problem(message.replace("Input should be", "must be"), PREFIX + name, values.get(name), COMMAND_LINE)
