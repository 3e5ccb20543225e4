"""A Slurm job: one task per node, which saves a checkpoint before its time limit and is requeued until it finishes."""

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT, AnyPath, Count
from launcher.errors import DONE, EXIT_USER_ERROR, INTERRUPTED, TERMINATED, Problem, UserError
from launcher.submit.job import NUMBER, Job, Variables, command, dns_name, exports, head
from launcher.submit.own_files import has_own_files

# note: srun kills the other tasks a minute after the first exits, not at once, so that rank 0 can plot the curve
_SRUN = 'srun --kill-on-bad-exit=0 --wait=60 --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE"'
_HEAD = f"""\
set -uo pipefail

requested="" ended="" retry=""
# the tasks save a checkpoint after the current step and exit with {TERMINATED}
trap 'requested=yes; scancel --signal=USR1 "$SLURM_JOB_ID"' USR1
# cancelled or preempted: the tasks get the signal too, and Slurm decides whether to requeue
trap 'ended=yes' TERM
"""
_RENDEZVOUS = """\
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
"""
_TAIL = f"""\
step=$!
newest_checkpoint() {{ find "$runs/$run_name/checkpoints" -name 'step-*.pt' 2>/dev/null | sort | tail -n 1; }}
before=$(newest_checkpoint)
wait "$step"; code=$?
while kill -0 "$step" 2>/dev/null; do wait "$step"; code=$?; done
after=$(newest_checkpoint)
case "$code" in
{DONE} | {EXIT_USER_ERROR} | {INTERRUPTED}) ;;
{TERMINATED}) retry=$requested ;;
*) if [ -z "$ended" ]; then retry=yes; fi ;;
esac
# after a new checkpoint, else only once after a signal: a fault, or a turn too short for a step, would repeat
if [ -z "$retry" ]; then
    :
elif [ "$after" != "$before" ] || {{ [ "$code" -gt 128 ] && [ -z "${{SLURM_RESTART_COUNT:-}}" ]; }}; then
    echo "exit code $code: job $SLURM_JOB_ID is requeued and continues from ${{after:-the first step}}"
    scontrol requeue "$SLURM_JOB_ID"
else
    echo "exit code $code: job $SLURM_JOB_ID is not requeued, because it has saved no new checkpoint"
fi
exit "$code"
"""


def _time(text: str) -> str:
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        raise ValueError("must be minutes, hours:minutes:seconds or days-hours, such as 08:00:00")
    return text


def _seconds(text: str) -> int:
    """Convert a time in sbatch's format to seconds; 0 is no limit."""
    days, _, clock = text.rpartition("-")
    parts = list(map(int, clock.split(":")))
    units = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
    return 86400 * int(days or 0) + sum(part * unit for part, unit in zip(parts, units, strict=False))


@dataclass(frozen=True, config=STRICT)
class Slurm:
    """Values of a Slurm job: `time` in sbatch's format, a bare number in minutes; `save_before_end` in seconds.

    `env` are variables of the job; `lines` are run before the first task, such as `module load cuda`.
    """

    time: Annotated[str, AfterValidator(_time)]
    save_before_end: Count
    partition: str | None
    account: str | None
    constraint: str | None
    mem: str | None
    env: Variables
    lines: list[str]
    program: AnyPath | None


def render(job: Job, values: Slurm) -> str:
    """Render the batch script; without a `program` it runs the `train` that submits it.

    Raises UserError if the time limit is not above `save_before_end`.
    """
    if 0 < _seconds(values.time) <= values.save_before_end:
        message = f"must be less than submit.time={values.time}, or the run would stop as soon as it starts"
        raise UserError(Problem(message, "submit.save_before_end", values.save_before_end))
    quoted = shlex.quote(job.name)
    start = f"{_SRUN} {shlex.quote(values.program or str(Path(sys.argv[0]).resolve()))}"
    run_name = quoted if job.named else f'{quoted}-"$SLURM_JOB_ID"'
    lines = command(job, start, runs=job.runs, run_name=run_name, rdzv='"$first:$port"')
    options = "\n".join(f"#SBATCH --{option}" for option in _options(job, values))
    rendezvous = f"runs={shlex.quote(job.runs)}\n{_RENDEZVOUS if job.nodes > 1 else ''}"
    # note: in the background, because bash handles signals only in `wait`
    comments = head(job, "sbatch FILE", f"tail -F {dns_name(job.name)}-{NUMBER}.log")
    # note: `train` finds the user's options in the folder in which it starts, and without them might use others
    place = [f"cd {shlex.quote(str(Path.cwd()))} || exit {EXIT_USER_ERROR}"] if has_own_files(job.modules) else []
    own = "".join(f"{line}\n" for line in [*exports(values.env), *values.lines, *place])
    return f"#!/usr/bin/env bash\n{comments}{options}\n\n{own}{_HEAD}\n{rendezvous}{lines} &\n{_TAIL}"


def _options(job: Job, values: Slurm) -> list[str]:
    options = [
        f"job-name={dns_name(job.name)}",
        f"nodes={job.nodes}",
        "ntasks-per-node=1",
        *([f"gpus-per-node={job.gpus}"] if job.gpus else []),
        "exclusive",
        f"time={values.time}",
        f"signal=B:USR1@{values.save_before_end}",
        "requeue",
        "open-mode=append",
        "output=%x-%j.log",
    ]
    optional = {name: getattr(values, name) for name in ("partition", "account", "constraint", "mem")}
    return options + [f"{name}={value}" for name, value in optional.items() if value is not None]
