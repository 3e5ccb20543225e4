"""`train submit`: print or submit a run as a job for Slurm, SkyPilot or Kubernetes."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from launcher.config.compose import DATA_FOLDER, Composed, compose
from launcher.console import for_programs, only_json, print_json
from launcher.data.inspection import Inspection, inspect_data
from launcher.data.loaders.base import source_of
from launcher.errors import UserError
from launcher.launch.devices import planned
from launcher.launch.files_first import gigabytes_first
from launcher.launch.prepare import Prepared, prepare
from launcher.submit import kubernetes, sky, slurm
from launcher.submit.job import FOLLOW, NUMBER, PREFIX, Job, make_job, read_values

EXAMPLES = [
    "train submit --slurm recipe=hot epochs=240 dataset.path=/data/imagenet",
    "train submit --slurm recipe=mild dataset.path=/data/imagenet batch_size=4096 launch.nnodes=2 --run",
    "train submit --sky recipe=hot dataset.path=/data submit.data=s3://mine/imagenet submit.runs=s3://mine/runs",
    "train submit --kubernetes recipe=mild dataset.path=/data/imagenet submit.image=registry.example/train:1",
]
# Per cluster: the type of its values, the renderer, the submitting command, and the file name, its last argument.
_KINDS: dict[str, tuple[type, Callable[[Job, Any], str], list[str], str]] = {
    "slurm": (slurm.Slurm, slurm.render, ["sbatch"], "job.sh"),
    "sky": (sky.Sky, sky.render, ["sky", "jobs", "launch", "--yes", "--detach-run"], "job.yaml"),
    "kubernetes": (kubernetes.Kubernetes, kubernetes.render, ["kubectl", "create", "--filename"], "job.yaml"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--slurm", dest="kind", action="store_const", const="slurm", help="an sbatch script")
    kind.add_argument("--sky", dest="kind", action="store_const", const="sky", help="a SkyPilot task")
    kind.add_argument("--kubernetes", dest="kind", action="store_const", const="kubernetes", help="a manifest")
    parser.add_argument("--run", action="store_true", help="submit the job instead of printing it")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the run; submit.KEY=VALUE sets the job up")


def main(arguments: argparse.Namespace) -> int:
    of_the_job = [word for word in arguments.overrides if word.startswith(PREFIX)]
    words = [word for word in arguments.overrides if not word.startswith(PREFIX)]
    composed = arguments.composed or compose(words)
    job = make_job(composed.config, words)
    kind, render, command, file = _KINDS[arguments.kind]
    values: Any = read_values(kind, of_the_job)
    prepared = _check(composed, job, values, arguments.seen)
    from launcher.prediction.total import total  # note: NumPy and the prices of machines

    is_spot, files = isinstance(values, sky.Sky) and values.spot, gigabytes_first(prepared.plan)
    job = replace(job, total=total([prepared.plan], is_spot=is_spot), files=files)
    text = render(job, values)
    note = kubernetes.note_on_image(values.image) if isinstance(values, kubernetes.Kubernetes) else None
    if arguments.run:
        secrets = [f"--secret={name}" for name in values.secrets] if isinstance(values, sky.Sky) else []
        with only_json(arguments.json):
            submitted = _submit(text, [*command, *secrets], file)
        if arguments.json:
            print_json({"kind": arguments.kind, "text": text, **submitted._asdict()})
        _show(note)
        return submitted.code
    if arguments.json:
        print_json({"kind": arguments.kind, "text": text, "file": file, "command": [*command, file]})
    else:
        print(text, end="")
    _show(note)
    return 0


def _show(note: str | None) -> None:
    if note:
        print(f"note: {note}", file=sys.stderr)


def _check(composed: Composed, job: Job, values: Any, seen: Inspection | None) -> Prepared:
    """Refuse what the start of the run on the cluster refuses, as far as this machine has its files and packages."""
    config = composed.config
    shares = isinstance(values, slurm.Slurm)
    if isinstance(values, sky.Sky | slurm.Slurm):
        check_path(composed, values)
    return prepare(
        replace(composed, config=replace(config, run_name=config.run_name or job.name)),
        devices=planned(config.launch, config.hardware.gpus or job.gpus),
        seen=seen,
        must_exist=False,
        packages=shares and values.program is None,
        is_new=shares and job.named,
        weights=shares,
    )


def check_path(composed: Composed, values: slurm.Slurm | sky.Sky) -> None:
    """Raise UserError unless the config, or the job's image, variables or program have the path of images."""
    config, given = composed.config, [*values.env]
    if isinstance(values, slurm.Slurm):
        own, given = values.program, [*given, *values.lines]
    else:
        own = values.image
        if "environment" in (composed.origins.get("dataset.path") or ""):
            # note: a rented machine has no variable of this one
            config = replace(config, dataset=replace(config.dataset, path=None))
    reads = config.dataloader.reads and not config.dataset.is_built_in
    if (
        reads
        and own is None
        and not any(DATA_FOLDER in one for one in given)
        and source_of(config).reads_from(config) is None
    ):
        inspect_data(config, must_exist=True, skipped=())


class _Submitted(NamedTuple):
    """The exit code of the submitting program, the number of a Slurm job, and how to follow the log of the job."""

    code: int
    job: str | None = None
    follow: str | None = None


def _submit(text: str, command: Sequence[str], file: str) -> _Submitted:
    """Write a job to a file, run the submitting command on it, and print how to follow its log.

    Raises UserError if the program is not installed.
    """
    program = command[0]
    if shutil.which(program) is None:
        raise UserError(f"{program} is not installed; omit --run to print the job and submit it elsewhere")
    with tempfile.TemporaryDirectory(prefix="train-submit-") as folder:
        path = Path(folder) / file
        *before, job = text.split("\n---\n")
        for document in before:
            # note: a runtime of this name may be left of an earlier job, and must exist before the new one
            path.write_text(document, encoding="utf-8")
            apply = [program, "apply", "--filename", str(path)]
            if code := subprocess.run(apply, stdout=for_programs(), check=False).returncode:
                return _Submitted(code)
        path.write_text(job, encoding="utf-8")
        # note: sky shows its progress on a terminal
        pipe = subprocess.PIPE if program == "sbatch" else for_programs()
        done = subprocess.run([*command, str(path)], stdout=pipe, text=True, check=False)
    number, follow = None, None
    if done.stdout is not None:
        print(done.stdout, end="")
        number = next(iter(re.findall(r"\d+", done.stdout)), None)
    if done.returncode == 0:
        line = next(line for line in text.splitlines() if line.startswith(FOLLOW))
        follow = line.removeprefix("# ").replace(NUMBER, number or NUMBER)
        print(follow)
    return _Submitted(done.returncode, number, follow)
