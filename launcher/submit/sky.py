"""A SkyPilot managed job: when a spot machine is preempted, the run resumes on another. Fields of SkyPilot 0.14."""

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, Count, Positive
from launcher.config.yaml_file import as_yaml
from launcher.errors import TERMINATED, Problem, UserError
from launcher.installation import package_of
from launcher.submit.job import PORT, Job, Variables, command, dns_name, head, oldest_driver, stamped
from launcher.submit.own_files import FOLDER, own_files

_DISK = 512  # GB of a copy of ImageNet, the packages and the run
# note: SkyPilot's machines have Python 3.10
_PYTHON = """\
python3 -m pip install --quiet --target "$HOME/uv" uv
"$HOME/uv/bin/uv" python install --quiet 3.12
PYTHON=$("$HOME/uv/bin/uv" python find --managed-python 3.12) make setup
"""
_FIRST = 'first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'


@dataclass(frozen=True, config=STRICT)
class Sky:
    """Values of a SkyPilot job: `disk` in GB, null for `_DISK` and the files that the run writes.

    `gpus` maps the names of conf/hardware to SkyPilot's. `env` are variables of the job; `secrets` are names of
    variables of this machine, whose values SkyPilot passes on.
    """

    spot: bool
    restarts: Annotated[int, Field(ge=0)]
    infra: str | list[str] | None
    max_hourly_cost: Positive | None
    disk: Count | None
    data: str | None
    runs: str | None
    image: str | None
    env: Variables
    secrets: list[str]
    gpus: dict[str, str]


def render(job: Job, values: Sky) -> str:
    """Render the task's YAML.

    Raises UserError if the GPU has no SkyPilot name, spot machines have no bucket to resume from, or without an image
    this folder is not a checkout.
    """
    if values.image is None and not Path("scripts/setup.sh").is_file():
        message = "without an image the job installs train from a copy of this folder, but it is not a checkout"
        raise UserError(Problem(f"{message}; change to one, or set submit.image=IMAGE", "submit.image", None))
    mirror = next((word.partition("=")[2] for word in job.words if word.startswith("checkpoint.mirror=")), "")
    if values.spot and values.runs is None and not mirror:
        message = "spot machines need a bucket to resume from: set checkpoint.mirror or submit.runs=s3://BUCKET/runs"
        raise UserError(Problem(f"{message}, or submit.spot=false", "submit.runs", None))
    start = "exec train" if values.image else "exec .venv/bin/train"
    runs = "/runs" if values.runs else "runs"
    files = own_files(job.words, job.modules)
    # note: without an image the job has a copy of this folder
    files = files if values.image else {}
    lines = command(job, start, runs=runs, run_name=shlex.quote(stamped(job)), rdzv=f'"$first:{PORT}"')
    place = f"cd {FOLDER}\n" if files else ""
    mounts = _mounts(values) | {f"{FOLDER}/{name}": name for name in files}
    task: dict[str, Any] = {
        "name": dns_name(job.name),
        "num_nodes": job.nodes,
        "resources": _resources(job, values),
        **({} if values.image else {"workdir": "."}),
        **({"file_mounts": mounts} if mounts else {}),
        **({"envs": {name: str(value) for name, value in values.env.items()}} if values.env else {}),
        **({"secrets": dict.fromkeys(values.secrets)} if values.secrets else {}),
        **({} if values.image else {"setup": f"{_setup(job)}{_package(mirror)}"}),
        "run": f"{place}{_FIRST if job.nodes > 1 else ''}{lines}\n",
    }
    spot = "; spot machines cost less" if values.spot else ""
    job = replace(job, price=f"{job.price}, on demand{spot}")
    where = "" if values.image else ", in a checkout of train, which the job copies"
    passed = "".join(f" --secret {name}" for name in values.secrets)
    return head(job, f"sky jobs launch{passed} FILE{where}", f"sky jobs logs --name {task['name']}") + as_yaml(task)


def _setup(job: Job) -> str:
    """Return the lines that install `train`, with a Python of their own, once the driver is new enough."""
    oldest = oldest_driver()
    driver = (
        "driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1 | cut -d. -f1)\n"
        f'if [ "${{driver:-0}}" -lt {oldest} ]; then\n'
        f'    echo "error: the driver ${{driver:-none}} is older than {oldest}; set submit.image or submit.infra" >&2\n'
        "    exit 1\nfi\n"
    )
    return f"{driver if job.gpus else ''}{_PYTHON}"


def _package(url: str) -> str:
    """Return the line that installs the package of a mirror's protocol, such as s3fs, which `make setup` does not."""
    package = package_of(url) if "://" in url else "fsspec"
    return f".venv/bin/python -m pip install {package}\n" if package != "fsspec" else ""


def _resources(job: Job, values: Sky) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if job.gpus:
        if job.gpu not in values.gpus:
            message = f"has no SkyPilot name; choose one of {', '.join(values.gpus)}, or add it to submit.gpus"
            raise UserError(Problem(message, "hardware.gpu", job.gpu))
        resources["accelerators"] = f"{values.gpus[job.gpu]}:{job.gpus}"
    if isinstance(values.infra, list):
        resources["any_of"] = [{"infra": one} for one in values.infra]
    elif values.infra:
        resources["infra"] = values.infra
    if values.max_hourly_cost:
        resources["max_hourly_cost"] = values.max_hourly_cost
    resources["use_spot"] = values.spot
    resources["job_recovery"] = {
        "max_restarts_on_errors": values.restarts,
        # note: the machine's own shutdown, after which a checkpoint was saved
        "recover_on_exit_codes": [TERMINATED],
    }
    resources["disk_size"] = values.disk or _DISK + math.ceil(job.files)
    if values.image:
        resources["image_id"] = f"docker:{values.image}"
    return resources


def _mounts(values: Sky) -> dict[str, Any]:
    mounts: dict[str, Any] = {}
    if values.data:
        mounts["/data"] = {"source": values.data, "mode": "COPY"}
    if values.runs:
        # note: the plain mount supports neither appending nor renaming, which a run folder needs
        mounts["/runs"] = {"source": values.runs, "mode": "MOUNT_CACHED"}
    return mounts
