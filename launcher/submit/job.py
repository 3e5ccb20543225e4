"""The job of a run for any cluster: its name, command, machines and price, and the values of `submit.`."""

import hashlib
import os
import re
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import Field

from launcher import paths
from launcher.config import overrides
from launcher.config.fields import JOB as SET_BY_JOB
from launcher.config.formats import JOB
from launcher.config.gpus import check_gpu, locked_torch
from launcher.config.groups import price_age
from launcher.config.keys import nearest_key, with_role
from launcher.config.layers import COMMAND_LINE, leaves, put
from launcher.config.resolved import digest
from launcher.config.schema import RunConfig
from launcher.config.secrets import secret_values
from launcher.config.validate import NO_SUCH_KEY, typed
from launcher.config.yaml_file import read_mapping
from launcher.credentials import HIDDEN, is_secret
from launcher.errors import Problem, Problems, UserError
from launcher.plan.plan import processes_of_node
from launcher.submit.own_files import code_words

PREFIX = "submit."
_LONGEST_NAME = 40
# The port at which the first node of a job waits for the others.
PORT = 29400
# A comment of every job. NUMBER is the job's, which sbatch prints.
FOLLOW, NUMBER = "# to follow its log: ", "NUMBER"
ValuesT = TypeVar("ValuesT")
# Environment variables by name.
Variables = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str | int | float]


@dataclass(frozen=True)
class Job:
    """A run to submit. `words` exclude the keys that the job sets; `named`: the user set the run's name.

    identity: of the values of the run and of who submits it; the run folder records it. modules: the paths of `code`.
    total: the predicted time and cost. cores, memory: of its GPUs' share of a machine, in GiB; null: unknown. files:
    GB that it writes beside the run folder.
    """

    identity: str
    name: str
    named: bool
    words: list[str]
    nodes: int
    gpus: int
    gpu: str | None
    runs: str
    price: str
    modules: Sequence[str] = ()
    total: str | None = None
    cores: int | None = None
    memory: float | None = None
    files: float = 0.0


def make_job(config: RunConfig, words: Sequence[str]) -> Job:
    """Make the job of a checked config; its words are repeated on the cluster.

    Raises UserError if the number of GPUs per node is unknown, or torch cannot use them.
    """
    name = config.run_name or "-".join([config.recipe or config.model.architecture, config.dataset.title])
    job_words = [word for word in words if word.partition("=")[0] not in with_role(SET_BY_JOB)]
    nodes, gpus = config.launch.nnodes, gpus_of_node(config)
    if gpus:
        check_gpu(config.hardware)
    named = config.run_name is not None
    submitter = f"{os.getuid()}@{socket.gethostname()}"
    identity = hashlib.sha256(f"{digest(config)} {submitter}".encode()).hexdigest()[:16]
    machine, price = config.hardware, price_line(config)
    share = gpus / machine.gpus if machine.gpus else 0
    cores = int(machine.cores * share) if machine.cores and share else None
    memory = machine.memory * share if machine.memory and share else None
    job = Job(identity, name, named, job_words, nodes, gpus, machine.gpu, config.runs, price, config.code)
    return replace(job, cores=cores, memory=memory)


def head(job: Job, submit: str, follow: str) -> str:
    """Return the first comments of a job: price, time and cost, how to submit it and follow its log, and its driver."""
    total = f"# {job.total}\n" if job.total else ""
    driver = f"# its nodes need NVIDIA's driver {oldest_driver()} or newer\n" if job.gpus else ""
    return f"# {job.price}\n{total}# to submit it: {submit}\n{FOLLOW}{follow}\n{driver}"


def oldest_driver() -> int:
    """Return NVIDIA's oldest driver for the locked torch."""
    torch = locked_torch()
    return torch.drivers[torch.cuda]


def price_line(config: RunConfig) -> str:
    """Format the price of the job's machines with its date and source, or the missing key."""
    hardware, nodes = config.hardware, config.launch.nnodes
    if hardware.price_per_hour is None:
        return f"unknown price: conf/hardware has none for {hardware.name}"
    total = hardware.price_per_hour * nodes
    machines = f"{nodes} x {hardware.name}"
    return f"{total:.2f} {hardware.currency} an hour for {machines} ({hardware.price_source}, {price_age(hardware)})"


def stamped(job: Job) -> str:
    """Return the run's name, with a timestamp unless the user set the name, so that jobs do not share a folder."""
    return job.name if job.named else f"{job.name}-{time.strftime('%m%d-%H%M%S')}"


def dns_name(name: str) -> str:
    """Convert a name to lowercase letters, digits and dashes with a letter first, for Kubernetes and SkyPilot."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"train-{plain}".strip("-")


def command(job: Job, start: str, *, runs: str, run_name: str, rdzv: str) -> str:
    """Return bash lines that start the run with the command `start`, or resume it if the job has run before.

    `train` refuses a run of this name that another job has made. On several nodes the command is the same each time and
    joins the run folder. `run_name` and `rdzv` are bash words.
    """
    folder = f'{shlex.quote(runs)}/"$run_name"'
    words = f'{shlex.join([*job.words, overrides.word_of("runs", runs)])} "run_name=$run_name"'
    if job.nodes > 1:
        lines = [f"words=({words} launch.nnodes={job.nodes} launch.rdzv={rdzv})"]
    else:
        lines = [
            f"if [ -f {folder}/config.yaml ]; then",
            f"    words=({' '.join(['resume', folder, *map(shlex.quote, code_words(job.modules))])})",
            "else",
            f"    words=({words})",
            "fi",
        ]
    return "\n".join([f"export {JOB}={job.identity}", f"run_name={run_name}", *lines, f'{start} "${{words[@]}}"'])


def exports(variables: Variables) -> list[str]:
    """Return the bash lines that set variables."""
    return [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]


def gpus_of_node(config: RunConfig) -> int:
    """Return the GPUs per node; 0 on the CPU.

    Raises UserError if the config has neither the machine's number nor that of its processes.
    """
    launch, gpus = config.launch, config.hardware.gpus
    if launch.device == "cpu":
        return 0
    if launch.nproc == "auto" and gpus is None:
        message = "has no number of GPUs; set another of train ls hardware, or launch.nproc=8"
        raise UserError(Problem(message, "hardware", config.hardware.name))
    return processes_of_node(launch, gpus or 0)


def read_values(kind: type[ValuesT], words: list[str]) -> ValuesT:
    """Read the values of a kind of cluster, overridden by the `submit.KEY=VALUE` words.

    Raises UserError with all invalid words.
    """
    values = read_mapping(paths.CONF / "submit" / f"{kind.__name__.lower()}.yaml")
    problems = Problems()
    # note: options of sbatch have dashes, keys have none
    words = [re.sub(r"^submit\.[\w-]+(?==)", lambda name: name[0].replace("-", "_"), word) for word in words]
    assignments = overrides.parse(words, problems, kind, PREFIX)
    for one in assignments:
        put(values, one.key.removeprefix(PREFIX), one.value)
    problems += _replaced(assignments)
    problems += _texts(values)
    problems += _others(kind, values)
    with problems.collected():
        checked = typed(kind, values, lambda key: COMMAND_LINE, PREFIX)
    problems.settle()
    return checked


def _replaced(assignments: Sequence[overrides.Assignment]) -> Iterator[Problem]:
    """Yield values that are no mapping and that a later word, of a key inside them, replaces."""
    for number, one in enumerate(assignments, 1):
        inner = next((later.key for later in assignments[number:] if later.key.startswith(f"{one.key}.")), None)
        if inner is not None and one.value is not None and not isinstance(one.value, Mapping):
            yield Problem(
                f"must be a mapping, since {inner} is set; omit one of them", one.key, one.value, COMMAND_LINE
            )


def _others(kind: type, values: dict[str, Any]) -> Iterator[Problem]:
    """Remove keys that a kind of cluster has under no similar name, and yield how it takes its other options."""
    how = getattr(kind, "OTHERS", "")
    for name in [name for name in values if how and nearest_key(name, kind) is None]:
        value = HIDDEN if is_secret(name) else values[name]
        text = "VALUE" if value is None or isinstance(value, dict | list) else value
        message = how.format(name=name.replace("_", "-"), value=text)
        yield Problem(f"{NO_SUCH_KEY}; {message}", PREFIX + name, value, COMMAND_LINE)
        del values[name]


def _texts(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield texts that would change the job, or show a credential in it."""
    for key, value in leaves(values):
        for text in value if isinstance(value, list) else [value]:
            # note: a variable of a container
            if isinstance(text, dict) and "value" in text and is_secret(str(text.get("name")).lower()):
                message = f"shows the credential {text['name']} in the job; set submit.secrets to names instead"
                yield Problem(message, PREFIX + key, HIDDEN, COMMAND_LINE)
            # note: a second line could set an option of the job
            if isinstance(text, str) and not text.isprintable():
                message = "must be one line of printable characters"
                yield Problem(message, PREFIX + key, text, COMMAND_LINE)
        section, _, name = key.rpartition(".")
        if section == "env" and is_secret(name.lower()):
            message = "is a credential by its name, which the job would show; set submit.secrets to names instead"
            yield Problem(message, PREFIX + key, HIDDEN, COMMAND_LINE)
    if isinstance(env := values.get("env"), dict):
        values = {**values, "env": {name: value for name, value in env.items() if not is_secret(name.lower())}}
    yield from secret_values({PREFIX.rstrip("."): values}, lambda key: COMMAND_LINE)
