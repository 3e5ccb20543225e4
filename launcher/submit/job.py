"""What every kind of cluster needs of a run: its name, command, machines and price, and the values of `submit.`."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from launcher import paths
from launcher.config import overrides
from launcher.config.groups import price_age
from launcher.config.keys import is_text
from launcher.config.layers import COMMAND_LINE
from launcher.config.schema import RunConfig
from launcher.config.validate import typed
from launcher.config.yaml_file import read_mapping
from launcher.errors import Problem, Problems, UserError
from launcher.plan.plan import processes_of_node

PREFIX = "submit."
_OF_THE_JOB = ("run_name", "runs", "launch.nnodes", "launch.rdzv")
_LONGEST_NAME = 40
# Where the first machine of a job waits for the others.
PORT = 29400
ValuesT = TypeVar("ValuesT")


@dataclass(frozen=True)
class Job:
    """A run to submit. `words` leave out what the job itself says; `named` tells whether the user chose the name."""

    name: str
    named: bool
    words: list[str]
    nodes: int
    gpus: int
    gpu: str | None
    runs: str
    price: str


def make_job(config: RunConfig, words: Sequence[str]) -> Job:
    """The job of a checked config, whose words are given again on the cluster.

    Raises:
        UserError: the number of GPUs of a machine is not known.
    """
    name = config.run_name or "-".join([config.recipe or config.model.architecture, config.dataset.name])
    kept = [word for word in words if word.partition("=")[0] not in _OF_THE_JOB]
    hardware = config.hardware
    return Job(
        name, config.run_name is not None, kept, config.launch.nnodes, _gpus(config), hardware.gpu, config.runs,
        price_line(config),
    )  # fmt: skip


def price_line(config: RunConfig) -> str:
    """The price of the job's machines, with its date and source, or how to have it shown."""
    hardware, nodes = config.hardware, config.launch.nnodes
    if hardware.price_per_hour is None:
        return f"unknown price: conf/hardware has none for {hardware.name}"
    total = hardware.price_per_hour * nodes
    machines = f"{nodes} x {hardware.name}"
    return f"{total:.2f} {hardware.currency} an hour for {machines} ({hardware.price_source}, {price_age(hardware)})"


def stamped(job: Job) -> str:
    """The run's name, with the time where the user gave none: a job that runs twice must not meet another's folder."""
    return job.name if job.named else f"{job.name}-{time.strftime('%m%d-%H%M%S')}"


def dns_name(name: str) -> str:
    """A name as Kubernetes and SkyPilot take it: letters, digits and dashes, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"train-{plain}".strip("-")


def command(job: Job, start: str, *, runs: str, run_name: str, rdzv: str) -> str:
    """Bash lines that start the run by the command `start`, or go on with it where the job has run before.

    Several machines give one command each time: they join the run's folder. `run_name` and `rdzv` are bash words.
    """
    folder = f'{shlex.quote(runs)}/"$run_name"'
    words = f'{shlex.join([*job.words, overrides.word_of("runs", runs)])} "run_name=$run_name"'
    if job.nodes > 1:
        lines = [f"words=({words} launch.nnodes={job.nodes} launch.rdzv={rdzv})"]
    else:
        lines = [
            f"if [ -f {folder}/config.yaml ]; then",
            f"    words=(resume {folder})",
            "else",
            f"    words=({words})",
            "fi",
        ]
    return "\n".join([f"run_name={run_name}", *lines, f'{start} "${{words[@]}}"'])


def dump(values: dict[str, Any]) -> str:
    """Values as YAML, in their order; texts of several lines as blocks."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=110)


class _Dumper(yaml.SafeDumper):
    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _gpus(config: RunConfig) -> int:
    """GPUs of one machine; none on the CPU."""
    launch, gpus = config.launch, config.hardware.gpus
    if launch.device == "cpu":
        return 0
    if launch.nproc == "auto" and gpus is None:
        message = "has no number of GPUs; choose another (train ls hardware), or set launch.nproc=8"
        raise UserError(Problem(message, "hardware", config.hardware.name))
    return processes_of_node(launch, gpus or 0)


def read_values(kind: type[ValuesT], words: list[str]) -> ValuesT:
    """The values of a kind of cluster with the `submit.KEY=VALUE` words over them.

    Raises:
        UserError: with every word that does not fit.
    """
    values = read_mapping(paths.CONF / "submit" / f"{kind.__name__.lower()}.yaml")
    problems = Problems()
    for given in overrides.parse(words, problems, lambda key: is_text(kind, key.removeprefix(PREFIX))):
        if isinstance(given.value, str) and not given.value.isprintable():
            # note: a second line would be an option of the job
            problems.append(Problem("must be one line of printable characters", given.key, given.value, COMMAND_LINE))
        values[given.key.removeprefix(PREFIX)] = given.value
    with problems.collected():
        read = typed(kind, values, lambda key: COMMAND_LINE, PREFIX)
    problems.settle()
    return read
